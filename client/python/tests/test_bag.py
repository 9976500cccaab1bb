"""Tests python -m voxserve.bag: it reads every kind of bag, writes a labelled MCAP file, and reports broken bags."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bag_files
import grpc
import numpy as np
import pytest
from bag_files import Scans, point_bytes, read
from conftest import REPOSITORY, FakeServer, add_boxes, answer, fail

from voxserve import wire
from voxserve.bag import command
from voxserve.bag.bag_error import BagError
from voxserve.bag.transforms import Transforms
from voxserve.cli import progress as progress_line
from voxserve.cli.progress import Progress
from voxserve.pose import Pose

pytest_plugins = ("bag_fixtures",)


@pytest.mark.parametrize("kind", [".mcap", ".db3", ".bag"])
def test_bag_is_labelled(kind: str, scans: Scans, call: Callable[..., int], tmp_path: Path) -> None:
    assert call(bag_files.write(tmp_path / f"drive{kind}", scans), "--topic", "/lidar") == 0
    messages = read(tmp_path / "out.mcap")
    assert set(messages) == {"/lidar/labelled", "/lidar/timing", "/tf", "/tf_static"}
    clouds = messages["/lidar/labelled"]
    assert [stamp for stamp, _ in clouds] == [bag_files.START_NS + i * bag_files.STEP_NS for i in range(5)]
    assert [len(messages["/tf"]), len(messages["/tf_static"])] == [5, 1]
    for (_, cloud), scan in zip(clouds, scans, strict=True):
        assert cloud.header.frame_id == "lidar"
        points = point_bytes(cloud)
        expected = np.concatenate([scan.view(np.uint8), np.tile(np.arange(4, dtype=np.uint8), (len(scan), 1))], 1)
        np.testing.assert_array_equal(points[:, :20], expected)
        fields = {field.name: field for field in cloud.fields}
        assert [*fields] == ["x", "y", "z", "intensity", "rgb", "label"]
        labels = points[:, fields["label"].offset]
        np.testing.assert_array_equal(labels, np.arange(len(scan)) % 2)
        at = fields["rgb"].offset
        colors = points[:, at : at + 4].copy().view("<u4")[:, 0]
        np.testing.assert_array_equal(colors, np.where(labels == 0, 0x804080, 0x285AFF))
    assert set(messages["/lidar/timing"][0][1]) == {"round_trip_ms", "server_ms", "stages_ms"}


@pytest.mark.parametrize("kind", [".mcap", ".db3", ".bag"])
def test_large_clouds_and_transforms_are_read_at_once(kind: str, call: Callable[..., int], tmp_path: Path) -> None:
    """The bag has many chunks. One thread reads its clouds while another reads tf."""
    points = np.fromfile(REPOSITORY / "deploy" / "scans" / "pandaset_070.bin", "<f4").reshape(-1, 4)
    assert call(bag_files.write(tmp_path / f"drive{kind}", [points] * 8)) == 0
    messages = read(tmp_path / "out.mcap")
    assert [len(messages[topic]) for topic in ("/lidar/labelled", "/tf")] == [8, 8]
    for _, cloud in messages["/lidar/labelled"]:
        np.testing.assert_array_equal(point_bytes(cloud)[:, :16], points.view(np.uint8))


def test_a_field_of_another_name(
    server: FakeServer, scans: Scans, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = bag_files.Maker(2)
    field = maker.types["sensor_msgs/msg/PointField"]
    names = ("x", "y", "z", "reflectivity")
    fields = [field(name=name, offset=4 * i, datatype=7, count=1) for i, name in enumerate(names)]
    bag = bag_files.write(tmp_path / "drive.mcap", [], [maker.cloud(0, scans[0], fields=fields)])
    assert call(bag, "--fields", "intensity=reflectivity*0.5", "--scale", "z=2") == 0
    frames = [request.frame for request in server.requests if request.HasField("frame")]
    assert [(f.name, f.scale) for f in frames[0].cloud.fields] == [("x", 0), ("y", 0), ("z", 2), ("intensity", 0.5)]
    written = read(tmp_path / "out.mcap")["/lidar/labelled"][0][1]
    assert [f.name for f in written.fields] == [*names, "rgb", "label"]
    assert call(bag, "--fields", "intensity=signal") == 1
    assert "say intensity=signal, but the points have x, y, z, reflectivity" in capsys.readouterr().err


def boxes_of(requests: Iterator[Any], _context: grpc.ServicerContext) -> Iterator[Any]:
    next(requests)
    for request in requests:
        response = wire.InferResponse(model="detector", version=3, device="cpu")
        add_boxes(response, 2)
        yield answer(request, response=response)


def test_boxes_become_scene_and_markers(
    scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path
) -> None:
    server.streams = boxes_of
    assert call(bag_files.write(tmp_path / "drive.mcap", scans), model="detector") == 0
    messages = read(tmp_path / "out.mcap")
    scene = messages["/lidar/boxes"][2][1]
    (entity,) = scene["entities"]
    assert (entity["frame_id"], entity["id"], scene["deletions"]) == ("lidar", "voxserve", [])
    assert entity["cubes"][1]["size"] == {"x": 4.0, "y": 2.0, "z": 1.5}
    assert entity["cubes"][1]["pose"]["position"] == {"x": 1.0, "y": -1.0, "z": 0.5}
    assert entity["cubes"][1]["pose"]["orientation"]["z"] == pytest.approx(np.sin(0.125))
    assert [text["text"] for text in entity["texts"]] == ["car 1.00", "class 0 0.50"]
    markers = messages["/lidar/markers"][2][1].markers
    assert [(m.type, m.action) for m in markers] == [(0, 3), (1, 0), (9, 0), (1, 0), (9, 0)]
    assert (markers[3].pose.position.x, markers[3].scale.y, markers[1].color.b) == (1.0, 2.0, pytest.approx(1.0))
    original = bag_files.Maker(2).cloud(2, scans[2])
    cloud = messages["/lidar/labelled"][2][1]
    np.testing.assert_array_equal(point_bytes(cloud), point_bytes(original))
    assert len(cloud.data) == cloud.width * cloud.point_step == cloud.row_step  # without the gap after the row


@pytest.mark.parametrize("pose", ["tf", "/odom"])
def test_sweeps_get_poses(
    pose: str, scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path
) -> None:
    bag = bag_files.write(tmp_path / "drive.bag", scans)
    assert call(bag, "--sweeps", "3", "--pose", pose, "--scale", "intensity=0.5") == 0
    config, *frames = server.requests
    assert config.config.sweeps.num_sweeps == 3
    assert [frame.frame.pose.x for frame in frames] == [1.5, 3.5, 5.5, 7.5, 9.5]
    assert [field.scale for field in frames[0].frame.cloud.fields if field.name == "intensity"] == [0.5]


def breaking(after: int) -> Callable[..., Iterator[Any]]:
    def streams(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        next(requests)
        for number, request in enumerate(requests):
            if number == after:
                fail(context, grpc.StatusCode.UNAVAILABLE, "going away", "DRAINING")
            yield answer(request)

    return streams


def test_run_goes_on_where_it_was_broken_off(
    scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bag = bag_files.write(tmp_path / "drive.mcap", scans)
    whole = server.streams
    assert call(bag) == 0
    expected = read(tmp_path / "out.mcap")
    (tmp_path / "out.mcap").unlink()
    server.streams = breaking(3)
    assert call(bag, "--sweeps", "2", "--pose", "tf") == 1
    out = capsys.readouterr().err
    assert "out.mcap.part holds the first 3 clouds; the same command goes on from there" in out
    assert "going away" in out
    assert not (tmp_path / "out.mcap").exists()
    part = tmp_path / "out.mcap.part"
    assert call(bag) == 1
    assert "was begun with other settings (pose: tf , now  , sweeps: 2, now 1)" in capsys.readouterr().err
    part.write_bytes(part.read_bytes()[:-600])  # as after a loss of power
    server.streams, server.requests = whole, []
    assert call(bag, "--sweeps", "2", "--pose", "tf") == 0
    sent = [request.frame.frame_id for request in server.requests[1:]]
    assert sent[-1] == 4
    assert sent == list(range(sent[0], 5))
    assert not part.exists()
    result = read(tmp_path / "out.mcap")
    assert [len(result["/tf"]), len(result["/tf_static"])] == [5, 1]
    for (stamp, cloud), (wanted_stamp, wanted) in zip(
        result["/lidar/labelled"], expected["/lidar/labelled"], strict=True
    ):
        assert (stamp, bytes(cloud.data)) == (wanted_stamp, bytes(wanted.data))


def test_nothing_is_left_where_nothing_was_labelled(
    scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.streams = breaking(0)
    assert call(bag_files.write(tmp_path / "drive.mcap", scans)) == 1
    assert "part" not in capsys.readouterr().err
    assert list(tmp_path.glob("out*")) == []


def test_run_that_is_ended_keeps_its_part(scans: Scans, server: FakeServer, tmp_path: Path) -> None:
    bag, save = bag_files.write(tmp_path / "drive.mcap", scans), tmp_path / "out.mcap"
    arguments = [sys.executable, "-m", "voxserve.bag", str(bag), "--model", "minkunet", "--save", str(save)]
    arguments += ["--address", server.address]
    with subprocess.Popen([*arguments, "--rate", "0.1"], stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 60
        while len(server.requests) < 4 and time.monotonic() < end:
            time.sleep(0.02)
        process.terminate()
        _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the same command goes on from there" in error
    assert not save.exists()
    assert Path(f"{save}.part").exists()


def test_rate_keeps_the_bags_pace(scans: Scans, call: Callable[..., int], tmp_path: Path) -> None:
    start = time.monotonic()
    assert call(bag_files.write(tmp_path / "drive.mcap", scans), "--rate", "0.5") == 0
    assert time.monotonic() - start > 4 * 0.1 / 0.5
    assert 1 <= len(read(tmp_path / "out.mcap")["/lidar/labelled"]) <= 5


def test_wide_labels_and_taken_names(
    scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path
) -> None:
    def wide(requests: Iterator[Any], _context: grpc.ServicerContext) -> Iterator[Any]:
        next(requests)
        for request in requests:
            response = wire.InferResponse(model="minkunet", version=3)
            response.segmentation.bytes_per_label, response.segmentation.num_classes = 2, 300
            response.segmentation.labels = np.full(request.frame.cloud.num_points, 299, "<u2").tobytes()
            yield answer(request, response=response)

    server.streams = wide
    maker = bag_files.Maker(2)
    cloud = maker.cloud(0, scans[0], big=True)
    cloud.fields[3].name = "label"
    assert call(bag_files.write(tmp_path / "drive.mcap", [], [cloud])) == 0
    (_, message), *_ = read(tmp_path / "out.mcap")["/lidar/labelled"]
    fields = {field.name: field for field in message.fields}
    assert [*fields] == ["x", "y", "z", "label", "rgb", "label_"]
    at = fields["label_"].offset
    assert message.is_bigendian
    assert (point_bytes(message)[:, at : at + 2].copy().view(">u2") == 299).all()


def damaged(path: Path, contents: bytes) -> Path:
    path.write_bytes(contents)
    return path


@pytest.mark.parametrize("kind", [".mcap", ".db3", ".bag"])
@pytest.mark.parametrize("keep", [0.02, 0.5, 0.97])
def test_truncated_bags(
    kind: str, keep: float, scans: Scans, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = bag_files.write(tmp_path / f"drive{kind}", scans).read_bytes()
    bag = damaged(tmp_path / f"cut{kind}", contents[: int(keep * len(contents))])
    assert call(bag) == 1
    error = capsys.readouterr().err
    assert f"{bag}: " in error
    assert "cannot be read" in error or "empty" in error
    assert list(tmp_path.glob("out.mcap")) == []


@pytest.mark.parametrize("kind", [".mcap", ".db3", ".bag"])
def test_damaged_bags_are_no_crash(
    kind: str, scans: Scans, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = bytearray(bag_files.write(tmp_path / f"drive{kind}", scans).read_bytes())
    random = np.random.default_rng(3)
    for number in range(12):
        broken = contents.copy()
        for place in random.integers(20, len(broken), 40).tolist():
            broken[place] ^= int(random.integers(1, 255))
        status = call(damaged(tmp_path / f"{number}{kind}", bytes(broken)))
        error = capsys.readouterr().err
        assert status == 0 or (status in (1, 3) and error.startswith("voxserve.bag: ")), error
        assert "Traceback" not in error
        for left in tmp_path.glob("out.mcap*"):
            left.unlink()


@pytest.mark.parametrize(
    ("name", "contents", "wanted"),
    [
        ("empty.mcap", b"", "the file is empty"),
        ("foreign.mcap", b"RIFF....WAVEfmt ", "not a bag of the kind that .mcap names"),
        ("foreign.bag", b"\x89MCAP0\r\n", "not a bag of the kind that .bag names"),
        ("drive.zip", b"PK", "bags are .mcap, .db3, .bag, or a folder with .mcap or .db3 files"),
    ],
)
def test_foreign_files(
    name: str,
    contents: bytes,
    wanted: str,
    call: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(damaged(tmp_path / name, contents)) == 1
    assert wanted in capsys.readouterr().err


def test_bags_without_what_is_asked_for(
    scans: Scans, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bag = bag_files.write(tmp_path / "drive.mcap", scans[:1])
    maker = bag_files.Maker(2)
    no_rows = maker.cloud(0, scans[0], height=0)
    short = maker.cloud(0, scans[0], row_step=100)
    no_data = maker.cloud(0, scans[0], data=np.zeros(10, np.uint8))
    no_folder = tmp_path / "nothing"
    no_folder.mkdir()
    cases = [
        (bag, ["--topic", "/radar"], "no topic /radar; of type PointCloud2: /lidar"),
        (bag, ["--topic", "/odom"], "/odom has messages of type nav_msgs/msg/Odometry, not PointCloud2: /lidar"),
        (bag, ["--pose", "/gps"], "no topic /gps for poses"),
        (bag, ["--pose", "/lidar"], "poses are read of geometry_msgs/msg/PoseStamped"),
        (bag, ["--pose", "tf", "--fixed_frame", "map"], "no transforms lead from lidar to map; frames that there are"),
        (tmp_path / "none.mcap", [], "no such file or folder"),
        (no_folder, [], "it has no metadata.yaml"),
        (bag_files.write(tmp_path / "t.mcap", [], [no_rows]), [], "0 points"),
        (bag_files.write(tmp_path / "s.mcap", [], [short]), [], "take 8000 bytes, but there are 8008"),
        (bag_files.write(tmp_path / "n.mcap", [], [no_data]), [], "8008 with the row_step of 8008, but there are 10"),
        (bag_files.write(tmp_path / "e.mcap", []), [], "/lidar has no messages"),
    ]
    for path, more, wanted in cases:
        assert call(path, *more) == 1, wanted
        assert wanted in capsys.readouterr().err
        assert list(tmp_path.glob("out*")) == []


def test_command_line_and_models(
    scans: Scans, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bag = bag_files.write(tmp_path / "drive.mcap", scans[:1])
    for more, wanted in (
        (["--sweeps", "2"], "--sweeps needs --pose"),
        (["--fixed_frame", "map"], "--fixed_frame goes with --pose tf"),
        (["--scale", "intensity"], "must be NAME=FACTOR"),
        (["--fields", "intensity"], "field entry 'intensity'"),
        (["--rate", "0"], "must be a positive number"),
        (["--save", str(bag)], "--save names the bag itself"),
        (["--save", "a.bag"], "--save names a .mcap file"),
    ):
        with pytest.raises(SystemExit) as error:
            call(bag, *more)
        assert error.value.code == 2
        assert wanted in capsys.readouterr().err
    assert call(bag, model="broken") == 1
    assert "broken version 3 is failed" in capsys.readouterr().err
    assert call(bag, model="mute") == 0


def test_transforms_between_and_beyond() -> None:
    transforms = Transforms()
    half = float(np.sqrt(0.5))
    transforms.add("map", "base", 10**9, Pose((0, 0, 0)), False)
    transforms.add("/map", "base", 10**9 + 10**8, Pose((1, 0, 0), (half, 0, 0, half)), False)
    transforms.add("base", "lidar", 0, Pose((0, 0, 2)), True)
    middle = transforms.lookup("map", "lidar", 10**9 + 5 * 10**7)
    np.testing.assert_allclose(middle[:3, 3], [0.5, 0, 2])
    np.testing.assert_allclose(middle[:2, 0], [half, half])
    np.testing.assert_allclose(transforms.lookup("lidar", "lidar", 10**9), np.eye(4), atol=1e-12)
    with pytest.raises(BagError, match=r"nearest transform of base in map is 0\.900 s away"):
        transforms.lookup("map", "lidar", 2 * 10**9)
    transforms.add("lidar", "map", 0, Pose((0, 0, 0)), True)
    with pytest.raises(BagError, match="go round in a circle"):
        transforms.lookup("map", "lidar", 10**9)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_in_a_terminal_and_in_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(progress_line.time, "perf_counter", lambda: now)
    shown = []
    for out in (Terminal(), io.StringIO()):
        now = 1000.0
        with Progress(7201, "clouds", out, before=1) as progress:
            for second in range(1, 61):
                now = 1000.0 + second
                progress.update(1 + 2 * second, ", 12 ms")
        shown.append(out.getvalue())
    line = "121/7,201 clouds, 2.0/s, 59:00 left, 12 ms"
    assert shown[0].endswith(f"\r[------------------------] {line}\x1b[K\n")
    assert shown[0].count("\r") == 60
    lines = shown[1].splitlines()
    assert 5 <= len(lines) <= 6, "every ten seconds"
    assert lines[0].startswith("voxserve: 21/7,201 clouds, 2.0/s, 59:50 left")
    assert all(line.startswith("voxserve: ") for line in lines)


@pytest.mark.integration
def test_real_server_labels_a_bag(real_server: str, tmp_path: Path) -> None:
    points = np.fromfile(REPOSITORY / "deploy" / "scans" / "pandaset_070.bin", "<f4").reshape(-1, 4)
    truth = np.fromfile(REPOSITORY / "deploy" / "scans" / "pandaset_070.truth.u8", np.uint8)
    bag = bag_files.write(tmp_path / "drive.mcap", [points])
    arguments = [str(bag), "--model", "minkunet", "--save", str(tmp_path / "out.mcap"), "--address", real_server]
    assert command.main(arguments) == 0
    (_, cloud), *_ = read(tmp_path / "out.mcap")["/lidar/labelled"]
    at = next(field.offset for field in cloud.fields if field.name == "label")
    labels = point_bytes(cloud)[:, at]
    assert (labels == truth)[truth != 255].mean() > 0.9
