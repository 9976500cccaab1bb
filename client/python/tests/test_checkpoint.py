"""Tests python -m voxserve.export from-torch with checkpoints as training code stores them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxserve.export import ExportError, checkpoint, safetensors_file
from voxserve.export.__main__ import main

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.usefixtures("stand_in_libraries")

FACTORY = """
import torch
import spconv.pytorch as spconv

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = spconv.SubMConv3d(3, 6, 3, bias=True)
        self.a = spconv.SubMConv3d(6, 6, 3, bias=False)
        self.tied = self.a
        self.norm = torch.nn.BatchNorm1d(6)
        self.cell = spconv.SubMConv3d(6, 6, 1, bias=False)

    def forward(self, x):
        x = self.tied(self.a(self.inp(x)))
        return self.cell(x.replace_feature(self.norm(x.features)))

def example():
    indices = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 3, 4], [0, 4, 4, 4]], dtype=torch.int32)
    features = torch.arange(12, dtype=torch.float32).reshape(4, 3) / 10
    return spconv.SparseConvTensor(features, indices, [5, 6, 7], 1)

def make():
    return Net().eval(), example()

def wrapped():
    return Outer(Net()).eval(), example()

class Outer(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)

def masked():
    net = Net().eval()
    net.register_buffer("mask", torch.full((2,), float("-inf")))
    return net, example()

def broken():
    net = Net().eval()
    with torch.no_grad():
        net.norm.weight[2] = float("nan")
    return net, example()
"""

State = dict[str, Any]


def state() -> State:
    """Returns a state dict of the network, as torch stores it: the tied layer by both of its names."""
    rng = np.random.default_rng(3)
    made = {
        "inp.weight": rng.normal(size=(6, 3, 3, 3, 3)),
        "inp.bias": rng.normal(size=6),
        "a.weight": rng.normal(size=(6, 3, 3, 3, 6)),
        "norm.weight": rng.uniform(1, 2, 6),
        "norm.bias": rng.normal(size=6),
        "norm.running_mean": rng.normal(size=6),
        "norm.running_var": rng.uniform(1, 2, 6),
        "cell.weight": rng.normal(size=(6, 1, 1, 1, 6)),
    }
    tensors = {name: torch.from_numpy(values.astype(np.float32)) for name, values in made.items()}
    tensors["tied.weight"] = tensors["a.weight"]
    return {**tensors, "norm.num_batches_tracked": torch.tensor(7)}


def under(prefix: str, tensors: State) -> State:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def averaged(tensors: State) -> State:
    return {name: tensor / 2 for name, tensor in tensors.items()}


class FromTorch:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys
        (folder / "my_network.py").write_text(FACTORY)

    def run(self, saved: Any, *options: str, factory: str = "make") -> tuple[int, str]:
        """Exports with a checkpoint: a path, None for none, or what torch.save shall store."""
        weights = []
        if saved is not None:
            path = saved if isinstance(saved, Path) else self._folder / "w.pth"
            if not isinstance(saved, Path):
                torch.save(saved, path)
            weights = [str(path)]
        arguments = ["from-torch", f"{self._folder / 'my_network.py'}:{factory}", *weights, "--axes", "zyx"]
        status = main([*arguments, "--output", str(self._folder / "model"), *options])
        texts = [line for line in self._capsys.readouterr().err.splitlines(True) if "stand-in" not in line]
        return status, "".join(texts)

    def weights(self) -> bytes:
        return (self._folder / "model" / "1" / "weights.safetensors").read_bytes()

    def values(self) -> list[bytes]:
        """Returns the values of the model's weights, whatever their names are."""
        stored = safetensors_file.read(self._folder / "model" / "1" / "weights.safetensors")
        return [tensor.tobytes() for tensor in stored.values()]


@pytest.fixture
def export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> FromTorch:
    return FromTorch(tmp_path, capsys)


FORMS: dict[str, tuple[Callable[[State], Any], str]] = {
    "alone": (lambda s: s, ""),
    "DataParallel": (lambda s: under("module.", s), "names lose their first part 'module.'"),
    "compiled": (lambda s: under("_orig_mod.", s), "names lose the parts _orig_mod."),
    "any": (lambda s: {"state_dict": under("segmentor.", s)}, "names lose their first part 'segmentor.'"),
    "nested": (lambda s: {"state_dict": under("module.model.", s)}, "names lose their first part 'module.model.'"),
    "OpenPCDet": (
        lambda s: {"model_state": s, "epoch": 3, "optimizer_state": {"state": {0: {"a": s["inp.bias"]}}}},
        "",
    ),
    "ema only": (lambda s: {"ema": s}, "names lose their first part 'ema.'"),
    "averaged model": (
        lambda s: {"ema_state_dict": {**under("module.", s), "n_averaged": torch.tensor(3)}},
        "names lose their first part 'ema_state_dict.module.'",
    ),
    "DeepSpeed": (
        lambda s: {"module": under("model.", s), "ds_version": "0.15", "ds_config": {}, "optimizer": None},
        "names lose their first part 'module.model.'",
    ),
    "Lightning": (
        lambda s: {
            "state_dict": {**under("model._orig_mod.", s), "criterion.weight": torch.ones(4)},
            "hyper_parameters": {"lr": 0.1},
            "optimizer_states": [{"state": {0: {"exp_avg": s["inp.weight"]}}}],
        },
        "tensors outside of state_dict.model are left out: state_dict.criterion",
    ),
    "parts": (
        lambda s: {name: {n.partition(".")[2]: t for n, t in s.items() if n.startswith(f"{name}.")} for name in
                   ("inp", "a", "tied", "norm", "cell")},
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_checkpoints(export: FromTorch, form: str) -> None:
    assert export.run(state()) == (0, "")
    plain = export.weights()
    store, told = FORMS[form]
    status, error = export.run(store(state()))
    assert status == 0, error
    assert told in error
    assert bool(told) == bool(error)
    assert export.weights() == plain


def test_two_sets_of_weights_in_one_file(export: FromTorch) -> None:
    assert export.run(state())[0] == 0
    plain = export.weights()
    both = {"state_dict": under("module.", state()), "state_dict_ema": averaged(state())}
    status, error = export.run(both)
    assert status == 1
    assert "2 sets of weights fit equally well, and they differ: state_dict.module, state_dict_ema." in error
    assert export.run(both, "--prefix", "state_dict")[0] == 0
    assert export.weights() == plain
    status, error = export.run(both, "--prefix", "state_dict_ema")
    assert status == 0
    assert "tensors outside of state_dict_ema are left out: state_dict (9)" in error
    assert export.weights() != plain
    assert export.run({"state_dict": state(), "state_dict_ema": state()})[0] == 0
    assert export.weights() == plain


def test_of_two_networks_with_the_same_names_the_shapes_decide(export: FromTorch) -> None:
    assert export.run(state())[0] == 0
    plain = export.weights()
    teacher = {name: torch.cat([tensor, tensor]) if tensor.ndim else tensor for name, tensor in state().items()}
    assert export.run({"teacher": teacher, "student": state()})[0] == 0
    assert export.weights() == plain


def test_a_module_that_has_a_part_more_than_the_checkpoint(export: FromTorch) -> None:
    assert export.run(state())[0] == 0
    plain = export.values()
    for stored, told in (
        (state(), ["names get the first part 'net.'"]),
        (
            {"state_dict": under("model.", state())},
            ["names lose their first part 'model.'", "names get the first part"],
        ),
        (under("net.", state()), []),
    ):
        status, error = export.run(stored, factory="wrapped")
        assert status == 0
        assert error.count("warning: ") == len(told)
        assert all(text in error for text in told)
        assert export.values() == plain
    incomplete = {name: tensor for name, tensor in state().items() if name != "inp.bias"}
    status, error = export.run(incomplete, factory="wrapped")
    assert status == 1
    assert "tensor 'inp.bias' [6] is missing" in error


def test_a_checkpoint_of_another_network_says_what_it_has(export: FromTorch) -> None:
    status, error = export.run(
        {"state_dict": {"encoder.w": torch.ones(2), "encoder.b": torch.ones(2)}, "x": torch.ones(1)}
    )
    assert status == 1
    assert "tensor 'inp.weight' [6, 3, 3, 3, 3] is missing" in error
    assert "no name fits: the checkpoint has state_dict (2), x" in error


def test_tensors_of_another_form_are_named_beside_those_that_are_missing(export: FromTorch) -> None:
    pruned = {("inp.weight_orig" if name == "inp.weight" else name): tensor for name, tensor in state().items()}
    status, error = export.run({**pruned, "inp.weight_mask": torch.ones(6, 3, 3, 3, 3)})
    assert status == 1
    assert "tensor 'inp.weight' [6, 3, 3, 3, 3] is missing" in error
    assert "2 tensors are used by no part of the module: inp.weight_orig, inp.weight_mask" in error


# Tensors that several parts of a module share


def test_one_name_of_a_tied_tensor_is_enough(export: FromTorch, tmp_path: Path) -> None:
    assert export.run(state())[0] == 0
    plain = export.weights()
    for missing in ("a.weight", "tied.weight"):
        assert export.run({name: tensor for name, tensor in state().items() if name != missing}) == (0, "")
        assert export.weights() == plain
    status, error = export.run({n: t for n, t in state().items() if n not in ("a.weight", "tied.weight")})
    assert status == 1
    assert "2 problem(s)" in error
    kept = {name: tensor.numpy() for name, tensor in state().items() if tensor.ndim and name != "tied.weight"}
    safetensors_file.write(tmp_path / "w.safetensors", {**kept, "steps": np.array([9], np.uint32)})
    status, error = export.run(tmp_path / "w.safetensors")
    assert (status, error) == (0, "warning: 1 tensors are used by no part of the module, left out: steps\n")
    assert export.weights() == plain


def test_names_of_a_tied_tensor_with_different_values(export: FromTorch) -> None:
    status, error = export.run({**state(), "tied.weight": 2 * state()["a.weight"]})
    assert status == 1
    assert "tensor 'a.weight' and 'tied.weight' are one tensor in the module, and differ in the checkpoint" in error


# Values


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"inp.weight": np.ones((6, 3, 3, 3, 3), np.int8)},
            "tensor 'inp.weight' is int8, but the module has floating-",
        ),
        ({"inp.bias": np.ones(6, bool)}, "tensor 'inp.bias' is bool, but"),
        ({"inp.bias": np.ones(6, np.complex64)}, "tensor 'inp.bias' is complex64, but"),
        ({"norm.running_var": np.float32([1, -1, 1, 1, 1, -2])}, "tensor 'norm.running_var' has 2 negative variances"),
        (
            {"norm.bias": np.float32([1, np.nan, 1, 1, np.inf, 1])},
            "tensor 'norm.bias' has 2 values that are not finite",
        ),
        ({"norm.bias": np.full(6, 1e300)}, "tensor 'norm.bias' has 6 values that are not finite"),
    ],
)
def test_values_that_cannot_be_served(export: FromTorch, change: State, problem: str) -> None:
    status, error = export.run({**state(), **{name: torch.from_numpy(values) for name, values in change.items()}})
    assert status == 1
    assert problem in error


def test_a_module_of_its_own_values_that_are_not_finite(export: FromTorch) -> None:
    assert export.run(None)[0] == 0
    status, error = export.run(None, "--prefix", "ema")
    assert (status, error) == (1, "export: --prefix and --spconv_order are of a checkpoint, and none is given\n")
    assert export.run(None, factory="masked")[0] == 0
    status, error = export.run(None, factory="broken")
    assert status == 1
    assert "tensor 'norm.weight' has 1 values that are not finite" in error


# spconv


def of_spconv_1(tensors: State) -> State:
    """Returns the tensors as spconv 1.2.1 stores them, [kernel, in, out] (spconv/conv.py, SparseConvolution)."""
    made = dict(tensors)
    for name in ("inp.weight", "a.weight", "tied.weight"):
        made[name] = tensors[name].permute(1, 2, 3, 4, 0).contiguous()
    # Both versions multiply rows by a kernel of one cell as it lies in memory, [in, out].
    made["cell.weight"] = tensors["cell.weight"].reshape(1, 1, 1, 6, 6)
    return made


def test_spconv_1(export: FromTorch) -> None:
    assert export.run(state())[0] == 0
    plain = export.weights()
    status, error = export.run(of_spconv_1(state()))
    assert status == 0
    # The tied layer and the cell have as many inputs as outputs: the first layer decides for them.
    assert error == (
        "warning: 4 weights of spconv are stored as RSCK ([kernel, in, out], spconv 1), and were converted\n"
    )
    assert export.weights() == plain


def test_what_a_layer_of_spconv_1_computes() -> None:
    """The definition: out(u) = sum over cells k of in(u + k - centre) W[k], with W as spconv 1 stores it."""
    from voxserve.export import stand_ins

    stand_ins.install()
    spaces: dict[str, Any] = {}
    exec(FACTORY, spaces)
    module, x = spaces["make"]()
    stored = of_spconv_1(state())
    checkpoint.load(module, {name: tensor.numpy() for name, tensor in stored.items()})
    sites = [tuple(row) for row in x.indices[:, 1:].tolist()]
    features = dict(zip(sites, x.features.numpy().astype(np.float64), strict=True))
    weight, bias = stored["inp.weight"].numpy(), stored["inp.bias"].numpy()
    with torch.no_grad():
        found = module.inp(x).features.numpy()
    for row, site in enumerate(sites):
        expected = bias.astype(np.float64)
        for k in itertools.product(range(3), repeat=3):
            neighbour = tuple(u + c - 1 for u, c in zip(site, k, strict=True))
            if neighbour in features:
                expected = expected + features[neighbour] @ weight[k]
        np.testing.assert_allclose(found[row], expected, rtol=1e-5)


def test_a_checkpoint_whose_order_no_shape_shows() -> None:
    from voxserve.export import stand_ins

    stand_ins.install()
    import spconv.pytorch as spconv

    def load(tensor: np.ndarray[Any, Any], order: str = "") -> tuple[Any, list[str]]:
        module = spconv.SubMConv3d(3, 3, 3, bias=False)
        warnings = checkpoint.load(module, {"weight": tensor}, order=order)
        return module.weight.detach().numpy(), warnings

    tensor = np.random.default_rng(1).normal(size=(3, 3, 3, 3, 3)).astype(np.float32)
    loaded, (warning,) = load(tensor)
    np.testing.assert_array_equal(loaded, tensor)
    assert "fit several orders, and no other weight decides: weight. They are taken as KRSC; --spconv_order" in warning
    loaded, (warning,) = load(tensor, "RSCK")
    np.testing.assert_array_equal(loaded, tensor.transpose(4, 0, 1, 2, 3))
    assert "1 weights of spconv are stored as RSCK" in warning
    module = spconv.SubMConv3d(3, 3, 3, bias=False)
    before = module.weight.detach().clone()
    with pytest.raises(ExportError, match=r"tensor 'weight' is \[3, 3, 3, 3\], not \[3, 3, 3, 3, 3\]"):
        checkpoint.load(module, {"weight": tensor[0]})
    assert torch.equal(module.weight, before)
