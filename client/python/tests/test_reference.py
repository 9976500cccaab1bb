"""Builds the API reference, with warnings as errors, and looks for every public name in it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import voxserve

TOOL = Path(__file__).resolve().parents[1] / "tools" / "build_reference.sh"
# Modules, and what is documented with the class that has it.
NOT_CLASSES = {"aio", "read", "record"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns the pages of the reference by their names."""
    pytest.importorskip("sphinx", reason="sphinx is not installed (the extra docs)")
    out = tmp_path_factory.mktemp("reference")
    run = subprocess.run(
        [TOOL, out], env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    return {path.stem: path.read_text(encoding="utf-8") for path in out.glob("*.html")}


def test_every_public_name_is_in_the_reference(pages: dict[str, str]) -> None:
    text = "".join(pages.values())
    missing = [name for name in voxserve.__all__ if f'id="voxserve.{name}"' not in text and name not in NOT_CLASSES]
    assert missing == []
    assert all(f'id="voxserve.{name}"' in text for name in ("read", "record", "aio.Client"))


def test_arguments_and_fields_are_lists(pages: dict[str, str]) -> None:
    assert "<strong>keepalive</strong>" in pages["client"], "an argument of the constructor"
    assert "<strong>labels</strong>" in pages["results"], "a field of a dataclass"


def test_a_docstring_that_is_wrong_fails_the_build(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="sphinx is not installed (the extra docs)")
    folder = tmp_path / "python"
    (folder / "docs").mkdir(parents=True)
    (folder / "src").symlink_to(TOOL.parents[1] / "src")
    (folder / "VERSION").write_text("1")
    (folder / "docs" / "conf.py").write_text((TOOL.parents[1] / "docs" / "conf.py").read_text())
    (folder / "docs" / "index.rst").write_text("Title\n=====\n\n.. autoclass:: voxserve.NoSuchClass\n")
    copied = tmp_path / "build_reference.sh"
    copied.write_text(
        TOOL.read_text().replace('here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)', f"here={folder}")
    )
    run = subprocess.run(
        ["bash", copied, tmp_path / "out"],
        env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode != 0
    assert "NoSuchClass" in run.stderr
