"""A scan with its labels or boxes, ready to be counted, compared and looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from voxserve.boxes_from_above import footprints
from voxserve.point_cloud import Fields, PointCloud, PointsLike, as_cloud
from voxserve.results import ClassInfo, Detections, ModelVersion

_UNLISTED_COLOR = (128, 128, 128)
_NO_TRUTH = 255
_MAX_RANGE = 1000.0  # metres; beyond it nothing is shown
_MIN_HALF_EXTENT = 6.0  # metres around the sensor that are always shown
_TAIL = 0.08  # share of the weight cut off at either end of an axis
_MARGIN = 2.0  # metres


@dataclass(frozen=True)
class AnnotatedScan:
    """x forward, y left, z up, metres, the sensor at the origin."""

    xyz: npt.NDArray[np.float32]  # [N, 3]
    labels: npt.NDArray[np.integer]  # [N]; all the ignore label where there are boxes
    ignore_label: int
    classes: tuple[ClassInfo, ...]
    detections: Detections | None = None

    @staticmethod
    def with_labels(
        points: PointsLike, labels: npt.ArrayLike, model: ModelVersion, fields: Fields = None
    ) -> AnnotatedScan:
        """points as Client.infer takes them, the labels that it gave, and Client.model's answer."""
        cloud, values = as_cloud(points, fields), np.asarray(labels)
        if values.shape != (cloud.num_points,):
            raise ValueError(f"labels have shape {values.shape}, but there are {cloud.num_points} points")
        return AnnotatedScan(_xyz(cloud), values, model.ignore_label, model.classes)

    @staticmethod
    def with_boxes(
        points: PointsLike, detections: Detections, model: ModelVersion, fields: Fields = None
    ) -> AnnotatedScan:
        """Likewise of what Client.detect gave."""
        cloud = as_cloud(points, fields)
        labels = np.full(cloud.num_points, model.ignore_label)
        return AnnotatedScan(_xyz(cloud), labels, model.ignore_label, model.classes, detections)


def _xyz(cloud: PointCloud) -> npt.NDArray[np.float32]:
    return np.stack([cloud.values(axis) for axis in ("x", "y", "z")], axis=1)


@dataclass(frozen=True)
class ClassCount:
    """How much of a scan is of one class."""

    id: int
    name: str
    color: tuple[int, int, int]
    num_points: int
    share: float  # of all points


def count_classes(labels: npt.NDArray[np.integer], ignore_label: int, classes: Sequence[ClassInfo]) -> list[ClassCount]:
    """One entry for every class that has points, most points first; labels that the model does not list are "class N"
    in grey. The ignore label has none.
    """
    known = {info.id: info for info in classes}
    ids, numbers = np.unique(labels, return_counts=True)
    counts = []
    for label, number in zip(ids.tolist(), numbers.tolist(), strict=True):
        if label != ignore_label:
            info = known.get(label, ClassInfo(label, f"class {label}", _UNLISTED_COLOR))
            counts.append(ClassCount(label, info.name, info.color, number, number / len(labels)))
    return sorted(counts, key=lambda count: -count.num_points)


@dataclass
class Agreement:
    """How far labels agree with those of people. Points by class are those that people gave it."""

    num_points: int = 0
    num_agreeing: int = 0
    num_without: int = 0  # points that people did not label, or with a class that the model does not know
    by_class: dict[int, tuple[int, int]] = field(default_factory=dict)  # id -> points, those that agree

    @staticmethod
    def compare(
        labels: npt.NDArray[np.integer],
        truth: npt.NDArray[np.integer],
        ignore_label: int,
        classes: Sequence[ClassInfo],
    ) -> Agreement:
        """Truth's 255, the ignore label and ids that are none of the classes count as unlabelled."""
        wanted = [c.id for c in classes if c.id not in (_NO_TRUTH, ignore_label)]
        has_truth = np.isin(truth, np.array(wanted, np.int64))
        agreement = Agreement(num_without=int((~has_truth).sum()))
        for class_id in np.unique(truth[has_truth]).tolist():
            of_class = truth == class_id
            agreement._add(class_id, int(of_class.sum()), int((labels[of_class] == class_id).sum()))
        return agreement

    def add(self, other: Agreement) -> None:
        """Sums of several scans."""
        self.num_without += other.num_without
        for class_id, (points, agreeing) in other.by_class.items():
            self._add(class_id, points, agreeing)

    def of(self, class_id: int) -> tuple[int, int]:
        """A class's points, and those that agree."""
        return self.by_class.get(class_id, (0, 0))

    def _add(self, class_id: int, points: int, agreeing: int) -> None:
        old = self.of(class_id)
        self.by_class[class_id] = (old[0] + points, old[1] + agreeing)
        self.num_points += points
        self.num_agreeing += agreeing


@dataclass(frozen=True)
class Extent:
    """The part of the ground that is worth showing, in metres. The sensor lies inside."""

    min_x: float
    max_x: float
    min_y: float
    max_y: float

    @property
    def length(self) -> float:
        """Along x."""
        return self.max_x - self.min_x

    @property
    def width(self) -> float:
        """Along y."""
        return self.max_y - self.min_y


def dense_extent(xyz: npt.NDArray[np.float32], detections: Detections | None = None) -> Extent:
    """Leaves out the few far points that would make everything small: keeps the bulk of the occupied square metres,
    each weighing the root of its points, because points crowd near the sensor, and every box that can be drawn.
    """
    near = (np.abs(xyz[:, :2]) < _MAX_RANGE).all(axis=1)
    cells, points = np.unique(np.floor(xyz[near, :2]).astype(np.int64), axis=0, return_counts=True)
    weights = np.sqrt(points)
    (min_x, max_x), (min_y, max_y) = _without_tails(cells[:, 0], weights), _without_tails(cells[:, 1], weights)
    if detections is not None:
        for footprint in footprints(detections).values():
            low, high = footprint.corners.min(axis=0) - _MARGIN, footprint.corners.max(axis=0) + _MARGIN
            min_x, min_y = min(min_x, float(low[0])), min(min_y, float(low[1]))
            max_x, max_y = max(max_x, float(high[0])), max(max_y, float(high[1]))
    return Extent(min_x, max_x, min_y, max_y)


def _without_tails(metres: npt.NDArray[np.int64], weights: npt.NDArray[np.float64]) -> tuple[float, float]:
    low, high = -_MIN_HALF_EXTENT, _MIN_HALF_EXTENT
    if len(metres) == 0:
        return low, high
    values, index = np.unique(metres, return_inverse=True)
    after = np.cumsum(np.bincount(index.reshape(-1), weights))
    before = np.concatenate([[0], after[:-1]])
    kept = values[(after > _TAIL * after[-1]) & (before < (1 - _TAIL) * after[-1])]
    return min(low, float(kept.min()) - _MARGIN), max(high, float(kept.max()) + 1 + _MARGIN)
