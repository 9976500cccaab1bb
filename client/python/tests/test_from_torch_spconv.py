"""Networks of spconv itself, on the CPU, against their exported models. Skipped where spconv is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import voxserve
from voxserve.export import from_torch
from voxserve.verify.compare import Comparison, Model

torch = pytest.importorskip("torch", reason="torch is not installed")
import traced_networks as networks  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of spconv and its libraries
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """spconv 2.3 on a CPU gives another result in each run of two threads or more: it loses some of the sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("axes", ["zyx", "xyz"])
@pytest.mark.parametrize("kind", ["unet", "detector"])
def test_round_trip(tmp_path: Path, kind: str, axes: str) -> None:
    spconv = pytest.importorskip("spconv.pytorch", reason="spconv is not installed")
    if (kind, axes) == ("detector", "xyz"):
        pytest.skip("an image from above needs axes zyx")
    # spconv on a CPU adds no bias but of kernels of one cell.
    module = networks.spconv_unet(spconv, bias=False) if kind == "unet" else networks.spconv_detector(spconv)
    example = networks.spconv_example(spconv)
    exported = from_torch(module, example, axes=axes)
    exported.write(tmp_path / "model")
    comparison = Comparison(Model.read(tmp_path / "model"), voxserve.record(module, example, tmp_path / "r.npz"))
    assert comparison.skipped == {}
    for name, deviation in (*comparison.outputs().items(), *comparison.modules()):
        assert deviation.is_within(TOLERANCE), f"{name}: {deviation}"
    assert len(comparison.modules()) > 4


@pytest.mark.parametrize("bias", [True, False])
def test_kernels_of_one_cell(tmp_path: Path, bias: bool) -> None:
    spconv = pytest.importorskip("spconv.pytorch", reason="spconv is not installed")
    layers = [
        spconv.SubMConv3d(networks.CHANNELS, 7, 1, bias=bias),
        spconv.SparseConv3d(7, 5, 1, bias=bias),
        spconv.SparseConvTranspose3d(5, 6, 1, bias=bias),
    ]
    module, example = networks.randomize(spconv.SparseSequential(*layers)), networks.spconv_example(spconv)
    from_torch(module, example, axes="zyx").write(tmp_path / "model")
    comparison = Comparison(Model.read(tmp_path / "model"), voxserve.record(module, example, tmp_path / "r.npz"))
    deviation = comparison.outputs()["output"]
    assert deviation.is_within(TOLERANCE), deviation
    assert np.isfinite(deviation.magnitude)
