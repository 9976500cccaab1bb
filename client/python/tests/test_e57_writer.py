"""Tests voxserve.pieces.e57_writer: that copies have every node and value of the input, and files of other kinds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import map_files
import numpy as np
import pytest

from voxserve import pieces
from voxserve.pieces.e57 import EXTENSION

pye57 = pytest.importorskip("pye57", reason="pye57 is not installed")
libe57: Any = pye57.libe57
NORMALS = "http://www.libe57.org/E57_NOR_surface_normals.txt"
WKT = 'PROJCS["a",GEOGCS["b",UNIT["degree",0.0174532925199433]],UNIT["metre",1]]'
LEGEND = {1: "unclassified", 2: "ground", 70: "traffic sign, große"}
NUMBER = 70_000  # more than the writer's buffers hold
PICTURE = bytes(range(256)) * 5000


def structure(file: Any, children: dict[str, Any]) -> Any:
    node = libe57.StructureNode(file)
    for name, child in children.items():
        node.set(name, child)
    return node


def records(file: Any, fields: dict[str, tuple[Any, Any]]) -> tuple[Any, Any]:
    """Returns a list of records, and the function that writes them. fields: the node and the raw values of each."""
    prototype = structure(file, {name: node for name, (node, _) in fields.items()})
    node = libe57.CompressedVectorNode(file, prototype, libe57.VectorNode(file, True))

    def write() -> None:
        buffers, arrays = libe57.VectorSourceDestBuffer(), []
        for name, (_, values) in fields.items():
            # An array of np.int64 would be taken for one of 4-byte integers.
            arrays.append(np.empty(len(values), "d" if np.asarray(values).dtype.kind == "f" else "q"))
            arrays[-1][:] = values
            buffers.append(libe57.SourceDestBuffer(file, name, arrays[-1], max(1, len(arrays[-1])), True, False))
        writer = node.writer(buffers)
        if len(arrays[0]):
            writer.write(len(arrays[0]))
        writer.close()

    return node, write


def write_rich(path: Path, prefix: str = "nor", address: str = NORMALS) -> Path:
    """Writes a file of three scans, one without points, with what scanners store beside the points."""
    file = libe57.ImageFile(str(path), "w")
    file.extensionsAdd("", libe57.E57_V1_0_URI)
    file.extensionsAdd(prefix, address)
    text, real, whole = (
        lambda value: libe57.StringNode(file, value),
        lambda value: libe57.FloatNode(file, value),
        lambda value: libe57.IntegerNode(file, value, 0, 100),
    )
    random = np.random.default_rng(5)
    scaled = random.integers(-(2**40), 2**40, (3, NUMBER))
    fields: dict[str, tuple[Any, Any]] = {
        f"cartesian{axis}": (libe57.ScaledIntegerNode(file, 0, -(2**40), 2**40, 1e-6, 5e5), scaled[i])
        for i, axis in enumerate("XYZ")
    }
    fields["cartesianInvalidState"] = libe57.IntegerNode(file, 0, 0, 2), random.integers(0, 3, NUMBER)
    fields["intensity"] = (
        libe57.FloatNode(file, 0.0, libe57.E57_SINGLE, 0.0, 1.0), random.uniform(0, 1, NUMBER).astype(np.float32)
    )  # fmt: skip
    fields["rowIndex"] = libe57.IntegerNode(file, 0, 0, 999), random.integers(0, 1000, NUMBER)
    fields["returnIndex"] = libe57.IntegerNode(file, 0, 0, 255), random.integers(0, 256, NUMBER)
    fields[f"{prefix}:normalX"] = libe57.FloatNode(file, 0.0), random.normal(0, 1, NUMBER)
    fields["timeStamp"] = libe57.FloatNode(file, 0.0), np.arange(NUMBER) * 1e-5
    points, write_points = records(file, fields)
    groups, write_groups = records(file, {
        "idElementValue": (libe57.IntegerNode(file, 0, 0, 999), np.arange(1000)),
        "pointCount": (libe57.IntegerNode(file, 0, 0, NUMBER), np.arange(1000) * 2),
        "mean": (libe57.FloatNode(file, 0.0), np.arange(1000) / 7),
    })  # fmt: skip
    ball, write_ball = records(file, {
        "sphericalRange": (libe57.FloatNode(file, 0.0), random.uniform(1, 50, 400)),
        "sphericalAzimuth": (
            libe57.ScaledIntegerNode(file, 0, -3141, 3141, 1e-3, 0.0), random.integers(-3141, 3142, 400)
        ),
        "sphericalElevation": (libe57.FloatNode(file, 0.0, libe57.E57_SINGLE), random.uniform(-1, 1, 400)),
    })  # fmt: skip
    nothing, write_nothing = records(
        file, {f"cartesian{axis}": (libe57.FloatNode(file, 0.0), np.zeros(0)) for axis in "XYZ"}
    )
    picture = libe57.BlobNode(file, len(PICTURE))
    pose = structure(file, {
        "rotation": structure(file, {"w": real(0.8), "x": real(0.0), "y": real(0.0), "z": real(0.6)}),
        "translation": structure(file, {"x": real(4e5), "y": real(5e6), "z": real(300.0)}),
    })  # fmt: skip
    scans, images = libe57.VectorNode(file, True), libe57.VectorNode(file, True)
    root = file.root()
    for name, node in {
        "formatName": text("ASTM E57 3D Imaging Data File"), "guid": text("{the file}"),
        "versionMajor": libe57.IntegerNode(file, 1), "versionMinor": libe57.IntegerNode(file, 0),
        "e57LibraryVersion": text("some other library"), "coordinateMetadata": text(WKT),
        "data3D": scans, "images2D": images, f"{prefix}:remark": text("größer & <kleiner>"),
    }.items():  # fmt: skip
        root.set(name, node)
    by_line = structure(file, {"idElementName": text("rowIndex"), "groups": groups})
    grouping = structure(file, {"groupingByLine": by_line})
    scans.append(structure(file, {
        "guid": text("{1}"), "name": text("first"), "temperature": real(20.5), "pose": pose,
        "intensityLimits": structure(file, {"intensityMinimum": real(0.0), "intensityMaximum": real(1.0)}),
        "originalGuids": libe57.VectorNode(file, False), "pointGroupingSchemes": grouping, "points": points,
    }))  # fmt: skip
    scans.append(structure(file, {"guid": text("{2}"), "points": nothing}))
    scans.append(structure(file, {"guid": text("{3}"), "points": ball, "sensorModel": text("ball")}))
    images.append(structure(file, {"guid": text("{4}"), "pinholeRepresentation": structure(file, {
        "jpegImage": picture, "imageWidth": whole(7)})}))  # fmt: skip
    picture.write(np.frombuffer(PICTURE, np.uint8).copy(), 0, len(PICTURE))
    for write in (write_groups, write_points, write_nothing, write_ball):
        write()
    file.close()
    return path


def values_of(file: Any, node: Any) -> dict[str, Any]:
    """Returns the raw values of a list of records."""
    prototype, number = libe57.StructureNode(node.prototype()), node.childCount()
    buffers, found = libe57.VectorSourceDestBuffer(), dict[str, Any]()
    for index in range(prototype.childCount()):
        field = prototype[index]
        name = field.elementName()
        found[name] = np.empty(max(1, number), "d" if isinstance(field, libe57.FloatNode) else "q")
        buffers.append(libe57.SourceDestBuffer(file, name, found[name], max(1, number), True, False))
    if not number:
        return {name: values[:0] for name, values in found.items()}
    reader = node.reader(buffers)
    assert reader.read() == number
    reader.close()
    return {name: values[:number] for name, values in found.items()}


def tree(path: Path) -> dict[str, Any]:
    """Returns what every node of a file holds, by its path."""
    file = libe57.ImageFile(str(path), "r")
    found: dict[str, Any] = {}

    def visit(node: Any) -> None:
        name, kind = node.pathName(), type(node).__name__
        if kind in ("StructureNode", "VectorNode"):
            found[name] = kind
            for index in range(node.childCount()):
                visit(node[index])
        elif kind == "CompressedVectorNode":
            visit_prototype(name, libe57.StructureNode(node.prototype()))
            found.update({f"{name} values {field}": values.tolist() for field, values in values_of(file, node).items()})
        elif kind == "BlobNode":
            found[name] = bytes(node.read_buffer())
        else:
            found[name] = kind, node.rawValue() if kind == "ScaledIntegerNode" else node.value(), limits(node)

    def visit_prototype(name: str, prototype: Any) -> None:
        for index in range(prototype.childCount()):
            field = prototype[index]
            found[f"{name} field {field.elementName()}"] = type(field).__name__, limits(field)

    visit(file.root())
    found["namespaces"] = {file.extensionsPrefix(i): file.extensionsUri(i) for i in range(file.extensionsCount())}
    file.close()
    return found


def limits(node: Any) -> tuple[float, ...]:
    names = ("minimum", "maximum", "scale", "offset", "precision")
    return tuple(float(getattr(node, name)()) for name in names if hasattr(node, name))


def columns_of(path: Path) -> dict[str, Any]:
    with pieces.open_reader(path) as reader:
        parts = list(reader.pieces(20_000))
        xyz = np.concatenate([part.xyz for part in parts])
        found = {name: np.concatenate([part.column(name) for part in parts]) for name in reader.contents.dtypes}
    return {**{axis: xyz[:, i] for i, axis in enumerate("xyz")}, **found}


def expected_codes(number: int) -> Any:
    return np.take(list(LEGEND), np.arange(number) % len(LEGEND))


def test_a_copy_has_every_node_and_value(tmp_path: Path) -> None:
    source = write_rich(tmp_path / "a.e57")
    copy = map_files.label(source, tmp_path / "b.e57", LEGEND)
    old, new = tree(source), tree(copy)
    assert old["/images2D/0/pinholeRepresentation/jpegImage"] == PICTURE
    changed = {name for name in old if new.get(name) != old[name]}
    assert changed == {"/guid", "/e57LibraryVersion", "namespaces"}
    assert new["namespaces"] == {**old["namespaces"], "vs": EXTENSION}
    added = {f"/data3D/{i}/points {what} vs:{field}" for i in range(3) for what in ("field", "values")
             for field in ("classification", "confidence")}  # fmt: skip
    assert set(new) - set(old) == {*added, "/vs:legend"}
    codes = [new[f"/data3D/{i}/points values vs:classification"] for i in range(3)]
    assert [len(each) for each in codes] == [NUMBER, 0, 400]
    np.testing.assert_array_equal(np.concatenate(codes), expected_codes(NUMBER + 400))
    with pieces.open_reader(copy) as reader:
        assert reader.contents.legend == LEGEND
        assert reader.contents.wkt == WKT
        assert reader.contents.codes == "classification"


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    source = write_rich(tmp_path / "a.e57")
    copy = map_files.label(source, tmp_path / "b.e57", LEGEND)
    old, new = columns_of(source), columns_of(copy)
    assert np.isnan(old["x"]).mean() == pytest.approx(2 / 3, abs=0.02)
    for name, values in old.items():
        np.testing.assert_array_equal(new[name], values, name)
    np.testing.assert_array_equal(new["classification"], expected_codes(NUMBER + 400))
    np.testing.assert_allclose(new["confidence"], np.arange(NUMBER + 400) % 256 / 255, atol=1e-7)
    assert old["return_number"][:NUMBER].min() == 1, "E57 counts returns from 0"
    assert old["return_number"].max() == 256
    with pye57.E57(str(copy)) as file:
        points = file.read_scan(0, row_column=True, ignore_missing_fields=True)  # without those that are invalid
    is_valid = np.isfinite(old["x"][:NUMBER])
    np.testing.assert_array_equal(points["rowIndex"], old["rowIndex"][:NUMBER][is_valid])
    np.testing.assert_allclose(points["cartesianX"], old["x"][:NUMBER][is_valid], rtol=1e-12)


def test_labels_are_replaced(tmp_path: Path) -> None:
    once = map_files.label(write_rich(tmp_path / "a.e57"), tmp_path / "b.e57", LEGEND)
    twice = map_files.label(once, tmp_path / "c.e57", {300: "tree"})
    old, new = columns_of(once), columns_of(twice)
    assert set(new["classification"]) == {300}
    np.testing.assert_array_equal(new["classification_before"], old["classification"])
    thrice = tree(map_files.label(twice, tmp_path / "d.e57", LEGEND))
    assert thrice["namespaces"] == tree(once)["namespaces"]
    assert set(thrice["/data3D/0/points values vs:classification_before"]) == {300}
    with pieces.open_reader(twice) as reader:
        assert reader.contents.legend == {300: "tree"}


def test_a_prefix_that_another_namespace_has(tmp_path: Path) -> None:
    source = write_rich(tmp_path / "a.e57", "vs", "urn:other")
    copy = map_files.label(source, tmp_path / "b.e57", LEGEND)
    assert tree(copy)["namespaces"] == {"": libe57.E57_V1_0_URI, "vs": "urn:other", "vs2": EXTENSION}
    old, new = columns_of(source), columns_of(copy)
    np.testing.assert_array_equal(new["vs:normalX"], old["vs:normalX"])
    np.testing.assert_array_equal(new["classification"], expected_codes(NUMBER + 400))


def test_the_same_file_each_time(tmp_path: Path) -> None:
    source = write_rich(tmp_path / "a.e57")
    first = map_files.label(source, tmp_path / "b.e57", LEGEND)
    second = map_files.label(source, tmp_path / "c.e57", LEGEND, step=7000)
    assert second.read_bytes() == first.read_bytes()
    assert tree(map_files.label(source, tmp_path / "d.e57", {1: "other"}))["/guid"] != tree(first)["/guid"]


@pytest.mark.parametrize("kind", ["las", "parquet", "ply"])
def test_every_column_of_other_kinds(tmp_path: Path, kind: str) -> None:
    few = {**map_files.cloud(3000), "classification": (np.arange(3000) % 20).astype(np.uint8)}
    write: Any = {"parquet": map_files.write_table, "ply": map_files.write_ply}.get(kind, map_files.write_las)
    source = write(tmp_path / f"a.{kind}", few)
    copy = map_files.label(source, tmp_path / "b.e57", LEGEND)
    old, new = columns_of(source), columns_of(copy)
    for name, values in old.items():
        found = new["classification_before" if name == "classification" else name]
        np.testing.assert_array_equal(found, values, name)
        if name != "classification":
            assert found.dtype == values.dtype, name
    np.testing.assert_array_equal(new["classification"], expected_codes(3000))
    with pieces.open_reader(source) as before, pieces.open_reader(copy) as after:
        assert after.contents.ranges == before.contents.ranges
    with pye57.E57(str(copy)) as file:
        header, points = file.get_header(0), file.read_scan(0, ignore_missing_fields=True)
        assert header.xMaximum == pytest.approx(few["x"].max())
        np.testing.assert_allclose(points["cartesianY"], few["y"], atol=1e-9)


def test_las_coordinates_stay_scaled_integers_and_the_coordinate_system_is_kept(tmp_path: Path) -> None:
    laspy = map_files.laspy
    records = [laspy.vlrs.known.WktCoordinateSystemVlr(WKT)]
    source = map_files.write_las(tmp_path / "a.laz", map_files.cloud(100), 7, vlrs=records)
    found = tree(map_files.label(source, tmp_path / "b.e57", LEGEND))
    las = laspy.read(source)
    np.testing.assert_array_equal(found["/data3D/0/points values cartesianX"], las.X)
    assert found["/data3D/0/points field cartesianX"][1][2:] == (0.001, las.header.offsets[0])
    assert found["/coordinateMetadata"][1] == WKT
    back = laspy.read(map_files.label(tmp_path / "b.e57", tmp_path / "c.laz", LEGEND))
    assert [r.string for r in back.header.vlrs if r.record_id == 2112] == [WKT]
    assert back.header.global_encoding.wkt


def test_feet_become_metres(tmp_path: Path) -> None:
    projected = WKT.replace('UNIT["metre",1]', 'UNIT["foot",0.3048]')
    feet = f'COMPD_CS["c",{projected},VERT_CS["h",UNIT["metre",1]]]'
    records = [map_files.laspy.vlrs.known.WktCoordinateSystemVlr(feet)]
    few = map_files.cloud(100)
    source = map_files.write_las(tmp_path / "a.laz", few, 7, vlrs=records)
    with pieces.open_reader(source) as reader:
        with pieces.open_writer(str(tmp_path / "b.e57"), reader, LEGEND, keeps_codes=False) as writer:
            for piece in reader.pieces(100):
                writer.write(piece, np.ones(100, int), np.ones(100, np.float32))
        assert writer.notes == ["E57 demands metres, so the coordinate system, which has another unit, is left out"]
    np.testing.assert_allclose(columns_of(tmp_path / "b.e57")["y"], few["y"] * 0.3048, rtol=1e-14)
    np.testing.assert_allclose(columns_of(tmp_path / "b.e57")["z"], few["z"], rtol=1e-14)


def test_what_has_no_place_and_strange_values(tmp_path: Path) -> None:
    columns = {"x": [1.0, np.nan, 3.0], "y": [1.0, 2.0, np.inf], "z": [-1e12, 2.0, 3.0], "name": ["a", "b", "c"],
               "höhe 1": [0.5, -np.inf, np.nan], "big": np.array([1, 2, 2**64 - 1], np.uint64),
               "2nd": np.array([-(2**63), 0, 2**63 - 1])}  # fmt: skip
    source = map_files.write_table(tmp_path / "a.parquet", columns)
    with pieces.open_reader(source) as reader:
        with pieces.open_writer(str(tmp_path / "b.e57"), reader, LEGEND, keeps_codes=False) as writer:
            for piece in reader.pieces(100):
                writer.write(piece, np.ones(3, int), np.ones(3, np.float32))
        assert writer.notes == ["the column 'big' (uint64) has no place in E57"]
    found = columns_of(tmp_path / "b.e57")
    assert np.isnan(found["x"]).tolist() == [False, True, True]
    assert found["z"][0] == -1e12
    np.testing.assert_array_equal(found["h_he_1"], columns["höhe 1"])
    np.testing.assert_array_equal(found["_2nd"], columns["2nd"])


def test_no_points(tmp_path: Path) -> None:
    few = {name: values[:0] for name, values in map_files.cloud(1).items()}
    copy = map_files.label(map_files.write_las(tmp_path / "a.laz", few), tmp_path / "b.e57", LEGEND)
    with pieces.open_reader(copy) as reader:
        assert reader.contents.num_points == 0
        assert list(reader.pieces(10)) == []
    again = map_files.label(copy, tmp_path / "c.e57", LEGEND)
    assert tree(again)["/data3D/0/points values cartesianX"] == []


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99, 0.9999])
def test_a_cut_copy_is_refused(tmp_path: Path, share: float) -> None:
    copy = map_files.label(write_rich(tmp_path / "a.e57"), tmp_path / "b.e57", LEGEND)
    contents = copy.read_bytes()
    copy.write_bytes(contents[: int(share * len(contents))])
    with pytest.raises(ValueError, match=r"b\.e57"), pieces.open_reader(copy) as reader:
        list(reader.pieces(10_000))


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = map_files.write_las(tmp_path / "a.laz", map_files.cloud(10))
    monkeypatch.setitem(sys.modules, "pye57", None)
    with (
        pieces.open_reader(source) as reader,
        pytest.raises(ValueError, match=r"pye57 is needed for this file: pip install 'voxserve\[maps\]'"),
    ):
        pieces.check_writable(str(tmp_path / "b.e57"), reader)
