"""Fixtures that start servers with faults, and the table of what was injected, what clients saw and what was lost.

    PYTHONPATH=tests VOXSERVE_BINARY=build/dev/server/voxserve build/venv/bin/python -m pytest -q tests/faults

VOXSERVE_FAULTS_DEVICE names the device (cpu by default). VOXSERVE_FAULTS_TABLE names a file that gets the table.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import recorded
from fault_server import MODEL_FOLDER, SMALL_STRIDES, FaultServer, answered_workload

from workload import FLEET, Workload

_HEAD = ("injected", "what clients saw", "what was lost")

Record = Callable[[str, str, str], None]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows = recorded.recorded(terminalreporter, "fault")
    text = "\n".join([_line(*_HEAD), _line(*("---" for _ in _HEAD)), *rows])
    if rows:
        terminalreporter.section("faults")
        terminalreporter.write_line(text)
    if path := os.environ.get("VOXSERVE_FAULTS_TABLE"):
        Path(path).write_text(text + "\n")


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """record(injected, saw, lost) adds a row to the table."""
    return lambda *row: recorded.record(request, "fault", _line(*row))


@pytest.fixture(scope="session")
def build() -> Path:
    binary = os.environ.get("VOXSERVE_BINARY")
    if not binary:
        pytest.skip("VOXSERVE_BINARY names no build; tests/run.sh sets it")
    return Path(binary).parents[1]


@pytest.fixture(scope="session")
def binary(build: Path) -> str:
    return str(build / "tests" / "faults" / "voxserve_with_faults")


@pytest.fixture(scope="session")
def device() -> str:
    return os.environ.get("VOXSERVE_FAULTS_DEVICE", "cpu")


@dataclass(frozen=True)
class Serving:
    """A server with a model folder of its own, and scans with the answers that this server gave before any fault."""

    server: FaultServer
    models: Path
    workload: Workload


Serve = Callable[..., Serving]


def _start(
    stack: ExitStack, binary: str, device: str, folder: Path, *flags: str, strides: Sequence[int] = SMALL_STRIDES
) -> Serving:
    models = folder / "models"
    shutil.copytree(MODEL_FOLDER, models / FLEET)
    server = FaultServer(
        binary, folder, f"--model_repository={models}", f"--devices={device}", "--memory_limit=2GiB",
        "--deterministic=true", *flags,
    )  # fmt: skip
    stack.callback(server.close)
    server.await_ready()
    return Serving(server, models, answered_workload(server, strides))


@pytest.fixture
def serve(binary: str, device: str, tmp_path: Path) -> Iterator[Serve]:
    """serve(*flags, strides=...) starts a server for this test."""
    with ExitStack() as stack:
        yield partial(_start, stack, binary, device, tmp_path)


@pytest.fixture(scope="module")
def serving(binary: str, device: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One server for all tests of a module. Each test must leave it as it was."""
    with ExitStack() as stack:
        yield _start(stack, binary, device, tmp_path_factory.mktemp("faults"))
