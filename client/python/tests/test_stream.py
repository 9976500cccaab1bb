"""Tests the streams of the synchronous and the asyncio client with a fake server; each test body runs with both."""

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

Points = np.ndarray[Any, np.dtype[np.float32]]


def test_every_frame_gets_its_labels(client: Any, points: Points) -> None:
    with client.stream("minkunet", policy="queue", timeout=WAIT) as stream:
        for frame_id in range(6):
            stream.send(frame_id, points[:frame_id])
        stream.close_sends()
        results = list(stream)
    assert [result.frame_id for result in results] == list(range(6))
    for result in results:
        np.testing.assert_array_equal(labels_of(result), np.arange(result.frame_id) % 2)
        assert (result.segmentation.model, result.segmentation.version, result.num_sweeps) == ("minkunet", 3, 0)
        assert result.segmentation.round_trip > 0
    assert not stream.is_going_away


def test_send_and_read_in_turns(client: Any, points: Points) -> None:
    with client.stream("minkunet", timeout=WAIT) as stream:
        for frame_id in range(20):
            stream.send(frame_id, points)
            assert next(stream).frame_id == frame_id


def test_the_config_is_sent_first(client: Any, server: FakeServer) -> None:
    sweeps = voxserve.Sweeps(5, age_feature="age", max_age=1.25)
    options = {"policy": "queue", "version": 7, "scores": True, "priority": 2, "frame_timeout": 0.05}
    with client.stream("minkunet", max_queued_frames=9, sweeps=sweeps, timeout=WAIT, **options) as stream:
        stream.close_sends()
        assert list(stream) == []
    config = server.requests[0].config
    assert (config.model, config.version, config.return_scores, config.priority) == ("minkunet", 7, True, 2)
    assert (config.policy, config.max_queued_frames) == (wire.STREAM_POLICY_QUEUE, 9)
    assert (config.frame_timeout.seconds, config.frame_timeout.nanos) == (0, 50_000_000)
    assert (config.sweeps.num_sweeps, config.sweeps.age_feature) == (5, "age")
    assert (config.sweeps.max_age.seconds, config.sweeps.max_age.nanos) == (1, 250_000_000)


def test_every_frame_is_sampled(client: Any, server: FakeServer, points: Points) -> None:
    def streams(requests: Iterator[Any], _context: Any) -> Iterator[Any]:
        next(requests)
        for request in requests:
            response = answer(request)
            response.result.response.sampled_points.extend([4, 0][: request.frame.frame_id])
            yield response

    server.streams = streams
    with client.stream("m", sample=voxserve.FarthestPoints(2, seed=3), policy="queue", timeout=WAIT) as stream:
        stream.send(2, points)
        stream.send(1, points)  # the fake server's answer to it lacks a point
        stream.close_sends()
        good, bad = stream
    assert good.segmentation.sampled_points.tolist() == [4, 0]
    assert error_of(bad).reason == "MALFORMED_RESPONSE"
    sent = server.requests[0].config.sample
    assert (sent.num_points, sent.seed) == (2, 3)


def test_a_stream_of_sweeps_has_no_sample(client: Any) -> None:
    with pytest.raises(ValueError, match="whole scans"):
        client.stream("m", sample=voxserve.FarthestPoints(2), sweeps=voxserve.Sweeps(2))


def test_the_defaults_are_the_servers(client: Any, server: FakeServer) -> None:
    with client.stream("minkunet") as stream:
        stream.close_sends()
        assert list(stream) == []
    assert server.requests[0].config == wire.StreamConfig(model="minkunet", policy=wire.STREAM_POLICY_LATEST)
    assert server.time_remaining is None or server.time_remaining > 1e6  # the default 30 s are for calls only


def test_frames_carry_points_pose_and_stamp(client: Any, server: FakeServer, points: Points) -> None:
    pose = voxserve.Pose((1.5, -2, 3), (0.5, 0.5, -0.5, 0.5))
    matrix = [[0, -1, 0, 4], [1, 0, 0, 5], [0, 0, 1, 6], [0, 0, 0, 1]]
    names = ["x", "y", "z", "age"]
    with client.stream("m", policy="queue", fields=names, scales={"age": 0.5}, timeout=WAIT) as stream:
        stream.send(7, points, pose, 12.25, reset_sweeps=True)
        stream.send(8, points[:2], pose=matrix)
        stream.close_sends()
        assert len(list(stream)) == 2
    first, second = (request.frame for request in server.requests[1:])
    assert first.frame_id == 7
    assert first.cloud.data == points.tobytes()
    assert [(f.name, f.offset, f.type) for f in first.cloud.fields] == [(n, 4 * i, 7) for i, n in enumerate(names)]
    assert first.cloud.fields[3].scale == 0.5
    assert (first.cloud.stamp.seconds, first.cloud.stamp.nanos) == (12, 250_000_000)
    assert first.reset_sweeps
    assert first.pose == wire.Pose(x=1.5, y=-2, z=3, qw=0.5, qx=0.5, qy=-0.5, qz=0.5)
    assert (second.frame_id, second.cloud.num_points, second.reset_sweeps) == (8, 2, False)
    assert not second.cloud.HasField("stamp")
    turned = [second.pose.qw, second.pose.qx, second.pose.qy, second.pose.qz]
    np.testing.assert_allclose(turned, [0.5**0.5, 0, 0, 0.5**0.5], atol=1e-12)
    assert (second.pose.x, second.pose.y, second.pose.z) == (4, 5, 6)


def test_points_may_change_after_they_were_sent(client: Any, server: FakeServer, points: Points) -> None:
    with client.stream("m", policy="queue", timeout=WAIT) as stream:
        for frame_id in range(4):
            points[:] = frame_id
            stream.send(frame_id, points)
        points[:] = -1
        stream.close_sends()
        assert len(list(stream)) == 4
    for request in server.requests[1:]:
        assert np.all(np.frombuffer(request.frame.cloud.data, np.float32) == request.frame.frame_id)


def test_scores_and_number_of_sweeps(client: Any, server: FakeServer, points: Points) -> None:
    def streams(requests: Iterator[Any], _context: Any) -> Iterator[Any]:
        next(requests)
        for request in requests:
            response = answer(request, num_sweeps=4)
            scores = np.tile(np.array([1.5, -2], "<f4"), request.frame.cloud.num_points)
            response.result.response.segmentation.scores = scores.tobytes()
            yield response

    server.streams = streams
    with client.stream("m", scores=True, timeout=WAIT) as stream:
        stream.send(1, points)
        result = next(stream)
    np.testing.assert_array_equal(result.segmentation.scores, np.tile(np.float32([1.5, -2]), (10, 1)))
    assert result.num_sweeps == 4


def test_a_bad_frame_ends_nothing_but_itself(client: Any, server: FakeServer, points: Points) -> None:
    retry = wire.RetryInfo()
    retry.retry_delay.nanos = 250_000_000
    statuses = {
        2: status_of(grpc.StatusCode.INVALID_ARGUMENT, "no field 'z'", "MISSING_FIELD"),
        3: status_of(grpc.StatusCode.ABORTED, "frame 4 is newer", "SUPERSEDED"),
        4: status_of(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", "QUEUE_FULL", retry),
        5: wire.Status(code=99, message="of another time"),
        6: wire.Status(code=10),
    }
    broken = wire.Status(code=13, message="details cut short")
    broken.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff\xff")
    statuses[7] = broken

    def streams(requests: Iterator[Any], _context: Any) -> Iterator[Any]:
        next(requests)
        for request in requests:
            status = statuses.get(request.frame.frame_id)
            yield answer(request) if status is None else answer(request, status=status, response=None)

    server.streams = streams
    with client.stream("m", policy="queue", timeout=WAIT) as stream:
        for frame_id in range(1, 9):
            stream.send(frame_id, points)
        stream.close_sends()
        results = {result.frame_id: result for result in stream}
    assert sorted(results) == list(range(1, 9))
    for frame_id in (1, 8):
        assert len(labels_of(results[frame_id])) == 10
    missing = error_of(results[2])
    assert isinstance(missing, voxserve.InvalidArgumentError)
    assert (missing.message, missing.reason, missing.metadata) == ("no field 'z'", "MISSING_FIELD", {"model": "m"})
    assert isinstance(error_of(results[3]), voxserve.SupersededError)
    full = error_of(results[4])
    assert isinstance(full, voxserve.ResourceExhaustedError)
    assert full.retry_after == 0.25
    assert error_of(results[5]).code == grpc.StatusCode.UNKNOWN
    assert type(error_of(results[6])) is voxserve.AbortedError  # without the reason it does not count as superseded
    assert (error_of(results[7]).message, error_of(results[7]).reason) == ("details cut short", "")


def test_a_malformed_answer_to_a_frame_is_that_frames(client: Any, server: FakeServer, points: Points) -> None:
    def streams(requests: Iterator[Any], _context: Any) -> Iterator[Any]:
        next(requests)
        for request in requests:
            response = answer(request)
            segmentation = response.result.response.segmentation
            if request.frame.frame_id == 1:
                segmentation.labels = segmentation.labels[:-1]
            elif request.frame.frame_id == 2:
                segmentation.scores = b"1234"
            elif request.frame.frame_id == 3:
                response.result.ClearField("response")
            yield response

    server.streams = streams
    with client.stream("m", policy="queue", timeout=WAIT) as stream:
        for frame_id in range(1, 5):
            stream.send(frame_id, points)
        stream.close_sends()
        results = list(stream)
    assert [result.error and result.error.reason for result in results] == ["MALFORMED_RESPONSE"] * 3 + [None]
    assert "neither status nor response of frame 3" in error_of(results[2]).message


def unknown_frame(requests: Iterator[Any]) -> Iterator[Any]:
    request = next(requests)
    request.frame.frame_id = 77
    yield answer(request)


def second_result(requests: Iterator[Any]) -> Iterator[Any]:
    request = next(requests)
    yield answer(request)
    yield answer(request)


def no_message(requests: Iterator[Any]) -> Iterator[Any]:
    next(requests)
    yield b"\xff\xff\xff"


def unanswered(requests: Iterator[Any]) -> Iterator[Any]:
    assert len(list(requests)) == 1
    yield from ()


def early_end(requests: Iterator[Any]) -> Iterator[Any]:
    yield answer(next(requests))


@pytest.mark.parametrize(
    ("bad", "closes", "message"),
    [
        (unknown_frame, False, "a result of frame 77, which is not under way"),
        (second_result, False, "a result of frame 5, which is not under way"),
        (no_message, False, "bytes that are no InferStreamResponse"),
        (unanswered, True, "the stream ended with 1 frames unanswered"),
        (early_end, False, "the stream ended before its sends were closed"),
    ],
)
def test_answers_that_make_no_sense_end_the_stream(
    client: Any, server: FakeServer, points: Points, bad: Any, closes: bool, message: str
) -> None:
    def streams(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        next(requests)
        yield from bad(requests)

    server.streams = streams
    with client.stream("m", timeout=WAIT) as stream:
        stream.send(5, points)
        if closes:
            stream.close_sends()
        with pytest.raises(voxserve.InferenceError, match=message) as caught:
            list(stream)
        assert caught.value.reason == "MALFORMED_RESPONSE"


def test_messages_of_a_newer_server_are_passed_over(client: Any, server: FakeServer, points: Points) -> None:
    def streams(requests: Iterator[Any], _context: Any) -> Iterator[Any]:
        next(requests)
        for request in requests:
            yield wire.InferStreamResponse()
            yield answer(request)

    server.streams = streams
    with client.stream("m", timeout=WAIT) as stream:
        stream.send(1, points)
        assert next(stream).frame_id == 1


def test_a_stream_that_is_refused_says_why(client: Any, server: FakeServer, points: Points) -> None:
    def streams(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        next(requests)
        fail(context, grpc.StatusCode.NOT_FOUND, "no model 'm'; there is minkunet", "MODEL_NOT_FOUND")
        yield from ()

    server.streams = streams
    with client.stream("m", timeout=WAIT) as stream:
        for _ in range(3):  # every reader gets the same error
            with pytest.raises(voxserve.NotFoundError, match="there is minkunet") as caught:
                next(stream)
            assert caught.value.reason == "MODEL_NOT_FOUND"
        with pytest.raises(voxserve.NotFoundError):
            stream.send(1, points)


def test_no_server(client: Any, server: FakeServer) -> None:
    server.stop()
    with client.stream("m", timeout=WAIT) as stream, pytest.raises(voxserve.UnavailableError) as caught:
        next(stream)
    assert caught.value.reason == "NO_SERVER"


def test_a_server_that_drains(client: Any, server: FakeServer, points: Points) -> None:
    def streams(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        next(requests)
        accepted = [next(requests), next(requests), next(requests)]
        yield wire.InferStreamResponse(going_away=wire.GoingAway())
        yield from map(answer, accepted)
        fail(context, grpc.StatusCode.UNAVAILABLE, "the server is going away", "DRAINING")

    server.streams = streams
    with client.stream("m", policy="queue", timeout=WAIT) as stream:
        for frame_id in range(3):
            stream.send(frame_id, points)
        assert next(stream).frame_id == 0
        assert stream.is_going_away
        assert [next(stream).frame_id, next(stream).frame_id] == [1, 2]  # the answers come before the error
        with pytest.raises(voxserve.UnavailableError, match="going away") as caught:
            next(stream)
        assert caught.value.reason == "DRAINING"


def test_answers_that_were_not_read_survive_the_end(client: Any, server: FakeServer, points: Points) -> None:
    ended = threading.Event()

    def streams(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        context.add_callback(ended.set)
        next(requests)
        yield from [answer(next(requests)) for _ in range(5)]
        fail(context, grpc.StatusCode.UNAVAILABLE, "the server is going away", "DRAINING")

    server.streams = streams
    with client.stream("m", policy="queue", timeout=WAIT) as stream:
        for frame_id in range(5):
            stream.send(frame_id, points)
        assert ended.wait(WAIT)
        for frame_id in range(5):
            assert next(stream).frame_id == frame_id
        with pytest.raises(voxserve.UnavailableError):
            next(stream)


def test_half_closing_gets_what_is_under_way(client: Any, server: FakeServer, points: Points) -> None:
    def streams(requests: Iterator[Any], _context: Any) -> Iterator[Any]:
        next(requests)
        yield from map(answer, reversed(list(requests)))  # after the client has closed, in reverse order

    server.streams = streams
    with client.stream("m", policy="queue", timeout=WAIT) as stream:
        for frame_id in range(5):
            stream.send(frame_id, points)
        stream.close_sends()
        stream.close_sends()  # no effect
        with pytest.raises(ValueError, match="sends are closed"):
            stream.send(9, points)
        assert [result.frame_id for result in stream] == [4, 3, 2, 1, 0]
        assert list(stream) == []  # the second iteration is empty too
        with pytest.raises(ValueError, match="sends are closed"):
            stream.send(9, points)


class Silence:
    """A server that reads the config and the first frame, answers nothing, and notices when the client is gone."""

    def __init__(self, server: FakeServer) -> None:
        self.has_frame = threading.Event()
        self.ended = threading.Event()
        server.streams = self._run

    def _run(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        context.add_callback(self.ended.set)
        next(requests)
        next(requests)
        self.has_frame.set()
        self.ended.wait(WAIT)
        yield from ()


def test_cancelling_from_elsewhere(client: Any, server: FakeServer, points: Points) -> None:
    silence = Silence(server)
    with client.stream("m", timeout=WAIT) as stream:
        stream.send(1, points)

        def cancel() -> None:
            silence.has_frame.wait(WAIT)
            stream.cancel()

        other = threading.Thread(target=cancel)
        other.start()
        with pytest.raises(voxserve.CancelledError, match="the stream was cancelled") as caught:
            next(stream)
        assert caught.value.code == grpc.StatusCode.CANCELLED
        other.join()
        with pytest.raises(voxserve.CancelledError):
            stream.send(2, points)
        assert silence.ended.wait(WAIT)
        stream.cancel()  # no effect


@pytest.mark.parametrize("sends", [False, True])
def test_cancelling_before_it_has_begun(client: Any, points: Points, sends: bool) -> None:
    for _ in range(20):
        with client.stream("m", timeout=WAIT) as stream:
            if sends:
                stream.send(1, points)
            stream.cancel()
            with pytest.raises(voxserve.CancelledError):
                list(stream)


def test_leaving_the_block_cancels(client: Any, server: FakeServer, points: Points) -> None:
    silence = Silence(server)
    with client.stream("m", timeout=WAIT) as stream:
        stream.send(1, points)
        assert silence.has_frame.wait(WAIT)
    assert silence.ended.wait(WAIT)
    with pytest.raises(voxserve.CancelledError):
        next(stream)


def test_closing_the_client_ends_its_streams(client: Any, server: FakeServer, points: Points) -> None:
    silence = Silence(server)
    with client.stream("m", timeout=WAIT) as stream:
        stream.send(1, points)
        assert silence.has_frame.wait(WAIT)
        client.close()
        with pytest.raises(voxserve.CancelledError):
            next(stream)
    assert silence.ended.wait(WAIT)


def test_the_streams_deadline(client: Any, server: FakeServer, points: Points) -> None:
    Silence(server)
    with client.stream("m", timeout=2) as stream:  # long enough for a busy machine to send the frame
        stream.send(1, points)
        with pytest.raises(voxserve.DeadlineExceededError, match=r"within 2 s") as caught:
            next(stream)
    assert caught.value.reason == "CLIENT_TIMEOUT"
    assert server.time_remaining is not None
    assert server.time_remaining < 3


def test_frames_that_cannot_be_sent_leave_the_stream_as_it_is(client: Any, server: FakeServer, points: Points) -> None:
    pose = voxserve.Pose((0, 0, 0))
    with client.stream("m", policy="queue", sweeps=voxserve.Sweeps(2), timeout=WAIT) as stream:
        for arguments in ((1, points), (1, points, pose), (1, points[:, :2], pose, 1.0), (-1, points, pose, 1.0)):
            with pytest.raises(ValueError, match=r"pose|stamp|shape|frame_id"):
                stream.send(*arguments)
        with pytest.raises(voxserve.ResourceExhaustedError) as caught:
            stream.send(1, np.zeros((17_000_000, 4), np.uint8), pose, 1.0)
        assert caught.value.reason == "MESSAGE_TOO_LARGE"
        stream.send(1, points, pose, 1.0)
        stream.close_sends()
        assert [result.frame_id for result in stream] == [1]
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"model": ""}, "model is empty"),
        ({"policy": "newest"}, "policy is 'newest', must be latest or queue"),
        ({"priority": -1}, "priority is -1"),
        ({"frame_timeout": 0}, "frame_timeout is 0, must be"),
        ({"frame_timeout": -0.5}, "frame_timeout is -0.5"),
        ({"frame_timeout": float("nan")}, "frame_timeout is nan"),
        ({"frame_timeout": float("inf")}, "frame_timeout is inf"),
        ({"policy": "queue", "max_queued_frames": 65}, "max_queued_frames is 65"),
        ({"policy": "queue", "max_queued_frames": -1}, "max_queued_frames is -1"),
        ({"max_queued_frames": 4}, "max_queued_frames is of policy queue"),
        ({"timeout": 0}, "timeout is 0"),
    ],
)
def test_bad_arguments(client: Any, server: FakeServer, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        client.stream(**{"model": "m", **keywords})
    assert not server.requests


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0,), "num_sweeps is 0"), ((65,), "num_sweeps is 65"), ((2, "age", 0), "max_age is 0"),
     ((2, "age", float("nan")), "max_age is nan"), ((2, "", -1), "max_age is -1")],
)  # fmt: skip
def test_bad_sweeps(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        voxserve.Sweeps(*arguments)
