"""Small networks of spconv's layers: the library, its stand-in, what is exported and what is served agree.

The library's results are in tests/golden/spconv_layers.npz. As a script it writes that file:

    PYTHONPATH=client/python/src:client/python/tests python client/python/tests/spconv_layers.py

spconv 2.3.8 computed them on a CPU with one thread. There it adds no bias to kernels of several cells, so none has one,
and it has no average pools.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from golden_layers import Network, filled, write
from torch import nn

CHANNELS = 2
SHAPE = (7, 6, 5)
Build = Callable[[Any], tuple[dict[str, Any], Callable[..., Any]]]  # the library -> layers by name, and what they do


def example(spconv: Any) -> Any:
    """Returns two samples whose features are multiples of 1/8."""
    rng = np.random.default_rng(44)
    cells = np.stack(np.meshgrid(*map(np.arange, (2, *SHAPE)), indexing="ij"), -1).reshape(-1, 4)
    chosen = rng.permutation(cells[rng.random(len(cells)) < 0.2]).astype(np.int32)
    features = rng.integers(-8, 9, (len(chosen), CHANNELS)) / 8
    return spconv.SparseConvTensor(torch.from_numpy(features).float(), torch.from_numpy(chosen), list(SHAPE), 2)


def made(spconv: Any, name: str) -> Network:
    """Returns a case's network."""
    return filled(Network(*CASES[name](spconv)), name)


def _one(layer: str, *arguments: Any, **options: Any) -> Build:
    return lambda spconv: ({"a": getattr(spconv, layer)(*arguments, **options)}, lambda layers, x: layers["a"](x))


def _conv(kind: str, *arguments: Any, **options: Any) -> Build:
    return _one(f"{kind}3d", CHANNELS, 3, *arguments, **{"bias": False, **options})


def _max_pool(*arguments: Any) -> Build:
    """A pool with the algorithm of spconv on a CPU, where a maximum begins at 0."""
    return lambda spconv: _one("SparseMaxPool3d", *arguments, algo=spconv.ConvAlgo.Native)(spconv)


def _back(first: str, *arguments: Any, **options: Any) -> Build:
    """A strided layer and its inverse."""

    def build(spconv: Any) -> Any:
        channels = (CHANNELS, 3) if "Conv" in first else ()
        algorithm = {} if channels else {"algo": spconv.ConvAlgo.Native}
        down = getattr(spconv, f"{first}3d")(*channels, *arguments, indice_key="k", **options, **algorithm)
        up = spconv.SparseInverseConv3d(3 if channels else CHANNELS, 2, arguments[0], indice_key="k", bias=False)
        return {"down": down, "up": up}, lambda layers, x: layers["up"](layers["down"](x))

    return build


def _sequence(spconv: Any) -> Any:
    """A sequence of sparse layers and torch's, with the classes that join results."""
    block = spconv.SparseSequential(
        spconv.SubMConv3d(CHANNELS, 4, 3, bias=False), nn.BatchNorm1d(4), nn.ReLU(), spconv.SubMConv3d(4, CHANNELS, 1)
    )
    layers = {"block": block, "add": spconv.AddTable(), "join": spconv.JoinTable()}

    def run(layers: Any, x: Any) -> Any:
        y = layers["block"](x)
        return layers["join"]([layers["add"]([x, y]), y])

    return layers, run


CASES: dict[str, Build] = {
    "subm 3": _conv("SubMConv", 3),
    "subm 3x1x5": _conv("SubMConv", (3, 1, 5)),
    "subm 3 dilated": _conv("SubMConv", 3, dilation=2),
    "subm 3, padding 1, stride 2": _conv("SubMConv", 3, 2, 1),
    "subm 1": _conv("SubMConv", 1, bias=True),
    "conv 3 / 2": _conv("SparseConv", 3, 2, 1),
    "conv 3 / 1": _conv("SparseConv", 3, 1, 1),
    "conv 2 / 2": _conv("SparseConv", 2, 2),
    "conv 3x2x1 / 2x1x3": _conv("SparseConv", (3, 2, 1), (2, 1, 3), (1, 0, 0)),
    "conv 3 / 1 dilated": _conv("SparseConv", 3, 1, 2, 2),
    "conv 1 / 2": _conv("SparseConv", 1, 2),
    "conv 1": _conv("SparseConv", 1, bias=True),
    "transpose 3 / 2": _conv("SparseConvTranspose", 3, 2, 1),
    "transpose 2 / 2": _conv("SparseConvTranspose", 2, 2),
    "transpose 3 / 1": _conv("SparseConvTranspose", 3),
    "inverse 3 / 2": _back("SparseConv", 3, 2, 1, bias=False),
    "inverse 3x2x1 / 2x1x3": _back("SparseConv", (3, 2, 1), (2, 1, 3), (1, 0, 0), bias=False),
    "inverse of a pool": _back("SparseMaxPool", 2, 2),
    "max pool 2 / 2": _max_pool(2, 2),
    "max pool 3 / 2": _max_pool(3, 2, 1),
    "sequence": _sequence,
}


if __name__ == "__main__":
    import spconv.pytorch

    write("spconv_layers", CASES, lambda name: (made(spconv.pytorch, name), example(spconv.pytorch)))
