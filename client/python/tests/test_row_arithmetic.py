"""Tests arithmetic of rows, reductions of their channels and coordinates as features: traced from torch and compared
with torch's own numbers, by NumPy and by the server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import serving
from graph_shapes import parse

import voxserve
from voxserve.export import ExportError, Network, from_torch
from voxserve.verify.__main__ import main as verify
from voxserve.verify.rows import combined, of_each_row

torch = pytest.importorskip("torch", reason="torch is not installed")
import traced_networks as networks  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from traced_networks import CHANNELS, load, round_trip  # noqa: E402

pytestmark = pytest.mark.usefixtures("stand_in_libraries")


class OnTensor(nn.Module):
    """A convolution, and a function of its sparse tensor."""

    def __init__(self, function: Any, *parts: Any, channels: int = 6) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)
        self.conv = load("MinkowskiEngine").MinkowskiConvolution(
            CHANNELS, channels, kernel_size=3, bias=True, dimension=3
        )

    def forward(self, x: Any) -> Any:
        return self.function(self.conv(x), *self.parts)


def example() -> Any:
    return networks.minkowski_example(load("MinkowskiEngine"))


def one_sample() -> Any:
    engine = load("MinkowskiEngine")
    coordinates = networks.sites(4)
    coordinates = coordinates[coordinates[:, 0] == 0]
    return engine.SparseTensor(networks.features(coordinates), coordinates=coordinates)


def heads(y: Any) -> Any:
    return y.F.view(len(y.F), 2, 3)


# Each is compared with torch's own result on the same values.
ARITHMETIC: dict[str, tuple[Any, ...]] = {
    "difference": (lambda y: y.F - y.F.sigmoid(),),
    "difference_in_place": (lambda y: (y.F + 0).sub_(y.F.sigmoid()),),
    "rsub": (lambda y: torch.rsub(y.F, y.F.sigmoid()),),
    "quotient": (lambda y: y.F / (y.F.sigmoid() + 1),),
    "quotient_by_hand": (lambda y: torch.div(y.F, y.F.abs() + 0.5),),
    "reciprocal": (lambda y: 2 / (y.F.sigmoid() + 1),),
    "maximum": (lambda y: torch.maximum(y.F, y.F.sigmoid()) + torch.max(y.F, -y.F),),
    "minimum": (lambda y: torch.minimum(y.F, y.F.sigmoid()) + torch.min(y.F, -y.F),),
    "gate": (lambda y: y.F * y.F[:, :1].sigmoid() + y.F[:, 1:2],),
    "one_first": (lambda y: y.F[:, :1] / (y.F.abs() + 1) - y.F[:, 2:3] * y.F,),
    "centred": (lambda y: y.F - y.F.mean(dim=1, keepdim=True),),
    "sum": (lambda y: y.F.sum(1, keepdim=True),),
    "sum_flat": (lambda y: torch.sum(y.F, -1),),
    "mean_and_back": (lambda y: y.F + y.F.mean(-1)[:, None] + y.F.sum(1).unsqueeze(1) + y.F.amin(1).view(-1, 1),),
    "largest": (lambda y: y.F.max(1)[0],),
    "largest_keepdim": (lambda y: y.F - y.F.max(dim=1, keepdim=True).values,),
    "largest_index": (lambda y: y.F.max(1)[1],),
    "smallest": (lambda y: y.F.min(dim=1)[0] + y.F.amin(dim=1),),
    "smallest_index": (lambda y: y.F.min(1).indices,),
    "amax": (lambda y: y.F / y.F.abs().amax(dim=(1,), keepdim=True),),
    "by_sum": (lambda y: y.F.abs() / (y.F.abs().sum(1, keepdim=True) + 1e-6),),
    "by_length_and_more": (lambda y: y.F / (y.F.norm(dim=1, keepdim=True) + 1e-8),),
    "length": (lambda y: y.F.norm(dim=1, keepdim=True) * 2,),
    "length_flat": (lambda y: y.F.norm(dim=1),),
    "length_clamped": (lambda y: y.F.norm(dim=1, keepdim=True).clamp(min=2.0) - 1,),
    "by_length_of_others": (lambda y: (y.F + 1) / y.F.norm(dim=1)[:, None],),
    "length_of_length": (lambda y: torch.linalg.norm(y.F, dim=1, keepdim=True).norm(dim=1, keepdim=True),),
    "norms": (lambda y: y.F.norm(p=1, dim=1, keepdim=True) + torch.linalg.vector_norm(y.F, torch.inf, 1, True),),
    "normalized_by_sums": (lambda y: functional.normalize(y.F, p=1, dim=1),),
    "standardized": (lambda y: (y.F - y.F.mean(1, keepdim=True)) / (y.F.std(dim=1, keepdim=True) + 1e-5),),
    "variance": (lambda y: y.F.var(dim=1, correction=0, keepdim=True),),
    "log_softmax": (lambda y: functional.log_softmax(y.F, dim=1),),
    "softmin": (lambda y: functional.softmin(y.F, dim=1),),
    "logsumexp": (lambda y: torch.logsumexp(y.F, 1, keepdim=True) + torch.logsumexp(y.F, 1)[:, None],),
    "cosine": (lambda y: functional.cosine_similarity(y.F, y.F.sigmoid(), dim=1),),
    "lerp": (lambda y: torch.lerp(y.F, y.F.sigmoid(), 0.3) + torch.lerp(y.F, -y.F, y.F[:, :1].sigmoid()),),
    "dot": (lambda y: (y.F * y.F.sigmoid()).sum(-1),),
    "einsum_weight": (lambda y, part: torch.einsum("nc,dc->nd", y.F, part.weight), nn.Linear(6, 5, bias=False)),
    "einsum_swapped": (lambda y, part: torch.einsum("dc, nc -> nd", part.weight, y.F), nn.Linear(6, 5, bias=False)),
    "einsum_dot": (lambda y: torch.einsum("nc,nc->n", y.F, y.F.sigmoid()),),
    "einsum_product": (lambda y: torch.einsum("nc,nc->nc", [y.F, y.F.sigmoid()]),),
    "heads_summed": (lambda y: heads(y).sum(-1) + heads(y).mean(dim=2),),
    "heads_averaged": (lambda y: heads(y).mean(1),),
    "heads_largest": (lambda y: heads(y).amax(1) - heads(y).min(dim=1)[0],),
    "heads_lengths": (lambda y: heads(y).norm(dim=-1),),
    "stacked_sum": (lambda y: torch.stack([y.F, y.F.sigmoid(), y.F.exp()]).sum(0),),
    "stacked_mean": (lambda y: torch.stack((y.F, y.F.sigmoid()), dim=1).mean(dim=1),),
    "stacked_largest": (lambda y: torch.stack([y.F, y.F.sigmoid(), -y.F], -1).max(-1)[0],),
    "stacked_channels": (lambda y: torch.stack([y.F.sum(1), y.F.amax(1)], dim=1),),
    "stacked_reshaped": (lambda y: torch.stack([y.F, 2 * y.F], dim=1).flatten(1),),
    "minkowski": (lambda y, a, b: a(y).F + b(y).F, ),
}  # fmt: skip


def module_of(kind: str) -> Any:
    function, *parts = ARITHMETIC[kind]
    if kind == "minkowski":
        engine = load("MinkowskiEngine")
        parts = [engine.MinkowskiLogSoftmax(dim=1), engine.MinkowskiSoftmin(dim=1)]
    return networks.randomize(OnTensor(function, *parts))


@pytest.mark.parametrize("kind", ARITHMETIC)
def test_torch_and_numpy_compute_the_same(tmp_path: Path, kind: str) -> None:
    exported, comparison = round_trip(tmp_path, module_of(kind), example())
    assert comparison.skipped == {}
    assert comparison.outputs()["output"].magnitude > 0.1
    assert exported.network.has_outputs


def test_a_number_added_to_a_divisor_is_added_in_the_node(tmp_path: Path) -> None:
    """In float16 it would be 0, and rows of zeros would be NaN."""
    exported, _ = round_trip(tmp_path, module_of("by_sum"), example())
    operators = {node.WhichOneof("op"): node for node in parse(exported.network).nodes}
    assert list(operators)[3:5] == ["row_reduce", "elementwise"]
    assert operators["elementwise"].elementwise.epsilon == np.float32(1e-6)


def test_attention_by_einsum_is_attention(tmp_path: Path) -> None:
    def attended(y: Any) -> Any:
        rows = y.F.view(len(y.F), 2, 3)
        weights = (torch.einsum("nhd,mhd->hnm", rows, rows) * 0.5).softmax(-1)
        return torch.einsum("hnm,mhd->nhd", weights, rows).reshape(len(y.F), 6)

    exported, comparison = round_trip(tmp_path, networks.randomize(OnTensor(attended)), one_sample())
    assert comparison.skipped == {}
    (node,) = (n for n in parse(exported.network).nodes if n.WhichOneof("op") == "attention")
    assert (node.attention.num_heads, node.attention.scale) == (2, 0.5)


@pytest.mark.parametrize("function", ["sum", "mean", "amax"])
def test_a_reduction_of_all_rows_is_a_pool_of_each_cloud(tmp_path: Path, function: str) -> None:
    def pooled(y: Any) -> Any:
        return getattr(y.F, function)(dim=0, keepdim=True).sigmoid()

    exported, comparison = round_trip(tmp_path, networks.randomize(OnTensor(pooled)), one_sample())
    assert comparison.skipped == {}
    assert "global_pool" in [node.WhichOneof("op") for node in parse(exported.network).nodes]
    with pytest.raises(ExportError, match="take an example of one sample and keepdim=True, or a global pool"):
        from_torch(networks.randomize(OnTensor(pooled)), example())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda y: y.F - y.F[:, :2], r"both have as many channels, or one of them is \[N, 1\]"),
        (lambda y: y.F - y.F.mean(1), r"features .* and .*: in the model format both have"),
        (lambda y: y.F.sum(), "'sum' over all dimensions is not in the model format"),
        (lambda y: y.F / y.F.max(), "'max' over all dimensions is not in the model format"),
        (lambda y: y.F.sum(dim=(0, 1)), "'sum' over several dimensions is not"),
        (lambda y: y.F.mean(0), "of all rows, along dimension 0"),
        (lambda y: y.F.norm(p=3, dim=1), "'norm' with p=3 is not in the model format: with 1, 2 and infinity"),
        (lambda y: y.F.std(1, False), "'std' is in the model format as"),
        (lambda y: torch.div(y.F, y.F.exp(), rounding_mode="floor"), "with a rounding_mode"),
        (lambda y: torch.add(y.F, y.F, alpha=2), r"write a \+ alpha \* b"),
        (lambda y: torch.sub(y.F, torch.ones(6), alpha=2), r"write a \+ alpha \* b"),
        (lambda y: torch.einsum("nc,mc->nm", y.F, y.F).sum(1), "laid out as|'sum' of scores|not in the model format"),
        (lambda y: torch.einsum("nc,nd->cd", y.F, y.F), "'einsum' of 'nc,nd->cd' is not|not in the model format"),
        (lambda y: torch.einsum("...c,dc->...d", y.F, torch.ones(3, 6)), "without '...'"),
        (lambda y: torch.cat([y.F.sum(1), y.F.sum(1)], 0), "along dimension 0"),
        (lambda y: torch.stack([y.F.sum(1), y.F.sum(1)]), "along 1 it is"),
        (lambda y: y.F.max(0)[0], "of all rows, along dimension 0"),
        (lambda y: y.F.max(1, keepdim=True)[1] + 1, "indices that nothing can read"),
    ],
)
def test_what_is_not_served_is_refused_with_what_to_do(function: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message) as caught:
        from_torch(networks.randomize(OnTensor(function)), example())
    assert f"{Path(__file__).name}:" in str(caught.value)


# Coordinates as features


def positions(y: Any) -> Any:
    return y.C[:, 1:].float()


def joined(y: Any, *others: Any) -> Any:
    return torch.cat([y.F, *others], 1)


def coarse(y: Any) -> Any:
    rows = joined(y, y.C[:, 1:].float() * 0.25)
    keys = {"coordinate_map_key": y.coordinate_map_key, "coordinate_manager": y.coordinate_manager}
    return load("MinkowskiEngine").SparseTensor(rows, **keys)


COORDINATES: dict[str, tuple[Any, ...]] = {
    "joined": (lambda y: joined(y, positions(y)),),
    "integers": (lambda y: joined(y, y.C[:, 1:]),),
    "scaled": (lambda y: joined(y, positions(y) * 0.05 + 0.1),),
    "moved_by_axis": (lambda y: joined(y, (y.C[:, 1:] - torch.tensor([1.0, 2, 3])) / torch.tensor([2.0, 4, 8])),),
    "in_place": (lambda y: joined(y, positions(y).mul_(0.5).add_(1)),),
    "turned": (lambda y: joined(y, y.C[:, [3, 1]].float(), (1 - y.C[..., 2:3].double()).float()),),
    "one_axis": (lambda y: joined(y, y.C[:, 3].float()[:, None] / 7, (-y.C[:, 2]).unsqueeze(1)),),
    "stacked": (lambda y: joined(y, torch.stack([y.C[:, 1], 2 * y.C[:, 3]], dim=1).to(torch.float32)),),
    "embedded": (lambda y, part: y.F + part(positions(y)).relu(), nn.Linear(3, 6)),
    "normalized": (
        lambda y, part: y.F + part(y.C[:, 1:].to(y.F)),
        nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6)),
    ),
    "distance": (lambda y: joined(y, positions(y).norm(dim=1, keepdim=True)),),
    "weighted": (lambda y: y.F * (positions(y)[:, :1] * 0.1),),
    "coarse": (lambda y, down: coarse(down(y)),),
}


def with_coordinates(kind: str) -> Any:
    function, *parts = COORDINATES[kind]
    if kind == "coarse":
        parts = [load("MinkowskiEngine").MinkowskiConvolution(6, 6, kernel_size=3, stride=2, dimension=3)]
    return networks.randomize(OnTensor(function, *parts))


@pytest.mark.parametrize("kind", COORDINATES)
def test_coordinates_are_features(tmp_path: Path, kind: str) -> None:
    exported, comparison = round_trip(tmp_path, with_coordinates(kind), example())
    assert comparison.skipped == {}
    assert list(comparison.outputs()) == ["output"]
    assert "site_coordinates" in [node.WhichOneof("op") for node in parse(exported.network).nodes]


@pytest.mark.parametrize("axes", ["zyx", "xyz"])
def test_coordinates_of_spconv_have_their_axes(tmp_path: Path, axes: str) -> None:
    spconv = load("spconv.pytorch")

    class Down(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = spconv.SparseConv3d(CHANNELS, 6, 3, stride=2, padding=1, bias=True)

        def forward(self, x: Any) -> Any:
            y = self.down(x)
            return y.replace_feature(
                torch.cat([y.features, y.indices[:, 1:].float() * torch.tensor([1.0, 10.0, 100.0])], 1)
            )

    exported, comparison = round_trip(tmp_path, networks.randomize(Down()), networks.spconv_example(spconv), axes=axes)
    assert comparison.skipped == {}
    (node,) = (n for n in parse(exported.network).nodes if n.WhichOneof("op") == "site_coordinates")
    assert list(node.site_coordinates.scale) == ([100, 10, 1] if axes == "zyx" else [1, 10, 100])


class Located(nn.Module):
    """Joins coordinates to the features before it makes a sparse tensor."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change
        self.conv = load("spconv.pytorch").SubMConv3d(CHANNELS + 3, 6, 3, bias=True)

    def forward(self, inputs: Any) -> Any:
        features, indices = inputs["features"], inputs["indices"]
        rows = torch.cat([features, indices[:, 1:].to(features) * 0.1 - 1], 1)
        shape = inputs["shape"]
        return self.conv(load("spconv.pytorch").SparseConvTensor(rows, self.change(indices), shape, 2))


def test_coordinates_are_features_before_a_sparse_tensor_is_made(tmp_path: Path) -> None:
    sparse = networks.spconv_example(load("spconv.pytorch"))
    inputs = {"features": sparse.features, "indices": sparse.indices, "shape": sparse.spatial_shape}
    options = {"axes": "zyx", "features": "features"}
    _, comparison = round_trip(tmp_path, networks.randomize(Located(lambda indices: indices)), inputs, **options)
    assert comparison.skipped == {}
    assert list(comparison.outputs()) == ["output"]
    other = Located(lambda indices: torch.cat([indices[:, :1], indices[:, 1:].flip(1)], 1))
    with pytest.raises(ExportError, match="are not those of the sparse tensor that is made after"):
        from_torch(networks.randomize(other), inputs, **options)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda y: joined(y, y.C.float()), "the number of the sample is used as a feature"),
        (lambda y: joined(y, (positions(y) / 2).floor()), "that are rounded, reduced or changed in another way"),
        (lambda y: joined(y, (positions(y) * 0.3).int()), "that are rounded, reduced or changed in another way"),
        (lambda y: joined(y, positions(y) / positions(y).max()), "constants scale and shift"),
        (lambda y: joined(y, positions(y) / positions(y).max().item()), "constants scale and shift"),
        (lambda y: joined(y, positions(y) - positions(y).mean(0)), "constants scale and shift"),
        (lambda y: joined(y, positions(y), 2 * positions(y)), None),
        (lambda y: joined(y, torch.cat([positions(y), 2 * positions(y)], 1)), "two scales"),
        (lambda y: joined(y, y.C[:, 1:].flip(0).float()), "rounded, reduced or changed|does not come from them"),
    ],
)
def test_other_coordinates_are_refused(function: Any, message: str | None) -> None:
    module = networks.randomize(OnTensor(function))
    if message is None:
        assert from_torch(module, example()).network.has_outputs
        return
    with pytest.raises(ExportError, match=message):
        from_torch(module, example())


def test_large_coordinates_are_warned_of() -> None:
    engine = load("MinkowskiEngine")
    coordinates = networks.sites(4)
    coordinates[:, 1] += 3000
    far = engine.SparseTensor(networks.features(coordinates), coordinates=coordinates)
    with pytest.warns(UserWarning, match="float16 does not have all whole numbers above 2048"):
        from_torch(with_coordinates("joined"), far)


def test_nodes_are_written_as_the_messages_read_them() -> None:
    network = Network("net")
    network.elementwise("quotient", "x", "y", "DIVIDE", 0.5)
    network.elementwise("difference", "x", "y", "SUBTRACT")
    network.row_reduce("length", "x", "LENGTH")
    network.site_coordinates("here", "x")
    network.site_coordinates("there", "x", (1, 2, 3), (0, 0.5, -1))
    nodes = {node.name: node for node in parse(network).nodes}
    assert (nodes["quotient"].elementwise.function, nodes["quotient"].elementwise.epsilon) == (4, 0.5)
    assert not nodes["difference"].elementwise.HasField("epsilon")
    assert nodes["length"].row_reduce.function == 5
    assert list(nodes["here"].site_coordinates.scale) == []
    assert list(nodes["there"].site_coordinates.shift) == [0, 0.5, -1]


def test_numpy_divides_by_zero_as_torch_does() -> None:
    a, b = np.array([[1.0, 0, -1, np.nan]]), np.array([[0.0]])
    np.testing.assert_array_equal(combined(a, b, "DIVIDE", 0.0), [[np.inf, np.nan, -np.inf, np.nan]])
    np.testing.assert_array_equal(combined(a, -b, "DIVIDE", 0.0), [[-np.inf, np.nan, np.inf, np.nan]])
    np.testing.assert_array_equal(combined(a, b, "DIVIDE", 0.5), [[2, 0, -2, np.nan]])
    np.testing.assert_array_equal(combined(a, b, "MAXIMUM", 0.0), [[1, 0, 0, np.nan]])
    np.testing.assert_array_equal(of_each_row(np.array([[3.0, -4]]), "LENGTH"), [[5]])


@pytest.mark.integration
def test_the_server_computes_the_same(tmp_path: Path) -> None:
    modules = {kind: module_of(kind) for kind in ARITHMETIC if not kind.endswith("_index")}  # these are labels
    modules |= {f"at_{kind}": with_coordinates(kind) for kind in COORDINATES}
    for kind, module in modules.items():
        exported = from_torch(module, example())
        exported.write(tmp_path / "models" / kind, classes=())
        voxserve.record(module, example(), tmp_path / f"{kind}.npz")
    with serving(tmp_path / "models", tmp_path / "log") as address:
        for kind in modules:
            folder, reference = str(tmp_path / "models" / kind), str(tmp_path / f"{kind}.npz")
            assert verify([folder, reference, "--address", address]) == 0, kind
