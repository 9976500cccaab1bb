"""Lists the names of MinkUNet's and SPVCNN's tensors in the state dicts of TorchSparse, spvnas and mmdetection3d."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from voxserve.export.networks.layers import (
    WeightReader,
    minkowski_weight,
    spconv_xyz_weight,
    torchsparse_weight,
)
from voxserve.export.networks.tensors import num_numbered

Pair = tuple[str, str]  # the names of a convolution and its batch norm


@dataclass(frozen=True)
class UnetKeys:
    """The names of one library. They contain fields: {index} is the number of a stage (encoder level) or an up (decoder
    level) from 0, {number} the same from 1, {block} the number of a residual block in its level.
    """

    network: str
    read_weight: WeightReader
    stem: tuple[Pair, Pair]
    down: Pair
    block: str  # a residual block of a stage; {block} begins at 1
    up: Pair
    fuse: str  # a residual block of an up; {block} begins at 0
    convs: Pair  # the two convolutions of a residual block
    norms: Pair  # the two batch norms of a residual block
    shortcut: Pair
    transforms: str  # the point transforms of SPVCNN
    classifier: str
    has_any_depth: bool = False  # whether levels may have any number of residual blocks; False: they have two

    def num_blocks(self, names: Iterable[str], level: int, *, is_up: bool = False) -> int:
        """Returns the number of residual blocks of a stage or an up in a state dict with these names, at least one.
        level: counts from 0.
        """
        if not self.has_any_depth:
            return 2
        part = self.fuse if is_up else self.block
        prefix = part.format(index=level, number=level + 1, block="")
        return max(num_numbered(names, prefix, 0 if is_up else 1), 1)


TORCHSPARSE = UnetKeys(
    network="SparseResUNet42 + classifier",
    read_weight=torchsparse_weight,
    stem=(("backbone.stem.0", "backbone.stem.1"), ("backbone.stem.3", "backbone.stem.4")),
    down=("backbone.encoders.{index}.0.0", "backbone.encoders.{index}.0.1"),
    block="backbone.encoders.{index}.{block}",
    up=("backbone.decoders.{index}.upsample.0", "backbone.decoders.{index}.upsample.1"),
    fuse="backbone.decoders.{index}.fuse.{block}",
    convs=("main.0", "main.3"),
    norms=("main.1", "main.4"),
    shortcut=("shortcut.0", "shortcut.1"),
    transforms="point_transforms",
    classifier="classifier",
)
SPVNAS = UnetKeys(
    network="spvnas' MinkUNet",
    read_weight=torchsparse_weight,
    stem=(("stem.0", "stem.1"), ("stem.3", "stem.4")),
    down=("stage{number}.0.net.0", "stage{number}.0.net.1"),
    block="stage{number}.{block}",
    up=("up{number}.0.net.0", "up{number}.0.net.1"),
    fuse="up{number}.1.{block}",
    convs=("net.0", "net.3"),
    norms=("net.1", "net.4"),
    shortcut=("downsample.0", "downsample.1"),
    transforms="point_transforms",
    classifier="classifier.0",
)
# mmdetection3d's MinkUNetBackbone and SPVCNNBackbone with the layers of TorchSparse (1.4 or 2.0).
MMDET3D_TORCHSPARSE = UnetKeys(
    network="mmdetection3d's MinkUNet",
    read_weight=torchsparse_weight,
    stem=(
        ("backbone.conv_input.0.net.0", "backbone.conv_input.0.net.1"),
        ("backbone.conv_input.1.net.0", "backbone.conv_input.1.net.1"),
    ),
    down=("backbone.encoder.{index}.0.net.0", "backbone.encoder.{index}.0.net.1"),
    block="backbone.encoder.{index}.{block}",
    up=("backbone.decoder.{index}.0.net.0", "backbone.decoder.{index}.0.net.1"),
    fuse="backbone.decoder.{index}.1.{block}",
    convs=("net.0", "net.3"),
    norms=("net.1", "net.4"),
    shortcut=("downsample.0", "downsample.1"),
    transforms="backbone.point_transforms",
    classifier="decode_head.conv_seg",
    has_any_depth=True,
)
# The same backbones of mmdetection3d with the layers of MinkowskiEngine.
MMDET3D_MINKOWSKI = replace(
    MMDET3D_TORCHSPARSE,
    network="mmdetection3d's MinkUNet on MinkowskiEngine",
    read_weight=minkowski_weight,
    stem=(
        ("backbone.conv_input.0.net.0", "backbone.conv_input.0.net.1.bn"),
        ("backbone.conv_input.1.net.0", "backbone.conv_input.1.net.1.bn"),
    ),
    down=("backbone.encoder.{index}.0.net.0", "backbone.encoder.{index}.0.net.1.bn"),
    up=("backbone.decoder.{index}.0.net.0", "backbone.decoder.{index}.0.net.1.bn"),
    convs=("conv1", "conv2"),
    norms=("norm1.bn", "norm2.bn"),
    shortcut=("downsample.net.0", "downsample.net.1.bn"),
)
# The same backbones of mmdetection3d with the layers of spconv, whose axes are x, y, z there.
MMDET3D_SPCONV = replace(
    MMDET3D_TORCHSPARSE,
    network="mmdetection3d's MinkUNet on spconv",
    read_weight=spconv_xyz_weight,
    stem=(
        ("backbone.conv_input.0.0", "backbone.conv_input.0.1"),
        ("backbone.conv_input.1.0", "backbone.conv_input.1.1"),
    ),
    down=("backbone.encoder.{index}.0.0", "backbone.encoder.{index}.0.1"),
    up=("backbone.decoder.{index}.0.0", "backbone.decoder.{index}.0.1"),
    convs=("conv1", "conv2"),
    norms=("bn1", "bn2"),
)


def keys_of(names: Iterable[str]) -> UnetKeys:
    """Returns the keys of the library that a state dict with these names comes from; unknown: TorchSparse's."""
    names = tuple(names)

    def is_there(*prefixes: str) -> bool:
        return any(name.startswith(prefixes) for name in names)

    if is_there("stem."):
        return SPVNAS
    if is_there("backbone.conv_input.0.net.1.bn.", "backbone.conv_input.1.net.1.bn."):
        return MMDET3D_MINKOWSKI
    if is_there("backbone.conv_input.0.net.", "backbone.conv_input.1.net."):
        return MMDET3D_TORCHSPARSE
    return MMDET3D_SPCONV if is_there("backbone.conv_input.") else TORCHSPARSE
