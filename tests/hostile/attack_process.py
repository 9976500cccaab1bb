"""Runs one function of attacks.py in a process of its own."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from server import Server

_PROGRAM = Path(__file__).parent / "attacks.py"
# The longest time until an attack has its full effect. unread_answers and silent_streams need the longest.
START_SECONDS = 60
_TURN_SECONDS = 0.2
# An attack had an effect if the sum of these counts of its result is above zero.
MAIN_COUNTS = {
    "silent_connections": ["opened"],
    "dripping_http": ["dripped_bytes"],
    "endless_http": ["sent_mib"],
    "headers_without_body": ["begun"],
    "rapid_reset": ["begun"],
    "half_sent_bodies": ["begun"],
    "unread_answers": ["begun"],
    "silent_streams": ["opened"],
    "empty_fields": ["refused"],
    "calls_in_flight": ["answered", "refused"],
    "garbage": ["connections"],
    "useless_bytes": ["sent_mib"],
    "held_places": ["held"],
    "all_floods": ["floods"],
    "bad_loads": ["refused"],
    "signals": ["signals"],
}


class Attack:
    """A running attack. The constructor waits until the attack has its full effect, for at most `start_seconds`. The
    attack ends when its time is over, when its server ends, at stop(), or at the end of the `with` block.

    duty: the share of the time in which the attack's process runs. Below 1 it is halted and continued in turns, with
    its connections open, so that an attack which sends as fast as it can leaves processor time to others.
    """

    def __init__(
        self,
        name: str,
        server: Server,
        seconds: float,
        start_seconds: float = START_SECONDS,
        nice: int = 15,
        duty: float = 1.0,
        **options: Any,
    ) -> None:
        text = json.dumps(
            {
                "grpc_port": server.grpc_port,
                "http_port": server.http_port,
                "pid": server.pid,
                "seconds": seconds,
                **options,
            }
        )
        self.name = name
        self._end = time.monotonic() + seconds
        self._output = ""
        self._process = subprocess.Popen(
            # The attacker represents another machine, so it only gets the processor time that the server leaves.
            ["nice", "-n", str(nice), sys.executable, str(_PROGRAM), name, text],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # otherwise communicate() would lose the output after the first line
        )
        stands = time.monotonic() + start_seconds
        while time.monotonic() < stands and self._process.poll() is None:
            if select.select([self._process.stdout], [], [], 0.1)[0]:
                break
        if select.select([self._process.stdout], [], [], 0)[0]:
            first = self._process.stdout.readline()
            if first != b"started\n":
                self._process.kill()
                errors = self._process.communicate()[1].decode()
                raise AssertionError(f"{name} did not begin: {first!r} {errors[-4000:]}")
        self._is_over = threading.Event()
        self._turns = threading.Thread(target=self._take_turns, args=(duty,), daemon=True)
        if duty < 1:
            self._turns.start()

    def __enter__(self) -> Attack:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_turns()
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def stop(self) -> dict[str, float]:
        """Ends the attack and returns its counts, by name: what it opened, sent or was refused."""
        self._end_turns()
        if self._process.poll() is None:
            self._process.terminate()
        return self.counts()

    def counts(self) -> dict[str, float]:
        """Waits until the attack ends and returns its counts, as stop() does."""
        left = max(0.0, self._end - time.monotonic())
        output, errors = self._process.communicate(timeout=left + 60)
        lines = output.decode().splitlines()
        assert lines, f"{self.name}: {errors.decode()[-4000:]}"
        assert lines[-1].startswith("{"), f"{self.name}: {errors.decode()[-4000:]}"
        return dict(json.loads(lines[-1]))

    def _take_turns(self, duty: float) -> None:
        while not self._is_over.wait(duty * _TURN_SECONDS) and self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)
            self._is_over.wait((1 - duty) * _TURN_SECONDS)
            self._process.send_signal(signal.SIGCONT)

    def _end_turns(self) -> None:
        self._is_over.set()
        if self._turns.is_alive():
            self._turns.join()
