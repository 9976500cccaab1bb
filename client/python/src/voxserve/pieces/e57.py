"""Reads E57 (ASTM E2807) with pye57.

The scans of a file follow each other. Their points are moved by the scans' poses into the file's common coordinates;
spherical coordinates become Cartesian. A point that the file marks as invalid gets NaN coordinates. A file of several
scans gets the column scan_index. Nothing writes E57.

The fields colorRed, colorGreen, colorBlue, returnIndex and returnCount get the names that LAS has for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.pieces.reader import Array, Contents, Piece, PieceReader, check_file, columns_of, damaged, library

ENDINGS = (".e57",)
SCAN = "scan_index"
_NAMES = {"colorRed": "red", "colorGreen": "green", "colorBlue": "blue", "returnIndex": "return_number",
          "returnCount": "number_of_returns"}  # fmt: skip
_LIMITS = {"intensity": ("intensityLimits", "intensity"), "red": ("colorLimits", "colorRed"),
           "green": ("colorLimits", "colorGreen"), "blue": ("colorLimits", "colorBlue")}  # fmt: skip
_CARTESIAN = ("cartesianX", "cartesianY", "cartesianZ")
_SPHERICAL = ("sphericalRange", "sphericalAzimuth", "sphericalElevation")
_INVALID = ("cartesianInvalidState", "sphericalInvalidState")
_INTEGERS = ("u1", "i1", "u2", "i2", "u4", "i4", "i8")


class _Scan:
    """One scan of the file, with its fields and pose."""

    def __init__(self, libe57: Any, header: Any) -> None:
        self.header = header
        self.num_points = int(header.point_count)
        self.fields: dict[str, np.dtype[Any]] = {}
        prototype = libe57.StructureNode(header.points.prototype())
        for name in header.point_fields:
            node = prototype[name]
            if isinstance(node, libe57.IntegerNode):
                low, high = int(node.minimum()), int(node.maximum())
                fits = (k for k in _INTEGERS if np.iinfo(k).min <= low and high <= np.iinfo(k).max)
                self.fields[name] = np.dtype(next(fits, "i8"))
            elif isinstance(node, libe57.FloatNode | libe57.ScaledIntegerNode):
                self.fields[name] = np.dtype("f8")
        self.axes = next((axes for axes in (_CARTESIAN, _SPHERICAL) if all(a in self.fields for a in axes)), None)

    @property
    def columns(self) -> dict[str, np.dtype[Any]]:
        hidden = (*(self.axes or ()), *_INVALID)
        return {_NAMES.get(name, name): dtype for name, dtype in self.fields.items() if name not in hidden}

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
            self._file: Any = self._libe57.ImageFile(self.path, "r")
        except Exception as error:
            raise damaged(path, error) from None
        try:
            data = self._file.root()["data3D"]
            self._scans = [_Scan(self._libe57, pye57.ScanHeader(data[i])) for i in range(len(data))]
        except Exception as error:
            self._file.close()
            raise damaged(path, error) from None
        lacking = [i for i, scan in enumerate(self._scans) if scan.axes is None]
        if lacking:
            self._file.close()
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
        if len(self._scans) > 1:
            dtypes[SCAN] = np.dtype(np.uint16)
        number = sum(scan.num_points for scan in self._scans)
        return Contents(number, dtypes, ranges)

    def _pieces(self, num_points: int) -> Iterator[Piece]:
        for index, scan in enumerate(self._scans):
            yield from self._pieces_of(index, scan, num_points)

    def _pieces_of(self, index: int, scan: _Scan, num_points: int) -> Iterator[Piece]:
        buffers = self._libe57.VectorSourceDestBuffer()
        arrays: dict[str, Array] = {}
        for name, dtype in scan.fields.items():
            # pye57 0.4.19 takes an array of "l", which np.int64 is on Linux, for one of 4-byte integers.
            arrays[name] = np.empty(num_points, "d" if dtype.kind == "f" else "q")
            buffers.append(self._libe57.SourceDestBuffer(self._file, name, arrays[name], num_points, True, True))
        reader = scan.header.points.reader(buffers)
        try:
            while number := int(reader.read()):
                values = {name: array[:number].astype(scan.fields[name]) for name, array in arrays.items()}
                yield self._piece(index, scan, values, number)
        finally:
            reader.close()

    def _piece(self, index: int, scan: _Scan, values: dict[str, Array], number: int) -> Piece:
        xyz = _xyz(scan, values)
        columns = {
            name: np.zeros(number, dtype) if name != SCAN else np.full(number, index, dtype)
            for name, dtype in self.contents.dtypes.items()
        }
        for name in scan.fields:
            column = _NAMES.get(name, name)
            if column in columns:
                columns[column] = values[name].astype(columns[column].dtype)
        return Piece(xyz, columns_of(columns))

    def close(self) -> None:
        self._file.close()


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
