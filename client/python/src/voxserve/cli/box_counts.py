"""Counts boxes by class, and orders them by score."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from voxserve.results import ClassInfo, Detections


@dataclass(frozen=True)
class BoxCount:
    """The number of boxes of one class."""

    id: int
    name: str
    num_boxes: int
    best_score: float


def surest_first(detections: Detections) -> list[int]:
    """Returns the indices of the boxes, best score first; equal scores keep the answer's order."""
    order: list[int] = np.argsort(-detections.scores, kind="stable").tolist()
    return order


def name_of(detections: Detections, index: int, classes: Sequence[ClassInfo]) -> str:
    """Returns the name of a box's class: the one in the answer, or else the one in `classes`, or else "class N"."""
    class_id = int(detections.class_ids[index])
    listed = next((info.name for info in classes if info.id == class_id), "")
    return detections.names[index] or listed or f"class {class_id}"


def count_boxes(
    detections: Detections, classes: Sequence[ClassInfo], counted: Sequence[BoxCount] = ()
) -> list[BoxCount]:
    """Returns one entry per class that has boxes, most boxes first. counted: the counts of earlier scans, to which this
    scan's counts are added.
    """
    by_id = {count.id: count for count in counted}
    ids, first, numbers = np.unique(detections.class_ids, return_index=True, return_counts=True)
    for class_id, index, number in zip(ids.tolist(), first.tolist(), numbers.tolist(), strict=True):
        best = float(detections.scores[detections.class_ids == class_id].max())
        if (old := by_id.get(class_id)) is not None:
            best, number = max(best, old.best_score), number + old.num_boxes
            by_id[class_id] = dataclasses.replace(old, num_boxes=number, best_score=best)
        else:
            by_id[class_id] = BoxCount(class_id, name_of(detections, index, classes), number, best)
    return sorted(by_id.values(), key=lambda count: (-count.num_boxes, count.id))
