"""Tests what people see of clouds and answers: short texts, pictures, tables, files."""

from __future__ import annotations

import dataclasses
import gc
import json
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conftest import FakeServer

import voxserve
from voxserve import label_file
from voxserve.known_classes import ClassLookup
from voxserve.point_cloud import as_cloud
from voxserve.results import ClassInfo
from voxserve.show import optional, picture
from voxserve.source import Source

COUNTS = voxserve.PointCounts(4, 0, 0, 0, 4)
CLASSES = (ClassInfo(0, "road", (128, 64, 128)), ClassInfo(1, "car", (40, 90, 255)), ClassInfo(2, "<b>", (0, 0, 0)))


def common(points: Any = None, **others: Any) -> dict[str, Any]:
    source = Source(points, None if points is None else as_cloud(points))
    return {"counts": COUNTS, "stages": (), "model": "m", "version": 3, "device": "cpu", "request_id": "",
            "round_trip": 0.0123, "class_lookup": ClassLookup(CLASSES), "source": source, **others}  # fmt: skip


def segmentation(labels: Any, points: Any = None, **others: Any) -> voxserve.Segmentation:
    values = np.asarray(labels, np.uint8)
    return voxserve.Segmentation(
        labels=values, scores=None, ignore_label=255, num_classes=3, **common(points, **others)
    )


def detections(boxes: Any, names: tuple[str, ...], points: Any = None) -> voxserve.Detections:
    numbers = np.array(boxes, np.float32).reshape(-1, 7)
    ids = np.array([1 if name == "car" else 7 for name in names], np.uint32)
    scores = np.linspace(0.9, 0.5, len(numbers), dtype=np.float32)
    velocities = np.zeros((len(numbers), 2), np.float32)
    return voxserve.Detections(
        boxes=numbers, velocities=velocities, scores=scores, class_ids=ids, names=names, **common(points)
    )


def decoded(png: bytes) -> npt.NDArray[np.uint8]:
    """Returns the colours, [height, width, 3], of a PNG file with a palette and without filters."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    parts, place = {}, 8
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        kind, data = png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        assert struct.unpack(">I", png[place + 8 + length : place + 12 + length])[0] == zlib.crc32(kind + data)
        parts[kind], place = data, place + 12 + length
    width, height, depth, colour_type, *_ = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    assert (depth, colour_type) == (8, 3)
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any(), "filters"
    return np.frombuffer(parts[b"PLTE"], np.uint8).reshape(-1, 3)[rows[:, 1:]]


# ---- texts


def test_texts_are_short_whatever_the_size() -> None:
    points = np.random.default_rng(0).normal(size=(200_000, 4)).astype(np.float32)
    cloud = voxserve.PointCloud.from_array(points)
    tensor = voxserve.Tensor(np.zeros((90_000, 96), np.float16), voxserve.TensorRows.SITES, unit=(8, 8, 4))
    found = segmentation(np.arange(200_000) % 3, points)
    boxes = detections(np.ones((500, 7)), ("car",) * 500, points)
    voxels = voxserve.Voxels(np.zeros((50_000, 3), np.int64), np.zeros((50_000, 2)))
    answer = voxserve.Tensors(**common(tensors={"deep": tensor}))
    frame = voxserve.FrameResult(7, found, None, detections=boxes)
    for shown in (cloud, tensor, found, boxes, voxels, answer, frame):
        assert len(repr(shown)) < 600, type(shown)
    assert repr(cloud) == "<PointCloud of 200,000 points: x, y, z, intensity (f32); 3.2 MB>"
    assert repr(tensor) == "<Tensor float16 [90000, 96] of sites, unit 8 x 8 x 4>"
    assert repr(boxes) == "<Detections by m 3 on cpu: 500 boxes; car 500; best score 0.90; 12.3 ms>"
    assert repr(voxels) == "<Voxels of coordinates int64 [50000, 3], features float64 [50000, 2]>"
    assert repr(answer) == "<Tensors by m 3 on cpu; deep [90000, 96]; 12.3 ms>"


def test_text_of_labels_names_the_classes() -> None:
    text = repr(segmentation([0, 0, 1, 255]))
    assert text == "<Segmentation by m 3 on cpu: 4 points; road 2, car 1, without a class 1; 12.3 ms>"


def test_counts_by_class() -> None:
    assert segmentation([1, 0, 1, 9, 255]).count_by_class() == {"car": 2, "road": 1, "class 9": 1}
    same = (ClassInfo(0, "car", (1, 1, 1)), ClassInfo(1, "car", (1, 1, 1)))
    assert segmentation([1, 0, 1], class_lookup=ClassLookup(same)).count_by_class() == {"car": 3}
    assert detections(np.ones((3, 7)), ("car", "", "car")).count_by_class() == {"car": 2, "class 7": 1}


def test_text_of_a_model() -> None:
    with voxserve.Client("localhost:1") as client:
        assert repr(client) == "<voxserve.client.Client of localhost:1>"
    features = (voxserve.FeatureInfo("x", "m", None), voxserve.FeatureInfo("intensity", "1", None))
    version = voxserve.ModelVersion(
        "m", 1, voxserve.ModelState.READY, (), "", CLASSES, 255, features, 9, (), 1, "cpu", ""
    )
    assert repr(version) == "<ModelVersion m 1, ready on cpu: labels of 3 classes; reads x, intensity>"
    failed = dataclasses.replace(version, state=voxserve.ModelState.FAILED, problems=("no weights",), device="")
    assert repr(failed) == "<ModelVersion m 1, failed on no device: no weights>"


# ---- pictures


def test_picture_shows_the_highest_point_of_each_pixel() -> None:
    rng = np.random.default_rng(1)
    points = np.concatenate([rng.uniform(-20, 20, (3000, 2)), rng.uniform(-2, 4, (3000, 1))], axis=1).astype(np.float32)
    labels = rng.integers(0, 2, 3000)
    seen = segmentation(labels, points).picture(size=64)
    left, right, lower, upper = seen.extent
    scale = 64 / max(right - left, upper - lower)
    expected: dict[tuple[int, int], tuple[float, int]] = {}
    height, width = seen.pixels.shape
    for (x, y, z), label in zip(points.astype(np.float64).tolist(), labels.tolist(), strict=True):
        column, row = int((x - left) * scale // 1), height - 1 - int((y - lower) * scale // 1)
        if 0 <= column < width and 0 <= row < height and z > expected.get((row, column), (-np.inf, 0))[0]:
            expected[row, column] = z, label
    colours = np.full((height, width, 3), picture.BACKGROUND, np.uint8)
    for (row, column), (_, label) in expected.items():
        colours[row, column] = CLASSES[label].color
    np.testing.assert_array_equal(decoded(seen.png()), colours)
    np.testing.assert_array_equal(seen.rgb(), colours)
    assert max(height, width) == 64


def test_boxes_are_drawn_around_their_points() -> None:
    points = np.zeros((1, 3), np.float32)
    turned = [0, 0, 0, 10, 4, 2, np.pi / 2]  # its length lies along y
    seen = detections([turned], ("car",), points).picture(size=200)
    left, right, lower, upper = seen.extent
    # The picture has 1 m around a single point, so it is inside the box and shows the line to its front alone.
    assert (right - left, upper - lower) == (1, 1)
    assert (seen.rgb()[:100, 99:101] == CLASSES[1].color).all(axis=2).any(axis=1).sum() >= 99, (
        "a line upwards, to the front"
    )
    around = np.array([[-20, -20, 0], [20, 20, 0]], np.float32)
    rgb = detections([turned], ("car",), around).picture(size=400).rgb()
    rows, columns = np.nonzero((rgb == CLASSES[1].color).all(axis=2))
    assert (rows.min(), rows.max()) == pytest.approx((150, 249), abs=3), "10 m of 40 m along y"
    assert (columns.min(), columns.max()) == pytest.approx((180, 219), abs=3), "4 m along x"


@pytest.mark.parametrize("points", [np.zeros((0, 4)), np.full((3, 4), np.nan), np.zeros((1, 4)), np.full((2, 4), 1e30)])
def test_strange_clouds_have_pictures(points: npt.NDArray[np.float64]) -> None:
    cloud = voxserve.PointCloud.from_array(points.astype(np.float32))
    assert decoded(cloud.picture(32).png()).ndim == 3
    assert (cloud._repr_png_() is None) == (len(points) == 0)
    far = detections([[1e30, 0, 0, 1e30, 1, 1, 0]], ("car",))
    assert decoded(far.picture(points, size=32).png()).ndim == 3


def test_a_notebooks_cell_is_small_and_escaped() -> None:
    rng = np.random.default_rng(2)
    points = rng.normal(scale=30, size=(120_000, 4)).astype(np.float32)
    cell = segmentation(rng.integers(0, 3, 120_000), points)._repr_html_()
    assert len(cell) < 100_000, "noise is the worst case of compression"
    assert "&lt;b&gt;" in cell
    assert "<b>" not in cell
    assert "data:image/png;base64," in cell
    assert voxserve.PointCloud.from_array(points)._repr_png_() is not None


def test_an_answer_does_not_keep_the_points_in_memory() -> None:
    points = np.zeros((4, 4), np.float32)
    result = segmentation([0, 1, 1, 255], points)
    assert "base64" in result._repr_html_()
    copy = pickle.loads(pickle.dumps(result))
    assert copy.labels.tolist() == [0, 1, 1, 255]
    del points
    gc.collect()
    for gone in (result, copy):
        with pytest.raises(ValueError, match="not in memory any more; pass them"):
            gone.picture()
        assert "base64" not in gone._repr_html_()
        assert "No picture" in gone._repr_html_()
        assert gone.picture(np.zeros((4, 4), np.float32)).pixels.size
        with pytest.raises(ValueError, match="4 labels, but 5 points"):
            gone.picture(np.zeros((5, 4), np.float32))


def refuses_to_draw(result: Any, points: Any) -> None:
    """Fails unless the answer refuses other points in the memory of its own, and draws its own if it gets them."""
    text = "the memory of the request's points has other values now; pass the request's points here"
    with pytest.raises(ValueError, match=text):
        result.picture()
    assert "base64" not in result._repr_html_()
    assert "has other values now" in result._repr_html_()
    assert result.picture(points).pixels.size


def test_other_points_in_the_same_memory_are_not_drawn(server: FakeServer) -> None:
    """As of a driver that reads every scan into one buffer."""
    scans = np.random.default_rng(5).normal(scale=20, size=(2, 10, 4)).astype(np.float32)
    buffer = scans[0].copy()
    with voxserve.Client(server.address) as client:
        results: list[Any] = [client.infer("minkunet", buffer), client.detect("detector", buffer)]
        with client.stream("minkunet", policy="queue") as stream:
            stream.send(1, buffer)
            results.append(next(stream).segmentation)
            for result in results:
                assert result.picture().pixels.size
            buffer[:] = scans[1]
            stream.send(2, buffer)
            newest = next(stream).segmentation
    for result in results:
        refuses_to_draw(result, scans[0])
    assert newest is not None
    assert newest.picture().pixels.size
    buffer[:] = scans[0]
    assert results[0].picture().pixels.size, "the values count, and no time"


def test_points_that_were_changed_in_place_are_not_drawn() -> None:
    points = np.random.default_rng(6).uniform(0, 255, size=(120_000, 4)).astype(np.float32)
    before = points.copy()
    result = segmentation(np.arange(120_000) % 2, points)
    assert result.picture().pixels.size
    points[:, 3] /= 255  # the intensities alone
    refuses_to_draw(result, before)
    rows = voxserve.PointCloud.from_array(before)
    rows = dataclasses.replace(rows, data=bytearray(rows.data))
    result = segmentation(np.arange(120_000) % 2, rows)
    assert result.picture().pixels.size
    rows.data[::16] = bytes(120_000)  # type: ignore[index]
    refuses_to_draw(result, before)


def test_tables_of_changed_points_and_of_none() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(np.random.default_rng(7).normal(size=(5, 4)), columns=["x", "y", "z", "intensity"])
    result = segmentation([0, 1, 0, 1, 0], table)
    assert list(result.to_pandas()) == ["x", "y", "z", "intensity", "label", "class_name"]
    table["x"] += 1
    with pytest.raises(ValueError, match="has other values now"):
        result.to_pandas()
    del table
    gc.collect()
    assert list(result.to_pandas()) == ["label", "class_name"]


@pytest.mark.parametrize("size", [15, 4097])
def test_sizes_of_pictures(size: int) -> None:
    with pytest.raises(ValueError, match="must be 16 to 4096 pixels"):
        segmentation([0], np.zeros((1, 4), np.float32)).picture(np.zeros((1, 4), np.float32), size)


def test_plot(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    points = np.random.default_rng(3).normal(scale=20, size=(500, 4)).astype(np.float32)
    axes = segmentation(np.arange(500) % 2, points).plot()
    assert (axes.get_xlabel(), axes.get_title()) == ("x in metres", "500 points by m")
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["road", "car"]
    assert detections([[0, 0, 0, 4, 2, 2, 0]], ("car",), points).plot(ax=axes) is axes
    axes.figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_a_missing_library_is_named() -> None:
    with pytest.raises(ImportError, match=r"plot\(\) needs nolibrary: pip install nolibrary, or 'voxserve\[show\]'"):
        optional.library("nolibrary.parts", "plot()")


# ---- tables


def test_tables(points: npt.NDArray[np.float32]) -> None:
    pandas = pytest.importorskip("pandas")
    table = segmentation([0, 1, 255, 9, *[1] * 6], points).to_pandas()
    assert list(table) == ["x", "y", "z", "intensity", "label", "class_name"]
    np.testing.assert_array_equal(table[["x", "y", "z", "intensity"]].to_numpy(), points)
    assert [str(name) for name in table["class_name"].head(4)] == ["road", "car", "nan", "class 9"]
    assert table["label"].dtype == np.uint8
    assert list(segmentation([0, 1]).to_pandas()) == ["label", "class_name"]
    with pytest.raises(ValueError, match="2 labels, but 10 points"):
        segmentation([0, 1]).to_pandas(points)

    boxes = detections([[1, 2, 3, 4, 5, 6, 0.5], [1, 2, 3, 4, 5, 6, 0.25]], ("car", ""))
    table = boxes.to_pandas()
    assert table["class_name"].tolist() == ["car", ""]
    for name in boxes.structured().dtype.names or ():
        np.testing.assert_array_equal(table[name].to_numpy(), boxes.structured()[name])
    assert len(detections([], ()).to_pandas()) == 0

    rows, coordinates = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([[1, 2], [3, 4]], np.int32)
    table = voxserve.Tensor(rows, voxserve.TensorRows.SITES, coordinates, (1, 1)).to_pandas()
    assert list(table) == ["axis_0", "axis_1", 0, 1, 2]
    np.testing.assert_array_equal(table.to_numpy(), np.concatenate([coordinates, rows], axis=1))
    with pytest.raises(ValueError, match=r"\[2, 2, 2\] is no table"):
        voxserve.Tensor(np.zeros((2, 2, 2)), voxserve.TensorRows.CELLS).to_pandas()
    cloud = voxserve.PointCloud.from_columns({"x": [1.0], "y": [2.0], "z": [3.0], "when": np.array(["2026"], "M8[D]")})
    assert isinstance(cloud.to_pandas(), pandas.DataFrame)
    assert list(cloud.to_pandas()) == ["x", "y", "z"]


# ---- files


def test_save(tmp_path: Path) -> None:
    points = np.zeros((3, 4), np.float32)
    tensors = {"deep": voxserve.Tensor(np.ones((3, 2), np.float32), voxserve.TensorRows.POINTS)}
    result = segmentation([0, 1, 255], points, tensors=tensors)
    for name in ("a.npy", "a.label"):
        result.save(tmp_path / name)
        assert label_file.read(tmp_path / name, 3).tolist() == [0, 1, 255]
    result.save(str(tmp_path / "a.PNG"))
    assert decoded((tmp_path / "a.PNG").read_bytes()).size
    result.save(tmp_path / "a.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "a.npz")["deep"], np.ones((3, 2)))
    boxes = detections([[1, 2, 3, 4, 5, 6, 0.5]], ("car",), points)
    boxes.save(tmp_path / "b.json")
    assert json.loads((tmp_path / "b.json").read_text())[0]["class_name"] == "car"
    boxes.save(tmp_path / "b.csv")
    assert (tmp_path / "b.csv").read_text().splitlines()[1].split(",")[6] == "4.0"
    boxes.save(tmp_path / "b.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "b.npy"), boxes.structured())
    with pytest.raises(ValueError, match=r"b\.txt: boxes are written as \.json, \.csv, \.npy or \.png$"):
        boxes.save(tmp_path / "b.txt")
    with pytest.raises(ValueError, match=r"a\.csv: labels are written as .* or \.png, tensors are written as \.npz$"):
        result.save(tmp_path / "a.csv")
    both = segmentation([0, 1, 255], points, detections=boxes)
    both.save(tmp_path / "both.csv")
    assert (tmp_path / "both.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    both.save(tmp_path / "both.npy")
    assert np.load(tmp_path / "both.npy").tolist() == [0, 1, 255]
    with pytest.raises(ValueError, match=r"or \.png, boxes are written as \.json or \.csv$"):
        both.save(tmp_path / "both.txt")
    with pytest.raises(ValueError, match="nothing to write"):
        voxserve.Tensors(**common()).save(tmp_path / "c.npz")
    with pytest.raises(ValueError, match=r"pictures are written as \.png"):
        result.picture().save(tmp_path / "a.jpg")
