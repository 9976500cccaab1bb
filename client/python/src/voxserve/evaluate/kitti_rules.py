"""Average precision by KITTI's rules: at 40 recall points, of boxes that overlap.

Geiger et al., "Are we ready for autonomous driving?" (2012), and the benchmark's own program, with the 40 points of
2019. Every score at which recall grows by a fortieth is a threshold; at each, boxes are matched anew. Boxes that are
ignored are neither wanted nor wrong.

The program takes no more thresholds than there are true boxes, so that with fewer than 40 of them even a perfect model
stays below 1. curve_precision is the same measure without that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

NUM_RECALLS = 40
_MAX_THRESHOLDS = 200
COUNTED, IGNORED, OTHER = 0, 1, -1  # how a box takes part in the matching of a class
_NONE = -1


@dataclass(frozen=True)
class Difficulty:
    """Limits of a box. True boxes beyond them are ignored, and so are found boxes that are smaller in the image."""

    name: str
    min_height: float  # pixels
    max_occlusion: int
    max_truncation: float


DIFFICULTIES = (
    Difficulty("easy", 40, 0, 0.15),
    Difficulty("moderate", 25, 1, 0.30),
    Difficulty("hard", 25, 2, 0.50),
)


@dataclass(frozen=True)
class Matching:
    """A frame's boxes of one class at one difficulty, without those that are OTHER."""

    overlaps: Array  # [found, true]
    scores: Array  # [found]
    found: npt.NDArray[np.int64]  # [found] COUNTED or IGNORED
    true: npt.NDArray[np.int64]  # [true] likewise


def average_precision(frames: Sequence[Matching], min_overlap: float) -> float:
    """Returns the average precision from 0 to 1, or NaN if no frame has a box that counts."""
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
    """Returns the mean, over recalls of 1/40 to 1, of the best precision at that recall or a higher one. It is from 0
    to 1, or NaN if no frame has a box that counts. If there are many scores, only evenly chosen ones are tried.
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
    """Returns the scores of the found boxes that are matched if no score is too low. Each true box takes the
    overlapping box with the highest score.
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
    """Returns the numbers of true and of false positives at a threshold. Each true box takes the COUNTED box that
    overlaps it most; if there is none, the first IGNORED one that overlaps it enough.
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
