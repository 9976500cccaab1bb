"""Tests what python -m voxserve.bag does with clouds that are empty, odd or broken: it labels what is legal, skips and
names the rest, and says so in its summary, its exit status and its file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bag_files
import grpc
import numpy as np
import pytest
from bag_files import Scans, point_bytes, read
from conftest import FakeServer, add_boxes, answer, status_of
from test_bag import breaking

from voxserve import wire
from voxserve.bag import command

CLOUD = "sensor_msgs/msg/PointCloud2"
pytest_plugins = ("bag_fixtures",)


def drive(tmp_path: Path, scans: Scans, middle: Any) -> Path:
    """Returns a bag of three clouds, the second of which is `middle`: a message, or the changes of a good one."""
    maker = bag_files.Maker(2)
    if isinstance(middle, dict):
        middle = maker.cloud(1, scans[1], **middle)
    return bag_files.write(tmp_path / "drive.mcap", [], [maker.cloud(0, scans[0]), middle, maker.cloud(2, scans[2])])


NO_BYTES = np.zeros(0, np.uint8)
EMPTY = {
    "with fields": {"width": 0, "row_step": 0, "data": NO_BYTES},
    "height 0": {"width": 0, "height": 0, "row_step": 0, "data": NO_BYTES},
    "height 0 but a width": {"height": 0, "row_step": 0, "data": NO_BYTES},
    "without fields": {"width": 0, "height": 0, "row_step": 0, "point_step": 0, "data": NO_BYTES, "fields": []},
    "a row_step that is not read": {"width": 0, "row_step": 4000, "data": NO_BYTES},
}


@pytest.mark.parametrize("kind", EMPTY)
def test_an_empty_cloud_becomes_an_empty_labelled_cloud(
    kind: str, scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert call(drive(tmp_path, scans, EMPTY[kind]), "--scale", "intensity=0.5") == 0
    assert "3 of 3 clouds of /lidar" in capsys.readouterr().out
    (_, before), (stamp, cloud), (_, after) = read(tmp_path / "out.mcap")["/lidar/labelled"]
    assert stamp == bag_files.START_NS + bag_files.STEP_NS
    assert (cloud.width * cloud.height, len(cloud.data)) == (0, 0)
    assert [field.name for field in cloud.fields[-2:]] == ["rgb", "label"]
    assert cloud.header.stamp.nanosec == bag_files.STEP_NS
    assert len(point_bytes(before)) == len(scans[0])
    assert len(point_bytes(after)) == len(scans[2])
    sent = server.requests[2].frame.cloud
    assert {field.name for field in sent.fields} >= {"x", "y", "z", "intensity"}


def test_an_empty_cloud_has_no_boxes(
    scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path
) -> None:
    def boxes_of(requests: Iterator[Any], _context: grpc.ServicerContext) -> Iterator[Any]:
        next(requests)
        for request in requests:
            response = wire.InferResponse(model="detector", version=3, device="cpu")
            add_boxes(response, min(2, request.frame.cloud.num_points))
            yield answer(request, response=response)

    server.streams = boxes_of
    assert call(drive(tmp_path, scans, EMPTY["without fields"]), model="detector") == 0
    messages = read(tmp_path / "out.mcap")
    assert [len(scene["entities"][0]["cubes"]) for _, scene in messages["/lidar/boxes"]] == [2, 0, 2]
    assert [cloud.width for _, cloud in messages["/lidar/labelled"]] == [len(scans[0]), 0, len(scans[2])]


PACKED = np.concatenate([np.zeros((64, 16), np.uint8), np.full((64, 4), 7, np.uint8)], 1).reshape(-1)


@pytest.mark.parametrize("row_step", [0, 20, 160, 1280, 99])
@pytest.mark.parametrize("height", [1, 8])
def test_packed_rows_are_labelled_whatever_row_step_says(
    row_step: int, height: int, scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path
) -> None:
    odd = {"height": height, "width": 64 // height, "row_step": row_step, "data": PACKED}
    assert call(drive(tmp_path, scans, odd)) == 0
    cloud = read(tmp_path / "out.mcap")["/lidar/labelled"][1][1]
    assert (cloud.height, cloud.width, cloud.row_step) == (height, 64 // height, 64 // height * cloud.point_step)
    points = point_bytes(cloud)
    np.testing.assert_array_equal(points[:, :20], PACKED.reshape(64, 20))
    labels = next(field.offset for field in cloud.fields if field.name == "label")
    np.testing.assert_array_equal(points[:, labels], np.arange(64) % 2)


BAD = {
    "height 0 with data": ({"height": 0}, "0 points of 20 bytes take 0 bytes, but there are 8028"),
    "more points than bytes": ({"width": 500}, "500 points of 20 bytes take 10000 bytes"),
    "fewer points than bytes": ({"width": 300}, "300 points of 20 bytes take 6000 bytes"),
    "no bytes": ({"data": NO_BYTES}, "but there are 0"),
    "no point_step": ({"point_step": 0}, "point_step is 0 for 401 points"),
    "garbage": (b"\0\1\0\0garbage", "it cannot be decoded"),
    "no message": (b"", "it cannot be decoded"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_cloud_is_named_and_skipped(
    kind: str, scans: Scans, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    middle, reason = BAD[kind]
    if isinstance(middle, bytes):
        maker = bag_files.Maker(2)
        clouds = [("/lidar", CLOUD, index, maker.cloud(index, scans[index])) for index in (0, 2)]
        bag = bag_files.write_mcap(tmp_path / "drive.mcap", [clouds[0], ("/lidar", CLOUD, 1, middle), clouds[1]])
    else:
        bag = drive(tmp_path, scans, middle)
    assert call(bag) == 3
    printed = capsys.readouterr()
    assert "skipped message 1 of /lidar at 1700000000.100000000: " in printed.err
    assert reason in printed.err
    assert "2 of 3 clouds of /lidar" in printed.out
    assert "skipped 1 message, named in /lidar/skipped" in printed.out
    messages = read(tmp_path / "out.mcap")
    assert [len(point_bytes(cloud)) for _, cloud in messages["/lidar/labelled"]] == [len(scans[0]), len(scans[2])]
    ((stamp, skipped),) = messages["/lidar/skipped"]
    assert stamp == bag_files.START_NS + bag_files.STEP_NS
    assert (skipped["topic"], skipped["index"]) == ("/lidar", 1)
    assert reason in skipped["reason"]


def refusing(*indices: int) -> Callable[..., Iterator[Any]]:
    def streams(requests: Iterator[Any], _context: grpc.ServicerContext) -> Iterator[Any]:
        next(requests)
        for request in requests:
            if request.frame.frame_id in indices:
                status = status_of(grpc.StatusCode.INVALID_ARGUMENT, "no field 'ring'", "MISSING_FIELD")
                result = wire.FrameResult(frame_id=request.frame.frame_id, status=status)
                yield wire.InferStreamResponse(result=result)
            else:
                yield answer(request)

    return streams


def test_a_cloud_that_the_server_refuses_is_skipped(
    scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.streams = refusing(0, 3)
    assert call(bag_files.write(tmp_path / "drive.mcap", scans)) == 3
    printed = capsys.readouterr()
    assert printed.err.count("no field 'ring' [MISSING_FIELD]") == 2
    assert "3 of 5 clouds of /lidar" in printed.out
    messages = read(tmp_path / "out.mcap")
    assert [message["index"] for _, message in messages["/lidar/skipped"]] == [0, 3]
    assert len(messages["/lidar/labelled"]) == 3


def test_a_cloud_that_is_too_large_is_skipped(
    scans: Scans, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large = np.zeros((100_000, 4), np.float32)
    maker = bag_files.Maker(2)
    bag = bag_files.write(tmp_path / "drive.mcap", [], [maker.cloud(0, scans[0]), maker.cloud(1, large)])
    assert call(bag, "--max_message_bytes", "1000000") == 3
    assert "message 1 of /lidar" in capsys.readouterr().err
    assert len(read(tmp_path / "out.mcap")["/lidar/labelled"]) == 1


def test_a_drive_without_a_good_cloud_is_refused(
    scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.streams = refusing(*range(5))
    assert call(bag_files.write(tmp_path / "drive.mcap", scans)) == 1
    error = capsys.readouterr().err
    assert "none of the first 5 clouds of /lidar can be labelled; message 0 of /lidar at 1700000000.000000000" in error
    assert list(tmp_path.glob("out*")) == []


def test_a_drive_whose_first_clouds_are_all_bad_ends_soon(
    scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(command, "_MOST_BAD", 2)
    server.streams = refusing(0, 1, 2, 3)
    assert call(bag_files.write(tmp_path / "drive.mcap", scans)) == 1
    assert "none of the first 2 clouds of /lidar" in capsys.readouterr().err


def test_errors_of_the_server_still_end_the_run(
    scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path
) -> None:
    server.streams = breaking(3)
    assert call(bag_files.write(tmp_path / "drive.mcap", scans)) == 1
    assert not (tmp_path / "out.mcap").exists()


def test_a_run_that_goes_on_counts_what_was_skipped_before(
    scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = bag_files.Maker(2)
    clouds = [maker.cloud(index, points) for index, points in enumerate(scans)]
    clouds[1] = maker.cloud(1, scans[1], width=3)
    bag = bag_files.write(tmp_path / "drive.mcap", [], clouds)
    whole, server.streams = server.streams, breaking(2)
    assert call(bag) == 1
    part = tmp_path / "out.mcap.part"
    assert part.exists()
    server.streams = whole
    capsys.readouterr()
    assert call(bag) == 3
    printed = capsys.readouterr()
    assert "4 of 5 clouds of /lidar, 2 of them before" in printed.out
    assert "skipped 1 message," in printed.out
    assert "skipped message" not in printed.err
    messages = read(tmp_path / "out.mcap")
    assert [message["index"] for _, message in messages["/lidar/skipped"]] == [1]
    assert len(messages["/lidar/labelled"]) == 4
    assert len(messages["/tf"]) == 5


def test_many_bad_messages_are_counted_and_the_first_are_named(
    scans: Scans, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = bag_files.Maker(2)
    clouds = [maker.cloud(0, scans[0]), *(maker.cloud(index, scans[1], width=3) for index in range(1, 15))]
    assert call(bag_files.write(tmp_path / "drive.mcap", [], clouds)) == 3
    printed = capsys.readouterr()
    assert printed.err.count("skipped message") == 10
    assert "more messages are skipped" in printed.err
    assert "skipped 14 messages" in printed.out
    assert len(read(tmp_path / "out.mcap")["/lidar/skipped"]) == 14


def test_a_cloud_without_a_pose_is_skipped(
    scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The vehicle's poses begin a second after the first clouds."""
    maker = bag_files.Maker(2)
    transforms, kind = "tf2_msgs/msg/TFMessage", "/tf"
    messages = [("/lidar", CLOUD, index, maker.cloud(index, scans[index % 5])) for index in range(12)]
    messages += [(kind, transforms, index, maker.transform(index, "odom", "lidar", 1.0)) for index in range(10, 12)]
    bag = bag_files.write_mcap(tmp_path / "drive.mcap", sorted(messages, key=lambda item: item[2]))
    assert call(bag, "--sweeps", "2", "--pose", "tf") == 3
    error = capsys.readouterr().err
    assert "message 0 of /lidar at 1700000000.000000000: the nearest transform of lidar in odom is 1.000 s" in error
    messages_out = read(tmp_path / "out.mcap")
    assert [message["index"] for _, message in messages_out["/lidar/skipped"]] == [0, 1, 2, 3, 4]
    assert len(messages_out["/lidar/labelled"]) == 7


@pytest.mark.parametrize("kind", [".mcap", ".db3", ".bag"])
def test_bad_transforms_are_skipped(
    kind: str, scans: Scans, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    good = bag_files.Maker.transform

    def transform(self: Any, index: int, parent: str, child: str, x: float) -> Any:
        message = good(self, index, parent, child, x)
        if child == "base" and index == 2:
            message.transforms[0].transform.rotation.w = 0.0  # as of a localisation that has not begun
        return message

    monkeypatch.setattr(bag_files.Maker, "transform", transform)
    assert call(bag_files.write(tmp_path / f"drive{kind}", scans), "--sweeps", "2", "--pose", "tf") == 3
    error = capsys.readouterr().err
    assert "message 2 of /tf at 1700000000.200000000: the pose of base: the pose's rotation is a quaternion of" in error
    messages = read(tmp_path / "out.mcap")
    assert [len(messages[topic]) for topic in ("/lidar/labelled", "/tf", "/lidar/skipped")] == [5, 5, 1]


@pytest.mark.parametrize("pose", ["", "/odom"])
def test_garbage_in_other_topics(
    pose: str, scans: Scans, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = bag_files.Maker(2)
    messages: list[tuple[str, str, int, Any]] = []
    for index in range(3):
        place = maker.odometry(index, 1.0) if index != 1 else b"\0\1"
        messages.append(("/odom", "nav_msgs/msg/Odometry", index, place))
        messages.append(("/lidar", CLOUD, index, maker.cloud(index, scans[index])))
    bag = bag_files.write_mcap(tmp_path / "drive.mcap", messages)
    assert call(bag, *(["--sweeps", "2", "--pose", pose] if pose else [])) == (3 if pose else 0)
    assert ("message 1 of /odom" in capsys.readouterr().err) == bool(pose)
    assert len(read(tmp_path / "out.mcap")["/lidar/labelled"]) == 3


def test_a_topic_that_changes_its_type(
    scans: Scans, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maker = bag_files.Maker(2)
    odd = ("/lidar", "nav_msgs/msg/Odometry", 1, maker.odometry(1, 1.0))
    foreign = ("/lidar", "foxglove.PointCloud", 3, b"\1\2")
    clouds = [("/lidar", CLOUD, index, maker.cloud(index, scans[index])) for index in (0, 2)]
    bag = bag_files.write_mcap(tmp_path / "drive.mcap", [clouds[0], odd, clouds[1], foreign])
    assert call(bag) == 3
    error = capsys.readouterr().err
    assert "message 1 of /lidar at 1700000000.100000000: it has the type nav_msgs/msg/Odometry, not" in error
    assert "message 3 of /lidar at 1700000000.300000000: it has the type foxglove.PointCloud in protobuf" in error
    assert len(read(tmp_path / "out.mcap")["/lidar/labelled"]) == 2


def test_stamps_out_of_order_and_twice(scans: Scans, call: Callable[..., int], tmp_path: Path) -> None:
    maker = bag_files.Maker(2)
    order = [3, 1, 1, 0, 2]  # the order in the file; the times are those of the recording
    messages = [("/lidar", CLOUD, index, maker.cloud(index, scans[place])) for place, index in enumerate(order)]
    assert call(bag_files.write_mcap(tmp_path / "drive.mcap", messages)) == 0
    clouds = read(tmp_path / "out.mcap")["/lidar/labelled"]
    assert [(stamp - bag_files.START_NS) // bag_files.STEP_NS for stamp, _ in clouds] == [0, 1, 1, 2, 3]
    assert [len(point_bytes(cloud)) for _, cloud in clouds] == [len(scans[place]) for place in (3, 1, 2, 4, 0)]


def test_points_that_are_not_finite_keep_their_bytes(scans: Scans, call: Callable[..., int], tmp_path: Path) -> None:
    points = scans[0].copy()
    points[5, 0] = np.nan
    points[6, 3] = np.inf
    maker = bag_files.Maker(2)
    assert call(bag_files.write(tmp_path / "drive.mcap", [], [maker.cloud(0, points, is_dense=True)])) == 0
    ((_, cloud),) = read(tmp_path / "out.mcap")["/lidar/labelled"]
    np.testing.assert_array_equal(point_bytes(cloud)[:, :16].copy().view(np.float32), points)
