"""Tests load reports (ORCA) with a stock gRPC client: what they say, who gets them, and that weighted_round_robin
balances by them.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from identity_calls import INFER, OPERATOR, OTHER, SCRAPER, TOKENS, TRUCK, StartServer, few_points
from identity_files import REPOSITORY, Authority, Server

from voxserve import wire
from voxserve.encoding import encode_request
from voxserve.point_cloud import as_cloud

REPORTS = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics"
# The milliseconds that the paced servers take for a request. At 100 requests/s each, they are busy for 20% and 80% of
# the time.
FAST_MS, SLOW_MS = 2, 8
REQUESTS_PER_SECOND = 200


@pytest.fixture(scope="module")
def orca(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Returns the message classes of the published service, made from its file."""
    path = tmp_path_factory.mktemp("orca") / "orca.binpb"
    source = REPOSITORY / "proto"
    subprocess.run(
        ["protoc", f"-I{source}", "--include_imports", f"--descriptor_set_out={path}", "xds/service/orca/v3/orca.proto"],
        check=True,
        timeout=60,
    )
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes()).file:
        pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"xds.{name}"))


@pytest.fixture(scope="module")
def report_class(orca: Callable[[str], Any]) -> Any:
    return orca("data.orca.v3.OrcaLoadReport")


@pytest.fixture(scope="module")
def request_class(orca: Callable[[str], Any]) -> Any:
    return orca("service.orca.v3.OrcaLoadReportRequest")


class PacedServer:
    """Runs voxserve_paced_server, a server that takes a given time for each request."""

    def __init__(self, milliseconds: int) -> None:
        path = Path(os.environ["VOXSERVE_BINARY"]).parents[1] / "tests" / "integration" / "voxserve_paced_server"
        if not path.exists():
            pytest.skip(f"{path} was not built")
        self.process = subprocess.Popen([path, str(milliseconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.port, self.http_port = map(int, self.process.stdout.readline().split())

    def answered(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics", timeout=20) as page:
            for line in page.read().decode().splitlines():
                if line.startswith('voxserve_frames_total{model="fake"}'):
                    return int(float(line.split()[-1]))
        return 0

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=20)


@pytest.fixture
def paced(binary: str) -> Iterator[list[PacedServer]]:
    servers = [PacedServer(FAST_MS), PacedServer(SLOW_MS)]
    yield servers
    for server in servers:
        server.close()


def scan(model: str, points: np.ndarray) -> bytes:
    return encode_request(wire.InferRequest(model=model), as_cloud(points, None), 1 << 20)


def run_load(channel: grpc.Channel, count: int) -> list[grpc.RpcError | None]:
    """Makes this many calls at a steady rate, and returns the errors."""
    infer, request = channel.unary_unary(INFER), scan("fake", np.zeros((1, 4), np.float32))
    calls: list[Future[Any]] = []
    with ThreadPoolExecutor(64) as pool:
        start = time.monotonic()
        for i in range(count):
            time.sleep(max(0.0, start + i / REQUESTS_PER_SECOND - time.monotonic()))
            calls.append(pool.submit(infer, request, timeout=30))
    return [call.exception() for call in calls if call.exception()]


def channel_to(servers: list[PacedServer], policy: dict[str, Any]) -> grpc.Channel:
    target = "ipv4:" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
    config = json.dumps({"loadBalancingConfig": [policy]})
    return grpc.insecure_channel(target, options=[("grpc.service_config", config), ("grpc.enable_http_proxy", 0)])


def first_report(address: str, request: bytes, report_class: Any, **options: Any) -> Any:
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_stream(REPORTS, response_deserializer=report_class.FromString)(request, timeout=20, **options)
        report = next(iter(call))
        call.cancel()
        return report


def spread(servers: list[PacedServer], channel: grpc.Channel, count: int) -> list[int]:
    before = [server.answered() for server in servers]
    assert run_load(channel, count) == []
    return [server.answered() - old for server, old in zip(servers, before, strict=True)]


@pytest.mark.alone
@pytest.mark.parametrize("out_of_band", [False, True], ids=["trailers", "service"])
def test_weighted_round_robin_moves_load(paced: list[PacedServer], report_class: Any, out_of_band: bool) -> None:
    with channel_to(paced, {"round_robin": {}}) as channel:
        run_load(channel, 20)
        equal = spread(paced, channel, 1000)
    loads = [first_report(f"127.0.0.1:{server.port}", b"", report_class) for server in paced]
    used = [load.application_utilization for load in loads]
    print(f"round_robin: {equal} requests, utilisation {used[0]:.2f} and {used[1]:.2f}")
    assert abs(equal[0] - 500) <= 10 and sum(equal) == 1000
    assert used[0] < 0.5 < used[1], "a fifth and four fifths, on a machine that keeps up"
    assert all(load.rps_fractional > 0 and load.eps == 0 for load in loads)

    policy = {"blackoutPeriod": "0s", "weightUpdatePeriod": "0.1s", "enableOobLoadReport": out_of_band}
    if out_of_band:
        policy["oobReportingPeriod"] = "1s"
    with channel_to(paced, {"weighted_round_robin": policy}) as channel:
        run_load(channel, 400)  # until the balancer knows the weights of both servers
        weighted = spread(paced, channel, 1000)
    used = [first_report(f"127.0.0.1:{s.port}", b"", report_class).application_utilization for s in paced]
    print(f"weighted_round_robin: {weighted} requests, utilisation {used[0]:.2f} and {used[1]:.2f}")
    assert sum(weighted) == 1000
    assert 700 <= weighted[0] <= 880, weighted


def test_a_clients_own_faults_are_no_load(paced: list[PacedServer], report_class: Any) -> None:
    address = f"127.0.0.1:{paced[1].port}"
    with grpc.insecure_channel(address) as channel:
        infer = channel.unary_unary(INFER)
        for _ in range(5):
            infer(scan("fake", np.zeros((1, 4), np.float32)), timeout=20)
            with pytest.raises(grpc.RpcError):
                infer(scan("none", np.zeros((1, 4), np.float32)), timeout=20)
        report = first_report(address, b"", report_class)
        assert 0 < report.application_utilization < 0.5
        assert 0 < report.rps_fractional <= 5 and report.eps == 0
        for _ in range(5):
            with pytest.raises(grpc.RpcError) as caught:
                infer(scan("broken", np.zeros((1, 4), np.float32)), timeout=20)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert 0 < first_report(address, b"", report_class).eps <= 5, "another server might have answered"


def test_reports_come_at_their_interval(paced: list[PacedServer], report_class: Any, request_class: Any) -> None:
    request = request_class()
    request.report_interval.nanos = 1000  # the server raises this to a second
    with grpc.insecure_channel(f"127.0.0.1:{paced[0].port}") as channel:
        method = channel.unary_stream(REPORTS, response_deserializer=report_class.FromString)
        call = method(request.SerializeToString(), timeout=30)
        start = time.monotonic()
        reports = [next(call) for _ in range(3)]
        assert time.monotonic() - start > 1.5
        assert [report.application_utilization for report in reports] == [0, 0, 0]
        call.cancel()
        for seconds, nanos in ((-1, 0), (0, -1), (0, 1_000_000_000)):
            request.report_interval.seconds, request.report_interval.nanos = seconds, nanos
            with pytest.raises(grpc.RpcError) as caught:
                next(method(request.SerializeToString(), timeout=20))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "report_interval must not be negative" in caught.value.details()
        with pytest.raises(grpc.RpcError) as caught:
            next(method(b"\xff\xff", timeout=20))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_the_real_engine_has_a_load(token_server: Server, authority: Authority, report_class: Any) -> None:
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    truck = [("authorization", f"Bearer {TRUCK}")]
    with grpc.secure_channel(token_server.address, credentials) as channel:
        for _ in range(2):
            channel.unary_unary(INFER)(scan("minkunet", few_points()), timeout=60, metadata=truck)
        method = channel.unary_stream(REPORTS, response_deserializer=report_class.FromString)
        call = method(b"", timeout=20, metadata=truck)
        report = next(call)
        call.cancel()
    assert report.application_utilization > 0 and report.rps_fractional > 0


@pytest.mark.parametrize("of_channel", [True, False])
def test_a_stock_balancer_sends_the_token_of_its_channel(
    start: StartServer, tls_flags: list[str], folder: Path, authority: Authority, of_channel: bool
) -> None:
    (folder / "tokens").write_text(TOKENS)
    server = start(*tls_flags, f"--auth_tokens={folder / 'tokens'}")
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    if of_channel:
        token = grpc.access_token_call_credentials(TRUCK)
        credentials = grpc.composite_channel_credentials(credentials, token)
    metadata = [] if of_channel else [("authorization", f"Bearer {TRUCK}")]
    policy = {"weighted_round_robin": {"enableOobLoadReport": True, "oobReportingPeriod": "1s"}}
    options = [("grpc.service_config", json.dumps({"loadBalancingConfig": [policy]}))]
    with grpc.secure_channel(server.address, credentials, options=options) as channel:
        channel.unary_unary(INFER)(scan("minkunet", few_points()), timeout=60, metadata=metadata)
        # The balancer does not send the metadata of calls. Without a token of the channel, its own call is refused, and
        # it balances by the reports in trailers alone.
        if not of_channel:
            server.await_line("MISSING_TOKEN", 20)
            return
        time.sleep(1.5)
    assert "not answered" not in server.log()


def test_a_report_needs_a_token(token_server: Server, authority: Authority, report_class: Any) -> None:
    credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
    with grpc.secure_channel(token_server.address, credentials) as channel:
        method = channel.unary_stream(REPORTS, response_deserializer=report_class.FromString)
        for token in (TRUCK, OPERATOR, SCRAPER, OTHER):
            call = method(b"", timeout=20, metadata=[("authorization", f"Bearer {token}")])
            assert next(call).application_utilization >= 0
            call.cancel()
        for metadata, text in (
            ([], "this server asks for a token"),
            ([("authorization", "Bearer nonsense-0123456789")], "the token is unknown"),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                next(method(b"", timeout=20, metadata=metadata))
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert text in caught.value.details()
    with grpc.secure_channel(token_server.admin_address, credentials) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            next(channel.unary_stream(REPORTS)(b"", timeout=20, metadata=[("authorization", f"Bearer {OPERATOR}")]))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
