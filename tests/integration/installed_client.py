"""Installs the C++ client of a build, for the tests of the installed client and of the ROS 2 component."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, environment: dict[str, str] | None = None, seconds: float = 900) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def configure(source: Path, build: Path, *options: str, environment: dict[str, str] | None = None) -> None:
    ccache = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    options = ("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *ccache, *options)
    run("cmake", "-S", source, "-B", build, *options, environment=environment)


def install(prefix: Path) -> Path:
    """Installs the components client and client-dev of the build that is tested into the prefix. Returns the
    library.
    """
    path = os.environ.get("VOXSERVE_CLIENT_BINARY")
    if not path:
        pytest.skip("VOXSERVE_CLIENT_BINARY names no build; tests/run.sh sets it")
    for component in ("client", "client-dev"):
        run("cmake", "--install", Path(path).parents[2], "--prefix", prefix, "--component", component)
    (found,) = prefix.rglob("libvoxserve_client.so")
    return found
