"""The manifest of a long command: a row for each file with its result or its error.

.jsonl     a line of JSON for each file, as soon as it is done; a later line about a file replaces an earlier one
.parquet   a table, written at the end; until then the rows are in NAME.jsonl, which a later run continues
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from voxserve import input_file
from voxserve.new_file import new_file
from voxserve.pieces.reader import library

_ENDINGS = (".jsonl", ".parquet")


class Manifest:
    """Writes a manifest. Use it in a `with` block. Thread-safe. path: "" for none. ValueError for another extension."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        if not path:
            return
        if not path.lower().endswith(_ENDINGS):
            raise ValueError(f"--manifest {path}: must end in {' or '.join(_ENDINGS)}")
        is_table = path.lower().endswith(".parquet")
        self._lines = Path(f"{path}.jsonl" if is_table else path)
        if is_table:
            self._parquet: Any = library("pyarrow.parquet")
            if Path(path).exists() and not self._lines.exists():
                rows = self._parquet.read_table(path).to_pylist()
                self._lines.write_text("".join(_line(row) for row in rows), encoding="utf-8")
        self._file = self._lines.open("ab")
        _drop_half_line(self._lines)

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds the row of a file, whose path is in the column "file"."""
        if self._file is not None:
            with self._lock:
                self._file.write(_line(row).encode())
                self._file.flush()

    def __enter__(self) -> Manifest:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is None:
            return
        self._file.close()
        if self._path.lower().endswith(".parquet"):
            rows = {row["file"]: row for row in map(json.loads, self._lines.read_text("utf-8").splitlines())}
            table = library("pyarrow").Table.from_pylist([_flat(row) for row in rows.values()])
            with new_file(self._path) as file:
                self._parquet.write_table(table, file)
            self._lines.unlink()


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in row.items() if value is not None}) + "\n"


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the row with lists and objects as JSON texts, so that the rows of all files have the same columns."""
    return {name: json.dumps(v) if isinstance(v, (list, dict)) else v for name, v in row.items()}


def _drop_half_line(path: Path) -> None:
    """Removes a last line without an end, which a killed run has left."""
    contents = input_file.read(path)
    end = contents.rfind(b"\n") + 1
    if end < len(contents):
        os.truncate(path, end)
