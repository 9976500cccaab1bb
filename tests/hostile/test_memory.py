"""The server's memory during calls, incomplete messages and a plan search, and when allocations fail."""

from __future__ import annotations

import resource
import time

import grpc
import pytest
from long_tests import LONG

import http2
from calls import (
    MODEL,
    TUNE_PLAN,
    OrdinaryClient,
    answer_of,
    call,
    channel,
    infer_request,
    padded_cloud,
    scan,
    scattered,
)
from http2 import Connection, await_true
from server import MEBIBYTE, mebibytes
from voxserve import wire
from voxserve.encoding import encode_request

IDLE_SECONDS = 30  # After this many idle seconds the server has given unneeded memory back to the system.
LIMIT = 2 << 30


@pytest.mark.alone
def test_08_scattered_points(serve, figure):
    """Two concurrent calls each send 2,000,000 points of which most have a voxel of their own, under
    --memory_limit=2GiB.
    """
    server = serve("--memory_limit=2GiB")
    before = server.rss()
    server.reset_peak()
    request = infer_request(scattered(2_000_000))
    with channel(server.address) as to:
        start = time.monotonic()
        large = [to.unary_unary("/voxserve.v1.InferenceService/Infer").future(request, timeout=150) for _ in range(2)]
        time.sleep(0.5)
        client = OrdinaryClient(server.address, timeout=120).ask(3)
        answers = [answer_of(one.result) for one in large]
        seconds = time.monotonic() - start
    peak = server.peak_rss()
    await_true(lambda: server.rss() < before + 256 * MEBIBYTE, IDLE_SECONDS, 0.5)
    idle = server.rss()
    figure(
        before=mebibytes(before),
        peak=mebibytes(peak),
        idle=mebibytes(idle),
        answers=[str(answer) for answer in answers],
        seconds=f"{seconds:.1f}",
        others=client.figures(),
    )
    assert peak < LIMIT
    for answer in answers:
        assert answer.is_ok or (answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED and answer.reason), str(answer)
    assert not client.failures
    assert idle < before + 256 * MEBIBYTE


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["infer", pytest.param("stream", marks=LONG)])
def test_half_sent_bodies(serve, attack, figure, kind):
    """A client announces 96 messages of 64 MiB and stops after 62 MiB of each. Memory stays within the limit, and a
    client with large clouds is served and keeps its connections.
    """
    server = serve("--memory_limit=2GiB")
    server.reset_peak()
    half_sent = attack("half_sent_bodies", server, 20, stream=kind == "stream")
    with OrdinaryClient(server.address, per_minute=120, timeout=30, num_points=50_000) as client:
        counts = half_sent.counts()
    peak = server.peak_rss()
    seconds, status = server.terminate(30)
    figure(peak=mebibytes(peak), others=client.figures(), end=f"{seconds:.1f} s, exit {status}", **counts)
    assert counts["sent_mib"] > 256
    assert not client.failures, client.failures[:3]
    assert peak < LIMIT
    assert seconds < 10
    assert status == 0


SMALL_LIMITS = ("--max_message_bytes=1MiB", "--grpc_memory_bytes=8MiB")


def test_a_fleets_uploads_fit(serve, figure):
    """One connection has 64 calls that are almost complete at the same time. Together they hold more than a quarter of
    gRPC's memory, which is one client's share, but far less than all of it, so all are answered. (gRPC also counts its
    own buffers and was seen to reset some calls when they held three fifths or more.)
    """
    server = serve(*SMALL_LIMITS)
    num_points = 2800
    message = infer_request(scan(num_points))
    body = b"\0" + len(message).to_bytes(4, "big") + message
    with Connection(server.grpc_port) as connection:
        # The server may send all answers without waiting.
        connection.send(http2.frame(http2.WINDOW_UPDATE, 0, 0, MEBIBYTE.to_bytes(4, "big")))
        streams = connection.streams(64)
        sent = 0
        for one in streams:
            connection.send(http2.call_frames(one, http2.header_block(http2.INFER)))
            sent += connection.send_data(one, body[:-1])
        time.sleep(0.5)
        is_closed = connection.is_closed
        if not is_closed:
            for one in streams:
                connection.send(http2.frame(http2.DATA, http2.END_STREAM, one, body[-1:]))
        has_ended = connection.wait(lambda: len(connection.ended) == 64 or connection.is_closed, 60)
        answers = connection.data_bytes
    figure(sent=sent, closed=is_closed, ended=len(connection.ended), answer_bytes=answers)
    assert sent == 64 * (len(body) - 1)
    assert sent > 2 * MEBIBYTE
    assert not is_closed
    assert has_ended
    assert answers >= 64 * num_points


def test_cancelled_uploads_are_not_held(serve, figure):
    """A connection cancels forty uploads of 0.9 MB one after the other, while another call on it stays open. The server
    must not count the cancelled uploads against the connection, so it keeps the connection open.
    """
    server = serve(*SMALL_LIMITS)
    with Connection(server.grpc_port) as connection:
        [watch] = connection.streams(1)
        connection.send(http2.call_frames(watch, http2.header_block("/grpc.health.v1.Health/Watch"), b""))
        sent = 0
        for one in connection.streams(40):
            if connection.is_closed:
                break
            connection.send(http2.call_frames(one, http2.header_block(http2.INFER)))
            sent += connection.send_data(one, b"\0" + (1_000_000).to_bytes(4, "big") + b"x" * 900_000)
            time.sleep(0.06)  # The server has time to read the upload and to count its bytes.
            if not connection.is_closed:
                connection.send(http2.frame(http2.RST_STREAM, 0, one, http2.CANCEL.to_bytes(4, "big")))
            time.sleep(0.06)
        is_closed = connection.is_closed
    figure(sent=mebibytes(sent), closed=is_closed)
    assert not is_closed
    assert sent > 32 * MEBIBYTE


def test_09_tuning_keeps_scans(serve, figure):
    """A TunePlan call asks for a hundred scans within a day, while clients send 40 scans of 32 MiB. The server refuses
    to wait for so long. A search with the longest allowed wait keeps little of the scans.
    """
    server = serve()
    before = server.rss()
    with channel(server.admin_address) as to:
        search = to.unary_stream(TUNE_PLAN)(search_request(86400), timeout=120)
        told = answer_of(lambda: next(search))
        longest = 86400
        # A day exceeds the longest wait that this server allows, so the test uses the longest allowed one.
        if not told.is_ok:
            longest = longest_wait(to)
            search = to.unary_stream(TUNE_PLAN)(search_request(longest), timeout=120)
            assert answer_of(lambda: next(search)).is_ok
        request = encode_request(wire.InferRequest(model=MODEL), padded_cloud(1000, 32 * 1024), 1 << 31)
        sent = 0
        failures = []
        while sent < 40 and server.rss() < before + (3 << 30) // 2:
            answer = call(server.address, request, 30)
            sent += 1
            if not answer.is_ok:
                failures.append(str(answer))
        # After a while no memory of the calls themselves is left.
        await_true(lambda: server.rss() < before + 256 * MEBIBYTE, 10, 0.5)
        grown = server.rss() - before
        search.cancel()
    seconds, status = server.terminate(30)
    figure(
        wait_of_a_day=told,
        longest_wait=f"{longest} s",
        sent=f"{sent} x 32 MiB",
        not_answered=failures[:2] or 0,
        grown=mebibytes(grown),
        end=f"{seconds:.1f} s, exit {status}",
    )
    assert told.code is grpc.StatusCode.INVALID_ARGUMENT, "a search may wait for a day"
    assert longest <= 600
    assert not failures
    assert grown < 512 * MEBIBYTE
    assert seconds < 10
    assert status == 0


def search_request(seconds: float) -> bytes:
    """Returns a request for a search that waits up to `seconds` for a hundred scans."""
    return bytes(wire.TunePlanRequest(model=MODEL, num_scans=100, max_wait_seconds=seconds).SerializeToString())


def longest_wait(to: grpc.Channel) -> int:
    """Returns the longest wait in seconds, of those tried, that the server accepts."""
    for seconds in (43200, 3600, 1800, 900, 600, 300, 120, 60, 30, 10):
        search = to.unary_stream(TUNE_PLAN)(search_request(seconds), timeout=60)
        is_ok = answer_of(lambda search=search: next(search)).is_ok
        search.cancel()
        if is_ok:
            time.sleep(0.5)  # wait for the search's end
            return seconds
    raise AssertionError("no wait is accepted")


REFUSED = (grpc.StatusCode.RESOURCE_EXHAUSTED, "OUT_OF_MEMORY")
MALFORMED = (grpc.StatusCode.INVALID_ARGUMENT, "MALFORMED_MESSAGE")


@pytest.mark.alone
@pytest.mark.parametrize(
    ("kind", "size", "headroom", "expected", "expected_with_room"),
    [
        # There is room for the message, but not for the name beside it. The message is malformed: the server refuses it
        # before it allocates anything for it.
        ("name", 32 * MEBIBYTE, 54, MALFORMED, MALFORMED),
        # There is room for the message (100 to 124 MiB), but not for the cloud beside it, whose points are one piece of
        # 100 MiB.
        ("cloud", 100 * MEBIBYTE, 160, REFUSED, (grpc.StatusCode.OK, "")),
        # There is room for the cloud, but not for the network's voxels.
        ("points", 1_000_000, 200, REFUSED, (grpc.StatusCode.OK, "")),
    ],
    ids=["name", "cloud", "points"],
)
def test_14_failed_allocations(serve, figure, kind, size, headroom, expected, expected_with_room):
    """An Infer call fails to allocate because the address space is limited to its current size plus `headroom` MiB. The
    answer says that memory ran out, the same request is served once there is room again, and the server then drains
    cleanly. The limit leaves gRPC room for the bytes that it reads, because gRPC ends the process without it. malloc
    has one arena and keeps no large blocks, so what the limit leaves does not depend on what ran before: each further
    arena would take 64 MiB of the address space whenever a thread asks for its first bytes.
    """
    malloc = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(128 << 10), "MALLOC_TRIM_THRESHOLD_": "0"}
    server = serve("--max_message_bytes=128MiB", environment=malloc)
    if kind == "name":
        request = wire.InferRequest(model=MODEL, cloud=wire.PointCloud(frame_id="n" * size)).SerializeToString()
    elif kind == "cloud":
        request = encode_request(wire.InferRequest(model=MODEL), padded_cloud(1000, size // 1000 // 4 * 4), 1 << 31)
    else:
        request = infer_request(scattered(size))
    server.limit_address_space(server.address_space() + headroom * MEBIBYTE)
    answer = call(server.address, request, 60)
    server.limit_address_space(resource.RLIM_INFINITY)
    ended = server.process.poll()
    assert ended is None, server.log()[-2000:]
    with_room = call(server.address, request, 120)
    client = OrdinaryClient(server.address).ask(3)
    seconds, status = server.terminate(40)
    figure(
        answer=answer,
        text=answer.message,
        with_room=with_room,
        others=client.figures(),
        end=f"{seconds:.1f} s, exit {status}",
    )
    assert (answer.code, answer.reason) == expected
    assert (with_room.code, with_room.reason) == expected_with_room
    assert not client.failures
    assert seconds < 10
    assert status == 0
