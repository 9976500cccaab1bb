"""Tests where the names of an answer's classes come from: when they are asked for, and when they are not."""

from __future__ import annotations

import asyncio
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conftest import FakeServer

import voxserve
from voxserve.known_classes import KnownClasses

NAMES = {0: "road", 1: "car"}


def all_answers(server: FakeServer, points: npt.NDArray[np.float32], read: Callable[[Any], object]) -> list[Any]:
    """Returns answers of the calls and streams of both clients, which are closed. read: called with each of them before
    its client is closed.
    """
    results: list[Any] = []

    def keep(result: Any) -> None:
        read(result)
        results.append(result)

    with voxserve.Client(server.address) as client:
        both = client.infer("both", points)
        for result in (client.infer("minkunet", points), client.detect("detector", points), both, both.detections):
            keep(result)
        with client.stream("minkunet", policy="queue") as stream:
            stream.send(1, points)
            stream.close_sends()
            for frame in stream:
                keep(frame.segmentation)

    async def ask() -> None:
        async with voxserve.aio.Client(server.address) as client:
            keep(await client.infer("minkunet", points))
            async with client.stream("minkunet", policy="queue") as stream:
                await stream.send(1, points)
                stream.close_sends()
                async for frame in stream:
                    keep(frame.segmentation)

    asyncio.run(ask())
    assert len(results) == 7
    return results


def test_answers_name_the_classes(server: FakeServer, points: npt.NDArray[np.float32]) -> None:
    for result in all_answers(server, points, lambda result: result.classes):
        assert result.class_names == NAMES
        assert result.classes[0].color == (0x80, 0x40, 0x80)
        assert pickle.loads(pickle.dumps(result)).class_names == NAMES
        assert result.picture().pixels.size, "the test still has the points"
    assert server.asked_models == ["minkunet", "detector", "both", "minkunet"], "once by each client"


def test_answers_that_outlive_their_client_name_the_classes(
    server: FakeServer, points: npt.NDArray[np.float32]
) -> None:
    """A client that is closed asks for the names that nobody has read."""
    for result in all_answers(server, points, lambda result: (result.counts, result.tensors, result.round_trip)):
        assert pickle.loads(pickle.dumps(result)).class_names == NAMES
        assert isinstance(result, voxserve.Detections) or " car 5" in repr(result)
        assert result.class_names == NAMES
    assert sorted(server.asked_models) == ["both", "detector", "minkunet", "minkunet"], "once by each client"


@pytest.mark.parametrize("is_async", [False, True])
def test_names_that_nobody_needs_are_not_asked_for(
    server: FakeServer, points: npt.NDArray[np.float32], is_async: bool
) -> None:
    async def ask() -> None:
        async with voxserve.aio.Client(server.address) as client:
            await client.segment("minkunet", points)
            await client.infer("both", points)

    if is_async:
        asyncio.run(ask())
    else:
        with voxserve.Client(server.address) as client:
            client.segment("minkunet", points)
            client.infer("both", points)
    assert server.asked_models == []


@pytest.mark.parametrize("is_async", [False, True])
def test_texts_and_pickles_have_the_names_that_are_known(
    server: FakeServer, points: npt.NDArray[np.float32], is_async: bool
) -> None:
    """Nobody expects that a text, such as one in a log of an event loop, waits for a server."""

    def check(result: Any, other: Any) -> None:
        assert "class 0 5, class 1 5" in repr(result)
        assert pickle.loads(pickle.dumps(result)).classes == ()
        assert server.asked_models == []
        assert other.class_names == NAMES
        assert "road 5, car 5" in repr(result), "another answer of the model has asked"
        assert pickle.loads(pickle.dumps(result)).class_names == NAMES
        assert server.asked_models == ["minkunet"]

    async def ask() -> None:
        async with voxserve.aio.Client(server.address) as client:
            check(await client.infer("minkunet", points), await client.infer("minkunet", points))

    if is_async:
        asyncio.run(ask())
    else:
        with voxserve.Client(server.address) as client:
            check(client.infer("minkunet", points), client.infer("minkunet", points))


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_client_is_closed_although_the_server_does_not_tell_names(
    server: FakeServer,
    points: npt.NDArray[np.float32],
    monkeypatch: pytest.MonkeyPatch,
    is_async: bool,
    is_gone: bool,
) -> None:
    monkeypatch.setattr(KnownClasses, "CLOSING_TIMEOUT", 0.05)

    async def ask() -> list[Any]:
        async with voxserve.aio.Client(server.address, timeout=None) as client:
            results = [await client.infer(model, points) for model in ("names-late", "minkunet")]
            if is_gone:
                server.stop()
        assert not client._channels
        return results

    if is_async:
        results = asyncio.run(ask())
    else:
        with voxserve.Client(server.address, timeout=None) as client:
            results = [client.infer(model, points) for model in ("names-late", "minkunet")]
            if is_gone:
                server.stop()
        assert not client._channels
    assert results[0].count_by_class() == {"class 0": 5, "class 1": 5}
    if is_gone:
        assert results[1].class_names == {}


def test_closing_asks_no_longer_than_its_limit(
    server: FakeServer, points: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KnownClasses, "CLOSING_TIMEOUT", 0.0)
    with voxserve.Client(server.address) as client:
        result = client.infer("minkunet", points)
    assert (server.asked_models, result.class_names) == ([], {})
    client.close()  # a second time, without connections
    assert server.asked_models == []


@pytest.mark.parametrize("is_async", [False, True])
def test_connections_are_closed_if_asking_is_broken_off(
    server: FakeServer, points: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    async def ask() -> None:
        async_client = voxserve.aio.Client(server.address)
        result = await async_client.infer("names-late", points)
        closing = asyncio.create_task(async_client.close())
        while not server.asked_models:
            await asyncio.sleep(0.01)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert not async_client._channels
        assert result.classes == ()

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    if is_async:
        asyncio.run(ask())
        return
    client = voxserve.Client(server.address)
    result = client.infer("minkunet", points)
    monkeypatch.setattr(client, "_ask_classes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert not client._channels
    assert result.classes == ()


def test_a_client_is_freed_once_its_classes_are_read(server: FakeServer, points: npt.NDArray[np.float32]) -> None:
    client = voxserve.Client(server.address)
    result, freed = client.infer("minkunet", points), weakref.ref(client)
    del client
    assert result.class_names == NAMES, "the answer keeps the client that it asks"
    gc.collect()
    assert freed() is None
    assert result.class_names == NAMES


def test_classes_that_were_told_before_stay(
    server: FakeServer, points: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    with voxserve.Client(server.address) as client:
        first = client.infer("minkunet", points)
        assert first.class_names == NAMES
        server.classes = [("renamed", 0)]
        assert client.infer("minkunet", points).class_names == NAMES
        monkeypatch.setattr(KnownClasses, "SECONDS", -1.0)
        renamed = client.infer("minkunet", points)
        assert renamed.class_names == {0: "renamed"}
        last, lost = client.infer("minkunet", points), client.infer("minkunet", points)
        assert first.class_names == NAMES, "one answer's names do not change"
        server.stop()
        assert last.class_names == {0: "renamed"}
    assert lost.class_names == {0: "renamed"}


def test_a_server_that_does_not_name_classes(server: FakeServer, points: npt.NDArray[np.float32]) -> None:
    with voxserve.Client(server.address) as client:
        server.classes = []
        assert client.infer("minkunet", points).classes == ()
        result = client.infer("unnamed", points)
        assert (result.classes, result.classes) == ((), ())
        assert server.asked_models == ["minkunet", "unnamed"]
        assert result.count_by_class() == {"class 0": 5, "class 1": 5}


@pytest.mark.parametrize("is_async", [False, True])
def test_a_server_that_does_not_answer_holds_up_names_alone(
    server: FakeServer, points: npt.NDArray[np.float32], monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    monkeypatch.setattr(KnownClasses, "TIMEOUT", 0.5)

    async def ask() -> Any:
        async with voxserve.aio.Client(server.address, timeout=None) as client:
            result = await client.infer("names-late", points)
            assert server.asked_models == []
            assert result.class_names == {}
            return result

    if is_async:
        result = asyncio.run(ask())
    else:
        with voxserve.Client(server.address, timeout=None) as client:
            result = client.infer("names-late", points)
            assert server.asked_models == []
            assert result.class_names == {}
    assert result.count_by_class() == {"class 0": 5, "class 1": 5}
    assert server.asked_models == ["names-late"], "asked once in 30 s"


def test_the_clients_own_calls_are_in_no_trace(server: FakeServer, points: npt.NDArray[np.float32]) -> None:
    traces = iter(["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"] * 2)

    async def ask() -> None:
        async with voxserve.aio.Client(server.address, traceparent=lambda: next(traces)) as client:
            assert (await client.infer("minkunet", points)).class_names == NAMES

    with voxserve.Client(server.address, traceparent=lambda: next(traces)) as client:
        assert client.infer("minkunet", points).class_names == NAMES
    asyncio.run(ask())
    assert next(traces, None) is None
