"""Samples of a server under soak, from /proc and from its metrics."""

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from server import MEBIBYTE, Server

from attackers import Attackers
from tally import Tally

NAN = float("nan")


@dataclass(frozen=True)
class Sample:
    """Measurements of one server at one time. NaN: its metrics could not be read, or nothing was answered."""

    seconds: float  # since the soak began
    server: str
    attack: str  # the title of the attack that ran then, or ""
    is_quiet: bool  # no attack was made for a while
    rss_mib: float
    descriptors: float
    threads: float
    device_mib: float  # device memory that the server holds for weights and sweeps
    batches_mib: float  # device memory that each device stream keeps from its largest batch
    reserved_mib: float  # host memory that the server counts for requests, sweeps, answers and more
    answered: float  # requests of all clients that the server has answered since its start
    refused: float  # requests of all clients with an error, and calls and connections that it ended early
    good_answered: float  # requests and frames of the good clients, since the start
    p50_ms: float  # of the good clients' answers since the sample before, as p99_ms
    p99_ms: float


COLUMNS = [field.name for field in fields(Sample)]


@dataclass(frozen=True)
class Subject:
    """A server under soak."""

    name: str
    server: Server
    tally: Tally


def sum_of(metrics: dict[str, float], name: str, label: str = "") -> float:
    """Returns the sum over the series of a metric whose labels contain `label`."""
    return sum(value for key, value in metrics.items() if key.partition("{")[0] == name and label in key)


def take(subject: Subject, seconds: float, attack: str, is_quiet: bool) -> Sample:
    server = subject.server
    status, metrics = 0, {}
    try:
        metrics = server.metrics()
        status = 200
    except AssertionError:  # An attack may have taken the last HTTP connection.
        pass
    requests = "voxserve_requests_total"
    answered = sum_of(metrics, requests, 'code="OK"')
    refused = sum_of(metrics, requests) - answered + sum_of(metrics, "voxserve_calls_ended_early_total")
    on_devices = sum_of(metrics, "voxserve_device_memory_bytes")
    of_batches = sum_of(metrics, "voxserve_device_memory_bytes", 'kind="batches"')
    recent = subject.tally.take_recent()
    return Sample(
        round(seconds, 1),
        subject.name,
        attack,
        is_quiet,
        round(server.rss() / MEBIBYTE, 1),
        _num_entries(f"/proc/{server.pid}/fd"),
        _num_entries(f"/proc/{server.pid}/task"),
        round((on_devices - of_batches) / MEBIBYTE, 1) if status else NAN,
        round(of_batches / MEBIBYTE, 1) if status else NAN,
        round(sum_of(metrics, "voxserve_memory_bytes") / MEBIBYTE, 1) if status else NAN,
        answered if status else NAN,
        refused if status else NAN,
        subject.tally.num_answered(),
        round(float(np.percentile(recent, 50)) * 1e3, 1) if recent else NAN,
        round(float(np.percentile(recent, 99)) * 1e3, 1) if recent else NAN,
    )


def _num_entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


class Sampler(threading.Thread):
    """Takes a sample of each server every `interval` seconds, until stop() or until a server has ended."""

    def __init__(self, subjects: Sequence[Subject], attackers: Attackers, interval: float, quiet_after: float) -> None:
        super().__init__(daemon=True)
        self._subjects = subjects
        self._attackers = attackers
        self._interval = interval
        self._quiet_after = quiet_after
        self._stopped = threading.Event()
        self.begin = time.monotonic()
        self.samples: list[Sample] = []
        self.problems: list[str] = []

    def run(self) -> None:
        while not self._stopped.wait(self._interval):
            for subject in self._subjects:
                seconds = time.monotonic() - self.begin
                is_quiet = self._attackers.pause_seconds() > self._quiet_after
                try:
                    self.samples.append(take(subject, seconds, self._attackers.present, is_quiet))
                except OSError:
                    self.problems.append(f"the server '{subject.name}' ended: status {subject.server.process.poll()}")
                    return

    def stop(self) -> None:
        self._stopped.set()
        self.join(60)


def write_csv(path: Path, samples: Sequence[Sample]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(asdict(sample) for sample in samples)
