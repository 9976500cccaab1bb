"""Tests the reader of PCD with files that the tests write."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from lzf_encoder import lzf_literals
from scan_files import POINTS, Write, pcd_header, table

import voxserve


def test_pcd_ascii(write: Write) -> None:
    rows = "1.5 -2.25 3 0.5\n\n4 5 -6.75e0 .25\r\n7 8 9 1"
    np.testing.assert_array_equal(table(voxserve.read(write("a.pcd", pcd_header("ascii") + rows))), POINTS)


def test_pcd_binary_and_what_pcl_appends(write: Write) -> None:
    contents = pcd_header("binary").encode() + POINTS.tobytes()
    for tail in (b"", bytes(4096)):
        np.testing.assert_array_equal(table(voxserve.read(write("a.pcd", contents + tail))), POINTS)


def test_pcd_binary_compressed(write: Write) -> None:
    columns = lzf_literals(POINTS.T.tobytes())
    body = struct.pack("<II", len(columns), POINTS.nbytes) + columns
    contents = pcd_header("binary_compressed").encode() + body
    np.testing.assert_array_equal(table(voxserve.read(write("a.pcd", contents))), POINTS)


@pytest.mark.parametrize("body", [b"", bytes(8)])
def test_pcd_of_no_points_binary_compressed(write: Write, body: bytes) -> None:
    cloud = voxserve.read(write("a.pcd", pcd_header("binary_compressed", 0).encode() + body))
    assert (cloud.num_points, len(cloud.fields)) == (0, 4)
    with pytest.raises(ValueError, match="ends before the compressed data"):
        voxserve.read(write("a.pcd", pcd_header("binary_compressed", 1).encode()))


@pytest.mark.parametrize("kind", ["ascii", "binary", "binary_compressed"])
def test_pcd_types_padding_counts_and_integers_of_8_bytes(write: Write, kind: str) -> None:
    dtype = np.dtype(
        [
            ("x", "<f8"),
            ("_", "u1", (3,)),
            ("y", "<f4"),
            ("t", "<u8"),
            ("z", "<i2"),
            ("rgb", "u1", (3,)),
            ("ring", "<u2"),
        ]
    )
    points = np.zeros(2, dtype)
    points["x"], points["y"], points["z"], points["ring"] = [1, -2], [3.5, 4], [-5, 6], [7, 65535]
    points["rgb"], points["t"] = [[1, 2, 3], [4, 5, 6]], [2**63, 10]
    header = pcd_header(
        kind, 2, FIELDS="x _ y t z rgb ring", SIZE="8 1 4 8 2 1 2", TYPE="F U F U I U U", COUNT="1 3 1 1 1 3 1"
    ).encode()
    if kind == "ascii":
        body = b"1 0 0 0 3.5 9223372036854775808 -5 1 2 3 7\n-2 0 0 0 4 10 6 4 5 6 65535\n"
    elif kind == "binary":
        body = points.tobytes()
    else:
        data = lzf_literals(b"".join(points[name].tobytes() for name in dtype.names or ()))
        body = struct.pack("<II", len(data), points.nbytes) + data
    cloud = voxserve.read(write("a.pcd", header + body))
    assert [f.name for f in cloud.fields] == ["x", "y", "t", "z", "rgb", "ring"]
    assert table(cloud, "x", "y", "z", "rgb", "ring").tolist() == [[1, 3.5, -5, 1, 7], [-2, 4, 6, 4, 65535]]
    assert [cloud.fields[2].type, *cloud.values("t").tolist()] == ["f64", 2.0**63, 10]


@pytest.mark.parametrize("kind", ["ascii", "binary"])
def test_pcd_coordinates_and_intensities_of_8_bytes(write: Write, kind: str) -> None:
    header = pcd_header(kind, 2, SIZE="8 8 8 8", TYPE="I I I U")
    body = b"-1 2 3 200\n4 5 -6 50\n" if kind == "ascii" else struct.pack("<3qQ3qQ", -1, 2, 3, 200, 4, 5, -6, 50)
    cloud = voxserve.read(write("a.pcd", header.encode() + body), "intensity:f64*0.005")
    assert table(cloud).tolist() == [[-1, 2, 3, 1], [4, 5, -6, 0.25]]
    assert voxserve.read(write("a.pcd", pcd_header(kind, 0, SIZE="8 8 8 8", TYPE="I I I U"))).num_points == 0


def test_pcd_organised(write: Write) -> None:
    header = pcd_header("binary", 3, WIDTH="1", HEIGHT="3")
    cloud = voxserve.read(write("a.pcd", header.encode() + POINTS.tobytes()))
    assert cloud.height == 3
    np.testing.assert_array_equal(table(cloud), POINTS)


NANS = ("NaN", "-nan", "-nan(ind)", "nan(snan)", "NAN(0x8000)", "-1.#IND", "1.#QNAN0", "1.#IND00")
INFINITIES = ("inf", "+Inf", "INFINITY", "1.#INF", "1.#INF00")


@pytest.mark.parametrize(("words", "value"), [(NANS, np.nan), (INFINITIES, np.inf)])
def test_every_spelling_of_nan_and_infinity(write: Write, words: tuple[str, ...], value: float) -> None:
    rows = "".join(f"{word} -1.#INF00 3 0.5\n" for word in words)
    cloud = voxserve.read(write("a.pcd", pcd_header("ascii", len(words)) + rows))
    np.testing.assert_array_equal(cloud.values("x"), [value] * len(words))
    np.testing.assert_array_equal(cloud.values("y"), [-np.inf] * len(words))


@pytest.mark.parametrize("word", ["nano", "nan(", "nan(-)", "1.#", "1.#IN", "--inf", "1.#NAN", "infinit", "1.#inf1"])
def test_words_that_only_look_like_nan_or_infinity(write: Write, word: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        voxserve.read(write("a.pcd", pcd_header("ascii", 1) + f"{word} 2 3 4\n"))


@pytest.mark.parametrize(
    "header",
    [
        {"WIDTH": "", "HEIGHT": ""},
        {"WIDTH": "", "HEIGHT": "3"},
        {"HEIGHT": "", "POINTS": ""},
        {"WIDTH": "0", "HEIGHT": ""},
        {"SIZE": "", "TYPE": "", "COUNT": ""},
        {"FIELDS": "x y gone z intensity", "SIZE": "4 4 8 4 4", "TYPE": "F F F F F", "COUNT": "1 1 0 1 1"},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["ascii", "binary"])
def test_pcd_headers_as_pcl_reads_them(write: Write, header: dict[str, str], kind: str) -> None:
    """Headers are read as PCL 1.15 reads them: io/src/pcd_io.cpp, PCDReader::readHeader."""
    body = b"1.5 -2.25 3 0.5\n4 5 -6.75 0.25\n7 8 9 1\n" if kind == "ascii" else POINTS.tobytes()
    cloud = voxserve.read(write("a.pcd", pcd_header(kind, **header).encode() + body))
    np.testing.assert_array_equal(table(cloud), POINTS)


@pytest.mark.parametrize("kind", ["ascii", "binary"])
def test_pcd_bools_are_bytes(write: Write, kind: str) -> None:
    header = pcd_header(kind, 2, FIELDS="x valid", SIZE="4 1", TYPE="F B", COUNT="1 1").encode()
    body = b"1 0\n2 1\n" if kind == "ascii" else struct.pack("<f?f?", 1, False, 2, True)
    cloud = voxserve.read(write("a.pcd", header + body))
    assert [(f.name, f.type) for f in cloud.fields] == [("x", "f32"), ("valid", "u8")]
    assert table(cloud, "x", "valid").tolist() == [[1, 0], [2, 1]]


def test_pcd_scale_by_name(write: Write) -> None:
    path = write("a.pcd", pcd_header("binary").encode() + POINTS.tobytes())
    assert voxserve.read(path, "intensity:f32*2+1").values("intensity").tolist() == [2, 1.5, 3]
    with pytest.raises(ValueError, match="say intensity:u8, but the points have intensity:f32"):
        voxserve.read(path, "intensity:u8")
    with pytest.raises(ValueError, match="name 'ring', but the points have x, y, z, intensity"):
        voxserve.read(path, "ring:u8")


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ("", "no DATA line"),
        ("FIELDS x y z\n" * 10, "no DATA line"),
        ("#" * (2 << 20), "no DATA line"),
        (pcd_header("zip"), "DATA zip is none of"),
        (pcd_header("ascii", FIELDS=""), "no FIELDS"),
        (pcd_header("ascii", SIZE="4 4 4"), "4 FIELDS, but 3 SIZE"),
        (pcd_header("ascii", SIZE="4 4 4 3"), "TYPE F SIZE 3"),
        (pcd_header("ascii", TYPE="F F F X"), "TYPE X SIZE 4"),
        (pcd_header("ascii", TYPE="F F F B"), "TYPE B SIZE 4"),
        (pcd_header("ascii", COUNT="0 0 0 0"), "all FIELDS have COUNT 0"),
        (pcd_header("ascii", COUNT="1 1 1 -1"), "COUNT -1"),
        (pcd_header("ascii", SIZE=""), "4 FIELDS, but 0 SIZE, 4 TYPE"),
        (pcd_header("ascii", COUNT="1 1 1 99999999"), "COUNT 99999999"),
        (pcd_header("ascii", COUNT="1 1 1 1048576"), "more than 1048576 bytes"),
        (pcd_header("ascii", FIELDS="x y z x"), "'x' appears twice"),
        (pcd_header("ascii", WIDTH="", POINTS=""), "neither WIDTH nor POINTS"),
        (pcd_header("ascii", WIDTH="", HEIGHT="2"), "POINTS 3, but WIDTH 1 x HEIGHT 2 = 2"),
        (pcd_header("ascii", WIDTH="0"), "POINTS 3, but WIDTH 0 x HEIGHT 1 = 0"),
        (pcd_header("ascii", HEIGHT="1 1"), "HEIGHT needs one whole number"),
        (pcd_header("ascii", 1) + "1 2 3 4\n\n1 2 3 4\n", "promises 1 points, but more follow in line 14"),
        (pcd_header("ascii", 0) + "junk", "promises 0 points, but more follow in line 12"),
        (pcd_header("ascii", WIDTH="-1"), "WIDTH needs one whole number"),
        (pcd_header("ascii", POINTS="4"), "POINTS 4, but WIDTH 3 x HEIGHT 1 = 3"),
        (pcd_header("ascii") + "1 2 3 4\n", "promises 3 points, but 1 lines"),
        (pcd_header("ascii") + "1 2 3\n", "line 12 has 3 values, not 4"),
        (pcd_header("ascii") + "1 2 3 four\n" * 3, "line 12: 'four' is not a number"),
        (pcd_header("ascii") + "1 2 3 1_000\n" * 3, "line 12: '1_000' is not a number"),
        (pcd_header("ascii") + "1 2 3 \xa04\n" * 3, "line 12: '\xa04' is not a number"),
        (pcd_header("ascii") + "1 2 3\v4\n" * 3, "line 12 has 3 values, not 4"),
        (pcd_header("ascii") + "1 2 3 1e99\n" * 3, "'1e99' does not fit float32"),
        (pcd_header("ascii", SIZE="4 4 4 1", TYPE="F F F U") + "1 2 3 256\n" * 3, "'256' does not fit uint8"),
        (pcd_header("ascii", SIZE="4 4 4 1", TYPE="F F F U") + "1 2 3 1.5\n" * 3, "'1.5' does not fit uint8"),
        (pcd_header("binary") + "short", "3 points of 16 bytes, but 5 bytes follow"),
        (pcd_header("binary") + "A" * 48 + "\0\1", "3 points of 16 bytes, but 50 bytes follow"),
        (pcd_header("binary", 10**9), "1000000000 points of 16 bytes, but 0 bytes follow"),
        (pcd_header("binary", 10**17), "WIDTH 100000000000000000 x HEIGHT 1 is not a scan's size"),
        (pcd_header("ascii", HEIGHT=str(1 << 32), WIDTH="0", POINTS="0"), "HEIGHT 4294967296 is not a scan's size"),
        (pcd_header("binary_compressed"), "ends before the compressed data"),
        (pcd_header("binary_compressed") + "\xff\xff\xff\x7f\x30\0\0\0", "promises 2147483647 compressed bytes"),
        (pcd_header("binary_compressed") + "\1\0\0\0\x31\0\0\0\0", "49 uncompressed bytes for 3 points of 16"),
        (
            pcd_header("binary_compressed", 2**27) + "\1\0\0\0\0\0\0\x80\0",
            "1 compressed bytes cannot hold 2147483648",
        ),
        (pcd_header("binary_compressed") + "\2\0\0\0\x30\0\0\0\x1f\0", "ends within a run"),
    ],
)
def test_pcd_that_is_broken_or_hostile(write: Write, contents: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"a\.pcd: PCD: .*({message})"):
        voxserve.read(write("a.pcd", contents))
