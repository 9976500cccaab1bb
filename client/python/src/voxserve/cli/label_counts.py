"""Counts the labels of a scan by class, and compares them with the truth, the labels given by people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from voxserve.results import ClassInfo

_NO_TRUTH = 255  # the label of a point that people did not label


@dataclass(frozen=True)
class ClassCount:
    """The number of points that have a class's label."""

    id: int
    name: str
    num_points: int
    share: float  # num_points divided by the number of all points


def count_classes(labels: npt.NDArray[np.integer], ignore_label: int, classes: Sequence[ClassInfo]) -> list[ClassCount]:
    """Returns one entry for every class that has points, most points first. A label that the model does not list is
    named "class N"; the ignore label has no entry.
    """
    names = {info.id: info.name for info in classes}
    ids, numbers = np.unique(labels, return_counts=True)
    counts = [
        ClassCount(label, names.get(label, f"class {label}"), number, number / len(labels))
        for label, number in zip(ids.tolist(), numbers.tolist(), strict=True)
        if label != ignore_label
    ]
    return sorted(counts, key=lambda count: -count.num_points)


@dataclass
class Agreement:
    """The number of labels that equal the true labels, in total and by true class."""

    num_points: int = 0  # points with a true label
    num_agreeing: int = 0  # those of num_points whose label equals the true label
    num_without: int = 0  # points without a true label, or whose true class the model does not know
    by_class: dict[int, tuple[int, int]] = field(default_factory=dict)  # true class -> its num_points, num_agreeing

    @staticmethod
    def compare(
        labels: npt.NDArray[np.integer],
        truth: npt.NDArray[np.integer],
        ignore_label: int,
        classes: Sequence[ClassInfo],
    ) -> Agreement:
        """Compares the labels [N] with the true labels [N]. Points whose true label is 255, the ignore label or no
        class of the model count as points without a true label.
        """
        wanted = [c.id for c in classes if c.id not in (_NO_TRUTH, ignore_label)]
        has_truth = np.isin(truth, np.array(wanted, np.int64))
        agreement = Agreement(num_without=int((~has_truth).sum()))
        for class_id in np.unique(truth[has_truth]).tolist():
            of_class = truth == class_id
            agreement._add(class_id, int(of_class.sum()), int((labels[of_class] == class_id).sum()))
        return agreement

    def add(self, other: Agreement) -> None:
        """Adds another scan's counts."""
        self.num_without += other.num_without
        for class_id, (points, agreeing) in other.by_class.items():
            self._add(class_id, points, agreeing)

    def of(self, class_id: int) -> tuple[int, int]:
        """Returns the number of points of a true class, and the number of those whose label agrees."""
        return self.by_class.get(class_id, (0, 0))

    def _add(self, class_id: int, points: int, agreeing: int) -> None:
        old = self.of(class_id)
        self.by_class[class_id] = (old[0] + points, old[1] + agreeing)
        self.num_points += points
        self.num_agreeing += agreeing
