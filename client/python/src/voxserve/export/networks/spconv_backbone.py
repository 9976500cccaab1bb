"""Adds the backbones of OpenPCDet and det3d: sparse convolutions of spconv to an eighth of the grid's resolution, then
a 2-D network.

VoxelResBackBone8x (det3d: SpMiddleResNetFHD) has residual blocks, VoxelBackBone8x (SECOND's) does not. Both libraries
have the axes z, y, x, and sites by spconv's rule (RULE_PADDED). Here the axes are x, y, z, and weights are permuted.
The libraries' grid has one more cell on z than the range, which the voxelize node's spatial_shape includes. The view
from above has the channels c * depth + z, rows of y and columns of x, as in the libraries.

BaseBEVBackbone (det3d: RPN) has blocks of 3x3 convolutions, whose results are scaled to one size and concatenated.

mmdetection3d's networks have the same layers. Their builders ask for OpenPCDet's names, which mmdetection3d_names.py
translates. Its residual blocks have no bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from voxserve.export.model_folder import Network, PointFeature
from voxserve.export.networks.layers import INPUT_GAIN, Layers, ResidualKeys
from voxserve.export.networks.tensors import Tensors

SPARSE_EPSILON = 1e-3  # the epsilon of every batch norm except the heads'
LIBRARIES = ("openpcdet", "det3d")
MMDETECTION3D = "mmdetection3d"  # its networks are known by their configurations alone
_CUBE = (3, 3, 3)


@dataclass(frozen=True)
class Voxels:
    """The voxelization of points. Ranges and sizes are in metres, for x, y and z."""

    range_min: tuple[float, float, float]
    range_max: tuple[float, float, float]
    size: tuple[float, float, float]
    max_points_per_voxel: int
    max_voxels: int  # the limit of voxels in a request
    features: tuple[PointFeature, ...]

    def grid(self) -> tuple[int, int, int]:
        """Returns the number of the range's cells on x, y and z, rounded as in OpenPCDet."""
        cells = [
            round((high - low) / size)
            for low, high, size in zip(self.range_min, self.range_max, self.size, strict=True)
        ]
        return cells[0], cells[1], cells[2]


@dataclass(frozen=True)
class Bev:
    """BaseBEVBackbone's parameters."""

    num_layers: tuple[int, ...] = (5, 5)
    strides: tuple[int, ...] = (1, 2)
    widths: tuple[int, ...] = (128, 256)
    up_strides: tuple[float, ...] = (1, 2)  # of transposed convolutions; below 1: of a convolution, 1 / its stride
    up_widths: tuple[int, ...] = (256, 256)
    has_conv_for_no_stride: bool = False  # an up stride of 1 is a convolution, not a transposed one

    def check(self) -> None:
        counts = {len(v) for v in (self.num_layers, self.strides, self.widths, self.up_strides, self.up_widths)}
        if len(counts) != 1:
            raise ValueError(f"the lists of {self} must be of one length")


def check_library(library: str) -> None:
    if library not in (*LIBRARIES, MMDETECTION3D):
        raise ValueError(f"library is '{library}', not one of {', '.join(LIBRARIES)}")


def voxelize(network: Network, layers: Layers, voxels: Voxels) -> str:
    """Adds the voxelize node. Features are the mean of a voxel's first max_points_per_voxel points (MeanVFE), and the
    grid has one more cell on z than the range.
    """
    grid = voxels.grid()
    if min(grid) < 1:
        raise ValueError(f"the range has {' x '.join(map(str, grid))} voxels; it must have 1 or more on every axis")
    network.section("Points to voxels: the mean of each one's first points. spconv's shape has a cell more on z.")
    network.voxelize(
        "voxels",
        voxels.size,
        voxels.features,
        rounding="FLOOR",
        origin="RANGE",
        reduce="MEAN",
        range_min=voxels.range_min,
        range_max=voxels.range_max,
        max_points_per_voxel=voxels.max_points_per_voxel,
        spatial_shape=(grid[0], grid[1], grid[2] + 1),
    )
    return layers.points("voxels", len(voxels.features))


def residual_backbone(
    layers: Layers, x: str, library: str, widths: Sequence[int], out: int, *, has_bias: bool | None = None
) -> str:
    """Adds VoxelResBackBone8x. widths: the channels of its four stages (published: 16, 32, 64, 128); out: those of
    conv_out (128). has_bias: the blocks' convolutions have one (OpenPCDet's USE_BIAS); None: as the library's default.
    """
    has_bias = library != MMDETECTION3D if has_bias is None else has_bias
    prefix = "backbone" if library == "det3d" else "backbone_3d"
    x = conv_input(layers, f"{prefix}.conv_input", x, widths[0])
    for stage, width in enumerate(widths, start=1):
        key, name = f"{prefix}.conv{stage}", f"conv{stage}"
        first = 0
        if stage > 1:
            layers.network.section(f"Stage {stage}: stride {2 ** (stage - 1)}.")
            # A stage of det3d is one list: convolution, norm, ReLU, blocks. OpenPCDet's first entry holds those three.
            down, norm, first = (".0", ".1", 3) if library == "det3d" else (".0.0", ".0.1", 1)
            x = _down(layers, f"{name}.down", f"{key}{down}", f"{key}{norm}", x, width, stage)
        for block in range(2):
            block_key = f"{key}.{first + block}"
            x = residual_block(layers, f"{name}.{block}", block_key, x, width, bias=has_bias)
    conv_out = "extra_conv" if library == "det3d" else "conv_out"
    return _conv_out(layers, f"{prefix}.{conv_out}", x, out)


def is_plain(tensors: Tensors) -> bool:
    """Returns whether a state dict of OpenPCDet has VoxelBackBone8x, whose first stage is only a convolution and its
    norm.
    """
    return "backbone_3d.conv1.0.0.weight" in tensors or "backbone_3d.conv1.0.1.weight" in tensors


def plain_backbone(layers: Layers, x: str, widths: Sequence[int], out: int) -> str:
    """Adds VoxelBackBone8x. widths: the channels of its four stages (published: 16, 32, 64, 64); out: those of conv_out
    (128).
    """
    x = conv_input(layers, "backbone_3d.conv_input", x, widths[0])
    for stage, width in enumerate(widths, start=1):
        key, name = f"backbone_3d.conv{stage}", f"conv{stage}"
        if stage > 1:
            layers.network.section(f"Stage {stage}: stride {2 ** (stage - 1)}.")
            x = _down(layers, f"{name}.down", f"{key}.0.0", f"{key}.0.1", x, width, stage)
        for block in range(1 if stage == 1 else 2):
            entry = block + (stage > 1)
            x = layers.submanifold(f"{name}.{block}", f"{key}.{entry}.0", x, _CUBE, width)
            x = layers.norm_relu(x, f"{key}.{entry}.1")
    return _conv_out(layers, "backbone_3d.conv_out", x, out)


def depth_after(grid_z: int) -> int:
    """Returns the number of cells on z of conv_out's sites, for a range of grid_z cells: 2 for 40."""
    cells = grid_z + 1
    for padding in (1, 1, 0, 0):
        cells = (cells + 2 * padding - 3) // 2 + 1
    if cells < 1:
        raise ValueError(f"{grid_z} voxels on z are too few for five stages")
    return cells


def to_bev(layers: Layers, x: str, voxels: Voxels) -> str:
    layers.network.to_bev("from_above", x)
    layers.channels["from_above"] = layers.channels[x] * depth_after(voxels.grid()[2])
    return "from_above"


def bev_backbone(layers: Layers, x: str, library: str, bev: Bev) -> str:
    """Adds BaseBEVBackbone on the image x. Returns the concatenation of the blocks' results."""
    bev.check()
    prefix = "neck" if library == "det3d" else "backbone_2d"
    ups = []
    for block, count in enumerate(bev.num_layers):
        layers.network.section(f"2-D block {block}.")
        key, width = f"{prefix}.blocks.{block}", bev.widths[block]
        for layer in range(count + 1):
            # The first layer has a padding module of its own; entries are the padding, then three per layer.
            entry, stride = 3 * layer + 1, bev.strides[block] if layer == 0 else 1
            name = f"bev{block}.{layer}"
            layers.conv2d(name, f"{key}.{entry}", x, 3, width, stride=stride, padding=1)
            x = layers.norm_relu(name, f"{key}.{entry + 1}")
        key, up, width = f"{prefix}.deblocks.{block}", bev.up_strides[block], bev.up_widths[block]
        name = f"bev{block}.up"
        if up < 1:
            step = round(1 / up)
            layers.conv2d(name, f"{key}.0", x, step, width, stride=step)
        elif up == 1 and (library == "det3d" or bev.has_conv_for_no_stride):
            layers.conv2d(name, f"{key}.0", x, 1, width)
        else:
            layers.conv_transpose2d(name, f"{key}.0", x, round(up), width, stride=round(up))
        ups.append(layers.norm_relu(name, f"{key}.1"))
    return layers.concat("bev", ups) if len(ups) > 1 else ups[0]


def conv_input(layers: Layers, key: str, x: str, width: int) -> str:
    layers.network.section("Stage 1: stride 1.")
    x = layers.submanifold("conv_input", f"{key}.0", x, _CUBE, width, gain=INPUT_GAIN)
    return layers.norm_relu(x, f"{key}.1")


def _down(layers: Layers, name: str, key: str, norm: str, x: str, width: int, stage: int) -> str:
    padding = (1, 1, 0) if stage == 4 else (1, 1, 1)
    x = layers.strided(name, key, x, _CUBE, (2, 2, 2), width, rule="PADDED", padding=padding)
    return layers.norm_relu(x, norm)


def _conv_out(layers: Layers, key: str, x: str, width: int) -> str:
    layers.network.section("Half the height, and seen from above.")
    x = layers.strided("conv_out", f"{key}.0", x, (1, 1, 3), (1, 1, 2), width, rule="PADDED", padding=(0, 0, 0))
    return layers.norm_relu(x, f"{key}.1")


def residual_block(layers: Layers, name: str, key: str, x: str, width: int, *, bias: bool = True) -> str:
    """Adds a SparseBasicBlock. OpenPCDet's and det3d's convolutions have a bias, although a batch norm follows."""
    keys = ResidualKeys(convs=(f"{key}.conv1", f"{key}.conv2"), norms=(f"{key}.bn1", f"{key}.bn2"))
    convolve = partial(layers.submanifold, kernel=_CUBE, out=width, bias=bias)
    return layers.residual_block(name, keys, x, [convolve] * 2)
