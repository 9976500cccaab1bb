"""Computes the intersection over union of labels from a confusion matrix."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
IGNORED = -1  # the class of points without a true label


def confusion(truth: npt.NDArray[np.integer], labels: npt.NDArray[np.integer], num_classes: int) -> Counts:
    """Returns the confusion matrix [num_classes, num_classes + 1] of N points. Rows are the true class, columns the
    class that the model found; the last column counts labels that are none of the classes. Points whose true class is
    IGNORED are left out.
    """
    counted = truth != IGNORED
    rows, columns = truth[counted].astype(np.int64), labels[counted].astype(np.int64)
    columns = np.where((columns >= 0) & (columns < num_classes), columns, num_classes)
    flat = np.bincount(rows * (num_classes + 1) + columns, minlength=num_classes * (num_classes + 1))
    return flat.reshape(num_classes, num_classes + 1)


@dataclass(frozen=True)
class Scores:
    """The scores of all classes."""

    # [classes] intersection over union, 0 to 1; NaN for a class that neither the truth nor the model has.
    ious: npt.NDArray[np.float64]
    precisions: npt.NDArray[np.float64]  # [classes] the part of the points with this label that are right
    recalls: npt.NDArray[np.float64]  # [classes] the part of the points of this true class that have its label
    points: Counts  # [classes] the number of points whose true class it is
    mean_iou: float  # the mean of `ious` without NaN
    accuracy: float  # the part of all points whose label is right


def scores(counts: Counts, judged: npt.NDArray[np.bool_] | None = None) -> Scores:
    """Returns the scores of a confusion matrix, counts, as confusion() returns it. A class that the model finds but
    the truth does not have gets an IoU of 0. judged: [classes] whether the data set has the class; the other classes
    get an IoU of NaN. None: it has all.
    """
    size = len(counts)
    agreeing = np.diag(counts[:, :size]).astype(np.float64)
    points = counts.sum(axis=1)
    found = counts[:, :size].sum(axis=0)
    ious, precisions, recalls = (
        np.divide(agreeing, of, out=np.full(size, np.nan), where=of > 0)
        for of in (points + found - agreeing, found, points)
    )
    if judged is not None:
        for values in (ious, precisions, recalls):
            values[~judged] = np.nan
    mean = float(np.nanmean(ious)) if np.isfinite(ious).any() else float("nan")
    total = int(points.sum())
    accuracy = float(agreeing.sum() / total) if total else float("nan")
    return Scores(ious, precisions, recalls, points, mean, accuracy)


def known(value: float) -> float | None:
    """Returns a number for JSON: None for NaN and infinity."""
    return float(value) if np.isfinite(value) else None
