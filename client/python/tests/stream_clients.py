"""Gives the asyncio client's streams the synchronous interface, so that one test body tests both clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import voxserve

WAIT = 120.0  # seconds; long, since only a broken client waits so long


class Loop:
    """An event loop on its own thread, which runs coroutines for other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class AioStream:
    """A stream of the asyncio client with the interface of a synchronous one."""

    def __init__(self, loop: Loop, stream: voxserve.aio.Stream) -> None:
        self._loop, self._stream = loop, stream

    def send(self, *arguments: Any, **keywords: Any) -> None:
        self._loop.run(self._stream.send(*arguments, **keywords))

    def send_part(self, *arguments: Any, **keywords: Any) -> None:
        self._loop.run(self._stream.send_part(*arguments, **keywords))

    def close_sends(self) -> None:
        self._loop.run(self._call(self._stream.close_sends))

    def cancel(self) -> None:
        self._loop.run(self._call(self._stream.cancel))

    @property
    def is_going_away(self) -> bool:
        return self._stream.is_going_away

    @property
    def num_reopened(self) -> int:
        return self._stream.num_reopened

    def __iter__(self) -> AioStream:
        return self

    def __next__(self) -> voxserve.FrameResult:
        async def read() -> Any:
            return [result async for result in _first_of(self._stream)]

        results = self._loop.run(read())
        if not results:
            raise StopIteration
        return results[0]

    def __enter__(self) -> AioStream:
        assert self._loop.run(self._stream.__aenter__()) is self._stream
        return self

    def __exit__(self, *error: Any) -> None:
        self._loop.run(self._stream.__aexit__(*error))

    async def _call(self, function: Any) -> None:
        function()


async def _first_of(stream: voxserve.aio.Stream) -> Any:
    async for result in stream:
        yield result
        return


class AioClient:
    def __init__(self, address: str, **options: Any) -> None:
        self._loop = Loop()
        self._client = self._loop.run(self._make(address, options))

    async def _make(self, address: str, options: dict[str, Any]) -> voxserve.aio.Client:
        return voxserve.aio.Client(address, **options)

    def stream(self, *arguments: Any, **keywords: Any) -> AioStream:
        async def open_stream() -> voxserve.aio.Stream:
            return self._client.stream(*arguments, **keywords)

        return AioStream(self._loop, self._loop.run(open_stream()))

    def infer(self, *arguments: Any, **keywords: Any) -> voxserve.Segmentation:
        async def call() -> voxserve.Segmentation:
            return await self._client.infer(*arguments, **keywords)

        result = self._loop.run(call())
        assert isinstance(result, voxserve.Segmentation)
        return result

    def load_model(self, *arguments: Any, **keywords: Any) -> Any:
        async def call() -> Any:
            return await self._client.load_model(*arguments, **keywords)

        return self._loop.run(call())

    def close(self) -> None:
        self._loop.run(self._client.close())

    def __enter__(self) -> AioClient:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
        self._loop.close()


def error_of(result: voxserve.FrameResult) -> voxserve.InferenceError:
    assert result.error is not None
    assert result.segmentation is None
    return result.error


def labels_of(result: voxserve.FrameResult) -> Any:
    assert result.error is None, result.error
    assert result.segmentation is not None
    return result.segmentation.labels
