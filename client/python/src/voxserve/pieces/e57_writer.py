"""Writes E57 (ASTM E2807) with pye57's binding of libE57Format.

- The copy of an E57 file has its scans with their poses, fields, raw values and descriptions, its images and all other
  nodes. Only the guid is new.
- A file of another kind becomes one scan in metres. LAS coordinates stay scaled integers, others are float64; a point
  with NaN coordinates is marked by cartesianInvalidState.
- E57 has no field for the class of a point, but lets files declare namespaces of further fields (clause 8.4.1 of the
  standard). The fields classification, confidence and classification_before, and columns that E57 has no field for, are
  in EXTENSION. The legend is the text EXTENSION:legend of the file, as JSON. Readers that do not know a namespace skip
  its fields.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from voxserve.pieces.e57 import EXTENSION, NAMES, E57Reader, E57Record, column_of, prefix_of
from voxserve.pieces.las import LasReader
from voxserve.pieces.reader import Array, Piece, PieceReader, library
from voxserve.pieces.writer import BEFORE, CLASSIFICATION, CONFIDENCE, PieceWriter

_BUFFER_RECORDS = 1 << 16
_BLOB_BYTES = 1 << 20
_AXES = ("cartesianX", "cartesianY", "cartesianZ")
_INVALID = "cartesianInvalidState"
_IS_INVALID = 2  # 1 is a point whose direction alone is known
_FIELDS = {column: field for field, column in NAMES.items() if field.startswith("color")} | {"intensity": "intensity"}
Values = Callable[[Piece], Array]


class E57Writer(PieceWriter):
    """Writes an .e57 file."""

    @classmethod
    def check(cls, path: str, source: PieceReader) -> None:
        library("pye57")

    def __init__(
        self, path: str, temporary: str, source: PieceReader, legend: Mapping[int, str], *, keeps_codes: bool
    ) -> None:
        self._libe57: Any = library("pye57").libe57
        self.notes: list[str] = []
        self._before = source.contents.codes if keeps_codes else ""
        self._largest_code = 255 if max(legend, default=0) < 256 else 65535
        self._file: Any = self._libe57.ImageFile(temporary, "w")
        self._scans: list[tuple[Any, dict[str, Values]]] = []  # the points of a scan, and the values of its fields
        self._open_scans = 0  # the points of those before are written
        self._writer: Any = None
        self._buffers: dict[str, Array] = {}
        self._bounds: Array | None = None  # the least and largest coordinates, of a scan that is made here
        text = json.dumps({str(code): name for code, name in legend.items()})
        seed = f"{source.contents.num_points} {text}"
        if isinstance(source, E57Reader):
            self._copy_file(source, seed)
        else:
            self._make_file(source, seed)
        self._root.set(f"{self._prefix}:legend", self._libe57.StringNode(self._file, text))

    @property
    def _root(self) -> Any:
        return self._file.root()

    def _declare(self, others: Mapping[str, str]) -> None:
        """Declares the namespaces. others: the addresses of the other prefixes."""
        for prefix, address in {"": self._libe57.E57_V1_0_URI, **others}.items():
            self._file.extensionsAdd(prefix, address)
        self._prefix = next(p for p in ("vs", *(f"vs{i}" for i in range(2, 1000))) if p not in others)
        self._file.extensionsAdd(self._prefix, EXTENSION)

    def _copy_file(self, source: E57Reader, seed: str) -> None:
        libe57, old = self._libe57, source.file
        own = prefix_of(old)
        prefixes = [old.extensionsPrefix(i) for i in range(old.extensionsCount())]
        self._declare({p: old.extensionsUri(i) for i, p in enumerate(prefixes) if p not in ("", own)})
        self._later: list[Callable[[], None]] = []
        root = old.root()
        for index in range(root.childCount()):
            node = root[index]
            name = node.elementName()
            if name == "guid":
                node = libe57.StringNode(self._file, _guid(node.value() + seed))
            elif name == "e57LibraryVersion":
                node = libe57.StringNode(self._file, libe57.E57_LIBRARY_ID)
            elif name == f"{own}:legend":
                continue
            else:
                node = self._copied(node, own)
            self._root.set(self._renamed(name, own), node)
        for fill in self._later:
            fill()

    def _renamed(self, name: str, own: str | None) -> str:
        """Returns the name of a node, with the prefix that the new file has for the namespace."""
        prefix, colon, rest = name.partition(":")
        return f"{self._prefix}:{rest}" if colon and prefix == own else name

    def _copied(self, node: Any, own: str | None) -> Any:
        """Returns a copy of a node for the new file. What blobs and lists hold is written when the nodes are there."""
        libe57, file = self._libe57, self._file
        if isinstance(node, libe57.CompressedVectorNode):
            return self._copied_records(node, own)
        if isinstance(node, libe57.StructureNode):
            structure = libe57.StructureNode(file)
            for index in range(node.childCount()):
                child = node[index]
                structure.set(self._renamed(child.elementName(), own), self._copied(child, own))
            return structure
        if isinstance(node, libe57.VectorNode):
            vector = libe57.VectorNode(file, node.allowHeteroChildren())
            for index in range(node.childCount()):
                vector.append(self._copied(node[index], own))
            return vector
        if isinstance(node, libe57.BlobNode):
            blob = libe57.BlobNode(file, node.byteCount())
            self._later.append(lambda: _copy_blob(node, blob))
            return blob
        if isinstance(node, libe57.IntegerNode):
            return libe57.IntegerNode(file, node.value(), node.minimum(), node.maximum())
        if isinstance(node, libe57.FloatNode):
            return libe57.FloatNode(file, node.value(), node.precision(), node.minimum(), node.maximum())
        if isinstance(node, libe57.ScaledIntegerNode):
            return libe57.ScaledIntegerNode(
                file, node.rawValue(), node.minimum(), node.maximum(), node.scale(), node.offset()
            )
        return libe57.StringNode(file, node.value())

    def _copied_records(self, node: Any, own: str | None) -> Any:
        """Returns a copy of a list of records: the points of a scan, or how they are grouped."""
        libe57 = self._libe57
        is_points = re.fullmatch(r"/data3D/\d+/points", node.pathName()) is not None
        prototype, values = libe57.StructureNode(self._file), dict[str, Values]()
        old = libe57.StructureNode(node.prototype())
        for index in range(old.childCount()):
            child = old[index]
            name = child.elementName()
            if is_points and column_of(name, own) in (CLASSIFICATION, CONFIDENCE, BEFORE) and ":" in name:
                continue
            if not isinstance(child, libe57.IntegerNode | libe57.FloatNode | libe57.ScaledIntegerNode):
                self.notes.append(f"the field '{node.pathName()}/{name}' holds no numbers and is left out")
                continue
            prototype.set(self._renamed(name, own), self._copied(child, own))
            values[self._renamed(name, own)] = _raw_value(name)
        if is_points:
            self._add_answers(prototype, values)
        records = libe57.CompressedVectorNode(self._file, prototype, libe57.VectorNode(self._file, True))
        if is_points:
            self._scans.append((records, values))
        else:
            names = {name: self._renamed(name, own) for name in (old[i].elementName() for i in range(old.childCount()))}
            kept = {name: new for name, new in names.items() if new in values}
            self._later.append(lambda: self._copy_records(node, records, kept))
        return records

    def _add_answers(self, prototype: Any, values: dict[str, Values]) -> None:
        libe57, file = self._libe57, self._file
        nodes = {
            CLASSIFICATION: libe57.IntegerNode(file, 0, 0, self._largest_code),
            CONFIDENCE: libe57.FloatNode(file, 0.0, libe57.E57_SINGLE, 0.0, 1.0),
        }
        if self._before:
            nodes[BEFORE] = libe57.IntegerNode(file, 0, 0, 65535)
            values[f"{self._prefix}:{BEFORE}"] = lambda piece: piece.column(self._before)
        for name, node in nodes.items():
            prototype.set(f"{self._prefix}:{name}", node)

    def _copy_records(self, old: Any, new: Any, names: Mapping[str, str]) -> None:
        libe57, number = self._libe57, _BUFFER_RECORDS
        prototype = libe57.StructureNode(old.prototype())
        sources, targets = libe57.VectorSourceDestBuffer(), libe57.VectorSourceDestBuffer()
        arrays = []  # as long as the buffers
        for name, renamed in names.items():
            arrays.append(np.empty(number, "d" if isinstance(prototype[name], libe57.FloatNode) else "q"))
            sources.append(libe57.SourceDestBuffer(old.destImageFile(), name, arrays[-1], number, True, False))
            targets.append(libe57.SourceDestBuffer(self._file, renamed, arrays[-1], number, True, False))
        writer = new.writer(targets)
        if old.childCount():  # libE57Format reads no empty list
            reader = old.reader(sources)
            while count := int(reader.read()):
                writer.write(count)
            reader.close()
        writer.close()

    def _make_file(self, source: PieceReader, seed: str) -> None:
        libe57, file, root = self._libe57, self._file, self._root
        self._declare({})
        contents = source.contents
        self._metres = contents.metres
        text = contents.wkt
        if text and self._metres != (1, 1, 1):
            self.notes.append("E57 demands metres, so the coordinate system, which has another unit, is left out")
            text = ""
        if contents.has_crs and not contents.wkt:
            self.notes.append("the coordinate system is in GeoTIFF keys, which have no place in E57")
        for name, node in {
            "formatName": libe57.StringNode(file, "ASTM E57 3D Imaging Data File"),
            "guid": libe57.StringNode(file, _guid(seed)),
            "versionMajor": libe57.IntegerNode(file, libe57.E57_FORMAT_MAJOR),
            "versionMinor": libe57.IntegerNode(file, libe57.E57_FORMAT_MINOR),
            "e57LibraryVersion": libe57.StringNode(file, libe57.E57_LIBRARY_ID),
            "coordinateMetadata": libe57.StringNode(file, text),
            "data3D": libe57.VectorNode(file, True),
            "images2D": libe57.VectorNode(file, True),
        }.items():
            root.set(name, node)
        prototype, values = libe57.StructureNode(file), dict[str, Values]()
        self._add_coordinates(source, prototype, values)
        self._add_columns(source, prototype, values)
        self._add_answers(prototype, values)
        self._scan = libe57.StructureNode(file)
        self._scan.set("guid", libe57.StringNode(file, _guid(f"scan {seed}")))
        self._add_limits(source)
        records = libe57.CompressedVectorNode(file, prototype, libe57.VectorNode(file, True))
        self._scan.set("points", records)
        root["data3D"].append(self._scan)
        self._scans.append((records, values))
        self._bounds = np.array([[np.inf] * 3, [-np.inf] * 3])

    def _add_coordinates(self, source: PieceReader, prototype: Any, values: dict[str, Values]) -> None:
        libe57, file, metres = self._libe57, self._file, self._metres
        if isinstance(source, LasReader):
            for index, axis in enumerate(_AXES):
                unit = metres[index]
                scale, offset = source.header.scales[index] * unit, source.header.offsets[index] * unit
                limits = np.iinfo(np.int32)
                node = libe57.ScaledIntegerNode(file, 0, int(limits.min), int(limits.max), float(scale), float(offset))
                prototype.set(axis, node)
                values[axis] = _raw_coordinate("XYZ"[index])
            return
        for index, axis in enumerate(_AXES):
            prototype.set(axis, libe57.FloatNode(file, 0.0, libe57.E57_DOUBLE))
            values[axis] = self._coordinate(index)
        prototype.set(_INVALID, libe57.IntegerNode(file, 0, 0, _IS_INVALID))
        values[_INVALID] = lambda piece: np.where(np.isfinite(piece.xyz).all(axis=1), 0, _IS_INVALID)

    def _coordinate(self, index: int) -> Values:
        unit = self._metres[index]
        return lambda piece: np.where(np.isfinite(piece.xyz).all(axis=1), piece.xyz[:, index] * unit, 0.0)

    def _add_columns(self, source: PieceReader, prototype: Any, values: dict[str, Values]) -> None:
        libe57, file = self._libe57, self._file
        for name, dtype in source.contents.dtypes.items():
            if name == source.contents.codes or name.lower() == CONFIDENCE or (name == BEFORE and self._before):
                continue
            plain = re.sub(r"^(?![A-Za-z_])|[^A-Za-z0-9_.-]", "_", name, flags=re.ASCII)
            field = _FIELDS.get(name, f"{self._prefix}:{plain}")
            if dtype.kind not in "iufb" or dtype.shape or dtype == np.uint64 or field in values:
                self.notes.append(f"the column '{name}' ({dtype}) has no place in E57")
                continue
            if dtype.kind == "f":
                precision = libe57.E57_DOUBLE if dtype.itemsize > 4 else libe57.E57_SINGLE
                node = libe57.FloatNode(file, 0.0, precision)
            else:
                limits = np.iinfo(np.uint8 if dtype.kind == "b" else dtype)
                node = libe57.IntegerNode(file, 0, int(limits.min), int(limits.max))
            prototype.set(field, node)
            values[field] = _column(name)

    def _add_limits(self, source: PieceReader) -> None:
        """Adds the values of intensities and colours that stand for 0 and 1."""
        libe57, ranges = self._libe57, source.contents.ranges
        for structure, columns in {"intensityLimits": ("intensity",), "colorLimits": ("red", "green", "blue")}.items():
            if all(column in ranges for column in columns):
                limits = libe57.StructureNode(self._file)
                for column in columns:
                    for end, value in zip(("Minimum", "Maximum"), ranges[column], strict=True):
                        limits.set(f"{_FIELDS[column]}{end}", libe57.FloatNode(self._file, value))
                self._scan.set(structure, limits)

    def write(self, piece: Piece, codes: Array, confidence: Array) -> None:
        index = piece.record.scan if isinstance(piece.record, E57Record) else 0
        while self._open_scans <= index:
            self._begin_scan()
        values = {name: value(piece) for name, value in self._scans[index][1].items()}
        values[f"{self._prefix}:{CLASSIFICATION}"] = codes
        values[f"{self._prefix}:{CONFIDENCE}"] = np.clip(confidence, 0, 1)
        for first in range(0, len(piece), _BUFFER_RECORDS):
            number = min(_BUFFER_RECORDS, len(piece) - first)
            for name, array in self._buffers.items():
                array[:number] = values[name][first : first + number]
            self._writer.write(number)
        if self._bounds is not None:
            xyz = piece.xyz[np.isfinite(piece.xyz).all(axis=1)] * self._metres
            if len(xyz):
                self._bounds[0] = np.minimum(self._bounds[0], xyz.min(axis=0))
                self._bounds[1] = np.maximum(self._bounds[1], xyz.max(axis=0))

    def _begin_scan(self) -> None:
        """Ends the scan before, and begins the next one."""
        self._end_scan()
        libe57 = self._libe57
        records, _ = self._scans[self._open_scans]
        prototype, buffers = libe57.StructureNode(records.prototype()), libe57.VectorSourceDestBuffer()
        self._buffers = {}
        for index in range(prototype.childCount()):
            node = prototype[index]
            name = node.elementName()
            # As in voxserve.pieces.e57, "q" and not np.int64.
            array = np.empty(_BUFFER_RECORDS, "d" if isinstance(node, libe57.FloatNode) else "q")
            self._buffers[name] = array
            buffers.append(libe57.SourceDestBuffer(self._file, name, array, _BUFFER_RECORDS, True, False))
        self._writer = records.writer(buffers)
        self._open_scans += 1

    def _end_scan(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def close(self) -> None:
        while self._open_scans < len(self._scans):  # those without points
            self._begin_scan()
        self._end_scan()
        if self._bounds is not None and np.isfinite(self._bounds).all():
            bounds = self._libe57.StructureNode(self._file)
            for end, values in zip(("Minimum", "Maximum"), self._bounds, strict=True):
                for axis, value in zip("xyz", values, strict=True):
                    bounds.set(f"{axis}{end}", self._libe57.FloatNode(self._file, float(value)))
            self._scan.set("cartesianBounds", bounds)
        self._file.close()

    def abandon(self) -> None:
        self._end_scan()
        self._file.cancel()


def _guid(seed: str) -> str:
    """Returns an identifier that is the same each time the same copy is written."""
    return f"{{{uuid.uuid5(uuid.NAMESPACE_URL, f'{EXTENSION} {seed}')}}}"


def _raw_value(name: str) -> Values:
    values: Values = lambda piece: piece.record.values[name]  # noqa: E731
    return values


def _raw_coordinate(name: str) -> Values:
    return lambda piece: np.asarray(piece.record[name])


def _column(name: str) -> Values:
    return lambda piece: piece.column(name)


def _copy_blob(old: Any, new: Any) -> None:
    size = old.byteCount()
    for first in range(0, size, _BLOB_BYTES):
        block = np.empty(min(_BLOB_BYTES, size - first), np.uint8)
        old.read(block, first, len(block))
        new.write(block, first, len(block))
