"""Tests tests/long_tests.py and tests/recorded.py in the way that tests/run.sh and tests/release.sh use them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS_FOLDER = Path(__file__).resolve().parents[1]
CONFTEST = """
from recorded import recorded

def pytest_terminal_summary(terminalreporter):
    for line in recorded(terminalreporter, "said"):
        terminalreporter.write_line(line)
    assert recorded(terminalreporter, "other") == []
"""
TESTS = """
import pytest
from long_tests import LONG
from recorded import record

@pytest.mark.parametrize("form", ["short", pytest.param("long", marks=LONG)])
def test_both(request, form):
    record(request, "said", f"the {form} form ran")
"""


def run(folder: Path, *options: str, **environment: str) -> list[str]:
    """Returns what pytest prints about two forms of one test."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_forms.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *options, "."]
    kept = {name: value for name, value in os.environ.items() if name != "VOXSERVE_LONG"}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "PYTHONPATH": str(TESTS_FOLDER), "PYTEST_ADDOPTS": "", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_long_form_is_skipped_and_says_so(tmp_path: Path) -> None:
    lines = run(tmp_path)
    assert "the short form ran" in lines
    assert "the long form ran" not in lines
    assert any(line.startswith("SKIPPED [1] test_forms.py") and line.endswith("long: tests/release.sh") for line in lines)


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_both_forms_run_and_are_recorded_for_a_release(tmp_path: Path, options: tuple[str, ...]) -> None:
    if options:
        pytest.importorskip("xdist")
    lines = run(tmp_path, *options, VOXSERVE_LONG="1")
    assert {"the short form ran", "the long form ran"} <= set(lines)
    assert not any("SKIPPED" in line for line in lines)
