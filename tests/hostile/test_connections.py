"""Attacks with connections that send nothing, or whose requests never end."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import http2
from calls import OrdinaryClient, stream_config
from http2 import Connection, await_true
from server import MEBIBYTE, mebibytes

# The longest time, in seconds, until a new client is served, by kind of attack. Silent connections may hold all
# descriptors until the server closes them, so the client may retry until then. A health probe must be answered without
# a retry.
SECONDS_TO_SERVE = {"grpc": 20, "greeting": 20, "many_greetings": 20, "http": 4}

# The attack must hold at least this many connections at once, or the test proves nothing. The values are the server's
# limits: one client's share, all connections of gRPC, and all of HTTP.
MOST_AT_ONCE = {"grpc": 300, "greeting": 90, "many_greetings": 380, "http": 100}


@pytest.mark.alone
@pytest.mark.parametrize("kind", SECONDS_TO_SERVE)
def test_01_silent_connections(serve, attack, figure, kind):
    """26 addresses open 1,300 connections to a server with 1,024 file descriptors. The kinds with a greeting send
    HTTP/2's first frames and nothing more, from one address or from 26. Other clients are served during the attack and
    after it.
    """
    options = {
        "grpc": {},
        "greeting": {"greeting": True, "addresses": 1},
        "many_greetings": {"greeting": True},
        "http": {"http": True},
    }[kind]
    server = serve(num_files=1024)
    client = OrdinaryClient(server.address, timeout=4)
    silent = attack("silent_connections", server, 40, **options)
    start = time.monotonic()
    limit = SECONDS_TO_SERVE[kind]
    during = await_true(lambda: client.ask(1).seconds and server.get("/healthz", 4)[0] == 200, limit, 0.2)
    during = during and time.monotonic() - start < limit + 1
    waited = time.monotonic() - start
    probes = [server.get("/healthz", 2)[0] for _ in range(6) if time.sleep(1) is None]
    tried = len(client.failures)
    rss = server.rss()
    counts = silent.stop()
    time.sleep(1)
    after = OrdinaryClient(server.address, timeout=5).ask(3)
    health = server.get("/healthz", 5)
    seconds, status = server.terminate(30)
    figure(
        served_during=during,
        after_seconds=f"{waited:.1f}",
        failures=tried,
        probes=probes,
        **counts,
        rss=mebibytes(rss),
        afterwards=after.figures(),
        health=health[0],
        end=f"{seconds:.1f} s, exit {status}",
    )
    assert counts["tried"] >= 1300
    assert counts["most_at_once"] >= MOST_AT_ONCE[kind]
    assert during, client.failures
    assert probes == [200] * 6
    assert not after.failures
    assert health[0] == 200
    assert seconds < 10
    assert status == 0


@pytest.mark.alone
def test_a_thousand_honest_connections_at_once(serve, figure):
    """A fleet comes back after a break of the network: from 100 addresses, 1,000 connections open at once, each makes a
    call, and they stay. All calls are answered: no guard takes an honest burst for an attack.
    """
    server = serve()
    call = http2.call_frames(1, http2.header_block("/voxserve.v1.InferenceService/ListModels"), b"")
    waits: list[float] = []

    def connect(index: int) -> None:
        begin = time.monotonic()
        connection = opened.enter_context(Connection(server.grpc_port, f"127.0.1.{index % 100 + 1}", timeout=60))
        connection.send(call)
        if connection.wait(lambda: 1 in connection.ended, 60) and connection.data_bytes > 100:
            waits.append(time.monotonic() - begin)

    with ExitStack() as opened:
        start = time.monotonic()
        with ThreadPoolExecutor(1000) as threads:
            ended = list(threads.map(connect, range(1000)))
        seconds = time.monotonic() - start
        rss = server.rss()
    waits.sort()
    figure(
        answered=len(waits),
        seconds=f"{seconds:.2f}",
        rss=mebibytes(rss),
        p50=f"{waits[len(waits) // 2] * 1e3:.0f} ms",
        p99=f"{waits[len(waits) * 99 // 100] * 1e3:.0f} ms",
    )
    assert len(ended) == 1000
    assert len(waits) == 1000
    assert not OrdinaryClient(server.address).ask(3).failures


@pytest.mark.parametrize("kind", ["watch", "stream"])
def test_01_connections_with_calls(serve, figure, kind):
    """Four addresses hold all connections, each with a call that does not end. A client at a fifth address is still
    served.
    """
    server = serve("--max_connections=40")
    path, message = {
        "watch": ("/grpc.health.v1.Health/Watch", b""),
        "stream": (http2.INFER_STREAM, stream_config(policy=2)),
    }[kind]
    held = []
    for i in range(40):
        connection = Connection(server.grpc_port, f"127.0.0.{20 + i % 4}")
        [one] = connection.streams(1)
        connection.send(http2.call_frames(one, http2.header_block(path), message, end=kind == "watch"))
        held.append(connection)
    time.sleep(0.5)
    kept = sum(not connection.is_closed for connection in held)
    client = OrdinaryClient(server.address, timeout=5).ask(3)
    still_kept = sum(not connection.is_closed for connection in held)
    for connection in held:
        connection.close()
    figure(kept=kept, others=client.figures(), kept_beside_it=still_kept)
    assert kept == 40
    assert not client.failures, client.failures
    assert still_kept == 39


@pytest.mark.parametrize("kind", ["chunks", "line", "header"])
def test_04_endless_http(serve, attack, figure, kind):
    """Four HTTP requests whose body, request line or header never ends are sent for 4 s: memory must not grow."""
    server = serve()
    before = server.rss()
    server.reset_peak()
    counts = attack("endless_http", server, 4, kind=kind, most_growth=1 << 30).counts()
    grown = server.peak_rss() - before
    health = server.get("/healthz", 2)
    figure(grown=mebibytes(grown), health=health[0], **counts)
    assert grown < 64 * MEBIBYTE
    assert health[0] == 200


def test_04_many_ranges(serve, figure):
    """One request of 7 kB asks for the metrics page 2,300 times, by ranges. The answer must not be that many times as
    long.
    """
    server = serve()
    page = len(server.get("/metrics")[1])
    ranges = "bytes=" + ",".join(["0-"] * 2300)
    request = f"GET /metrics HTTP/1.1\r\nHost: v\r\nConnection: close\r\nRange: {ranges}\r\n\r\n"
    received = 0
    with socket.create_connection(("127.0.0.1", server.http_port), 10) as one:
        one.sendall(request.encode())
        try:
            while data := one.recv(1 << 16):
                received += len(data)
        except ConnectionResetError:
            pass  # The server may refuse the request before it has read all of it.
    figure(sent=len(request), received=received, page=page)
    assert received < 2 * page + 4096


@pytest.mark.alone
def test_15_dripping_http(serve, attack, figure):
    """40 HTTP connections send one byte every half second. Health probes from another address are each answered within
    2 s.
    """
    server = serve()
    dripping = attack("dripping_http", server, 12)
    time.sleep(1)
    seconds, statuses = [], []
    for _ in range(5):
        start = time.monotonic()
        statuses.append(server.get("/healthz", 4)[0])
        seconds.append(time.monotonic() - start)
        time.sleep(1)
    counts = dripping.stop()
    figure(statuses=statuses, slowest=f"{max(seconds):.2f} s", **counts)
    assert counts["opened"] >= 40
    assert counts["dripped_bytes"] >= 40
    assert statuses == [200] * 5
    assert max(seconds) < 2


@pytest.fixture
def haproxy(tmp_path):
    """haproxy(server) starts HAProxy with deploy/haproxy/haproxy.cfg before the server, and returns its port."""
    program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("haproxy is missing")
    with ExitStack() as stack:

        def start(server):
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            text = (Path(__file__).parents[2] / "deploy" / "haproxy" / "haproxy.cfg").read_text()
            text = text.replace("bind :8500", f"bind 127.0.0.1:{port}").replace("port 8080", f"port {server.http_port}")
            text = text.replace("10.0.0.1:8500", f"127.0.0.1:{server.grpc_port}")
            text = re.sub(r"\n +server voxserve-2 .*", "", text)
            (tmp_path / "haproxy.cfg").write_text(text)
            process = subprocess.Popen([program, "-db", "-f", tmp_path / "haproxy.cfg"])
            stack.callback(process.wait)
            stack.callback(process.terminate)
            assert await_true(lambda: answers(port), 20)
            return port

        yield start


def answers(port):
    try:
        Connection(port).close()
    except OSError:
        return False
    return True


def test_behind_a_proxy_of_tcp_a_bad_header_ends_its_own_connection_alone(serve, haproxy, figure):
    """A header that gRPC 1.51 cannot decode ends its connection. A proxy of HTTP (L7) would have the calls of other
    clients on it: through HAProxy's `mode http` 16 of 21 of them failed. So deploy/ describes proxies of TCP (L4). A
    later gRPC refuses the call alone.
    """
    server = serve("--trusted_proxies=127.0.0.1")
    port = haproxy(server)
    bad = http2.header_block(http2.INFER) + b"\x00\x05x-bin\x01%"  # "%" is no base64
    refuses = server.has_later_grpc()
    ended = 0
    with OrdinaryClient(f"127.0.0.1:{port}", per_minute=600, timeout=30) as client:
        for _ in range(20):
            with Connection(port) as connection:
                connection.send(http2.call_frames(1, bad, b""))
                connection.wait(lambda c=connection: c.is_closed or (refuses and 1 in c.ended), 10)
                assert connection.is_closed or 1 in connection.ended
                ended += connection.is_closed
            time.sleep(0.1)
    figure(ended=ended, others=client.figures())
    assert ended == (0 if refuses else 20)
    assert not client.failures, client.failures
