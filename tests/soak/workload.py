"""The scans that the soak's clients send, and the answers that they expect. A separate server computed these answers,
without attacks and with the default plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import many_scans
import numpy as np
from server import REPOSITORY

import voxserve

# All three are copies of the demo's model. Only good clients use FLEET, so that its counts can be compared. Clients
# that cancel, and hostile ones, use ATTACKED. Operators load and unload SPARE.
FLEET, ATTACKED, SPARE = "fleet", "minkunet", "spare"
MODELS = (FLEET, ATTACKED, SPARE)
MOST_DIFFERENT = 0.02  # share of a scan's labels that may differ, since plans and batches round differently
# The server forgets sweeps that are older than max_age seconds. A busy machine may send late, so the limit is wide.
SWEEPS = voxserve.Sweeps(num_sweeps=3, max_age=60)
_SCAN = REPOSITORY / "deploy" / "scans" / "pandaset_070.bin"
_STRIDES = (40, 20, 8)  # the whole scan has 107,000 points
_NUM_SCANS, _NUM_SWEEPS = 18, 8
_FIRST_STAMP = 1.7e9  # seconds since 1970

Points = np.ndarray[Any, np.dtype[np.float32]]
Labels = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Drive:
    """Frames in the order in which a vehicle sends them, and the labels that are expected for each."""

    frames: list[Points]
    expected: list[Labels]
    sweeps: voxserve.Sweeps | None = None

    def pose(self, i: int) -> voxserve.Pose | None:
        return voxserve.Pose((0.5 * i, 0.0, 0.0)) if self.sweeps else None

    def stamp(self, i: int) -> float | None:
        return _FIRST_STAMP + 0.1 * i if self.sweeps else None


@dataclass(frozen=True)
class Workload:
    scans: Drive  # each answer depends on its own frame only
    sweeps: Drive  # an answer depends on the frames before it too, which the server merges with its own


def prepare(binary: str, models: Path, log: Path, flags: Sequence[str]) -> Workload:
    """Returns scans and sweeps with the answers of a server that is started for them and ended."""
    scan = many_scans.read_scan(str(_SCAN))
    scans = [many_scans.varied(scan[:: _STRIDES[seed % len(_STRIDES)]], seed) for seed in range(_NUM_SCANS)]
    scans.append(scan)
    sweeps = [many_scans.varied(scan[:: _STRIDES[0]], 1000 + seed) for seed in range(_NUM_SWEEPS)]
    with (
        many_scans.serving(binary, models, log, flags) as server,
        voxserve.Client(server.address, timeout=many_scans.TIMEOUT) as client,
    ):
        expected = []
        for points in scans:
            answer = client.infer(FLEET, points, scores=True)
            wrong = many_scans.what_is_wrong(answer, points)
            assert not wrong, wrong
            expected.append(answer.labels)
        drive = answered_drive(client, sweeps)
    return Workload(Drive(scans, expected), drive)


def answered_drive(client: voxserve.Client, sweeps: list[Points]) -> Drive:
    """Returns the frames of a vehicle that sends sweeps, with the server's answers."""
    drive = Drive(sweeps, [], SWEEPS)
    with client.stream(FLEET, policy="queue", sweeps=SWEEPS) as stream:
        for i, points in enumerate(sweeps):
            stream.send(i, points, drive.pose(i), drive.stamp(i))
            result = next(stream)
            assert result.segmentation is not None, result.error
            assert result.num_sweeps == min(i + 1, SWEEPS.num_sweeps)
            drive.expected.append(result.segmentation.labels)
    return drive


def compare(labels: Labels, expected: Labels) -> str:
    """Returns "equal", "close" (no more than MOST_DIFFERENT of the labels differ) or "wrong"."""
    if labels.shape != expected.shape:
        return "wrong"
    num_different = int(np.count_nonzero(labels != expected))
    if num_different == 0:
        return "equal"
    return "close" if num_different <= MOST_DIFFERENT * len(expected) else "wrong"
