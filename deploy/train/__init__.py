"""Trains the models of deploy/models in plain PyTorch (README.md)."""

import sys
import types
from pathlib import Path

# The client's package imports gRPC, which a machine that trains may not have. Configurations of networks and rules of
# evaluation lie in the same package and need NumPy alone, so it is entered here without its __init__.
if "voxserve" not in sys.modules:
    _package = types.ModuleType("voxserve")
    _package.__path__ = [str(Path(__file__).resolve().parents[2] / "client/python/src/voxserve")]
    sys.modules["voxserve"] = _package
