"""Writes files that appear only when they are complete."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yields a file to write. It replaces the file at `path` at the end of the block; an error in the block removes it
    instead. OSError names `path`.
    """
    target = os.fspath(path)
    temporary = Path(f"{target}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(target)
    except OSError as error:
        if error.errno is None:  # raised by a library that writes, not by the system
            raise
        raise OSError(error.errno, error.strerror, target) from None
    finally:
        temporary.unlink(missing_ok=True)
