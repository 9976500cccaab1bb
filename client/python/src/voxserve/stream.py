"""A stream of frames, opened by Client.stream.

with client.stream("minkunet") as stream:
    threading.Thread(target=drive, args=[stream]).start()  # stream.send(frame_id, points) for every scan
    for result in stream:
        ...  # result.frame_id, result.segmentation, result.detections or result.error
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import grpc

from voxserve import errors
from voxserve.point_cloud import PointsLike
from voxserve.pose import PoseLike
from voxserve.protocol import Options
from voxserve.results import FrameResult
from voxserve.stream_state import METHOD, StreamConfig, StreamState


class Stream:
    """One vehicle's frames. Every frame that send() accepted gets exactly one result, unless the stream ends with an
    error: then iteration raises it, after the results that arrived before.

    Thread-safe: one thread may send while another one reads. A program may also send all its frames, close its sends
    and then read the results, which wait in memory until they are read.

    With `reopen` it outlives its server: when the connection breaks or the server goes away, it is opened again, and
    frames without a result are sent again. Each frame still gets exactly one result.

    Leaving its `with` block cancels the stream if it has not ended.
    """

    def __init__(self, channel: Any, config: StreamConfig, options: Options, timeout: float | None) -> None:
        """Called by Client.stream."""
        self._options, self._timeout = options, timeout
        self._channel = channel  # keeps the channel alive, without which the call would end
        self._config = config.request()
        self._metadata = options.metadata()  # once: the reader's thread calls no function of the caller's
        self._state = StreamState(config, options, timeout)
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
        """Sends a frame; its points are copied before this returns.

        frame_id: chosen by the caller, different from all unanswered frames; the result repeats it. points: as in
        Client.infer. pose: the pose of the points' coordinates in a fixed frame, a voxserve.Pose or a 4x4 or 3x4
        matrix. stamp: when the sensor took the points, seconds since 1970; default: the PointCloud's own. Both are
        required if sweeps accumulate. reset_sweeps: forget the sweeps before this frame, after a jump of the pose, say.

        With policy "latest" it never waits: it replaces a frame that could not be sent yet, which gets the result
        SupersededError. The replaced frame's sweep is lost to later frames, unlike that of a frame which the server
        supersedes. With "queue" it waits until the frame before it is being sent.

        ValueError for points or a pose that cannot be described, after close_sends(), and for the id of an unanswered
        frame. ResourceExhaustedError if the points do not fit a message. The stream's error if it has ended.
        """
        frame = self._state.make_frame(frame_id, points, pose, stamp, reset_sweeps)
        with self._changed:
            self._changed.wait_for(lambda: self._state.can_add)
            self._state.add(frame)
            self._changed.notify_all()

    def close_sends(self) -> None:
        """Sends no more frames: iteration ends after the results of the frames that were sent."""
        with self._changed:
            self._state.close()
            self._changed.notify_all()

    def cancel(self) -> None:
        """Ends the stream at once: iteration raises CancelledError after the results that have arrived. Has no effect
        on a stream that has ended.
        """
        with self._changed:
            self._state.is_cancelled = True
            self._changed.notify_all()
            call = self._call
        call.cancel()

    @property
    def is_going_away(self) -> bool:
        """True if the server has announced that it accepts no more frames. It answers those that it has accepted and
        ends the stream with UnavailableError, reason DRAINING: open a stream to another server, or let `reopen` do so.
        """
        return self._state.is_going_away

    @property
    def num_reopened(self) -> int:
        """How often the stream was opened again. Sweeps begin anew each time; FrameResult.num_sweeps counts them."""
        return self._state.num_calls - 1

    def __iter__(self) -> Iterator[FrameResult]:
        return self

    def __next__(self) -> FrameResult:
        with self._changed:
            self._changed.wait_for(lambda: self._state.can_pop)
            result = self._state.pop()
            self._changed.notify_all()
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

    def _open(self) -> Any:
        """Begins a call."""
        method = self._channel.stream_stream(METHOD, request_serializer=None, response_deserializer=None)
        requests = self._requests(self._state.num_calls)
        return method(requests, timeout=self._state.call_timeout(), metadata=self._metadata)

    def _requests(self, number: int) -> Iterator[bytes]:
        """Runs in gRPC's thread, which asks for the next request when the previous one is being sent. number: of the
        call, which ends when another one takes its place.
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
        """Reads a call to its end, and returns its error."""
        try:
            for data in self._call:
                with self._changed:
                    self._state.receive(data)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._state.can_receive)
        except grpc.RpcError as failure:
            return errors.from_rpc(failure, self._options.address, self._timeout)
        except errors.InferenceError as malformed:
            return malformed
        finally:
            self._call.cancel()  # ends a call with a malformed answer; without effect on an ended call
        return None
