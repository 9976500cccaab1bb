"""What an exporter is given: a state dict and a list of classes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from voxserve.export import safetensors_file
from voxserve.export.model_folder import ClassEntry

_DATA_PARALLEL = "module."


def read_state_dict(path: str) -> dict[str, npt.NDArray[Any]]:
    """Tensors by name from .safetensors, or from a torch file where torch is installed.

    Names that all begin with "module." are those of torch's DataParallel, and go on without it.
    """
    is_torch_file = path.endswith((".pt", ".pth", ".ckpt"))
    tensors = _read_torch_file(path) if is_torch_file else safetensors_file.read(path)
    if all(name.startswith(_DATA_PARALLEL) for name in tensors):
        return {name.removeprefix(_DATA_PARALLEL): tensor for name, tensor in tensors.items()}
    return tensors


def _read_torch_file(path: str) -> dict[str, npt.NDArray[Any]]:
    try:
        import torch
    except ImportError:
        raise ValueError(
            f"{path} is a torch file, which needs torch: pip install torch, or save the state dict as .safetensors"
        ) from None
    # Before 2.6 weights_only could be made to run what a file says (CVE-2025-32434).
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise ValueError(f"{path} is a torch file, which needs torch 2.6 or newer; here is {torch.__version__}")
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # of the zip file, of pickle, of what weights_only forbids
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} is not a torch file of tensors alone: {reason}") from None
    if not isinstance(loaded, dict):
        raise ValueError(f"{path} holds a {type(loaded).__name__}, not a state dict")
    for key in ("state_dict", "model_state_dict", "model_state", "model", "net"):
        loaded = loaded[key] if isinstance(loaded.get(key), dict) else loaded
    tensors = {str(name): value.detach() for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    return {name: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for name, t in tensors.items()}


def read_classes(path: str) -> tuple[tuple[ClassEntry, ...], int | None]:
    """Classes and ignore label of a JSON file {"classes": [{"id", "name", "color": [r, g, b]}], "ignore_label"}."""
    card = json.loads(Path(path).read_text(encoding="utf-8"))
    try:
        classes = tuple(ClassEntry(int(c["id"]), str(c["name"]), _rgb(c["color"])) for c in card["classes"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path}: classes must be a list of {{id, name, color: [r, g, b]}}") from None
    ignore_label = card.get("ignore_label")
    return classes, None if ignore_label is None else int(ignore_label)


def _rgb(values: Sequence[int]) -> tuple[int, int, int]:
    red, green, blue = (int(v) for v in values)
    if not all(0 <= v <= 255 for v in (red, green, blue)):
        raise ValueError(values)
    return red, green, blue
