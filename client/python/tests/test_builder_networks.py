"""Tests every convolution of the builder, with a bias: compares the server's rows with NumPy's, by model.proto."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import serving

from voxserve.client import Client
from voxserve.export import Network, PointFeature, model_folder
from voxserve.verify.compare import Model
from voxserve.verify.interpreter import Interpreter
from voxserve.verify.served import points_of

CUBE, PAIR, ONE = (3, 3, 3), (2, 2, 2), (1, 1, 1)
SHAPE = (9, 8, 10)
Layers = Callable[[Network, "Weights"], str]


class Weights:
    """Random weights and biases. A bias is about as large as a convolution's result."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(7)

    def weight(self, cells: int, c_in: int, c_out: int = 4) -> np.ndarray[Any, Any]:
        return (self._random.standard_normal((cells, c_in, c_out)) / (cells * c_in) ** 0.5).astype(np.float32)

    def bias(self, channels: int = 4) -> np.ndarray[Any, Any]:
        return (self._random.standard_normal(channels) + 1).astype(np.float32)


def _on_voxels(network: Network, name: str) -> str:
    """Brings a node's rows to the voxels' sites by a kernel of one cell that keeps the node's channels."""
    return network.strided_onto("on_voxels", name, np.eye(4, dtype=np.float32)[None], ONE, ONE, "stem")


def submanifold(network: Network, w: Weights) -> str:
    return network.submanifold("conv", "stem", w.weight(27, 4), CUBE, w.bias())


def submanifold_of_groups(network: Network, w: Weights) -> str:
    weight = w.weight(27, 2)
    return network.submanifold("conv", "stem", weight, CUBE, w.bias(), dilation=(2, 1, 1), groups=2)


def submanifold_cross(network: Network, w: Weights) -> str:
    return network.submanifold("conv", "stem", w.weight(7, 4), CUBE, w.bias(), is_cross=True)


def submanifold_offsets(network: Network, w: Weights) -> str:
    offsets = [(0, 0, 0), (0, -1, 2), (3, 0, 0)]
    return network.submanifold_offsets("conv", "stem", w.weight(3, 2), offsets, w.bias(), groups=2)


def strided_floor(network: Network, w: Weights) -> str:
    network.strided_floor("down", "stem", w.weight(27, 2), CUBE, PAIR, w.bias(), groups=2, dilation=(1, 2, 1))
    return network.unpool("conv", "down", "down")


def strided_cross(network: Network, w: Weights) -> str:
    network.strided_floor("down", "stem", w.weight(7, 4), CUBE, PAIR, w.bias(), is_cross=True)
    return network.unpool("conv", "down", "down")


def strided_expand(network: Network, w: Weights) -> str:
    bounds = {"lower": (0, 0, 0), "upper": (8, 6, 8)}
    network.strided_expand("down", "stem", w.weight(27, 2), CUBE, PAIR, w.bias(), groups=2, **bounds)
    return network.inverse("conv", "down", w.weight(27, 4), "down", w.bias())


def strided_padded(network: Network, w: Weights) -> str:
    network.strided_padded("down", "stem", w.weight(27, 2), CUBE, PAIR, ONE, w.bias(), groups=2, dilation=(1, 1, 2))
    return network.unpool("conv", "down", "down")


def strided_onto(network: Network, w: Weights) -> str:
    network.strided_floor("coarse", "stem", w.weight(8, 4), PAIR, PAIR)
    network.strided_onto("down", "stem", w.weight(27, 2), CUBE, PAIR, "coarse", w.bias(), padding=ONE, groups=2)
    return network.inverse("conv", "down", w.weight(27, 4), "down")


def inverse(network: Network, w: Weights) -> str:
    network.strided_padded("down", "stem", w.weight(27, 4), CUBE, PAIR, ONE)
    return network.inverse("conv", "down", w.weight(27, 2), "down", w.bias(), groups=2)


def transposed(network: Network, w: Weights) -> str:
    network.strided_padded("down", "stem", w.weight(27, 4), CUBE, PAIR, ONE)
    network.transposed("up", "down", w.weight(27, 2), CUBE, PAIR, ONE, w.bias(), output_padding=ONE, groups=2)
    return _on_voxels(network, "up")


def transposed_onto(network: Network, w: Weights) -> str:
    network.strided_floor("down", "stem", w.weight(8, 4), PAIR, PAIR)
    return network.transposed_onto("conv", "down", w.weight(27, 2), CUBE, PAIR, "stem", w.bias(), groups=2)


def generative(network: Network, w: Weights) -> str:
    network.strided_floor("down", "stem", w.weight(8, 4), PAIR, PAIR)
    network.generative("up", "down", w.weight(27, 2), CUBE, PAIR, w.bias(), groups=2, dilation=(1, 2, 1))
    return _on_voxels(network, "up")


def generative_cross(network: Network, w: Weights) -> str:
    network.strided_floor("down", "stem", w.weight(8, 4), PAIR, PAIR)
    network.generative("up", "down", w.weight(7, 4), CUBE, PAIR, w.bias(), is_cross=True)
    return _on_voxels(network, "up")


KINDS: tuple[Layers, ...] = (
    *(submanifold, submanifold_of_groups, submanifold_cross, submanifold_offsets, strided_floor, strided_cross),
    *(strided_expand, strided_padded, strided_onto, inverse, transposed, transposed_onto, generative, generative_cross),
)


def made(layers: Layers) -> Network:
    network, weights = Network(layers.__name__), Weights()
    features = tuple(PointFeature(f"f{i}", "1") for i in range(3))
    range_max = tuple(float(n) for n in SHAPE)
    options = {"rounding": "FLOOR", "origin": "RANGE", "range_min": (0.0,) * 3, "range_max": range_max}
    network.voxelize("voxels", (1.0,) * 3, features, **options)
    network.submanifold("stem", "voxels", weights.weight(27, 3), CUBE, weights.bias())
    # The tested node and the stem have the same sites, so that the node's bias reaches every site.
    network.concat("both", [layers(network, weights), "stem"])
    network.linear("head", "both", weights.weight(1, 8, 5)[0].T.copy(), weights.bias(5))
    network.voxel_to_point("scores", "head", "voxels")
    network.argmax("best", "scores")
    network.output("LABELS", "best")
    network.output("SCORES", "scores")
    return network


def voxels() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns coordinates [N, 4] (sample, x, y, z), with a minimum of 0 on every axis, and features [N, 3]."""
    rng = np.random.default_rng(11)
    cells = np.stack(np.meshgrid(*map(np.arange, SHAPE), indexing="ij"), -1).reshape(-1, 3)
    sites = cells[(rng.random(len(cells)) < 0.25) | (cells == 0).all(axis=1)]
    return np.concatenate([np.zeros((len(sites), 1), np.int64), sites], axis=1), rng.standard_normal((len(sites), 3))


@pytest.mark.integration
def test_the_server_computes_every_convolution_with_its_bias(tmp_path: Path) -> None:
    coordinates, values = voxels()
    features = values.astype(np.float32)
    expected = {}
    for layers in KINDS:
        name = layers.__name__
        model_folder.write(tmp_path / "models" / name, made(layers), model_folder.config_textproto(()))
        model = Model.read(tmp_path / "models" / name)
        for node in model.network.nodes:
            # NumPy has no RULE_EXPAND; within these bounds its sites are those of RULE_PADDED.
            if node.name == "down" and node.sparse_conv.lower_bound:
                node.sparse_conv.rule = 2
                node.sparse_conv.padding.extend(ONE)
        interpreter = Interpreter(model.network, model.tensors, coordinates, features)
        results = interpreter.run()
        assert interpreter.skipped == {}, name
        expected[name] = results["scores"].values
        without = {key: 0 * t if key.endswith("bias") else t for key, t in model.tensors.items() if "head" not in key}
        heads = {key: t for key, t in model.tensors.items() if "head" in key}
        bare = Interpreter(model.network, {**without, **heads}, coordinates, features).run()
        assert np.abs(bare["scores"].values - expected[name]).max() > 0.1, name
    with serving(tmp_path / "models", tmp_path / "log") as address, Client(address) as client:
        for name, scores in expected.items():
            columns = points_of(Model.read(tmp_path / "models" / name), coordinates, features)
            answer = client.infer(name, columns, scores=True)
            assert answer.scores is not None
            np.testing.assert_allclose(answer.scores, scores, rtol=0, atol=1e-4 * np.abs(scores).max(), err_msg=name)
