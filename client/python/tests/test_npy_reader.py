"""Tests the reader of NPY with files that the tests write."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scan_files import POINTS, Write, npy, table, table_of

import voxserve


@pytest.mark.parametrize("code", ["<f4", ">f4", "<f8", "<f2", "<i2", "u1", "<i8", ">i8", "<u8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_tables(tmp_path: Path, code: str, order: Any) -> None:
    values = np.arange(20).reshape(4, 5).astype(code)
    np.save(tmp_path / "a.npy", np.array(values, order=order))
    np.testing.assert_array_equal(table(voxserve.read(tmp_path / "a.npy")), values[:, :4].astype(np.float32))


def test_npy_structured(tmp_path: Path) -> None:
    points = np.zeros(3, [("x", "<f4"), ("y", "<f4"), ("z", "<f8"), ("intensity", "u1")])
    points["z"], points["intensity"] = [1, 2, 3], [0, 51, 255]
    np.save(tmp_path / "a.npy", points)
    cloud = voxserve.read(tmp_path / "a.npy", "intensity:u8*0.00392156862745098")
    assert cloud.values("z").tolist() == [1, 2, 3]
    np.testing.assert_allclose(cloud.values("intensity"), [0, 0.2, 1], rtol=1e-6)


def test_npy_keeps_what_a_cloud_can_have(tmp_path: Path) -> None:
    dtype = np.dtype(
        {
            "names": ["x", "t", "y", "z", "name", "rgb", "none"],
            "formats": ["<f4", "<i8", "<f4", "<f2", "<U2", ("u1", (3,)), ("<f4", (0,))],
            "offsets": [0, 8, 16, 20, 24, 32, 36],
            "itemsize": 40,
        }
    )
    points = np.zeros(2, dtype)
    points["x"], points["y"], points["z"], points["t"] = [1, 2], [3, 4], [5, 6], [7, 8]
    points["rgb"] = [[9, 1, 2], [10, 3, 4]]
    np.save(tmp_path / "a.npy", points)
    cloud = voxserve.read(tmp_path / "a.npy")
    points["t"] = np.float64([7, 8]).view(np.int64)
    assert (cloud.point_step, cloud.data) == (40, points.tobytes())
    assert [(f.name, f.type, f.offset, f.count) for f in cloud.fields] == [
        ("x", "f32", 0, 1),
        ("t", "f64", 8, 1),
        ("y", "f32", 16, 1),
        ("z", "f16", 20, 1),
        ("rgb", "u8", 32, 3),
    ]
    assert table(cloud, "x", "t", "y", "z", "rgb").tolist() == [[1, 7, 3, 5, 9], [2, 8, 4, 6, 10]]


@pytest.mark.parametrize("order", ["<", ">"])
def test_npy_integers_of_8_bytes_become_float64(tmp_path: Path, order: str) -> None:
    dtype = [("x", order + "i8"), ("y", order + "i8"), ("z", order + "f4"), ("intensity", order + "u8"),
             ("pair", order + "u8", (2,))]  # fmt: skip
    np.save(tmp_path / "a.npy", np.array([(-(2**40), 2, 3, 200, (2**63, 9)), (4, 5, 6, 100, (7, 8))], dtype))
    cloud = voxserve.read(tmp_path / "a.npy", "intensity:f64*0.005,ring=pair")
    assert [f.type for f in cloud.fields] == ["f64", "f64", "f32", "f64", "f64"]
    assert table(cloud).tolist() == [[-(2.0**40), 2, 3, 1], [4, 5, 6, 0.5]]
    assert cloud.values("ring").tolist() == [2.0**63, 7]
    np.save(tmp_path / "a.npy", np.zeros(0, dtype))
    assert [len(cloud.fields), cloud.num_points] == [5, voxserve.read(tmp_path / "a.npy").num_points + 2]


def test_npy_without_a_field_that_a_cloud_can_have(write: Write) -> None:
    cloud = voxserve.read(write("a.npy", table_of("[('a', '<U2'), ('', '|V8')]", bytes(64))))
    assert (cloud.num_points, cloud.point_step, cloud.fields) == (4, 16, ())


@pytest.mark.parametrize("order", ["<", ">"])
def test_npy_structured_byte_orders(tmp_path: Path, order: str) -> None:
    dtype = [("x", order + "f4"), ("y", order + "f8"), ("z", order + "i2"), ("ring", "u1")]
    np.save(tmp_path / "a.npy", np.array([(1.5, -2, 300, 7)], dtype))
    cloud = voxserve.read(tmp_path / "a.npy")
    assert cloud.is_bigendian == (order == ">")
    assert table(cloud, "x", "y", "z", "ring").tolist() == [[1.5, -2, 300, 7]]


def test_npy_columns_by_fields(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.float32([[1, 2, 3, 4, 5]]))
    cloud = voxserve.read(tmp_path / "a.npy", "x:f32,y:f32,-:f32,z:f32,intensity:f32*0.5")
    assert table(cloud).tolist() == [[1, 2, 4, 2.5]]


def test_npy_version_2_and_3(write: Write) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}\n"
    for version in (2, 3):
        prefix = b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<I", len(header))
        np.testing.assert_array_equal(table(voxserve.read(write("a.npy", prefix + header + POINTS.tobytes()))), POINTS)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "does not begin with"),
        (b"\x93NUMPY", "version 0 is none of"),
        (b"\x93NUMPY\x01\x00\xff\xff", "header has 65535 bytes, but 0 follow"),
        (npy(b"{"), "not a dictionary of"),
        (npy(b"{'descr': '<f4', 'shape': (1, 4)}"), "not a dictionary of"),
        (npy(b"__import__('os').abort()"), "not a dictionary of"),
        (npy(b"(" * 60_000), "not a dictionary of"),
        (npy(b"[1]"), "not a dictionary of"),
        (npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4), 'more': 1}"), "not a dictionary of"),
        (npy(b"{'descr': '<f4', 'fortran_order': 0, 'shape': (1, 4)}"), "neither True nor False"),
        (npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': [1, 4]}"), "is not one of an array"),
        (npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (True, 4)}"), "is not one of an array"),
        (npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (0, 99999999999999999999)}"), "dimension|too big"),
        (table_of("()"), "neither a dtype nor a list of fields"),
        (table_of("('<f4',)"), "neither a dtype nor a list of fields"),
        (table_of("4"), "neither a dtype nor a list of fields"),
        (table_of("'|O'"), r"dtype '\|O' is not one of plain numbers"),
        (table_of("'|O8'"), r"dtype '\|O8' is not one of plain numbers"),
        (table_of("'f4,f4'"), "dtype 'f4,f4' is not one of plain numbers"),
        (table_of("'<f5'"), "dtype '<f5' is not one of plain numbers"),
        (table_of("'|V9999999'"), r"dtype '\|V9999999' is not one of plain numbers"),
        (table_of("'|V0'"), "a value takes 0 bytes"),
        (table_of("[]"), "a value takes 0 bytes"),
        (table_of("[()]"), r"is not \(name, dtype\)"),
        (table_of("['a']"), r"is not \(name, dtype\)"),
        (table_of("[('a', ())]"), r"is not \(name, dtype\)"),
        (table_of("[('a', [('b', '<f4')])]"), r"is not \(name, dtype\)"),
        (table_of("[(('title', 'a'), '<f4')]"), r"is not \(name, dtype\)"),
        (table_of("[('a', '<f4', (1,), 2)]"), r"is not \(name, dtype\)"),
        (table_of("[('a', '<f4', 2)]"), "field 'a' is an array of many axes"),
        (table_of("[('a', '<f4', (2, 2))]"), "field 'a' is an array of many axes"),
        (table_of("[('a', '<f4', (-1,))]"), "field 'a' is an array of many axes"),
        (table_of("[('a', '<f4', (999999999,))]"), "an item takes more than 1048576 bytes"),
        (table_of("[('a', '<f4'), ('a', '<f4')]"), "the field 'a' appears twice"),
        (table_of("[('a', '<f4'), ('b', '>f4')]"), "different byte orders"),
        (table_of("[('x', '<f4')]", bytes(9)), "4 values of 4 bytes, but 9 bytes follow"),
        (npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4)}", bytes(33)), "8 values .* but 33 bytes"),
        (npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4)}"), "is not one of an array"),
        (npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': ('a', 4)}"), "is not one of an array"),
        (npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 4)}"), "but 0 bytes follow"),
        (npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4)}", bytes(31)), "8 values .* but 31 bytes"),
        (npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (8,)}", bytes(32)), r"shape is \(8,\)"),
        (npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2)}", bytes(32)), r"shape is \(4, 2\)"),
        (npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 9)}", bytes(144)), r"shape \(4, 9\).*points\.T"),
        (npy(b"{'descr': '<c8', 'fortran_order': False, 'shape': (1, 4)}", bytes(32)), "points are complex64"),
    ],
)
def test_npy_that_is_broken_or_hostile(write: Write, contents: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=rf"a\.npy: NPY: .*{message}"):
        voxserve.read(write("a.npy", contents))
