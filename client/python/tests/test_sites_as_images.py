"""Tests spconv's layers of two axes, whose dense result is an image, and kernels of up to 343 cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import serving
from graph_shapes import parse

import voxserve
from voxserve.export import ExportError, from_torch
from voxserve.verify.__main__ import main as verify

torch = pytest.importorskip("torch", reason="torch is not installed")
import traced_networks as networks  # noqa: E402
from torch import nn  # noqa: E402
from traced_networks import CHANNELS, load, round_trip  # noqa: E402

pytestmark = pytest.mark.usefixtures("stand_in_libraries")


def example() -> Any:
    return networks.minkowski_example(load("MinkowskiEngine"))


def flat_example() -> Any:
    generator = torch.Generator().manual_seed(3)
    columns = [torch.randint(0, high, (150, 1), generator=generator) for high in (2, 9, 12)]
    indices = torch.unique(torch.cat(columns, 1), dim=0).int()
    rows = torch.randn(len(indices), CHANNELS, generator=generator)
    return load("spconv.pytorch").SparseConvTensor(rows, indices, [9, 12], 2)


class Image(nn.Module):
    def __init__(self, *layers: Any) -> None:
        super().__init__()
        spconv = load("spconv.pytorch")
        self.down = spconv.SparseConv2d(CHANNELS, 6, 3, stride=2, padding=1, bias=True)
        self.same, self.layers = spconv.SubMConv2d(6, 6, 3, bias=True), nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.layers(self.same(self.down(x)).dense())


def image_module() -> Any:
    layers = (nn.Conv2d(6, 8, (3, 1), padding=(1, 0)), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, (1, 3)))
    return networks.randomize(Image(*layers))


@pytest.mark.parametrize(("axes", "made"), [("yx", "to_bev"), ("xy", "to_dense")])
def test_sites_of_two_axes_are_an_image(tmp_path: Path, axes: str, made: str) -> None:
    exported, comparison = round_trip(tmp_path, image_module(), flat_example(), axes=axes)
    assert comparison.skipped == {}
    assert made in [node.WhichOneof("op") for node in parse(exported.network).nodes]
    _, alone = round_trip(tmp_path, networks.randomize(Image()), flat_example(), axes=axes)
    assert alone.skipped == {}


def test_a_dense_volume_is_refused_with_what_to_do() -> None:
    spconv = load("spconv.pytorch")

    class Volume(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sparse, self.dense = spconv.SubMConv3d(CHANNELS, 6, 3), nn.Conv3d(6, 3, 3)

        def forward(self, x: Any) -> Any:
            return self.dense(self.sparse(x).dense())

    with pytest.raises(ExportError, match=r"'conv3d' .* sparse layers before dense\(\)"):
        from_torch(networks.randomize(Volume()), networks.spconv_example(spconv), axes="zyx")


# Kernels


def large_kernels() -> dict[str, tuple[Any, Any, dict[str, Any]]]:
    spconv, engine = load("spconv.pytorch"), load("MinkowskiEngine")
    of_minkowski, of_spconv = example(), networks.spconv_example(spconv)
    layers = {
        "cube": engine.MinkowskiConvolution(CHANNELS, 5, kernel_size=7, bias=True, dimension=3),
        "plane": engine.MinkowskiConvolution(CHANNELS, 5, kernel_size=(1, 7, 49), dimension=3),
        "line": engine.MinkowskiConvolution(CHANNELS, 5, kernel_size=(1, 1, 127), dimension=3),
        "strided": engine.MinkowskiConvolution(CHANNELS, 5, kernel_size=7, stride=2, dimension=3),
    }
    made = {name: (nn.Sequential(layer), of_minkowski, {}) for name, layer in layers.items()}
    of_box = spconv.SparseConv3d(CHANNELS, 5, 7, stride=2, padding=3, bias=True)
    made["spconv"] = (nn.Sequential(of_box), of_spconv, {"axes": "zyx"})
    return made


def test_kernels_of_343_cells(tmp_path: Path) -> None:
    for kind, (module, inputs, options) in large_kernels().items():
        _, comparison = round_trip(tmp_path / kind, networks.randomize(module), inputs, **options)
        assert comparison.skipped == {}, kind


@pytest.mark.parametrize("dimension", [5, 6])
def test_more_axes_are_refused_before_a_layer_runs(dimension: int) -> None:
    engine = load("MinkowskiEngine")

    class Never(nn.Module):
        def forward(self, inputs: Any) -> Any:
            engine.SparseTensor(inputs["features"], coordinates=inputs["coordinates"])
            raise AssertionError("the trace went on")

    coordinates = torch.unique(torch.randint(0, 3, (40, 1 + dimension)) % torch.tensor([1] + [3] * dimension), dim=0)
    inputs = {"features": torch.rand(len(coordinates), CHANNELS), "coordinates": coordinates}
    with pytest.raises(ExportError, match=f"has {dimension} axes; the server has at most 4"):
        from_torch(Never().eval(), inputs, features="features")


@pytest.mark.integration
def test_the_server_computes_the_same(tmp_path: Path) -> None:
    modules = {kind: (networks.randomize(module), *rest) for kind, (module, *rest) in large_kernels().items()}
    modules |= {f"image_{axes}": (image_module(), flat_example(), {"axes": axes}) for axes in ("xy", "yx")}
    for kind, (module, inputs, options) in modules.items():
        from_torch(module, inputs, **options).write(tmp_path / "models" / kind, classes=())
        voxserve.record(module, inputs, tmp_path / f"{kind}.npz")
    with serving(tmp_path / "models", tmp_path / "log") as address:
        for kind in modules:
            folder, reference = str(tmp_path / "models" / kind), str(tmp_path / f"{kind}.npz")
            assert verify([folder, reference, "--address", address]) == 0, kind
