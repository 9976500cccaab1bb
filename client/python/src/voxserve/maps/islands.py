"""Gives small groups of points the class of their surroundings.

Points of one class are connected if their cubes of `size` metres touch. A connected group of fewer than `most` points
is an island. It gets the class that most points of larger groups have in the cubes that touch it; without any it stays.
The cubes lie on a grid that is anchored at the coordinates' zero, so a place's result does not depend on its tile, as
long as the points up to reach() around it are there.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_OFFSETS = [offset for offset in itertools.product((-1, 0, 1), repeat=3) if offset > (0, 0, 0)]  # half of the 26


@dataclass(frozen=True)
class Islands:
    """Which groups are islands."""

    most: int  # groups of fewer points
    size: float  # of a cube, metres

    @property
    def reach(self) -> float:
        """Metres around a place from which points matter: an island, a group beside it, and one cube each."""
        return 2 * (self.most + 1) * self.size


def absorb(
    xyz: npt.NDArray[np.float64], classes: npt.NDArray[np.integer], islands: Islands, none: int
) -> npt.NDArray[Any]:
    """Returns the classes [N] without islands. none: the class of points that have none; they are no island and
    surround none.
    """
    result = classes.copy()
    rows = np.flatnonzero(classes != none)
    if not len(rows):
        return result
    cells = np.floor(xyz[rows] / islands.size).astype(np.int64)
    cells -= cells.min(axis=0) - 1
    spans = cells.max(axis=0) + 2
    keys = (cells[:, 0] * spans[1] + cells[:, 1]) * spans[2] + cells[:, 2]
    num_classes = int(classes[rows].max()) + 1
    # A node is a class in a cube.
    nodes, node_of, sizes = np.unique(keys * num_classes + classes[rows], return_inverse=True, return_counts=True)
    strides = np.array([spans[1] * spans[2], spans[2], 1])
    group = _components(nodes, [int(np.dot(offset, strides)) * num_classes for offset in _OFFSETS])
    points_of = np.bincount(group, sizes, minlength=len(nodes))
    is_island = points_of[group] < islands.most
    if not is_island.any():
        return result
    new = _surroundings(nodes, sizes, group, is_island, num_classes, strides)
    of_node = np.where(is_island & (new[group] >= 0), new[group], nodes % num_classes)
    result[rows] = of_node[node_of.reshape(-1)]
    return result


def _components(nodes: npt.NDArray[np.int64], steps: list[int]) -> npt.NDArray[np.int64]:
    """Returns the first node of each node's group, where nodes whose numbers differ by a step are connected."""
    pairs = [_pairs(nodes, nodes, step) for step in steps]
    first = np.concatenate([low for low, _ in pairs])
    second = np.concatenate([high for _, high in pairs])
    root = np.arange(len(nodes))
    while True:
        # Each round links the roots of connected nodes to the lower one, and then flattens the trees.
        low, high = root[first], root[second]
        differ = low != high
        if not differ.any():
            return root
        first, second, low, high = first[differ], second[differ], low[differ], high[differ]
        np.minimum.at(root, np.maximum(low, high), np.minimum(low, high))
        while not np.array_equal(flat := root[root], root):
            root = flat


def _pairs(
    nodes: npt.NDArray[np.int64], others: npt.NDArray[np.int64], step: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the indices of all pairs with others[j] = nodes[i] + step. Both are ascending."""
    at = np.searchsorted(others, nodes + step)
    at[at == len(others)] = 0
    found = np.flatnonzero(others[at] == nodes + step)
    return found, at[found]


def _surroundings(
    nodes: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    group: npt.NDArray[np.int64],
    is_island: npt.NDArray[np.bool_],
    num_classes: int,
    strides: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Returns for each group, by its first node, the class that most points around it have; -1 without any."""
    inner, outer = np.flatnonzero(is_island), np.flatnonzero(~is_island)
    found = np.full(len(nodes), -1, np.int64)
    if not len(outer):
        return found
    # Cubes of each island, once, with every cube that touches them.
    touched = np.concatenate(
        [
            np.stack([group[inner], nodes[inner] // num_classes + int(np.dot(offset, strides))], axis=1)
            for offset in itertools.product((-1, 0, 1), repeat=3)
        ]
    )
    touched = np.unique(touched, axis=0)
    cubes = nodes[outer] // num_classes
    begin, end = np.searchsorted(cubes, touched[:, 1], "left"), np.searchsorted(cubes, touched[:, 1], "right")
    lengths = end - begin
    which = np.repeat(np.arange(len(touched)), lengths)
    at = outer[np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths) + np.repeat(begin, lengths)]
    key = touched[which, 0] * num_classes + nodes[at] % num_classes
    keys, where = np.unique(key, return_inverse=True)
    points = np.bincount(where.reshape(-1), sizes[at])
    # The last of the sorted keys of a group is the one with most points; of equal ones that of the lowest class.
    order = np.lexsort((-(keys % num_classes), points, keys // num_classes))
    found[keys[order] // num_classes] = keys[order] % num_classes
    return found
