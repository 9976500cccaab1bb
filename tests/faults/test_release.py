"""Tests that the released server has neither the code nor the names of the fault sites."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_TRACES = (b"VOXSERVE_FAULTS", b"FaultAt", b"DelayAt", b"ParseFaultRules", b"slow_batch:", b"reserve_scratch")


def test_the_server_has_no_trace_of_faults(build: Path, binary: str) -> None:
    server, faulty = (build / "server" / "voxserve").read_bytes(), Path(binary).read_bytes()
    assert [trace for trace in _TRACES if trace in server] == []
    assert b"VOXSERVE_FAULTS" in faulty, "the search would find it"
    assert b"FaultAt" in faulty


def test_the_server_ignores_the_variable(build: Path) -> None:
    told = subprocess.run(
        [build / "server" / "voxserve", "--version"],
        env={**os.environ, "VOXSERVE_FAULTS": "no such fault"}, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert told.returncode == 0
    assert told.stderr == ""


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ("no such fault", "has a site that does not exist"),
        ("host_memory:every=0", "has a setting that its site does not know"),
        ("log;log", "has a site that another one has"),
    ],
)
def test_wrong_rules_are_told(binary: str, rules: str, why: str) -> None:
    told = subprocess.run(
        [binary, "--version"], env={**os.environ, "VOXSERVE_FAULTS": rules}, capture_output=True, text=True, timeout=30
    )
    assert told.returncode == 2
    assert why in told.stderr


def test_every_source_that_asks_for_faults_is_compiled_for_them(build: Path) -> None:
    """No other source is, except server/main.cc. So the list in CMakeLists.txt is right."""
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    with_faults = {
        os.path.relpath(entry["file"], ROOT) for entry in commands if "-DVOXSERVE_FAULTS" in entry["command"].split()
    }
    has_cuda = any(entry["file"].endswith(".cu") for entry in commands)
    asking = {
        path.relative_to(ROOT).as_posix()
        for room in ("engine", "server", "kernels")
        for path in (ROOT / room).rglob("*.cc")
        if (has_cuda or not path.name.endswith("_cuda.cc"))
        and re.search(r'^#include "engine/base/fault\.h"', path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert asking
    assert {name for name in with_faults if not name.startswith("tests/")} == asking | {"server/main.cc"}
