"""Traces layers that something wraps or replaces: hooks, an own forward, TorchScript, quantization, casts, indices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import traced_networks as networks  # noqa: E402
from traced_networks import TOLERANCE, load, made, round_trip  # noqa: E402

from voxserve.export import ExportError, from_torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("stand_in_libraries")


class Scored(torch.nn.Module):
    """A network, and what a function makes of its scores."""

    def __init__(self, inner: Any, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self, x: Any) -> Any:
        return self.function(self.inner(x))


def scored(function: Callable[[Any], Any]) -> tuple[Any, Any, dict[str, str]]:
    inner, example, options = made("spconv-zyx")
    return Scored(inner, function).eval(), example, options


# Hooks and an own forward


def doubled(x: Any) -> Any:
    return x.replace_feature(x.features * 2)


@pytest.mark.parametrize("kind", ["before", "after"])
def test_hooks_of_a_layer_are_traced(tmp_path: Path, kind: str) -> None:
    spconv = load("spconv.pytorch")
    module = networks.randomize(spconv.SparseSequential(spconv.SubMConv3d(4, 5, 3), torch.nn.Linear(5, 3)))
    if kind == "before":
        module[0].register_forward_pre_hook(lambda _, arguments: (doubled(arguments[0]),))
    else:
        module[0].register_forward_hook(lambda *given: doubled(given[2]))
    _, comparison = round_trip(tmp_path, module, networks.spconv_example(spconv), axes="zyx")
    assert comparison.outputs()["output"].magnitude > 0.1


def test_hooks_of_layers_of_other_libraries_are_traced(tmp_path: Path) -> None:
    engine, spnn = load("MinkowskiEngine"), load("torchsparse.nn")
    for layer, example in (
        (engine.MinkowskiConvolution(4, 5, kernel_size=3, dimension=3), networks.minkowski_example(engine)),
        (spnn.Conv3d(4, 5, 3), networks.torchsparse_example(load("torchsparse"))),
    ):
        layer.register_forward_hook(lambda *given: given[2] + given[2])
        _, comparison = round_trip(tmp_path, networks.randomize(torch.nn.Sequential(layer)), example)
        assert comparison.outputs()["output"].magnitude > 0.1


def test_a_weight_that_a_hook_computes(tmp_path: Path) -> None:
    spconv = load("spconv.pytorch")
    with pytest.warns(FutureWarning, match="weight_norm"):
        layer = torch.nn.utils.weight_norm(spconv.SubMConv3d(4, 5, 3))
    module = networks.randomize(spconv.SparseSequential(layer))
    _, comparison = round_trip(tmp_path, module, networks.spconv_example(spconv), axes="zyx")
    assert comparison.outputs()["output"].magnitude > 0.1


def test_a_layer_whose_own_forward_was_replaced_is_refused() -> None:
    spconv = load("spconv.pytorch")
    module = networks.randomize(spconv.SparseSequential(spconv.SubMConv3d(4, 5, 3)))
    library = module[0].forward
    module[0].forward = lambda x: doubled(library(x))
    with pytest.raises(ExportError, match="own forward was replaced, so that it is no SubMConv3d of the library"):
        from_torch(module, networks.spconv_example(spconv), axes="zyx")
    assert "forward" in vars(module[0])


def test_a_trace_leaves_the_layers_as_they_were() -> None:
    module, example, options = made("spconv-zyx")
    before = [dict(vars(part)) for part in module.modules()]
    from_torch(module, example, **options)
    assert [dict(vars(part)) for part in module.modules()] == before


# torch.compile, TorchScript, quantization and other state


@pytest.mark.parametrize("whole", [True, False])
def test_compiled_modules_run_as_they_are(tmp_path: Path, whole: bool) -> None:
    module, example, options = made("spconv-zyx")
    if whole:
        module = torch.compile(module, backend="eager")
    else:
        module.stem.compile(backend="eager")
    exported, comparison = round_trip(tmp_path, module, example, **options)
    assert list(exported.outputs) == ["output"]
    assert len(comparison.modules()) > 4


def test_weights_in_half_precision_that_a_layer_lacks() -> None:
    module, example, options = made("spconv-zyx")
    with pytest.raises(ExportError, match=r"has weights in float16, which not every .* say module\.float\(\) before"):
        from_torch(module.half(), example, **options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused() -> None:
    class Twice(torch.nn.Module):
        def forward(self, y: Any) -> Any:
            return 2 * y

    advice = "it is of TorchScript, of which nothing can be followed"
    traced = torch.jit.trace(Twice(), torch.zeros(3, 5))
    function = torch.jit.trace(lambda y: 2 * y, torch.zeros(3, 5))
    for wrapped, message in (
        (traced, advice),
        (function, "Results of TorchScript, NumPy and extensions are not followed"),
        (lambda y: y + function(y), "What TorchScript and extensions compute is not followed"),
    ):
        module, example, options = scored(wrapped)
        with pytest.raises(ExportError, match=message):
            from_torch(module, example, **options)


@pytest.mark.filterwarnings("ignore")
def test_quantized_weights_are_refused() -> None:
    linear = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(5, 4)), {torch.nn.Linear})
    module, example, options = scored(linear)
    with pytest.raises(ExportError, match=r"'linear_dynamic' is not .* trace the module before it is quantized"):
        from_torch(module, example, **options)


def test_a_module_with_other_state_than_tensors(tmp_path: Path) -> None:
    class Counted(torch.nn.Linear):
        def get_extra_state(self) -> Any:
            return {"runs": 3}

        def set_extra_state(self, _state: Any) -> None: ...

    module, example, options = scored(networks.randomize(Counted(5, 4)))
    round_trip(tmp_path, module, example, **options)


# Casts


@pytest.mark.parametrize(
    "cast",
    [
        lambda y: y.to(torch.int32),
        lambda y: y.to(dtype=torch.int64),
        lambda y: y.to("cpu", torch.int16),
        lambda y: y.type(torch.int64),
        lambda y: y.type("torch.IntTensor"),
        lambda y: y.type(torch.IntTensor),
        lambda y: y.type_as(torch.zeros(1, dtype=torch.int64)),
        lambda y: y.to(torch.zeros(1, dtype=torch.bool)),
    ],
)
def test_a_cast_to_integers_is_refused(cast: Callable[[Any], Any]) -> None:
    module, example, options = scored(lambda y: cast(y).float())
    with pytest.raises(ExportError, match="of sites to integers is in the model format for the one channel"):
        from_torch(module, example, **options)


@pytest.mark.parametrize(
    "cast",
    [
        lambda y: y.argmax(1).to(torch.bool),
        lambda y: torch.nn.functional.embedding(y[:, 0].to(torch.int32), torch.ones(3, 2)),
    ],
)
def test_a_cast_that_changes_values_is_refused(cast: Callable[[Any], Any]) -> None:
    module, example, options = scored(cast)
    with pytest.raises(ExportError, match="of features that are no whole numbers of this type in this example"):
        from_torch(module, example, **options)


@pytest.mark.parametrize(
    "cast",
    [
        lambda y: (2 * y).type(y.type()),
        lambda y: (2 * y).to(y),
        lambda y: (2 * y).to("cpu"),
        lambda y: (2 * y).detach().requires_grad_() + 1,
        lambda y: torch.nn.functional.linear(y.double(), torch.ones(4, 5, dtype=torch.float64)).float(),
        lambda y: y.argmax(1).to(torch.int32),
        lambda y: y.argmax(1).int(),
    ],
)
@pytest.mark.filterwarnings("ignore:a tensor .* is no parameter")
def test_casts_that_change_no_value(tmp_path: Path, cast: Callable[[Any], Any]) -> None:
    module, example, options = scored(cast)
    round_trip(tmp_path, module, example, **options)


@pytest.mark.parametrize(
    "cast",
    [
        lambda y: y.to(dtype=torch.float16),
        lambda y: y.type(torch.bfloat16),
        lambda y: y.type_as(torch.zeros(1, dtype=torch.float16)),
        lambda y: torch.nn.functional.linear(y.bfloat16(), torch.ones(4, 5, dtype=torch.bfloat16)),
    ],
)
@pytest.mark.filterwarnings("ignore:a tensor .* is no parameter")
def test_a_cast_to_half_precision_is_named(cast: Callable[[Any], Any]) -> None:
    module, example, options = scored(lambda y: cast(y).float())
    with pytest.warns(UserWarning, match="features are cast to half precision in the module"):
        from_torch(module, example, **options)


# Indices


def turned(y: Any) -> Any:
    return y[torch.arange(len(y)).flip(0)]


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y[torch.arange(len(y)).roll(1)] + turned(y),
        lambda y: torch.cat([y.index_select(0, torch.arange(len(y)).roll(1)), turned(y)], 1),
        lambda y: y[torch.arange(len(y)).roll(1)] * turned(y),
    ],
)
def test_rows_by_two_indices_are_not_combined(function: Callable[[Any], Any]) -> None:
    module, example, options = scored(function)
    with pytest.raises(ExportError, match="of rows of voxels that two indices choose"):
        from_torch(module, example, **options)


def test_rows_by_one_index_are_combined() -> None:
    module, example, options = scored(lambda y: turned(y) + 2 * turned(y))
    exported = from_torch(module, example, **options)
    assert (exported.num_classes, exported.warnings) == (5, ())


def test_a_sparse_result_has_its_own_rows() -> None:
    spconv = load("spconv.pytorch")

    class Turned(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.replace_feature(turned(x.features))

    module = torch.nn.Sequential(spconv.SubMConv3d(4, 5, 3), Turned()).eval()
    with pytest.raises(ExportError, match="a sparse tensor whose features are not sites"):
        from_torch(module, networks.spconv_example(spconv), axes="zyx")


# Padding


def test_padding_of_an_image_by_six_numbers(tmp_path: Path) -> None:
    module, example, options = made("spconv-detector")

    class Padded(torch.nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.channels = channels

        def forward(self, image: Any) -> Any:
            return torch.nn.functional.pad(image, (1, 1, 1, 1, self.channels, 0))

    module.blocks[0] = Padded(0).eval()
    _, comparison = round_trip(tmp_path, module, example, **options)
    assert comparison.outputs()["image"].is_within(TOLERANCE)
    module.blocks[0], module.blocks[1].weight = Padded(1).eval(), torch.nn.Parameter(torch.ones(8, 31, 3, 3))
    with pytest.raises(ExportError, match="of the channels is not in the model format"):
        from_torch(module, example, **options)
