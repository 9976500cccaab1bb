"""Decides which tiles a cloud is asked in, and reads the points of one.

- The first pass has a tile for each leaf of the spool. The second pass (--passes 2) has tiles that are moved by half an
  edge in x and y, so that every place is well inside a tile of one of the passes.
- A tile is sent with the points around it, up to the overlap. A point's vote counts by its distance from the outer
  side: from nearly 0 there to 1 at twice the overlap.
- If the overlap has the model's whole reach, the points within the reach of the outer side do not vote, since the
  network did not see all around them. Then the answers are those of the unsplit cloud.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from voxserve.maps.spool import Leaf, Points, Rect, Spool

_LEAST_WEIGHT = 1 / 64
_ROUNDING = 1e-6  # metres


class Tile(NamedTuple):
    """A part of the ground that is asked as one: the square of a leaf, or one that is moved by half of its edge."""

    number: int  # of the pass, 0 or 1
    leaf: Leaf

    @property
    def name(self) -> str:
        return f"{self.number}_{self.leaf.name}"

    def rect(self, edge: float) -> Rect:
        """Returns the tile's rectangle, where leaves of level 0 have this edge in metres."""
        rect, half = self.leaf.rect(edge), self.number * edge / 2
        return Rect(rect.x0 + half, rect.y0 + half, rect.x1 + half, rect.y1 + half)


class Part(NamedTuple):
    """The points of a leaf that a request had."""

    leaf: Leaf
    positions: npt.NDArray[np.uint32]  # in the leaf
    points: Points


class Plan:
    """The tiles of a spool, whose leaves are known."""

    def __init__(self, spool: Spool, overlap: float, num_passes: int, reach: float = 0) -> None:
        """reach: in metres; 0: unbounded or not known."""
        self._spool, self.overlap = spool, overlap
        self._unseen = reach if reach <= overlap else 0.0
        self._by_square: Mapping[tuple[int, int], list[Leaf]] = self._index()
        tiles = [Tile(0, leaf) for leaf in spool.sizes]
        if num_passes > 1:
            moved = {(i - a, j - b) for i, j in self._by_square for a in (0, 1) for b in (0, 1)}
            tiles += [Tile(1, Leaf(0, i, j)) for i, j in moved]
        # Neighbours follow each other, so that the votes of few leaves wait for further ones.
        self.tiles = sorted(tiles, key=lambda tile: (*reversed(tile.rect(spool.edge)[:2]), tile))
        self.leaves_of = {tile: list(self._leaves_in(self.sent_rect(tile.rect(spool.edge)))) for tile in self.tiles}
        self.tiles_of: dict[Leaf, list[Tile]] = defaultdict(list)
        for tile, leaves in self.leaves_of.items():
            for leaf in leaves:
                self.tiles_of[leaf].append(tile)

    def _index(self) -> dict[tuple[int, int], list[Leaf]]:
        index: dict[tuple[int, int], list[Leaf]] = defaultdict(list)
        for leaf in sorted(self._spool.sizes):
            index[leaf.i >> leaf.level, leaf.j >> leaf.level].append(leaf)
        return index

    def sent_rect(self, rect: Rect) -> Rect:
        """Returns the rectangle whose points a request for `rect` has."""
        return rect.grown(self.overlap)

    def _leaves_in(self, rect: Rect) -> Iterator[Leaf]:
        edge = self._spool.edge
        (low_i, low_j), (high_i, high_j) = (np.floor(np.array(corner) / edge).astype(int) for corner in
                                            ((rect.x0, rect.y0), (rect.x1, rect.y1)))  # fmt: skip
        for j in range(low_j, high_j + 1):
            for i in range(low_i, high_i + 1):
                for leaf in self._by_square.get((i, j), ()):
                    if leaf.rect(edge).meets(rect):
                        yield leaf

    def count(self, rect: Rect) -> int:
        """Returns the number of points in a rectangle."""
        return sum(
            int(np.count_nonzero(rect.holds(points)))
            for leaf in self._leaves_in(rect)
            for points in self._spool.read(leaf)
        )

    def read(self, rect: Rect, share: int = 0, num_shares: int = 1) -> list[Part]:
        """Returns the points in a rectangle; of num_shares shares, only each num_shares-th point from `share` on."""
        parts: list[Part] = []
        rank = 0
        for leaf in self._leaves_in(rect):
            begin = 0
            kept, positions = [], []
            for points in self._spool.read(leaf):
                rows = np.flatnonzero(rect.holds(points))
                chosen = rows[(rank + np.arange(len(rows))) % num_shares == share]
                rank += len(rows)
                kept.append(points[chosen])
                positions.append((chosen + begin).astype(np.uint32))
                begin += len(points)
            if sum(map(len, kept)):
                parts.append(Part(leaf, np.concatenate(positions), np.concatenate(kept)))
        return parts

    def weights(self, points: Points, rect: Rect) -> npt.NDArray[np.float64]:
        """Returns how much the votes of points count that were asked for `rect`: 1/64 to 1, or 0."""
        if not self.overlap:
            return np.ones(len(points))
        outer = self.sent_rect(rect)
        inside = np.minimum(
            np.minimum(points["x"] - outer.x0, outer.x1 - points["x"]),
            np.minimum(points["y"] - outer.y0, outer.y1 - points["y"]),
        )
        inside += _ROUNDING - self._unseen
        width = max(2 * (self.overlap - self._unseen), _ROUNDING)
        weights: npt.NDArray[np.float64] = np.clip(inside / width, _LEAST_WEIGHT, 1)
        if self._unseen:
            weights[inside < 0] = 0
        return weights
