"""Tests the readers and writers of voxserve.pieces: that copies have every value of the input, and damaged files."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import map_files
import numpy as np
import pytest

import voxserve
from voxserve import field_spec, pieces
from voxserve.pieces import BEFORE, CLASSIFICATION, CONFIDENCE
from voxserve.pieces.cloud import CloudReader
from voxserve.pieces.reader import PieceReader

laspy = map_files.laspy
NUMBER = 100_000
LEGEND = {1: "unclassified", 2: "ground", 70: "traffic sign, large"}
_PRECISIONS = {"las": 1e-8, "parquet": 0, "ply": 0, "e57": 1e-5}  # metres; pye57 writes float32
STEP = 30_000  # points in a piece; no divisor of NUMBER


@pytest.fixture(scope="module")
def columns() -> dict[str, np.ndarray[Any, Any]]:
    return map_files.cloud(NUMBER)


@pytest.fixture(scope="module")
def answer() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(7)
    return random.choice(list(LEGEND), NUMBER), random.integers(0, 256, NUMBER) / 255


def copy(source: Path, target: Path, answer: Any, keeps_codes: bool = False) -> list[str]:
    codes, confidence = answer
    with pieces.open_reader(source) as reader:
        number = 0
        with pieces.open_writer(str(target), reader, LEGEND, keeps_codes=keeps_codes) as writer:
            for piece in reader.pieces(STEP):
                rows = slice(number, number + len(piece))
                writer.write(piece, codes[rows], confidence[rows].astype(np.float32))
                number += len(piece)
        return writer.notes


def table(reader: PieceReader) -> dict[str, Any]:
    """Returns the points of a file as columns."""
    with reader:
        parts = list(reader.pieces(STEP))
        assert max(map(len, parts)) <= STEP
        found = {name: np.concatenate([part.column(name) for part in parts]) for name in reader.contents.dtypes}
        xyz = np.concatenate([part.xyz for part in parts])
        assert {n: v.dtype for n, v in found.items()} == {n: d.base for n, d in reader.contents.dtypes.items()}
        return {**{axis: xyz[:, i] for i, axis in enumerate("xyz")}, **found}


@pytest.mark.parametrize("point_format", [0, 1, 3, 5, 6, 7, 8, 10])
@pytest.mark.parametrize("ending", [".las", ".laz"])
def test_a_las_copy_has_every_dimension(
    columns: dict[str, Any], answer: Any, tmp_path: Path, point_format: int, ending: str
) -> None:
    if point_format in (5, 10) and ending == ".laz":
        pytest.skip("lazrs does not compress wave packets")
    few = {name: values[:5000] for name, values in columns.items()}
    if point_format in (0,):
        few.pop("gps_time")
    if point_format in (0, 1, 6):
        few = {name: values for name, values in few.items() if name not in ("red", "green", "blue")}
    few["classification"] = (np.arange(5000) % 20).astype(np.uint8)
    few["scan_angle" if point_format > 5 else "scan_angle_rank"] = (np.arange(5000) % 90).astype(np.int16)
    source = map_files.write_las(tmp_path / f"a{ending}", few, point_format)
    target = tmp_path / f"b{ending}"
    assert copy(source, target, answer, keeps_codes=True) == []
    old, new = laspy.read(source), laspy.read(target)
    assert new.header.point_format.id == {0: 6, 1: 6, 3: 7, 5: 10}.get(point_format, point_format)
    for name in old.point_format.dimension_names:
        if name == "scan_angle_rank":
            np.testing.assert_allclose(np.asarray(new["scan_angle"]) * 0.006, old[name], atol=0.003)
        elif name != "classification":
            np.testing.assert_array_equal(np.asarray(new[name]), np.asarray(old[name]), name)
    np.testing.assert_array_equal(new.header.scales, old.header.scales)
    np.testing.assert_array_equal(new[CLASSIFICATION], answer[0][:5000])
    np.testing.assert_array_equal(new[BEFORE], few["classification"])
    np.testing.assert_allclose(new[CONFIDENCE], answer[1][:5000], atol=1e-6)
    lookups = [record for record in new.header.vlrs if record.record_id == 0]
    assert lookups[0].lookups == {1: "unclassified", 2: "ground", 70: "traffic sign  l"}
    with pieces.open_reader(target) as reader:
        assert reader.contents.legend[2] == "ground"


def test_a_format_that_holds_the_codes_stays(columns: dict[str, Any], answer: Any, tmp_path: Path) -> None:
    source = map_files.write_las(tmp_path / "a.laz", {name: values[:10] for name, values in columns.items()})
    with (
        pieces.open_reader(source) as reader,
        pieces.open_writer(str(tmp_path / "b.laz"), reader, {2: "ground"}, keeps_codes=False) as writer,
    ):
        for piece in reader.pieces(4):
            writer.write(piece, np.full(len(piece), 2), np.ones(len(piece), np.float32))
    assert laspy.read(tmp_path / "b.laz").header.point_format.id == 3


@pytest.mark.parametrize("ending", [".parquet", ".feather"])
def test_a_table_copy_has_every_column(columns: dict[str, Any], answer: Any, tmp_path: Path, ending: str) -> None:
    names = [f"n{i % 7}" for i in range(NUMBER)]
    times = [None if i % 3 == 0 else i for i in range(NUMBER)]
    few = {"name": names, "t": times, "Classification": np.full(NUMBER, 9, np.uint8), **columns}
    source = map_files.write_table(tmp_path / f"a{ending}", few, sensor="left")
    copy(source, tmp_path / f"b{ending}", answer, keeps_codes=True)
    from pyarrow import feather, parquet

    read = parquet.read_table if ending == ".parquet" else feather.read_table
    old, new = read(source), read(tmp_path / f"b{ending}")
    assert new.column_names == [
        *(BEFORE if n == "Classification" else n for n in old.column_names),
        CLASSIFICATION,
        CONFIDENCE,
    ]
    for name in old.column_names:
        assert new[BEFORE if name == "Classification" else name].equals(old[name]), name
    np.testing.assert_array_equal(new[CLASSIFICATION], answer[0])
    np.testing.assert_array_equal(new[CONFIDENCE], answer[1].astype(np.float32))
    assert new.schema.metadata[b"sensor"] == b"left"
    assert json.loads(new.schema.metadata[b"voxserve.legend"]) == {str(code): name for code, name in LEGEND.items()}


@pytest.mark.parametrize("ending", [".ply", ".pcd"])
def test_a_cloud_copy_has_every_field(columns: dict[str, Any], answer: Any, tmp_path: Path, ending: str) -> None:
    source = map_files.write_ply(tmp_path / "a.ply", columns)
    target = tmp_path / f"b{ending}"
    assert copy(source, target, answer) == []
    new = table(pieces.open_reader(target))
    for name, values in columns.items():
        np.testing.assert_array_equal(new[name], values, name)
    np.testing.assert_array_equal(new[CLASSIFICATION], answer[0])
    np.testing.assert_array_equal(new[CONFIDENCE], answer[1].astype(np.float32))
    assert b"class 2 ground" in target.read_bytes()[:1000]


def test_long_integers_of_pcd_are_kept(answer: Any, tmp_path: Path) -> None:
    rows = np.zeros(5, [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("t", "<u8"), ("normal", "<f4", 3)])
    rows["t"], rows["normal"] = 2**63 + np.arange(5, dtype=np.uint64), np.arange(15).reshape(5, 3)
    head = "VERSION 0.7\nFIELDS x y z t normal\nSIZE 4 4 4 8 4\nTYPE F F F U F\nCOUNT 1 1 1 1 3\nWIDTH 5\nHEIGHT 1\n"
    (tmp_path / "a.pcd").write_bytes(f"{head}DATA binary\n".encode() + rows.tobytes())
    copy(tmp_path / "a.pcd", tmp_path / "b.pcd", answer)
    new = table(pieces.open_reader(tmp_path / "b.pcd"))
    np.testing.assert_array_equal(new["t"], rows["t"])
    np.testing.assert_array_equal(new["normal"], rows["normal"])


@pytest.mark.parametrize("ending", [".ply", ".pcd"])
def test_coordinates_of_long_integers_become_float64(answer: Any, tmp_path: Path, ending: str) -> None:
    rows = np.arange(20, dtype="<i8").reshape(5, 4)
    head = "VERSION 0.7\nFIELDS x y z t\nSIZE 8 8 8 8\nTYPE I I I I\nCOUNT 1 1 1 1\nWIDTH 5\nHEIGHT 1\n"
    (tmp_path / "a.pcd").write_bytes(f"{head}DATA binary\n".encode() + rows.tobytes())
    notes = copy(tmp_path / "a.pcd", tmp_path / f"b{ending}", answer)
    new = table(pieces.open_reader(tmp_path / f"b{ending}"))
    np.testing.assert_array_equal(np.stack([new[axis] for axis in "xyz"], 1), rows[:, :3])
    assert len(notes) == (ending == ".ply")  # which has no such integers, for t


def test_a_layout_of_a_pcd_names_long_integers_as_float64(tmp_path: Path) -> None:
    head = "VERSION 0.7\nFIELDS x y z t\nSIZE 4 4 4 8\nTYPE F F F U\nCOUNT 1 1 1 1\nWIDTH 1\nHEIGHT 1\nDATA binary\n"
    (tmp_path / "a.pcd").write_bytes(head.encode() + struct.pack("<3fQ", 1, 2, 3, 200))
    assert CloudReader(tmp_path / "a.pcd", field_spec.parse("t:f64*0.5")).cloud.values("t").tolist() == [100]


@pytest.mark.parametrize("ending", [".laz", ".e57", ".ply", ".pcd", ".parquet", ".feather"])
@pytest.mark.parametrize("kind", ["las", "parquet", "ply", "e57"])
def test_every_kind_becomes_every_other(
    columns: dict[str, Any], answer: Any, tmp_path: Path, kind: str, ending: str
) -> None:
    few = {name: values[:3000] for name, values in columns.items()}
    path = tmp_path / f"a.{kind}"
    write = {"las": map_files.write_las, "parquet": map_files.write_table, "ply": map_files.write_ply}
    write.get(kind, map_files.write_e57)(path, few)
    copy(path, tmp_path / f"b{ending}", answer)
    old, new = table(pieces.open_reader(path)), table(pieces.open_reader(tmp_path / f"b{ending}"))
    for axis in "xyz":
        np.testing.assert_allclose(new[axis], few[axis], rtol=0, atol=6e-4 if ending == ".laz" else _PRECISIONS[kind])
    kept = set(old) - {"x", "y", "z", CLASSIFICATION, "scan_angle_rank"}  # tested above
    assert {"intensity", "red", "green", "blue"} <= kept
    for name in kept:
        found = new[name if name in new and new[name].dtype.kind == old[name].dtype.kind else f"original_{name}"]
        np.testing.assert_array_equal(found, old[name], name)


def test_e57_has_poses_ranges_and_scans(columns: dict[str, Any], tmp_path: Path) -> None:
    path = map_files.write_e57(tmp_path / "a.e57", columns)
    with pieces.open_reader(path) as reader:
        low, high = reader.contents.ranges["intensity"]
        assert reader.contents.num_points == NUMBER
        assert low == pytest.approx(0, abs=1e-4)
        assert high == pytest.approx(1, abs=1e-4)
    found = table(pieces.open_reader(path))
    np.testing.assert_array_equal(found["scan_index"], np.arange(NUMBER) >= NUMBER // 2)
    np.testing.assert_array_equal(found["red"], columns["red"] >> 8)
    np.testing.assert_allclose(
        np.stack([found[a] for a in "xyz"]), np.stack([columns[a] for a in "xyz"]), rtol=0, atol=_PRECISIONS["e57"]
    )


def test_argoverse_sweeps_are_read_as_scans(tmp_path: Path) -> None:
    xyz = np.array([[1.5, 2, 3], [-4, 5, 6]], np.float16)
    sweep = {"x": xyz[:, 0], "y": xyz[:, 1], "z": xyz[:, 2], "intensity": np.array([51, 255], np.uint8),
             "laser_number": np.array([3, 4], np.uint8), "offset_ns": np.array([1, 2], np.int32)}  # fmt: skip
    cloud = voxserve.read(map_files.write_table(tmp_path / "315966265259836000.feather", sweep))
    np.testing.assert_array_equal(np.stack([cloud.values(a) for a in "xyz"], axis=1), xyz)
    np.testing.assert_allclose(cloud.values("intensity"), [0.2, 1])
    np.testing.assert_array_equal(cloud.values("offset_ns"), [1, 2])


def test_a_survey_file_is_read_as_a_scan(columns: dict[str, Any], tmp_path: Path) -> None:
    path = map_files.write_las(tmp_path / "a.laz", columns)
    cloud = voxserve.read(path)
    for axis in "xyz":
        expected = columns[axis] - (np.floor(columns[axis].min()) if axis != "z" else 0)
        np.testing.assert_allclose(cloud.values(axis), expected, rtol=0, atol=2e-5)
    np.testing.assert_allclose(cloud.values("intensity"), columns["intensity"] / 65535, atol=1e-7)
    brighter = voxserve.read(path, "intensity=intensity*0.5")
    np.testing.assert_array_equal(brighter.values("intensity"), columns["intensity"] / 2)


FEET = 'PROJCS["a",GEOGCS["b",UNIT["degree",0.0174532925199433]],UNIT["US survey foot",0.3048006096012192]]'
DEGREES = 'GEOGCS["WGS 84",DATUM["c"],UNIT["degree",0.0174532925199433]]'


@pytest.mark.parametrize("offset", [0, 2_000_000])
def test_a_scan_in_feet_is_read_in_metres(tmp_path: Path, offset: int) -> None:
    feet = {axis: np.array([100.0, 200, 350]) + offset for axis in "xyz"}
    records = [laspy.vlrs.known.WktCoordinateSystemVlr(FEET)]
    path = map_files.write_las(tmp_path / "a.las", feet, 6, vlrs=records, offsets=np.full(3, float(offset)))
    expected = feet["x"] * 0.3048006096
    expected -= np.floor(expected.min()) if offset else 0
    for axis in "xyz":
        np.testing.assert_allclose(voxserve.read(path).values(axis), expected, rtol=0, atol=1e-4)
    as_it_is = voxserve.read(path, "x:f64,y:f64,z:f64")
    np.testing.assert_array_equal(as_it_is.values("x"), feet["x"].astype(np.float32))


@pytest.mark.parametrize(
    "wkt",
    [
        DEGREES,
        f'COMPD_CS["q",{DEGREES},VERT_CS["h",UNIT["metre",1]]]',
        'COMPOUNDCRS["q",GEOGCRS["a",CS[ellipsoidal,2],ANGLEUNIT["degree",0.0174532925199433]],'
        'VERTCRS["h",CS[vertical,1],LENGTHUNIT["metre",1]]]',
        'GEODCRS["a",ELLIPSOID["e",6378137,298.3,LENGTHUNIT["metre",1]],CS[ellipsoidal,2]]',
    ],
)
def test_a_scan_in_degrees_is_refused(tmp_path: Path, wkt: str) -> None:
    degrees = {axis: np.array([1.0, 2, 3]) for axis in "xyz"}
    records = [laspy.vlrs.known.WktCoordinateSystemVlr(wkt)]
    path = map_files.write_las(tmp_path / "a.las", degrees, 6, vlrs=records, offsets=np.zeros(3))
    with pytest.raises(ValueError, match=r"a\.las: the coordinates are degrees; project the file to metres first"):
        voxserve.read(path)
    assert voxserve.read(path, "x:f64*2,y:f64,z:f64").values("x").tolist() == [2, 4, 6]


_WKT1 = 'COMPD_CS["q",%s,VERT_CS["h",VERT_DATUM["d",2005],UNIT["%s",%s],AXIS["Up",UP]]]'
_WKT2 = (
    'COMPOUNDCRS["q",PROJCRS["a",BASEGEOGCRS["b",ELLIPSOID["e",6378137,298.3,LENGTHUNIT["metre",1]]],CS[Cartesian,2],'
    'AXIS["e",east],AXIS["n",north],LENGTHUNIT["foot",0.3048]],VERTCRS["h",VDATUM["d"],CS[vertical,1],'
    'AXIS["h",up,LENGTHUNIT["%s",%s]]]]'
)
_FOOT = 0.3048006096012192


@pytest.mark.parametrize(
    ("wkt", "metres"),
    [
        (_WKT1 % (FEET, "metre", 1), (_FOOT, _FOOT, 1)),
        (_WKT1 % (FEET, "foot", 0.3048), (_FOOT, _FOOT, 0.3048)),
        (_WKT1 % (FEET.replace(str(_FOOT), "1"), "foot", 0.3048), (1, 1, 0.3048)),
        (FEET + ',VERTCS["h",VDATUM["d"],PARAMETER["Direction",1.0],UNIT["Meter",1.0]]', (_FOOT, _FOOT, 1)),
        (_WKT2 % ("metre", 1), (0.3048, 0.3048, 1)),
        (_WKT2 % ("foot", 0.3048), (0.3048, 0.3048, 0.3048)),
        ('COMPD_CS["q",LOCAL_CS["a",UNIT["foot",0.3048]],VERT_CS["h"]]', (0.3048, 0.3048, 0.3048)),
        ('GEODCRS["a",DATUM["d"],CS[Cartesian,3],LENGTHUNIT["metre",1]]', (1, 1, 1)),
    ],
)
def test_heights_have_a_unit_of_their_own(tmp_path: Path, wkt: str, metres: tuple[float, ...]) -> None:
    steps = {axis: np.array([10.0, 20, 30]) for axis in "xyz"}
    records = [laspy.vlrs.known.WktCoordinateSystemVlr(wkt)]
    path = map_files.write_las(tmp_path / "a.las", steps, 6, vlrs=records, offsets=np.zeros(3))
    for axis, unit in zip("xyz", metres, strict=True):
        np.testing.assert_allclose(voxserve.read(path).values(axis), steps[axis] * unit, rtol=1e-6)


@pytest.mark.parametrize(("vertical", "unit"), [([], 0.3048), ([4099, 0, 1, 9001], 1.0)])
def test_heights_of_geotiff_keys(tmp_path: Path, vertical: list[int], unit: float) -> None:
    keys = [1024, 0, 1, 1, 3076, 0, 1, 9002, *vertical]
    record = laspy.VLR("LASF_Projection", 34735, "", struct.pack(f"<{4 + len(keys)}H", 1, 1, 0, len(keys) // 4, *keys))
    steps = {axis: np.array([10.0, 20, 30]) for axis in "xyz"}
    path = map_files.write_las(tmp_path / "a.las", steps, 3, vlrs=[record], offsets=np.zeros(3))
    np.testing.assert_allclose(voxserve.read(path).values("y"), steps["y"] * 0.3048, rtol=1e-6)
    np.testing.assert_allclose(voxserve.read(path).values("z"), steps["z"] * unit, rtol=1e-6)


@pytest.mark.parametrize("ending", [".parquet", ".feather"])
def test_missing_values_of_integers_are_nan(tmp_path: Path, ending: str) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = {**{axis: np.arange(3.0) for axis in "xyz"}, "intensity": arrow.array([51, None, 255], arrow.uint8()),
             "ring": arrow.array([None, 2, 3], arrow.int64()),
             "is_ground": arrow.array([True, None, False])}  # fmt: skip
    path = map_files.write_table(tmp_path / f"a{ending}", table)
    cloud = voxserve.read(path)
    np.testing.assert_allclose(cloud.values("intensity"), [0.2, np.nan, 1], rtol=1e-6)
    np.testing.assert_array_equal(cloud.values("ring"), [np.nan, 2, 3])
    np.testing.assert_array_equal(cloud.values("is_ground"), [1, np.nan, 0])
    assert copy(path, tmp_path / f"b{ending}", (np.zeros(3, np.int64), np.zeros(3))) == []
    with pieces.open_reader(tmp_path / f"b{ending}") as copied:
        assert next(copied.pieces(3)).record.column("intensity").to_pylist() == [51, None, 255]


def test_a_feather_file_is_read_once_before_its_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    number = 70_000  # in 3 batches
    table = {**{axis: np.arange(float(number)) for axis in "xyz"}, "ring": arrow.array([None, *range(1, number)])}
    path = map_files.write_table(tmp_path / "a.feather", table)
    read: list[int] = []
    open_file = arrow.ipc.open_file

    class Counting:
        def __init__(self, source: Any) -> None:
            self._file = open_file(source)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def get_batch(self, index: int) -> Any:
            read.append(index)
            return self._file.get_batch(index)

    monkeypatch.setattr(arrow.ipc, "open_file", Counting)
    with pieces.open_reader(path) as reader:
        assert (reader.contents.num_points, reader.contents.dtypes["ring"]) == (number, np.float64)
        assert read == [0, 1, 2]


def test_missing_values_are_found_without_statistics(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    import pyarrow as arrow

    table = arrow.table(
        {**{axis: np.arange(2.0) for axis in "xyz"}, "intensity": arrow.array([None, 5], arrow.uint8())}
    )
    parquet.write_table(table, tmp_path / "a.parquet", write_statistics=False)
    np.testing.assert_allclose(voxserve.read(tmp_path / "a.parquet").values("intensity"), [np.nan, 5 / 255], rtol=1e-6)


def test_numbers_of_a_table_are_read_whatever_their_type(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from decimal import Decimal

    table = {**{axis: np.arange(2) for axis in "xyz"}, "intensity": np.array([1, 2]),
             "time": arrow.array([Decimal("0.50"), None])}  # fmt: skip
    cloud = voxserve.read(map_files.write_table(tmp_path / "a.parquet", table))
    assert [cloud.values(name).tolist() for name in ("x", "intensity")] == [[0, 1], [1, 2]]
    np.testing.assert_array_equal(cloud.values("time"), [0.5, np.nan])


def test_an_infinite_coordinate_moves_no_other_point(tmp_path: Path) -> None:
    table = {axis: np.array([-50, np.inf, 50, np.nan]) for axis in "xyz"}
    cloud = voxserve.read(map_files.write_table(tmp_path / "a.parquet", table))
    np.testing.assert_array_equal(cloud.values("x"), [-50, np.inf, 50, np.nan])


def test_a_scan_of_an_e57_file_without_intensities(tmp_path: Path) -> None:
    pye57 = pytest.importorskip("pye57", reason="pye57 is not installed")
    bare = {f"cartesian{axis}": np.arange(3.0) for axis in "XYZ"}
    bright = {**bare, "intensity": np.array([0.0, 51, 255])}
    file = pye57.E57(str(tmp_path / "a.e57"), mode="w")
    for scan in (bare, bright):
        file.write_scan_raw(scan)
    file.close()
    cloud = voxserve.read(tmp_path / "a.e57")
    np.testing.assert_allclose(cloud.values("intensity"), [np.nan, np.nan, np.nan, 0, 0.2, 1], rtol=1e-6)
    assert cloud.values("scan_index").tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("ending", [".las", ".laz", ".copc.laz"])
def test_missing_values_are_0_in_the_dimensions_of_las(tmp_path: Path, ending: str) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    colours = {name: arrow.array([None, 20, 30], arrow.uint16()) for name in ("red", "green", "blue")}
    table = {**{axis: np.arange(3.0) for axis in "xyz"}, "intensity": arrow.array([1, None, 65535], arrow.uint16()),
             **colours, "return_number": arrow.array([1, 2, None], arrow.uint8()),
             "classification": arrow.array([2, None, 70], arrow.int64()),
             "ring": arrow.array([None, 2, 3], arrow.uint8())}  # fmt: skip
    path = map_files.write_table(tmp_path / "a.parquet", table)
    las = laspy.read(map_files.label(path, tmp_path / f"b{ending}", LEGEND))
    order = np.argsort(las.x)
    expected = {"intensity": [1, 0, 65535], "red": [0, 20, 30], "blue": [0, 20, 30], "return_number": [1, 2, 0],
                BEFORE: [2, 0, 70], "ring": [np.nan, 2, 3]}  # fmt: skip
    for name, values in expected.items():
        np.testing.assert_array_equal(np.asarray(las[name])[order], values, err_msg=name)
    assert set(las.point_format.extra_dimension_names) == {"ring", BEFORE, CONFIDENCE}


def test_colours_of_one_scan_of_an_e57_file_are_colours_in_las(tmp_path: Path) -> None:
    pye57 = pytest.importorskip("pye57", reason="pye57 is not installed")
    bare = {f"cartesian{axis}": np.arange(3.0) for axis in "XYZ"}
    colours = {f"color{name}": np.array([10, 20, 30], np.uint8) for name in ("Red", "Green", "Blue")}
    with pye57.E57(str(tmp_path / "a.e57"), mode="w") as file:
        file.write_scan_raw(bare)
        file.write_scan_raw({**bare, **colours})
    las = laspy.read(map_files.label(tmp_path / "a.e57", tmp_path / "b.las", LEGEND))
    for name in ("red", "green", "blue"):
        assert las[name].tolist() == [0, 0, 0, 10, 20, 30]


def test_labels_alone(columns: dict[str, Any], answer: Any, tmp_path: Path) -> None:
    source = map_files.write_las(tmp_path / "a.laz", columns)
    for name in ("b.label", "b.npy"):
        copy(source, tmp_path / name, answer)
        from voxserve import label_file

        np.testing.assert_array_equal(label_file.read(tmp_path / name, NUMBER), answer[0])


def refusal(path: Path) -> str:
    with pytest.raises(ValueError, match=path.name) as caught, pieces.open_reader(path) as reader:
        for _ in reader.pieces(STEP):
            pass
    return str(caught.value)


@pytest.mark.parametrize("ending", [".las", ".laz", ".copc.laz", ".e57", ".parquet", ".feather", ".ply"])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_cut_files_are_refused(columns: dict[str, Any], tmp_path: Path, ending: str, share: float) -> None:
    path = tmp_path / f"a{ending}"
    write = {".e57": map_files.write_e57, ".ply": map_files.write_ply, ".las": map_files.write_las,
             ".laz": map_files.write_las}.get(ending, map_files.write_table)  # fmt: skip
    if ending == ".copc.laz":
        map_files.label(map_files.write_las(tmp_path / "b.laz", columns), path, LEGEND)
    else:
        write(path, columns)
    contents = path.read_bytes()
    path.write_bytes(contents[: int(share * len(contents))])
    assert "\n" not in refusal(path)
    assert path.exists(), "a damaged input is never removed"


@pytest.mark.parametrize("ending", [".las", ".laz"])
def test_a_billion_promised_points_take_no_memory(columns: dict[str, Any], tmp_path: Path, ending: str) -> None:
    import resource

    path = map_files.write_las(tmp_path / f"a{ending}", {name: values[:10] for name, values in columns.items()})
    map_files.promise(path, 1_000_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "promises 1000000000 points" in refusal(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "KiB"


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_scales_are_refused(columns: dict[str, Any], tmp_path: Path, scale: float) -> None:
    import struct

    path = map_files.write_las(tmp_path / "a.las", {name: values[:10] for name, values in columns.items()})
    contents = bytearray(path.read_bytes())
    struct.pack_into("<d", contents, 131, scale)
    path.write_bytes(contents)
    assert "the header has the scales" in refusal(path)


@pytest.mark.parametrize("ending", [".las", ".laz", ".e57", ".parquet", ".feather", ".ply", ".pcd"])
@pytest.mark.parametrize("contents", [b"", b"LASF", b"ARROW1", b"PAR1", b"x" * 5000])
def test_other_files_are_refused(tmp_path: Path, ending: str, contents: bytes) -> None:
    (tmp_path / f"a{ending}").write_bytes(contents)
    refusal(tmp_path / f"a{ending}")


def test_flipped_bytes_never_crash(columns: dict[str, Any], tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    told: list[str] = []
    few = {name: values[:2000] for name, values in columns.items()}
    for path in (map_files.write_las(tmp_path / "a.laz", few), map_files.write_las(tmp_path / "a.las", few)):
        contents = np.frombuffer(path.read_bytes(), np.uint8)
        for _ in range(60):
            damaged = contents.copy()
            at = random.integers(0, 400 if random.random() < 0.7 else len(damaged), 3)
            damaged[at] = random.integers(0, 256, 3)
            path.write_bytes(damaged.tobytes())
            try:
                with pieces.open_reader(path) as reader:
                    for piece in reader.pieces(500):
                        assert len(piece) <= 500
            except ValueError as error:
                told.append(str(error))
    assert len(told) > 15
    assert all("a.la" in text for text in told)


class StoppingArray:
    """Confidences that fail when the second piece asks for its own."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __getitem__(self, rows: slice) -> Any:
        return self._values[rows] if rows.start == 0 else 1 / 0


def test_a_file_that_cannot_be_written_leaves_nothing(columns: dict[str, Any], answer: Any, tmp_path: Path) -> None:
    source = map_files.write_las(tmp_path / "a.laz", columns)
    (tmp_path / "out").mkdir()
    for ending in (".laz", ".copc.laz", ".e57", ".ply", ".pcd", ".parquet", ".feather", ".npy"):
        with pytest.raises(ZeroDivisionError):
            copy(source, tmp_path / f"out/b{ending}", (answer[0], StoppingArray(answer[1])))
    assert not list((tmp_path / "out").iterdir())


def test_only_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    abandoned = [f"b[1].laz.{int(ended.stdout)}.part", f"b[1].laz.{10**30}.part"]
    kept = ["b[1].laz.mine.part", f"b[1].laz.{os.getpid()}.part", f"b1.laz.{10**30}.part", "b[1].laz.1.part"]
    for name in [*abandoned, *kept]:
        (tmp_path / name).touch()
    folder = f"b[1].laz.{10**31}.part"
    (tmp_path / folder).mkdir()
    pieces.remove_abandoned(str(tmp_path / "b[1].laz"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, folder])


def test_another_users_process_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    (tmp_path / "b.laz.12.part").touch()
    pieces.remove_abandoned(str(tmp_path / "b.laz"))
    assert list(tmp_path.iterdir())
