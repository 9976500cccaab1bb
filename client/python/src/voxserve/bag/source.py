"""Reads the clouds and poses of a recorded drive from rosbag2 (mcap, sqlite3) and ROS 1 bags.

A message that cannot be read does not end the reading: it is returned as a Skipped, which names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from voxserve.bag.bag_error import BagError
from voxserve.bag.open_recording import open_recording
from voxserve.bag.recording import CDR, ROS1, Channel, Decoder, Message
from voxserve.bag.transforms import Transforms
from voxserve.point_cloud import PointCloud, as_cloud
from voxserve.pose import Pose
from voxserve.row_layout import row_step_of

CLOUD = "sensor_msgs/msg/PointCloud2"
_TRANSFORMS = "tf2_msgs/msg/TFMessage"
_OLD_TRANSFORMS = "tf/msg/tfMessage"
# Type of a message -> the attribute that holds the pose.
_POSES = {
    "nav_msgs/msg/Odometry": "pose.pose",
    "geometry_msgs/msg/PoseWithCovarianceStamped": "pose.pose",
    "geometry_msgs/msg/PoseStamped": "pose",
}


@dataclass(frozen=True)
class Sweep:
    """One recorded cloud."""

    index: int  # the index of its message in the topic, from 0
    time_ns: int  # the time of the recording, nanoseconds since 1970
    message: Any  # the PointCloud2
    cloud: PointCloud


@dataclass(frozen=True)
class Skipped:
    """A message that was left out, and why."""

    topic: str
    index: int  # the index of the message in the topic, from 0
    time_ns: int  # the time of the recording, nanoseconds since 1970
    reason: str

    def __str__(self) -> str:
        seconds, rest = divmod(self.time_ns, 1_000_000_000)
        return f"message {self.index} of {self.topic} at {seconds}.{rest:09d}: {self.reason}"


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
            import mcap  # noqa: F401
            import rosbags  # noqa: F401
        except ImportError:
            raise BagError("bags need more packages: pip install 'voxserve[bag]'") from None
        self.path = path
        self.skipped: list[Skipped] = []  # messages of tf and poses that could not be read
        self._recording = open_recording(Path(path))
        self._counts = self._recording.counts()
        self._decoder = Decoder()

    @property
    def num_bytes(self) -> int:
        """The size of the bag."""
        return self._recording.num_bytes

    def topic(self, name: str) -> str:
        """Returns the name, if it is that of a topic of PointCloud2 messages. If the name is "", returns the bag's only
        topic of PointCloud2 messages.
        """
        if not sum(self._counts.values()):
            raise BagError(f"{self.path}: the bag is empty")
        kinds: dict[str, set[str]] = {}
        for channel in self._counts:
            kinds.setdefault(channel.topic, set()).add(_kind_of(channel))
        clouds = sorted(topic for topic, of_topic in kinds.items() if CLOUD in of_topic)
        others = ", ".join(f"{topic} ({' and '.join(sorted(of_topic))})" for topic, of_topic in sorted(kinds.items()))
        listed = ", ".join(clouds) or f"none; it has {others}"
        if not name and len(clouds) == 1:
            name = clouds[0]
        if not name:
            raise BagError(f"{self.path}: say with --topic which topic to label; of type PointCloud2: {listed}")
        if name not in kinds:
            raise BagError(f"{self.path}: no topic {name}; of type PointCloud2: {listed}")
        if name not in clouds:
            kind = " and ".join(sorted(kinds[name]))
            raise BagError(f"{self.path}: {name} has messages of type {kind}, not PointCloud2: {listed}")
        if not self.count(name):
            raise BagError(f"{self.path}: {name} has no messages")
        return name

    def count(self, topic: str) -> int:
        """Returns the number of messages of a topic."""
        return sum(self._counts[channel] for channel in self._of_topic(topic))

    def sweeps(self, topic: str, start: int = 0, fields: str = "") -> Iterator[Sweep | Skipped]:
        """Yields the clouds of a topic in the order of their recording, beginning with index `start`. fields: a field
        spec, which gives fields other names or scales; "" for none. A cloud that lacks one of its fields is skipped.
        """
        for index, message in enumerate(self._recording.messages(self._of_topic(topic))):
            if index < start:
                continue
            try:
                cloud_message = self._decode(message, CLOUD)
                yield Sweep(index, message.time_ns, cloud_message, _cloud_of(cloud_message, fields))
            except ValueError as error:
                yield Skipped(topic, index, message.time_ns, str(error))

    def transforms(self) -> Transforms:
        """Returns the transforms of all messages of tf. Those of a topic tf_static hold at all times. Adds what it
        cannot read to `skipped`.
        """
        transforms = Transforms()
        for index, message in self._numbered(_TRANSFORMS, _OLD_TRANSFORMS):
            try:
                found = self._decode(message, message.channel.type).transforms
            except ValueError as error:
                self._skip(index, message, str(error))
                continue
            for transform in found:
                try:
                    pose = _pose(transform.transform.translation, transform.transform.rotation)
                except ValueError as error:
                    self._skip(index, message, f"the pose of {transform.child_frame_id}: {error}")
                    continue
                transforms.add(
                    transform.header.frame_id,
                    transform.child_frame_id,
                    _stamp(transform.header.stamp),
                    pose,
                    message.channel.topic.endswith("tf_static"),
                )
        return transforms

    def poses(self, topic: str) -> tuple[Transforms, str, str]:
        """Returns the poses of a topic as transforms, the name of the frame that does not move, and the name of the
        frame whose poses they are; "" if the messages do not name it. Adds what it cannot read to `skipped`.
        """
        channels = self._of_topic(topic)
        if not channels:
            raise BagError(f"{self.path}: no topic {topic} for poses")
        kinds = {channel.type for channel in channels}
        if not kinds & {*_POSES}:
            known = ", ".join(sorted(_POSES))
            kind = " and ".join(sorted(kinds))
            raise BagError(f"{self.path}: {topic} has messages of type {kind}; poses are read of {known}")
        transforms, fixed, moving = Transforms(), "", ""
        for index, recorded in enumerate(self._recording.messages(channels)):
            try:
                message = self._decode(recorded, *_POSES)
                pose = message
                for name in _POSES[recorded.channel.type].split("."):
                    pose = getattr(pose, name)
                place = _pose(pose.position, pose.orientation)
            except ValueError as error:
                self._skip(index, recorded, str(error))
                continue
            fixed, moving = message.header.frame_id, getattr(message, "child_frame_id", "")
            transforms.add(fixed, moving, _stamp(message.header.stamp), place, False)
        return transforms, fixed, moving

    def transform_messages(self) -> Iterator[Raw]:
        """Yields the messages of tf, to copy them. Adds what it cannot convert to `skipped`."""
        for index, message in self._numbered(_TRANSFORMS):
            try:
                data = self._decoder.to_cdr(message)
            except Exception as error:  # for broken bytes, rosbags passes on any error of its parsers
                self._skip(index, message, _undecodable(error))
                continue
            yield Raw(message.channel.topic, message.channel.type, message.time_ns, data)

    def _of_topic(self, topic: str) -> list[Channel]:
        return [channel for channel in self._counts if channel.topic == topic]

    def _numbered(self, *kinds: str) -> Iterator[tuple[int, Message]]:
        """Yields the messages of these types, each with its index in its topic."""
        channels = [each for each in self._counts if each.type in kinds and each.encoding in (CDR, ROS1)]
        numbers: dict[str, int] = {}
        for message in self._recording.messages(channels):
            index = numbers.get(message.channel.topic, 0)
            numbers[message.channel.topic] = index + 1
            yield index, message

    def _skip(self, index: int, message: Message, reason: str) -> None:
        skipped = Skipped(message.channel.topic, index, message.time_ns, reason)
        last = self.skipped[-1] if self.skipped else None
        if last is None or (last.topic, last.index) != (skipped.topic, index):  # a message may have several bad poses
            self.skipped.append(skipped)

    def _decode(self, message: Message, *kinds: str) -> Any:
        """Returns the decoded message. ValueError if it is not of one of these types, or cannot be decoded."""
        if message.channel.type not in kinds:
            raise ValueError(f"it has the type {_kind_of(message.channel)}, not {' or '.join(kinds)}")
        try:
            return self._decoder.decode(message)
        except Exception as error:  # for broken bytes, rosbags passes on any error of its parsers
            raise ValueError(_undecodable(error)) from None

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._recording.close()


def _kind_of(channel: Channel) -> str:
    """Returns the type of a channel's messages, with their encoding if they cannot be decoded."""
    kind = channel.type or "unknown"
    return kind if channel.encoding in (CDR, ROS1) else f"{kind} in {channel.encoding or 'no encoding'}"


def _undecodable(error: Exception) -> str:
    return f"it cannot be decoded ({str(error) or type(error).__name__})"


def _cloud_of(message: Any, fields: str) -> PointCloud:
    """Returns the cloud of a PointCloud2. ValueError if its fields are unknown, or its sizes do not fit its bytes."""
    points, data = int(message.width) * int(message.height), len(message.data)
    row_step_of(points, message.height, message.point_step, message.row_step, data)
    return as_cloud(message, fields or None)


def _stamp(stamp: Any) -> int:
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def _pose(place: Any, turn: Any) -> Pose:
    return Pose((place.x, place.y, place.z), (turn.w, turn.x, turn.y, turn.z))
