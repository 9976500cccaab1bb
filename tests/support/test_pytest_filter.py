"""Tests tests/pytest_filter.py in the way that tests/run.sh uses it."""

import os
import pathlib
import subprocess
import sys

import pytest

PLUGIN_FOLDER = pathlib.Path(__file__).resolve().parents[1]
TESTS = """
import pytest

def test_apple(): pass

@pytest.mark.parametrize("kind", ["pear", "fig"])
def test_fruit(kind): pass
"""


def run(folder: pathlib.Path, *options: str) -> tuple[int, list[str], str]:
    """Returns pytest's exit status, the tests that ran, and its output."""
    (folder / "test_plants.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-p", "pytest_filter", *options, "."]
    environment = {**os.environ, "PYTHONPATH": str(PLUGIN_FOLDER), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    ran = [line.split("::")[1].split(" ")[0] for line in done.stdout.splitlines() if "PASSED" in line]
    return done.returncode, ran, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("regex", "expected"),
    [
        ("^test_apple$", ["test_apple"]),
        ("apple|pear", ["test_apple", "test_fruit[pear]"]),
        (r"fruit\[(fig|plum)\]", ["test_fruit[fig]"]),
        ("plants.py::.*a", ["test_apple", "test_fruit[pear]"]),
        ("", ["test_apple", "test_fruit[pear]", "test_fruit[fig]"]),
    ],
)
def test_names_that_match_are_kept(tmp_path: pathlib.Path, regex: str, expected: list[str]) -> None:
    status, ran, _ = run(tmp_path, "--name-regex", regex)
    assert (status, ran) == (0, expected)


def test_without_a_regex_every_test_runs(tmp_path: pathlib.Path) -> None:
    assert len(run(tmp_path)[1]) == 3


def test_no_match_runs_no_test(tmp_path: pathlib.Path) -> None:
    status, ran, out = run(tmp_path, "--name-regex", "Suite.Test")
    assert (status, ran) == (pytest.ExitCode.NO_TESTS_COLLECTED, [])
    assert "3 deselected" in out


def test_a_regex_that_is_none_is_named(tmp_path: pathlib.Path) -> None:
    status, ran, out = run(tmp_path, "--name-regex", "a(")
    assert (status, ran) == (pytest.ExitCode.USAGE_ERROR, [])
    assert "--name-regex 'a('" in out
