"""Files on this machine, and at URLs that fsspec knows (s3://bucket/key, memory://name, ...).

fsspec is optional: pip install 'voxserve[urls]', and for S3 s3fs. A URL file:// is a path of this machine.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from voxserve import input_file
from voxserve.new_file import new_file

_LOCAL = "file://"
_Path = str | os.PathLike[str]


def is_url(path: _Path) -> bool:
    """Returns whether the path is a URL that fsspec must open."""
    text = os.fspath(path)
    return "://" in text and not text.startswith(_LOCAL)


def plain(path: _Path) -> str:
    """Returns a path of this machine without file://; other paths as they are."""
    return os.fspath(path).removeprefix(_LOCAL)


def exists(path: _Path) -> bool:
    if not is_url(path):
        return Path(plain(path)).exists()
    system, name = _open(path)
    return bool(system.exists(name))


def is_folder(path: _Path) -> bool:
    if not is_url(path):
        return Path(plain(path)).is_dir()
    system, name = _open(path)
    return bool(system.isdir(name))


def identity(path: _Path) -> str:
    """Returns a text that is equal for two paths of the same file."""
    return os.fspath(path) if is_url(path) else str(Path(plain(path)).resolve())


def join(folder: _Path, relative: str) -> str:
    """Returns the path of a file in a folder."""
    if is_url(folder):
        return f"{os.fspath(folder).rstrip('/')}/{PurePosixPath(*Path(relative).parts)}"
    return str(Path(plain(folder)) / relative)


def parent(path: _Path) -> str:
    """Returns the folder of a file."""
    return os.fspath(path).rpartition("/")[0] if is_url(path) else str(Path(plain(path)).parent)


def files_below(folder: _Path, is_wanted: Callable[[str], bool], skipped: str = "") -> list[str]:
    """Returns the paths, relative to the folder, of all files in it and its subfolders whose names are wanted, sorted.
    Leaves out folders whose names begin with "." or end in ".work", and the folder `skipped`.
    """
    if is_url(folder):
        system, name = _open(folder)
        root = str(system._strip_protocol(name)).rstrip("/")
        paths = (str(path).removeprefix(root).lstrip("/") for path in system.find(name))
        return sorted(p for p in paths if is_wanted(p) and not any(map(_is_left_out, PurePosixPath(p).parts[:-1])))
    found: list[str] = []
    root_path = Path(plain(folder))
    for place, folders, names in os.walk(root_path, followlinks=True):
        folders[:] = sorted(
            each for each in folders if not _is_left_out(each) and identity(Path(place) / each) != skipped
        )
        found += [str((Path(place) / each).relative_to(root_path)) for each in names if is_wanted(each)]
    return sorted(found)


def _is_left_out(folder: str) -> bool:
    return folder.startswith(".") or folder.endswith(".work")


def read(path: _Path, max_bytes: int | None = None) -> bytes:
    """Returns a file's bytes. OSError; ValueError if there are more than max_bytes."""
    if not is_url(path):
        return input_file.read(plain(path), max_bytes)
    system, name = _open(path)
    size = system.size(name)
    if max_bytes is not None and size is not None and size > max_bytes:
        raise ValueError(f"{os.fspath(path)}: {size} bytes, more than the {max_bytes} that such a file may have")
    return bytes(system.cat_file(name))


def check_there(path: _Path) -> None:
    """Raises the OSError of a file that read() would not find or, on this machine, not open."""
    if not is_url(path):
        input_file.open_regular(plain(path)).close()
    elif not exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))


def make_folder(path: _Path) -> None:
    """Makes a folder, unless it is there; not at URLs, where files make their folders."""
    if not is_url(path):
        Path(plain(path)).mkdir(parents=True, exist_ok=True)


@contextmanager
def new(path: _Path) -> Iterator[BinaryIO]:
    """Yields a file to write, which appears under its name when the block ends without an error."""
    if not is_url(path):
        with new_file(plain(path)) as file:
            yield file
        return
    import io

    buffer = io.BytesIO()
    yield buffer
    system, name = _open(path)
    system.makedirs(system._parent(name), exist_ok=True)
    system.pipe_file(name, buffer.getvalue())


def fetch(path: _Path, target: Path) -> None:
    """Copies a file to this machine, unless it is there with the same size. It appears when it is complete."""
    system, name = _open(path)
    if target.exists() and target.stat().st_size == system.size(name):
        return
    temporary = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        system.get_file(name, str(temporary))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def put(source: Path, path: _Path) -> None:
    """Copies a file of this machine to a URL."""
    system, name = _open(path)
    system.makedirs(system._parent(name), exist_ok=True)
    system.put_file(str(source), name)


def _open(path: _Path) -> tuple[Any, str]:
    """Returns the file system of a URL, and the name of the file there."""
    try:
        import fsspec
    except ImportError:
        raise ValueError(f"{os.fspath(path)}: pip install 'voxserve[urls]' for URLs") from None
    try:
        system, name = fsspec.core.url_to_fs(os.fspath(path))
    except (ImportError, ValueError) as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None
    return system, str(name)
