#!/usr/bin/env python3
"""Attacks a server by turns for a long time, and compares the waits of ordinary clients with those of quiet times.

    build/venv/bin/python tests/soak/hostile_soak.py --minutes 30 --out build/hostile_soak

The server has small limits, so that sixteen addresses can take all places. Two ordinary clients ask it all the time:
one makes calls, a vehicle sends frames over a stream. Both check every answer. A round has a quiet part, and then one
part for each kind of attack:

- bytes of no use: the floods of tests/hostile/frame_floods.py one after the other, each from an address of its own;
- loads: an operator loads the folders of tests/hostile/broken_folders.py, one after the other;
- shared places: sixteen addresses hold all streams, calls, watches of the health and connections;
- signals: those that a server ignores, SIGHUP, and a log at the limit of its file's size.

Other programs disturb the comparison. So the percentiles leave parts out beside which others took more than
--max_others cores, and a part waits for up to ten minutes until they take less.

Rounds follow one another until attacks have lasted for the given minutes. Then the counts of clients and server are
compared, and SIGTERM comes while calls are in flight. OUT gets hostile_soak.md and the logs.

Exit status: 0 if every answer was right, nothing was lost, each attack did something, and the 99th percentile of the
waits beside attacks is at most twice that of the quiet parts; else 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from soak import REPOSITORY, say  # first: it makes the folders of the modules below known

from attack_process import MAIN_COUNTS, Attack
from broken_folders import EVIL
from many_scans import read_scan, varied
from other_programs import OtherPrograms
from server import MEBIBYTE, Server

import voxserve
from clients import TIMEOUT, Load, unary, vehicle
from report import Ending, table
from samples import Subject
from soak import copy_models, end
from tally import Tally
from workload import ATTACKED, FLEET, Drive, Workload, answered_drive

MOST_RATIO = 2.0  # of the 99th percentiles, beside attacks and without
QUIET = "quiet"
_LIMITS = ("--max_client_streams=4", "--max_client_calls=16", "--max_connections=128", "--memory_limit=4GiB")
_SCAN = REPOSITORY / "deploy" / "scans" / "pandaset_070.bin"
_STRIDE = 40  # a scan has about 2,400 points
_NUM_SCANS, _NUM_SWEEPS = 6, 8
_CALLS_PER_SECOND, _FRAMES_PER_SECOND = 4.0, 2.0
_CALLS_OF_A_CONNECTION = 20
_CALM_SECONDS = 600  # the longest wait until other programs take less
_END_SECONDS = 240  # the longest time in which an attack ends what it has begun, such as a load, on a busy machine
_SERVER = REPOSITORY / "build" / "dev" / "server" / "voxserve"


@dataclass(frozen=True)
class Options:
    seconds: float  # of attacks
    out: Path
    server: str
    part_seconds: float = 45.0  # of one kind of attack in a round
    quiet_seconds: float = 60.0
    max_others: float = float("inf")  # cores


@dataclass
class Part:
    """What was measured in all parts of one title."""

    seconds: float = 0.0
    waits: list[float] = field(default_factory=list)  # in seconds, of each answer in parts that were not disturbed
    disturbed: float = 0.0  # the seconds of parts beside which other programs took too much
    peak_mib: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def percentile(self, percent: float) -> float:
        """Returns a percentile of the waits, in milliseconds; NaN if there are none."""
        return float(np.percentile(self.waits, percent)) * 1e3 if self.waits else float("nan")


@dataclass
class Outcome:
    text: str
    problems: list[str]
    parts: dict[str, Part]
    ratio: float  # of the 99th percentiles, beside attacks and without


@dataclass
class Stage:
    """The server, and what the attacks need to know of it."""

    server: Server
    models: Path
    log: Path
    parts: dict[str, Part]
    metrics: dict[str, float] = field(default_factory=dict)  # at the end

    def attack(self, name: str, seconds: float, **options: Any) -> Attack:
        return Attack(name, self.server, seconds + _END_SECONDS, most_growth=4 << 30, **options)


def _floods(stage: Stage, seconds: float) -> list[Attack]:
    first = int(stage.parts["bytes of no use"].counts["floods"])
    return [stage.attack("all_floods", seconds, first=first)]


def _loads(stage: Stage, seconds: float) -> list[Attack]:
    first = int(stage.parts["loads"].counts["refused"])
    options = {"admin_port": stage.server.admin_port, "repository": str(stage.models), "first": first}
    return [stage.attack("bad_loads", seconds, **options)]


def _places(stage: Stage, seconds: float) -> list[Attack]:
    connections = {"number": 160, "addresses": 16, "greeting": True}
    return [
        stage.attack("silent_connections", seconds, **connections),
        stage.attack("held_places", seconds, streams=4, calls=16),
    ]


def _signals(stage: Stage, seconds: float) -> list[Attack]:
    return [stage.attack("signals", seconds, log=str(stage.log))]


ATTACKS: dict[str, Callable[[Stage, float], list[Attack]]] = {
    "bytes of no use": _floods,
    "loads": _loads,
    "shared places": _places,
    "signals": _signals,
}


def soak(options: Options) -> Outcome:
    """Runs the soak and writes its report."""
    options.out.mkdir(parents=True, exist_ok=True)
    tally = Tally()
    problems: list[str] = []
    ending = Ending()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hostile_soak_")))
        models = copy_models(folder / "models", (FLEET, ATTACKED, EVIL))
        workload = _prepare(options, models)
        server = Server(options.server, options.out / "log", f"--model_repository={models}", *_LIMITS)
        stack.callback(server.close)
        server.await_ready()
        load = Load(lambda: voxserve.Client(server.address, timeout=TIMEOUT), workload, tally)
        load.start(unary, _CALLS_PER_SECOND, 1, _CALLS_OF_A_CONNECTION)
        load.start(vehicle, _FRAMES_PER_SECOND, "queue", workload.sweeps)
        stage = Stage(server, models, options.out / "log", {title: Part() for title in (QUIET, *ATTACKS)})
        try:
            _rounds(stage, options, tally)
        except Exception as error:  # The report must be written after any error.
            problems.append(f"the rounds ended: {error!r}"[:500])
        say("stop the clients")
        load.stop()
        say("end the server")
        try:
            stage.metrics = server.metrics()
            ending = end(Subject("hostile", server, tally), load)
        except Exception as error:
            problems.append(f"not ended in order: {error!r}"[:500])
    problems += [f"{count} times: {text}" for text, count in tally.problems.items()]
    problems += [f"the attack '{title}' had no effect" for title in ATTACKS if not _had_effect(stage.parts[title])]
    return _report(options, stage, tally, ending, problems)


def _had_effect(part: Part) -> bool:
    return any(part.counts[name] > 0 for names in MAIN_COUNTS.values() for name in names)


def _prepare(options: Options, models: Path) -> Workload:
    """Returns scans and sweeps with the answers of a server that is started for them and ended."""
    scan = read_scan(str(_SCAN))[::_STRIDE]
    scans = [varied(scan, seed) for seed in range(_NUM_SCANS)]
    with ExitStack() as stack:
        server = Server(options.server, options.out / "undisturbed.log", f"--model_repository={models}")
        stack.callback(server.close)
        server.await_ready()
        client = stack.enter_context(voxserve.Client(server.address, timeout=TIMEOUT))
        expected = [client.segment(FLEET, points) for points in scans]
        sweeps = answered_drive(client, [varied(scan, 1000 + seed) for seed in range(_NUM_SWEEPS)])
    return Workload(Drive(scans, expected), sweeps)


def _rounds(stage: Stage, options: Options, tally: Tally) -> None:
    attacked = 0.0
    while attacked < options.seconds:
        _part(stage, QUIET, options.quiet_seconds, tally, options.max_others)
        for title in ATTACKS:
            _part(stage, title, options.part_seconds, tally, options.max_others)
            attacked += options.part_seconds
    _part(stage, QUIET, options.quiet_seconds, tally, options.max_others)


def _await_calm(max_others: float) -> None:
    end = time.monotonic() + _CALM_SECONDS
    while max_others < float("inf") and time.monotonic() < end:
        others = OtherPrograms()
        time.sleep(3)
        if others.cores() <= max_others:
            return


def _part(stage: Stage, title: str, seconds: float, tally: Tally, max_others: float) -> None:
    """Runs one part of a round, and adds what it measured."""
    part, server = stage.parts[title], stage.server
    _await_calm(max_others)
    server.reset_peak()
    tally.take_recent()
    begin, others = time.monotonic(), OtherPrograms()
    running = ATTACKS[title](stage, seconds) if title != QUIET else []
    while time.monotonic() < begin + seconds:
        if server.process.poll() is not None:
            raise AssertionError(f"the server ended with {server.process.returncode} during '{title}'")
        time.sleep(min(1.0, max(0.0, begin + seconds - time.monotonic())))
    here, cores = Part(time.monotonic() - begin, tally.take_recent()), others.cores()
    say(
        f"{title}: {len(here.waits)} answers, p50 {here.percentile(50):.0f} ms, p99 {here.percentile(99):.0f} ms; "
        f"others took {cores:.2f} cores"
    )
    part.seconds += here.seconds
    if cores <= max_others:
        part.waits += here.waits
    else:
        part.disturbed += here.seconds
    part.peak_mib = max(part.peak_mib, server.peak_rss() / MEBIBYTE)
    for one in running:
        part.counts.update({name: value for name, value in one.stop().items() if value == value})


def _report(options: Options, stage: Stage, tally: Tally, ending: Ending, problems: list[str]) -> Outcome:
    beside = Part(waits=[wait for title in ATTACKS for wait in stage.parts[title].waits])
    beside.seconds = sum(stage.parts[title].seconds for title in ATTACKS)
    beside.disturbed = sum(stage.parts[title].disturbed for title in ATTACKS)
    beside.peak_mib = max(stage.parts[title].peak_mib for title in ATTACKS)
    ratio = beside.percentile(99) / stage.parts[QUIET].percentile(99)
    if not ratio <= MOST_RATIO:
        problems.append(f"the 99th percentile beside attacks is {ratio:.2f} times that without")
    rows = [
        [
            title,
            f"{part.seconds:.0f}",
            f"{part.disturbed:.0f}",
            len(part.waits),
            *(f"{part.percentile(p):.0f}" for p in (50, 99, 100)),
            f"{part.peak_mib:.0f}",
            ", ".join(f"{name.replace('_', ' ')} {value:,.0f}" for name, value in sorted(part.counts.items()) if value),
        ]
        for title, part in [*stage.parts.items(), ("all attacks", beside)]
    ]
    header = [
        "part",
        "seconds",
        "left out",
        "answers",
        "p50 ms",
        "p99 ms",
        "most ms",
        "peak MiB",
        "the attack's counts",
    ]
    reasons = {
        key.partition('reason="')[2].partition('"')[0]: int(value)
        for key, value in stage.metrics.items()
        if key.startswith("voxserve_calls_ended_early_total") and value
    }
    text = "\n\n".join(
        [
            f"# Attacks by turns for {beside.seconds / 60:.1f} minutes",
            table(header, rows),
            f"The 99th percentile beside attacks is {ratio:.2f} times that without. Of {tally.sent} calls and frames "
            f"{tally.outcomes['equal']} were answered with equal labels, {tally.outcomes['close']} with close ones, "
            f"{tally.num_refused()} were refused. The server ended early, by reason: {reasons}. After SIGTERM it "
            f"answered {ending.answered} calls and refused {ending.refused}; it ended with {ending.status} after "
            f"{ending.seconds:.1f} s.",
            "## Problems\n\n" + ("\n".join(f"- {problem}" for problem in problems) or "None."),
        ]
    )
    (options.out / "hostile_soak.md").write_text(text + "\n")
    return Outcome(text, problems, stage.parts, ratio)


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long attacks last (default: 30)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the report and the logs")
    parser.add_argument("--server", default=str(_SERVER), help=f"the server's binary (default: {_SERVER})")
    parser.add_argument(
        "--max_others", type=float, default=float("inf"), help="cores that other programs may take (default: any)"
    )
    given = parser.parse_args(arguments)
    if not Path(given.server).is_file():
        parser.error(f"there is no server '{given.server}'")
    outcome = soak(Options(given.minutes * 60, given.out, given.server, max_others=given.max_others))
    print(outcome.text)
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
