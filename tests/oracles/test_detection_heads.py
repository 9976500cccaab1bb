"""The stored cases are what the oracle computes, and the oracle is right for boxes that can be computed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from detection_heads import DET3D, NO_BOX, OPENPCDET, SCORE, cases, decode_anchors, decode_center, iou, nms, overlap

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "detection_heads.npz"


def box(x: float, y: float, length: float, width: float, yaw: float, score: float = 0.5) -> np.ndarray:
    return np.array([x, y, 0, length, width, 1, yaw, 0, 0, score, 0])


def test_cases_are_stored() -> None:
    stored, computed = np.load(GOLDEN), cases()
    assert sorted(stored) == sorted(computed)
    for name, values in computed.items():
        np.testing.assert_allclose(stored[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_cell_is_decoded_as_the_formulas_say() -> None:
    images = {
        "heatmap": np.full((1, 2, 3, 1), -9.0),
        "center": np.zeros((1, 2, 3, 2)),
        "height": np.full((1, 2, 3, 1), 0.5),
        "dim": np.log(np.broadcast_to([4.0, 2.0, 1.5], (1, 2, 3, 3))),
        "rot": np.broadcast_to([0.0, 1.0], (1, 2, 3, 2)),
    }
    images["heatmap"][0, 1, 2] = 0
    images["center"][0, 1, 2] = [0.25, 0.5]
    case = {
        "convention": OPENPCDET,
        "stride": 8,
        "voxel_size": [0.1, 0.2],
        "range_min": [-10, -20],
        "score_threshold": 0.1,
        "max_boxes": 2,
        "center_min": [-100] * 3,
        "center_max": [100] * 3,
        "class_ids": [7],
    }
    expected = [2.25 * 0.8 - 10, 1.5 * 1.6 - 20, 0.5, 4, 2, 1.5, np.pi / 2, 0, 0, 0.5, 7]
    np.testing.assert_allclose(decode_center(case, images), [[expected, NO_BOX]], atol=1e-12)
    expected[6] = 0
    np.testing.assert_allclose(decode_center(case | {"convention": DET3D}, images), [[expected, NO_BOX]], atol=1e-12)
    assert decode_center(case | {"score_threshold": 0.5}, images)[0, 0, SCORE] == -1


def test_an_anchor_is_decoded_as_the_formulas_say() -> None:
    images = {
        "scores": np.full((1, 3, 2, 2), -9.0),
        "residuals": np.zeros((1, 3, 2, 7)),
        "directions": np.zeros((1, 3, 2, 2)),
    }
    images["scores"][0, 2, 1] = [-1, 0]
    images["residuals"][0, 2, 1] = [0.5, -1, 2, 0, np.log(2), 0, 0.1]
    images["directions"][0, 2, 1] = [0, 1]
    case = {
        "range_min": [0, -4],
        "range_max": [8, 4],
        "direction_offset": 0,
        "direction_limit_offset": 0,
        "score_threshold": 0.5,
        "max_boxes": 1,
        "anchors": np.array([[3, 4, 2, -1, 0.0]]),
        "class_ids": [5, 6],
    }
    expected = [8 + 0.5 * 5, 4 - 5, 4, 3, 8, 2, 0.1 - np.pi, 0, 0, 0.5, 6]
    np.testing.assert_allclose(decode_anchors(case, images), [[expected]], atol=1e-12)


def test_overlaps_of_turned_squares() -> None:
    square = box(0, 0, 2, 2, 0)
    np.testing.assert_allclose(overlap(square, square), 4)
    np.testing.assert_allclose(overlap(square, box(0, 0, 2, 2, np.pi / 4)), 8 * (np.sqrt(2) - 1))
    np.testing.assert_allclose(overlap(square, box(1, 1, 2, 2, np.pi / 2)), 1)
    assert overlap(square, box(2, 0, 2, 2, 0)) < 1e-12
    assert iou(square, box(1, 0, 2, 2, 0)) == np.float32(1 / 3)


def test_a_box_that_went_suppresses_nothing() -> None:
    row = np.array([[box(0, 0, 4, 1, 0, 0.9), box(1, 0, 4, 1, 0, 0.8), box(2, 0, 4, 1, 0, 0.7)]])
    kept = nms([row], 0.5, 0, 10)
    np.testing.assert_array_equal(kept[0, :, SCORE], [0.9, 0.7, -1])
