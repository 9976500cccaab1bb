"""Computes the merged cloud of several sweeps from its definition.

Writes the cases that tests/engine/serving/streams/sweeps_test.cc reads:

    python3 tests/oracles/sweep_merge.py ../shared/data/pandaset-002 tests/golden

sweeps_small.npz is made up: three sweeps of a few points, some of them not finite, with poses whose quaternions are not
normalised. sweeps_pandaset_002.npz has five sweeps of PandaSet's sequence 002 (PandaSet by Hesai and Scale AI, CC BY
4.0) and their poses: every 101st of the merged points, and the SHA-256 of all of them (of their number of bytes as 8
bytes little endian, then the bytes).

A pose is x, y, z, qw, qx, qy, qz. It becomes a 4 x 4 matrix in float64, by rotating the unit vectors with quaternion
products. The transform from one sweep to another is a matrix inverse and a product, rounded to float32. Points are
transformed in float32, operation by operation. Rows are x, y, z, intensity, age. The newest sweep's rows come first.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np

FRAMES = ["60", "61", "62", "63", "64"]
SAMPLE_STEP = 101


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the product of two quaternions w, x, y, z."""
    scalar = a[0] * b[0] - a[1:] @ b[1:]
    return np.concatenate([[scalar], a[0] * b[1:] + b[0] * a[1:] + np.cross(a[1:], b[1:])])


def to_matrix(pose: np.ndarray) -> np.ndarray:
    """Returns the 4 x 4 matrix of a pose: p_world = matrix * p_cloud."""
    quaternion = pose[3:] / np.linalg.norm(pose[3:])
    conjugate = quaternion * [1, -1, -1, -1]
    matrix = np.eye(4)
    for axis in range(3):
        unit = np.zeros(4)
        unit[1 + axis] = 1
        matrix[:3, axis] = product(product(quaternion, unit), conjugate)[1:]
    matrix[:3, 3] = pose[:3]
    return matrix


def to_quaternion(rotation: np.ndarray) -> np.ndarray:
    """Returns the quaternion of a rotation matrix whose angle is below 180 degrees."""
    w = np.sqrt(1 + np.trace(rotation)) / 2
    x = (rotation[2, 1] - rotation[1, 2]) / (4 * w)
    y = (rotation[0, 2] - rotation[2, 0]) / (4 * w)
    z = (rotation[1, 0] - rotation[0, 1]) / (4 * w)
    return np.array([w, x, y, z])


def transform(pose: np.ndarray, newest: np.ndarray) -> np.ndarray:
    return (np.linalg.inv(to_matrix(newest)) @ to_matrix(pose))[:3].astype(np.float32)


def move(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Returns points [n, 4] (x, y, z, intensity) transformed by a 4 x 4 matrix, in float32 throughout."""
    x, y, z = points[:, 0], points[:, 1], points[:, 2]
    moved = points.copy()
    for axis, row in enumerate(matrix):
        moved[:, axis] = ((row[0] * x + row[1] * y) + row[2] * z) + row[3]
    return moved


def merge(sweeps: list[np.ndarray], poses: np.ndarray, stamps_ns: np.ndarray) -> dict[str, np.ndarray]:
    """sweeps: float32 [n, 4] each. All three lists begin with the oldest sweep. Returns the arrays of a case."""
    newest = len(sweeps) - 1
    transforms, ages, rows = [], [], []
    for i in reversed(range(len(sweeps))):
        matrix = np.eye(4, dtype=np.float32)[:3] if i == newest else transform(poses[i], poses[newest])
        age = np.float32(int(stamps_ns[newest] - stamps_ns[i]) / 1e9)
        moved = sweeps[i] if i == newest else move(matrix, sweeps[i])
        transforms.append(matrix.reshape(12))
        ages.append(age)
        rows.append(np.concatenate([moved, np.full((len(moved), 1), age, np.float32)], axis=1))
    merged = np.concatenate(rows)
    assert merged.dtype == np.float32
    return {
        "poses": np.asarray(poses, np.float64),
        "stamps_ns": np.asarray(stamps_ns, np.int64),
        "num_points": np.array([len(sweep) for sweep in sweeps], np.int64),
        "transforms": np.array(transforms, np.float32),  # This array and the next two begin with the newest sweep.
        "ages": np.array(ages, np.float32),
        "merged": merged,
    }


def small_case() -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    sweeps = [random.uniform(-40, 40, (n, 4)).astype(np.float32) for n in (7, 300, 5)]
    sweeps[0][2, 1] = np.nan
    sweeps[0][4, 3] = np.inf
    sweeps[1][0, 0] = -np.inf
    sweeps[2][1, 2] = np.nan
    poses = np.concatenate([random.uniform(-2000, 2000, (3, 3)), random.uniform(-3, 3, (3, 4))], axis=1)
    case = merge(sweeps, poses, np.array([10, 10_050_000_003, 10_133_333_337]))
    return case | {"points": np.concatenate(sweeps)}


def pandaset_case(folder: Path) -> dict[str, np.ndarray]:
    lines = [line.split() for line in (folder / "poses.txt").read_text(encoding="utf-8").splitlines()]
    matrices = {line[0]: np.array(line[1:], np.float64).reshape(3, 4) for line in lines}
    poses = np.array([[*matrices[frame][:, 3], *to_quaternion(matrices[frame][:, :3])] for frame in FRAMES])
    sweeps = [np.fromfile(folder / f"{frame}.bin", np.float32).reshape(-1, 5)[:, :4] for frame in FRAMES]
    stamps_ns = 1_557_540_000_000_000_000 + np.array([int(frame) for frame in FRAMES]) * 100_000_000  # 10 Hz
    case = merge(sweeps, poses, stamps_ns)
    merged = case.pop("merged")
    content = merged.tobytes()
    digest = np.frombuffer(hashlib.sha256(len(content).to_bytes(8, "little") + content).digest(), np.uint8)
    return case | {"sample": merged[::SAMPLE_STEP], "sha256": digest}


def main() -> None:
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    np.savez_compressed(out / "sweeps_small.npz", **small_case())
    np.savez_compressed(out / "sweeps_pandaset_002.npz", **pandaset_case(data))


if __name__ == "__main__":
    main()
