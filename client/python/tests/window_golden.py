"""Reads tests/golden/windows: the boxes that the libraries' own classes of DSVT and FlatFormer found in a real scan,
with the published sizes, on a smaller range and with random weights. The weights are not stored: their rule is
`values`, which the libraries' networks were filled by (tests/oracles/window_networks.py).
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import query_golden
from conftest import REPOSITORY
from query_golden import Golden

FOLDER = REPOSITORY / "tests" / "golden" / "windows"
RANGE, SIZE, GRID = (-20.48, -15.36, -2.0, 20.48, 15.36, 4.0), (0.32, 0.32, 6), (128, 96, 1)
CENTER_MIN, CENTER_MAX = (-19.0, -14.0, -10.0), (19.0, 14.0, 10.0)  # of a box's centre
Values = np.ndarray[Any, Any]


def values(name: str, shape: tuple[int, ...], seed: int) -> Values:
    """Returns a tensor of a state dict, float32."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    x, part = rng.standard_normal(shape), name.rpartition(".")[2]
    if part == "running_var":
        return (0.7 + 0.6 * rng.uniform(0, 1, shape)).astype(np.float32)
    if part in ("weight", "in_proj_weight") and len(shape) > 1:
        is_up = "deblocks" in name  # [in, out, y, x], whose stride is its kernel
        fan_in = shape[0] if is_up else np.prod(shape[1:])
        return (x * (2 / fan_in) ** 0.5 * _gain(name)).astype(np.float32)
    if part == "weight":
        return (1 + 0.2 * x).astype(np.float32)
    if name.endswith(("hm.1.bias", "heatmap.1.bias")):
        return np.zeros(shape, np.float32)  # the golden has them
    if name.endswith("iou.1.bias"):
        return np.full(shape, 0.8, np.float32)
    if name.endswith("dim.1.bias"):  # boxes of about 3 m, which overlap
        return (1.2 + 0.2 * x).astype(np.float32)
    return (0.2 * x).astype(np.float32)


def _gain(name: str) -> float:
    """Returns a factor that keeps inputs in metres and in cells, scores and sizes moderate."""
    if "_layers.0.linear" in name:  # its inputs are positions of up to 20 m
        return 0.2
    if "position_embedding_head.0" in name:
        return 0.2
    if name.endswith("conv2.weight"):  # the last one of a residual block
        return 0.3
    if name.startswith("backbone.blocks"):  # FlatFormer's, which add what enters
        return 0.4
    if name.endswith(".hm.1.weight"):
        return 1.5
    if name.endswith(".heatmap.1.weight"):
        return 4.0
    if name.endswith(".1.weight") and "heads_list" in name:
        return 0.08
    if name.endswith(".1.weight") and "task_heads" in name:
        return 0.3
    return 1.0


def read(case: str) -> Golden:
    """Returns a network and its answer, whose boxes have the columns of query_golden's; it has no labels."""
    with np.load(FOLDER / f"{case}.npz") as file:
        return Golden(points(), file["boxes"], np.zeros(0), query_golden.state_of(file, values, "biases"))


def points() -> Values:
    """Returns every other point of a real scan, from 2 m above its sensor's height, as if that were the ground. The age
    of query_golden's points serves as an elongation.
    """
    return query_golden.points("openpcdet") + np.float32([0, 0, 2, 0, 0])
