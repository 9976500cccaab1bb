"""Reads a .db3 file, as rosbag2 writes it with its plugin sqlite3."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path

from voxserve import input_file
from voxserve.bag.recording import CDR, Channel, Message, broken, type_name


class SqliteFile:
    """One .db3 file. It is opened anew for each reading. The constructor raises BagError for a broken file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers: dict[int, Channel] = {}
        self._counts: dict[Channel, int] = {}
        try:
            self._check_size()
            with closing(self._connect()) as database:
                self._read_topics(database)
                (start,) = database.execute("SELECT min(timestamp) FROM messages").fetchone()
        except Exception as error:
            raise broken(path, error) from None
        self.start_ns = int(start or 0)  # no message is older

    def _check_size(self) -> None:
        """Raises ValueError if the file was cut short. sqlite3 itself fails only when it needs a missing page."""
        with input_file.open_regular(self.path) as file:
            header = file.read(100)
        page_bytes, num_pages = int.from_bytes(header[16:18], "big"), int.from_bytes(header[28:32], "big")
        page_bytes = 65536 if page_bytes == 1 else page_bytes
        size = self.path.stat().st_size
        if size < page_bytes * num_pages:
            raise ValueError(f"it has {size} of {page_bytes * num_pages} bytes")

    def _connect(self) -> sqlite3.Connection:
        # A recorder that was interrupted leaves messages in NAME-wal. sqlite3 reads them too, except with immutable=1,
        # which works in a folder that is not writable.
        has_log = self.path.with_name(f"{self.path.name}-wal").exists()
        return sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro{'' if has_log else '&immutable=1'}", uri=True)

    def _read_topics(self, database: sqlite3.Connection) -> None:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        definitions: dict[str, tuple[str, bytes]] = {}
        if "message_definitions" in tables:  # since ROS 2 Iron
            rows = database.execute("SELECT topic_type, encoding, encoded_message_definition FROM message_definitions")
            definitions = {kind: (form, str(text).encode()) for kind, form, text in rows}
        counts = dict(database.execute("SELECT topic_id, count(*) FROM messages GROUP BY topic_id"))
        topics = database.execute("SELECT id, name, type, serialization_format FROM topics")
        for number, topic, kind, encoding in topics.fetchall():
            channel = Channel(topic, type_name(kind), encoding or CDR, *definitions.get(kind, ("", b"")))
            self._numbers[number] = channel
            self._counts[channel] = self._counts.get(channel, 0) + counts.get(number, 0)

    def counts(self) -> dict[Channel, int]:
        """Returns the number of messages of each channel."""
        return dict(self._counts)

    def messages(self, channels: Collection[Channel]) -> Iterator[Message]:
        """Yields the messages of these channels, in the order of their times."""
        numbers = [number for number, channel in self._numbers.items() if channel in channels]
        marks = ", ".join("?" for _ in numbers)
        query = f"SELECT topic_id, timestamp, data FROM messages WHERE topic_id IN ({marks}) ORDER BY timestamp, id"
        try:
            with closing(self._connect()) as database:
                for number, time_ns, data in database.execute(query, numbers):
                    yield Message(self._numbers[number], int(time_ns), bytes(data))
        except (sqlite3.Error, TypeError, ValueError) as error:
            raise broken(self.path, error) from None
