"""Writes bags for tests: each kind of bag (ROS 1, MCAP, db3) with the same clouds, poses and transforms; and reads what
voxserve.bag has written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

rosbag1 = pytest.importorskip("rosbags.rosbag1", reason="rosbags is not installed (voxserve[bag])")
rosbag2 = pytest.importorskip("rosbags.rosbag2")
typesys = pytest.importorskip("rosbags.typesys")
make_reader = pytest.importorskip("mcap.reader", reason="mcap is not installed (voxserve[bag])").make_reader
DecoderFactory = pytest.importorskip("mcap_ros2.decoder", reason="mcap-ros2-support is not installed").DecoderFactory

Scans = list[np.ndarray[Any, np.dtype[np.float32]]]

START_NS = 1_700_000_000_000_000_000
STEP_NS = 100_000_000
_STORES = {1: typesys.Stores.ROS1_NOETIC, 2: typesys.Stores.ROS2_HUMBLE}
_CLOUD = "sensor_msgs/msg/PointCloud2"
_TRANSFORMS = "tf2_msgs/msg/TFMessage"
_ODOMETRY = "nav_msgs/msg/Odometry"


class Maker:
    """Makes the messages of ROS 1 or ROS 2."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.store: Any = typesys.get_typestore(_STORES[version])
        if version == 1:
            text = "geometry_msgs/TransformStamped[] transforms"
            self.store.register(typesys.get_types_from_msg(text, _TRANSFORMS))
        self.types = self.store.types

    def header(self, index: int, frame: str) -> Any:
        stamp = START_NS + index * STEP_NS
        time = self.types["builtin_interfaces/msg/Time"](sec=stamp // 10**9, nanosec=stamp % 10**9)
        extra = {"seq": index} if self.version == 1 else {}
        return self.types["std_msgs/msg/Header"](stamp=time, frame_id=frame, **extra)

    def cloud(self, index: int, points: npt.NDArray[np.float32], *, big: bool = False, **changes: Any) -> Any:
        """Returns a cloud of x, y, z, intensity, with four unused bytes after each point and eight after a row."""
        data = np.zeros((1, len(points) * 20 + 8), np.uint8)
        values = np.zeros((len(points), 20), np.uint8)
        values[:, :16] = points.astype(">f4" if big else "<f4").view(np.uint8).reshape(-1, 16)
        values[:, 16:] = np.arange(4)
        data[0, :-8] = values.reshape(-1)
        names = ("x", "y", "z", "intensity")
        field = self.types["sensor_msgs/msg/PointField"]
        content = {
            "header": self.header(index, "lidar"),
            "height": 1,
            "width": len(points),
            "fields": [field(name=name, offset=4 * i, datatype=7, count=1) for i, name in enumerate(names)],
            "is_bigendian": big,
            "point_step": 20,
            "row_step": data.shape[1],
            "data": data.reshape(-1),
            "is_dense": True,
        }
        return self.types[_CLOUD](**{**content, **changes})

    def transform(self, index: int, parent: str, child: str, x: float) -> Any:
        vector, quaternion = self.types["geometry_msgs/msg/Vector3"], self.types["geometry_msgs/msg/Quaternion"]
        moved = self.types["geometry_msgs/msg/Transform"](
            translation=vector(x=x, y=0.0, z=0.0), rotation=quaternion(x=0.0, y=0.0, z=0.0, w=1.0)
        )
        stamped = self.types["geometry_msgs/msg/TransformStamped"](
            header=self.header(index, parent), child_frame_id=child, transform=moved
        )
        return self.types[_TRANSFORMS](transforms=[stamped])

    def odometry(self, index: int, x: float) -> Any:
        types = self.types
        point, quaternion = types["geometry_msgs/msg/Point"], types["geometry_msgs/msg/Quaternion"]
        vector, twist = types["geometry_msgs/msg/Vector3"], types["geometry_msgs/msg/Twist"]
        pose = types["geometry_msgs/msg/Pose"](
            position=point(x=x, y=0.0, z=0.0), orientation=quaternion(x=0.0, y=0.0, z=0.0, w=1.0)
        )
        still = twist(linear=vector(x=0.0, y=0.0, z=0.0), angular=vector(x=0.0, y=0.0, z=0.0))
        return types[_ODOMETRY](
            header=self.header(index, "odom"),
            child_frame_id="base",
            pose=types["geometry_msgs/msg/PoseWithCovariance"](pose=pose, covariance=np.zeros(36)),
            twist=types["geometry_msgs/msg/TwistWithCovariance"](twist=still, covariance=np.zeros(36)),
        )


def write(path: Path, scans: Sequence[npt.NDArray[np.float32]], clouds: Sequence[Any] = ()) -> Path:
    """Writes a bag of the kind that the path's suffix names, and returns the bag's path: .bag (ROS 1), .mcap or .db3.
    An .mcap or .db3 file lies in a folder with metadata.yaml, and the file's own path is returned. clouds: messages to
    write in place of those made from `scans`.
    """
    if path.suffix == ".bag":
        maker = Maker(1)
        with rosbag1.Writer(path) as writer:
            _fill(writer, maker, scans, clouds, maker.store.serialize_ros1, {"typestore": maker.store})
        return path
    maker = Maker(2)
    kind = rosbag2.StoragePlugin.MCAP if path.suffix == ".mcap" else rosbag2.StoragePlugin.SQLITE3
    folder = path.with_suffix("")
    with rosbag2.Writer(folder, version=9, storage_plugin=kind) as writer:
        _fill(writer, maker, scans, clouds, maker.store.serialize_cdr, {"typestore": maker.store})
    return next(folder.glob(f"*{path.suffix}"))


def write_mcap(path: Path, messages: Sequence[tuple[str, str, int, Any]], **options: Any) -> Path:
    """Writes an MCAP file with MCAP's own library, and returns its path. messages: topic, type, index (its time is
    index * STEP_NS later than START_NS) and the message, or its bytes; a type that is no ROS type is in protobuf, and
    its definition is no text. options: of mcap.writer.Writer.
    """
    from mcap.writer import Writer

    maker = Maker(2)
    with path.open("wb") as file:
        writer = Writer(file, **options)
        writer.start(profile="", library="test")
        channels: dict[tuple[str, str], int] = {}
        for topic, kind, index, message in messages:
            if (topic, kind) not in channels:
                is_ros = "/msg/" in kind
                definition = maker.store.generate_msgdef(kind, ros_version=2)[0].encode() if is_ros else b"\xff\xfe{}"
                schema = writer.register_schema(kind, "ros2msg" if is_ros else "protobuf", definition)
                channels[topic, kind] = writer.register_channel(topic, "cdr" if is_ros else "protobuf", schema)
            data = message if isinstance(message, bytes) else bytes(maker.store.serialize_cdr(message, kind))
            time = START_NS + index * STEP_NS
            writer.add_message(channels[topic, kind], time, data, time)
        writer.finish()
    return path


def _fill(writer: Any, maker: Maker, scans: Any, clouds: Any, serialize: Any, extra: dict[str, Any]) -> None:
    topics = {"/lidar": _CLOUD, "/tf": _TRANSFORMS, "/tf_static": _TRANSFORMS, "/odom": _ODOMETRY}
    connections = {topic: writer.add_connection(topic, kind, **extra) for topic, kind in topics.items()}

    def put(topic: str, index: int, message: Any) -> None:
        writer.write(connections[topic], START_NS + index * STEP_NS, serialize(message, topics[topic]))

    put("/tf_static", 0, maker.transform(0, "base", "lidar", 1.5))
    made = clouds or [maker.cloud(index, points) for index, points in enumerate(scans)]
    for index, cloud in enumerate(made):
        put("/tf", index, maker.transform(index, "odom", "base", 2.0 * index))
        put("/odom", index, maker.odometry(index, 2.0 * index))
        put("/lidar", index, cloud)


def read(path: Path) -> dict[str, list[tuple[int, Any]]]:
    """Returns (time, message) by topic, decoded by another library than the one that wrote them."""
    messages: dict[str, list[tuple[int, Any]]] = {}
    with path.open("rb") as file:
        for schema, channel, message in make_reader(file).iter_messages():
            if channel.message_encoding == "json":
                assert json.loads(schema.data)["title"] == schema.name
                content = json.loads(message.data)
            else:
                decode = DecoderFactory().decoder_for(channel.message_encoding, schema)
                assert decode is not None
                content = decode(message.data)
            messages.setdefault(channel.topic, []).append((message.log_time, content))
    return messages


def point_bytes(message: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns a PointCloud2's bytes, [points, point_step]."""
    data = np.frombuffer(bytes(message.data), np.uint8).reshape(message.height, message.row_step)
    return data[:, : message.width * message.point_step].reshape(-1, message.point_step)
