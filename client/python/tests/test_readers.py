"""Tests what readers of all formats share with files that the tests write, and with real files if VOXSERVE_SHARED_DATA
has them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import SHARED
from scan_files import POINTS, Write, pcd_header, ply_header, table

import voxserve
from voxserve import storage
from voxserve.readers import is_point_cloud_file


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


@pytest.mark.parametrize("name", ["a.csv", "a.XYZ", "a.npz", "a.bin.gz", "a.mcap"])
@pytest.mark.parametrize("fields", ["", "x:f32,y:f32,z:f32,intensity:f32"])
def test_texts_and_archives_are_no_raw_points(write: Write, name: str, fields: str) -> None:
    path = write(name, b"1,2,3,.5\n4,5,6,\n")  # 16 bytes, one point of the spec
    with pytest.raises(ValueError, match=rf"{name}: text, tables, archives .* save the points as \.npy"):
        voxserve.read(path, fields)


def test_a_file_that_is_not_read_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    for name, text in (("drive.mcap", r"voxserve\.bag labels"), ("a.dat", "unknown extension")):
        with (tmp_path / name).open("wb") as file:
            file.truncate(3 << 30)  # a hole
        with pytest.raises(ValueError, match=rf"{name}: .*{text}"):
            voxserve.read(tmp_path / name)
        with pytest.raises(FileNotFoundError):
            voxserve.read(tmp_path / "nowhere" / name)
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").pipe_file("/drive.mcap", b"\x89MCAP0\r\n")
    monkeypatch.setattr(storage, "read", lambda *_: pytest.fail("the file is downloaded"))
    with pytest.raises(ValueError, match=r"memory://drive\.mcap: .*voxserve\.bag labels"):
        voxserve.read("memory://drive.mcap")
    with pytest.raises(FileNotFoundError):
        voxserve.read("memory://nowhere.mcap")


@pytest.mark.parametrize(
    ("beginning", "ending", "advice"),
    [(b"\x93NUMPY\1\0", "npy", r"extension \.npy"), (b"# .PCD v0.7\n", "pcd", r"extension \.pcd"),
     (b"ply\nformat", "ply", r"extension \.ply"), (b"ply\r\nformat", "ply", r"extension \.ply"),
     (b"LASF", "las", r"extension \.las"), (b"ARROW1\0\0", "feather", r"extension \.feather"),
     (b"PK\3\4", "npz", r"save its array as \.npy"), (b"\x1f\x8b\x08\x08", "gz", "unpack it"),
     (b"\x89HDF\r\n\x1a\n", "h5", r"save its points as \.npy"),
     (b"\x89MCAP0\r\n", "mcap", r"python -m voxserve\.bag")],
)  # fmt: skip
def test_other_formats_are_no_raw_points(write: Write, beginning: bytes, ending: str, advice: str) -> None:
    path = write("a.bin", beginning.ljust(32, b"\0"))  # two points of four floats
    for fields in ("", "x:f32,y:f32,z:f32,intensity:f32"):
        with pytest.raises(ValueError, match=rf"a\.bin: the file begins as \.{ending} files do; .*{advice}"):
            voxserve.read(path, fields)


@pytest.mark.parametrize("beginning", [b"\x1f\x8b\x08\x41", b"\x89HDF", b"\x89MCA"])
def test_points_that_begin_almost_as_other_formats_are_read(write: Write, beginning: bytes) -> None:
    first = np.frombuffer(beginning, "<f4")
    cloud = voxserve.read(write("a.bin", beginning + bytes(12)))
    assert cloud.values("x") == first  # 8.5, 12562.1 and 12.3 m


def test_a_bin_of_another_size_names_the_option(write: Write) -> None:
    with pytest.raises(ValueError, match=r"a\.bin: 20 bytes are not a whole number of 16-byte points .*--fields"):
        voxserve.read(write("a.bin", bytes(20)))


def test_missing_files() -> None:
    with pytest.raises(FileNotFoundError):
        voxserve.read("/nowhere/a.bin")


def test_extensions() -> None:
    assert is_point_cloud_file("a/B.PCD.BIN")
    assert not is_point_cloud_file("a.png")


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
