"""Writes and reads frames of PandaSet for training, as compact files: a scan and its labelled points and boxes.

    python -m train.frames PANDASET/002 DATA        # run in deploy/, with the Python client's packages

writes DATA/NN.npz for each frame. Points are of the Pandar64 in its frame (x forward, y left, z up), as
voxserve.evaluate reads PandaSet. They are sorted by elevation and azimuth, and stored as differences of range (5 mm),
azimuth and elevation (0.1 mrad), which pack into 160 KB a frame: a point moves by less than 6 mm within 75 m. Points
beyond 110 m are left out.
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

RANGE_STEP = 0.005  # metres
ANGLE_STEP = 1e-4  # radians
MAX_RANGE = 110.0  # metres
TRAIN_FRAMES = range(60)
TEST_FRAMES = range(60, 80)
# PandaSet's names of boxes, and the model's class of each (train.detector). Boxes of other names belong to no class:
# all frames together have one motorcycle and one trailer, too few to learn from.
BOX_CLASSES = {
    "Car": "car",
    "Medium-sized Truck": "truck",
    "Semi-truck": "truck",
    "Pickup Truck": "truck",
    "Other Vehicle - Construction Vehicle": "construction-vehicle",
    "Pedestrian": "pedestrian",
    "Pedestrian with Object": "pedestrian",
    "Cones": "traffic-cone",
}


@dataclass(frozen=True)
class LabelledFrame:
    """A scan, its labels and its boxes, in the sensor's coordinates."""

    number: int
    points: Any  # float32 [N, 4]: x, y, z in metres, intensity 0..1
    labels: Any  # uint8 [N]: PandaSet's class of each point
    boxes: Any  # float32 [M, 7]: x, y, z of the centre, length, width, height, yaw
    names: tuple[str, ...]  # [M] PandaSet's names
    num_points: Any  # int32 [M]: the number of the scan's points in the box


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m train.frames", description="write PandaSet's frames for training")
    parser.add_argument("source", type=Path, help="a sequence of PandaSet, as its devkit has it")
    parser.add_argument("target", type=Path, help="folder for NN.npz of each frame")
    options = parser.parse_args()
    try:
        _write_all(options.source, options.target)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _write_all(source: Path, target: Path) -> None:
    sys.modules.pop("voxserve", None)  # the stub of train/__init__.py; the whole package is needed
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client/python/src"))
    from voxserve.evaluate.layouts import pandaset

    dataset = pandaset.open_dataset(source)
    if not (dataset.frames and dataset.label_names and dataset.box_names):
        raise ValueError(f"{source} is no sequence of PandaSet with labels and boxes")
    target.mkdir(parents=True, exist_ok=True)
    total = 0
    for frame in dataset.frames:
        scan = frame.read(True, True)
        points = np.stack([scan.cloud.values(name) for name in ("x", "y", "z", "intensity")], axis=1)
        path = target / f"{frame.number:02d}.npz"
        boxes = scan.boxes
        write(path, LabelledFrame(frame.number, points, scan.labels, boxes.boxes, boxes.names, boxes.num_points))
        total += path.stat().st_size
    print(f"wrote {len(list(target.glob('*.npz')))} frames, {total / 1e6:.1f} MB, to {target}")


def write(path: Path, frame: LabelledFrame) -> None:
    points = frame.points.astype(np.float64)
    flat = np.hypot(points[:, 0], points[:, 1])
    distance = np.hypot(flat, points[:, 2])
    steps = np.stack(
        [
            np.rint(distance / RANGE_STEP),
            np.rint((np.arctan2(points[:, 1], points[:, 0]) + np.pi) / ANGLE_STEP),
            np.rint((np.arctan2(points[:, 2], flat) + np.pi / 2) / ANGLE_STEP),
        ]
    ).astype(np.int64)
    near = np.flatnonzero(distance <= MAX_RANGE)
    order = near[np.lexsort((steps[1, near], steps[2, near] // 20))]  # 2 mrad, less than between two lasers
    differences = np.diff(steps[:, order], axis=1, prepend=0).astype(np.int32).view(np.uint32)
    arrays = {
        # Row i has byte i of every number. The high bytes are nearly always the same, so they pack well.
        "steps": np.stack([(differences >> shift & 255).astype(np.uint8) for shift in (0, 8, 16, 24)]),
        "intensity": np.rint(points[order, 3] * 255).astype(np.uint8),
        "labels": np.asarray(frame.labels)[order].astype(np.uint8),
        "boxes": np.asarray(frame.boxes, np.float32),
        "names": np.array(frame.names),
        "num_points": np.asarray(frame.num_points, np.int32),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as file:  # np.load reads it; np.savez_compressed packs less
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            file.writestr(f"{name}.npy", buffer.getvalue())


def read(path: Path) -> LabelledFrame:
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    shifts = np.array([0, 8, 16, 24], np.uint32)[:, None, None]
    differences = (arrays["steps"].astype(np.uint32) << shifts).sum(axis=0, dtype=np.uint32).view(np.int32)
    distance, azimuth, elevation = np.cumsum(differences.astype(np.float64), axis=1)
    distance, azimuth, elevation = distance * RANGE_STEP, azimuth * ANGLE_STEP, elevation * ANGLE_STEP
    azimuth, elevation = azimuth - np.pi, elevation - np.pi / 2
    flat = distance * np.cos(elevation)
    points = [flat * np.cos(azimuth), flat * np.sin(azimuth), distance * np.sin(elevation), arrays["intensity"] / 255]
    return LabelledFrame(
        int(path.stem),
        np.stack(points, axis=1).astype(np.float32),
        arrays["labels"],
        arrays["boxes"],
        tuple(arrays["names"].tolist()),
        arrays["num_points"],
    )


def read_all(folder: Path, numbers: range) -> list[LabelledFrame]:
    """Reads the frames with these numbers that exist (the public files lack frames 56, 57, 58 and 71). Raises
    ValueError if there is none.
    """
    frames = [read(path) for path in sorted(folder.glob("*.npz")) if path.stem.isdigit() and int(path.stem) in numbers]
    if not frames:
        raise ValueError(f"{folder} has none of the frames {numbers.start} to {numbers.stop - 1}; see train/README.md")
    return frames


if __name__ == "__main__":
    sys.exit(main())
