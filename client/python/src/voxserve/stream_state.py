"""Keeps the states of a stream's frames in the client. The synchronous and the asyncio stream share this module.

A frame first waits to be sent, then it is under way (sent, without a result), then it gets one result. If frames come
faster than they can be sent, policy "latest" keeps only the newest one, so that a slow uplink does not add delay. With
"queue", the sender blocks.

A frame may come in parts. Then it has several requests. When the first has been sent, the others follow it, before any
other frame. A part that is added later follows them too, until the frame is complete or the next one is added.

A stream with `reopen` begins a new RPC when an RPC has failed. It keeps a frame's bytes until the frame has a result.
The new RPC begins with the config and the frames that have no result: all of them with "queue"; only the newest with
"latest", where the others are superseded.
"""

from __future__ import annotations

import math
import operator
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import grpc
from google.protobuf import duration_pb2

from voxserve import answers, errors, feature_warning, protocol, wire
from voxserve.compacting import compact_or_warn
from voxserve.encoding import encode_frame
from voxserve.farthest_points import FarthestPoints
from voxserve.inputs import PointsLike
from voxserve.known_classes import Teller
from voxserve.point_cloud import Fields, PointCloud, as_cloud
from voxserve.pose import PoseLike, as_pose
from voxserve.protocol import Options
from voxserve.reopening import MAX_BREAKS, Reopening, may_have_ended_its_server
from voxserve.results import FrameResult
from voxserve.source import Source
from voxserve.tensors import UNNAMED, Wanted

METHOD = "/voxserve.v1.InferenceService/InferStream"
Policy = Literal["latest", "queue"]

_POLICIES = {"latest": wire.STREAM_POLICY_LATEST, "queue": wire.STREAM_POLICY_QUEUE}
# The most unread answers that a "latest" stream holds. Further answers are not read from the connection. So the server
# cannot send more answers, and later runs the frame that is newest at that time.
_MAX_UNREAD_ANSWERS = 2
_MAX_STAMP = 253_402_300_800.0  # the year 10000, the end of google.protobuf.Timestamp
_MAX_SECONDS = 315_576_000_000.0  # limit of google.protobuf.Duration


@dataclass(frozen=True)
class Sweeps:
    """Options of a stream for a model whose input is several sweeps (scans of one sensor) at once. The client sends
    each sweep once, with its pose and stamp. The server keeps the last sweeps, transforms them into the newest frame's
    coordinates and runs them together. The answer covers only the points of the newest frame. ValueError for values out
    of range.
    """

    num_sweeps: int  # merged sweeps, the newest included; 1 to 64
    age_feature: str = ""  # the name of the model's feature that holds a point's age in seconds; "": there is none
    max_age: float | None = None  # seconds, more than 0, up to 60; older sweeps are dropped. None: 2 s

    def __post_init__(self) -> None:
        if not 1 <= self.num_sweeps <= 64:
            raise ValueError(f"num_sweeps is {self.num_sweeps}, must be 1 to 64")
        self.message()  # raises an error for an impossible max_age

    def message(self) -> wire.SweepAccumulation:
        """Returns the protobuf message of these options."""
        message = wire.SweepAccumulation(num_sweeps=self.num_sweeps, age_feature=self.age_feature)
        if self.max_age is not None:
            _set_duration(message.max_age, "max_age", self.max_age)
        return message


@dataclass(frozen=True)
class StreamConfig:
    """The arguments of Client.stream, which documents them. ValueError for values out of range."""

    model: str
    policy: Policy = "latest"
    fields: Fields = None
    scales: Mapping[str, float] | None = None
    compact: bool = False
    version: int = 0
    scores: bool = False
    priority: int = 0
    frame_timeout: float | None = None
    max_queued_frames: int = 0
    sweeps: Sweeps | None = None
    sample: FarthestPoints | None = None
    tensors: Wanted = UNNAMED
    reopen: float | None = None

    def __post_init__(self) -> None:
        protocol.check_model(self.model)
        if self.policy not in _POLICIES:
            raise ValueError(f"policy is '{self.policy}', must be latest or queue")
        if not 0 <= self.max_queued_frames <= 64:
            raise ValueError(f"max_queued_frames is {self.max_queued_frames}, must be 1 to 64, or 0 for the default")
        if self.max_queued_frames and self.policy != "queue":
            raise ValueError("max_queued_frames is of policy queue; of latest one frame waits")
        if self.reopen is not None and not 0 < self.reopen <= _MAX_SECONDS:
            raise ValueError(f"reopen is {self.reopen}, must be a positive number of seconds, or None for never")
        if self.sample is not None and self.sweeps is not None:
            raise ValueError("a sample is taken of whole scans, and sweeps are parts of one")

    def request(self) -> bytes:
        """Returns the first request of each RPC of the stream."""
        config = wire.StreamConfig(
            model=self.model,
            version=self.version,
            return_scores=self.scores,
            priority=protocol.priority_of(self.priority),
            policy=_POLICIES[self.policy],
            max_queued_frames=self.max_queued_frames,
            sweeps=None if self.sweeps is None else self.sweeps.message(),
            sample=None if self.sample is None else self.sample.message(),
            outputs=self.tensors.names,
            tensor_type=self.tensors.number,
        )
        if self.frame_timeout is not None:
            _set_duration(config.frame_timeout, "frame_timeout", self.frame_timeout)
        return wire.InferStreamRequest(config=config).SerializeToString()


@dataclass
class Frame:
    """A frame between send() and its result."""

    frame_id: int
    num_points: int
    requests: list[bytes]  # one, or the parts; b"" after one has been sent, unless the stream may be opened again
    resets_sweeps: bool
    start: float  # time.perf_counter() when send() or the last send_part() was called
    source: Source = field(default_factory=Source)  # the frame's points, for pictures of the answer
    is_in_parts: bool = False
    is_complete: bool = True  # no part is to come
    num_taken: int = 0  # requests that the RPC has got
    num_breaks: int = 0  # connections that broke while the frame was under way

    @property
    def may_be_taken(self) -> bool:
        """Whether a request waits for the RPC."""
        return self.num_taken < len(self.requests)


# Protobuf merges messages whose bytes follow each other, so these bytes after a frame's request set its reset_sweeps.
_RESET = wire.InferStreamRequest(frame=wire.StreamFrame(reset_sweeps=True)).SerializeToString()
_RESET_BY_PART = wire.InferStreamRequest(part=wire.FramePart(reset_sweeps=True)).SerializeToString()

# A server drops the parts of a frame whose id is one of the last frames that came in parts. It remembers this many.
_MAX_IDS_IN_PARTS = 64


class StreamState:
    """The frames and results of one stream. Not thread-safe: the stream that owns it locks it. Before add(), take(),
    receive() or pop(), the owner waits until can_add, can_take, can_receive or can_pop is true.
    """

    def __init__(
        self, config: StreamConfig, options: Options, timeout: float | None, tell: Teller | None = None
    ) -> None:
        self.config = config
        self._options, self._timeout, self._tell = options, timeout, tell
        self._deadline = math.inf if timeout is None else time.monotonic() + timeout
        self.is_going_away = False
        self.is_cancelled = False
        self.num_calls = 1  # RPCs that the stream has begun
        self._reopening = Reopening(config.reopen, time.monotonic())
        self._again: deque[Frame] = deque()  # frames to send again, before _waiting
        self._waiting: Frame | None = None  # the frame to send next
        self._sending: Frame | None = (
            None  # a frame under way with parts that this RPC has not sent, or that are to come
        )
        self._begun: Frame | None = None  # the frame of the last add_part(), if it is not complete
        self._ids_in_parts: deque[int] = deque(maxlen=_MAX_IDS_IN_PARTS)
        self._under_way: dict[int, Frame] = {}  # frames without a result that this RPC has sent, by frame_id
        self._results: deque[tuple[FrameResult, bool]] = deque()  # unread results; True: the server answered
        self._num_unread_answers = 0
        self._is_closed = False
        self._has_ended = False
        self._error: errors.InferenceError | None = None

    def make_frame(
        self, frame_id: int, points: PointsLike, pose: PoseLike | None, stamp: float | None, reset_sweeps: bool
    ) -> Frame:
        """Returns a frame with a copy of the points. Needs no lock, since it reads nothing that changes. ValueError for
        arguments that are not valid; ResourceExhaustedError (MESSAGE_TOO_LARGE) if the points do not fit a message.
        """
        start = time.perf_counter()
        frame_id = _checked_id(frame_id)
        cloud = as_cloud(points, self.config.fields)
        source = Source(points, cloud, self.config.fields, self.config.scales)
        cloud = self._prepared(cloud, stamp)
        if self.config.compact:
            cloud = compact_or_warn(cloud)
        if self.config.sweeps is not None and (pose is None or cloud.stamp_ns is None):
            missing = "pose" if pose is None else "stamp"
            raise ValueError(f"frame {frame_id} has no {missing}, which a stream of sweeps needs")
        head = wire.StreamFrame(frame_id=frame_id, reset_sweeps=reset_sweeps, pose=_pose_message(pose))
        request = encode_frame(head, cloud, self._options.max_message_bytes)
        return Frame(frame_id, cloud.num_points, [request], reset_sweeps, start, source)

    def make_part(
        self,
        frame_id: int,
        points: PointsLike,
        is_last: bool,
        pose: PoseLike | None,
        stamp: float | None,
        reset_sweeps: bool,
    ) -> Frame:
        """Returns a part of a frame for add_part(). The conditions are those of make_frame, but for the pose and the
        stamp that sweeps need: another part may have them.
        """
        start = time.perf_counter()
        if self.config.compact:
            raise ValueError(
                "compact chooses a step for each cloud, and the parts of a frame must have one: send the "
                "frame whole, or points of 16 bits whose scale and shift you choose (fields)"
            )
        frame_id = _checked_id(frame_id)
        cloud = self._prepared(as_cloud(points, self.config.fields), stamp)
        head = wire.FramePart(frame_id=frame_id, reset_sweeps=reset_sweeps, pose=_pose_message(pose), is_last=is_last)
        request = encode_frame(head, cloud, self._options.max_message_bytes)
        source = Source(None, None, self.config.fields, self.config.scales)
        return Frame(
            head.frame_id,
            cloud.num_points,
            [request],
            reset_sweeps,
            start,
            source,
            is_in_parts=True,
            is_complete=is_last,
        )

    def _prepared(self, cloud: PointCloud, stamp: float | None) -> PointCloud:
        """Returns the cloud with the stream's scales and this stamp, in seconds."""
        if self.config.scales:
            cloud = cloud.scaled(self.config.scales)
        feature_warning.tell_of_bits(self.config.model, cloud, self.config.fields, self.config.scales)
        if stamp is None:
            return cloud
        if not 0 <= stamp < _MAX_STAMP:
            raise ValueError(f"stamp is {stamp}, must be in seconds since 1970")
        return replace(cloud, stamp_ns=round(stamp * 1e9))

    @property
    def can_add(self) -> bool:
        """Whether add() can be called now. It is also true if add() will never accept a frame and raises an error."""
        return self._waiting is None or self.config.policy == "latest" or self._is_closed or self._has_ended

    def add(self, frame: Frame) -> None:
        """Queues a frame to be sent; can_add must be true. ValueError after close(), and if an unanswered frame has the
        same frame_id. Raises the stream's error if the stream has ended.
        """
        if self._is_closed:
            raise ValueError("the stream's sends are closed")
        if self._has_ended:
            assert self._error is not None  # a stream ends without an error only after its sends were closed
            raise self._error.with_traceback(None)
        old = self._waiting
        waiting = [*self._again, old] if old is not None else self._again
        if frame.frame_id in self._under_way or frame.frame_id in {other.frame_id for other in waiting}:
            raise ValueError(f"frame {frame.frame_id} is under way already")
        if old is not None:
            if old.resets_sweeps and not frame.resets_sweeps:
                frame.requests[0] += _RESET_BY_PART if frame.is_in_parts else _RESET
                frame.resets_sweeps = True
            self._supersede(old, frame)
        if self._begun is not None:
            self._begun.is_complete = True  # its other parts will not come, and the server says so
            self._begun = None
        if self.config.policy == "latest":
            while self._again:
                self._supersede(self._again.popleft(), frame)
        self._waiting = frame

    def continues(self, part: Frame) -> bool:
        """Whether the part belongs to the frame of the part before it, so that add_part() can be called now."""
        return self._begun is not None and self._begun.frame_id == part.frame_id

    def add_part(self, part: Frame) -> None:
        """Queues a part of a frame to be sent; can_add or continues() must be true. The errors are those of add().
        ValueError also for a new frame with the id of one of the last frames in parts. A part of a frame that has its
        result is dropped.
        """
        if self._is_closed or self._has_ended:
            self.add(part)  # raises the error
        if not self.continues(part):
            if part.frame_id in self._ids_in_parts:
                raise ValueError(f"frame {part.frame_id} is one of the last {_MAX_IDS_IN_PARTS} frames sent in parts")
            self.add(part)
            self._ids_in_parts.append(part.frame_id)
            self._begun = None if part.is_complete else part
            return
        frame = self._begun
        assert frame is not None
        if self._has_no_result(frame):
            number = wire.InferStreamRequest(part=wire.FramePart(index=len(frame.requests))).SerializeToString()
            frame.requests.append(part.requests[0] + number)
            frame.num_points += part.num_points
            frame.resets_sweeps = frame.resets_sweeps or part.resets_sweeps
            frame.start = part.start
        frame.is_complete = part.is_complete
        if frame.is_complete:
            self._begun = None

    def _has_no_result(self, frame: Frame) -> bool:
        return any(frame is other for other in (self._waiting, self._under_way.get(frame.frame_id), *self._again))

    def _supersede(self, old: Frame, newer: Frame) -> None:
        message = f"frame {old.frame_id} was superseded by frame {newer.frame_id} before it was sent"
        self._fail(old, errors.make(grpc.StatusCode.ABORTED, message, "SUPERSEDED"))

    def _fail(self, frame: Frame, error: errors.InferenceError) -> None:
        self._results.append((FrameResult(frame.frame_id, None, error), False))

    def close(self) -> None:
        """Accepts no more frames."""
        self._is_closed = True

    def cancel(self) -> None:
        """Lets the stream end with CANCELLED when its RPC ends."""
        self.is_cancelled = True

    @property
    def can_take(self) -> bool:
        """Whether take() can be called now. If the server is going away and the stream may be opened again, it is
        False, so that the next server gets the frames.
        """
        if self._sending is not None and self._sending.may_be_taken:
            return True  # the server has begun with the frame
        if self.is_going_away and self._reopening.is_wanted and not self._has_ended:
            return False
        return bool(self._again) or self._waiting is not None or self._is_closed or self._has_ended

    def take(self) -> bytes | None:
        """Returns the next request to send; None if no further request follows. can_take must be true."""
        if self._sending is not None and self._sending.may_be_taken:
            frame: Frame | None = self._sending
        elif self._again:
            frame = self._again.popleft()
        else:
            frame, self._waiting = self._waiting, None
        self._sending = None
        if frame is None:
            return None
        request = frame.requests[frame.num_taken]
        if not self._reopening.is_wanted:
            frame.requests[frame.num_taken] = b""
        frame.num_taken += 1
        self._under_way[frame.frame_id] = frame
        if frame.may_be_taken or not frame.is_complete:
            self._sending = frame
        return request

    @property
    def can_receive(self) -> bool:
        """Whether the next message may be read from the connection."""
        is_full = self.config.policy == "latest" and self._num_unread_answers >= _MAX_UNREAD_ANSWERS
        return not is_full or self.is_cancelled

    def receive(self, data: bytes) -> None:
        """Processes the bytes of a message from the server. Raises the error MALFORMED_RESPONSE, which ends the stream,
        if they are no such message or the result of no frame under way.
        """
        response = answers.parse(wire.InferStreamResponse, data)
        kind = response.WhichOneof("response")
        if kind == "going_away":
            self.is_going_away = True
        elif kind == "result":  # other kinds come from a newer server
            self._reopening.hear()
            self._results.append((self._read(response.result), True))
            self._num_unread_answers += 1

    def _read(self, answer: wire.FrameResult) -> FrameResult:
        frame = self._under_way.pop(answer.frame_id, None)
        if frame is None:
            raise answers.malformed(f"a result of frame {answer.frame_id}, which is not under way")
        if frame is self._sending:
            self._sending = None  # the server drops the parts that are left
        error = errors.from_status(answer.status)
        segmentation = detections = tensors = None
        if error is None:
            try:
                if not answer.HasField("response"):
                    raise answers.malformed(f"neither status nor response of frame {frame.frame_id}")
                config = self.config
                asked = answers.Asked(
                    frame.num_points,
                    frame.start,
                    config.scores,
                    config.sample,
                    config.tensors,
                    frame.source,
                    self._tell,
                )
                segmentation, detections, tensors = answers.read_outputs(answer.response, asked)
            except errors.InferenceError as malformed:
                error = malformed
        return FrameResult(frame.frame_id, segmentation, error, answer.num_sweeps, detections, tensors)

    def call_timeout(self) -> float | None:
        """Returns the timeout in seconds of an RPC that begins now; None: no limit."""
        return None if self._timeout is None else max(0.001, self._deadline - time.monotonic())

    def break_off(self, error: errors.InferenceError | None) -> float | None:
        """Tells that the RPC has ended. error: the RPC's error; None: it ended with OK. Returns the seconds after which
        the owner calls reopen() and begins another RPC. Returns None if the stream has ended.
        """
        is_complete = self._is_closed and not (self._under_way or self._again or self._waiting)
        delay = None
        if error is not None and not self.is_cancelled:
            now = time.monotonic()
            delay = self._reopening.delay(error, now)
            if delay is not None and now + delay >= self._deadline and not is_complete:
                delay, error = None, errors.not_taken_on(error, self._timeout)
        if delay is None or error is None or is_complete:
            # A stream whose frames all have results does not need another server. So it ends with OK, even if the RPC
            # failed because a server was unavailable.
            needs_none = is_complete and error is not None and self._reopening.is_about(error)
            self.end(None if needs_none else error)
            return None
        self.num_calls += 1
        is_suspect = may_have_ended_its_server(error)
        for frame in reversed(self._under_way.values()):
            frame.num_breaks += is_suspect
            frame.num_taken = 0
            if frame.num_breaks < MAX_BREAKS:
                self._again.appendleft(frame)  # in the order in which they were sent
            else:
                self._fail(frame, error)
        self._under_way.clear()
        self._sending = None
        if self.config.policy == "latest":
            newest = self._waiting or (self._again[-1] if self._again else None)
            while newest is not None and self._again and self._again[0] is not newest:
                self._supersede(self._again.popleft(), newest)
        return delay

    def reopen(self) -> None:
        """Tells that the next RPC begins, after break_off()."""
        self.is_going_away = False
        self._reopening.begin(time.monotonic())

    def end(self, error: errors.InferenceError | None) -> None:
        """Ends the stream. error: the stream's error; None: it ended with OK."""
        if self.is_cancelled:
            error = errors.make(grpc.StatusCode.CANCELLED, "the stream was cancelled", "")
        elif error is None and not self._is_closed:
            error = answers.malformed("the stream ended before its sends were closed")
        elif error is None and (self._under_way or self._again):
            error = answers.malformed(f"the stream ended with {len(self._under_way)} frames unanswered")
        self._has_ended = True
        self._error = error
        self._waiting = self._sending = self._begun = None
        self._under_way.clear()
        self._again.clear()

    @property
    def can_pop(self) -> bool:
        """Whether pop() can be called now."""
        return bool(self._results) or self._has_ended

    def pop(self) -> FrameResult | None:
        """Returns the oldest unread result. After the last result it returns None, or raises the error with which the
        stream ended. can_pop must be true.
        """
        if self._results:
            result, is_answer = self._results.popleft()
            self._num_unread_answers -= is_answer
            return result
        if self._error is not None:
            raise self._error.with_traceback(None)
        return None


def _checked_id(frame_id: int) -> int:
    frame_id = operator.index(frame_id)
    if not 0 <= frame_id < 1 << 64:
        raise ValueError(f"frame_id is {frame_id}, must be 0 to 2^64 - 1")
    return frame_id


def _pose_message(pose: PoseLike | None) -> wire.Pose | None:
    if pose is None:
        return None
    pose = as_pose(pose)
    x, y, z = pose.translation
    qw, qx, qy, qz = pose.rotation
    return wire.Pose(x=x, y=y, z=z, qw=qw, qx=qx, qy=qy, qz=qz)


def _set_duration(duration: duration_pb2.Duration, name: str, seconds: float) -> None:
    if not 1e-9 <= seconds <= _MAX_SECONDS:  # false for NaN
        raise ValueError(f"{name} is {seconds}, must be a positive number of seconds")
    duration.seconds, duration.nanos = divmod(round(seconds * 1e9), 1_000_000_000)
