"""The attack that sends random bytes: to the ports, after HTTP/2's greeting, and as messages of calls."""

from __future__ import annotations

import contextlib
import random
import socket
import time

import http2
from attack_target import Counts, Target, started
from http2 import Connection

_CALLS_OF_A_CONNECTION = 20
_MAX_BYTES = 1 << 14


def garbage(target: Target, seed: int = 1, pause: float = 0.02) -> Counts:
    """Sends random bytes, over one connection at a time. In turn they are the first bytes to the gRPC port, the first
    to the HTTP port, frames after HTTP/2's preface and SETTINGS, and the messages of Infer and InferStream calls.
    """
    draw = random.Random(seed)
    connections = calls = closed = 0
    started()
    while not target.is_over():
        kind = connections % 4
        connections += 1
        data = draw.randbytes(draw.randrange(1, _MAX_BYTES))
        try:
            if kind == 3:
                with Connection(target.grpc_port, target.source) as connection:
                    for one in connection.streams(_CALLS_OF_A_CONNECTION):
                        method = (http2.INFER, http2.INFER_STREAM)[one // 2 % 2]
                        message = draw.randbytes(draw.randrange(1 << 10))
                        connection.send(http2.call_frames(one, http2.header_block(method), message))
                        calls += 1
                    connection.wait(lambda c=connection: c.is_closed or len(c.ended) == _CALLS_OF_A_CONNECTION, 2)
                    closed += connection.is_closed
            else:
                port = target.http_port if kind == 1 else target.grpc_port
                with socket.create_connection(("127.0.0.1", port), 2, source_address=(target.source, 0)) as one:
                    one.sendall(http2.PREFACE + data if kind == 2 else data)
                    with contextlib.suppress(TimeoutError):
                        one.settimeout(0.2)
                        while one.recv(1 << 16):
                            pass
                        closed += 1
        except OSError:
            closed += 1
        time.sleep(pause)
    return {"connections": connections, "calls": calls, "closed_by_server": closed}
