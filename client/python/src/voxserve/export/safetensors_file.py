"""Reads and writes safetensors files with NumPy alone.

A file has the header's length (8 bytes, little endian), a JSON header {name: {dtype, shape, data_offsets}}, and the
tensors' bytes. The reader checks the header against the file's size before it allocates memory.

Tensors that share their memory are stored once. safetensors.torch.save_model writes the names that it leaves out into
the header's __metadata__, each with the name that was stored instead. The reader returns the tensor by both names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve import input_file
from voxserve.export.unread import unread

_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
    "BF16": np.dtype("<u2"),  # NumPy has no bfloat16: read() converts its 16 bits to float32
}
_MAX_HEADER_BYTES = 100_000_000  # as in the reference implementation


class SafetensorsError(ValueError):
    """The file is not a valid safetensors file, or cannot hold a tensor. The message names the file and the problem."""


def read(path: str | Path, *, keep_unread: bool = False) -> dict[str, npt.NDArray[Any]]:
    """Returns all tensors of a file by name, in the order of its header. Converts bfloat16 to float32, which is exact.

    keep_unread: a tensor of a type that NumPy does not have, such as F8_E4M3, becomes an array without values
        (voxserve.export.unread) instead of an error.

    Raises SafetensorsError or OSError.
    """
    raw = input_file.read(path)
    if len(raw) < 8:
        raise SafetensorsError(f"{path}: {len(raw)} bytes are too few for a safetensors header (8)")
    header_bytes = int.from_bytes(raw[:8], "little")
    if header_bytes > min(_MAX_HEADER_BYTES, len(raw) - 8):
        raise SafetensorsError(f"{path}: the header claims {header_bytes} bytes, the file has {len(raw) - 8} after it")
    try:
        header = input_file.parse_json(raw[8 : 8 + header_bytes])
    except ValueError as error:
        raise SafetensorsError(f"{path}: the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise SafetensorsError(f"{path}: the header is not a JSON object")
    data = memoryview(raw)[8 + header_bytes :]
    tensors = {
        name: _tensor(f"{path}: tensor '{name}'", entry, data, keep_unread)
        for name, entry in header.items()
        if name != "__metadata__"
    }
    shared = header.get("__metadata__", {})
    if isinstance(shared, dict):
        names = {name: kept for name, kept in shared.items() if isinstance(kept, str) and name not in tensors}
        tensors |= {name: tensors[kept] for name, kept in names.items() if kept in tensors}
    return tensors


def write(path: str | Path, tensors: Mapping[str, npt.NDArray[Any]]) -> None:
    """Writes the tensors in descending order of the bytes per value, so that each tensor is aligned to the size of its
    values. Raises SafetensorsError for a type that the format does not have.
    """
    names = {dtype: name for name, dtype in _DTYPES.items() if name != "BF16"}
    header: dict[str, Any] = {}
    chunks: list[bytes] = []
    offset = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize):
        dtype = tensor.dtype.newbyteorder("<")
        if dtype not in names:
            raise SafetensorsError(f"{path}: tensor '{name}' is {tensor.dtype}, which safetensors cannot hold")
        chunks.append(np.ascontiguousarray(tensor, dtype).tobytes())
        end = offset + len(chunks[-1])
        header[name] = {"dtype": names[dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))


def _tensor(where: str, entry: Any, data: memoryview, keep_unread: bool) -> npt.NDArray[Any]:
    try:
        dtype_name = entry["dtype"]
        shape = tuple(entry["shape"])
        begin, end = entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise SafetensorsError(f"{where}: needs dtype, shape and two data_offsets") from None
    if dtype_name not in _DTYPES and not keep_unread:
        raise SafetensorsError(f"{where}: dtype {dtype_name!r} is none of {', '.join(_DTYPES)}")
    if not all(type(size) is int and size >= 0 for size in (*shape, begin, end)):
        raise SafetensorsError(f"{where}: shape {shape} and offsets {begin}, {end} must be integers of 0 or more")
    if not begin <= end <= len(data):
        raise SafetensorsError(f"{where}: bytes {begin} to {end} are outside the file's {len(data)}")
    if dtype_name not in _DTYPES:
        try:
            return unread(shape, f"it is stored as {dtype_name}")
        except ValueError as error:
            raise SafetensorsError(f"{where}: shape {shape}: {error}") from None
    dtype = _DTYPES[dtype_name]
    expected = math.prod(shape) * dtype.itemsize
    if end - begin != expected:
        raise SafetensorsError(f"{where}: {dtype_name} {list(shape)} takes {expected} bytes, not {end - begin}")
    values = np.frombuffer(data[begin:end], dtype).reshape(shape)
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype_name == "BF16" else values
