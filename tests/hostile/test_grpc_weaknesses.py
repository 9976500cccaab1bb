"""Known weaknesses of gRPC after 1.51.0 (CVEs), tried on the gRPC that the server is built with.

An HTTP/2 connection has one HPACK table for all its calls (RFC 7541). If a refused call left it out of step, another
call of the same connection, behind a proxy one of another client, would be read wrongly. So each attack is followed by
a call whose path stands in the table.
"""

from __future__ import annotations

import contextlib
import time

import pytest

import http2
from calls import OrdinaryClient, infer_request, scan
from http2 import Connection, await_true
from server import MEBIBYTE, mebibytes

CHECK = "/grpc.health.v1.Health/Check"
_NOT_INDEXED, _INDEXED = 0x00, 0x40  # literal headers, by their first byte
_PATH = 4  # the index of :path in the static table
_FIRST_DYNAMIC = 62  # the newest entry of the table


def integer(first: int, bits: int, value: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    value -= most
    rest = []
    while value >= 128:
        rest.append(value % 128 + 128)
        value //= 128
    return bytes([first | most, *rest, value])


def text(value: str) -> bytes:
    return integer(0, 7, len(value)) + value.encode()


def header(name: str, value: str, first: int = _NOT_INDEXED) -> bytes:
    return bytes([first]) + text(name) + text(value)


def call_block(path: bytes, *more: bytes, scheme: bytes = b"\x86", te: str = "trailers") -> bytes:
    """Returns the encoded headers of a call. path: an encoded header."""
    rest = [b"\x01" + text("voxserve"), header("te", te), header("content-type", "application/grpc"), *more]
    return b"".join([b"\x83", scheme, path, *rest])  # b"\x83": POST, b"\x01": the name :authority


PATH_THAT_IS_KEPT = integer(_INDEXED, 6, _PATH) + text(CHECK)


def from_table(age: int) -> bytes:
    """Returns a reference to the header that was stored in the table `age` headers before the newest one."""
    return integer(0x80, 7, _FIRST_DYNAMIC + age)


def call_from_table(connection: Connection, age: int = 0) -> str:
    """Makes a call whose path stands in the table (from_table). Returns:
    - "in step" if it is answered with OK.
    - "ended" if the connection has ended.
    - "out of step" else: an answer to another path would be UNIMPLEMENTED, without data.
    """
    [one] = connection.streams(1)
    before = connection.data_bytes
    try:
        connection.send(http2.call_frames(one, call_block(from_table(age)), b""))
    except OSError:
        return "ended"
    connection.wait(lambda: one in connection.ended or connection.is_closed, 10)
    if connection.data_bytes > before:
        return "in step"
    return "ended" if connection.is_closed else "out of step"


def send_block(connection: Connection, block: bytes) -> int:
    """Sends a call with these headers, in as many frames as they need, and no message. Returns its stream."""
    [one] = connection.streams(1)
    parts = [block[at : at + http2.MAX_FRAME_BYTES] for at in range(0, len(block), http2.MAX_FRAME_BYTES)]
    frames = [http2.frame(http2.HEADERS if i == 0 else 9, 0, one, part) for i, part in enumerate(parts)]
    last = parts[-1]
    frames[-1] = http2.frame(http2.HEADERS if len(parts) == 1 else 9, http2.END_HEADERS, one, last)
    connection.send(b"".join(frames) + http2.message_frames(one, b""))
    return one


def large_headers(times: int) -> bytes:
    """Returns headers of `times` * 3000 bytes, which take little more than 3000: the table has the first of them."""
    return header("k", "v" * 3000, _INDEXED) + from_table(0) * (times - 1)


@pytest.mark.parametrize("times", [3, 10])
@pytest.mark.parametrize(
    "block",
    {
        "te": lambda more: call_block(PATH_THAT_IS_KEPT, more, te="x"),
        "scheme": lambda more: call_block(PATH_THAT_IS_KEPT, more, scheme=integer(_NOT_INDEXED, 4, 6) + text("x")),
        "grpclb_client_stats": lambda more: call_block(PATH_THAT_IS_KEPT, header("grpclb_client_stats", "x"), more),
    }.items(),
    ids=lambda item: item[0] if isinstance(item, tuple) else None,
)
def test_headers_whose_size_cannot_be_told(serve_once, block, times):
    """CVE-2023-1428: gRPC computed the size of some headers only when all were too large, and aborted over these."""
    for _ in range(10):
        with contextlib.suppress(OSError), Connection(serve_once.grpc_port, "127.0.8.1") as connection:
            one = send_block(connection, block[1](large_headers(times)))
            connection.wait(lambda c=connection, one=one: one in c.ended or c.is_closed, 5)
            assert connection.data_bytes == 0 or block[0] == "grpclb_client_stats"
    assert serve_once.process.poll() is None
    assert not OrdinaryClient(serve_once.address).ask(1).failures


@pytest.mark.parametrize("times", [1, 3, 6, 10])
@pytest.mark.parametrize("place", ["before", "behind"])
def test_headers_that_are_too_large_leave_the_table_in_step(serve_once, figure, times, place):
    """CVE-2023-32731: gRPC passed over the rest of a header block that was too large, with its entries of the table.
    Three times 3000 bytes are more than the 8 KiB that gRPC announces. Whether it refuses them depends on how they
    arrive; when it does, it ends the connection too.
    """
    large = large_headers(times)
    block = call_block(b"", large, PATH_THAT_IS_KEPT) if place == "before" else call_block(PATH_THAT_IS_KEPT, large)
    with Connection(serve_once.grpc_port, "127.0.8.2") as connection:
        one = send_block(connection, block)
        connection.wait(lambda: one in connection.ended or connection.is_closed, 5)
        later = call_from_table(connection, age=0 if place == "before" else 1)
        figure(ended=one in connection.ended, later_call=later)
        assert later == "in step" or (later == "ended" and times > 1)


@pytest.mark.parametrize("first", [_NOT_INDEXED, _INDEXED])
@pytest.mark.parametrize("value", ["!!!", "a", "aGVsbG8\x01"])
def test_a_misencoded_header_costs_its_own_connection_at_most(serve_once, figure, value, first):
    """CVE-2023-32732 and CVE-2024-7246: a header "-bin" that is no base64 ended the connection, or stayed in the table
    as an error for later calls. Here too it ends the connection, or the connection stays in step. A proxy that shares
    one connection among its clients must check these headers itself. Other connections notice nothing.
    """
    bad = header("x-attack-bin", value, first)
    with Connection(serve_once.grpc_port, "127.0.8.3") as other:
        with Connection(serve_once.grpc_port, "127.0.8.3") as connection:
            one = send_block(connection, call_block(b"", bad, PATH_THAT_IS_KEPT))
            connection.wait(lambda: one in connection.ended or connection.is_closed, 5)
            later = call_from_table(connection)
            figure(ended=one in connection.ended, later_call=later)
            assert later in ("in step", "ended")
        one = send_block(other, call_block(PATH_THAT_IS_KEPT))
        assert other.wait(lambda: one in other.ended, 5)
        assert call_from_table(other) == "in step"


def update(stream: int, increment: int) -> bytes:
    return http2.frame(http2.WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


# Frames by which a client makes a server reset a stream whose request it has (RFC 9113), while the work goes on.
PROVOCATIONS = {
    "no increment": lambda stream: update(stream, 0),
    "window overflow": lambda stream: update(stream, 0x7FFFFFFF) * 2,
    "data after the end": lambda stream: http2.frame(http2.DATA, 0, stream, b"x"),
    "headers after the end": lambda stream: http2.frame(
        http2.HEADERS, http2.END_HEADERS, stream, http2.header_block(http2.INFER)
    ),
    "it depends on itself": lambda stream: http2.frame(2, 0, stream, stream.to_bytes(4, "big") + b"\x01"),
    "a priority of four bytes": lambda stream: http2.frame(2, 0, stream, bytes(4)),
}


@pytest.mark.parametrize("kind", PROVOCATIONS)
def test_provoked_resets(serve_once, figure, kind):
    """CVE-2025-8671 ("MadeYouReset"): a client sends whole requests, and after each a frame for which the server must
    reset the stream. Requests of resets do not pile up: the number of calls of a client, or its rate of useless calls,
    bounds them. Others are served.
    """
    request = infer_request(scan(1))
    block = http2.header_block(http2.INFER)
    before = serve_once.rss()
    serve_once.reset_peak()
    calls = ended = connections = 0
    end = time.monotonic() + 3
    source = f"127.0.8.{10 + list(PROVOCATIONS).index(kind)}"
    with OrdinaryClient(serve_once.address, per_minute=150, timeout=10) as client:
        while time.monotonic() < end:
            with contextlib.suppress(OSError), Connection(serve_once.grpc_port, source) as connection:
                connections += 1
                while time.monotonic() < end and not connection.is_closed:
                    streams = connection.streams(50)
                    connection.send(
                        b"".join(http2.call_frames(s, block, request) + PROVOCATIONS[kind](s) for s in streams)
                    )
                    calls += len(streams)
                    time.sleep(0.01)
                ended += len(connection.ended)
            time.sleep(0.05)
    is_idle = await_true(lambda: OrdinaryClient(serve_once.address).ask(1).seconds[0] < 2, 10)
    growth = serve_once.peak_rss() - before
    figure(calls=calls, ended=ended, connections=connections, growth=mebibytes(growth), others=client.figures())
    assert calls > 0
    assert not client.failures, client.failures[:3]
    assert is_idle
    assert growth < 256 * MEBIBYTE
