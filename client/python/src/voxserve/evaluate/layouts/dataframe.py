"""Reads the tables in PandaSet's pickle files (a pandas.DataFrame as pandas 0.25 and 1.0 wrote it), without pandas.

A pickle file can call any function that it names. This reader accepts only the names that such a table needs, and
replaces pandas' classes by classes of this file, which only keep the values that they are given.
"""

from __future__ import annotations

import gzip
import io
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve import input_file

_MAX_BYTES = 1 << 30


def read(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Returns the columns of a gzipped table by name; all have the same length. Raises ValueError, with the file's name
    and the problem, if it is no such table, and OSError if the file cannot be read.
    """
    try:
        with input_file.open_regular(path) as packed, gzip.open(packed) as file:
            contents = file.read(_MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: not a whole gzip file: {error}") from None
    if len(contents) > _MAX_BYTES:
        raise ValueError(f"{path}: unpacks to more than {_MAX_BYTES} bytes")
    try:
        table = _Unpickler(io.BytesIO(contents)).load()
        return _columns(table)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path}: not a table as PandaSet has it: {error}") from None
    except Exception as error:  # a broken pickle may do anything with these classes
        raise ValueError(f"{path}: not a table as PandaSet has it ({type(error).__name__}: {error})") from None


class _Kept:
    """A stand-in for a pickled object, which keeps the object's state."""

    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _DataFrame(_Kept):
    pass


class _BlockManager(_Kept):
    pass


def _new_index(_kind: Any, values: dict[str, Any]) -> list[Any]:
    return list(values["data"]) if "data" in values else []  # a RangeIndex has no "data"; it is that of the rows


class _Index:
    pass


def _reconstruct(_kind: Any, _shape: Any, _code: Any) -> npt.NDArray[Any]:
    return np.ndarray((0,), np.int8)


# The functions and classes that a pickle file may name, by module and name, and the ones that are used for them. NumPy
# has renamed a module.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("pandas.core.frame", "DataFrame"): _DataFrame,
    ("pandas.core.internals.managers", "BlockManager"): _BlockManager,
    ("pandas.core.indexes.base", "_new_Index"): _new_index,
    ("pandas.core.indexes.base", "Index"): _Index,
    ("pandas.core.indexes.range", "RangeIndex"): _Index,
    ("pandas.core.indexes.numeric", "Int64Index"): _Index,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("builtins", "slice"): slice,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}, which no table of PandaSet needs")
        return found


def _columns(table: Any) -> dict[str, npt.NDArray[Any]]:
    if not isinstance(table, _DataFrame):
        raise pickle.UnpicklingError(f"the pickle holds a {type(table).__name__}, not a table of pandas")
    manager = table.state["_data"] if "_data" in table.state else table.state["_mgr"]
    named = manager.state[3]["0.14.1"]
    names = list(named["axes"][0])
    columns: dict[str, npt.NDArray[Any]] = {}
    for block in named["blocks"]:
        values = np.asarray(block["values"])
        places = np.arange(len(names))[block["mgr_locs"]]
        if values.ndim != 2 or len(values) != len(places):
            raise pickle.UnpicklingError(f"a block of {values.shape} for {len(places)} columns")
        columns.update((names[place], values[row]) for row, place in enumerate(places.tolist()))
    return columns
