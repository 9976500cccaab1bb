"""Runs one function of attacks.py in a process of its own."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from server import Server

_PROGRAM = Path(__file__).parent / "attacks.py"
# The longest time until an attack has its full effect. unread_answers and silent_streams need the longest.
START_SECONDS = 60


class Attack:
    """A running attack. The constructor waits until the attack has its full effect, for at most `start_seconds`. The
    attack ends when its time is over, when its server ends, at stop(), or at the end of the `with` block.
    """

    def __init__(
        self,
        name: str,
        server: Server,
        seconds: float,
        start_seconds: float = START_SECONDS,
        nice: int = 15,
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
            bufsize=0,  # otherwise communicate() would lose the output behind the first line
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

    def __enter__(self) -> Attack:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def stop(self) -> dict[str, float]:
        """Ends the attack and returns its counts, by name: what it opened, sent or was refused."""
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
