"""A server that was built with faults (tests/faults/CMakeLists.txt), and good clients that ask it meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

# The folder of clients that count outcomes. Its soak.py names the others that have what this shares with other tests.
sys.path.append(str(Path(__file__).resolve().parents[1] / "soak"))

import soak  # noqa: F401, I001
import many_scans
from http2 import await_true
from server import REPOSITORY, Server

import voxserve
from clients import Load, unary, vehicle
from tally import Tally
from workload import FLEET, Drive, Workload, answered_drive

MODEL_FOLDER = REPOSITORY / "deploy" / "models" / "minkunet"
_SCAN = REPOSITORY / "deploy" / "scans" / "pandaset_070.bin"
_APPLY_SECONDS = 20
SMALL_STRIDES = (200, 120, 60)  # the whole scan has 107,000 points
LARGE_STRIDES = (20, 6, 3)
_NUM_SCANS, _NUM_SWEEPS = 6, 5


@dataclass
class Injected:
    """The calls and faults of each site by the end of a block of FaultServer.faults."""

    calls: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)


class FaultServer(Server):
    """A server of tests/hostile that fails as faults() says, and else is as others."""

    def __init__(self, binary: str, folder: Path, *flags: str, faults: str = "") -> None:
        self._rules = folder / "faults"
        self._rules.write_text(faults)
        self._count = 0
        environment = {"VOXSERVE_FAULTS": f"@{self._rules}"}
        super().__init__(binary, folder / "log", *flags, environment=environment)

    @contextmanager
    def faults(self, rules: str) -> Iterator[Injected]:
        """Injects faults (tests/faults/fault_rules.h) within the block. Their numbers are known after it, unless the
        server has ended by then.
        """
        self.inject(rules)
        injected = Injected()
        try:
            yield injected
        finally:
            for line in self.inject("").splitlines():
                site, calls, faults = line.split()
                injected.calls[site], injected.faults[site] = int(calls), int(faults)

    def inject(self, rules: str) -> str:
        """Replaces the faults. Returns the counts of those before: lines of site, calls and faults."""
        applied, new = self._rules.with_name("faults.applied"), self._rules.with_name("faults.new")
        applied.unlink(missing_ok=True)
        self._count += 1
        new.write_text(rules + " " * self._count)  # The server must see that it has changed.
        new.rename(self._rules)
        assert await_true(lambda: applied.exists() or self.process.poll() is not None, _APPLY_SECONDS, 0.01)
        return applied.read_text() if applied.exists() else ""


def answered_workload(server: Server, strides: Sequence[int] = SMALL_STRIDES) -> Workload:
    """Returns scans that have every n-th point, by `strides` in turn, and sweeps by the first of them, with the answers
    of the server, which nobody disturbs yet.
    """
    scan = many_scans.read_scan(str(_SCAN))
    scans = [many_scans.varied(scan[:: strides[seed % len(strides)]], seed) for seed in range(_NUM_SCANS)]
    sweeps = [many_scans.varied(scan[:: strides[0]], 1000 + seed) for seed in range(_NUM_SWEEPS)]
    with voxserve.Client(server.address, timeout=60) as client:
        expected = [client.segment(FLEET, points) for points in scans]
        return Workload(Drive(scans, expected), answered_drive(client, sweeps))


@contextmanager
def asked(
    server: Server, workload: Workload, *allowed: str, rate: float = 6.0, timeout: float = 60.0, exact: bool = True,
    max_attempts: int = 3, streams: bool = True,
) -> Iterator[Tally]:
    """Lets unary clients and, if `streams`, vehicles ask within the block. At its end every call and frame has an
    outcome, or the tally has a problem. allowed: reasons of refusals that are none. exact: whether the server is
    deterministic.
    """
    client = partial(voxserve.Client, server.address, timeout=timeout, max_attempts=max_attempts)
    load = Load(client, workload, Tally(frozenset(allowed), exact))
    for seed in range(3):
        load.start(unary, rate, seed, 10)
    if streams:
        load.start(vehicle, rate, "queue", workload.scans)
        load.start(vehicle, rate, "latest", workload.scans)
        load.start(vehicle, rate, "queue", workload.sweeps)
    try:
        yield load.tally
    finally:
        load.stop()
        if sum(load.tally.codes.values()) != load.tally.sent:
            load.tally.problem(f"{load.tally.sent} were sent, {sum(load.tally.codes.values())} had an outcome")


def await_outcomes(tally: Tally, count: int, seconds: float = 60) -> None:
    """Waits until so many further calls and frames have an outcome."""
    begin = sum(tally.codes.values())
    assert await_true(lambda: sum(tally.codes.values()) >= begin + count, seconds), tally.outcomes


def outcomes_text(tally: Tally) -> str:
    """Returns "120 equal, 14 OUT_OF_MEMORY"."""
    text = ", ".join(f"{count} {outcome}" for outcome, count in tally.outcomes.most_common() if count)
    fewer = tally.done["answers of fewer sweeps"]
    return text + (f" ({fewer} of fewer sweeps, and saying so)" if fewer else "")


def pause(seconds: float) -> None:
    """Waits for what shows itself only after a time."""
    time.sleep(seconds)
