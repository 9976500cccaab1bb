"""Reads ROS 1 bags, and rosbag2 folders whose files or messages are compressed, with the library rosbags."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from voxserve.bag.recording import CDR, ROS1, Channel, Message, broken


class RosbagsReader:
    """A bag that rosbags reads. The constructor raises BagError for a broken bag."""

    def __init__(self, path: Path) -> None:
        from rosbags.highlevel import AnyReader
        from rosbags.typesys import Stores, get_typestore

        self._path = path
        try:
            self._reader: Any = AnyReader([path], default_typestore=get_typestore(Stores.ROS2_HUMBLE))
            self._reader.open()
        except Exception as error:  # for broken bytes, rosbags passes on any error of its parsers
            raise self._broken(error) from None
        self._channels: dict[int, Channel] = {id(each): self._channel(each) for each in self._reader.connections}

    def _broken(self, error: Exception) -> Exception:
        advice = "" if self._path.is_dir() else "if its recorder was ended before its end, mend it: rosbag reindex FILE"
        return broken(self._path, error, advice)

    def _channel(self, connection: Any) -> Channel:
        definition = connection.msgdef  # a text before rosbags 0.10.5
        text = definition if isinstance(definition, str) else definition.data
        is_idl = not isinstance(definition, str) and definition.format.name == "IDL"
        kind = "ros2idl" if is_idl else "ros2msg" if self._reader.is2 else "ros1msg"
        encoding = CDR if self._reader.is2 else ROS1
        return Channel(connection.topic, connection.msgtype, encoding, kind, text.encode())

    @property
    def num_bytes(self) -> int:
        """The size of the file, or of the folder's entry."""
        return self._path.stat().st_size

    def counts(self) -> dict[Channel, int]:
        """Returns the number of messages of each channel."""
        found: dict[Channel, int] = {}
        for connection in self._reader.connections:
            channel = self._channels[id(connection)]
            found[channel] = found.get(channel, 0) + connection.msgcount
        return found

    def messages(self, channels: Collection[Channel]) -> Iterator[Message]:
        """Yields the messages of these channels, in the order of their times."""
        connections = [each for each in self._reader.connections if self._channels[id(each)] in channels]
        if not connections:
            return
        try:
            for connection, time_ns, data in self._reader.messages(connections=connections):
                yield Message(self._channels[id(connection)], time_ns, bytes(data))
        except Exception as error:
            raise self._broken(error) from None

    def close(self) -> None:
        """Closes the bag."""
        self._reader.close()
