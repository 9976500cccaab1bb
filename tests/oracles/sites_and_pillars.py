"""Computes VoxelNeXt, and CenterPoint and PointPillars on pillars, from OpenPCDet's definitions, in dense torch tensors
of float64.

The state dicts have OpenPCDet's names and layouts. The computation shares no code with the exporter.
network_definitions.py has the layers that these networks share with others.

- VoxelNeXt (pcdet/models/backbones_3d/spconv_backbone_voxelnext.py, dense_heads/voxelnext_head.py): tensors on sites
  are dense with a mask, and cells without a site get a score of -infinity before the decoding.
- PillarVFE (pcdet/models/backbones_3d/vfe/pillar_vfe.py): tensors are [pillars, slots, channels], with the empty slots.
"""

from __future__ import annotations

from dataclasses import replace

import network_definitions as definitions
import numpy as np
from network_definitions import CENTER_POINT, SECOND, Recorder

from voxserve.export.model_folder import Network
from voxserve.export.networks import center_point, second, voxelnext
from voxserve.export.networks.spconv_backbone import Bev, Voxels

_HEAD_EPSILON = 1e-5


# ---------------------------------------------------------------------------------------------------------------------
# Networks and their state dicts


# The range begins high above the ground, so that some cells of the image have no sites.
VOXELNEXT = voxelnext.Config(
    voxels=Voxels((0, -25.6, 1), (51.2, 25.6, 7), (0.4, 0.4, 0.15), 3, 0, CENTER_POINT.voxels.features),
    classes=CENTER_POINT.classes,
    tasks=CENTER_POINT.tasks,
    has_velocity=True,
    center_min=(1, -24, -10),
    center_max=(50, 24, 10),
    nms_iou=0.2,
    nms_boxes_in=40,
    nms_boxes_out=20,
    max_boxes=50,
    score_threshold=0.07,
    widths=(4, 6, 8, 8, 8),
    kernel_sizes=(5, 3, 3, 3),
    out_width=8,
)
# A pillar has only four slots, so that many pillars are full.
_PILLARS = Voxels((0, -12.8, -3), (38.4, 12.8, 3), (0.4, 0.4, 6), 4, 0, CENTER_POINT.voxels.features)
CENTER_POINT_PILLAR = replace(
    CENTER_POINT,
    voxels=_PILLARS,
    pillar_widths=(8, 8),
    bev=Bev((1, 1), (2, 2), (8, 10), (0.5, 1), (8, 8)),
    stride=4,
)
POINT_PILLARS = replace(
    SECOND,
    voxels=replace(_PILLARS, features=second.KITTI_VOXELS.features),
    score_threshold=0.012,
    pillar_widths=(8,),
    bev=Bev((1, 1), (2, 2), (8, 10), (1, 2), (8, 8)),
)


def voxelnext_state(seed: int = 9) -> dict[str, np.ndarray]:
    recorder = Recorder(seed)
    voxelnext._build(recorder, VOXELNEXT, "", "")
    return recorder.state


def center_point_pillar_state(seed: int = 8) -> dict[str, np.ndarray]:
    recorder = Recorder(seed)
    center_point._build(recorder, CENTER_POINT_PILLAR, "", "", "openpcdet")
    return with_shifted_slots(recorder.state)


def point_pillars_state(seed: int = 10) -> dict[str, np.ndarray]:
    recorder = Recorder(seed)
    second._build(recorder, POINT_PILLARS, "", "")
    return with_shifted_slots(recorder.state)


def with_shifted_slots(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the state dict with shifted batch norms, so that the value of a pillar's empty slots is often its
    maximum.
    """
    shift = np.float32([1.5, -0.5] * 4)
    for name in [name for name in state if name.startswith("vfe.") and name.endswith("norm.bias")]:
        state[name] = state[name] + shift[: len(state[name])]
    return state


def folders() -> dict[str, Network]:
    """Returns the small networks as the exporter builds them, by the name of their folder."""
    return {
        "small-voxelnext": voxelnext.build(voxelnext_state(), VOXELNEXT, name="small VoxelNeXt"),
        "small-centerpoint-pillar": center_point.build(
            center_point_pillar_state(), CENTER_POINT_PILLAR, name="small CenterPoint of pillars"
        ),
        "small-pointpillars": second.build(point_pillars_state(), POINT_PILLARS, name="small PointPillars"),
    }


def boxes(points: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the boxes of each network for the scan. The keys are the arrays' names in networks.npz."""
    found = {}
    for name, images, config, stride in (
        ("voxelnext", voxelnext_images(voxelnext_state(), VOXELNEXT, points), VOXELNEXT, 8),
        (
            "centerpoint_pillar",
            center_point_pillar_images(center_point_pillar_state(), CENTER_POINT_PILLAR, points),
            CENTER_POINT_PILLAR,
            4,
        ),
    ):

        def of(tasks, config=config, stride=stride):
            return definitions.center_point_boxes("openpcdet", tasks, config, stride)

        found[f"{name}_boxes"] = of(images)
        assert definitions.is_stable(of, found[f"{name}_boxes"], images), name
    images = point_pillars_images(point_pillars_state(), POINT_PILLARS, points)
    found["pointpillars_boxes"] = definitions.second_boxes(images, POINT_PILLARS)
    assert definitions.is_stable(lambda shaken: definitions.second_boxes(shaken[0], POINT_PILLARS), found["pointpillars_boxes"], [images])
    return found


# ---------------------------------------------------------------------------------------------------------------------
# VoxelNeXt


def voxelnext_images(state, config, points):
    """Returns one dict per task of the detection head. It maps a branch's name ("heatmap", "center", "height", ...) to
    the branch's dense image, [1, rows, columns, channels].
    """
    sites = _voxelnext_sites(state, config, points)
    tasks = []
    for task in range(len(config.tasks)):
        images = {}
        names = {"heatmap": "hm", "center": "center", "height": "center_z", "dim": "dim", "rot": "rot", "vel": "vel"}
        for name, theirs in names.items():
            key = f"dense_head.heads_list.{task}.{theirs}"
            y = _flat_conv(state, f"{key}.0.0", sites.dense) * sites.sites
            y = (definitions.batch_norm(state, f"{key}.0.1", y, _HEAD_EPSILON) * sites.sites).relu()
            y = _flat_conv(state, f"{key}.1", y)
            images[name] = definitions.rows_first(y.masked_fill(sites.sites == 0, -np.inf if name == "heatmap" else 0))
        tasks.append(images)
    return tasks


def _voxelnext_sites(state, config, points):
    """Returns the input of VoxelNeXt's heads: features [1, C, y, x] and the mask of its sites."""
    import torch

    voxels = config.voxels
    cells = definitions.mean_voxels(points, voxels, len(voxels.features))
    for row in cells.values():
        row[3] *= 255  # intensity as nuScenes stores it
    shape = definitions.grid_zyx(voxels)
    x = definitions.SparseImage.of_voxels(state, cells, shape, len(voxels.features))
    x = x.submanifold("backbone_3d.conv_input.0").norm("backbone_3d.conv_input.1").relu()
    stages = []
    for stage in range(1, 7):
        key, first = f"backbone_3d.conv{stage}", 0
        if stage > 1:
            kernel, first = config.kernel_sizes[min(stage, 5) - 2], 1
            x = x.strided(f"{key}.0.0", 2, kernel // 2).norm(f"{key}.0.1").relu()
        for block in range(2):
            x = definitions.residual_block(x, f"{key}.{first + block}")
        stages.append(x)
    dense, sites = stages[3].dense.clone(), stages[3].sites.clone()
    # OpenPCDet multiplies the indices of stage 5 by 2 and those of stage 6 by 4.
    for stage, factor in ((5, 2), (6, 4)):
        dense[..., ::factor, ::factor, ::factor] += _cut(stages[stage - 1].dense, dense, factor)
        sites[..., ::factor, ::factor, ::factor] += _cut(stages[stage - 1].sites, sites, factor)
    # OpenPCDet calls this step bev_out.
    x = definitions.SparseImage(state, dense.sum(dim=2), (sites.sum(dim=2) > 0).double())
    reached = torch.nn.functional.conv2d(x.sites, torch.ones((1, 1, 3, 3), dtype=torch.float64), padding=1)
    x = definitions.SparseImage(state, _flat_conv(state, "backbone_3d.conv_out.0", x.dense), (reached > 0).double())
    x.dense = x.dense * x.sites
    x = x.norm("backbone_3d.conv_out.1").relu()
    y = _flat_conv(state, "backbone_3d.shared_conv.0", x.dense) * x.sites
    y = definitions.batch_norm(state, "backbone_3d.shared_conv.1", y, _HEAD_EPSILON) * x.sites
    return definitions.SparseImage(state, y.relu(), x.sites)


def _cut(coarse, fine, factor):
    """Returns the part of a coarse tensor [1, C, z, y, x] that fits into a fine one whose axes are `factor` times as
    long.
    """
    z, y, x = (-(-size // factor) for size in fine.shape[2:])
    return coarse[:, :, :z, :y, :x]


def _flat_conv(state, key, x):
    """Computes spconv 2's SubMConv2d and SparseConv2d of stride 1, before the result is masked. The weight is [Cout,
    ky, kx, Cin].

    spconv reads the weight of a kernel of one cell as a [Cin, Cout] matrix without a transpose: mm(x, weight.view(Cin,
    Cout)).
    """
    import torch

    weight = torch.from_numpy(state[f"{key}.weight"].astype(np.float64))
    out, *kernel, channels = weight.shape
    if kernel == [1, 1]:
        weight = weight.reshape(channels, out).T.reshape(out, 1, 1, channels)
    bias = state.get(f"{key}.bias")
    bias = None if bias is None else torch.from_numpy(bias.astype(np.float64))
    return torch.nn.functional.conv2d(x, weight.permute(0, 3, 1, 2), bias, padding=kernel[0] // 2)


# ---------------------------------------------------------------------------------------------------------------------
# Pillars


def pillar_image(state, voxels, columns, has_empty_slots=True):
    """Computes PillarVFE and PointPillarScatter. columns: [N, features]; the first three features are x, y and z.

    has_empty_slots: whether a slot without a point takes part in the maximum, as it does in PillarVFE.
    """
    import torch

    low, high, size = (np.float32(v) for v in (voxels.range_min, voxels.range_max, voxels.size))
    xyz = columns[:, :3].astype(np.float32)
    columns = columns[((xyz >= low) & (xyz < high)).all(axis=1)]
    pillars: dict[tuple[int, int], list[np.ndarray]] = {}
    indices = np.floor((columns[:, :3].astype(np.float32) - low) / size).astype(int)
    for (x, y, _), row in zip(indices.tolist(), columns, strict=True):
        slots = pillars.setdefault((x, y), [])
        if len(slots) < voxels.max_points_per_voxel:
            slots.append(row)
    features = np.zeros((len(pillars), voxels.max_points_per_voxel, columns.shape[1] + 6))
    for pillar, ((x, y), rows) in zip(features, pillars.items(), strict=True):
        points = np.array(rows, np.float64)
        centre = (np.array([x, y, 0]) + 0.5) * size.astype(np.float64) + low
        offsets = [points[:, :3] - points[:, :3].mean(axis=0), points[:, :3] - centre]
        pillar[: len(rows)] = np.concatenate([points, *offsets], axis=1)  # The other slots stay 0.
    counts = torch.tensor([len(rows) for rows in pillars.values()])
    is_point = torch.arange(features.shape[1])[None, :, None] < counts[:, None, None]
    x, layer = torch.from_numpy(features), 0
    while (key := f"vfe.pfn_layers.{layer}") + ".linear.weight" in state:
        y = x @ torch.from_numpy(state[f"{key}.linear.weight"].astype(np.float64)).T
        y = definitions.batch_norm(state, f"{key}.norm", y.permute(0, 2, 1), 1e-3).permute(0, 2, 1).relu()
        y = y if has_empty_slots else y.where(is_point, 0)  # After a ReLU, 0 never exceeds the maximum of the others.
        most = y.amax(dim=1, keepdim=True)
        x, layer = torch.cat([y, most.expand_as(y)], dim=2), layer + 1
    grid = voxels.grid()
    image = torch.zeros((1, most.shape[2], grid[1], grid[0]), dtype=torch.float64)
    for (column, row), values in zip(pillars, most[:, 0], strict=True):
        image[0, :, row, column] = values
    return image


def bev_backbone(state, x, bev):
    """Computes OpenPCDet's BaseBEVBackbone. An upsampling layer with a factor below 1 is a strided convolution."""
    import torch

    ups = []
    for block, (count, stride, up) in enumerate(zip(bev.num_layers, bev.strides, bev.up_strides, strict=True)):
        key = f"backbone_2d.blocks.{block}"
        x = torch.nn.functional.pad(x, (1, 1, 1, 1))  # nn.ZeroPad2d, entry 0
        x = definitions.batch_norm(state, f"{key}.2", definitions.conv2d(state, f"{key}.1", x, stride=stride), 1e-3).relu()
        for layer in range(count):
            y = definitions.conv2d(state, f"{key}.{4 + 3 * layer}", x, padding=1)
            x = definitions.batch_norm(state, f"{key}.{5 + 3 * layer}", y, 1e-3).relu()
        key = f"backbone_2d.deblocks.{block}"
        if up < 1:
            y = definitions.conv2d(state, f"{key}.0", x, stride=round(1 / up))
        else:
            weight = torch.from_numpy(state[f"{key}.0.weight"].astype(np.float64))
            y = torch.nn.functional.conv_transpose2d(x, weight, stride=int(up))
        ups.append(definitions.batch_norm(state, f"{key}.1", y, 1e-3).relu())
    return torch.cat(ups, dim=1)


def center_point_pillar_images(state, config, points):
    """Returns one dict of images per task of the detection head, as voxelnext_images does."""
    columns = np.zeros((len(points), len(config.voxels.features)))
    columns[:, :4] = points
    columns[:, 3] *= 255  # intensity as nuScenes stores it
    x = bev_backbone(state, pillar_image(state, config.voxels, columns), config.bev)
    x = definitions.conv2d(state, "dense_head.shared_conv.0", x, padding=1)
    x = definitions.batch_norm(state, "dense_head.shared_conv.1", x, _HEAD_EPSILON).relu()
    return [definitions.open_pcdet_branches(state, task, x) for task in range(len(config.tasks))]


def point_pillars_images(state, config, points):
    x = bev_backbone(state, pillar_image(state, config.voxels, points.astype(np.float64)), config.bev)
    return definitions.anchor_head_images(state, x)
