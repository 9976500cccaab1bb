"""Tests allocations that fail, at every fault site that a request passes. The call or frame that needed the memory gets
an error, all others get right answers, and afterwards the server holds no more than before.
"""

from __future__ import annotations

import pytest
from conftest import Record, Serve, Serving
from fault_server import LARGE_STRIDES, asked, await_outcomes, outcomes_text
from long_tests import LONG

import voxserve
from soak import what_is_left
from workload import FLEET

_REFUSALS = ("OUT_OF_MEMORY", "QUEUE_FULL")
# The fault sites of requests. A request makes about 220 allocations at host_memory, and about 40 of 1 KiB and more on
# the heap. `every` is a prime number, so that over many requests each of these allocations fails in turn. Allocations
# below 512 bytes never fail: some are nodes of the queue, and the process ends if one of those fails.
_EVERYWHERE = [
    "reserve_requests:every=3",
    pytest.param("reserve_sweeps:every=3", marks=LONG),
    pytest.param("reserve_answers:every=3", marks=LONG),
    pytest.param("reserve_scratch:every=3", marks=LONG),
    pytest.param("host_buffer:every=3", marks=LONG),
    "heap:bytes=4096,every=41",
    pytest.param("heap:bytes=512,every=211", marks=LONG),
]
_OF_THE_CPU = ["host_memory:every=331", pytest.param("host_memory:every=1009", marks=LONG)]
# A server takes a GPU's memory before the first request, and again after a batch that failed.
_OF_A_GPU = ["device_memory:every=3;cuda_error:every=500", "page_locked", "reserve_pinned"]


def is_on_gpu(device: str) -> bool:
    return device.startswith("cuda")


def check(serving: Serving, rules: str, record: Record, *more_refusals: str) -> None:
    server, workload = serving.server, serving.workload
    site = rules.partition(":")[0]
    with server.faults(rules) as injected, asked(server, workload, *_REFUSALS, *more_refusals) as tally:
        await_outcomes(tally, 60)
    with asked(server, workload) as after:
        await_outcomes(after, 20)
    left = what_is_left(server)
    record(f"`{rules}`, {injected.faults[site]} times", outcomes_text(tally), str(left or "nothing"))
    assert server.process.poll() is None, server.log()[-2000:]
    assert injected.faults[site] > 0, injected.calls
    assert tally.problems == {}
    assert after.problems == {}
    assert tally.num_answered() > 0
    assert left == {}


@pytest.mark.parametrize("rules", _EVERYWHERE)
def test_a_request_without_memory_is_told_and_others_go_on(serving: Serving, rules: str, record: Record) -> None:
    check(serving, rules, record)


@pytest.mark.parametrize("rules", _OF_THE_CPU)
def test_a_batch_on_the_cpu_without_memory_too(serving: Serving, rules: str, record: Record, device: str) -> None:
    if is_on_gpu(device):
        pytest.skip("VOXSERVE_FAULTS_DEVICE names a GPU, whose batches take little of the host's memory")
    check(serving, rules, record)


@pytest.mark.parametrize("rules", _OF_A_GPU)
def test_a_gpu_without_memory_too(serve: Serve, rules: str, record: Record, device: str) -> None:
    if not is_on_gpu(device):
        pytest.skip("VOXSERVE_FAULTS_DEVICE names no GPU")
    # A server of its own: page-locked memory that another test took is not taken again. Scans of this size are read
    # into it.
    check(serve(strides=LARGE_STRIDES), rules, record, "INTERNAL")


def test_a_model_without_memory_leaves_the_version_in_service(serving: Serving, record: Record) -> None:
    server, workload = serving.server, serving.workload
    (serving.models / FLEET / "1" / "model.textproto").touch()
    with (
        voxserve.Client(server.address, admin_address=server.admin_address) as client,
        server.faults("reserve_models") as injected,
        asked(server, workload) as tally,
    ):
        with pytest.raises(voxserve.InferenceError) as failed:
            client.load_model(FLEET)
        await_outcomes(tally, 20)
    with voxserve.Client(server.address, admin_address=server.admin_address) as client:
        assert client.load_model(FLEET) == (1,)
    record(
        f"`reserve_models`, {injected.faults['reserve_models']} times, during a reload",
        f"the operator: {failed.value.reason}; others: {outcomes_text(tally)}",
        "nothing; the next load works",
    )
    assert failed.value.reason == "OUT_OF_MEMORY"
    assert tally.problems == {}


def test_a_search_without_memory_for_scans_is_told(serve: Serve, record: Record) -> None:
    serving = serve("--deterministic=false")
    server, workload = serving.server, serving.workload
    with (
        voxserve.Client(server.address, admin_address=server.admin_address) as client,
        server.faults("reserve_tuning"),
        asked(server, workload, exact=False) as tally,
        pytest.raises(voxserve.InferenceError) as failed,
    ):
        client.tune_plan(FLEET, num_scans=2, max_wait=2)
    record(
        "`reserve_tuning`, during a search for a plan",
        f"the operator: {failed.value.reason}; others: {outcomes_text(tally)}",
        "the search",
    )
    assert failed.value.reason == "OUT_OF_MEMORY"
    assert tally.problems == {}
