"""Stands in for machines by network namespaces, which are wired to a switch: a bridge in a namespace of its own.

No namespace is connected to the host's network, and Network.close() deletes all of them. Needs root and iproute2.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")
_NETWORK = "10.77.0"
_CLONE_NEWNET = 0x40000000
_FORWARDING, _DISABLED = "3", "0"  # states of a bridge's port
_NUMBERS = itertools.count()
_LIBC = ctypes.CDLL(None, use_errno=True)


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip() or f'exit status {done.returncode}'}")


def ip(*arguments: str) -> None:
    run("ip", *arguments)


def _rate_limit(kilobits: int) -> list[str]:
    return ["tbf", "rate", f"{kilobits}kbit", "burst", "16k", "latency", "2s"]


def why_not() -> str:
    """Returns why the host cannot make such namespaces; "" if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"vx{os.getpid()}try"
    try:
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "port", "type", "veth", "peer", "name", "eth0")
        ip("-n", name, "link", "add", "bridge", "type", "bridge")
        ip("-n", name, "link", "set", "dev", "port", "master", "bridge")
        for device in ("bridge", "port", "eth0"):
            ip("-n", name, "link", "set", "dev", device, "up")
        run("bridge", "-n", name, "link", "set", "dev", "port", "state", _DISABLED)
        run("tc", "-n", name, "qdisc", "add", "dev", "port", "root", *_rate_limit(100))
    except FileNotFoundError as error:
        return f"{error.filename} is not installed (apt-get install iproute2)"
    except OSError as error:
        return f"no network namespaces here: {error}"
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return ""


class Network:
    """The switch, and the machines that are wired to it."""

    def __init__(self) -> None:
        self._prefix = f"vx{os.getpid()}n{next(_NUMBERS)}"
        self._switch = f"{self._prefix}switch"
        self.machines: list[Machine] = []
        ip("netns", "add", self._switch)
        # Without the spanning tree protocol a port forwards at once.
        ip("-n", self._switch, "link", "add", "bridge", "type", "bridge", "stp_state", "0", "forward_delay", "0")
        ip("-n", self._switch, "link", "set", "bridge", "up")

    def add(self, name: str) -> Machine:
        machine = Machine(self._switch, f"{self._prefix}{name}", name, f"{_NETWORK}.{len(self.machines) + 1}")
        self.machines.append(machine)
        return machine

    def close(self) -> None:
        for name in [self._switch, *(machine.namespace for machine in self.machines)]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


class Machine:
    """A namespace with one address. Its link's faults are made at the switch, so no process in it learns of them."""

    def __init__(self, switch: str, namespace: str, name: str, address: str) -> None:
        self.namespace, self.name, self.address = namespace, name, address
        self._switch, self._port = switch, name
        ip("netns", "add", namespace)
        ip("-n", switch, "link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        ip("-n", switch, "link", "set", "dev", name, "master", "bridge", "up")
        ip("-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        ip("-n", namespace, "link", "set", "lo", "up")
        ip("-n", namespace, "link", "set", "eth0", "up")

    def start(self, command: list[str | Path], **options: Any) -> subprocess.Popen[bytes]:
        """Starts a program on this machine. Its environment has no proxy."""
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        words = ["ip", "netns", "exec", self.namespace, *map(str, command)]
        return subprocess.Popen(words, env=environment, **options)

    def call(self, function: Callable[[], Result]) -> Result:
        """Calls a function in a thread whose sockets are this machine's."""
        results: list[Result] = []
        errors: list[Exception] = []

        def run() -> None:
            with Path(f"/run/netns/{self.namespace}").open() as namespace:
                if _LIBC.setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), f"setns to {self.namespace}")
            try:
                results.append(function())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def take_link_down(self) -> None:
        ip("-n", self._switch, "link", "set", "dev", self._port, "down")

    def bring_link_up(self) -> None:
        ip("-n", self._switch, "link", "set", "dev", self._port, "up")

    def drop_frames(self, drops: bool) -> None:
        """Drops all frames from and to this machine, whose link stays up."""
        state = _DISABLED if drops else _FORWARDING
        run("bridge", "-n", self._switch, "link", "set", "dev", self._port, "state", state)

    def limit_rate(self, kilobits: int | None) -> None:
        """Limits the link in both directions; None: no limit."""
        for namespace, device in ((self._switch, self._port), (self.namespace, "eth0")):
            words = ["tc", "-n", namespace, "qdisc"]
            if kilobits is None:
                words += ["del", "dev", device, "root"]
            else:
                words += ["add", "dev", device, "root", *_rate_limit(kilobits)]
            run(*words)
