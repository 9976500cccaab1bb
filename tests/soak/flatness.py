"""Judges whether a series of samples stays flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Trend:
    """Growth of a series after its warm-up, in its own unit."""

    first: float  # median of the first third
    last: float  # median of the last third
    slope: float  # per hour, in the last two thirds: the median over all pairs of samples (Theil-Sen)
    drift: float  # the slope times the length of the last two thirds
    most: float  # the largest sample, warm-up included

    @property
    def growth(self) -> float:
        """Returns the growth that is compared with the limit. The slope alone would count a first step as growth, and
        the medians alone would miss growth that has just begun.
        """
        return max(self.last - self.first, self.drift)


def trend_of(seconds: Sequence[float], values: Sequence[float], warm_up: float) -> Trend:
    """Returns the trend after the warm-up. Values may be NaN, which is skipped. Raises ValueError below 6 values."""
    all_t, all_y = np.asarray(seconds, float), np.asarray(values, float)
    is_used = (all_t >= warm_up) & ~np.isnan(all_y)
    t, y = all_t[is_used], all_y[is_used]
    if len(t) < 6:
        raise ValueError(f"{len(t)} samples after the warm-up; 6 are needed")
    first = y[t < t[0] + (t[-1] - t[0]) / 3]
    later = t >= t[0] + (t[-1] - t[0]) / 3
    last = y[t > t[0] + (t[-1] - t[0]) * 2 / 3]
    slope = _theil_sen(t[later], y[later])
    span = t[later][-1] - t[later][0]
    return Trend(
        float(np.median(first)), float(np.median(last)), slope * 3600, slope * float(span), float(np.nanmax(all_y))
    )


def _theil_sen(t: np.ndarray, y: np.ndarray) -> float:
    i, j = np.triu_indices(len(t), 1)
    return float(np.median((y[j] - y[i]) / (t[j] - t[i]))) if len(t) > 1 else 0.0
