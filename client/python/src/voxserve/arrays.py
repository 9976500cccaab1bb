"""Makes NumPy arrays of what callers hand over as points: arrays with masks, tensors, and tables with named columns.

No library of tables or tensors is imported; their objects are known by their methods.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

# A scan has more points than a point has values. An unnamed array with more columns than this, and fewer rows than
# columns, is one whose rows and columns are exchanged.
_MAX_COLUMNS_OF_FEW_ROWS = 8
# DLPack's devices whose memory the host can read: kDLCPU, kDLCUDAHost, kDLROCMHost, kDLCUDAManaged.
_HOST_DEVICES = (1, 3, 11, 13)


def array_of(values: Any) -> Any:
    """Returns values as a NumPy array, which may share their memory. values: anything that NumPy takes, or a torch
    tensor of any device, which may require a gradient. bfloat16, which NumPy lacks, becomes float32.
    """
    return np.asarray(_of_tensor(values) if _is_tensor(values) else values)


def plain_array(values: Any) -> npt.NDArray[Any]:
    """Returns an array of any shape, without a copy where none is needed.

    - Tensors are taken off their graph and device; bfloat16 becomes float32.
    - Arrays of other libraries that have DLPack and no __array__ are read where they are, in the host's memory.
    - Masked values become NaN, so that the server leaves their points out and the labels stay in place, also those of
      masked rows in a list. Integers with masked values become float64.
    - int64, uint64, longdouble and Python objects become float64, which holds every value that float32, the networks'
      type, tells apart. Objects that are no numbers stay as they are.

    ValueError for masked values in a structured array's fields of integers, and for an array in a device's memory.
    """
    if _is_tensor(values):
        values = _of_tensor(values)
    elif not hasattr(values, "__array__") and hasattr(values, "__dlpack__"):
        values = _of_dlpack(values)
    if isinstance(values, (list, tuple)) and any(isinstance(each, np.ma.MaskedArray) for each in values):
        values = np.ma.stack(values)
    if isinstance(values, np.ma.MaskedArray):
        values = _unmasked(values)
    array = np.asarray(values)
    if array.dtype.name.startswith(("bfloat16", "float8")):  # types of the package ml_dtypes, as JAX has them
        return array.astype(np.float32)
    if array.dtype.kind == "O":
        return _of_objects(values, array)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        return array.astype(np.float64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        with np.errstate(over="ignore"):
            return array.astype(np.float64)
    return array


def named_columns(points: Any) -> dict[str, Any] | None:
    """Returns the columns of a table by their names: a DataFrame of pandas or polars, or a Table of pyarrow. None for
    anything else, and for a table whose columns have the numbers 0, 1, ... instead of names. ValueError if the names
    are other numbers or no texts, or if two columns have the same.
    """
    if isinstance(points, np.ndarray):
        return None
    names = getattr(points, "column_names", None)  # pyarrow
    if names is None:
        names = getattr(points, "columns", None)
    if names is None or callable(names) or not hasattr(points, "__getitem__"):
        return None
    names = list(names)
    if names and all(isinstance(name, (int, np.integer)) for name in names):
        if names == list(range(len(names))):
            return None
        raise ValueError(
            f"the table's columns have the numbers {', '.join(map(str, names[:8]))}, which are not 0, 1, 2, ...; name "
            "them, or pass the table's values, where the first column is x"
        )
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"the table's columns are named {names[:8]}; each needs a text, x, y and z among them")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"the table has two columns named '{twice}'")
    try:
        return {name: points[name] for name in names}
    except TypeError:  # a table that is not computed yet, such as polars' LazyFrame
        raise ValueError(f"{type(points).__name__} gives no columns by their names; make a table of it first") from None


def check_names(names: Any) -> list[str]:
    """Returns the names of an array's columns as a list. ValueError if they are no texts, have no order, or if two are
    the same; "-" may appear several times.
    """
    listed = [] if isinstance(names, (set, frozenset)) or not isinstance(names, Iterable) else list(names)
    if not listed or not all(isinstance(name, str) and name for name in listed):
        raise ValueError(f"fields are {str(names)[:64]}; a list of the columns' names is needed, such as x, y, z, -, t")
    if twice := next((name for name in listed if name != "-" and listed.count(name) > 1), None):
        raise ValueError(f"fields name two columns '{twice}'")
    return [str(name) for name in listed]


def check_rows(shape: tuple[int, ...], num_named: int) -> None:
    """Raises ValueError if an array [rows, columns] certainly has a point in each column instead of each row.
    num_named: the columns that the caller has named.
    """
    rows, columns = shape
    if columns > max(rows, _MAX_COLUMNS_OF_FEW_ROWS, num_named):
        raise ValueError(
            f"points have shape {shape}, which would be {rows} points of {columns} values; a point is a row, so pass "
            "points.T (or name every column)"
        )


def _is_tensor(values: Any) -> bool:
    return callable(getattr(values, "detach", None)) and callable(getattr(values, "cpu", None))


def _of_tensor(tensor: Any) -> Any:
    tensor = tensor.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:  # NumPy has no such type
        return tensor.float().numpy()


def _of_dlpack(values: Any) -> npt.NDArray[Any]:
    if int(values.__dlpack_device__()[0]) not in _HOST_DEVICES:
        raise ValueError(
            f"the points, a {type(values).__name__}, are in a device's memory; copy them to the host first"
        )
    array: npt.NDArray[Any] = np.from_dlpack(values)
    return array


def _unmasked(array: np.ma.MaskedArray[Any, Any]) -> npt.NDArray[Any]:
    if array.dtype.names is None:
        if not np.ma.is_masked(array):
            return np.asarray(array.data)
        kind = array.dtype if array.dtype.kind in "fc" else np.dtype(np.float64)
        return np.where(np.ma.getmaskarray(array), kind.type(np.nan), array.data.astype(kind))
    filled = np.array(array.data)
    for name in array.dtype.names:
        mask = np.ma.getmaskarray(array[name])
        if not mask.any():
            continue
        if filled[name].dtype.kind != "f":
            raise ValueError(
                f"field '{name}' is {filled[name].dtype}, which cannot say that masked values are none; fill them, or "
                "drop their rows"
            )
        filled[name][mask] = np.nan
    return filled


def _of_objects(values: Any, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns an array of Python objects as float64, where None and pandas' NA become NaN; unchanged if the objects are
    no numbers. values: what the array was made of.
    """
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return np.asarray(values.to_numpy(dtype="float64", na_value=np.nan))
    except (AttributeError, TypeError, ValueError, OverflowError):
        return array
