"""Describes what every kind of bag has: channels and their messages; and decodes the messages with rosbags."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from voxserve.bag.bag_error import BagError

CDR, ROS1 = "cdr", "ros1"  # the encodings of messages that can be decoded


@dataclass(frozen=True)
class Channel:
    """The messages of one type on a topic. Two files of a bag have equal channels for the same messages."""

    topic: str
    type: str  # as ROS 2 writes it: "sensor_msgs/msg/PointCloud2"
    encoding: str  # CDR or ROS1, or one that cannot be decoded, such as "json" or "protobuf"
    definition_format: str = ""  # "ros2msg", "ros2idl", "ros1msg", or one that is not read
    definition: bytes = b""  # of the type, in that format; b"" where the bag has none


@dataclass(frozen=True)
class Message:
    """A recorded message."""

    channel: Channel
    time_ns: int  # when it was recorded, nanoseconds since 1970
    data: bytes


class Recording(Protocol):
    """A bag that is open for reading. Methods raise BagError for a broken bag."""

    @property
    def num_bytes(self) -> int:
        """The size of the bag, which distinguishes it from another bag of the same name."""
        ...

    def counts(self) -> dict[Channel, int]:
        """Returns the number of messages of each channel."""
        ...

    def messages(self, channels: Collection[Channel]) -> Iterator[Message]:
        """Yields the messages of these channels, in the order of their times."""
        ...

    def close(self) -> None:
        """Closes the files."""
        ...


def type_name(name: str) -> str:
    """Returns a type's name as ROS 2 writes it: "std_msgs/Header" becomes "std_msgs/msg/Header"."""
    package, slash, kind = name.partition("/")
    return f"{package}/msg/{kind}" if slash and "/" not in kind else name


def broken(path: object, error: Exception, advice: str = "") -> BagError:
    """Returns the error of a bag whose bytes are wrong. advice: what the user can do."""
    text = str(error) or type(error).__name__
    return BagError(
        f"{path}: the bag cannot be read; it is broken, cut short or of another kind ({text})"
        + (f"; {advice}" if advice else "")
    )


class Decoder:
    """Decodes messages, by the definition that the bag has of their type. A bag without one has ROS' own definition."""

    def __init__(self) -> None:
        self._stores: dict[Channel, Any] = {}

    def decode(self, message: Message) -> Any:
        """Returns the message as an object with the attributes of its type. ValueError says why it cannot be decoded,
        among other errors of rosbags' parsers.
        """
        store = self._store(message.channel)
        if message.channel.encoding == ROS1:
            return store.deserialize_ros1(message.data, message.channel.type)
        return store.deserialize_cdr(message.data, message.channel.type)

    def to_cdr(self, message: Message) -> bytes:
        """Returns the message's bytes in ROS 2's encoding. The errors are those of decode()."""
        if message.channel.encoding == CDR:
            return message.data
        from rosbags.typesys import Stores, get_typestore

        return bytes(get_typestore(Stores.ROS2_HUMBLE).ros1_to_cdr(message.data, message.channel.type))

    def _store(self, channel: Channel) -> Any:
        from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

        if channel.encoding not in (CDR, ROS1):
            raise ValueError(f"messages of encoding '{channel.encoding}' cannot be read, only {CDR} and {ROS1}")
        if channel in self._stores:
            return self._stores[channel]
        text = channel.definition.decode()
        if not text.strip():
            store = get_typestore(Stores.ROS1_NOETIC if channel.encoding == ROS1 else Stores.ROS2_HUMBLE)
        else:
            store = get_typestore(Stores.EMPTY)
            if channel.definition_format == "ros2idl":
                for part in _idl_parts(text):
                    store.register(get_types_from_idl(part))
            else:
                store.register(get_types_from_msg(text, channel.type))
        self._stores[channel] = store
        return store


def _idl_parts(text: str) -> Sequence[str]:
    """Returns the definitions of a type and of those that it uses: rosbag2 writes them one after the other, each after
    a line of "=" and a line "IDL: NAME". Leaves out #include, which rosbags does not know and nothing needs here.
    """
    line = "=" * 80 + "\n"
    plain = "".join(each for each in text.splitlines(keepends=True) if not each.lstrip().startswith("#include"))
    if not plain.startswith(f"{line}IDL: "):
        return [plain]
    return [part.partition("\n")[2] for part in plain.split(line)[1:]]
