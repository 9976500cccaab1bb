"""Exports DSVT on pillars (H. Wang et al., "DSVT: Dynamic Sparse Voxel Transformer with Rotated Sets", CVPR 2023).

Pillars get features (DynamicVoxelVFE), attend to each other within groups of windows, and become an image, from which a
2-D network (BaseBEVResBackbone) and CenterPoint's head make boxes. The scores are rectified by a predicted IoU, and
boxes of each class suppressed on their own.

Blocks have two layers. Block b has the windows of shift b mod 2: small ones, and twice as large ones that are shifted.
Layer 0 orders a window's pillars by y, then x; layer 1 by x, then y. A layer's position embedding is that of the
published code, and of the weights trained with it: layer i reads the places in the windows of shift i, whatever windows
the block has (DSVT#50).

State dict: OpenPCDet's names, "vfe.", "backbone_3d.", "backbone_2d." and "dense_head.". Haiyang-W/DSVT has the same
network and other names of parts; its own suppression turns each box by a quarter turn first, and its threshold for
vehicles is 0.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from voxserve.export.image_nodes import ClassNms
from voxserve.export.model_folder import Network
from voxserve.export.networks import pillars
from voxserve.export.networks.center_head import CenterHead, HeadConfig
from voxserve.export.networks.center_point import WAYMO_CLASSES, WAYMO_FEATURES
from voxserve.export.networks.layers import Layers, spconv_weight
from voxserve.export.networks.spconv_backbone import SPARSE_EPSILON, Voxels
from voxserve.export.networks.tensors import RandomTensors, StateDict, Tensor, Tensors
from voxserve.export.networks.window_attention import Keys, WindowAttention

_POSITION_EPSILON = 1e-5  # of the batch norm in a position's embedding
_AXES = ("YXZ", "XYZ")  # of a block's layers


@dataclass(frozen=True)
class Windows:
    """Windows of pillars, on x and y."""

    shape: tuple[int, int]
    shift: tuple[int, int]


@dataclass(frozen=True)
class BevStage:
    """A stage of BaseBEVResBackbone."""

    num_blocks: int  # behind the first one
    stride: int
    width: int
    up_stride: int
    up_width: int


@dataclass(frozen=True)
class Config(HeadConfig):
    """A DSVT. The defaults are those of OpenPCDet's dsvt_pillar.yaml."""

    width: int = 192
    num_heads: int = 8
    hidden: int = 384
    num_blocks: int = 4
    group_size: int = 36
    windows: tuple[Windows, Windows] = (Windows((12, 12), (0, 0)), Windows((24, 24), (6, 6)))
    stages: tuple[BevStage, ...] = (
        BevStage(1, 1, 128, 1, 128),
        BevStage(2, 2, 128, 2, 128),
        BevStage(2, 2, 256, 4, 128),
    )
    head_width: int = 64


WAYMO = Config(
    voxels=Voxels((-74.88, -74.88, -2), (74.88, 74.88, 4), (0.32, 0.32, 6), 0, 0, WAYMO_FEATURES),
    classes=WAYMO_CLASSES,
    tasks=((0, 1, 2),),
    has_velocity=False,
    center_min=(-80, -80, -10),
    center_max=(80, 80, 10),
    nms_iou=0,
    nms_boxes_in=0,
    nms_boxes_out=0,
    epsilon=1e-3,
    iou_powers=(0.68, 0.71, 0.65),
    nms_classes=(ClassNms(0, 0.75, 4096, 500), ClassNms(1, 0.6, 4096, 500), ClassNms(2, 0.55, 4096, 500)),
)


def build(state: Mapping[str, Tensor], config: Config, *, name: str, description: str = "") -> Network:
    """Returns the network of a state dict. Raises ExportError with all missing, unknown or misshaped tensors."""
    tensors = StateDict(state, "DSVT", _is_of_training)
    network = _build(tensors, config, name, description)
    tensors.raise_problems()
    return network


def random_network(config: Config, *, name: str, description: str = "", seed: int = 0) -> Network:
    return _build(RandomTensors(seed), config, name, description)


def _is_of_training(name: str) -> bool:
    return name == "global_step" or name.endswith(".num_batches_tracked")


def _build(tensors: Tensors, config: Config, name: str, description: str) -> Network:
    config.check()
    network = Network(name, description)
    layers = Layers(network, tensors, spconv_weight, SPARSE_EPSILON)
    x = pillars.rows(network, layers, config.voxels, (config.width, config.width), crops_height=True)
    x = transformer(layers, config, x)
    network.to_bev("from_above", x)
    x = _bev_backbone(layers, config, layers.points("from_above", config.width))
    head = CenterHead(
        layers,
        config,
        lambda node, key, source, out, bias, gain, fill: layers.conv2d(
            node, key, source, 3, out, padding=1, bias=bias, gain=gain, fill_bias=fill
        ),
        stride=1,
        width=config.head_width,
        bias_key="dense_head.shared_conv.0",
    )
    network.section("Head: what the branches share.")
    layers.conv2d("shared", "dense_head.shared_conv.0", x, 3, config.head_width, padding=1, bias=head.has_bias)
    head.boxes(layers.norm_relu("shared", "dense_head.shared_conv.1", epsilon=config.epsilon))
    return network


def transformer(layers: Layers, config: Config, x: str) -> str:
    """Adds the blocks on the pillars x. Returns the last one's node."""
    network = layers.network
    network.section("Groups of windows, and the pillars' places in them, from the centre.")
    groups, places = [], []
    for shift, windows in enumerate(config.windows):
        shape, moved = (*windows.shape, 1), (*windows.shift, 0)
        groups.append(
            [
                network.window_groups(
                    f"windows{shift}.{axes[0].lower()}", x, shape, config.group_size, shift=moved, axes=axes
                )
                for axes in _AXES
            ]
        )
        centre = (-windows.shape[0] / 2, -windows.shape[1] / 2, 0)
        place = network.site_coordinates(
            f"windows{shift}.place", x, shift=centre, window_shape=shape, window_shift=moved
        )
        places.append(layers.points(place, 3))
    attention = WindowAttention(layers, config.num_heads, config.hidden)
    for block in range(config.num_blocks):
        network.section(f"Block {block}.")
        entered = x
        for i in range(2):
            layer = f"block{block}.{i}"
            key = f"backbone_3d.stage_0.{block}.encoder_list.{i}"
            position = _position(layers, f"{layer}.position", block, i, places[i], config.width)
            of = f"{key}.win_attn"
            keys = Keys(f"{of}.self_attn", f"{of}.norm1", f"{of}.linear1", f"{of}.linear2", f"{of}.norm2")
            y = attention.block(layer, keys, x, position, groups[block % 2][i])
            x = attention.norm(f"{layer}.norm", f"{key}.norm", layers.add(f"{layer}.residual", [y, x]))
        x = layers.add(f"block{block}.residual", [x, entered])
        x = attention.norm(f"block{block}.norm", f"backbone_3d.residual_norm_stage_0.{block}", x)
    return x


def _position(layers: Layers, name: str, block: int, i: int, place: str, width: int) -> str:
    """Adds the embedding of the pillars' places in windows."""
    key = f"backbone_3d.input_layer.posembed_layers.0.{block}.{i}.position_embedding_head"
    of_xy = layers.tensors.take(f"{key}.0.weight", (width, 2), fan_in=2, gain=0.1)
    bias = layers.tensors.take(f"{key}.0.bias", (width,))
    weight = np.zeros((width, 3), np.float32)  # a place has z too, which is always 0
    weight[:, :2] = of_xy
    layers.points(layers.network.linear(name, place, weight, bias), width)
    x = layers.norm_relu(name, f"{key}.1", epsilon=_POSITION_EPSILON)
    return layers.linear(f"{name}.out", f"{key}.3", x, width)


def _bev_backbone(layers: Layers, config: Config, x: str) -> str:
    """Adds BaseBEVResBackbone on the image x. Returns the concatenation of the stages' results."""
    ups = []
    for stage, of in enumerate(config.stages):
        layers.network.section(f"2-D stage {stage}.")
        for block in range(of.num_blocks + 1):
            key, name = f"backbone_2d.blocks.{stage}.{block}", f"bev{stage}.{block}"
            x = _residual_block(layers, name, key, x, of.width, of.stride if block == 0 else 1, is_first=block == 0)
        name, key = f"bev{stage}.up", f"backbone_2d.deblocks.{stage}"
        layers.conv_transpose2d(name, f"{key}.0", x, of.up_stride, of.up_width, stride=of.up_stride)
        ups.append(layers.norm_relu(name, f"{key}.1"))
    return layers.concat("bev", ups)


def _residual_block(layers: Layers, name: str, key: str, x: str, width: int, stride: int, *, is_first: bool) -> str:
    """Adds a BasicBlock. The first of a stage has a convolution of one cell as its shortcut, whatever its widths."""
    shortcut = x
    y = layers.conv2d(f"{name}.conv1", f"{key}.conv1", x, 3, width, stride=stride, padding=1)
    y = layers.norm_relu(y, f"{key}.bn1")
    y = layers.conv2d(f"{name}.conv2", f"{key}.conv2", y, 3, width, padding=1)
    y = layers.norm(f"{name}.conv2.norm", f"{key}.bn2", y, gain=0.5)
    if is_first:
        shortcut = layers.conv2d(f"{name}.shortcut", f"{key}.downsample_layer.0", x, 1, width, stride=stride)
        shortcut = layers.norm(f"{name}.shortcut.norm", f"{key}.downsample_layer.1", shortcut)
    return layers.relu(f"{name}.relu", layers.add(f"{name}.add", [y, shortcut]))
