"""Tests operators on rows: traced from torch and run by NumPy, built by hand, and computed by the server."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import serving
from graph_shapes import parse

import voxserve
from voxserve.activations import OF_TORCH
from voxserve.export import ExportError, Network, from_torch
from voxserve.verify import rows as row_maths
from voxserve.verify.__main__ import main as verify

torch = pytest.importorskip("torch", reason="torch is not installed")
import traced_networks as networks  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from traced_networks import CHANNELS, load, round_trip  # noqa: E402

pytestmark = pytest.mark.usefixtures("stand_in_libraries")


class OnFeatures(nn.Module):
    """A convolution, a function of its features, and a linear layer."""

    def __init__(self, engine: Any, function: Any, *parts: Any, channels: int = 6, out: int = 6) -> None:
        super().__init__()
        self.engine, self.function, self.parts = engine, function, nn.ModuleList(parts)
        self.conv = engine.MinkowskiConvolution(CHANNELS, channels, kernel_size=3, bias=True, dimension=3)
        self.line = nn.Linear(out, 5)

    def forward(self, x: Any) -> Any:
        y = self.conv(x)
        return self.line(self.function(y.F, *self.parts))


def example() -> Any:
    return networks.minkowski_example(load("MinkowskiEngine"))


FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "softmax": (lambda y: y.softmax(dim=1),),
    "softmax_module": (lambda y, part: part(y), nn.Softmax(dim=-1)),
    "layer_norm": (lambda y, part: part(y), nn.LayerNorm(6)),
    "layer_norm_plain": (lambda y: functional.layer_norm(y, (6,), eps=1e-3),),
    "normalize": (lambda y: functional.normalize(y),),
    "prelu": (lambda y, one, each: one(each(y)), nn.PReLU(), nn.PReLU(6)),
    "product": (lambda y, part: y * part(y).sigmoid(), nn.Linear(6, 6)),
    "square": (lambda y: (y**2 + y.square()).abs(),),
    "exp_log": (lambda y: (y.exp() + 1).log(),),
    "powers": (lambda y: (y.abs() + 0.5).pow(1.5) + (y.abs() + 1).sqrt() + (y.abs() + 1).rsqrt(),),
    "elu": (lambda y, part: part(functional.elu(y, 0.5)), nn.CELU()),
    "clamp": (lambda y, part: part(y.clamp(-0.3, 0.4) + y.clamp(max=0.2) + y.clamp_min(0.1)), nn.ReLU6()),
    "hardtanh": (lambda y, part: part(y), nn.Hardtanh(-0.2, 0.7)),
    "hard": (lambda y, a, b: a(y) + b(y), nn.Hardswish(), nn.Hardsigmoid()),
    "softplus": (lambda y, a, b: a(y) + b(y), nn.Softplus(beta=2), nn.Mish()),
    "gelu_tanh": (lambda y, part: part(y), nn.GELU(approximate="tanh")),
    "rrelu": (lambda y, part: part(y), nn.RReLU()),
    "eca": (lambda y, conv: y * conv(y.unsqueeze(1)).squeeze(1).sigmoid(), nn.Conv1d(1, 1, 5, padding=2)),
    "eca_wide": (lambda y, conv: y * conv(y[:, None])[:, 0], nn.Conv1d(1, 1, 15, padding="same", bias=False)),
    "lengths": (lambda y: y / y.norm(dim=1, keepdim=True) + y / torch.norm(y, 2, 1, True).clamp(min=2.0),),
    "length_of_linalg": (lambda y: y / torch.linalg.norm(y, dim=-1, keepdim=True),),
    "length_of_vector": (lambda y: y / torch.linalg.vector_norm(y, dim=1, keepdim=True),),
}


def activated(y: Any, function: Any) -> Any:
    """Applies a function of torch to values above 0, and to all values if it is defined below 0."""
    positive = function(y.abs() + 0.5)
    return positive + function(y + 0) if math.isfinite(function(torch.tensor(-1.0)).numpy()) else positive


for _name in OF_TORCH:
    _function = getattr(torch, _name, getattr(functional, _name, None))
    if _function is not None:
        FUNCTIONS[f"table_{_name}"] = (lambda y, f=_function: activated(y, f),)


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_torch_and_numpy_compute_the_same(tmp_path: Path, kind: str) -> None:
    module = networks.randomize(OnFeatures(load("MinkowskiEngine"), *FUNCTIONS[kind]))
    exported, comparison = round_trip(tmp_path, module, example())
    assert comparison.skipped == {}
    assert list(comparison.outputs()) == ["output"]
    assert comparison.outputs()["output"].magnitude > 0.1
    assert exported.network.has_outputs


def embedding_example(values: Any = None) -> Any:
    """Returns an example input whose last feature is 0, 1, 2 or 3, or `values`."""
    engine = load("MinkowskiEngine")
    coordinates = networks.sites(4)
    rows = networks.features(coordinates)
    rows[:, 3] = torch.arange(len(rows)) % 4 if values is None else values
    return engine.SparseTensor(rows, coordinates=coordinates)


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.line = nn.Embedding(4, 6), nn.Linear(6 + CHANNELS, 5)

    def forward(self, x: Any) -> Any:
        return self.line(torch.cat([self.table(x.F[:, 3].long()), x.F], 1))


def test_an_embedding_of_a_channel(tmp_path: Path) -> None:
    exported, comparison = round_trip(tmp_path, networks.randomize(Embedded()), embedding_example())
    assert comparison.skipped == {}
    nodes = {node.name: node for node in parse(exported.network).nodes}
    assert nodes["table"].embedding.channel == 3
    assert exported.network.tensors["table.weight"].shape == (4, 6)
    with pytest.raises(ExportError, match="'long' of features that are no whole numbers"):
        from_torch(networks.randomize(Embedded()), embedding_example(1.5))


class Twice(nn.Module):
    """A convolution and a linear layer that both run twice. A norm follows the first run of the convolution only."""

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self.first = engine.MinkowskiConvolution(CHANNELS, 6, kernel_size=3, dimension=3)
        self.conv = engine.MinkowskiConvolution(6, 6, kernel_size=3, dimension=3)
        self.norm, self.line, self.other = engine.MinkowskiBatchNorm(6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        y = self.conv(self.norm(self.conv(self.first(x))))
        return self.other(self.line(self.line(y.F)))


def test_a_module_that_runs_twice_is_stored_once(tmp_path: Path) -> None:
    module = networks.randomize(Twice(load("MinkowskiEngine")))
    exported, comparison = round_trip(tmp_path, module, example())
    assert comparison.skipped == {}
    owners = {node.name: node.weights_of for node in parse(exported.network).nodes if node.weights_of}
    assert owners == {"conv.2": "conv", "line.2": "line"}
    assert sorted(n for n in exported.network.tensors if "line" in n) == ["line.bias", "line.weight"]
    assert [n for n in exported.network.tensors if n.startswith("conv")] == ["conv.weight"]


class GeM(nn.Module):
    """The generalised mean as MinkLoc3D writes it, with a learnt exponent."""

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self.engine = engine
        self.conv = engine.MinkowskiConvolution(CHANNELS, 6, kernel_size=3, dimension=3)
        self.p, self.eps = nn.Parameter(torch.ones(1) * 3.5), 1e-6
        self.pool = engine.MinkowskiGlobalAvgPooling()

    def forward(self, x: Any) -> Any:
        y = self.conv(x)
        powers = self.engine.SparseTensor(
            y.F.clamp(min=self.eps).pow(self.p),
            coordinate_map_key=y.coordinate_map_key,
            coordinate_manager=y.coordinate_manager,
        )
        return functional.normalize(self.pool(powers).F.pow(1.0 / self.p), dim=1)


def test_a_generalised_mean_by_hand_is_one_node(tmp_path: Path) -> None:
    module = networks.randomize(GeM(load("MinkowskiEngine")))
    module.p.data.fill_(3.5)
    exported, comparison = round_trip(tmp_path, module, example())
    assert comparison.skipped == {}
    nodes = parse(exported.network).nodes
    assert [node.WhichOneof("op") for node in nodes] == ["voxelize", "sparse_conv", "global_pool", "l2_norm"]
    assert nodes[2].global_pool.reduce == 4
    assert nodes[2].global_pool.exponent == 3.5
    assert nodes[2].global_pool.epsilon == np.float32(1e-6)


def test_nodes_of_rows_are_written_as_the_messages_read_them() -> None:
    network, table = Network("net"), np.ones((4, 6), np.float32)
    network.activation("elu", "x", "ELU", alpha=0.5)
    network.activation("clamp", "x", "CLAMP", minimum=-1, maximum=6)
    network.activation("softplus", "x", "SOFTPLUS", beta=2)
    network.activation("power", "x", "POWER", exponent=1.5)
    network.multiply("product", "x", "elu")
    network.softmax("softmax", "x")
    network.layer_norm("layer", "x", {"weight": table[0], "bias": table[0]}, 1e-3)
    network.l2_norm("unit", "x")
    network.prelu("prelu", "x", table[0, :1])
    network.again("again", ["product"], "prelu")
    network.again("third", ["again"], "again")
    network.embedding("table", "x", table, 2)
    network.global_pool("gem", "x", "GENERALISED_MEAN", exponent=4, epsilon=0.01)
    nodes = {node.name: node for node in parse(network).nodes}
    assert nodes["elu"].activation.alpha == 0.5
    assert (nodes["clamp"].activation.minimum, nodes["clamp"].activation.maximum) == (-1, 6)
    assert (nodes["softplus"].activation.beta, nodes["power"].activation.exponent) == (2, 1.5)
    assert list(nodes["product"].inputs) == ["x", "elu"]
    assert nodes["softmax"].WhichOneof("op") == "softmax"
    assert nodes["layer"].layer_norm.affine
    assert nodes["unit"].l2_norm.epsilon == np.float32(1e-12)
    assert (nodes["again"].weights_of, nodes["third"].weights_of) == ("prelu", "prelu")
    assert (list(nodes["third"].inputs), nodes["third"].WhichOneof("op")) == (["again"], "prelu")
    assert nodes["table"].embedding.channel == 2
    assert (nodes["gem"].global_pool.exponent, nodes["gem"].global_pool.epsilon) == (4, np.float32(0.01))
    assert set(network.tensors) == {"layer.weight", "layer.bias", "prelu.weight", "table.weight"}


def test_numbers_outside_of_a_table_are_rows_of_nan() -> None:
    table = np.arange(6.0).reshape(3, 2)
    rows = row_maths.embedded(np.array([2, 0.5, -1, 3, np.nan, 0]), table)
    np.testing.assert_array_equal(np.isnan(rows[:, 0]), [False, True, True, True, True, False])
    np.testing.assert_array_equal(rows[[0, 5]], table[[2, 0]])


@pytest.mark.integration
def test_the_server_computes_the_same(tmp_path: Path) -> None:
    engine = load("MinkowskiEngine")
    modules = {kind: networks.randomize(OnFeatures(engine, *parts)) for kind, parts in FUNCTIONS.items()}
    modules |= {"twice": networks.randomize(Twice(engine)), "gem": networks.randomize(GeM(engine))}
    modules["gem"].p.data.fill_(3.5)
    modules["embedding"] = networks.randomize(Embedded())
    inputs = {kind: embedding_example() if kind == "embedding" else example() for kind in modules}
    for kind, module in modules.items():
        from_torch(module, inputs[kind]).write(tmp_path / "models" / kind, classes=())
        voxserve.record(module, inputs[kind], tmp_path / f"{kind}.npz")
    with serving(tmp_path / "models", tmp_path / "log") as address:
        for kind in modules:
            folder, reference = str(tmp_path / "models" / kind), str(tmp_path / f"{kind}.npz")
            assert verify([folder, reference, "--address", address]) == 0, kind
