"""Files with one label per point:

.npy     NumPy, uint8 or uint16 [N] (read: any integers)
.label   SemanticKITTI: uint32 per point, the class in the low 16 bits
else     read only: one byte per point, or four as in .label
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.new_file import new_file
from voxserve.readers import npy
from voxserve.results import Labels

_CLASS_BITS = 0xFFFF


def is_label_file(path: str | os.PathLike[str]) -> bool:
    """Returns whether write() knows the extension."""
    return os.fspath(path).lower().endswith((".npy", ".label"))


def write(path: str | os.PathLike[str], labels: Labels) -> None:
    """Writes the file; replaces an older file only when the new one is complete. ValueError for other extensions."""
    if not is_label_file(path):
        raise ValueError(f"{os.fspath(path)}: labels are written as .npy or .label")
    with new_file(path) as file:
        if os.fspath(path).lower().endswith(".npy"):
            np.save(file, labels)
        else:
            file.write(labels.astype("<u4").tobytes())


def read(path: str | os.PathLike[str], num_points: int) -> npt.NDArray[np.int64]:
    """Reads the labels. ValueError, with both numbers, if the file does not hold num_points labels."""
    contents = Path(path).read_bytes()
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
