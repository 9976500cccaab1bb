"""Tests that python -m voxserve.evaluate names and counts what it does not measure, and what it refuses to read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dataset_files
import numpy as np
import pytest
from conftest import FakeServer
from test_evaluate import CAR, LINES, Evaluate, annotation, cuboids, evaluate, find, refuse  # noqa: F401

from voxserve.evaluate import classes
from voxserve.evaluate.detection import Detection
from voxserve.evaluate.layouts import kitti, open_dataset
from voxserve.evaluate.truth import Dataset, Scan, TrueBoxes
from voxserve.point_cloud import PointCloud
from voxserve.results import ClassInfo

Refuse = Callable[..., str]
ROAD = 0
SIZE, TURN = (4.0, 1.6, 1.5), -np.pi / 2  # of KITTI's boxes of test_evaluate.LINES


@pytest.fixture
def choose(tmp_path: Path) -> Callable[[Any], list[str]]:
    """Returns a function that writes a file for --classes, and returns the arguments."""

    def run(choice: Any) -> list[str]:
        (tmp_path / "classes.json").write_text(json.dumps(choice))
        return ["--classes", str(tmp_path / "classes.json")]

    return run


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


# Boxes


def test_boxes_of_classes_that_kitti_lacks(
    evaluate: Evaluate,  # noqa: F811
    choose: Callable[[Any], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    server: FakeServer,
) -> None:
    lines = [
        LINES[0],
        "Bus 0.00 0 0 560 150 640 230 1.5 1.6 4.0 5 1.0 20 0",
        "BUS 0.00 0 0 560 150 640 230 1.5 1.6 4.0 5 1.0 40 0",
        "car 0.00 0 0 560 150 640 230 1.5 1.6 4.0 -5 1.0 30 0",  # is a Car
        "dontcare -1 -1 -10 500 150 550 180 -1 -1 -1 -1000 -1000 -1000 -10",
        "DontBuse -1 -1 -10 500 150 550 180 -1 -1 -1 -1000 -1000 -1000 -10",
        "Car 0.00 0 0 560 150 640 230 1.5 1.6 4.0 nan 1.0 10 0",
        "Tram 0.00 0 0 560 150 640 230 1.5 1.6 0.0 0 1.0 10 0",
    ]
    found = [(CAR, 0.9, 10, 0, -0.25, *SIZE, TURN, 0, 0), (CAR, 0.8, 30, 5, -0.25, *SIZE, TURN, 0, 0)]
    bus = (ROAD, 0.7, 20, -5, -0.25, *SIZE, TURN, 0, 0)
    find(monkeypatch, *found, bus, (7, 0.5, 20, 5, -0.25, *SIZE, TURN, 0, 0))
    folder = dataset_files.kitti(tmp_path / "data", lines)
    report = evaluate(folder, model="detector")
    assert report["not_counted"] == {
        "boxes": {
            "Bus": 2,
            "DontBuse without a valid box": 1,
            "Car without a valid box": 1,
            "Tram without a valid box": 1,
        },
        "found_boxes": {"road": 1, "class 7": 1},
    }
    assert "Bus" in report["left_out"]
    (row,) = report["detection"]["nuscenes"]["classes"]
    assert (row["name"], row["boxes"], row["found"]) == ("car", 2, 2)
    assert row["ap"]["0.5"] > 0.99  # both cars are found; no invalid box counts as missed
    text = printed(capsys)
    assert "boxes of the data set that did not count: Bus (2), DontBuse without a valid box (1)" in text
    assert "boxes of the model that did not count: road (1), class 7 (1)" in text
    assert "--classes FILE says which class of the model stands for one" in text

    chosen = evaluate(folder, *choose({"road ": ["bus"], "car": ["Car", "car"]}), model="detector")
    rows = {row["name"]: row for row in chosen["detection"]["nuscenes"]["classes"]}
    assert (rows["road"]["boxes"], rows["road"]["found"]) == (2, 1)
    assert rows["car"]["ap"]["0.5"] > 0.99
    assert "Bus" not in chosen["not_counted"]["boxes"]
    assert chosen["not_counted"]["found_boxes"] == {"class 7": 1}

    server.classes = [("bus", ROAD), ("car", CAR)]  # a model that was trained on the same names needs no choice
    assert {row["name"] for row in evaluate(folder, model="detector")["detection"]["kitti"]["classes"]} == {
        "bus",
        "car",
    }


def test_boxes_of_categories_that_nuscenes_lacks(
    evaluate: Evaluate,  # noqa: F811
    choose: Callable[[Any], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: FakeServer,
) -> None:
    names = {"vehicle.tuktuk": 2, "car": 1, "animal": 3, "vehicle.car ": 1}
    annotations = [annotation("known", "vehicle.car", (11, 0, 0.75))]
    folder = dataset_files.nuscenes(tmp_path / "data", [24, 17], annotations)
    tables = folder / "v1.0-mini"
    for table, key in (("category", "name"), ("instance", "category_token")):
        rows = json.loads((tables / f"{table}.json").read_text())
        rows += [{"token": name, key: name, "index": 40 + i} for i, name in enumerate(names)]
        (tables / f"{table}.json").write_text(json.dumps(rows))
    rows = json.loads((tables / "sample_annotation.json").read_text())
    for name, count in names.items():
        rows += [{**rows[0], "token": f"{name}{i}", "instance_token": name} for i in range(count)]
    del rows[0]["num_lidar_pts"]  # as in Lyft's tables: the number is unknown, and the box counts
    (tables / "sample_annotation.json").write_text(json.dumps(rows))
    find(monkeypatch, (CAR, 0.9, 10, 0, -1.25, 4, 2, 1.5, 0, 0, 0))
    report = evaluate(folder, model="detector")
    assert report["not_counted"]["boxes"] == {"animal": 3, "vehicle.tuktuk": 2}
    (row,) = report["detection"]["nuscenes"]["classes"]
    assert (row["name"], row["boxes"]) == ("car", 3)
    chosen = evaluate(folder, *choose({"car": ["car", "vehicle.tuktuk"]}), model="detector")
    assert chosen["detection"]["nuscenes"]["classes"][0]["boxes"] == 5
    server.classes = [("animal", ROAD), ("car", CAR)]
    both = evaluate(folder, model="detector")
    assert {row["name"]: row["boxes"] for row in both["detection"]["nuscenes"]["classes"]} == {"animal": 3, "car": 3}


def test_cuboids_that_pandaset_lacks(
    evaluate: Evaluate,  # noqa: F811
    choose: Callable[[Any], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = cuboids(label=np.array(["Car ", "Car", "Hovercraft"], object))
    drawn["dimensions.x"][2] = np.nan
    folder = dataset_files.pandaset(tmp_path / "data" / "001", [8, 13, 7, 14, 0, 13], drawn)
    find(monkeypatch)
    report = evaluate(folder, model="detector")
    assert report["not_counted"]["boxes"] == {"Hovercraft without a valid box": 1}
    assert report["detection"]["nuscenes"]["classes"][0]["boxes"] == 1
    drawn["dimensions.x"][2] = 1.0
    dataset_files.table(folder / "annotations/cuboids/00.pkl.gz", drawn)
    assert evaluate(folder, model="detector")["not_counted"]["boxes"] == {"Hovercraft": 1}
    chosen = evaluate(folder, *choose({"car": ["hovercraft"]}), "--min_points", "0", model="detector")
    assert chosen["not_counted"]["boxes"] == {"Car": 1}
    assert chosen["detection"]["nuscenes"]["classes"][0]["boxes"] == 1


def test_found_boxes_that_are_not_finite() -> None:
    """A client refuses such an answer; deploy/train measures boxes that no server has checked."""
    measures = Detection(
        Dataset("kitti", [], box_names=("Car",)), [ClassInfo(CAR, "car", (0, 0, 0))], {"Car": CAR}, 0, None
    )
    box = [10.0, 0, 0, 4, 2, 1.5, 0]
    truth = TrueBoxes(np.array([box]), ("Car",), np.zeros((1, 2)), np.array([5]))
    found = np.array([box, box, [np.nan, *box[1:]], [*box[:3], 0, *box[4:]]])
    scores = np.array([0.5, np.nan, 0.9, 0.9])
    answer = SimpleNamespace(
        boxes=found, class_ids=np.full(4, CAR), scores=scores, velocities=np.zeros((4, 2)), names=("car",) * 4
    )
    cloud = PointCloud.from_array(np.zeros((1, 4), np.float32))
    measures.add(Scan(cloud, None, truth, lambda boxes: np.tile([0.0, 0, 50, 50], (len(boxes), 1))), answer)
    assert measures.not_counted() == {"boxes": {}, "found_boxes": {"invalid boxes or scores": 3}}
    (row,) = measures.result([])["nuscenes"]["classes"]
    assert (row["boxes"], row["found"]) == (1, 1)
    assert row["ap"]["0.5"] > 0.99


# Points


def test_labels_that_semantic_kitti_leaves_out(
    evaluate: Evaluate,  # noqa: F811
    refuse: Refuse,  # noqa: F811
    choose: Callable[[Any], list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The fake server labels the points road, car, road, car, ...
    folder = dataset_files.semantic_kitti(tmp_path / "data", [99, 99, 0, 77, 40, 70, 65535, 10, 99], 1)
    report = evaluate(folder)
    assert report["not_counted"]["points"] == {
        "other-object": 3, "unlabeled": 1, "vegetation": 1, "label 77": 1, "label 65535": 1
    }  # fmt: skip
    assert report["segmentation"]["count"] == 2
    assert "other-object (3), " in printed(capsys)
    chosen = evaluate(folder, *choose({"road": ["road", "other-object"], "car": ["77", "65535", "car"]}))
    assert chosen["not_counted"]["points"] == {"unlabeled": 1, "vegetation": 1}
    assert chosen["segmentation"]["confusion"] == [[3, 1, 0], [1, 2, 0]]
    one = evaluate(folder, *choose({"road": ["road"], "car": ["car", "40"]}))  # a number says more than a class
    assert one["segmentation"]["confusion"] == [[0, 0, 0], [1, 1, 0]]
    assert "--classes names 'lava'; the data set has car, " in refuse(folder, *choose({"road": ["lava"]}))
    assert "or labels by their numbers" in refuse(folder, *choose({"road": ["lava"]}))
    choose({})
    (tmp_path / "classes.json").write_text('{"road": ["road"], "road": ["car"]}')
    assert "a name stands twice among road, road" in refuse(folder, "--classes", str(tmp_path / "classes.json"))
    two = refuse(folder, *choose({"road": ["fence"], "car": ["FENCE"]}))
    assert "--classes gives 'FENCE' to two classes of the model" in two


def test_classes_that_the_truth_never_has(evaluate: Evaluate, tmp_path: Path, server: FakeServer) -> None:  # noqa: F811
    server.classes = [("road", 0), ("lava", 1)]
    folder = dataset_files.semantic_kitti(tmp_path / "data", [40, 40, 40, 40], 1)
    part = evaluate(folder)["segmentation"]
    assert part["found_others"] == {"lava": 2}
    assert (part["accuracy"], part["mIoU"]) == (0.5, 0.5)
    server.classes = [("road", 0)]  # the label 1 is none of the model's classes
    part = evaluate(folder)["segmentation"]
    assert (part["without_class"], part["found_others"]) == (2, {})


def test_labels_of_pandaset_that_are_no_numbers(evaluate: Evaluate, tmp_path: Path) -> None:  # noqa: F811
    folder = dataset_files.pandaset(tmp_path / "data" / "001", [8, 13, 7, 14, 0, 13])
    path = folder / "annotations/semseg/00.pkl.gz"
    dataset_files.table(path, {"class": np.array([np.nan, 13, 99, np.inf, -3, 13])})
    assert evaluate(folder)["not_counted"]["points"] == {"label -1": 2, "label -3": 1, "label 99": 1}


def test_a_choice_for_points_and_boxes() -> None:
    chosen = {"car": ["Car", "vegetation", "99"], "road": ["road"]}
    boxes = classes.without(chosen, ["car", "road", "vegetation"], ["car"], drops_numbers=True)
    assert boxes == {"car": ["Car"], "road": []}
    assert classes.without(chosen, ["car"], ["road", "vegetation", "car"]) == chosen
    assert classes.without(None, [], []) is None


def test_names_of_signs_alone() -> None:
    model = [ClassInfo(0, "??", (0, 0, 0)), ClassInfo(1, "!", (0, 0, 0))]
    assert classes.match(["!", "?? "], {}, model).ids == {"!": 1, "?? ": 0}


# Empty frames, and files without a partner


def test_empty_frames(evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    folder = dataset_files.semantic_kitti(tmp_path / "points", [40, 10], 2)
    for path in ("velodyne/000000.bin", "labels/000000.label"):
        (folder / "sequences/08" / path).write_bytes(b"")
    report = evaluate(folder)
    assert (report["frames"], report["points"], report["segmentation"]["count"]) == (2, 2, 2)
    boxes = dataset_files.kitti(tmp_path / "boxes", [])
    (boxes / "training/label_2/000007.txt").write_text("")
    (boxes / "training/velodyne/000007.bin").write_bytes(b"")
    find(monkeypatch)
    part = evaluate(boxes, model="detector")
    assert (part["points"], part["detection"]["nuscenes"]["mAP"]) == (0, None)
    assert part["not_counted"] == {"boxes": {}, "found_boxes": {}}


def test_labels_without_scans_are_told_and_scans_without_labels_refused(
    evaluate: Evaluate,  # noqa: F811
    refuse: Refuse,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    find(monkeypatch)
    boxes = dataset_files.kitti(tmp_path / "boxes", LINES)
    shutil.copy(boxes / "training/label_2/000007.txt", boxes / "training/label_2/000009.txt")
    note, blind = evaluate(boxes, model="detector")["notes"]
    assert "1 label files have no scan, such as 000009.txt" in note
    assert f"note: {note}" in printed(capsys)
    assert blind.startswith("1 frames have no image, such as image_2/000007.png: it is taken to have 1242 x 375 pixels")
    (boxes / "training/image_2").mkdir()
    size = (1920).to_bytes(4, "big") + (1080).to_bytes(4, "big")
    (boxes / "training/image_2/000007.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + size)
    assert evaluate(boxes, model="detector")["notes"] == [note]
    points = dataset_files.semantic_kitti(tmp_path / "points", [40, 10], 2)
    velodyne, labels = (points / "sequences/08" / name for name in ("velodyne", "labels"))
    (velodyne / "000001.bin").rename(velodyne / "000002.bin")
    assert "2 label files, but" in refuse(points)
    assert "000002.label is missing" in refuse(points)
    shutil.copy(labels / "000001.label", labels / "000002.label")
    (note,) = evaluate(points)["notes"]
    assert "1 label files have no scan, such as 000001.label" in note


def test_frames_without_truth_are_left_out_and_told(
    evaluate: Evaluate,  # noqa: F811
    refuse: Refuse,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The test sequences of SemanticKITTI have no labels, nor have some of PandaSet's."""
    points = dataset_files.semantic_kitti(tmp_path / "points", [40, 10], 2)
    shutil.copytree(points / "sequences/08/velodyne", points / "sequences/11/velodyne")
    report = evaluate(points)
    assert report["frames"] == 2
    assert report["notes"] == ["2 frames are left out, since they have no labels: 11/000000 is the first"]
    assert "none of the 2 frames has labels" in refuse(points, "--frames", "11")
    find(monkeypatch)
    both = dataset_files.pandaset(tmp_path / "both" / "001", [8, 13, 7, 14, 0, 13], cuboids())
    shutil.copytree(both, both.parent / "002")
    shutil.rmtree(both.parent / "002/annotations/semseg")
    assert evaluate(both.parent)["notes"] == ["1 frames are left out, since they have no labels: 002/00 is the first"]
    assert evaluate(both.parent, model="detector")["frames"] == 2
    folder = dataset_files.nuscenes(tmp_path / "n", [24, 17], [annotation("a", "vehicle.car", (11, 0, 0.75))])
    path = folder / "v1.0-mini" / "lidarseg.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:1]))
    report = evaluate(folder)
    assert (report["frames"], len(report["notes"])) == (1, 1)
    assert evaluate(folder, model="detector")["frames"] == 2


# Calibrations of KITTI


def test_the_calibration_of_kittis_tracking_set(tmp_path: Path) -> None:
    folder = dataset_files.kitti(tmp_path / "data", LINES)
    path = folder / "training/calib/000007.txt"
    expected = kitti.read_calibration(path)
    text = path.read_text()
    path.write_text(
        text.replace("R0_rect:", "R_rect").replace("Tr_velo_to_cam:", "Tr_velo_cam") + "Tr_imu_velo 1 0 0\n"
    )
    found = kitti.read_calibration(path)
    np.testing.assert_array_equal(found.projection, expected.projection)
    np.testing.assert_array_equal(found.to_camera, expected.to_camera)
    path.write_text("calib_time: 09-Jan-2012 13:57:47\n" + text.replace(": ", ":\t"))  # a line that nobody reads
    np.testing.assert_array_equal(kitti.read_calibration(path).to_camera, expected.to_camera)


def test_calibrations_that_are_none(tmp_path: Path, refuse: Refuse) -> None:  # noqa: F811
    folder = dataset_files.kitti(tmp_path / "data", LINES)
    path = folder / "training/calib/000007.txt"
    text = path.read_text()
    for wrong, message in (
        (text.replace("700 0 600", "700 x 600"), "the line P2 holds something else than numbers"),
        (text.replace("700 0 600", "700 nan 600"), "no line P2 of 12 numbers"),
        (text.replace("R0_rect: 1", "Rectify: 1"), "no line R0_rect or R_rect of 9 numbers"),
        (text.replace("R0_rect: 1", "R0_rect: 0"), "R0_rect and Tr_velo_to_cam cannot be those of a camera"),
        ("P2: " + "0 " * 12 + "\n" + text.partition("\n")[2], "P2 cannot be those of a camera"),
    ):
        path.write_text(wrong)
        assert message in refuse(folder, model="detector")
    for name in ("velodyne", "label_2"):
        for file in (folder / "training" / name).iterdir():
            file.unlink()
    (folder / "training/velodyne/0000").mkdir()
    assert "has folders, as the tracking data set has" in refuse(folder, model="detector")


# Folders of nuScenes


@pytest.fixture
def nuscenes(tmp_path: Path) -> Path:
    return dataset_files.nuscenes(tmp_path / "data", [24, 17], [annotation("a", "vehicle.car", (11, 0, 0.75))])


def test_a_root_with_several_versions(
    evaluate: Evaluate,  # noqa: F811
    refuse: Refuse,  # noqa: F811
    nuscenes: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(nuscenes / "v1.0-mini", nuscenes / "v1.0-test")
    (nuscenes / "v1.0-test" / "sample_annotation.json").write_text("[]")
    error = refuse(nuscenes)
    assert "has 2 versions, v1.0-mini, v1.0-test: name the one to read, such as" in error
    named = error.rpartition("such as ")[2].strip()
    assert evaluate(Path(named))["frames"] == 2
    find(monkeypatch)
    assert evaluate(nuscenes / "v1.0-mini", model="detector")["frames"] == 2
    assert "has labels alone" in refuse(nuscenes / "v1.0-test", model="detector")
    monkeypatch.chdir(nuscenes / "v1.0-mini")
    assert evaluate(Path(), "--sweeps", "1")["frames"] == 2


def test_categories_without_an_index(
    evaluate: Evaluate,  # noqa: F811
    refuse: Refuse,  # noqa: F811
    nuscenes: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = nuscenes / "v1.0-mini" / "category.json"
    rows = json.loads(path.read_text())
    path.write_text(json.dumps([{key: row[key] for key in ("token", "name")} for row in rows]))
    error = refuse(nuscenes)
    assert "minkunet answers with labels, but" in error
    assert "category.json has no index, as the one of nuScenes-lidarseg has" in error
    find(monkeypatch)
    report = evaluate(nuscenes, model="detector")  # boxes need no index
    assert report["detection"]["nuscenes"]["classes"][0]["boxes"] == 1
    assert "has no index" in report["notes"][0]
    path.write_text(json.dumps([{**row, "index": 17} for row in rows]))
    assert "have the index 17" in refuse(nuscenes)
    path.write_text(json.dumps([{**row, "index": "car"} for row in rows]))
    assert "the index 'car' is no number" in refuse(nuscenes)
    path.write_text(json.dumps([{**row, "index": str(row["index"])} for row in rows]))
    assert evaluate(nuscenes)["frames"] == 2


def test_labels_of_categories_without_a_class(
    evaluate: Evaluate,  # noqa: F811
    choose: Callable[[Any], list[str]],
    tmp_path: Path,
) -> None:
    folder = dataset_files.nuscenes(tmp_path / "data", [31, 31, 2, 200, 17], [])
    report = evaluate(folder)
    assert report["not_counted"]["points"] == {"vehicle.ego": 4, "static_object.bicycle_rack": 2, "label 200": 2}
    path = folder / "v1.0-mini" / "lidarseg.json"
    rows = json.loads(path.read_text())
    path.write_text(json.dumps([*rows, {**rows[0], "token": "b", "sample_data_token": "b"}]))  # of a sweep
    assert "1 label files are of no key frame of LIDAR_TOP" in evaluate(folder)["notes"][0]
    chosen = evaluate(folder, *choose({"car": ["vehicle.ego", "car"], "road": ["200"]}))
    assert chosen["not_counted"]["points"] == {"static_object.bicycle_rack": 2}
    assert chosen["segmentation"]["count"] == 8


def renamed(folder: Path, ending: str) -> list[Path]:
    """Gives the scans another ending, in the tables too."""
    path = folder / "v1.0-mini" / "sample_data.json"
    path.write_text(path.read_text().replace(".pcd.bin", ending))
    return [scan.rename(scan.with_name(scan.name.replace(".pcd.bin", ending))) for scan in folder.rglob("*.pcd.bin")]


def test_scans_that_end_in_bin_have_five_numbers(tmp_path: Path, refuse: Refuse) -> None:  # noqa: F811
    """As the devkits of nuScenes and Lyft read LIDAR_TOP, whatever number of points a file has."""
    for number in (4, 5, 7, 20):
        folder = dataset_files.nuscenes(
            tmp_path / str(number), [17] * number, [annotation("a", "vehicle.car", (1, 0, 0))]
        )
        expected = open_dataset(str(folder), num_sweeps=2).frames[1].read(True, True)
        renamed(folder, ".bin")
        found = open_dataset(str(folder), num_sweeps=2).frames[1].read(True, True)
        assert found.cloud.num_points == 2 * number
        for name in ("x", "y", "z", "intensity", "age"):
            np.testing.assert_array_equal(found.cloud.values(name), expected.cloud.values(name))
        assert found.cloud.values("intensity").max() <= 1


def test_scans_of_four_numbers_are_refused(tmp_path: Path, refuse: Refuse) -> None:  # noqa: F811
    folder = dataset_files.nuscenes(tmp_path / "data", [17] * 20, [annotation("a", "vehicle.car", (1, 0, 0))])
    paths = renamed(folder, ".bin")
    for number, message in (
        (21, "336 bytes are not a whole number of points of five float32 (x, y, z, intensity, ring)"),
        (25, "the fifth number of its points is no ring"),  # 400 bytes: 20 points of five numbers, or 25 of four
    ):
        for path in paths:
            dataset_files.points(number).tofile(path)
        error = refuse(folder, model="detector")
        assert message in error
        assert "convert the scans" in error
