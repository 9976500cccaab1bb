"""The hostile clients of the soak: the attacks of tests/hostile one after the other, at moderate rates."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from attack_process import MAIN_COUNTS, Attack
from server import Server

_DUTY = 0.25  # share of the time in which an attack's process runs
_START_SECONDS = 15  # the longest wait for an attack's full effect; then the attack counts all the same
_STOP_SECONDS = 120
# Title: attack of tests/hostile/attacks.py, its options.
ATTACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "silent connections": ("silent_connections", {"number": 300, "addresses": 6}),
    "silent HTTP connections": ("silent_connections", {"number": 150, "addresses": 6, "http": True}),
    "greetings alone": ("silent_connections", {"number": 100, "addresses": 4, "greeting": True}),
    "dripping HTTP": ("dripping_http", {"number": 20}),
    "endless HTTP headers": ("endless_http", {"kind": "header", "number": 2}),
    "garbage": ("garbage", {}),
    "headers without a body": ("headers_without_body", {}),
    "rapid reset": ("rapid_reset", {"number": 1}),
    "rapid reset of whole requests": ("rapid_reset", {"number": 1, "kind": "infer"}),
    "rapid reset of streams": ("rapid_reset", {"number": 1, "kind": "stream"}),
    "half-sent bodies": ("half_sent_bodies", {"number": 16, "connections": 4, "announced": 8 << 20, "sent": 7 << 20}),
    "unread answers": ("unread_answers", {"number": 200, "in_flight": 16}),
    "silent streams": ("silent_streams", {"number": 128, "connections": 4, "again": True}),
    "empty fields": ("empty_fields", {"megabytes": 8}),
    "calls in flight": ("calls_in_flight", {"number": 32, "num_points": 500}),
}
# The attacks that work on a port that speaks TLS.
OF_TLS = ("silent connections", "silent HTTP connections", "garbage")


class Attackers(threading.Thread):
    """Makes the named attacks one after the other, again and again, until stop(). Each lasts for `seconds`, and a pause
    of half that time follows. An attack in OF_TLS is made on each server in turn, the others only on the first server.
    """

    def __init__(self, servers: Sequence[Server], titles: Sequence[str], seconds: float) -> None:
        super().__init__(daemon=True)
        self._servers = servers
        self._titles = titles
        self._seconds = seconds
        self._stopped = threading.Event()
        self._since = time.monotonic()  # when the present attack or pause began
        self.present = ""  # the title of the attack that runs now, "" during a pause
        self.made: Counter[str] = Counter()
        self.counts: dict[str, Counter[str]] = {title: Counter() for title in titles}
        self.problems: list[str] = []

    def pause_seconds(self) -> float:
        """Returns the seconds since the last attack ended; 0 during an attack."""
        return 0.0 if self.present else time.monotonic() - self._since

    def run(self) -> None:
        if not self._titles:
            return
        for turn in itertools.count():
            for i, title in enumerate(self._titles):
                servers = self._servers if title in OF_TLS else self._servers[:1]
                self._attack(title, servers[turn % len(servers)], source=f"127.0.0.{2 + i}")
                self.present, self._since = "", time.monotonic()
                if self._stopped.wait(self._seconds / 2):
                    return

    def stop(self) -> None:
        self._stopped.set()
        self.join(self._seconds + _STOP_SECONDS)
        if self.is_alive():
            self.problems.append(f"the attack '{self.present}' does not end")

    def without_effect(self) -> list[str]:
        """Returns the attacks that were made and did nothing."""
        return [
            title
            for title in self._titles
            if self.made[title] and not sum(self.counts[title][name] for name in MAIN_COUNTS[ATTACKS[title][0]])
        ]

    def _attack(self, title: str, server: Server, source: str) -> None:
        name, options = ATTACKS[title]
        self.present = title
        try:
            seconds = self._seconds + _START_SECONDS + 60
            with Attack(name, server, seconds, _START_SECONDS, duty=_DUTY, source=source, **options) as attack:
                is_cut = self._stopped.wait(self._seconds)
                counts = attack.stop()
        except Exception as error:  # The soak must report any error.
            self.problems.append(f"the attack '{title}': {error!r}"[:300])
            return
        self.made[title] += not is_cut
        self.counts[title].update({key: value for key, value in counts.items() if value == value})  # no NaN
