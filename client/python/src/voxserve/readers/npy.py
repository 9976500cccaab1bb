"""Reads NPY, versions 1 to 3 (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).

It does not use numpy.load, which allocates memory for the header's shape before it has read so many bytes. From a
structured array it reads the fields whose types a cloud can have. Integers of 8 bytes become float64. It refuses fields
that are arrays of several axes, and arrays that mix byte orders.
"""

from __future__ import annotations

import ast
import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.field_spec import NUMPY_CODES, FieldSpec
from voxserve.point_cloud import PointCloud
from voxserve.readers.to_float64 import LONG_CODES, to_float64

_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 1 << 20
_MAX_COLUMNS = 65536
_MAX_ITEM_BYTES = 1 << 20
_PLAIN = re.compile(r"[<>|=][biufcmMSUV][0-9]{1,9}")


def read(contents: bytes, spec: FieldSpec | None) -> PointCloud:
    """Returns the cloud of a file's contents. spec: as in voxserve.readers. ValueError if they are not valid."""
    try:
        array = read_array(contents)
        if array.dtype.names is None and (array.ndim != 2 or not 3 <= array.shape[1] <= _MAX_COLUMNS):
            raise ValueError(f"the array's shape is {array.shape}; (points, 3 or more columns) is needed")
        if array.dtype.names is not None and array.ndim == 1:
            array = to_float64(array)
        return PointCloud.from_array(array, spec)
    except ValueError as error:
        raise ValueError(f"NPY: {error}") from None


def read_array(contents: bytes) -> npt.NDArray[Any]:
    """Returns the file's array, which shares the memory of `contents`. ValueError if the contents are not valid, or
    hold Python objects.
    """
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
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError, OverflowError):
        header = None
    if not isinstance(header, dict) or header.keys() != {"descr", "fortran_order", "shape"}:
        raise ValueError("the header is not a dictionary of descr, fortran_order and shape")
    dtype, fortran, shape = _dtype(header["descr"]), header["fortran_order"], header["shape"]
    if dtype.itemsize == 0:
        raise ValueError("a value takes 0 bytes")
    if type(fortran) is not bool:
        raise ValueError("the header's fortran_order is neither True nor False")
    if not isinstance(shape, tuple) or not all(map(_is_size, shape)) or len(shape) > 32:
        raise ValueError(f"the shape {str(shape)[:64]} is not one of an array")
    size = math.prod(shape)
    left = len(contents) - begin - length
    if size * dtype.itemsize != left:
        raise ValueError(f"the header promises {size} values of {dtype.itemsize} bytes, but {left} bytes follow")
    values = np.frombuffer(contents, dtype, size, begin + length)
    return values.reshape(shape, order="F" if fortran else "C")


def _dtype(descr: Any) -> np.dtype[Any]:
    """Returns the type that the header's `descr` describes. If it is a list of fields, the type has only the fields
    whose types a cloud can have, and those of 8-byte integers.
    """
    if isinstance(descr, str):
        return _plain(descr)
    if not isinstance(descr, list):
        raise ValueError("the header's descr is neither a dtype nor a list of fields")
    fields: dict[str, tuple[Any, int]] = {}
    orders: set[str] = set()
    offset = 0
    for entry in descr:
        if not (isinstance(entry, tuple) and len(entry) in (2, 3) and all(isinstance(part, str) for part in entry[:2])):
            raise ValueError("a field of the header's descr is not (name, dtype)")
        name, base, shape = entry[0], _plain(entry[1]), entry[2] if len(entry) == 3 else (1,)
        if not (isinstance(shape, tuple) and len(shape) == 1 and _is_size(shape[0])):
            raise ValueError(f"field '{name[:32]}' is an array of many axes")
        is_number = base.str[1:] in (*NUMPY_CODES.values(), *LONG_CODES)
        if is_number and base.itemsize > 1:
            orders.add(base.str[0])
        if is_number and name and shape[0] > 0:
            if name in fields:
                raise ValueError(f"the field '{name[:32]}' appears twice")
            fields[name] = (base if len(entry) == 2 else (base, shape), offset)
        offset += base.itemsize * shape[0]
        if offset > _MAX_ITEM_BYTES:
            raise ValueError(f"an item takes more than {_MAX_ITEM_BYTES} bytes")
    if len(orders) > 1:
        raise ValueError("the fields have different byte orders")
    formats, offsets = [kind for kind, _ in fields.values()], [start for _, start in fields.values()]
    return np.dtype({"names": list(fields), "formats": formats, "offsets": offsets, "itemsize": offset})


def _plain(text: str) -> np.dtype[Any]:
    """Returns the type of one value from a text of byte order, kind and size, such as <f4, |u1, >i2 and |V8."""
    try:
        dtype = np.dtype(text) if _PLAIN.fullmatch(text) else None
    except (TypeError, ValueError):
        dtype = None
    if dtype is None or dtype.itemsize > _MAX_ITEM_BYTES:
        raise ValueError(f"dtype '{text[:32]}' is not one of plain numbers")
    return dtype


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0
