"""Converts files of torch.save into NPZ, for C++ tests that read what other projects published.

    python3 tests/oracles/torch_to_npz.py FOLDER OUT

Every FOLDER/NAME.pt becomes OUT/NAME.npz. Needs neither PyTorch nor NumPy, so that any machine that runs the tests can
convert. Its unpickler knows only the few names that tensors are made of and refuses all others, so a file cannot run
code.

The nested dicts, lists and tuples of a file become array names of the form cases/0/expect/voxels, which
tests/support/array_tree.h reads:

- a tensor is an array of its dtype and shape, in C order;
- a bool, int or float is an array without axes (|b1, <i8, <f8), a list of ints or of floats one with one axis;
- a str is its UTF-8 bytes (|u1);
- None and empty containers have no array.
"""

from __future__ import annotations

import collections
import itertools
import math
import pickle
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_STORAGES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "IntStorage": "<i4",
    "LongStorage": "<i8",
    "ShortStorage": "<i2",
    "CharStorage": "|i1",
    "ByteStorage": "|u1",
    "BoolStorage": "|b1",
}


class Array(NamedTuple):
    """A NumPy array's dtype, shape and bytes in C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def _strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _rebuild_tensor(storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> Array:
    """Does what torch._utils._rebuild_tensor_v2 does. Raises ValueError if the tensor does not lie inside its
    storage.
    """
    size = int(storage.dtype[2:])
    if any(number < 0 for number in (offset, *shape, *strides)) or len(shape) != len(strides):
        raise ValueError(f"a tensor of shape {shape} and strides {strides} at element {offset}")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if 0 not in shape and (last + 1) * size > len(storage.data):
        raise ValueError(f"elements {offset} to {last} of a storage of {len(storage.data) // size}")
    if 0 in shape or strides == _strides_of(shape):
        return Array(storage.dtype, shape, storage.data[offset * size : (offset + math.prod(shape)) * size])
    steps = ([place * stride for place in range(n)] for n, stride in zip(shape, strides, strict=True))
    begins = ((offset + sum(place)) * size for place in itertools.product(*steps))
    return Array(storage.dtype, shape, b"".join(storage.data[begin : begin + size] for begin in begins))


class _Unpickler(pickle.Unpickler):
    """Unpickles data.pkl of an archive whose entries all lie in `folder`."""

    def __init__(self, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(archive.open(f"{folder}data.pkl"))
        self._archive, self._folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        raise pickle.UnpicklingError(f"{module}.{name} is refused")

    def persistent_load(self, pid: Any) -> Array:
        kind, dtype, key, _, count = pid
        if kind != "storage":
            raise pickle.UnpicklingError(f"a persistent object of kind {kind!r}")
        data = self._archive.read(f"{self._folder}data/{key}")
        if len(data) != count * int(dtype[2:]):
            raise ValueError(f"storage {key} has {len(data)} bytes for {count} values of {dtype}")
        return Array(dtype, (count,), data)


def read(path: Path) -> Any:
    """Returns the tree of a file of torch.save. Its tensors become Arrays."""
    with zipfile.ZipFile(path) as archive:
        folder = next((n[: -len("data.pkl")] for n in archive.namelist() if n.endswith("/data.pkl")), None)
        if folder is None:
            raise ValueError(f"{path} was not written by torch.save: it has no data.pkl")
        byte_order = f"{folder}byteorder"
        if byte_order in archive.namelist() and archive.read(byte_order) != b"little":
            raise ValueError(f"{path} is not little-endian")
        return _Unpickler(archive, folder).load()


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Array]]:
    """Yields the arrays of a tree with their names, which are paths such as cases/0/expect/voxels."""
    if isinstance(value, Array):
        yield path, value
    elif isinstance(value, str):
        data = value.encode()
        yield path, Array("|u1", (len(data),), data)
    elif isinstance(value, bool):
        yield path, Array("|b1", (), struct.pack("?", value))
    elif isinstance(value, (int, float)):
        yield path, _numbers([value], ())
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str) or not key or "/" in key:
                raise ValueError(f"{path}: the key {key!r} cannot be part of an array's name")
            yield from flatten(item, f"{path}/{key}" if path else key)
    elif isinstance(value, (list, tuple)):
        if value and all(type(item) in (int, float) for item in value):
            yield path, _numbers(value, (len(value),))
        else:
            yield from flatten({str(place): item for place, item in enumerate(value)}, path)
    elif value is not None:
        raise ValueError(f"{path}: {type(value).__name__} is not converted")


def _numbers(values: list[Any] | tuple[Any, ...], shape: tuple[int, ...]) -> Array:
    kind = "f8" if any(isinstance(value, float) for value in values) else "i8"
    code = {"f8": "d", "i8": "q"}[kind]
    return Array(f"<{kind}", shape, struct.pack(f"<{len(values)}{code}", *values))


def write(path: Path, arrays: Iterator[tuple[str, Array]]) -> None:
    """Writes arrays to an NPZ file (numpy.lib.format, version 1)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays:
            header = repr({"descr": array.dtype, "fortran_order": False, "shape": array.shape}).encode()
            header += b" " * (-(len(header) + 11) % 64) + b"\n"
            magic = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
            archive.writestr(f"{name}.npy", magic + header + array.data)


def main() -> int:
    folder, out = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.glob("*.pt")):
        write(out / f"{path.stem}.npz", flatten(read(path)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
