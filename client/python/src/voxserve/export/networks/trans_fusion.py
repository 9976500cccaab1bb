"""Exports TransFusion-L and BEVFusion-L: detectors whose head has queries (query_head.py), without cameras.

- OpenPCDet's TransFusion (tools/cfgs/nuscenes_models/transfusion_lidar.yaml): VoxelResBackBone8x without biases.
- mit-han-lab/bevfusion's LiDAR branch (configs/nuscenes/det/transfusion/secfpn/lidar), Z. Liu et al., "BEVFusion:
  Multi-Task Multi-Sensor Fusion with Unified Bird's-Eye View Representation", ICRA 2023.
- mmdetection3d's projects/BEVFusion and AWML's BEVFusion without cameras, which Autoware runs. AWML's may give the
  voxels' features as waves: for each feature, scaled to 0 to 1, the cosines and sines of pi 2^i times it.
- AWML's TransFusion on pillars.

The BEVFusions' axes are x, y, z, and the rows of their view from above are x. Here rows are y, so the kernels of 2-D
convolutions are transposed. The waves are a `rotary` of (1, 0), whose angles stay float32 in every precision.

State dicts: OpenPCDet's ("backbone_3d.conv_input.0.weight" to "dense_head.prediction_head.heatmap.1.bias"),
mit-han-lab/bevfusion's ("encoders.lidar.backbone", "decoder.backbone", "heads.object"), and those of mmdetection3d and
AWML ("pts_middle_encoder", "pts_backbone", "bbox_head" or "pts_bbox_head"), which mmdetection3d_names.py translates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from voxserve.export.model_folder import ClassEntry, Network, PointFeature
from voxserve.export.networks import mmdetection3d_names, pillars, query_head, spconv_backbone
from voxserve.export.networks.center_point import CONFIGS, NUSCENES_CLASSES
from voxserve.export.networks.layers import Layers, spconv_weight, spconv_xyz_weight
from voxserve.export.networks.query_head import QueryHead
from voxserve.export.networks.spconv_backbone import MMDETECTION3D, SPARSE_EPSILON, Bev, Voxels
from voxserve.export.networks.tensors import ExportError, RandomTensors, Tensor, Tensors

BEVFUSION = "bevfusion"  # mit-han-lab/bevfusion
LIBRARIES = ("openpcdet", BEVFUSION)
_AXES = 3


@dataclass(frozen=True)
class Waves:
    """AWML's num_aug_features: each feature becomes `count` cosines and `count` sines."""

    count: int
    low: tuple[float, ...]  # the value of each feature that becomes 0
    high: tuple[float, ...]  # and 1


@dataclass(frozen=True)
class Config:
    """The parameters of a TransFusion-L or a BEVFusion-L."""

    voxels: Voxels
    classes: tuple[ClassEntry, ...]
    head: QueryHead
    sparse_widths: tuple[int, ...] = (16, 32, 64, 128)
    sparse_out_width: int = 128
    is_plain: bool = False  # the sparse backbone has no residual blocks
    has_block_bias: bool = False  # OpenPCDet's USE_BIAS
    pillar_widths: tuple[int, ...] = ()  # the layers' widths of a network on pillars; empty: it has a sparse backbone
    is_legacy_pillar: bool = False  # mmdetection3d's legacy (pillars.py)
    bev: Bev = field(default_factory=lambda: Bev(has_conv_for_no_stride=True))
    is_xyz: bool = False  # the library's axes are x, y, z
    waves: Waves | None = None

    def cells(self) -> tuple[int, int]:
        """Returns the rows and columns of the head's image."""
        columns, rows, _ = self.voxels.grid()
        return rows // self.head.stride, columns // self.head.stride


_NUSCENES_HEAD = QueryHead(
    untested=(8, 9), center_min=(-61.2, -61.2, -10.0), center_max=(61.2, 61.2, 10.0), score_thresholds=(0.0,)
)
NUSCENES = Config(CONFIGS["nuscenes-0.075"].voxels, NUSCENES_CLASSES, _NUSCENES_HEAD)
_OLD_HEAD = replace(_NUSCENES_HEAD, bounds_bottom=True, has_old_boxes=True)
_MIT_NUSCENES = replace(NUSCENES, head=_OLD_HEAD, is_xyz=True)
CONFIGS_OF = {
    "nuscenes-0.075": {"openpcdet": NUSCENES, BEVFUSION: _MIT_NUSCENES},
    "nuscenes-0.1": {
        BEVFUSION: replace(
            _MIT_NUSCENES, voxels=replace(CONFIGS["nuscenes-0.1"].voxels, max_points_per_voxel=10, max_voxels=120_000)
        )
    },
}
T4_CLASSES = (
    ClassEntry(0, "car", (255, 158, 0)),
    ClassEntry(1, "truck", (255, 99, 71)),
    ClassEntry(2, "bus", (255, 127, 80)),
    ClassEntry(3, "bicycle", (220, 20, 60)),
    ClassEntry(4, "pedestrian", (0, 0, 230)),
)
_T4_FEATURES = (
    PointFeature("x", "m"),
    PointFeature("y", "m"),
    PointFeature("z", "m"),
    PointFeature("intensity", "1", scale=255, range=(0, 1)),
    PointFeature("age", "s", 0),
)
_T4_RANGE = ((-122.4, -122.4, -3.0), (122.4, 122.4, 5.0))
# AWML's bevfusion_lidar_voxel_second_secfpn_30e_8xb8_j6gen2_base_120m.py, which Autoware runs.
AUTOWARE = Config(
    Voxels(*_T4_RANGE, (0.17, 0.17, 0.2), 10, 160_000, _T4_FEATURES),
    T4_CLASSES,
    QueryHead(
        num_queries=500,
        untested=(4,),
        center_min=(-200.0, -200.0, -10.0),
        center_max=(200.0, 200.0, 10.0),
        bounds_bottom=True,
        score_thresholds=(0.0,),
    ),
    is_xyz=True,
    waves=Waves(5, (*_T4_RANGE[0], 0.0, 0.0), (*_T4_RANGE[1], 255.0, 0.2)),
)


def config_of(dataset: str, library: str = "openpcdet") -> Config:
    """Returns the published configuration for a data set. ValueError if the library has none."""
    found = CONFIGS_OF.get(dataset, {})
    if library not in found:
        raise ValueError(f"{library} has no configuration '{dataset}', only {', '.join(found) or 'others'}")
    return found[library]


def build(
    state: Mapping[str, Tensor], config: Config, *, name: str, description: str = "", library: str = "openpcdet"
) -> Network:
    """Returns the network of a state dict. Raises ExportError with all missing, unknown or misshaped tensors."""
    tensors = mmdetection3d_names.state_dict(
        state, "the network", library, is_residual=not config.is_plain, is_transposed=config.is_xyz
    )
    network = _build(tensors, config, name, description, library)
    tensors.raise_problems()
    return network


def random_network(
    config: Config, *, name: str, description: str = "", library: str = "openpcdet", seed: int = 0
) -> Network:
    """Returns the network with random weights."""
    return _build(RandomTensors(seed), config, name, description, library)


def _build(tensors: Tensors, config: Config, name: str, description: str, library: str) -> Network:
    network = Network(name, description)
    read_weight = spconv_xyz_weight if config.is_xyz else spconv_weight
    layers = Layers(network, tensors, read_weight, SPARSE_EPSILON)
    # Names are asked for as OpenPCDet has them; those of other libraries are translated, and their blocks have no bias.
    names = "openpcdet" if library == "openpcdet" else MMDETECTION3D
    if config.pillar_widths:
        x = pillars.image(network, layers, config.voxels, config.pillar_widths, is_legacy=config.is_legacy_pillar)
    else:
        spconv_backbone.depth_after(config.voxels.grid()[2])
        x = spconv_backbone.voxelize(network, layers, config.voxels)
        x = _waves(layers, x, config.waves) if config.waves else x
        widths, out = config.sparse_widths, config.sparse_out_width
        if config.is_plain:
            x = spconv_backbone.plain_backbone(layers, x, widths, out)
        else:
            has_bias = config.has_block_bias and names == "openpcdet"
            x = spconv_backbone.residual_backbone(layers, x, names, widths, out, has_bias=has_bias)
        if config.waves:
            _order_waves(network, config.waves)
        x = spconv_backbone.to_bev(layers, x, config.voxels)
    x = spconv_backbone.bev_backbone(layers, x, names, config.bev)
    query_head.add(
        layers,
        config.head,
        x,
        class_ids=[entry.id for entry in config.classes],
        grid=config.cells(),
        key=lambda part: f"dense_head.{part}",
    )
    return network


def _waves(layers: Layers, x: str, waves: Waves) -> str:
    """Adds the cosines and sines of the voxels' features. A rotary node turns (1, 0) by angles of three features, the
    positions; the i-th pair of a feature's channels turns by 2^i times its angle.
    """
    network, tensors = layers.network, layers.tensors
    count, inputs = waves.count, layers.channels[x]
    _check_stored(tensors, waves)
    network.section("Each feature as cosines and sines of its angle, and of its multiples by powers of 2.")
    groups = -(-inputs // _AXES)
    pairs = np.tile(np.repeat(np.array([1, 0], np.float32), count), _AXES)
    ones = network.linear("waves.ones", x, np.zeros((len(pairs), inputs), np.float32), pairs)
    made = []
    for group in range(groups):
        weight, bias = np.zeros((_AXES, inputs), np.float32), np.zeros(_AXES, np.float32)
        for axis, i in enumerate(range(group * _AXES, min((group + 1) * _AXES, inputs))):
            factor = math.pi / (waves.high[i] - waves.low[i])
            weight[axis, i], bias[axis] = factor, -factor * waves.low[i]
        angles = network.linear(f"waves.{group}.angles", x, weight, bias)
        made.append(layers.points(network.rotary(f"waves.{group}", ones, angles, base=2.0**-count), len(pairs)))
    joined = layers.concat("waves", made) if groups > 1 else made[0]
    # The library's number of channels, by which the convolution's weight is read; _order_waves() adds the unused ones.
    return layers.points(joined, 2 * count * inputs)


def _order_waves(network: Network, waves: Waves) -> None:
    """Orders the first convolution's input channels as _waves() has them: those of the library are all cosines, feature
    by feature, then all sines. Unused channels get weights of 0.
    """
    inputs, count = len(waves.low), waves.count
    weight = network.tensors["conv_input.weight"]
    ordered = np.zeros((weight.shape[0], -(-inputs // _AXES) * _AXES * 2 * count, weight.shape[2]), weight.dtype)
    for i in range(inputs):
        cosines = i * count + np.arange(count)
        ordered[:, 2 * i * count : (2 * i + 1) * count] = weight[:, cosines]
        ordered[:, (2 * i + 1) * count : (2 * i + 2) * count] = weight[:, inputs * count + cosines]
    network.tensors["conv_input.weight"] = ordered


def _check_stored(tensors: Tensors, waves: Waves) -> None:
    """Refuses a checkpoint whose ranges of features are not those of the configuration."""
    expected: dict[str, Sequence[float]] = {
        "aug_features_min_values": waves.low,
        "aug_features_max_values": waves.high,
        "exponents": [2.0**i for i in range(waves.count)],
    }
    for name, values in expected.items():
        key = f"backbone_3d.{name}"
        if key in tensors and not np.allclose(tensors.take(key, (len(values),)), values, rtol=1e-6):
            raise ExportError([f"tensor '{name}' is {tensors.take(key, (len(values),)).tolist()}, not {list(values)}"])
