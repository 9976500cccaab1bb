"""Files that appear when they are complete."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of the one at `path` at the end of the block, and is gone where an error
    ends it. OSError names `path`.
    """
    target = os.fspath(path)
    temporary = Path(f"{target}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with temporary.open("wb") as file:
            yield file
        temporary.replace(target)
    except OSError as error:
        if error.errno is None:  # of a library that writes, not of the system
            raise
        raise OSError(error.errno, error.strerror, target) from None
    finally:
        temporary.unlink(missing_ok=True)
