"""Shows the progress of a long command in one line of the terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_WIDTH = 24
_PERIOD_SECONDS = 0.2


class Progress:
    """A line of progress on stderr, which is written only if stderr is a terminal. Use it in a `with` block, which ends
    the line.
    """

    def __init__(self, total: int, what: str, out: TextIO | None = None) -> None:
        self._total, self._what = total, what
        self._out = sys.stderr if out is None else out
        self._is_shown = self._out.isatty()
        self._start = time.perf_counter()
        self._last = 0.0

    def update(self, done: int, note: str = "") -> None:
        """Shows that `done` of `total` items are done. note: a text at the end of the line."""
        now = time.perf_counter()
        if not self._is_shown or (now - self._last < _PERIOD_SECONDS and done < self._total):
            return
        self._last = now
        filled = _WIDTH * done // max(1, self._total)
        rate = done / max(1e-9, now - self._start)
        bar = "#" * filled + "-" * (_WIDTH - filled)
        self._out.write(f"\r[{bar}] {done}/{self._total} {self._what}, {rate:.1f}/s{note}\x1b[K")
        self._out.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown and self._last:
            self._out.write("\n")
