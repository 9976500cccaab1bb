"""Sorts points into the nodes of an octree, with memory for about a million points and an unfinished node a level.

A node has those points of its cube that its parents do not have: one of each cell of a grid of 128 cells a side, or all
that are left if the cube has at most LEAF_POINTS. So each level shows the whole cloud, twice as fine as the level above
it (Potree, Entwine, COPC). Which point of a cell is taken depends on the points alone, so equal files have equal trees.

The points are sorted by Morton codes in files (a distribution sort by 21 bits at a time), so a node's points follow
each other, and a node is complete when the next one of its level begins. A point is in at most two files at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from voxserve.pieces.reader import Array

LEAF_POINTS = 40_000
GRID_BITS = 7
_BITS = 21  # of each axis of a Morton code
_TOP_SHIFT = 3 * (_BITS - GRID_BITS)
_NUM_CELLS = 1 << 3 * GRID_BITS
_SPREAD = np.array([sum((i >> bit & 1) << 3 * bit for bit in range(GRID_BITS)) for i in range(128)], np.uint64)

Codes = npt.NDArray[np.uint64]
# A table belongs to a grid of 128 cells a side. Entry i is the number of points in the cells before cell i, in Morton
# order; the last entry is the number of all points. The grid of the first table divides the whole cube, that of the
# next one divides one cell of the first, and so on.
Tables = tuple[npt.NDArray[np.int64], ...]
Key = tuple[int, int, int, int]  # level, x, y, z


@dataclass(frozen=True)
class Records:
    """Records that follow each other in a file."""

    file: BinaryIO
    dtype: np.dtype[Any]
    first_byte: int
    number: int

    def read(self, first: int, number: int) -> Array:
        """Returns up to `number` records from `first` on."""
        self.file.seek(self.first_byte + first * self.dtype.itemsize)
        number = min(number, self.number - first)
        return np.frombuffer(self.file.read(number * self.dtype.itemsize), self.dtype)

    def pieces(self, number: int) -> Iterator[Array]:
        for first in range(0, self.number, number):
            yield self.read(first, number)


def codes_of(xyz: npt.NDArray[np.float64], minimum: npt.NDArray[np.float64], size: float) -> Codes:
    """Returns the Morton codes [N] of points [N, 3] in the cube of edge `size` at `minimum`. Bit 0 is that of x."""
    cells = np.floor((xyz - minimum) * ((1 << _BITS) / size))
    cells = np.clip(cells, 0, (1 << _BITS) - 1).astype(np.int64)
    codes = np.zeros(len(xyz), np.uint64)
    for axis in range(3):
        for shift in range(0, _BITS, GRID_BITS):
            codes |= _SPREAD[cells[:, axis] >> shift & 127] << np.uint64(3 * shift + axis)
    return codes


class Octree:
    """An octree of the records. code_of: returns the Morton codes of records. folder: for temporary files.
    bucket_points: so many points are sorted in memory at once. If there are more, nodes() cuts the file off where the
    records begin, so nothing else may follow them there, and nodes() can be called once.
    """

    def __init__(
        self, records: Records, code_of: Callable[[Array], Codes], folder: str, bucket_points: int = 1 << 19
    ) -> None:
        self._records, self._code_of, self._folder = records, code_of, folder
        self._bucket_points = bucket_points
        self._tables = (self._table(records, _TOP_SHIFT),)

    def nodes(self) -> Iterator[tuple[Key, Array]]:
        """Yields the key and the records of each node that has some."""
        waiting: list[tuple[int, list[Array]]] = [(-1, [])] * (_BITS + 1)
        last_cells = [-1] * _BITS  # of each level: the cell of its grid of which a point was taken last
        for records, tables in self._buckets(self._records, self._tables):
            codes = self._code_of(records)
            order = np.argsort(codes, kind="stable")
            codes, records = codes[order], records[order]
            levels = self._levels(codes, tables, last_cells)
            for level in np.unique(levels).tolist():
                rows = np.flatnonzero(levels == level)
                ids = _ids(codes[rows], level)
                for part in np.split(rows, np.flatnonzero(ids[1:] != ids[:-1]) + 1):
                    node = int(_ids(codes[part[:1]], level)[0])
                    if node != waiting[level][0]:
                        yield from _whole(level, *waiting[level])
                        waiting[level] = (node, [])
                    waiting[level][1].append(records[part])
        for level, (node, parts) in enumerate(waiting):
            yield from _whole(level, node, parts)

    def _table(self, records: Records, shift: int) -> npt.NDArray[np.int64]:
        counts = np.zeros(_NUM_CELLS, np.int64)
        for piece in records.pieces(self._bucket_points):
            counts += np.bincount(_cells(self._code_of(piece), shift), minlength=_NUM_CELLS)
        return np.concatenate([[0], np.cumsum(counts)])

    def _buckets(self, records: Records, tables: Tables) -> Iterator[tuple[Array, Tables]]:
        """Yields all records in groups that follow each other by their codes, each with its tables: a group has whole
        cells of the last one. The records are in one cell of the table before the last of `tables`, which is theirs.
        A group is larger than memory allows only if so many points are at one place.
        """
        if records.number <= self._bucket_points:
            yield records.read(0, records.number), tables
            return
        counts, shift = np.diff(tables[-1]), _TOP_SHIFT - 3 * GRID_BITS * (len(tables) - 1)
        cells = np.flatnonzero(counts)
        sizes = counts[cells]
        share = (np.cumsum(sizes) - sizes) // self._bucket_points
        is_large = sizes > self._bucket_points
        begins = np.flatnonzero(np.diff(share, prepend=-1) | is_large | np.concatenate([[False], is_large[:-1]]))
        bucket_of = np.zeros(_NUM_CELLS, np.int64)
        bucket_of[cells] = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(cells)))
        bucket_sizes = np.add.reduceat(sizes, begins)
        places = records.number - np.cumsum(bucket_sizes)  # the first bucket is the last in the file
        width = records.dtype.itemsize
        with tempfile.TemporaryFile(dir=self._folder) as file:
            place = places.copy()
            for piece in records.pieces(self._bucket_points):
                buckets = bucket_of[_cells(self._code_of(piece), shift)]
                order = np.argsort(buckets, kind="stable")
                numbers = np.bincount(buckets, minlength=len(places))
                sorted_piece, first = piece[order], 0
                for bucket in np.flatnonzero(numbers).tolist():
                    file.seek(int(place[bucket]) * width)
                    file.write(sorted_piece[first : first + numbers[bucket]].tobytes())
                    first += int(numbers[bucket])
                place += numbers
            records.file.truncate(records.first_byte)  # behind them are only records that were yielded
            for first, size in zip(places.tolist(), bucket_sizes.tolist(), strict=True):
                part = Records(file, records.dtype, first * width, size)
                if size > 2 * self._bucket_points and shift:
                    yield from self._buckets(part, (*tables, self._table(part, shift - 3 * GRID_BITS)))
                else:
                    yield part.read(0, size), tables

    def _levels(self, codes: Codes, tables: Tables, last_cells: list[int]) -> npt.NDArray[np.int8]:
        """Returns the level of each point of a bucket, whose codes are sorted."""
        levels = np.full(len(codes), _BITS, np.int8)
        left = np.arange(len(codes))
        for level in range(_BITS):
            is_leaf = _num_points(_ids(codes[left], level), level, codes, tables) <= LEAF_POINTS
            levels[left[is_leaf]] = level
            left = left[~is_leaf]
            if not len(left):
                break
            cells = _ids(codes[left], min(level + GRID_BITS, _BITS))
            begins = np.concatenate([[0], np.flatnonzero(cells[1:] != cells[:-1]) + 1])
            sizes = np.diff(begins, append=len(cells)).astype(np.uint64)
            mixed = cells[begins] * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
            taken = begins + (mixed % sizes).astype(np.int64)
            if cells[0] == last_cells[level]:
                taken = taken[1:]  # the bucket before has a point of this cell
            last_cells[level] = int(cells[-1])
            levels[left[taken]] = level
            left = np.delete(left, taken)
        return levels


def _num_points(ids: Codes, level: int, codes: Codes, tables: Tables) -> npt.NDArray[np.int64]:
    """Returns how many points the cube of each point's node has. ids: of the nodes, sorted. codes, tables: those of the
    bucket, which has all points of a node that is finer than the tables.
    """
    begins = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1]) if len(ids) else np.zeros(0, np.int64)
    nodes = ids[begins]
    table = max(0, level - 1) // GRID_BITS
    if table < len(tables):
        bits = 3 * (level - table * GRID_BITS)
        nodes, shift, before = nodes & np.uint64((1 << bits) - 1), np.uint64(3 * GRID_BITS - bits), tables[table]
        found = before[(nodes + np.uint64(1)) << shift] - before[nodes << shift]
    else:
        shift = np.uint64(3 * (_BITS - level))
        found = np.searchsorted(codes, (nodes + np.uint64(1)) << shift) - np.searchsorted(codes, nodes << shift)
    return np.repeat(found, np.diff(begins, append=len(ids)))


def _cells(codes: Codes, shift: int) -> npt.NDArray[np.int64]:
    return (codes >> np.uint64(shift)).astype(np.int64) & (_NUM_CELLS - 1)


def _ids(codes: Codes, level: int) -> Codes:
    """Returns the number of the node of a level that each code is in."""
    return codes >> np.uint64(3 * (_BITS - level))


def _whole(level: int, node: int, parts: list[Array]) -> Iterator[tuple[Key, Array]]:
    if parts:
        x, y, z = (sum((node >> 3 * bit + axis & 1) << bit for bit in range(level)) for axis in range(3))
        yield (level, x, y, z), np.concatenate(parts)
