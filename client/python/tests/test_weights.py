"""Tests how a network's weights are found in a checkpoint: by their prefix, and by the order of spconv's axes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_networks import FAMILIES

from voxserve.export import ExportError, safetensors_file, spconv_order, weights
from voxserve.export.__main__ import main
from voxserve.export.networks.roots import ROOTS

State = dict[str, np.ndarray[Any, Any]]
COMMANDS = {  # the command of each family that has another name
    "minkunet": "torchsparse-minkunet", "resnet21d": "torchsparse-resnet21d", "spunet": "pointcept-spunet",
    "minkowski": "minkowski-unet", "minkowski-4d": "minkowski-unet", "minkowski-bottleneck": "minkowski-unet",
    "centerpoint-det3d": "centerpoint", "centerpoint-dynamic-pillar": "centerpoint-pillar",
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_the_names_of_every_family_begin_with_a_root(family: str, recorded: State) -> None:
    FAMILIES[family][1](name="n")
    state = dict(recorded)
    roots = ROOTS[COMMANDS.get(family, family)]
    assert {name.partition(".")[0] for name in state} <= set(roots)
    for prefix in ("", "module.", "state_dict.model._orig_mod.", "anything.at.all."):
        found = weights.find({prefix + name: tensor for name, tensor in state.items()}, weights.of_roots(roots))
        assert found.weights.keys() == state.keys()


class Export:
    """Exports Pointcept's SpUNet from tensors, and returns the bytes of the model's weights and what was printed."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys

    def run(self, state: State, *options: str) -> tuple[int, str]:
        safetensors_file.write(self._folder / "w.safetensors", state)
        arguments = ["pointcept-spunet", str(self._folder / "w.safetensors"), "--output", str(self._folder / "model")]
        return main([*arguments, *options]), self._capsys.readouterr().err

    def weights(self) -> bytes:
        return (self._folder / "model" / "1" / "weights.safetensors").read_bytes()


@pytest.fixture
def spunet(recorded: State) -> State:
    FAMILIES["spunet"][1](name="n")
    return dict(recorded)


@pytest.fixture
def export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Export:
    return Export(tmp_path, capsys)


def under(prefix: str, state: State) -> State:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def test_any_prefix_is_taken_away_and_told(export: Export, spunet: State) -> None:
    assert export.run(spunet) == (0, "")
    plain = export.weights()
    for prefix, lost in (
        ("module.", ["names lose their first part 'module.'"]),
        ("model._orig_mod.", ["names lose the parts _orig_mod.", "names lose their first part 'model.'"]),
        ("student.net.", ["names lose their first part 'student.net.'"]),
        ("state_dict.", []),
        ("ema.", ["names lose their first part 'ema.'"]),
    ):
        status, error = export.run(under(prefix, spunet))
        assert status == 0, prefix
        assert error == "".join(f"warning: {text}\n" for text in lost)
        assert export.weights() == plain


def test_compiled_parts_of_a_network(export: Export, spunet: State) -> None:
    assert export.run(spunet)[0] == 0
    plain = export.weights()
    assert export.run({name.replace("backbone.", "backbone._orig_mod."): t for name, t in spunet.items()})[0] == 0
    assert export.weights() == plain


def test_what_is_beside_the_network_is_told_and_left_out(export: Export, spunet: State) -> None:
    assert export.run(spunet)[0] == 0
    plain = export.weights()
    beside = {
        "criteria.weight": np.ones(3, np.float32),
        "metric.a": np.ones(2),
        "metric.b": np.ones(2),
        "n": np.ones(()),
    }
    status, error = export.run({**under("model.", spunet), **beside})
    assert status == 0
    assert "tensors outside of model are left out: metric (2), criteria\n" in error
    assert export.weights() == plain
    status, error = export.run({**spunet, **beside})  # without a prefix, a foreign tensor may be a part of the network
    assert status == 1
    assert "tensor 'criteria.weight' [3] is not part of SpUNet" in error


def test_two_sets_of_weights_are_named_and_one_is_chosen(export: Export, spunet: State) -> None:
    assert export.run(spunet)[0] == 0
    plain = export.weights()
    averaged = {name: tensor / 2 for name, tensor in spunet.items()}
    both = {**under("state_dict.", spunet), **under("state_dict_ema.", averaged)}
    status, error = export.run(both)
    assert status == 1
    assert "2 sets of weights fit equally well, and they differ: state_dict, state_dict_ema." in error
    assert "--prefix state_dict" in error
    assert export.run(both, "--prefix", "state_dict") == (
        0,
        "warning: tensors outside of state_dict are left out: state_dict_ema (297)\n",
    )
    assert export.weights() == plain
    assert export.run(both, "--prefix", "state_dict_ema.")[0] == 0
    assert export.weights() != plain
    status, error = export.run(both, "--prefix", "teacher")
    assert status == 1
    assert "--prefix teacher: no tensor's name begins so; there are state_dict (297), state_dict_ema (297)" in error


def test_of_many_sets_the_first_ones_are_named() -> None:
    tensors = {f"layer{i}.weight": np.full(3, i) for i in range(20)}
    with pytest.raises(ExportError, match=r"20 sets of weights fit .* layer0, .*, layer11 and 8 more\. Choose"):
        weights.find(tensors, lambda name, _: int(name == "weight"))


def test_two_sets_that_are_equal_are_one(export: Export, spunet: State) -> None:
    assert export.run({**under("model.", spunet), **under("ema.", spunet)})[0] == 0


def test_mmengine_keeps_the_averages_in_state_dict(export: Export, spunet: State) -> None:
    """EMAHook swaps both on saving: mmengine/hooks/ema_hook.py, _swap_ema_state_dict (02f1880e)."""
    raw = {name: tensor / 2 for name, tensor in spunet.items()}
    both = {**under("state_dict.", spunet), **under("ema_state_dict.module.", raw), "ema_state_dict.steps": np.ones(1)}
    status, error = export.run(both)
    assert status == 1
    assert "state_dict, ema_state_dict.module" in error
    assert "mmengine's EMAHook has the averaged weights in state_dict" in error


def test_a_smaller_set_is_told(export: Export, spunet: State) -> None:
    """Averages often lack the statistics of batch norms."""
    averaged = {name: tensor / 2 for name, tensor in spunet.items() if ".running_" not in name}
    status, error = export.run({**under("model.", spunet), **under("ema.", averaged)})
    assert status == 0
    assert "the weights are those of model; those of ema fit too: --prefix takes them instead" in error


def test_a_network_that_is_not_there_keeps_its_names(export: Export) -> None:
    status, error = export.run({"state_dict.embeddings.weight": np.ones((2, 2), np.float32)})
    assert status == 1
    assert "tensor 'embeddings.weight' [2, 2] is not part of SpUNet" in error


def test_tensors_without_numbers_are_named() -> None:
    from voxserve.export.networks import sp_unet
    from voxserve.export.unread import unread

    with pytest.raises(ExportError, match=r"'backbone\.final\.bias' is no array of numbers: it is stored as F8_E5M2"):
        sp_unet.build({"backbone.final.bias": unread((4,), "it is stored as F8_E5M2")}, name="n")


# The order of spconv's weights


def stored_as(order: str, state: State) -> State:
    """Returns the tensors as another version of spconv would have stored them. state: as spconv 2.2 does."""

    def of(tensor: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if tensor.ndim != 5:
            return tensor
        c_out, *kernel, c_in = tensor.shape
        shape = (*kernel, c_in, c_out) if order == "RSCK" else (*kernel, c_out, c_in)
        if kernel == [1, 1, 1]:  # spconv multiplies by it as it lies in memory
            return tensor.reshape(shape)
        made = np.zeros(shape, tensor.dtype)
        for o, i in itertools.product(range(c_out), range(c_in)):
            made[(..., i, o) if order == "RSCK" else (..., o, i)] = tensor[o, ..., i]
        return made

    return {name: of(tensor) for name, tensor in state.items()}


@pytest.mark.parametrize(("order", "version"), [("RSCK", "spconv 1"), ("RSKC", "spconv 2.0 and 2.1")])
def test_older_orders_of_spconv_are_recognised(export: Export, spunet: State, order: str, version: str) -> None:
    # The first layers of this small network have as many inputs as outputs: layers behind them decide.
    assert export.run(spunet)[0] == 0
    plain = export.weights()
    status, error = export.run(stored_as(order, spunet))
    assert status == 0
    assert f"60 weights of spconv are stored as {order}" in error
    assert version in error
    assert "fit several orders" not in error
    assert export.weights() == plain


def test_the_layers_of_one_file_may_have_two_orders(export: Export, spunet: State) -> None:
    """spconv 2.0 and 2.1 store the layers of the algorithm Native as RSKC, and all others as KRSC."""
    assert export.run(spunet)[0] == 0
    plain = export.weights()
    mixed = {n: stored_as("RSKC", {n: t})[n] if n.startswith("backbone.dec") else t for n, t in spunet.items()}
    assert export.run(mixed)[0] == 0
    assert export.weights() == plain


def test_where_no_shape_decides_it_is_said_and_a_flag_decides() -> None:
    cube = (3, 3, 3)
    order = spconv_order.SpconvOrder()
    assert order.find("a", (3, 3, 3, 3, 3), cube, 3, 3) == "KRSC"
    assert order.find("b", (3, 3, 3, 6, 6), cube, 6, 6) == "RSCK"
    (converted, guessed) = order.warnings()
    assert "1 weights of spconv are stored as RSCK" in converted
    assert "fit several orders" in guessed
    assert "--spconv_order" in guessed
    chosen = spconv_order.SpconvOrder("RSKC")
    assert chosen.find("b", (3, 3, 3, 6, 6), cube, 6, 6) == "RSKC"
    assert chosen.find("c", (6, 3, 3, 3, 6), cube, 6, 6) == "KRSC"  # whose shape says so
    assert len(chosen.warnings()) == 1
    second = spconv_order.SpconvOrder()
    assert second.find("c", (6, 3, 3, 3, 4), cube, 4, 6) == "KRSC"
    assert second.find("b", (3, 3, 3, 6, 6), cube, 6, 6) == "RSKC"  # spconv 1 did not write the one before
    assert len(second.warnings()) == 1
    informed = spconv_order.SpconvOrder()
    assert informed.find("d", (3, 3, 3, 8, 6), cube, 6, 8) == "RSKC"
    assert informed.find("b", (3, 3, 3, 6, 6), cube, 6, 6) == "RSKC"
    assert len(informed.warnings()) == 1
    assert informed.find("e", (3, 3, 3, 6), cube, 6, 6) == ""
    with pytest.raises(ValueError, match="is 'KCRS', not one of KRSC, RSCK, RSKC"):
        spconv_order.SpconvOrder("KCRS")


@pytest.mark.parametrize("order", ["RSCK", "RSKC"])
def test_a_weight_comes_back_from_every_order(order: str) -> None:
    weight = np.arange(2 * 3 * 1 * 5 * 4, dtype=np.float32).reshape(2, 3, 1, 5, 4)
    stored = stored_as(order, {"w": weight})["w"]
    assert stored.shape == spconv_order.shape_of(order, (3, 1, 5), 4, 2)
    np.testing.assert_array_equal(spconv_order.to_krsc(stored, order, by_memory=False), weight)
    cell = np.arange(8, dtype=np.float32).reshape(2, 1, 1, 1, 4)
    stored = cell.reshape(spconv_order.shape_of(order, (1, 1, 1), 4, 2))
    np.testing.assert_array_equal(spconv_order.to_krsc(stored, order, by_memory=True), cell)
