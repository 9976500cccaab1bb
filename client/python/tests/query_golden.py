"""Reads tests/golden/queries: the boxes that the libraries' own code found in a real scan, for networks with heads of
queries and random weights. The weights are not stored: their rule is `values`, which the libraries' networks were
filled by (tests/oracles/query_heads.py).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from conftest import REPOSITORY

from voxserve.export import safetensors_file

FOLDER = REPOSITORY / "tests" / "golden" / "queries"
Values = np.ndarray[Any, Any]
CASES = ("openpcdet", "bevfusion", "awml-bevfusion", "awml-transfusion", "autoware-ptv3")


def values(name: str, shape: tuple[int, ...], seed: int) -> Values:
    """Returns a tensor of a state dict, float32."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    x, part = rng.standard_normal(shape), name.rpartition(".")[2]
    if part == "running_var":
        return (0.7 + 0.6 * rng.uniform(0, 1, shape)).astype(np.float32)
    if part in ("weight", "in_proj_weight") and len(shape) > 1:
        # A sparse kernel KRSC or a layer [out, in, ...]; about half of a sparse kernel's cells have sites.
        fan_in = np.prod(shape[1:]) / (2 if len(shape) == 5 else 1)
        return (x * (2 / fan_in) ** 0.5 * _gain(name, shape)).astype(np.float32)
    if part == "weight":
        return (1 + 0.2 * x).astype(np.float32)
    return (0.2 * x).astype(np.float32)


def _gain(name: str, shape: tuple[int, ...]) -> float:
    """Returns a factor that keeps inputs in metres and in cells, scores and sizes moderate."""
    if name.startswith("encoder.embedding"):
        return 0.5
    if "pfn_layers.0" in name:  # its inputs are an intensity of 0 to 255, too
        return 0.02
    if ".conv_input." in name:
        return 0.03 if shape[-1] < 10 else 1.0
    if name.endswith("conv2.weight"):  # the last one of a residual block
        return 0.3
    if "posembed" in name or "pos_encoding" in name:
        return 0.05 if shape[1] == 2 else 1.0
    if "prediction_head" in name and shape[0] <= 10:
        return 0.4
    if name.endswith("heatmap_head.1.weight"):
        return 0.5
    return 1.0


def state_of(file: Any, rule: Callable[[str, tuple[int, ...], int], Values], stored: str) -> dict[str, Values]:
    """Returns the state dict of a golden: by the rule, with the values that the file stores as `stored`."""
    shapes, seed = json.loads(str(file["shapes"])), int(file["seed"])
    state = {key: rule(key, tuple(shape), seed) for key, shape in shapes.items()}
    return state | {key: np.float32(one) for key, one in json.loads(str(file[stored])).items()}


@dataclass(frozen=True)
class Golden:
    """A network and its answer."""

    points: Values  # [N, columns] float32
    boxes: Values  # [boxes, 11]: x, y, z of the centre, length, width, height, yaw, velocity x and y, score, class
    labels: Values  # [N] of points, or empty
    state: dict[str, Values]

    @staticmethod
    def read(case: str) -> Golden:
        with np.load(FOLDER / f"{case}.npz") as file:
            return Golden(points(case), file["boxes"], file["labels"], state_of(file, values, "buffers"))

    def write(self, folder: Path) -> Path:
        path = folder / "weights.safetensors"
        safetensors_file.write(path, self.state)
        return path


def points(case: str) -> Values:
    """Returns the cloud of a case: every other point of a real scan, whose intensity is 0 to 1, and an age."""
    scan = np.fromfile(REPOSITORY / "tests" / "golden" / "pandaset_063.bin", dtype=np.float32).reshape(-1, 4)[::2]
    if case == "autoware-ptv3":
        return scan
    age = (np.arange(len(scan)) % 3 * 0.05).astype(np.float32)
    return np.concatenate([scan, age[:, None]], axis=1)
