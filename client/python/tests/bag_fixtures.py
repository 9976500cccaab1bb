"""Fixtures for tests of python -m voxserve.bag, a plugin of pytest: pytest_plugins = ("bag_fixtures",)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def scans() -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """Returns five parts of a real scan."""
    scan = Path(__file__).resolve().parents[3] / "deploy" / "scans" / "pandaset_070.bin"
    points = np.fromfile(scan, "<f4").reshape(-1, 4)
    return [points[start : start + 400 + start] for start in range(5)]


@pytest.fixture
def call(server: Any, tmp_path: Path) -> Callable[..., int]:
    """Returns a function that labels a bag into out.mcap of the test's folder, and returns the exit status."""
    from voxserve.bag import command

    def run(bag: Path, *more: str, model: str = "minkunet") -> int:
        save = str(tmp_path / "out.mcap")
        return command.main([str(bag), "--model", model, "--save", save, "--address", server.address, *more])

    return run
