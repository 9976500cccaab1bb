"""Attacks that take every place of a total limit from sixteen addresses, each within its own share."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack

import http2
from attack_target import Counts, Target, started
from http2 import Connection

ADDRESSES = 16
WATCH = "/grpc.health.v1.Health/Watch"
HELD_SECONDS = 0.6  # A place that has been idle for a quarter of a second gives way.


class Holders:
    """Connections from sixteen addresses that each hold `each` calls. They open as many again as the server ends, and
    connect again if the server closes them. renew_seconds: then they also cancel their calls and open others. tokens:
    one for each address; empty: none has one.
    """

    def __init__(
        self,
        port: int,
        path: str,
        message: bytes | None,
        each: int,
        end: bool,
        addresses: int = ADDRESSES,
        renew_seconds: float = math.inf,
        tokens: Sequence[str] = (),
    ) -> None:
        self._port, self._path, self._message, self._each, self._end = port, path, message, each, end
        self._renew_seconds = renew_seconds
        self._streams: dict[Connection, set[int]] = {}  # that the server has not ended
        self._held: list[Connection] = []
        self._stopped = threading.Event()
        self.num_ended = 0
        self._blocks: dict[Connection, bytes] = {}
        self._tokens = tokens
        for i in range(addresses):
            self._held.append(self._connect(i))
        time.sleep(HELD_SECONDS)
        self._again = threading.Thread(target=self._reopen, daemon=True)

    def _connect(self, i: int) -> Connection:
        connection = Connection(self._port, f"127.0.1.{i + 1}")
        self._blocks[connection] = http2.header_block(self._path, self._tokens[i] if self._tokens else "")
        self._open(connection, self._each)
        return connection

    def _open(self, connection: Connection, count: int) -> None:
        block = self._blocks[connection]
        streams = connection.streams(count)
        self._streams.setdefault(connection, set()).update(streams)
        connection.send(b"".join(http2.call_frames(one, block, self._message, end=self._end) for one in streams))

    def _cancel_all(self) -> None:
        cancel = http2.CANCEL.to_bytes(4, "big")
        for connection in self._held:
            streams = self._streams[connection] - connection.ended
            with contextlib.suppress(OSError):
                connection.send(b"".join(http2.frame(http2.RST_STREAM, 0, one, cancel) for one in streams))
            connection.ended.update(streams)  # so that they are opened again

    def _reopen(self) -> None:
        renews_at = time.monotonic() + self._renew_seconds
        while not self._stopped.wait(0.05):
            if time.monotonic() >= renews_at:
                renews_at += self._renew_seconds
                self._cancel_all()
                continue
            for i, connection in enumerate(self._held):
                with contextlib.suppress(OSError):
                    if connection.is_closed:
                        connection.close()
                        self._streams.pop(connection, None)
                        self._blocks.pop(connection, None)
                        self._held[i] = self._connect(i)
                        self.num_ended += self._each
                        continue
                    ended = self._streams[connection] & connection.ended
                    self._streams[connection] -= ended
                    connection.ended.clear()
                    self.num_ended += len(ended)
                    if ended:
                        self._open(connection, len(ended))

    def open_now(self) -> int:
        return sum(self._each - len(one.ended) for one in self._held if not one.is_closed)

    def __enter__(self) -> Holders:
        self._again.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._again.join()
        for connection in self._held:
            connection.close()


def held_places(target: Target, streams: int = 4, calls: int = 8, watches: int = 64) -> Counts:
    """Holds so many streams, calls without a request and watches of the health from each address."""
    from calls import stream_config

    port = target.grpc_port
    with ExitStack() as stack:
        all_holders = [
            stack.enter_context(holders)
            for holders in (
                Holders(port, http2.INFER_STREAM, stream_config(policy=2), streams, end=False),
                Holders(port, http2.INFER, None, calls, end=False),
                Holders(port, WATCH, b"", watches, end=True),
            )
        ]
        started()
        most = 0
        while not target.is_over():
            most = max(most, sum(holders.open_now() for holders in all_holders))
            time.sleep(0.1)
        return {"held": most, "reopened": sum(holders.num_ended for holders in all_holders)}
