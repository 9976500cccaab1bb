"""Finds what is compiled: the engine as a module, and the server's program. The package voxserve-server has both."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import voxserve

_INSTALL = "pip install 'voxserve[server]'"


def engine_module() -> Any:
    """Returns the module voxserve_server._engine. ImportError, with what to do, if it cannot be loaded, or if it is of
    another version than this package: their messages may differ.
    """
    try:
        module = importlib.import_module("voxserve_server._engine")
    except ImportError as error:
        raise ImportError(f"the engine is not installed here ({error}); {_INSTALL}") from None
    ours, theirs = voxserve.__version__, getattr(module, "version", "unknown")
    if ours not in (theirs, voxserve.UNKNOWN_VERSION):
        raise ImportError(
            f"the engine in {module.__file__} has version {theirs}, and the package voxserve has version {ours}; "
            f"install both with one version: {_INSTALL.replace('install', 'install --upgrade')}"
        )
    return module


def server_program() -> Path:
    """Returns the path of the server's program: that of the package voxserve-server, else the first in PATH. (The
    command voxserve of this package has the same name, and is no program but a script.) FileNotFoundError, with what to
    do, if there is none.
    """
    try:
        packaged = importlib.import_module("voxserve_server").program("voxserve")
    except ImportError:
        packaged = None
    if packaged is not None:
        return Path(packaged)
    for folder in os.get_exec_path():
        path = Path(folder) / "voxserve"
        if _is_program(path):
            return path
    raise FileNotFoundError(f"the server is not installed here; {_INSTALL}")


def _is_program(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF" and os.access(path, os.X_OK)
    except OSError:
        return False
