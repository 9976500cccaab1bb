"""Tests that an identity which was taken back, or has ended, ends what was begun with it. The server looks at the
identities of open calls every five seconds.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
import socket
import ssl
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest
from identity_calls import LIST, OPERATOR, OTHER, SCRAPER, TRUCK, StartServer, few_points, health_request
from identity_files import REPOSITORY, Authority, Server, token_line

import voxserve
from voxserve import wire

sys.path.append(str(Path(__file__).resolve().parents[1] / "hostile"))
import http2

END_SECONDS = 60  # The promise is a minute at the latest.
LOOK_SECONDS = 6  # After this time the server has looked at least once.
CERTIFICATE_DAYS = 15 / 86_400
OPEN_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
WATCH = "/grpc.health.v1.Health/Watch"
REPORTS = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"
SCRAPE = token_line("scraper", SCRAPER, "metrics")
GOOD = "infer:mink* priority=1 share=2"


class OpenCall:
    """A call that stays open, of a method with one request and many answers, or of ModelStreamInfer. answers: false if
    the first answer does not come soon.
    """

    def __init__(
        self, channel: grpc.Channel, method: str, request: bytes = b"", token: str = "", answers: bool = True
    ) -> None:
        metadata = (("authorization", f"Bearer {token}"),) if token else None
        requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._call = channel.stream_stream(method)(iter(requests.get, None), timeout=120, metadata=metadata)
        if method != OPEN_STREAM:
            requests.put(request)
        if method != OPEN_STREAM and answers:
            next(self._call)
        # gRPC tells the end of a call when all its answers were read.
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for _ in self._call:
                pass

    def is_open(self) -> bool:
        return bool(self._call.is_active())

    def end(self) -> grpc.StatusCode:
        await_true(lambda: not self.is_open(), "the call goes on")
        return self._call.code()


class Vehicle(threading.Thread):
    """A stream that sends a frame every fifth of a second until it ends, or is stopped. `error` is what ended it."""

    def __init__(self, client: voxserve.Client, points: np.ndarray) -> None:
        super().__init__(daemon=True)
        self._client, self._points = client, points
        self._stopped = threading.Event()
        self.num_answered = 0
        self.error: voxserve.InferenceError | None = None
        self.start()
        assert self.goes_on(), self.error

    def run(self) -> None:
        try:
            with self._client.stream("minkunet", policy="queue", priority=1) as stream:
                results = iter(stream)
                while not self._stopped.wait(0.2):
                    stream.send(self.num_answered, self._points)
                    assert next(results).error is None
                    self.num_answered += 1
        except voxserve.InferenceError as error:
            self.error = error

    def goes_on(self) -> bool:
        """Waits for further answers. Returns false if the stream ends before them."""
        enough = self.num_answered + 2
        await_true(lambda: self.num_answered >= enough or not self.is_alive(), "no answer")
        return self.num_answered >= enough

    def end(self) -> tuple[str, str]:
        self.join(END_SECONDS)
        assert not self.is_alive(), "the stream goes on"
        assert self.error is not None
        return type(self.error).__name__, self.error.reason

    def stop(self) -> None:
        self._stopped.set()
        self.join()


def await_true(condition, what: str) -> None:
    end = time.monotonic() + END_SECONDS
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def metrics_of(server: Server, authority: Authority, pair: tuple[Path, Path] | None = None) -> dict[str, float]:
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if pair is not None:
        context.load_cert_chain(*pair)
    request = urllib.request.Request(
        f"https://localhost:{server.http_port}/metrics", headers={"Authorization": f"Bearer {SCRAPER}"}
    )
    with urllib.request.urlopen(request, context=context, timeout=20) as answer:
        lines = [line.rpartition(" ") for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def secure_channel(server: Server, authority: Authority, pair: tuple[Path, Path] | None = None) -> grpc.Channel:
    key, certificate = (pair[1].read_bytes(), pair[0].read_bytes()) if pair else (None, None)
    return grpc.secure_channel(
        server.address,
        grpc.ssl_channel_credentials(authority.certificate.read_bytes(), key, certificate),
        [("grpc.use_local_subchannel_pool", 1)],
    )


# ---- tokens


@pytest.fixture(scope="module")
def repository(folder: Path) -> Path:
    """A repository whose model has three priorities."""
    model, source = folder / "models" / "minkunet", REPOSITORY / "deploy" / "models" / "minkunet"
    model.mkdir(parents=True)
    (model / "1").symlink_to(source / "1")
    text = (source / "config.textproto").read_text()
    (model / "config.textproto").write_text(text + "batching { priority_levels: 3 }\n")
    return model.parent


class TokenFile:
    """The file of a server whose clients are a truck, whose rights change, and another."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write(GOOD)

    def write(self, rights: str) -> None:
        truck = token_line("truck", TRUCK, rights) if rights else ""
        new = self.path.with_suffix(".new")
        new.write_text(truck + token_line("other", OTHER, "infer:* priority=1") + SCRAPE)
        new.rename(self.path)


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens")


@pytest.fixture
def server(start: StartServer, tls_flags: list[str], repository: Path, tokens: TokenFile) -> Server:
    return start(*tls_flags, f"--auth_tokens={tokens.path}", f"--model_repository={repository}")


@pytest.fixture
def drives(server: Server, authority: Authority) -> Iterator[tuple[Vehicle, Vehicle]]:
    """A stream of the truck and one of the other client."""
    points = few_points()
    with ExitStack() as stack:
        made = []
        for token in (TRUCK, OTHER):
            client = voxserve.Client(server.address, tls_ca=authority.certificate, token=token, timeout=60)
            made.append(Vehicle(stack.enter_context(client), points))
            stack.callback(made[-1].stop)
        yield made[0], made[1]


@pytest.mark.parametrize(
    ("rights", "name", "reason"),
    [
        pytest.param("", "UnauthenticatedError", "UNKNOWN_TOKEN", id="gone"),
        pytest.param("infer:center* priority=1 share=2", "PermissionDeniedError", "SCOPE_TOO_SMALL", id="other scope"),
        pytest.param("admin share=2", "PermissionDeniedError", "SCOPE_TOO_SMALL", id="no scope"),
        pytest.param("infer:* priority=2 share=2", "PermissionDeniedError", "PRIORITY_TOO_HIGH", id="priority"),
        pytest.param("infer:* priority=1", "PermissionDeniedError", "SHARE_REDUCED", id="share"),
    ],
)
def test_a_stream_ends_when_its_token_allows_it_no_more(
    server: Server, authority: Authority, tokens: TokenFile, drives: tuple[Vehicle, Vehicle],
    rights: str, name: str, reason: str,
) -> None:  # fmt: skip
    truck, other = drives
    tokens.write(rights)
    assert truck.end() == (name, reason)
    assert other.goes_on()
    assert f"reason={reason}" in server.log()
    assert metrics_of(server, authority)[f'voxserve_calls_ended_early_total{{reason="{reason}"}}'] >= 1


def test_a_stream_outlives_changes_that_do_not_concern_it(
    server: Server, tokens: TokenFile, drives: tuple[Vehicle, Vehicle]
) -> None:
    truck, other = drives
    for turn, rights in enumerate(("infer:minkunet,metrics priority=0 share=3", "infer:* priority=1 share=2")):
        tokens.write(rights)
        await_true(lambda turn=turn: server.log().count("tokens loaded anew") == turn + 1, "not read")
        time.sleep(LOOK_SECONDS)
        assert truck.goes_on()
    assert other.goes_on()


def test_other_calls_that_last_end_too(server: Server, authority: Authority, tokens: TokenFile) -> None:
    model = health_request("voxserve.model.minkunet")
    with secure_channel(server, authority) as channel:

        def opened(token: str) -> list[OpenCall]:
            return [
                OpenCall(channel, OPEN_STREAM, token=token),
                OpenCall(channel, WATCH, model, token),
                OpenCall(channel, REPORTS, token=token),
            ]

        of_truck, of_other = opened(TRUCK), opened(OTHER)
        without = OpenCall(channel, WATCH)
        tokens.write("")
        assert [call.end() for call in of_truck] == [grpc.StatusCode.UNAUTHENTICATED] * 3
        assert all(call.is_open() for call in [*of_other, without])


def test_an_operators_search_ends_with_its_token(
    start: StartServer, tls_flags: list[str], authority: Authority, tmp_path: Path
) -> None:
    file = tmp_path / "operators"
    file.write_text(token_line("operator", OPERATOR, "admin") + SCRAPE)
    server = start(*tls_flags, f"--auth_tokens={file}")
    request = bytes(wire.TunePlanRequest(model="minkunet", max_wait_seconds=100).SerializeToString())
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    with grpc.secure_channel(server.admin_address, credentials) as channel:
        search = OpenCall(channel, "/voxserve.v1.AdminService/TunePlan", request, OPERATOR, answers=False)
        server.await_line("asked for a tuned plan", 20)
        file.write_text(SCRAPE)
        assert search.end() is grpc.StatusCode.UNAUTHENTICATED
    server.await_line(r"audit action=TunePlan who=token:operator .*code=UNAUTHENTICATED reason=UNKNOWN_TOKEN", 20)


# ---- certificates of clients


def test_what_was_begun_with_a_certificate_ends_with_it(
    start: StartServer, tls_flags: list[str], authority: Authority, repository: Path
) -> None:
    server = start(*tls_flags, f"--tls_client_ca={authority.certificate}", f"--model_repository={repository}")
    lasting = authority.issue("lasting", "clientAuth")
    ending = authority.issue("ending", "clientAuth", CERTIFICATE_DAYS)
    began = time.monotonic()
    points = few_points()
    with ExitStack() as stack:
        drives = []
        for certificate, key in (ending, lasting):
            client = voxserve.Client(
                server.address, tls_ca=authority.certificate, tls_certificate=certificate, tls_key=key, timeout=60
            )
            drives.append(Vehicle(stack.enter_context(client), points))
            stack.callback(drives[-1].stop)
        channel = stack.enter_context(secure_channel(server, authority, ending))
        idle = stack.enter_context(secure_channel(server, authority, ending))
        assert idle.unary_unary(LIST)(b"", timeout=20)
        watch = OpenCall(channel, WATCH)
        assert drives[0].end() == ("UnauthenticatedError", "CERTIFICATE_REFUSED")
        assert time.monotonic() - began > CERTIFICATE_DAYS * 86_400 - 2, "not before its end"
        assert watch.end() is grpc.StatusCode.UNAUTHENTICATED
        # A connection without calls ends with its next one.
        with pytest.raises(grpc.RpcError) as refused:
            idle.unary_unary(LIST)(b"", timeout=20)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "the client's certificate is refused by now: it expired on 2" in refused.value.details()
        assert drives[1].goes_on()
        closed = 'voxserve_calls_ended_early_total{reason="CERTIFICATE_REFUSED"}'
        # Three calls, and three connections that the server has closed.
        await_true(lambda: metrics_of(server, authority, lasting)[closed] >= 6, server.log()[-2000:])
        assert drives[1].goes_on()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda version: version.name)
def test_a_session_that_is_resumed_outlives_no_certificate(
    start: StartServer, tls_flags: list[str], authority: Authority, version: ssl.TLSVersion
) -> None:
    """A TLS session that is resumed has no handshake that looks at the certificate."""
    server = start(*tls_flags, f"--tls_client_ca={authority.certificate}")
    pair = authority.issue(f"resuming-{version.name}", "clientAuth", CERTIFICATE_DAYS)
    ended = time.monotonic() + CERTIFICATE_DAYS * 86_400 + 1
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.load_cert_chain(*pair)
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version

    def listed(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession, bool, bytes]:
        """Asks for the models. Returns the session, whether it was resumed, and what the server sent."""
        plain = socket.create_connection(("127.0.0.1", server.port), 20)
        with context.wrap_socket(plain, server_hostname="localhost", session=session) as connection:
            settings = http2.frame(http2.SETTINGS, 0, 0)
            connection.sendall(http2.PREFACE + settings + http2.call_frames(1, http2.header_block(LIST), b""))
            sent = b""
            while b"grpc-status" not in sent:
                part = connection.recv(65536)
                assert part, sent
                sent += part
            return connection.session, bool(connection.session_reused), sent

    session, is_resumed, sent = listed(None)
    assert not is_resumed
    assert b"minkunet" in sent
    time.sleep(max(0, ended - time.monotonic()))
    _, is_resumed, sent = listed(session)
    assert is_resumed
    assert b"it expired on 2" in sent
    assert b"minkunet" not in sent


def test_a_root_that_is_taken_out_ends_its_clients_streams(
    start: StartServer, tls_flags: list[str], authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    roots = tmp_path / "roots.pem"
    roots.write_text(authority.certificate.read_text() + stranger.certificate.read_text())
    server = start(*tls_flags, f"--tls_client_ca={roots}")
    ours, theirs = authority.issue("ours", "clientAuth"), stranger.issue("theirs", "clientAuth")
    with secure_channel(server, authority, ours) as our_channel, secure_channel(server, authority, theirs) as channel:
        kept, ended = OpenCall(our_channel, WATCH), OpenCall(channel, WATCH)
        shutil.copy(authority.certificate, roots)
        assert ended.end() is grpc.StatusCode.UNAUTHENTICATED
        assert kept.is_open()


def test_a_chain_of_certificates_is_looked_at_whole(
    start: StartServer, tls_flags: list[str], authority: Authority, folder: Path
) -> None:
    """The client sends an intermediate certificate, without which nobody vouches for its own."""
    middle = Authority(folder, "middle", authority)
    server = start(*tls_flags, f"--tls_client_ca={authority.certificate}")
    certificate, key = middle.issue("deep", "clientAuth")
    whole = folder / "deep-chain.pem"
    whole.write_text(certificate.read_text() + middle.certificate.read_text())
    with secure_channel(server, authority, (whole, key)) as channel:
        watch = OpenCall(channel, WATCH)
        assert channel.unary_unary(LIST)(b"", timeout=20)
        time.sleep(LOOK_SECONDS)
        assert watch.is_open()
        assert channel.unary_unary(LIST)(b"", timeout=20)


# ---- the server's own certificate


def test_the_end_of_the_servers_certificate_is_told_before_and_after(
    start: StartServer, authority: Authority, tmp_path: Path
) -> None:
    files = (tmp_path / "own.crt", tmp_path / "own.key")
    name = 'voxserve_tls_not_after_timestamp_seconds{flag="tls_certificate"}'

    def use(days: float) -> float:
        """Gives the server a certificate. Returns its end, in seconds since 1970."""
        pair = authority.issue(f"own{days}", "serverAuth", days)
        for source, target in reversed(list(zip(pair, files, strict=True))):
            shutil.copy(source, target.with_suffix(".new"))
            target.with_suffix(".new").rename(target)
        return ssl.cert_time_to_seconds(ssl._ssl._test_decode_cert(str(pair[0]))["notAfter"])  # type: ignore

    end = use(20)
    server = start(f"--tls_certificate={files[0]}", f"--tls_key={files[1]}")
    await_true(lambda: name in metrics_of(server, authority), "no metric")
    assert metrics_of(server, authority)[name] == end
    assert "ends soon" not in server.log()
    end = use(13)
    server.await_line(rf"WARNING the TLS certificate ends soon: .* file={files[0]} end=20.* days=12", 20)
    await_true(lambda: metrics_of(server, authority)[name] == end, "the metric stays")
    use(CERTIFICATE_DAYS)
    server.await_line(rf"ERROR the TLS certificate has ended: clients refuse this server file={files[0]} end=20", 60)
    assert [server.log().count(text) for text in ("ends soon", "has ended")] == [2, 1]
    use(20)
    await_true(lambda: server.log().count("TLS certificate loaded anew") == 3, "not read")
    time.sleep(2)
    assert [server.log().count(text) for text in ("ends soon", "has ended")] == [2, 1]
