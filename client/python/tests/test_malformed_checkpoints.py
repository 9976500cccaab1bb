"""Checkpoints that are damaged, hostile or of another network: every command reports why, and changes no folder."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_networks import (
    FAMILIES,
    SMALL_CENTER_POINT,
    SMALL_CENTER_POINT_PILLAR,
    SMALL_DSVT,
    SMALL_FLATFORMER,
    SMALL_POINT_PILLARS,
    SMALL_SECOND,
    SMALL_VOXELNEXT,
    WINDOW_FAMILIES,
)
from test_from_torch_command import FACTORY, Malicious
from test_from_torch_command import state as traced_state

from voxserve.export import safetensors_file
from voxserve.export.__main__ import main
from voxserve.export.networks import center_point, dsvt, flatformer, second, voxelnext
from voxserve.export.networks.tensors import RandomTensors

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.usefixtures("stand_in_libraries")

State = dict[str, np.ndarray[Any, Any]]
# By command of the exporter: the family of its state dict (small_networks), and its arguments.
COMMANDS = {
    "torchsparse-minkunet": ("minkunet", ()),
    "spvcnn": ("spvcnn", ()),
    "torchsparse-resnet21d": ("resnet21d", ()),
    "minkowski-unet": ("minkowski", ()),
    "pointcept-spunet": ("spunet", ()),
    "svtnet": ("svtnet", ()),
    "centerpoint": ("centerpoint", ("--dataset", "waymo")),
    "centerpoint-pillar": ("centerpoint-pillar", ("--dataset", "waymo")),
    "voxelnext": ("voxelnext", ()),
    "second": ("second", ()),
    "pointpillars": ("pointpillars", ()),
    "dsvt": ("dsvt", ()),
    "flatformer": ("flatformer", ()),
    "from-torch": ("", ("--axes", "zyx", "--cut", "head")),
}
# Commands whose weights need a configuration, or have other names than random ones: test_point_transformers.py,
# test_autoware_ptv3.py and test_query_heads.py have their refusals.
WITH_CONFIGURATION = {"transfusion-l", "bevfusion-l", "pointcept-ptv3", "autoware-ptv3", "litept"}


class Command:
    """An exporter's command, a state dict that it accepts, and a folder that it may write."""

    def __init__(self, folder: Path, name: str, state: State) -> None:
        self.folder, self.name, self.state = folder, name, state
        self.output = folder / "model"

    def run(self, checkpoint: Path) -> int:
        first = ()
        if self.name == "from-torch":
            factory = self.folder / "my_network.py"
            factory.write_text(FACTORY)
            first = (f"{factory}:make",)
        return main([self.name, *first, str(checkpoint), "--output", str(self.output), *COMMANDS[self.name][1]])

    def saved(self, state: State) -> Path:
        path = self.folder / "w.pth"
        torch.save({"state_dict": {name: torch.from_numpy(np.array(t)) for name, t in state.items()}}, path)
        return path

    def weight(self) -> str:
        return next(name for name, tensor in self.state.items() if tensor.ndim > 2)


@pytest.fixture(params=COMMANDS)
def command(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setitem(center_point.CONFIGS, "waymo", SMALL_CENTER_POINT)
    monkeypatch.setitem(center_point.PILLAR_CONFIGS, "waymo", SMALL_CENTER_POINT_PILLAR)
    monkeypatch.setattr(voxelnext, "NUSCENES", SMALL_VOXELNEXT)
    monkeypatch.setattr(dsvt, "WAYMO", SMALL_DSVT)
    monkeypatch.setattr(flatformer, "WAYMO", SMALL_FLATFORMER)
    monkeypatch.setattr(second, "Config", lambda: SMALL_SECOND)
    monkeypatch.setattr(second, "POINT_PILLARS", SMALL_POINT_PILLARS)
    family = COMMANDS[request.param][0]
    if not family:
        return Command(tmp_path, request.param, traced_state())
    state: State = {}
    take = RandomTensors.take

    def record(self: RandomTensors, name: str, shape: Any, **options: Any) -> Any:
        state[name] = take(self, name, shape, **options)
        return state[name]

    with monkeypatch.context() as patch:
        patch.setattr(RandomTensors, "take", record)
        (FAMILIES | WINDOW_FAMILIES)[family][1](name="n")
    return Command(tmp_path, request.param, state)


def missing(command: Command) -> tuple[Path, str]:
    name = command.weight()
    return command.saved({n: t for n, t in command.state.items() if n != name}), f"tensor '{name}' "


def misshaped(command: Command) -> tuple[Path, str]:
    name = command.weight()
    tensor = np.concatenate([command.state[name]] * 2, axis=1)
    return command.saved({**command.state, name: tensor}), f"tensor '{name}' is {list(tensor.shape)}, not "


def beyond_float32(command: Command) -> tuple[Path, str]:
    name = command.weight()
    tensor = command.state[name].astype(np.float64)
    tensor.flat[:3] = 1e300
    return command.saved({**command.state, name: tensor}), f"tensor '{name}' has 3 values that are not finite"


def cut_zip(command: Command) -> tuple[Path, str]:
    path = command.saved(command.state)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path, "is not a torch file of tensors alone: it is damaged, cut off, or of another format"


def cut_safetensors(command: Command) -> tuple[Path, str]:
    path = command.folder / "w.safetensors"
    safetensors_file.write(path, command.state)
    path.write_bytes(path.read_bytes()[:-5])
    return path, "are outside the file's"


def text(command: Command) -> tuple[Path, str]:
    path = command.folder / "w.pth"
    path.write_text("conv1: 3x3x3\n")
    return path, "is not a torch file of tensors alone"


def unnamed_text(command: Command) -> tuple[Path, str]:
    path = command.folder / "weights"
    path.write_text("conv1: 3x3x3\n")
    return path, "the header claims"


def code_in_a_zip(command: Command) -> tuple[Path, str]:
    path = command.folder / "w.pth"
    tensors = {name: torch.from_numpy(np.array(t)) for name, t in command.state.items()}
    torch.save({"state_dict": tensors, "hook": Malicious(command.folder / "ran")}, path)
    return path, "which could run code. Only where you trust it, save its tensors alone"


def code_in_a_pickle(command: Command) -> tuple[Path, str]:
    path = command.folder / "old"  # spvnas' files have no suffix; torch before 1.6 wrote protocol 2
    path.write_bytes(pickle.dumps(Malicious(command.folder / "ran"), protocol=2))
    return path, "is not a torch file of tensors alone"


def module(command: Command) -> tuple[Path, str]:
    torch.save(torch.nn.Linear(2, 3), command.folder / "w.pth")
    return command.folder / "w.pth", "it wants torch.nn.modules.linear.Linear, which could run code"


def program(command: Command) -> tuple[Path, str]:
    torch.jit.script(torch.nn.Linear(2, 3)).save(str(command.folder / "w.pt"))
    return command.folder / "w.pt", "it is a TorchScript program; save its state_dict()"


def tensor_alone(command: Command) -> tuple[Path, str]:
    torch.save(torch.zeros(3), command.folder / "w.pth")
    return command.folder / "w.pth", "holds a Tensor, not a state dict"


def no_tensors(command: Command) -> tuple[Path, str]:
    torch.save({"state_dict": {}, "epoch": 3}, command.folder / "w.pth")
    return command.folder / "w.pth", "holds no tensors by name"


def no_numbers(command: Command) -> tuple[Path, str]:
    name = command.weight()
    tensors = {n: torch.from_numpy(np.array(t)) for n, t in command.state.items()}
    torch.save({**tensors, name: tensors[name].float().to_sparse()}, command.folder / "w.pth")
    return command.folder / "w.pth", f"tensor '{name}' is no array of numbers"


def another_network(command: Command) -> tuple[Path, str]:
    message = "has no point_transforms" if command.name == "spvcnn" else "is missing"
    return command.saved({"embeddings.weight": np.zeros((3, 4), np.float32)}), message


def no_file(command: Command) -> tuple[Path, str]:
    return command.folder / "absent.pth", "No such file or directory"


def folder(command: Command) -> tuple[Path, str]:
    return command.folder, "Is a directory"


MALFORMED = (
    *(missing, misshaped, beyond_float32, cut_zip, cut_safetensors, text, unnamed_text, code_in_a_zip),
    *(code_in_a_pickle, module, program, tensor_alone, no_tensors, no_numbers, another_network, no_file, folder),
)


def test_every_command_is_among_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = re.search(r"\{([\w,\s-]+)\}", capsys.readouterr().out)
    assert commands
    assert set(commands[1].split(",")) == set(COMMANDS) | WITH_CONFIGURATION


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.filterwarnings("ignore")  # torch warns of its old formats
def test_the_folder_stays_as_it_was(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(malformed: Callable[[Command], tuple[Path, str]]) -> None:
        path, message = malformed(command)
        assert command.run(path) == 1, malformed.__name__
        error = capsys.readouterr().err
        assert error.startswith("export: "), (malformed.__name__, error)
        assert message in error, (malformed.__name__, error)
        assert "\x1b" not in error
        assert not (command.folder / "ran").exists(), malformed.__name__

    for malformed in MALFORMED:
        refuse(malformed)
        assert not command.output.exists(), malformed.__name__
    assert command.run(command.saved(command.state)) == 0
    before = contents(command.output)
    assert {"config.textproto", "1/model.textproto", "1/weights.safetensors"} <= set(before)
    capsys.readouterr()
    for malformed in MALFORMED:
        refuse(malformed)
        assert contents(command.output) == before, malformed.__name__


def test_float64_is_stored_as_float32(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    name = command.weight()
    assert command.run(command.saved(command.state)) == 0
    plain = safetensors_file.read(command.output / "1" / "weights.safetensors")
    capsys.readouterr()
    doubled = {**command.state, name: command.state[name].astype(np.float64)}
    assert command.run(command.saved(doubled)) == 0
    assert f"warning: 1 tensors are float64, stored as float32: {name}\n" in capsys.readouterr().err
    stored = safetensors_file.read(command.output / "1" / "weights.safetensors")
    assert {tensor.dtype for tensor in stored.values()} <= {np.dtype(np.float16), np.dtype(np.float32)}
    for key, tensor in plain.items():
        np.testing.assert_array_equal(stored[key], tensor)


def test_a_torch_that_runs_what_files_say_is_refused(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = command.saved(command.state)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "2.5.1+cu124")
        assert command.run(path) == 1
    assert "needs torch 2.6 or newer; here is 2.5.1+cu124" in capsys.readouterr().err
    assert not command.output.exists()


def test_files_of_torch_have_any_name(command: Command) -> None:
    path = command.saved(command.state).rename(command.folder / "init")
    assert command.run(path) == 0
    torch.save({n: torch.from_numpy(t) for n, t in command.state.items()}, path, _use_new_zipfile_serialization=False)
    assert command.run(path) == 0
