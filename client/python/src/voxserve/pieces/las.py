"""Reads and writes LAS 1.0 to 1.4, LAZ and COPC with laspy and lazrs.

- A COPC file is a LAZ file whose points are ordered for random access (voxserve.pieces.copc writes them). A copy with
  the name .laz is plain LAZ: the header's COPC records are left out.
- The codes go into the dimension classification. Codes above 31 need the point formats 6 and later, so a file of an
  older format is converted (laspy.convert; ASPRS LAS 1.4 R15, table 8).
- The legend is the record "Classification Lookup" of the specification: up to 15 ASCII characters a code.
- Intensities and colours are 0 to 65535, as the specification says ("normalized to a 16 bit range").
"""

from __future__ import annotations

import copy
import logging
import math
import os
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from voxserve import input_file
from voxserve.pieces.reader import SHARES, Array, Contents, Piece, PieceReader, damaged, library
from voxserve.pieces.writer import BEFORE, CLASSIFICATION, CONFIDENCE, PieceWriter

ENDINGS = (".las", ".laz")
_NEWER_FORMATS = {0: 6, 1: 6, 2: 7, 3: 7, 4: 9, 5: 10}
_FIRST_OF_WKT = 6  # of the point formats whose headers say that coordinate systems are WKT
_LARGEST_RAW = (1 << 31) - 1
_WAVE_PACKETS = (4, 5, 9, 10)
_LARGEST_OLD_CODE = 31
_METRES = {9001: 1.0, 9002: 0.3048, 9003: 1200 / 3937}  # by the code of a linear unit in GeoTIFF
_WKT = 2112  # the record of a coordinate reference system as text
_GEOGRAPHIC = 2  # GTModelTypeGeoKey
_UNITS_KEY, _VERTICAL_UNITS_KEY = 3076, 4099  # ProjLinearUnitsGeoKey, VerticalUnitsGeoKey
_IS_WKT = re.compile(r"\s*[A-Za-z_]+\s*\[")
_UNIT_OF_WKT = re.compile(r'\b(?:LENGTH)?UNIT\s*\[\s*"[^"]*"\s*,\s*([0-9.eE+-]+)', re.IGNORECASE)
# A geocentric system of WKT 2 is a GEODCRS too, but its coordinate system (CS) is Cartesian.
_HAS_LENGTHS = re.compile(r"\b(?:PROJCS|PROJ(?:ECTED)?CRS|LOCAL_CS|GEOCCS|CS\s*\[\s*Cartesian)\b", re.IGNORECASE)
_HAS_DEGREES = re.compile(r"\b(?:GEOGCS|GEOG(?:RAPHIC)?CRS|GEOD(?:ETIC)?CRS)\s*\[", re.IGNORECASE)
_HEIGHTS = re.compile(r"\bVERT(?:ICAL)?_?CR?S\s*\[", re.IGNORECASE)  # the vertical system of a compound one
_DEGREE = math.radians(1)
_DEGREES_OF_ANGLE = 0.006  # of one step of scan_angle in the formats 6 and later; scan_angle_rank has whole degrees
_HEADER_BYTES, _VLR_BYTES, _EVLR_BYTES = 247, 54, 60  # the first bytes of a header, and of a record
_COORDINATES = ("X", "Y", "Z")


class LasReader(PieceReader):
    """Reads a .las or .laz file. ValueError if its header is damaged, or its scales are not finite numbers above 0."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        laspy = library("laspy")
        logging.getLogger("laspy").addHandler(logging.NullHandler())  # what it logs are reasons of errors that follow
        self._file = input_file.open_regular(path)
        try:
            _check_records(self._file)
            self.header: Any = laspy.open(self._file, closefd=False).header
            self.contents = self._contents()
        except Exception as error:  # LaspyException, LazrsError, UnicodeDecodeError, struct.error, ...
            self._file.close()
            raise damaged(path, error) from None
        try:
            self._check()
        except ValueError:
            self._file.close()
            raise

    def _check(self) -> None:
        header = self.header
        for what, values, wrong in (
            ("scale", header.scales, ~(np.isfinite(header.scales) & (np.asarray(header.scales) > 0))),
            ("offset", header.offsets, ~np.isfinite(header.offsets)),
        ):
            if np.any(wrong):
                raise ValueError(f"{self.path}: the header has the {what}s {np.asarray(values).tolist()}")
        if not header.are_points_compressed:
            size = os.fstat(self._file.fileno()).st_size
            there = max(0, size - header.offset_to_point_data) // header.point_format.size
            if there < header.point_count:
                raise ValueError(
                    f"{self.path}: the header promises {header.point_count} points of {header.point_format.size} "
                    f"bytes, but the file ends after {there}"
                )
        if (info := self.copc_info) is not None:
            end = info.hierarchy_root_offset + info.hierarchy_root_size
            if end > os.fstat(self._file.fileno()).st_size:
                raise ValueError(f"{self.path}: the octree ends at byte {end}, after the end of the file")

    @property
    def copc_info(self) -> Any:
        """The record that tells where a COPC file has its octree; None if the file is no COPC."""
        first = next(iter(self.header.vlrs), None)
        return first if hasattr(first, "hierarchy_root_offset") else None

    def _contents(self) -> Contents:
        header = self.header
        dtypes: dict[str, np.dtype[Any]] = {}
        for dimension in header.point_format.dimensions:
            if dimension.name not in _COORDINATES:
                wide = np.dtype(np.float64) if dimension.is_scaled else dimension.dtype
                dtypes[dimension.name] = np.dtype(np.uint8) if wide is None else np.dtype(wide)
        metres, is_geographic, has_crs = _reference(header)
        records = [*header.vlrs, *(header.evlrs or ())]
        return Contents(
            num_points=int(header.point_count),
            dtypes=dtypes,
            ranges={name: (0.0, 65535.0) for name in SHARES if dtypes.get(name) == np.uint16},
            metres=metres,
            is_geographic=is_geographic,
            has_crs=has_crs,
            wkt=next((each.string for each in records if each.record_id == _WKT and getattr(each, "string", "")), ""),
            legend=_legend_of(header),
        )

    def _pieces(self, num_points: int) -> Iterator[Piece]:
        if not self.contents.num_points:
            return
        # Not seek(): lazrs before 0.8 ends the process where the chunks of a file differ in size, as those of COPC do.
        self._file.seek(0)
        reader = library("laspy").open(self._file, closefd=False)
        for record in reader.chunk_iterator(num_points):
            yield _piece(record, self.header)

    def close(self) -> None:
        self._file.close()


def _check_records(file: BinaryIO) -> None:
    """Raises ValueError if a header promises more variable length records than the file has room for. laspy would make
    objects of all of them.
    """
    size = os.fstat(file.fileno()).st_size
    head = file.read(_HEADER_BYTES)
    file.seek(0)
    if len(head) < 104:
        return  # laspy says so
    (number,) = struct.unpack_from("<I", head, 100)
    if number * _VLR_BYTES > size:
        raise ValueError(f"the header promises {number} records in {size} bytes")
    if len(head) == _HEADER_BYTES and head[25] >= 4:
        (number,) = struct.unpack_from("<I", head, 243)
        if number * _EVLR_BYTES > size:
            raise ValueError(f"the header promises {number} extended records in {size} bytes")


def _piece(record: Any, header: Any) -> Piece:
    raw = np.stack([record.X, record.Y, record.Z], axis=1)
    xyz = raw * np.asarray(header.scales, np.float64) + np.asarray(header.offsets, np.float64)
    return Piece(xyz, lambda name: np.asarray(record[name]), record)


def _legend_of(header: Any) -> dict[int, str]:
    for record in header.vlrs:
        if record.user_id == "LASF_Spec" and record.record_id == 0 and hasattr(record, "lookups"):
            return {int(code): str(name).strip() for code, name in record.lookups.items()}
    return {}


def _reference(header: Any) -> tuple[tuple[float, float, float], bool, bool]:
    """Returns the metres per unit of x, y and z, whether x and y are degrees, and whether the header has a coordinate
    reference system at all. A file without one is taken to be in metres, and heights without a unit are taken to have
    that of x and y.
    """
    records = [*header.vlrs, *(header.evlrs or ())]
    for record in records:
        text = getattr(record, "string", "")
        if text and record.record_id == _WKT:
            horizontal, *vertical = _HEIGHTS.split(text, maxsplit=1)
            is_geographic = bool(_HAS_DEGREES.search(horizontal)) and not _HAS_LENGTHS.search(horizontal)
            unit = 1.0 if is_geographic else _unit_of_wkt(horizontal, 1.0)
            return (unit, unit, _unit_of_wkt("".join(vertical), unit)), is_geographic, True
    for record in records:
        keys = {key.id: key.value_offset for key in getattr(record, "geo_keys", ())}
        if keys:
            unit = _METRES.get(keys.get(_UNITS_KEY, 9001), 1.0)
            height = _METRES.get(keys.get(_VERTICAL_UNITS_KEY, 0), unit)
            return (unit, unit, height), keys.get(1024) == _GEOGRAPHIC, True
    return (1.0, 1.0, 1.0), False, False


def _unit_of_wkt(text: str, default: float) -> float:
    """Returns the metres of the last unit of length in a text, which is that of the axes; the default without one."""
    units = [float(each) for each in _UNIT_OF_WKT.findall(text)]
    return next((each for each in reversed(units) if abs(each - _DEGREE) > 1e-6), default)


class LasWriter(PieceWriter):
    """Writes a .las or .laz file: a copy of a LAS or LAZ file with the same raw coordinates and every dimension, or the
    columns of a file of another kind. Of those, columns that the specification knows by name and whose type fits become
    its dimensions, and other numbers become extra dimensions. Missing values are 0 in dimensions of integers.
    """

    _is_copc = False  # whether the file needs version 1.4 and a newer point format

    @classmethod
    def check(cls, path: str, source: PieceReader) -> None:
        library("laspy")
        is_compressed = path.lower().endswith(".laz")
        if is_compressed and isinstance(source, LasReader) and source.header.point_format.id in _WAVE_PACKETS:
            raise ValueError(f"{source.path}: wave packets cannot be compressed; write .las")

    def __init__(
        self,
        path: str,
        temporary: str,
        source: PieceReader,
        legend: Mapping[int, str],
        *,
        keeps_codes: bool,
        scale: float = 0.001,
    ) -> None:
        self._laspy: Any = library("laspy")
        self._path, self._temporary = path, temporary
        self._is_copy = isinstance(source, LasReader)
        self._codes = source.contents.codes if keeps_codes else ""
        self._columns: dict[str, str] = {}  # the dimension of each column of another kind of file
        # The types of columns with missing values whose dimensions have integers.
        self._integers = {n: d for n, d in source.contents.integers.items() if n == self._codes}
        self.notes: list[str] = []
        if isinstance(source, LasReader):
            self._header = self._copied(source, legend)
        else:
            self._header = self._made(source, scale)
        self._add_legend(legend)
        extra = [self._laspy.ExtraBytesParams(CONFIDENCE, "u1", "share of the votes", scales=[1 / 255], offsets=[0.0])]
        if keeps_codes:
            extra.append(self._laspy.ExtraBytesParams(BEFORE, "u1", "codes of the input"))
        names = set(self._header.point_format.dimension_names)
        self._header.add_extra_dims([each for each in extra if each.name not in names])
        self._writer: Any = None

    def _copied(self, source: LasReader, legend: Mapping[int, str]) -> Any:
        header = copy.deepcopy(source.header)
        number = header.point_format.id
        is_newer = number not in _NEWER_FORMATS
        if not is_newer and (self._is_copc or max(legend, default=0) > _LARGEST_OLD_CODE):
            extra = list(header.point_format.extra_dimensions)
            point_format = self._laspy.PointFormat(_NEWER_FORMATS[number])
            point_format.dimensions.extend(extra)
            header.set_version_and_point_format(self._laspy.header.Version(1, 4), point_format)
        records = [*header.vlrs, *(header.evlrs or ())]
        if source.contents.wkt and header.point_format.id >= _FIRST_OF_WKT:
            header.global_encoding.wkt = True
        elif self._is_copc and any(hasattr(record, "geo_keys") for record in records):
            self.notes.append("the coordinate system is in GeoTIFF keys, where COPC's readers look for WKT")
        header.vlrs = type(header.vlrs)(each for each in header.vlrs if each.user_id != "copc")
        if header.evlrs is not None:
            header.evlrs = type(header.evlrs)(each for each in header.evlrs if each.user_id != "copc")
        return header

    def _made(self, source: PieceReader, scale: float) -> Any:
        columns = source.contents.dtypes
        has_colour = {"red", "green", "blue"} <= columns.keys()
        number = (8 if "nir" in columns else 7) if has_colour else 6
        header = self._laspy.LasHeader(version="1.4", point_format=number)
        header.global_encoding.wkt = True
        if _IS_WKT.match(source.contents.wkt):
            header.vlrs.append(library("laspy.vlrs.known").WktCoordinateSystemVlr(source.contents.wkt))
        header.scales = np.full(3, scale)
        header.offsets = np.zeros(3)
        own = {each.name: each for each in header.point_format.dimensions}
        for name, dtype in columns.items():
            if name.lower() == CLASSIFICATION:
                continue
            kind = np.dtype(np.float32) if dtype == np.float16 else dtype
            integer = source.contents.integers.get(name)
            if name in own and np.can_cast(kind if integer is None else integer, own[name].dtype or np.uint8):
                self._columns[name] = name
                if integer is not None:
                    self._integers[name] = integer
                continue
            if kind.kind not in "iufb" or kind.itemsize > 8:
                self.notes.append(f"the column '{name}' ({dtype}) has no place in LAS")
                continue
            new = f"original_{name}"[:32] if name in own or name == CONFIDENCE else name[:32]
            kind = np.dtype(np.uint8) if kind.kind == "b" else kind
            header.add_extra_dims([self._laspy.ExtraBytesParams(new, kind.str[1:])])
            self._columns[name] = new
        return header

    def _add_legend(self, legend: Mapping[int, str]) -> None:
        lookup: Any = library("laspy.vlrs.known").ClassificationLookupVlr()
        for code, name in legend.items():
            if 0 <= code <= 255:
                lookup[code] = "".join(c if c.isascii() and (c.isalnum() or c == " ") else " " for c in name)[:15]
        kept = (each for each in self._header.vlrs if not (each.user_id == "LASF_Spec" and each.record_id == 0))
        self._header.vlrs = type(self._header.vlrs)([*kept, lookup])

    def write(self, piece: Piece, codes: Array, confidence: Array) -> None:
        if self._writer is None:
            self._open(piece)
        self._writer.write_points(self._points(piece, codes, confidence))

    def _points(self, piece: Piece, codes: Array, confidence: Array) -> Any:
        """Returns the points of a piece as the file has them."""
        points = self._laspy.ScaleAwarePointRecord.zeros(len(piece), header=self._header)
        if self._is_copy:
            _copy(piece.record, points)
        else:
            for axis, name in enumerate(_COORDINATES):
                offset, scale = self._header.offsets[axis], self._header.scales[axis]
                points[name] = self._raw(piece.xyz[:, axis], offset, scale)
            for name, dimension in self._columns.items():
                points[dimension] = self._values(piece, name)
        if self._codes:
            points[BEFORE] = self._values(piece, self._codes)
        points[CLASSIFICATION] = codes
        points.array[CONFIDENCE] = np.rint(confidence * 255).astype(np.uint8)
        return points

    def _values(self, piece: Piece, name: str) -> Array:
        """Returns the values of a column, where missing ones are 0 if the dimension has integers."""
        values = piece.column(name)
        return np.nan_to_num(values).astype(self._integers[name]) if name in self._integers else values

    def _raw(self, values: Array, offset: float, scale: float) -> Array:
        """Returns coordinates as LAS stores them. What is no number becomes the offset."""
        raw = np.rint((np.nan_to_num(values, nan=offset, posinf=offset, neginf=offset) - offset) / scale)
        if len(raw) and max(-raw.min(), raw.max()) > _LARGEST_RAW:
            raw = np.clip(raw, -_LARGEST_RAW, _LARGEST_RAW)
            note = f"points more than {_LARGEST_RAW * scale / 1000:.0f} km from the others are moved to this distance"
            self.notes += [note] if note not in self.notes else []
        return raw.astype(np.int32)

    def _open(self, piece: Piece | None) -> None:
        if piece is not None and not self._is_copy:
            finite = piece.xyz[np.isfinite(piece.xyz).all(axis=1)]
            if len(finite):
                self._header.offsets = np.floor(finite.min(axis=0))
        self._writer = self._new_writer()

    def _new_writer(self) -> Any:
        is_compressed = self._path.lower().endswith(".laz")
        file = Path(self._temporary).open("wb")  # noqa: SIM115  # the writer closes it
        return self._laspy.open(file, mode="w", header=self._header, do_compress=is_compressed)

    def close(self) -> None:
        if self._writer is None:
            self._open(None)
        if self._header.evlrs:
            self._writer.write_evlrs(self._header.evlrs)
        self._writer.close()


def _copy(old: Any, new: Any) -> None:
    """Copies the raw values of every dimension of a record to a new record, which may have a newer point format."""
    if old.point_format.id == new.point_format.id:
        for name in old.array.dtype.names:
            new.array[name] = old.array[name]
        return
    new.copy_fields_from(old)
    for dimension in old.point_format.extra_dimensions:  # their raw values, since scaling could round them
        new.array[dimension.name] = old.array[dimension.name]
    new["scan_angle"] = np.rint(np.asarray(old["scan_angle_rank"]) / _DEGREES_OF_ANGLE).astype(np.int16)
