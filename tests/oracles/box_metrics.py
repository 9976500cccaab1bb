"""Computes detection metrics with the benchmarks' own programs, for the boxes that client/python/tests/drawn_boxes.py
draws.

Its output is copied into client/python/tests/drawn_boxes_expected.py, with which test_metrics.py compares voxserve's
metrics:

    python tests/oracles/box_metrics.py nuscenes        # needs nuscenes-devkit 1.2.0 from PyPI
    python tests/oracles/box_metrics.py kitti EVAL_PY   # eval.py of traveller59/kitti-object-eval-python

The KITTI program needs shapely. It runs without numba and without a GPU: shapely computes the overlaps, and the
program's own loops do the rest.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "client" / "python" / "tests"))

from drawn_boxes import draw


def nuscenes() -> dict[str, list[float]]:
    """Returns, by matching distance in metres: AP, and the errors of translation, scale, orientation and velocity."""
    from nuscenes.eval.common.data_classes import EvalBoxes
    from nuscenes.eval.common.utils import center_distance
    from nuscenes.eval.detection.algo import accumulate, calc_ap, calc_tp
    from nuscenes.eval.detection.data_classes import DetectionBox
    from pyquaternion import Quaternion

    def box(token, values, velocity, score):
        return DetectionBox(
            sample_token=token,
            translation=tuple(values[:3]),
            size=(values[4], values[3], values[5]),
            rotation=tuple(Quaternion(axis=(0, 0, 1), angle=values[6]).elements),
            velocity=tuple(velocity),
            detection_name="car",
            detection_score=float(score),
            attribute_name="",
        )

    true, found = EvalBoxes(), EvalBoxes()
    for index, f in enumerate(draw()):
        token = str(index)
        true.add_boxes(token, [box(token, *row, -1) for row in zip(f.true, f.true_velocities)])
        found.add_boxes(token, [box(token, *row) for row in zip(f.found, f.found_velocities, f.scores)])
    out = {}
    for distance in (0.5, 1.0, 2.0, 4.0):
        data = accumulate(true, found, "car", center_distance, distance)
        errors = ("trans_err", "scale_err", "orient_err", "vel_err")
        out[str(distance)] = [calc_ap(data, 0.1, 0.1), *(calc_tp(data, 0.1, name) for name in errors)]
    return out


def program(eval_py: str) -> dict:
    """Returns the functions of eval.py by name, as plain Python without numba's compilation."""
    numba = types.ModuleType("numba")
    numba.jit = lambda *args, **_: args[0] if args and callable(args[0]) else (lambda function: function)
    sys.modules["numba"] = numba
    lines = Path(eval_py).read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("from scipy", "from second"))]
    functions: dict = {}
    exec("\n".join(kept), functions)
    return functions


def shared(found, true):
    """Returns the overlaps [found, true] of boxes seen from above, and those of their volumes."""
    from shapely.geometry import Polygon

    def polygon(box):
        x, y, _, length, width, _, yaw = box
        cos, sin = np.cos(yaw), np.sin(yaw)
        signs = ((1, 1), (-1, 1), (-1, -1), (1, -1))
        half = [(a * length / 2, b * width / 2) for a, b in signs]
        return Polygon([(x + a * cos - b * sin, y + a * sin + b * cos) for a, b in half])

    above, space = np.zeros((len(found), len(true))), np.zeros((len(found), len(true)))
    for i, f in enumerate(found):
        for j, t in enumerate(true):
            common = polygon(f).intersection(polygon(t)).area
            above[i, j] = common / (f[3] * f[4] + t[3] * t[4] - common)
            height = min(f[2] + f[5] / 2, t[2] + t[5] / 2) - max(f[2] - f[5] / 2, t[2] - t[5] / 2)
            volume = common * max(0, height)
            space[i, j] = volume / (f[3] * f[4] * f[5] + t[3] * t[4] * t[5] - volume)
    return above, space


def kitti(eval_py: str) -> dict:
    """Returns two kinds of figures by name: the AP by difficulty, kind of overlap (bev or 3d) and least overlap, and
    the sums of overlaps by frame.
    """
    run = program(eval_py)
    frames = draw()
    overlaps = [shared(frame.found, frame.true) for frame in frames]
    out: dict = {"overlap_sums": [[float(part.sum()) for part in pair] for pair in overlaps]}

    def image(heights):
        return np.stack([0 * heights, 0 * heights, 100 + 0 * heights, heights], axis=1)

    for difficulty, name in enumerate(("easy", "moderate", "hard")):
        for kind in (0, 1):
            for least in (0.7, 0.5):
                data, number, scores = [], 0, []
                for f, pair in zip(frames, overlaps):
                    true = {"name": np.array(f.names), "bbox": image(f.heights)}
                    true.update(occluded=f.occlusions, truncated=f.truncations)
                    found = {"name": np.array(["Car"] * len(f.found)), "bbox": image(f.found_heights)}
                    valid, ignored, ignored_found, _ = run["clean_data"](true, found, 0, difficulty)
                    number += valid
                    rows = np.concatenate([true["bbox"], np.zeros((len(f.true), 1))], axis=1)
                    zeros = np.zeros((len(f.found), 1))
                    found_rows = np.concatenate([found["bbox"], zeros, f.scores[:, None]], axis=1)
                    kinds = np.array(ignored), np.array(ignored_found)
                    data.append((pair[kind], rows, found_rows, *kinds, np.zeros((0, 4)), 1 + kind, least))
                    scores += run["compute_statistics_jit"](*data[-1], thresh=0.0, compute_fp=False)[4].tolist()
                thresholds = run["get_thresholds"](np.array(scores), number)
                precisions = np.zeros(41)
                for index, threshold in enumerate(thresholds):
                    counts = [run["compute_statistics_jit"](*d, thresh=threshold, compute_fp=True)[:2] for d in data]
                    hits, errors = np.sum(counts, axis=0)
                    precisions[index] = hits / (hits + errors)
                best = np.maximum.accumulate(precisions[::-1])[::-1]
                out[f"{name} {('bev', '3d')[kind]} {least}"] = float(best[1:].mean())
    return out


if __name__ == "__main__":
    print(json.dumps(nuscenes() if sys.argv[1] == "nuscenes" else kitti(sys.argv[2]), indent=1))
