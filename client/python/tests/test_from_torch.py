"""Compares traced networks with their modules' results: computed by NumPy from the model's text, and by the server."""

from __future__ import annotations

import builtins
import re
import types
from pathlib import Path
from typing import Any

import pytest
from conftest import serving
from google.protobuf import text_format

import voxserve
from voxserve import wire
from voxserve.export import ExportError, PointFeature, Points, from_torch, stand_ins
from voxserve.verify.__main__ import main as verify
from voxserve.verify.compare import Comparison, Model

torch = pytest.importorskip("torch", reason="torch is not installed")
import traced_networks as networks  # noqa: E402
from traced_networks import TOLERANCE, load, made, round_trip  # noqa: E402

pytestmark = pytest.mark.usefixtures("stand_in_libraries")

SCORED = ("spconv-zyx", "spconv-xyz", "torchsparse", "minkowski")
ALL = (*SCORED, "minkowski-generator", "spconv-detector")  # the last two have outputs on other sites, and an image


@pytest.mark.parametrize("kind", ALL)
def test_round_trip(tmp_path: Path, kind: str) -> None:
    module, example, options = made(kind)
    exported, comparison = round_trip(tmp_path, module, example, **options)
    assert comparison.skipped == {}
    outputs, modules = comparison.outputs(), comparison.modules()
    assert list(outputs) == list(exported.outputs) == (["image", "up"] if kind == "spconv-detector" else ["output"])
    for name, deviation in (*outputs.items(), *modules):
        assert deviation.magnitude > 0.1, name
    assert len(modules) > 4
    assert {name for name, _ in modules} <= set(exported.modules)
    assert exported.network.has_outputs


@pytest.mark.integration
def test_the_server_computes_the_same(tmp_path: Path) -> None:
    for kind in ALL:
        module, example, options = made(kind)
        from_torch(module, example, **options).write(tmp_path / "models" / kind)
        voxserve.record(module, example, tmp_path / f"{kind}.npz")
    with serving(tmp_path / "models", tmp_path / "log") as address:
        for kind in ALL:
            folder, reference = str(tmp_path / "models" / kind), str(tmp_path / f"{kind}.npz")
            assert verify([folder, reference, "--address", address]) == 0, kind


def test_stand_ins_have_the_versions_that_they_stand_in_for() -> None:
    assert [load(n).__version__ for n in ("spconv", "torchsparse", "MinkowskiEngine")] == ["2.3.8", "2.1.0", "0.5.4"]


def test_a_clone_of_a_librarys_repository_is_not_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("a_clone/tests", "a_library"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a_library" / "__init__.py").touch()
    assert [stand_ins._is_installed(n) for n in ("a_clone", "a_library", "no_such_library")] == [False, True, False]


def test_nodes_have_the_modules_names() -> None:
    module, example, options = made("spconv-zyx")
    exported = from_torch(module, example, **options)
    model = text_format.Parse(exported.network.to_textproto(), wire.Model())
    names = [node.name for node in model.nodes]
    assert {"stem.conv1", "stem.bn1", "stem.relu", "stem.add", "stem.relu.2", "down.0", "up", "head.3"} <= set(names)
    assert exported.modules["stem"] == exported.modules["stem.relu#2"] == "stem.relu.2"
    down = next(node.sparse_conv for node in model.nodes if node.name == "down.0")
    assert (list(down.kernel_size), list(down.stride), list(down.padding)) == ([3, 2, 3], [1, 2, 2], [1, 0, 1])
    assert list(model.nodes[0].voxelize.range_max) == [11, 9, 10]
    assert [f.name for f in model.nodes[0].voxelize.features] == ["f0", "f1", "f2", "f3"]


def test_points_become_voxels_as_said() -> None:
    module, example, options = made("spconv-zyx")
    features = tuple(PointFeature(n, "m") for n in ("x", "y", "z", "intensity"))
    points = Points((0.5,) * 3, features, "FLOOR", "RANGE", "MEAN", (0, 0, 0), (5.5, 4.5, 4.5), 5)
    voxelize = text_format.Parse(
        from_torch(module, example, points=points, **options).network.to_textproto(), wire.Model()
    ).nodes[0].voxelize  # fmt: skip
    assert (list(voxelize.spatial_shape), voxelize.max_points_per_voxel) == ([11, 9, 10], 5)
    for bad, message in (
        (Points((0.5,) * 3, features[:3], origin="RANGE", range_min=(0,) * 3, range_max=(5,) * 3), "3 features"),
        (Points((0.5,) * 3, features), r"spatial shape \[11, 9, 10\]: points needs origin='RANGE'"),
        (Points((0.5,) * 3, features, origin="RANGE", range_min=(0,) * 3, range_max=(9,) * 3), r"range has \[18, 18"),
    ):
        with pytest.raises(ExportError, match=message):
            from_torch(module, example, points=bad, **options)


# Refusals


class Wrapped(torch.nn.Module):
    """A network, and a function that is applied to its scores."""

    def __init__(self, inner: Any, function: Any) -> None:
        super().__init__()
        self.inner, self.function = inner, function
        self.late = torch.nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.late(self.function(self.inner(x)))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda y: y.softmax(0), "'softmax' along dimension 0: channels are dimension 1"),
        (lambda y: y // y, "'floordiv|floor_divide' is not|'__floordiv__' is not"),
        (lambda y: y * y[:, :2], "both have as many channels"),
        (lambda y: torch.nn.functional.layer_norm(y, y.shape), "'layer_norm' over"),
        (lambda y: torch.nn.functional.normalize(y, p=3), "'normalize' with p=3"),
        (lambda y: torch.nn.functional.normalize(y, dim=0), "'normalize' along dimension 0"),
        (lambda y: y @ y.T, "Tensor.T of traced features"),
        (lambda y: y.log_softmax(0), "along dimension 0"),
        (lambda y: y[y[:, 0] > 0], "a mask|flat|one channel"),
        (lambda y: y[:, 0].relu(), "'relu' of column is not"),
        (lambda y: torch.nn.functional.softplus(y, threshold=2), "'softplus' with the threshold 2.0"),
        (lambda y: torch.nn.functional.celu(y, 0.5), "'celu' with another alpha"),
        (lambda y: 2**y, "features as the exponent"),
        (lambda y: y.clamp(torch.zeros(5)), "another value for each channel"),
        (lambda y: torch.nn.functional.embedding(y[:, 0].long(), torch.ones(3, 2)), "no whole numbers"),
        (lambda y: torch.nn.functional.embedding(y.long(), torch.ones(3, 2)), "the one channel of an embedding"),
        (lambda y: torch.cat([y, torch.ones(len(y), 1)], 1), "does not come from them"),
        (lambda y: y + torch.ones_like(y), r"not a value a channel"),
        (lambda y: torch.cat([y, y], 0), "along dimension 0"),
        (lambda y: y[:, :2].relu_(), "changes a view"),
        (lambda y: torch.cat([y[:, :2], y.relu_()], 1), "a tensor that has views"),
        (lambda y: torch.nn.functional.relu(y[:, :2], inplace=True), "changes a view"),
        (lambda y: torch.zeros(len(y), 5).add_(y), "not traced|does not come"),
        (lambda y: y / y.norm(dim=0, keepdim=True), "along dimension 0"),
        (lambda y: y / y.norm(), "'norm' over all dimensions"),
        (lambda y: torch.nn.functional.dropout(y), "'dropout' drops features in evaluation too, as its own argument"),
        (lambda y: torch.nn.functional.rrelu(y, training=True), "'rrelu' is random in evaluation too"),
        (lambda y: torch.nn.BatchNorm1d(5, track_running_stats=False).eval()(y), "track_running_stats=False"),
        (
            lambda y: torch.nn.functional.batch_norm(y, torch.zeros(5), torch.ones(5), training=True),
            "normalises by the batch in evaluation too, as its own argument `training` is true",
        ),
        (lambda y: torch.add(y, 1, out=torch.zeros(len(y), 5)), "'add' with out= is not"),
        (lambda y: y.numpy(), "'numpy' is not"),
    ],
)
def test_what_the_format_does_not_have_is_refused_with_its_line(function: Any, message: str) -> None:
    inner, example, options = made("spconv-zyx")
    module = Wrapped(inner, function).eval()
    with pytest.raises(ExportError, match=message) as caught:
        from_torch(module, example, **options)
    text = str(caught.value)
    assert re.search(rf"{Path(__file__).name}:\d+: ", text), text
    assert "cut='inner'" in text
    exported = from_torch(module, example, cut="inner", **options)
    assert exported.outputs == {"output": "inner.head.3"}


@pytest.mark.parametrize(
    ("options", "message"),
    [({"ceil_mode": True}, "dilation or ceil_mode"), ({"dilation": 2}, "dilation or ceil_mode")],
)
def test_maxima_that_the_format_does_not_have_are_refused(options: dict[str, Any], message: str) -> None:
    module, example, axes = made("spconv-detector")
    module.most = torch.nn.MaxPool2d(2, **options).eval()
    with pytest.raises(ExportError, match=message):
        from_torch(module, example, **axes)
    module.most = torch.nn.Sequential(torch.nn.ZeroPad2d(1), torch.nn.MaxPool2d(2)).eval()
    with pytest.raises(ExportError, match="of a padded image"):
        from_torch(module, example, **axes)


@pytest.mark.parametrize("cut", ["", "late"])
def test_a_trace_leaves_torch_and_the_libraries_as_they_were(cut: str) -> None:
    engine = load("MinkowskiEngine")
    owners = [torch.nn.Module, load("spconv.pytorch").SparseConvTensor, load("torchsparse").SparseTensor]
    owners += [engine.SparseTensor, engine.SparseTensor.__base__, torch.Tensor, builtins]
    before = [dict(vars(owner)) for owner in owners]
    from_torch(Wrapped(made("minkowski")[0], lambda y: y).eval(), networks.minkowski_example(engine), cut=cut)
    assert [dict(vars(owner)) for owner in owners] == before
    assert "__add__" not in vars(engine.SparseTensor)  # as in the library, whose class Tensor defines it


def test_a_cut_keeps_what_it_needs() -> None:
    module, example, options = made("spconv-zyx")
    exported = from_torch(module, example, cut="stem", **options)
    assert "down.0" not in exported.network.names
    assert exported.network.has_outputs
    coarse = from_torch(module, example, cut="down", **options).network
    assert 'outputs { kind: KIND_TENSOR node: "down.2" name: "output" }' in coarse.to_textproto()
    with pytest.raises(ValueError, match="cut is 'nowhere', which is no module"):
        from_torch(module, example, cut="nowhere", **options)


def test_a_cut_is_compared_with_the_module_after_which_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, example, options = made("spconv-zyx")
    from_torch(module, example, cut="down", **options).write(tmp_path / "model")
    arguments = [str(tmp_path / "model"), str(tmp_path / "reference.npz")]
    voxserve.record(module, example, arguments[1])
    assert verify(arguments) == 0
    assert "output (node 'down.2'): largest deviation" in capsys.readouterr().out
    voxserve.record(module, example, arguments[1], intermediates=False)
    assert verify(arguments) == 1
    assert "cut after 'down', and the reference does not hold that module's result" in capsys.readouterr().err


class Several(torch.nn.Module):
    """Returns a dict of results of a part of a network."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        y = self.inner(x)
        return {"double": 2 * y, "less": y - 1}


def test_a_cut_after_several_results(tmp_path: Path) -> None:
    inner, example, options = made("spconv-zyx")
    module = torch.nn.Sequential(Several(inner), Picks()).eval()
    exported = from_torch(module, example, cut="0", **options)
    exported.write(tmp_path / "model")
    reference = voxserve.record(module, example, tmp_path / "reference.npz")
    deviations = Comparison(Model.read(tmp_path / "model"), reference).outputs()
    assert set(deviations) == set(exported.outputs) == {"double", "less"}
    assert all(d.is_within(TOLERANCE) for d in deviations.values())


class Picks(torch.nn.Module):
    def forward(self, results: Any) -> Any:
        return results["double"]


# Dense results and images


def test_a_dense_result_is_served_as_its_sites(tmp_path: Path) -> None:
    spconv = load("spconv.pytorch")
    for axes, layers in (("zyx", [spconv.SubMConv3d(4, 5, 3)]), ("xyz", [spconv.SparseConv3d(4, 5, 3, 2)])):
        module = networks.randomize(spconv.SparseSequential(*layers, spconv.ToDense()))
        with pytest.warns(UserWarning, match="the result 'output' is dense: the rows of its sites are served"):
            _, comparison = round_trip(tmp_path, module, networks.spconv_example(spconv), axes=axes)
        assert comparison.outputs()["output"].magnitude > 0.1
        assert [name for name, _ in comparison.modules()] == ["0", "1"]


def test_a_padded_image_is_no_result() -> None:
    module, example, options = made("spconv-detector")
    module.up = torch.nn.ZeroPad2d(1).eval()
    with pytest.raises(ExportError, match="the result 'up' is a padded image"):
        from_torch(module, example, **options)


@pytest.mark.integration
def test_the_server_computes_the_same_of_dense_results(tmp_path: Path) -> None:
    spconv = load("spconv.pytorch")
    example = networks.spconv_example(spconv)
    for name, layer in (("scores", spconv.SubMConv3d(4, 5, 3)), ("coarse", spconv.SparseConv3d(4, 5, 3, 2))):
        module = networks.randomize(spconv.SparseSequential(layer, spconv.ToDense()))
        with pytest.warns(UserWarning, match="is dense"):
            from_torch(module, example, axes="zyx").write(tmp_path / "models" / name)
        voxserve.record(module, example, tmp_path / f"{name}.npz")
    with serving(tmp_path / "models", tmp_path / "log") as address:
        for name in ("scores", "coarse"):
            folder, reference = str(tmp_path / "models" / name), str(tmp_path / f"{name}.npz")
            assert verify([folder, reference, "--address", address]) == 0, name


def test_training_mode_is_refused() -> None:
    module, example, options = made("spconv-zyx")
    module.stem.bn1.train()
    with pytest.raises(ExportError, match=r"stem\.bn1 in training mode: call module.eval\(\)"):
        from_torch(module, example, **options)


def test_spconv_needs_its_axes() -> None:
    module, example, _ = made("spconv-zyx")
    with pytest.raises(ExportError, match="does not say which axis is which"):
        from_torch(module, example)
    with pytest.raises(ValueError, match="axes is 'zzz'"):
        from_torch(module, example, axes="zzz")
    module, example, _ = made("spconv-detector")
    with pytest.raises(ExportError, match="say axes='zyx'"):
        from_torch(module, example, axes="xyz")


def test_layers_that_are_not_served_are_refused() -> None:
    spconv, spnn, engine = load("spconv.pytorch"), load("torchsparse.nn"), load("MinkowskiEngine")
    of_spconv, of_torchsparse = networks.spconv_example(spconv), networks.torchsparse_example(load("torchsparse"))
    of_minkowski = networks.minkowski_example(engine)
    custom = engine.KernelGenerator(
        region_type=engine.RegionType.CUSTOM, region_offsets=torch.tensor([[0, 0, 0]]), stride=2,
        kernel_size=3, dimension=3)  # fmt: skip
    for module, example, message in (
        (spconv.SparseConvTranspose3d(4, 5, 3, dilation=2), of_spconv, "transposed convolution with a dilation"),
        (engine.MinkowskiSoftsign(), of_minkowski, "'softsign' is not"),
        (engine.MinkowskiLogSoftmax(dim=0), of_minkowski, "along dimension 0"),
        (engine.MinkowskiConvolution(4, 5, kernel_generator=custom, dimension=3), of_minkowski, "listed offsets"),
    ):
        with pytest.raises(ExportError, match=message):
            from_torch(torch.nn.Sequential(module).eval(), example, **({"axes": "zyx"} if example is of_spconv else {}))
    for module in (spnn.Conv3d(4, 5, 3, dilation=2), spnn.Conv3d(4, 5, 2)):
        with pytest.raises(NotImplementedError, match="stand-in for torchsparse has no generative"):
            from_torch(torch.nn.Sequential(module).eval(), of_torchsparse)
    for module in (spnn.Conv3d(4, 5, 3, stride=2), spnn.Conv3d(4, 5, 2, stride=2, padding=1)):
        with pytest.raises(ExportError, match=r"Give the example's SparseTensor a spatial_range, \(samples, cells"):
            from_torch(torch.nn.Sequential(module).eval(), of_torchsparse)
    with pytest.raises(NotImplementedError, match=r"no spconv\.pytorch\.SparseGlobalAvgPool: install the library"):
        spconv.SparseGlobalAvgPool()


def test_sites_that_torchsparse_leaves_out_at_the_end_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    library, spnn = load("torchsparse"), load("torchsparse.nn")
    coordinates = torch.tensor([[0, 0, 0, 0], [0, 3, 2, 1], [1, 4, 3, 3]], dtype=torch.int32)  # 4 begins a kernel
    example = library.SparseTensor(networks.features(coordinates), coordinates)
    module = networks.randomize(torch.nn.Sequential(spnn.Conv3d(4, 5, 2, stride=2)))
    assert from_torch(module, example).warnings == ()
    whole = spnn.Conv3d._strided_sites

    def without(keep: Any) -> None:
        def strided(self: Any, *args: Any) -> Any:
            made, spatial_range = whole(self, *args)
            return made[keep(made)], spatial_range

        monkeypatch.setattr(spnn.Conv3d, "_strided_sites", strided)

    without(lambda made: made[:, 1] < 2)  # torchsparse 2.1 also leaves out the last site, which is made of x = 4
    with pytest.warns(UserWarning, match="'0': torchsparse leaves out 1 of 3 sites at the end of the batch's extent"):
        exported = from_torch(module, example)
    assert len(exported.warnings) == 1
    without(lambda made: made[:, 1] > 0)
    with pytest.raises(ExportError, match="torchsparse's Conv3d made 2 sites"):
        from_torch(module, example)


def test_a_spatial_range_of_torchsparse_is_served() -> None:
    library, spnn = load("torchsparse"), load("torchsparse.nn")
    coordinates = networks.sites(7, (5, 6, 7))
    example = library.SparseTensor(networks.features(coordinates), coordinates, spatial_range=(2, 9, 6, 7))
    module = networks.randomize(torch.nn.Sequential(spnn.Conv3d(4, 5, 3, stride=2, padding=1)))
    for axes, cells in (("", [9, 6, 7]), ("zyx", [7, 6, 9])):
        model = text_format.Parse(from_torch(module, example, axes=axes).network.to_textproto(), wire.Model())
        assert list(model.nodes[0].voxelize.range_max) == cells
        assert list(model.nodes[1].sparse_conv.padding) == [1, 1, 1]
    functional = load("torchsparse.nn.functional")
    config = types.SimpleNamespace(get_global_conv_config=lambda: types.SimpleNamespace(kmap_mode="hashmap"))
    functional.conv_config = config
    with pytest.raises(ExportError, match="kmap_mode 'hashmap', which reads other cells"):
        from_torch(module, example)
    plain = networks.randomize(torch.nn.Sequential(spnn.Conv3d(4, 5, 2, stride=2)))
    functional.conv_config = types.SimpleNamespace(get_global_conv_config=lambda: None)
    from_torch(plain, example)


@pytest.mark.parametrize(
    ("kind", "part"), [("spconv-zyx", "head.0"), ("spconv-detector", "blocks.1"), ("spconv-detector", "up")]
)
def test_weights_that_are_not_finite_are_refused(kind: str, part: str) -> None:
    module, example, options = made(kind)
    module.get_submodule(part).weight.data.view(-1)[3] = float("nan")
    with pytest.raises(ExportError, match="a weight has values that are not finite"):
        from_torch(module, example, **options)


def test_examples_that_say_too_little_or_too_much() -> None:
    module, example, options = made("spconv-zyx")
    for bad in ({"name": "x"}, {"a": torch.zeros(3, 2), "b": torch.zeros(3, 2)}):
        with pytest.raises(ExportError, match=r"the example has \d tensors of features, and it needs one"):
            from_torch(module, bad, **options)
    with pytest.raises(ExportError, match="returns nothing that was computed"):
        from_torch(Wrapped(module, lambda _: torch.zeros(3)).eval(), example, **options)
    with pytest.raises(ExportError, match="output is 'boxes', the module returns output"):
        from_torch(module, example, output="boxes", **options)


def test_a_constant_that_is_no_parameter_is_named() -> None:
    inner, example, options = made("spconv-zyx")
    module = Wrapped(inner, lambda y: y + torch.full((1,), 0.5)).eval()
    with pytest.warns(UserWarning, match=r"a tensor \[1\] that is no parameter or buffer is stored"):
        exported = from_torch(module, example, **options)
    assert len(exported.warnings) == 1


@pytest.mark.parametrize("change", [
    lambda y: torch.nn.ReLU(inplace=True)(y),
    lambda y: torch.nn.functional.leaky_relu(y, 0.3, inplace=True),
    lambda y: y.mul_(2),
    lambda y: y.add_(y.sigmoid()),
])  # fmt: skip
def test_what_changes_features_in_place_changes_them_for_all(tmp_path: Path, change: Any) -> None:
    inner, example, options = made("spconv-zyx")

    def function(y: Any) -> Any:
        z = change(y)
        return torch.cat([z, y + z.tanh()], 1)

    module = Wrapped(inner, function).eval()
    from_torch(module, example, **options).write(tmp_path / "model")
    reference = voxserve.record(module, example, tmp_path / "r.npz", intermediates=False)
    deviation = Comparison(Model.read(tmp_path / "model"), reference).outputs()["output"]
    assert deviation.is_within(TOLERANCE), deviation


@pytest.mark.parametrize(("axes", "shape"), [("yx", (9, 8)), ("xy", (9, 8)), ("x", (200,)), ("tzyx", (4, 5, 3, 4))])
def test_networks_of_other_dimensions(tmp_path: Path, axes: str, shape: tuple[int, ...]) -> None:
    spconv, dimension = load("spconv.pytorch"), len(shape)
    kernel, stride = (3, 2, 1, 3)[:dimension], (2, 1, 2, 1)[:dimension]
    layers = spconv.SparseSequential(
        getattr(spconv, f"SubMConv{dimension}d")(4, 5, 3),
        getattr(spconv, f"SparseConv{dimension}d")(5, 6, kernel, stride, indice_key="down"),
        getattr(spconv, f"SparseInverseConv{dimension}d")(6, 5, kernel, "down"),
    )
    coordinates = networks.sites(6, shape)
    example = spconv.SparseConvTensor(networks.features(coordinates), coordinates, list(shape), 2)
    _, comparison = round_trip(tmp_path, networks.randomize(layers), example, axes=axes)
    assert len(comparison.outputs()) == 1


def test_a_dict_of_tensors_is_an_example() -> None:
    spconv, (module, example, options) = load("spconv.pytorch"), made("spconv-zyx")

    class Batched(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = module

        def forward(self, batch: Any) -> Any:
            x = spconv.SparseConvTensor(batch["feat"], batch["coords"].int(), example.spatial_shape, 2)
            return {"logits": self.network(x)[batch["inverse"]], "coords": batch["coords"]}

    rows = torch.tensor([0, 0, 3, 1])
    batch = {"feat": example.features, "coords": example.indices, "inverse": rows}
    with pytest.warns(UserWarning, match="not served, .* the results coords$"):
        exported = from_torch(Batched().eval(), batch, **options)
    assert exported.outputs == {"logits": "network.head.3"}
    assert exported.network.has_outputs
    two = {**batch, "center": torch.zeros(4, 3)}
    with pytest.warns(UserWarning, match="not served"):
        assert from_torch(Batched().eval(), two, features="feat", **options).outputs == exported.outputs
