"""A stream of frames, as Client.stream opens it.

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
    """One vehicle's frames. Every frame that send() took gets exactly one result, unless the stream ends with an error:
    then iteration raises it, after the results that were there before.

    Thread-safe: one thread may send while another one reads. A program that sends all its frames, closes its sends and
    then reads the results is served too; results wait in memory until they are read.

    Leaving its `with` block cancels what is still under way.
    """

    def __init__(self, channel: Any, config: StreamConfig, options: Options, timeout: float | None) -> None:
        """Client.stream makes it."""
        self._address, self._timeout = options.address, timeout
        self._channel = channel  # the stream's call ends where nobody holds it
        self._state = StreamState(config, options.max_message_bytes)
        self._changed = threading.Condition()  # guards and announces changes of _state
        method = channel.stream_stream(METHOD, request_serializer=None, response_deserializer=None)
        self._call = method(self._requests(config.request()), timeout=timeout, metadata=options.metadata())
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

        frame_id: chosen by the caller, of no other frame that is under way; comes back. points: as in Client.infer.
        pose: of the points' coordinates in a frame that stands still, a voxserve.Pose or a 4x4 or 3x4 matrix. stamp:
        when the sensor took the points, seconds since 1970; default: the PointCloud's own. Both are required where
        sweeps accumulate. reset_sweeps: forget those before this one, after a jump of the pose, say.

        With policy "latest" it never waits: a frame that could not be sent yet gets the result SupersededError and this
        one takes its place. Its sweep is lost to the frames after it, unlike that of a frame which the server
        supersedes. With "queue" it waits until the frame before it is on its way.

        ValueError where the points or the pose cannot be described, after close_sends(), and for the id of a frame that
        is under way. ResourceExhaustedError where they do not fit a message. The stream's error where it has ended.
        """
        frame = self._state.make_frame(frame_id, points, pose, stamp, reset_sweeps)
        with self._changed:
            self._changed.wait_for(lambda: self._state.can_add)
            self._state.add(frame)
            self._changed.notify_all()

    def close_sends(self) -> None:
        """No more frames: iteration ends after the results of those that were sent."""
        with self._changed:
            self._state.close()
            self._changed.notify_all()

    def cancel(self) -> None:
        """Ends the stream at once: iteration raises CancelledError after the results that are there already. No effect
        on a stream that has ended.
        """
        with self._changed:
            self._state.is_cancelled = True
            self._changed.notify_all()
        self._call.cancel()

    @property
    def is_going_away(self) -> bool:
        """Whether the server has announced that it takes no more frames. It answers those that it has accepted and ends
        the stream with UnavailableError, reason DRAINING: open one elsewhere.
        """
        return self._state.is_going_away

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

    def _requests(self, config: bytes) -> Iterator[bytes]:
        """Runs in gRPC's thread, which asks for the next request when the one before is on its way."""
        yield config
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._state.can_take)
                request = self._state.take()
                self._changed.notify_all()
            if request is None:
                return
            yield request

    def _read(self) -> None:
        error: errors.InferenceError | None = None
        try:
            for data in self._call:
                with self._changed:
                    self._state.receive(data)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._state.can_receive)
        except grpc.RpcError as failure:
            error = errors.from_rpc(failure, self._address, self._timeout)
        except errors.InferenceError as malformed:
            error = malformed
        finally:
            self._call.cancel()  # of an answer that was malformed; else the call has ended
            with self._changed:
                self._state.end(error)
                self._changed.notify_all()
