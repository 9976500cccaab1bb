"""Refuses what cannot be exported, and shows the user's line of Python that caused it."""

from __future__ import annotations

import linecache
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from voxserve.export.networks.tensors import ExportError

_PACKAGE = str(Path(__file__).resolve().parents[2])
# Frames of these packages are not the user's code. MinkowskiEngine's modules lie in a folder of that name.
_LIBRARIES = ("torch", "spconv", "torchsparse", "MinkowskiEngine", "torch_scatter")


@dataclass(frozen=True)
class Line:
    """A line of Python: "file:number: code" as text."""

    file: str
    number: int

    @property
    def code(self) -> str:
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.code}"


class RefusalError(ExportError):
    """The model format does not have an operation of the module. The message shows the user's line of Python.

    line: the line; None stands for the one that is running.
    """

    def __init__(self, problem: str, line: Line | None = None) -> None:
        line = line or line_of_user()
        super().__init__([f"{problem}\n    at {line}" if line else problem])

    def offering(self, module: str) -> ExportError:
        """Returns the same error with the advice to cut the network after a module. module: its path; "": no advice."""
        if not module:
            return self
        offer = f"what comes before it can be exported: cut='{module}' (--cut {module}) ends the network there"
        return ExportError([*self.problems, offer])


class LimitError(RefusalError):
    """The server would refuse the network, however large the cloud is."""


@cache
def is_of_user(file: str) -> bool:
    """Returns whether a file of Python is the user's code: not voxserve's, torch's or a sparse library's."""
    path = Path(file)
    is_library = file.startswith((_PACKAGE, "<frozen ")) or any(library in path.parts for library in _LIBRARIES)
    return not is_library and path.name != "contextlib.py"


def line_of_user() -> Line | None:
    """Returns the innermost line of the user's code on the call stack; None if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_of_user(frame.f_code.co_filename):
            return Line(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None
