"""Tests poses made from matrices. The expected matrix is the textbook's rotation matrix of a quaternion."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from voxserve import Pose
from voxserve.pose import as_pose

Matrix = np.ndarray[Any, np.dtype[np.float64]]


def matrix_of(pose: Pose) -> Matrix:
    """Returns a pose's matrix [4, 4], by the textbook."""
    w, x, y, z = np.array(pose.rotation) / np.linalg.norm(pose.rotation)
    matrix = np.eye(4)
    matrix[:3, 3] = pose.translation
    matrix[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return matrix


def random_poses() -> list[Pose]:
    random = np.random.default_rng(5)
    return [Pose(tuple(random.normal(size=3) * 1000), tuple(random.normal(size=4))) for _ in range(50)]


HALF_TURNS = [Pose((0, 0, 0), axis) for axis in ((0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 1, -1, 1))]
SMALL_TURNS = [Pose((0, 0, 0), (1, angle, 0, -angle)) for angle in (0.0, 1e-12, 1e-6, 1e-3)]


@pytest.mark.parametrize("pose", [*random_poses(), *HALF_TURNS, *SMALL_TURNS])
def test_a_matrix_becomes_the_pose_that_it_was_made_of(pose: Pose) -> None:
    expected = matrix_of(pose)
    for given in (expected, expected[:3], expected.tolist()):
        read = as_pose(given)
        np.testing.assert_allclose(matrix_of(read), expected, rtol=0, atol=1e-12)
        assert read.translation == pose.translation
        assert read.rotation[0] >= 0
        assert math.isclose(math.hypot(*read.rotation), 1)


@pytest.mark.parametrize("pose", random_poses()[:10])
def test_a_matrix_that_was_rounded_becomes_the_nearest_rotation(pose: Pose) -> None:
    expected = matrix_of(pose)
    read = Pose.from_matrix(expected.astype(np.float32))
    np.testing.assert_allclose(matrix_of(read)[:3, :3], expected[:3, :3], rtol=0, atol=1e-7)


def test_a_pose_stays_itself() -> None:
    pose = Pose((1, 2, 3))
    assert as_pose(pose) is pose
    assert pose.rotation == (1, 0, 0, 0)


def changed(index: tuple[int, int], value: float) -> Matrix:
    matrix = np.eye(4)
    matrix[index] = value
    return matrix


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.eye(4) * 2, "last row"),
        (np.eye(4)[:3] * 1.01, "scales or shears"),
        (np.zeros((3, 4)), "scales or shears"),
        (changed((0, 1), 0.01), "scales or shears"),
        (changed((2, 2), -1), "mirrors"),
        (changed((3, 0), 0.5), r"last row is \[0.5, 0.0, 0.0, 1.0\]"),
        (changed((0, 3), math.inf), "not finite"),
        (changed((1, 1), math.nan), "not finite"),
        (np.eye(3), r"shape \(3, 3\)"),
        (np.eye(5), r"shape \(5, 5\)"),
        (7, r"shape \(\)"),
    ],
)
def test_matrices_that_are_no_pose(matrix: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pose.from_matrix(matrix)


@pytest.mark.parametrize(
    ("translation", "rotation", "message"),
    [
        ((0, 0, 0), (0, 0, 0, 0), "length 0"),
        ((0, 0, math.nan), (1, 0, 0, 0), "not finite"),
        ((0, 0, 0), (1, 0, math.inf, 0), "not finite"),
        ((0, 0), (1, 0, 0, 0), "not 2 and 4 numbers"),
        ((0, 0, 0), (1, 0, 0), "not 3 and 3 numbers"),
    ],
)
def test_numbers_that_are_no_pose(translation: Any, rotation: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pose(translation, rotation)


def test_pose_gives_back_its_matrix() -> None:
    pose = Pose((1.0, -2.0, 3.5), (0.4, -0.8, 1.2, 2.0))  # the quaternion is not normalised
    matrix = pose.matrix()
    np.testing.assert_allclose(matrix[:3, :3] @ matrix[:3, :3].T, np.eye(3), atol=1e-12)
    again = Pose.from_matrix(matrix)
    np.testing.assert_allclose(again.translation, pose.translation)
    np.testing.assert_allclose(again.rotation, np.array(pose.rotation) / np.linalg.norm(pose.rotation))
