"""Tests voxserve.pieces.copc and its octree: that all points are there once, where laspy and copclib look for them."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import map_files
import numpy as np
import pytest

from voxserve import pieces
from voxserve.pieces import copc
from voxserve.pieces.octree import LEAF_POINTS, Octree, Records, codes_of

laspy = map_files.laspy
NUMBER = 150_000
SMALL_LEAF_POINTS = 2000  # in place of LEAF_POINTS, so that few points have many nodes
WKT = 'PROJCS["a",GEOGCS["b",UNIT["degree",0.0174532925199433]],UNIT["metre",1]]'
LEGEND = {1: "unclassified", 2: "ground", 70: "sign"}
_ENTRY = np.dtype([("key", "<i4", 4), ("offset", "<u8"), ("bytes", "<i4"), ("points", "<i4")])


@pytest.fixture(scope="module")
def columns() -> dict[str, np.ndarray[Any, Any]]:
    return {**map_files.cloud(NUMBER), "classification": (np.arange(NUMBER) % 20).astype(np.uint8)}


@pytest.fixture(scope="module")
def survey(columns: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = [laspy.vlrs.known.WktCoordinateSystemVlr(WKT), laspy.VLR("mine", 7, "a record", b"kept")]
    far = type(laspy.LasHeader().vlrs)([laspy.VLR("mine", 8, "behind the points", b"kept too")])
    return map_files.write_las(tmp_path_factory.mktemp("las") / "a.laz", columns, 7, vlrs=records, evlrs=far)


@pytest.fixture(scope="module")
def octree(survey: Path) -> Path:
    return map_files.label(survey, survey.with_name("b.copc.laz"), LEGEND)


def rows(path: Path) -> Any:
    """Returns the points of a file, sorted by all their dimensions."""
    return np.sort(laspy.read(path).points.array)


def entries(path: Path) -> Any:
    """Returns the hierarchy of a file of one page."""
    contents = path.read_bytes()
    assert contents[377:393].rstrip(b"\0") == b"copc"
    assert struct.unpack_from("<H", contents, 393) == (1,)
    begin, size = struct.unpack_from("<2Q", contents, 429 + 40)
    return np.frombuffer(contents, _ENTRY, size // 32, begin)


def inside(las: Any, low: Any, high: Any) -> Any:
    xy = np.stack([las.x, las.y], axis=1)
    return ((xy >= low) & (xy <= high)).all(axis=1)


@pytest.mark.parametrize("kind", ["0", "1", "3", "6", "7", "8", "e57", "parquet", "ply"])
def test_it_has_the_points_of_the_laz_copy(columns: dict[str, Any], tmp_path: Path, kind: str) -> None:
    few = {name: values[:60_000] for name, values in columns.items()}
    if kind in ("0", "1", "6"):
        few = {name: values for name, values in few.items() if name not in ("red", "green", "blue")}
    if kind == "0":
        few.pop("gps_time")
    write = {"e57": map_files.write_e57, "parquet": map_files.write_table, "ply": map_files.write_ply}
    if kind in write:
        source = write[kind](tmp_path / f"a.{kind}", few)
    else:
        source = map_files.write_las(tmp_path / "a.laz", few, int(kind))
    for ending in ("laz", "copc.laz"):
        map_files.label(source, tmp_path / f"b.{ending}", LEGEND)
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name, "b.copc.laz", "b.laz"]
    np.testing.assert_array_equal(rows(tmp_path / "b.copc.laz"), rows(tmp_path / "b.laz"))
    assert len(entries(tmp_path / "b.copc.laz")) > 1
    with laspy.CopcReader.open(tmp_path / "b.copc.laz") as reader:
        assert len(reader.query()) == 60_000


def test_records_coordinates_and_legend_are_kept(survey: Path, octree: Path) -> None:
    old, new = laspy.read(survey).header, laspy.read(octree).header
    kept = {(record.user_id, record.record_id): record.record_data_bytes() for record in new.vlrs[1:]}
    assert kept["mine", 7] == b"kept"
    assert [record.record_data_bytes() for record in new.evlrs if record.user_id == "mine"] == [b"kept too"]
    assert kept["LASF_Projection", 2112].startswith(WKT.encode())
    assert new.vlrs.get("ClassificationLookupVlr")[0].lookups == LEGEND
    assert new.global_encoding.wkt, "readers of the newer point formats ask for it"
    np.testing.assert_array_equal(new.scales, old.scales)
    np.testing.assert_array_equal(new.offsets, old.offsets)
    np.testing.assert_array_equal(new.mins, old.mins)
    np.testing.assert_array_equal(new.number_of_points_by_return, old.number_of_points_by_return)
    with pieces.open_reader(octree) as reader:
        assert reader.contents.legend == LEGEND
        assert reader.contents.wkt == WKT


def test_points_are_in_the_cubes_of_their_nodes(octree: Path) -> None:
    with laspy.CopcReader.open(octree) as reader:
        info, header = reader.copc_info, reader.header
        times = [info.gps_min, info.gps_max]
    las = laspy.read(octree)
    np.testing.assert_array_equal(times, [las.gps_time.min(), las.gps_time.max()])
    found = entries(octree)
    assert (np.diff(found["offset"]) == found["bytes"][:-1]).all(), "chunks follow each other"
    keys = set(map(tuple, found["key"].tolist()))
    assert len(keys) == len(found)
    minimum = np.array(info.center) - info.halfsize
    np.testing.assert_allclose(minimum, header.mins)
    xyz, first = np.stack([las.x, las.y, las.z], axis=1), 0
    parents = {(level - 1, x // 2, y // 2, z // 2) for level, x, y, z in keys}
    for (level, *place), number in zip(found["key"].tolist(), found["points"].tolist(), strict=True):
        size = 2 * info.halfsize / 2**level
        inner = (xyz[first : first + number] - minimum) / size - place
        assert inner.min() >= -1e-9
        assert inner.max() <= 1 + 1e-9
        assert level == 0 or (level - 1, *(at // 2 for at in place)) in keys
        if (level, *place) in parents:
            cells = np.floor(inner * 128)
            assert len(np.unique(cells, axis=0)) > 0.999 * number, "one point of each cell"
            assert info.spacing / 2**level == pytest.approx(size / 128)
        else:
            assert number <= LEAF_POINTS
        first += number
    assert first == NUMBER
    assert max(level for level, *_ in keys) >= 1


def test_laspy_finds_places_and_levels(octree: Path) -> None:
    las, low, high = laspy.read(octree), np.array([500_010.0, 5_400_020]), np.array([500_045.0, 5_400_090])
    with laspy.CopcReader.open(octree) as reader:
        found = reader.query(bounds=laspy.copc.Bounds(low, high))
        overview = reader.query(level=0)
        assert 1000 < len(overview) < NUMBER / 2
    np.testing.assert_array_equal(np.sort(found.array), np.sort(las.points.array[inside(las, low, high)]))
    seen = np.unique(np.floor(np.stack([overview.x, overview.y], axis=1) / 4)[overview.x < 500_100], axis=0)
    assert len(seen) == 25 * 25, "an overview has no holes"


def test_copclib_reads_it(octree: Path) -> None:
    copclib = pytest.importorskip("copclib", reason="copclib is not installed")
    reader, las = copclib.FileReader(str(octree)), laspy.read(octree)
    assert reader.ValidateSpatialBounds()
    points = reader.GetAllPoints()
    np.testing.assert_array_equal(np.sort(points.classification), np.sort(las.classification))
    low, high = np.array([500_010.0, 5_400_020]), np.array([500_045.0, 5_400_090])
    box = copclib.Box(*low, -1e9, *high, 1e9)
    assert len(reader.GetPointsWithinBox(box)) == inside(las, low, high).sum()
    # A file of another writer, whose octree the copy keeps.
    config = copclib.CopcConfigWriter(7, reader.copc_config.las_header.scale, reader.copc_config.las_header.offset, WKT)
    other = octree.with_name("other.copc.laz")
    writer = copclib.FileWriter(str(other), config)
    for key in ((0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 1, 0), (2, 3, 3, 0)):
        node = copclib.Points(config.las_header)
        for index in range(50):
            point = node.CreatePoint()
            point.x, point.y, point.z = 500_000 + key[1] + index / 100, 5_400_000 + key[2] + index / 50, 301 + key[0]
            node.AddPoint(point)
        writer.AddNode(copclib.VoxelKey(*key), node, copclib.VoxelKey(*((1, 1, 1, 0) if key[0] == 2 else (0, 0, 0, 0))))
    writer.Close()
    copy = map_files.label(other, octree.with_name("copy.copc.laz"), LEGEND)
    old, new = copclib.FileReader(str(other)), copclib.FileReader(str(copy))
    assert {(str(n.key), n.point_count) for n in new.GetAllNodes()} == {(str(n.key), 50) for n in old.GetAllNodes()}
    np.testing.assert_array_equal(laspy.read(copy).X, laspy.read(other).X)


def test_a_copy_keeps_the_octree_and_the_order(octree: Path, tmp_path: Path) -> None:
    copy = map_files.label(octree, tmp_path / "c.copc.laz", {5: "tree"})
    for name in ("key", "points"):
        np.testing.assert_array_equal(entries(copy)[name], entries(octree)[name])
    old, new = laspy.read(octree), laspy.read(copy)
    for name in old.point_format.dimension_names:
        if name not in ("classification", "confidence", "classification_before"):
            np.testing.assert_array_equal(new[name], old[name], name)
    assert set(np.unique(new.classification)) == {5}
    np.testing.assert_array_equal(new.classification_before, old.classification)
    assert new.header.vlrs.get("ClassificationLookupVlr")[0].lookups == {5: "tree"}
    with laspy.CopcReader.open(copy) as reader:
        assert len(reader.query(level=1)) == entries(octree)["points"][entries(octree)["key"][:, 0] == 1].sum()


@pytest.mark.parametrize(("ending", "text"), [("copc.laz", "where COPC's readers look for WKT"),
                                              ("e57", "which have no place in E57"), ("laz", "")])  # fmt: skip
def test_geotiff_keys(columns: dict[str, Any], tmp_path: Path, ending: str, text: str) -> None:
    keys = struct.pack("<12H", 1, 1, 0, 2, 1024, 0, 1, 1, 3076, 0, 1, 9001)
    few = {name: values[:100] for name, values in columns.items()}
    records = [laspy.VLR("LASF_Projection", 34735, "", keys)]
    source = map_files.write_las(tmp_path / "a.laz", few, 3, vlrs=records)
    with pieces.open_reader(source) as reader:
        with pieces.open_writer(str(tmp_path / f"b.{ending}"), reader, LEGEND, keeps_codes=False) as writer:
            for piece in reader.pieces(100):
                writer.write(piece, np.ones(100, int), np.ones(100, np.float32))
        assert writer.notes == ([f"the coordinate system is in GeoTIFF keys, {text}"] if text else [])
    with pieces.open_reader(tmp_path / f"b.{ending}") as reader:
        assert reader.contents.has_crs == (ending != "e57")


def test_the_second_pass_is_told(survey: Path, octree: Path, tmp_path: Path) -> None:
    for source, passes in ((survey, 2), (octree, 1)):
        told: list[int] = []
        with (
            pieces.open_reader(source) as reader,
            pieces.open_writer(str(tmp_path / "b.copc.laz"), reader, LEGEND, keeps_codes=False) as writer,
        ):
            for piece in reader.pieces(NUMBER):
                writer.write(piece, np.ones(len(piece), int), np.ones(len(piece), np.float32))
            writer.arrange(told.append)
        assert writer.passes == passes
        assert told == sorted(set(told))
        assert told[-1:] == ([NUMBER] if passes == 2 else [])
        assert len(laspy.read(tmp_path / "b.copc.laz")) == NUMBER


def in_pages(octree: Path, target: Path) -> Path:
    """Writes the file with a page for the root, and one for the others, which also names the first page again."""
    contents, found = bytearray(octree.read_bytes()), entries(octree)
    is_root = found["key"][:, 0] == 0
    link = np.zeros(1, _ENTRY)
    link["key"], link["points"], link["offset"], link["bytes"] = (1, 0, 0, 0), -1, len(contents), 0
    back = link.copy()
    others = np.concatenate([found[~is_root], back])
    link["bytes"] = others.nbytes
    root = np.concatenate([found[is_root], link])
    others["offset"][-1], others["bytes"][-1] = len(contents) + others.nbytes, root.nbytes
    struct.pack_into("<2Q", contents, 429 + 40, len(contents) + others.nbytes, root.nbytes)
    target.write_bytes(bytes(contents) + others.tobytes() + root.tobytes())
    return target


def test_a_copy_of_a_file_with_pages(octree: Path, tmp_path: Path) -> None:
    paged = in_pages(octree, tmp_path / "a.copc.laz")
    copy = map_files.label(paged, tmp_path / "b.copc.laz", {5: "tree"})
    for name in ("key", "points"):
        np.testing.assert_array_equal(entries(copy)[name], entries(octree)[name])


@pytest.mark.parametrize("size", [-32, -1, 1 << 30])
@pytest.mark.parametrize("is_far", [False, True])
def test_pages_outside_the_file_are_refused(octree: Path, tmp_path: Path, size: int, is_far: bool) -> None:
    paged = in_pages(octree, tmp_path / "a.copc.laz")
    contents = bytearray(paged.read_bytes())
    offset = (1 << 63) + 5 if is_far else struct.unpack_from("<Q", contents, len(contents) - 16)[0]
    struct.pack_into("<Qi", contents, len(contents) - 16, offset, size)  # of the page that the root names
    paged.write_bytes(contents)
    text = rf"a\.copc\.laz: the octree has a page of {size} bytes at byte {offset}, but the file has {len(contents)} "
    with pieces.open_reader(paged) as reader, pytest.raises(ValueError, match=text):
        pieces.check_writable(str(tmp_path / "b.copc.laz"), reader)


def test_damaged_octrees_are_refused_before_anything_is_written(octree: Path, tmp_path: Path) -> None:
    contents = bytearray(octree.read_bytes())
    begin, size = struct.unpack_from("<2Q", contents, 429 + 40)
    struct.pack_into("<i", contents, begin + 28, 1)  # the points of the first node
    (tmp_path / "a.copc.laz").write_bytes(contents)
    with (
        pieces.open_reader(tmp_path / "a.copc.laz") as reader,
        pytest.raises(ValueError, match=r"a\.copc\.laz: the header promises 150000 points, but the octree has"),
    ):
        pieces.check_writable(str(tmp_path / "b.copc.laz"), reader)
    (tmp_path / "a.copc.laz").write_bytes(octree.read_bytes()[: begin + size - 5])
    with pytest.raises(ValueError, match=r"a\.copc\.laz: the octree ends at byte"):
        pieces.open_reader(tmp_path / "a.copc.laz")


@pytest.mark.parametrize("number", [0, 1, 2, LEAF_POINTS + 1])
def test_few_points_and_points_at_one_place(tmp_path: Path, number: int) -> None:
    columns = {name: np.repeat(values, number) for name, values in map_files.cloud(1).items()}
    copy = map_files.label(map_files.write_las(tmp_path / "a.laz", columns, 7), tmp_path / "b.copc.laz", LEGEND)
    assert len(laspy.read(copy)) == number
    assert entries(copy)["points"].sum() == number
    with laspy.CopcReader.open(copy) as reader:
        assert len(reader.query()) == number if number else reader.header.point_count == 0
    again = map_files.label(copy, tmp_path / "c.copc.laz", LEGEND)
    np.testing.assert_array_equal(laspy.read(again).X, laspy.read(copy).X)


def test_the_same_file_each_time(survey: Path, octree: Path, tmp_path: Path) -> None:
    assert map_files.label(survey, tmp_path / "b.copc.laz", LEGEND, step=7000).read_bytes() == octree.read_bytes()


@pytest.mark.parametrize("point_format", [4, 5, 9, 10])
@pytest.mark.parametrize("ending", ["laz", "copc.laz"])
def test_wave_packets_are_refused(columns: dict[str, Any], tmp_path: Path, point_format: int, ending: str) -> None:
    few = {name: values[:10] for name, values in columns.items() if name not in ("red", "green", "blue")}
    source = map_files.write_las(tmp_path / "a.las", few, point_format)
    with pieces.open_reader(source) as reader, pytest.raises(ValueError, match=r"wave packets .* write \.las"):
        pieces.check_writable(str(tmp_path / f"b.{ending}"), reader)


@pytest.mark.parametrize("ending", ["laz", "copc.laz"])
def test_points_that_are_too_far_away_are_told(columns: dict[str, Any], tmp_path: Path, ending: str) -> None:
    few = {name: values[:10].copy() for name, values in columns.items() if name != "classification"}
    few["x"][5], few["y"][6], few["z"][7] = -4e6, np.inf, np.nan
    source = map_files.write_ply(tmp_path / "a.ply", few)
    with pieces.open_reader(source) as reader:
        with pieces.open_writer(str(tmp_path / f"b.{ending}"), reader, LEGEND, keeps_codes=False) as writer:
            for piece in reader.pieces(4):
                writer.write(piece, np.ones(len(piece), int), np.ones(len(piece), np.float32))
        assert writer.notes == ["points more than 2147 km from the others are moved to this distance"]
    new = laspy.read(tmp_path / f"b.{ending}")
    order = np.argsort(new.gps_time)
    offsets = np.floor([few[axis][:4].min() for axis in "xyz"])
    np.testing.assert_array_equal(new.header.offsets, offsets)
    few["x"][5], few["y"][6], few["z"][7] = offsets[0] - (2**31 - 1) / 1000, offsets[1], offsets[2]
    for axis in "xyz":
        np.testing.assert_allclose(np.asarray(new[axis])[order], few[axis], rtol=0, atol=6e-4)


def test_huge_coordinates(columns: dict[str, Any], tmp_path: Path) -> None:
    few = {name: values[:60_000].copy() for name, values in columns.items()}
    few["x"] += 1e9
    few["x"][0] -= 2e6  # so the octree is deep
    source = map_files.write_las(tmp_path / "a.laz", few, 7, offsets=np.array([1e9, 5.4e6, 300]))
    copy = map_files.label(source, tmp_path / "b.copc.laz", LEGEND)
    np.testing.assert_array_equal(np.sort(laspy.read(copy).X), np.sort(laspy.read(source).X))
    assert entries(copy)["key"][:, 0].max() > 12
    with laspy.CopcReader.open(copy) as reader:
        low, high = np.array([1e9 + 500_010, 5_400_020]), np.array([1e9 + 500_045, 5_400_090])
        assert len(reader.query(bounds=laspy.copc.Bounds(low, high))) == inside(laspy.read(copy), low, high).sum()


def places(kind: str) -> Any:
    random = np.random.default_rng(2)
    xyz = random.uniform(0, 1, (60_000, 3))
    if kind == "crowded":  # most points are in one of the cells that are counted
        xyz[1000:] = xyz[1000:] * 1e-3 + 0.3
        xyz[30_000:] = xyz[30_000:] * 1e-2 + 0.3
    if kind == "one place":
        xyz[500:] = 0.7
    return xyz


@pytest.fixture
def records(tmp_path: Path) -> Iterator[tuple[Records, Any]]:
    dtype = np.dtype([("x", "f8"), ("y", "f8"), ("z", "f8"), ("index", "i4")])
    with (tmp_path / "records").open("w+b") as file:
        yield Records(file, dtype, 16, 60_000), tmp_path


class Measured:
    """The bytes of all files of an octree: before it is made, and the largest sum of them while it is."""

    def __init__(self, source: Any) -> None:
        self.files: list[MeasuredFile] = []
        self.source: Any = MeasuredFile(source, self)
        self.before = self.peak = self.source.size


class MeasuredFile:
    """A file that tells its size after each change."""

    def __init__(self, file: Any, measured: Measured) -> None:
        self._file, self._measured, self.size = file, measured, file.seek(0, 2)
        measured.files.append(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> MeasuredFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.size = 0

    def write(self, values: bytes) -> None:
        self._file.write(values)
        self.size = max(self.size, self._file.tell())
        self._measured.peak = max(self._measured.peak, sum(file.size for file in self._measured.files))

    def truncate(self, size: int) -> None:
        self._file.truncate(size)
        self.size = size


def check_grids(nodes: dict[Any, Any], code_of: Any) -> None:
    """Checks that a node whose cube has more points than a leaf has one point of each cell that its parents leave."""
    codes = np.concatenate([code_of(points) for points in nodes.values()])
    levels = np.repeat([key[0] for key in nodes], [len(points) for points in nodes.values()])
    num_large = 0
    for level in range(21):
        ids = codes >> np.uint64(3 * (21 - level))
        numbers = np.unique(ids, return_inverse=True, return_counts=True)
        is_large = numbers[2][numbers[1]] > SMALL_LEAF_POINTS
        cells = codes >> np.uint64(3 * max(0, 21 - level - 7))
        left, taken = cells[is_large & (levels >= level)], cells[is_large & (levels == level)]
        np.testing.assert_array_equal(np.sort(taken), np.unique(left))
        assert not np.any(~is_large & (levels > level)), "a leaf has all that are left"
        num_large += np.count_nonzero(is_large)
    assert num_large


@pytest.mark.parametrize("kind", ["even", "crowded", "one place"])
@pytest.mark.parametrize("bucket_points", [700, 5000, 1 << 20])
def test_an_octree_larger_than_memory(
    records: tuple[Records, Path], kind: str, bucket_points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from voxserve.pieces import octree

    monkeypatch.setattr(octree, "LEAF_POINTS", SMALL_LEAF_POINTS)
    source, folder = records
    xyz, made_file = places(kind), tempfile.TemporaryFile
    made = np.zeros(len(xyz), source.dtype)
    made["index"] = np.arange(len(xyz))
    for axis in range(3):
        made["xyz"[axis]] = xyz[:, axis]
    source.file.write(bytes(16) + made.tobytes())

    def code_of(rows: Any) -> Any:
        return codes_of(np.stack([rows[axis] for axis in "xyz"], axis=1), np.zeros(3), 1.0)

    measured = Measured(source.file)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **options: MeasuredFile(made_file(**options), measured))
    tree = Octree(replace(source, file=measured.source), code_of, str(folder), bucket_points)
    read, largest = Records.read, 0

    def counted(self: Records, first: int, number: int) -> Any:
        nonlocal largest
        found = read(self, first, number)
        largest = max(largest, len(found))
        return found

    monkeypatch.setattr(Records, "read", counted)
    nodes = dict(tree.nodes())
    if kind != "one place":
        assert largest <= 2 * bucket_points
    everything = np.concatenate(list(nodes.values()))
    np.testing.assert_array_equal(np.sort(everything["index"]), np.arange(len(xyz)))
    for (level, x, y, z), points in nodes.items():
        inner = np.stack([points[axis] for axis in "xyz"], axis=1) * 2**level - [x, y, z]
        assert (inner >= 0).all()
        assert (inner < 1 + 1e-9).all()
        assert level == 0 or (level - 1, x // 2, y // 2, z // 2) in nodes
    assert measured.peak <= 2 * measured.before
    check_grids(nodes, code_of)
    assert [path.name for path in folder.iterdir()] == ["records"]


def test_codes() -> None:
    xyz = np.array([[0, 0, 0], [1, 0, 0], [0, 0.5, 0], [0, 0, 2.0**-21], [-1, 2, 0.25]])
    found = codes_of(xyz, np.zeros(3), 1.0).tolist()
    assert found == [0, sum(1 << 3 * bit for bit in range(21)), 1 << 61, 1 << 2,
                     sum(1 << 3 * bit + 1 for bit in range(21)) + (1 << 59)]  # fmt: skip


def test_the_sizes_of_its_structures() -> None:
    assert copc._INFO.size == 160
    assert copc._ENTRY.itemsize == 32
