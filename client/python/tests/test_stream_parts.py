"""Tests streams whose frames come in parts: the state step by step, and both clients with a fake server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from conftest import FakeServer, answer, fail, status_of
from stream_clients import WAIT, error_of, labels_of

import voxserve
from voxserve import wire
from voxserve.protocol import Options
from voxserve.reopening import MAX_BREAKS
from voxserve.stream_state import StreamConfig, StreamState

Points = np.ndarray[Any, np.dtype[np.float32]]
GONE = voxserve.UnavailableError("gone", grpc.StatusCode.UNAVAILABLE, "NO_SERVER")
BROKEN = voxserve.UnavailableError("broken", grpc.StatusCode.UNAVAILABLE, "CONNECTION_LOST")
CLOUD = np.arange(12, dtype=np.float32).reshape(3, 4)


def make_state(policy: Any = "latest", **config: Any) -> StreamState:
    return StreamState(StreamConfig("m", policy, **config), Options(max_message_bytes=1 << 20), None)


def add(state: StreamState, frame_id: int) -> None:
    state.add(state.make_frame(frame_id, CLOUD, None, None, False))


def add_part(state: StreamState, frame_id: int, is_last: bool = False, *, reset_sweeps: bool = False) -> None:
    part = state.make_part(frame_id, CLOUD, is_last, None, None, reset_sweeps)
    assert state.can_add or state.continues(part)
    state.add_part(part)


def taken(state: StreamState) -> list[tuple[int, int | None, bool]]:
    """Takes all requests: of each the frame's id, and the part's index and is_last."""
    requests: list[tuple[int, int | None, bool]] = []
    while state.can_take and (request := state.take()) is not None:
        message = wire.InferStreamRequest.FromString(request)
        if message.HasField("frame"):
            requests.append((message.frame.frame_id, None, True))
        else:
            requests.append((message.part.frame_id, message.part.index, message.part.is_last))
    return requests


def result_of(frame_id: int, num_points: int = 0, **changes: Any) -> bytes:
    request = wire.InferStreamRequest(
        frame=wire.StreamFrame(frame_id=frame_id, cloud=wire.PointCloud(num_points=num_points))
    )
    data: bytes = answer(request, **changes).SerializeToString()
    return data


def outcomes(state: StreamState) -> list[tuple[int, str]]:
    found = []
    while state.can_pop and (result := state.pop()) is not None:
        found.append((result.frame_id, result.error.reason if result.error else "OK"))
    return found


def test_parts_are_taken_as_they_come_and_before_the_next_frame() -> None:
    state = make_state("queue")
    add_part(state, 7)
    assert taken(state) == [(7, 0, False)]
    assert not state.can_take
    add_part(state, 7)
    add_part(state, 7, is_last=True)
    add(state, 8)
    assert taken(state) == [(7, 1, False), (7, 2, True), (8, None, True)]
    state.receive(result_of(7, 9))
    state.receive(result_of(8, 3))
    assert outcomes(state) == [(7, "OK"), (8, "OK")]


def test_an_answer_must_have_the_labels_of_all_parts() -> None:
    state = make_state()
    add_part(state, 7)
    add_part(state, 7, is_last=True)
    taken(state)
    state.receive(result_of(7, 3))
    assert outcomes(state) == [(7, "MALFORMED_RESPONSE")]


def test_a_frame_that_has_begun_is_not_superseded() -> None:
    state = make_state()
    add_part(state, 1)
    assert state.take() is not None
    add_part(state, 1)
    add_part(state, 2, reset_sweeps=True)  # ends frame 1, of which a part waits
    add_part(state, 2, is_last=True)
    add(state, 3)
    assert outcomes(state) == [(2, "SUPERSEDED")]
    assert state.can_take
    assert wire.InferStreamRequest.FromString(state.take() or b"").part.index == 1
    newest = wire.InferStreamRequest.FromString(state.take() or b"")
    assert (newest.frame.frame_id, newest.frame.reset_sweeps) == (3, True)
    assert not state.can_take


def test_a_reset_is_handed_on_to_a_frame_in_parts() -> None:
    state = make_state()
    state.add(state.make_frame(1, CLOUD, None, None, True))
    add_part(state, 2)
    request = wire.InferStreamRequest.FromString(state.take() or b"")
    assert (request.part.frame_id, request.part.reset_sweeps) == (2, True)


def test_parts_of_a_frame_with_a_result_are_dropped() -> None:
    state = make_state()
    add_part(state, 1)
    taken(state)
    status = status_of(grpc.StatusCode.INVALID_ARGUMENT, "no", "BAD_LAYOUT")
    state.receive(result_of(1, response=None, status=status))
    frame = state._begun
    assert frame is not None
    add_part(state, 1)
    assert frame.requests == [b""], "the bytes of a part that nobody takes are not kept"
    add_part(state, 1, is_last=True)
    assert not state.can_take
    assert outcomes(state) == [(1, "BAD_LAYOUT")]
    add(state, 2)
    assert taken(state) == [(2, None, True)]


def test_parts_of_a_frame_that_broke_too_many_connections_are_dropped() -> None:
    state = make_state("queue", reopen=60.0)
    add_part(state, 1)
    frame = state._begun
    assert frame is not None
    for _ in range(MAX_BREAKS):
        taken(state)
        assert state.break_off(BROKEN) is not None
        state.reopen()
    assert outcomes(state) == [(1, "CONNECTION_LOST")]
    add_part(state, 1)
    assert len(frame.requests) == 1
    add_part(state, 1, is_last=True)
    add(state, 2)
    assert taken(state) == [(2, None, True)]


def test_only_the_first_part_waits_in_a_queue() -> None:
    state = make_state("queue")
    add(state, 1)
    part = state.make_part(2, CLOUD, False, None, None, False)
    assert not state.can_add
    assert not state.continues(part)
    taken(state)
    state.add_part(part)
    assert not state.can_add
    add_part(state, 2)
    add_part(state, 2, is_last=True)
    assert taken(state) == [(2, 0, False), (2, 1, False), (2, 2, True)]


def test_an_id_may_not_come_again_soon() -> None:
    state = make_state("queue")
    for frame_id in range(65):
        add_part(state, frame_id, is_last=True)
        taken(state)
        state.receive(result_of(frame_id, 3))
    with pytest.raises(ValueError, match="frame 1 is one of the last 64 frames sent in parts"):
        add_part(state, 1)
    add_part(state, 0)
    with pytest.raises(ValueError, match="frame 0 is under way already"):
        add(state, 0)


def test_parts_keep_no_bytes_after_they_are_sent() -> None:
    state = make_state()
    add_part(state, 1)
    add_part(state, 1)
    assert state.take() is not None
    frame = state._under_way[1]
    assert [len(request) > 0 for request in frame.requests] == [False, True]
    taken(state)
    assert frame.requests == [b"", b""]


def test_a_new_server_gets_all_parts_again() -> None:
    state = make_state("queue", reopen=60.0)
    add_part(state, 1)
    add_part(state, 1)
    assert taken(state) == [(1, 0, False), (1, 1, False)]
    assert state.break_off(GONE) is not None
    add_part(state, 1)
    state.reopen()
    assert taken(state) == [(1, 0, False), (1, 1, False), (1, 2, False)]
    add_part(state, 1, is_last=True)
    assert taken(state) == [(1, 3, True)]


def test_a_server_that_goes_away_still_gets_the_rest_of_a_frame() -> None:
    state = make_state("queue", reopen=60.0)
    add_part(state, 1)
    taken(state)
    state.receive(wire.InferStreamResponse(going_away=wire.GoingAway()).SerializeToString())
    add_part(state, 1, is_last=True)
    add_part(state, 2)
    assert taken(state) == [(1, 1, True)]
    assert state.break_off(GONE) is not None
    state.reopen()
    assert taken(state) == [(1, 0, False), (1, 1, True), (2, 0, False)]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"frame_id": -1}, "frame_id is -1"),
        ({"points": np.zeros(3, np.float32)}, "shape"),
        ({"stamp": -1.0}, "stamp is -1.0"),
    ],
)
def test_parts_that_cannot_be_sent(keywords: dict[str, Any], message: str) -> None:
    whole = {"frame_id": 1, "points": CLOUD, "is_last": False, "pose": None, "stamp": None, "reset_sweeps": False}
    with pytest.raises(ValueError, match=message):
        make_state().make_part(**{**whole, **keywords})


def test_parts_have_one_step() -> None:
    with pytest.raises(ValueError, match="compact"):
        make_state(compact=True).make_part(1, CLOUD, False, None, None, False)


def test_a_part_after_the_end_is_an_error() -> None:
    state = make_state()
    add_part(state, 1)
    state.close()
    with pytest.raises(ValueError, match="closed"):
        add_part(state, 1)


def test_a_part_after_the_stream_broke_gets_the_streams_error() -> None:
    state = make_state()
    add_part(state, 1)
    taken(state)
    state.end(GONE)
    for frame_id in (1, 2):
        with pytest.raises(voxserve.UnavailableError, match="gone"):
            add_part(state, frame_id)


def collect(requests: Iterator[Any], _context: Any) -> Iterator[Any]:
    """Answers frames in parts as a server does."""
    next(requests)
    parts: list[Any] = []
    for request in requests:
        if parts and request.part.frame_id != parts[-1].frame_id:
            status = status_of(grpc.StatusCode.INVALID_ARGUMENT, "parts lack", "FRAME_INCOMPLETE")
            yield wire.InferStreamResponse(result=wire.FrameResult(frame_id=parts[-1].frame_id, status=status))
            parts = []
        if request.HasField("frame"):
            yield answer(request)
            continue
        parts.append(request.part)
        if request.part.is_last:
            whole = wire.StreamFrame(
                frame_id=request.part.frame_id,
                cloud=wire.PointCloud(num_points=sum(part.cloud.num_points for part in parts)),
            )
            yield answer(wire.InferStreamRequest(frame=whole))
            parts = []


def test_a_frame_in_parts_gets_one_result(client: Any, server: FakeServer, points: Points) -> None:
    server.streams = collect
    with client.stream("m", policy="queue", fields=["x", "y", "z", "age"], scales={"age": 0.5}, timeout=WAIT) as stream:
        stream.send_part(5, points[:2])
        stream.send_part(5, points[2:3], pose=voxserve.Pose((1, 2, 3)), stamp=12.25, reset_sweeps=True)
        stream.send_part(5, points[:0], is_last=True)
        stream.send(6, points[:4])
        stream.send_part(7, points)
        stream.send_part(8, points, is_last=True)
        stream.close_sends()
        results = list(stream)
    assert [result.frame_id for result in results] == [5, 6, 7, 8]
    np.testing.assert_array_equal(labels_of(results[0]), [0, 1, 0])
    assert results[0].segmentation.round_trip > 0
    assert len(labels_of(results[1])) == 4
    assert error_of(results[2]).reason == "FRAME_INCOMPLETE"
    assert isinstance(error_of(results[2]), voxserve.InvalidArgumentError)
    assert len(labels_of(results[3])) == len(points)
    first, second, last = (request.part for request in server.requests[1:4])
    assert [part.index for part in (first, second, last)] == [0, 1, 2]
    assert [part.is_last for part in (first, second, last)] == [False, False, True]
    assert first.cloud.data + second.cloud.data == points[:3].tobytes()
    assert [field.name for field in last.cloud.fields] == ["x", "y", "z", "age"]
    assert first.cloud.fields[3].scale == 0.5
    assert (second.cloud.stamp.seconds, second.cloud.stamp.nanos, second.reset_sweeps) == (12, 250_000_000, True)
    assert second.pose == wire.Pose(x=1, y=2, z=3, qw=1)


def test_parts_wait_for_nobody(client: Any, server: FakeServer, points: Points) -> None:
    got_first = threading.Event()

    def streams(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        def seen() -> Iterator[Any]:
            for request in requests:
                yield request
                if request.HasField("part"):
                    got_first.set()

        return collect(seen(), context)

    server.streams = streams
    with client.stream("m", timeout=WAIT) as stream:
        stream.send_part(1, points)
        assert got_first.wait(WAIT), "a part is sent when it comes"
        stream.send_part(1, points, is_last=True)
        assert len(labels_of(next(stream))) == 2 * len(points)


def test_a_server_that_does_not_know_parts_says_so(client: Any, server: FakeServer, points: Points) -> None:
    def streams(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        next(requests)
        next(requests)
        fail(context, grpc.StatusCode.INVALID_ARGUMENT, "a message has neither a config nor a frame", "BAD_STREAM")
        yield

    server.streams = streams
    with client.stream("m", timeout=WAIT) as stream:
        stream.send_part(1, points)
        with pytest.raises(voxserve.InvalidArgumentError) as caught:
            next(stream)
        assert caught.value.reason == "BAD_STREAM"
