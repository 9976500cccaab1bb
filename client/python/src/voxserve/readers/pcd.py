"""Reads PCD 0.7 and older (https://pointclouds.org/documentation/tutorials/pcd_file_format.html).

It skips padding, which are fields named _, and ignores the viewpoint. Integers of 8 bytes become float64. Where the
page says nothing, it does as PCL's reader (io/src/pcd_io.cpp, PCDReader::readHeader): a field of COUNT 0 is none;
without SIZE and TYPE all fields are float32; without HEIGHT the cloud is one row; without WIDTH its width follows from
POINTS; a bool (TYPE B) is a byte.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from voxserve.field_spec import NO_TYPE, NUMPY_CODES, Field, FieldSpec
from voxserve.point_cloud import PointCloud
from voxserve.readers import lzf
from voxserve.readers.text import MAX_HEADER_BYTES, LineReader, Skipped, parse_points, split_words, whole_number
from voxserve.readers.to_float64 import to_float64

_MAX_POINT_BYTES = 1 << 20
_MAX_EXTENT = (1 << 32) - 1  # the largest WIDTH (points in a row), and the largest HEIGHT (rows)
_TYPES = {("F", 4): "f32", ("F", 8): "f64", ("I", 1): "i8", ("I", 2): "i16", ("I", 4): "i32", ("U", 1): "u8",
          ("U", 2): "u16", ("U", 4): "u32", ("I", 8): NO_TYPE, ("U", 8): NO_TYPE, ("B", 1): "u8"}  # fmt: skip


@dataclass(frozen=True)
class _Column:
    name: str
    type: str  # NO_TYPE: integers of 8 bytes, which a cloud cannot have
    count: int
    num_bytes: int  # size of all values of the column in a point
    offset: int
    code: str = ""  # the NumPy code of an integer of 8 bytes: "i8" or "u8"

    @property
    def skipped(self) -> bool:
        return self.name == "_"

    def field(self) -> Field:
        return Field(self.name, self.type, self.offset, self.count)


def read(contents: bytes, spec: FieldSpec | None, *, keeps_long: bool = False) -> PointCloud:
    """Returns the cloud of a file's contents. spec: as in voxserve.readers. keeps_long: integers of 8 bytes stay as
    they are if the file is not ascii, in fields without a type, so that the bytes of a binary file are not copied.
    ValueError if the contents are not valid.
    """
    try:
        cloud = _read(contents, keeps_long)
    except ValueError as error:
        raise ValueError(f"PCD: {error}") from None
    return cloud if spec is None else cloud.described_by(spec)


def long_integers(contents: bytes) -> dict[str, tuple[str, int, int]]:
    """Returns the fields that have no type in the cloud that read(keeps_long=True) returns: the NumPy code, the number
    of values in a point and the offset, by name. contents: those of a valid file.
    """
    lines = LineReader(contents)
    entries = _header(lines)
    if entries["DATA"][0].lower() == "ascii":
        return {}
    columns = _columns(entries)
    return {c.name: (c.code, c.count, c.offset) for c in columns if c.code and not c.skipped}


def _read(contents: bytes, keeps_long: bool) -> PointCloud:
    lines = LineReader(contents)
    entries = _header(lines)
    columns = _columns(entries)
    point_step = sum(column.num_bytes for column in columns)
    width, height = _extent(entries)
    num_points = width * height
    body = memoryview(contents)[lines.position :]
    kind = entries["DATA"][0].lower() if len(entries["DATA"]) == 1 else ""
    if kind == "ascii":
        kept = [column for column in columns if not column.skipped]
        data: bytes | memoryview = _ascii(lines, columns, num_points)
        point_step = sum(column.num_bytes for column in kept)
        starts = [sum(column.num_bytes for column in kept[:index]) for index in range(len(kept))]
        columns = [replace(column, offset=start) for column, start in zip(kept, starts, strict=True)]
    elif kind == "binary":
        size = num_points * point_step
        # Some programs pad the file with zeros. Any other bytes after the points mean that the header is wrong.
        if len(body) < size or np.frombuffer(body[size:], np.uint8).any():
            raise ValueError(
                f"the header promises {num_points} points of {point_step} bytes, but {len(body)} bytes follow"
            )
        data = body[:size]
    elif kind == "binary_compressed":
        data = _compressed(body, columns, num_points)
    else:
        raise ValueError(f"DATA {kind[:32]} is none of ascii, binary, binary_compressed")
    if not keeps_long or kind == "ascii":
        data = data if kind == "ascii" else _with_float64(data, point_step, columns)
        columns = [replace(column, type="f64") if column.code else column for column in columns]
    fields = tuple(column.field() for column in columns if not column.skipped)
    return PointCloud(data, num_points, point_step, fields, height if height > 1 and num_points else 0)


def _with_float64(data: bytes | memoryview, point_step: int, columns: list[_Column]) -> bytes | memoryview:
    """Returns the bytes of the points in which integers of 8 bytes are float64."""
    long = [column for column in columns if column.code and not column.skipped]
    if not long:
        return data
    names, offsets = [column.name for column in long], [column.offset for column in long]
    formats = [("<" + column.code, (column.count,)) for column in long]
    dtype = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": point_step})
    return to_float64(np.frombuffer(data, dtype)).view(np.uint8).data


def _header(lines: LineReader) -> dict[str, list[str]]:
    entries: dict[str, list[str]] = {}
    while (line := lines.next()) is not None and lines.position <= MAX_HEADER_BYTES:
        words = split_words(line)
        if words and not words[0].startswith("#"):
            keyword = words[0].upper()
            entries["FIELDS" if keyword == "COLUMNS" else keyword] = words[1:]
            if keyword == "DATA":
                return entries
    raise ValueError("the header has no DATA line")


def _count(entries: dict[str, list[str]], keyword: str) -> int:
    words = entries.get(keyword, [])
    value = whole_number(words[0]) if len(words) == 1 else None
    if value is None:
        raise ValueError(f"{keyword} needs one whole number")
    return value


def _extent(entries: dict[str, list[str]]) -> tuple[int, int]:
    """Returns the points in a row, and the rows."""
    points = _count(entries, "POINTS") if "POINTS" in entries else None
    height = _count(entries, "HEIGHT") if "HEIGHT" in entries else 1
    width = _count(entries, "WIDTH") if "WIDTH" in entries else None
    if points is not None and (width is None or (width == 0 and "HEIGHT" not in entries)):
        width = points // max(1, height)
    if width is None:
        raise ValueError("the header has neither WIDTH nor POINTS")
    if max(width, height) > _MAX_EXTENT:
        raise ValueError(f"WIDTH {width} x HEIGHT {height} is not a scan's size")
    if points is not None and points != width * height:
        raise ValueError(f"POINTS {points}, but WIDTH {width} x HEIGHT {height} = {width * height}")
    return width, height


def _columns(entries: dict[str, list[str]]) -> list[_Column]:
    names, sizes, kinds = (entries.get(keyword, []) for keyword in ("FIELDS", "SIZE", "TYPE"))
    counts = entries.get("COUNT") or ["1"] * len(names)
    if not sizes and not kinds:
        sizes, kinds = ["4"] * len(names), ["F"] * len(names)
    if not names:
        raise ValueError("the header has no FIELDS")
    if not len(names) == len(sizes) == len(kinds) == len(counts):
        raise ValueError(
            f"{len(names)} FIELDS, but {len(sizes)} SIZE, {len(kinds)} TYPE and {len(counts)} COUNT values"
        )
    columns: list[_Column] = []
    seen: set[str] = set()
    offset = 0
    for name, size_text, kind, count_text in zip(names, sizes, kinds, counts, strict=True):
        size, count = whole_number(size_text), whole_number(count_text)
        if size is None or (kind.upper(), size) not in _TYPES:
            raise ValueError(
                f"field '{name}' has TYPE {kind} SIZE {size_text}; there are F 4 and 8, I and U 1, 2, 4 and 8, B 1"
            )
        if count is None or count > _MAX_POINT_BYTES:
            raise ValueError(f"field '{name}' has COUNT {count_text}, must be 1 to {_MAX_POINT_BYTES}, or 0 for none")
        if count == 0:
            continue
        kind = kind.upper()
        code = f"{kind.lower()}8" if _TYPES[kind, size] == NO_TYPE else ""
        column = _Column(name, _TYPES[kind, size], count, size * count, offset, code)
        if not column.skipped and name in seen:
            raise ValueError(f"the field '{name}' appears twice")
        seen.add(name)
        columns.append(column)
        offset += column.num_bytes
        if offset > _MAX_POINT_BYTES:
            raise ValueError(f"a point takes more than {_MAX_POINT_BYTES} bytes")
    if not columns:
        raise ValueError("all FIELDS have COUNT 0")
    return columns


def _ascii(lines: LineReader, columns: list[_Column], num_points: int) -> bytes:
    dtypes = [
        Skipped() if column.skipped else "<" + NUMPY_CODES["f64" if column.code else column.type]
        for column in columns
        for _ in range(column.count)
    ]
    parsed = parse_points(lines, num_points, dtypes)
    packed = np.empty(num_points, [(str(index), values.dtype) for index, values in enumerate(parsed)])
    for index, values in enumerate(parsed):
        packed[str(index)] = values
    return packed.tobytes()


def _compressed(body: memoryview, columns: list[_Column], num_points: int) -> bytes:
    """Returns the bytes of the points, point after point, from compressed data. Those hold the points field after
    field: all x, then all y, ...
    """
    if num_points == 0 and not body:  # as pypcd4 writes no points
        return b""
    if len(body) < 8:
        raise ValueError("the file ends before the compressed data")
    compressed, size = (int.from_bytes(body[start : start + 4], "little") for start in (0, 4))
    point_step = sum(column.num_bytes for column in columns)
    if compressed > len(body) - 8:
        raise ValueError(f"promises {compressed} compressed bytes, but {len(body) - 8} follow")
    if size != num_points * point_step:
        raise ValueError(f"{size} uncompressed bytes for {num_points} points of {point_step} bytes")
    data = np.frombuffer(lzf.decompress(body[8 : 8 + compressed], size), np.uint8)
    points = np.empty((num_points, point_step), np.uint8)
    for column in columns:
        begin, end = column.offset, column.offset + column.num_bytes
        points[:, begin:end] = data[begin * num_points : end * num_points].reshape(num_points, column.num_bytes)
    return points.tobytes()
