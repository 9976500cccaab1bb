"""Writes HTTP/2 frames by hand, for behaviour that client libraries do not offer: calls without an end, flow-control
windows that never open, SETTINGS that are never acknowledged, thousands of resets. RFC 9113 defines the frames, RFC
7541 the header blocks.

One thread per connection reads and counts what the server sends. The connection's owner sends.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
NO_ERROR, CANCEL, ENHANCE_YOUR_CALM = 0, 8, 11
MAX_FRAME_BYTES = 16384  # RFC 9113's default, which holds until a SETTINGS frame allows more.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_CONCURRENT_STREAMS, _INITIAL_WINDOW_SIZE = 3, 4

INFER = "/voxserve.v1.InferenceService/Infer"
INFER_STREAM = "/voxserve.v1.InferenceService/InferStream"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header_block(path: str, token: str = "") -> bytes:
    """Returns the encoded headers of a gRPC call. They use no dynamic table, so one block serves every stream."""
    authorization = b"\x00" + _text("authorization") + _text(f"Bearer {token}") if token else b""
    return (
        b"\x83\x86"  # :method POST, :scheme http
        + b"\x04"
        + _text(path)
        + b"\x01"
        + _text("voxserve")
        + b"\x00"
        + _text("te")
        + _text("trailers")
        + b"\x00"
        + _text("content-type")
        + _text("application/grpc")
        + authorization
    )


def _text(text: str) -> bytes:
    assert len(text) < 127, "a longer text needs more than one byte for its length"
    return bytes([len(text)]) + text.encode()


def message_frames(stream: int, message: bytes, flags: int = END_STREAM) -> bytes:
    """Returns the DATA frames of one gRPC message. Only the last frame carries `flags`."""
    rest = b"\x00" + struct.pack(">I", len(message)) + message
    frames = []
    while len(rest) > MAX_FRAME_BYTES:
        frames.append(frame(DATA, 0, stream, rest[:MAX_FRAME_BYTES]))
        rest = rest[MAX_FRAME_BYTES:]
    return b"".join([*frames, frame(DATA, flags, stream, rest)])


def call_frames(stream: int, block: bytes, message: bytes | None = None, end: bool = True) -> bytes:
    """Returns the frames of a call: its headers and then its message, unless that is None. `end` says whether the
    message ends the client's side of the call.
    """
    frames = frame(HEADERS, END_HEADERS, stream, block)
    return frames if message is None else frames + message_frames(stream, message, END_STREAM if end else 0)


class Connection:
    """One HTTP/2 connection to the server. The constructor and send raise OSError.

    - window: the bytes of an answer that the server may send on each stream.
    - acknowledge: whether to acknowledge the server's SETTINGS.
    - source: the client's address as the server sees it.
    """

    def __init__(
        self,
        port: int,
        source: str = "127.0.0.2",
        *,
        window: int = 65535,
        acknowledge: bool = True,
        timeout: float = 10,
    ) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout, source_address=(source, 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._acknowledge = acknowledge
        self._send_lock = threading.Lock()
        self._changed = threading.Condition()
        self.begun: set[int] = set()  # streams whose headers the server has sent
        self.ended: set[int] = set()  # streams that the server has ended or reset
        self.data_bytes = 0
        self.settings: dict[int, int] = {}  # The server's SETTINGS, by identifier.
        self.goaway: int | None = None  # The error code of the server's GOAWAY frame, if one has arrived.
        self.is_closed = False  # the server has closed the connection, or GOAWAY has arrived
        self._next_stream = 1
        self._first_window = 65535  # The bytes that may be sent on a stream before the server opens its window further.
        self._windows: dict[int, int] = {0: 65535}  # bytes that may be sent, by stream; 0: the whole connection
        self._reader = threading.Thread(target=self._read, daemon=True)
        self.send(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, window)))
        self._reader.start()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._reader.is_alive():
            self._reader.join(10)
        self._socket.close()

    def send(self, data: bytes) -> None:
        with self._send_lock:
            self._socket.sendall(data)

    def streams(self, count: int) -> range:
        """Returns the ids of `count` new streams."""
        first = self._next_stream
        self._next_stream += 2 * count
        return range(first, self._next_stream, 2)

    def send_data(self, stream: int, data: bytes, seconds: float = 10) -> int:
        """Sends DATA frames as far as the server's flow control allows within `seconds`. Returns the number of bytes
        sent.
        """
        end = time.monotonic() + seconds
        sent = 0
        while sent < len(data):
            with self._changed:
                self._windows.setdefault(stream, self._first_window)
                left = max(0.0, end - time.monotonic())
                self._changed.wait_for(lambda: self.is_closed or self._room(stream) > 0, left)
                size = min(self._room(stream), MAX_FRAME_BYTES, len(data) - sent)
                if self.is_closed or size <= 0:
                    break
                self._windows[0] -= size
                self._windows[stream] -= size
            self.send(frame(DATA, 0, stream, data[sent : sent + size]))
            sent += size
        return sent

    def _room(self, stream: int) -> int:
        return min(self._windows[0], self._windows[stream])

    def wait(self, condition: object, seconds: float) -> bool:
        """Waits for `condition`, a function without arguments, to become true. Returns whether it did within
        `seconds`.
        """
        with self._changed:
            return self._changed.wait_for(condition, seconds)  # type: ignore[arg-type]

    def _read(self) -> None:
        buffer = b""
        while True:
            try:
                data = self._socket.recv(1 << 20)
            except TimeoutError:
                continue
            except OSError:
                data = b""
            if not data:
                break
            buffer += data
            start = 0
            with self._changed:
                while len(buffer) - start >= 9:
                    length = int.from_bytes(buffer[start : start + 3], "big")
                    if len(buffer) - start < 9 + length:
                        break
                    self._take(buffer[start + 3], buffer[start + 4], buffer[start + 5 : start + 9 + length])
                    start += 9 + length
                self._changed.notify_all()
            buffer = buffer[start:]
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def _take(self, kind: int, flags: int, rest: bytes) -> None:
        stream = int.from_bytes(rest[:4], "big") & 0x7FFFFFFF
        if kind == HEADERS:
            self.begun.add(stream)
        elif kind == DATA:
            self.data_bytes += len(rest) - 4
        elif kind == GOAWAY:
            self.is_closed = True
            self.goaway = int.from_bytes(rest[8:12], "big")
        if kind == SETTINGS:
            self.settings.update(struct.iter_unpack(">HI", rest[4:]))
            growth = self.settings.get(_INITIAL_WINDOW_SIZE, self._first_window) - self._first_window
            self._first_window += growth
            for one in self._windows:
                self._windows[one] += growth if one else 0
        elif kind == WINDOW_UPDATE:
            self._windows[stream] = self._windows.get(stream, self._first_window) + int.from_bytes(rest[4:8], "big")
        if kind in (SETTINGS, PING) and not flags & ACK and self._acknowledge:
            with contextlib.suppress(OSError):
                self.send(frame(kind, ACK, 0, rest[4:] if kind == PING else b""))
        if kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
            self.begun.add(stream)
            self.ended.add(stream)


def await_true(condition: object, seconds: float, pause: float = 0.05) -> bool:
    """Polls `condition`, a function without arguments, every `pause` seconds. Returns whether it became true within
    `seconds`.
    """
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True
