"""Reads PLY 1.0 (http://paulbourke.net/dataformats/ply/).

The points are the element "vertex"; other elements are skipped, and so are lists among the properties. From names such
as "scalar_Intensity", as CloudCompare writes them, it removes the prefix and makes them lower case.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from voxserve.field_spec import NUMPY_CODES, Field, FieldSpec
from voxserve.point_cloud import PointCloud
from voxserve.readers.text import (
    MAX_HEADER_BYTES,
    LineReader,
    Skipped,
    parse_points,
    split_words,
    whole_number,
)

_TYPES = {"char": "i8", "int8": "i8", "uchar": "u8", "uint8": "u8", "short": "i16", "int16": "i16", "ushort": "u16",
          "uint16": "u16", "int": "i32", "int32": "i32", "uint": "u32", "uint32": "u32", "float": "f32",
          "float32": "f32", "double": "f64", "float64": "f64"}  # fmt: skip
_CLOUD_COMPARE = "scalar_"
_MAX_PROPERTIES = 1024


@dataclass(frozen=True)
class _List:
    """A list property: the number of its values, and then the values."""

    count_type: str  # of the number: "u8", "i32", ...
    value_bytes: int


@dataclass
class _Element:
    name: str
    count: int
    properties: list[Field | _List] = field(default_factory=list)
    step: int = 0  # bytes of one element in a binary file, without its lists

    @property
    def fields(self) -> tuple[Field, ...]:
        """The properties that are no lists; their offsets have no gaps."""
        return tuple(entry for entry in self.properties if isinstance(entry, Field))

    @property
    def has_lists(self) -> bool:
        return len(self.fields) < len(self.properties)


def read(contents: bytes, spec: FieldSpec | None) -> PointCloud:
    """Returns the cloud of a file's contents. spec: as in voxserve.readers. ValueError if they are not valid."""
    try:
        cloud = _read(contents)
    except ValueError as error:
        raise ValueError(f"PLY: {error}") from None
    return cloud if spec is None else cloud.described_by(spec)


def _read(contents: bytes) -> PointCloud:
    lines = LineReader(contents)
    kind, elements = _header(lines)
    index = next((i for i, element in enumerate(elements) if element.name == "vertex"), None)
    if index is None:
        raise ValueError("there is no element 'vertex'")
    vertex = elements[index]
    if not vertex.fields:
        raise ValueError("the vertices have no properties")
    if kind == "ascii":
        data: bytes | memoryview = _ascii(lines, elements[:index], vertex, elements[index + 1 :])
    elif kind == "binary_little_endian":
        data = _binary(memoryview(contents)[lines.position :], elements[:index], vertex, "little")
    elif kind == "binary_big_endian":
        data = _binary(memoryview(contents)[lines.position :], elements[:index], vertex, "big")
    else:
        raise ValueError(f"format '{kind[:32]}' is none of ascii, binary_little_endian, binary_big_endian")
    big = kind == "binary_big_endian"
    return PointCloud(data, vertex.count, vertex.step, vertex.fields, is_bigendian=big)


def _header(lines: LineReader) -> tuple[str, list[_Element]]:
    if lines.next() != "ply":
        raise ValueError("the file does not begin with 'ply'")
    kind = ""
    elements: list[_Element] = []
    while (line := lines.next()) is not None and lines.position <= MAX_HEADER_BYTES:
        words = split_words(line)
        if not words or words[0] in ("comment", "obj_info"):
            continue
        if words[0] == "end_header":
            return kind, elements
        if words[0] == "format" and len(words) == 3:
            kind = words[1]
        elif words[0] == "element":
            count = whole_number(words[2]) if len(words) == 3 else None
            if count is None:
                raise ValueError("an element line is not 'element NAME COUNT'")
            elements.append(_Element(words[1], count))
        elif words[0] == "property" and elements:
            _add_property(words, elements[-1])
        else:
            raise ValueError(f"header line {lines.num_lines} begins with '{words[0][:32]}'")
    raise ValueError("the header has no end_header line")


def _add_property(words: list[str], element: _Element) -> None:
    if len(element.properties) == _MAX_PROPERTIES:
        raise ValueError(f"element '{element.name}' has more than {_MAX_PROPERTIES} properties")
    if len(words) == 5 and words[1] == "list":
        count_type, value_type = _TYPES.get(words[2], ""), _TYPES.get(words[3])
        if not count_type.startswith(("i", "u")) or value_type is None:
            raise ValueError(
                f"list '{words[4][:32]}' of element '{element.name}' is not 'property list COUNT TYPE NAME'"
            )
        element.properties.append(_List(count_type, Field("", value_type).value_bytes))
        return
    if len(words) != 3 or words[1] not in _TYPES:
        raise ValueError(f"a property of element '{element.name}' is not 'property TYPE NAME'")
    name = words[2]
    if name.startswith(_CLOUD_COMPARE):
        name = name[len(_CLOUD_COMPARE) :].lower()
    if any(name == other.name for other in element.fields):
        raise ValueError(f"the property '{name}' appears twice")
    added = Field(name, _TYPES[words[1]], element.step)
    element.properties.append(added)
    element.step += added.value_bytes


def _ascii(lines: LineReader, before: list[_Element], vertex: _Element, behind: list[_Element]) -> bytes:
    for element in before:
        for _ in range(element.count):
            if lines.next() is None:
                raise ValueError(f"the file ends within element '{element.name}'")
    columns = [
        Skipped(is_list=True) if isinstance(entry, _List) else "<" + NUMPY_CODES[entry.type]
        for entry in vertex.properties
    ]
    parsed = parse_points(lines, vertex.count, columns, sum(element.count for element in behind))
    packed = np.empty(vertex.count, [(str(index), values.dtype) for index, values in enumerate(parsed)])
    for index, values in enumerate(parsed):
        packed[str(index)] = values
    return packed.tobytes()


def _binary(
    body: memoryview, before: list[_Element], vertex: _Element, order: Literal["little", "big"]
) -> bytes | memoryview:
    begin = 0
    for element in before:
        if element.has_lists:
            begin, _ = _walk(body, begin, element, order)
            continue
        if element.count * element.step > len(body) - begin:
            raise ValueError(
                f"element '{element.name}' needs {element.count} x {element.step} bytes, but {len(body) - begin} follow"
            )
        begin += element.count * element.step
    if vertex.has_lists:
        return _walk(body, begin, vertex, order)[1]
    left = len(body) - begin
    if vertex.count * vertex.step > left:
        raise ValueError(f"the header promises {vertex.count} vertices of {vertex.step} bytes, but {left} bytes follow")
    return body[begin : begin + vertex.count * vertex.step]


def _walk(body: memoryview, begin: int, element: _Element, order: Literal["little", "big"]) -> tuple[int, bytes]:
    """Reads elements with lists, which have no fixed size. Returns the place where they end, and their bytes without
    the lists.
    """
    parts: list[memoryview] = []
    at = begin
    for index in range(element.count):
        for entry in element.properties:
            size = entry.value_bytes
            if isinstance(entry, _List):
                start, at = at, at + int(NUMPY_CODES[entry.count_type][1:])
                count = int.from_bytes(body[start:at], order, signed=entry.count_type.startswith("i"))
                if at <= len(body) and count < 0:
                    raise ValueError(f"a list of element {index} of '{element.name}' has {count} values")
                at += count * size
            else:
                parts.append(body[at : at + size])
                at += size
            if at > len(body):
                raise ValueError(f"the file ends within element {index} of the {element.count} of '{element.name}'")
    return at, b"".join(parts)
