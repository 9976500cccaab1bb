"""Tests that the log's lines about a call carry its W3C trace, with a stock gRPC client and with ours."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from identity_calls import INFER, LOAD, OPERATOR, TOKENS, TRUCK, StartServer, few_points
from identity_files import Server

import voxserve
import voxserve.aio
from voxserve import wire

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
STREAM = "/voxserve.v1.InferenceService/InferStream"
NUMBERS = itertools.count()

INVALID = [
    "",
    "nonsense",
    f"00-{TRACE}-{SPAN}",
    f"00-{TRACE}-{SPAN}-1",
    f"00-{TRACE}-{SPAN}-01-more",
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{TRACE.upper()}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f'00-{TRACE}-{SPAN}-01" INFO forged=1',
    f"00-{TRACE}-{SPAN}-01" + "0" * 4000,
]


@pytest.fixture(scope="module")
def server(start: StartServer, folder: Path) -> Server:
    (folder / "tokens").write_text(TOKENS)
    return start("--log_format=json", "--log_level=debug", f"--auth_tokens={folder / 'tokens'}", "--insecure_tokens")


def await_lines(server: Server, **fields: object) -> list[dict[str, Any]]:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        lines = [json.loads(text) for text in server.log().splitlines(keepends=True) if text.endswith("\n")]
        if found := [line for line in lines if fields.items() <= line.items()]:
            return found
        time.sleep(0.02)
    raise AssertionError(f"no line with {fields}:\n{server.log()[-3000:]}")


def trace_of(line: dict[str, Any]) -> tuple[str, str]:
    return line.get("trace_id", ""), line.get("span_id", "")


def ask(server: Server, *traceparents: str, model: str = "none") -> str:
    """Makes an Infer call by plain grpcio for a model that does not exist. Returns the call's request_id."""
    name = f"call-{next(NUMBERS)}"
    request = wire.InferRequest(model=model, request_id=name).SerializeToString()
    metadata = [("authorization", f"Bearer {TRUCK}"), *(("traceparent", text) for text in traceparents)]
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary(INFER)(request, timeout=20, metadata=metadata)
    time.sleep(0.25)  # the log has only a few lines a second for each reason
    return name


@pytest.mark.parametrize("text", [f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01-later"])
def test_a_valid_trace_is_logged(server: Server, text: str) -> None:
    (line,) = await_lines(server, message="not answered", request_id=ask(server, text))
    assert trace_of(line) == (TRACE, SPAN)


@pytest.mark.parametrize("text", INVALID, ids=lambda text: text[:24])
def test_an_invalid_trace_is_ignored(server: Server, text: str) -> None:
    (line,) = await_lines(server, message="not answered", request_id=ask(server, text))
    assert "trace_id" not in line and "span_id" not in line
    assert len(json.dumps(line)) < 600, "it is not in another field either"
    assert "forged" not in server.log() and "nonsense" not in server.log()


def test_no_trace(server: Server) -> None:
    (line,) = await_lines(server, message="not answered", request_id=ask(server))
    assert "trace_id" not in line and "span_id" not in line


def test_a_refused_call_has_its_trace(server: Server) -> None:
    trace = "1" * 32
    for address, method in ((server.address, INFER), (server.admin_address, LOAD)):
        with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(method)(b"", timeout=20, metadata=[("traceparent", f"00-{trace}-{SPAN}-01")])
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert await_lines(server, message="not answered", reason="MISSING_TOKEN", trace_id=trace, span_id=SPAN)
    assert await_lines(server, message="audit", who="nobody", action="LoadModel", trace_id=trace, span_id=SPAN)


def test_an_audited_call_has_its_trace(server: Server) -> None:
    trace = "2" * 32
    request = wire.LoadModelRequest(model="none").SerializeToString()
    metadata = [("authorization", f"Bearer {OPERATOR}"), ("traceparent", f"00-{trace}-{SPAN}-01")]
    with grpc.insecure_channel(server.admin_address) as channel, pytest.raises(grpc.RpcError):
        channel.unary_unary(LOAD)(request, timeout=20, metadata=metadata)
    (line,) = await_lines(server, message="audit", who="token:operator", action="LoadModel", model="none")
    assert trace_of(line) == (trace, SPAN)


def test_a_stream_and_its_frames_have_its_trace(server: Server) -> None:
    trace = "3" * 32
    messages = iter(
        [
            wire.InferStreamRequest(config=wire.StreamConfig(model="minkunet")).SerializeToString(),
            wire.InferStreamRequest(frame=wire.StreamFrame(frame_id=77)).SerializeToString(),
        ]
    )
    metadata = [("authorization", f"Bearer {TRUCK}"), ("traceparent", f"00-{trace}-{SPAN}-01")]
    with grpc.insecure_channel(server.address) as channel:
        assert len(list(channel.stream_stream(STREAM)(messages, timeout=20, metadata=metadata))) == 1
    for message in ("not answered", "stream ended"):
        (line,) = await_lines(server, message=message, trace_id=trace)
        assert trace_of(line) == (trace, SPAN)


def test_our_clients_send_the_current_trace(server: Server) -> None:
    traces: Iterator[str] = (f"00-{trace}-{SPAN}-01" for trace in ("a" * 32, "b" * 32))
    points = few_points()
    options: dict[str, Any] = {"token": TRUCK, "timeout": 60, "traceparent": lambda: next(traces)}
    with voxserve.Client(server.address, **options) as client:
        client.infer("minkunet", points)
        with client.stream("minkunet") as stream:
            stream.send(1, points)
            stream.close_sends()
            assert [result.error for result in stream] == [None]

    async def asked() -> None:
        own = {**options, "traceparent": lambda: f"00-{'c' * 32}-{SPAN}-01"}
        async with voxserve.aio.Client(server.address, **own) as client:
            await client.infer("minkunet", points)
            async with client.stream("minkunet") as stream:
                await stream.send(1, points)
                stream.close_sends()
                assert [result.error async for result in stream] == [None]

    asyncio.run(asked())
    for trace in ("a", "b", "c"):
        for line in await_lines(server, message="answered", trace_id=trace * 32):
            assert trace_of(line) == (trace * 32, SPAN)
    for trace in ("b", "c"):
        await_lines(server, message="stream ended", trace_id=trace * 32)


@pytest.mark.parametrize("text", ["", "two words", "line\n", "stra\u00dfe"])
def test_a_trace_that_no_header_can_carry_is_not_sent(server: Server, text: str) -> None:
    name = f"call-{next(NUMBERS)}"
    with voxserve.Client(server.address, token=TRUCK, timeout=60, traceparent=lambda: text) as client:
        client.infer("minkunet", few_points(), request_id=name)
    (line,) = await_lines(server, message="answered", request_id=name)
    assert "trace_id" not in line
