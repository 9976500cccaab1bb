"""Reads the clouds and poses of a recorded drive from rosbag2 (mcap, sqlite3) and ROS 1 bags, with rosbags."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from voxserve.bag.bag_error import BagError
from voxserve.bag.transforms import Transforms
from voxserve.point_cloud import PointCloud
from voxserve.pose import Pose

CLOUD = "sensor_msgs/msg/PointCloud2"
_TRANSFORMS = "tf2_msgs/msg/TFMessage"
_OLD_TRANSFORMS = "tf/msg/tfMessage"
# Type of a message -> the attribute that holds the pose.
_POSES = {
    "nav_msgs/msg/Odometry": "pose.pose",
    "geometry_msgs/msg/PoseWithCovarianceStamped": "pose.pose",
    "geometry_msgs/msg/PoseStamped": "pose",
}
_MAGIC = {".mcap": b"\x89MCAP0\r\n", ".db3": b"SQLite format 3\0", ".bag": b"#ROSBAG V"}


@dataclass(frozen=True)
class Sweep:
    """One recorded cloud."""

    index: int  # the index of its message in the topic, from 0
    time_ns: int  # the time of the recording, nanoseconds since 1970
    message: Any  # the PointCloud2
    cloud: PointCloud


@dataclass(frozen=True)
class Raw:
    """A message to copy into the labelled bag, in ROS 2's encoding (CDR)."""

    topic: str
    type: str
    time_ns: int
    data: bytes


class Source:
    """A bag that is open for reading. Use it in a `with` block, in one thread at a time. The constructor and the
    methods raise BagError if the bag is broken, or has no such topic or messages.
    """

    def __init__(self, path: str) -> None:
        try:
            from rosbags.highlevel import AnyReader
            from rosbags.typesys import Stores, get_typestore
        except ImportError:
            raise BagError("bags need more packages: pip install 'voxserve[bag]'") from None
        self.path = path
        place = Path(path)
        _check(place)
        try:
            self._store: Any = get_typestore(Stores.ROS2_HUMBLE)
            self._reader: Any = AnyReader([place], default_typestore=self._store)
            self._reader.open()
        except Exception as error:  # for broken bytes, rosbags passes on any error of its parsers
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> BagError:
        text = str(error) or type(error).__name__
        return BagError(f"{self.path}: the bag cannot be read; it is broken, cut short or of another kind ({text})")

    def topic(self, name: str) -> str:
        """Returns the name, if it is that of a topic of PointCloud2 messages. If the name is "", returns the bag's only
        topic of PointCloud2 messages.
        """
        kinds: dict[str, str] = {connection.topic: connection.msgtype for connection in self._reader.connections}
        clouds = sorted(topic for topic, kind in kinds.items() if kind == CLOUD)
        if not kinds or not self._reader.message_count:
            raise BagError(f"{self.path}: the bag is empty")
        listed = ", ".join(clouds) or "none; it has " + ", ".join(f"{t} ({k})" for t, k in sorted(kinds.items()))
        if not name and len(clouds) == 1:
            name = clouds[0]
        if not name:
            raise BagError(f"{self.path}: say with --topic which topic to label; of type PointCloud2: {listed}")
        if name not in kinds:
            raise BagError(f"{self.path}: no topic {name}; of type PointCloud2: {listed}")
        if kinds[name] != CLOUD:
            raise BagError(f"{self.path}: {name} has messages of type {kinds[name]}, not PointCloud2: {listed}")
        if not self.count(name):
            raise BagError(f"{self.path}: {name} has no messages")
        return name

    def count(self, topic: str) -> int:
        """Returns the number of messages of a topic."""
        return sum(connection.msgcount for connection in self._of_topic(topic))

    def sweeps(self, topic: str, start: int = 0) -> Iterator[Sweep]:
        """Yields the clouds of a topic in the order of their recording, beginning with index `start`."""
        for index, (connection, time_ns, data) in enumerate(self._messages(self._of_topic(topic))):
            if index < start:
                continue
            message = self._decode(data, connection.msgtype)
            try:
                _check_layout(message)
                cloud = PointCloud.from_ros(message)
            except ValueError as error:
                raise BagError(f"{self.path}: message {index} of {topic}: {error}") from None
            yield Sweep(index, time_ns, message, cloud)

    def transforms(self) -> Transforms:
        """Returns the transforms of all messages of tf. Those of a topic tf_static hold at all times."""
        transforms = Transforms()
        connections = [c for c in self._reader.connections if c.msgtype in (_TRANSFORMS, _OLD_TRANSFORMS)]
        for connection, _, data in self._messages(connections) if connections else ():
            for transform in self._decode(data, connection.msgtype).transforms:
                transforms.add(
                    transform.header.frame_id,
                    transform.child_frame_id,
                    _stamp(transform.header.stamp),
                    _pose(transform.transform.translation, transform.transform.rotation),
                    connection.topic.endswith("tf_static"),
                )
        return transforms

    def poses(self, topic: str) -> tuple[Transforms, str, str]:
        """Returns the poses of a topic as transforms, the name of the frame that does not move, and the name of the
        frame whose poses they are; "" if the messages do not name it.
        """
        connections = self._of_topic(topic)
        if not connections:
            raise BagError(f"{self.path}: no topic {topic} for poses")
        kind = connections[0].msgtype
        if kind not in _POSES:
            known = ", ".join(sorted(_POSES))
            raise BagError(f"{self.path}: {topic} has messages of type {kind}; poses are read of {known}")
        transforms, fixed, moving = Transforms(), "", ""
        for _, _, data in self._messages(connections):
            message = self._decode(data, kind)
            pose = message
            for name in _POSES[kind].split("."):
                pose = getattr(pose, name)
            fixed, moving = message.header.frame_id, getattr(message, "child_frame_id", "")
            transforms.add(fixed, moving, _stamp(message.header.stamp), _pose(pose.position, pose.orientation), False)
        return transforms, fixed, moving

    def transform_messages(self) -> Iterator[Raw]:
        """Yields the messages of tf, to copy them."""
        connections = [c for c in self._reader.connections if c.msgtype == _TRANSFORMS]
        for connection, time_ns, data in self._messages(connections) if connections else ():
            try:
                raw = data if self._reader.is2 else self._store.ros1_to_cdr(data, connection.msgtype)
            except Exception as error:
                raise self._broken(error) from None
            yield Raw(connection.topic, connection.msgtype, time_ns, bytes(raw))

    def _of_topic(self, topic: str) -> list[Any]:
        return [connection for connection in self._reader.connections if connection.topic == topic]

    def _messages(self, connections: list[Any]) -> Iterator[tuple[Any, int, bytes]]:
        messages = self._reader.messages(connections=connections)
        while True:
            try:
                message = next(messages)
            except StopIteration:
                return
            except Exception as error:
                raise self._broken(error) from None
            yield message

    def _decode(self, data: bytes, kind: str) -> Any:
        try:
            return self._reader.deserialize(data, kind)
        except Exception as error:
            raise self._broken(error) from None

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()


def _check(path: Path) -> None:
    if not path.exists():
        raise BagError(f"{path}: no such file or folder")
    if path.is_dir():
        if not (path / "metadata.yaml").is_file():
            raise BagError(f"{path}: the folder is no rosbag2: it has no metadata.yaml")
        return
    if not path.stat().st_size:
        raise BagError(f"{path}: the file is empty")
    magic = _MAGIC.get(path.suffix)
    if magic is None:
        raise BagError(f"{path}: bags are .mcap, .db3, .bag, or a folder with metadata.yaml")
    with path.open("rb") as file:
        if file.read(len(magic)) != magic:
            raise BagError(f"{path}: not a bag of the kind that {path.suffix} names")


def _check_layout(message: Any) -> None:
    """Raises ValueError if a PointCloud2 has fewer bytes than its points need."""
    width, height, step, row = message.width, message.height, message.point_step, message.row_step
    needed = (height - 1) * row + width * step if width * height else 0
    if width * height and (step == 0 or row < width * step):
        raise ValueError(f"{width} points of {step} bytes do not fit a row of {row} bytes")
    if len(message.data) < needed:
        raise ValueError(f"{height} rows of {row} bytes need {needed} bytes, but there are {len(message.data)}")


def _stamp(stamp: Any) -> int:
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def _pose(place: Any, turn: Any) -> Pose:
    try:
        return Pose((place.x, place.y, place.z), (turn.w, turn.x, turn.y, turn.z))
    except ValueError as error:
        raise BagError(f"a pose of the bag: {error}") from None
