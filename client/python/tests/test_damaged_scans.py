"""Tests that damaged scans are read or refused by ValueError, whether from files, ROS messages or arrays."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lzf_encoder import lzf_encode
from scan_files import POINTS, Write, npy, pcd_header, ply_header, ply_with_lists, table_of

import voxserve
from voxserve import wire
from voxserve.encoding import encode_request

COLUMNS = lzf_encode(POINTS.T.tobytes())
BOOLS = {"FIELDS": "x gone valid", "SIZE": "4 8 1", "TYPE": "F F B", "COUNT": "1 0 1"}
FILES = {
    "compressed.pcd": pcd_header("binary_compressed").encode()
    + struct.pack("<II", len(COLUMNS), POINTS.nbytes)
    + COLUMNS,
    "ascii.pcd": pcd_header("ascii").encode() + b"1 2 3 4\n" * 3,
    "nan.pcd": pcd_header("ascii", WIDTH="", HEIGHT="").encode() + b"1 -nan(ind) 1.#INF 4\n" * 3,
    "old.pcd": pcd_header("binary", SIZE="", TYPE="", COUNT="").encode() + POINTS.tobytes(),
    "bools.pcd": pcd_header("binary", **BOOLS).encode() + struct.pack("<f?f?f?", 1, False, 2, True, 3, True),
    "bools_ascii.pcd": pcd_header("ascii", **BOOLS).encode() + b"1 0\n2 1\n3 1\n",
    "little.ply": ply_header("binary_little_endian") + POINTS.tobytes(),
    "lists.ply": ply_with_lists("binary_big_endian"),
    "lists_ascii.ply": ply_with_lists("ascii"),
    "table.npy": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}", POINTS.tobytes()),
    "structured.npy": table_of("[('x', '<f4'), ('', '|V2'), ('z', '<i2', (3,))]", bytes(48)),
}


def read_all(make: Callable[[], voxserve.PointCloud]) -> str:
    """Returns whether the cloud could be made, sent, and its fields read."""
    try:
        cloud = make()
        encode_request(wire.InferRequest(model="m"), cloud, 1 << 20)
        for field in cloud.fields:
            if field.type != "none":
                cloud.values(field.name)
    except ValueError:
        return "refused"
    return "read"


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_read_or_refused(write: Write, name: str) -> None:
    rng = np.random.default_rng(4)
    contents = FILES[name]
    assert read_all(lambda: voxserve.read(write(name, contents))) == "read"
    outcomes = set()
    for _ in range(300):
        damaged = bytearray(contents)
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(len(damaged))] = rng.integers(256)
        cut = rng.integers(len(damaged) // 2, len(damaged)) if rng.integers(2) else len(damaged)
        path = write(name, bytes(damaged[:cut]))
        outcomes.add(read_all(lambda path=path: voxserve.read(path)))  # type: ignore[misc]
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith((".pcd", ".ply"))])
def test_a_header_with_other_numbers_is_read_or_refused(write: Write, name: str) -> None:
    """Each number of the header becomes one at a limit. A mutation by bytes seldom makes one."""
    contents = FILES[name]
    end = contents.index(b"DATA") if name.endswith(".pcd") else contents.index(b"end_header")
    words = contents[:end].split(b" ")
    outcomes = set()
    for index, word in enumerate(words):
        digits = word.split(b"\n")[0]
        if not digits.isdigit():
            continue
        for other in (b"0", b"-1", b"+1", b"1_0", b"65536", b"4294967296", b"18446744073709551615", b"9" * 40):
            changed = b" ".join([*words[:index], other + word[len(digits) :], *words[index + 1 :]])
            path = write(name, changed + contents[end:])
            outcomes.add(read_all(lambda path=path: voxserve.read(path)))  # type: ignore[misc]
    assert "refused" in outcomes


def message(**changes: Any) -> SimpleNamespace:
    """Returns a PointCloud2 of POINTS in two rows, of which each has a byte more than its points."""
    rows = [POINTS.repeat(2, 0)[:3].tobytes() + b"\0", POINTS.tobytes() + b"\0"]
    fields = [SimpleNamespace(name=name, offset=4 * i, datatype=7, count=1) for i, name in enumerate("xyzi")]
    whole = {"height": 2, "width": 3, "fields": fields, "is_bigendian": False, "point_step": 16, "row_step": 49}
    return SimpleNamespace(**{**whole, "data": b"".join(rows), **changes})


LIMITS = (0, 1, 2, 3, 4, 15, 16, 17, 47, 48, 49, 50, 97, 98, 99, 255, 65535, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


def test_a_message_of_ros_with_other_numbers_is_read_or_refused() -> None:
    assert read_all(lambda: voxserve.PointCloud.from_ros(message())) == "read"
    rng = np.random.default_rng(5)
    outcomes: dict[str, set[str]] = {}
    for attribute in ("height", "width", "point_step", "row_step"):
        for value in LIMITS:
            made = message(**{attribute: value})
            outcome = read_all(lambda made=made: voxserve.PointCloud.from_ros(made))  # type: ignore[misc]
            outcomes.setdefault(attribute, set()).add(outcome)
    for _ in range(400):
        fields = message().fields
        for field in rng.choice(fields, 2):
            field.offset, field.count = rng.choice(LIMITS), rng.choice(LIMITS)
            field.datatype = rng.integers(0, 14)
        data = message().data[: rng.choice(LIMITS[:15])]
        made = message(fields=fields, is_bigendian=bool(rng.integers(2)), data=data)
        outcome = read_all(lambda made=made: voxserve.PointCloud.from_ros(made))  # type: ignore[misc]
        outcomes.setdefault("fields", set()).add(outcome)
    assert outcomes["row_step"] == outcomes["height"] == outcomes["width"] == {"read", "refused"}
    assert outcomes["fields"] >= {"refused"}
    # The rules of row_step: 0 and all bytes are a cloud without padding.
    assert read_all(lambda: voxserve.PointCloud.from_ros(message(row_step=0, data=message().data[:96]))) == "read"


def test_arrays_with_any_mask_are_read_or_refused() -> None:
    rng = np.random.default_rng(6)
    outcomes = set()
    for kind in (np.float16, np.float32, np.float64, np.int8, np.int64, np.uint8, np.bool_):
        for _ in range(20):
            shape = tuple(rng.integers(0, 6, rng.integers(1, 4)))
            array = np.ma.MaskedArray(np.zeros(shape, kind), mask=rng.integers(0, 2, shape).astype(bool))
            outcomes.add(read_all(lambda array=array: voxserve.PointCloud.from_array(array)))  # type: ignore[misc]
    structured = np.zeros(4, [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("ring", "<u2")])
    for mask in rng.integers(0, 2, (20, 4, 4)).astype(bool):
        array = np.ma.MaskedArray(structured, mask=list(map(tuple, mask)))
        outcomes.add(read_all(lambda array=array: voxserve.PointCloud.from_array(array)))  # type: ignore[misc]
    assert outcomes == {"read", "refused"}
