"""NPY, versions 1 to 3 (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).

Read here and not by numpy.load, which trusts a header's shape before it has seen that many bytes.
"""

from __future__ import annotations

import ast
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.field_spec import FieldSpec
from voxserve.point_cloud import PointCloud

_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 1 << 20
_MAX_COLUMNS = 65536


def read(contents: bytes, spec: FieldSpec | None) -> PointCloud:
    """ValueError says what is wrong, with both numbers."""
    try:
        array = read_array(contents)
        if array.dtype.names is None and (array.ndim != 2 or not 3 <= array.shape[1] <= _MAX_COLUMNS):
            raise ValueError(f"the array's shape is {array.shape}; (points, 3 or more columns) is needed")
        return PointCloud.from_array(array, spec)
    except ValueError as error:
        raise ValueError(f"NPY: {error}") from None


def read_array(contents: bytes) -> npt.NDArray[Any]:
    """The file's array, which reads the given bytes where they are. Arrays of Python objects are refused."""
    if contents[:6] != _MAGIC:
        raise ValueError("the file does not begin with \\x93NUMPY")
    major = contents[6] if len(contents) > 6 else 0
    if major not in (1, 2, 3):
        raise ValueError(f"version {major} is none of 1, 2, 3")
    begin = 10 if major == 1 else 12
    length = int.from_bytes(contents[8:begin], "little")
    if length > min(_MAX_HEADER_BYTES, len(contents) - begin):
        raise ValueError(f"the header has {length} bytes, but {max(0, len(contents) - begin)} follow")
    text = contents[begin : begin + length].decode("utf-8" if major == 3 else "latin-1", "replace")
    try:
        header = ast.literal_eval(text.strip())
        dtype = np.lib.format.descr_to_dtype(header["descr"])
        fortran, shape = bool(header["fortran_order"]), tuple(header["shape"])
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError, OverflowError):
        raise ValueError("the header is not a dictionary of descr, fortran_order and shape") from None
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"values of type {dtype} are not numbers")
    if not all(type(size) is int and size >= 0 for size in shape) or len(shape) > 32:
        raise ValueError(f"the shape {str(shape)[:64]} is not one of an array")
    size = math.prod(shape)
    left = len(contents) - begin - length
    if size * dtype.itemsize > left:
        raise ValueError(f"the header promises {size} values of {dtype.itemsize} bytes, but {left} bytes follow")
    values = np.frombuffer(contents, dtype, size, begin + length)
    return values.reshape(shape, order="F" if fortran else "C")
