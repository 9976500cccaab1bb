"""Writes a labelled drive to an MCAP file. If a run is interrupted, a later run can continue it.

Messages are written to NAME.part, which is renamed to NAME when it is complete. The cloud is the last of a sweep's
messages. So a sweep whose cloud is in the file is complete.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from voxserve import input_file
from voxserve.bag import messages
from voxserve.bag.bag_error import BagError
from voxserve.bag.messages import Colors
from voxserve.bag.source import CLOUD, Raw, Skipped, Sweep
from voxserve.results import Detections, Segmentation, Tensors

_RECORD = "voxserve"
_MARKERS = "visualization_msgs/msg/MarkerArray"


class Sink:
    """Writes an MCAP file with the topics TOPIC/labelled, TOPIC/boxes, TOPIC/markers, TOPIC/timing and TOPIC/skipped,
    and with tf. One thread uses it.

    job: the input and the settings, as job_of() returns them; the file keeps them as metadata. The constructor raises
    BagError if NAME.part exists and was written with another job.
    """

    def __init__(self, path: str, topic: str, job: Mapping[str, str], colors: Colors) -> None:
        from mcap.writer import CompressionType, Writer
        from rosbags.typesys import Stores, get_typestore

        self.path, self.part = path, f"{path}.part"
        self._topic, self._colors = topic.rstrip("/"), colors
        self._store: Any = get_typestore(Stores.ROS2_HUMBLE)
        self._schemas: dict[str, int] = {}
        self._channels: dict[str, int] = {}
        self._skipped: set[tuple[str, int]] = set()  # topics and indices of the messages that were left out
        self.num_sweeps = 0  # sweeps in the file, including those of an earlier run
        self.num_copied = 0  # messages of tf in the file that an earlier run wrote
        self.first = 0  # the index of the first sweep that is not in the file
        self._new = f"{self.part}.new"
        old = self._old(job) if Path(self.part).exists() else iter(())
        try:
            self._file = Path(self._new).open("wb")  # noqa: SIM115  # closed by finish or abandon
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        try:
            self._writer: Any = Writer(self._file, compression=CompressionType.ZSTD)
            self._writer.start(profile="ros2", library="voxserve")
            self._writer.add_metadata(_RECORD, dict(job))
            for schema, channel, message in old:
                self._copy(schema, channel, message)
        except BaseException:
            self._file.close()
            Path(self._new).unlink(missing_ok=True)
            raise
        Path(self._new).replace(self.part)

    def _old(self, job: Mapping[str, str]) -> Iterator[tuple[Any, Any, Any]]:
        """Returns the messages in NAME.part up to the last complete sweep, each with its schema and channel."""
        made: Mapping[str, str] | None = None
        number = num_kept = 0
        for item in self._items_of_part():
            if isinstance(item, dict):
                made = item
                continue
            number += 1
            if item[1].topic == self._cloud_topic:
                num_kept = number
        if made is not None and made != dict(job):
            names = sorted(name for name in {*made, *job} if made.get(name) != job.get(name))
            differs = ", ".join(f"{name}: {made.get(name)}, now {job.get(name)}" for name in names)
            raise BagError(f"{self.part} was begun with other settings ({differs}); remove it to begin anew")
        # The file is read again, since its messages may not fit the memory.
        messages = (item for item in self._items_of_part() if not isinstance(item, dict))
        return islice(messages, num_kept if made is not None else 0)

    def _items_of_part(self) -> Iterator[dict[str, str] | tuple[Any, Any, Any]]:
        """Yields the job that NAME.part was begun with, and its messages, each with its schema and channel. Ends where
        the file is damaged.
        """
        from mcap.records import Channel, Message, Metadata, Schema
        from mcap.stream_reader import StreamReader

        schemas: dict[int, Any] = {}
        channels: dict[int, Any] = {}
        try:
            with input_file.open_regular(self.part) as file:
                for record in StreamReader(file, validate_crcs=True).records:
                    if isinstance(record, Metadata) and record.name == _RECORD:
                        yield dict(record.metadata)
                    elif isinstance(record, Schema):
                        schemas[record.id] = record
                    elif isinstance(record, Channel):
                        channels[record.id] = record
                    elif isinstance(record, Message):
                        channel = channels[record.channel_id]
                        yield schemas[channel.schema_id], channel, record
        except Exception:  # the parser may raise any error at the end of a file that was not completed
            return

    @property
    def _cloud_topic(self) -> str:
        return f"{self._topic}/labelled"

    @property
    def _skipped_topic(self) -> str:
        return f"{self._topic}/skipped"

    def _copy(self, schema: Any, channel: Any, message: Any) -> None:
        number = self._channel(channel.topic, schema.name, schema.encoding, schema.data, channel.message_encoding)
        self._writer.add_message(number, message.log_time, message.data, message.publish_time, message.sequence)
        if channel.topic == self._cloud_topic:
            self.num_sweeps += 1
            self.first = message.sequence + 1
        if channel.topic == self._skipped_topic:
            skipped = json.loads(message.data)
            self._skipped.add((skipped["topic"], skipped["index"]))
        self.num_copied += not channel.topic.startswith(f"{self._topic}/")

    @property
    def num_skipped(self) -> int:
        """The number of messages that were left out, including those of an earlier run."""
        return len(self._skipped)

    def write(self, sweep: Sweep, answers: tuple[Segmentation | None, Detections | None, Tensors | None]) -> None:
        """Writes the messages of a sweep and of the model's answers for it."""
        labels, found, _ = answers
        old, time = sweep.message.header, sweep.time_ns
        if found is not None:
            scene = messages.scene(old, found, self._colors)
            self._add_json(f"{self._topic}/boxes", messages.SCENE_SCHEMA, time, scene, sweep.index)
            array = messages.markers(old, found, self._colors, self._store.types)
            self._add(f"{self._topic}/markers", _MARKERS, time, array, sweep.index)
        answer = labels or found
        if answer is not None:
            timing = messages.timing(answer)
            self._add_json(f"{self._topic}/timing", messages.TIMING_SCHEMA, time, timing, sweep.index)
        types = self._store.types
        cloud = (
            messages.plain(sweep.message, types)
            if labels is None
            else messages.labelled(sweep.message, labels, self._colors, types)
        )
        self._add(self._cloud_topic, CLOUD, time, cloud, sweep.index)
        self.num_sweeps += 1

    def skip(self, skipped: Skipped) -> bool:
        """Writes that a message was left out, and why. Returns False if the file says so already."""
        if (skipped.topic, skipped.index) in self._skipped:
            return False
        data = messages.skipped(skipped.topic, skipped.index, skipped.reason)
        self._add_json(self._skipped_topic, messages.SKIPPED_SCHEMA, skipped.time_ns, data, skipped.index)
        self._skipped.add((skipped.topic, skipped.index))
        return True

    def copy(self, raw: Raw) -> None:
        """Writes a message of another topic (tf) unchanged."""
        number = self._ros_channel(raw.topic, raw.type)
        self._writer.add_message(number, raw.time_ns, raw.data, raw.time_ns)

    def finish(self) -> None:
        """Completes the file and renames it from NAME.part to NAME."""
        self._writer.finish()
        self._file.close()
        Path(self.part).replace(self.path)

    def abandon(self) -> bool:
        """Closes the file before it is complete. If it has at least one sweep, NAME.part is kept for a later run, else
        it is removed. Returns whether it was kept.
        """
        try:
            self._writer.finish()
        finally:
            self._file.close()
            if not self.num_sweeps:
                Path(self.part).unlink(missing_ok=True)
        return bool(self.num_sweeps)

    def _add(self, topic: str, kind: str, time_ns: int, message: Any, sequence: int) -> None:
        data = bytes(self._store.serialize_cdr(message, kind))
        self._writer.add_message(self._ros_channel(topic, kind), time_ns, data, time_ns, sequence)

    def _ros_channel(self, topic: str, kind: str) -> int:
        if topic in self._channels:
            return self._channels[topic]
        definition, _ = self._store.generate_msgdef(kind, ros_version=2)
        return self._channel(topic, kind, "ros2msg", definition.encode(), "cdr")

    def _add_json(self, topic: str, kind: str, time_ns: int, data: bytes, sequence: int) -> None:
        number = self._channel(topic, kind, "jsonschema", messages.json_schema(kind), "json")
        self._writer.add_message(number, time_ns, data, time_ns, sequence)

    def _channel(self, topic: str, kind: str, encoding: str, schema: bytes, message_encoding: str) -> int:
        if topic not in self._channels:
            if kind not in self._schemas:
                self._schemas[kind] = self._writer.register_schema(kind, encoding, schema)
            self._channels[topic] = self._writer.register_channel(topic, message_encoding, self._schemas[kind])
        return self._channels[topic]


def job_of(**settings: object) -> dict[str, str]:
    """Returns the settings as texts, for Sink's job. Values that are no texts are written as JSON."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
