"""Tests TLS, certificates of clients, tokens and the operators' port of the real server. The clients are gRPC's own, an
HTTP client, and the Python and C++ clients of this repository.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest
from identity_files import REPOSITORY, Authority, Server, token_line

import voxserve
from voxserve import wire

SCAN = REPOSITORY / "deploy" / "scans" / "pandaset_070.bin"
TRUCK, OPERATOR, SCRAPER, OTHER = (f"{name}-token-0123456789" for name in ("truck", "operator", "scraper", "other"))
TOKENS = (
    token_line("truck", TRUCK, "infer:mink*")
    + token_line("operator", OPERATOR, "admin")
    + token_line("scraper", SCRAPER, "metrics")
    + token_line("other", OTHER, "infer:centerpoint*")
)
StartServer = Callable[..., Server]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("identity")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder, "root")


@pytest.fixture(scope="module")
def stranger(folder: Path) -> Authority:
    return Authority(folder, "stranger")


@pytest.fixture(scope="module")
def binary() -> str:
    path = os.environ.get("VOXSERVE_BINARY")
    if not path:
        pytest.skip("VOXSERVE_BINARY does not name the server's binary; tests/run.sh sets it")
    return path


@pytest.fixture(scope="module")
def start(folder: Path, binary: str) -> Iterator[StartServer]:
    count = iter(range(100))
    with ExitStack() as stack:

        def make(*flags: str) -> Server:
            server = Server(binary, folder / f"log{next(count)}", *flags)
            stack.callback(server.close)
            server.await_ready()
            return server

        yield make


@pytest.fixture(scope="module")
def tls_flags(authority: Authority) -> list[str]:
    certificate, key = authority.issue("server", "serverAuth")
    return [f"--tls_certificate={certificate}", f"--tls_key={key}"]


@pytest.fixture(scope="module")
def tls_server(start: StartServer, tls_flags: list[str]) -> Server:
    return start(*tls_flags)


@pytest.fixture(scope="module")
def mutual_server(start: StartServer, tls_flags: list[str], authority: Authority) -> Server:
    return start(*tls_flags, f"--tls_client_ca={authority.certificate}")


@pytest.fixture(scope="module")
def token_server(start: StartServer, tls_flags: list[str], folder: Path) -> Server:
    (folder / "tokens").write_text(TOKENS)
    return start(*tls_flags, f"--auth_tokens={folder / 'tokens'}")


def stock(address: str, method: str, request: bytes, token: str = "", ca: Path | None = None, **pair: bytes) -> bytes:
    """Makes a call with plain grpcio and returns the response's bytes. pair: a client's certificate and key."""
    if ca is None:
        channel = grpc.insecure_channel(address)
    else:
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca.read_bytes(), **pair))
    metadata = (("authorization", f"Bearer {token}"),) if token else None
    with channel:
        return bytes(channel.unary_unary(method)(request, timeout=20, metadata=metadata))


def code_of(*arguments: object, **keywords: object) -> tuple[grpc.StatusCode, str]:
    try:
        stock(*arguments, **keywords)  # type: ignore[arg-type]
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


LIST = "/voxserve.v1.InferenceService/ListModels"
INFER = "/voxserve.v1.InferenceService/Infer"
LOAD = "/voxserve.v1.AdminService/LoadModel"
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def get(server: Server, path: str, ca: Path | None, token: str = "", pair: tuple[Path, Path] | None = None) -> int:
    """Returns the status of a GET over HTTP, or over HTTPS if `ca` is given."""
    if ca is None:
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)
    else:
        context = ssl.create_default_context(cafile=str(ca))
        if pair is not None:
            context.load_cert_chain(*pair)
        connection = http.client.HTTPSConnection("localhost", server.http_port, timeout=20, context=context)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status
    finally:
        connection.close()


def few_points() -> np.ndarray:
    return np.fromfile(SCAN, np.float32).reshape(-1, 4)[::100]


def tool(*arguments: str, token: str = "") -> subprocess.CompletedProcess[str]:
    """Runs voxserve-client, which is built beside the server's binary, with the token in its environment."""
    path = Path(os.environ["VOXSERVE_BINARY"]).parents[1] / "client" / "cpp" / "voxserve-client"
    environment = {**os.environ, "VOXSERVE_TOKEN": token}
    return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60, env=environment)


# ---- TLS


def test_tls_serves_all_clients(tls_server: Server, authority: Authority) -> None:
    ca = authority.certificate
    models = wire.ListModelsResponse.FromString(stock(tls_server.address, LIST, b"", ca=ca))
    assert [model.name for model in models.models] == ["minkunet"]
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


@pytest.mark.parametrize("version", ["-tls1", "-tls1_1"])
def test_old_tls_is_refused(tls_server: Server, version: str) -> None:
    for port in (tls_server.port, tls_server.http_port):
        done = subprocess.run(
            ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", version, "-cipher", "ALL:@SECLEVEL=0"],
            input=b"", capture_output=True, timeout=30,
        )  # fmt: skip
        assert b"Cipher is (NONE)" in done.stdout or done.returncode != 0, done.stdout


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


def test_a_certificate_changes_under_load_without_a_failed_call(
    start: StartServer, authority: Authority, folder: Path
) -> None:
    live = [folder / "live.crt", folder / "live.key"]
    pairs = [authority.issue(f"turn{turn}", "serverAuth") for turn in range(2)]
    for source, target in zip(pairs[0], live, strict=True):
        shutil.copy(source, target)
    server = start(f"--tls_certificate={live[0]}", f"--tls_key={live[1]}")
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
            for source, target in zip(pairs[turn], live, strict=True):
                shutil.copy(source, target)
            expected = ssl.PEM_cert_to_DER_cert(pairs[turn][0].read_text())
            for port in (server.port, server.http_port, server.admin_port):
                await_certificate(port, expected)
            serials.append(serial_of(server.port))
        # The key does not fit the certificate, so the server keeps the certificate that it had.
        shutil.copy(pairs[0][1], live[1])
        server.await_line(r"the certificate before stays .*does not belong", 10)
        await_certificate(server.port, expected)
        await_certificate(server.http_port, expected)
        live[0].unlink()
        server.await_line(r"the certificate before stays .*No such file", 10)
        time.sleep(1)
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not failures, failures[:5]
    assert min(counts.values()) >= 5, counts
    assert server.log().count("TLS certificate loaded anew") == 3
    print(f"certificate changed 3 times under load: {counts}, no failure")


def serial_of(port: int) -> bytes:
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))


def await_certificate(port: int, expected: bytes) -> None:
    end = time.monotonic() + 15
    while serial_of(port) != expected:
        assert time.monotonic() < end, f"port {port} does not show the new certificate"
        time.sleep(0.1)


# ---- tokens


def test_what_is_open_without_a_token(token_server: Server, authority: Authority) -> None:
    ca, missing = authority.certificate, grpc.StatusCode.UNAUTHENTICATED
    assert code_of(token_server.address, HEALTH, b"", ca=ca)[0] is grpc.StatusCode.OK
    assert code_of(token_server.admin_address, HEALTH, b"", ca=ca)[0] is grpc.StatusCode.OK
    for method in (LIST, INFER, REFLECTION):
        code, text = code_of(token_server.address, method, b"", ca=ca)
        assert (code, text) == (missing, "this server asks for a token: send authorization: Bearer TOKEN"), method
    assert code_of(token_server.admin_address, LOAD, b"", ca=ca)[0] is missing
    for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 401), ("/", 401), ("/none", 401)):
        assert get(token_server, path, ca) == status, path


def test_unknown_tokens_are_refused(token_server: Server, authority: Authority) -> None:
    ca = authority.certificate
    assert code_of(token_server.address, LIST, b"", token=TRUCK + "x", ca=ca) == (
        grpc.StatusCode.UNAUTHENTICATED,
        "the token is unknown to this server",
    )
    assert get(token_server, "/metrics", ca, token="nonsense") == 401
    with voxserve.Client(token_server.address, tls_ca=ca, token="nonsense") as client:
        with pytest.raises(voxserve.UnauthenticatedError) as caught:
            client.models()
        assert caught.value.reason == "UNKNOWN_TOKEN"
        with client.stream("minkunet") as stream, pytest.raises(voxserve.UnauthenticatedError):
            next(iter(stream))
    done = tool("models", "--address", token_server.address, "--tls_ca", str(ca), token="nonsense")
    assert done.returncode == 1
    assert "the token is unknown to this server; give the token with --token_file" in done.stderr


def test_a_token_does_what_its_scopes_say(token_server: Server, authority: Authority, folder: Path) -> None:
    ca = authority.certificate
    points = few_points()

    def client(token: str) -> voxserve.Client:
        return voxserve.Client(
            token_server.address, tls_ca=ca, token=token, admin_address=token_server.admin_address, timeout=60
        )

    with client(TRUCK) as truck:
        assert len(truck.segment("minkunet", points)) == len(points)
        assert [model.name for model in truck.models()] == ["minkunet"]
        with truck.stream("minkunet") as stream:
            stream.send(1, points)
            stream.close_sends()
            assert [result.error for result in stream] == [None]
        for model in ("centerpoint", "nothing"):  # The refusal must not tell whether the model exists.
            with pytest.raises(voxserve.PermissionDeniedError, match="has no scope infer: that fits") as caught:
                truck.segment(model, points)
            assert caught.value.reason == "SCOPE_TOO_SMALL"
            with pytest.raises(voxserve.PermissionDeniedError):
                truck.model(model)
            with truck.stream(model) as stream, pytest.raises(voxserve.PermissionDeniedError):
                stream.send(1, points)
                next(iter(stream))
        with pytest.raises(voxserve.NotFoundError, match="there is no such model"):
            truck.segment("minks", points)
        with pytest.raises(voxserve.PermissionDeniedError, match='"truck" lacks the scope admin'):
            truck.load_model("minkunet")
    with client(OTHER) as other:
        assert other.models() == []
        with pytest.raises(voxserve.PermissionDeniedError):
            other.segment("minkunet", points)
        with pytest.raises(voxserve.NotFoundError) as unknown:
            other.segment("centerpoint", points)
        assert "minkunet" not in str(unknown.value)
    with client(OPERATOR) as operator:
        assert operator.load_model("minkunet") == (1,)
        assert [model.name for model in operator.models()] == ["minkunet"]
        with pytest.raises(voxserve.PermissionDeniedError, match="no scope infer:MODEL"):
            operator.segment("minkunet", points)
    assert get(token_server, "/metrics", ca, token=SCRAPER) == 200
    assert get(token_server, "/", ca, token=SCRAPER) == 200
    assert get(token_server, "/metrics", ca, token=TRUCK) == 403
    assert code_of(token_server.address, LIST, b"", token=SCRAPER, ca=ca)[0] is grpc.StatusCode.PERMISSION_DENIED
    token_server.await_line(r"audit action=LoadModel who=token:operator peer=\S+ model=minkunet .* code=OK", 5)
    token_server.await_line(r"audit action=LoadModel who=nobody .* code=PERMISSION_DENIED reason=SCOPE_TOO_SMALL", 5)
    assert not any(token in token_server.log() for token in (TRUCK, OPERATOR, SCRAPER, OTHER))


def test_the_command_line_takes_tokens(token_server: Server, authority: Authority, folder: Path) -> None:
    at = ["--address", token_server.address, "--tls_ca", str(authority.certificate)]
    done = tool("models", *at, token=TRUCK)
    assert (done.returncode, "minkunet" in done.stdout) == (0, True), done.stderr
    file = folder / "operator-token"
    file.write_text(OPERATOR + "\n")
    admin = ["--admin_address", token_server.admin_address, "--token_file", str(file)]
    done = tool("load", "minkunet", *at, *admin)
    assert (done.returncode, done.stdout) == (0, "minkunet: version 1 in service\n"), done.stderr
    done = tool("load", "minkunet", *at, *admin[:2], token=TRUCK)
    assert done.returncode == 1
    assert "lacks the scope admin; the server's operator says" in done.stderr
    done = tool("infer", "--model", "minkunet", str(SCAN), *at, "--timeout", "60s", token=TRUCK)
    assert done.returncode == 0, done.stderr
    done = tool("bench", "--model", "minkunet", str(SCAN), *at, "--duration", "1s", "--concurrency", "1",
                "--json", str(folder / "bench.json"), token=TRUCK)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "bench.json").read_text())
    done = tool("tune", "--model", "minkunet", "--max_wait", "1s", *at, *admin)
    token_server.await_line(r"audit action=TunePlan who=token:operator", 5)


def test_tokens_change_with_their_file(
    start: StartServer, tls_flags: list[str], authority: Authority, folder: Path
) -> None:
    file = folder / "changing"
    file.write_text(token_line("first", TRUCK, "infer:*"))
    server = start(*tls_flags, f"--auth_tokens={file}")
    ca = authority.certificate
    assert code_of(server.address, LIST, b"", token=TRUCK, ca=ca)[0] is grpc.StatusCode.OK
    file.write_text(token_line("second", OPERATOR, "infer:*"))
    server.await_line(r"tokens loaded anew tokens=1", 10)
    assert code_of(server.address, LIST, b"", token=TRUCK, ca=ca)[0] is grpc.StatusCode.UNAUTHENTICATED
    assert code_of(server.address, LIST, b"", token=OPERATOR, ca=ca)[0] is grpc.StatusCode.OK
    file.write_text("second abc admin\n")
    server.await_line(r"the tokens before stay .*line 1: the second column", 10)
    assert code_of(server.address, LIST, b"", token=OPERATOR, ca=ca)[0] is grpc.StatusCode.OK


def test_tokens_without_tls_where_asked_for(start: StartServer, folder: Path) -> None:
    (folder / "tokens").write_text(TOKENS)
    server = start(f"--auth_tokens={folder / 'tokens'}", "--insecure_tokens")
    assert code_of(server.address, LIST, b"")[0] is grpc.StatusCode.UNAUTHENTICATED
    with voxserve.Client(server.address, token=TRUCK) as client:
        assert [model.name for model in client.models()] == ["minkunet"]


# ---- what keeps a server from starting


@pytest.mark.parametrize(
    ("flags", "status", "text"),
    [
        (["--tls_certificate={server}.crt"], 2, "--tls_certificate needs --tls_key as well"),
        (["--tls_key={server}.key"], 2, "--tls_key needs --tls_certificate as well"),
        (["--tls_client_ca={root}.pem"], 2, "--tls_client_ca needs --tls_certificate and --tls_key"),
        (["--auth_tokens={tokens}"], 2, "--auth_tokens needs --tls_certificate and --tls_key"),
        (["--insecure_tokens"], 2, "--insecure_tokens needs --auth_tokens"),
        (["--port=65535"], 2, "--admin_port=65536"),
        (["--port=8079", "--http_port=8080"], 2, "--admin_port and --http_port are both 8080"),
        (["--admin_host="], 2, "--admin_host is empty"),
        (["--admin_host=192.0.2.1"], 1, "--admin_port chooses another port, --admin_host another address"),
        (["--tls_certificate={none}", "--tls_key={server}.key"], 1, "cannot be read: No such file"),
        (["--tls_certificate={server}.crt", "--tls_key={root}.key"], 1, "does not belong to the first certificate"),
        (["--tls_certificate={server}.key", "--tls_key={server}.key"], 1, "has no certificate in PEM form"),
        (["--tls_certificate={expired}.crt", "--tls_key={expired}.key"], 1, "expired on 2"),
        (["--tls_certificate={server}.crt", "--tls_key={server}.key", "--tls_client_ca={tokens}"], 1,
         "tokens has no certificate"),
        (["--auth_tokens={none}", "--insecure_tokens"], 1, "cannot be read: No such file"),
        (["--auth_tokens={badtokens}", "--insecure_tokens"], 1, "line 2: unknown scope"),
        (["--hash_token", "--port=1"], 2, "--hash_token stands alone"),
    ],
)  # fmt: skip
def test_bad_files_and_flags_are_told(
    binary: str, folder: Path, authority: Authority, flags: list[str], status: int, text: str
) -> None:
    authority.issue("server", "serverAuth")
    authority.issue("expired", "serverAuth", days=-1)
    (folder / "tokens").write_text(TOKENS)
    (folder / "badtokens").write_text("# tokens\n" + token_line("x", TRUCK, "admn"))
    names = {name: str(folder / name) for name in ("server", "root", "expired", "tokens", "badtokens", "none")}
    ports = [] if any(flag.startswith("--port") for flag in flags) else ["--port=0", "--http_port=0"]
    own = [flag.format(**names) for flag in flags]
    if "--hash_token" not in flags:
        own += [f"--model_repository={REPOSITORY / 'deploy' / 'models'}", "--devices=cpu", *ports]
    done = subprocess.run([binary, *own], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == status, done.stderr
    assert text in done.stderr


def test_hash_token_makes_what_a_line_has(binary: str) -> None:
    def hashed(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binary, "--hash_token"], input=text, capture_output=True, text=True, timeout=30)

    assert hashed(TRUCK + "\n").stdout == token_line("", TRUCK, "").split()[0] + "\n"
    assert hashed(TRUCK).stdout == hashed(TRUCK + "\n").stdout
    for text, problem in (("short\n", "5 characters"), ("", "0 characters"), (f"{TRUCK}\n{OPERATOR}\n", "one line")):
        done = hashed(text)
        assert (done.returncode, done.stdout) == (2, "")
        assert problem in done.stderr
