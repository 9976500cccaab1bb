"""Lets attacks that write plain bytes reach a server that wants TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path


class TlsForwarder:
    """Listens on a free port of the loopback interface, without TLS. It forwards each connection over TLS to the
    server's port, from the same address as the connection comes from.
    """

    def __init__(self, port: int, authority: Path) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=str(authority))
        self._context.set_alpn_protocols(["h2"])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        starting = asyncio.start_server(self._forward, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def __enter__(self) -> TlsForwarder:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _forward(self, near_reader: asyncio.StreamReader, near_writer: asyncio.StreamWriter) -> None:
        source = near_writer.get_extra_info("peername")[0]
        try:
            far_reader, far_writer = await asyncio.open_connection(
                "127.0.0.1", self._port, ssl=self._context, server_hostname="127.0.0.1", local_addr=(source, 0)
            )
        except OSError:
            near_writer.transport.abort()
            return
        pumps = [_pump(near_reader, far_writer), _pump(far_reader, near_writer)]
        await asyncio.wait([asyncio.ensure_future(one) for one in pumps], return_when=asyncio.FIRST_COMPLETED)
        for writer in (near_writer, far_writer):
            writer.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 18):
            sink.write(data)
            await sink.drain()
