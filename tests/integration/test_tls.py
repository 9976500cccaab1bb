"""Tests TLS and certificates of clients at the real server. The clients are gRPC's own, an HTTP client, and the Python
and C++ clients of this repository.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import resource
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from identity_calls import HEALTH, LIST, StartServer, code_of, few_points, get, stock, tool
from identity_files import Authority, Server

import voxserve
from voxserve import wire


def test_tls_serves_all_clients(tls_server: Server, authority: Authority) -> None:
    ca = authority.certificate
    models = wire.ListModelsResponse.FromString(stock(tls_server.address, LIST, b"", ca=ca))
    assert [model.name for model in models.models] == ["centerpoint", "minkunet"]
    with voxserve.Client(tls_server.address, tls_ca=ca, admin_address=tls_server.admin_address) as client:
        points = few_points()
        assert len(client.segment("minkunet", points, timeout=60)) == len(points)
        assert client.load_model("minkunet") == (1,)
    assert get(tls_server, "/metrics", ca) == 200
    assert get(tls_server, "/healthz", ca) == 200
    done = tool("models", "--address", tls_server.address, "--tls_ca", str(ca))
    assert (done.returncode, "minkunet" in done.stdout) == (0, True), done.stderr
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.create_default_context(cafile=str(ca))
        context.minimum_version = context.maximum_version = version
        connection = http.client.HTTPSConnection("localhost", tls_server.http_port, timeout=20, context=context)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()


def test_tls_refuses_who_does_not_speak_it(tls_server: Server) -> None:
    code, _ = code_of(tls_server.address, HEALTH, b"")
    assert code is grpc.StatusCode.UNAVAILABLE
    with pytest.raises((http.client.HTTPException, OSError)):
        get(tls_server, "/healthz", None)
    with voxserve.Client(tls_server.address, timeout=20) as client, pytest.raises(voxserve.UnavailableError):
        client.models()
    done = tool("models", "--address", tls_server.address)
    assert done.returncode == 1
    tls_server.await_line(r"connection closed .*reason=NOT_TLS", 5)


def asked(address: str, ca: Path | None) -> list[str]:
    """Returns what the Python and the C++ client say of an address that they cannot use."""
    client = voxserve.Client(address, tls_ca=ca or "", timeout=20)
    with client, pytest.raises(voxserve.UnavailableError) as caught:
        client.models()
    done = tool("models", "--address", address, *(["--tls_ca", str(ca)] if ca else []))
    assert done.returncode == 1
    return [str(caught.value), done.stderr]


def test_clients_say_that_a_port_has_another_protocol(
    start: StartServer, tls_server: Server, authority: Authority
) -> None:
    server = start()
    ca = authority.certificate
    closes = "it closes the connection; if the server has {}"
    lacking = closes.format("TLS, name its root certificates with tls_ca")
    needless = closes.format("no TLS, leave out tls_ca")
    http = "it answers HTTP/1 and no gRPC, as voxserve's --http_port does"
    for address, roots, hint in (
        (tls_server.address, None, lacking),
        (f"127.0.0.1:{tls_server.http_port}", None, lacking),
        (f"127.0.0.1:{tls_server.http_port}", ca, "it has TLS and no gRPC, as voxserve's --http_port does"),
        (server.address, ca, needless),
    ):
        check_hint(hint, asked(address, roots))
    # An HTTP/1 server answers what it cannot read and closes the connection. Now and then the end overtakes the answer.
    address = f"127.0.0.1:{server.http_port}"
    for roots, hint, overtaken in ((None, http, lacking), (ca, "it answers without TLS; leave out tls_ca", needless)):
        for _ in range(10):
            texts = asked(address, roots)
            if not any(overtaken in text for text in texts):
                break
        check_hint(hint, texts)


def check_hint(hint: str, texts: list[str]) -> None:
    for text in texts:
        assert hint in text
        assert "is voxserve running there" not in text
        assert "no server at" not in text


def test_clients_refuse_a_server_of_another_root(tls_server: Server, stranger: Authority) -> None:
    ca = stranger.certificate
    code, _ = code_of(tls_server.address, HEALTH, b"", ca=ca)
    assert code is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(ssl.SSLCertVerificationError):
        get(tls_server, "/healthz", ca)
    with voxserve.Client(tls_server.address, tls_ca=ca, timeout=20) as client:
        with pytest.raises(voxserve.UnavailableError) as caught:
            client.models()
        assert caught.value.reason == "TLS_FAILED"
    done = tool("models", "--address", tls_server.address, "--tls_ca", str(ca))
    assert done.returncode == 1
    assert "no TLS connection" in done.stderr


@pytest.mark.usefixtures("binary")
def test_a_handshake_that_breaks_off_is_no_refusal(authority: Authority) -> None:
    ca = authority.certificate
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def close_all() -> None:
            with contextlib.suppress(OSError):  # the listener is closed at the end
                while True:
                    listener.accept()[0].close()

        closer = threading.Thread(target=close_all)
        closer.start()
        try:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            with voxserve.Client(address, tls_ca=ca, timeout=20) as client:
                with pytest.raises(voxserve.UnavailableError) as caught:
                    client.models()
            done = tool("models", "--address", address, "--tls_ca", str(ca))
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            closer.join()
    assert caught.value.reason in ("NO_SERVER", "CONNECTION_LOST")
    assert done.returncode == 1
    assert "no TLS connection" not in done.stderr


@pytest.mark.parametrize("version", ["-tls1", "-tls1_1"])
def test_old_tls_is_refused(tls_server: Server, version: str) -> None:
    for port in (tls_server.port, tls_server.http_port):
        done = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", version, "-cipher", "ALL:@SECLEVEL=0"],
            input=b"", capture_output=True, timeout=30,
        )  # fmt: skip
        assert b"Cipher is (NONE)" in done.stdout or done.returncode != 0, done.stdout


def test_ciphers_without_forward_secrecy_are_refused(start: StartServer, authority: Authority) -> None:
    certificate, key = authority.issue("server-rsa", "serverAuth", key_type="rsa")
    server = start(f"--tls_certificate={certificate}", f"--tls_key={key}")

    def cipher_of(port: int, ciphers: str) -> str:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(ciphers)
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            return connection.cipher()[0]

    for port in (server.port, server.admin_port, server.http_port):
        assert cipher_of(port, "ECDHE-RSA-AES128-GCM-SHA256") == "ECDHE-RSA-AES128-GCM-SHA256"
        # "kRSA": the client encrypts the session's secret with the key of the server's certificate.
        with pytest.raises((ssl.SSLError, OSError)):
            pytest.fail(f"port {port} accepts {cipher_of(port, 'kRSA:@SECLEVEL=0')}")


def test_connections_without_a_call_are_counted(start: StartServer, tls_flags: list[str], authority: Authority) -> None:
    server = start(*tls_flags)

    def count(reason: str) -> float:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        connection = http.client.HTTPSConnection("localhost", server.http_port, timeout=20, context=context)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        found = re.search(rf'voxserve_connections_unused_total{{reason="{reason}"}} (\d+)', text)
        return int(found[1]) if found else 0

    def await_count(reason: str, expected: int) -> None:
        end = time.monotonic() + 20
        while (counted := count(reason)) != expected:
            assert time.monotonic() < end, (reason, counted, expected)
            time.sleep(0.1)

    for _ in range(2):
        socket.create_connection(("127.0.0.1", server.port)).close()
    await_count("NO_FIRST_BYTES", 2)
    # A client that does not trust the certificate ends the handshake with an alert; one offers no cipher of ours.
    distrusting, without_cipher = ssl.create_default_context(), ssl.create_default_context()
    without_cipher.maximum_version = ssl.TLSVersion.TLSv1_2
    without_cipher.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256")  # the certificate has a key of another type
    for context in (distrusting, without_cipher):
        with socket.create_connection(("127.0.0.1", server.port)) as plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain, server_hostname="localhost")
    await_count("NO_CALL", 2)
    trusting = ssl.create_default_context(cafile=str(authority.certificate))
    trusting.set_alpn_protocols(["h2"])
    # No call at all; then HEADERS whose block does not end, and no CONTINUATION.
    for count_before, frame in ((2, b""), (3, b"\0\0\1\1\0\0\0\0\1\x83")):
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            trusting.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0" + frame)
            assert connection.recv(1)
        await_count("NO_CALL", count_before + 1)
    stock(server.address, HEALTH, b"", ca=authority.certificate)
    time.sleep(0.5)
    assert (count("NO_CALL"), count("NO_FIRST_BYTES")) == (4, 2)


# ---- certificates of clients


def test_mutual_tls_lets_known_clients_in(mutual_server: Server, authority: Authority) -> None:
    certificate, key = authority.issue("truck-7", "clientAuth")
    pair = {"certificate_chain": certificate.read_bytes(), "private_key": key.read_bytes()}
    assert stock(mutual_server.address, LIST, b"", ca=authority.certificate, **pair)
    options = {"tls_ca": authority.certificate, "tls_certificate": certificate, "tls_key": key}
    with voxserve.Client(mutual_server.address, admin_address=mutual_server.admin_address, **options) as client:
        assert len(client.segment("minkunet", few_points(), timeout=60))
        assert client.load_model("minkunet") == (1,)
    mutual_server.await_line(r"audit action=LoadModel who=certificate:truck-7 .* model=minkunet .* code=OK", 5)
    arguments = [f"--{name}={value}" for name, value in options.items()]
    done = tool("models", "--address", mutual_server.address, *arguments)
    assert done.returncode == 0, done.stderr
    for path in ("/metrics", "/", "/healthz"):
        assert get(mutual_server, path, authority.certificate, pair=(certificate, key)) == 200, path


def test_mutual_tls_refuses_unknown_clients(
    mutual_server: Server, authority: Authority, stranger: Authority, folder: Path
) -> None:
    ca = authority.certificate
    assert code_of(mutual_server.address, HEALTH, b"", ca=ca)[0] is grpc.StatusCode.UNAVAILABLE
    assert code_of(mutual_server.admin_address, HEALTH, b"", ca=ca)[0] is grpc.StatusCode.UNAVAILABLE
    done = tool("models", "--address", mutual_server.address, "--tls_ca", str(ca))
    assert done.returncode == 1
    with (
        voxserve.Client(mutual_server.address, tls_ca=ca, timeout=20) as client,
        pytest.raises(voxserve.UnavailableError),
    ):
        client.models()
    for issuer, usage in ((stranger, "clientAuth"), (authority, "serverAuth")):
        certificate, key = issuer.issue(f"wrong-{usage}", usage)
        pair = {"certificate_chain": certificate.read_bytes(), "private_key": key.read_bytes()}
        assert code_of(mutual_server.address, HEALTH, b"", ca=ca, **pair)[0] is grpc.StatusCode.UNAVAILABLE, usage
        assert get(mutual_server, "/metrics", ca, pair=(certificate, key)) == 403, usage
    for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 403), ("/", 403)):
        assert get(mutual_server, path, ca) == status, path


# ---- certificates that change


class LiveCertificate:
    """The files of a server's certificate and key, and two pairs to copy to them."""

    def __init__(self, authority: Authority, folder: Path, name: str) -> None:
        self.files = (folder / f"{name}.crt", folder / f"{name}.key")
        self.pairs = [authority.issue(f"{name}{turn}", "serverAuth") for turn in range(2)]
        self.flags = (f"--tls_certificate={self.files[0]}", f"--tls_key={self.files[1]}")
        self.use(0)

    def use(self, turn: int) -> bytes:
        """Copies a pair, and returns its certificate as clients see it."""
        for source, target in zip(self.pairs[turn], self.files, strict=True):
            shutil.copy(source, target)
        return ssl.PEM_cert_to_DER_cert(self.pairs[turn][0].read_text())


def test_a_certificate_changes_under_load_without_a_failed_call(
    start: StartServer, authority: Authority, folder: Path
) -> None:
    live = LiveCertificate(authority, folder, "live")
    server = start(*live.flags)
    failures: list[str] = []
    counts = {"new": 0, "kept": 0, "http": 0, "stream": 0}
    stop = threading.Event()
    ca = authority.certificate
    points = few_points()

    def repeat(kind: str, call: Callable[[], object]) -> None:
        while not stop.is_set():
            try:
                call()
                counts[kind] += 1
            except Exception as error:  # Any failed call fails this test.
                failures.append(f"{kind}: {error!r}")

    def over_http() -> None:
        assert get(server, "/metrics", ca) == 200

    def over_a_new_connection() -> None:
        stock(server.address, HEALTH, b"", ca=ca)

    def over_a_stream() -> None:
        with voxserve.Client(server.address, tls_ca=ca) as own, own.stream("minkunet", policy="queue") as stream:
            for frame in range(5):
                stream.send(frame, points)
            stream.close_sends()
            assert [result.error for result in stream] == [None] * 5

    with voxserve.Client(server.address, tls_ca=ca) as client:
        work = {
            "new": over_a_new_connection,
            "kept": lambda: client.segment("minkunet", points),
            "http": over_http,
            "stream": over_a_stream,
        }
        threads = [threading.Thread(target=repeat, args=item) for item in work.items()]
        for thread in threads:
            thread.start()
        serials = [serial_of(server.port), serial_of(server.http_port)]
        for turn in (1, 0, 1):
            expected = live.use(turn)
            for port in (server.port, server.http_port, server.admin_port):
                await_certificate(port, expected)
            serials.append(serial_of(server.port))
        # The key does not fit the certificate, so the server keeps the certificate that it had.
        shutil.copy(live.pairs[0][1], live.files[1])
        server.await_line(r"the certificate before stays .*does not belong", 10)
        await_certificate(server.port, expected)
        await_certificate(server.http_port, expected)
        live.files[0].unlink()
        server.await_line(r"the certificate before stays .*No such file", 10)
        time.sleep(1)
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not failures, failures[:5]
    assert min(counts.values()) >= 5, counts
    assert server.log().count("TLS certificate loaded anew") == 3
    print(f"certificate changed 3 times under load: {counts}, no failure")


def test_http_tries_a_certificate_again_that_it_had_no_descriptor_for(
    start: StartServer, authority: Authority, folder: Path
) -> None:
    live = LiveCertificate(authority, folder, "again")
    server = start(*live.flags)
    before = serial_of(server.http_port)
    expected = live.use(1)
    assert before != expected
    server.await_line(r"TLS certificate loaded anew", 15)
    # The HTTP server takes it over with the next connection, which must find no descriptor.
    limits = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with socket.create_connection(("127.0.0.1", server.http_port)):
            server.await_line(r"HTTP cannot use the new certificate.*the one before stays until it can", 15)
    finally:
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limits)
    await_certificate(server.http_port, expected)
    assert server.log().count("HTTP cannot use the new certificate") == 1


def serial_of(port: int) -> bytes:
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))


def await_certificate(port: int, expected: bytes) -> None:
    end = time.monotonic() + 15
    while serial_of(port) != expected:
        assert time.monotonic() < end, f"port {port} does not show the new certificate"
        time.sleep(0.1)
