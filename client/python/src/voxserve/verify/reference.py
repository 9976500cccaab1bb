"""Reads and writes references: the .npz file of voxserve.record, with a run's inputs, outputs and intermediate results.

Its arrays are:

format                          "voxserve reference 1"
input/features                  float32 [N, C]
input/coordinates               int32 [N, 1 + D]: the sample, then the coordinates in the library's order of axes
output/NAME                     a result of the module; the rows of all sites for one that has copies of some of them
module/PATH                     the result of a part of the module
module/PATH/KEY                 one of several results of a part
.../coordinates                 the coordinates of a result on sites, in steps of the sites' stride
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve import input_file
from voxserve.new_file import new_file

_FORMAT = "voxserve reference 1"
_COORDINATES = "/coordinates"
Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Rows:
    """One result of a module."""

    values: Values  # [N, C] if there are coordinates, else of any shape
    coordinates: Values | None = None  # [N, 1 + D]: the sample, then the coordinates, in steps of the sites' stride


def part_name(path: str, key: str) -> str:
    """Returns the name of a result of a part of the module. path: the part's; key: the result's, as
    sparse_tensors.named() yields it.
    """
    return path if key == "output" else f"{path}/{key}"


@dataclass
class Reference:
    """The record of one run of the user's module."""

    input: Rows
    outputs: dict[str, Rows] = field(default_factory=dict)
    modules: dict[str, Rows] = field(default_factory=dict)  # in the order in which they ended

    def write(self, path: str | Path) -> None:
        arrays: dict[str, Values] = {"format": np.array(_FORMAT)}
        for group, entries in (("input", {"features": self.input}), ("output", self.outputs), ("module", self.modules)):
            for name, rows in entries.items():
                arrays[f"{group}/{name}"] = rows.values
                if rows.coordinates is not None:
                    where = group if group == "input" else f"{group}/{name}"
                    arrays[where + _COORDINATES] = rows.coordinates.astype(np.int32)
        with new_file(path) as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read(path: str | Path) -> Reference:
    """Reads a reference. ValueError, with the file's name, if it is no reference; OSError if it cannot be read."""
    try:
        with input_file.open_regular(path) as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, ValueError, EOFError, AttributeError) as error:
        raise ValueError(f"{path} is not a reference that voxserve.record wrote: {error}") from None
    missing = [name for name in ("format", "input/features", "input/coordinates") if name not in arrays]
    if missing or str(arrays["format"]) != _FORMAT:
        reason = f"it has no {', '.join(missing)}" if missing else f"its format is '{arrays['format']}'"
        raise ValueError(f"{path} is not a reference that voxserve.record wrote: {reason}")
    groups: dict[str, dict[str, Rows]] = {"output": {}, "module": {}}
    for key, values in arrays.items():
        group, _, name = key.partition("/")
        if group in groups and not name.endswith(_COORDINATES):
            groups[group][name] = Rows(values, arrays.get(key + _COORDINATES))
    return Reference(Rows(arrays["input/features"], arrays["input/coordinates"]), groups["output"], groups["module"])
