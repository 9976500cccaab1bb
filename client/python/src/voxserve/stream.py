"""A stream of frames, opened by Client.stream.

with client.stream("minkunet") as stream:
    threading.Thread(target=drive, args=[stream]).start()  # stream.send(frame_id, points) for every scan
    for result in stream:
        ...  # result.frame_id, result.segmentation, result.detections or result.error
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import grpc

from voxserve import errors
from voxserve.inputs import PointsLike
from voxserve.known_classes import Teller
from voxserve.pose import PoseLike
from voxserve.protocol import Options, Result
from voxserve.results import FrameResult
from voxserve.stream_state import METHOD, StreamConfig, StreamState


class StreamBase:
    """The base class of Stream, which documents the behaviour, and aio_stream.Stream."""

    def __init__(
        self, channel: Any, config: StreamConfig, options: Options, timeout: float | None, tell: Teller | None
    ) -> None:
        """Called by the client's method stream(). tell: tells the classes of the results' models, if any."""
        self._options, self._timeout = options, timeout
        self._channel = channel  # keeps the channel alive: the RPC would end with it
        self._config = config.request()
        self._metadata = options.metadata()  # computed here, so that the reader does not call traceparent
        self._state = StreamState(config, options, timeout, tell)
        self._call: Any  # the current RPC

    def _change(self, change: Callable[[], None]) -> None:
        """Changes _state, and announces the change."""
        raise NotImplementedError

    def close_sends(self) -> None:
        """Declares that no more frames follow. Iteration ends after the results of the frames that were sent."""
        self._change(self._state.close)

    def cancel(self) -> None:
        """Ends the stream at once. Iteration yields the results that have arrived, and then raises CancelledError. A
        stream that has already ended is not changed.
        """
        self._change(self._state.cancel)
        self._call.cancel()

    @property
    def is_going_away(self) -> bool:
        """Whether the server has announced that it accepts no more frames. The server answers the frames that it has
        accepted, and ends the stream with UnavailableError, reason DRAINING. Then open a stream to another server;
        a stream with `reopen` does so by itself.
        """
        return self._state.is_going_away

    @property
    def num_reopened(self) -> int:
        """The number of times that the stream connected again (`reopen`). Each new connection begins without earlier
        sweeps; FrameResult.num_sweeps counts the sweeps that were merged.
        """
        return self._state.num_calls - 1


class Stream(StreamBase):
    """A stream of one vehicle's frames. send() sends a frame, and iteration over the stream yields FrameResults. Every
    frame that send() accepted gets exactly one result, unless the stream ends with an error. Iteration then yields the
    results that arrived before the error, and raises it.

    Thread-safe: one thread may send while another one reads. A program may also send all its frames, call close_sends()
    and then read the results, which are kept in memory until they are read.

    A stream with `reopen` (Client.stream) outlives its server: if the connection breaks or the server goes away, the
    stream connects again and sends the frames without a result again.

    Leaving the stream's `with` block cancels the stream if it has not ended.
    """

    def __init__(
        self,
        channel: Any,
        config: StreamConfig,
        options: Options,
        timeout: float | None,
        tell: Teller | None = None,
    ) -> None:
        """Called by Client.stream."""
        super().__init__(channel, config, options, timeout, tell)
        self._changed = threading.Condition()  # guards _state and announces its changes
        self._call = self._open()
        self._reader = threading.Thread(target=self._read, name="voxserve-stream", daemon=True)
        self._reader.start()

    def send(
        self,
        frame_id: int,
        points: PointsLike,
        pose: PoseLike | None = None,
        stamp: float | None = None,
        reset_sweeps: bool = False,
    ) -> None:
        """Sends a frame. The points are copied before this method returns.

        frame_id: a number from 0 to 2^64 - 1 that the caller chooses; FrameResult.frame_id repeats it. No unanswered
            frame may have the same number.
        points: as in Client.infer.
        pose: the transform from the points' coordinates to a coordinate frame that does not move, as a voxserve.Pose
            or a matrix [4, 4] or [3, 4]. A stream with sweeps needs it.
        stamp: the time at which the sensor took the points, in seconds since 1970; default: PointCloud.stamp_ns. A
            stream with sweeps needs it.
        reset_sweeps: makes the server drop the sweeps before this frame, for example after a jump of the pose.

        With policy "latest", send() never blocks. If an earlier frame still waits in the client, the new frame replaces
        it, and the earlier frame gets SupersededError as its result. The server never sees that frame, and does not
        merge its sweep with later frames. (A frame that the server supersedes is still merged with later frames.) With
        "queue", send() blocks until gRPC takes the previous frame for sending.

        ValueError for points or a pose that are not valid, after close_sends(), and if an unanswered frame has the same
        frame_id. ResourceExhaustedError if the points do not fit a message. If the stream has ended with an error,
        send() raises that error.
        """
        frame = self._state.make_frame(frame_id, points, pose, stamp, reset_sweeps)
        # aio_stream.Stream takes this method from here (awaited.py); its _when is a coroutine.
        return self._when(lambda: self._state.can_add, lambda: self._state.add(frame))

    def send_part(
        self,
        frame_id: int,
        points: PointsLike,
        is_last: bool = False,
        pose: PoseLike | None = None,
        stamp: float | None = None,
        reset_sweeps: bool = False,
    ) -> None:
        """Sends the next part of a frame. A sensor that takes a scan bit by bit (a spinning LiDAR) sends each part when
        it has it, so that only the last part is left to send when the scan ends. The first call with a frame_id begins
        the frame, and is_last completes it. The frame then gets one result, that of send() with the points of all
        parts, in the order of the calls.

        points: the part's points, with the same fields as the other parts'; there may be none, for example if the next
            packet showed that the scan had ended.
        pose, stamp: as in send(); those of the last part that has them count.
        reset_sweeps: as in send(); one part that sets it is enough.

        A frame that is not complete when the next one begins, or at close_sends(), gets InvalidArgumentError, reason
        FRAME_INCOMPLETE. A part of a frame that has its result is dropped. With "queue", only the first part of a frame
        may block.

        The errors are those of send(). After an error for the first part there is no frame; after one for a later part
        the frame still gets its result. ValueError also if one of the last 64 frames in parts had the same frame_id,
        and in a stream with `compact`. FrameResult's pictures need the points of the frame.
        """
        part = self._state.make_part(frame_id, points, is_last, pose, stamp, reset_sweeps)
        return self._when(
            lambda: self._state.can_add or self._state.continues(part), lambda: self._state.add_part(part)
        )

    def __iter__(self) -> Iterator[FrameResult]:
        return self

    def __next__(self) -> FrameResult:
        result = self._when(lambda: self._state.can_pop, self._state.pop)
        if result is None:
            raise StopIteration
        return result

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
        self._reader.join()

    def _when(self, condition: Callable[[], bool], action: Callable[[], Result]) -> Result:
        """Waits for the condition, then does the action, which may change _state, and returns its result."""
        with self._changed:
            self._changed.wait_for(condition)
            result = action()
            self._changed.notify_all()
            return result

    def _change(self, change: Callable[[], None]) -> None:
        self._when(lambda: True, change)

    def _open(self) -> Any:
        """Begins the stream's next RPC and returns it."""
        method = self._channel.stream_stream(METHOD, request_serializer=None, response_deserializer=None)
        requests = self._requests(self._state.num_calls)
        return method(requests, timeout=self._state.call_timeout(), metadata=self._metadata)

    def _requests(self, number: int) -> Iterator[bytes]:
        """Yields the requests of one RPC: the config, then frames. gRPC's thread runs it, and asks for the next request
        when it begins to send the previous one. number: StreamState.num_calls of this RPC; the generator ends when the
        stream has begun another RPC.
        """
        yield self._config
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._state.num_calls != number or self._state.can_take)
                if self._state.num_calls != number:
                    return
                request = self._state.take()
                self._changed.notify_all()
            if request is None:
                return
            yield request

    def _read(self) -> None:
        while True:
            error = self._read_call()
            with self._changed:
                delay = self._state.break_off(error)
                self._changed.notify_all()
                if delay is None:
                    return
                if self._changed.wait_for(lambda: self._state.is_cancelled, delay):
                    self._state.end(None)
                    self._changed.notify_all()
                    return
                self._state.reopen()
                try:
                    self._call = self._open()
                except Exception as failure:
                    self._state.end(errors.of_reopening(failure, is_closed=isinstance(failure, ValueError)))
                    self._changed.notify_all()
                    return

    def _read_call(self) -> errors.InferenceError | None:
        """Reads the current RPC to its end. Returns the RPC's error; None if it ended with OK."""
        try:
            for data in self._call:
                with self._changed:
                    self._state.receive(data)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._state.can_receive)
        except grpc.RpcError as failure:
            return errors.from_rpc(failure, self._options.address, self._timeout, self._options.has_tls)
        except errors.InferenceError as malformed:
            return malformed
        finally:
            self._call.cancel()  # ends a call with a malformed answer; without effect on an ended call
        return None
