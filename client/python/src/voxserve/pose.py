"""The pose of a sensor when it took a cloud."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

# The type that Stream.send accepts for a pose: a Pose, or a 4x4 or 3x4 matrix.
PoseLike = Any
# The largest allowed value of |R^T R - I|. Rotations in files have about 9 digits, those in messages are float32.
_MAX_STRAIN = 1e-3


@dataclass(frozen=True)
class Pose:
    """The pose of a cloud's coordinate frame in a frame that does not move: p_world = rotation * p_cloud + translation.

    translation: x, y, z in metres. rotation: a quaternion w, x, y, z of any length but 0. ValueError if a value is not
    finite, a number of values is wrong, or the quaternion is 0.
    """

    translation: tuple[float, float, float]
    rotation: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        translation, rotation = _numbers(self.translation), _numbers(self.rotation)
        if len(translation) != 3 or len(rotation) != 4:
            raise ValueError(
                f"a pose has a translation (x, y, z) and a rotation (w, x, y, z), not {len(translation)} and "
                f"{len(rotation)} numbers"
            )
        if not all(map(math.isfinite, (*translation, *rotation))):
            raise ValueError(f"the pose is not finite: {translation}, {rotation}")
        if not any(rotation):
            raise ValueError("the pose's rotation is a quaternion of length 0")
        object.__setattr__(self, "translation", translation)
        object.__setattr__(self, "rotation", rotation)

    def matrix(self) -> npt.NDArray[np.float64]:
        """Returns the transform from the cloud's to the world's coordinates: float64 [4, 4]."""
        return _matrix(self.translation, self.rotation)

    @staticmethod
    def from_matrix(matrix: npt.ArrayLike) -> Pose:
        """Returns the pose of a transform from the cloud's to the world's coordinates, as datasets have it: [4, 4], or
        [3, 4] without the last row. A rotation with rounding errors is replaced by the nearest exact one. ValueError if
        the shape is wrong, a value is not finite, or the matrix scales, shears, mirrors or projects.
        """
        values = np.asarray(matrix, np.float64)
        if values.shape not in ((4, 4), (3, 4)):
            raise ValueError(f"the pose's matrix has shape {values.shape}; (4, 4) or (3, 4) is needed")
        if not np.isfinite(values).all():
            raise ValueError("the pose's matrix is not finite")
        if len(values) == 4 and np.abs(values[3] - (0, 0, 0, 1)).max() > 1e-6:
            raise ValueError(f"the pose's last row is {values[3].tolist()}, must be 0 0 0 1")
        rotation = values[:3, :3]
        strain = float(np.abs(rotation.T @ rotation - np.eye(3)).max())
        if strain > _MAX_STRAIN or np.linalg.det(rotation) < 0:
            how = "mirrors" if strain <= _MAX_STRAIN else "scales or shears"
            raise ValueError(f"the pose's matrix is not a rotation and a translation: it {how}")
        w, x, y, z = _nearest_quaternion(rotation)
        return Pose((float(values[0, 3]), float(values[1, 3]), float(values[2, 3])), (w, x, y, z))


def _matrix(translation: Sequence[float], rotation: Sequence[float]) -> npt.NDArray[np.float64]:
    w, x, y, z = np.array(rotation, np.float64) / np.linalg.norm(rotation)
    matrix = np.eye(4)
    matrix[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    matrix[:3, 3] = translation
    return matrix


def as_pose(pose: PoseLike) -> Pose:
    """Returns a Pose unchanged, and Pose.from_matrix of anything else."""
    return pose if isinstance(pose, Pose) else Pose.from_matrix(pose)


def _numbers(values: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _nearest_quaternion(rotation: npt.NDArray[np.float64]) -> list[float]:
    """Returns the quaternion w, x, y, z with w >= 0 of the rotation that is nearest to a matrix [3, 3]. It is an
    eigenvector of the matrix of Bar-Itzhack ("New method for extracting the quaternion from a rotation matrix", 2000).
    Unlike other formulas, this one is well conditioned for every angle.
    """
    m = rotation
    trace = m[0, 0] + m[1, 1] + m[2, 2]
    turn = np.array([m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]])
    symmetric = np.empty((4, 4))
    symmetric[0, 0] = trace
    symmetric[0, 1:] = symmetric[1:, 0] = turn
    symmetric[1:, 1:] = m + m.T - trace * np.eye(3)
    quaternion = np.linalg.eigh(symmetric)[1][:, -1]
    return [float(value) for value in (quaternion if quaternion[0] >= 0 else -quaternion)]
