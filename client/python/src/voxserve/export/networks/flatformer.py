"""Exports FlatFormer (Z. Liu et al., "FlatFormer: Flattened Window Attention for Efficient Point Cloud Transformer",
CVPR 2023), of mit-han-lab/flatformer.

Pillars get features (DynamicVFE), attend to each other within groups, and become an image, from which SECOND's 2-D
network, with sums around its layers, and CenterPoint's head make boxes. A group has as many pillars as the others: the
pillars of a cloud are ordered window by window, and the order is cut. A block has four layers: windows in rows along x,
the same shifted, windows in rows along y, the same shifted.

- A cloud of fewer pillars than a group has one group of them. (The published code reads other rows there.)
- A pillar's position is embedded by sines and cosines of its coordinates. Coordinates are whole numbers, so the
  embedding is a table for each axis. A server refuses bfloat16, which has not every whole number above 256.
- A cell's score is sigmoid(heatmap) * min(max(iou, 0), 1)^2 before cells are chosen, so its logit is computed here.
- Boxes of mmdetection3d below 1.0: width before length, and -yaw - pi / 2.

State dict: "voxel_encoder.", "middle_encoder.", "backbone.", "neck." and "bbox_head.".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from voxserve.export.image_nodes import ClassNms
from voxserve.export.model_folder import ClassEntry, Network
from voxserve.export.networks import pillars
from voxserve.export.networks.center_head import HeadConfig, take_rows
from voxserve.export.networks.center_point import WAYMO_FEATURES
from voxserve.export.networks.layers import Layers, spconv_weight
from voxserve.export.networks.spconv_backbone import SPARSE_EPSILON, Bev, Voxels
from voxserve.export.networks.tensors import RandomTensors, StateDict, Tensor, Tensors
from voxserve.export.networks.window_attention import Keys, WindowAttention

_BRANCH_EPSILON = 1e-5  # of the batch norms in the branches of the head; the published class has torch's default
_ORDERS = (("XYZ", False), ("XYZ", True), ("YXZ", False), ("YXZ", True))  # of a block's layers: axes, is shifted
_HEATMAP_BIAS, _HEATMAP_GAIN, _BRANCH_GAIN = -2.19, 0.3, 0.1  # of random weights
_LEAST_REST = 2e-5  # 1 - score where the score is 1, so that float16 holds the odds
_ODDS = (1e-7, 6e4)  # limits of score / (1 - score): a logit that is not finite would count as a broken box
CLASSES = (
    ClassEntry(0, "car", (255, 158, 0)),
    ClassEntry(1, "pedestrian", (0, 0, 230)),
    ClassEntry(2, "cyclist", (220, 20, 60)),
)


@dataclass(frozen=True)
class Config(HeadConfig):
    """A FlatFormer. The defaults are those of flatformer_waymo_D1_2x_3class.py."""

    pillar_width: int = 64  # of a point; the features of a pillar are `width`
    width: int = 128
    num_heads: int = 8
    num_blocks: int = 2
    group_size: int = 144
    window: tuple[int, int] = (13, 13)
    temperature: float = 10000
    bev: Bev = field(default_factory=lambda: Bev((3, 3), (1, 2), (64, 128), (1, 2), (128, 128)))
    head_width: int = 64
    iou_power: float = 2


WAYMO = Config(
    voxels=Voxels((-74.88, -74.88, -2), (74.88, 74.88, 4), (0.32, 0.32, 6), 0, 0, WAYMO_FEATURES),
    classes=CLASSES,
    tasks=((0, 1, 2),),
    has_velocity=True,
    center_min=(-74.88, -74.88, -10),
    center_max=(74.88, 74.88, 10),
    nms_iou=0,
    nms_boxes_in=0,
    nms_boxes_out=0,
    max_boxes=4096,
    epsilon=1e-3,
    nms_classes=(ClassNms(0, 0.8, 2048, 300), ClassNms(1, 0.55, 1024, 100), ClassNms(2, 0.55, 1024, 100)),
)


def build(state: Mapping[str, Tensor], config: Config, *, name: str, description: str = "") -> Network:
    """Returns the network of a state dict. Raises ExportError with all missing, unknown or misshaped tensors."""
    tensors = StateDict(state, "FlatFormer")
    network = _build(tensors, config, name, description)
    tensors.raise_problems()
    return network


def random_network(config: Config, *, name: str, description: str = "", seed: int = 0) -> Network:
    return _build(RandomTensors(seed), config, name, description)


def _build(tensors: Tensors, config: Config, name: str, description: str) -> Network:
    config.check()
    network = Network(name, description)
    layers = Layers(network, tensors, spconv_weight, SPARSE_EPSILON)
    widths = (2 * config.pillar_width, config.width)
    x = pillars.rows(network, layers, config.voxels, widths, crops_height=True, key="voxel_encoder.vfe_layers")
    x = transformer(layers, config, x)
    network.to_bev("from_above", x)
    x = _bev_backbone(layers, config, layers.points("from_above", config.width))
    _boxes(layers, config, x)
    return network


def transformer(layers: Layers, config: Config, x: str) -> str:
    """Adds the blocks on the pillars x. Returns the last one's node."""
    network = layers.network
    network.section("The pillars' positions, and groups of windows.")
    position = _positions(layers, config, x)
    groups = []
    for axes, is_shifted in _ORDERS:
        shift = (config.window[0] // 2, config.window[1] // 2, 0) if is_shifted else ()
        groups.append(
            network.window_groups(
                f"windows.{axes[0].lower()}{'.shifted' if is_shifted else ''}",
                x,
                (*config.window, 1),
                config.group_size,
                shift=shift,
                axes=axes,
                snake=True,
                tail="BORROWS",
            )
        )
    attention = WindowAttention(layers, config.num_heads, 2 * config.width)
    for block in range(config.num_blocks):
        network.section(f"Block {block}.")
        for i, of_layer in enumerate(groups):
            key = f"middle_encoder.block_list.{block}.block.{i}"
            keys = Keys(f"{key}.attn.attn", f"{key}.norm1", f"{key}.fc1", f"{key}.fc2", f"{key}.norm2")
            x = attention.block(f"block{block}.{i}", keys, x, position, of_layer)
    return x


def _positions(layers: Layers, config: Config, x: str) -> str:
    """Adds the embedding of the pillars' coordinates: half of the channels for x, half for y."""
    network = layers.network
    place = network.site_coordinates("place", x)
    grid = config.voxels.grid()
    length = config.width // 4 * 2
    frequency = np.float32(config.temperature) ** (2 * (np.arange(length, dtype=np.float32) // 2) / length)
    parts = []
    for axis, part in enumerate("xy"):
        angles = np.arange(grid[axis], dtype=np.float32)[:, None] / frequency.astype(np.float32)
        table = np.zeros((grid[axis], config.width), np.float32)
        begin = axis * length
        table[:, begin : begin + length : 2] = np.sin(angles[:, ::2])
        table[:, begin + 1 : begin + length : 2] = np.cos(angles[:, 1::2])
        parts.append(layers.points(network.embedding(f"place.{part}", place, table, axis), config.width))
    return layers.add("position", parts)


def _bev_backbone(layers: Layers, config: Config, x: str) -> str:
    """Adds SECOND, whose layers add their input where the shapes agree, and SECONDFPN."""
    bev = config.bev
    bev.check()
    ups = []
    for block, count in enumerate(bev.num_layers):
        layers.network.section(f"2-D block {block}.")
        for layer in range(count + 1):
            name, key = f"bev{block}.{layer}", f"backbone.blocks.{block}.{layer}"
            stride, width = bev.strides[block] if layer == 0 else 1, bev.widths[block]
            layers.conv2d(name, f"{key}.0", x, 3, width, stride=stride, padding=1)
            y = layers.norm_relu(name, f"{key}.1")
            is_sum = stride == 1 and layers.channels[x] == width
            x = layers.add(f"{name}.sum", [y, x]) if is_sum else y
        name, key, up = f"bev{block}.up", f"neck.deblocks.{block}", round(bev.up_strides[block])
        layers.conv_transpose2d(name, f"{key}.0", x, up, bev.up_widths[block], stride=up)
        ups.append(layers.norm_relu(name, f"{key}.1"))
    return layers.concat("bev", ups)


def _boxes(layers: Layers, config: Config, x: str) -> None:
    network = layers.network
    network.section("Head: what the branches share.")
    layers.conv2d("shared", "bbox_head.shared_conv.conv", x, 3, config.head_width, padding=1)
    x = layers.norm_relu("shared", "bbox_head.shared_conv.bn", epsilon=config.epsilon)
    network.section("Branches.")
    heat = _branch(layers, config, "heatmap", x, len(config.classes))
    branches = [
        _branch(layers, config, name, x, channels)
        for name, channels in (("reg", 2), ("height", 1), ("dim", 3), ("rot", 2), ("vel", 2))
    ]
    take_rows(network, branches[2], (1, 0, 2), 1)  # width, length, height -> length, width, height
    take_rows(network, branches[3], (0, 1), -1)  # sin(-r - pi/2) = -cos(r), cos(-r - pi/2) = -sin(r)
    iou = _branch(layers, config, "iou", x, 1)
    network.section("The logits of the scores: log(p / (1 - p)), p = sigmoid(heat map) * IoU^2.")
    logits = _rectified(layers, config, heat, iou)
    decoded = network.center_head_decode(
        "decoded",
        [logits, *branches],
        convention="OPENPCDET",
        class_ids=config.tasks[0],
        stride=1,
        score_threshold=config.score_threshold,
        max_boxes=config.max_boxes,
        center_min=config.center_min,
        center_max=config.center_max,
    )
    network.class_nms("boxes", [decoded], config.nms_classes)
    network.output("BOXES", "boxes")


def _branch(layers: Layers, config: Config, name: str, x: str, channels: int) -> str:
    key = f"bbox_head.task_heads.0.{name}"
    layers.conv2d(f"{name}.0", f"{key}.0.conv", x, 3, config.head_width, padding=1)
    y = layers.norm_relu(f"{name}.0", f"{key}.0.bn", epsilon=_BRANCH_EPSILON)
    fill, gain = (_HEATMAP_BIAS, _HEATMAP_GAIN) if name == "heatmap" else (None, _BRANCH_GAIN)
    if name == "iou":
        fill = 0.7
    return layers.conv2d(name, f"{key}.1", y, 3, channels, padding=1, bias=True, gain=gain, fill_bias=fill)


def _rectified(layers: Layers, config: Config, heat: str, iou: str) -> str:
    network = layers.network
    limited = network.activation("iou.limited", iou, "CLAMP", minimum=0.0, maximum=1.0)
    power = network.activation("iou.power", limited, "POWER", exponent=config.iou_power)
    score = network.activation("score.heat", heat, "SIGMOID")
    score = network.elementwise("score", score, power, "MULTIPLY")
    count = len(config.classes)
    minus = -np.eye(count, dtype=np.float32)[:, :, None, None]
    rest = network.conv2d("score.rest", score, minus, np.ones(count, np.float32))
    rest = network.activation("score.rest.limited", rest, "CLAMP", minimum=_LEAST_REST, maximum=1.0)
    odds = network.elementwise("score.odds", score, rest, "DIVIDE")
    odds = network.activation("score.odds.limited", odds, "CLAMP", minimum=_ODDS[0], maximum=_ODDS[1])
    return network.activation("score.logit", odds, "LOG")
