"""Tests an operator's calls (loading, unloading, tuning) with both clients against a fake server."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from conftest import START_SECONDS, FakeServer
from test_client import Call, call_aio, call_sync

import voxserve


@pytest.fixture(params=[call_sync, call_aio], ids=["sync", "aio"])
def call(request: pytest.FixtureRequest) -> Call:
    return request.param


def test_load_model(call: Call, server: FakeServer) -> None:
    assert call(server.address, "load_model", "minkunet", 7) == (1, 7)
    assert call(server.address, "load_model", "minkunet") == (1, 3)
    assert [(r.model, r.version) for r in server.requests] == [("minkunet", 7), ("minkunet", 0)]
    assert server.time_remaining is not None
    assert server.time_remaining > 60  # loading takes longer than a request


def test_a_broken_model_is_not_loaded(call: Call, server: FakeServer) -> None:
    with pytest.raises(voxserve.FailedPreconditionError, match="node 'a': no input") as caught:
        call(server.address, "load_model", "broken")
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "BAD_MODEL")


def test_unload_model(call: Call, server: FakeServer) -> None:
    assert call(server.address, "unload_model", "minkunet") == (1, 3)
    assert call(server.address, "unload_model", "minkunet", 3) == (3,)
    with pytest.raises(voxserve.NotFoundError):
        call(server.address, "unload_model", "unknown")


def test_tune_plan(call: Call, server: FakeServer) -> None:
    progress: list[voxserve.TuneProgress] = []
    plan = call(server.address, "tune_plan", "m", 2, num_scans=5, max_wait=1.5, on_progress=progress.append)
    assert progress == [voxserve.TuneProgress("waiting for scans", 0.0), voxserve.TuneProgress("candidates", 0.5)]
    assert plan == voxserve.TunedPlan(
        device="H200",
        num_scans=5,
        buckets=(voxserve.TunedBucket(0, 5000, 2, 0.0025, 0.00125), voxserve.TunedBucket(5000, None, 3, 0.005, 0.004)),
        seconds=12.5,
        path="p",
    )
    request = server.requests[0]
    assert (request.model, request.version, request.num_scans, request.max_wait_seconds) == ("m", 2, 5, 1.5)
    assert server.time_remaining is not None
    assert server.time_remaining > 600


def test_tune_plan_needs_no_callback(call: Call, server: FakeServer) -> None:
    assert call(server.address, "tune_plan", "m").device == "H200"
    assert (server.requests[0].num_scans, server.requests[0].max_wait_seconds) == (16, 60)


def refuse(_: voxserve.TuneProgress) -> None:
    raise KeyError("enough")


def test_a_callback_that_raises_ends_the_search(server: FakeServer) -> None:
    with voxserve.Client(server.address, admin_address=server.address) as client:
        with pytest.raises(KeyError, match="enough"):
            client.tune_plan("endless", on_progress=refuse)
        assert server.search_ended.wait(START_SECONDS)


def test_a_callback_that_raises_ends_the_search_of_asyncio_too(server: FakeServer) -> None:
    async def run() -> None:
        async with voxserve.aio.Client(server.address, admin_address=server.address) as client:
            with pytest.raises(KeyError, match="enough"):
                await client.tune_plan("endless", on_progress=refuse)
            assert await asyncio.to_thread(server.search_ended.wait, START_SECONDS)

    asyncio.run(run())


def test_a_search_that_takes_too_long(call: Call, server: FakeServer) -> None:
    with pytest.raises(voxserve.DeadlineExceededError) as caught:
        call(server.address, "tune_plan", "endless", timeout=0.2)
    assert caught.value.reason == "CLIENT_TIMEOUT"


def test_a_second_search_is_refused(call: Call, server: FakeServer) -> None:
    with pytest.raises(voxserve.FailedPreconditionError) as caught:
        call(server.address, "tune_plan", "busy")
    assert caught.value.reason == "ALREADY_TUNING"


def test_a_search_without_a_result(call: Call, server: FakeServer) -> None:
    with pytest.raises(voxserve.InferenceError, match="malformed: no plan") as caught:
        call(server.address, "tune_plan", "no-result")
    assert caught.value.reason == "MALFORMED_RESPONSE"


@pytest.mark.parametrize(
    ("method", "arguments", "keywords", "message"),
    [
        ("load_model", ("",), {}, "model is empty"),
        ("unload_model", ("",), {}, "model is empty"),
        ("tune_plan", ("",), {}, "model is empty"),
        ("tune_plan", ("m",), {"num_scans": 0}, "num_scans is 0, must be 1 to 100"),
        ("tune_plan", ("m",), {"num_scans": 101}, "num_scans is 101, must be 1 to 100"),
        ("tune_plan", ("m",), {"timeout": 0}, "timeout is 0"),
        ("load_model", ("m",), {"timeout": -1}, "timeout is -1"),
    ],
)
def test_bad_arguments(
    call: Call, server: FakeServer, method: str, arguments: Any, keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(server.address, method, *arguments, **keywords)
    assert not server.requests
