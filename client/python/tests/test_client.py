"""Tests the synchronous and the asyncio client against a fake server; each test body runs with both."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
import typing
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import pytest
from conftest import START_SECONDS, FakeServer, unused_port

import voxserve
from voxserve import feature_warning, protocol, wire

Points = np.ndarray[Any, np.dtype[np.float32]]
Call = Callable[..., Any]


def call_sync(
    address: str, method: str, *arguments: Any, options: dict[str, Any] | None = None, **keywords: Any
) -> Any:
    with voxserve.Client(address, **{"admin_address": address, **(options or {})}) as client:
        return getattr(client, method)(*arguments, **keywords)


def call_aio(address: str, method: str, *arguments: Any, options: dict[str, Any] | None = None, **keywords: Any) -> Any:
    async def run() -> Any:
        async with voxserve.aio.Client(address, **{"admin_address": address, **(options or {})}) as client:
            return await getattr(client, method)(*arguments, **keywords)

    return asyncio.run(run())


@pytest.fixture(params=[call_sync, call_aio], ids=["sync", "aio"])
def call(request: pytest.FixtureRequest) -> Call:
    return request.param


def test_segment_gives_a_label_per_point(call: Call, server: FakeServer, points: Points) -> None:
    labels = call(server.address, "segment", "minkunet", points)
    np.testing.assert_array_equal(labels, np.arange(10, dtype=np.uint8) % 2)
    assert labels.dtype == np.uint8
    labels[0] = 9  # the caller may change the labels


def test_request_carries_the_points_as_they_are(call: Call, server: FakeServer, points: Points) -> None:
    call(server.address, "infer", "minkunet", points, version=7, scores=True, request_id="r-1")
    request = server.requests[0]
    assert (request.model, request.version, request.return_scores, request.request_id) == ("minkunet", 7, True, "r-1")
    assert request.cloud.data == points.tobytes()
    assert (request.cloud.num_points, request.cloud.point_step) == (10, 16)
    assert [(f.name, f.offset, f.type, f.count) for f in request.cloud.fields] == [
        ("x", 0, 7, 1),
        ("y", 4, 7, 1),
        ("z", 8, 7, 1),
        ("intensity", 12, 7, 1),
    ]
    assert not any(f.HasField("scale") for f in request.cloud.fields)


def test_infer_tells_everything(call: Call, server: FakeServer, points: Points) -> None:
    result = call(server.address, "infer", "minkunet", points, scores=True, request_id="r-2")
    assert (result.model, result.version, result.device, result.request_id) == ("minkunet", 3, "cpu", "r-2")
    assert (result.counts.used, result.counts.voxels) == (10, 9)
    assert result.stages == (voxserve.Stage("voxelize", 0.0015),)
    assert (result.ignore_label, result.num_classes) == (255, 2)
    np.testing.assert_array_equal(result.scores, np.tile(np.float32([1.5, -2]), (10, 1)))
    assert result.round_trip > 0


def test_points_without_finite_logits_are_counted(
    call: Call, server: FakeServer, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_warning, "_told", set())
    with pytest.warns(voxserve.NotFiniteWarning, match="overflowing has NaN or infinite values for 2 of 10 points"):
        counts = call(server.address, "infer", "overflowing", points).counts
    assert (counts.not_finite, counts.boxes_not_finite) == (2, 3)
    assert call(server.address, "infer", "minkunet", points).counts.not_finite == 0


def test_scores_only_where_asked_for(call: Call, server: FakeServer, points: Points) -> None:
    assert call(server.address, "infer", "minkunet", points).scores is None


def test_two_byte_labels(call: Call, server: FakeServer, points: Points) -> None:
    labels = call(server.address, "segment", "wide", points)
    assert labels.dtype == np.uint16
    np.testing.assert_array_equal(labels, np.arange(10) + 300)


def test_no_points(call: Call, server: FakeServer) -> None:
    labels = call(server.address, "segment", "minkunet", np.zeros((0, 4), np.float32))
    assert labels.shape == (0,)


def test_messages_beyond_grpcs_default_limit(call: Call, server: FakeServer) -> None:
    points = np.zeros((600_000, 4), np.float32)  # 9.6 MB to the server, 4.8 MB of scores back
    result = call(server.address, "infer", "minkunet", points, scores=True)
    assert len(result.labels) == 600_000
    assert len(server.requests[0].cloud.data) == 9_600_000


def test_names_and_scales_of_columns(call: Call, server: FakeServer) -> None:
    fields = ["x", "y", "z", "-", "intensity"]
    call(server.address, "segment", "m", np.zeros((2, 5), np.float32), fields=fields, scales={"intensity": 1 / 255})
    sent = server.requests[0].cloud.fields
    assert [(f.name, f.offset) for f in sent] == [("x", 0), ("y", 4), ("z", 8), ("intensity", 16)]
    assert sent[3].scale == 1 / 255


def test_sampled_points(call: Call, server: FakeServer, points: Points) -> None:
    result = call(server.address, "infer", "m", points, sample=voxserve.FarthestPoints(3, start_index=8))
    np.testing.assert_array_equal(result.sampled_points, np.array([8, 9, 0], np.uint32))
    assert result.counts.unsampled == 0
    sent = server.requests[0].sample
    assert (sent.num_points, sent.start_index, sent.WhichOneof("start")) == (3, 8, "start_index")
    assert sent.use == wire.FarthestPointSample.USE_RETURN

    sample = voxserve.FarthestPoints(4, use="network", seed=(1 << 64) - 1)
    result = call(server.address, "infer", "m", points, sample=sample)
    assert result.sampled_points.tolist() == [1, 2, 3, 4]
    assert result.counts.unsampled == 6
    sent = server.requests[1].sample
    assert (sent.seed, sent.WhichOneof("start")) == ((1 << 64) - 1, "seed")
    assert sent.use == wire.FarthestPointSample.USE_NETWORK

    assert call(server.address, "infer", "m", points).sampled_points is None
    assert not server.requests[2].HasField("sample")
    assert len(call(server.address, "segment", "m", points, sample=sample)) == 10
    assert server.requests[3].sample.num_points == 4


@pytest.mark.parametrize(
    ("model", "sample", "message"),
    [
        ("extra-sample", voxserve.FarthestPoints(2), "3 sampled points in place of 2"),
        ("extra-sample", None, "1 sampled points in place of 0"),
        ("far-sample", voxserve.FarthestPoints(2), "point 10 sampled of 10"),
    ],
)
def test_other_sampled_points_are_malformed(
    call: Call,
    server: FakeServer,
    points: Points,
    model: str,
    sample: voxserve.FarthestPoints | None,
    message: str,
) -> None:
    with pytest.raises(voxserve.InferenceError, match=message) as caught:
        call(server.address, "infer", model, points, sample=sample)
    assert caught.value.reason == "MALFORMED_RESPONSE"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_points": 0}, "num_points is 0"),
        ({"num_points": -1}, "num_points is -1"),
        ({"num_points": 1 << 32}, "num_points is 4294967296"),
        ({"num_points": 1, "start_index": -1}, "start_index is -1"),
        ({"num_points": 1, "seed": -1}, "seed is -1"),
        ({"num_points": 1, "seed": 1 << 64}, "seed is 18446744073709551616"),
        ({"num_points": 1, "seed": 1, "start_index": 1}, "both set"),
        ({"num_points": 1, "use": "all"}, "use is 'all'"),
    ],
)
def test_samples_that_cannot_be(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        voxserve.FarthestPoints(**arguments)


def test_stamp_and_frame_are_sent(call: Call, server: FakeServer) -> None:
    cloud = voxserve.PointCloud(b"", 0, 12, (), stamp_ns=12_345_678_901, frame_id="lidar")
    call(server.address, "segment", "m", cloud)
    sent = server.requests[0].cloud
    assert (sent.stamp.seconds, sent.stamp.nanos, sent.frame_id) == (12, 345_678_901, "lidar")


def test_models(call: Call, server: FakeServer) -> None:
    ready, broken = call(server.address, "models")
    assert (ready.name, ready.version, ready.state) == ("minkunet", 3, voxserve.ModelState.READY)
    assert broken.state == voxserve.ModelState.FAILED
    assert broken.problems == ("node 'a': no input", "tensor 'b' is missing")


def test_model(call: Call, server: FakeServer) -> None:
    model = call(server.address, "model", "minkunet", 2)
    assert (model.name, model.version, model.max_points, model.digest) == ("minkunet", 2, 2_000_000, "abc")
    assert model.classes[1] == voxserve.ClassInfo(1, "car", (0x28, 0x5A, 0xFF))
    assert model.features == (voxserve.FeatureInfo("x", "m", None), voxserve.FeatureInfo("intensity", "1", 0.5))
    assert model.voxel_size == (0.5, 0.5, 0.25)


def test_health(call: Call, server: FakeServer) -> None:
    assert call(server.address, "health") is True
    server.serving = False
    assert call(server.address, "health") is False


def test_server_errors_carry_code_reason_and_message(call: Call, server: FakeServer, points: Points) -> None:
    with pytest.raises(voxserve.NotFoundError) as caught:
        call(server.address, "segment", "unknown", points)
    error = caught.value
    assert (error.code, error.reason, error.retry_after) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND", None)
    assert str(error) == "no model 'unknown'; there is minkunet [MODEL_NOT_FOUND]"
    assert error.metadata == {"model": "m"}


def test_retry_delay(call: Call, server: FakeServer, points: Points) -> None:
    with pytest.raises(voxserve.ResourceExhaustedError) as caught:
        call(server.address, "segment", "busy", points)
    assert (caught.value.reason, caught.value.retry_after) == ("QUEUE_FULL", 1.25)


def test_damaged_error_details_leave_the_message(call: Call, server: FakeServer, points: Points) -> None:
    with pytest.raises(voxserve.InvalidArgumentError, match="plain message") as caught:
        call(server.address, "segment", "damaged-details", points)
    assert caught.value.reason == ""


def test_deadline_is_sent_and_kept(call: Call, server: FakeServer, points: Points) -> None:
    with pytest.raises(voxserve.DeadlineExceededError, match=r"within 1 s") as caught:
        call(server.address, "segment", "slow", points, timeout=1)
    assert caught.value.reason == "CLIENT_TIMEOUT"
    assert server.time_remaining is not None
    assert server.time_remaining <= 1.02, "newer gRPC rounds a timeout up, to two digits"


def test_default_timeout_is_sent(call: Call, server: FakeServer, points: Points) -> None:
    call(server.address, "segment", "m", points, options={"timeout": 5})
    assert server.time_remaining is not None
    assert server.time_remaining < 10  # not the client's default of 30 s


def test_no_server(call: Call, points: Points) -> None:
    with unused_port() as port:
        address = f"127.0.0.1:{port}"
        with pytest.raises(voxserve.UnavailableError, match=f"no server answers at {address}") as caught:
            call(address, "segment", "m", points, timeout=20)
    assert caught.value.reason == "NO_SERVER"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("kind", [voxserve.Client, voxserve.aio.Client])
def test_finds_a_server_that_starts_later(kind: type, host: str) -> None:
    async def finish(answer: Any) -> Any:
        return await answer if inspect.isawaitable(answer) else answer

    async def run(port: int) -> None:
        client = kind(f"{host}:{port}")
        with pytest.raises(voxserve.UnavailableError) as caught:
            await finish(client.models())
        assert caught.value.reason == "NO_SERVER"
        server = FakeServer(port)
        end = time.monotonic() + START_SECONDS
        try:
            while True:
                try:
                    assert await finish(client.models())
                    break
                except voxserve.UnavailableError:
                    assert time.monotonic() < end, "the server is up, but not found"
                    await asyncio.sleep(0.02)
        finally:
            await finish(client.close())
            server.stop()

    with unused_port() as port:
        asyncio.run(run(port))


def test_a_server_that_is_away_is_looked_for_every_second() -> None:
    arguments = dict(protocol.Options().channel_arguments("localhost:8500", 0))
    assert arguments["grpc.max_reconnect_backoff_ms"] <= 1000
    assert arguments["grpc.dns_min_time_between_resolutions_ms"] <= 1000


def test_too_large_a_request_is_refused_with_both_sizes(call: Call, server: FakeServer) -> None:
    points = np.zeros((10_000, 4), np.float32)
    with pytest.raises(voxserve.ResourceExhaustedError, match=r"160\d\d\d bytes .* \(65536\)") as caught:
        call(server.address, "segment", "m", points, options={"max_message_bytes": 65536})
    assert caught.value.reason == "MESSAGE_TOO_LARGE"
    assert not server.requests


def test_too_large_an_answer(call: Call, server: FakeServer) -> None:
    points = np.zeros((3_000, 3), np.uint8)
    options = {"max_message_bytes": 65536}
    scored = np.tile(points, (4, 1))  # 36 kB to the server, 96 kB of scores back
    assert len(call(server.address, "infer", "m", points, scores=True, options=options).labels) == 3_000
    with pytest.raises(voxserve.ResourceExhaustedError, match="max_message_bytes") as caught:
        call(server.address, "infer", "m", scored, scores=True, options=options)
    assert caught.value.reason == "MESSAGE_TOO_LARGE"


@pytest.mark.parametrize("model", ["truncated", "no-width", "extra-scores"])
def test_answers_that_contradict_the_request(call: Call, server: FakeServer, points: Points, model: str) -> None:
    with pytest.raises(voxserve.InferenceError, match="malformed") as caught:
        call(server.address, "segment", model, points)
    assert caught.value.reason == "MALFORMED_RESPONSE"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": math.nan}, "timeout is nan"),
        ({"max_message_bytes": 10}, "max_message_bytes is 10"),
        ({"channels": 0}, "channels is 0"),
    ],
)
@pytest.mark.parametrize("kind", [voxserve.Client, voxserve.aio.Client])
def test_bad_options(kind: type, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind("localhost:1", **options)


@pytest.mark.parametrize("timeout", [0, -1.5, math.nan])
@pytest.mark.parametrize("method", ["segment", "models", "model", "health"])
def test_bad_timeouts_are_refused(call: Call, server: FakeServer, points: Points, method: str, timeout: float) -> None:
    arguments = {"segment": ("m", points), "model": ("m",)}.get(method, ())
    with pytest.raises(ValueError, match=f"timeout is {timeout}, must be positive"):
        call(server.address, method, *arguments, timeout=timeout)
    assert not server.requests


def test_an_infinite_timeout_is_no_limit(call: Call, server: FakeServer, points: Points) -> None:
    for options, keywords in (({}, {"timeout": math.inf}), ({"timeout": math.inf}, {}), ({"timeout": None}, {})):
        server.time_remaining = 0
        call(server.address, "segment", "m", points, options=options, **keywords)
        assert server.time_remaining is None or server.time_remaining > 1e6


def test_a_server_of_another_kind(call: Call) -> None:
    other = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.so_reuseport", 0)])
    address = f"127.0.0.1:{other.add_insecure_port('127.0.0.1:0')}"
    other.start()
    try:
        with pytest.raises(voxserve.InferenceError, match="is not a voxserve server of this version") as caught:
            call(address, "models")
    finally:
        other.stop(None).wait()
    assert caught.value.code == grpc.StatusCode.UNIMPLEMENTED
    assert address in caught.value.message


def test_an_empty_address_is_refused() -> None:
    with pytest.raises(ValueError, match="address is empty"):
        voxserve.Client("")


def test_an_empty_model_is_refused(call: Call, server: FakeServer, points: Points) -> None:
    with pytest.raises(ValueError, match="model is empty"):
        call(server.address, "segment", "", points)
    assert not server.requests


def test_channels_take_turns(server: FakeServer, points: Points) -> None:
    with voxserve.Client(server.address, channels=3) as client:
        for _ in range(6):
            assert len(client.segment("m", points)) == 10


@pytest.mark.parametrize("method", ["segment", "load_model"])
def test_an_aio_client_serves_one_loop_after_the_other(server: FakeServer, points: Points, method: str) -> None:
    client = voxserve.aio.Client(server.address, admin_address=server.address)
    arguments = ("minkunet", points) if method == "segment" else ("minkunet",)

    async def run() -> Any:
        return await getattr(client, method)(*arguments)

    first, second = asyncio.run(run()), asyncio.run(run())
    np.testing.assert_array_equal(first, second)

    async def stream() -> Any:
        async with client.stream("minkunet") as frames:
            frames.close_sends()
            return [result async for result in frames]

    assert asyncio.run(stream()) == []
    asyncio.run(client.close())
    np.testing.assert_array_equal(asyncio.run(run()), first)  # a closed client connects anew
    asyncio.run(client.close())


def test_an_aio_client_refuses_two_loops_at_once(server: FakeServer, points: Points) -> None:
    client = voxserve.aio.Client(server.address)

    async def run() -> None:
        await client.segment("minkunet", points)
        with futures.ThreadPoolExecutor(1) as pool:
            other = pool.submit(asyncio.run, client.segment("minkunet", points))
            with pytest.raises(RuntimeError, match="in use in another event loop, which still runs"):
                await asyncio.wrap_future(other)
        await client.close()

    asyncio.run(run())


def test_aio_calls_overlap(server: FakeServer, points: Points) -> None:
    async def run() -> list[Any]:
        async with voxserve.aio.Client(server.address) as client:
            return await asyncio.gather(*(client.segment("m", points[:n]) for n in range(1, 7)))

    assert [len(labels) for labels in asyncio.run(run())] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("sync", "aio"), [(voxserve.Client, voxserve.aio.Client), (voxserve.Stream, voxserve.aio.Stream)]
)
def test_asyncio_has_the_same_methods(sync: type, aio: type) -> None:
    names = {name for name in dir(sync) if not name.startswith("_")}
    assert {name for name in dir(aio) if not name.startswith("_")} == names
    waiting = {"Client": names - {"stream"}, "Stream": {"send", "send_part"}}[sync.__name__]
    for name in names:
        ours, theirs = getattr(sync, name), getattr(aio, name)
        assert theirs.__doc__ == ours.__doc__
        assert inspect.iscoroutinefunction(theirs) == (name in waiting)
        if callable(ours):
            assert inspect.signature(theirs) == inspect.signature(ours)
    assert typing.get_type_hints(voxserve.aio.Client.stream)["return"] is voxserve.aio.Stream
