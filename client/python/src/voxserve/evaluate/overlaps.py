"""Computes the intersection over union of rotated boxes, seen from above (areas) and in space (volumes).

A box is x, y, z of the centre, length, width, height (metres) and yaw (radians about z), as in Detections.boxes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_SIGNS = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]], np.float64) / 2  # counter-clockwise
_SLACK = 1e-9  # metres; a corner that is not farther outside a rectangle counts as inside
_PAIRS_AT_ONCE = 1 << 16


def corners(boxes: npt.ArrayLike) -> Array:
    """Returns the x and y of the four corners of boxes [N, 7] seen from above, counter-clockwise: [N, 4, 2]."""
    values = np.asarray(boxes, np.float64).reshape(-1, 7)
    local = _SIGNS[None] * values[:, None, 3:5]
    cos, sin = np.cos(values[:, 6])[:, None], np.sin(values[:, 6])[:, None]
    x = local[..., 0] * cos - local[..., 1] * sin
    y = local[..., 0] * sin + local[..., 1] * cos
    return np.stack([x, y], -1) + values[:, None, :2]


def overlaps(first: npt.ArrayLike, second: npt.ArrayLike) -> tuple[Array, Array]:
    """Returns the intersection over union of each box of `first` [N, 7] with each box of `second` [M, 7]: seen from
    above, and in space, [N, M] each.
    """
    a = np.asarray(first, np.float64).reshape(-1, 7)
    b = np.asarray(second, np.float64).reshape(-1, 7)
    common = np.zeros((len(a), len(b)))
    reach = np.hypot(a[:, 3], a[:, 4])[:, None] / 2 + np.hypot(b[:, 3], b[:, 4])[None] / 2
    distance = np.linalg.norm(a[:, None, :2] - b[None, :, :2], axis=-1)
    rows, columns = np.nonzero(distance < reach)
    for start in range(0, len(rows), _PAIRS_AT_ONCE):
        i, j = rows[start : start + _PAIRS_AT_ONCE], columns[start : start + _PAIRS_AT_ONCE]
        common[i, j] = _common_areas(a[i], b[j])
    areas_a, areas_b = a[:, 3] * a[:, 4], b[:, 3] * b[:, 4]
    top = np.minimum((a[:, 2] + a[:, 5] / 2)[:, None], (b[:, 2] + b[:, 5] / 2)[None])
    bottom = np.maximum((a[:, 2] - a[:, 5] / 2)[:, None], (b[:, 2] - b[:, 5] / 2)[None])
    volume = common * np.maximum(top - bottom, 0)
    from_above = _ratio(common, areas_a[:, None] + areas_b[None] - common)
    in_space = _ratio(volume, (areas_a * a[:, 5])[:, None] + (areas_b * b[:, 5])[None] - volume)
    return from_above, in_space


def _ratio(part: Array, whole: Array) -> Array:
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def _common_areas(a: Array, b: Array) -> Array:
    """Returns the area of the intersection of each pair of boxes a[i], b[i] seen from above: [P]. The intersection is a
    convex polygon. Its corners are the corners of each rectangle inside the other one, and the crossings of the edges,
    sorted by their angles.
    """
    middle = (a[:, :2] + b[:, :2]) / 2  # the pair is moved to the origin, where rounding errors are smaller
    a, b = a.copy(), b.copy()
    a[:, :2] -= middle
    b[:, :2] -= middle
    corners_a, corners_b = corners(a), corners(b)
    crossings, is_crossing = _crossings(corners_a, corners_b)
    points = np.concatenate([corners_a, corners_b, crossings], axis=1)  # [P, 24, 2]
    is_corner = np.concatenate([_is_inside(corners_a, b), _is_inside(corners_b, a), is_crossing], axis=1)
    number = is_corner.sum(axis=1)
    centre = np.where(is_corner[..., None], points, 0).sum(axis=1) / np.maximum(number, 1)[:, None]
    points = points - centre[:, None]
    angles = np.where(is_corner, np.arctan2(points[..., 1], points[..., 0]), np.inf)
    order = np.argsort(angles, axis=1, kind="stable")
    points = np.take_along_axis(points, order[..., None], axis=1)
    is_used = np.arange(points.shape[1])[None] < number[:, None]
    points = np.where(is_used[..., None], points, points[:, :1])  # unused points equal the first, and add no area
    following = np.roll(points, -1, axis=1)
    area = (points[..., 0] * following[..., 1] - points[..., 1] * following[..., 0]).sum(axis=1) / 2
    largest = np.minimum(a[:, 3] * a[:, 4], b[:, 3] * b[:, 4])
    return np.where(number > 2, np.clip(area, 0, largest), 0.0)


def _is_inside(points: Array, boxes: Array) -> npt.NDArray[np.bool_]:
    offset = points - boxes[:, None, :2]
    cos, sin = np.cos(boxes[:, 6])[:, None], np.sin(boxes[:, 6])[:, None]
    along = offset[..., 0] * cos + offset[..., 1] * sin
    across = offset[..., 1] * cos - offset[..., 0] * sin
    is_inside: npt.NDArray[np.bool_] = (np.abs(along) <= boxes[:, 3:4] / 2 + _SLACK) & (
        np.abs(across) <= boxes[:, 4:5] / 2 + _SLACK
    )
    return is_inside


def _crossings(first: Array, second: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Returns the point at which each edge of one rectangle crosses each edge of the other, [P, 16, 2], and whether the
    two edges cross, [P, 16].
    """
    start_a, start_b = first[:, :, None], second[:, None]  # [P, 4, 1, 2], [P, 1, 4, 2]
    edge_a, edge_b = (np.roll(first, -1, axis=1) - first)[:, :, None], (np.roll(second, -1, axis=1) - second)[:, None]
    cross = _cross(edge_a, edge_b)
    between = start_b - start_a
    is_parallel = np.abs(cross) < 1e-12
    divisor = np.where(is_parallel, 1.0, cross)
    along_a, along_b = _cross(between, edge_b) / divisor, _cross(between, edge_a) / divisor
    does_cross = ~is_parallel & (along_a >= 0) & (along_a <= 1) & (along_b >= 0) & (along_b <= 1)
    points = start_a + along_a[..., None] * edge_a
    return points.reshape(len(first), 16, 2), does_cross.reshape(len(first), 16)


def _cross(a: Array, b: Array) -> Array:
    product: Array = a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    return product


def count_inside(boxes: npt.ArrayLike, points: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """Returns how many of the points, [M, 3], lie in each box: [N]."""
    values = np.asarray(boxes, np.float64).reshape(-1, 7)
    counts = np.zeros(len(values), np.int64)
    for index, (x, y, z, length, width, height, yaw) in enumerate(values.tolist()):
        reach = np.hypot(length, width) / 2 + _SLACK
        near = points[(np.abs(points[:, 0] - x) <= reach) & (np.abs(points[:, 1] - y) <= reach)]
        dx, dy = near[:, 0] - x, near[:, 1] - y
        along, across = dx * np.cos(yaw) + dy * np.sin(yaw), dy * np.cos(yaw) - dx * np.sin(yaw)
        is_inside = (
            (np.abs(along) <= length / 2) & (np.abs(across) <= width / 2) & (np.abs(near[:, 2] - z) <= height / 2)
        )
        counts[index] = int(is_inside.sum())
    return counts
