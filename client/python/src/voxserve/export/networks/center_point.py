"""CenterPoint on voxels, as OpenPCDet and det3d (its authors' own) train it.

T. Yin et al., "Center-based 3D Object Detection and Tracking", CVPR 2021. VoxelResBackBone8x, BaseBEVBackbone, and a
head of separate branches a task: heat map, centre, height, size, rotation and, of nuScenes, velocity. A state dict of
OpenPCDet's can have VoxelBackBone8x (centerpoint_without_resnet.yaml) instead, which its names say.

State dicts: OpenPCDet's CenterPoint ("backbone_3d.conv_input.0.weight" to "dense_head.heads_list.5.hm.1.bias") and
det3d's VoxelNet ("backbone.conv_input.0.weight" to "bbox_head.tasks.5.hm.3.bias"), of spconv 1 or 2.

Points that the vehicle itself reflects are the client's to leave out: of nuScenes' older sweeps both libraries drop
those within a metre of the sensor.

det3d's boxes have width before length, and a yaw of -yaw - pi/2. Both are linear in the channels of the branches' last
convolutions, whose rows are put in order and sign here: what is served are boxes as OpenPCDet and voxserve have them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from voxserve.export.model_folder import ClassEntry, Network, PointFeature
from voxserve.export.networks import spconv_backbone
from voxserve.export.networks.layers import Layers, spconv_weight
from voxserve.export.networks.spconv_backbone import SPARSE_EPSILON, Bev, Voxels
from voxserve.export.networks.tensors import RandomTensors, StateDict, Tensor, Tensors

_STRIDE = 8  # of the heat map, in voxels
_HEAD_EPSILON = 1e-5  # of the head's batch norms: torch's default
_HEATMAP_BIAS = -2.19  # of a random heat map: sigmoid(-2.19) = 0.1, as both libraries begin
# Of a random branch's last convolution: scores that differ, and sizes, exp(dim), of some metres.
_HEATMAP_GAIN = 0.3
_BRANCH_GAIN = 0.1

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
_XYZ = (PointFeature("x", "m"), PointFeature("y", "m"), PointFeature("z", "m"))
# Both libraries take nuScenes' intensity as it is stored, 0 to 255, and the age of a sweep in seconds.
_NUSCENES_FEATURES = (*_XYZ, PointFeature("intensity", "1", scale=255), PointFeature("age", "s", 0))
# Both take tanh of Waymo's intensity, which the client has to send: it is no scale.
_WAYMO_FEATURES = (*_XYZ, PointFeature("intensity", "1"), PointFeature("elongation", "1", 0))


@dataclass(frozen=True)
class Config:
    """What a CenterPoint is made of. The defaults are the published network's."""

    voxels: Voxels
    classes: tuple[ClassEntry, ...]
    tasks: tuple[tuple[int, ...], ...]  # ids of the classes of each
    has_velocity: bool
    center_min: tuple[float, float, float]  # metres: a box's centre lies within, bounds included
    center_max: tuple[float, float, float]
    nms_iou: float
    nms_boxes_in: int
    nms_boxes_out: int  # of each task
    max_boxes: int = 500  # of each task, before the suppression
    score_threshold: float = 0.1
    sparse_widths: tuple[int, ...] = (16, 32, 64, 128)
    sparse_out_width: int = 128
    bev: Bev = field(default_factory=Bev)
    head_width: int = 64


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
        voxels=Voxels((-75.2, -75.2, -2), (75.2, 75.2, 4), (0.1, 0.1, 0.15), 5, 150_000, _WAYMO_FEATURES),
        classes=WAYMO_CLASSES,
        tasks=((0, 1, 2),),
        has_velocity=False,
        center_min=(-75.2, -75.2, -2),
        center_max=(75.2, 75.2, 4),
        nms_iou=0.7,
        nms_boxes_in=4096,
        nms_boxes_out=500,
    ),
}
# Of det3d's configurations, when it tests.
_DET3D_MAX_VOXELS = {"nuscenes-0.075": 160_000, "nuscenes-0.1": 120_000, "waymo": 200_000}


def config_of(dataset: str, library: str = "openpcdet") -> Config:
    """The published configuration. det3d has other limits than OpenPCDet, and no limit before the suppression's own."""
    spconv_backbone.check_library(library)
    if dataset not in CONFIGS:
        raise ValueError(f"dataset is '{dataset}', not one of {', '.join(CONFIGS)}")
    config = CONFIGS[dataset]
    if library == "openpcdet":
        return config
    voxels = replace(config.voxels, max_voxels=_DET3D_MAX_VOXELS[dataset])
    config = replace(config, max_boxes=config.nms_boxes_in, voxels=voxels)
    if dataset == "waymo":
        config = replace(config, center_min=(-80, -80, -10), center_max=(80, 80, 10))
    return config


def build(
    state: Mapping[str, Tensor], config: Config, *, name: str, description: str = "", library: str = "openpcdet"
) -> Network:
    """The network of a state dict. Raises ExportError with every tensor that is missing, unknown or misshaped."""
    tensors = StateDict(state, "CenterPoint", lambda key: key.endswith(".num_batches_tracked") or key == "global_step")
    network = _build(tensors, config, name, description, library)
    tensors.raise_problems()
    return network


def random_network(
    config: Config, *, name: str, description: str = "", library: str = "openpcdet", seed: int = 0
) -> Network:
    """The network with random weights."""
    return _build(RandomTensors(seed), config, name, description, library)


def _build(tensors: Tensors, config: Config, name: str, description: str, library: str) -> Network:
    spconv_backbone.check_library(library)
    ids = sorted(i for task in config.tasks for i in task)
    if ids != sorted(entry.id for entry in config.classes) or not all(config.tasks):
        raise ValueError(f"the tasks {config.tasks} must have every class once")
    spconv_backbone.depth_after(config.voxels.grid()[2])
    network = Network(name, description)
    layers = Layers(network, tensors, spconv_weight, SPARSE_EPSILON)
    x = spconv_backbone.voxelize(network, layers, config.voxels)
    if library == "openpcdet" and spconv_backbone.is_plain(tensors):
        widths = (*config.sparse_widths[:3], config.sparse_widths[2])  # its last two stages are of one width
        x = spconv_backbone.plain_backbone(layers, x, widths, config.sparse_out_width)
    else:
        x = spconv_backbone.residual_backbone(layers, x, library, config.sparse_widths, config.sparse_out_width)
    x = spconv_backbone.to_bev(layers, x, config.voxels)
    x = spconv_backbone.bev_backbone(layers, x, library, config.bev)

    head = _Head(layers, config, library)
    x = head.shared(x)
    decoded = [head.task(task, classes, x) for task, classes in enumerate(config.tasks)]
    network.section("Suppression, task by task.")
    network.nms("boxes", decoded, config.nms_iou, config.nms_boxes_in, config.nms_boxes_out)
    network.output("BOXES", "boxes")
    return network


class _Head:
    """CenterHead with a SeparateHead a task."""

    def __init__(self, layers: Layers, config: Config, library: str) -> None:
        self._layers = layers
        self._config = config
        self._is_det3d = library == "det3d"
        self._prefix = "bbox_head" if self._is_det3d else "dense_head"
        # OpenPCDet's USE_BIAS_BEFORE_NORM; det3d always has one.
        tensors = layers.tensors
        self._has_bias = isinstance(tensors, RandomTensors) or f"{self._prefix}.shared_conv.0.bias" in tensors

    def shared(self, x: str) -> str:
        layers, key = self._layers, f"{self._prefix}.shared_conv"
        layers.network.section("Head: what the tasks share.")
        layers.conv2d("shared", f"{key}.0", x, 3, self._config.head_width, padding=1, bias=self._has_bias)
        return layers.norm_relu("shared", f"{key}.1", epsilon=_HEAD_EPSILON)

    def task(self, task: int, class_ids: Sequence[int], x: str) -> str:
        """The decoded boxes of one."""
        config = self._config
        self._layers.network.section(f"Task {task}: {', '.join(config.classes[i].name for i in class_ids)}.")
        # What it is here, in OpenPCDet's state dict and in det3d's, with its channels.
        branches = [
            ("heatmap", "hm", "hm", len(class_ids)),
            ("center", "center", "reg", 2),
            ("height", "center_z", "height", 1),
            ("dim", "dim", "dim", 3),
            ("rot", "rot", "rot", 2),
        ]
        if config.has_velocity:
            branches.append(("vel", "vel", "vel", 2))
        images = [
            self._branch(task, name, det3d if self._is_det3d else pcdet, x, channels)
            for name, pcdet, det3d, channels in branches
        ]
        return self._layers.network.center_head_decode(
            f"task{task}.boxes",
            images,
            convention="DET3D" if self._is_det3d else "OPENPCDET",
            class_ids=class_ids,
            stride=_STRIDE,
            score_threshold=config.score_threshold,
            max_boxes=config.max_boxes,
            center_min=config.center_min,
            center_max=config.center_max,
        )

    def _branch(self, task: int, name: str, part: str, x: str, channels: int) -> str:
        layers, width = self._layers, self._config.head_width
        if self._is_det3d:
            key = f"{self._prefix}.tasks.{task}.{part}"
            first, norm, last = f"{key}.0", f"{key}.1", f"{key}.3"
        else:
            key = f"{self._prefix}.heads_list.{task}.{part}"
            first, norm, last = f"{key}.0.0", f"{key}.0.1", f"{key}.1"
        node = f"task{task}.{name}"
        layers.conv2d(f"{node}.0", first, x, 3, width, padding=1, bias=self._has_bias)
        y = layers.norm_relu(f"{node}.0", norm, epsilon=_HEAD_EPSILON)
        fill, gain = (_HEATMAP_BIAS, _HEATMAP_GAIN) if name == "heatmap" else (None, _BRANCH_GAIN)
        layers.conv2d(node, last, y, 3, channels, padding=1, bias=True, gain=gain, fill_bias=fill)
        if self._is_det3d and name == "dim":
            _take_rows(layers.network, node, (1, 0, 2), 1)  # width, length, height -> length, width, height
        if self._is_det3d and name == "rot":
            # sin(-r - pi/2) = -cos(r), cos(-r - pi/2) = -sin(r)
            _take_rows(layers.network, node, (1, 0), -1)
        return node


def _take_rows(network: Network, node: str, rows: Sequence[int], sign: int) -> None:
    """A convolution whose output channels are those of another, in another order and sign."""
    for part in ("weight", "bias"):
        network.tensors[f"{node}.{part}"] = sign * network.tensors[f"{node}.{part}"][list(rows)]
