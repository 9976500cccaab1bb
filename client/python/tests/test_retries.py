"""Tests retries and load balancing, which the clients configure and gRPC does, with both clients."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from conftest import FakeServer
from stream_clients import WAIT, AioClient

import voxserve
from voxserve.protocol import Options
from voxserve.service_config import service_config

Points = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(params=[voxserve.Client, AioClient], ids=["sync", "aio"])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_call_that_changes_nothing_is_made_again(client: Any, server: FakeServer, points: Points) -> None:
    server.num_refusals = 2
    assert len(client.infer("minkunet", points, timeout=WAIT).labels) == len(points)
    assert len(server.requests) == 3


def test_a_whole_scan_is_sent_again(client: Any, server: FakeServer) -> None:
    server.num_refusals = 1
    scan = np.zeros((150_000, 4), np.float32)  # more than gRPC's own buffer for retries holds
    assert len(client.infer("minkunet", scan, timeout=WAIT).labels) == len(scan)
    assert [request.cloud.num_points for request in server.requests] == [150_000, 150_000]


def test_the_last_error_is_told(client: Any, server: FakeServer, points: Points) -> None:
    server.num_refusals = 3
    with pytest.raises(voxserve.UnavailableError, match="refused by the test"):
        client.infer("minkunet", points, timeout=WAIT)
    assert len(server.requests) == 3


def test_no_retries_where_none_are_wanted(make: Any, server: FakeServer, points: Points) -> None:
    server.num_refusals = 1
    with make(server.address, max_attempts=1) as client, pytest.raises(voxserve.UnavailableError):
        client.infer("minkunet", points, timeout=WAIT)
    assert len(server.requests) == 1


def test_the_deadline_holds_for_all_attempts(make: Any, server: FakeServer, points: Points) -> None:
    server.num_refusals, server.pushback_ms = 99, 60_000
    start = time.monotonic()
    with make(server.address) as client, pytest.raises(voxserve.InferenceError):
        client.infer("minkunet", points, timeout=1)
    assert time.monotonic() - start < 30
    assert len(server.requests) == 1


def test_the_server_says_when_to_try_again(client: Any, server: FakeServer, points: Points) -> None:
    server.num_refusals, server.pushback_ms = 1, 700
    start = time.monotonic()
    client.infer("minkunet", points, timeout=WAIT)
    assert time.monotonic() - start > 0.65, "gRPC's own delay is 0.1 s at most"


def test_an_overloaded_server_is_not_asked_again(client: Any, server: FakeServer, points: Points) -> None:
    with pytest.raises(voxserve.ResourceExhaustedError) as caught:
        client.infer("busy", points, timeout=WAIT)
    assert caught.value.retry_after == 1.25
    assert len(server.requests) == 1


def test_a_call_that_changes_the_server_is_made_once(make: Any, server: FakeServer) -> None:
    server.num_refusals = 1
    with make(server.address, admin_address=server.address) as client, pytest.raises(voxserve.UnavailableError):
        client.load_model("minkunet", timeout=WAIT)
    assert len(server.requests) == 1


def test_calls_are_balanced_and_find_the_server_that_is_left(make: Any, points: Points) -> None:
    servers = [FakeServer(), FakeServer()]
    try:
        with make("ipv4:" + ",".join(server.address for server in servers)) as client:
            # One connection may be ready before the other.
            for _ in range(200):
                client.infer("minkunet", points, timeout=WAIT)
                if all(server.requests for server in servers):
                    break
            before = [len(server.requests) for server in servers]
            for _ in range(20):
                client.infer("minkunet", points, timeout=WAIT)
            assert [len(server.requests) - old for server, old in zip(servers, before, strict=True)] == [10, 10]
            servers[0].stop()
            for _ in range(20):
                client.infer("minkunet", points, timeout=WAIT)
    finally:
        for server in servers:
            server.stop()


def test_the_service_config() -> None:
    several = json.loads(service_config("dns:///servers:8500", 4))
    assert [next(iter(policy)) for policy in several["loadBalancingConfig"]] == ["weighted_round_robin", "round_robin"]
    assert several["methodConfig"][0]["retryPolicy"]["maxAttempts"] == 4
    methods = [name["method"] for name in several["methodConfig"][0]["name"]]
    assert methods == ["Infer", "ListModels", "GetModel"]
    assert json.loads(service_config("localhost:8500", 1)) == {}


@pytest.mark.parametrize("attempts", [0, 6])
def test_attempts_are_within_grpcs_limits(attempts: int) -> None:
    with pytest.raises(ValueError, match=f"max_attempts is {attempts}, must be 1 to 5"):
        voxserve.Client(max_attempts=attempts)


@pytest.mark.parametrize("seconds", [0, 1.9, -1, float("nan"), float("inf")])
def test_a_keepalive_that_the_server_would_punish_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"keepalive is .*, must be 2 to 86400 seconds"):
        voxserve.Client(keepalive=seconds)


def test_a_connection_is_tested_unless_it_may_not() -> None:
    assert dict(Options(keepalive=2.5).channel_arguments("a:1", 0))["grpc.keepalive_time_ms"] == 2500
    assert "grpc.keepalive_time_ms" not in dict(Options(keepalive=None).channel_arguments("a:1", 0))


@pytest.mark.parametrize("address", ["dns:///servers:8500", "ipv4:10.0.0.1:8500,10.0.0.2:8500"])
def test_several_servers_have_no_common_port_of_operators(address: str) -> None:
    with voxserve.Client(address) as client, pytest.raises(ValueError, match="admin_address is needed"):
        client.load_model("minkunet")
