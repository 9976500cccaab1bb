"""Computes the sites of sparse layers and the pairs of sites that a kernel connects (the rulebook). The code is simple
and slow, so that the results of faster code can be checked against it.

Sites are int64 [N, 1 + D]: the sample, then D coordinates in steps of the sites' stride.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Sites = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int64]
Values = npt.NDArray[Any]


def box(kernel_size: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the cells of a kernel, from 0 to size - 1 on each axis, in the order with the last axis fastest."""
    return list(itertools.product(*map(range, kernel_size)))


def deltas(
    kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int] | None = None
) -> list[tuple[int, ...]]:
    """Returns the offsets of a kernel, dilation * cell - padding for each of its cells, in the order with the last axis
    fastest. padding: None centres a kernel of odd size at 0, and lets one of even size begin at 0.
    """
    if padding is None:
        padding = [d * (k // 2) if k % 2 else 0 for k, d in zip(kernel_size, dilation, strict=True)]
    steps = list(zip(dilation, padding, strict=True))
    return [tuple(d * c - p for c, (d, p) in zip(cell, steps, strict=True)) for cell in box(kernel_size)]


def unique(sites: Values) -> Sites:
    """Returns the sites without repetitions, in ascending order."""
    sites = np.asarray(sites, np.int64)
    return np.unique(sites, axis=0) if len(sites) else sites


def rows_of(sites: Values, wanted: Values) -> Rows:
    """Returns the index in `sites` of each wanted site: [len(wanted)]; -1 if it is not among them."""
    return _looked_up(_numbered(sites), wanted)


def _numbered(sites: Values) -> dict[tuple[int, ...], int]:
    return {tuple(site): row for row, site in enumerate(sites.tolist())}


def _looked_up(rows: dict[tuple[int, ...], int], wanted: Values) -> Rows:
    return np.array([rows.get(tuple(site), -1) for site in wanted.tolist()], np.int64)


def moved(sites: Values, stride: Sequence[int], delta: Sequence[int]) -> Sites:
    """Returns stride * site + delta for each site."""
    result = np.array(sites, np.int64)
    result[:, 1:] = result[:, 1:] * np.asarray(stride, np.int64) + np.asarray(delta, np.int64)
    return result


def floored(sites: Values, stride: Sequence[int]) -> Sites:
    """Returns the sites floor(coordinates / stride), without repetitions."""
    result = np.array(sites, np.int64)
    result[:, 1:] //= np.asarray(stride, np.int64)
    return unique(result)


def reaching(sites: Values, stride: Sequence[int], deltas: Sequence[Sequence[int]]) -> Sites:
    """Returns the sites o for which stride * o + delta is an input site for some delta, without repetitions."""
    step, parts = np.asarray(stride, np.int64), [np.zeros((0, np.shape(sites)[1]), np.int64)]
    for delta in deltas:
        at = moved(sites, [1] * len(step), [-d for d in delta])
        at = at[(at[:, 1:] % step == 0).all(axis=1)]
        at[:, 1:] //= step
        parts.append(at)
    return unique(np.concatenate(parts))


def reached(sites: Values, stride: Sequence[int], deltas: Sequence[Sequence[int]]) -> Sites:
    """Returns the sites stride * site + delta for all sites and deltas, without repetitions."""
    return unique(np.concatenate([moved(sites, stride, delta) for delta in deltas]))


def within(sites: Sites, shape: Sequence[int]) -> Sites:
    """Returns the sites whose coordinates are at least 0 and below `shape` on each axis."""
    inside: Sites = sites[((sites[:, 1:] >= 0) & (sites[:, 1:] < np.asarray(shape))).all(axis=1)]
    return inside


@dataclass(frozen=True)
class KernelMap:
    """The pairs of a fine and a coarse site that a kernel connects: fine = stride * coarse + delta for one of its
    deltas.

    is_onto_fine: the layer computes the fine sites from the coarse ones, as an inverse or transposed convolution does;
        False: the coarse ones from the fine ones.
    """

    fine: Sites
    coarse: Sites
    stride: Sequence[int]
    deltas: Sequence[Sequence[int]]
    is_onto_fine: bool = False

    @property
    def targets(self) -> Sites:
        return self.fine if self.is_onto_fine else self.coarse

    def pairs(self) -> Iterator[tuple[Rows, Rows]]:
        """Yields, for each delta, the row numbers of the input sites and those of the output sites that they go to."""
        fine_rows = _numbered(self.fine)
        for delta in self.deltas:
            fine = _looked_up(fine_rows, moved(self.coarse, self.stride, delta))
            (coarse,) = np.nonzero(fine >= 0)
            fine = fine[coarse]
            yield (coarse, fine) if self.is_onto_fine else (fine, coarse)
