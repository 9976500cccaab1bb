"""Exports CenterPoint on voxels, as OpenPCDet and det3d (the authors' own library) train it, and on pillars, as
OpenPCDet does.

T. Yin et al., "Center-based 3D Object Detection and Tracking", CVPR 2021. VoxelResBackBone8x or pillars (pillars.py),
BaseBEVBackbone, and a head with separate branches per task: heat map, centre, height, size, rotation and (for nuScenes)
velocity. A state dict of OpenPCDet may have VoxelBackBone8x (centerpoint_without_resnet.yaml) instead of residual
blocks, which its names show.

State dicts: OpenPCDet's CenterPoint ("backbone_3d.conv_input.0.weight", with pillars "vfe.pfn_layers.0.linear.weight",
to "dense_head.heads_list.5.hm.1.bias") and det3d's VoxelNet ("backbone.conv_input.0.weight" to
"bbox_head.tasks.5.hm.3.bias"), of spconv 1 or 2.

The client must leave out points on the vehicle itself. In nuScenes' older sweeps, both libraries drop the points within
a metre of the sensor.

mmdetection3d's CenterPoint has the same layers, as its configurations describe (detector_configs); its branch of the
rotation has the sine before the cosine (centerpoint_head.py, predict_by_feat).

det3d's boxes have width before length, and -yaw - pi/2 instead of the yaw. So this module reorders and negates output
channels of the branches' last convolutions. The server then returns boxes as OpenPCDet has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from voxserve.export.model_folder import ClassEntry, Network, PointFeature
from voxserve.export.networks import mmdetection3d_names, pillars, spconv_backbone
from voxserve.export.networks.center_head import HEAD_EPSILON, CenterHead, HeadConfig
from voxserve.export.networks.layers import Layers, spconv_weight
from voxserve.export.networks.spconv_backbone import SPARSE_EPSILON, Bev, Voxels
from voxserve.export.networks.tensors import RandomTensors, Tensor, Tensors

NUSCENES_CLASSES = (
    ClassEntry(0, "car", (255, 158, 0)),
    ClassEntry(1, "truck", (255, 99, 71)),
    ClassEntry(2, "construction_vehicle", (233, 150, 70)),
    ClassEntry(3, "bus", (255, 127, 80)),
    ClassEntry(4, "trailer", (255, 140, 0)),
    ClassEntry(5, "barrier", (112, 128, 144)),
    ClassEntry(6, "motorcycle", (255, 61, 99)),
    ClassEntry(7, "bicycle", (220, 20, 60)),
    ClassEntry(8, "pedestrian", (0, 0, 230)),
    ClassEntry(9, "traffic_cone", (47, 79, 79)),
)
WAYMO_CLASSES = (
    ClassEntry(0, "Vehicle", (255, 158, 0)),
    ClassEntry(1, "Pedestrian", (0, 0, 230)),
    ClassEntry(2, "Cyclist", (220, 20, 60)),
)
PANDASET_CLASSES = (  # those that occur in sequence 002 and in more than one object; colours as deploy/models/minkunet
    ClassEntry(0, "car", (40, 90, 255)),
    ClassEntry(1, "truck", (0, 200, 255)),
    ClassEntry(2, "construction-vehicle", (255, 140, 0)),
    ClassEntry(3, "pedestrian", (255, 255, 0)),
    ClassEntry(4, "traffic-cone", (255, 0, 120)),
)
_XYZ = (PointFeature("x", "m"), PointFeature("y", "m"), PointFeature("z", "m"))
# Both libraries use nuScenes' intensity as it is stored, 0 to 255, and the age of a sweep in seconds.
_NUSCENES_FEATURES = (*_XYZ, PointFeature("intensity", "1", scale=255, range=(0, 1)), PointFeature("age", "s", 0))
# Both libraries use tanh of Waymo's intensity, so 0 to 1. The client must send that value, since no scale expresses it.
WAYMO_FEATURES = (*_XYZ, PointFeature("intensity", "1", range=(0, 1)), PointFeature("elongation", "1", 0))
_PANDASET_FEATURES = (*_XYZ, PointFeature("intensity", "1", range=(0, 1)))


@dataclass(frozen=True)
class Config(HeadConfig):
    """The parameters of a CenterPoint. The defaults are the published network's on voxels."""

    sparse_widths: tuple[int, ...] = (16, 32, 64, 128)
    sparse_out_width: int = 128
    pillar_widths: tuple[int, ...] = ()  # the layers' widths of a network on pillars; empty: it has a sparse backbone
    bev: Bev = field(default_factory=Bev)
    head_width: int = 64
    head_kernel: int = 3  # the size of the branches' kernels
    is_plain: bool | None = None  # the sparse backbone has no residual blocks; None: the tensors' names show it
    is_legacy_pillar: bool = False  # mmdetection3d's legacy (pillars.py)
    stride: int = 8  # the size of a heat map's cell in voxels or pillars


_NUSCENES_0075 = Config(
    voxels=Voxels((-54, -54, -5), (54, 54, 3), (0.075, 0.075, 0.2), 10, 160_000, _NUSCENES_FEATURES),
    classes=NUSCENES_CLASSES,
    tasks=((0,), (1, 2), (3, 4), (5,), (6, 7), (8, 9)),
    has_velocity=True,
    center_min=(-61.2, -61.2, -10),
    center_max=(61.2, 61.2, 10),
    nms_iou=0.2,
    nms_boxes_in=1000,
    nms_boxes_out=83,
)
CONFIGS = {
    "nuscenes-0.075": _NUSCENES_0075,
    "nuscenes-0.1": replace(
        _NUSCENES_0075,
        voxels=Voxels((-51.2, -51.2, -5), (51.2, 51.2, 3), (0.1, 0.1, 0.2), 10, 60_000, _NUSCENES_FEATURES),
    ),
    "waymo": Config(
        voxels=Voxels((-75.2, -75.2, -2), (75.2, 75.2, 4), (0.1, 0.1, 0.15), 5, 150_000, WAYMO_FEATURES),
        classes=WAYMO_CLASSES,
        tasks=((0, 1, 2),),
        has_velocity=False,
        center_min=(-75.2, -75.2, -2),
        center_max=(75.2, 75.2, 4),
        nms_iou=0.7,
        nms_boxes_in=4096,
        nms_boxes_out=500,
    ),
    # The network of deploy/models/centerpoint, which deploy/train trains: narrower, and one task for all classes.
    "pandaset": Config(
        voxels=Voxels((-75.2, -75.2, -5), (75.2, 75.2, 3), (0.1, 0.1, 0.2), 0, 150_000, _PANDASET_FEATURES),
        classes=PANDASET_CLASSES,
        tasks=((0, 1, 2, 3, 4),),
        has_velocity=False,
        center_min=(-75.2, -75.2, -10),
        center_max=(75.2, 75.2, 10),
        nms_iou=0.2,
        nms_boxes_in=500,
        nms_boxes_out=200,
        score_threshold=0.2,
        sparse_widths=(16, 32, 48, 64),
        sparse_out_width=64,
        bev=Bev((3, 3), (1, 2), (64, 96), (1, 2), (64, 64)),
    ),
}
# OpenPCDet's configurations with pillars: cbgs_dyn_pp_centerpoint.yaml (DynamicPillarVFE) and
# centerpoint_pillar_1x.yaml.
PILLAR_CONFIGS = {
    "nuscenes": replace(
        _NUSCENES_0075,
        voxels=Voxels((-51.2, -51.2, -5), (51.2, 51.2, 3), (0.2, 0.2, 8), 0, 0, _NUSCENES_FEATURES),
        pillar_widths=(64, 64),
        bev=Bev((3, 5, 5), (2, 2, 2), (64, 128, 256), (0.5, 1, 2), (128, 128, 128)),
        stride=4,
    ),
    "waymo": replace(
        CONFIGS["waymo"],
        voxels=Voxels((-74.88, -74.88, -2), (74.88, 74.88, 4), (0.32, 0.32, 6), 20, 150_000, WAYMO_FEATURES),
        center_min=(-80, -80, -10),
        center_max=(80, 80, 10),
        pillar_widths=(64, 64),
        bev=Bev((3, 5, 5), (1, 2, 2), (64, 128, 256), (1, 2, 4), (128, 128, 128)),
        stride=1,
    ),
}
# The limits of det3d's configurations for testing.
_DET3D_MAX_VOXELS = {"nuscenes-0.075": 160_000, "nuscenes-0.1": 120_000, "waymo": 200_000}


def config_of(dataset: str, library: str = "openpcdet") -> Config:
    """Returns the published configuration for a data set. det3d has other limits for boxes than OpenPCDet, and
    limits decoded boxes only by the number that NMS reads. ValueError if the library has no such configuration.
    """
    if library not in spconv_backbone.LIBRARIES:
        raise ValueError(f"library is '{library}', not one of {', '.join(spconv_backbone.LIBRARIES)}")
    if dataset not in CONFIGS:
        raise ValueError(f"dataset is '{dataset}', not one of {', '.join(CONFIGS)}")
    config = CONFIGS[dataset]
    if library == "openpcdet":
        return config
    if dataset not in _DET3D_MAX_VOXELS:
        raise ValueError(f"det3d has no configuration '{dataset}', only {', '.join(_DET3D_MAX_VOXELS)}")
    voxels = replace(config.voxels, max_voxels=_DET3D_MAX_VOXELS[dataset])
    config = replace(config, max_boxes=config.nms_boxes_in, voxels=voxels)
    if dataset == "waymo":
        config = replace(config, center_min=(-80, -80, -10), center_max=(80, 80, 10))
    return config


def build(
    state: Mapping[str, Tensor], config: Config, *, name: str, description: str = "", library: str = "openpcdet"
) -> Network:
    """Returns the network of a state dict. Raises ExportError with all missing, unknown or misshaped tensors."""
    tensors = mmdetection3d_names.state_dict(state, "CenterPoint", library, is_residual=not config.is_plain)
    network = _build(tensors, config, name, description, library)
    tensors.raise_problems()
    return network


def random_network(
    config: Config, *, name: str, description: str = "", library: str = "openpcdet", seed: int = 0
) -> Network:
    """Returns the network with random weights."""
    return _build(RandomTensors(seed), config, name, description, library)


def _build(tensors: Tensors, config: Config, name: str, description: str, library: str) -> Network:
    spconv_backbone.check_library(library)
    config.check()
    is_det3d = library == "det3d"
    pad = config.head_kernel // 2
    network = Network(name, description)
    layers = Layers(network, tensors, spconv_weight, SPARSE_EPSILON)
    if config.pillar_widths:
        if is_det3d:
            raise ValueError("pillars are OpenPCDet's: det3d's state dicts have others")
        x = pillars.image(network, layers, config.voxels, config.pillar_widths, is_legacy=config.is_legacy_pillar)
    else:
        spconv_backbone.depth_after(config.voxels.grid()[2])
        x = spconv_backbone.voxelize(network, layers, config.voxels)
        if not is_det3d and (spconv_backbone.is_plain(tensors) if config.is_plain is None else config.is_plain):
            widths = config.sparse_widths
            if config.is_plain is None:
                widths = (*widths[:3], widths[2])  # its last two stages have the same width
            x = spconv_backbone.plain_backbone(layers, x, widths, config.sparse_out_width)
        else:
            x = spconv_backbone.residual_backbone(layers, x, library, config.sparse_widths, config.sparse_out_width)
        x = spconv_backbone.to_bev(layers, x, config.voxels)
    x = spconv_backbone.bev_backbone(layers, x, library, config.bev)

    def convolve(node: str, key: str, source: str, out: int, bias: bool, gain: float, fill: float | None) -> str:
        return layers.conv2d(
            node, key, source, config.head_kernel, out, padding=pad, bias=bias, gain=gain, fill_bias=fill
        )

    shared = "bbox_head.shared_conv" if is_det3d else "dense_head.shared_conv"
    head = CenterHead(
        layers,
        config,
        convolve,
        stride=config.stride,
        width=config.head_width,
        bias_key=f"{shared}.0",
        library=library,
    )
    network.section("Head: what the tasks share.")
    layers.conv2d("shared", f"{shared}.0", x, 3, config.head_width, padding=1, bias=head.has_bias)
    head.boxes(layers.norm_relu("shared", f"{shared}.1", epsilon=HEAD_EPSILON))
    return network
