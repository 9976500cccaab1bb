"""The work folder of one file: its points by place, the answers so far, and the labels of finished leaves.

    note.json       the settings that the labels depend on; a run with other settings refuses the folder
    stored.json     {"points": N, "done": bool, "has_codes": bool}: the points of the file that are stored
    points/         the spool
    answers/TILE    the votes of a tile, until the leaves that it meets are finished
    labels/LEAF.npy the class and confidence of each point of a leaf; labels_N_SIZE/ without islands
    in_order        the same of all points in the file's order, while the copy is written
    lock            held while a process uses the folder

Every file appears when it is complete, so a run that is killed at any moment can be continued from the files.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve import input_file
from voxserve.maps.islands import Islands
from voxserve.maps.spool import Leaf
from voxserve.maps.tiles import Tile
from voxserve.maps.votes import Ballot
from voxserve.new_file import new_file

RESULT = np.dtype([("class", "<u2"), ("confidence", "<f4")])
Results = npt.NDArray[Any]  # of RESULT


class WorkError(ValueError):
    """A work folder cannot be used."""


class Work:
    """A work folder, which one process uses at a time. Thread-safe after begin()."""

    def __init__(self, folder: Path, note: Mapping[str, Any]) -> None:
        self.folder = folder
        self.points, self._answers = folder / "points", folder / "answers"
        self._answers.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(folder / "lock")
        self._check(note)

    def _check(self, note: Mapping[str, Any]) -> None:
        path = self.folder / "note.json"
        text = json.dumps(note, indent=1, sort_keys=True)
        if not path.exists():
            self._write(path, text)
            return
        noted = _json(path)
        if noted != json.loads(text):
            names = sorted(name for name in {*noted, *note} if noted.get(name) != json.loads(text).get(name))
            differs = ", ".join(f"{name}: {noted.get(name)}, now {note.get(name)}" for name in names)
            self.close()
            raise WorkError(f"{self.folder} was begun with other settings ({differs}); remove it to begin anew")

    def stored(self) -> dict[str, Any]:
        """Returns what stored.json says."""
        path = self.folder / "stored.json"
        return _json(path) if path.exists() else {"points": 0, "done": False, "has_codes": False}

    def set_stored(self, num_points: int, *, is_done: bool, has_codes: bool) -> None:
        stored = {"points": num_points, "done": is_done, "has_codes": has_codes}
        self._write(self.folder / "stored.json", json.dumps(stored))

    def has_answers(self) -> bool:
        """Returns whether the server has answered anything."""
        return any(self._answers.iterdir()) or (self.folder / "labels").exists()

    def has_answer(self, tile: Tile) -> bool:
        return (self._answers / tile.name).exists()

    def write_answer(self, tile: Tile, ballot: Ballot) -> None:
        arrays: dict[str, npt.NDArray[Any]] = {"leaves": np.array([tuple(leaf) for leaf, _, _ in ballot], np.int64)}
        for index, (_, positions, votes) in enumerate(ballot):
            arrays[f"p{index}"], arrays[f"v{index}"] = positions, votes
        with new_file(self._answers / tile.name) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    def read_answer(self, tile: Tile, leaf: Leaf) -> Ballot:
        """Returns the votes of a tile for the points of a leaf."""
        with np.load(self._answers / tile.name) as arrays:
            leaves = [Leaf(*numbers) for numbers in arrays["leaves"].tolist()]
            return [(leaf, arrays[f"p{i}"], arrays[f"v{i}"]) for i, other in enumerate(leaves) if other == leaf]

    def remove_answer(self, tile: Tile) -> None:
        (self._answers / tile.name).unlink(missing_ok=True)

    def has_labels(self, leaf: Leaf, islands: Islands | None = None) -> bool:
        return self._of(leaf, islands).exists()

    def write_labels(self, leaf: Leaf, results: Results, islands: Islands | None = None) -> None:
        """Writes the results of a leaf's points. islands: those that are absorbed; None: none are."""
        path = self._of(leaf, islands)
        path.parent.mkdir(exist_ok=True)
        with new_file(path) as file:
            np.save(file, results)

    def read_labels(self, leaf: Leaf, islands: Islands | None = None) -> Results:
        loaded: Results = np.load(self._of(leaf, islands))
        return loaded

    def _of(self, leaf: Leaf, islands: Islands | None) -> Path:
        name = "labels" if islands is None else f"labels_{islands.most}_{islands.size:g}"
        return self.folder / name / f"{leaf.name}.npy"

    def remove(self) -> None:
        """Removes the folder."""
        self.close()
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Lets other processes use the folder."""
        os.close(self._lock)

    @staticmethod
    def _write(path: Path, text: str) -> None:
        with new_file(path) as file:
            file.write(text.encode())


def _json(path: Path) -> dict[str, Any]:
    try:
        value = input_file.parse_json(input_file.read(path))
    except ValueError as error:
        raise WorkError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise WorkError(f"{path}: must be an object")
    return value


def _locked(path: Path) -> int:
    """Returns the descriptor of a lock file that no other process holds. WorkError if one does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        import fcntl
    except ImportError:  # Windows
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise WorkError(f"{path.parent}: another process works in this folder") from None
    except OSError:  # a file system without locks
        pass
    return descriptor
