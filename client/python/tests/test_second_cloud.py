"""Tests that what a module takes from the example alone (sizes, branches, coordinates, values) is refused or told."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import voxserve
from voxserve.export import ExportError, from_torch
from voxserve.export.tracing import sizes
from voxserve.verify.compare import Comparison, Model

torch = pytest.importorskip("torch", reason="torch is not installed")
import traced_networks as networks  # noqa: E402
from traced_networks import TOLERANCE, load  # noqa: E402

pytestmark = pytest.mark.usefixtures("stand_in_libraries")


class Layer(torch.nn.Module):  # type: ignore[misc]
    """A convolution, and a function of its sparse tensor and the input's."""

    def __init__(self, function: Callable[[Any, Any], Any], layer: Any = None) -> None:
        super().__init__()
        self.conv = layer or load("spconv.pytorch").SubMConv3d(networks.CHANNELS, 6, 3, bias=False)
        self.function = function
        self.register_buffer("table", torch.linspace(0, 1, 6))

    def forward(self, x: Any) -> Any:
        return self.function(self.conv(x), x)


def made(function: Callable[[Any, Any], Any], layer: Any = None) -> tuple[Any, Any]:
    return networks.randomize(Layer(function, layer)), networks.spconv_example(load("spconv.pytorch"))


def refusal(function: Callable[[Any, Any], Any]) -> str:
    module, example = made(function)
    with pytest.raises(ExportError) as caught:
        from_torch(module, example, axes="zyx")
    text = str(caught.value)
    assert re.search(rf"{Path(__file__).name}:\d+: ", text), text
    return text


# Sizes


@pytest.mark.parametrize(
    "function",
    [
        lambda y, x: y.features / int(x.indices[:, 1].max()),
        lambda y, x: y.features / x.indices[:, 3].float().max(),
        lambda y, x: y.features * (1.0 / float(x.indices.numpy()[:, 2].max())),
        lambda y, x: y.features + x.indices[:, 1:].amin(),
        lambda y, x: y.features[:, :3] + x.indices[:, 1:] / float(x.indices.numpy().max()),
        lambda y, x: y.features / y.features.shape[0],
        lambda y, x: y.features * (1.0 / len(y.features)) ** 0.5,
        lambda y, x: y.features * (100.0 / x.indices.shape[0]),
        lambda y, x: y.features * (100.0 / y.features.numel()),
        lambda y, x: y.features * (100.0 / y.features.size(0)),
        lambda y, x: y.features * (len(x.indices) / (9 * 12 * 11)),
        lambda y, x: y.features / x.batch_size,
        lambda y, x: y.features / int(x.indices[:, 0].max() + 1),
        lambda y, x: y.features / math.sqrt(x.features.shape[0]),
        lambda y, x: y.features + torch.full((6,), 1.0 / len(x.indices)),
        lambda y, x: y.features * x.indices.float().mean(0)[:1],
        lambda y, x: y.features.clamp(max=len(x.indices) / 100),
        lambda y, x: y.features ** (1 / x.batch_size),
        lambda y, x: y.features * torch.rand(6),
    ],
)
def test_a_number_of_the_example_is_refused_with_its_line(function: Any) -> None:
    text = refusal(function)
    assert "the network depends on the example: " in text
    assert "for a smaller cloud" in text
    assert "lambda y, x: y.features" in text


@pytest.mark.parametrize(
    "function",
    [
        lambda y, x: y.features if y.features.shape[0] > 100 else -y.features,
        lambda y, x: y.features if len(y.features) < 1_000_000 else -y.features,
        lambda y, x: -y.features if x.indices.shape[0] * 2 + 1 >= 1_000_000 else y.features,
        lambda y, x: y.features[:, : min(4, x.features.numel() // 1000)],
        lambda y, x: y.features if x.batch_size > 1 else -y.features,
        lambda y, x: y.features if x.features.size(0) ** 0.5 != 3.5 else -y.features,
        lambda y, x: y.features if x.features.size()[0] not in (7, 8) else -y.features,
        lambda y, x: y.features if math.ceil(len(x.indices) / 7) < 99_999 else -y.features,
        lambda y, x: y.features if x.indices.max().item() < 50_000 + len(x.indices) else -y.features,
    ],
)
def test_a_branch_on_a_size_is_refused_with_its_line(function: Any) -> None:
    text = refusal(function)
    assert re.search(r"a branch that depends on a size of the example: \S+ is compared with|the network depends", text)
    assert "lambda y, x:" in text


def test_a_branch_on_values_is_refused_or_told() -> None:
    text = refusal(lambda y, x: y.features if (x.indices[:, 0] == 1).any() else -y.features)
    assert "a branch that depends on the example's values" in text
    module, example = made(lambda y, x: y.features if (x.indices < 1000).all() else -y.features)
    with pytest.warns(UserWarning, match=r"a branch that depends on values, .*: \S+test_second_cloud.py:\d+: module"):
        assert from_torch(module, example, axes="zyx").network.has_outputs


def _asserting(y: Any, x: Any) -> Any:
    assert len(x.indices) == len(y.features)
    assert x.features.shape[0] < 1_000_000
    assert y.features.shape[1] == 6
    if x.features.shape[0] == 0 or not len(y.features) or y.features.shape[1] > 100:
        return -y.features
    return y.features * (1 / max(1, 4))


def _shaped(y: Any, x: Any) -> Any:
    n, c = y.features.shape
    rows = y.features.reshape(n, 2, c // 2).reshape(y.features.shape[0], -1)
    z = torch.zeros(x.batch_size * n, c), y.features.new_zeros(n, c), torch.arange(x.batch_size)
    del z
    return rows.view(len(rows), c) * (c**-0.5)


@pytest.mark.parametrize(
    "function",
    [
        _asserting,
        _shaped,
        lambda y, x: y.features * max(1, y.features.shape[1] // 2),
        lambda y, x: y.features * torch.linspace(0, 1, y.features.shape[1]),
        lambda y, x: torch.cat([y.features, y.features[:, : x.features.shape[1] - 2]], 1),
    ],
)
def test_sizes_that_are_no_cloud_s_may_be_used(tmp_path: Path, function: Any) -> None:
    module, example = made(function)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "a tensor .* that is no parameter")
        _, comparison = networks.round_trip(tmp_path, module, example, axes="zyx")
    assert comparison.outputs()["output"].magnitude > 0.1


def test_the_rows_of_an_image_and_of_samples_are_no_sizes_of_the_cloud(tmp_path: Path) -> None:
    engine = load("MinkowskiEngine")

    class Squeeze(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.pool, self.line = engine.MinkowskiGlobalAvgPooling(), torch.nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            y = self.pool(x).F
            return self.line(y.view(y.shape[0], -1))

    module = networks.randomize(Squeeze())
    networks.round_trip(tmp_path, module, networks.minkowski_example(engine))


@pytest.mark.parametrize("shape", [(40, 1, 40), (2, 2, 30), (2, 2, 2)])
def test_clouds_that_are_flat_or_have_no_inside(shape: tuple[int, ...]) -> None:
    spconv = load("spconv.pytorch")
    cells = np.stack(np.meshgrid(*map(np.arange, (2, *shape)), indexing="ij"), -1).reshape(-1, 4)
    coordinates = torch.from_numpy(cells.astype(np.int32))
    example = spconv.SparseConvTensor(networks.features(coordinates), coordinates, list(shape), 2)
    module, _ = made(lambda y, _: y.features)
    assert from_torch(module, example, axes="zyx").warnings == ()


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    module, example = made(lambda y, x: y.features * np.float32(0.5) / np.prod(x.spatial_shape) - np.int64(2))
    networks.round_trip(tmp_path, module, example, axes="zyx")


def test_a_cloud_too_small_to_compare_is_told() -> None:
    spconv = load("spconv.pytorch")
    module, _ = made(lambda y, x: y.features)
    indices = torch.tensor([[0, 1, 1, 1], [0, 2, 2, 2]], dtype=torch.int32)
    example = spconv.SparseConvTensor(torch.ones(2, 4), indices, [9, 9, 9], 1)
    with pytest.warns(UserWarning, match="could not be compared with that of a smaller part .* it has too few rows"):
        from_torch(module, example, axes="zyx")
    other = networks.spconv_example(spconv, (9, 9, 9))
    # Another spatial shape is told too; it is the user's own second example.
    with pytest.warns(UserWarning, match=r"makes the spatial shape from the cloud: \[9, 9, 9\] for the example, \[11"):
        from_torch(module, example, axes="zyx", other=networks.spconv_example(spconv))
    assert from_torch(module, example, axes="zyx", other=other).warnings == ()


def test_the_second_example_of_the_user_is_compared() -> None:
    spconv = load("spconv.pytorch")
    module, example = made(lambda y, x: y.features / len(x.indices))
    equal_size = networks.spconv_example(spconv)
    assert from_torch(module, example, axes="zyx", other=equal_size).network.has_outputs
    smaller = spconv.SparseConvTensor(example.features[:30], example.indices[:30], example.spatial_shape, 2)
    with pytest.raises(ExportError, match=r"has the value 0\.00\d+, and 0\.0333333 for a smaller cloud"):
        from_torch(module, example, axes="zyx", other=smaller)
    with pytest.raises(ExportError, match="a layer of sparse tensors is called with a Tensor"):
        from_torch(module, example, axes="zyx", other=torch.ones(3, 4))


def test_a_trace_leaves_the_module_and_the_example_as_they_were() -> None:
    class Caching(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv = load("spconv.pytorch").SubMConv3d(4, 6, 3, bias=False)
            self.scale: Any = None
            self.seen: dict[str, Any] = {}

        def forward(self, x: Any) -> Any:
            if self.scale is None:
                self.scale = 2.0
                self.seen["rows"] = x.features
            x.features.relu_()
            return self.conv(x).features * self.scale

    module = networks.randomize(Caching())
    example = networks.spconv_example(load("spconv.pytorch"))
    before = example.features.clone()
    from_torch(module, example, axes="zyx")
    assert module.scale is None
    assert module.seen == {}
    assert torch.equal(example.features, before)


def test_a_dict_of_voxels_and_points_is_thinned() -> None:
    spconv, (module, example) = load("spconv.pytorch"), made(lambda y, x: y.features)
    seen: list[dict[str, Any]] = []

    class Batched(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = module

        def forward(self, batch: Any) -> Any:
            seen.append({**batch, "feat": batch["feat"].as_subclass(torch.Tensor)})
            size = len(batch["offset"])
            x = spconv.SparseConvTensor(batch["feat"], batch["coords"].int(), example.spatial_shape, size)
            return {"scores": self.network(x)[batch["inverse"]]}

    order = torch.argsort(example.indices[:, 0].long(), stable=True)
    coordinates, features = example.indices[order], example.features[order]
    length = len(order)
    inverse = torch.arange(length).repeat(2)[torch.randperm(2 * length)]
    offset = torch.bincount(coordinates[:, 0].long()).cumsum(0)
    batch = {"feat": features, "coords": coordinates, "inverse": inverse, "offset": offset, "batch_size": 2}
    assert from_torch(Batched().eval(), {**batch, "segment": inverse % 7}, axes="zyx").warnings == ()
    from_torch(Batched().eval(), dict(reversed(batch.items())), axes="zyx")
    assert all(torch.equal(seen[0][key], seen[2][key]) for key in ("feat", "coords", "offset"))
    small, large = seen[:2]
    assert len(large["feat"]) == length
    assert (small["coords"].amax(0)[1:] < coordinates.amax(0)[1:]).all()
    assert 2 < len(small["feat"]) < length / 2
    assert small["offset"].tolist() == [len(small["feat"])]
    assert small["batch_size"] == 1
    assert small["coords"][:, 0].eq(0).all()
    np.testing.assert_array_equal(
        small["feat"][small["inverse"]].numpy(), features[inverse][np.isin(inverse, _rows_of(small, coordinates))]
    )
    assert torch.equal(small["segment"], (inverse % 7)[np.isin(inverse, _rows_of(small, coordinates))])


def _rows_of(small: Any, coordinates: Any) -> Any:
    known = {tuple(c): i for i, c in enumerate(coordinates.tolist())}
    return [known[tuple(c)] for c in small["coords"].tolist()]


def test_sizes_count_as_the_numbers_that_they_are() -> None:
    noted: list[sizes.Comparison] = []
    n = sizes.of(120, noted)
    assert (n + 1, 1 + n, n - 1, 7 % n, -n, abs(n), divmod(n, 7)) == (121, 121, 119, 7, -120, 120, (17, 1))
    assert (n / 7, n // 7, n**2, 2 ** sizes.of(3, noted), pow(n, 2, 7)) == (120 / 7, 17, 14400, 8, 1)
    assert (math.ceil(n / 7), round(n / 7, 1), math.sqrt(n), int(n), f"{n:4d}") == (18, 17.1, 120**0.5, 120, " 120")
    assert isinstance(math.floor(n * 0.5), sizes.Size)
    assert (list(range(n))[-1], "abc"[sizes.of(1, noted)], {120: 1}[n], hash(n)) == (119, "b", 1, hash(120))
    assert sizes.of(True, noted) is True
    assert sizes.of("text", noted) == "text"
    assert noted  # of this file, in which `n` is compared
    with pytest.raises(TypeError):
        n + "text"


# Coordinates


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c * torch.tensor([1, 2, 2, 2], dtype=torch.int32), "that are not those of"),
        (lambda c: c + torch.tensor([0, 1, 0, 0], dtype=torch.int32), "that are not those of"),
        (lambda c: c[:, [0, 3, 2, 1]], "that are not those of"),
        (lambda c: c.flip(0), "in another order than those of"),
    ],
)
@pytest.mark.parametrize("library", ["spconv", "torchsparse", "minkowski"])
def test_a_sparse_tensor_on_other_coordinates_is_refused(library: str, change: Any, message: str) -> None:
    spconv, torchsparse, engine = load("spconv.pytorch"), load("torchsparse"), load("MinkowskiEngine")
    rebuilt: dict[str, Callable[[Any], Any]] = {
        "spconv": lambda x: spconv.SparseConvTensor(
            x.features * 2, change(x.indices).contiguous(), x.spatial_shape, x.batch_size
        ),
        "torchsparse": lambda x: torchsparse.SparseTensor(x.F * 2, change(x.C).contiguous(), x.s),
        "minkowski": lambda x: engine.SparseTensor(x.F * 2, change(x.C).contiguous()),
    }
    example = getattr(networks, f"{library}_example")(
        {"spconv": spconv, "torchsparse": torchsparse}.get(library, engine)
    )

    layers = {
        "spconv": spconv.SubMConv3d(4, 5, 3),
        "torchsparse": load("torchsparse.nn").Conv3d(4, 5, 3),
        "minkowski": engine.MinkowskiConvolution(4, 5, kernel_size=3, dimension=3),
    }

    class Moved(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            return self.layer(rebuilt[library](x))

    options = {"axes": "zyx"} if library == "spconv" else {}
    for layer in (layers[library], torch.nn.Identity()):  # what reads the sites, and what answers them
        with pytest.raises(ExportError, match=f"a sparse tensor has coordinates {message}") as caught:
            from_torch(networks.randomize(Moved(layer)), example, **options)
        assert Path(__file__).name in str(caught.value)


def test_a_sparse_tensor_with_another_stride_or_shape_is_refused() -> None:
    spconv, engine = load("spconv.pytorch"), load("MinkowskiEngine")
    module, example = made(lambda y, x: spconv.SparseConvTensor(y.features, y.indices, [20, 20, 20], 2))
    with pytest.raises(
        ExportError, match=r"has the spatial shape \[20, 20, 20\], and its features' sites \[11, 9, 10\]"
    ):
        from_torch(module, example, axes="zyx")

    class Doubled(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            coordinates = x.C * torch.tensor([1, 2, 2, 2], dtype=torch.int32)
            return engine.SparseTensor(x.F * 2, coordinates, tensor_stride=2)

    with pytest.raises(ExportError, match=r"has the stride \[2, 2, 2\], and its features' sites \[1, 1, 1\]"):
        from_torch(Doubled().eval(), networks.minkowski_example(engine))


def test_other_coordinates_do_not_matter_to_what_reads_samples_alone(tmp_path: Path) -> None:
    """MinkLoc3D makes a sparse tensor of a coarse level's coordinates without their stride, and pools it."""
    engine = load("MinkowskiEngine")

    class Pooled(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, order: Any) -> None:
            super().__init__()
            self.down = engine.MinkowskiConvolution(4, 5, kernel_size=2, stride=2, dimension=3)
            self.pool, self.order = engine.MinkowskiGlobalAvgPooling(), order

        def forward(self, x: Any) -> Any:
            y = self.down(x)
            return self.pool(engine.SparseTensor(y.F.clamp(min=0.1), coordinates=self.order(y.C))).F

    module = networks.randomize(Pooled(lambda c: c))
    networks.round_trip(tmp_path, module, networks.minkowski_example(engine))
    with pytest.raises(ExportError, match=r"in another order than|that are not those of"):
        from_torch(networks.randomize(Pooled(lambda c: c.flip(0))), networks.minkowski_example(engine))


def test_a_sparse_tensor_rebuilt_as_it_was_is_served(tmp_path: Path) -> None:
    spconv = load("spconv.pytorch")
    down = spconv.SparseConv3d(networks.CHANNELS, 6, 3, stride=2)
    module, example = made(
        lambda y, x: spconv.SparseConvTensor(y.features * 2, y.indices.clone(), y.spatial_shape, y.batch_size), down
    )
    _, comparison = networks.round_trip(tmp_path, module, example, axes="zyx")
    assert comparison.outputs()["output"].magnitude > 0.1


def test_coordinates_that_the_module_makes_are_told() -> None:
    spconv, (inner, example) = load("spconv.pytorch"), made(lambda y, x: y.features)

    class Shifting(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, step: int) -> None:
            super().__init__()
            self.inner, self.step = inner, step

        def forward(self, feat: Any, coords: Any) -> Any:
            moved = torch.cat([coords[:, :1], coords[:, 1:] + self.step], 1).int()
            return self.inner(spconv.SparseConvTensor(feat, moved, [40, 40, 40], 2))

    arguments = (example.features, example.indices)
    assert from_torch(Shifting(0).eval(), arguments, axes="zyx").warnings == ()
    with pytest.warns(UserWarning, match="the module computes the coordinates of its first sparse tensor"):
        from_torch(Shifting(3).eval(), arguments, axes="zyx")


def test_torchsparse_coordinates_of_version_1_are_told() -> None:
    library, spnn = load("torchsparse"), load("torchsparse.nn")
    module = networks.randomize(torch.nn.Sequential(spnn.Conv3d(4, 5, 3)))
    coordinates = torch.tensor([[0, 3, 2, 1], [0, 4, 1, 2], [0, 5, 1, 3], [1, 2, 1, 1]], dtype=torch.int32)
    first = library.SparseTensor(networks.features(coordinates), coordinates)
    assert from_torch(module, first).warnings == ()
    last = library.SparseTensor(first.F, coordinates[:, [1, 2, 3, 0]].contiguous())
    with pytest.warns(UserWarning, match=r"like those of torchsparse 1.x, which has the sample last"):
        from_torch(module, last)


# Results


def test_results_that_are_not_served_are_told(tmp_path: Path) -> None:
    module, example = made(
        lambda y, x: {"scores": y.features, "coords": x.indices, "input": x, "size": 3, "none": None}
    )
    with pytest.warns(UserWarning, match="not served, .* not computed from the features: the results coords, input$"):
        exported = from_torch(module, example, axes="zyx")
    assert list(exported.outputs) == ["scores"]
    assert from_torch(module, example, axes="zyx", output="scores").warnings == ()
    exported.write(tmp_path / "model")
    reference = voxserve.record(module, example, tmp_path / "reference.npz")
    comparison = Comparison(Model.read(tmp_path / "model"), reference)
    assert comparison.not_served == ["coords", "input"]
    assert comparison.outputs()["scores"].is_within(TOLERANCE)


# Memory


def test_a_slice_that_a_layer_reads_is_no_view_of_its_result(tmp_path: Path) -> None:
    spconv = load("spconv.pytorch")

    class Sliced(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv = spconv.SubMConv3d(2, 6, 3, bias=False)
            self.relu = torch.nn.ReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            y = self.conv(x.replace_feature(x.features[:, :2]))
            y = y.replace_feature(self.relu(y.features))
            part = y.features[:, 1:4]
            del y
            return self.relu(part) - 1

    module = networks.randomize(Sliced())
    _, comparison = networks.round_trip(tmp_path, module, networks.spconv_example(spconv), axes="zyx")
    assert comparison.outputs()["output"].magnitude > 0.1


@pytest.mark.parametrize(
    "function",
    [
        lambda t: torch.cat([t.clone().relu_(), t], 1),
        lambda t: torch.cat([t[:, ::2].contiguous().relu_(), t], 1),
        lambda t: torch.cat([t.relu_(), t.contiguous(), t.detach()], 1),
        lambda t: torch.cat([t.contiguous().relu_(), t], 1),
    ],
)
def test_copies_are_changed_alone(tmp_path: Path, function: Any) -> None:
    module, example = made(lambda y, x: function(y.features - 0.5))
    _, comparison = networks.round_trip(tmp_path, module, example, axes="zyx")
    assert comparison.outputs()["output"].magnitude > 0.1


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_other_types(tmp_path: Path, kind: Any) -> None:
    module, example = made(lambda y, x: y.features.float() * module.table + module.shift)
    module.table = module.table.to(kind)
    module.shift = torch.nn.Parameter(torch.arange(6).to(kind))
    example.features.requires_grad_()
    _, comparison = networks.round_trip(tmp_path, module, example, axes="zyx")
    assert comparison.outputs()["output"].magnitude > 0.1


@pytest.mark.parametrize("is_on", [True, False])
def test_autocast_is_told(is_on: bool) -> None:
    def function(y: Any, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_on):
            return torch.nn.functional.linear(y.features, module.weight)

    module, example = made(function)
    module.weight = torch.nn.Parameter(torch.ones(3, 6))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from_torch(module, example, axes="zyx")
    assert [str(w.message)[:38] for w in caught] == is_on * ["features are cast to half precision in"]
