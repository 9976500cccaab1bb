"""Reads tests/golden/transformers: what the libraries' own code computed for small point transformers with random
weights. The weights are not stored: their rule is `values`, which the libraries' networks were filled by.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from conftest import REPOSITORY

from voxserve.export import safetensors_file

FOLDER = REPOSITORY / "tests" / "golden" / "transformers"
Values = np.ndarray[Any, Any]


def values(name: str, shape: tuple[int, ...], seed: int) -> Values:
    """Returns a tensor of a state dict, float32."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    x = rng.standard_normal(shape)
    part = name.rpartition(".")[2]
    if part == "running_var":
        return (0.5 + rng.uniform(0, 1, shape)).astype(np.float32)
    if part == "gamma":
        return (0.5 + 0.2 * x).astype(np.float32)
    if part == "weight" and len(shape) == 1:
        return (1 + 0.2 * x).astype(np.float32)
    if part == "weight":
        spread = (shape[0] / np.prod(shape)) ** 0.5 * (2.5 if len(shape) > 2 else 1)
        return (x * spread).astype(np.float32)
    return (0.2 * x).astype(np.float32)


@dataclass(frozen=True)
class Golden:
    """A small network and its answer."""

    voxels: Values  # [N, 3]
    points: Values  # [N, 3] metres, the point of each voxel
    features: Values  # [N, C]
    answer: Values  # [N, classes], or the features of an encoder
    settings: dict[str, Any]  # the arguments of the library's class
    num_classes: int
    backbone_channels: int
    state: dict[str, Values]

    @staticmethod
    def read(name: str) -> Golden:
        with np.load(FOLDER / f"{name}.npz") as file:
            shapes, seed = json.loads(str(file["shapes"])), int(file["seed"])
            state = {key: values(key, tuple(shape), seed) for key, shape in shapes.items()}
            return Golden(
                file["voxels"].astype(np.int64),
                file["points"],
                file["features"],
                file["answer"],
                json.loads(str(file["backbone"])),
                int(file["num_classes"]),
                int(file["out"]),
                state,
            )

    def write(self, folder: Path, prefix: str = "") -> Path:
        """Writes the weights. prefix: what their names begin with."""
        path = folder / "weights.safetensors"
        safetensors_file.write(path, {prefix + key: tensor for key, tensor in self.state.items()})
        return path

    @property
    def sites(self) -> Values:
        return np.c_[np.zeros(len(self.voxels), np.int64), self.voxels]
