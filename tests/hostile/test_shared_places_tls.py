"""The attacks of test_shared_places.py on a server with TLS and tokens. Each of sixteen clients has a token or none."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from guarded import GuardedServer

import http2
import voxserve
from calls import MODEL, OrdinaryClient, scan, stream_config
from http2 import Connection, await_true
from place_holders import ADDRESSES, WATCH, Holders
from tls_forwarder import TlsForwarder


HANDSHAKE_SECONDS = 15  # the longest time of a TLS handshake on a busy machine


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[Callable[..., tuple[GuardedServer, TlsForwarder]]]:
    """guard(*flags) starts a server with TLS and tokens, and a forwarder for attacks on it."""
    binary = os.environ.get("VOXSERVE_BINARY")
    if not binary:
        pytest.skip("VOXSERVE_BINARY does not name the server's binary; tests/run.sh sets it")
    with ExitStack() as stack:

        def start(*flags: str) -> tuple[GuardedServer, TlsForwarder]:
            server = GuardedServer(binary, tmp_path / "log", tmp_path / "identity", *flags)
            stack.callback(server.close)
            server.await_ready()
            assert not OrdinaryClient(server.address, timeout=30, identity=server.identity()).ask(3).failures
            return server, stack.enter_context(TlsForwarder(server.grpc_port, server.authority))

        yield start


def newcomer(server: GuardedServer, token: str) -> str:
    """Opens a stream and sends a frame. Returns "OK" if it is answered, else the reason of the refusal."""
    with server.connect(token) as client:
        try:
            with client.stream(MODEL, policy="queue") as stream:
                stream.send(0, scan(200))
                result = next(stream)
        except voxserve.InferenceError as error:
            return error.reason
    return "OK" if result.error is None else result.error.reason


def vehicle(server: GuardedServer, stop: threading.Event, answered: list[int]) -> None:
    """Sends frames until `stop`. Appends -1 if the stream ends early."""
    try:
        with server.connect() as client, client.stream(MODEL, policy="queue") as stream:
            for i in range(1 << 31):
                stream.send(i, scan(200))
                answered.append(next(stream).frame_id)
                if stop.wait(0.3):
                    return
    except voxserve.InferenceError:
        answered.append(-1)


def test_streams_of_many_tokens_give_way(guard, figure):
    server, forwarder = guard("--max_client_streams=4")
    tokens = server.add_tokens(ADDRESSES + 1)
    stop = threading.Event()
    answered: list[int] = []
    one = threading.Thread(target=vehicle, args=(server, stop, answered))
    one.start()
    assert await_true(lambda: len(answered) > 1, 30)
    held = {"end": False, "tokens": tokens[:ADDRESSES]}
    with Holders(forwarder.port, http2.INFER_STREAM, stream_config(policy=2), 4, **held) as holders:
        served = []
        for _ in range(10):
            served.append(newcomer(server, tokens[-1]))
            time.sleep(0.3)
        before = len(answered)
        kept = await_true(lambda: len(answered) > before, 20)
    stop.set()
    one.join()
    gave_way = sum(v for k, v in server.metrics().items() if "ended_early" in k and "GAVE_WAY" in k)
    figure(newcomers=served, frames=len(answered), gave_way=gave_way, reopened=holders.num_ended)
    assert served == ["OK"] * 10
    assert kept
    assert -1 not in answered
    assert gave_way >= 1


def test_calls_of_many_tokens_give_way(guard, figure):
    server, forwarder = guard("--max_client_calls=8")
    tokens = server.add_tokens(ADDRESSES + 1)
    with Holders(forwarder.port, http2.INFER, None, 8, end=False, tokens=tokens[:ADDRESSES]) as holders:
        client = OrdinaryClient(server.address, timeout=15, identity=server.identity(tokens[-1])).ask(20)
        held = holders.open_now()
    figure(others=client.figures(), held=held)
    assert held >= 100
    assert not client.failures, client.failures[:3]


def test_without_a_token_nobody_holds_a_stream(guard, figure):
    """Sixteen addresses open streams without a token, as fast as they are refused."""
    server, forwarder = guard("--max_client_streams=4")
    with Holders(forwarder.port, http2.INFER_STREAM, stream_config(policy=2), 4, end=False) as holders:
        served = [newcomer(server, server.token) for _ in range(10)]
        held = server.metrics().get(f'voxserve_streams{{model="{MODEL}"}}', 0)
        assert await_true(lambda: holders.num_ended > 64, 20), "each tries again"
    figure(newcomers=served, held=held, refused=holders.num_ended)
    assert served == ["OK"] * 10
    assert held <= 1


def test_watches_of_the_health_have_a_total(guard, figure):
    """Nobody needs a token for them, so the addresses count."""
    _, forwarder = guard("--max_client_streams=64")
    holders = Holders(forwarder.port, WATCH, b"", 64, end=True, addresses=20)
    await_true(lambda: holders.open_now() <= 1024, 20)
    held = holders.open_now()
    with holders:
        watched = is_watched(forwarder.port)
    figure(held=held, watched=watched)
    assert held <= 1024
    assert watched


def is_watched(port: int) -> bool:
    """Watches the health from an address of another network, and returns whether an answer comes."""
    with Connection(port, "127.0.9.1") as connection:
        [one] = connection.streams(1)
        connection.send(http2.call_frames(one, http2.header_block(WATCH), b""))
        return connection.wait(lambda: connection.data_bytes > 0, 10)


def is_greeted(port: int) -> bool:
    """Connects, and returns whether the server's SETTINGS come."""
    try:
        with Connection(port, "127.0.9.1") as connection:
            connection.wait(lambda: bool(connection.settings) or connection.is_closed, HANDSHAKE_SECONDS)
            return bool(connection.settings)
    except OSError:
        return False


def test_idle_connections_give_way_in_turns(guard, attack, figure):
    """Sixteen addresses hold every connection after its TLS handshake, and connect again as soon as one is closed."""
    server, forwarder = guard("--max_connections=16")
    target = SimpleNamespace(grpc_port=forwarder.port, http_port=server.http_port, pid=server.pid)
    silent = attack("silent_connections", target, 60, number=48, addresses=16, greeting=True)
    time.sleep(1)
    greeted = 0
    for _ in range(20):
        greeted += is_greeted(forwarder.port)
        time.sleep(0.3)
    counts = silent.stop()
    figure(greeted=greeted, **counts)
    assert counts["closed_by_server"] >= 16
    assert greeted >= 19
