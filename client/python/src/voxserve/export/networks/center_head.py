"""Adds CenterPoint's detection head, on images as in OpenPCDet and det3d, or on sites as in VoxelNeXt.

The head has several tasks, each for some of the classes. Each task has branches of convolutions for the heat map,
centre, height, size, rotation and (for nuScenes) velocity. Boxes are decoded from the branches, and NMS selects among
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from voxserve.export.image_nodes import ClassNms
from voxserve.export.model_folder import ClassEntry, Network
from voxserve.export.networks.layers import Layers
from voxserve.export.networks.spconv_backbone import MMDETECTION3D, Voxels
from voxserve.export.networks.tensors import RandomTensors

HEAD_EPSILON = 1e-5  # the epsilon of the head's batch norms, which is torch's default
_HEATMAP_BIAS = -2.19  # the bias of a random heat map: sigmoid(-2.19) = 0.1, the initial value in both libraries
# Gains of the last convolution of random branches. They make scores differ, and sizes exp(dim) a few metres.
_HEATMAP_GAIN = 0.3
_BRANCH_GAIN = 0.1

# Adds a convolution of a branch: takes the node's name, the tensors' name, the input node, the number of channels,
# whether it has a bias, the gain of random weights and the value of a random bias; returns the node.
Convolve = Callable[[str, str, str, int, bool, float, "float | None"], str]


@dataclass(frozen=True)
class HeadConfig:
    """The voxelization of points, and the parameters of a head's boxes."""

    voxels: Voxels
    classes: tuple[ClassEntry, ...]
    tasks: tuple[tuple[int, ...], ...]  # the class ids of each task; every class is in one task
    has_velocity: bool
    center_min: tuple[float, float, float]  # the range of a box's centre, x, y, z in metres, bounds included
    center_max: tuple[float, float, float]
    nms_iou: float  # NMS drops a box that overlaps a better one by more
    nms_boxes_in: int  # the most boxes per task that NMS reads
    nms_boxes_out: int  # the most boxes per task that NMS keeps
    max_boxes: int = 500  # the most boxes per task that are decoded
    score_threshold: float = 0.1  # boxes with scores above it are decoded
    epsilon: float = HEAD_EPSILON  # of the head's batch norms
    # OpenPCDet's IOU_RECTIFIER, one for each class of the task: the head has a branch `iou`. (): it has none.
    iou_powers: tuple[float, ...] = ()
    # The suppression of each class on its own (multi_class_nms), in place of nms_iou and both numbers. (): together.
    nms_classes: tuple[ClassNms, ...] = ()

    def check(self) -> None:
        ids = sorted(i for task in self.tasks for i in task)
        if ids != sorted(entry.id for entry in self.classes) or not all(self.tasks):
            raise ValueError(f"the tasks {self.tasks} must have every class once")


class CenterHead:
    """The head: separate branches for each task."""

    def __init__(
        self,
        layers: Layers,
        config: HeadConfig,
        convolve: Convolve,
        *,
        stride: int,
        width: int,
        bias_key: str,
        library: str = "openpcdet",
    ) -> None:
        """convolve: adds the convolutions of the branches. stride: the size of a heat map's cell in voxels. width: the
        channels of a branch's hidden layer.

        bias_key: the name of a convolution before a batch norm. If it has a bias, all such convolutions have one
            (OpenPCDet's USE_BIAS_BEFORE_NORM).
        """
        self._layers = layers
        self._config = config
        self._convolve = convolve
        self._stride = stride
        self._width = width
        self.has_bias = isinstance(layers.tensors, RandomTensors) or f"{bias_key}.bias" in layers.tensors
        self._is_det3d = library == "det3d"
        self._has_sine_first = library == MMDETECTION3D

    def boxes(self, x: str) -> None:
        """Adds the tasks on the shared layer x, and the output of the network: the boxes of all tasks after NMS."""
        config, network = self._config, self._layers.network
        decoded = [self._task(task, classes, x) for task, classes in enumerate(config.tasks)]
        network.section("Suppression, task by task.")
        if config.nms_classes:
            network.class_nms("boxes", decoded, config.nms_classes)
        else:
            network.nms("boxes", decoded, config.nms_iou, config.nms_boxes_in, config.nms_boxes_out)
        network.output("BOXES", "boxes")

    def _task(self, task: int, class_ids: Sequence[int], x: str) -> str:
        """Adds one task and returns its decoded boxes."""
        config = self._config
        self._layers.network.section(f"Task {task}: {', '.join(config.classes[i].name for i in class_ids)}.")
        # A branch's name here, in OpenPCDet's state dict, in det3d's, and its number of channels.
        branches = [
            ("heatmap", "hm", "hm", len(class_ids)),
            ("center", "center", "reg", 2),
            ("height", "center_z", "height", 1),
            ("dim", "dim", "dim", 3),
            ("rot", "rot", "rot", 2),
        ]
        if config.has_velocity:
            branches.append(("vel", "vel", "vel", 2))
        if config.iou_powers:
            branches.append(("iou", "iou", "iou", 1))
        images = [
            self._branch(task, name, det3d if self._is_det3d else pcdet, x, channels)
            for name, pcdet, det3d, channels in branches
        ]
        return self._layers.network.center_head_decode(
            f"task{task}.boxes",
            images,
            convention="DET3D" if self._is_det3d else "OPENPCDET",
            class_ids=class_ids,
            stride=self._stride,
            score_threshold=config.score_threshold,
            max_boxes=config.max_boxes,
            center_min=config.center_min,
            center_max=config.center_max,
            iou_powers=[config.iou_powers[i] for i in class_ids] if config.iou_powers else (),
        )

    def _branch(self, task: int, name: str, part: str, x: str, channels: int) -> str:
        layers = self._layers
        if self._is_det3d:
            key = f"bbox_head.tasks.{task}.{part}"
            first, norm, last = f"{key}.0", f"{key}.1", f"{key}.3"
        else:
            key = f"dense_head.heads_list.{task}.{part}"
            first, norm, last = f"{key}.0.0", f"{key}.0.1", f"{key}.1"
        node = f"task{task}.{name}"
        self._convolve(f"{node}.0", first, x, self._width, self.has_bias, 1.0, None)
        y = layers.norm_relu(f"{node}.0", norm, epsilon=self._config.epsilon)
        fill, gain = (_HEATMAP_BIAS, _HEATMAP_GAIN) if name == "heatmap" else (None, _BRANCH_GAIN)
        self._convolve(node, last, y, channels, True, gain, fill)
        if self._is_det3d and name == "dim":
            take_rows(layers.network, node, (1, 0, 2), 1)  # width, length, height -> length, width, height
        if self._is_det3d and name == "rot":
            # sin(-r - pi/2) = -cos(r), cos(-r - pi/2) = -sin(r)
            take_rows(layers.network, node, (1, 0), -1)
        if name == "iou":  # OpenPCDet predicts 2 iou - 1
            for part, shift in (("weight", 0.0), ("bias", 0.5)):
                tensors = layers.network.tensors
                tensors[f"{node}.{part}"] = (tensors[f"{node}.{part}"] * 0.5 + shift).astype(np.float32)
        if self._has_sine_first and name == "rot":
            take_rows(layers.network, node, (1, 0), 1)  # sin, cos -> cos, sin
        return node


def take_rows(network: Network, node: str, rows: Sequence[int], sign: int) -> None:
    """Replaces a convolution's output channels by the channels `rows`, in this order and multiplied by `sign`."""
    for part in ("weight", "bias"):
        network.tensors[f"{node}.{part}"] = sign * network.tensors[f"{node}.{part}"][list(rows)]
