"""Parses field specs. A field spec is the layout of a scan's points in one line, as in --fields of both command-line
clients:

    x:f32,y:f32,z:f32,intensity:f32*0.00392156862745098,-:f32

Entries follow each other without gaps, separated by commas: NAME:TYPE[*SCALE][+SHIFT]. TYPE is i8, u8, i16, u16, i32,
u32, f16, f32 or f64, little endian. The network gets raw * SCALE + SHIFT (defaults 1 and 0), in metres for x, y, z and
as 0..1 for intensity. The name - skips a value of that type.

An entry NEW=OLD[*SCALE][+SHIFT] gives the field OLD of the cloud the name NEW, such as intensity=reflectivity. A field
that is called NEW before is left out, unless the spec renames it too. SCALE and SHIFT replace those of OLD.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# The value types by name: their numbers in PointFieldType (1 to 8 are those of ROS' sensor_msgs/PointField), and their
# NumPy type codes without the byte order.
WIRE_TYPES = {"i8": 1, "u8": 2, "i16": 3, "u16": 4, "i32": 5, "u32": 6, "f32": 7, "f64": 8, "f16": 9}
NUMPY_CODES = {"i8": "i1", "u8": "u1", "i16": "i2", "u16": "u2", "i32": "i4", "u32": "u4", "f32": "f4", "f64": "f8",
               "f16": "f2"}  # fmt: skip
_NUMBER = r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_UNIT = rf"(?:\*({_NUMBER}))?(?:\+({_NUMBER}))?"  # a scale and a shift
_ENTRY = re.compile(rf"([^:=]+):(\w+){_UNIT}")
_RENAME = re.compile(rf"([^:=]+)=([^:=*+]+){_UNIT}")
# Field.type of a value that no field of a request can have, such as an int64 of ROS. A request carries it as
# POINT_FIELD_TYPE_UNSPECIFIED: the server skips the field, and refuses it by name if its model reads it.
NO_TYPE = "none"


@dataclass(frozen=True)
class Field:
    """One named field of every point. Its value is raw * scale + shift, in the field's canonical unit: metres for x, y
    and z, 0..1 for intensity, seconds for times.
    """

    name: str
    type: str  # "f32", "u8", ...: a key of WIRE_TYPES; or NO_TYPE
    offset: int = 0  # bytes from the start of the point
    count: int = 1  # values in the field; the server reads the first
    scale: float = 1.0
    shift: float = 0.0

    @property
    def value_bytes(self) -> int:
        """The number of bytes of one value; 0 of NO_TYPE."""
        return int(NUMPY_CODES[self.type][1:]) if self.type in NUMPY_CODES else 0


@dataclass(frozen=True)
class Rename:
    """A new name for a field of a cloud, and the scale and shift that the field gets; None keeps its own."""

    name: str
    source: str  # the field's name in the cloud
    scale: float | None = None
    shift: float | None = None


@dataclass(frozen=True)
class FieldSpec:
    """A parsed field spec."""

    fields: tuple[Field, ...]  # without the skipped values; their offsets count the skipped values' bytes
    point_step: int  # bytes of a point, skipped values included; 0: the spec has only renames
    renames: tuple[Rename, ...] = ()

    @property
    def layout(self) -> FieldSpec | None:
        """The spec without its renames; None if it has nothing else."""
        return FieldSpec(self.fields, self.point_step) if self.point_step else None

    @property
    def scaled(self) -> set[str]:
        """The names, in lower case, of the fields whose scale the spec says. It finds fields by names in any case."""
        described = {field.name.lower() for field in self.fields}
        renamed = {
            each.name.lower() for each in self.renames if each.scale is not None or each.source.lower() in described
        }
        return described | renamed


def parse(text: str) -> FieldSpec:
    """Parses a field spec. A ValueError quotes the wrong entry and shows the right form."""
    fields: list[Field] = []
    renames: list[Rename] = []
    offset = 0
    for entry in (part.strip() for part in text.split(",")):
        match = (_RENAME if "=" in entry else _ENTRY).fullmatch(entry)
        if match is None:
            raise _bad(entry, "is neither NAME:TYPE[*SCALE][+SHIFT] nor NEW=OLD[*SCALE][+SHIFT]")
        name, second = match[1].strip(), match[2].strip()
        scale = None if match[3] is None else float(match[3])
        shift = None if match[4] is None else float(match[4])
        if scale is not None and (not math.isfinite(scale) or scale == 0):
            raise _bad(entry, "the scale is not a finite number other than 0")
        if shift is not None and not math.isfinite(shift):
            raise _bad(entry, "the shift is not a finite number")
        if "=" in entry:
            if not name or not second or "-" in (name, second):
                raise _bad(entry, "lacks a name")
            if any(name == other.name for other in renames):
                raise _bad(entry, f"the name '{name}' appears twice")
            if any(second == other.source for other in renames):
                raise _bad(entry, f"the field '{second}' gets two names")
            renames.append(Rename(name, second, scale, shift))
            continue
        if second not in WIRE_TYPES:
            raise _bad(entry, f"type '{second}' is none of {', '.join(WIRE_TYPES)}")
        if name != "-" and any(name == other.name for other in fields):
            raise _bad(entry, f"the name '{name}' appears twice")
        field = Field(name, second, offset, 1, 1.0 if scale is None else scale, shift or 0.0)
        offset += field.value_bytes
        if name != "-":
            fields.append(field)
    return FieldSpec(tuple(fields), offset, tuple(renames))


def renaming(names: Mapping[str, str]) -> FieldSpec:
    """Returns the spec that gives fields of a cloud new names: {"intensity": "reflectivity"}. ValueError if a field
    gets two names.
    """
    sources = list(names.values())
    if twice := next((source for source in sources if sources.count(source) > 1), None):
        raise ValueError(f"the field '{twice}' gets two names")
    return FieldSpec((), 0, tuple(Rename(name, source) for name, source in names.items()))


def describe(fields: Iterable[Field]) -> str:
    """Returns a field spec of these fields for messages. It leaves out skipped values."""
    return ",".join(
        f"{f.name}:{f.type}" + (f"*{f.scale:g}" if f.scale != 1 else "") + (f"+{f.shift:g}" if f.shift else "")
        for f in fields
    )


def _bad(entry: str, why: str) -> ValueError:
    return ValueError(
        f"field entry '{entry}': {why}; write NAME:TYPE[*SCALE][+SHIFT], e.g. intensity:u8*0.00392, or "
        "NEW=OLD, e.g. intensity=reflectivity"
    )
