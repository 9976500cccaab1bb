"""Boxes, ready to be counted and seen from above."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxserve.results import ClassInfo, Detections

_UNLISTED_COLOR = (128, 128, 128)
_MAX_RANGE = 300.0  # metres


@dataclass(frozen=True)
class Footprint:
    """What a box covers of the ground in metres (x forward, y left), and where its front is."""

    corners: npt.NDArray[np.float64]  # [4, 2]: front left, front right, rear right, rear left
    centre: npt.NDArray[np.float64]  # [2]
    front: npt.NDArray[np.float64]  # [2], the middle of the front edge

    def lines(self) -> list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]:
        """What is drawn of it: its outline, and a line from the middle to the front."""
        outline = [(self.corners[i], self.corners[(i + 1) % 4]) for i in range(4)]
        return [*outline, (self.centre, self.front)]


@dataclass(frozen=True)
class BoxCount:
    """How many boxes are of one class."""

    id: int
    name: str
    color: tuple[int, int, int]
    num_boxes: int
    best_score: float


def surest_first(detections: Detections) -> list[int]:
    """Indices of boxes, the best score first; of equal ones, the order of the answer."""
    order: list[int] = np.argsort(-detections.scores, kind="stable").tolist()
    return order


def footprints(detections: Detections) -> dict[int, Footprint]:
    """By the box's index, in the order of drawing: the surest last, over the others. Without boxes that reach farther
    than any LiDAR sees.
    """
    found = {}
    boxes = detections.boxes.astype(np.float64)
    reach = np.abs(boxes[:, :2]).max(axis=1, initial=0) + np.abs(boxes[:, 3:5]).sum(axis=1)
    for i in reversed(surest_first(detections)):
        if reach[i] < _MAX_RANGE:
            x, y, _, length, width, _, yaw = boxes[i]
            turn = np.array([[np.cos(yaw), np.sin(yaw)], [-np.sin(yaw), np.cos(yaw)]])
            ahead, left = np.array([length, 0]) / 2 @ turn, np.array([0, width]) / 2 @ turn
            centre = np.array([x, y])
            corners = centre + np.array([ahead + left, ahead - left, -ahead - left, left - ahead])
            found[i] = Footprint(corners, centre, centre + ahead)
    return found


def name_of(detections: Detections, index: int, classes: Sequence[ClassInfo]) -> str:
    """The box's own name for its class, else the one in classes, else "class N"."""
    class_id = int(detections.class_ids[index])
    listed = next((info.name for info in classes if info.id == class_id), "")
    return detections.names[index] or listed or f"class {class_id}"


def color_of(class_id: int, classes: Sequence[ClassInfo]) -> tuple[int, int, int]:
    """That of classes, else grey."""
    return next((info.color for info in classes if info.id == class_id), _UNLISTED_COLOR)


def count_boxes(
    detections: Detections, classes: Sequence[ClassInfo], counted: Sequence[BoxCount] = ()
) -> list[BoxCount]:
    """One entry for every class that has boxes, most boxes first. counted: what other scans have, which is added."""
    by_id = {count.id: count for count in counted}
    ids, first, numbers = np.unique(detections.class_ids, return_index=True, return_counts=True)
    for class_id, index, number in zip(ids.tolist(), first.tolist(), numbers.tolist(), strict=True):
        best = float(detections.scores[detections.class_ids == class_id].max())
        if (old := by_id.get(class_id)) is not None:
            best, number = max(best, old.best_score), number + old.num_boxes
            by_id[class_id] = dataclasses.replace(old, num_boxes=number, best_score=best)
        else:
            name, color = name_of(detections, index, classes), color_of(class_id, classes)
            by_id[class_id] = BoxCount(class_id, name, color, number, best)
    return sorted(by_id.values(), key=lambda count: (-count.num_boxes, count.id))
