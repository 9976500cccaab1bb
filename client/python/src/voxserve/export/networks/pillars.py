"""Adds the pillars of PointPillars: a small network reduces the points of each column (pillar) of a grid to a row of
features, and the pillars become an image.

A. H. Lang et al., "PointPillars: Fast Encoders for Object Detection from Point Clouds", CVPR 2019. OpenPCDet's
PillarVFE and DynamicPillarVFE (DynPillarVFE), with absolute positions, batch norms and without distances, and
PointPillarScatter.

PillarVFE computes max_points_per_voxel slots per pillar. The features of a slot without a point are 0, but they are not
0 after a layer's batch norm and ReLU, and the maximum over the slots includes them. So this module also computes the
row of an empty slot for each pillar, and point_to_voxel includes it if the pillar has an empty slot. DynamicPillarVFE
has no slots: the maximum is over all points of a pillar. They include points above and below the range, since OpenPCDet
crops only along x and y. So this module widens the range of z for it. The centre of the range, to which the points'
offsets are relative, stays the same.

mmdetection3d's PillarFeatureNet computes the same. With its default, `legacy`, it subtracts the centre in place, so the
offsets stand where the positions would (pillar_encoder.py, forward).

State dict: "vfe.pfn_layers.0.linear.weight", "vfe.pfn_layers.0.norm.weight" and so on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voxserve.export.model_folder import Network
from voxserve.export.networks.layers import INPUT_GAIN, Layers
from voxserve.export.networks.spconv_backbone import Voxels

_BEYOND = 512.0  # metres above and below the centre of a range; no point is farther away


def image(network: Network, layers: Layers, voxels: Voxels, widths: Sequence[int], *, is_legacy: bool = False) -> str:
    """Returns the node of the pillars' image. The arguments are those of rows()."""
    pillars = rows(network, layers, voxels, widths, is_legacy=is_legacy)
    network.to_bev("from_above", pillars)
    return layers.points("from_above", widths[-1])


def rows(
    network: Network,
    layers: Layers,
    voxels: Voxels,
    widths: Sequence[int],
    *,
    is_legacy: bool = False,
    crops_height: bool = False,
    key: str = "vfe.pfn_layers",
) -> str:
    """Returns the node of the pillars' features. widths: the channels of the layers.

    voxels: must have one cell on z. max_points_per_voxel is 0 for DynamicPillarVFE. is_legacy: the first three features
    are the offsets from the centre again, instead of positions. crops_height: points above and below the range are no
    points of a pillar, although its points are not limited (DynamicVoxelVFE, DynamicVFE). key: the layers' name.
    """
    grid = voxels.grid()
    if min(grid) < 1 or grid[2] != 1:
        pillars = " x ".join(map(str, grid))
        raise ValueError(f"the range has {pillars} pillars; it must have 1 on z, and 1 or more elsewhere")
    network.section("Points to pillars.")
    slots = voxels.max_points_per_voxel
    low, high, size = (list(values) for values in (voxels.range_min, voxels.range_max, voxels.size))
    if not slots and not crops_height:
        middle = (low[2] + high[2]) / 2
        low[2], high[2], size[2] = middle - _BEYOND, middle + _BEYOND, 2 * _BEYOND
    network.voxelize(
        "voxels",
        size,
        voxels.features,
        rounding="FLOOR",
        origin="RANGE",
        reduce="MEAN",
        range_min=low,
        range_max=high,
    )
    layers.points("voxels", len(voxels.features))
    layers.points(network.point_features("features", "voxels"), len(voxels.features))
    layers.points(network.point_offsets("from_mean", "voxels", "MEAN", max_points=slots), 3)
    layers.points(network.point_offsets("from_center", "voxels", "CENTER"), 3)
    x, empty = layers.concat("points", ["features", "from_mean", "from_center"]), ""
    if slots:
        width = layers.channels[x]
        empty = network.linear("empty", "voxels", np.zeros((width, len(voxels.features)), np.float32))
        layers.points(empty, width)
    for i, width in enumerate(widths):
        network.section(f"Layer {i} of points, and what the pillars have of it.")
        is_last = i == len(widths) - 1
        out = width if is_last else width // 2
        x = _layer(layers, f"pfn{i}", f"{key}.{i}", x, out)
        if i == 0 and is_legacy:
            _read_offsets(network, f"pfn{i}.weight")
        if slots:
            empty = _layer(layers, f"pfn{i}.empty", f"{key}.{i}", empty, out)
        pillars = network.point_to_voxel(f"pfn{i}.most", x, "voxels", "MAX", max_points=slots, empty_slots=empty)
        layers.points(pillars, out)
        if is_last:
            break
        layers.points(network.voxel_to_point(f"pfn{i}.of_pillar", pillars, "voxels"), out)
        x = layers.concat(f"pfn{i}.points", [x, f"pfn{i}.of_pillar"])
        if slots:
            empty = layers.concat(f"pfn{i}.slots", [empty, pillars])
    return pillars


def _read_offsets(network: Network, name: str) -> None:
    """Moves the first layer's weights of positions to those of the offsets from the centre, the last three columns."""
    weight = network.tensors[name].copy()
    weight[:, -3:] += weight[:, :3]
    weight[:, :3] = 0
    network.tensors[name] = weight


def _layer(layers: Layers, name: str, key: str, x: str, out: int) -> str:
    """Adds a PFNLayer without its maximum over a pillar's points."""
    layers.linear(name, f"{key}.linear", x, out, gain=INPUT_GAIN if key.endswith(".0") else 1.0, bias=False)
    return layers.norm_relu(name, f"{key}.norm")
