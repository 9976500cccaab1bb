"""The asyncio client: voxserve.Client with coroutines.

    async with voxserve.aio.Client("localhost:8500") as client:
        labels = await client.segment("minkunet", points)

A client serves one event loop at a time: a later loop, such as that of a second asyncio.run(), gets new connections.

The names of classes are read without await. Reading them (`classes`, `class_names`, `count_by_class()`, and what shows
them, such as a picture) may ask the server, at most once in 30 s, and blocks the event loop meanwhile, for 2 s if the
server does not answer. `await asyncio.to_thread(lambda: result.classes)` does not block. The text of a result, repr(),
and pickling never ask: they have the names that are known.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar, Concatenate

import grpc
import grpc.aio

from voxserve import client, errors, protocol
from voxserve.aio_stream import Stream
from voxserve.awaited import Parameters, awaited
from voxserve.known_classes import Key, KnownClasses
from voxserve.protocol import Call, ClientBase, Result
from voxserve.results import ClassInfo, TunedPlan
from voxserve.stream_state import StreamConfig


def _opening(method: Callable[Concatenate[Any, Parameters], object]) -> Callable[Concatenate[Any, Parameters], Stream]:
    """Returns a method with the arguments and the docstring of `method`, which returns what Client._open returns."""

    @functools.wraps(method)
    def open_stream(self: Any, /, *arguments: Parameters.args, **keywords: Parameters.kwargs) -> Stream:
        stream: Any = method(self, *arguments, **keywords)
        assert isinstance(stream, Stream)
        return stream

    open_stream.__annotations__ = {**method.__annotations__, "return": Stream}
    return open_stream


class Client(ClientBase[grpc.aio.Channel]):
    """A connection to a voxserve server; voxserve.Client documents the arguments and errors, which are the same."""

    _grpc: ClassVar[Any] = grpc.aio
    _loop: asyncio.AbstractEventLoop | None = None  # the event loop of the channels

    segment = awaited(client.Client.segment)
    infer = awaited(client.Client.infer)
    detect = awaited(client.Client.detect)
    tensors = awaited(client.Client.tensors)
    stream = _opening(client.Client.stream)
    models = awaited(client.Client.models)
    model = awaited(client.Client.model)
    load_model = awaited(client.Client.load_model)
    unload_model = awaited(client.Client.unload_model)
    tune_plan = awaited(client.Client.tune_plan)
    health = awaited(client.Client.health)

    async def close(self) -> None:
        """Closes the connections. Calls and streams in flight are cancelled. Before, it asks the server for the names
        of classes that answers in memory need and nobody has read yet; this takes 1 s at most.
        """
        wanted = self._classes.wanted() if self._channels else []
        self._enter_loop()
        try:
            await asyncio.gather(*map(self._ask_wanted_classes, wanted))
        finally:
            while self._channels:
                await self._channels.popitem()[1].close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, call: Call[Result], timeout: float | None) -> Result:
        with self._begun(call, timeout) as response:
            return call.read(await response)

    def _ask_classes(self, model: str, version: int) -> tuple[ClassInfo, ...]:
        """Asks on a connection of its own: names are read without await."""
        with client.Client(**vars(self._options)) as asker:
            return asker._ask_classes(model, version)

    async def _ask_wanted_classes(self, key: Key) -> None:
        """Asks for classes that answers will need after the client is closed."""
        classes = None
        with contextlib.suppress(errors.InferenceError, grpc.aio.UsageError):  # UsageError: closed by another task
            classes = await self._run(protocol.get_classes(*key), KnownClasses.CLOSING_TIMEOUT)
        self._classes.keep(key, classes)

    async def _run_search(self, call: Call[TunedPlan | None], timeout: float) -> TunedPlan:
        plan = None
        with self._begun(call, timeout) as updates:
            try:
                async for update in updates:
                    plan = call.read(update) or plan
            finally:
                updates.cancel()
        return protocol.found(plan)

    def _channel_of(self, method: str) -> grpc.aio.Channel:
        self._enter_loop()
        return super()._channel_of(method)

    def _next_channel(self) -> grpc.aio.Channel:
        self._enter_loop()
        return super()._next_channel()

    def _enter_loop(self) -> None:
        """Forgets the channels of an event loop that has ended: they cannot be used in another one. RuntimeError if
        that loop still runs.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            if self._loop.is_running():
                raise RuntimeError("this aio.Client is in use in another event loop, which still runs; make one a loop")
            with self._lock:
                self._channels.clear()
        self._loop = loop

    def _open(self, config: StreamConfig, timeout: float | None) -> Stream:
        return Stream(self._next_channel(), config, self._options, timeout, self._classes_of)
