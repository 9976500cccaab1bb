"""Reads E57 (ASTM E2807) with pye57.

The scans of a file follow each other. Their points are moved by the scans' poses into the file's common coordinates;
spherical coordinates become Cartesian. A point that the file marks as invalid gets NaN coordinates. A file of several
scans gets the column scan_index. Where a scan lacks the intensity or colours that another one has, they are NaN; other
columns are 0.

The fields colorRed, colorGreen, colorBlue, returnIndex and returnCount get the names that LAS has for them, and returns
count from 1, as in LAS. Fields of the namespace EXTENSION, such as classification, have no prefix.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.pieces.reader import (
    Array,
    Contents,
    Piece,
    PieceReader,
    check_file,
    columns_of,
    damaged,
    legend_of,
    library,
)

ENDINGS = (".e57",)
EXTENSION = "urn:voxserve:e57:1"  # the namespace of the fields that E57 lacks
SCAN = "scan_index"
NAMES = {"colorRed": "red", "colorGreen": "green", "colorBlue": "blue", "returnIndex": "return_number",
         "returnCount": "number_of_returns"}  # fmt: skip
_FROM_0 = "returnIndex"  # which counts from 0
_LIMITS = {"intensity": ("intensityLimits", "intensity"), "red": ("colorLimits", "colorRed"),
           "green": ("colorLimits", "colorGreen"), "blue": ("colorLimits", "colorBlue")}  # fmt: skip
_CARTESIAN = ("cartesianX", "cartesianY", "cartesianZ")
_SPHERICAL = ("sphericalRange", "sphericalAzimuth", "sphericalElevation")
_INVALID = ("cartesianInvalidState", "sphericalInvalidState")
_INTEGERS = ("u1", "i1", "u2", "i2", "u4", "i4", "i8")


def _text(root: Any, name: str) -> str:
    return str(root[name].value()) if root.isDefined(name) else ""


def prefix_of(file: Any) -> str | None:
    """Returns the prefix that an open file has for EXTENSION."""
    found = (i for i in range(file.extensionsCount()) if file.extensionsUri(i) == EXTENSION)
    return next((str(file.extensionsPrefix(i)) for i in found), None)


def column_of(field: str, prefix: str | None) -> str:
    """Returns the column's name of a field. prefix: that of EXTENSION."""
    own, colon, rest = field.partition(":")
    return rest if colon and own == prefix else NAMES.get(field, field)


@dataclass(frozen=True)
class E57Record:
    """The raw values of some points of one scan."""

    scan: int
    values: dict[str, Array]  # int64 or float64; of scaled integers what the file holds


class _Scan:
    """One scan of the file, with its fields and pose. prefix: that of EXTENSION."""

    def __init__(self, libe57: Any, header: Any, prefix: str | None) -> None:
        self.header, self._prefix = header, prefix
        self.num_points = int(header.point_count)
        self.fields: dict[str, np.dtype[Any]] = {}
        self.scales: dict[str, tuple[float, float]] = {}  # and offsets, of the fields that are scaled integers
        prototype = libe57.StructureNode(header.points.prototype())
        for name in header.point_fields:
            node = prototype[name]
            if isinstance(node, libe57.IntegerNode):
                low, high = int(node.minimum()), int(node.maximum()) + (name == _FROM_0)
                fits = (k for k in _INTEGERS if np.iinfo(k).min <= low and high <= np.iinfo(k).max)
                self.fields[name] = np.dtype(next(fits, "i8"))
            elif isinstance(node, libe57.FloatNode):
                self.fields[name] = np.dtype("f4" if node.precision() == libe57.E57_SINGLE else "f8")
            elif isinstance(node, libe57.ScaledIntegerNode):
                self.fields[name] = np.dtype("f8")
                self.scales[name] = float(node.scale()), float(node.offset())
        self.axes = next((axes for axes in (_CARTESIAN, _SPHERICAL) if all(a in self.fields for a in axes)), None)

    @property
    def columns(self) -> dict[str, np.dtype[Any]]:
        hidden = (*(self.axes or ()), *_INVALID)
        return {self.column(name): dtype for name, dtype in self.fields.items() if name not in hidden}

    def column(self, field: str) -> str:
        return column_of(field, self._prefix)

    def value(self, field: str, raw: Array) -> Array:
        """Returns the values of a field from what the file holds."""
        if field in self.scales:
            scale, offset = self.scales[field]
            return raw * scale + offset
        return (raw + 1 if field == _FROM_0 else raw).astype(self.fields[field])

    def limits(self) -> dict[str, tuple[float, float]]:
        """Returns the values that stand for 0 and 1, of the columns whose limits the file states."""
        found: dict[str, tuple[float, float]] = {}
        for column, (node, field) in _LIMITS.items():
            if column not in self.columns or not self.header.node.isDefined(node):
                continue
            limits = self.header[node]
            names = [f"{field}Minimum", f"{field}Maximum"]
            if all(limits.isDefined(name) for name in names):
                low, high = (float(limits[name].value()) for name in names)
                if low < high:
                    found[column] = (low, high)
        return found


class E57Reader(PieceReader):
    """Reads an .e57 file. ValueError if its header is damaged, or a scan has no coordinates."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        pye57 = library("pye57")
        self._libe57: Any = pye57.libe57
        check_file(path)
        try:
            # The class pye57.E57 may delete a file that it cannot open.
            self.file: Any = self._libe57.ImageFile(self.path, "r")
        except Exception as error:
            raise damaged(path, error) from None
        try:
            root = self.file.root()
            data, prefix = root["data3D"], prefix_of(self.file)
            self._scans = [_Scan(self._libe57, pye57.ScanHeader(data[i]), prefix) for i in range(len(data))]
            self._wkt = _text(root, "coordinateMetadata")
            self._legend = legend_of(_text(root, f"{prefix}:legend")) if prefix else {}
        except Exception as error:
            self.file.close()
            raise damaged(path, error) from None
        lacking = [i for i, scan in enumerate(self._scans) if scan.axes is None]
        if lacking:
            self.file.close()
            raise ValueError(f"{self.path}: scan {lacking[0]} has no coordinates")
        self.contents = self._contents()

    def _contents(self) -> Contents:
        dtypes: dict[str, np.dtype[Any]] = {}
        ranges: dict[str, tuple[float, float]] = {}
        for scan in self._scans:
            for name, dtype in scan.columns.items():
                dtypes[name] = np.promote_types(dtypes[name], dtype) if name in dtypes else dtype
            for name, (low, high) in scan.limits().items():
                before = ranges.get(name, (low, high))
                ranges[name] = (min(low, before[0]), max(high, before[1]))
        integers: dict[str, np.dtype[Any]] = {}
        for name in dtypes.keys() & _LIMITS.keys():
            if any(name not in scan.columns for scan in self._scans if scan.num_points):
                if dtypes[name].kind != "f":
                    integers[name] = dtypes[name]
                dtypes[name] = np.promote_types(dtypes[name], np.float32)
        if len(self._scans) > 1:
            dtypes[SCAN] = np.dtype(np.uint16)
        number = sum(scan.num_points for scan in self._scans)
        has_crs = bool(self._wkt.strip())
        return Contents(number, dtypes, ranges, integers, has_crs=has_crs, wkt=self._wkt, legend=self._legend)

    def _pieces(self, num_points: int) -> Iterator[Piece]:
        for index, scan in enumerate(self._scans):
            if scan.num_points:  # libE57Format reads no empty list
                yield from self._pieces_of(index, scan, num_points)

    def _pieces_of(self, index: int, scan: _Scan, num_points: int) -> Iterator[Piece]:
        buffers = self._libe57.VectorSourceDestBuffer()
        arrays: dict[str, Array] = {}
        for name, dtype in scan.fields.items():
            # pye57 0.4.19 takes an array of "l", which np.int64 is on Linux, for one of 4-byte integers.
            is_float = dtype.kind == "f" and name not in scan.scales
            arrays[name] = np.empty(num_points, "d" if is_float else "q")
            buffers.append(self._libe57.SourceDestBuffer(self.file, name, arrays[name], num_points, True, False))
        reader = scan.header.points.reader(buffers)
        try:
            while number := int(reader.read()):
                yield self._piece(index, scan, {name: array[:number].copy() for name, array in arrays.items()}, number)
        finally:
            reader.close()

    def _piece(self, index: int, scan: _Scan, raw: dict[str, Array], number: int) -> Piece:
        values = {name: scan.value(name, array) for name, array in raw.items()}
        xyz = _xyz(scan, values)
        columns = {
            name: np.full(number, index if name == SCAN else np.nan if dtype.kind == "f" else 0, dtype)
            for name, dtype in self.contents.dtypes.items()
        }
        for name in scan.fields:
            column = scan.column(name)
            if column in columns:
                columns[column] = values[name].astype(columns[column].dtype)
        return Piece(xyz, columns_of(columns), E57Record(index, raw))

    def close(self) -> None:
        self.file.close()


def _xyz(scan: _Scan, values: dict[str, Array]) -> npt.NDArray[np.float64]:
    assert scan.axes is not None
    first, second, third = (values[axis].astype(np.float64) for axis in scan.axes)
    if scan.axes == _SPHERICAL:
        flat = first * np.cos(third)
        xyz = np.stack([flat * np.cos(second), flat * np.sin(second), first * np.sin(third)], axis=1)
    else:
        xyz = np.stack([first, second, third], axis=1)
    if scan.header.has_pose():
        xyz = xyz @ np.asarray(scan.header.rotation_matrix, np.float64).T + np.asarray(scan.header.translation)
    for name in _INVALID:
        if name in values:
            xyz[values[name] != 0] = np.nan
    return xyz
