"""Attacks with calls that never end, whose answers are never read, or that follow each other without a pause."""

from __future__ import annotations

import itertools
import os
import threading
import time

import pytest
from long_tests import LONG

import http2
import voxserve
from calls import OrdinaryClient, answer_of, channel, scan, stream
from server import MEBIBYTE, mebibytes

HEALTH = "/grpc.health.v1.Health"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
# The server ends a stream without a configuration, or a call whose answer is not read, after this time.
SILENCE_SECONDS = 30


@pytest.mark.parametrize(
    ("path", "number"),
    [
        pytest.param(http2.INFER, 700_000, id="infer"),
        pytest.param(http2.INFER_STREAM, 100_000, id="stream", marks=LONG),
        pytest.param(f"{HEALTH}/Check", 100_000, id="check", marks=LONG),
        pytest.param(f"{HEALTH}/Watch", 100_000, id="watch", marks=LONG),
        pytest.param(REFLECTION, 100_000, id="reflection", marks=LONG),
        pytest.param("/none/such", 100_000, id="unknown"),
    ],
)
def test_02_headers_without_body(serve, attack, figure, path, number):
    """One connection opens calls with headers and no body, and ignores the server's limit on open streams. The server
    once kept 12 kB for each such call.
    """
    server = serve()
    samples = server.metrics()
    before = server.rss()
    server.reset_peak()
    flood = attack("headers_without_body", server, 60, number=number, path=path, most_growth=1 << 30)
    time.sleep(8 if number > 100_000 else 3)
    client = OrdinaryClient(server.address).ask(3)
    grown = server.peak_rss() - before
    assert server.process.poll() is None, f"the server ended: {server.log()[-2000:]}"
    seen = moved(samples, server.metrics())
    seconds, status = server.terminate(40)
    counts = flood.counts()
    figure(
        grown=mebibytes(grown),
        others=client.figures(),
        seen_by=seen or "no metric",
        end=f"{seconds:.1f} s, exit {status}",
        **counts,
    )
    assert grown < 512 * MEBIBYTE
    assert not client.failures
    # A later gRPC refuses calls beyond the limit itself, so that the server does not see them.
    assert seen or (server.has_later_grpc() and counts["ended"] > 0.9 * number)
    assert seconds < 10
    assert status == 0


def moved(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """Returns the names of metrics that rose by at least a hundred. The few requests of an ordinary client cannot cause
    that.
    """
    grown = {name.partition("{")[0] for name, value in after.items() if value >= before.get(name, 0) + 100}
    return sorted(name for name in grown if "_bytes" not in name and "_points" not in name and "_voxels" not in name)


@pytest.mark.alone
def test_05_unread_answers(serve, attack, figure):
    """One connection makes 4,200 calls whose answers cannot be sent. Other clients are still served, and the server
    drains.
    """
    server = serve()
    unread = attack("unread_answers", server, 60)
    client = OrdinaryClient(server.address, timeout=10).ask(20)
    # Meanwhile more of the attack's calls arrive and wait in the server's queue.
    time.sleep(1)
    client.ask(5)
    seconds, status = server.terminate(60)
    figure(others=client.figures(), end=f"{seconds:.1f} s, exit {status}", **(counts := unread.counts()))
    assert counts["most_unread"] > 0
    assert not client.failures, client.failures[:3]
    assert seconds < 10
    assert status == 0


def test_06_silent_streams(serve, attack, figure):
    """One address holds 1,024 streams that send nothing. A client at another address still gets its stream, and the
    server closes the silent streams with a reason.
    """
    server = serve()
    silent = attack("silent_streams", server, SILENCE_SECONDS + 5)
    with channel(server.address) as to:
        stop = threading.Event()
        quiet = stream(to, (b"" for _ in iter(stop.wait, True)), SILENCE_SECONDS + 5)
        vehicle = vehicle_answers(server.address)
        start = time.monotonic()
        closed = answer_of(lambda: next(quiet))
        closed_after = time.monotonic() - start
        stop.set()
    time.sleep(2)  # The server may end the attack's streams later than the stream of this test.
    counts = silent.stop()
    figure(
        vehicle=vehicle,
        silent_stream=f"closed after {closed_after:.1f} s: {closed}",
        **counts,
    )
    assert vehicle == "3 frames"
    assert closed.reason == "STREAM_IDLE"
    assert closed_after < SILENCE_SECONDS
    assert counts["opened"] > 0
    assert counts["left"] == 0


def vehicle_answers(address: str) -> str:
    """Sends three frames over a stream. Returns how many were answered, or why the stream ended."""
    try:
        with voxserve.Client(address, timeout=10) as client, client.stream("minkunet", policy="queue") as frames:
            for i in range(3):
                frames.send(i, scan(1000))
            results = list(itertools.islice(frames, 3))
    except voxserve.InferenceError as error:
        return str(error)
    return f"{sum(result.error is None for result in results)} frames"


@pytest.mark.alone
def test_10_calls_in_flight(serve, attack, figure):
    """One client always has 64 calls with large clouds in flight. Another client's 20 small requests are all
    answered.
    """
    server = serve()
    greedy = attack("calls_in_flight", server, 40, num_points=110_000)
    client = OrdinaryClient(server.address, timeout=15, num_points=500).ask(20)
    counts = greedy.stop()
    figure(others=client.figures(), **counts)
    assert not client.failures, client.failures[:3]
    assert counts["answered"] + counts["refused"] > 0


@pytest.mark.alone
@pytest.mark.parametrize(
    "kind", ["headers", *(pytest.param(kind, marks=LONG) for kind in ("infer", "stream", "check"))]
)
def test_17_rapid_reset(serve, attack, figure, kind):
    """Two connections open and reset calls as fast as they can for 10 s, either before sending a request or right after
    it.
    """
    server = serve()
    before = server.rss()
    server.reset_peak()
    lines = len(server.log().splitlines())
    # The attack depends on its speed, so it runs at normal priority: at a low one, a busy machine would leave it no
    # processor time.
    reset = attack("rapid_reset", server, 10, nice=0, most_growth=1 << 30, kind=kind)
    with OrdinaryClient(server.address, per_minute=120, timeout=5) as client:
        counts = reset.counts()
    grown = server.peak_rss() - before
    start, used = time.monotonic(), server.cpu_seconds()
    time.sleep(3)
    used = server.cpu_seconds() - used
    wall = time.monotonic() - start
    lines = len(server.log().splitlines()) - lines
    ended = {name.partition('reason="')[2][:-2]: n for name, n in server.metrics().items() if "ended_early" in name}
    seconds, status = server.terminate(30)
    figure(
        grown=mebibytes(grown),
        others=client.figures(),
        log=f"{lines} lines",
        ended_early=ended,
        cpu_afterwards=f"{used:.2f} s in {wall:.1f} s",
        end=f"{seconds:.1f} s, exit {status}",
        **counts,
    )
    assert used < wall * len(os.sched_getaffinity(0)) / 2
    assert grown < 512 * MEBIBYTE
    assert lines < 500
    assert not client.failures, client.failures[:3]
    assert counts["begun"] > 2000
    assert counts["closed_by_server"] >= 2
    assert seconds < 10
    assert status == 0
