"""A stream of frames, as aio.Client.stream opens it; voxserve.stream.Stream with coroutines.

async with client.stream("minkunet") as stream:
    sender = asyncio.create_task(drive(stream))  # await stream.send(frame_id, points) for every scan
    async for result in stream:
        ...  # result.frame_id, result.segmentation, result.detections or result.error
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from voxserve import errors, stream
from voxserve.awaited import awaited
from voxserve.known_classes import Teller
from voxserve.protocol import Options, Result
from voxserve.results import FrameResult
from voxserve.stream import StreamBase
from voxserve.stream_state import METHOD, StreamConfig

# grpc.aio gives this message, instead of the server's status, if a message is written to a call that is ending.
_STATUS_IS_LOST = "Internal error from Core"


class Stream(StreamBase):
    """A stream of one vehicle's frames; voxserve.stream.Stream documents the behaviour. One task may send while another
    one reads. Cancelling a task that waits in send() or for a result (asyncio.wait_for) does not change the stream.
    """

    def __init__(
        self,
        channel: Any,
        config: StreamConfig,
        options: Options,
        timeout: float | None,
        tell: Teller | None = None,
    ) -> None:
        """Called by aio.Client.stream."""
        super().__init__(channel, config, options, timeout, tell)
        self._changed = asyncio.Event()  # replaced by a new one after each change
        self._writer: asyncio.Task[None]
        self._open()
        self._reader = asyncio.create_task(self._read())

    send = awaited(stream.Stream.send)
    send_part = awaited(stream.Stream.send_part)

    def __aiter__(self) -> AsyncIterator[FrameResult]:
        return self

    async def __anext__(self) -> FrameResult:
        result = await self._when(lambda: self._state.can_pop, self._state.pop)
        if result is None:
            raise StopAsyncIteration
        return result

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
        await asyncio.gather(self._writer, self._reader, return_exceptions=True)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()

    async def _when(self, condition: Callable[[], bool], action: Callable[[], Result]) -> Result:
        """Waits for the condition, then does the action, which may change _state, and returns its result."""
        await self._until(condition)
        result = action()
        self._announce()
        return result

    def _change(self, change: Callable[[], None]) -> None:
        change()
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _open(self) -> None:
        """Begins the stream's next RPC, and the task that writes its requests."""
        method = self._channel.stream_stream(METHOD, request_serializer=None, response_deserializer=None)
        self._call = method(timeout=self._state.call_timeout(), metadata=self._metadata)
        self._writer = asyncio.create_task(self._write(self._call))

    async def _write(self, call: Any) -> None:
        try:
            await call.write(self._config)
            while True:
                request = await self._when(lambda: self._state.can_take, self._state.take)
                if request is None:
                    break
                await call.write(request)
            await call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the call has ended; _read learns the reason

    async def _read(self) -> None:
        try:
            while (delay := self._state.break_off(await self._read_call())) is not None:
                self._announce()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._until(lambda: self._state.is_cancelled), delay)
                if self._state.is_cancelled:
                    self._state.end(None)
                    break
                self._state.reopen()
                self._open()
        except asyncio.CancelledError as failure:  # the event loop ends
            self._state.end(errors.of_reopening(failure, is_closed=True))
            raise
        except Exception as failure:
            self._state.end(errors.of_reopening(failure, is_closed=isinstance(failure, grpc.aio.UsageError)))
        finally:
            self._announce()

    async def _read_call(self) -> errors.InferenceError | None:
        """Reads the current RPC to its end. Returns the RPC's error; None if it ended with OK."""
        try:
            async for data in self._call:
                self._state.receive(data)
                self._announce()
                await self._until(lambda: self._state.can_receive)
        except grpc.aio.AioRpcError as failure:
            if failure.code() is grpc.StatusCode.INTERNAL and failure.details() == _STATUS_IS_LOST:
                message = f"the stream to {self._options.address} ended while a frame was written"
                return errors.make(grpc.StatusCode.UNAVAILABLE, message, "CONNECTION_LOST")
            return errors.from_rpc(failure, self._options.address, self._timeout, self._options.has_tls)
        except errors.InferenceError as malformed:
            return malformed
        finally:
            self._call.cancel()  # ends a call with a malformed answer; without effect on an ended call
            self._writer.cancel()  # gRPC leaves the writer waiting if a call is cancelled before it has begun
        return None
