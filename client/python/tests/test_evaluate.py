"""Tests python -m voxserve.evaluate on small data sets of each layout, and its messages for data sets with errors."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conftest
import dataset_files
import numpy as np
import pytest
from conftest import REPOSITORY, SHARED, FakeServer

from voxserve import feature_warning, readers
from voxserve.client import Client
from voxserve.evaluate import command
from voxserve.evaluate.layouts import dataframe, open_dataset

Evaluate = Callable[..., dict[str, Any]]
CAR = 1  # the fake server's class id


@pytest.fixture
def evaluate(server: FakeServer, tmp_path: Path) -> Evaluate:
    def run(folder: Path, *more: str, model: str = "minkunet") -> dict[str, Any]:
        save = tmp_path / "report.json"
        arguments = [str(folder), "--model", model, "--address", server.address, "--save", str(save), *more]
        assert command.main(arguments) == 0
        report: dict[str, Any] = json.loads(save.read_text())
        return report

    return run


@pytest.fixture
def refuse(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Returns a function that runs the command, expects it to fail, and returns its error."""

    def run(folder: Path, *more: str, model: str = "minkunet") -> str:
        assert command.main([str(folder), "--model", model, "--address", server.address, *more]) == 1
        error = capsys.readouterr().err
        assert error.startswith("voxserve.evaluate: ")
        return error

    return run


def find(monkeypatch: pytest.MonkeyPatch, *boxes: tuple[float, ...]) -> None:
    """Lets the fake server answer with these boxes: class_id, score, x, y, z, length, width, height, yaw, velocity."""
    names = ("score", "x", "y", "z", "length", "width", "height", "yaw", "velocity_x", "velocity_y")

    def add(response: Any, _num_points: int) -> None:
        response.detections.SetInParent()
        for class_id, *numbers in boxes:
            response.detections.boxes.add(class_id=int(class_id), **dict(zip(names, numbers, strict=True)))

    monkeypatch.setattr(conftest, "add_boxes", add)


def test_semantic_kitti(evaluate: Evaluate, tmp_path: Path) -> None:
    # The fake server labels the points road, car, road, car, ... The data set's labels are road (40), car (10), road
    # (44: parking), car (252: a moving one), car, and two that do not count: none (0), and a class that the model does
    # not have (70: vegetation).
    folder = dataset_files.semantic_kitti(tmp_path / "data", [40, 10, 44, 252, 10, 0, 70])
    report = evaluate(folder, "--distances", "1000")
    part = report["segmentation"]
    assert (report["layout"], report["frames"], report["points"]) == ("semantic-kitti", 2, 14)
    assert part["confusion"] == [[4, 0, 0], [2, 4, 0]]
    assert [row["iou"] for row in part["classes"]] == [4 / 6, 4 / 6]
    assert (part["mIoU"], part["accuracy"], part["count"]) == (4 / 6, 0.8, 10)
    assert [(b["from"], b["to"], b["mIoU"]) for b in part["by_distance"]] == [(0, 1000, 4 / 6), (1000, None, None)]
    assert "vegetation" in report["left_out"]
    assert report["latency_ms"]["round_trip"]["p99"] >= report["latency_ms"]["round_trip"]["p50"] > 0
    assert report["latency_ms"]["server"]["p50"] == pytest.approx(1.5)
    assert evaluate(folder, "--frames", "1")["frames"] == 1
    assert evaluate(folder, "--frames", "08")["frames"] == 2
    assert evaluate(folder, "--frames", "08/000001", "--concurrency", "3")["frames"] == 1
    (tmp_path / "val.txt").write_text("08/000000\n")
    assert evaluate(folder, "--frames", str(tmp_path / "val.txt"))["frames"] == 1


def test_the_servers_warnings_are_lines_of_the_command(
    evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(feature_warning, "_told", set())
    evaluate(dataset_files.semantic_kitti(tmp_path / "data", [40, 10]), model="ranged")
    assert capsys.readouterr().err == (
        "voxserve.evaluate: warning: intensity is 0 to 200, but the model was trained on 0 to 1 (ranged); the answer "
        "is likely wrong; scale it with --fields intensity=intensity*FACTOR, e.g. 0.00392 if 255 must be 1\n"
    )


def test_a_field_of_another_name(
    evaluate: Evaluate, refuse: Callable[..., str], server: FakeServer, tmp_path: Path
) -> None:
    folder = dataset_files.semantic_kitti(tmp_path / "data", [40, 10])
    evaluate(folder, "--fields", "x=y", "--fields", "y=x,r=intensity*2")
    fields = server.requests[-1].cloud.fields
    assert [(f.name, f.scale, f.offset) for f in fields] == [
        ("y", 0, 0),
        ("x", 0, 4),
        ("z", 0, 8),
        ("r", 2, 12),
    ]
    assert "say intensity=i, but the points have x, y, z, intensity" in refuse(folder, "--fields", "intensity=i")


def test_voxels_count_once(evaluate: Evaluate, tmp_path: Path) -> None:
    folder = dataset_files.semantic_kitti(tmp_path / "data", [40, 10, 40, 10], 1)
    rows = np.array([[0, 0, 0, 0], [0.1, 0, 0, 0], [np.nan, 0, 0, 0], [9, 0, 0, 0]], "<f4")
    rows.tofile(folder / "sequences/08/velodyne/000000.bin")
    part = evaluate(folder, "--unit", "voxels")["segmentation"]
    assert part["confusion"] == [[1, 0, 0], [0, 1, 0]]


def test_classes_are_chosen(evaluate: Evaluate, refuse: Callable[..., str], tmp_path: Path) -> None:
    folder = dataset_files.semantic_kitti(tmp_path / "data", [70, 72, 70, 72])
    chosen = tmp_path / "classes.json"
    chosen.write_text('{"Road": ["vegetation"], "car": ["terrain"]}')
    assert evaluate(folder, "--classes", str(chosen))["segmentation"]["mIoU"] == 1
    for text, wanted in (
        ('{"road": ["lava"]}', "--classes names 'lava'; the data set has car, bicycle"),
        ('{"tree": ["vegetation"]}', "--classes names 'tree'; the model has road, car"),
        ('["road"]', "must be an object"),
        ("{", "not JSON"),
    ):
        chosen.write_text(text)
        assert wanted in refuse(folder, "--classes", str(chosen))


LINES = [
    "Car 0.00 0 0 560 150 640 230 1.5 1.6 4.0 0 1.0 10 0",
    "Van 0.00 0 0 560 150 640 230 1.5 1.6 4.0 5 1.0 20 0",
    "Car 0.00 2 0 560 150 600 180 1.5 1.6 4.0 -5 1.0 30 0",
    "DontCare -1 -1 -10 500 150 550 180 -1 -1 -1 -1000 -1000 -1000 -10",
]


def test_kitti(evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FakeServer) -> None:
    # LINES gives the centres of the boxes' lower faces in the camera's frame. The scanner's x is the camera's z, its y
    # is the camera's -x, and its z is the camera's -y: (0, 1, 10) becomes (10, 0, -1). The box's centre is half its
    # height (0.75) higher, at z = -0.25. KITTI's rotation_y of 0 is a yaw of -90 degrees.
    size, turn = (4.0, 1.6, 1.5), -np.pi / 2
    find(
        monkeypatch,
        (CAR, 0.9, 10, 0, -0.25, *size, turn, 0, 0),
        (CAR, 0.8, 20, -5, -0.25, *size, turn, 0, 0),  # matches the van, which counts neither as a car nor as an error
        (CAR, 0.7, 30, 5, -0.25, *size, turn, 0, 0),  # matches the third line, which is hard: occlusion 2
        (CAR, 0.95, -10, 0, -0.25, *size, turn, 0, 0),  # behind the camera, so not in the image and not counted
    )
    report = evaluate(dataset_files.kitti(tmp_path / "data", LINES), model="detector")
    (row,) = report["detection"]["kitti"]["classes"]
    assert (row["name"], row["min_overlap"]) == ("car", 0.7)
    assert [row[name]["boxes"] for name in ("easy", "moderate", "hard")] == [1, 1, 2]
    # KITTI's AP is the mean precision at 40 recalls: it takes 41, and the first does not count. n true boxes give n
    # thresholds, and the precision at all further recalls is 0: so 1 easy box gives 0, and 2 hard boxes give 1 / 40.
    assert (row["easy"]["3d"], row["hard"]["bev"]) == (0, pytest.approx(1 / 40))
    assert report["detection"]["nuscenes"]["classes"][0]["ap"]["0.5"] > 0.6
    sent = np.frombuffer(server.requests[-1].cloud.data, "<f4").reshape(-1, 4)
    assert 0 < len(sent) < 1800
    assert sent[:, 0].min() > 0


def annotation(token: str, category: str, place: tuple[float, float, float], **more: Any) -> dict[str, Any]:
    base = {"prev": "", "next": "", "sample": 0, "num_lidar_pts": 5, "size": [2.0, 4.0, 1.5]}
    return {"token": token, "category": category, "translation": list(place), **base, **more}


def test_nuscenes(evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: FakeServer) -> None:
    car, bicycle = "vehicle.car", "vehicle.bicycle"
    annotations = [
        annotation("a", car, (11, 0, 0.75), next="b"),
        annotation("b", car, (17, 0, 0.75), prev="a", sample=1),
        annotation("far", car, (0, 50.5, 0)),  # more than 50 m from the vehicle
        annotation("unseen", car, (20, 0, 0), num_lidar_pts=0),
        annotation("rack", "static_object.bicycle_rack", (5, 5, 0), size=[4.0, 4.0, 4.0]),
        annotation("parked", bicycle, (5, 5, 0)),
        annotation("ridden", bicycle, (-9, -9, 0)),
    ]
    folder = dataset_files.nuscenes(tmp_path / "data", [24, 17, 31, 17], annotations)
    server.classes = [("bicycle", 0), ("car", 1)]
    find(
        monkeypatch,
        (CAR, 0.9, 10, 0, -1.25, 4, 2, 1.5, 0, 12, 0),
        (CAR, 0.8, 11, 0, -1.25, 4, 2, 1.5, 0, 12, 0),
        (0, 0.9, 4, 5, -2, 4, 2, 1.5, 0, 0, 0),
        (0, 0.9, -10, -9, -2, 4, 2, 1.5, 0, 0, 0),
    )
    report = evaluate(folder, model="detector")
    bicycles, cars = report["detection"]["nuscenes"]["classes"]
    assert (cars["name"], cars["boxes"], cars["found"]) == ("car", 2, 4)
    # In the sensor's coordinates the true car is at x = 10 in the first frame and at 11 in the second. With a matching
    # distance of 0.5 m, each frame has a hit and a miss. With 4 m, the box with the higher score of each frame hits, so
    # that the recall is 1 before the other boxes miss.
    assert 0.3 < cars["ap"]["0.5"] < 0.5
    assert cars["ap"]["4"] > 0.98
    assert cars["errors"]["velocity"] == pytest.approx(0, abs=1e-5)  # 6 m in half a second are 12 m/s
    assert cars["errors"]["translation"] == pytest.approx(0.75, abs=0.25)
    assert (bicycles["boxes"], bicycles["found"]) == (1, 3)  # the first frame's found box is in the rack
    server.classes = [("road", 0), ("car", 1)]
    labels = evaluate(folder)
    assert labels["segmentation"]["confusion"] == [[2, 0, 0], [0, 4, 0]]
    server.classes = [("driveable_surface", 0), ("car", 1)]
    assert evaluate(folder)["segmentation"]["mIoU"] == 1


def test_nuscenes_sweeps(tmp_path: Path) -> None:
    folder = dataset_files.nuscenes(tmp_path / "data", [24, 17, 31], [])
    (first, last) = open_dataset(str(folder), num_sweeps=3).frames
    assert first.read(True, False).cloud.num_points == 3
    cloud = last.read(True, False).cloud
    assert cloud.num_points == 9
    np.testing.assert_allclose(cloud.values("age"), np.repeat([0, 0.25, 0.5], 3), atol=1e-6)
    sweep = readers.read(folder / "sweeps/LIDAR_TOP/b.pcd.bin")
    np.testing.assert_allclose(cloud.values("x")[3:6], sweep.values("x") - 2.5, atol=1e-5)
    np.testing.assert_allclose(cloud.values("y")[3:6], sweep.values("y"), atol=1e-5)


def cuboids(**changes: Any) -> dict[str, Any]:
    columns = {
        "label": np.array(["Car", "Car", "Signs"], object),
        "yaw": np.array([0.0, 0.0, 0.0]),  # yaw 0: the length lies along the world's y
        "position.x": np.array([10.0, 10.0, 0.0]),
        "position.y": np.array([30.0, 30.0, 0.0]),
        "position.z": np.array([0.5, 0.5, 0.0]),
        "dimensions.x": np.array([80.0, 2.0, 1.0]),
        "dimensions.y": np.array([160.0, 4.0, 1.0]),
        "dimensions.z": np.array([100.0, 1.5, 1.0]),
        "cuboids.sensor_id": np.array([-1, 1, -1]),
    }
    return {**columns, **changes}


def test_pandaset(evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = dataset_files.pandaset(tmp_path / "data" / "001", [8, 13, 7, 14, 0, 13], cuboids())
    scan = open_dataset(str(folder.parent)).frames[0].read(True, True)
    assert scan.labels is not None
    assert scan.boxes is not None
    assert scan.labels.tolist() == [8, 13, 7, 14, 0]  # without the last point, which is from the other sensor
    # The box is 10 m ahead of the vehicle, along the world's y. The sensor's x points ahead; the sensor is 0.78 m ahead
    # of the vehicle's origin and 1.86 m above it.
    x, y, z, length, width, height, yaw = scan.boxes.boxes[0].tolist()
    assert (x, y, z) == pytest.approx((10 - 0.78, 0, 0.5 - 1.86), abs=0.2)
    assert (length, width, height, yaw) == pytest.approx((160, 80, 100, 0), abs=1e-3)
    assert scan.boxes.names == ("Car", "Signs")
    assert scan.boxes.num_points[0] >= 3
    report = evaluate(folder)
    assert report["segmentation"]["confusion"] == [[2, 0, 0], [0, 1, 0]]
    find(monkeypatch, (CAR, 0.5, x, y, z, length, width, height, yaw, 0, 0))
    found = evaluate(folder, model="detector")["detection"]
    assert found["nuscenes"]["classes"][0]["ap"]["0.5"] == pytest.approx(1)
    assert found["kitti"]["classes"][0]["all"] == {"boxes": 1, "bev": 1, "3d": 1}
    assert found["kitti"]["classes"][0]["by_distance"][1] == {
        "from": 20,
        "to": 40,
        "boxes": 0,
        "bev": None,
        "3d": None,
    }
    none = evaluate(folder, "--min_points", "6", model="detector")["detection"]["nuscenes"]["classes"][0]
    assert (none["boxes"], none["mAP"]) == (0, None)
    assert evaluate(folder, "--max_distance", "5", model="detector")["detection"]["nuscenes"]["mAP"] is None


def test_pickles_call_nothing(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return print, ("called",)

    path = tmp_path / "x.pkl.gz"
    path.write_bytes(gzip.compress(pickle.dumps(Hostile())))
    with pytest.raises(ValueError, match=r"asks for builtins\.print, which no table of PandaSet needs"):
        dataframe.read(path)
    for contents, wanted in (
        (b"no gzip", "not a whole gzip file"),
        (gzip.compress(b"x" * 1000)[:-9], "not a whole gzip file"),
        (gzip.compress(b"not a pickle"), "not a table as PandaSet has it"),
        (gzip.compress(pickle.dumps([1, 2])), "holds a list, not a table"),
    ):
        path.write_bytes(contents)
        with pytest.raises(ValueError, match=wanted):
            dataframe.read(path)


def test_data_sets_that_are_not_right(refuse: Callable[..., str], tmp_path: Path) -> None:
    assert "no such folder" in refuse(tmp_path / "nothing")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "the folder is empty" in refuse(empty)
    (empty / "notes.txt").write_text("x")
    assert "none of the known layouts. nuscenes: needs v1.*/sample.json" in refuse(empty)
    assert "not of the layout kitti; needs velodyne/" in refuse(empty, "--layout", "kitti")
    folder = dataset_files.semantic_kitti(tmp_path / "sk", [40, 10])
    assert "--frames 7-9: none of the 2 frames, 08/000000 to 08/000001" in refuse(folder, "--frames", "7-9")
    assert "--sweeps merges nuScenes' sweeps" in refuse(folder, "--sweeps", "2")
    label = folder / "sequences/08/labels/000001.label"
    label.write_bytes(label.read_bytes()[:-4])
    assert "4 bytes are not 2 labels" in refuse(folder)
    label.unlink()
    assert "1 label files, but" in refuse(folder)
    label.with_name("other.label").write_bytes(b"")
    assert "000001.label is missing" in refuse(folder)
    for path in label.parent.iterdir():
        path.unlink()
    assert "layout semantic-kitti, but it has neither labels nor boxes" in refuse(folder)
    for path in (folder / "sequences/08/velodyne").iterdir():
        path.unlink()
    assert "layout semantic-kitti, but it has no scans" in refuse(folder)


def test_models_that_do_not_fit(refuse: Callable[..., str], server: FakeServer, tmp_path: Path) -> None:
    folder = dataset_files.semantic_kitti(tmp_path / "sk", [40, 10])
    assert "detector answers with boxes, but" in refuse(folder, model="detector")
    assert "broken version 3 is failed" in refuse(folder, model="broken")
    assert "python -m voxserve models lists what is served" in refuse(folder, model="unknown")
    server.classes = [("cat", 0), ("dog", 1)]
    assert "no class in common: the data set has car, bicycle" in refuse(folder)
    boxes = dataset_files.kitti(tmp_path / "kitti", LINES)
    assert "minkunet answers with labels, but" in refuse(boxes)


def test_kitti_files_that_are_not_right(refuse: Callable[..., str], tmp_path: Path) -> None:
    folder = dataset_files.kitti(tmp_path / "kitti", LINES)
    label, calibration = folder / "training/label_2/000007.txt", folder / "training/calib/000007.txt"
    label.write_text("Car 0.00 0\n")
    assert "000007.txt: line 1 is not a class and 14 numbers" in refuse(folder, model="detector")
    calibration.write_text("P2: 1 2 3\n")
    assert "no line P2 of 12 numbers" in refuse(folder, model="detector")
    label.unlink()
    assert "0 label files, but" in refuse(folder, model="detector")


def test_nuscenes_tables_that_are_not_right(refuse: Callable[..., str], tmp_path: Path) -> None:
    folder = dataset_files.nuscenes(tmp_path / "n", [24, 17], [annotation("a", "vehicle.car", (0, 0, 0))])
    labels = folder / "lidarseg/v1.0-mini/a_lidarseg.bin"
    labels.write_bytes(b"\x01")
    assert "1 labels, but samples/LIDAR_TOP/a.pcd.bin has 2 points" in refuse(folder)
    labels.write_bytes(b"\x01\x11")
    poses = folder / "v1.0-mini/ego_pose.json"
    poses.write_text("[]")
    assert "a table names 'a', which is nowhere" in refuse(folder, model="detector")
    poses.write_text("{")
    assert "ego_pose.json: not JSON" in refuse(folder)
    poses.unlink()
    assert "ego_pose.json: no such file; nuScenes' tables have it" in refuse(folder)


def test_pandaset_files_that_are_not_right(refuse: Callable[..., str], tmp_path: Path) -> None:
    folder = dataset_files.pandaset(tmp_path / "p", [8, 13, 7], cuboids())
    dataset_files.table(folder / "annotations/semseg/00.pkl.gz", {"class": np.array([8])})
    assert "1 labels, but" in refuse(folder)
    wrong = cuboids()
    del wrong["yaw"]
    dataset_files.table(folder / "annotations/cuboids/00.pkl.gz", wrong)
    assert "the table has no column 'yaw'; it has label" in refuse(folder, model="detector")
    (folder / "lidar/poses.json").write_text("[]")
    assert "poses.json has 0 poses, none for this frame" in refuse(folder)


def test_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more, wanted in (
        (["--distances", "20,10"], "must be growing numbers of metres"),
        (["--max_distance", "-1"], "must be a number of metres"),
        (["--layout", "argoverse"], "invalid choice"),
    ):
        with pytest.raises(SystemExit) as error:
            command.main([str(tmp_path), "--model", "m", *more])
        assert error.value.code == 2
        assert wanted in capsys.readouterr().err


@pytest.mark.integration
@pytest.mark.skipif(not (SHARED / "semantickitti-00").is_dir(), reason=f"{SHARED} is not there")
def test_real_scans_of_semantic_kitti(real_server: str, tmp_path: Path) -> None:
    folder = SHARED / "semantickitti-00"
    save = tmp_path / "report.json"
    arguments = [str(folder), "--model", "minkunet", "--address", real_server, "--save", str(save)]
    assert command.main(arguments) == 0
    report = json.loads(save.read_text())
    # The same counts, computed from the files and the server's labels without voxserve.evaluate.
    names = {40: "road", 60: "road", 44: "road", 48: "sidewalk", 10: "car", 252: "car", 50: "building"}
    counts = {name: [0, 0, 0] for name in ("sidewalk", "building", "car", "road")}
    ignored = {0, 1, 49, 52, 72, 99}
    with Client(real_server) as client:
        classes = {info.name: info.id for info in client.model("minkunet").classes}
        for path in sorted(folder.glob("*.bin")):
            labels = client.segment("minkunet", readers.read(path))
            truth = np.fromfile(path.with_suffix(".label"), "<u4") & 0xFFFF
            counted = ~np.isin(truth, list(ignored))
            for name, sums in counts.items():
                is_true = np.isin(truth, [raw for raw, known in names.items() if known == name])
                is_found = labels == classes[name]
                sums[0] += int((counted & is_true & is_found).sum())
                sums[1] += int((counted & (is_true | is_found)).sum())
                sums[2] += int(is_true.sum())
    rows = {row["name"]: row for row in report["segmentation"]["classes"]}
    for name, (common, union, number) in counts.items():
        assert rows[name]["count"] == number
        assert rows[name]["iou"] == pytest.approx(common / union)


@pytest.mark.integration
@pytest.mark.skipif(not (SHARED / "pandaset-002").is_dir(), reason=f"{SHARED} is not there")
def test_real_scans_of_pandaset_fit_the_model_card(real_server: str, tmp_path: Path) -> None:
    save = tmp_path / "report.json"
    arguments = [str(SHARED / "pandaset-002"), "--model", "minkunet", "--address", real_server]
    assert command.main([*arguments, "--frames", "63-64", "--unit", "voxels", "--save", str(save)]) == 0
    part = json.loads(save.read_text())["segmentation"]
    # deploy/models/minkunet/README.md gives an accuracy of 0.948 for 17 test frames. These two are the nearest to the
    # training frames.
    assert part["accuracy"] > 0.94
    assert {row["name"]: row["iou"] for row in part["classes"]}["car"] > 0.9
    assert (REPOSITORY / "deploy" / "models" / "minkunet" / "README.md").is_file()
