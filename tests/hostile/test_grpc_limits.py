"""Limits that gRPC enforces for the server: the number of streams, the rate of pings, and how long a connection may
take to open, be idle and live.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import http2
from calls import scan, stream_config, stream_frame
from http2 import Connection

HANDSHAKE_SECONDS = 10
# The server allows a client one ping in this many seconds.
PING_SECONDS = 5


def ping(connection: Connection) -> None:
    connection.send(http2.frame(http2.PING, 0, 0, b"hostile!"))


@pytest.mark.parametrize("number", [100, 1024])
def test_stream_limit_is_announced(serve, figure, number):
    """The server's SETTINGS frame announces how many calls a client may have open."""
    server = serve() if number == 1024 else serve(f"--max_client_calls={number}")
    with Connection(server.grpc_port) as connection:
        connection.wait(lambda: bool(connection.settings), 5)
        figure(settings=connection.settings)
    assert connection.settings[http2.MAX_CONCURRENT_STREAMS] == number


def test_ping_flood(serve_once, figure):
    """A client that pings a hundred times a second gets GOAWAY with ENHANCE_YOUR_CALM and loses its connection. A
    client without calls that pings as often as the server allows keeps its connection.
    """
    port = serve_once.grpc_port
    with Connection(port, "127.0.0.2") as flood, Connection(port, "127.0.0.3") as patient:
        pings = 0
        with contextlib.suppress(OSError):
            while not flood.is_closed and pings < 1000:
                ping(flood)
                pings += 1
                time.sleep(0.01)
        flood.wait(lambda: flood.is_closed, 5)
        for _ in range(4):
            time.sleep(PING_SECONDS * 1.1)
            ping(patient)
        time.sleep(0.5)
        keeps = not patient.is_closed
    figure(pings_of_the_flood=pings, goaway=flood.goaway, patient_keeps_its_connection=keeps)
    assert flood.goaway == http2.ENHANCE_YOUR_CALM
    assert keeps


UNFINISHED = {
    "half of the first line": http2.PREFACE[:7],
    "no SETTINGS": http2.PREFACE,
    "half of SETTINGS": http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 4, 65535))[:5],
}


def seconds_until_closed(port: int, sent: bytes) -> float:
    """Sends bytes and nothing more. Returns after how many seconds the server closes the connection, or infinity."""
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), 10, source_address=("127.0.0.4", 0)) as one:
        one.sendall(sent)
        one.settimeout(HANDSHAKE_SECONDS + 5)
        try:
            while one.recv(1 << 12):
                pass  # the server's SETTINGS
        except ConnectionResetError:
            pass
        except TimeoutError:
            return float("inf")
        return time.monotonic() - start


def test_unfinished_preface(serve_once, figure):
    """The server closes a connection whose HTTP/2 preface never ends, within its time limit."""
    with ThreadPoolExecutor(len(UNFINISHED)) as pool:
        waits = pool.map(lambda sent: seconds_until_closed(serve_once.grpc_port, sent), UNFINISHED.values())
        seconds = dict(zip(UNFINISHED, waits, strict=True))
    figure(closed_after={kind: f"{value:.1f} s" for kind, value in seconds.items()})
    for kind, value in seconds.items():
        assert HANDSHAKE_SECONDS - 2 < value < HANDSHAKE_SECONDS + 2, kind


def test_idle_connection(serve, figure):
    """The server asks a connection without calls to close. A connection with a call stays open."""
    server = serve("--max_connection_idle=2s")
    start = time.monotonic()
    with Connection(server.grpc_port) as idle, Connection(server.grpc_port) as busy:
        [watch] = busy.streams(1)
        busy.send(http2.call_frames(watch, http2.header_block("/grpc.health.v1.Health/Watch"), b""))
        idle.wait(lambda: idle.is_closed, 10)
        seconds = time.monotonic() - start
        time.sleep(2)
        keeps = not busy.is_closed
    figure(goaway=idle.goaway, after=f"{seconds:.1f} s", busy_keeps_its_connection=keeps)
    assert idle.goaway is not None  # gRPC chooses the code
    assert 1.5 < seconds < 5
    assert busy.data_bytes > 0
    assert keeps


def test_old_connection(serve, figure):
    """The server asks a connection of more than --max_connection_age to close, with GOAWAY. Its open stream goes on: a
    frame that is sent afterwards is still answered.
    """
    server = serve("--max_connection_age=3s")
    start = time.monotonic()
    with Connection(server.grpc_port) as connection:
        [one] = connection.streams(1)
        block = http2.header_block(http2.INFER_STREAM)
        connection.send(http2.call_frames(one, block, stream_config(policy=2), end=False))
        connection.wait(lambda: connection.is_closed, 10)
        seconds = time.monotonic() - start
        before = connection.data_bytes
        connection.send(http2.message_frames(one, stream_frame(1, scan(100))))
        has_ended = connection.wait(lambda: one in connection.ended, 10)
        figure(goaway=connection.goaway, after=f"{seconds:.1f} s", answered=connection.data_bytes - before)
    assert connection.goaway == http2.NO_ERROR
    assert 2.5 < seconds < 5
    assert has_ended
    assert connection.data_bytes > before
