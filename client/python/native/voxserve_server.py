"""The compiled parts of voxserve for Python: its programs, and the engine as a module (voxserve_server._engine).

The package voxserve uses it: `voxserve serve` runs the server, voxserve.Engine runs the engine in this process.
"""

import os
import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent / "bin"


def program(name):
    """Returns the path of a program: voxserve (the server), voxserve-client, voxserve-tune or voxserve-calibrate; None
    if it is missing.
    """
    path = _FOLDER / name
    return path if path.is_file() else None


def run(name, arguments):
    """Becomes the program. The program gets this process's id, signals and output, so it returns only by an error."""
    path = program(name)
    if path is None:
        raise FileNotFoundError(f"{name} is not in {_FOLDER}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, [name, *arguments])


def client():
    """Runs voxserve-client."""
    run("voxserve-client", sys.argv[1:])


def tune():
    """Runs voxserve-tune."""
    run("voxserve-tune", sys.argv[1:])


def calibrate():
    """Runs voxserve-calibrate."""
    run("voxserve-calibrate", sys.argv[1:])
