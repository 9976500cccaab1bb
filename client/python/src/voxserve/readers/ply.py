"""Reads PLY 1.0 (http://paulbourke.net/dataformats/ply/).

The points are the element "vertex"; other elements are skipped. From names such as "scalar_Intensity", as CloudCompare
writes them, it removes the prefix and makes them lower case.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from voxserve.field_spec import NUMPY_CODES, Field, FieldSpec
from voxserve.point_cloud import PointCloud
from voxserve.readers.text import MAX_HEADER_BYTES, LineReader, parse_points, split_words, whole_number

_TYPES = {"char": "i8", "int8": "i8", "uchar": "u8", "uint8": "u8", "short": "i16", "int16": "i16", "ushort": "u16",
          "uint16": "u16", "int": "i32", "int32": "i32", "uint": "u32", "uint32": "u32", "float": "f32",
          "float32": "f32", "double": "f64", "float64": "f64"}  # fmt: skip
_CLOUD_COMPARE = "scalar_"
_MAX_PROPERTIES = 1024


@dataclass
class _Element:
    name: str
    count: int
    properties: dict[str, Field] = field(default_factory=dict)  # by name; their offsets have no gaps
    step: int = 0  # bytes of one element in a binary file
    list_name: str = ""  # the name of a list property; such an element has no fixed size. "": it has none


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
    if vertex.list_name:
        raise ValueError(f"the vertices have the list '{vertex.list_name}'")
    if not vertex.properties:
        raise ValueError("the vertices have no properties")
    if kind == "ascii":
        data: bytes | memoryview = _ascii(lines, elements[:index], vertex)
    elif kind in ("binary_little_endian", "binary_big_endian"):
        data = _binary(memoryview(contents)[lines.position :], elements[:index], vertex)
    else:
        raise ValueError(f"format '{kind[:32]}' is none of ascii, binary_little_endian, binary_big_endian")
    big = kind == "binary_big_endian"
    return PointCloud(data, vertex.count, vertex.step, tuple(vertex.properties.values()), is_bigendian=big)


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
    if len(words) == 5 and words[1] == "list":
        element.list_name = words[4]
        return
    if len(words) != 3 or words[1] not in _TYPES:
        raise ValueError(f"a property of element '{element.name}' is not 'property TYPE NAME'")
    if len(element.properties) == _MAX_PROPERTIES:
        raise ValueError(f"element '{element.name}' has more than {_MAX_PROPERTIES} properties")
    name = words[2]
    if name.startswith(_CLOUD_COMPARE):
        name = name[len(_CLOUD_COMPARE) :].lower()
    if name in element.properties:
        raise ValueError(f"the property '{name}' appears twice")
    element.properties[name] = Field(name, _TYPES[words[1]], element.step)
    element.step += element.properties[name].value_bytes


def _ascii(lines: LineReader, before: list[_Element], vertex: _Element) -> bytes:
    for element in before:
        for _ in range(element.count):
            if lines.next() is None:
                raise ValueError(f"the file ends within element '{element.name}'")
    dtypes = ["<" + NUMPY_CODES[entry.type] for entry in vertex.properties.values()]
    columns = parse_points(lines, vertex.count, dtypes)
    packed = np.empty(vertex.count, list(zip(vertex.properties, dtypes, strict=True)))
    for name, values in zip(vertex.properties, columns, strict=True):
        packed[name] = values
    return packed.tobytes()


def _binary(body: memoryview, before: list[_Element], vertex: _Element) -> memoryview:
    begin = 0
    for element in before:
        if element.list_name:
            raise ValueError(
                f"element '{element.name}' before the vertices has the list '{element.list_name}', whose size is not "
                "known"
            )
        if element.count * element.step > len(body) - begin:
            raise ValueError(
                f"element '{element.name}' needs {element.count} x {element.step} bytes, but {len(body) - begin} follow"
            )
        begin += element.count * element.step
    left = len(body) - begin
    if vertex.count * vertex.step > left:
        raise ValueError(f"the header promises {vertex.count} vertices of {vertex.step} bytes, but {left} bytes follow")
    return body[begin : begin + vertex.count * vertex.step]
