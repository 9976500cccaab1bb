"""Reads whole files that a user names, which others may have made.

A pipe without a writer would be waited for, and a device such as /dev/zero read for ever, so only regular files are
read. Exceptions are the files of a token and of certificates (read_small), which programs also pass through pipes.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

MAX_SCAN_BYTES = 2 << 30  # no message carries more points; the C++ client has the same limit
MAX_SMALL_BYTES = 1 << 20
_Path = str | os.PathLike[str]


def open_regular(path: _Path) -> BinaryIO:
    """Opens a regular file, or a link to one. OSError if there is none, or if it is a pipe, a device or a folder."""
    # Without O_NONBLOCK, a pipe is opened only when it has a writer. It changes nothing for regular files.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "Is a directory", os.fspath(path))
    raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path))


def read(path: _Path, max_bytes: int | None = None) -> bytes:
    """Returns a regular file's bytes. OSError as open_regular; ValueError if there are more than max_bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if max_bytes is not None and size > max_bytes:
            raise ValueError(f"{os.fspath(path)}: {size} bytes, more than the {max_bytes} that such a file may have")
        return file.read(-1 if max_bytes is None else max_bytes)


def read_text(path: _Path, errors: str = "strict") -> str:
    """Returns a regular file's text in UTF-8. OSError as open_regular, UnicodeDecodeError."""
    return read(path).decode("utf-8", errors)


def read_small(path: _Path) -> bytes:
    """Returns the bytes of a file or pipe, which wait for the pipe's writer. OSError; ValueError if there are more than
    MAX_SMALL_BYTES.
    """
    with Path(path).open("rb") as file:
        contents = file.read(MAX_SMALL_BYTES + 1)
    if len(contents) > MAX_SMALL_BYTES:
        raise ValueError(f"{os.fspath(path)}: more than the {MAX_SMALL_BYTES} bytes that such a file may have")
    return contents


def parse_json(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Returns the value of a JSON text. pairs: makes an object of its names and values. ValueError if it is not JSON,
    or nested so deeply that Python cannot parse it.
    """
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError("nested too deeply") from None
