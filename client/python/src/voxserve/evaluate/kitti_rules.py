"""Computes average precision by KITTI's rules: found boxes are matched with true boxes by their overlap, and precision
is averaged over 40 recalls.

Source: Geiger et al., "Are we ready for autonomous driving?" (2012), and the benchmark's own program, with 40 recalls
since 2019. Every score at which the recall grows by 1/40 is a threshold, and the boxes are matched again for each
threshold. A true box that is ignored need not be found, and a found box that is ignored is no error.

The benchmark's program uses no more thresholds than there are true boxes. So if there are fewer than 40 of them, even a
perfect model gets less than 1. average_precision does the same; curve_precision is the measure without this flaw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

NUM_RECALLS = 40
_MAX_THRESHOLDS = 200
# How a box takes part in the matching of a class: it counts; it may be matched, but counts neither as right nor as
# wrong; or it belongs to another class and is left out.
COUNTED, IGNORED, OTHER = 0, 1, -1
_NONE = -1


@dataclass(frozen=True)
class Difficulty:
    """A difficulty of the benchmark: limits for true boxes. True boxes outside the limits are ignored, and so are found
    boxes of less than min_height.
    """

    name: str
    min_height: float  # of the box in the camera's image, pixels
    max_occlusion: int  # KITTI's level of occlusion, 0 to 3
    max_truncation: float  # the part of the box outside the image, 0 to 1


DIFFICULTIES = (
    Difficulty("easy", 40, 0, 0.15),
    Difficulty("moderate", 25, 1, 0.30),
    Difficulty("hard", 25, 2, 0.50),
)


@dataclass(frozen=True)
class Matching:
    """One frame's boxes for one class and one difficulty, without the boxes that are OTHER."""

    overlaps: Array  # [found, true] intersection over union
    scores: Array  # [found]
    found: npt.NDArray[np.int64]  # [found] COUNTED or IGNORED
    true: npt.NDArray[np.int64]  # [true] COUNTED or IGNORED


def average_precision(frames: Sequence[Matching], min_overlap: float) -> float:
    """Returns the benchmark's average precision, 0 to 1; NaN if no true box counts. A found box and a true box match if
    their overlap is larger than min_overlap.
    """
    num_true = sum(int((frame.true == COUNTED).sum()) for frame in frames)
    if num_true == 0:
        return float("nan")
    scores = [score for frame in frames for score in _matched_scores(frame, min_overlap)]
    precisions = np.zeros(NUM_RECALLS + 1)
    for index, threshold in enumerate(_thresholds(np.array(scores, np.float64), num_true)):
        hits = errors = 0
        for frame in frames:
            hit, error = _count(frame, min_overlap, threshold)
            hits, errors = hits + hit, errors + error
        precisions[index] = hits / (hits + errors) if hits + errors else 0.0
    best = np.maximum.accumulate(precisions[::-1])[::-1]
    return float(best[1:].mean())


def curve_precision(frames: Sequence[Matching], min_overlap: float) -> float:
    """Returns the mean, over the recalls 1/40, 2/40, ..., 1, of the best precision at that recall or a higher one: 0 to
    1; NaN if no true box counts. If there are more than 200 scores, 200 evenly spread ones are the thresholds.
    """
    num_true = sum(int((frame.true == COUNTED).sum()) for frame in frames)
    if num_true == 0:
        return float("nan")
    scores = np.unique([score for frame in frames for score in _matched_scores(frame, min_overlap)])
    if len(scores) > _MAX_THRESHOLDS:
        scores = scores[np.linspace(0, len(scores) - 1, _MAX_THRESHOLDS).round().astype(np.int64)]
    wanted = np.arange(1, NUM_RECALLS + 1) / NUM_RECALLS
    best = np.zeros(NUM_RECALLS)
    for threshold in scores.tolist():
        counts = [_count(frame, min_overlap, threshold) for frame in frames]
        hits, errors = (sum(column) for column in zip(*counts, strict=True))
        if hits:
            reached = wanted <= hits / num_true + 1e-9
            best[reached] = np.maximum(best[reached], hits / (hits + errors))
    return float(best.mean())


def _thresholds(scores: Array, num_true: int) -> list[float]:
    ordered = np.sort(scores)[::-1].tolist()
    thresholds: list[float] = []
    recall = 0.0
    for index, score in enumerate(ordered):
        left = (index + 1) / num_true
        is_last = index == len(ordered) - 1
        right = left if is_last else (index + 2) / num_true
        if right - recall < recall - left and not is_last:
            continue
        thresholds.append(score)
        recall += 1 / NUM_RECALLS
    return thresholds[: NUM_RECALLS + 1]


def _matched_scores(frame: Matching, min_overlap: float) -> list[float]:
    """Returns the scores of the found boxes that match a true box without a threshold for the score, if both count.
    Each true box in turn takes the free overlapping box with the highest score.
    """
    is_free = np.ones(len(frame.scores), bool)
    scores = []
    for index, kind in enumerate(frame.true):
        wanted = is_free & (frame.overlaps[:, index] > min_overlap)
        if not wanted.any():
            continue
        best = int(np.argmax(np.where(wanted, frame.scores, -np.inf)))
        is_free[best] = False
        if kind == COUNTED and frame.found[best] == COUNTED:
            scores.append(float(frame.scores[best]))
    return scores


def _count(frame: Matching, min_overlap: float, threshold: float) -> tuple[int, int]:
    """Returns the number of true positives and of false positives among the found boxes with scores of at least
    `threshold`. Each true box in turn takes the free COUNTED box that overlaps it most. If no such box overlaps it
    enough, it takes the first free IGNORED box that does.
    """
    is_free = frame.scores >= threshold
    hits = 0
    for index, kind in enumerate(frame.true):
        overlaps = frame.overlaps[:, index]
        wanted = is_free & (overlaps > min_overlap)
        if not wanted.any():
            continue
        counted = wanted & (frame.found == COUNTED)
        best = int(np.argmax(np.where(counted, overlaps, -1.0))) if counted.any() else int(np.argmax(wanted))
        is_free[best] = False
        hits += int(kind == COUNTED and frame.found[best] == COUNTED)
    return hits, int((is_free & (frame.found == COUNTED)).sum())
