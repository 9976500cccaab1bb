"""Writes files that appear under their names only when they are complete."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yields a temporary file to write. At the end of the block it replaces the file at `path`. If the block raises an
    error, the temporary file is removed and the file at `path` is not changed. OSError names `path`.
    """
    target = os.fspath(path)
    temporary = Path(f"{target}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(target)
    except OSError as error:
        if error.errno is None:  # the code in the block raised it, not the operating system
            raise
        raise OSError(error.errno, error.strerror, target) from None
    finally:
        temporary.unlink(missing_ok=True)
