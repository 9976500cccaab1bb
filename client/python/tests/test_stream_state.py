"""Tests the state that the client keeps of a stream's frames, step by step, without a connection."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest
from conftest import answer

import voxserve
from voxserve import wire
from voxserve.protocol import Options
from voxserve.stream_state import StreamConfig, StreamState

CLOUD = np.arange(12, dtype=np.float32).reshape(3, 4)
LIMIT = 1 << 20


def make_state(policy: Any = "latest", **config: Any) -> StreamState:
    return StreamState(StreamConfig("m", policy, **config), Options(max_message_bytes=LIMIT), None)


def add(state: StreamState, frame_id: int, *, reset_sweeps: bool = False, stamp: float | None = None) -> None:
    state.add(state.make_frame(frame_id, CLOUD, None, stamp, reset_sweeps))


def take(state: StreamState) -> Any:
    request = state.take()
    assert request is not None
    return wire.InferStreamRequest.FromString(request)


def test_a_newer_frame_takes_the_place_of_one_that_waits() -> None:
    state = make_state()
    for frame_id in (1, 2, 3):
        assert state.can_add
        add(state, frame_id)
    for frame_id, newer in ((1, 2), (2, 3)):
        result = state.pop()
        assert result is not None
        assert (result.frame_id, result.segmentation, result.num_sweeps) == (frame_id, None, 0)
        assert isinstance(result.error, voxserve.SupersededError)
        assert result.error.reason == "SUPERSEDED"
        assert f"frame {frame_id} was superseded by frame {newer}" in result.error.message
    assert not state.can_pop
    assert take(state).frame.frame_id == 3
    assert not state.can_take


def test_a_frame_that_is_on_its_way_is_not_superseded() -> None:
    state = make_state()
    add(state, 1)
    take(state)
    add(state, 2)
    assert not state.can_pop


@pytest.mark.parametrize(
    ("resets", "expected"),
    [
        ((True, False, False), True),
        ((False, False, False), False),
        ((False, True, True), True),
        ((False, False, True), True),
    ],
)
def test_a_superseded_reset_is_handed_on(resets: tuple[bool, ...], expected: bool) -> None:
    state = make_state()
    for frame_id, reset in enumerate(resets):
        add(state, frame_id, reset_sweeps=reset, stamp=frame_id)
    request = take(state)
    assert request.frame.reset_sweeps == expected
    assert request.frame.frame_id == 2  # all other fields are the newest frame's
    assert request.frame.cloud.data == CLOUD.tobytes()
    assert request.frame.cloud.stamp.seconds == 2
    add(state, 9)
    assert not take(state).frame.reset_sweeps


def test_a_queue_holds_the_sender() -> None:
    state = make_state("queue")
    assert state.can_add
    add(state, 1)
    assert not state.can_add
    assert take(state).frame.frame_id == 1
    assert state.can_add


def test_a_held_sender_is_told_of_the_end() -> None:
    for end in (StreamState.close, lambda state: state.end(voxserve.UnavailableError("gone"))):
        state = make_state("queue")
        add(state, 1)
        end(state)
        assert state.can_add
        with pytest.raises((ValueError, voxserve.UnavailableError)):
            add(state, 2)


def test_answers_of_a_latest_stream_are_taken_as_they_are_read() -> None:
    state = make_state()
    taken = 0
    for frame_id in range(20):
        add(state, frame_id)
        request = take(state)
        if state.can_receive:
            taken += 1
            state.receive(answer(request).SerializeToString())
    assert 1 <= taken <= 4
    assert state.pop() is not None
    assert state.can_receive


def test_own_results_do_not_hold_the_connection() -> None:
    state = make_state()
    for frame_id in range(20):
        add(state, frame_id)
    assert state.can_receive
    for _ in range(19):
        assert state.pop() is not None
    assert not state.can_pop
    assert state.can_receive


def test_answers_of_a_queue_wait_in_memory() -> None:
    state = make_state("queue")
    for frame_id in range(100):
        add(state, frame_id)
        assert state.can_receive
        state.receive(answer(take(state)).SerializeToString())
    assert [result.frame_id for result in (state.pop() for _ in range(100)) if result] == list(range(100))


def test_cancelling_lets_a_full_stream_go_on_to_its_end() -> None:
    state = make_state()
    while state.can_receive:
        add(state, 1)
        state.receive(answer(take(state)).SerializeToString())
    state.is_cancelled = True
    assert state.can_receive


def test_an_id_is_free_again_after_its_result() -> None:
    state = make_state("queue")
    add(state, 1)
    frame = state.make_frame(1, CLOUD, None, None, False)
    with pytest.raises(ValueError, match="frame 1 is under way already"):
        state.add(frame)
    request = take(state)
    with pytest.raises(ValueError, match="frame 1 is under way already"):
        state.add(frame)
    state.receive(answer(request).SerializeToString())
    state.add(frame)


def test_a_frame_keeps_its_points_no_longer_than_it_must() -> None:
    state = make_state()
    add(state, 1)
    take(state)
    assert [frame.requests for frame in state._under_way.values()] == [[b""]]


@pytest.mark.parametrize("frame_id", [0, 1, np.int64(7), (1 << 64) - 1])
def test_ids(frame_id: Any) -> None:
    state = make_state()
    add(state, frame_id)
    assert take(state).frame.frame_id == frame_id


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"frame_id": -1}, ValueError, "frame_id is -1"),
        ({"frame_id": 1 << 64}, ValueError, "frame_id is 18446744073709551616"),
        ({"frame_id": "1"}, TypeError, "str"),
        ({"frame_id": 1.5}, TypeError, "float"),
        ({"points": np.zeros((3, 2), np.float32)}, ValueError, "shape"),
        ({"points": np.zeros((LIMIT, 4), np.uint8)}, voxserve.ResourceExhaustedError, r"\(1048576 points\), more than"),
        ({"pose": np.eye(3)}, ValueError, "shape"),
        ({"pose": np.eye(4)[:3] * 2}, ValueError, "scales"),
        ({"stamp": 1_700_000_000_123_456_789}, ValueError, "must be in seconds"),
        ({"stamp": -1.0}, ValueError, "must be in seconds"),
        ({"stamp": float("nan")}, ValueError, "must be in seconds"),
    ],
)
def test_frames_that_cannot_be_sent(keywords: dict[str, Any], error: type[Exception], message: str) -> None:
    frame = {"frame_id": 1, "points": CLOUD, "pose": None, "stamp": None, "reset_sweeps": False, **keywords}
    with pytest.raises(error, match=message):
        make_state().make_frame(**frame)


UNAVAILABLE, NOT_FOUND = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("reopen", "code", "is_answered", "expected"),
    [
        (0.05, UNAVAILABLE, True, None),
        (0.05, UNAVAILABLE, False, UNAVAILABLE),
        (0.05, NOT_FOUND, True, NOT_FOUND),
        (None, UNAVAILABLE, True, UNAVAILABLE),
    ],
)
def test_a_complete_stream_ends_well_though_its_time_to_look_for_a_server_is_over(
    reopen: float | None, code: grpc.StatusCode, is_answered: bool, expected: grpc.StatusCode | None
) -> None:
    state = make_state("queue", reopen=reopen)
    add(state, 1)
    request = take(state)
    if is_answered:
        state.receive(answer(request).SerializeToString())
        assert state.pop() is not None
    if reopen is not None:
        assert state.break_off(voxserve.UnavailableError("gone", UNAVAILABLE, "NO_SERVER")) == 0
        state.reopen()
    state.close()  # the user closes the stream while it looks for a server
    assert state.break_off(voxserve.InferenceError("gone", code)) is None
    if expected is None:
        assert state.pop() is None
        return
    with pytest.raises(voxserve.InferenceError) as caught:
        state.pop()
    assert caught.value.code is expected


def test_sweeps_need_pose_and_stamp() -> None:
    state = make_state(sweeps=voxserve.Sweeps(3))
    pose = voxserve.Pose((0, 0, 0))
    with pytest.raises(ValueError, match="frame 4 has no pose"):
        state.make_frame(4, CLOUD, None, 1.0, False)
    with pytest.raises(ValueError, match="frame 4 has no stamp"):
        state.make_frame(4, CLOUD, pose, None, False)
    state.make_frame(4, CLOUD, pose, 1.0, False)
    state.make_frame(5, voxserve.PointCloud(b"", 0, 12, (), stamp_ns=5), pose, None, False)
