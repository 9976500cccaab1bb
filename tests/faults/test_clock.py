"""The wall clock is set by an hour, forward and back, while calls, streams and limits run. Limits go by the monotonic
clock, so nobody is cut off early and nothing waits for an hour. Only times of day go by the wall clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from conftest import Record, Serve, Serving
from fault_server import asked, await_outcomes, outcomes_text, pause
from http2 import await_true
from long_tests import LONG

import voxserve
from calls import answer_of, channel, stream
from voxserve import wire
from workload import FLEET, SWEEPS

_HOUR = 3600
_FORWARD, _BACK = pytest.param(_HOUR, marks=LONG), pytest.param(-_HOUR, marks=LONG)
_LIMIT = 20  # seconds in which the server must apply a limit of 3 s; by the wall clock it might take an hour


@pytest.mark.parametrize("seconds", [_HOUR, _BACK])
def test_a_clock_that_jumps_loses_no_call_and_no_frame(serving: Serving, seconds: int, record: Record) -> None:
    server, workload = serving.server, serving.workload
    with asked(server, workload, timeout=30) as tally:
        await_outcomes(tally, 20)
        for _ in range(2):
            with server.faults(f"clock:seconds={seconds}"):
                pause(3)  # Abseil looks at the clock every other second.
            pause(3)
        await_outcomes(tally, 20)
    record(f"`clock:seconds={seconds}` and back, twice", outcomes_text(tally), "nothing")
    assert server.process.poll() is None
    assert "a batch is stuck" not in server.log()
    assert tally.problems == {}


@pytest.mark.parametrize("seconds", [_FORWARD, -_HOUR])
def test_a_request_that_waits_while_the_clock_jumps_is_answered(serving: Serving, seconds: int, record: Record) -> None:
    server, points, expected = serving.server, serving.workload.scans.frames[0], serving.workload.scans.expected[0]
    answers = []
    with voxserve.Client(server.address, timeout=60) as client:

        def ask() -> None:
            answers.append(client.segment(FLEET, points))

        with server.faults("slow_batch:ms=2500,times=4"):
            threads = [threading.Thread(target=ask) for _ in range(3)]
            for thread in threads:
                thread.start()
            assert await_true(lambda: sum_of_depths(server.metrics()) > 0 or len(answers) == 3, 20)
            server.inject(f"clock:seconds={seconds};slow_batch:ms=2500,times=2")
            for thread in threads:
                thread.join(60)
    record(f"`clock:seconds={seconds}` while requests wait", f"{len(answers)} answers of 3", "nothing")
    assert len(answers) == 3
    assert all((labels == expected).all() for labels in answers)


def sum_of_depths(metrics: dict[str, float]) -> float:
    return sum(value for name, value in metrics.items() if name.startswith("voxserve_queue_depth{"))


@pytest.mark.parametrize("seconds", [_FORWARD, -_HOUR])
def test_limits_of_silent_streams_hold(serve: Serve, seconds: int, record: Record) -> None:
    server = serve("--stream_idle_timeout=3s").server
    done = threading.Event()

    def config_alone() -> Iterator[bytes]:
        yield bytes(wire.InferStreamRequest(config=wire.StreamConfig(model=FLEET)).SerializeToString())
        done.wait(2 * _LIMIT)

    with channel(server.address) as to:
        begin = time.monotonic()
        answers = stream(to, config_alone(), 2 * _LIMIT)
        pause(1)  # By now the server waits for the limit.
        with server.faults(f"clock:seconds={seconds}"):
            end = answer_of(lambda: b"".join(answers))
            took = time.monotonic() - begin
        done.set()
    record(
        f"`clock:seconds={seconds}` while a stream is silent for `--stream_idle_timeout=3s`",
        f"{end.reason} after {took:.1f} s",
        "nothing",
    )
    assert end.reason == "STREAM_IDLE"
    assert 3 <= took < _LIMIT


def test_frame_ages_go_by_the_wall_clock(serving: Serving, record: Record) -> None:
    """A sensor's stamp is a time of day. If the server's clock is wrong, negative and stale ages are counted apart."""
    server, points = serving.server, serving.workload.scans.frames[0]

    def counts() -> tuple[float, float]:
        metrics = server.metrics()
        return tuple(
            sum(value for name, value in metrics.items() if name.startswith(f"voxserve_frame_age_{kind}_total{{"))
            for kind in ("negative", "stale")
        )  # type: ignore[return-value]

    def send() -> None:
        with (
            voxserve.Client(server.address, timeout=60) as client,
            client.stream(FLEET, policy="queue", sweeps=SWEEPS) as frames,
        ):
            frames.send(1, points, voxserve.Pose((0.0, 0.0, 0.0)), time.time())
            assert next(frames).segmentation is not None

    found = {}
    for seconds in (-2 * _HOUR, 2 * _HOUR):
        before = counts()
        with server.faults(f"clock:seconds={seconds}"):
            pause(2.5)
            send()
        pause(2.5)
        found[seconds] = tuple(after - old for after, old in zip(counts(), before, strict=True))
    record(
        "`clock:seconds=-7200`, `7200` while frames have stamps", "answers", "nothing; ages count as negative, stale"
    )
    assert found == {-2 * _HOUR: (1, 0), 2 * _HOUR: (0, 1)}


def test_a_drain_ends_in_time(serve: Serve, record: Record) -> None:
    serving = serve("--drain_timeout=10s")
    server = serving.server
    with asked(server, serving.workload, "DRAINING", "NO_SERVER", "CONNECTION_LOST", timeout=20) as tally:
        await_outcomes(tally, 20)
        server.inject(f"clock:seconds={-_HOUR}")
        pause(2.5)
        seconds, status = server.terminate(40)
    record(f"`clock:seconds={-_HOUR}`, then SIGTERM", f"{outcomes_text(tally)}; exit status {status}", "nothing")
    assert status == 0
    assert seconds < 20
    assert tally.problems == {}
