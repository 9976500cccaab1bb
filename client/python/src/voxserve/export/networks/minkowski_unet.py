"""Exports MinkowskiEngine's MinkUNet (examples/minkunet.py) with 3 axes, or with 4 axes, of which time is the last.

C. Choy et al., "4D Spatio-Temporal ConvNets: Minkowski Convolutional Neural Networks", CVPR 2019. A level's sites are
floor(coordinates / 2) of the finer level's. The library's kernels have the first axis fastest; kernel_order converts
them. With four axes, the first convolution and the strided ones have size 1 in time, and the other kernels are one of:

  cube         3x3x3 in space, one step in time: 27 cells
  hypercube    3x3x3x3: 81 cells
  hypercross   the centre and two neighbours on every axis: 9 cells
  cube_cross   the cube and two neighbours in time, the paper's hybrid: 29 cells; random weights only

State dicts: MinkUNet14 to MinkUNet101, "conv0p1s1.kernel" to "final.bias", any width and number of blocks, basic or
bottlenecks. The kernels are read from their volumes. A state dict cannot have cube_cross, whose order of cells is this
module's own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from voxserve.export import kernel_order
from voxserve.export.model_folder import Network, PointFeature
from voxserve.export.networks.layers import INPUT_GAIN, Convolve, Layers, ResidualKeys, minkowski_weight, usual_fan_in
from voxserve.export.networks.tensors import RandomTensors, StateDict, Tensor, Tensors, num_numbered

_EPSILON = 1e-5
_INIT_WIDTH = 32
_PLANES = {
    "": (32, 64, 128, 256, 256, 128, 96, 96),
    "A": (32, 64, 128, 256, 128, 128, 96, 96),
    "B": (32, 64, 128, 256, 128, 128, 128, 128),
    "C": (32, 64, 128, 256, 192, 192, 128, 128),
    "D": (32, 64, 128, 256, 384, 384, 384, 384),
}
_PLANES_34 = {
    "": _PLANES[""],
    "A": (32, 64, 128, 256, 256, 128, 64, 64),
    "B": (32, 64, 128, 256, 256, 128, 64, 32),
    "C": (32, 64, 128, 256, 256, 128, 96, 96),
}
# Variant -> the number of blocks of each level, and the levels' widths.
VARIANTS = {
    **{f"MinkUNet14{letter}": ((1,) * 8, planes) for letter, planes in _PLANES.items()},
    **{f"MinkUNet18{letter}": ((2,) * 8, planes) for letter, planes in _PLANES.items() if letter != "C"},
    **{f"MinkUNet34{letter}": ((2, 3, 4, 6, 2, 2, 2, 2), planes) for letter, planes in _PLANES_34.items()},
    "MinkUNet50": ((2, 3, 4, 6, 2, 2, 2, 2), _PLANES[""]),
    "MinkUNet101": ((2, 3, 4, 23, 2, 2, 2, 2), _PLANES[""]),
}
_BOTTLENECKS = ("MinkUNet50", "MinkUNet101")
_EXPANSION = 4  # of a bottleneck: its last convolution's channels divided by its width
KERNELS = ("cube", "hypercube", "hypercross", "cube_cross")
# The strided and inverse convolutions, by the level that they produce.
_DOWN = ("conv1p1s2", "conv2p2s2", "conv3p4s2", "conv4p8s2")
_UP = ("convtr4p16s2", "convtr5p8s2", "convtr6p4s2", "convtr7p2s2")
SPACE_FEATURES = (PointFeature("x", "m"), PointFeature("y", "m"), PointFeature("z", "m"))
LIDAR_FEATURES = (*SPACE_FEATURES, PointFeature("intensity", "1", range=(0, 1)))


def build(
    state: Mapping[str, Tensor],
    *,
    name: str,
    description: str = "",
    voxel_size: Sequence[float] = (0.05, 0.05, 0.05),
    features: Sequence[PointFeature] = LIDAR_FEATURES,
) -> Network:
    """Returns the network of a state dict, with as many axes as voxel_size.

    Raises ExportError with every tensor that is missing, unknown or misshaped.
    """
    tensors = StateDict(state, "MinkUNet")
    dimension = _dimension(voxel_size)
    layers = [max(num_numbered(state, f"block{block}."), 1) for block in range(1, 9)]
    planes = [tensors.size(f"block{block}.0.norm1.bn.weight", 0) for block in range(1, 9)]
    is_bottleneck = "block1.0.conv3.kernel" in tensors or "block1.0.norm3.bn.weight" in tensors
    # For an unknown volume, the most usual kernel is assumed, so that the error reports a wrong shape.
    kernels = {"cube": 27, "hypercube": 3**dimension, "hypercross": 2 * dimension + 1}
    volume = tensors.size("block1.0.conv2.kernel", 0)
    kernel = next((k for k, cells in kernels.items() if cells == volume), "cube")
    first = _box_of(tensors.size("conv0p1s1.kernel", 0), (5, 3), dimension)
    down = _box_of(tensors.size("conv1p1s2.kernel", 0), (2,), dimension)
    init_width = tensors.size("conv0p1s1.kernel", 2)
    network = Network(name, description, dimension)
    builder = _Builder(network, tensors, kernel, first, down, is_bottleneck)
    builder.build(voxel_size, features, init_width, layers, planes, tensors.size("final.kernel", 1))
    tensors.raise_problems()
    return network


def random_network(
    *,
    name: str,
    variant: str = "MinkUNet14A",
    kernel: str = "cube",
    num_classes: int = 19,
    seed: int = 0,
    description: str = "",
    voxel_size: Sequence[float] = (0.05, 0.05, 0.05),
    features: Sequence[PointFeature] = LIDAR_FEATURES,
    width: float = 1.0,
) -> Network:
    """Returns the network with random weights, with as many axes as voxel_size. width multiplies the channels."""
    dimension = _dimension(voxel_size)
    if variant not in VARIANTS:
        raise ValueError(f"variant is '{variant}', not one of {', '.join(VARIANTS)}")
    if kernel not in KERNELS:
        raise ValueError(f"kernel is '{kernel}', not one of {', '.join(KERNELS)}")
    if kernel == "cube_cross" and dimension != 4:
        raise ValueError("kernel cube_cross needs 4 axes; voxel_size has 3")
    layers, planes = VARIANTS[variant]
    widths = [int(width * plane) for plane in (_INIT_WIDTH, *planes)]
    if min(widths) < 1 or num_classes < 1:
        raise ValueError(f"width {width} and {num_classes} classes leave a layer without channels")
    network = Network(name, description, dimension)
    first, down = ((5, 5, 5, 1), (2, 2, 2, 1)) if dimension == 4 else ((5, 5, 5), (2, 2, 2))
    builder = _Builder(network, RandomTensors(seed), kernel, first, down, variant in _BOTTLENECKS)
    builder.build(voxel_size, features, widths[0], layers, widths[1:], num_classes)
    return network


def _dimension(voxel_size: Sequence[float]) -> int:
    if len(voxel_size) not in (3, 4):
        raise ValueError(f"voxel_size has {len(voxel_size)} values; this network has 3 or 4 axes")
    return len(voxel_size)


def _box_of(volume: int, sizes: Sequence[int], dimension: int) -> tuple[int, ...]:
    """Returns the kernel size with `volume` cells that has one of `sizes` on every axis, or on every axis but time with
    1 there. If there is none, it is that of the first size.
    """
    boxes = [(size,) * 3 + (last,) * (dimension - 3) for size in sizes for last in (1, size)]
    return next((box for box in boxes if math.prod(box) == volume), boxes[0])


class _Builder:
    def __init__(
        self,
        network: Network,
        tensors: Tensors,
        kernel: str,
        first: tuple[int, ...],
        down: tuple[int, ...],
        is_bottleneck: bool = False,
    ) -> None:
        self._network = network
        self._tensors = tensors
        self._layers = Layers(network, tensors, minkowski_weight, _EPSILON)
        self._kernel = kernel
        self._first = first
        self._down = down
        self._is_bottleneck = is_bottleneck

    def build(
        self,
        voxel_size: Sequence[float],
        features: Sequence[PointFeature],
        init_width: int,
        num_blocks: Sequence[int],
        planes: Sequence[int],
        num_classes: int,
    ) -> None:
        network, layers = self._network, self._layers
        network.section("Points to voxels, as MinkowskiEngine quantizes them: floor, and the mean of a voxel's points.")
        network.voxelize("voxels", voxel_size, features, rounding="FLOOR", origin="ZERO", reduce="MEAN")
        x = layers.points("voxels", len(features))
        network.section("First convolution.")
        x = layers.submanifold("conv0", "conv0p1s1", x, self._first, init_width, gain=INPUT_GAIN)
        x = layers.norm_relu(x, "bn0.bn")
        skips = [x]
        for level, key in enumerate(_DOWN, start=1):
            network.section(f"Level {level}: stride {2**level}.")
            name = f"level{level}.down"
            layers.strided(name, key, x, self._down, self._down, layers.channels[x])
            x = layers.norm_relu(name, f"bn{level}.bn")
            x = self._blocks(f"level{level}", level, x, num_blocks[level - 1], planes[level - 1])
            skips.append(x)
        for up, key in enumerate(_UP, start=1):
            level = 4 - up
            network.section(f"Up {up}: back to stride {2**level}, joined by the skip connection.")
            name = f"up{up}.up"
            layers.inverse(name, key, x, planes[3 + up], f"level{level + 1}.down")
            x = layers.norm_relu(name, f"bntr{3 + up}.bn")
            x = layers.concat(f"up{up}.concat", [x, skips[level]])
            x = self._blocks(f"up{up}", 4 + up, x, num_blocks[3 + up], planes[3 + up])
        network.section("Head.")
        c_in = layers.channels[x]
        weight = self._tensors.take("final.kernel", (c_in, num_classes), fan_in=c_in)
        bias = self._tensors.take("final.bias", (1, num_classes))
        network.linear("final", x, np.ascontiguousarray(weight.T), bias.reshape(-1))
        network.argmax("argmax", "final")
        network.voxel_to_point("labels", "argmax", "voxels")
        network.voxel_to_point("scores", "final", "voxels")
        network.output("LABELS", "labels")
        network.output("SCORES", "scores")

    def _blocks(self, name: str, number: int, x: str, count: int, out: int) -> str:
        convolve: Convolve = partial(self._conv, out=out)
        convolves = [convolve] * 2
        if self._is_bottleneck:
            narrow, wide = (partial(self._layers.pointwise, out=width) for width in (out, _EXPANSION * out))
            convolves = [narrow, convolve, wide]
        numbers = range(1, len(convolves) + 1)
        for block in range(count):
            key = f"block{number}.{block}"
            keys = ResidualKeys(
                convs=tuple(f"{key}.conv{n}" for n in numbers),
                norms=tuple(f"{key}.norm{n}.bn" for n in numbers),
                shortcut=(f"{key}.downsample.0", f"{key}.downsample.1.bn"),
            )
            x = self._layers.residual_block(f"{name}.{block}", keys, x, convolves)
        return x

    def _conv(self, name: str, key: str, x: str, out: int) -> str:
        layers, dimension = self._layers, self._network.dimension
        if self._kernel in ("cube", "hypercube"):
            size = (3,) * 3 + (3 if self._kernel == "hypercube" else 1,) * (dimension - 3)
            return layers.submanifold(name, key, x, size, out)
        offsets = [(*cell, 0) for cell in itertools.product((-1, 0, 1), repeat=3)] + [(0, 0, 0, -1), (0, 0, 0, 1)]
        volume = len(offsets) if self._kernel == "cube_cross" else 2 * dimension + 1
        shape = (volume, layers.channels[x], out)
        weight = self._tensors.take(f"{key}.kernel", shape, fan_in=usual_fan_in(volume, layers.channels[x]))
        layers.channels[name] = out
        if self._kernel == "cube_cross":
            return self._network.submanifold_offsets(name, x, weight, offsets)
        cross = (3,) * dimension
        weight = kernel_order.from_minkowski_cross(weight, cross)
        return self._network.submanifold(name, x, weight, cross, is_cross=True)
