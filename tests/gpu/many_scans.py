#!/usr/bin/env python3
"""Sends a server many scans that all differ, and checks that nothing fails, changes or grows.

    tests/gpu/many_scans.py --server build/release/server/voxserve --repository deploy/models --model minkunet \\
        --count 10000 --clients 16 deploy/scans/*.bin -- --devices=cuda:0

The scans are made from the given ones: each is turned about z by any angle, thinned to 80% to 100% of its points, and
shifted by up to 2 m along x and y and 0.1 m along z. With --shrink N each is also scaled by a factor between 1/N and 1.
Scans of equally many points then have very different numbers of voxels, so that batches outgrow the memory that was
laid out for them, and run again. A seed decides the random numbers. The script starts the server on this machine's
loopback, with --deterministic, so that the bytes of an answer do not depend on other scans in the batch.
It has four parts:

  1. a tenth of the scans, as a warm-up, from several clients
  2. all scans, from several clients: every answer is checked, and its labels and scores are kept as a digest
  3. every 20th scan alone: the answer's bytes must equal those of part 2
  4. the scans of part 3 in a second server process, one after the other: the bytes must equal those of part 2

It reports the scans that failed or differed, the batches that ran again, and the memory of the process and of its
devices before and after part 2. It exits with 0 if nothing failed or differed and memory grew by no more than
--max_growth_mb, else with 1. It needs Python with numpy, and the client (client/python).
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hostile"))  # contains server.py, which runs a server

import voxserve
from server import MEBIBYTE, Server

Points = np.ndarray[Any, np.dtype[np.float32]]
TIMEOUT = 120.0  # limit of one call, in seconds; a busy machine without a GPU may need minutes
ALONE_EVERY = 20
MAX_REASONS = 10  # number of different problems that the report lists


def varied(scan: Points, seed: int, shrink: float = 1) -> Points:
    """Returns the scan turned, thinned, shifted and scaled by 1/shrink to 1 at random. The same seed gives the same
    points.
    """
    random = np.random.default_rng(seed)
    points = scan[random.random(len(scan)) < random.uniform(0.8, 1)].copy()
    angle = random.uniform(0, 2 * np.pi)
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    x, y = points[:, 0].copy(), points[:, 1].copy()
    points[:, 0] = cos * x - sin * y
    points[:, 1] = sin * x + cos * y
    points[:, :3] += random.uniform(-1, 1, 3).astype(np.float32) * np.float32([2, 2, 0.1])
    points[:, :3] *= np.float32(shrink ** random.uniform(-1, 0))
    return points


def what_is_wrong(answer: voxserve.Segmentation, points: Points) -> str:
    """Returns a problem that the answer shows by itself, without a reference; "" if there is none."""
    counts = answer.counts
    sum_of_fates = counts.used + counts.invalid + counts.out_of_range + counts.dropped + counts.unsampled
    if len(answer.labels) != len(points):
        return f"{len(answer.labels)} labels of {len(points)} points"
    if sum_of_fates != len(points):
        return f"the fates of {sum_of_fates} of {len(points)} points"
    if counts.not_finite or (answer.scores is not None and not np.isfinite(answer.scores).all()):
        return "scores that are not finite"
    if len(points) and not 1 <= counts.voxels <= len(points):
        return f"{counts.voxels} voxels of {len(points)} points"
    if not ((answer.labels < answer.num_classes) | (answer.labels == answer.ignore_label)).all():
        return "labels that are no class"
    return ""


def digest(answer: voxserve.Segmentation) -> bytes:
    """Returns a digest of every byte of labels and scores."""
    sum_of_bytes = hashlib.sha256(answer.labels.tobytes())
    if answer.scores is not None:
        sum_of_bytes.update(answer.scores.tobytes())
    return sum_of_bytes.digest()


@dataclass
class Findings:
    """Results of sending scans: a digest of each answer, by the scan's seed, and how often each problem occurred."""

    digests: dict[int, bytes] = field(default_factory=dict)
    problems: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def compare(self, what: str, other: Findings) -> None:
        """Adds the problems of `other`, and a problem for each scan whose bytes in `other` differ from those here."""
        self.problems.update(other.problems)
        for seed, value in other.digests.items():
            if self.digests.get(seed, value) != value:
                self.problems[f"{what}: other bytes"] += 1


def run(
    address: str, model: str, scans: Sequence[Points], seeds: Sequence[int], clients: int, shrink: float = 1
) -> Findings:
    """Sends the scans of `seeds` and returns what was found. `clients` threads each send one scan at a time."""
    findings = Findings()

    def ask(client: voxserve.Client, seed: int) -> tuple[int, bytes | None, str]:
        points = varied(scans[seed % len(scans)], seed, shrink)
        try:
            answer = client.infer(model, points, scores=True)
        except voxserve.InferenceError as error:
            return seed, None, f"{type(error).__name__}: {error}"[:200]
        return seed, digest(answer), what_is_wrong(answer, points)

    begin = time.monotonic()
    with voxserve.Client(address, timeout=TIMEOUT) as client, ThreadPoolExecutor(clients) as pool:
        for seed, value, problem in pool.map(lambda seed: ask(client, seed), seeds):
            if value is not None:
                findings.digests[seed] = value
            if problem:
                findings.problems[problem] += 1
    findings.seconds = time.monotonic() - begin
    return findings


@dataclass(frozen=True)
class Memory:
    """The memory that a server uses, in bytes, and its number of batches that ran again, at one time."""

    resident: int
    device: int  # held by the server's CUDA contexts, from the server's metrics
    used: int  # by all processes on all GPUs, from nvidia-smi; 0 without a GPU
    reruns: int

    @staticmethod
    def of(server: Server) -> Memory:
        metrics = server.metrics()
        device = sum(value for name, value in metrics.items() if name.startswith("voxserve_device_memory_bytes"))
        return Memory(server.rss(), int(device), used_by_gpus(), int(metrics["voxserve_batch_reruns_total"]))

    def growth(self, before: Memory) -> int:
        """Returns by how many bytes the one of `resident`, `device` and `used` that grew most has grown."""
        return max(self.resident - before.resident, self.device - before.device, self.used - before.used)


def used_by_gpus() -> int:
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        out = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return MEBIBYTE * sum(int(number) for number in re.findall(r"^\d+$", out, re.MULTILINE))


@contextmanager
def serving(binary: str, repository: Path, log: Path, flags: Sequence[str]) -> Iterator[Server]:
    """Starts a deterministic server and yields it when it is ready. The server ends with the block."""
    server = Server(binary, log, f"--model_repository={repository}", "--deterministic=true", *flags)
    try:
        server.await_ready()
        yield server
    finally:
        server.close()


@dataclass
class Report:
    """Collects what all runs found, and the memory before and after the run over all scans."""

    findings: Findings
    before: Memory
    after: Memory
    num_compared: int = 0

    def failures(self, max_growth_bytes: int) -> list[str]:
        found = [f"{count} times: {problem}" for problem, count in self.findings.problems.most_common(MAX_REASONS)]
        growth = self.after.growth(self.before)
        if growth > max_growth_bytes:
            found.append(f"memory grew by {growth / MEBIBYTE:.0f} MiB")
        return found

    def text(self) -> str:
        count, seconds = len(self.findings.digests), self.findings.seconds
        rows = [
            ("scans answered", count),
            ("scans a second", f"{count / max(seconds, 1e-9):.1f}"),
            ("compared, alone and in a second process", self.num_compared),
            ("batches that ran again", f"{self.after.reruns - self.before.reruns}"),
        ]
        for name in ("resident", "device", "used"):
            values = (getattr(memory, name) / MEBIBYTE for memory in (self.before, self.after))
            rows.append((f"memory, {name}, before and after, MiB", ", ".join(f"{value:.0f}" for value in values)))
        return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def check(
    binary: str,
    repository: Path,
    model: str,
    scans: Sequence[Points],
    count: int,
    clients: int,
    logs: Path,
    flags: Sequence[str] = (),
    alone_every: int = ALONE_EVERY,
    shrink: float = 1,
) -> Report:
    """Runs the four parts that the module's docstring lists."""
    some = range(0, count, alone_every)
    with serving(binary, repository, logs / "first.log", flags) as server:
        warm = run(server.address, model, scans, range(count, count + max(clients, count // 10)), clients, shrink)
        before = Memory.of(server)
        findings = run(server.address, model, scans, range(count), clients, shrink)
        after = Memory.of(server)
        findings.problems.update(warm.problems)
        findings.compare("alone", run(server.address, model, scans, some, 1, shrink))
    with serving(binary, repository, logs / "second.log", flags) as server:
        findings.compare("in a second process", run(server.address, model, scans, some, 1, shrink))
    return Report(findings, before, after, len(some))


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def read_scan(path: str) -> Points:
    """Reads a scan of x, y, z and intensity as float32; returns [num_points, 4]."""
    data = Path(path).read_bytes()
    if not data or len(data) % 16:
        raise ValueError(f"'{path}' has {len(data)} bytes, which are no points of 4 float32")
    return np.frombuffer(data, "<f4").reshape(-1, 4)


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, help="the server's binary")
    parser.add_argument("--repository", required=True, type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--count", type=positive, default=10_000, help="number of scans to send (default: 10,000)")
    parser.add_argument("--clients", type=positive, default=16, help="number of requests at a time (default: 16)")
    parser.add_argument("--every", type=positive, default=1, help="keep every N-th point of a scan (default: 1)")
    parser.add_argument("--shrink", type=positive, default=1, help="scale each scan by a random factor from 1/N to 1 (default: 1)")
    parser.add_argument("--max_growth_mb", type=positive, default=64, help="largest growth of memory that passes, in MiB (default: 64)")
    parser.add_argument("--logs", type=Path, help="folder of the servers' logs")
    parser.add_argument("scans", nargs="+", help="files of x, y, z and intensity as float32")
    flags = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    options = parser.parse_args(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    try:
        scans = [read_scan(path)[:: options.every] for path in options.scans]
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if not (options.repository / options.model).is_dir():
        parser.error(f"'{options.repository}' has no folder '{options.model}'")
    logs = options.logs or Path(tempfile.mkdtemp(prefix="many_scans_"))
    logs.mkdir(parents=True, exist_ok=True)
    report = check(
        options.server,
        options.repository,
        options.model,
        scans,
        options.count,
        options.clients,
        logs,
        flags,
        shrink=options.shrink,
    )
    print(report.text())
    failures = report.failures(options.max_growth_mb * MEBIBYTE)
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
