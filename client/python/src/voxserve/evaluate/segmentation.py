"""Intersection over union of labels, from a confusion matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
IGNORED = -1  # the class of points that people did not label


def confusion(truth: npt.NDArray[np.integer], labels: npt.NDArray[np.integer], num_classes: int) -> Counts:
    """Counts points by their true class (rows) and the class that the model gave them (columns): [num_classes,
    num_classes + 1]. The last column is for labels that are none of the classes. Points whose truth is IGNORED are
    left out.
    """
    counted = truth != IGNORED
    rows, columns = truth[counted].astype(np.int64), labels[counted].astype(np.int64)
    columns = np.where((columns >= 0) & (columns < num_classes), columns, num_classes)
    flat = np.bincount(rows * (num_classes + 1) + columns, minlength=num_classes * (num_classes + 1))
    return flat.reshape(num_classes, num_classes + 1)


@dataclass(frozen=True)
class Scores:
    """The scores of each class, and their mean. A class has NaN if it has neither true nor labelled points; the mean
    leaves it out.
    """

    ious: npt.NDArray[np.float64]  # [classes]
    points: Counts  # [classes] by people
    mean_iou: float
    accuracy: float


def scores(counts: Counts, judged: npt.NDArray[np.bool_] | None = None) -> Scores:
    """Returns the scores of a confusion matrix. If a model finds a class where people have none of it, the class has an
    IoU of 0. judged: the classes that people tell apart (default: all); any other class has an IoU of NaN.
    """
    size = len(counts)
    agreeing = np.diag(counts[:, :size]).astype(np.float64)
    points = counts.sum(axis=1)
    union = points + counts[:, :size].sum(axis=0) - agreeing
    ious = np.divide(agreeing, union, out=np.full(size, np.nan), where=union > 0)
    if judged is not None:
        ious[~judged] = np.nan
    mean = float(np.nanmean(ious)) if np.isfinite(ious).any() else float("nan")
    total = int(points.sum())
    return Scores(ious, points, mean, float(agreeing.sum() / total) if total else float("nan"))
