"""Stores a file's points on disk by the place where they are, so that a tile can be read without the rest.

A leaf is a square of the ground with the points in it: one file. Squares have an edge of edge / 2^level metres and lie
on a grid that is anchored at the coordinates' zero, so they do not depend on the file's bounds. A leaf of more points
than a request may carry is split into its four quarters, as long as these are not smaller than min_edge.

All of it can be killed at any moment. append() is followed by the caller's note of how many points are stored;
truncate() removes what is beyond. A split is complete when the file of the split leaf is gone.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_PIECE = 1 << 20  # points that are read at once
_MOST_METRES = 1e9
Points = npt.NDArray[Any]  # structured; has the fields index, x and y


class Rect(NamedTuple):
    """A rectangle of the ground, in metres; its low sides belong to it."""

    x0: float
    y0: float
    x1: float
    y1: float

    def grown(self, metres: float) -> Rect:
        return Rect(self.x0 - metres, self.y0 - metres, self.x1 + metres, self.y1 + metres)

    def meets(self, other: Rect) -> bool:
        return self.x0 < other.x1 and other.x0 < self.x1 and self.y0 < other.y1 and other.y0 < self.y1

    def holds(self, points: Points) -> npt.NDArray[np.bool_]:
        """Returns which of the points lie in the rectangle."""
        x, y = points["x"], points["y"]
        inside: npt.NDArray[np.bool_] = (x >= self.x0) & (x < self.x1) & (y >= self.y0) & (y < self.y1)
        return inside

    def quarters(self) -> list[Rect]:
        x, y = (self.x0 + self.x1) / 2, (self.y0 + self.y1) / 2
        xs, ys = ((self.x0, x), (x, self.x1)), ((self.y0, y), (y, self.y1))
        return [Rect(low, bottom, high, top) for bottom, top in ys for low, high in xs]


class Leaf(NamedTuple):
    """The square number (i, j) of a level."""

    level: int
    i: int
    j: int

    @property
    def name(self) -> str:
        return f"{self.level}_{self.i}_{self.j}"

    @staticmethod
    def of_name(name: str) -> Leaf:
        level, i, j = (int(part) for part in name.split("_"))
        return Leaf(level, i, j)

    def rect(self, edge: float) -> Rect:
        """Returns the square, where squares of level 0 have this edge in metres."""
        size = edge / (1 << self.level)
        return Rect(self.i * size, self.j * size, (self.i + 1) * size, (self.j + 1) * size)


class Spool:
    """The stored points of one file, in a folder. One thread appends and splits; then many may read."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], edge: float) -> None:
        self.edge, self._folder, self._dtype = edge, folder, dtype
        folder.mkdir(parents=True, exist_ok=True)
        self._sizes: dict[Leaf, int] = {}

    def clear(self) -> None:
        """Removes all points."""
        shutil.rmtree(self._folder)
        self._folder.mkdir()
        self._sizes = {}

    def append(self, points: Points) -> None:
        """Stores more points, whose indices are above those of all stored points. ValueError for coordinates beyond
        10^9 m.
        """
        xy = np.stack([points["x"], points["y"]], axis=1)
        if len(xy) and not np.abs(xy).max() < _MOST_METRES:
            raise ValueError(f"coordinates reach {np.abs(xy).max():.3g} m; the scale in the header is likely wrong")
        for leaf, rows in _groups(xy, self.edge):
            with self._path(Leaf(0, *leaf)).open("ab") as file:
                file.write(points[rows].tobytes())

    def truncate(self, num_points: int) -> None:
        """Removes all points with an index of num_points or more."""
        for path in self._folder.iterdir():
            size = path.stat().st_size // self._dtype.itemsize
            with path.open("r+b") as file:
                while size:
                    file.seek((size - 1) * self._dtype.itemsize)
                    last = np.frombuffer(file.read(self._dtype.itemsize), self._dtype)
                    if int(last["index"][0]) < num_points:
                        break
                    size = self._first_above(file, num_points, size)
                file.truncate(size * self._dtype.itemsize)

    def _first_above(self, file: Any, num_points: int, size: int) -> int:
        """Returns the number of a leaf's points with an index below num_points, by bisection: they are ascending."""
        low, high = 0, size
        while low < high:
            middle = (low + high) // 2
            file.seek(middle * self._dtype.itemsize)
            index = int(np.frombuffer(file.read(self._dtype.itemsize), self._dtype)["index"][0])
            low, high = (middle + 1, high) if index < num_points else (low, middle)
        return low

    def split(self, most_points: int, min_edge: float) -> None:
        """Splits every leaf of more than most_points, as long as the quarters' edge is min_edge or more. Then the
        leaves are known. Also completes a split that was interrupted.
        """
        waiting = sorted(Leaf.of_name(path.name) for path in self._folder.iterdir() if "_" in path.name)
        there = set(waiting)
        for leaf in waiting:  # a leaf whose parent is still there is part of an incomplete split
            if _ancestors(leaf) & there:
                self._path(leaf).unlink()
                there.discard(leaf)
        waiting = sorted(there)
        self._sizes = {}
        while waiting:
            leaf = waiting.pop()
            size = self._path(leaf).stat().st_size // self._dtype.itemsize
            if size > most_points and self.edge / (2 << leaf.level) >= min_edge:
                waiting += self._split(leaf)
            elif size:
                self._sizes[leaf] = size

    def _split(self, leaf: Leaf) -> list[Leaf]:
        level = leaf.level + 1
        children: set[Leaf] = set()
        for points in self.read(leaf):
            xy = np.stack([points["x"], points["y"]], axis=1)
            for (i, j), rows in _groups(xy, self.edge / (1 << level)):
                child = Leaf(level, i, j)
                with self._path(child).open("ab" if child in children else "wb") as file:
                    file.write(points[rows].tobytes())
                children.add(child)
        self._path(leaf).unlink()
        return sorted(children)

    @property
    def sizes(self) -> dict[Leaf, int]:
        """The number of points of each leaf, after split()."""
        return self._sizes

    def read(self, leaf: Leaf) -> Iterator[Points]:
        """Yields the points of a leaf, ascending by index, in pieces."""
        with self._path(leaf).open("rb") as file:
            while len(points := np.fromfile(file, self._dtype, _PIECE)):
                yield points

    def _path(self, leaf: Leaf) -> Path:
        return self._folder / leaf.name


def _ancestors(leaf: Leaf) -> set[Leaf]:
    return {Leaf(leaf.level - n, leaf.i >> n, leaf.j >> n) for n in range(1, leaf.level + 1)}


def _groups(xy: npt.NDArray[np.float64], edge: float) -> Iterator[tuple[tuple[int, int], npt.NDArray[np.int64]]]:
    """Yields the squares that hold points, each with the rows of its points, ascending."""
    if not len(xy):
        return
    cells = np.floor(xy / edge).astype(np.int64)
    order = np.lexsort((cells[:, 0], cells[:, 1]))  # stable, so rows stay ascending
    ordered = cells[order]
    starts = np.flatnonzero(np.any(ordered[1:] != ordered[:-1], axis=1)) + 1
    for rows in np.split(order, starts):
        i, j = cells[rows[0]].tolist()
        yield (i, j), rows
