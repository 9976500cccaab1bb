"""Reads the input files of the exporters: a state dict and a list of classes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.export import safetensors_file
from voxserve.export.class_lists import CLASS_LISTS
from voxserve.export.model_folder import ClassEntry

_DATA_PARALLEL = "module."
_TORCH_BEGINNINGS = (b"PK\x03\x04", b"\x80\x02")  # a zip file, or (before torch 1.6) a pickle of protocol 2


def read_state_dict(path: str) -> dict[str, npt.NDArray[Any]]:
    """Returns the tensors of a .safetensors file by name, or those of a torch file (of any extension) if torch is
    installed.

    If all names begin with "module.", as torch's DataParallel writes them, it removes that prefix. Raises OSError if
    the file cannot be read, ValueError if it does not contain a state dict.
    """
    with Path(path).open("rb") as file:
        is_torch_file = path.endswith((".pt", ".pth", ".ckpt")) or file.read(4).startswith(_TORCH_BEGINNINGS)
    tensors = _read_torch_file(path) if is_torch_file else safetensors_file.read(path)
    if all(name.startswith(_DATA_PARALLEL) for name in tensors):
        return {name.removeprefix(_DATA_PARALLEL): tensor for name, tensor in tensors.items()}
    return tensors


def narrowed(tensors: Mapping[str, npt.NDArray[Any]]) -> tuple[dict[str, npt.NDArray[Any]], list[str]]:
    """Returns the tensors with float64 converted to float32, and a list with a warning that names these tensors, or an
    empty list.
    """
    doubles = [name for name, tensor in tensors.items() if tensor.dtype == np.float64]
    with np.errstate(over="ignore"):  # infinities are reported later, by name
        made = {name: tensor.astype(np.float32) if name in doubles else tensor for name, tensor in tensors.items()}
    return made, [told("float64, stored as float32", doubles)] if doubles else []


def told(what: str, names: Sequence[str]) -> str:
    return f"{len(names)} tensors are {what}: {', '.join(names)}"


def _read_torch_file(path: str) -> dict[str, npt.NDArray[Any]]:
    try:
        import torch
    except ImportError:
        raise ValueError(
            f"{path} is a torch file, which needs torch: pip install torch, or save the state dict as .safetensors"
        ) from None
    # With older versions than 2.6, a file could run code in spite of weights_only (CVE-2025-32434).
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise ValueError(f"{path} is a torch file, which needs torch 2.6 or newer; here is {torch.__version__}")
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # errors of the zip file or the pickle, or for something that weights_only forbids
        raise ValueError(f"{path} is not a torch file of tensors alone: {_why_not(error)}") from None
    if not isinstance(loaded, dict):
        raise ValueError(f"{path} holds a {type(loaded).__name__}, not a state dict")
    for key in ("state_dict", "model_state_dict", "model_state", "model", "net"):
        loaded = loaded[key] if isinstance(loaded.get(key), dict) else loaded
    tensors = {str(name): value.detach() for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise ValueError(f"{path} holds no tensors by name")
    return {name: _to_numpy(path, name, tensor) for name, tensor in tensors.items()}


def _why_not(error: Exception) -> str:
    """Returns a line that says why a torch file cannot be loaded. torch's own messages are not used, since they suggest
    the option that runs the file's code.
    """
    forbidden = re.search(r"(?:GLOBAL|[Gg]lobal) ([\w.]+)", str(error))
    if forbidden:
        return (
            f"it wants {forbidden[1]}, which could run code. Only where you trust it, save its tensors alone: "
            "torch.save(torch.load(path, weights_only=False)['state_dict'], other_path)"
        )
    if "TorchScript" in str(error):
        return "it is a TorchScript program; save its state_dict()"
    return "it is damaged, cut off, or of another format"


def _to_numpy(path: str, name: str, tensor: Any) -> npt.NDArray[Any]:
    import torch

    try:
        values: npt.NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    except (TypeError, RuntimeError) as error:  # sparse, quantized, of 8 bits, without values
        raise ValueError(f"{path}: tensor '{name}' is no array of numbers: {str(error).splitlines()[0]}") from None
    return values


def read_classes(path: str) -> tuple[tuple[ClassEntry, ...], int | None]:
    """Returns the classes and the ignore label (None if it has none) of a JSON file {"classes": [{"id", "name",
    "color": [r, g, b]}], "ignore_label"}. path may also be the name of a public data set in CLASS_LISTS. Raises OSError
    or ValueError.
    """
    if path in CLASS_LISTS:
        return CLASS_LISTS[path], None
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
