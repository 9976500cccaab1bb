"""Tests the metrics of voxserve.evaluate against results of the benchmarks' own programs and naive arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from drawn_boxes import DrawnFrame, draw
from drawn_boxes_expected import KITTI, NUSCENES, OVERLAP_SUMS

from voxserve.evaluate import kitti_rules, nuscenes_rules, segmentation
from voxserve.evaluate.kitti_rules import COUNTED, IGNORED, OTHER, Matching
from voxserve.evaluate.nuscenes_rules import ClassFrame
from voxserve.evaluate.overlaps import corners, count_inside, overlaps

Array = npt.NDArray[np.float64]


@pytest.mark.parametrize("distance", NUSCENES)
def test_nuscenes_rules_are_the_devkits(distance: float) -> None:
    frames = [ClassFrame(f.true, f.true_velocities, f.found, f.found_velocities, f.scores) for f in draw()]
    result = nuscenes_rules.evaluate(frames, distance)
    np.testing.assert_allclose([result.ap, *result.errors.values()], NUSCENES[distance], rtol=1e-9)


def matching(frame: DrawnFrame, difficulty: kitti_rules.Difficulty, kind: str) -> Matching:
    ignored = (
        (frame.heights <= difficulty.min_height)
        | (frame.occlusions > difficulty.max_occlusion)
        | (frame.truncations > difficulty.max_truncation)
    )
    kinds = {"Car": COUNTED, "Van": IGNORED, "Pedestrian": OTHER}
    true = np.array([kinds[name] for name in frame.names])
    true = np.where((true == COUNTED) & ignored, IGNORED, true)
    found = np.where(frame.found_heights < difficulty.min_height, IGNORED, COUNTED)
    shared = overlaps(frame.found, frame.true)[("bev", "3d").index(kind)]
    return Matching(shared[:, true != OTHER], frame.scores, found, true[true != OTHER])


@pytest.mark.parametrize(("name", "kind", "min_overlap"), KITTI)
def test_kitti_rules_are_the_benchmarks(name: str, kind: str, min_overlap: float) -> None:
    difficulty = next(d for d in kitti_rules.DIFFICULTIES if d.name == name)
    frames = [matching(frame, difficulty, kind) for frame in draw()]
    expected = KITTI[name, kind, min_overlap]
    assert kitti_rules.average_precision(frames, min_overlap) == pytest.approx(expected, rel=1e-9)


def test_precision_along_the_curve() -> None:
    """There are three true boxes. By falling score, the found boxes are a hit, a false alarm and a hit. So the
    precision is 1 up to a recall of 1/3, 2/3 up to a recall of 2/3, then 0.
    """
    frame = Matching(
        np.array([[0.9, 0, 0], [0, 0, 0], [0, 0.9, 0]]),
        np.array([0.9, 0.8, 0.7]),
        np.full(3, COUNTED),
        np.full(3, COUNTED),
    )
    recalls = np.arange(1, 41) / 40
    expected = np.where(recalls <= 1 / 3, 1, np.where(recalls <= 2 / 3, 2 / 3, 0)).mean()
    assert kitti_rules.curve_precision([frame], 0.5) == pytest.approx(expected)
    # With many boxes the two measures are nearly equal.
    many = [matching(drawn, kitti_rules.Difficulty("all", 0, 3, 1.0), "bev") for drawn in draw()]
    both = [measure(many, 0.5) for measure in (kitti_rules.average_precision, kitti_rules.curve_precision)]
    assert both[0] == pytest.approx(both[1], abs=0.03)


def test_overlaps_are_shapelys() -> None:
    for frame, (above, space) in zip(draw(), OVERLAP_SUMS, strict=True):
        found = overlaps(frame.found, frame.true)
        np.testing.assert_allclose([found[0].sum(), found[1].sum()], [above, space], atol=1e-7)


def clipped_area(subject: Array, clip: Array) -> float:
    """Clips by the algorithm of Sutherland and Hodgman, edge by edge."""
    polygon = [tuple(p) for p in subject]
    for a, b in zip(clip, np.roll(clip, -1, axis=0), strict=True):
        kept: list[Any] = []
        for p, q in zip(polygon, polygon[1:] + polygon[:1], strict=True):
            side_p = (b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0])
            side_q = (b[0] - a[0]) * (q[1] - a[1]) - (b[1] - a[1]) * (q[0] - a[0])
            if side_p >= 0:
                kept.append(p)
            if (side_p > 0) != (side_q > 0) and side_p != side_q:
                t = side_p / (side_p - side_q)
                kept.append((p[0] + t * (q[0] - p[0]), p[1] + t * (q[1] - p[1])))
        polygon = kept
        if not polygon:
            return 0.0
    return 0.5 * sum(p[0] * q[1] - q[0] * p[1] for p, q in zip(polygon, polygon[1:] + polygon[:1], strict=True))


def test_overlaps_are_a_naive_clips() -> None:
    random = np.random.default_rng(5)
    boxes = np.concatenate(
        [random.uniform(-2, 2, (60, 3)), random.uniform(0.1, 5, (60, 3)), random.uniform(-7, 7, (60, 1))], 1
    )
    above, _ = overlaps(boxes[:30], boxes[30:])
    for i in range(30):
        for j in range(30):
            a, b = boxes[i], boxes[30 + j]
            common = clipped_area(corners(a)[0], corners(b)[0])
            expected = common / (a[3] * a[4] + b[3] * b[4] - common)
            assert above[i, j] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("other", "above", "space"),
    [
        ([0, 0, 0, 4, 2, 2, 0], 1, 1),
        ([0, 0, 0, 4, 2, 2, np.pi], 1, 1),
        ([0, 0, 0, 2, 4, 2, np.pi / 2], 1, 1),
        ([2, 0, 0, 4, 2, 2, 0], 1 / 3, 1 / 3),
        ([0, 0, 1, 4, 2, 2, 0], 1, 1 / 3),
        ([4, 0, 0, 4, 2, 2, 0], 0, 0),
        ([0, 0, 2, 4, 2, 2, 0], 1, 0),
        ([0, 0, 0, 2, 1, 2, 0.3], 0.25, 0.25),
        ([0, 0, 0, 4, 2, 0, 0], 1, 0),
        ([1e5, 1e5, 0, 4, 2, 2, 0], 0, 0),
    ],
)
def test_overlaps_of_boxes_that_touch(other: list[float], above: float, space: float) -> None:
    found = overlaps([[0, 0, 0, 4, 2, 2, 0]], [other])
    assert found[0][0, 0] == pytest.approx(above, abs=1e-9)
    assert found[1][0, 0] == pytest.approx(space, abs=1e-9)


def test_no_boxes() -> None:
    assert overlaps(np.zeros((0, 7)), np.ones((3, 7)))[0].shape == (0, 3)
    nothing = ClassFrame(np.zeros((0, 7)), np.zeros((0, 2)), np.ones((1, 7)), np.zeros((1, 2)), np.ones(1))
    assert np.isnan(nuscenes_rules.evaluate([nothing], 2).ap)
    unseen = ClassFrame(np.ones((1, 7)), np.zeros((1, 2)), np.zeros((0, 7)), np.zeros((0, 2)), np.zeros(0))
    missed = nuscenes_rules.evaluate([unseen], 2)
    assert (missed.ap, missed.errors["translation"]) == (0, 1)
    empty = Matching(np.zeros((0, 1)), np.zeros(0), np.zeros(0, np.int64), np.array([IGNORED]))
    assert np.isnan(kitti_rules.average_precision([empty], 0.5))


def test_points_in_boxes() -> None:
    points = np.array([[0, 0, 0], [1.9, 0, 0], [0, 1.9, 0], [0, 0, 1.1], [5, 5, 0]])
    assert count_inside([[0, 0, 0, 4, 2, 2, 0], [0, 0, 0, 4, 2, 2, np.pi / 2]], points).tolist() == [2, 2]


def test_confusion_matrix_and_ious() -> None:
    random = np.random.default_rng(2)
    truth, labels = random.integers(-1, 4, 1000), random.integers(0, 6, 1000)
    counts = segmentation.confusion(truth, labels, 5)
    for row in range(5):
        for column in range(5):
            assert counts[row, column] == int(((truth == row) & (labels == column)).sum())
        assert counts[row, 5] == int(((truth == row) & (labels >= 5)).sum())
    scores = segmentation.scores(counts)
    known = truth >= 0
    for row in range(4):
        union = int((known & ((truth == row) | (labels == row))).sum())
        assert scores.ious[row] == int(((truth == row) & (labels == row)).sum()) / union
    assert scores.ious[4] == 0  # the class was found, but no true label has it
    assert scores.mean_iou == pytest.approx(scores.ious.mean())
    assert np.isnan(segmentation.scores(counts, np.arange(5) != 4).ious[4])
    assert scores.accuracy == int((truth == labels)[known].sum()) / int(known.sum())
