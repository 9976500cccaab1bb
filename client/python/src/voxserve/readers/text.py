"""Reads text headers and rows of ascii numbers, for the PCD and PLY readers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_HEADER_BYTES = 1 << 20
_WORD = re.compile(r"[^ \t]+")


class LineReader:
    """Reads the lines of a file whose later part may be binary. `position` is the number of bytes that it has read, and
    num_lines the number of lines.
    """

    def __init__(self, contents: bytes) -> None:
        self._contents = contents
        self.position = 0
        self.num_lines = 0

    def next(self) -> str | None:
        """Returns the next line without its line break; None at the end of the file."""
        if self.position >= len(self._contents):
            return None
        end = self._contents.find(b"\n", self.position)
        end = len(self._contents) if end < 0 else end
        line = self._contents[self.position : end]
        self.position = end + 1
        self.num_lines += 1
        return line.removesuffix(b"\r").decode("latin-1")


def split_words(line: str) -> list[str]:
    """Splits a line at blanks and tabs."""
    return _WORD.findall(line)


def parse_points(lines: LineReader, num_points: int, columns: Sequence[npt.DTypeLike | None]) -> list[npt.NDArray[Any]]:
    """Reads num_points lines of len(columns) numbers each. columns: the type of each column; None skips it. Returns one
    array [num_points] for each column that is not skipped.

    Blank lines are skipped. ValueError if lines are missing, or if a line, which the message names, has another number
    of values or a value that its type cannot hold.
    """
    rows: list[list[str]] = []
    numbers: list[int] = []
    while len(rows) < num_points:
        line = lines.next()
        if line is None:
            raise ValueError(f"the header promises {num_points} points, but {len(rows)} lines follow")
        words = split_words(line)
        if not words:
            continue
        if len(words) != len(columns):
            raise ValueError(f"line {lines.num_lines} has {len(words)} values, not {len(columns)}")
        rows.append(words)
        numbers.append(lines.num_lines)
    kept = [(index, np.dtype(dtype)) for index, dtype in enumerate(columns) if dtype is not None]
    return [_column([row[index] for row in rows], dtype, numbers) for index, dtype in kept]


def _column(words: list[str], dtype: np.dtype[Any], lines: list[int]) -> npt.NDArray[Any]:
    values = np.empty(len(words), np.float64)
    for index, word in enumerate(words):
        try:
            values[index] = float(word if word.isascii() and "_" not in word else "none")
        except ValueError:
            raise ValueError(f"line {lines[index]}: '{word[:32]}' is not a number") from None
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        bad = ~((values >= limits.min) & (values <= limits.max) & (np.floor(values) == values))
        if bad.any():
            index = int(bad.argmax())
            raise ValueError(f"line {lines[index]}: '{words[index][:32]}' does not fit {dtype.name}")
    elif dtype.itemsize < 8:
        bad = np.isfinite(values) & (np.abs(values) > np.finfo(dtype).max)
        if bad.any():
            index = int(bad.argmax())
            raise ValueError(f"line {lines[index]}: '{words[index][:32]}' does not fit {dtype.name}")
    return values.astype(dtype)


def whole_number(text: str) -> int | None:
    """Returns the value of a count in a header; None if the text is not a whole number, or has more than 18 digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
