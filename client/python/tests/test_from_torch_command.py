"""Tests python -m voxserve.export from-torch, which makes a folder of a factory and a checkpoint, or none on errors."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxserve.export import ExportError, checkpoint, safetensors_file
from voxserve.export.__main__ import main
from voxserve.export.checkpoint_file import read as read_checkpoint
from voxserve.verify.__main__ import main as verify

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.usefixtures("stand_in_libraries")

FACTORY = """
import torch
import spconv.pytorch as spconv

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = spconv.SparseSequential(
            spconv.SubMConv3d(2, 4, 3, bias=False), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
        self.down = spconv.SparseConv3d(4, 4, 3, stride=2)
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x):
        x = self.conv(x)
        return {"logits": self.head(x.features), "deep": self.down(x)}

def make():
    indices = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4], [0, 4, 4, 4]], dtype=torch.int32)
    return Net(), spconv.SparseConvTensor(torch.ones(3, 2), indices, [5, 6, 7], 1)

def bare():
    return Net()

def with_another():
    net, example = make()
    more = torch.tensor([[0, 1, 2, z] for z in range(6)], dtype=torch.int32)
    return net, example, spconv.SparseConvTensor(torch.ones(6, 2), more, [5, 6, 7], 1)
"""


@pytest.fixture
def factory(tmp_path: Path) -> str:
    path = tmp_path / "my_network.py"
    path.write_text(FACTORY)
    return f"{path}:make"


def state(**changes: Any) -> dict[str, Any]:
    """Returns a checkpoint of the network. changes: tensors to replace, or None to remove one."""
    rng = np.random.default_rng(1)
    shapes = {
        "conv.0.weight": (4, 3, 3, 3, 2),
        "conv.1.weight": (4,),
        "conv.1.bias": (4,),
        "conv.1.running_mean": (4,),
        "conv.1.running_var": (4,),
        "down.weight": (4, 3, 3, 3, 4),
        "down.bias": (4,),
        "head.weight": (3, 4),
        "head.bias": (3,),
    }
    tensors = {name: np.abs(rng.normal(size=shape)).astype(np.float32) + 0.1 for name, shape in shapes.items()}
    return {k: v for k, v in (tensors | {k.replace("__", "."): v for k, v in changes.items()}).items() if v is not None}


def export(factory: str, weights: Path, *options: str) -> int:
    return main(["from-torch", factory, str(weights), "--output", str(weights.parent / "model"), *options])


def test_one_command(tmp_path: Path, factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.pth"
    torch.save({"state_dict": {f"module.{n}": torch.from_numpy(t) for n, t in state().items()}}, path)
    record = tmp_path / "reference.npz"
    assert export(factory, path, "--axes", "zyx", "--result", "logits", "--reference", str(record)) == 0
    captured = capsys.readouterr()
    assert "spconv is not installed: a stand-in computes for it" in captured.err
    assert f"wrote {tmp_path / 'model' / '1'}: 7 tensors" in captured.out
    tensors = safetensors_file.read(tmp_path / "model" / "1" / "weights.safetensors")
    np.testing.assert_array_equal(tensors["head.weight"], state()["head.weight"])
    assert verify([str(tmp_path / "model"), str(record)]) == 0
    assert "not compared, since the model does not serve them: deep" in capsys.readouterr().out


def test_leftovers_are_left_with_a_warning(tmp_path: Path, factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    extra = {
        "head__bias": np.float64([1, 2, 3]),
        "conv__1__num_batches_tracked": np.array([7]),
        "auxiliary__weight": np.zeros(2, np.float32),
    }
    safetensors_file.write(tmp_path / "w.safetensors", {f"model.{n}": t for n, t in state(**extra).items()})
    assert export(factory, tmp_path / "w.safetensors", "--axes", "zyx", "--cut", "head") == 0
    error = capsys.readouterr().err
    assert "names lose their first part 'model.'" in error
    assert "float64, stored as float32: head.bias" in error
    assert "used by no part of the module, left out: model.auxiliary.weight" in error
    tensors = safetensors_file.read(tmp_path / "model" / "1" / "weights.safetensors")
    assert tensors["head.bias"].tolist() == [1, 2, 3]
    assert tensors["head.bias"].dtype == np.float32


def test_checkpoints_that_do_not_fit_leave_no_folder(
    tmp_path: Path, factory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "w.safetensors"
    changes = {
        "head__weight": None,
        "down__weight": np.zeros((3, 3, 3, 4, 5), np.float32),
        "conv__1__bias": np.float32([1, np.nan, np.inf, 1]),
    }
    safetensors_file.write(path, state(**changes))
    assert export(factory, path, "--axes", "zyx") == 1
    error = capsys.readouterr().err
    assert "3 problem(s)" in error
    assert "tensor 'head.weight' [3, 4] is missing" in error
    assert "tensor 'down.weight' is [3, 3, 3, 4, 5], not [4, 3, 3, 3, 4]" in error
    assert "tensor 'conv.1.bias' has 2 values that are not finite" in error
    assert not (tmp_path / "model").exists()


def test_several_results_are_tensors_of_their_names(tmp_path: Path, factory: str) -> None:
    safetensors_file.write(tmp_path / "w.safetensors", state())
    arguments = ["from-torch", factory, str(tmp_path / "w.safetensors"), "--axes", "zyx"]
    assert main([*arguments, "--output", str(tmp_path / "model")]) == 0
    text = (tmp_path / "model" / "1" / "model.textproto").read_text()
    assert text.count("KIND_TENSOR") == text.count("outputs {") == 2
    assert 'name: "logits" }' in text
    assert 'name: "deep" }' in text


def test_classes_are_those_of_the_labels(tmp_path: Path, factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    path, classes = tmp_path / "w.safetensors", tmp_path / "classes.json"
    safetensors_file.write(path, state())
    for ids, ignore_label, options, message in (
        ((0, 1), None, ("--result", "logits"), "classes.json has the class ids [0, 1], the classifier has 3 outputs"),
        ((0, 1, 2, 3), None, ("--result", "logits"), "class ids [0, 1, 2, 3], the classifier has 3 outputs"),
        ((1, 2, 3), None, ("--result", "logits"), "class ids [1, 2, 3], the classifier has 3 outputs"),
        ((0, 1, 1), None, ("--result", "logits"), "class ids [0, 1, 1], the classifier has 3 outputs"),
        ((0, 1, 2), 2, ("--result", "logits"), "has the ignore label 2, which is one of the 3 classes"),
        ((0, 1, 2), -1, ("--result", "logits"), "has the ignore label -1, but labels are 0 to 65535, such as 255"),
        ((0, 1, 2), 65536, ("--result", "logits"), "has the ignore label 65536, but labels are 0 to 65535"),
        ((0, 1, 2), None, ("--result", "deep"), "class ids [0, 1, 2], the network labels no points"),
        ((), 255, ("--result", "deep"), "has the ignore label 255, but the network labels no points: leave"),
        ((2, 0, 1), 255, ("--result", "logits"), ""),
    ):
        entries = [{"id": i, "name": f"c{i}", "color": [1, 2, 3]} for i in ids]
        extra = {} if ignore_label is None else {"ignore_label": ignore_label}
        classes.write_text(json.dumps({"classes": entries, **extra}))
        assert export(factory, path, "--axes", "zyx", "--classes", str(classes), *options) == (1 if message else 0)
        assert message in capsys.readouterr().err
    assert (tmp_path / "model" / "config.textproto").read_text().count("classes {") == 3


def test_a_second_example_of_the_factory(tmp_path: Path, factory: str) -> None:
    safetensors_file.write(tmp_path / "w.safetensors", state())
    other = factory.replace(":make", ":with_another")
    assert export(other, tmp_path / "w.safetensors", "--axes", "zyx") == 0
    source = Path(factory.removesuffix(":make"))
    source.write_text(source.read_text().replace("self.head(x.features)", "self.head(x.features) / len(x.indices)"))
    assert export(other, tmp_path / "w.safetensors", "--axes", "zyx") == 1


class Malicious:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self.path,))


def test_a_pickle_that_wants_to_run_code_does_not(
    tmp_path: Path, factory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = tmp_path / "ran"
    torch.save({"state_dict": {"head.bias": Malicious(ran)}}, tmp_path / "zip.pth")
    (tmp_path / "old.pth").write_bytes(pickle.dumps(Malicious(ran)))
    for name in ("zip.pth", "old.pth"):
        assert export(factory, tmp_path / name, "--axes", "zyx") == 1
        assert "is not a torch file of tensors alone" in capsys.readouterr().err
    assert not ran.exists()
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("version", "is_read"), [("2.5.1+cu124", False), ("1.13.1", False), ("2.6.0", True), ("10.0", True)]
)
def test_a_torch_that_runs_what_files_say_reads_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_read: bool
) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "w.pth")
    monkeypatch.setattr(torch, "__version__", version)
    if is_read:
        assert list(read_checkpoint(str(tmp_path / "w.pth"))) == ["a"]
    else:
        with pytest.raises(ValueError, match=r"needs torch 2\.6 or newer; here is " + version[:3]):
            read_checkpoint(str(tmp_path / "w.pth"))


def test_a_module_is_as_before_where_its_checkpoint_does_not_fit() -> None:
    module = torch.nn.Linear(2, 3)
    before = module.weight.detach().clone()
    with pytest.raises(ExportError, match="'bias' "):
        checkpoint.load(module, {"weight": np.ones((3, 2), np.float32)})
    assert torch.equal(module.weight, before)
    assert checkpoint.load(module, {"weight": np.ones((3, 2)), "bias": np.ones(3, np.float16)}) == [
        "1 tensors are float64, stored as float32: weight"
    ]
    assert module.weight.eq(1).all()


def test_bad_command_lines(tmp_path: Path, factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.safetensors"
    safetensors_file.write(path, state())
    file = factory.removesuffix(":make")
    for arguments, message in (
        ([file], "is not file.py:function or package.module:function"),
        ([f"{file}:nothing"], "has no 'nothing'"),
        ([f"{file}:bare"], "FACTORY must return (module, example)"),
        ([f"{tmp_path}/absent.py:make"], "is no Python file"),
        (["no_such_package.networks:make"], "cannot be imported"),
        ([factory], "does not say which axis is which"),
        ([factory, "--axes", "zyx", "--result", "boxes"], "output is 'boxes'"),
        ([factory, "--axes", "zyx", "--cut", "nowhere"], "cut is 'nowhere'"),
        ([factory, "--axes", "zyx", "--voxel-size", "1"], "--voxel_size and --features belong together"),
    ):
        assert main(["from-torch", arguments[0], str(path), "--output", str(tmp_path / "model"), *arguments[1:]]) == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
