"""Tests which kinds of bags python -m voxserve.bag reads: files with topics of other encodings, with and without an
index, in chunks and without; folders with and without metadata.yaml; ROS 1 in MCAP; its own output.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bag_files
import numpy as np
import pytest
from bag_files import Scans, point_bytes, read
from conftest import FakeServer
from test_bag import breaking

from voxserve.bag import recording

CLOUD = "sensor_msgs/msg/PointCloud2"
pytest_plugins = ("bag_fixtures",)
mcap_writer = pytest.importorskip("mcap.writer")


def lengths(path: Path, topic: str = "/lidar/labelled") -> list[int]:
    """Returns the number of points of each labelled cloud."""
    return [cloud.width * cloud.height for _, cloud in read(path)[topic]]


def mixed(scans: Scans, order: range = range(3)) -> list[tuple[str, str, int, Any]]:
    """Returns messages of clouds, tf, and topics of other encodings."""
    maker = bag_files.Maker(2)
    messages: list[tuple[str, str, int, Any]] = []
    for index in order:
        messages.append(("/boxes", "foxglove.SceneUpdate", index, b"\x0a\x02ab"))
        messages.append(("/tf", "tf2_msgs/msg/TFMessage", index, maker.transform(index, "odom", "lidar", 1.0)))
        messages.append(("/lidar", CLOUD, index, maker.cloud(index, scans[index])))
    return messages


INDEX = mcap_writer.IndexType
COMPRESSION = mcap_writer.CompressionType
FORMS: dict[str, dict[str, Any]] = {
    "zstd": {"chunk_size": 1000},
    "lz4": {"compression": COMPRESSION.LZ4},
    "not compressed": {"compression": COMPRESSION.NONE, "chunk_size": 1000},
    "no chunks": {"use_chunking": False},
    "no indices": {"index_types": INDEX.NONE},
    "no index of messages": {"index_types": INDEX.CHUNK},
    "no statistics": {"use_statistics": False},
    "channels not repeated": {"repeat_channels": False},
    "schemas not repeated": {"repeat_schemas": False},
    "nothing at the end": {"index_types": INDEX.NONE, "use_statistics": False, "repeat_channels": False,
                           "repeat_schemas": False, "use_summary_offsets": False, "enable_crcs": False},
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_mcap_of_every_form_beside_topics_of_other_encodings(
    form: str, scans: Scans, call: Callable[..., int], tmp_path: Path
) -> None:  # fmt: skip
    bag = bag_files.write_mcap(tmp_path / "drive.mcap", mixed(scans), **FORMS[form])
    assert call(bag, "--sweeps", "2", "--pose", "tf") == 0
    messages = read(tmp_path / "out.mcap")
    assert lengths(tmp_path / "out.mcap") == [len(scans[index]) for index in range(3)]
    assert len(messages["/tf"]) == 3
    assert "/boxes" not in messages


@pytest.mark.parametrize("name", ["a.MCAP", "a.DB3", "a.Bag", "folder"])
def test_endings_in_capitals(
    scans: Scans, call: Callable[..., int], tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ending = ".mcap" if name == "folder" else Path(name).suffix.lower()
    written = bag_files.write(tmp_path / f"written{ending}", scans[:2])
    target = tmp_path / name
    if name == "folder":
        target.mkdir()
    shutil.move(written, target / "A.MCAP" if name == "folder" else target)
    if ending == ".bag":
        assert call(target) == 1
        assert "a.Bag: the library rosbags knows this kind by .bag in small letters only" in capsys.readouterr().err
        return
    assert call(target) == 0
    assert lengths(tmp_path / "out.mcap") == [len(scans[0]), len(scans[1])]


def test_a_topic_in_another_encoding_is_refused_by_name(
    scans: Scans, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    assert call(bag_files.write_mcap(tmp_path / "drive.mcap", mixed(scans)), "--topic", "/boxes") == 1
    assert "/boxes has messages of type foxglove.SceneUpdate in protobuf, not PointCloud2" in capsys.readouterr().err


def test_its_own_output_is_labelled_again(
    scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path
) -> None:  # fmt: skip
    maker = bag_files.Maker(2)
    clouds = [maker.cloud(0, scans[0]), maker.cloud(1, scans[1], width=3), maker.cloud(2, scans[2])]
    assert call(bag_files.write(tmp_path / "drive.mcap", [], clouds)) == 3
    first = tmp_path / "first.mcap"
    (tmp_path / "out.mcap").rename(first)
    assert call(first) == 0
    messages = read(tmp_path / "out.mcap")
    assert [len(messages["/lidar/labelled/labelled"]), len(messages["/tf"])] == [2, 3]
    again, before = messages["/lidar/labelled/labelled"][1][1], read(first)["/lidar/labelled"][1][1]
    assert [field.name for field in again.fields] == ["x", "y", "z", "intensity", "rgb", "label", "rgb_", "label_"]
    np.testing.assert_array_equal(point_bytes(again)[:, : before.point_step], point_bytes(before))


def ros1_mcap(path: Path, scans: Scans) -> Path:
    """Writes what `mcap convert drive.bag` writes: ROS 1 messages with their own definitions."""
    maker = bag_files.Maker(1)
    with path.open("wb") as file:
        writer = mcap_writer.Writer(file)
        writer.start(profile="ros1", library="test")
        channels = {}
        for topic, kind in (("/lidar", CLOUD), ("/tf", "tf2_msgs/msg/TFMessage")):
            definition, _ = maker.store.generate_msgdef(kind)
            schema = writer.register_schema(kind.replace("/msg/", "/"), "ros1msg", definition.encode())
            channels[topic] = writer.register_channel(topic, "ros1", schema)
        for index, points in enumerate(scans):
            time = bag_files.START_NS + index * bag_files.STEP_NS
            transform = maker.transform(index, "odom", "lidar", 2.0 * index)
            moved = maker.store.serialize_ros1(transform, "tf2_msgs/msg/TFMessage")
            cloud = maker.store.serialize_ros1(maker.cloud(index, points), CLOUD)
            writer.add_message(channels["/tf"], time, bytes(moved), time)
            writer.add_message(channels["/lidar"], time, bytes(cloud), time)
        writer.finish()
    return path


def test_ros1_in_mcap(scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path) -> None:
    assert call(ros1_mcap(tmp_path / "drive.mcap", scans), "--sweeps", "2", "--pose", "tf") == 0
    assert [request.frame.pose.x for request in server.requests[1:]] == [0, 2, 4, 6, 8]
    messages = read(tmp_path / "out.mcap")
    assert lengths(tmp_path / "out.mcap") == [len(points) for points in scans]
    assert messages["/tf"][2][1].transforms[0].transform.translation.x == 4.0


def split(folder: Path, scans: Scans) -> Path:
    """Writes a bag of three files into the folder: two of clouds, whose names are not in the order of their times, and
    one of tf.
    """
    folder.mkdir()
    messages = mixed(scans, range(4))
    clouds = [message for message in messages if message[0] == "/lidar"]
    bag_files.write_mcap(folder / "b_0.mcap", clouds[2:])
    bag_files.write_mcap(folder / "b_1.mcap", clouds[:2])
    bag_files.write_mcap(folder / "tf.mcap", [message for message in messages if message[0] != "/lidar"])
    return folder


METADATA = """rosbag2_bagfile_information:
  version: 9
  storage_identifier: mcap
  relative_file_paths: [b_0.mcap, b_1.mcap, tf.mcap]
  compression_mode: ''
"""


@pytest.mark.parametrize("metadata", [None, "", METADATA])
def test_a_folder_of_mcap_files_is_one_drive(
    metadata: str | None, scans: Scans, call: Callable[..., int], tmp_path: Path
) -> None:  # fmt: skip
    folder = split(tmp_path / "drive", scans)
    if metadata is not None:  # "": as a recorder that was ended leaves it
        (folder / "metadata.yaml").write_text(metadata)
    assert call(folder, "--sweeps", "2", "--pose", "tf") == 0
    clouds = read(tmp_path / "out.mcap")["/lidar/labelled"]
    assert [(stamp - bag_files.START_NS) // bag_files.STEP_NS for stamp, _ in clouds] == [0, 1, 2, 3]
    assert lengths(tmp_path / "out.mcap") == [len(points) for points in scans[:4]]


def test_a_folder_that_is_broken_off_goes_on(
    scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path
) -> None:  # fmt: skip
    folder = split(tmp_path / "drive", scans)
    whole, server.streams = server.streams, breaking(2)
    assert call(folder) == 1
    part = tmp_path / "out.mcap.part"
    part.write_bytes(part.read_bytes()[:-300])
    server.streams, server.requests = whole, []
    assert call(folder) == 0
    assert server.requests[-1].frame.frame_id == 3
    assert lengths(tmp_path / "out.mcap") == [len(points) for points in scans[:4]]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda folder: (folder / "metadata.yaml").write_text(METADATA.replace("tf", "gone")), "not there: gone.mcap"),
        (lambda folder: (folder / "metadata.yaml").write_text("a: [b"), "metadata.yaml: the file is no YAML"),
        (lambda folder: (folder / "c.mcap").write_bytes(b""), "c.mcap: the file is empty"),
        (lambda folder: (folder / "c.mcap").write_bytes(b"no mcap at all"), "c.mcap: not a bag of the kind"),
    ],
)
def test_folders_that_are_refused(
    change: Callable[[Path], object], wanted: str, scans: Scans, call: Callable[..., int], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = split(tmp_path / "drive", scans)
    change(folder)
    assert call(folder) == 1
    assert wanted in capsys.readouterr().err


def test_a_file_without_its_end_names_what_mends_it(
    scans: Scans, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    folder = split(tmp_path / "drive", scans)
    last = folder / "b_0.mcap"
    last.write_bytes(last.read_bytes()[:-100])
    assert call(folder) == 1
    error = capsys.readouterr().err
    assert f"{last}: the bag cannot be read" in error
    assert "mcap recover FILE" in error


def test_output_into_a_folder_that_is_read_whole_is_refused(
    scans: Scans, call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    folder = split(tmp_path / "drive", scans)
    with pytest.raises(SystemExit):
        call(folder, "--save", str(folder / "labelled.mcap"))
    assert "--save lies in the bag's folder" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["FILE", "MESSAGE"])
@pytest.mark.parametrize("plugin", ["MCAP", "SQLITE3"])
def test_compressed_rosbag2(mode: str, plugin: str, scans: Scans, call: Callable[..., int], tmp_path: Path) -> None:
    rosbag2 = bag_files.rosbag2
    maker, folder = bag_files.Maker(2), tmp_path / "drive"
    writer = rosbag2.Writer(folder, version=9, storage_plugin=rosbag2.StoragePlugin[plugin])
    writer.set_compression(rosbag2.CompressionMode[mode], rosbag2.CompressionFormat.ZSTD)
    with writer:
        bag_files._fill(writer, maker, scans, (), maker.store.serialize_cdr, {"typestore": maker.store})
    assert call(folder) == 0
    assert lengths(tmp_path / "out.mcap") == [len(points) for points in scans]


def test_sqlite_with_other_encodings_and_no_metadata(
    scans: Scans, call: Callable[..., int], tmp_path: Path
) -> None:  # fmt: skip
    bag = bag_files.write(tmp_path / "drive.db3", scans)
    (bag.parent / "metadata.yaml").unlink()
    with sqlite3.connect(bag) as database:
        database.execute("INSERT INTO topics VALUES (99, '/boxes', 'foxglove.SceneUpdate', 'json', '', '')")
        database.execute("INSERT INTO message_definitions VALUES (99, 'foxglove.SceneUpdate', 'jsonschema', '{}', '')")
        database.execute("INSERT INTO messages VALUES (9999, 99, 5, x'7b7d')")
    database.close()
    assert call(bag.parent, "--sweeps", "2", "--pose", "tf") == 0
    assert lengths(tmp_path / "out.mcap") == [len(points) for points in scans]


def test_sqlite_of_a_recorder_that_was_ended(
    scans: Scans, call: Callable[..., int], tmp_path: Path
) -> None:  # fmt: skip
    """Its last messages are in NAME-wal."""
    bag = bag_files.write(tmp_path / "drive.db3", scans[:4])
    copy = tmp_path / "crashed" / "drive.db3"
    copy.parent.mkdir()
    maker = bag_files.Maker(2)
    database = sqlite3.connect(bag)
    database.execute("PRAGMA journal_mode = WAL")
    (topic,) = database.execute("SELECT id FROM topics WHERE name = '/lidar'").fetchone()
    data = bytes(maker.store.serialize_cdr(maker.cloud(4, scans[4]), CLOUD))
    time = bag_files.START_NS + 4 * bag_files.STEP_NS
    database.execute("INSERT INTO messages (topic_id, timestamp, data) VALUES (?, ?, ?)", (topic, time, data))
    database.commit()
    for file in (bag, bag.with_name(f"{bag.name}-wal")):  # before sqlite3 moves them into the file
        shutil.copy(file, copy.parent)
    database.close()
    assert call(copy) == 0
    assert lengths(tmp_path / "out.mcap") == [len(points) for points in scans]


def test_messages_of_a_file_without_an_index_come_in_its_order(
    scans: Scans, call: Callable[..., int], tmp_path: Path
) -> None:  # fmt: skip
    maker = bag_files.Maker(2)
    messages = [("/lidar", CLOUD, index, maker.cloud(index, scans[index])) for index in (2, 0, 1)]
    assert call(bag_files.write_mcap(tmp_path / "drive.mcap", messages, use_chunking=False)) == 0
    clouds = sorted(len(points) for points in scans[:3])
    assert sorted(lengths(tmp_path / "out.mcap")) == clouds


IDL = """\
================================================================================
IDL: geometry_msgs/msg/Pose
#include "geometry_msgs/msg/Point.idl"
#include "geometry_msgs/msg/Quaternion.idl"
module geometry_msgs { module msg { struct Pose {
  geometry_msgs::msg::Point position; geometry_msgs::msg::Quaternion orientation; }; }; };
================================================================================
IDL: geometry_msgs/msg/Point
module geometry_msgs { module msg { struct Point { double x; double y; double z; }; }; };
================================================================================
IDL: geometry_msgs/msg/Quaternion
module geometry_msgs { module msg { struct Quaternion { double x; double y; double z; double w; }; }; };
"""


def test_types_are_read_by_the_definition_that_the_bag_has() -> None:
    maker = bag_files.Maker(2)
    point, turn = maker.types["geometry_msgs/msg/Point"], maker.types["geometry_msgs/msg/Quaternion"]
    kind = "geometry_msgs/msg/Pose"
    pose = maker.types[kind](position=point(x=1.0, y=2.0, z=3.0), orientation=turn(x=0.0, y=0.0, z=0.0, w=1.0))
    data = bytes(maker.store.serialize_cdr(pose, kind))
    text = maker.store.generate_msgdef(kind, ros_version=2)[0]
    for form, definition in (("ros2idl", IDL), ("ros2msg", text), ("", "")):
        channel = recording.Channel("/pose", kind, "cdr", form, definition.encode())
        decoded = recording.Decoder().decode(recording.Message(channel, 0, data))
        assert (decoded.position.y, decoded.orientation.w) == (2.0, 1.0), form
    # A definition of another layout is the one that counts.
    other = recording.Channel("/pose", kind, "cdr", "ros2msg", b"float64[6] a\nfloat64 b")
    assert recording.Decoder().decode(recording.Message(other, 0, data)).b == 1.0


def test_a_part_with_damage_goes_on_before_it(
    scans: Scans, server: FakeServer, call: Callable[..., int], tmp_path: Path
) -> None:
    points = np.concatenate(scans * 40)  # more than a chunk of the file
    bag = bag_files.write(tmp_path / "drive.mcap", [points] * 6)
    whole, server.streams = server.streams, breaking(5)
    assert call(bag) == 1
    part = tmp_path / "out.mcap.part"
    contents = bytearray(part.read_bytes())
    for place in range(3 * len(contents) // 4, 3 * len(contents) // 4 + 50):  # as after a loss of power
        contents[place] ^= 255
    part.write_bytes(contents)
    server.streams, server.requests = whole, []
    assert call(bag) == 0
    assert 0 < server.requests[1].frame.frame_id < 5
    assert lengths(tmp_path / "out.mcap") == [len(points)] * 6
