"""A disk that is full: for plans, for the log with its audit lines, and for all of the log from the start."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from conftest import Record, Serve, Serving
from fault_server import asked, await_outcomes, outcomes_text
from http2 import await_true
from server import Server

import voxserve
from workload import FLEET

_LOST = re.compile(r"WARNING log lines were lost: stderr could not be written num_lines=(\d+)")


def files_of(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def test_a_plan_that_has_no_room_serves_from_memory(serve: Serve, record: Record, tmp_path: Path) -> None:
    plans = tmp_path / "plans"
    serving = serve(f"--plan_dir={plans}", "--deterministic=false")
    server, workload = serving.server, serving.workload
    with (
        voxserve.Client(server.address, admin_address=server.admin_address) as client,
        asked(server, workload, exact=False) as tally,
    ):
        with server.faults("plan_file") as injected:
            unsaved = client.tune_plan(FLEET, num_scans=1, max_wait=20)
        left = files_of(plans)
        source = [name for name in server.metrics() if name.startswith("voxserve_plan_info{")]
        saved = client.tune_plan(FLEET, num_scans=1, max_wait=20)
        await_outcomes(tally, 20)
    record(
        f"`plan_file`, {injected.faults['plan_file']} times, during a search for a plan",
        f"the operator: a plan without a file; others: {outcomes_text(tally)}",
        "the file, not the plan; the next search writes it",
    )
    assert injected.faults["plan_file"] > 0
    assert unsaved.path == ""
    assert left == [], "no half of a file stays"
    assert any('source="tuned"' in name for name in source), source
    assert "a tuned plan could not be written" in server.log()
    assert "No space left on device" in server.log()
    assert saved.path
    assert len(files_of(plans)) == 1
    assert tally.problems == {}


def test_a_log_without_room_stops_nobody_and_counts_what_is_lost(serving: Serving, record: Record) -> None:
    server, workload = serving.server, serving.workload
    with (
        voxserve.Client(server.address, admin_address=server.admin_address) as client,
        asked(server, workload) as tally,
    ):
        with server.faults("log") as injected:
            before = len(server.log())
            for _ in range(3):
                assert client.load_model(FLEET) == (1,)
            await_outcomes(tally, 20)
            during = server.log()[before:]
        assert client.load_model(FLEET) == (1,)
        assert await_true(lambda: "action=LoadModel" in server.log()[before:], 20)
    after = server.log()[before:]
    lost = sum(int(number) for number in _LOST.findall(after))
    record(
        f"`log`, {injected.faults['log']} times, during loads",
        outcomes_text(tally),
        f"{lost} lines of the log, audit lines among them; the log tells their number",
    )
    assert during == ""
    assert lost == injected.faults["log"] >= 3
    assert after.count("action=LoadModel") == 1
    assert tally.problems == {}


def test_a_server_whose_log_never_has_room_serves(binary: str, device: str, tmp_path: Path, record: Record) -> None:
    # A real disk that is full: no fault is injected.
    with Path("/dev/full").open("wb") as full:
        # The log cannot tell which ports the server took.
        grpc_port, http_port = free_ports()
        server = Server(binary, tmp_path / "log", f"--devices={device}", f"--port={grpc_port}",
                        f"--http_port={http_port}", "--admin_port=0", stderr=full)  # fmt: skip
        server.grpc_port, server.http_port = grpc_port, http_port
        try:
            assert await_true(lambda: server.get("/readyz")[0] == 200, 120)
            with voxserve.Client(server.address, timeout=60) as client:
                assert client.models()
            _, status = server.terminate()
        finally:
            server.close()
    record("`/dev/full` as the log, no injection", "answers", "the log")
    assert status == 0


def free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        return first.getsockname()[1], second.getsockname()[1]
