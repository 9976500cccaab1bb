"""Computes the average precision of a model's boxes over a data set, by KITTI's and by nuScenes' rules, for each class
and range of distances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from voxserve.evaluate import kitti_rules, nuscenes_rules
from voxserve.evaluate.classes import plain
from voxserve.evaluate.kitti_rules import COUNTED, IGNORED, OTHER, Difficulty, Matching
from voxserve.evaluate.nuscenes_rules import ClassFrame
from voxserve.evaluate.overlaps import count_inside, overlaps
from voxserve.evaluate.truth import Array, Dataset, Scan

if TYPE_CHECKING:  # this module imports gRPC, which deploy/train, a user of this file, does not have
    from voxserve.results import ClassInfo, Detections

_EVERYTHING = Difficulty("all", 0, 3, 1.0)
_WIDE = frozenset({"car", "vehicle"})  # these must overlap by 0.7, all others by 0.5
_IN_RACKS = frozenset({"bicycle", "motorcycle"})
Bins = Sequence[tuple[float, float]]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Frame:
    """One frame's true boxes [true, 7] and found boxes [found, 7], with one entry per box in the other fields. Ids are
    those of the model's classes; -1 for a class that the model does not have.
    """

    true: Array
    true_ids: npt.NDArray[np.int64]
    true_names: tuple[str, ...]
    true_velocities: Array
    true_distances: Array
    has_points: Mask  # [true] whether at least min_points points lie in the box, or their number is unknown
    found: Array
    found_ids: npt.NDArray[np.int64]
    found_velocities: Array
    found_distances: Array
    scores: Array
    heights: Array  # [found] the box's height in the camera's image, pixels; infinite if there is no image
    true_heights: Array  # [true] the same of true boxes
    occlusions: npt.NDArray[np.int64]  # [true] KITTI's level of occlusion
    truncations: Array  # [true] the part of the box outside the image, 0 to 1
    from_above: Array  # [found, true] intersection over union, seen from above
    in_space: Array  # [found, true] intersection over union of the volumes


class Detection:
    """Collects frames and then computes the measures. ids: the id of the model's class for each class of the data set
    (ClassMatch.ids). The measures ignore true boxes with fewer points than min_points, and all boxes farther away than
    max_distance (metres; None: the data set's range of the class, or no limit). Boxes of other classes, and
    invalid ones (not finite, or without a size), are counted apart (not_counted()).
    """

    def __init__(
        self,
        dataset: Dataset,
        classes: Sequence[ClassInfo],
        ids: Mapping[str, int],
        min_points: int,
        max_distance: float | None,
    ) -> None:
        self._dataset = dataset
        self._ids = ids
        self._min_points = min_points
        self._frames: list[_Frame] = []
        evaluated = sorted(set(ids.values()))
        names = {info.id: info.name for info in classes}
        self._names = {class_id: names[class_id] for class_id in evaluated}
        self._all_names = names
        # The spelling of the data set's class names by their plain ones.
        self._spelling = {plain(name): name for name in (*ids, *dataset.box_names)}
        self._true_left_out: Counter[str] = Counter()
        self._found_left_out: Counter[str] = Counter()
        ranges = {plain(name): metres for name, metres in dataset.ranges.items()}
        self._ranges = {
            class_id: max_distance if max_distance is not None else ranges.get(plain(name), np.inf)
            for class_id, name in self._names.items()
        }

    def add(self, scan: Scan, found: Detections) -> None:
        """Adds a frame: a scan, which must have true boxes, and the boxes that the model found."""
        truth = scan.boxes
        assert truth is not None
        boxes, ids = found.boxes.astype(np.float64), found.class_ids.astype(np.int64)
        scores, velocities = found.scores.astype(np.float64), found.velocities.astype(np.float64)
        all_names = [self._spelling.get(plain(name), name.strip()) for name in truth.names]
        true_keep = _has_size(truth.boxes)
        self._true_left_out.update(
            name if is_right else f"{name} without a valid box"
            for name, is_right in zip(all_names, true_keep, strict=True)
            if not is_right or name not in self._ids
        )
        keep = _has_size(boxes) & np.isfinite(scores)
        self._found_left_out.update(
            self._all_names.get(i, f"class {i}") if is_right else "invalid boxes or scores"
            for i, is_right in zip(ids.tolist(), keep, strict=True)
            if not is_right or i not in self._names
        )
        heights = np.full(len(boxes), np.inf)
        if scan.to_image is not None:
            image = np.full((len(boxes), 4), np.nan)
            image[keep] = scan.to_image(boxes[keep])
            heights, keep = image[:, 3] - image[:, 1], np.isfinite(image[:, 0])
        if truth.racks is not None and len(truth.racks):
            in_rack = in_racks(truth.racks, boxes)
            keep &= ~(in_rack & np.array([plain(self._names.get(i, "")) in _IN_RACKS for i in ids.tolist()], bool))
            true_keep &= ~(in_racks(truth.racks, truth.boxes) & np.array([n in _IN_RACKS for n in all_names], bool))
        boxes, ids, scores = boxes[keep], ids[keep], scores[keep]
        velocities, heights = velocities[keep], heights[keep]
        true = truth.boxes[true_keep]
        names = tuple(name for name, stays in zip(all_names, true_keep, strict=True) if stays)
        number = len(truth.boxes)
        image_boxes = np.full((number, 4), np.nan) if truth.image_boxes is None else truth.image_boxes
        true_heights = np.where(np.isnan(image_boxes[:, 3]), np.inf, image_boxes[:, 3] - image_boxes[:, 1])
        occlusions = np.zeros(number, np.int64) if truth.occlusions is None else truth.occlusions
        truncations = np.zeros(number) if truth.truncations is None else truth.truncations
        points = truth.num_points[true_keep]
        from_above, in_space = overlaps(boxes, true)
        self._frames.append(
            _Frame(
                true, np.array([self._ids.get(name, -1) for name in names], np.int64), names,
                truth.velocities[true_keep], _distances(true, scan.origin), (points < 0) | (points >= self._min_points),
                boxes, ids, velocities, _distances(boxes, scan.origin), scores, heights, true_heights[true_keep],
                occlusions[true_keep], truncations[true_keep], from_above, in_space,
            )
        )  # fmt: skip

    def not_counted(self) -> dict[str, dict[str, int]]:
        """Returns how many boxes of the data set ("boxes") and of the model ("found_boxes") took no part in the
        measures, by class or reason, the most frequent ones first.
        """
        return {
            "boxes": dict(self._true_left_out.most_common()),
            "found_boxes": dict(self._found_left_out.most_common()),
        }

    def result(self, bins: Bins) -> dict[str, Any]:
        """Returns the measures by nuScenes' and by KITTI's rules, for each class and range of distances, as values that
        JSON can hold. bins: the ranges, from .. to in metres.
        """
        return {"nuscenes": self._by_centres(bins), "kitti": self._by_overlap(bins)}

    def _by_centres(self, bins: Bins) -> dict[str, Any]:
        rows = []
        for class_id, name in self._names.items():
            row = {"name": name, **self._centre_row(class_id, name, 0, self._ranges[class_id])}
            row["by_distance"] = [
                {"from": low, "to": _finite(high), **self._centre_row(class_id, name, low, high)} for low, high in bins
            ]
            rows.append(row)
        errors = {key: _mean([row["errors"][key] for row in rows if row["errors"]]) for key in nuscenes_rules.ERRORS}
        return {"mAP": _mean([row["mAP"] for row in rows]), "errors": errors, "classes": rows}

    def _centre_row(self, class_id: int, name: str, low: float, high: float) -> dict[str, Any]:
        frames = []
        for frame in self._frames:
            true = (frame.true_ids == class_id) & frame.has_points & _within(frame.true_distances, low, high)
            found = (frame.found_ids == class_id) & _within(frame.found_distances, low, high)
            frames.append(
                ClassFrame(
                    frame.true[true],
                    frame.true_velocities[true],
                    frame.found[found],
                    frame.found_velocities[found],
                    frame.scores[found],
                )
            )
        period = np.pi if plain(name) == "barrier" else 2 * np.pi
        results = {d: nuscenes_rules.evaluate(frames, d, period) for d in nuscenes_rules.DISTANCES}
        return {
            "boxes": sum(len(frame.true) for frame in frames),
            "found": sum(len(frame.found) for frame in frames),
            "mAP": _mean([result.ap for result in results.values()]),
            "ap": {f"{distance:g}": _finite(result.ap) for distance, result in results.items()},
            "errors": dict(results[nuscenes_rules.ERROR_DISTANCE].errors),
        }

    def _by_overlap(self, bins: Bins) -> dict[str, Any]:
        difficulties = kitti_rules.DIFFICULTIES if self._dataset.layout == "kitti" else (_EVERYTHING,)
        rows = []
        for class_id, name in self._names.items():
            limit = 0.7 if plain(name) in _WIDE else 0.5
            row: dict[str, Any] = {"name": name, "min_overlap": limit}
            for difficulty in difficulties:
                row[difficulty.name] = self._overlap_row(class_id, difficulty, limit, 0, self._ranges[class_id])
            row["by_distance"] = [
                {"from": low, "to": _finite(high), **self._overlap_row(class_id, difficulties[-1], limit, low, high)}
                for low, high in bins
            ]
            rows.append(row)
        means = {
            difficulty.name: {key: _mean([row[difficulty.name][key] for row in rows]) for key in ("bev", "3d")}
            for difficulty in difficulties
        }
        return {"mAP": means, "classes": rows}

    def _overlap_row(
        self, class_id: int, difficulty: Difficulty, min_overlap: float, low: float, high: float
    ) -> dict[str, Any]:
        of_class = {name for name, known in self._ids.items() if known == class_id}
        neighbours = {n for name in of_class for n in self._dataset.neighbours.get(name, ())} - of_class
        above: list[Matching] = []
        space: list[Matching] = []
        number = 0
        for frame in self._frames:
            true = np.array(
                [COUNTED if n in of_class else IGNORED if n in neighbours else OTHER for n in frame.true_names],
                np.int64,
            )
            ignored = (
                (frame.occlusions > difficulty.max_occlusion)
                | (frame.truncations > difficulty.max_truncation)
                | (frame.true_heights <= difficulty.min_height)
                | ~frame.has_points
                | ~_within(frame.true_distances, low, high)
            )
            true = np.where((true == COUNTED) & ignored, IGNORED, true)
            found = np.where(frame.found_ids == class_id, COUNTED, OTHER)
            # As in KITTI's benchmark, found boxes that are too small in the image are ignored, whatever their class.
            found = np.where(frame.heights < difficulty.min_height, IGNORED, found)
            found = np.where((found == COUNTED) & ~_within(frame.found_distances, low, high), IGNORED, found)
            rows, columns = found != OTHER, true != OTHER
            number += int((true == COUNTED).sum())
            for matchings, values in ((above, frame.from_above), (space, frame.in_space)):
                matchings.append(
                    Matching(values[np.ix_(rows, columns)], frame.scores[rows], found[rows], true[columns])
                )
        is_benchmark = self._dataset.layout == "kitti" and high >= self._ranges[class_id] and low == 0
        measure = kitti_rules.average_precision if is_benchmark else kitti_rules.curve_precision
        return {
            "boxes": number,
            "bev": _finite(measure(above, min_overlap)),
            "3d": _finite(measure(space, min_overlap)),
        }


def _has_size(boxes: Array) -> Mask:
    """Returns whether each box [N, 7] is finite and longer, wider and higher than 0: [N]."""
    return np.array(np.isfinite(boxes).all(axis=1) & (boxes[:, 3:6] > 0).all(axis=1), np.bool_)


def in_racks(racks: Array, boxes: Array) -> Mask:
    """Returns whether the centre of each box [N, 7] lies in one of the racks [R, 7]: [N]."""
    is_in = np.zeros(len(boxes), bool)
    for index, centre in enumerate(boxes[:, :3]):
        is_in[index] = bool(count_inside(racks, centre[None]).any())
    return is_in


def _distances(boxes: Array, origin: tuple[float, float]) -> Array:
    return np.hypot(boxes[:, 0] - origin[0], boxes[:, 1] - origin[1])


def _within(distances: Array, low: float, high: float) -> Mask:
    within: Mask = (distances >= low) & (distances < high)
    return within


def _finite(value: float) -> float | None:
    """Returns None for a value that is not finite, since JSON has no NaN."""
    return float(value) if np.isfinite(value) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and np.isfinite(value)]
    return float(np.mean(known)) if known else None
