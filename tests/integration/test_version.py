"""Tests that the version is written only in the file client/python/VERSION, from which everything else reads it."""

import importlib.metadata
import os
import pathlib
import re
import subprocess

import pytest
import voxserve

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = (ROOT / "client/python/VERSION").read_text(encoding="utf-8")


def test_it_is_one_line_of_three_numbers():
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", VERSION)


def test_the_server_says_it():
    binary = os.environ.get("VOXSERVE_BINARY")
    if not binary:
        pytest.skip("VOXSERVE_BINARY does not name the server; tests/run.sh sets it")
    answer = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True, timeout=30)
    assert answer.stdout.split() == ["voxserve", VERSION.strip()]


def test_the_python_package_says_it():
    assert importlib.metadata.version("voxserve") == VERSION.strip()
    assert voxserve.__version__ == VERSION.strip()


def test_the_changelog_has_it():
    changelog = (ROOT / ".github" / "CHANGELOG.md").read_text(encoding="utf-8")
    assert VERSION.strip() in re.findall(r"^## (\S+)", changelog, re.MULTILINE)


def test_no_other_file_of_the_build_states_it():
    files = ["CMakeLists.txt", "Dockerfile", "client/python/pyproject.toml", "client/python/src/voxserve/__init__.py"]
    assert [f for f in files if VERSION.strip() in (ROOT / f).read_text(encoding="utf-8")] == []
