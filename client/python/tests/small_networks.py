"""Small networks of every family in voxserve.export.networks, for their tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from voxserve.export import Network
from voxserve.export.networks import (
    center_point,
    dsvt,
    flatformer,
    minkowski_unet,
    minkunet,
    second,
    sp_unet,
    sparse_resnet,
    svtnet,
    voxelnext,
)
from voxserve.export.networks.spconv_backbone import Bev, Voxels

_BEV = Bev((1, 1), (1, 2), (6, 8), (1, 2), (5, 7))
_VOXELS = Voxels((0, -8, -2), (32, 8, 2), (0.5, 0.5, 0.1), 5, 100, center_point._NUSCENES_FEATURES)
SMALL_CENTER_POINT = replace(
    center_point.CONFIGS["nuscenes-0.075"],
    voxels=_VOXELS,
    sparse_widths=(4, 5, 6, 8),
    sparse_out_width=8,
    bev=_BEV,
    head_width=6,
)
SMALL_SECOND = replace(
    second.Config(),
    voxels=replace(_VOXELS, features=second.KITTI_VOXELS.features),
    sparse_widths=(4, 5, 6, 8),
    sparse_out_width=8,
    bev=_BEV,
)
SMALL_VOXELNEXT = replace(
    voxelnext.NUSCENES, voxels=_VOXELS, widths=(4, 5, 6, 8, 8), kernel_sizes=(5, 3, 3, 3), out_width=8
)
_PILLARS = Voxels((0, -8, -2), (32, 8, 2), (0.5, 0.5, 4), 5, 100, center_point._NUSCENES_FEATURES)
SMALL_CENTER_POINT_PILLAR = replace(
    SMALL_CENTER_POINT,
    voxels=_PILLARS,
    pillar_widths=(6, 8),
    bev=Bev((1, 1), (2, 2), (6, 8), (0.5, 1), (5, 7)),
    stride=4,
)
# For DynamicPillarVFE, whose pillars have no largest number of points.
SMALL_DYNAMIC_PILLARS = replace(SMALL_CENTER_POINT_PILLAR, voxels=replace(_PILLARS, max_points_per_voxel=0))
SMALL_POINT_PILLARS = replace(
    SMALL_SECOND, voxels=replace(_PILLARS, features=second.KITTI_VOXELS.features), pillar_widths=(8,)
)
SMALL_DSVT = replace(
    dsvt.WAYMO, width=16, num_heads=2, hidden=8, num_blocks=1, stages=(dsvt.BevStage(1, 1, 8, 1, 8),), head_width=6
)
SMALL_FLATFORMER = replace(
    flatformer.WAYMO, pillar_width=8, width=16, num_heads=2, num_blocks=1, bev=_BEV, head_width=6
)
# By family: the function that builds a network from a state dict, and one that makes it with random weights.
Build = Callable[..., Network]
FAMILIES: dict[str, tuple[Build, Build]] = {
    "minkunet": (minkunet.build, lambda **o: minkunet.random_minkunet(width=0.125, num_classes=5, **o)),
    "spvcnn": (minkunet.build, lambda **o: minkunet.random_spvcnn(width=0.125, num_classes=5, **o)),
    "minkowski": (
        minkowski_unet.build,
        lambda **o: minkowski_unet.random_network(width=0.125, num_classes=5, **o),
    ),
    "minkowski-4d": (
        lambda state, **o: minkowski_unet.build(state, voxel_size=(0.1, 0.1, 0.1, 0.5), **o),
        lambda **o: minkowski_unet.random_network(
            width=0.125, num_classes=5, kernel="hypercube", voxel_size=(0.1, 0.1, 0.1, 0.5), **o
        ),
    ),
    "minkowski-bottleneck": (
        minkowski_unet.build,
        lambda **o: minkowski_unet.random_network(variant="MinkUNet50", width=0.125, num_classes=5, **o),
    ),
    "spunet": (sp_unet.build, lambda **o: sp_unet.random_network(width=0.125, num_classes=5, **o)),
    "resnet21d": (sparse_resnet.build, lambda **o: sparse_resnet.random_network(width=0.125, num_classes=5, **o)),
    "svtnet": (svtnet.build, lambda **o: svtnet.random_network(planes=(4, 6), feature_size=16, **o)),
    "centerpoint": (
        lambda state, **o: center_point.build(state, SMALL_CENTER_POINT, **o),
        lambda **o: center_point.random_network(SMALL_CENTER_POINT, **o),
    ),
    "centerpoint-det3d": (
        lambda state, **o: center_point.build(state, SMALL_CENTER_POINT, library="det3d", **o),
        lambda **o: center_point.random_network(SMALL_CENTER_POINT, library="det3d", **o),
    ),
    "centerpoint-pillar": (
        lambda state, **o: center_point.build(state, SMALL_CENTER_POINT_PILLAR, **o),
        lambda **o: center_point.random_network(SMALL_CENTER_POINT_PILLAR, **o),
    ),
    "centerpoint-dynamic-pillar": (
        lambda state, **o: center_point.build(state, SMALL_DYNAMIC_PILLARS, **o),
        lambda **o: center_point.random_network(SMALL_DYNAMIC_PILLARS, **o),
    ),
    "voxelnext": (
        lambda state, **o: voxelnext.build(state, SMALL_VOXELNEXT, **o),
        lambda **o: voxelnext.random_network(SMALL_VOXELNEXT, **o),
    ),
    "pointpillars": (
        lambda state, **o: second.build(state, SMALL_POINT_PILLARS, **o),
        lambda **o: second.random_network(SMALL_POINT_PILLARS, **o),
    ),
    "second": (
        lambda state, **o: second.build(state, SMALL_SECOND, **o),
        lambda **o: second.random_network(SMALL_SECOND, **o),
    ),
}
# Those with attention in windows, whose shapes test_window_networks.py checks.
WINDOW_FAMILIES: dict[str, tuple[Build, Build]] = {
    "dsvt": (
        lambda state, **o: dsvt.build(state, SMALL_DSVT, **o),
        lambda **o: dsvt.random_network(SMALL_DSVT, **o),
    ),
    "flatformer": (
        lambda state, **o: flatformer.build(state, SMALL_FLATFORMER, **o),
        lambda **o: flatformer.random_network(SMALL_FLATFORMER, **o),
    ),
}


def num_parameters(network: Network) -> int:
    """Returns the number of learned parameters."""
    return sum(t.size for name, t in network.tensors.items() if ".running_" not in name)
