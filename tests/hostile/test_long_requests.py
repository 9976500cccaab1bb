"""Requests that take seconds to compute, on a CPU, and the short ones of others beside them."""

from __future__ import annotations

import threading
import time

import http2
import pytest
from calls import Answer, answer_of, call, channel, infer_request, scan, scattered
from forwarder import Forwarder


@pytest.mark.alone
def test_short_requests_run_beside_a_long_one(serve, figure):
    """One address always has a call of 500,000 scattered points under way, which takes many seconds. Another address's
    2,000 points meet a deadline of two seconds.
    """
    server = serve()
    long_request, short_request = (
        infer_request(scattered(500_000)),
        infer_request(scan(2000)),
    )
    stop = threading.Event()
    long_answers: list[Answer] = []

    def ask_for_long() -> None:
        with (
            Forwarder(server.grpc_port, "127.0.0.2") as forwarder,
            channel(forwarder.address) as to,
        ):
            while not stop.is_set():
                long_answers.append(answer_of(lambda: to.unary_unary(http2.INFER)(long_request, timeout=120)))

    asks = threading.Thread(target=ask_for_long, daemon=True)
    asks.start()
    time.sleep(1)
    short_answers, seconds = [], []
    with channel(server.address) as to:
        while len(short_answers) < 20 or (not long_answers and len(short_answers) < 100):
            start = time.monotonic()
            short_answers.append(answer_of(lambda: to.unary_unary(http2.INFER)(short_request, timeout=2)))
            seconds.append(time.monotonic() - start)
            time.sleep(max(0.0, 0.5 - seconds[-1]))
    stop.set()
    asks.join(120)
    met = sum(answer.is_ok for answer in short_answers)
    figure(
        met=f"{met} of {len(short_answers)}",
        median=f"{sorted(seconds)[len(seconds) // 2]:.3f} s",
        long=[str(answer) for answer in long_answers],
    )
    assert met >= 0.95 * len(short_answers), [str(answer) for answer in short_answers]
    assert long_answers
    assert all(answer.is_ok for answer in long_answers)


def test_a_request_that_takes_too_long_is_refused(serve, figure):
    """A request that is predicted to take longer than --max_request_time is refused at once, with both times. The
    server learns from the first ones how long such requests take.
    """
    server = serve("--max_request_time=1s")
    request = infer_request(scattered(250_000))
    for _ in range(5):
        start = time.monotonic()
        refused = call(server.address, request, 60)
        seconds = time.monotonic() - start
        if not refused.is_ok:
            break
    served = call(server.address, infer_request(scan(500)), 60)
    figure(refused=refused, seconds=f"{seconds:.2f}", message=refused.message, served=served)
    assert refused.reason == "TOO_MANY_POINTS"
    assert "250000 points are predicted to take" in refused.message
    assert "--max_request_time" in refused.message
    assert served.is_ok
