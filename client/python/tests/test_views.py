"""Counting, comparing and looking at labelled scans."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxserve import ClassInfo, ModelState, ModelVersion, label_file, preview
from voxserve.annotated_scan import Agreement, AnnotatedScan, count_classes, dense_extent
from voxserve.new_file import new_file

CLASSES = (ClassInfo(0, "road", (128, 64, 128)), ClassInfo(1, "car", (40, 90, 255)), ClassInfo(2, "cat", (255, 0, 0)))


def make_model() -> ModelVersion:
    return ModelVersion("m", 1, ModelState.READY, (), "", CLASSES, 255, (), 0, (), 0, "cpu", "")


def make_scan(xyz: Any, labels: Any) -> AnnotatedScan:
    return AnnotatedScan.with_labels(
        np.asarray(xyz, np.float32).reshape(-1, 3), np.asarray(labels, np.uint8), make_model()
    )


def test_counts() -> None:
    counts = count_classes(np.array([1, 1, 1, 0, 255, 7, 7, 0, 1, 255]), 255, CLASSES)
    assert [(c.id, c.name, c.num_points, c.share) for c in counts] == [
        (1, "car", 4, 0.4),
        (0, "road", 2, 0.2),
        (7, "class 7", 2, 0.2),
    ]


def test_counts_of_nothing() -> None:
    assert count_classes(np.zeros(0, np.uint8), 255, CLASSES) == []


def test_agreement_and_its_sum() -> None:
    labels = np.array([0, 0, 1, 1, 2, 2])
    first = Agreement.compare(labels, np.array([0, 1, 1, 255, 9, 1]), 255, CLASSES)
    assert (first.num_points, first.num_agreeing, first.num_without) == (4, 2, 2)
    assert first.by_class == {0: (1, 1), 1: (3, 1)}
    first.add(Agreement.compare(labels, np.array([2, 2, 2, 2, 2, 2]), 255, CLASSES))
    assert (first.num_points, first.num_agreeing, first.num_without) == (10, 4, 2)
    assert first.of(2) == (6, 2)


def test_labels_and_points_must_be_as_many() -> None:
    with pytest.raises(ValueError, match=r"labels have shape \(2,\), but there are 3 points"):
        make_scan(np.zeros((3, 3)), [0, 0])


def test_extent_keeps_the_bulk_and_the_sensor() -> None:
    rng = np.random.default_rng(7)
    bulk = rng.uniform((10, -20, 0), (40, 20, 2), (20_000, 3))
    far = np.array([[500, 500, 0], [-700, 3, 0], [np.nan, 0, 0], [np.inf, 0, 0]])
    extent = dense_extent(np.concatenate([bulk, far]).astype(np.float32))
    assert extent.min_x == -6
    assert 35 < extent.max_x < 44
    assert -23 < extent.min_y < -15
    assert 15 < extent.max_y < 23


def test_extent_of_nothing() -> None:
    extent = dense_extent(np.zeros((0, 3), np.float32))
    assert (extent.min_x, extent.max_x, extent.min_y, extent.max_y) == (-6, 6, -6, 6)


# Previews


def cross() -> AnnotatedScan:
    """A road ahead, a car to the left, a cat behind."""
    road = [[x, 0, 0] for x in np.linspace(0.5, 5.9, 200)]
    car = [[0, y, 0] for y in np.linspace(4, 5.5, 50)]
    cat = [[-4.6, 0, 0]] * 3
    return make_scan(road + car + cat, [0] * 200 + [1] * 50 + [2] * 3)


def test_plain_preview_is_oriented() -> None:
    lines = preview.draw(cross(), color=False).splitlines()
    assert lines[-1] == "from above, forward is up, 21 m x 14 m"
    assert lines[-2] == "@ sensor  r road  c car  a cat"
    rows = lines[:-2]
    sensor = next(i for i, row in enumerate(rows) if "@" in row)
    column = rows[sensor].index("@")
    assert any("r" in row for row in rows[:sensor])
    assert all("r" not in row for row in rows[sensor + 1 :])
    assert any(row[column - 1 : column + 2].count("a") for row in rows[sensor + 1 :])
    car = next(row for row in rows if "c" in row)
    assert car.index("c") < column


def test_colour_preview_shows_the_classes() -> None:
    text = preview.draw(cross(), columns=40, rows=12)
    lines = text.splitlines()
    assert len(lines) == 13
    plain = re.sub(r"\x1b\[[0-9;]*m", "", lines[0])
    assert plain == "\u2580" * 40
    reds = {tuple(map(int, match)) for match in re.findall(r"\x1b\[[34]8;2;(\d+);(\d+);(\d+)m", text)}
    assert any(r > 100 and g == 0 and b == 0 for r, g, b in reds), "the cat"
    assert (255, 255, 255) in reds, "the sensor"


@pytest.mark.parametrize("color", [True, False])
def test_preview_of_nothing_and_of_invalid_points(color: bool) -> None:
    assert preview.draw(make_scan([], []), color=color)
    assert preview.draw(make_scan([[np.nan, 0, 0], [1, 1, 1]], [255, 0]), color=color)
    assert preview.draw(make_scan([[np.inf, 1, 1]], [0]), color=color)


# Pictures

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def draw(scan: AnnotatedScan, *arguments: Any) -> np.ndarray[Any, Any]:
    from voxserve import picture

    return np.asarray(picture.draw(scan, *arguments)).astype(int)


def blocks() -> AnnotatedScan:
    """4 m of road ahead, of car to the left, of cat behind; a point each 8 cm."""
    square = np.stack([*np.meshgrid(np.arange(50) * 0.08, np.arange(50) * 0.08), np.zeros((50, 50))], axis=-1)
    xyz = [square.reshape(-1, 3) + place for place in ((20, 0, 0), (0, 15, 0), (-20, -5, 0))]
    return make_scan(np.concatenate(xyz), np.repeat([0, 1, 2], 2500))


def hue_share(pixels: np.ndarray[Any, Any], color: tuple[int, int, int]) -> float:
    """The share of bright pixels whose direction is the colour's."""
    target = np.array(color) / np.linalg.norm(color)
    length = np.linalg.norm(pixels, axis=-1)
    return float(((pixels @ target > 0.97 * length) & (length > 90)).mean())


def test_picture_has_every_class_and_the_legend() -> None:
    pixels = draw(blocks(), "title", ["a line"])
    assert pixels.shape[0] == 1480
    ground, legend = pixels[:, :-470], pixels[:, -470:]
    for info in CLASSES:
        assert hue_share(ground, info.color) > 1e-5, info.name
        assert hue_share(legend, info.color) > 1e-5, info.name
    assert legend.max() > 230, "text"


def test_picture_is_oriented() -> None:
    ground = draw(blocks())[:, :-470]
    height, width = ground.shape[:2]
    blue = (ground[..., 2] > 150) & (ground[..., 0] < 100) & (ground[..., 1] < 160)
    red = (ground[..., 0] > 150) & (ground[..., 1] < 90) & (ground[..., 2] < 90)
    assert np.argwhere(blue)[:, 1].mean() < 0.4 * width, "the car is to the left"
    assert np.argwhere(red)[:, 0].mean() > 0.6 * height, "the cat is behind"


def test_rare_classes_are_drawn_over_common_ones() -> None:
    rng = np.random.default_rng(8)
    road = rng.uniform((-6, -6, 0), (6, 6, 0.1), (60_000, 3))
    ground = draw(make_scan(np.concatenate([road, [[3, 3, 0.1]] * 20]), [0] * 60_000 + [2] * 20))[:, :-470]
    assert ((ground[..., 0] > 150) & (ground[..., 1] < 100) & (ground[..., 2] < 100)).any()


def test_picture_of_nothing_and_of_invalid_points() -> None:
    assert draw(make_scan([], [])).size
    assert draw(make_scan([[np.nan, np.nan, np.nan], [np.inf, 0, 0], [1, 1, np.nan]], [255, 0, 0])).size


def test_picture_size_is_bounded() -> None:
    line = [[x, 0, 0] for x in np.linspace(-900, 900, 5000)]
    for scan in (make_scan(line, [0] * 5000), make_scan(np.array(line)[:, [1, 0, 2]], [0] * 5000)):
        height, width, _ = draw(scan).shape
        assert width <= 2200
        assert height <= 1500


def test_many_classes_and_long_names_fit() -> None:
    classes = tuple(ClassInfo(i, f"a rather long name of class {i}" * 3, (i, 255 - i, 99)) for i in range(200))
    scan = AnnotatedScan(np.zeros((200, 3), np.float32), np.arange(200), 255, classes)
    assert draw(scan, "t" * 300, ["l" * 300]).size


# Label files


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_label_files_round_trip(tmp_path: Path, dtype: Any) -> None:
    labels = np.array([0, 3, 255], dtype)
    for name in ("a.npy", "a.label"):
        label_file.write(tmp_path / name, labels)
        np.testing.assert_array_equal(label_file.read(tmp_path / name, 3), labels)
    assert np.load(tmp_path / "a.npy").dtype == dtype


def test_semantickitti_instances_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.label").write_bytes(np.array([5 << 16 | 40, 10], "<u4").tobytes())
    assert label_file.read(tmp_path / "a.label", 2).tolist() == [40, 10]


def test_raw_labels_of_one_or_four_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.u8").write_bytes(bytes([1, 2]))
    (tmp_path / "b.u32").write_bytes(np.array([1, 2], "<u4").tobytes())
    assert label_file.read(tmp_path / "a.u8", 2).tolist() == [1, 2]
    assert label_file.read(tmp_path / "b.u32", 2).tolist() == [1, 2]


def test_label_files_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "a.u8").write_bytes(bytes(3))
    np.save(tmp_path / "f.npy", np.zeros(2))
    np.save(tmp_path / "s.npy", np.zeros((), np.uint8))
    with pytest.raises(ValueError, match="3 bytes are not 2 labels of 1 or 4 bytes"):
        label_file.read(tmp_path / "a.u8", 2)
    for name in ("f.npy", "s.npy"):
        with pytest.raises(ValueError, match="labels must be integers"):
            label_file.read(tmp_path / name, 2)
    with pytest.raises(ValueError, match=r"written as \.npy or \.label"):
        label_file.write(tmp_path / "a.txt", np.zeros(2, np.uint8))


@pytest.mark.parametrize("name", ["a.npy", "a.label"])
def test_label_files_are_whole_or_as_they_were(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    label_file.write(path, np.array([1, 2], np.uint8))
    old = path.read_bytes()

    def disk_full(file: Any, *_: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device", file.name)

    class Labels(np.ndarray):  # type: ignore[type-arg]
        def astype(self, *_: Any, **__: Any) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", disk_full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        label_file.write(path, np.zeros(3, np.uint8).view(Labels))
    assert caught.value.filename == str(path)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_new_files_keep_the_message_of_a_library(tmp_path: Path) -> None:
    def fail(file: Any) -> None:
        file.write(b"half")
        raise OSError("the encoder failed")

    with pytest.raises(OSError, match="the encoder failed"), new_file(tmp_path / "a.png") as file:
        fail(file)
    assert not list(tmp_path.iterdir())


def test_label_files_in_folders_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a.npy"
    with pytest.raises(FileNotFoundError) as caught:
        label_file.write(path, np.zeros(2, np.uint8))
    assert caught.value.filename == str(path)
