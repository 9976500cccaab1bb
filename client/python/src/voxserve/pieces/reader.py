"""The interface of large point files, which are read in pieces so that memory does not grow with the file."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
# The columns whose unit follows from the range of their type or from the file's header.
SHARES = ("intensity", "reflectivity", "red", "green", "blue", "nir")


@dataclass(frozen=True)
class Piece:
    """Some successive points of a file."""

    xyz: npt.NDArray[np.float64]  # [N, 3] in the file's unit; a point that the file marks as invalid is NaN
    column: Callable[[str], Array]  # returns the values [N] of a column by its name
    record: Any = None  # the points as the format's library has them, for a writer of the same format

    def __len__(self) -> int:
        return len(self.xyz)


@dataclass
class Contents:
    """What a file's header tells of its points."""

    num_points: int  # as the header promises
    dtypes: dict[str, np.dtype[Any]]  # of the columns other than the coordinates, in the file's order
    # The values of a column that stand for 0 and 1, such as (0, 65535) for the intensities of LAS.
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    # The types in the file of columns that are floats in `dtypes` because values are missing, which are NaN.
    integers: dict[str, np.dtype[Any]] = field(default_factory=dict)
    metres: tuple[float, float, float] = (1.0, 1.0, 1.0)  # metres per unit of x, y and z
    is_geographic: bool = False  # the header says that coordinates are degrees
    has_crs: bool = False  # the header names a coordinate reference system
    wkt: str = ""  # the coordinate reference system as text, if the header has it so
    legend: dict[int, str] = field(default_factory=dict)  # names of the codes in the column classification

    @property
    def codes(self) -> str:
        """The name of the column that holds the points' classification; "" if there is none."""
        return next((name for name in self.dtypes if name.lower() == "classification"), "")


class PieceReader:
    """Reads one file. A subclass sets `contents` in its constructor, and implements _pieces() and close(). Use it in a
    `with` block. One thread uses it.
    """

    path: str
    contents: Contents

    def pieces(self, num_points: int) -> Iterator[Piece]:
        """Yields all points in the file's order, num_points at a time. ValueError, with the file's name, if the file is
        damaged or has another number of points than its header promises.
        """
        number = 0
        try:
            for piece in self._pieces(num_points):
                number += len(piece)
                yield piece
        except (GeneratorExit, OSError, MemoryError, KeyboardInterrupt):
            raise
        except Exception as error:  # each library has errors of its own
            text = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"{self.path}: {self._promise()}, but only {number} can be read: {text[:200]}") from None
        if number != self.contents.num_points:
            raise ValueError(f"{self.path}: {self._promise()}, but {number} are there")

    def _promise(self) -> str:
        return f"the header promises {self.contents.num_points} points"

    def _pieces(self, num_points: int) -> Iterator[Piece]:
        raise NotImplementedError

    def close(self) -> None:
        """Closes the file."""

    def __enter__(self) -> PieceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def library(name: str) -> ModuleType:
    """Imports an optional library. ValueError says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{name} is needed for this file: pip install 'voxserve[maps]' ({error})") from None


def damaged(path: str | os.PathLike[str], error: Exception) -> ValueError:
    """Returns the error of a file whose header cannot be read."""
    text = " ".join(str(error).split()) or type(error).__name__
    return ValueError(f"{os.fspath(path)}: the file cannot be read; it is cut short or of another kind ({text[:200]})")


def legend_of(text: str | bytes) -> dict[int, str]:
    """Returns the legend that a file holds as JSON, an object of names by codes; {} if it is damaged."""
    try:
        return {int(code): str(name) for code, name in json.loads(text or "{}").items()}
    except (ValueError, AttributeError):
        return {}


def check_file(path: str | os.PathLike[str]) -> None:
    """Raises OSError if there is no regular file at the path, for libraries that open paths themselves."""
    from voxserve import input_file

    input_file.open_regular(Path(path)).close()


def columns_of(values: Mapping[str, Array]) -> Callable[[str], Array]:
    """Returns the function Piece.column of columns that are in memory."""
    return lambda name: values[name]
