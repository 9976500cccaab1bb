"""Bytes that belong to no call: frames of no use at full speed, header blocks that never end. The server closes such
connections, counts and logs them, and keeps their client away for a while. Honest clients keep theirs.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from guarded import GuardedServer

import http2
from calls import OrdinaryClient, infer_request, scan
from frame_floods import CHECK, FLOODS
from http2 import Connection, await_true
from server import MEBIBYTE, Server, mebibytes

CLOSED = 'voxserve_calls_ended_early_total{reason="STRAY_BYTES"}'
REFUSED = 'voxserve_calls_ended_early_total{reason="UNFINISHED_CALLS"}'
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
SECONDS = 4
# The server may grow by this much before it notices an attack: the guard lets each of up to four connections bring the
# 64 MiB of a message, and gRPC takes three bytes of memory for a byte of headers. Header blocks without a guard would
# take all memory.
MOST_GROWTH = 800 * MEBIBYTE
# The guard judges bytes about 300 ms after gRPC has read them. A busy machine needs longer.
NOTICED_SECONDS = 10


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    """A server with TLS and tokens."""
    folder = tmp_path_factory.mktemp("guarded")
    binary = os.environ.get("VOXSERVE_BINARY")
    if not binary:
        pytest.skip("VOXSERVE_BINARY does not name the server's binary; tests/run.sh sets it")
    server = GuardedServer(binary, folder / "log", Path(folder / "identity"))
    try:
        server.await_ready()
        OrdinaryClient(server.address, timeout=30, identity=server.identity()).ask(3)
        yield server
    finally:
        server.close()


def check_flood(server, attack, figure, source, identity=None, most_growth=MOST_GROWTH, **options):
    """Runs a flood from the address `source` beside an ordinary client, and checks what the server does."""
    closed, grown = server.metrics().get(CLOSED, 0), server.rss()
    server.reset_peak()
    flood = attack("useless_bytes", server, SECONDS, source=source, **options)
    with OrdinaryClient(server.address, per_minute=150, timeout=10, identity=identity or {}) as client:
        counts = flood.counts()
    closed = server.metrics().get(CLOSED, 0) - closed
    growth = server.peak_rss() - grown
    lines = [line for line in server.log().splitlines() if "connection closed" in line and "STRAY_BYTES" in line]
    figure(
        closed=closed,
        growth=mebibytes(growth),
        others=client.figures(),
        lines=len(lines),
        **counts,
    )
    assert not client.failures, client.failures[:3]
    assert len(client.seconds) > SECONDS
    assert growth < most_growth
    if options["kind"] == "data of no stream" and server.has_later_grpc():
        assert counts["closed_by_server"] >= 1  # by gRPC, before the guard looks
        return counts
    assert closed >= 1
    assert lines
    return counts


@pytest.mark.parametrize("kind", FLOODS)
def test_bytes_of_no_use(serve_once, attack, figure, kind):
    """A flood ends at once, and its client does not come back while others are served."""
    source = f"127.0.3.{list(FLOODS).index(kind) + 1}"
    counts = check_flood(serve_once, attack, figure, source, kind=kind, **FLOODS[kind])
    # A client that sends little before it is noticed may come again at once, but not for long. Nobody keeps it away
    # whose connections gRPC ends.
    most = 3 * FLOODS[kind].get("number", 3)
    assert counts["connections"] <= most or (kind == "data of no stream" and serve_once.has_later_grpc())


@pytest.mark.parametrize("kind", ["settings", "headers", "header"])
def test_bytes_of_no_use_over_tls(guarded, attack, figure, kind):
    """Nobody needs a token to send such bytes, and TLS hides what they are."""
    source = f"127.0.3.{list(FLOODS).index(kind) + 1}"
    check_flood(
        guarded,
        attack,
        figure,
        source,
        guarded.identity(),
        kind=kind,
        tls=True,
        **FLOODS[kind],
    )


@pytest.mark.parametrize("kind", ["settings", "header"])
def test_an_open_call_excuses_little(serve_once, attack, figure, kind):
    """An open call of the health service, whose request does not come, allows no more than such a request needs."""
    source = f"127.0.4.{list(FLOODS).index(kind) + 1}"
    check_flood(serve_once, attack, figure, source, kind=kind, beside=CHECK, **FLOODS[kind])


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["settings", "goaway", "headers", "header"])
def test_an_open_upload_excuses_nobody_who_keeps_all_waiting(serve, attack, figure, kind):
    """An open Infer call may bring a whole message, of which the useless bytes may be a part. But they end when they
    have kept one of gRPC's threads busy for half a second in which nobody was served. Memory stays within --memory_limit.
    """
    server = serve("--memory_limit=2GiB")
    options = {"kind": kind, "number": 3, "beside": http2.INFER}
    check_flood(server, attack, figure, "127.0.4.1", most_growth=(2 << 30) - server.rss(), **options)


@pytest.mark.alone  # the server forgives 8 MiB a second, and an attacker on a busy machine is hardly faster
def test_many_short_connections(serve, attack, figure):
    """Connections that each bring less than the limit, and are replaced at once, count together."""
    server = serve("--grpc_memory_bytes=128MiB")
    options = {"kind": "settings", "number": 4, "bytes_each": 60 << 10}
    counts = attack("useless_bytes", server, 30, source="127.0.5.1", **options)
    is_noticed = await_true(lambda: server.metrics().get(CLOSED, 0) > 0, 30)
    is_refused = await_true(lambda: server.metrics().get(REFUSED, 0) > 0, NOTICED_SECONDS)
    figure(noticed=is_noticed, refused=is_refused, **counts.stop())
    assert is_noticed
    assert is_refused


# ---- honest clients


def was_closed(server: Server) -> float:
    return server.metrics().get(CLOSED, 0)


def test_a_thousand_connections_open_at_once(serve, figure):
    """Four clients open 250 connections each and ask for the health. All are answered, and none is closed."""
    server = serve()
    hello = http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0) + http2.frame(http2.SETTINGS, http2.ACK, 0)
    hello += http2.call_frames(1, http2.header_block(CHECK), b"")

    def connect(i: int) -> socket.socket:
        one = socket.create_connection(
            ("127.0.0.1", server.grpc_port),
            30,
            source_address=(f"127.0.6.{i % 4 + 1}", 0),
        )
        one.sendall(hello)
        return one

    start = time.monotonic()
    with ThreadPoolExecutor(50) as pool:
        connections = list(pool.map(connect, range(1000)))
    try:
        received = [b""] * 1000
        for i, one in enumerate(connections):
            while b"grpc-status" not in received[i]:
                part = one.recv(1 << 14)
                assert part, f"connection {i} ended: {received[i][-200:]!r}"
                received[i] += part
        seconds = time.monotonic() - start
        time.sleep(2)  # many looks of the guard
        for one in connections:
            one.setblocking(False)
        still_open = 0
        for one in connections:
            try:
                still_open += bool(one.recv(1 << 14))
            except BlockingIOError:
                still_open += 1
    finally:
        for one in connections:
            one.close()
    figure(answered_within=f"{seconds:.1f} s", still_open=still_open)
    assert still_open == 1000
    assert was_closed(server) == 0


@pytest.mark.parametrize("kind", ["many small messages", "100 MB of answers"])
def test_a_client_that_acknowledges_each_frame(serve_once, figure, kind):
    """A stream with many messages. The client answers each DATA frame with two WINDOW_UPDATE frames, as the smallest
    clients do.
    """
    small = kind == "many small messages"
    # ServerReflectionRequest.list_services and file_containing_symbol
    message = b"\x3a\x01*" if small else b"\x22\x1c" + b"voxserve.v1.InferenceService"
    wanted_messages, wanted_bytes = (20_000, 0) if small else (0, 100 << 20)
    before = was_closed(serve_once)
    with Acknowledging(serve_once.grpc_port, "127.0.7.1") as connection:
        [one] = connection.streams(1)
        connection.send(http2.frame(http2.HEADERS, http2.END_HEADERS, one, http2.header_block(REFLECTION)))
        sent = 0
        while sent < wanted_messages or connection.data_bytes < wanted_bytes:
            assert not connection.is_closed
            if sent - connection.data_frames > 50:
                time.sleep(0.001)
                continue
            connection.send(b"".join(http2.message_frames(one, message, 0) for _ in range(10)))
            sent += 10
        connection.wait(lambda: connection.data_frames >= sent, 30)
        figure(
            messages=sent,
            answers=mebibytes(connection.data_bytes),
            frames=connection.data_frames,
        )
        time.sleep(1)
        assert not connection.is_closed
    assert was_closed(serve_once) == before


class Acknowledging(Connection):
    """Opens the flow-control windows again by the size of each DATA frame."""

    data_frames = 0

    def _take(self, kind: int, flags: int, rest: bytes) -> None:
        super()._take(kind, flags, rest)
        size = len(rest) - 4
        if kind == http2.DATA and size:
            self.data_frames += 1
            grant = size.to_bytes(4, "big")
            stream = int.from_bytes(rest[:4], "big")
            self.send(
                http2.frame(http2.WINDOW_UPDATE, 0, 0, grant) + http2.frame(http2.WINDOW_UPDATE, 0, stream, grant)
            )


def test_an_upload_that_drips(serve_once, figure):
    """A scan of 1.7 MB takes six seconds, and is answered."""
    message = infer_request(scan(100_000))
    body = b"\0" + len(message).to_bytes(4, "big") + message
    before = was_closed(serve_once)
    with Connection(serve_once.grpc_port, "127.0.7.2", window=1 << 24) as connection:
        connection.send(http2.frame(http2.WINDOW_UPDATE, 0, 0, (1 << 24).to_bytes(4, "big")))
        [one] = connection.streams(1)
        connection.send(http2.call_frames(one, http2.header_block(http2.INFER)))
        pieces = range(0, len(body), len(body) // 100)
        for at in pieces:
            assert connection.send_data(one, body[at : at + pieces.step]) > 0
            time.sleep(0.06)
        connection.send(http2.frame(http2.DATA, http2.END_STREAM, one))
        assert connection.wait(lambda: one in connection.ended, 60)
        figure(sent=len(body), answer_bytes=connection.data_bytes)
        assert connection.data_bytes >= 100_000  # a label for each point
    assert was_closed(serve_once) == before


def test_uploads_that_are_cancelled(serve_once, figure):
    """A vehicle gives up each of its scans half way, twenty times a second."""
    piece = b"\0" + (4 << 20).to_bytes(4, "big") + bytes(1 << 20)
    before = was_closed(serve_once)
    sent = 0
    with Connection(serve_once.grpc_port, "127.0.7.3") as connection:
        for _ in range(100):
            [one] = connection.streams(1)
            connection.send(http2.call_frames(one, http2.header_block(http2.INFER)))
            sent += connection.send_data(one, piece, 1)
            connection.send(http2.frame(http2.RST_STREAM, 0, one, http2.CANCEL.to_bytes(4, "big")))
            time.sleep(0.05)
        time.sleep(1)
        figure(sent=mebibytes(sent), closed=connection.is_closed)
        assert not connection.is_closed
    assert sent > 50 * MEBIBYTE
    assert was_closed(serve_once) == before


def test_pings(serve_once):
    """A client that pings every two seconds, with and without a call, keeps its connection."""
    before = was_closed(serve_once)
    with (
        Connection(serve_once.grpc_port, "127.0.7.4") as idle,
        Connection(serve_once.grpc_port, "127.0.7.4") as busy,
    ):
        [watch] = busy.streams(1)
        busy.send(http2.call_frames(watch, http2.header_block("/grpc.health.v1.Health/Watch"), b""))
        for _ in range(5):
            time.sleep(2.1)
            for one in (idle, busy):
                one.send(http2.frame(http2.PING, 0, 0, b"patient!"))
        time.sleep(0.5)
        assert not idle.is_closed
        assert not busy.is_closed
    assert was_closed(serve_once) == before
