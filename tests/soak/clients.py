"""The good clients of a server under soak, and its operator. Each is a function that runs on a thread of its own."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from calls import answer_of, channel, infer_request, scan, start_call
from many_scans import Points

import voxserve
from tally import Tally
from workload import ATTACKED, FLEET, SPARE, Drive, Labels, Workload

TIMEOUT = 60.0  # seconds; long, because the soak may share its machine
_FRAMES_IN_FLIGHT = 2


@dataclass
class Load:
    """Good clients of one server, until stop()."""

    connect: Callable[[], voxserve.Client]  # the client's timeout applies to each call
    workload: Workload
    tally: Tally
    stopped: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self, run: Callable[..., None], *arguments: object) -> None:
        """Runs run(self, *arguments) on a thread. An exception there is counted as a problem of the tally."""

        def guarded() -> None:
            try:
                run(self, *arguments)
            except Exception as error:  # The soak must report any error.
                self.tally.problem(f"{run.__name__} ended: {error!r}")

        self._threads.append(threading.Thread(target=guarded, name=run.__name__, daemon=True))
        self._threads[-1].start()

    def stop(self) -> None:
        """Stops the clients, and waits until they have ended the calls and streams that they had begun."""
        self.stopped.set()
        for thread in self._threads:
            thread.join(2 * TIMEOUT)
            if thread.is_alive():
                self.tally.problem(f"{thread.name} does not end")

    def turns(self, per_second: float) -> Turns:
        return Turns(self.stopped, per_second)


class Turns:
    """wait() returns at an even rate, and returns False when the load is stopped. It does not make up for late calls.
    """

    def __init__(self, stopped: threading.Event, per_second: float) -> None:
        self._stopped = stopped
        self._period = 1 / per_second
        self._next = time.monotonic()

    def wait(self) -> bool:
        now = time.monotonic()
        self._next = max(self._next + self._period, now)
        return not self._stopped.wait(self._next - now)


# ---- good clients


def ask(load: Load, client: voxserve.Client, model: str, points: Points, expected: Labels) -> None:
    """Makes one call and counts its outcome in the tally."""
    load.tally.send()
    begin = time.monotonic()
    try:
        labels = client.segment(model, points)
    except voxserve.InferenceError as error:
        load.tally.refuse(error)
    else:
        load.tally.answer(labels, expected, time.monotonic() - begin)


def unary(load: Load, per_second: float, seed: int, calls_of_a_connection: int = 50) -> None:
    """Sends scans in random order."""
    draw = random.Random(seed)
    drive = load.workload.scans
    turns = load.turns(per_second)
    while not load.stopped.is_set():
        with load.connect() as client:
            for _ in range(calls_of_a_connection):
                i = draw.randrange(len(drive.frames))
                ask(load, client, FLEET, drive.frames[i], drive.expected[i])
                if not turns.wait():
                    break


def vehicle(load: Load, per_second: float, policy: str, drive: Drive) -> None:
    """Sends a drive's frames over a stream, again and again, each time over a new connection."""
    turns = load.turns(per_second)
    while not load.stopped.is_set():
        with load.connect() as client:
            _drive_once(load, client, policy, drive, turns)


def _drive_once(load: Load, client: voxserve.Client, policy: str, drive: Drive, turns: Turns) -> None:
    waiting: set[int] = set()
    is_whole = True  # False once a frame failed: later frames then lack its sweep and have other answers.
    try:
        with client.stream(FLEET, policy=policy, sweeps=drive.sweeps) as stream:  # type: ignore[arg-type]

            def take(result: voxserve.FrameResult) -> None:
                nonlocal is_whole
                if result.frame_id not in waiting:
                    load.tally.problem("a result of no frame, or a second one")
                waiting.discard(result.frame_id)
                if result.segmentation is not None:
                    answer = result.segmentation
                    if drive.sweeps is not None and result.num_sweeps < min(
                        result.frame_id + 1, drive.sweeps.num_sweeps
                    ):
                        is_whole = False
                        load.tally.miss_sweeps()
                    expected = drive.expected[result.frame_id] if is_whole else None
                    load.tally.answer(answer.labels, expected, answer.round_trip)
                elif result.error is not None:
                    is_whole = drive.sweeps is None
                    load.tally.refuse(result.error)

            for i, points in enumerate(drive.frames):
                waiting.add(i)
                load.tally.send()
                stream.send(i, points, drive.pose(i), drive.stamp(i))
                if len(waiting) >= _FRAMES_IN_FLIGHT:
                    take(next(stream))
                if not turns.wait():
                    break
            stream.close_sends()
            for result in stream:
                take(result)
    except voxserve.InferenceError as error:
        load.tally.refuse(error, len(waiting))
        turns.wait()
    else:
        load.tally.lose("a frame", len(waiting))


def until_refused(load: Load, client: voxserve.Client, reasons: frozenset[str]) -> None:
    """Sends the whole scan again and again, until the server refuses it for one of these reasons."""
    drive = load.workload.scans
    while not load.stopped.is_set() and not any(load.tally.outcomes[reason] for reason in reasons):
        ask(load, client, FLEET, drive.frames[-1], drive.expected[-1])


def cancelling(load: Load, address: str, per_second: float, seed: int) -> None:
    """Makes calls and streams and cancels them, at random times."""
    draw = random.Random(seed)
    turns = load.turns(per_second)
    request = infer_request(scan(20_000))
    with channel(address) as to, load.connect() as client:
        for count in range(1 << 31):
            if count % 5 == 4:
                try:
                    with client.stream(ATTACKED, policy="queue") as stream:
                        for i in range(draw.randrange(3)):
                            stream.send(i, load.workload.scans.frames[0])
                        load.stopped.wait(draw.uniform(0, 0.05))
                    load.tally.did("streams cancelled")
                except voxserve.InferenceError as error:
                    if not load.tally.may_fail(error):
                        raise
                    load.tally.did(f"streams that were over when cancelled: {error.reason}")
            else:
                call = start_call(to, request, TIMEOUT)
                load.stopped.wait(draw.uniform(0, 0.1))
                call.cancel()
                if call.cancelled():
                    load.tally.did("calls cancelled")
                else:
                    load.tally.did(f"calls that were over when cancelled: {answer_of(call.result)}")
            if not turns.wait():
                break


def spare(load: Load, per_second: float) -> None:
    """Sends requests to SPARE, which operators load and unload. A refusal must say that the model is not there."""
    turns = load.turns(per_second)
    points, expected = load.workload.scans.frames[0], load.workload.scans.expected[0]
    with load.connect() as client:
        while turns.wait():
            own = Tally(load.tally.allowed)  # kept apart from load.tally, whose counts are those of FLEET
            ask(Load(load.connect, load.workload, own), client, SPARE, points, expected)
            [outcome] = own.outcomes
            load.tally.did(f"calls of the model that comes and goes: {outcome}")
            if outcome not in ("MODEL_NOT_FOUND", "MODEL_LOADING"):
                for problem in own.problems:
                    load.tally.problem(problem)


# ---- operators


def operator(load: Load, admin_address: str, repository: Path, period: float, tune_every: int) -> None:
    """Reloads FLEET, and unloads and loads SPARE, once per `period` seconds. In every `tune_every`-th period it also
    has a plan searched, which takes a minute of processor time; 0: never.
    """
    with voxserve.Client(admin_address, admin_address=admin_address) as client:
        for count in range(1, 1 << 31):
            if load.stopped.wait(period / 3):
                break
            os.utime(repository / FLEET / "1" / "model.textproto")  # a changed folder with the same network
            _operate(load, "reloads", lambda: client.load_model(FLEET), (1,))
            _operate(load, "unloads", lambda: client.unload_model(SPARE), (1,))
            if load.stopped.wait(period / 3):
                break
            _operate(load, "loads", lambda: client.load_model(SPARE), (1,))
            if tune_every and count % tune_every == 1 % tune_every:
                _search(load, client)
            load.stopped.wait(period / 3)
        _operate(load, "loads", lambda: client.load_model(SPARE), (1,))


class _StoppedError(Exception):
    pass


def _search(load: Load, client: voxserve.Client) -> None:
    """Has a plan searched, and gives the search up when the load is stopped."""

    def look(_: voxserve.TuneProgress) -> None:
        if load.stopped.is_set():
            raise _StoppedError

    def search() -> tuple[int, ...]:
        client.tune_plan(FLEET, num_scans=4, max_wait=20, on_progress=look)
        return ()

    try:
        _operate(load, "searches of plans", search)
    except _StoppedError:
        load.tally.did("searches of plans that were given up")


def _operate(load: Load, what: str, act: Callable[[], tuple[int, ...]], expected: tuple[int, ...] = ()) -> None:
    try:
        versions = act()
    except voxserve.InferenceError as error:
        if load.tally.may_fail(error):
            load.tally.did(f"{what} that failed: {error.reason}")
        else:
            load.tally.problem(f"{what}: {error}")
        return
    load.tally.did(what)
    if versions != expected:
        load.tally.problem(f"{what}: versions {versions} and not {expected}")
