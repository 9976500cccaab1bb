"""Writes the tensors of an answer to a NumPy file .npz. It has one array per tensor, Tensor.rows, under the tensor's
name.

A tensor of sites also has the arrays NAME.coordinates (int32 [N, axes]) and NAME.unit (float64 [axes]).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve import storage
from voxserve.tensors import Tensor


def is_tensor_file(path: str | os.PathLike[str]) -> bool:
    """Returns whether write() knows the extension."""
    return os.fspath(path).lower().endswith(".npz")


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor]) -> None:
    """Writes the tensors. An older file is replaced when the new one is complete. ValueError if two arrays would have
    the same name, OSError if the file cannot be written.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, tensor in tensors.items():
        parts: dict[str, npt.NDArray[Any]] = {name: tensor.rows}
        if tensor.coordinates is not None:
            parts |= {f"{name}.coordinates": tensor.coordinates, f"{name}.unit": np.array(tensor.unit)}
        for key, values in parts.items():
            if key in arrays:
                raise ValueError(f"{os.fspath(path)}: two arrays would be named {key}")
            arrays[key] = values
    with storage.new(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
