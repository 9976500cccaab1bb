"""Compares networks of spconv itself, on the CPU, with their exported models. Skipped if spconv is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import traced_networks as networks  # noqa: E402

from voxserve.export import ExportError, from_torch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # ignores the warnings of spconv and its libraries


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    """Sets two threads, with which spconv 2.3 on a CPU loses some of the sums unless voxserve gives it one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("axes", ["zyx", "xyz"])
@pytest.mark.parametrize("kind", ["unet", "detector"])
def test_round_trip(tmp_path: Path, kind: str, axes: str) -> None:
    spconv = pytest.importorskip("spconv.pytorch", reason="spconv is not installed")
    if (kind, axes) == ("detector", "xyz"):
        pytest.skip("an image from above needs axes zyx")
    # spconv on a CPU adds a bias only in kernels of one cell.
    module = networks.spconv_unet(spconv, bias=False) if kind == "unet" else networks.spconv_detector(spconv)
    example = networks.spconv_example(spconv)
    _, comparison = networks.round_trip(tmp_path, module, example, axes=axes)
    assert comparison.skipped == {}
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
    _, comparison = networks.round_trip(tmp_path, module, example, axes="zyx")
    assert np.isfinite(comparison.outputs()["output"].magnitude)


def test_a_layer_with_a_forward_of_its_own_is_followed_into_it(tmp_path: Path) -> None:
    """SoftGroup's layer of one cell reads the weights in another order than its base class."""
    spconv = pytest.importorskip("spconv.pytorch", reason="spconv is not installed")

    class OneCell(spconv.SparseConv3d):  # type: ignore[misc]
        def forward(self, tensor: object) -> object:
            weight = self.weight.view(self.out_channels, self.in_channels)
            return tensor.replace_feature(torch.mm(tensor.features, weight.T))  # type: ignore[attr-defined]

    module = networks.randomize(spconv.SparseSequential(OneCell(networks.CHANNELS, 7, 1, bias=False)))
    _, comparison = networks.round_trip(tmp_path, module, networks.spconv_example(spconv), axes="zyx")
    assert comparison.outputs()["output"].magnitude > 0.1


class OwnForward:
    """A subclass's forward, which calls that of spconv."""

    def forward(self, x: Any) -> Any:
        y = super().forward(x)  # type: ignore[misc]
        return y.replace_feature(y.features * 2.0)


@pytest.mark.parametrize("is_installed", [True, False])
@pytest.mark.parametrize("has_own_forward", [False, True])
@pytest.mark.parametrize("name", ["SubMConv3d", "SparseConv3d"])
def test_a_layer_alone_and_its_forward(
    tmp_path: Path, request: pytest.FixtureRequest, name: str, has_own_forward: bool, is_installed: bool
) -> None:
    """spconv's code adds to the product of the kernel's centre behind torch's back, which a trace took for a linear
    layer.
    """
    if is_installed:
        spconv = pytest.importorskip("spconv.pytorch", reason="spconv is not installed")
    else:
        request.getfixturevalue("stand_in_libraries")
        spconv = networks.load("spconv.pytorch")
    base = getattr(spconv, name)
    layer = type("Own", (OwnForward, base), {}) if has_own_forward else base
    module = networks.randomize(layer(networks.CHANNELS, 5, 3, padding=1, bias=False))
    exported, comparison = networks.round_trip(tmp_path, module, networks.spconv_example(spconv), axes="zyx")
    assert comparison.outputs()["output"].magnitude > 0.1
    assert "sparse_conv" in exported.network.to_textproto()
    has_one_thread = any(text.startswith("spconv loses sums on a CPU") for text in exported.warnings)
    assert has_one_thread is is_installed


def test_indices_that_do_not_lie_row_by_row_are_refused() -> None:
    spconv = pytest.importorskip("spconv.pytorch", reason="spconv is not installed")
    indices = torch.nonzero(torch.ones(1, 2, 3, 4)).int()
    assert not indices.is_contiguous()
    example = spconv.SparseConvTensor(torch.ones(len(indices), networks.CHANNELS), indices, [2, 3, 4], 1)
    module = spconv.SubMConv3d(networks.CHANNELS, 7, 3, bias=False).eval()
    with pytest.raises(ExportError, match=r"spconv reads them as if they did: .*contiguous\(\)"):
        from_torch(module, example, axes="zyx")


@pytest.mark.parametrize("layer", ["SubMConv3d", "SparseAvgPool3d", "SparseGlobalMaxPool"])
def test_what_spconv_lacks_on_a_cpu_is_told(layer: str) -> None:
    spconv = pytest.importorskip("spconv.pytorch", reason="spconv is not installed")
    arguments = {"SubMConv3d": (networks.CHANNELS, 7, 3), "SparseAvgPool3d": (2, 2)}.get(layer, ())
    module = spconv.SparseSequential(getattr(spconv, layer)(*arguments)).eval()
    with pytest.raises(ValueError, match="on a CPU it adds no bias and has no average and global pools"):
        from_torch(module, networks.spconv_example(spconv), axes="zyx")
