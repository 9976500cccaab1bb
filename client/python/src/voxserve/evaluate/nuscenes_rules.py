"""Computes average precision by nuScenes' rules: a found box is right if its centre is close to that of a true box.

Source: Caesar et al., "nuScenes: a multimodal dataset for autonomous driving" (2020). The found boxes take true boxes
in descending order of their scores. Each one takes the free true box of its class whose centre, seen from above, is
nearest, if it is close enough. Average precision is the mean, over the recalls above 10%, of max(precision - 10%, 0),
divided by 90%. The errors of position, size, yaw and velocity are those of matches within 2 m. They are averaged over
the recalls above 10% that are reached; the error at a recall is the mean over the matches up to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

DISTANCES = (0.5, 1.0, 2.0, 4.0)  # metres; average precision is computed for each
ERROR_DISTANCE = 2.0  # metres
ERRORS = ("translation", "scale", "orientation", "velocity")  # metres, 1 - IoU, radians, metres per second
_MIN_RECALL = _MIN_PRECISION = 0.1
_RECALLS = np.linspace(0, 1, 101)


@dataclass(frozen=True)
class ClassFrame:
    """One frame's boxes of one class."""

    true: Array  # [T, 7], as Detections.boxes
    true_velocities: Array  # [T, 2] metres per second; NaN if unknown
    found: Array  # [F, 7]
    found_velocities: Array  # [F, 2]
    scores: Array  # [F]


@dataclass(frozen=True)
class ClassResult:
    """The results of one class at one of DISTANCES."""

    ap: float  # average precision, 0 to 1; NaN if there are no true boxes
    errors: dict[str, float] = field(default_factory=dict)  # by the names in ERRORS; 1 if no recall is above 10%


def evaluate(frames: Sequence[ClassFrame], max_distance: float, period: float = 2 * np.pi) -> ClassResult:
    """Evaluates one class. A match is closer than max_distance (metres). period: the angle in radians after which a box
    looks the same: 2 pi, or pi for barriers, which have no front.
    """
    num_true = sum(len(frame.true) for frame in frames)
    if num_true == 0:
        return ClassResult(float("nan"))
    order = sorted(
        ((float(score), f, i) for f, frame in enumerate(frames) for i, score in enumerate(frame.scores)), reverse=True
    )
    is_free = [np.ones(len(frame.true), bool) for frame in frames]
    hits: list[bool] = []
    scores: list[float] = []
    errors: dict[str, list[float]] = {name: [] for name in ERRORS}
    hit_scores: list[float] = []
    for score, f, i in order:
        frame = frames[f]
        distances = np.linalg.norm(frame.true[:, :2] - frame.found[i, :2], axis=1)
        distances = np.where(is_free[f], distances, np.inf)
        nearest = int(np.argmin(distances)) if len(distances) else 0
        is_hit = bool(len(distances)) and bool(distances[nearest] < max_distance)
        hits.append(is_hit)
        scores.append(score)
        if is_hit:
            is_free[f][nearest] = False
            hit_scores.append(score)
            for name, value in zip(ERRORS, _errors(frame, nearest, i, period), strict=True):
                errors[name].append(value)
    if not hit_scores:
        return ClassResult(0.0, dict.fromkeys(ERRORS, 1.0))
    number = np.cumsum(hits).astype(np.float64)
    precision = number / np.arange(1, len(hits) + 1)
    recall = number / num_true
    at_recalls = np.interp(_RECALLS, recall, precision, right=0)
    confidence = np.interp(_RECALLS, recall, np.array(scores), right=0)
    first = round(100 * _MIN_RECALL) + 1
    ap = float(np.maximum(at_recalls[first:] - _MIN_PRECISION, 0).mean() / (1 - _MIN_PRECISION))
    return ClassResult(
        ap, {name: _mean_error(values, hit_scores, confidence, first) for name, values in errors.items()}
    )


def _mean_error(values: Sequence[float], hit_scores: Sequence[float], confidence: Array, first: int) -> float:
    reached = np.flatnonzero(confidence)
    last = int(reached[-1]) if len(reached) else 0
    if last < first:
        return 1.0
    means = _running_means(np.array(values))
    at_recalls = np.interp(confidence[::-1], np.array(hit_scores)[::-1], means[::-1])[::-1]
    return float(at_recalls[first : last + 1].mean())


def _running_means(values: Array) -> Array:
    """Returns the mean of the first 1, 2, 3, ... values: [N]. NaN values are ignored; a mean of no values is 0. If all
    values are NaN, every mean is 1.
    """
    known = np.isfinite(values)
    if not known.any():
        return np.ones(len(values))
    numbers = np.cumsum(known)
    means: Array = np.divide(np.nancumsum(values), numbers, out=np.zeros(len(values)), where=numbers > 0)
    return means


def _errors(frame: ClassFrame, true: int, found: int, period: float) -> tuple[float, float, float, float]:
    a, b = frame.true[true], frame.found[found]
    common = float(np.prod(np.minimum(a[3:6], b[3:6])))
    union = float(np.prod(a[3:6]) + np.prod(b[3:6])) - common
    turn = (a[6] - b[6] + period / 2) % period - period / 2
    return (
        float(np.linalg.norm(a[:2] - b[:2])),
        1 - common / union if union > 0 else 1.0,
        abs(float(turn)),
        float(np.linalg.norm(frame.found_velocities[found] - frame.true_velocities[true])),
    )
