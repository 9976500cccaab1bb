"""Target: the ports and the process of the attacked server, and the time when the attack is over."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

Counts = dict[str, float]


@dataclass
class Target:
    grpc_port: int
    http_port: int
    pid: int
    seconds: float
    source: str = "127.0.0.2"
    most_growth: int = 2 << 30

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.seconds
        self._first_rss = self._rss()
        self._next_look = 0.0
        self.stopped_early = False

    def is_over(self) -> bool:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + 0.05
            rss = self._rss()
            if rss > self._first_rss + self.most_growth:
                self.stopped_early = True
            if rss == 0:
                self.stop()  # the server has ended
        return self.stopped_early or now >= self._end

    def stop(self, *_: object) -> None:
        self._end = 0.0

    def hold(self) -> None:
        """Waits until the attack's time is over."""
        while not self.is_over():
            time.sleep(0.1)

    def _rss(self) -> int:
        with contextlib.suppress(OSError):
            return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * 4096
        return 0


def started() -> None:
    print("started", flush=True)
