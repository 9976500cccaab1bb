"""Tests the readers with files that the tests write, and with real files if VOXSERVE_SHARED_DATA has them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SHARED
from lzf_encoder import lzf_encode, lzf_literals

import voxserve
from voxserve.readers import is_point_cloud_file

Write = Callable[[str, bytes | str], Path]
POINTS = np.array([[1.5, -2.25, 3, 0.5], [4, 5, -6.75, 0.25], [7, 8, 9, 1]], np.float32)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(name: str, contents: bytes | str) -> Path:
        path = tmp_path / name
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode("latin-1"))
        return path

    return _write


def table(cloud: voxserve.PointCloud, *names: str) -> Any:
    return np.stack([cloud.values(name) for name in names or ("x", "y", "z", "intensity")], axis=1)


def test_kitti(write: Write) -> None:
    np.testing.assert_array_equal(table(voxserve.read(write("a.bin", POINTS.tobytes()))), POINTS)


def test_nuscenes(write: Write) -> None:
    points = np.array([[1, 2, 3, 255, 31], [4, 5, 6, 51, 0]], np.float32)
    cloud = voxserve.read(write("a.pcd.bin", points.tobytes()))
    np.testing.assert_allclose(table(cloud), np.array([[1, 2, 3, 1], [4, 5, 6, 0.2]]), rtol=1e-6)
    assert cloud.values("ring").tolist() == [31, 0]


def test_empty_files_have_no_points(write: Write) -> None:
    assert voxserve.read(write("a.bin", b"")).num_points == 0


def test_another_layout_by_fields(write: Write) -> None:
    points = np.array([(1, 2, 3, 51, 9)], [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("i", "<f4"), ("e", "<f4")])
    cloud = voxserve.read(write("a.bin", points.tobytes()), "x:f32,y:f32,z:f32,intensity:f32*0.5,-:f32")
    assert table(cloud).tolist() == [[1, 2, 3, 25.5]]


def test_unknown_extensions_need_fields(write: Write) -> None:
    path = write("a.dat", np.float16([1, 2, 3]).tobytes())
    assert table(voxserve.read(path, "x:f16,y:f16,z:f16"), "x", "y", "z").tolist() == [[1, 2, 3]]
    with pytest.raises(ValueError, match=r"a\.dat: unknown extension"):
        voxserve.read(path)


def test_a_bin_of_another_size_names_the_option(write: Write) -> None:
    with pytest.raises(ValueError, match=r"a\.bin: 20 bytes are not a whole number of 16-byte points .*--fields"):
        voxserve.read(write("a.bin", bytes(20)))


def test_missing_files() -> None:
    with pytest.raises(FileNotFoundError):
        voxserve.read("/nowhere/a.bin")


def test_extensions() -> None:
    assert is_point_cloud_file("a/B.PCD.BIN")
    assert not is_point_cloud_file("a.png")


# PCD


def pcd_header(data: str, count: int = 3, **changes: str) -> str:
    lines = {
        "VERSION": "0.7",
        "FIELDS": "x y z intensity",
        "SIZE": "4 4 4 4",
        "TYPE": "F F F F",
        "COUNT": "1 1 1 1",
        "WIDTH": str(count),
        "HEIGHT": "1",
        "VIEWPOINT": "0 0 0 1 0 0 0",
        "POINTS": str(count),
        "DATA": data,
        **changes,
    }
    return "# .PCD v0.7\n" + "".join(f"{key} {value}\n" for key, value in lines.items() if value)


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


@pytest.mark.parametrize("kind", ["ascii", "binary", "binary_compressed"])
def test_pcd_types_padding_counts_and_wide_integers(write: Write, kind: str) -> None:
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
    points["rgb"] = [[1, 2, 3], [4, 5, 6]]
    header = pcd_header(
        kind, 2, FIELDS="x _ y t z rgb ring", SIZE="8 1 4 8 2 1 2", TYPE="F U F U I U U", COUNT="1 3 1 1 1 3 1"
    ).encode()
    if kind == "ascii":
        body = b"1 0 0 0 3.5 0 -5 1 2 3 7\n-2 0 0 0 4 0 6 4 5 6 65535\n"
    elif kind == "binary":
        body = points.tobytes()
    else:
        data = lzf_literals(b"".join(points[name].tobytes() for name in dtype.names or ()))
        body = struct.pack("<II", len(data), points.nbytes) + data
    cloud = voxserve.read(write("a.pcd", header + body))
    assert [f.name for f in cloud.fields] == ["x", "y", "z", "rgb", "ring"]
    assert table(cloud, "x", "y", "z", "rgb", "ring").tolist() == [[1, 3.5, -5, 1, 7], [-2, 4, 6, 4, 65535]]


def test_pcd_organised(write: Write) -> None:
    header = pcd_header("binary", 3, WIDTH="1", HEIGHT="3")
    cloud = voxserve.read(write("a.pcd", header.encode() + POINTS.tobytes()))
    assert cloud.height == 3
    np.testing.assert_array_equal(table(cloud), POINTS)


@pytest.mark.parametrize(
    ("name", "size", "spec", "expected"),
    [
        ("intensity", 1, "", [0, 0.2, 1]),
        ("reflectivity", 2, "", [0, 51 / 65535, 255 / 65535]),
        ("intensity", 1, "x:f32*2", [0, 0.2, 1]),
        ("intensity", 1, "intensity:u8", [0, 51, 255]),
        ("intensity", 1, "intensity:u8*0.5", [0, 25.5, 127.5]),
        ("intensity", 4, "", [0, 51, 255]),
        ("ring", 1, "", [0, 51, 255]),
    ],
)
def test_integer_intensities_are_shares_of_their_largest_value(
    name: str, size: int, spec: str, expected: list[float], write: Write
) -> None:
    pcd = f"FIELDS x {name}\nSIZE 4 {size}\nTYPE F U\nWIDTH 3\nHEIGHT 1\nPOINTS 3\nDATA ascii\n1 0\n2 51\n3 255\n"
    kind = {1: "uchar", 2: "ushort", 4: "uint"}[size]
    ply = "ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\n"
    ply += f"property {kind} {name}\nend_header\n1 0\n2 51\n3 255\n"
    for path in (write("a.pcd", pcd), write("a.ply", ply)):
        np.testing.assert_allclose(voxserve.read(path, spec).values(name), expected, rtol=1e-6)


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


def test_a_field_of_any_format_gets_another_name(write: Write, tmp_path: Path) -> None:
    renamed = POINTS[:, [0, 1, 2]]
    np.save(tmp_path / "a.npy", POINTS)
    files = [write("a.bin", POINTS.tobytes()), write("a.pcd", pcd_header("binary").encode() + POINTS.tobytes()),
             write("a.ply", ply_header("binary_little_endian") + POINTS.tobytes()), tmp_path / "a.npy"]  # fmt: skip
    for path in files:
        cloud = voxserve.read(path, "r=intensity*2+1,y=X,x=y")
        np.testing.assert_array_equal(table(cloud, "y", "x", "z"), renamed)
        assert cloud.values("r").tolist() == [2, 1.5, 3]
        assert cloud.field("intensity") is None
        with pytest.raises(
            ValueError, match=rf"{path.name}: .*say intensity=i, but the points have x, y, z, intensity"
        ):
            voxserve.read(path, "intensity=i")
    spec = "x:f32,y:f32,z:f32,r:f32*0.5,intensity=r"
    assert voxserve.read(write("a.dat", POINTS.tobytes()), spec).values("intensity").tolist() == [0.25, 0.125, 0.5]


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


# PLY


def ply_header(kind: str, *extra: str, count: int = 3, before: str = "") -> bytes:
    properties = "".join(f"property float {name}\n" for name in ("x", "y", "z", "scalar_Intensity"))
    lines = f"ply\nformat {kind} 1.0\ncomment made by hand\n{before}element vertex {count}\n{properties}"
    return (lines + "".join(f"{line}\n" for line in extra) + "end_header\n").encode()


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


def ply_with_lists(kind: str) -> bytes:
    """Returns POINTS with lists before the vertices, among their values (CloudCompare#1455) and behind them."""
    header = (
        f"ply\nformat {kind} 1.0\nelement tag 2\nproperty list uchar short a\nelement vertex 3\n"
        "property list uint float64 b\nproperty float x\nproperty float y\nproperty list char uchar c\n"
        "property float z\nproperty float intensity\nelement face 1\nproperty list uchar int d\nend_header\n"
    ).encode()
    lists: list[tuple[tuple[float, ...], tuple[int, ...]]] = [((0.5, 1.5), ()), ((), (7,)), ((9.5,), (1, 2, 3))]
    if kind == "ascii":
        rows = ["2 5 6", "0"]
        for (x, y, z, i), (b, c) in zip(POINTS.tolist(), lists, strict=True):
            rows.append(" ".join(map(str, [len(b), *b, x, y, len(c), *c, z, i])))
        return header + "".join(f"{row}\n" for row in [*rows, "3 0 1 2"]).encode()
    order = "<" if kind == "binary_little_endian" else ">"
    body = struct.pack(order + "BhhB", 2, 5, 6, 0)
    for (x, y, z, i), (b, c) in zip(POINTS.tolist(), lists, strict=True):
        body += struct.pack(f"{order}I{len(b)}dffb{len(c)}Bff", len(b), *b, x, y, len(c), *c, z, i)
    return header + body + struct.pack(order + "Biii", 3, 0, 1, 2)


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


# NPY


@pytest.mark.parametrize("code", ["<f4", ">f4", "<f8", "<f2", "<i2", "u1"])
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
    assert (cloud.point_step, cloud.data) == (40, points.tobytes())
    assert [(f.name, f.type, f.offset, f.count) for f in cloud.fields] == [
        ("x", "f32", 0, 1),
        ("y", "f32", 16, 1),
        ("z", "f16", 20, 1),
        ("rgb", "u8", 32, 3),
    ]
    assert table(cloud, "x", "y", "z", "rgb").tolist() == [[1, 3, 5, 9], [2, 4, 6, 10]]


def test_npy_without_a_field_that_a_cloud_can_have(write: Write) -> None:
    cloud = voxserve.read(write("a.npy", table_of("[('a', '<i8'), ('', '|V8')]", bytes(64))))
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


def npy(header: bytes, body: bytes = b"", version: int = 1) -> bytes:
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(header)) + header + body


def table_of(descr: str, body: bytes = bytes(16)) -> bytes:
    """Returns an NPY file of four items whose type is `descr`."""
    return npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': (4,)}}".encode(), body)


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


def test_damaged_files_never_do_worse_than_valueerror(write: Write) -> None:
    rng = np.random.default_rng(4)
    columns = lzf_encode(POINTS.T.tobytes())
    good = {
        "a.pcd": pcd_header("binary_compressed").encode() + struct.pack("<II", len(columns), POINTS.nbytes) + columns,
        "b.pcd": pcd_header("ascii").encode() + b"1 2 3 4\n" * 3,
        "a.ply": ply_header("binary_little_endian") + POINTS.tobytes(),
        "b.ply": ply_with_lists("binary_big_endian"),
        "c.ply": ply_with_lists("ascii"),
        "c.pcd": pcd_header("ascii", WIDTH="", HEIGHT="").encode() + b"1 -nan(ind) 1.#INF 4\n" * 3,
        "a.npy": npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}", POINTS.tobytes()),
        "b.npy": table_of("[('x', '<f4'), ('', '|V2'), ('z', '<i2', (3,))]", bytes(48)),
    }
    outcomes = set()
    for name, contents in good.items():
        for _ in range(300):
            damaged = bytearray(contents)
            for _ in range(rng.integers(1, 4)):
                damaged[rng.integers(len(damaged))] = rng.integers(256)
            path = write(name, bytes(damaged[: rng.integers(len(damaged) // 2, len(damaged) + 1)]))
            try:
                cloud = voxserve.read(path)
                for field in cloud.fields:
                    cloud.values(field.name)
                outcomes.add("read")
            except ValueError:
                outcomes.add("refused")
    assert outcomes == {"read", "refused"}


# Real files


@pytest.mark.parametrize(
    ("name", "num_points"),
    [
        ("kitti-drive/0000000000.pcd", 119_978),
        ("semantickitti-00/000000.bin", 124_668),
        ("nuscenes/n008-2018-08-01-15-16-36-0400__LIDAR_TOP__1533151611446636.pcd.bin", 34_720),
    ],
)
def test_real_files(name: str, num_points: int) -> None:
    if not (SHARED / name).exists():
        pytest.skip(f"{SHARED / name} is missing (set VOXSERVE_SHARED_DATA)")
    cloud = voxserve.read(SHARED / name)
    assert cloud.num_points == num_points
    points = table(cloud)
    assert np.isfinite(points).all()
    assert np.abs(points[:, :3]).max() < 200
    assert 0 <= points[:, 3].min() <= points[:, 3].max() <= 1


def test_half_precision_sweeps() -> None:
    path = SHARED / "nuscenes" / "10sweeps_fp16_xyzit.bin"
    if not path.exists():
        pytest.skip(f"{path} is missing (set VOXSERVE_SHARED_DATA)")
    cloud = voxserve.read(path, "x:f16,y:f16,z:f16,intensity:f16*0.00392156862745098,dt:f16")
    assert cloud.num_points == 271_156
    np.testing.assert_array_equal(cloud.values("dt"), np.fromfile(path, "<f2").reshape(-1, 5)[:, 4].astype(np.float32))
