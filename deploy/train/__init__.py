"""Trains the models of deploy/models in plain PyTorch (README.md)."""

import sys
import types
from pathlib import Path

# The package voxserve (client/python) imports gRPC, which a machine that trains may not have. Training needs only its
# networks' configurations and its evaluation rules, which need only NumPy. So voxserve is registered here as a package
# whose __init__ does not run.
if "voxserve" not in sys.modules:
    _package = types.ModuleType("voxserve")
    _package.__path__ = [str(Path(__file__).resolve().parents[2] / "client/python/src/voxserve")]
    sys.modules["voxserve"] = _package
