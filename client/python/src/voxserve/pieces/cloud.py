"""Reads and writes files of one header and one block of points: PLY, PCD, and (only reads) .bin and .npy.

A binary file is mapped into memory, not read, so a large file needs no more memory than its pieces. An ascii or
compressed file is decoded whole.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from voxserve import field_spec, input_file, readers
from voxserve.pieces.reader import SHARES, Array, Contents, Piece, PieceReader
from voxserve.pieces.writer import BEFORE, CLASSIFICATION, CONFIDENCE, PieceWriter
from voxserve.point_cloud import PointCloud
from voxserve.readers import pcd

_PLY_TYPES = {"i1": "char", "u1": "uchar", "i2": "short", "u2": "ushort", "i4": "int", "u4": "uint", "f4": "float",
              "f8": "double"}  # fmt: skip
_COORDINATES = ("x", "y", "z")


class CloudReader(PieceReader):
    """Reads any file that voxserve.read reads. spec: the layout of a file that does not describe itself. ValueError if
    it is damaged.
    """

    def __init__(self, path: str | os.PathLike[str], spec: field_spec.FieldSpec | None = None) -> None:
        self.path = os.fspath(path)
        with input_file.open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            contents: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        try:
            layout = None if spec is None else spec.layout
            # A layout names types that a cloud can have, so integers of 8 bytes must be float64 for it.
            keeps_long = self.path.lower().endswith(".pcd") and layout is None
            self.cloud = (
                pcd.read(contents, None, keeps_long=True)
                if keeps_long
                else readers.read_contents(self.path.lower(), contents, layout)
            )
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None
        lacking = [axis for axis in _COORDINATES if self.cloud.field(axis) is None]
        if lacking:
            names = ", ".join(field.name for field in self.cloud.fields)
            raise ValueError(f"{self.path}: there is no field '{lacking[0]}'; the file has {names}")
        self._dtype = _dtype_of(self.cloud, pcd.long_integers(contents) if keeps_long else {})
        axes = {self._axis(axis) for axis in _COORDINATES}
        dtypes = {name: self._dtype[name] for name in self._dtype.names or () if name not in axes}
        dtypes = {name: np.dtype((dtype.base.newbyteorder("="), dtype.shape)) for name, dtype in dtypes.items()}
        largest = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0}
        shares = [name for name, dtype in dtypes.items() if name.lower() in SHARES and dtype in largest]
        self.contents = Contents(self.cloud.num_points, dtypes, {name: (0.0, largest[dtypes[name]]) for name in shares})

    def axis_dtypes(self) -> dict[str, np.dtype[Any]]:
        """Returns the little endian types of x, y and z in the file; float64 for integers of 8 bytes."""
        own = {axis: self._dtype[self._axis(axis)].base.newbyteorder("<") for axis in _COORDINATES}
        return {axis: np.dtype("<f8") if dtype.itemsize == 8 else dtype for axis, dtype in own.items()}

    def _axis(self, axis: str) -> str:
        field = self.cloud.field(axis)
        assert field is not None
        return field.name

    def _pieces(self, num_points: int) -> Iterator[Piece]:
        axes = [self._axis(axis) for axis in _COORDINATES]
        shifts = {field.name: (field.scale, field.shift) for field in self.cloud.fields}
        for first in range(0, self.cloud.num_points, num_points):
            number = min(num_points, self.cloud.num_points - first)
            offset = first * self.cloud.point_step
            raw: Array = np.frombuffer(self.cloud.data, self._dtype, number, offset)
            xyz = np.empty((number, 3), np.float64)
            for index, axis in enumerate(axes):
                scale, shift = shifts[axis]
                xyz[:, index] = raw[axis].astype(np.float64) * scale + shift
            yield Piece(xyz, _column_of(raw), raw)

    def close(self) -> None:
        """Does nothing: the memory map is closed with the last array that refers to it."""


def _column_of(raw: Array) -> Callable[[str], Array]:
    return lambda name: np.ascontiguousarray(raw[name].astype(raw.dtype[name].base.newbyteorder("=")))


def _dtype_of(cloud: PointCloud, others: Mapping[str, tuple[str, int, int]]) -> np.dtype[Any]:
    """Returns the type of a cloud's points in a file. others: the code, count and offset of further fields."""
    order = ">" if cloud.is_bigendian else "<"
    fields = {
        field.name: (field_spec.NUMPY_CODES[field.type], field.count, field.offset)
        for field in cloud.fields
        if field.value_bytes
    } | dict(others)
    return np.dtype(
        {
            "names": list(fields),
            "formats": [np.dtype((order + code, (count,) if count > 1 else ())) for code, count, _ in fields.values()],
            "offsets": [offset for _, _, offset in fields.values()],
            "itemsize": cloud.point_step,
        }
    )


class CloudWriter(PieceWriter):
    """Writes a binary .ply or .pcd file. Coordinates have the type that they have in a PLY or PCD file that is copied,
    but float64 for integers of 8 bytes, and are float64 otherwise.
    """

    def __init__(
        self, path: str, temporary: str, source: PieceReader, legend: Mapping[int, str], *, keeps_codes: bool
    ) -> None:
        self.notes: list[str] = []
        axes: dict[str, np.dtype[Any]] = dict.fromkeys(_COORDINATES, np.dtype("<f8"))
        if isinstance(source, CloudReader):
            axes = source.axis_dtypes()
        is_ply = path.lower().endswith(".ply")
        columns: dict[str, np.dtype[Any]] = {}
        for name, dtype in source.contents.dtypes.items():
            kind = np.dtype(np.float32) if dtype.base == np.float16 else dtype.base
            kind = np.dtype(np.uint8) if kind.kind == "b" else kind
            if kind.kind not in "iuf" or (is_ply and (kind.str[1:] not in _PLY_TYPES or dtype.shape)):
                self.notes.append(f"the column '{name}' ({dtype}) has no place in this file")
                continue
            columns[name] = np.dtype((kind.newbyteorder("<"), dtype.shape))
        # The input's own codes keep a column, under another name.
        self._sources = {name: name for name in columns}
        own = next((name for name in columns if name.lower() == CLASSIFICATION), None)
        if own is not None:
            dtype = columns.pop(own)
            del self._sources[own]
            if keeps_codes:
                columns[BEFORE] = dtype
                self._sources[BEFORE] = own
        if (old := next((name for name in columns if name.lower() == CONFIDENCE), None)) is not None:
            del columns[old], self._sources[old]
        size = np.dtype(np.uint8) if max(legend, default=0) < 256 else np.dtype("<u2")
        self._axes = axes
        self._dtype = np.dtype([*axes.items(), *columns.items(), (CLASSIFICATION, size), (CONFIDENCE, "<f4")])
        self._num_points = 0
        self._promised = source.contents.num_points
        self._file = Path(temporary).open("wb")  # noqa: SIM115  # closed by close()
        header = self._ply if is_ply else self._pcd
        self._file.write(header(legend).encode("ascii", "replace"))

    def _ply(self, legend: Mapping[int, str]) -> str:
        lines = ["ply", "format binary_little_endian 1.0"]
        lines += [f"comment class {code} {name}" for code, name in legend.items()]
        lines.append(f"element vertex {self._promised}")
        lines += [f"property {_PLY_TYPES[self._dtype[name].str[1:]]} {name}" for name in self._dtype.names or ()]
        return "\n".join([*lines, "end_header"]) + "\n"

    def _pcd(self, legend: Mapping[int, str]) -> str:
        names = self._dtype.names or ()
        kinds = [self._dtype[name] for name in names]
        lines = ["# .PCD v0.7 - Point Cloud Data file format"]
        lines += [f"# class {code} {name}" for code, name in legend.items()]
        lines += [
            "VERSION 0.7",
            "FIELDS " + " ".join(names),
            "SIZE " + " ".join(str(kind.base.itemsize) for kind in kinds),
            "TYPE " + " ".join(kind.base.kind.upper() for kind in kinds),
            "COUNT " + " ".join(str(math.prod(kind.shape)) for kind in kinds),
            f"WIDTH {self._promised}",
            "HEIGHT 1",
            "VIEWPOINT 0 0 0 1 0 0 0",
            f"POINTS {self._promised}",
            "DATA binary",
        ]
        return "\n".join(lines) + "\n"

    def write(self, piece: Piece, codes: Array, confidence: Array) -> None:
        rows = np.zeros(len(piece), self._dtype)
        for index, axis in enumerate(self._axes):
            rows[axis] = piece.xyz[:, index]
        for name, source in self._sources.items():
            rows[name] = piece.column(source)
        rows[CLASSIFICATION], rows[CONFIDENCE] = codes, confidence
        self._file.write(rows.tobytes())
        self._num_points += len(piece)

    def close(self) -> None:
        self._file.close()
