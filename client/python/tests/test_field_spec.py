"""Tests the parser of field specs, the text that describes raw points in both command-line clients."""

from __future__ import annotations

import pytest

from voxserve import field_spec


def test_names_types_offsets_scales_and_shifts() -> None:
    spec = field_spec.parse("x:f32, y:f32,z:f64,-:u16,intensity:u8*0.5+-1.5,t:i32+1e+3")
    assert [(f.name, f.type, f.offset, f.scale, f.shift) for f in spec.fields] == [
        ("x", "f32", 0, 1, 0),
        ("y", "f32", 4, 1, 0),
        ("z", "f64", 8, 1, 0),
        ("intensity", "u8", 18, 0.5, -1.5),
        ("t", "i32", 19, 1, 1000),
    ]
    assert spec.point_step == 23


@pytest.mark.parametrize("kind", field_spec.WIRE_TYPES)
def test_every_type_has_its_size(kind: str) -> None:
    assert field_spec.parse(f"a:{kind}").point_step == int(kind[1:]) // 8


def test_exponents_are_not_shifts() -> None:
    field = field_spec.parse("a:f32*1e+2+3")
    assert (field.fields[0].scale, field.fields[0].shift) == (100, 3)


def test_new_names() -> None:
    spec = field_spec.parse("x:f32, intensity=reflectivity*0.5+-1 ,ring = channel")
    assert spec.point_step == 4
    assert spec.renames == (
        field_spec.Rename("intensity", "reflectivity", 0.5, -1),
        field_spec.Rename("ring", "channel"),
    )
    assert spec.layout == field_spec.parse("x:f32")
    assert field_spec.parse("a=b").layout is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("=b", "field entry '=b'"),
        ("a=", "field entry 'a='"),
        (" =b", "field entry '=b'"),
        ("a=-", "lacks a name"),
        ("-=a", "lacks a name"),
        ("a=b:f32", "is neither NAME:TYPE"),
        ("a:f32=b", "is neither NAME:TYPE"),
        ("a=b=c", "is neither NAME:TYPE"),
        ("a=b,a=c", "the name 'a' appears twice"),
        ("a=c,b=c", "the field 'c' gets two names"),
        ("a=b*0", "the scale is not a finite number other than 0"),
        ("", "field entry ''"),
        ("x", "field entry 'x'"),
        ("x:f32,,y:f32", "field entry ''"),
        (":f32", "field entry ':f32'"),
        ("x:f31", "type 'f31' is none of"),
        ("x:f32*", "field entry 'x:f32\\*'"),
        ("x:f32*0", "the scale is not a finite number other than 0"),
        ("x:f32*1e999", "the scale is not a finite number other than 0"),
        ("x:f32+1e999", "the shift is not a finite number"),
        ("x:f32,x:f32", "the name 'x' appears twice"),
    ],
)
def test_errors_quote_the_entry(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        field_spec.parse(text)


def test_describe_is_the_reverse() -> None:
    text = "x:f32,intensity:u8*0.5+1"
    assert field_spec.describe(field_spec.parse(text).fields) == text
