"""Starts a server process to attack, observes it and ends it."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import IO

from http2 import await_true

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = REPOSITORY / "deploy" / "models"
START_SECONDS = 120  # Loading a model can take this long on a busy machine.
MEBIBYTE = 1 << 20


class Server:
    """A server process on free ports that runs until close(). Flags that the binary's --help does not list are left
    out, so an older binary fails the test by its behaviour and not by refusing its command line.
    """

    def __init__(
        self,
        binary: str,
        log: Path,
        *flags: str,
        num_files: int = 4096,
        stderr: int | IO[bytes] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        known = subprocess.run([binary, "--help"], capture_output=True, text=True, check=True, timeout=30).stdout
        flags = tuple(f for f in flags if f"{f.split('=')[0]} " in known.replace("\n", " \n"))
        self._log = log

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (num_files, num_files))

        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [binary, f"--model_repository={MODELS}", "--devices=cpu", "--port=0", "--http_port=0", *flags],
                stdout=out,
                stderr=subprocess.STDOUT if stderr is None else stderr,
                preexec_fn=limit,
                env={**os.environ, **(environment or {})},
            )
        self.pid = self.process.pid
        self.grpc_port = self.http_port = self.admin_port = 0

    def await_ready(self, read_log: object = None) -> None:
        """Waits until the server listens and has loaded its model. read_log: a function that returns the log so far;
        self.log by default.
        """
        text = read_log if read_log is not None else self.log
        pattern = re.compile(r"\bserving\b.* grpc_port=(\d+) http_port=(\d+)(?:.* admin_port=(\d+))?")
        assert await_true(lambda: pattern.search(text()) or self.process.poll() is not None, START_SECONDS)
        found = pattern.search(text())
        assert found, f"the server did not start:\n{text()[-4000:]}"
        self.grpc_port, self.http_port = int(found[1]), int(found[2])
        self.admin_port = int(found[3] or found[1])
        assert await_true(lambda: self.get("/readyz")[0] == 200, START_SECONDS), text()[-4000:]

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def admin_address(self) -> str:
        return f"127.0.0.1:{self.admin_port}"

    def get(self, path: str, timeout: float = 10) -> tuple[int, str]:
        """Requests `path` over HTTP. Returns the status and the body, or (0, the problem) if no answer came in time."""
        connection = self._http_connection(timeout)
        try:
            connection.request("GET", path, headers=self._http_headers())
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error)
        finally:
            connection.close()

    def _http_connection(self, timeout: float) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=timeout)

    def _http_headers(self) -> dict[str, str]:
        return {}

    def metrics(self) -> dict[str, float]:
        """Returns every sample of the metrics page. A key is a metric's name with its labels, as the page has it."""
        status, text = self.get("/metrics")
        assert status == 200, text
        lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in lines}

    def has_later_grpc(self) -> bool:
        """Returns whether the server has a later gRPC than 1.51, as its log says. It ends some attacks by itself
        (server/THREATS.md).
        """
        version = re.search(r"voxserve starts .*\bgrpc=(\d+)\.(\d+)", self.log())
        assert version, self.log()[:1000]
        return (int(version[1]), int(version[2])) > (1, 51)

    # ---- memory

    def rss(self) -> int:
        """Returns the process's resident memory in bytes, or 0 if the process has ended."""
        return self._status("VmRSS")

    def peak_rss(self) -> int:
        """Returns the largest resident memory in bytes since reset_peak."""
        return self._status("VmHWM")

    def reset_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def address_space(self) -> int:
        return self._status("VmSize")

    def limit_address_space(self, num_bytes: int) -> None:
        resource.prlimit(self.pid, resource.RLIMIT_AS, (num_bytes, resource.RLIM_INFINITY))

    def _status(self, name: str) -> int:
        with contextlib.suppress(OSError):
            found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text(), re.MULTILINE)
            return int(found[1]) << 10 if found else 0
        return 0

    def cpu_seconds(self) -> float:
        """Returns the processor time of all threads since the start, in user and kernel mode."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # ---- end of the server

    def terminate(self, limit: float = 60) -> tuple[float, int | None]:
        """Sends SIGTERM and waits for the process to end. Returns the seconds this took and the exit status, which is
        None if the process still runs after `limit` seconds.
        """
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(limit)
        return time.monotonic() - start, self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def mebibytes(num_bytes: float) -> str:
    return f"{num_bytes / MEBIBYTE:.0f} MiB"
