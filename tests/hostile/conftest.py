"""Fixtures that start servers to attack, run attacks beside them, and print measured figures.

    PYTHONPATH=tests VOXSERVE_BINARY=build/dev/server/voxserve build/venv/bin/python -m pytest -q tests/hostile

An attack is as large as one that once succeeded, or smaller if the same effect shows sooner. The number in a test's
name (test_03_...) is that of the attack. The figures are listed at the end of the run. VOXSERVE_HOSTILE_SECONDS is the
duration of the long test that runs all attacks at once (20 by default).

The mark `alone` is for tests whose limits are the seconds in which others are answered beside much work, or whose
attack must be fast. They need a machine that does nothing else: run them by `-m alone`, and the others side by side by
`-m "not alone"`.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from recorded import record, recorded

from attack_process import Attack
from calls import OrdinaryClient
from server import Server

# The folders of modules that these tests share with others: a server with TLS and tokens, and its certificates.
for folder in ("gpu", "integration", "soak"):
    sys.path.append(str(Path(__file__).resolve().parents[1] / folder))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: needs a machine that does nothing else")
    # This process plays many machines at once, so it needs more file descriptors than the server may have.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384) if hard > 0 else 16384, hard))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if figures := recorded(terminalreporter, "figure"):
        terminalreporter.section("figures")
    for line in figures:
        terminalreporter.write_line(line)


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[..., None]:
    """figure(name=value, ...) records a measured value for the list at the end, even if the test fails afterwards."""

    def say(**values: object) -> None:
        line = f"{request.node.name}: " + ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in values.items())
        record(request, "figure", line)
        print(line)

    return say


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """serve(*flags, num_files=..., stderr=...) starts a server with deploy/models and returns it when the model is
    loaded and warmed up.
    """
    with ExitStack() as stack:
        yield lambda *flags, **options: _start(stack, tmp_path, *flags, **options)


@pytest.fixture(scope="module")
def serve_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server that is shared by all tests of a module that leave no state behind."""
    with ExitStack() as stack:
        yield _start(stack, tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def serve_repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], Server]]:
    """serve_repository(folder) starts a server with the models of a folder for all tests of a module."""
    with ExitStack() as stack:
        yield lambda folder: _start(stack, tmp_path_factory.mktemp("server"), f"--model_repository={folder}")


def _start(stack: ExitStack, folder: Path, *flags: str, read_log: object = None, **options: Any) -> Server:
    binary = os.environ.get("VOXSERVE_BINARY")
    if not binary:
        pytest.skip("VOXSERVE_BINARY does not name the server's binary; tests/run.sh sets it")
    server = Server(binary, folder / "log", *flags, **options)
    stack.callback(server.close)
    server.await_ready(read_log)
    warm = OrdinaryClient(server.address, timeout=30).ask(3)
    assert not warm.failures, warm.failures
    return server


@pytest.fixture
def attack() -> Iterator[Callable[..., Attack]]:
    """attack(name, server, seconds, **options) starts an attack of attacks.py and returns it once it has its full
    effect. It ends with the test at the latest.
    """
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(Attack(*arguments, **options))
