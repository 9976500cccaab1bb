"""Networks of spconv, torchsparse and MinkowskiEngine with random weights and statistics, for comparing the libraries
themselves with what is exported from them. Needs torch and the libraries, or stand-ins for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import traced_networks as networks
from torch import nn

Made = tuple[Any, Any, dict[str, Any]]  # a module, its example input and the options of from_torch


@dataclass(frozen=True)
class Case:
    """A network of a library, to be traced and compared."""

    library: str
    name: str
    make: Callable[[str], Made]  # takes the device's name
    has_stand_in: bool = True  # whether the library's stand-in has the layers too
    golden: str = ""  # its folder in tests/golden/libraries, which has the library's outputs

    @property
    def device(self) -> str:
        """Returns the device on which the library runs: torchsparse has no CPU kernels for most of its layers."""
        return "cuda" if self.library == "torchsparse" else "cpu"


def _on(device: str, module: Any, example: Any, **options: Any) -> Made:
    return (module.to(device), example.to(device) if device != "cpu" else example, options)


# torchsparse. Sites are not negative. Without a spatial_range, its sites end at the batch's largest coordinates.


def _torchsparse_example(size: tuple[int, int, int], spatial_range: Any = None) -> Any:
    coordinates = networks.sites(5, size)
    make = networks.load("torchsparse").SparseTensor
    return make(networks.features(coordinates), coordinates, spatial_range=spatial_range)


def _layers(device: str) -> Made:
    spnn = networks.load("torchsparse.nn")

    class Layers(nn.Module):
        """Has kernels of several sizes, norms, activations, a sum, and means and maxima of samples."""

        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(spnn.Conv3d(4, 8, 3), spnn.BatchNorm(8), spnn.ReLU(True))
            self.flat = nn.Sequential(spnn.Conv3d(8, 6, (1, 3, 5), bias=True), spnn.LeakyReLU(0.2, True))
            self.wide = nn.Sequential(spnn.Conv3d(6, 8, 5, bias=True), spnn.GroupNorm(4, 8), spnn.SiLU(True))
            self.line = nn.Sequential(spnn.Conv3d(8, 8, 1, bias=True), spnn.BatchNorm(8))
            self.mean, self.most = spnn.GlobalAvgPool(), spnn.GlobalMaxPool()

        def forward(self, x: Any) -> Any:
            x = self.wide(self.flat(self.stem(x)))
            y = self.line(x) + x
            return {"sites": y, "mean": self.mean(y), "most": self.most(x)}

    return _on(device, networks.randomize(Layers()), _torchsparse_example((7, 10, 9)))


def _unet(device: str) -> Made:
    module = networks.torchsparse_unet(networks.load("torchsparse"), networks.load("torchsparse.nn"))
    return _on(device, module, _torchsparse_example((8, 10, 6)))


def _unet_by_hash_map(device: str) -> Made:
    """Makes the U-Net in the mode "hashmap", which keeps the last sites of the batch. Odd sizes have such sites."""
    module, _, options = _unet(device)
    if device != "cpu":  # the stand-in has no modes
        config = networks.load("torchsparse.nn.functional").conv_config.get_default_conv_config()
        config = type(config)({**dict(config), "kmap_mode": "hashmap"})
        for part in module.modules():
            if hasattr(part, "_config"):
                part._config = config
    return _on(device, module, _torchsparse_example((7, 9, 5)), **options)


def _detector(device: str) -> Made:
    library, spnn = networks.load("torchsparse"), networks.load("torchsparse.nn")

    def layer(a: int, b: int, kernel: Any, stride: Any, **options: Any) -> Any:
        conv = spnn.Conv3d(a, b, kernel, stride=stride, **options)
        return nn.Sequential(conv, spnn.BatchNorm(b), spnn.ReLU(True))

    class Detector(nn.Module):
        """Has kernels of size 3 with stride 2 within a spatial_range, and the transposed ones back."""

        def __init__(self) -> None:
            super().__init__()
            self.stem = layer(4, 8, 3, 1)
            self.down = layer(8, 12, 3, 2, padding=1)
            self.deep = layer(12, 12, 3, 1)
            self.flat = layer(12, 16, (3, 1, 2), (2, 1, 2), bias=True)
            self.lift = layer(16, 12, (3, 1, 2), (2, 1, 2), transposed=True)
            self.up = layer(24, 8, 3, 2, transposed=True, bias=True)

        def forward(self, x: Any) -> Any:
            y = self.down(self.stem(x))
            y = self.deep(y) + y
            z = self.flat(y)
            return {"coarse": z, "fine": self.up(library.cat([self.lift(z), y]))}

    return _on(device, networks.randomize(Detector()), _torchsparse_example((9, 10, 7), (2, 11, 10, 8)))


def _torchsparse_backbone(name: str, size: tuple[int, int, int], spatial_range: Any, width: float) -> Any:
    def make(device: str) -> Made:
        backbone = getattr(networks.load("torchsparse.backbones"), name)
        module = networks.randomize(backbone(in_channels=4, width_multiplier=width))
        return _on(device, module, _torchsparse_example(size, spatial_range))

    return make


def _torchsparse_block(device: str) -> Made:
    block = networks.load("torchsparse.backbones.modules").SparseResBlock
    module = networks.randomize(nn.Sequential(block(4, 16, 3), block(16, 16, (3, 1, 3))))
    return _on(device, module, _torchsparse_example((11, 9, 14)))


# spconv and MinkowskiEngine. spconv on a CPU adds a bias only in kernels of one cell.


def _spconv(make: Callable[[Any], Any], axes: str) -> Callable[[str], Made]:
    def made(device: str) -> Made:
        spconv = networks.load("spconv.pytorch")
        return _on(device, make(spconv), networks.spconv_example(spconv), axes=axes)

    return made


def _spconv_cells(spconv: Any) -> Any:
    layers = [spconv.SubMConv3d(4, 7, 1), spconv.SparseConv3d(7, 5, 1), spconv.SparseConvTranspose3d(5, 6, 1)]
    return networks.randomize(spconv.SparseSequential(*layers))


def _minkowski(kind: str) -> Callable[[str], Made]:
    return lambda _device: networks.made(kind)


CASES = (
    Case("torchsparse", "layers, samples", _layers, golden="torchsparse-layers"),
    Case("torchsparse", "U-Net, 2^3 / 2", _unet, golden="torchsparse-unet"),
    Case("torchsparse", "3^3 / 2 and back, spatial_range", _detector, golden="torchsparse-detector"),
    Case("torchsparse", "SparseResBlock", _torchsparse_block, has_stand_in=False),
    Case(
        "torchsparse",
        "SparseResUNet42 (MinkUNet)",
        _torchsparse_backbone("SparseResUNet42", (32, 48, 16), None, 0.25),
        has_stand_in=False,
    ),
    Case(
        "torchsparse",
        "SparseResNet21D, spatial_range",
        _torchsparse_backbone("SparseResNet21D", (37, 44, 29), (2, 40, 44, 32), 0.5),
        has_stand_in=False,
    ),
    Case("torchsparse", "U-Net, kmap_mode hashmap", _unet_by_hash_map),
    Case("spconv", "U-Net, zyx", _spconv(lambda spconv: networks.spconv_unet(spconv, bias=False), "zyx")),
    Case("spconv", "U-Net, xyz", _spconv(lambda spconv: networks.spconv_unet(spconv, bias=False), "xyz")),
    Case("spconv", "kernels of one cell", _spconv(_spconv_cells, "zyx")),
    Case("MinkowskiEngine", "U-Net", _minkowski("minkowski")),
    Case("MinkowskiEngine", "generator", _minkowski("minkowski-generator")),
)
