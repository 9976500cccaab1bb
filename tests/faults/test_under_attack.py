"""Faults of the machine while a client at another address attacks: the clock jumps, the log's disk is full, a control
group limits the memory, and coordinates are chosen. Others are served, and the limits of the attacker hold.
"""

from __future__ import annotations

import os

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Record, Serve, Serving
from fault_server import asked, await_outcomes, outcomes_text, pause
from http2 import await_true

import voxserve
from attack_process import Attack
from calls import OrdinaryClient
from forwarder import Forwarder
from server import Server
from workload import FLEET

_HOUR = 3600
_ATTACKER = "127.0.0.3"
_CGROUPS = Path("/sys/fs/cgroup")


def ended_early(server: Server) -> float:
    return sum(n for name, n in server.metrics().items() if name.startswith("voxserve_calls_ended_early_total{"))


@pytest.mark.parametrize("seconds", [_HOUR, -_HOUR])
def test_limits_of_an_attacker_hold_while_the_clock_jumps(serve: Serve, seconds: int, record: Record) -> None:
    """Penalties and rates go by the monotonic clock: no jump forgives them, and none makes them last an hour."""
    serving = serve()
    server = serving.server
    with asked(server, serving.workload, timeout=30) as tally:
        await_outcomes(tally, 20)
        with Attack("headers_without_body", server, 20, number=50_000) as attack:
            await_true(lambda: ended_early(server) > 0, 20)
            with server.faults(f"clock:seconds={seconds}"):
                pause(3)  # Abseil looks at the clock every other second.
                during = ended_early(server)
                await_outcomes(tally, 10)
            pause(3)
            attack.stop()
        after = ended_early(server)
        await_outcomes(tally, 10)
    record(f"`clock:seconds={seconds}` under calls of headers alone", outcomes_text(tally), "nothing")
    assert server.process.poll() is None
    assert 0 < during <= after
    assert tally.problems == {}


def test_a_full_disk_under_attack_stops_nobody(serving: Serving, record: Record) -> None:
    server, workload = serving.server, serving.workload
    with asked(server, workload, timeout=30) as tally:
        with (
            server.faults("log") as injected,
            Attack("garbage", server, 15, pause=0.0),
        ):
            await_outcomes(tally, 40)
        await_outcomes(tally, 10)
    lost = f"{injected.faults['log']} lines of the log"
    record("`log`, under connections of garbage", outcomes_text(tally), lost)
    assert injected.faults["log"] > 0
    assert server.process.poll() is None
    assert tally.problems == {}


# ---- memory of a control group


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A control group of its own without a limit yet. Skips where this process may make none."""
    is_old = (_CGROUPS / "memory").is_dir()
    folder = (_CGROUPS / "memory" if is_old else _CGROUPS) / f"voxserve_test_{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    if not limit_file(folder).exists():
        folder.rmdir()
        pytest.skip("control groups here do not limit memory")
    yield folder
    assert await_true(lambda: not (folder / "cgroup.procs").read_text(), 30)
    folder.rmdir()


def limit_file(folder: Path) -> Path:
    old = folder / "memory.limit_in_bytes"
    return old if old.exists() else folder / "memory.max"


def num_killed(folder: Path) -> int:
    """Returns the processes that the system has killed in the group for its limit."""
    old = folder / "memory.oom_control"
    lines = (old if old.exists() else folder / "memory.events").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def test_a_control_groups_limit_holds_under_attack(
    build: Path, device: str, cgroup: Path, tmp_path: Path, record: Record
) -> None:
    """The server takes its limit from the group, and so lives in it while clients send what they can."""
    if device != "cpu":
        pytest.skip("the group's limit is of host memory")
    limit = 1536 << 20
    limit_file(cgroup).write_text(str(limit))
    start = tmp_path / "voxserve"
    binary = build / "server" / "voxserve"
    start.write_text(f'#!/bin/sh\necho $$ > {cgroup / "cgroup.procs"}\nexec {binary} "$@"\n')
    start.chmod(0o755)
    server = Server(str(start), tmp_path / "log")
    try:
        server.await_ready()
        assert server.metrics()["voxserve_memory_limit_bytes"] <= limit
        names = {"half_sent_bodies": {}, "empty_fields": {"megabytes": 60}, "calls_in_flight": {"number": 32}}
        attacks = [
            Attack(name, server, 30, start_seconds=1, source=f"127.0.0.{4 + i}", **options)
            for i, (name, options) in enumerate(names.items())
        ]
        client = OrdinaryClient(server.address, timeout=30).ask(10)
        for attack in attacks:
            attack.stop()
        peak = server.peak_rss()
        killed = num_killed(cgroup)
        figures = client.figures()
        seconds, status = server.terminate(60)
    finally:
        server.close()
    record(
        f"a control group of {limit >> 20} MiB under {', '.join(names)}",
        f"others: {figures}",
        f"nothing; {peak >> 20} MiB resident at most, exit status {status} after {seconds:.1f} s",
    )
    assert killed == 0
    assert not client.failures, client.failures
    assert status == 0


# ---- chosen coordinates


def grids(spacing: int, num_points: int = 8000) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Returns points [N, 4] in a cube of voxels that are `spacing` voxels of 5 cm apart. Such coordinates have the same
    low bits, which is what collides in a table whose hash is the coordinate itself.
    """
    side = round(num_points ** (1 / 3))
    index = np.stack(np.meshgrid(*(np.arange(side),) * 3, indexing="ij"), -1).reshape(-1, 3) - side // 2
    points = np.zeros((len(index), 4), np.float32)
    points[:, :3] = (index * spacing + 0.5) * 0.05
    return points


def test_chosen_coordinates_under_load_take_nobodys_time(serving: Serving, record: Record) -> None:
    """The hashes have a secret seed, so no client can choose coordinates that collide; regular ones do not either."""
    server, workload = serving.server, serving.workload
    answered = 0
    with (
        asked(server, workload, timeout=60) as tally,
        Forwarder(server.grpc_port, _ATTACKER) as forwarder,
        voxserve.Client(forwarder.address, timeout=60) as attacker,
    ):
        for spacing in (1, 2, 64, 1024, 4096, 1 << 14):
            for shape in (grids(spacing), grids(spacing)[:, [1, 1, 1, 3]]):
                assert len(attacker.segment(FLEET, shape)) == len(shape)
                answered += 1
        await_outcomes(tally, 20)
    record(f"{answered} clouds of regular coordinates", outcomes_text(tally), "nothing")
    assert tally.problems == {}
