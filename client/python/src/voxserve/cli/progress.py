"""How far a folder of scans has come, on stderr: a bar that redraws itself in a terminal, a line now and then
elsewhere.
"""

from __future__ import annotations

import sys
import threading
import time

_WIDTH = 30
_REDRAW_SECONDS = 0.1  # in a terminal
_NEXT_LINE_SECONDS = 10.0  # elsewhere
_CLEAR = "\r\x1b[K"


class ProgressBar:
    """Thread-safe."""

    def __init__(self, total: int, is_tty: bool) -> None:
        self._total = total
        self._is_tty = is_tty
        self._lock = threading.Lock()
        self._start = self._last_drawn = time.monotonic()
        self._done = self._failed = 0

    def scan_done(self, ok: bool) -> None:
        """Counts a scan and draws, where it is time to."""
        with self._lock:
            self._done += 1
            self._failed += not ok
            now = time.monotonic()
            if now - self._last_drawn >= (_REDRAW_SECONDS if self._is_tty else _NEXT_LINE_SECONDS):
                self._last_drawn = now
                line = format_progress(self._done, self._total, self._failed, now - self._start)
                print(_CLEAR + line if self._is_tty else line, end="" if self._is_tty else "\n", file=sys.stderr)
                sys.stderr.flush()

    def finish(self) -> None:
        """Removes the bar from the terminal."""
        if self._is_tty:
            print(_CLEAR, end="", file=sys.stderr, flush=True)


def format_progress(done: int, total: int, failed: int, elapsed: float) -> str:
    """[#####.....] 12/24 scans  8.3/s  0:01 left  1 failed"""
    filled = _WIDTH * min(done, total) // total if total else _WIDTH
    line = f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {done}/{total} scans"
    if done and elapsed > 0:
        left = round((total - min(done, total)) * elapsed / done)
        line += f"  {done / elapsed:.1f}/s  {left // 60}:{left % 60:02d} left"
    return line + (f"  {failed} failed" if failed else "")
