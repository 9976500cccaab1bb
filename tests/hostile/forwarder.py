"""Lets a gRPC client appear under another address. gRPC cannot choose its own source address, but this forwarder
can.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType


class Forwarder:
    """Listens on a free port of the loopback interface and forwards each connection to the server's port, from the
    address `source`.
    """

    def __init__(self, port: int, source: str) -> None:
        self._port = port
        self._source = source
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Forwarder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._port), 10, source_address=(self._source, 0))
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                self._sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=_pump, args=pair, daemon=True).start()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 18):
            sink.sendall(data)
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
