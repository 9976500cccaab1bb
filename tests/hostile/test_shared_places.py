"""Attacks that take every place of a total limit from sixteen addresses, each within its own share. An idle place gives
way to a client that has none; one that is in use stays.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from multiprocessing import shared_memory

import http2
from calls import OrdinaryClient, answer_of, call, channel, scan, stream, stream_config, stream_frame
from http2 import Connection, await_true
from place_holders import ADDRESSES, WATCH, Holders

OPEN_INFERENCE = "/inference.GRPCInferenceService/"
REGISTER = OPEN_INFERENCE + "SystemSharedMemoryRegister"


def vehicle(address: str, stop: threading.Event, answered: list[int]) -> str:
    """Sends small frames over one stream until `stop`. Returns how the stream ended."""

    def requests() -> Iterator[bytes]:
        yield stream_config(policy=2)
        points = scan(200)
        for i in range(1 << 31):
            yield stream_frame(i, points)
            if stop.wait(0.3):
                return

    with channel(address) as to:
        answers = stream(to, requests(), 60)

        def read() -> bytes:
            for message in answers:
                answered.append(len(message))
            return b""

        return str(answer_of(read))


def newcomer(address: str) -> str:
    """Opens a stream and sends frames until one is answered. Returns "OK", or how the stream ended without one."""
    stop = threading.Event()
    answered: list[int] = []
    ends: list[str] = []
    asks = threading.Thread(target=lambda: ends.append(vehicle(address, stop, answered)))
    asks.start()
    await_true(lambda: answered or ends, 20)
    stop.set()
    asks.join()
    return ends[0] if ends[0] != "OK" or answered else "no answer"


def test_streams_without_points_give_way(serve, figure):
    """Sixteen addresses hold every stream with nothing but a config, and open those again that end. Newcomers get
    streams, and a vehicle whose stream has points keeps it all the time.
    """
    server = serve("--max_client_streams=4")
    stop = threading.Event()
    answered: list[int] = []
    ends: list[str] = []
    one = threading.Thread(target=lambda: ends.append(vehicle(server.address, stop, answered)))
    one.start()
    assert await_true(lambda: len(answered) > 1, 30)
    with Holders(server.grpc_port, http2.INFER_STREAM, stream_config(policy=2), 4, end=False) as holders:
        served = []
        for _ in range(10):
            served.append(newcomer(server.address))
            time.sleep(0.3)
        before = len(answered)
        kept = await_true(lambda: len(answered) > before, 20)
    stop.set()
    one.join()
    ended = sum(v for k, v in server.metrics().items() if "ended_early" in k and "GAVE_WAY" in k)
    figure(newcomers=served, vehicle=ends, frames=len(answered), gave_way=ended, reopened=holders.num_ended)
    assert served == ["OK"] * 10
    assert kept
    assert ends == ["OK"]
    assert ended >= 1


def test_streams_that_are_opened_again_give_way(serve, figure):
    """Addresses that want twice as many streams as there are replace each of theirs five times a second, so that none
    is idle for long. Nearly all newcomers get streams.
    """
    server = serve("--max_client_streams=4")
    config = stream_config(policy=2)
    options = {"addresses": 2 * ADDRESSES, "renew_seconds": 0.2}
    with Holders(server.grpc_port, http2.INFER_STREAM, config, 4, end=False, **options) as holders:
        served = []
        for _ in range(20):
            served.append(newcomer(server.address))
            time.sleep(0.1)
    figure(served=served.count("OK"), others=[one for one in served if one != "OK"][:3], renewed=holders.num_ended)
    assert holders.num_ended > 1000
    # Another address may take a place between its being freed and the newcomer's try. Without it 6 of 20 were served.
    assert served.count("OK") >= 10


def test_calls_without_a_request_give_way(serve, figure):
    """Sixteen addresses hold every call with headers alone. Another client's requests are served."""
    server = serve("--max_client_calls=8")
    with Holders(server.grpc_port, http2.INFER, None, 8, end=False) as holders:
        client = OrdinaryClient(server.address, timeout=15).ask(20)
        held = holders.open_now()
    figure(others=client.figures(), held=held)
    assert held >= 100
    assert not client.failures, client.failures[:3]


def test_who_gets_no_place_is_told(serve, figure):
    """Every stream has points, so none gives way: the newcomer is refused at once, with the limit."""
    server = serve("--max_client_streams=1")
    stop = threading.Event()
    block = http2.header_block(http2.INFER_STREAM)
    busy = []
    for i in range(ADDRESSES):
        connection = Connection(server.grpc_port, f"127.0.1.{i + 1}")
        [one] = connection.streams(1)
        connection.send(http2.call_frames(one, block, stream_config(policy=2), end=False))
        busy.append((connection, one))

    def send() -> None:
        number = 0
        while not stop.wait(0.2):
            number += 1
            for connection, one in busy:
                with contextlib.suppress(OSError):
                    connection.send(http2.message_frames(one, stream_frame(number, scan(10)), 0))

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    time.sleep(1)
    with channel(server.address) as to:
        start = time.monotonic()
        refused = answer_of(lambda: next(iter(stream(to, iter([stream_config(policy=2)]), 10))))
        seconds = time.monotonic() - start
    ended = sum(bool(connection.ended) for connection, _ in busy)
    stop.set()
    sender.join()
    for connection, _ in busy:
        connection.close()
    figure(refused=refused, seconds=f"{seconds:.2f}", message=refused.message, ended=ended)
    assert refused.reason == "QUEUE_FULL"
    assert "its limit is 16" in refused.message
    assert "idle" in refused.message
    assert ended == 0


def test_calls_of_health_have_a_total(serve, figure):
    """Twenty addresses watch the health, each as often as a client may. All together are bounded, and a newcomer may
    watch too.
    """
    server = serve("--max_client_streams=64")
    holders = Holders(server.grpc_port, WATCH, b"", 64, end=True, addresses=20)
    time.sleep(1)
    held = holders.open_now()
    with holders, channel(server.address) as to:
        watch = answer_of(lambda: next(iter(to.unary_stream(WATCH)(b"", timeout=10))))
        check = call(server.address, b"", 10, "/grpc.health.v1.Health/Check")
    figure(held=held, watch=watch, check=check)
    assert held <= 1024
    assert watch.is_ok
    assert check.is_ok


def is_greeted(port: int) -> bool:
    """Connects, and returns whether the server's SETTINGS come."""
    with contextlib.suppress(OSError), Connection(port, "127.0.0.9", timeout=5) as connection:
        time.sleep(0.05)  # as long as a handshake over a mobile network takes
        connection.wait(lambda: bool(connection.settings) or connection.is_closed, 5)
        return bool(connection.settings)
    return False


def test_idle_connections_give_way_in_turns(serve, attack, figure):
    """Sixteen addresses hold every connection, one each, and connect again as soon as one is closed. A newcomer of
    another network is greeted each time.
    """
    server = serve("--max_connections=16")
    silent = attack("silent_connections", server, 60, number=48, addresses=16, greeting=True)
    time.sleep(1)
    greeted = 0
    for _ in range(20):
        greeted += is_greeted(server.grpc_port)
        time.sleep(0.3)
    counts = silent.stop()
    figure(greeted=greeted, **counts)
    assert counts["most_at_once"] >= 15
    assert greeted >= 19


@contextlib.contextmanager
def shared_object(name: str) -> Iterator[str]:
    one = shared_memory.SharedMemory(name, create=True, size=4096)
    try:
        yield f"/{name}"
    finally:
        one.close()
        one.unlink()


def register(key: str, region: str) -> bytes:
    """Returns an encoded SystemSharedMemoryRegisterRequest: name = 1, key = 2, offset = 3, byte_size = 4."""

    def text(number: int, value: str) -> bytes:
        return bytes([number << 3 | 2, len(value)]) + value.encode()

    return text(1, region) + text(2, key) + bytes([4 << 3, 64])


def test_regions_of_shared_memory_end_with_their_client(serve, figure):
    """Four clients register every region and leave. Others get regions when those have been without a client for
    --stream_idle_timeout; a client that comes again before that keeps its regions.
    """
    prefix = f"voxserve-places-{os.getpid()}"
    server = serve(f"--shared_memory_prefix=/{prefix}", "--stream_idle_timeout=4s")
    block = http2.header_block(REGISTER)

    def registered(source: str, key: str, count: int) -> Connection:
        connection = Connection(server.grpc_port, source)
        streams = connection.streams(count)
        connection.send(
            b"".join(http2.call_frames(one, block, register(key, f"r{i}")) for i, one in enumerate(streams))
        )
        assert connection.wait(lambda: len(connection.ended) == count, 20)
        return connection

    with shared_object(prefix) as key:
        for i in range(4):
            registered(f"127.0.1.{i + 1}", key, 64).close()
        refused = call(server.address, register(key, "mine"), 10, REGISTER)
        served = await_true(lambda: call(server.address, register(key, "mine"), 10, REGISTER).is_ok, 20, 0.5)
        # This test's client comes again with each call, so its region stays beyond the time.
        again = []
        for _ in range(12):
            time.sleep(0.5)
            again.append(call(server.address, register(key, "mine"), 10, REGISTER))
        time.sleep(8)
        anew = call(server.address, register(key, "mine"), 10, REGISTER)
    figure(refused=refused, served=served, kept=sum("already" in one.message for one in again), anew=anew)
    assert refused.reason == "CLIENT_LIMIT"
    assert served
    assert all("is registered already" in one.message for one in again), again
    assert anew.is_ok
