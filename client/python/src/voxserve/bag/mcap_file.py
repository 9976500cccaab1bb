"""Reads a file in the MCAP format. Only the definitions of types that are decoded are parsed, so topics of other kinds
(JSON, protobuf, ...) may be in the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from voxserve import input_file
from voxserve.bag.bag_error import BagError
from voxserve.bag.recording import Channel, Message, broken, type_name

_NO_END = "if its recorder was ended before it closed the file, mend it: mcap recover FILE -o MENDED"


class McapFile:
    """One .mcap file. It is opened anew for each reading. The constructor raises BagError for a broken file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._counts: dict[Channel, int] = {}
        self.start_ns = 0  # no message is older
        try:
            with input_file.open_regular(path) as file:
                self._is_indexed = self._read_summary(_reader(file))
            if not self._is_indexed:
                self._read_all()
        except BagError:
            raise
        except Exception as error:  # the parser may raise any error for broken bytes
            raise broken(path, error, _NO_END) from None

    def _read_summary(self, reader: Any) -> bool:
        """Reads the index at the file's end. Returns False if messages cannot be found and counted by it: it is
        optional, and so is each of its parts.
        """
        summary = reader.get_summary()
        if summary is None or summary.statistics is None or not summary.chunk_indexes:
            return False
        indexed = {number for chunk in summary.chunk_indexes for number in chunk.message_index_offsets}
        if not indexed or not {*indexed, *summary.statistics.channel_message_counts} <= {*summary.channels}:
            return False
        schemas = {channel.schema_id for channel in summary.channels.values()} - {0}
        if not schemas <= {*summary.schemas}:
            return False
        for number, channel in summary.channels.items():
            count = summary.statistics.channel_message_counts.get(number, 0)
            self._count(_channel(channel, summary.schemas.get(channel.schema_id)), count)
        self.start_ns = min(chunk.message_start_time for chunk in summary.chunk_indexes)
        return True

    def _read_all(self) -> None:
        for message in self._scan(None):
            self._count(message.channel, 1)
            self.start_ns = min(self.start_ns or message.time_ns, message.time_ns)

    def _count(self, channel: Channel, number: int) -> None:
        self._counts[channel] = self._counts.get(channel, 0) + number

    def counts(self) -> dict[Channel, int]:
        """Returns the number of messages of each channel."""
        return dict(self._counts)

    def messages(self, channels: Collection[Channel]) -> Iterator[Message]:
        """Yields the messages of these channels: in the order of their times, or in the file's order if it has no
        index.
        """
        wanted = set(channels)
        if not wanted & {*self._counts}:
            return
        try:
            if not self._is_indexed:
                yield from self._scan(wanted)
                return
            with input_file.open_regular(self.path) as file:
                topics = {channel.topic for channel in wanted}
                for schema, old, message in _reader(file).iter_messages(topics=topics):
                    channel = _channel(old, schema)
                    if channel in wanted:
                        yield Message(channel, message.log_time, message.data)
        except BagError:
            raise
        except Exception as error:
            raise broken(self.path, error, _NO_END) from None

    def _scan(self, wanted: Collection[Channel] | None) -> Iterator[Message]:
        """Yields the messages of these channels, or of all, in the file's order."""
        from mcap import records
        from mcap.stream_reader import StreamReader

        schemas: dict[int, Any] = {}
        channels: dict[int, Channel] = {}
        with input_file.open_regular(self.path) as file:
            for record in StreamReader(file, validate_crcs=True).records:
                if isinstance(record, records.Schema):
                    schemas[record.id] = record
                elif isinstance(record, records.Channel):
                    channels[record.id] = _channel(record, schemas.get(record.schema_id))
                elif isinstance(record, records.Message):
                    channel = channels[record.channel_id]
                    if wanted is None or channel in wanted:
                        yield Message(channel, record.log_time, record.data)


def _reader(file: Any) -> Any:
    from mcap.reader import make_reader

    return make_reader(file, validate_crcs=True)


def _channel(channel: Any, schema: Any) -> Channel:
    if schema is None:
        return Channel(channel.topic, "", channel.message_encoding)
    name = type_name(schema.name)
    return Channel(channel.topic, name, channel.message_encoding, schema.encoding, bytes(schema.data))
