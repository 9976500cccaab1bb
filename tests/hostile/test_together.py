"""Runs all attacks at once, beside one ordinary client."""

from __future__ import annotations

import os
import time

import pytest
from long_tests import LONG

from attack_process import MAIN_COUNTS
from calls import OrdinaryClient
from server import mebibytes

LONG_SECONDS = float(os.environ.get("VOXSERVE_HOSTILE_SECONDS", "20"))
LIMIT = 4 << 30
# Queued requests still run in the first fifth of a drain. The default of 30 s would let them run for 6 s.
DRAIN_SECONDS = 10
# The number in a name is that of the test which makes this attack alone (test_01_...). Each attack comes from an
# address of its own.
ATTACKS = {
    "1 silent connections": ("silent_connections", {"number": 1300}),
    "1 silent connections, HTTP": ("silent_connections", {"number": 600, "http": True}),
    "2 headers without a body": ("headers_without_body", {}),
    "3 empty fields": ("empty_fields", {}),
    "4 endless HTTP": ("endless_http", {"kind": "header"}),
    "5 unread answers": ("unread_answers", {}),
    "6 silent streams": ("silent_streams", {"again": True}),
    "10 calls in flight": ("calls_in_flight", {"number": 64, "num_points": 8000}),
    "17 rapid reset": ("rapid_reset", {}),
}


@pytest.mark.alone
@pytest.mark.parametrize("seconds", [5.0, pytest.param(LONG_SECONDS, marks=LONG, id="long")])
def test_attacks_together(serve, attack, figure, seconds):
    """Attacks 1 to 6, 10 and 17 run at once for some seconds. The 100 requests per minute of an ordinary client are all
    answered, memory stays below the limit, and SIGTERM ends the server within --drain_timeout while the attacks
    continue. Nothing that was accepted is cut off (status 0).
    """
    server = serve("--memory_limit=4GiB", f"--drain_timeout={DRAIN_SECONDS}s", num_files=1024)
    server.reset_peak()
    running = [
        attack(name, server, seconds + 60, start_seconds=0, source=f"127.0.0.{2 + i}", most_growth=LIMIT, **options)
        for i, (name, options) in enumerate(ATTACKS.values())
    ]
    time.sleep(3)  # until the attacks have their full effect
    with OrdinaryClient(server.address, per_minute=100, timeout=15) as client:
        time.sleep(seconds)
    peak = server.peak_rss()
    health = server.get("/healthz", 5)[0]
    end_seconds, status = server.terminate(60)
    figure(
        seconds=seconds,
        ordinary_client=client.figures(),
        peak=mebibytes(peak),
        limit=mebibytes(LIMIT),
        health=health,
        end=f"{end_seconds:.1f} s, exit {status}",
    )
    counts = {title: one.stop() for title, one in zip(ATTACKS, running, strict=True)}
    for title, counted in counts.items():
        figure(**{f"attack {title}:": counted})
    for title, (name, _) in ATTACKS.items():
        assert sum(counts[title][count] for count in MAIN_COUNTS[name]) > 0, title
    assert not client.failures, client.failures[:5]
    assert len(client.seconds) >= seconds * 100 / 60
    assert peak < LIMIT
    assert health == 200
    assert end_seconds < DRAIN_SECONDS
    assert status == 0
