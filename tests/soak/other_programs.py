"""Measures how much of the machine's processor time programs take that are no part of a soak."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE = (3, 4)  # columns of /proc/stat: idle, and idle while the disk works


class OtherPrograms:
    """cores() returns the cores that processes of other sessions took since the constructor. A process that begins
    or ends meanwhile counts for the time in which it is seen, so many short ones of this session count a little too.
    """

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._busy = _busy_seconds()
        self._own = _seconds_of_session()

    def cores(self) -> float:
        seconds = time.monotonic() - self._begin
        own = _seconds_of_session()
        # A process that has been waited for is in the time of its parent's children.
        spent = sum(own.values()) - sum(self._own.get(pid, 0.0) for pid in own)
        return max(0.0, (_busy_seconds() - self._busy - spent) / max(seconds, 1e-9))


def _busy_seconds() -> float:
    """Returns the processor time of the whole machine since its start."""
    columns = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(value for i, value in enumerate(columns) if i not in _IDLE) / _TICKS


def _seconds_of_session() -> dict[str, float]:
    """Returns the processor time of each process of this session and of its ended children, by process."""
    session = os.getsid(0)
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[3]) == session:
            found[folder.name] = sum(int(fields[i]) for i in range(11, 15)) / _TICKS
    return found
