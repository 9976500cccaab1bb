"""Tests waiting in a stream, if one side is slow or several threads use it, with both clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import FakeServer, answer
from stream_clients import WAIT, error_of, labels_of

import voxserve

Points = np.ndarray[Any, np.dtype[np.float32]]
LARGE = np.zeros((1 << 18, 4), np.float32)  # 4 MB: more than a connection buffers before it is read


class SlowServer:
    """A server that reads the config, and reads frames only after may_read is set."""

    def __init__(self, server: FakeServer) -> None:
        self.may_read = threading.Event()
        self.read_ids: list[int] = []
        server.streams = self._run

    def _run(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        context.add_callback(self.may_read.set)  # the end of the call also sets it, so that _run cannot wait for ever
        next(requests)
        self.may_read.wait(WAIT)
        for request in requests:
            self.read_ids.append(request.frame.frame_id)
            yield answer(request)


def test_a_slow_uplink_gets_the_newest_frame(client: Any, server: FakeServer) -> None:
    slow = SlowServer(server)
    with client.stream("m", policy="latest", timeout=WAIT) as stream:
        for frame_id in range(40):
            stream.send(frame_id, LARGE)  # never waits, although the server does not read
        first = next(stream)  # returns at once, though nothing has been answered
        slow.may_read.set()
        stream.close_sends()
        results = {result.frame_id: result for result in [first, *stream]}
    assert isinstance(error_of(first), voxserve.SupersededError)
    assert sorted(results) == list(range(40))  # each frame exactly once
    for frame_id, result in results.items():
        if frame_id in slow.read_ids:
            assert len(labels_of(result)) == len(LARGE)
        else:
            assert isinstance(error_of(result), voxserve.SupersededError)
    assert slow.read_ids[-1] == 39
    assert len(slow.read_ids) <= 4


def test_a_superseded_frame_wakes_a_reader_that_waits(client: Any, server: FakeServer) -> None:
    slow = SlowServer(server)
    with client.stream("m", policy="latest", timeout=WAIT) as stream:
        found: list[voxserve.FrameResult] = []
        reader = threading.Thread(target=lambda: found.append(next(stream)))
        reader.start()
        for frame_id in range(20):
            stream.send(frame_id, LARGE)
        reader.join(WAIT)
        assert not slow.read_ids
        assert isinstance(error_of(found[0]), voxserve.SupersededError)


def test_a_queue_holds_the_sender(client: Any, server: FakeServer) -> None:
    num_sent = 0
    leads: list[int] = []

    def streams(requests: Iterator[Any], _context: Any) -> Iterator[Any]:
        next(requests)
        for num_read, request in enumerate(requests):
            leads.append(num_sent - num_read)
            yield answer(request)

    server.streams = streams
    with client.stream("m", policy="queue", timeout=WAIT) as stream:
        for frame_id in range(40):
            stream.send(frame_id, LARGE)
            num_sent = frame_id + 1
        stream.close_sends()
        assert [result.frame_id for result in stream] == list(range(40))
    assert max(leads) <= 4


def test_a_held_sender_is_let_go_by_cancelling(client: Any, server: FakeServer) -> None:
    SlowServer(server)
    with client.stream("m", policy="queue", timeout=WAIT) as stream:
        caught: list[BaseException] = []
        has_sent = threading.Event()

        def send() -> None:
            try:
                for frame_id in range(1000):
                    stream.send(frame_id, LARGE)
                    has_sent.set()
            except voxserve.InferenceError as error:
                caught.append(error)

        sender = threading.Thread(target=send)
        sender.start()
        assert has_sent.wait(WAIT)
        stream.cancel()
        sender.join(WAIT)
        assert [type(error) for error in caught] == [voxserve.CancelledError]


def test_a_slow_reader_holds_a_latest_stream(client: Any, server: FakeServer, points: Points) -> None:
    """Sends all frames before it reads the first answer; each frame still gets exactly one result."""
    with client.stream("m", policy="latest", timeout=WAIT) as stream:
        for frame_id in range(200):
            stream.send(frame_id, points)
        stream.close_sends()
        assert sorted(result.frame_id for result in stream) == list(range(200))


def test_streams_never_mix(client: Any, server: FakeServer, points: Points) -> None:
    failures: list[BaseException] = []

    def drive(size: int) -> None:
        try:
            with client.stream("m", policy="queue", timeout=WAIT) as stream:
                for frame_id in range(30):
                    stream.send(frame_id, points[:size])
                stream.close_sends()
                assert [(r.frame_id, len(labels_of(r))) for r in stream] == [(i, size) for i in range(30)]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=drive, args=[size]) for size in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert not failures


def test_one_thread_sends_and_one_reads(client: Any, points: Points) -> None:
    with client.stream("m", policy="queue", timeout=WAIT) as stream:

        def send() -> None:
            for frame_id in range(200):
                stream.send(frame_id, points)
            stream.close_sends()

        sender = threading.Thread(target=send)
        sender.start()
        assert [result.frame_id for result in stream] == list(range(200))
        sender.join()


def test_no_thread_is_left(server: FakeServer, points: Points) -> None:
    before = set(threading.enumerate())
    with voxserve.Client(server.address) as client, client.stream("m", timeout=WAIT) as stream:
        stream.send(1, points)
        assert next(stream).frame_id == 1
    assert not [t for t in set(threading.enumerate()) - before if t.name == "voxserve-stream"]


def test_a_wait_that_was_cancelled_leaves_the_asyncio_stream_as_it_is(server: FakeServer, points: Points) -> None:
    async def run() -> None:
        async with voxserve.aio.Client(server.address) as client, client.stream("m", timeout=WAIT) as stream:
            for frame_id in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(stream.__anext__(), 0.01)
                await stream.send(frame_id, points)
                assert (await stream.__anext__()).frame_id == frame_id

    asyncio.run(run())


def test_a_program_that_ends_with_a_stream_open(server: FakeServer, points: Points) -> None:
    async def run() -> int:
        stream = voxserve.aio.Client(server.address).stream("m")
        await stream.send(1, points)
        return (await stream.__anext__()).frame_id

    assert asyncio.run(run()) == 1
