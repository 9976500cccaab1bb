"""Reads and writes files with one label per point. The extension selects the format:

.npy     NumPy: written as uint8 or uint16 [N]; any integer type is read
.label   SemanticKITTI: one uint32 per point, whose low 16 bits are the class
others   only read: one byte per point, or four bytes as in .label
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve import input_file, storage
from voxserve.readers import npy
from voxserve.results import Labels

_CLASS_BITS = 0xFFFF


def is_label_file(path: str | os.PathLike[str]) -> bool:
    """Returns whether write() knows the extension."""
    return os.fspath(path).lower().endswith((".npy", ".label"))


def write(path: str | os.PathLike[str], labels: Labels) -> None:
    """Writes the labels. An older file is replaced when the new one is complete. ValueError for another extension,
    OSError if the file cannot be written.
    """
    if not is_label_file(path):
        raise ValueError(f"{os.fspath(path)}: labels are written as .npy or .label")
    with storage.new(path) as file:
        if os.fspath(path).lower().endswith(".npy"):
            np.save(file, labels)
        else:
            file.write(labels.astype("<u4").tobytes())


def read(path: str | os.PathLike[str], num_points: int) -> npt.NDArray[np.int64]:
    """Reads the labels: int64 [num_points]. ValueError if the file does not hold num_points labels, OSError if it
    cannot be read.
    """
    contents = storage.read(path, input_file.MAX_SCAN_BYTES)
    name = os.fspath(path)
    values: npt.NDArray[Any]
    if name.lower().endswith(".npy"):
        try:
            values = npy.read_array(contents)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if values.dtype.kind not in "iu" or values.ndim == 0 or values.size != values.shape[0]:
            raise ValueError(f"{name}: labels must be integers of shape (points,), not {values.dtype} {values.shape}")
    elif name.lower().endswith(".label") or len(contents) == 4 * num_points:
        values = np.frombuffer(contents[: len(contents) // 4 * 4], "<u4") & _CLASS_BITS
    else:
        values = np.frombuffer(contents, np.uint8)
    if values.size != num_points:
        raise ValueError(
            f"{name}: {len(contents)} bytes are not {num_points} labels of 1 or 4 bytes (or an .npy of them)"
        )
    return values.reshape(-1).astype(np.int64)
