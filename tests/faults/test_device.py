"""A device that fails, for a batch or for good, and one that is slow."""

from __future__ import annotations

import time

import pytest
from conftest import Record, Serve, Serving
from fault_server import asked, await_outcomes, outcomes_text
from http2 import await_true
from test_memory import is_on_gpu

import voxserve
from workload import FLEET

_END_SECONDS = 60
# The reasons that a client may get from a server that ends, or if there is none in its place.
_ENDING = ("DEVICE_FAILED", "DRAINING", "NO_SERVER", "CONNECTION_LOST")


@pytest.mark.parametrize("rules", ["batch_error:every=4", "cuda_error:every=500"])
def test_a_launch_that_fails_is_told_to_its_requests_alone(
    serving: Serving, rules: str, record: Record, device: str
) -> None:
    site = rules.partition(":")[0]
    if site == "cuda_error" and not is_on_gpu(device):
        pytest.skip("VOXSERVE_FAULTS_DEVICE names no GPU")
    server, workload = serving.server, serving.workload
    with server.faults(rules) as injected, asked(server, workload, "INTERNAL") as tally:
        await_outcomes(tally, 60)
    with asked(server, workload) as after:
        await_outcomes(after, 20)
    record(f"`{rules}`, {injected.faults[site]} times", outcomes_text(tally), "nothing")
    assert server.process.poll() is None, server.log()[-2000:]
    assert injected.faults[site] > 0
    assert tally.problems == {}
    assert tally.outcomes["INTERNAL"] > 0
    assert after.problems == {}


@pytest.mark.parametrize("rules", ["device_failure:after=20", "cuda_poison:after=2000"])
def test_a_device_that_is_lost_ends_the_server_in_order(serve: Serve, rules: str, record: Record, device: str) -> None:
    if rules.startswith("cuda") and not is_on_gpu(device):
        pytest.skip("VOXSERVE_FAULTS_DEVICE names no GPU")
    serving = serve("--drain_timeout=20s")
    server = serving.server
    # A second attempt would meet the server as it drains, and hide what the first was told. A vehicle always makes one.
    with asked(server, serving.workload, *_ENDING, timeout=20, max_attempts=1, streams=False) as tally:
        server.inject(rules)
        assert await_true(lambda: server.process.poll() is not None, _END_SECONDS), server.log()[-2000:]
        ended = time.monotonic()
    record(f"`{rules}`", f"{outcomes_text(tally)}; exit status {server.process.returncode}", "the process, as it must")
    assert server.process.returncode == 1
    assert "a GPU failed: draining" in server.log()
    assert tally.problems == {}
    assert tally.outcomes["DEVICE_FAILED"] > 0
    assert time.monotonic() - ended < _END_SECONDS


def test_slow_batches_are_late_and_refuse_what_cannot_be_in_time(
    serving: Serving, record: Record, device: str
) -> None:
    server, workload = serving.server, serving.workload
    # A GPU's batches take more requests, so that fewer wait. They must be slower for some to be too late.
    slow_ms, timeout = (600, 1) if is_on_gpu(device) else (250, 2)
    rules = f"slow_batch:ms={slow_ms}"
    with (
        server.faults(rules) as injected,
        asked(server, workload, "DEADLINE_UNMEETABLE", "DEADLINE_EXPIRED", "CLIENT_TIMEOUT", timeout=timeout) as tally,
    ):
        await_outcomes(tally, 60, 120)
    record(f"`{rules}`, {injected.faults['slow_batch']} times", outcomes_text(tally), "nothing")
    assert server.process.poll() is None
    assert "a batch is stuck" not in server.log()
    assert tally.num_answered() > 0
    assert min(tally.seconds) > slow_ms / 1000
    assert tally.outcomes["DEADLINE_UNMEETABLE"] > 0
    assert tally.problems == {}


def test_a_batch_that_hangs_ends_the_server(serve: Serve, record: Record) -> None:
    serving = serve("--stuck_batch_time=1s", "--stuck_batch_factor=20")
    server, workload = serving.server, serving.workload
    points = workload.scans.frames[0]
    with asked(server, workload) as tally:
        await_outcomes(tally, 40)
    assert tally.problems == {}
    server.inject("slow_batch:ms=30000,times=1")
    with voxserve.Client(server.address, timeout=40) as client, pytest.raises(voxserve.InferenceError) as failed:
        client.segment(FLEET, points)
    assert await_true(lambda: server.process.poll() is not None, _END_SECONDS)
    record(
        "`slow_batch:ms=30000,times=1`",
        f"{failed.value.code.name}; exit status {server.process.returncode}",
        "the process, and the request in it, which was told",
    )
    assert failed.value.code.name == "UNAVAILABLE"
    assert server.process.returncode == 3
    assert "a batch is stuck" in server.log()
