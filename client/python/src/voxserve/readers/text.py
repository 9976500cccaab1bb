"""Reads text headers and rows of ascii numbers, for the PCD and PLY readers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_HEADER_BYTES = 1 << 20
_WORD = re.compile(r"[^ \t]+")
# How C libraries print NaN and infinity: nan, -nan(ind), nan(0x8000), inf, Infinity, and in older versions for Windows
# 1.#IND, -1.#INF00, 1.#QNAN0.
_NOT_FINITE = re.compile(
    r"[+-]?(?:(?P<nan>nan(?:\(\w*\))?|1\.#(?:ind|qnan|snan)0*)|inf(?:inity)?|1\.#inf0*)", re.IGNORECASE | re.ASCII
)


@dataclass(frozen=True)
class Skipped:
    """Values of a line that are not read: one number, or a list, which is the number of its values and then these."""

    is_list: bool = False


class BadNumberError(ValueError):
    """A word is no number."""


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


def number_of(word: str) -> float:
    """Returns the value of a word, a decimal number or a spelling of NaN or infinity; BadNumberError for another."""
    try:
        return float(word if word.isascii() and "_" not in word else "none")
    except ValueError:  # the spellings that Python lacks are rare
        pass
    match = _NOT_FINITE.fullmatch(word)
    if match is None:
        raise BadNumberError(word)
    if match["nan"]:
        return math.nan
    return -math.inf if word.startswith("-") else math.inf


def parse_points(
    lines: LineReader, num_points: int, columns: Sequence[npt.DTypeLike | Skipped], num_lines_behind: int = 0
) -> list[npt.NDArray[Any]]:
    """Reads num_points lines of len(columns) numbers each. columns: the type of each column, or Skipped. Returns one
    array [num_points] for each column that is not skipped.

    num_lines_behind: the most lines that may follow the points. Blank lines are skipped. ValueError if there are fewer
    or more lines, or if a line, which the message names, has another number of values or a value that its type cannot
    hold.
    """
    has_lists = any(isinstance(column, Skipped) and column.is_list for column in columns)
    rows: list[list[str]] = []
    numbers: list[int] = []
    while len(rows) < num_points:
        line = lines.next()
        if line is None:
            raise ValueError(f"the header promises {num_points} points, but {len(rows)} lines follow")
        words = split_words(line)
        if not words:
            continue
        if has_lists:
            words = _without_lists(words, columns, lines.num_lines)
        if len(words) != len(columns):
            raise ValueError(f"line {lines.num_lines} has {len(words)} values, not {len(columns)}")
        rows.append(words)
        numbers.append(lines.num_lines)
    check_end(lines, f"{num_points} points", num_lines_behind)
    kept = [(index, np.dtype(dtype)) for index, dtype in enumerate(columns) if not isinstance(dtype, Skipped)]
    return [_column([row[index] for row in rows], dtype, numbers) for index, dtype in kept]


def check_end(lines: LineReader, promised: str, num_lines: int) -> None:
    """Raises ValueError if more than num_lines lines follow that are not blank. promised: what the header promises
    before them, for the message.
    """
    while (line := lines.next()) is not None:
        if not split_words(line):
            continue
        num_lines -= 1
        if num_lines < 0:
            raise ValueError(
                f"the header promises {promised}, but more follow in line {lines.num_lines}; the header's count is "
                "wrong, or two files were joined"
            )


def _without_lists(words: list[str], columns: Sequence[npt.DTypeLike | Skipped], line: int) -> list[str]:
    """Returns the words with one word, the number of its values, for each list."""
    kept: list[str] = []
    at = 0
    for column in columns:
        if at >= len(words):
            raise ValueError(f"line {line} ends after {len(words)} values")
        kept.append(words[at])
        if isinstance(column, Skipped) and column.is_list:
            count = whole_number(words[at])
            if count is None or count > len(words) - at - 1:
                raise ValueError(f"line {line}: a list of '{words[at][:32]}' values, but {len(words) - at - 1} follow")
            at += count
        at += 1
    return kept + words[at:]


def _column(words: list[str], dtype: np.dtype[Any], lines: list[int]) -> npt.NDArray[Any]:
    values = np.empty(len(words), np.float64)
    for index, word in enumerate(words):
        try:
            values[index] = number_of(word)
        except BadNumberError:
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
