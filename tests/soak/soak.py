#!/usr/bin/env python3
"""Keeps servers under load for a long time, and checks that they stay right and flat.

    build/venv/bin/python tests/soak/soak.py --minutes 60 --out build/soak

Two servers run on this machine's loopback:

- "open": vehicles and unary clients ask it, each answer is compared with that of a server which nobody disturbs;
  calls are cancelled; an operator reloads, unloads and loads models and has plans searched; the attacks of
  tests/hostile are made on it in turn.
- "guarded", with TLS and tokens: clients ask it while its certificate and tokens change; some attacks are made on it.

At the end all clients stop, the counts of clients and servers are compared, and SIGTERM comes while calls are in
flight. OUT gets soak.csv (every sample), soak.svg and soak.md. Exit status: 0 if every answer was right, nothing that
was accepted was lost, nothing grew and the servers ended with 0; else 1.

Faults: a server that was built for them reads VOXSERVE_FAULTS, which is passed on to the two servers. Name the reasons
of refusals that are then no problem by --allow.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

# The folders of modules that the soak shares with other tests: many_scans, the attacks, certificates.
sys.path.append(str(Path(__file__).resolve().parents[1] / "gpu"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "hostile"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "integration"))

from http2 import await_true
from server import REPOSITORY, Server

import report
import voxserve
from attackers import ATTACKS, Attackers
from clients import TIMEOUT, Load, cancelling, operator, spare, unary, until_refused, vehicle
from guarded import GuardedServer, identity_changes
from report import Ending, Limits
from samples import Sampler, Subject, sum_of
from tally import Tally
from workload import FLEET, MODELS, Workload, prepare

FAULTS = "VOXSERVE_FAULTS"
_MEMORY_LIMIT = "--memory_limit=4GiB"
# Limits of the server that are shorter than its defaults, so that connections and calls meet them within the soak.
_SHORT = ("--max_connection_age=2m", "--request_timeout=10s", "--stream_idle_timeout=20s")
_IN_FLIGHT = 8
_SEARCHES = 3.5  # searches of plans in a soak, whatever its length
_IDLE_SECONDS = 60  # the time in which an unused server must free what requests held
_DRAIN_SECONDS = 30
_AFTER_THE_END = frozenset({"DRAINING", "NO_SERVER"})  # reasons for which a call after SIGTERM may fail
_SERVER = REPOSITORY / "build" / "dev" / "server" / "voxserve"


@dataclass(frozen=True)
class Options:
    seconds: float
    out: Path
    server: str
    device: str = "cpu"
    rate: float = 4.0  # scans a second of all good clients
    interval: float = 5.0  # seconds between samples
    attacks: tuple[str, ...] = tuple(ATTACKS)
    allow: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)

    @property
    def attack_seconds(self) -> float:
        return min(18.0, max(2.0, self.seconds / 60))

    @property
    def warm_up(self) -> float:
        """Returns the seconds in which every attack is made once, but at most a quarter of the soak."""
        return min(self.seconds / 4, 1.5 * self.attack_seconds * len(self.attacks))


@dataclass
class Outcome:
    text: str
    problems: list[str]
    subjects: list[Subject]
    attackers: Attackers


def soak(options: Options) -> Outcome:
    """Runs the soak and writes its report."""
    options.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak_")))
        models = copy_models(folder / "models")
        flags = [f"--model_repository={models}", f"--devices={options.device}", _MEMORY_LIMIT, *_SHORT]
        say(f"the answers of an undisturbed server, {options.device}")
        with _no_faults():
            workload = prepare(options.server, models, options.out / "undisturbed.log", flags)
        say("start")
        plain = Server(options.server, options.out / "open.log", *flags)
        stack.callback(plain.close)
        guarded = GuardedServer(
            options.server, options.out / "guarded.log", folder / "identity", "--deterministic=true", *flags
        )
        stack.callback(guarded.close)
        subjects = [
            Subject("open", plain, Tally(options.allow)),
            Subject("guarded", guarded, Tally(options.allow, exact=True)),
        ]
        for subject in subjects:
            subject.server.await_ready()
        loads = [
            Load(lambda: voxserve.Client(plain.address, timeout=TIMEOUT), workload, subjects[0].tally),
            Load(guarded.connect, workload, subjects[1].tally),
        ]
        attackers = Attackers([plain, guarded], options.attacks, options.attack_seconds)
        sampler = Sampler(subjects, attackers, options.interval, options.attack_seconds / 4)
        _start(loads, plain, guarded, models, workload, options)
        say(f"load for {options.seconds:.0f} s")
        attackers.start()
        sampler.start()
        _await_end(options, subjects)
        say("stop the attacks")
        attackers.stop()
        say("stop the clients")
        for load in loads:
            load.stopped.set()
        for load in loads:
            load.stop()
        say("end the servers")
        sampler.stop()
        endings = {}
        for subject, load in zip(subjects, loads, strict=True):
            try:
                endings[subject.name] = end(subject, load)
            except Exception as error:  # The report must be written after any error.
                subject.tally.problem(f"not ended in order: {error!r}")
    return _judge(options, subjects, sampler, attackers, endings)


def _judge(
    options: Options, subjects: list[Subject], sampler: Sampler, attackers: Attackers, endings: dict[str, Ending]
) -> Outcome:
    """Collects all problems and writes the report."""
    problems = [*sampler.problems, *attackers.problems]
    problems += [f"the attack '{title}' had no effect" for title in attackers.without_effect()]
    found = {}
    for subject in subjects:
        problems += [f"{subject.name}: {count} times: {text}" for text, count in subject.tally.problems.items()]
        try:
            found[subject.name] = report.trends(sampler.samples, subject.name, options.warm_up)
        except ValueError as error:
            problems.append(f"{subject.name}: {error}")
        else:
            problems += report.growths(found[subject.name], options.limits, subject.name)
    length = f"{options.seconds / 60:.0f} minutes" if options.seconds >= 120 else f"{options.seconds:.0f} seconds"
    title = f"Soak of {length}, {options.device}"
    text = report.write(
        options.out, title, sampler.samples, subjects, found, options.warm_up, endings, attackers, problems
    )
    return Outcome(text, problems, subjects, attackers)


@contextmanager
def _no_faults() -> Iterator[None]:
    """Keeps faults from a server that is started within the block."""
    faults = os.environ.pop(FAULTS, None)
    try:
        yield
    finally:
        if faults is not None:
            os.environ[FAULTS] = faults


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


def copy_models(folder: Path, names: Sequence[str] = MODELS) -> Path:
    """Copies the demo's model under each name, and returns the folder."""
    for name in names:
        shutil.copytree(REPOSITORY / "deploy" / "models" / "minkunet", folder / name)
    return folder


def _start(
    loads: Sequence[Load], plain: Server, guarded: GuardedServer, models: Path, workload: Workload, options: Options
) -> None:
    """Starts the clients and operators. The clients' shares of the rate add up to one."""
    first, second = loads
    rate, period = options.rate, 2 * options.attack_seconds
    first.start(unary, 0.2 * rate, 1)
    first.start(unary, 0.1 * rate, 2)
    first.start(vehicle, 0.15 * rate, "queue", workload.scans)
    first.start(vehicle, 0.15 * rate, "latest", workload.scans)
    first.start(vehicle, 0.15 * rate, "queue", workload.sweeps)
    first.start(spare, 0.05 * rate)
    first.start(cancelling, plain.address, 0.1 * rate, 3)
    first.start(operator, plain.admin_address, models, period, int(options.seconds / _SEARCHES / period))
    second.start(unary, 0.05 * rate, 4, 1)
    second.start(vehicle, 0.05 * rate, "queue", workload.sweeps)
    second.start(identity_changes, guarded, period)


def _await_end(options: Options, subjects: Sequence[Subject]) -> None:
    end_time = time.monotonic() + options.seconds
    while time.monotonic() < end_time and all(subject.server.process.poll() is None for subject in subjects):
        time.sleep(min(1.0, max(0.0, end_time - time.monotonic())))


def what_is_left(server: Server) -> dict[str, float]:
    """Returns what a server without clients still holds after up to a minute, by name; empty if all is well."""

    def left() -> dict[str, float]:
        metrics = server.metrics()
        held = {f"reserved for {use}": sum_of(metrics, "voxserve_memory_bytes", f'use="{use}"') for use in
                ("requests", "sweeps", "answers", "tuning")}  # fmt: skip
        held["requests that wait"] = sum_of(metrics, "voxserve_queue_depth")
        held["open streams"] = sum_of(metrics, "voxserve_streams")
        held["connections"] = sum_of(metrics, "voxserve_connections")
        return {name: value for name, value in held.items() if value}

    await_true(lambda: not left(), _IDLE_SECONDS, 0.5)
    return left()


def end(subject: Subject, load: Load) -> Ending:
    """Compares the counts of clients and server, then starts new calls and ends the server with SIGTERM meanwhile."""
    server, tally, ending = subject.server, subject.tally, Ending()
    if server.process.poll() is not None:
        tally.problem(f"the server ended by itself: status {server.process.returncode}")
        return ending
    ending.left = what_is_left(server)
    for name, value in ending.left.items():
        tally.problem(f"{name}: {value:,.0f} are left when nobody asks")
    for difference in tally.unequal_counts(server.metrics(), FLEET):
        tally.problem(difference)
    if sum(tally.codes.values()) != tally.sent:
        tally.problem(f"{tally.sent} calls and frames were sent, {sum(tally.codes.values())} had an outcome")
    last = Tally(tally.allowed | _AFTER_THE_END, tally.exact)
    with ExitStack() as stack:
        for _ in range(_IN_FLIGHT):
            client = stack.enter_context(load.connect())
            ending_load = Load(load.connect, load.workload, last)
            ending_load.start(until_refused, client, _AFTER_THE_END)
            stack.callback(ending_load.stop)
        time.sleep(1)  # by now nearly all of these clients are in a call
        before = last.num_answered()
        ending.seconds, ending.status = server.terminate(2 * _DRAIN_SECONDS)
    ending.answered = last.num_answered() - before
    ending.refused = last.num_refused()
    for text, count in last.problems.items():
        tally.problem(f"while the server ended: {text}", count)
    if not ending.answered or sum(last.codes.values()) != last.sent:
        tally.problem(f"while the server ended: {ending.answered} calls answered, {last.sent} sent, {last.codes}")
    if ending.status != 0:
        tally.problem(f"exit status {ending.status} after {ending.seconds:.1f} s")
    return ending


# ---- the command line


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=_positive, default=60.0, help="how long clients ask (default: 60)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the report, the samples and the logs")
    parser.add_argument("--server", default=str(_SERVER), help=f"the server's binary (default: {_SERVER})")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="that computes (default: cpu)")
    parser.add_argument("--rate", type=_positive, default=4.0, help="scans a second of all good clients (default: 4)")
    parser.add_argument("--interval", type=_positive, default=5.0, help="seconds between samples (default: 5)")
    parser.add_argument("--allow", default="", help="reasons of refusals that are no problem: OUT_OF_MEMORY,...")
    parser.add_argument("--max_growth_mb", type=_positive, default=32.0, help="of resident memory, MiB (default: 32)")
    given = parser.parse_args(arguments)
    if not Path(given.server).is_file():
        parser.error(f"there is no server '{given.server}'")
    outcome = soak(
        Options(
            seconds=given.minutes * 60,
            out=given.out,
            server=given.server,
            device="cuda:0" if given.device == "cuda" else "cpu",
            rate=given.rate,
            interval=given.interval,
            allow=frozenset(filter(None, given.allow.split(","))),
            limits=Limits(rss_mib=given.max_growth_mb),
        )
    )
    print(outcome.text)
    return 1 if outcome.problems else 0


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
