"""Runs servers, each on a machine of its own (namespaces.py), HAProxy on another, and clients that send them requests
while something fails.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from namespaces import Machine, Network

REPOSITORY = Path(__file__).resolve().parents[2]
MODELS = REPOSITORY / "deploy" / "models"
SCAN = REPOSITORY / "deploy" / "scans" / "pandaset_070.bin"
MODEL = "minkunet"
GRPC_PORT, HTTP_PORT = 8500, 8080
WAIT = 120.0  # seconds; nothing takes so long unless it is broken


def await_true(condition: Callable[[], Any], limit: float = WAIT) -> bool:
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


class Server:
    """A server process on its machine. After the process has ended, start() starts another one."""

    def __init__(self, binary: str, machine: Machine, log: Path, *flags: str) -> None:
        self.machine, self._log = machine, log
        self._command = [binary, f"--model_repository={MODELS}", "--devices=cpu", "--threads=1", "--host=0.0.0.0"]
        self._command += [f"--port={GRPC_PORT}", f"--http_port={HTTP_PORT}", *flags]
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as out:
            self.process = self.machine.start(self._command, stdout=out, stderr=subprocess.STDOUT)

    def await_ready(self) -> None:
        ready = await_true(lambda: self.process.poll() is not None or self.get("/readyz") is not None)
        assert ready, self.log()[-4000:]
        assert self.process.poll() is None, self.log()[-4000:]

    def get(self, path: str) -> str | None:
        """Returns a page over HTTP, requested on the server's own machine. None if there is no answer of status 200."""

        def fetch() -> str | None:
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            try:
                with opener.open(f"http://127.0.0.1:{HTTP_PORT}{path}", timeout=10) as page:
                    return str(page.read().decode())
            except OSError:
                return None

        return self.machine.call(fetch)

    def answered(self) -> int:
        """Returns how many clouds this process has answered."""
        return self._sample("voxserve_frames_total")

    def open_streams(self) -> int:
        return self._sample("voxserve_streams")

    def _sample(self, metric: str) -> int:
        for line in (self.get("/metrics") or "").splitlines():
            if line.startswith(f'{metric}{{model="{MODEL}"}}'):
                return int(float(line.split()[-1]))
        return 0

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT)

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()


class LoadingClient:
    """A client program that sends requests until stop(), which returns the outcomes of its calls and frames (the JSON
    of failover_client.py).
    """

    def __init__(self, machine: Machine, name: str, program: Sequence[str | Path], log: Path, *arguments: str) -> None:
        self.name, self._log = name, log
        with log.open("wb") as out:
            words = [*program, *arguments]
            self.process = machine.start(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n", self.log()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> dict[str, dict[str, Any]]:
        out, _ = self.process.communicate(timeout=WAIT)
        assert self.process.returncode == 0, self.log()[-4000:]
        result: dict[str, dict[str, Any]] = json.loads(out)
        return result

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT)


class Cluster:
    """Servers, and HAProxy if `proxied`; otherwise the clients themselves balance over the servers.

    names_clients: HAProxy tells the servers its clients' addresses (PROXY protocol), and the servers trust it.
    """

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        binary: str,
        *,
        proxied: bool,
        names_clients: bool = True,
        num_servers: int = 3,
        flags: Sequence[str] = (),
    ) -> None:
        self._stack, self._folder = stack, folder
        self.network = Network()
        stack.callback(self.network.close)
        proxy = self.network.add("proxy") if proxied else None
        if proxy is not None and names_clients:
            flags = [*flags, f"--trusted_proxies={proxy.address}"]
        self.servers = []
        for number in range(1, num_servers + 1):
            server = Server(binary, self.network.add(f"server{number}"), folder / f"server{number}.log", *flags)
            stack.callback(server.close)
            self.servers.append(server)
        for server in self.servers:
            server.await_ready()
        addresses = ",".join(f"{server.machine.address}:{GRPC_PORT}" for server in self.servers)
        self.address = f"ipv4:{addresses}"
        if proxy is not None:
            self._start_proxy(proxy, names_clients)
            self.address = f"{proxy.address}:{GRPC_PORT}"

    def _start_proxy(self, machine: Machine, names_clients: bool) -> None:
        template = (REPOSITORY / "deploy" / "haproxy" / "haproxy.cfg").read_text()
        assert " send-proxy-v2" in template
        if not names_clients:
            template = template.replace(" send-proxy-v2", "")
        named = "".join(
            f"    server {server.machine.name} {server.machine.address}:{GRPC_PORT}\n" for server in self.servers
        )
        head, mark, _ = template.partition("    server voxserve-1 ")
        assert mark, "haproxy.cfg names a first server"
        path = self._folder / "haproxy.cfg"
        path.write_text(head + named)
        with (self._folder / "haproxy.log").open("wb") as out:
            process = machine.start(["haproxy", "-db", "-f", path], stdout=out, stderr=subprocess.STDOUT)
        self._stack.callback(process.wait, WAIT)
        self._stack.callback(process.kill)

        def connects() -> bool:
            try:
                with socket.create_connection((machine.address, GRPC_PORT), 5):
                    return True
            except OSError:
                return False

        assert await_true(lambda: process.poll() is not None or machine.call(connects))
        assert process.poll() is None, (self._folder / "haproxy.log").read_text()

    def add_client(self, name: str, program: Sequence[str | Path], rate: float, keepalive: float) -> LoadingClient:
        log = self._folder / f"{name}.log"
        arguments = [self.address, MODEL, str(SCAN), str(rate), str(keepalive)]
        client = LoadingClient(self.network.add(name), name, program, log, *arguments)
        self._stack.callback(client.close)
        return client


PYTHON_CLIENT: list[str | Path] = [sys.executable, Path(__file__).with_name("failover_client.py")]


def cpp_client() -> list[str | Path]:
    """Returns the C++ client's command. It is built with the server."""
    path = Path(os.environ["VOXSERVE_BINARY"]).parents[1] / "tests" / "machines" / "voxserve_failover_client"
    assert path.exists(), f"{path} was not built"
    return [path]
