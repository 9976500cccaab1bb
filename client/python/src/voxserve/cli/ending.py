"""Lets SIGTERM end a long command cleanly."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Makes SIGTERM raise KeyboardInterrupt in the block, as Ctrl-C does. So `with` and `finally` blocks close open
    files and end child processes. Only the main thread may use it.
    """
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
