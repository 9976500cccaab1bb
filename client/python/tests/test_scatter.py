"""Tests what is traced of sums, means and maxima of rows by an index, and what is refused with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import serving
from graph_shapes import parse

import voxserve
from voxserve.export import ExportError, PointFeature, Points, from_torch
from voxserve.verify.__main__ import main as verify
from voxserve.verify.compare import Comparison, Model

torch = pytest.importorskip("torch", reason="torch is not installed")
import traced_networks as networks  # noqa: E402
from test_row_arithmetic import OnTensor, example  # noqa: E402
from torch import nn  # noqa: E402
from traced_networks import CHANNELS, load, round_trip  # noqa: E402

pytestmark = pytest.mark.usefixtures("stand_in_libraries")


def samples(y: Any) -> Any:
    return y.C[:, 0].long()


def zeros(y: Any) -> Any:
    return torch.zeros(int(y.C[:, 0].max()) + 1, y.F.shape[1])


def counts(y: Any) -> Any:
    return torch.zeros(len(zeros(y))).scatter_add_(0, samples(y), torch.ones(len(y.F)))


def wide(y: Any) -> Any:
    return samples(y)[:, None].expand(-1, y.F.shape[1])


def scattered(y: Any, reduce: str, size: int | None = None) -> Any:
    return load("torch_scatter").scatter(y.F, samples(y), dim=0, dim_size=size, reduce=reduce)


def averaged(y: Any) -> Any:
    """Computes a mean as torch_scatter 2.1.2 does (scatter.py, scatter_mean)."""
    total, count = zeros(y).scatter_add_(0, wide(y), y.F), counts(y)
    count[count < 1] = 1
    return total.true_divide_(count[:, None].expand_as(zeros(y)))


def added(y: Any) -> Any:
    total = zeros(y)
    total.index_add_(0, samples(y), y.F)
    return total


SCATTERED: dict[str, tuple[Any, str]] = {
    "index_add_in_place": (added, "SUM"),
    "index_add": (lambda y: torch.index_add(zeros(y), 0, samples(y), y.F), "SUM"),
    "scatter_add": (lambda y: zeros(y).scatter_add(0, wide(y), y.F), "SUM"),
    "sum": (lambda y: zeros(y).scatter_reduce(0, wide(y), y.F, "sum"), "SUM"),
    "mean": (lambda y: zeros(y).scatter_reduce_(0, wide(y), y.F, reduce="mean", include_self=False), "AVERAGE"),
    "largest": (lambda y: zeros(y).scatter_reduce(0, wide(y), y.F, "amax", include_self=False), "MAX"),
    "index_reduce": (lambda y: zeros(y).index_reduce_(0, samples(y), y.F, "mean", include_self=False), "AVERAGE"),
    "sum_by_count": (lambda y: added(y) / counts(y).clamp(min=1)[:, None], "AVERAGE"),
    "centred": (lambda y: y.F - (added(y) / counts(y)[:, None])[samples(y)], "AVERAGE"),
    "torch_scatter_sum": (lambda y: load("torch_scatter").scatter_add(y.F, samples(y), dim=0), "SUM"),
    "torch_scatter_mean": (lambda y: load("torch_scatter").scatter_mean(y.F, samples(y), 0), "AVERAGE"),
    "torch_scatter_max": (lambda y: load("torch_scatter").scatter_max(y.F, samples(y), dim=0)[0], "MAX"),
    "torch_scatter_size": (lambda y: scattered(y, "mean", len(zeros(y))), "AVERAGE"),
    "averaged": (averaged, "AVERAGE"),
    "share": (lambda y: y.F / (added(y).square() + 1)[samples(y)], "SUM"),
}


@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
@pytest.mark.parametrize("kind", SCATTERED)
def test_rows_of_each_sample_are_pooled(tmp_path: Path, kind: str) -> None:
    function, reduce = SCATTERED[kind]
    exported, comparison = round_trip(tmp_path, networks.randomize(OnTensor(function)), example())
    assert comparison.skipped == {}
    (node,) = (n for n in parse(exported.network).nodes if n.WhichOneof("op") == "global_pool")
    enum = node.global_pool.DESCRIPTOR.fields_by_name["reduce"].enum_type
    assert enum.values_by_number[node.global_pool.reduce].name == f"REDUCE_{reduce}"


class Pillars(nn.Module):
    """Gives points their voxels' rows, and pools them back by the same index."""

    def __init__(self, reduce: str) -> None:
        super().__init__()
        self.reduce = reduce
        self.first = load("MinkowskiEngine").MinkowskiConvolution(CHANNELS, CHANNELS, kernel_size=3, dimension=3)
        self.conv = load("MinkowskiEngine").MinkowskiConvolution(6, 5, kernel_size=3, dimension=3)
        self.line = nn.Linear(CHANNELS, 6)

    def forward(self, inputs: Any) -> Any:
        x = load("MinkowskiEngine").SparseTensor(inputs["features"], coordinates=inputs["coordinates"])
        voxel = inputs["voxel_of_point"]
        rows = self.line(self.first(x).F[voxel]).relu()
        target = torch.zeros(len(x.F), 6)
        pooled = target.scatter_reduce(
            0, voxel[:, None].expand(-1, 6), rows, self.reduce, include_self=self.reduce == "sum"
        )
        keys = {"coordinate_map_key": x.coordinate_map_key, "coordinate_manager": x.coordinate_manager}
        return self.conv(load("MinkowskiEngine").SparseTensor(pooled, **keys))


def points_example() -> dict[str, Any]:
    sparse = example()
    voxels = torch.arange(2 * len(sparse.F)) % len(sparse.F)
    return {"features": sparse.F, "coordinates": sparse.C, "voxel_of_point": voxels}


@pytest.mark.parametrize("reduce", ["mean", "amax"])
def test_the_points_of_a_voxel_have_its_row(tmp_path: Path, reduce: str) -> None:
    module = networks.randomize(Pillars(reduce))
    exported, comparison = round_trip(tmp_path, module, points_example(), features="features")
    assert comparison.skipped == {}
    assert list(comparison.outputs()) == ["output"]
    operators = [node.WhichOneof("op") for node in parse(exported.network).nodes]
    assert operators[:5] == ["voxelize", "sparse_conv", "linear", "activation", "sparse_conv"]


def test_sums_of_points_and_voxels_without_points_are_refused() -> None:
    with pytest.raises(ExportError, match="as a mean or a maximum of the points of every voxel"):
        from_torch(networks.randomize(Pillars("sum")), points_example(), features="features")
    inputs = points_example()
    inputs["voxel_of_point"] = inputs["voxel_of_point"].clamp(min=1)
    with pytest.raises(ExportError, match="as a mean or a maximum of the points of every voxel"):
        from_torch(networks.randomize(Pillars("mean")), inputs, features="features")


class Voxels(nn.Module):
    """Makes voxels of points, a convolution of them, and gives each point its voxel's row."""

    def __init__(self, reduce: Any) -> None:
        super().__init__()
        self.reduce = reduce
        self.conv = load("MinkowskiEngine").MinkowskiConvolution(CHANNELS, 5, kernel_size=3, dimension=3)

    def forward(self, inputs: Any) -> Any:
        coordinates, voxel = torch.unique(inputs["coordinates"], dim=0, return_inverse=True)
        rows = self.reduce(inputs["features"], voxel, len(coordinates))
        y = self.conv(load("MinkowskiEngine").SparseTensor(rows, coordinates=coordinates))
        return y.F[voxel]


def mean_of(rows: Any, index: Any, count: int) -> Any:
    return load("torch_scatter").scatter_mean(rows, index, dim=0, dim_size=count)


def divided(rows: Any, index: Any, count: int) -> Any:
    numbers = torch.zeros(count).index_add_(0, index, torch.ones(len(rows)))
    return torch.zeros(count, rows.shape[1]).index_add_(0, index, rows) / numbers[:, None]


def points(*, of_a_voxel: int = 1) -> dict[str, Any]:
    """Returns an example whose points are in no order."""
    sparse = example()
    order = torch.randperm(len(sparse.F), generator=torch.Generator().manual_seed(2)).repeat(of_a_voxel)
    return {"features": sparse.F[order], "coordinates": sparse.C[order]}


@pytest.mark.parametrize("reduce", [mean_of, divided])
def test_voxels_that_the_module_makes_are_those_of_the_server(tmp_path: Path, reduce: Any) -> None:
    module = networks.randomize(Voxels(reduce))
    with pytest.warns(UserWarning, match="averages the points of each voxel: .* --reduce MEAN") as told:
        exported = from_torch(module, points(), features="features")
    assert len(told) == 1
    exported.write(tmp_path / "model")
    reference = voxserve.record(module, points(), tmp_path / "reference.npz")
    comparison = Comparison(Model.read(tmp_path / "model"), reference)
    assert comparison.skipped == {}
    assert comparison.outputs()["output"].is_within(networks.TOLERANCE)


def test_a_sum_of_the_points_of_a_voxel_is_warned_of() -> None:
    def summed(rows: Any, index: Any, count: int) -> Any:
        return torch.zeros(count, rows.shape[1]).index_add_(0, index, rows)

    with pytest.warns(UserWarning, match="sums the points of each voxel, and served voxels have their mean"):
        from_torch(networks.randomize(Voxels(summed)), points(), features="features")


@pytest.mark.parametrize(
    ("reduce", "copies", "message"),
    [
        (mean_of, 2, "voxels of the example's .* points: take an example with one point in each voxel"),
        (lambda rows, *rest: mean_of(rows.relu(), *rest), 1, "a mean of the features as they come"),
        (lambda rows, *rest: divided(rows, *rest) + rows, 1, "before a sparse tensor is made|different sites"),
        (
            lambda rows, index, _: load("torch_scatter").scatter(rows, index, 0, reduce="max"),
            1,
            "a mean of the features",
        ),
    ],
)
def test_other_voxels_of_points_are_refused(reduce: Any, copies: int, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        from_torch(networks.randomize(Voxels(reduce)), points(of_a_voxel=copies), features="features")


def plain(y: Any) -> Any:
    return y.F.as_subclass(torch.Tensor)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda y: (zeros(y) + 1).index_add(0, samples(y), y.F), "onto values that count too"),
        (lambda y: zeros(y).scatter_reduce(0, wide(y), y.F, "amax"), "include_self=False for a mean or a maximum"),
        (lambda y: zeros(y).scatter_reduce(0, wide(y), y.F, "prod"), "sums, means and maxima of the rows of each"),
        (lambda y: zeros(y).index_add(0, samples(y), y.F, alpha=2), "with these arguments is not"),
        (lambda y: zeros(y).index_add(0, 1 - samples(y), y.F), "a pooling layer of the library whose kernel"),
        (lambda y: torch.zeros(3, 6).index_add(0, samples(y), y.F), "by this index is not in the model format"),
        (lambda y: scattered(y, "min"), "'scatter_reduce' with these arguments is not"),
        (lambda y: scattered(y, "mul"), "'scatter_reduce' with these arguments is not"),
        (lambda y: added(y) / (counts(y) + 1)[:, None], "not a value a channel"),
        (lambda y: y.F.topk(2, dim=0)[0], "'topk' is not in the model format: rows are not chosen .* in the client"),
        (lambda y: y.F.cumsum(0), "'cumsum' .* convolutions, pools, norms and attention alone"),
        (lambda y: torch.cdist(y.F, y.F), "'cdist' .* convolutions, pools, norms and attention alone"),
        (lambda y: y.F.sin(), "'sin' .* a small linear network of the coordinates"),
        (lambda y: torch.where(plain(y) > 0, y.F, -y.F), "'where' .* relu, clamp, maximum"),
        (lambda y: y.F.masked_fill(plain(y) > 0, 0), "'masked_fill' .* relu, clamp, maximum"),
    ],
)
def test_what_is_not_served_is_refused_with_what_to_do(function: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message) as caught:
        from_torch(networks.randomize(OnTensor(function)), example())
    assert "test_scatter.py:" in str(caught.value)
    assert "cut='conv'" in str(caught.value)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:index_reduce:UserWarning")
def test_the_server_computes_the_same(tmp_path: Path) -> None:
    modules = {kind: networks.randomize(OnTensor(function)) for kind, (function, _) in SCATTERED.items()}
    for kind, module in modules.items():
        from_torch(module, example()).write(tmp_path / "models" / kind, classes=())
        voxserve.record(module, example(), tmp_path / f"{kind}.npz")
    with serving(tmp_path / "models", tmp_path / "log") as address:
        for kind in modules:
            folder, reference = str(tmp_path / "models" / kind), str(tmp_path / f"{kind}.npz")
            assert verify([folder, reference, "--address", address]) == 0, kind


def test_the_stand_in_for_torch_scatter_computes_what_the_library_documents() -> None:
    """The numbers are those of the example in its README (rusty1s/pytorch_scatter 006849fd)."""
    library = load("torch_scatter")
    src = torch.tensor([[2, 0, 1, 4, 3], [0, 2, 1, 3, 4]])
    index = torch.tensor([[4, 5, 4, 2, 3], [0, 0, 2, 2, 1]])
    largest, _ = library.scatter_max(src, index, dim=-1)
    assert largest.tolist() == [[0, 0, 4, 3, 2, 0], [2, 4, 3, 0, 0, 0]]
    assert library.scatter(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), dim=0).shape == (0, 2)
    with pytest.raises(NotImplementedError, match="has no out"):
        library.scatter(src, index, out=torch.zeros(2, 6))
    with pytest.raises(NotImplementedError, match="no numbers of the rows"):
        library.scatter_max(src, index)[1].sum()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("TensorField", "make a SparseTensor with a row a voxel.* gives each point its voxel's result"),
        ("MinkowskiInterpolation", "Network.devoxelize interpolates"),
        ("MinkowskiToDenseTensor", "return the sparse tensor"),
        ("MinkowskiNoSuchLayer", "install the library itself"),
    ],
)
def test_what_a_stand_in_lacks_says_what_to_do(name: str, message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        getattr(load("MinkowskiEngine"), name)(1)


@pytest.mark.integration
def test_points_of_one_voxel_are_averaged_by_the_server(tmp_path: Path) -> None:
    module = networks.randomize(Voxels(mean_of))
    names = [f"f{i}" for i in range(CHANNELS)]
    served = Points((0.5, 0.5, 0.5), [PointFeature(name, "1") for name in names], reduce="MEAN")
    with pytest.warns(UserWarning, match="--reduce MEAN"):
        from_torch(module, points(), features="features", points=served).write(tmp_path / "models" / "net", classes=())
    generator = torch.Generator().manual_seed(5)
    places = torch.rand(400, 3, generator=generator) * 3 - 1
    rows = torch.randn(400, CHANNELS, generator=generator)
    voxels = torch.cat([torch.zeros(400, 1), (places / 0.5).floor()], 1).int()
    with torch.no_grad():
        expected = module({"features": rows, "coordinates": voxels}).numpy()
    assert len(torch.unique(voxels, dim=0)) < 250  # so that most voxels have several points
    cloud = dict(zip(("x", "y", "z", *names), torch.cat([places, rows], 1).numpy().T.copy(), strict=True))
    with serving(tmp_path / "models", tmp_path / "log") as address, voxserve.Client(address) as client:
        scores = client.infer("net", cloud, scores=True).scores
    np.testing.assert_allclose(scores, expected, atol=1e-4 * float(np.abs(expected).max()))
