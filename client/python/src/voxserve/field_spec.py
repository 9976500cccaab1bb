"""Parses field specs. A field spec is the layout of a scan's points in one line, as in --fields of both command-line
clients:

    x:f32,y:f32,z:f32,intensity:f32*0.00392156862745098,-:f32

Entries follow each other without gaps, separated by commas: NAME:TYPE[*SCALE][+SHIFT]. TYPE is i8, u8, i16, u16, i32,
u32, f16, f32 or f64, little endian. The network gets raw * SCALE + SHIFT (defaults 1 and 0), in metres for x, y, z and
as 0..1 for intensity. The name - skips a value of that type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

# The value types by name: their numbers in PointFieldType (1 to 8 are those of ROS' sensor_msgs/PointField), and their
# NumPy type codes without the byte order.
WIRE_TYPES = {"i8": 1, "u8": 2, "i16": 3, "u16": 4, "i32": 5, "u32": 6, "f32": 7, "f64": 8, "f16": 9}
NUMPY_CODES = {"i8": "i1", "u8": "u1", "i16": "i2", "u16": "u2", "i32": "i4", "u32": "u4", "f32": "f4", "f64": "f8",
               "f16": "f2"}  # fmt: skip
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_ENTRY = re.compile(rf"([^:]+):(\w+)(?:\*({_NUMBER}))?(?:\+({_NUMBER}))?")


@dataclass(frozen=True)
class Field:
    """One named field of every point. Its value is raw * scale + shift, in the field's canonical unit: metres for x, y
    and z, 0..1 for intensity, seconds for times.
    """

    name: str
    type: str  # "f32", "u8", ...: a key of WIRE_TYPES
    offset: int = 0  # bytes from the start of the point
    count: int = 1  # values in the field; the server reads the first
    scale: float = 1.0
    shift: float = 0.0

    @property
    def value_bytes(self) -> int:
        """The number of bytes of one value."""
        return int(NUMPY_CODES[self.type][1:])


@dataclass(frozen=True)
class FieldSpec:
    """A parsed field spec."""

    fields: tuple[Field, ...]  # without the skipped values; their offsets count the skipped values' bytes
    point_step: int  # bytes of a point, skipped values included


def parse(text: str) -> FieldSpec:
    """Parses a field spec. A ValueError quotes the wrong entry and shows the right form."""
    fields: list[Field] = []
    offset = 0
    for entry in (part.strip() for part in text.split(",")):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise _bad(entry, "is not NAME:TYPE[*SCALE][+SHIFT]")
        name, kind = match[1], match[2]
        if kind not in WIRE_TYPES:
            raise _bad(entry, f"type '{kind}' is none of {', '.join(WIRE_TYPES)}")
        scale, shift = float(match[3] or 1), float(match[4] or 0)
        if not math.isfinite(scale) or scale == 0:
            raise _bad(entry, "the scale is not a finite number other than 0")
        if not math.isfinite(shift):
            raise _bad(entry, "the shift is not a finite number")
        if name != "-" and any(name == other.name for other in fields):
            raise _bad(entry, f"the name '{name}' appears twice")
        field = Field(name, kind, offset, 1, scale, shift)
        offset += field.value_bytes
        if name != "-":
            fields.append(field)
    return FieldSpec(tuple(fields), offset)


def describe(fields: Iterable[Field]) -> str:
    """Returns a field spec of these fields for messages. It leaves out skipped values."""
    return ",".join(
        f"{f.name}:{f.type}" + (f"*{f.scale:g}" if f.scale != 1 else "") + (f"+{f.shift:g}" if f.shift else "")
        for f in fields
    )


def _bad(entry: str, why: str) -> ValueError:
    return ValueError(f"field entry '{entry}': {why}; write NAME:TYPE[*SCALE][+SHIFT], e.g. intensity:u8*0.00392")
