"""Imports libraries that only some methods need, with an error that names the package to install."""

from __future__ import annotations

import importlib
from typing import Any


def library(name: str, method: str) -> Any:
    """Returns a module. ImportError, with the command that installs it, if it is missing. method: what needs it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise
        raise ImportError(f"{method} needs {package}: pip install {package}, or 'voxserve[show]'") from None
