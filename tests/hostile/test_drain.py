"""SIGTERM ends the server in time, even if clients read slowly or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import time

import http2
from calls import OrdinaryClient, scan, stream_config, stream_frame
from http2 import Connection

SMALL_PIPE_BYTES = 4096


def test_12_dripping_http(serve, attack, figure):
    """The server ends although an HTTP client still sends one byte of its request every half second."""
    server = serve()
    dripping = attack("dripping_http", server, 60, number=1)
    time.sleep(2)
    seconds, status = server.terminate(60)
    counts = dripping.stop()
    figure(end=f"{seconds:.1f} s, exit {status}", **counts)
    assert counts["opened"] >= 1
    assert counts["dripped_bytes"] >= 1
    assert seconds < 10
    assert status == 0


def test_12_unread_stream(serve, figure):
    """The server ends although the client of one stream never reads its answers."""
    server = serve()
    block = http2.header_block(http2.INFER_STREAM)
    with Connection(server.grpc_port, window=0) as connection:
        [one] = connection.streams(1)
        connection.send(http2.call_frames(one, block, stream_config(policy=2), end=False))
        for i in range(4):
            connection.send(http2.message_frames(one, stream_frame(i, scan(100)), flags=0))
        assert connection.wait(lambda: bool(connection.begun), 10), "no answer was begun"
        time.sleep(0.5)
        assert one not in connection.ended
        seconds, status = server.terminate(60)
    figure(end=f"{seconds:.1f} s, exit {status}", begun=len(connection.begun), read_bytes=connection.data_bytes)
    assert connection.data_bytes == 0
    assert seconds < 10
    assert status == 0


def test_12_unread_log(serve, figure):
    """The log is written to a pipe that is full and that nothing reads. Calls are still answered, and the server still
    ends.
    """
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, SMALL_PIPE_BYTES)
    os.set_blocking(reader, False)
    log = bytearray()

    def read_log() -> str:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(reader, 1 << 16):
                log.extend(data)
        return log.decode(errors="replace")

    try:
        server = serve("--log_level=debug", stderr=writer, read_log=read_log)
        # Each call writes a log line of more than a hundred bytes, so that the pipe fills.
        client = OrdinaryClient(server.address, timeout=5, num_points=100)
        while len(client.seconds) < 40 and not client.failures:
            client.ask(1)
        assert not select.select([], [writer], [], 0)[1], "the pipe has room"
        health = server.get("/healthz", 5)[0]
        seconds, status = server.terminate(50)
    finally:
        os.close(writer)
        os.close(reader)
    figure(others=client.figures(), health=health, end=f"{seconds:.1f} s, exit {status}")
    assert not client.failures
    assert health == 200
    assert seconds < 10
    assert status == 0
