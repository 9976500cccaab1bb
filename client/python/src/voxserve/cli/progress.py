"""Shows the progress of a long command: in one line of a terminal, or as lines of a log, one every 10 s."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_WIDTH = 24
_PERIOD_SECONDS = 0.2
_LOG_SECONDS = 10.0


class Progress:
    """Writes to stderr how much is done, and the time that is left at the mean rate. Use it in a `with` block, which
    ends the line.

    before: items that an earlier run has done; they do not count in the rate. name: the beginning of a line of a log.
    """

    def __init__(
        self, total: int, what: str, out: TextIO | None = None, *, before: int = 0, name: str = "voxserve"
    ) -> None:
        self._total, self._what, self._before, self._name = total, what, before, name
        self._out = sys.stderr if out is None else out
        self._is_terminal = self._out.isatty()
        self._start = self._last = time.perf_counter()
        self._is_shown = False

    def update(self, done: int, note: str = "") -> None:
        """Shows that `done` of `total` items are done. note: a text at the end of the line."""
        now = time.perf_counter()
        is_early = now - self._last < (_PERIOD_SECONDS if self._is_terminal else _LOG_SECONDS)
        if is_early and not (self._is_terminal and done >= self._total):
            return
        self._last = now
        rate = (done - self._before) / max(1e-9, now - self._start)
        text = f"{done:,}/{self._total:,} {self._what}, {_number(rate)}/s{_left(self._total - done, rate)}{note}"
        if not self._is_terminal:
            print(f"{self._name}: {text}", file=self._out, flush=True)
            return
        self._is_shown = True
        filled = _WIDTH * done // max(1, self._total)
        self._out.write(f"\r[{'#' * filled}{'-' * (_WIDTH - filled)}] {text}\x1b[K")
        self._out.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            self._out.write("\n")


def _number(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.1f}"


def _left(items: int, rate: float) -> str:
    """Returns the time that `items` more items take, as ", 1:02:03 left"; "" if it is unknown or nothing is left."""
    if rate <= 0 or items <= 0:
        return ""
    minutes, seconds = divmod(round(items / rate), 60)
    hours, minutes = divmod(minutes, 60)
    return f", {hours}:{minutes:02}:{seconds:02} left" if hours else f", {minutes}:{seconds:02} left"
