"""Tests what is done for modules that ask for a GPU where there is none, and for spconv on a CPU."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import voxserve
from voxserve.export import from_torch, stand_ins
from voxserve.export.__main__ import main
from voxserve.verify import machine
from voxserve.verify.compare import Comparison, Model

torch = pytest.importorskip("torch", reason="torch is not installed")
import traced_networks as networks  # noqa: E402
from torch import nn  # noqa: E402

NO_GPU = "there is no GPU here"
ONE_THREAD = "spconv loses sums on a CPU"
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@without_gpu
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2).cuda(),
        lambda: torch.ones(2).cuda(0),
        lambda: torch.ones(2).to("cuda"),
        lambda: torch.ones(2).to("cuda:0", torch.float16),
        lambda: torch.ones(2).to(0),
        lambda: torch.ones(2).to(device=torch.device("cuda")),
        lambda: torch.zeros(2, device="cuda"),
        lambda: torch.tensor([1.0], device=torch.device("cuda", 0)),
        lambda: torch.ones(2).new_zeros(3, device="cuda"),
        lambda: torch.full((2,), 3.0, device=0),
        lambda: nn.Linear(2, 2).cuda().weight,
        lambda: nn.Linear(2, 2).to("cuda").weight,
        lambda: nn.Linear(2, 2, device="cuda").weight,
    ],
)
def test_a_gpu_means_the_cpu(make: Callable[[], Any]) -> None:
    with machine.prepared() as texts:
        assert make().device.type == "cpu"
    assert texts == [f"{NO_GPU}: .cuda() and device='cuda' in your code mean the CPU"]
    with pytest.raises((AssertionError, RuntimeError)):
        make()


def test_other_devices_and_types_stay() -> None:
    with machine.prepared() as texts:
        assert torch.ones(2).to(torch.float64).dtype == torch.float64
        assert torch.ones(2).to(torch.ones(1, dtype=torch.int32)).dtype == torch.int32
        assert torch.zeros(2, device="meta").device.type == "meta"
        assert torch.zeros(2).to("cpu", copy=True).device.type == "cpu"
    assert texts == []


@without_gpu
@pytest.mark.usefixtures("stand_in_libraries")
def test_a_network_that_asks_for_a_gpu_is_traced(tmp_path: Path) -> None:
    spconv = networks.load("spconv.pytorch")

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = spconv.SubMConv3d(networks.CHANNELS, 4, 3)
            self.register_buffer("scale", torch.arange(4.0))

        def forward(self, x: Any) -> Any:
            y = self.conv(x.replace_feature(x.features.cuda()))
            return y.replace_feature(y.features.to("cuda") * self.scale.to(torch.zeros(1, device="cuda").device))

    module, example = networks.randomize(Network()), networks.spconv_example(spconv)
    with pytest.warns(UserWarning, match=NO_GPU):
        exported = from_torch(module, example, axes="zyx")
    exported.write(tmp_path / "model")
    with pytest.warns(UserWarning, match=NO_GPU):
        reference = voxserve.record(module, example, tmp_path / "r.npz")
    (deviation,) = Comparison(Model.read(tmp_path / "model"), reference).outputs().values()
    assert deviation.is_within(1e-5)
    assert deviation.magnitude > 1


class OfSpconv(nn.Module):
    """A module that counts as spconv's own. It notes the number of threads, and fails as spconv does if it is told."""

    __module__ = "spconv.pytorch.conv"

    def __init__(self, problem: str = "") -> None:
        super().__init__()
        self.weight, self.problem, self.threads = nn.Parameter(torch.ones(1)), problem, 0

    def forward(self, x: Any) -> Any:
        self.threads = torch.get_num_threads()
        if self.problem:
            raise AssertionError(self.problem)
        return x


@pytest.mark.usefixtures("stand_in_libraries")
def test_spconv_on_a_cpu_gets_one_thread(tmp_path: Path) -> None:
    example = networks.spconv_example(networks.load("spconv.pytorch"))
    module = OfSpconv().eval()
    with pytest.warns(UserWarning, match=ONE_THREAD):
        voxserve.record(module, example, tmp_path / "r.npz")
    assert module.threads == 1
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)  # as the user may have done: nothing to say
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        voxserve.record(module, example, tmp_path / "r.npz")


@pytest.mark.usefixtures("stand_in_libraries")
@pytest.mark.parametrize("problem", ["cpu don't support act and bias", "Torch not compiled with CUDA enabled"])
def test_what_spconv_lacks_on_a_cpu_says_what_to_do(tmp_path: Path, problem: str) -> None:
    example = networks.spconv_example(networks.load("spconv.pytorch"))
    module = nn.Sequential(OfSpconv(problem)).eval()
    with pytest.raises(ValueError, match=r"on a CPU .* --stand_in spconv, or in Python"):
        from_torch(module, example, axes="zyx")
    with pytest.raises(ValueError, match="--stand_in spconv"):
        voxserve.record(module, example, tmp_path / "r.npz")
    with pytest.raises(AssertionError, match="of the user's own"):
        voxserve.record(nn.Sequential(OfSpconv("of the user's own")).eval(), example, tmp_path / "r.npz")
    assert torch.get_num_threads() == 2


FACTORY = """
import torch
import spconv.pytorch as spconv

def make():
    indices = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 4]], dtype=torch.int32, device=DEVICE)
    net = spconv.SparseSequential(spconv.SubMConv3d(2, 4, 3)).to(DEVICE)
    return net, spconv.SparseConvTensor(torch.ones(2, 2, device=DEVICE), indices, [5, 6, 7], 1)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Makes a package spconv importable that is no spconv."""
    package = tmp_path / "site" / "spconv"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('the installed spconv')\n")
    monkeypatch.syspath_prepend(str(package.parent))
    loaded = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "spconv"}
    for name in loaded:
        del sys.modules[name]
    yield tmp_path
    stand_ins.remove()
    sys.modules.update(loaded)


@without_gpu
def test_a_stand_in_replaces_an_installed_library(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    factory = installed / "factory.py"
    factory.write_text(FACTORY.replace("DEVICE", "'cuda'"))
    command = ["from-torch", f"{factory}:make", "--axes", "zyx", "--output", str(installed / "model")]
    assert main(command) == 1
    assert "the installed spconv" in capsys.readouterr().err
    assert main([*command, "--stand-in", "spconv"]) == 0
    error = capsys.readouterr().err
    assert "spconv is replaced: a stand-in computes for it" in error
    assert error.count(NO_GPU) == 1


def test_stand_ins_that_cannot_be_installed() -> None:
    with pytest.raises(ValueError, match="no stand-in for torch: there is one for spconv, torchsparse, Mink"):
        stand_ins.install(replace=["torch"])
    sys.modules["torchsparse"], before = sys, sys.modules.get("torchsparse")
    try:
        with pytest.raises(ValueError, match="torchsparse is imported already: install its stand-in before"):
            stand_ins.install(replace=["torchsparse"])
    finally:
        del sys.modules["torchsparse"]
        if before is not None:
            sys.modules["torchsparse"] = before
        stand_ins.remove()
