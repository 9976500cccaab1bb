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
    """The model format does not have an operation; the message has the user's line."""

    def __init__(self, problem: str) -> None:
        line = _line_of_user()
        super().__init__([f"{problem}\n    at {line}" if line else problem])

    def offering(self, module: str) -> ExportError:
        """Returns the same error, naming the module after which the network can be cut; "": none."""
        if not module:
            return self
        offer = f"what comes before it can be exported: cut='{module}' (--cut {module}) ends the network there"
        return ExportError([*self.problems, offer])


def _line_of_user() -> str:
    """Returns "file:number: code"; "" if no frame is the user's."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        is_ours = frame.filename.startswith(_PACKAGE)
        if not is_ours and not any(library in path.parts for library in _LIBRARIES) and path.name != "contextlib.py":
            code = linecache.getline(frame.filename, frame.lineno or 0).strip()
            return f"{frame.filename}:{frame.lineno}: {code}"
    return ""
