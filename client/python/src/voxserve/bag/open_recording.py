"""Opens a bag: a file or a folder of ROS 1 or ROS 2."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any

from voxserve import input_file
from voxserve.bag.bag_error import BagError
from voxserve.bag.mcap_file import McapFile
from voxserve.bag.recording import Channel, Message, Recording
from voxserve.bag.rosbags_reader import RosbagsReader
from voxserve.bag.sqlite_file import SqliteFile

_MAGIC = {".mcap": b"\x89MCAP0\r\n", ".db3": b"SQLite format 3\0", ".bag": b"#ROSBAG V"}
_FILES: dict[str, type[McapFile] | type[SqliteFile]] = {".mcap": McapFile, ".db3": SqliteFile}
_METADATA = "metadata.yaml"


def is_bag(path: Path) -> bool:
    """Returns whether the path is that of a bag's file, or of a folder that open_recording() takes for a bag."""
    if path.is_dir():
        return (path / _METADATA).is_file() or any(f.suffix.lower() in _FILES for f in path.iterdir())
    return path.suffix.lower() in _MAGIC


def open_recording(path: Path) -> Recording:
    """Returns the bag at the path: an .mcap, .db3 or .bag file, or a folder of .mcap or .db3 files. BagError if it is
    broken or none of these.
    """
    if not path.exists():
        raise BagError(f"{path}: no such file or folder")
    if not path.is_dir():
        _check_magic(path)
        if path.suffix.lower() != ".bag":
            return _FileSet([path])
        if path.suffix != ".bag":
            raise BagError(f"{path}: the library rosbags knows this kind by .bag in small letters only; rename it")
        return RosbagsReader(path)
    metadata = _read_metadata(path / _METADATA)
    if str(metadata.get("compression_mode")).lower() in ("file", "message"):
        for entry in path.iterdir():  # rosbags would wait for a pipe, and read a device for ever
            if entry.exists() and not (entry.is_file() or entry.is_dir()):
                raise BagError(f"{entry}: not a regular file")
        return RosbagsReader(path)
    files = _listed_files(path, metadata) or _found_files(path)
    for file in files:
        if file.suffix.lower() not in _FILES:
            raise BagError(f"{path}: {_METADATA} lists {file.name}; a bag's files are .mcap or .db3")
        _check_magic(file)
    return _FileSet(files)


class _FileSet:
    """The files of one bag, read as if they were one file."""

    def __init__(self, paths: Sequence[Path]) -> None:
        files = [_FILES[path.suffix.lower()](path) for path in paths]
        self._files = sorted(files, key=lambda file: (file.start_ns, file.path.name))

    @property
    def num_bytes(self) -> int:
        """The size of the files."""
        return sum(file.path.stat().st_size for file in self._files)

    def counts(self) -> dict[Channel, int]:
        """Returns the number of messages of each channel."""
        found: dict[Channel, int] = {}
        for file in self._files:
            for channel, count in file.counts().items():
                found[channel] = found.get(channel, 0) + count
        return found

    def messages(self, channels: Collection[Channel]) -> Iterator[Message]:
        """Yields the messages of these channels, in the order of their times."""
        readings = [_from_its_start(file, channels) for file in self._files]
        for _, message in heapq.merge(*readings, key=lambda item: item[0]):
            if message is not None:
                yield message

    def close(self) -> None:
        """Does nothing: no file is open between two readings."""


def _from_its_start(file: McapFile | SqliteFile, channels: Collection[Channel]) -> Iterator[tuple[int, Message | None]]:
    """Yields the file's first time, and then its messages with their times. So a merge opens the file only when its
    turn comes.
    """
    yield file.start_ns, None
    for message in file.messages(channels):
        yield message.time_ns, message


def _read_metadata(path: Path) -> dict[str, Any]:
    """Returns the values of a rosbag2's metadata.yaml. Returns {} if there is none, or if the recorder was interrupted
    before it wrote the file.
    """
    from ruamel.yaml import YAML, YAMLError

    if not path.is_file():
        return {}
    try:
        content = YAML(typ="safe").load(input_file.read_text(path))
    except (YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise BagError(f"{path}: the file is no YAML ({error}); without it the folder's files are read") from None
    values = content.get("rosbag2_bagfile_information") if isinstance(content, dict) else None
    return values if isinstance(values, dict) else {}


def _listed_files(folder: Path, metadata: dict[str, Any]) -> list[Path]:
    listed = metadata.get("relative_file_paths")
    if not isinstance(listed, list):
        return []
    files = [folder / PurePath(str(name)).name for name in listed]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise BagError(f"{folder}: {_METADATA} lists files that are not there: {', '.join(missing)}")
    return files


def _found_files(folder: Path) -> list[Path]:
    """Returns the folder's files of the first of the known kinds that it has."""
    for suffix in _FILES:
        if files := sorted(file for file in folder.iterdir() if file.suffix.lower() == suffix):
            return files
    raise BagError(f"{folder}: the folder is no rosbag2: it has no {_METADATA}, and no .mcap or .db3 files")


def _check_magic(path: Path) -> None:
    magic = _MAGIC.get(path.suffix.lower())
    with input_file.open_regular(path) as file:
        beginning = file.read(max(map(len, _MAGIC.values())))
    if not beginning:
        raise BagError(f"{path}: the file is empty")
    if magic is None:
        raise BagError(f"{path}: bags are .mcap, .db3, .bag, or a folder with .mcap or .db3 files")
    if not beginning.startswith(magic):
        raise BagError(f"{path}: not a bag of the kind that {path.suffix} names")
