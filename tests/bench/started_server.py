"""Starts a server for a benchmark, and stops it."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STOP_SECONDS = 60.0


@contextmanager
def started(server: str, models: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yields a server's process and address when its models are loaded. server: the program. At the end of the block
    the server is asked to end; after STOP_SECONDS it is killed, and TimeoutExpired raised.
    """
    command = [server, f"--model_repository={models}", "--port=0", "--http_port=0", "--admin_port=0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        port = ""
        for line in process.stderr:
            port = (re.search(r" grpc_port=(\d+)", line) or [0, port])[1]
            if "models loaded" in line:
                break
        else:
            raise SystemExit("the server ended")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield process, f"localhost:{port}"
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
