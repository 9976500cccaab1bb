"""What the output may contain."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

_EIGHTHS = " ▏▎▍▌▋▊▉"
_BAR_WIDTH = 24


@dataclass(frozen=True)
class Terminal:
    """Colours and Unicode on stdout; whether a progress bar may redraw itself on stderr."""

    out_color: bool = False
    out_unicode: bool = False
    err_is_tty: bool = False

    @staticmethod
    def detect(color: str = "auto") -> Terminal:
        """color: auto, always or never."""
        capable = os.environ.get("TERM") != "dumb"
        out_is_tty = sys.stdout.isatty() and capable
        unicode = "utf" in (sys.stdout.encoding or "").lower()
        wants_color = out_is_tty and not os.environ.get("NO_COLOR") if color == "auto" else color == "always"
        return Terminal(wants_color, unicode, sys.stderr.isatty() and capable)

    def swatch(self, color: tuple[int, int, int]) -> str:
        """A square of the colour and a space; "" without colours."""
        square = "■" if self.out_unicode else "#"
        return "\x1b[38;2;{};{};{}m{}\x1b[0m ".format(*color, square) if self.out_color else ""

    def bar(self, share: float) -> str:
        """`share` of a bar, in eighths of a character where the terminal can."""
        eighths = round(min(max(share, 0), 1) * _BAR_WIDTH * 8)
        if not self.out_unicode:
            return "#" * ((eighths + 4) // 8)
        return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def format_time(seconds: float) -> str:
    """12.3 ms, 1.24 s."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
