"""Tests the reader of PLY with files that the tests write."""

from __future__ import annotations

import numpy as np
import pytest
from scan_files import POINTS, Write, ply_header, ply_with_lists, table

import voxserve


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("ascii", b"1.5 -2.25 3 0.5\n4 5 -6.75 0.25\n7 8 9 1\n"),
        ("binary_little_endian", POINTS.astype("<f4").tobytes()),
        ("binary_big_endian", POINTS.astype(">f4").tobytes()),
    ],
)
def test_ply(write: Write, kind: str, body: bytes) -> None:
    cloud = voxserve.read(write("a.ply", ply_header(kind) + body))
    assert cloud.is_bigendian == (kind == "binary_big_endian")
    np.testing.assert_array_equal(table(cloud), POINTS)


def test_ply_with_other_elements_around(write: Write) -> None:
    before = "element camera 2\nproperty uchar a\nproperty double b\n"
    faces = "element face 1\nproperty list uchar int vertex_indices"
    contents = (
        ply_header("binary_little_endian", faces, before=before) + bytes(18) + POINTS.tobytes() + b"\3" + bytes(12)
    )
    np.testing.assert_array_equal(table(voxserve.read(write("a.ply", contents))), POINTS)
    rows = b"1 2\n3 4\n1.5 -2.25 3 0.5\n4 5 -6.75 0.25\n7 8 9 1\n3 0 1 2\n"
    contents = ply_header("ascii", faces, before=before) + rows
    np.testing.assert_array_equal(table(voxserve.read(write("a.ply", contents))), POINTS)


@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_ply_with_lists(write: Write, kind: str) -> None:
    contents = ply_with_lists(kind)
    cloud = voxserve.read(write("a.ply", contents))
    assert [f.name for f in cloud.fields] == ["x", "y", "z", "intensity"]
    np.testing.assert_array_equal(table(cloud), POINTS)
    if kind != "ascii":
        with pytest.raises(ValueError, match="the file ends within element 2 of the 3 of 'vertex'"):
            voxserve.read(write("a.ply", contents[:-14]))


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "does not begin with 'ply'"),
        (b"ply\nformat ascii 1.0\n", "no end_header"),
        (b"ply\n" + b"comment x\n" * 200_000, "no end_header"),
        (b"ply\nnonsense\n", "header line 2 begins with 'nonsense'"),
        (b"ply\nelement vertex many\n", "not 'element NAME COUNT'"),
        (b"ply\nelement vertex 1\nproperty quad x\n", "not 'property TYPE NAME'"),
        (b"ply\nformat ascii 1.0\nelement face 0\nend_header\n", "no element 'vertex'"),
        (b"ply\nformat ascii 1.0\nelement vertex 0\nend_header\n", "no properties"),
        (ply_header("text"), "format 'text' is none of"),
        (ply_header("ascii", "property float x"), "'x' appears twice"),
        (ply_header("ascii", *(f"property float a{i}" for i in range(1021))), "more than 1024 properties"),
        (ply_header("ascii", "property list float int n"), "list 'n' of element 'vertex' is not"),
        (ply_header("ascii", "property list int quad n"), "list 'n' of element 'vertex' is not"),
        (ply_header("ascii", "property list uchar int n") + b"1 2 3 4 2 5\n", "a list of '2' values, but 1 follow"),
        (ply_header("ascii", "property list uchar int n") + b"1 2 3 4 -1 5\n", "a list of '-1' values"),
        (ply_header("ascii", "property list uchar int n") + b"1 2 3 4\n", "line 11 ends after 4 values"),
        (ply_header("ascii", "property list uchar int n") + b"1 2 3 4 1 5 6\n", "has 6 values, not 5"),
        (
            ply_header("binary_little_endian", "property list int char n", count=1) + POINTS[0].tobytes() + b"\xff" * 4,
            "a list of element 0 of 'vertex' has -1 values",
        ),
        (
            ply_header("binary_big_endian", "property list uint double n", count=10**15)
            + POINTS.tobytes()
            + b"\xff" * 4,
            "the file ends within element 0 of the 1000000000000000 of 'vertex'",
        ),
        (ply_header("ascii", count=1) + b"1 2 3 4\n5 6 7 8\n", "promises 1 points, but more follow in line 11"),
        (ply_header("ascii", "element face 1", "property int a", count=1) + b"1 2 3 4\n5\n6\n", "follow in line 14"),
        (ply_header("ascii", count=10**15), "1000000000000000 points, but 0 lines"),
        (ply_header("binary_little_endian", count=10**15), "1000000000000000 vertices of 16 bytes, but 0"),
        (ply_header("binary_little_endian", before="element a 9\nproperty int b\n"), "'a' needs 9 x 4 bytes, but 0"),
        (
            ply_header("binary_little_endian", before="element a 9\nproperty list int int b\n"),
            "element 0 of the 9 of 'a'",
        ),
        (ply_header("ascii", before="element a 9\nproperty int b\n"), "ends within element 'a'"),
    ],
)
def test_ply_that_is_broken_or_hostile(write: Write, contents: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=rf"a\.ply: PLY: .*{message}"):
        voxserve.read(write("a.ply", contents))
