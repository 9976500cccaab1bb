"""Small networks of each library for the tests of tracing, and example inputs. Needs torch and a library."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import voxserve
from voxserve.export import Exported, from_torch
from voxserve.verify.compare import Comparison, Model

CHANNELS = 4
CLASSES = 5
TOLERANCE = 1e-5  # relative to the largest magnitude: torch uses float32, NumPy float64


def sites(seed: int, size: tuple[int, ...] = (9, 8, 10), samples: int = 2) -> Any:
    """Returns coordinates int32 [N, 4], sample first, in random order. Each sample fills about a third of a box."""
    rng = np.random.default_rng(seed)
    cells = np.stack(np.meshgrid(*map(np.arange, (samples, *size)), indexing="ij"), -1).reshape(-1, 1 + len(size))
    chosen = cells[rng.random(len(cells)) < 0.3]
    return torch.from_numpy(rng.permutation(chosen).astype(np.int32))


def randomize(module: Any, seed: int = 0) -> Any:
    """Sets random weights and random statistics of every norm, in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    for part in module.modules():
        for name, values in part.named_parameters(recurse=False):
            scale = 1.0 if values.ndim < 2 else (values.shape[0] * 3) ** -0.5
            values.data = torch.randn(values.shape, generator=generator) * scale
            if name == "weight" and values.ndim == 1:
                values.data += 1
        if hasattr(part, "running_mean"):
            part.running_mean.copy_(torch.randn(part.running_mean.shape, generator=generator))
            part.running_var.copy_(torch.rand(part.running_var.shape, generator=generator) + 0.5)
    return module.eval()


def features(coordinates: Any, channels: int = CHANNELS) -> Any:
    return torch.randn((len(coordinates), channels), generator=torch.Generator().manual_seed(3))


def spconv_example(spconv: Any, shape: tuple[int, ...] = (10, 9, 11)) -> Any:
    coordinates = sites(1)
    return spconv.SparseConvTensor(features(coordinates), coordinates, list(shape), 2)


def spconv_unet(spconv: Any, bias: bool = True) -> Any:
    """Makes a U-Net of residual blocks, strided, inverse and one-cell convolutions, and torch code on features."""

    class Block(spconv.SparseModule):
        def __init__(self, a: int, b: int, key: str) -> None:
            super().__init__()
            self.conv1 = spconv.SubMConv3d(a, b, (3, 1, 3), bias=bias, indice_key=key + "a")
            self.bn1 = nn.BatchNorm1d(b, eps=1e-3)
            self.conv2 = spconv.SubMConv3d(b, b, 3, dilation=2, bias=False, indice_key=key + "b")
            self.bn2 = nn.BatchNorm1d(b)
            self.relu = nn.ReLU(inplace=True)
            self.short = spconv.SubMConv3d(a, b, 1, bias=True)

        def forward(self, x: Any) -> Any:
            y = self.conv1(x)
            y = y.replace_feature(self.relu(self.bn1(y.features)))
            y = self.conv2(y)
            y = y.replace_feature(self.bn2(y.features))
            return y.replace_feature(self.relu(y.features + self.short(x).features))

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = Block(CHANNELS, 6, "stem")
            self.down = spconv.SparseSequential(
                spconv.SparseConv3d(6, 8, (3, 2, 3), stride=(2, 2, 1), padding=(1, 0, 1), bias=bias, indice_key="down"),
                nn.BatchNorm1d(8),
                nn.LeakyReLU(0.2),
            )
            self.deep = Block(8, 8, "deep")
            self.up = spconv.SparseInverseConv3d(8, 6, (3, 2, 3), indice_key="down", bias=bias)
            self.head = nn.Sequential(nn.Linear(12, 7), nn.Dropout(), nn.GELU(), nn.Linear(7, CLASSES))
            self.scale = nn.Parameter(torch.ones(12))

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            y = self.up(self.deep(self.down(x)))
            joined = torch.cat([x.features, y.features], dim=1)
            return self.head(joined * self.scale - 0.25)

    return randomize(UNet())


def spconv_detector(spconv: Any) -> Any:
    """Makes a network with a transposed convolution, and a dense image seen from above."""

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide = spconv.SparseConvTranspose3d(CHANNELS, 5, 3, stride=2, padding=1, bias=False)
            self.down = spconv.SparseConv3d(5, 6, 3, stride=2, padding=1, bias=False)
            self.pool = spconv.SparseMaxPool3d(2, 2)
            self.blocks = nn.Sequential(
                nn.ZeroPad2d(1), nn.Conv2d(30, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
            )
            self.most = nn.MaxPool2d((3, 2), stride=1, padding=1)
            self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)

        def forward(self, x: Any) -> Any:
            y = self.down(self.wide(x))
            y = self.pool(y.replace_feature(torch.relu(y.features)))  # below 0, spconv's maxima differ
            dense = y.dense()
            batch, channels, depth, rows, columns = dense.shape
            image = self.blocks(dense.view(batch, channels * depth, rows, columns))
            return {"image": image, "up": self.up(self.most(image))}

    return randomize(Detector())


def torchsparse_example(torchsparse: Any) -> Any:
    coordinates = sites(2)
    return torchsparse.SparseTensor(features(coordinates), coordinates)


def torchsparse_unet(torchsparse: Any, spnn: Any) -> Any:
    def layer(a: int, b: int, kernel: int, stride: int = 1, transposed: bool = False) -> Any:
        conv = spnn.Conv3d(a, b, kernel, stride=stride, transposed=transposed, bias=stride > 1)
        return nn.Sequential(conv, spnn.BatchNorm(b), spnn.ReLU(True))

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = layer(CHANNELS, 6, 3)
            self.down = layer(6, 8, 2, 2)
            self.deep = nn.Sequential(layer(8, 8, 3), spnn.GroupNorm(4, 8), spnn.Conv3d(8, 6, 1))
            self.up = layer(6, 5, 2, 2, transposed=True)
            self.head = nn.Linear(11, CLASSES)

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            y = self.up(self.deep(self.down(x)))
            return self.head(torchsparse.cat([y, x]).F)

    return randomize(UNet())


def minkowski_example(engine: Any) -> Any:
    coordinates = sites(4)
    coordinates[:, 1:] -= 4  # MinkowskiEngine allows negative coordinates
    return engine.SparseTensor(features(coordinates), coordinates=coordinates)


def minkowski_unet(engine: Any, block: Any) -> Any:
    """Makes a U-Net with every kind of layer of MinkowskiEngine's networks. Its output is on the input's voxels."""
    three = {"dimension": 3}

    class UNet(engine.MinkowskiNetwork):
        def __init__(self) -> None:
            super().__init__(3)
            cross = engine.KernelGenerator((3, 3, 5), region_type=engine.RegionType.HYPER_CROSS, dimension=3)
            self.stem = engine.MinkowskiConvolution(CHANNELS, 6, kernel_size=5, bias=True, **three)
            self.cross = engine.MinkowskiConvolution(6, 6, kernel_generator=cross, **three)
            self.norm = engine.MinkowskiBatchNorm(6)
            self.depth = engine.MinkowskiChannelwiseConvolution(6, kernel_size=3, bias=True, **three)
            self.down = engine.MinkowskiConvolution(6, 8, kernel_size=3, stride=2, **three)
            self.instance = engine.MinkowskiInstanceNorm(8)
            self.block = block(8, 8, dilation=2, dimension=3)
            self.pool = engine.MinkowskiMaxPooling(kernel_size=2, stride=2, **three)
            self.deep = engine.MinkowskiConvolution(8, 8, kernel_size=(3, 1, 2), **three)
            self.squeeze, self.gate = engine.MinkowskiGlobalAvgPooling(), engine.MinkowskiBroadcastMultiplication()
            self.sigmoid, self.line = engine.MinkowskiSigmoid(), engine.MinkowskiLinear(8, 8)
            self.unpool = engine.MinkowskiPoolingTranspose(kernel_size=2, stride=2, **three)
            self.up = engine.MinkowskiConvolutionTranspose(16, 6, kernel_size=3, stride=2, **three)
            self.other = engine.MinkowskiConvolutionTranspose(8, 6, kernel_size=2, stride=2, **three)
            self.final = engine.MinkowskiConvolution(12, CLASSES, kernel_size=1, bias=True, **three)
            self.relu = engine.MinkowskiReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            x = self.depth(self.relu(self.norm(self.cross(self.stem(x)))))
            y = self.block(self.instance(self.down(x)))
            z = self.deep(self.pool(y))
            z = self.unpool(self.gate(z, self.sigmoid(self.line(self.squeeze(z)))))
            w = self.up(engine.cat(y, z)) + x
            return self.final(engine.cat(w, self.other(y)))

    return randomize(UNet())


def minkowski_generator(engine: Any) -> Any:
    """Makes a network that generates sites, prunes them, and unites them with others."""

    class Generator(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = engine.MinkowskiConvolution(CHANNELS, 6, kernel_size=2, stride=2, dimension=3)
            self.grow = engine.MinkowskiGenerativeConvolutionTranspose(6, 6, kernel_size=3, stride=2, dimension=3)
            self.score = engine.MinkowskiConvolution(6, 1, kernel_size=1, dimension=3)
            self.prune, self.union = engine.MinkowskiPruning(), engine.MinkowskiUnion()
            self.skip = engine.MinkowskiConvolution(CHANNELS, 6, kernel_size=3, dimension=3)

        def forward(self, x: Any) -> Any:
            y = self.grow(self.down(x))
            kept = self.prune(y, (self.score(y).F > 0.1).squeeze())
            return self.union(kept, self.skip(x)) + kept

    return randomize(Generator())


def load(name: str) -> Any:
    return importlib.import_module(name)


def made(kind: str) -> tuple[Any, Any, dict[str, Any]]:
    """Returns a module of this kind, its example input, and the options of from_torch."""
    if kind.startswith("spconv"):
        spconv = load("spconv.pytorch")
        if kind == "spconv-detector":
            return spconv_detector(spconv), spconv_example(spconv), {"axes": "zyx"}
        return spconv_unet(spconv), spconv_example(spconv), {"axes": kind.partition("-")[2]}
    if kind == "torchsparse":
        library = load("torchsparse")
        return torchsparse_unet(library, load("torchsparse.nn")), torchsparse_example(library), {}
    engine = load("MinkowskiEngine")
    if kind == "minkowski-generator":
        return minkowski_generator(engine), minkowski_example(engine), {}
    block = load("MinkowskiEngine.modules.resnet_block").BasicBlock
    return minkowski_unet(engine, block), minkowski_example(engine), {}


def round_trip(folder: Path, module: Any, example: Any, **options: Any) -> tuple[Exported, Comparison]:
    """Exports a module, and checks that its outputs and every recorded inner result equal the module's own."""
    exported = from_torch(module, example, **options)
    exported.write(folder / "model")
    reference = voxserve.record(module, example, folder / "reference.npz")
    comparison = Comparison(Model.read(folder / "model"), reference)
    for name, deviation in (*comparison.outputs().items(), *comparison.modules()):
        assert deviation.is_within(TOLERANCE), f"{name}: {deviation}"
    return exported, comparison
