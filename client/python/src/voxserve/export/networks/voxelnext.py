"""Exports VoxelNeXt as OpenPCDet trains it on nuScenes (tools/cfgs/nuscenes_models/cbgs_voxel0075_voxelnext.yaml).

Y. Chen et al., "VoxelNeXt: Fully Sparse VoxelNet for 3D Object Detection and Tracking", CVPR 2023.
VoxelResBackBone8xVoxelNeXt and VoxelNeXtHead: boxes are decoded from sites, without dense tensors.

The network has six stages of residual blocks. The sites of the last two stages are moved onto the fourth stage's grid
(coordinates times 2 and 4). The union of the three sets of sites follows, and rows at the same x and y are added. The
layers over two axes that follow are layers over three axes here, with one cell on z.

State dict: OpenPCDet's VoxelNeXt ("backbone_3d.conv_input.0.weight" to "dense_head.heads_list.5.hm.1.bias"), of spconv
1 or 2. A state dict with an iou branch (IOU_BRANCH, for Waymo) is refused: its scores combine powers of two branches,
and its NMS differs between classes. DOUBLE_FLIP, a test on flipped copies of a cloud, is not supported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from voxserve.export.model_folder import Network
from voxserve.export.networks import center_point, spconv_backbone
from voxserve.export.networks.center_head import HEAD_EPSILON, CenterHead, HeadConfig
from voxserve.export.networks.layers import Layers, spconv_weight
from voxserve.export.networks.spconv_backbone import SPARSE_EPSILON
from voxserve.export.networks.tensors import ExportError, RandomTensors, StateDict, Tensor, Tensors

_STRIDE = 8  # the stride of the fourth stage in voxels
_KEY = "backbone_3d"
_MERGED_GAIN = 0.03  # for a random conv_out, which reads sums over the height and three stages


@dataclass(frozen=True)
class Config(HeadConfig):
    """The parameters of a VoxelNeXt. The defaults are the published network's."""

    widths: tuple[int, int, int, int, int] = (16, 32, 64, 128, 128)  # of stages 1 to 5; stage 6 has that of stage 5
    kernel_sizes: tuple[int, int, int, int] = (3, 3, 3, 3)  # of the strided convolutions to stages 2, 3, 4, and 5 and 6
    out_width: int = 128
    head_kernel: int = 1


_CENTER_POINT = center_point.CONFIGS["nuscenes-0.075"]
NUSCENES = Config(
    voxels=_CENTER_POINT.voxels,
    classes=_CENTER_POINT.classes,
    tasks=_CENTER_POINT.tasks,
    has_velocity=True,
    center_min=_CENTER_POINT.center_min,
    center_max=_CENTER_POINT.center_max,
    nms_iou=0.2,
    nms_boxes_in=1000,
    nms_boxes_out=83,
)


def build(state: Mapping[str, Tensor], config: Config, *, name: str, description: str = "") -> Network:
    """Returns the network of a state dict. Raises ExportError with all missing, unknown or misshaped tensors."""
    if any(".iou." in key for key in state):
        raise ExportError(["the state dict has an iou branch (IOU_BRANCH), which no operator decodes"])
    tensors = StateDict(state, "VoxelNeXt", lambda key: key.endswith(".num_batches_tracked") or key == "global_step")
    network = _build(tensors, config, name, description)
    tensors.raise_problems()
    return network


def random_network(config: Config, *, name: str, description: str = "", seed: int = 0) -> Network:
    """Returns the network with random weights."""
    return _build(RandomTensors(seed), config, name, description)


def _build(tensors: Tensors, config: Config, name: str, description: str) -> Network:
    config.check()
    network = Network(name, description)
    layers = Layers(network, tensors, spconv_weight, SPARSE_EPSILON)
    x = spconv_backbone.voxelize(network, layers, config.voxels)
    x = _shared(layers, _from_above(layers, x, config), config.out_width)

    size = config.head_kernel
    kernel = (size, size, 1)

    def convolve(node: str, key: str, source: str, out: int, bias: bool, gain: float, fill: float | None) -> str:
        # Only a branch's first convolution has the head's kernel; its last has one cell.
        cells = kernel if node.endswith(".0") else (1, 1, 1)
        return layers.submanifold(node, key, source, cells, out, bias=bias, gain=gain, fill_bias=fill, is_flat=True)

    first = "dense_head.heads_list.0.hm.0.0"
    CenterHead(layers, config, convolve, stride=_STRIDE, width=config.out_width, bias_key=first).boxes(x)
    return network


def _from_above(layers: Layers, x: str, config: Config) -> str:
    """Adds the stages, and the sum of the last three stages' rows over the height."""
    x = spconv_backbone.conv_input(layers, f"{_KEY}.conv_input", x, config.widths[0])
    stages, depth, depths = [], config.voxels.grid()[2] + 1, []
    for stage, width in enumerate((*config.widths, config.widths[-1]), start=1):
        key, first = f"{_KEY}.conv{stage}", 0
        if stage > 1:
            layers.network.section(f"Stage {stage}: stride {2 ** (stage - 1)}.")
            size = config.kernel_sizes[min(stage, 5) - 2]
            name, first = f"conv{stage}.down", 1
            layers.strided(
                name, f"{key}.0.0", x, (size,) * 3, (2, 2, 2), width, rule="PADDED", padding=(size // 2,) * 3
            )
            x = layers.norm_relu(name, f"{key}.0.1")
            depth = (depth + 2 * (size // 2) - size) // 2 + 1
        for block in range(2):
            x = spconv_backbone.residual_block(layers, f"conv{stage}.{block}", f"{key}.{first + block}", x, width)
        stages.append(x)
        depths.append(depth)
    network = layers.network
    network.section("The last three stages on sites of stride 8, and what is above each other added up.")
    moved = [stages[3]]
    for stage, factor in ((5, 2), (6, 4)):
        node = network.pool_transposed(f"conv{stage}.moved", stages[stage - 1], "SUM", (1, 1, 1), (factor,) * 3)
        moved.append(layers.points(node, config.widths[-1]))
    united = partial(layers.add, union=True)
    x = united("united", [united("united.5", moved[:2]), moved[2]])
    height = depths[3] + depths[3] % 2  # rounded up to even, since an even kernel begins at its site
    network.pool_strided_floor("from_above", x, "SUM", (1, 1, height), (1, 1, height))
    return layers.points("from_above", layers.channels[x])


def _shared(layers: Layers, x: str, width: int) -> str:
    """Adds conv_out and shared_conv."""
    layers.network.section("Seen from above.")
    flat = (3, 3, 1)
    layers.strided(
        "conv_out",
        f"{_KEY}.conv_out.0",
        x,
        flat,
        (1, 1, 1),
        width,
        rule="PADDED",
        padding=(1, 1, 0),
        gain=_MERGED_GAIN,
        is_flat=True,
    )
    x = layers.norm_relu("conv_out", f"{_KEY}.conv_out.1")
    layers.submanifold("shared", f"{_KEY}.shared_conv.0", x, flat, width, bias=True, is_flat=True)
    return layers.norm_relu("shared", f"{_KEY}.shared_conv.1", epsilon=HEAD_EPSILON)
