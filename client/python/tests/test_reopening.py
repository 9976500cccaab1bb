"""Tests streams that outlive their server, with both clients. Each frame must have exactly one result."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from conftest import FakeServer, answer, answer_all, fail
from stream_clients import WAIT, AioClient, error_of, labels_of

import voxserve
from voxserve import aio_stream, stream, stream_state, wire
from voxserve.protocol import Options
from voxserve.stream_state import StreamConfig

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Points = np.ndarray[Any, np.dtype[np.float32]]
Streams = Callable[[Iterator[Any], grpc.ServicerContext], Iterator[Any]]


def then(first: Streams, times: int = 1) -> Streams:
    """Answers the first `times` streams by `first`, and every frame of the later ones."""
    calls: list[int] = []

    def streams(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        calls.append(1)
        yield from first(requests, context) if len(calls) <= times else answer_all(requests, context)

    return streams


def trace_of(context: grpc.ServicerContext) -> str:
    return next(str(value) for key, value in context.invocation_metadata() if key == "traceparent")


def lose(context: grpc.ServicerContext) -> None:
    """Ends the stream with a status that carries no reason, as gRPC does when a connection breaks."""
    context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def frame_ids(server: FakeServer) -> list[int]:
    return [request.frame.frame_id for request in server.requests if request.HasField("frame")]


def configs(server: FakeServer) -> list[Any]:
    return [request.config for request in server.requests if request.HasField("config")]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)


class Clock:
    """The clock of streams, which only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = staticmethod(time.perf_counter)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(stream_state, "time", made)
    return made


def breaks_after(num_answers: int, num_frames: int) -> Streams:
    def streams(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        next(requests)
        for count in range(num_frames):
            request = next(requests)
            if count < num_answers:
                yield answer(request)
        lose(context)

    return streams


def test_frames_without_a_result_are_sent_again_in_order(client: Any, server: FakeServer, points: Points) -> None:
    server.streams = then(breaks_after(2, 4))
    with client.stream("minkunet", policy="queue", version=7, reopen=WAIT, timeout=WAIT) as stream:
        for frame_id in range(8):
            stream.send(frame_id, points[:frame_id])
        stream.close_sends()
        results = list(stream)
        assert stream.num_reopened == 1
    assert [result.frame_id for result in results] == list(range(8))
    for result in results:
        np.testing.assert_array_equal(labels_of(result), np.arange(result.frame_id) % 2)
    sent = frame_ids(server)
    assert sent[:4] == [0, 1, 2, 3]
    assert sent[-6:] == [2, 3, 4, 5, 6, 7]
    first, second = configs(server)
    assert first == second
    assert second.version == 7


def test_without_it_a_stream_ends_with_its_connection(client: Any, server: FakeServer, points: Points) -> None:
    server.streams = then(breaks_after(1, 2))
    with client.stream("minkunet", policy="queue", timeout=WAIT) as stream:
        stream.send(0, points)
        stream.send(1, points)
        assert next(stream).frame_id == 0
        with pytest.raises(voxserve.UnavailableError):
            next(stream)
        assert stream.num_reopened == 0


def test_of_a_latest_stream_the_newest_frame_is_sent_again(client: Any, server: FakeServer, points: Points) -> None:
    have_three = threading.Event()

    def first(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        next(requests)
        for _ in range(3):
            next(requests)
        have_three.wait(WAIT)
        yield from ()
        lose(context)

    server.streams = then(first)
    with client.stream("minkunet", reopen=WAIT, timeout=WAIT) as stream:
        for frame_id in (1, 2, 3):
            stream.send(frame_id, points)
            wait_until(lambda count=frame_id: len(frame_ids(server)) >= count)
        have_three.set()
        old, older, newest = (next(stream) for _ in range(3))
        assert [old.frame_id, older.frame_id, newest.frame_id] == [1, 2, 3]
        for result in (old, older):
            assert isinstance(error_of(result), voxserve.SupersededError)
            assert "superseded by frame 3" in error_of(result).message
        assert len(labels_of(newest)) == len(points)
        stream.send(1, points)  # the frame id is free again
        assert next(stream).frame_id == 1
        stream.close_sends()
        assert list(stream) == []
    assert frame_ids(server) == [1, 2, 3, 3, 1]


def test_a_server_that_goes_away_gets_no_more_frames(client: Any, server: FakeServer, points: Points) -> None:
    sent_more = threading.Event()
    taken: list[int] = []

    def first(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        next(requests)
        request = next(requests)
        yield wire.InferStreamResponse(going_away=wire.GoingAway())
        sent_more.wait(WAIT)
        yield answer(request)
        taken.extend(frame_ids(server))
        fail(context, grpc.StatusCode.UNAVAILABLE, "the server is draining", "DRAINING")

    server.streams = then(first)
    with client.stream("minkunet", policy="queue", reopen=WAIT, timeout=WAIT) as stream:
        stream.send(0, points)
        wait_until(lambda: stream.is_going_away)
        stream.send(1, points)
        sent_more.set()
        stream.send(2, points)
        stream.close_sends()
        assert [result.frame_id for result in stream] == [0, 1, 2]
        assert stream.num_reopened == 1
    assert taken == [0]
    assert frame_ids(server) == [0, 1, 2]


def test_a_frame_that_may_end_servers_is_given_up(client: Any, server: FakeServer, points: Points) -> None:
    server.streams = then(breaks_after(0, 1), times=3)
    with client.stream("minkunet", policy="queue", reopen=WAIT, timeout=WAIT) as stream:
        stream.send(0, points)
        lost = next(stream)
        assert lost.frame_id == 0
        assert error_of(lost).reason == "CONNECTION_LOST"
        stream.send(1, points)
        assert labels_of(next(stream)).shape == (10,)
        assert stream.num_reopened == 3
    assert frame_ids(server)[:4] == [0, 0, 0, 1]


def test_drains_do_not_count_against_a_frame(client: Any, server: FakeServer, points: Points) -> None:
    def draining(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        next(requests)
        next(requests)
        yield wire.InferStreamResponse(going_away=wire.GoingAway())
        fail(context, grpc.StatusCode.UNAVAILABLE, "the server is draining", "DRAINING")

    server.streams = then(draining, times=4)
    with client.stream("minkunet", policy="queue", reopen=WAIT, timeout=WAIT) as stream:
        stream.send(0, points)
        assert labels_of(next(stream)).shape == (10,)
        assert stream.num_reopened == 4


def test_another_server_takes_over(client: Any, server: FakeServer, points: Points) -> None:
    with client.stream("minkunet", policy="queue", reopen=WAIT, timeout=WAIT) as stream:
        stream.send(0, points)
        assert next(stream).frame_id == 0
        port = int(server.address.rpartition(":")[2])
        server.stop()
        stream.send(1, points)
        replacement = FakeServer(port)
        try:
            assert labels_of(next(stream)).shape == (10,)
            stream.close_sends()
            assert list(stream) == []
        finally:
            replacement.stop()
    assert len(configs(replacement)) == 1


def test_it_gives_up_after_its_time(client: Any, server: FakeServer, points: Points) -> None:
    with client.stream("minkunet", policy="queue", reopen=1, timeout=WAIT) as stream:
        stream.send(0, points)
        assert next(stream).frame_id == 0
        server.stop()
        start = time.monotonic()
        with pytest.raises(voxserve.UnavailableError) as caught:
            next(stream)
        assert time.monotonic() - start < 30
        assert caught.value.reason in ("NO_SERVER", "CONNECTION_LOST")
        with pytest.raises(voxserve.UnavailableError):
            stream.send(1, points)


def test_its_timeout_holds_for_all_calls(client: Any, server: FakeServer, points: Points, clock: Clock) -> None:
    with client.stream("minkunet", policy="queue", reopen=WAIT, timeout=6) as stream:
        stream.send(0, points)
        assert next(stream).frame_id == 0
        server.stop()
        wait_until(lambda: stream.num_reopened >= 3)
        clock.now += 5.3
        start = time.monotonic()
        with pytest.raises(voxserve.DeadlineExceededError) as caught:
            next(stream)
        assert time.monotonic() - start < 30
        assert caught.value.reason == "CLIENT_TIMEOUT"
        assert "within its timeout of 6 s: " in str(caught.value)


def test_a_finished_stream_needs_no_other_server(client: Any, server: FakeServer, points: Points) -> None:
    def first(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        yield from answer_all(requests, context)
        lose(context)

    server.streams = then(first)
    with client.stream("minkunet", policy="queue", reopen=WAIT, timeout=WAIT) as stream:
        stream.send(0, points)
        stream.close_sends()
        assert [result.frame_id for result in stream] == [0]
    assert len(configs(server)) == 1


def test_other_errors_end_it(client: Any, server: FakeServer, points: Points) -> None:
    def first(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        next(requests)
        yield from ()
        fail(context, grpc.StatusCode.NOT_FOUND, "no model 'm'", "MODEL_NOT_FOUND")

    server.streams = then(first)
    with client.stream("m", reopen=WAIT, timeout=WAIT) as stream, pytest.raises(voxserve.NotFoundError):
        next(stream)
    assert len(configs(server)) == 1


def test_a_malformed_answer_ends_it(client: Any, server: FakeServer, points: Points) -> None:
    def first(requests: Iterator[Any], _context: grpc.ServicerContext) -> Iterator[Any]:
        next(requests)
        yield answer(next(requests), frame_id=99)

    server.streams = then(first)
    with client.stream("m", reopen=WAIT, timeout=WAIT) as stream:
        stream.send(0, points)
        with pytest.raises(voxserve.InferenceError) as caught:
            next(stream)
    assert caught.value.reason == "MALFORMED_RESPONSE"


def test_its_deadline_holds_for_all_calls(client: Any, server: FakeServer, points: Points, clock: Clock) -> None:
    remaining: list[float] = []

    def first(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        next(requests)
        clock.now += 60  # the second call must get only the rest of the stream's timeout
        yield from ()
        lose(context)

    def second(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        remaining.append(context.time_remaining())
        next(requests)
        yield answer(next(requests))
        next(requests)
        clock.now += WAIT - 60 - 0.3
        lose(context)

    def silent(requests: Iterator[Any], _context: grpc.ServicerContext) -> Iterator[Any]:
        for _ in requests:
            yield from ()

    calls = [first, second, silent]
    server.streams = lambda requests, context: calls.pop(0)(requests, context)
    with client.stream("minkunet", reopen=WAIT, timeout=WAIT) as stream:
        stream.send(0, points)
        assert next(stream).frame_id == 0
        stream.send(1, points)
        with pytest.raises(voxserve.DeadlineExceededError):
            next(stream)
        assert stream.num_reopened == 2
    assert remaining[0] < WAIT - 59


@pytest.mark.parametrize("make", [voxserve.Client, AioClient], ids=["sync", "aio"])
def test_a_reopened_stream_keeps_its_trace(make: Any, server: FakeServer, points: Points) -> None:
    calls: list[int] = []
    traces: list[str] = []

    def traceparent() -> str:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("no trace here")
        return TRACE

    def first(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        traces.append(trace_of(context))
        yield from breaks_after(1, 2)(requests, context)

    def second(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        traces.append(trace_of(context))
        yield from answer_all(requests, context)

    remaining = [first, second]
    server.streams = lambda requests, context: remaining.pop(0)(requests, context)
    with (
        make(server.address, traceparent=traceparent) as client,
        client.stream("minkunet", policy="queue", reopen=WAIT, timeout=WAIT) as stream,
    ):
        stream.send(0, points)
        stream.send(1, points)
        stream.close_sends()
        assert [result.frame_id for result in stream] == [0, 1]
    assert traces == [TRACE, TRACE]
    assert len(calls) == 1


class OpensOnce:
    """A channel whose first call breaks, and which cannot start another call."""

    def __init__(self, call: Any) -> None:
        self._calls = [call]

    def stream_stream(self, *_: Any, **__: Any) -> Any:
        def begin(*_: Any, **__: Any) -> Any:
            if not self._calls:
                raise RuntimeError("no further call")
            return self._calls.pop()

        return begin


class BrokenCall(grpc.RpcError):
    """A call of the synchronous gRPC that has ended without a server."""

    def __iter__(self) -> Iterator[bytes]:
        raise self

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "Socket closed"

    def trailing_metadata(self) -> tuple[()]:
        return ()

    def cancel(self) -> None:
        pass


def test_a_stream_ends_if_no_further_call_can_begin(points: Points) -> None:
    with stream.Stream(OpensOnce(BrokenCall()), StreamConfig("m", "queue", reopen=WAIT), Options(), None) as broken:
        with pytest.raises(voxserve.InferenceError, match=r"the stream cannot go on: .*no further call"):
            next(broken)
        with pytest.raises(voxserve.InferenceError, match="no further call"):
            broken.send(0, points)


def test_an_asyncio_stream_ends_if_no_further_call_can_begin(points: Points) -> None:
    async def read() -> None:
        channel = OpensOnce(EndedCall("Internal error from Core"))  # grpc.aio's error for a lost connection
        async with aio_stream.Stream(channel, StreamConfig("m", "queue", reopen=WAIT), Options(), None) as broken:
            with pytest.raises(voxserve.InferenceError, match=r"the stream cannot go on: .*no further call"):
                await asyncio.wait_for(broken.__anext__(), WAIT)
            with pytest.raises(voxserve.InferenceError, match="no further call"):
                await asyncio.wait_for(broken.send(0, points), WAIT)

    asyncio.run(read())


def cancel(stream: Any, _client: Any) -> None:
    stream.cancel()


def close(_stream: Any, client: Any) -> None:
    client.close()


@pytest.mark.parametrize("end", [cancel, close])
@pytest.mark.parametrize("make", [voxserve.Client, AioClient], ids=["sync", "aio"])
def test_it_can_be_ended_while_it_looks_for_a_server(make: Any, end: Any, points: Points) -> None:
    server = FakeServer()
    with make(server.address) as client, client.stream("minkunet", reopen=WAIT) as stream:
        stream.send(0, points)
        assert next(stream).frame_id == 0
        server.stop()
        wait_until(lambda: stream.num_reopened >= 3)
        end(stream, client)
        with pytest.raises(voxserve.InferenceError) as caught:
            next(stream)
        assert caught.value.code is grpc.StatusCode.CANCELLED


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_its_time_must_be_positive(client: Any, seconds: float) -> None:
    with pytest.raises(ValueError, match=r"reopen is .*, must be a positive number"):
        client.stream("m", reopen=seconds)


class EndedCall:
    """A call of grpc.aio that ends with an INTERNAL error of these details."""

    def __init__(self, details: str) -> None:
        nothing = grpc.aio.Metadata()
        self._error = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, details=details)

    async def write(self, _request: bytes) -> None:
        pass

    def cancel(self) -> None:
        pass

    async def __aiter__(self) -> AsyncIterator[bytes]:
        raise self._error
        yield b""


@pytest.mark.parametrize(
    ("details", "code"),
    [("Internal error from Core", grpc.StatusCode.UNAVAILABLE), ("a fault of ours", grpc.StatusCode.INTERNAL)],
)
def test_a_status_that_grpc_lost_is_a_lost_connection(details: str, code: grpc.StatusCode) -> None:
    class Channel:
        def stream_stream(self, *_: Any, **__: Any) -> Any:
            return lambda **_: EndedCall(details)

    async def read() -> None:
        async with aio_stream.Stream(Channel(), StreamConfig("m"), Options(), None) as stream:
            await stream.__anext__()

    with pytest.raises(voxserve.InferenceError) as caught:
        asyncio.run(read())
    assert caught.value.code is code
    assert caught.value.reason == ("CONNECTION_LOST" if code is grpc.StatusCode.UNAVAILABLE else "")
