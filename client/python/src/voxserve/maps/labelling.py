"""Labels one file in four steps, each of which can be continued: stores its points by place, asks for the tiles,
absorbs islands, and writes the copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from voxserve import pieces
from voxserve.maps.features import Features
from voxserve.maps.islands import Islands, absorb
from voxserve.maps.legend import Legend
from voxserve.maps.spool import Leaf, Spool
from voxserve.maps.tiles import Plan, Tile
from voxserve.maps.votes import Ballot, add_up
from voxserve.maps.work import RESULT, Work
from voxserve.pieces import PieceReader

PIECE_POINTS = 1 << 20
NONE = 65535  # the class of a point without a label
Tell = Callable[[int, int], None]  # called with the number of points that are done, and that of all


@dataclass
class Counts:
    """What became of the points of a file."""

    points: int = 0
    unclassified: int = 0  # points without a label, or with less confidence than is asked for
    by_code: Counter[int] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def store(
    reader: PieceReader, features: Features, metres: Sequence[float], spool: Spool, work: Work, tell: Tell
) -> None:
    """Stores the file's points in the spool, from the first one that is not there. metres: those of a unit of x, y
    and z.
    """
    stored = work.stored()
    if stored["done"]:
        return
    before = int(stored["points"])
    spool.truncate(before)
    has_codes, number = bool(stored["has_codes"]), 0
    codes = reader.contents.codes
    for piece in reader.pieces(PIECE_POINTS):
        if number + len(piece) > before:
            points = features.store(piece, number, metres)
            spool.append(points[points["index"] >= before])
            has_codes = has_codes or bool(codes and np.any(piece.column(codes)))
            work.set_stored(number + len(piece), is_done=False, has_codes=has_codes)
        number += len(piece)
        tell(number, reader.contents.num_points)
    work.set_stored(number, is_done=True, has_codes=has_codes)


class Count:
    """Asks for all tiles of a plan and adds up their votes.

    ask: returns the votes of a tile; called from `concurrency` threads. ids: the model's class ids, in the order of the
    votes.
    """

    def __init__(self, plan: Plan, work: Work, spool: Spool, ask: Callable[[Tile], Ballot], ids: Sequence[int]) -> None:
        self._plan, self._work, self._spool, self._ask = plan, work, spool, ask
        self._ids = np.array(ids, np.uint16)
        self._finished = {leaf for leaf in spool.sizes if work.has_labels(leaf)}
        self._answered = {tile for tile in plan.tiles if work.has_answer(tile) or self._is_over(tile)}
        # The points of leaves whose labels are known.
        self.num_points = sum(spool.sizes[leaf] for leaf in self._finished)

    def _is_over(self, tile: Tile) -> bool:
        return all(leaf in self._finished for leaf in self._plan.leaves_of[tile])

    def run(self, concurrency: int, tell: Tell, order: Sequence[Tile] | None = None) -> None:
        """Asks for the tiles that have no answer yet, and finishes each leaf as soon as all of its votes are there.
        order: of the tiles; it does not matter to the labels.
        """
        waiting = [tile for tile in order or self._plan.tiles if tile not in self._answered]
        for leaf in set(self._spool.sizes) - self._finished:
            self._finish_if_answered(leaf)
        waiting.reverse()
        futures: dict[Future[None], Tile] = {}
        with ThreadPoolExecutor(concurrency) as pool:
            try:
                while waiting or futures:
                    while waiting and len(futures) < concurrency:
                        tile = waiting.pop()
                        futures[pool.submit(self._ask_and_keep, tile)] = tile
                    done, _ = wait(futures, return_when=FIRST_COMPLETED)
                    for future in done:
                        tile = futures.pop(future)
                        future.result()
                        self._answered.add(tile)
                        for leaf in self._plan.leaves_of[tile]:
                            self._finish_if_answered(leaf)
                        tell(self.num_points, sum(self._spool.sizes.values()))
            finally:
                for future in futures:
                    future.cancel()

    def _ask_and_keep(self, tile: Tile) -> None:
        self._work.write_answer(tile, self._ask(tile))

    def _finish_if_answered(self, leaf: Leaf) -> None:
        tiles = self._plan.tiles_of[leaf]
        if leaf in self._finished or not all(tile in self._answered for tile in tiles):
            return
        ballots = (self._work.read_answer(tile, leaf) for tile in tiles)
        votes = add_up(ballots, self._spool.sizes[leaf], len(self._ids))
        results = np.empty(len(votes), RESULT)
        total = votes.sum(axis=1, dtype=np.int64)
        best = votes.argmax(axis=1)
        results["class"] = np.where(total > 0, self._ids[best], NONE)
        most = votes[np.arange(len(votes)), best]
        results["confidence"] = np.divide(most, total, out=np.zeros(len(votes)), where=total > 0)
        self._work.write_labels(leaf, results)
        self._finished.add(leaf)
        self.num_points += len(results)
        for tile in tiles:
            if self._is_over(tile):
                self._work.remove_answer(tile)


def absorb_islands(plan: Plan, spool: Spool, work: Work, islands: Islands, tell: Tell) -> None:
    """Writes the labels of each leaf without islands. All leaves have labels."""
    done, total = 0, sum(spool.sizes.values())
    for leaf, size in sorted(spool.sizes.items()):
        if not work.has_labels(leaf, islands):
            rect = leaf.rect(spool.edge)
            parts = plan.read(rect.grown(islands.reach))
            points = np.concatenate([part.points for part in parts])
            xyz = np.stack([points[axis] for axis in "xyz"], axis=1)
            classes = np.concatenate([work.read_labels(part.leaf)["class"][part.positions] for part in parts])
            new = absorb(xyz, classes, islands, NONE)
            ends = np.cumsum([len(part.positions) for part in parts])
            index = next(i for i, part in enumerate(parts) if part.leaf == leaf)
            results = work.read_labels(leaf)
            results["class"][parts[index].positions] = new[ends[index] - len(parts[index].positions) : ends[index]]
            work.write_labels(leaf, results, islands)
        done += size
        tell(done, total)


def write(
    path: str,
    reader: PieceReader,
    spool: Spool,
    work: Work,
    legend: Legend,
    least_confidence: float,
    islands: Islands | None,
    tell: Tell,
) -> Counts:
    """Writes the copy of the file with the labels. Points with less than least_confidence are unclassified."""
    stored = work.stored()
    in_order = _write_in_order(spool, work, islands, int(stored["points"]))
    codes = np.full(NONE + 1, legend.unclassified, np.uint16)
    for class_id, code in legend.codes.items():
        codes[class_id] = code
    counts = Counts()
    keeps_codes = bool(stored["has_codes"])
    pieces.remove_abandoned(path)
    with pieces.open_writer(path, reader, legend.names, keeps_codes=keeps_codes) as writer, in_order.open("rb") as file:
        for piece in reader.pieces(PIECE_POINTS):
            # Mapped pages would count as this process's memory, so the file is read.
            rows = np.fromfile(file, RESULT, len(piece))
            confidence = rows["confidence"].copy()
            classes = np.where(confidence < least_confidence, NONE, rows["class"])
            written = codes[classes]
            writer.write(piece, written, confidence)
            values, numbers = np.unique(written, return_counts=True)
            counts.by_code.update(dict(zip(values.tolist(), numbers.tolist(), strict=True)))
            counts.points += len(piece)
            counts.unclassified += int(np.count_nonzero(classes == NONE))
            tell(counts.points // writer.passes, reader.contents.num_points)
        writer.arrange(lambda done: tell((counts.points + done) // writer.passes, counts.points))
        counts.notes = writer.notes
    return counts


def _write_in_order(spool: Spool, work: Work, islands: Islands | None, num_points: int) -> Path:
    """Writes the results of all points in the file's order to a file of the work folder. Points that no leaf has, since
    their coordinates are not finite, have no class.
    """
    path = work.folder / "in_order"
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        nothing = np.full(min(num_points, PIECE_POINTS), np.array((NONE, 0), RESULT))
        for first in range(0, num_points, PIECE_POINTS):
            file.write(nothing[: num_points - first].tobytes())
    for leaf in sorted(spool.sizes):
        results = work.read_labels(leaf, islands)
        # It is mapped anew for each leaf, so that no pages pile up in this process.
        ordered = np.memmap(path, RESULT, "r+")
        begin = 0
        for points in spool.read(leaf):
            ordered[points["index"].astype(np.int64)] = results[begin : begin + len(points)]
            begin += len(points)
        ordered.flush()
        del ordered
    return path
