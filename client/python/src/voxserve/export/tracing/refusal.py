"""Refuses what cannot be exported, and shows the user's line of Python that caused it."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path

from voxserve.export.networks.tensors import ExportError

_PACKAGE = str(Path(__file__).resolve().parents[1])
# Frames of these packages are not the user's code. MinkowskiEngine's modules lie in a folder of that name.
_LIBRARIES = ("torch", "spconv", "torchsparse", "MinkowskiEngine")


class RefusalError(ExportError):
    """The model format does not have an operation of the module. The message shows the user's line of Python."""

    def __init__(self, problem: str) -> None:
        line = _line_of_user()
        super().__init__([f"{problem}\n    at {line}" if line else problem])

    def offering(self, module: str) -> ExportError:
        """Returns the same error with the advice to cut the network after a module. module: its path; "": no advice."""
        if not module:
            return self
        offer = f"what comes before it can be exported: cut='{module}' (--cut {module}) ends the network there"
        return ExportError([*self.problems, offer])


def _line_of_user() -> str:
    """Returns the innermost line of the user's code on the call stack as "file:number: code"; "" if there is none."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        is_ours = frame.filename.startswith(_PACKAGE)
        if not is_ours and not any(library in path.parts for library in _LIBRARIES) and path.name != "contextlib.py":
            code = linecache.getline(frame.filename, frame.lineno or 0).strip()
            return f"{frame.filename}:{frame.lineno}: {code}"
    return ""
