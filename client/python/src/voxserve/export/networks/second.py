"""Exports SECOND and PointPillars as OpenPCDet trains them on KITTI (tools/cfgs/kitti_models/second.yaml and
pointpillar.yaml).

Y. Yan et al., "SECOND: Sparsely Embedded Convolutional Detection", Sensors 2018. VoxelBackBone8x, BaseBEVBackbone and
AnchorHeadSingle: two anchors per class at every cell. NMS ignores the classes of the boxes. PointPillars (A. H. Lang et
al., CVPR 2019) has pillars (pillars.py) instead of the sparse backbone.

State dicts: OpenPCDet's SECONDNet ("backbone_3d.conv_input.0.weight" to "dense_head.conv_dir_cls.bias"), of spconv 1 or
2, and its PointPillar, which begins with "vfe.pfn_layers.0.linear.weight".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from voxserve.export.model_folder import Anchor, ClassEntry, Network, PointFeature
from voxserve.export.networks import mmdetection3d_names, pillars, spconv_backbone
from voxserve.export.networks.layers import Layers, spconv_weight
from voxserve.export.networks.spconv_backbone import SPARSE_EPSILON, Bev, Voxels
from voxserve.export.networks.tensors import RandomTensors, Tensor, Tensors

_SCORE_BIAS = -math.log((1 - 0.01) / 0.01)  # the bias of random scores, which is OpenPCDet's initial value
# The gains of random weights: scores must differ, and a box's deviation from its anchor must be small.
_SCORE_GAIN = 0.3
_BOX_GAIN = 0.03
_NEVER = -100.0  # a logit below every other, which float16 holds

KITTI_CLASSES = (
    ClassEntry(0, "Car", (255, 158, 0)),
    ClassEntry(1, "Pedestrian", (0, 0, 230)),
    ClassEntry(2, "Cyclist", (220, 20, 60)),
)
_KITTI_FEATURES = (
    PointFeature("x", "m"),
    PointFeature("y", "m"),
    PointFeature("z", "m"),
    PointFeature("intensity", "1", range=(0, 1)),  # KITTI's reflectance as its files have it
)
KITTI_VOXELS = Voxels((0, -40, -3), (70.4, 40, 1), (0.05, 0.05, 0.1), 5, 40_000, _KITTI_FEATURES)


@dataclass(frozen=True)
class Config:
    """The parameters of a SECOND or a PointPillars. The defaults are the published SECOND's on KITTI."""

    voxels: Voxels = KITTI_VOXELS
    classes: tuple[ClassEntry, ...] = KITTI_CLASSES
    anchors: tuple[Anchor, ...] = (
        Anchor(0, (3.9, 1.6, 1.56), -1.78),
        Anchor(1, (0.8, 0.6, 1.73), -0.6),
        Anchor(2, (1.76, 0.6, 1.73), -0.6),
    )
    num_direction_bins: int = 2
    direction_offset: float = 0.78539
    direction_limit_offset: float = 0.0
    score_threshold: float = 0.1
    nms_iou: float = 0.01
    nms_boxes_in: int = 4096
    nms_boxes_out: int = 500
    sparse_widths: tuple[int, ...] = (16, 32, 64, 64)
    sparse_out_width: int = 128
    is_nms_per_class: bool = False  # mmdetection3d's: a box of each class whose score is above the threshold
    is_legacy_pillar: bool = False  # mmdetection3d's legacy (pillars.py)
    pillar_widths: tuple[int, ...] = ()  # the layers' widths of a network on pillars; empty: it has a sparse backbone
    bev: Bev = field(default_factory=Bev)


POINT_PILLARS = Config(
    voxels=Voxels((0, -39.68, -3), (69.12, 39.68, 1), (0.16, 0.16, 4), 32, 40_000, _KITTI_FEATURES),
    pillar_widths=(64,),
    bev=Bev((3, 5, 5), (2, 2, 2), (64, 128, 256), (1, 2, 4), (128, 128, 128)),
)


def build(
    state: Mapping[str, Tensor], config: Config, *, name: str, description: str = "", library: str = "openpcdet"
) -> Network:
    """Returns the network of a state dict. Raises ExportError with all missing, unknown or misshaped tensors."""
    network_name = "PointPillars" if config.pillar_widths else "SECOND"
    tensors = mmdetection3d_names.state_dict(state, network_name, library, is_residual=False)
    network = _build(tensors, config, name, description)
    tensors.raise_problems()
    return network


def random_network(
    config: Config, *, name: str, description: str = "", library: str = "openpcdet", seed: int = 0
) -> Network:
    """Returns the network with random weights."""
    return _build(RandomTensors(seed), config, name, description)


def _build(tensors: Tensors, config: Config, name: str, description: str) -> Network:
    if sorted(a.class_id for a in config.anchors) != sorted(entry.id for entry in config.classes):
        raise ValueError("there must be one anchor a class")
    network = Network(name, description)
    layers = Layers(network, tensors, spconv_weight, SPARSE_EPSILON)
    if config.pillar_widths:
        x = pillars.image(network, layers, config.voxels, config.pillar_widths, is_legacy=config.is_legacy_pillar)
    else:
        spconv_backbone.depth_after(config.voxels.grid()[2])
        x = spconv_backbone.voxelize(network, layers, config.voxels)
        x = spconv_backbone.plain_backbone(layers, x, config.sparse_widths, config.sparse_out_width)
        x = spconv_backbone.to_bev(layers, x, config.voxels)
    x = spconv_backbone.bev_backbone(layers, x, "openpcdet", config.bev)

    network.section("Head: scores, residuals and directions of every anchor.")
    anchors = sum(len(a.rotations) for a in config.anchors)
    key = "dense_head"
    scores = anchors * len(config.anchors)
    classes = [entry.id for entry in config.classes] if config.is_nms_per_class else []
    if not classes:
        layers.conv2d("scores", f"{key}.conv_cls", x, 1, scores, bias=True, gain=_SCORE_GAIN, fill_bias=_SCORE_BIAS)
    layers.conv2d("residuals", f"{key}.conv_box", x, 1, anchors * 7, bias=True, gain=_BOX_GAIN, fill_bias=0)
    layers.conv2d("directions", f"{key}.conv_dir_cls", x, 1, anchors * config.num_direction_bins, bias=True)

    def decode(node: str, scores: str) -> str:
        return network.anchor_head_decode(
            node,
            [scores, "residuals", "directions"],
            config.anchors,
            num_direction_bins=config.num_direction_bins,
            direction_offset=config.direction_offset,
            direction_limit_offset=config.direction_limit_offset,
            score_threshold=config.score_threshold,
            max_boxes=config.nms_boxes_in,
        )

    decoded = [decode(f"decoded.{i}", _scores_of(layers, x, i, anchors, len(config.anchors))) for i in classes]
    decoded = decoded or [decode("decoded", "scores")]
    network.nms("boxes", decoded, config.nms_iou, config.nms_boxes_in, config.nms_boxes_out)
    network.output("BOXES", "boxes")
    return network


def _scores_of(layers: Layers, x: str, class_id: int, anchors: int, num_classes: int) -> str:
    """Adds scores for one class: the scores of all other classes become so low that no anchor has another class."""
    node, key, channels = f"scores.{class_id}", "dense_head.conv_cls", anchors * num_classes
    layers.conv2d(node, key, x, 1, channels, bias=True, gain=_SCORE_GAIN, fill_bias=_SCORE_BIAS)
    for part, value in (("weight", 0.0), ("bias", _NEVER)):
        tensor = layers.network.tensors[f"{node}.{part}"].copy()
        tensor[np.arange(channels) % num_classes != class_id] = value
        layers.network.tensors[f"{node}.{part}"] = tensor
    return node
