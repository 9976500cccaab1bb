"""Tests the builders of VoxelNeXt and of pillar networks: shapes, tensors' names, and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graph_shapes import Shapes
from small_networks import FAMILIES, SMALL_CENTER_POINT, SMALL_CENTER_POINT_PILLAR, num_parameters

from voxserve.export import Network
from voxserve.export.networks import center_point, second, voxelnext


@pytest.mark.usefixtures("no_values")
def test_voxelnext_is_the_published_one() -> None:
    shapes = Shapes(voxelnext.random_network(voxelnext.NUSCENES, name="n"))
    depths = [shapes.results[f"conv{stage}.down"].shape[2] for stage in (2, 3, 4, 5, 6)]
    assert depths == [21, 11, 6, 3, 2]
    assert shapes.results["conv4.down"].shape == shapes.results["united"].shape == (180, 180, 6)
    assert shapes.results["conv5.moved"].shape == (179, 179, 5)
    assert shapes.results["conv6.moved"].shape == (177, 177, 5)
    assert shapes.results["shared.relu"].shape == (180, 180, 1)
    heads = {name: node.sparse_conv for name, node in shapes.nodes.items() if name.startswith("task0.")}
    assert list(heads["task0.heatmap.0"].kernel_size) == [1, 1, 1]
    decode = shapes.nodes["task5.boxes"].center_head_decode
    assert (list(decode.class_ids), decode.stride, decode.max_boxes) == ([8, 9], 8, 500)


@pytest.mark.usefixtures("no_values")
@pytest.mark.parametrize(
    ("config", "image", "slots", "values"),
    [
        (second.POINT_PILLARS, (248, 216), 32, 4_834_888),
        (center_point.PILLAR_CONFIGS["waymo"], (468, 468), 20, None),
        (center_point.PILLAR_CONFIGS["nuscenes"], (128, 128), 0, None),
    ],
)
def test_pillars_are_the_published_ones(config: Any, image: tuple[int, int], slots: int, values: int | None) -> None:
    module: Any = second if isinstance(config, second.Config) else center_point
    network = module.random_network(config, name="n")
    shapes = Shapes(network)
    assert shapes.results["bev"].shape == image
    assert shapes.results["bev"].channels == 384
    last = len(config.pillar_widths) - 1
    pillars = shapes.nodes[f"pfn{last}.most"].point_to_voxel
    assert (pillars.max_points, pillars.has_empty_slots) == (slots, slots > 0)
    assert shapes.nodes["from_mean"].point_offsets.max_points == slots
    voxelize = shapes.nodes["voxels"].voxelize
    low, high = voxelize.range_min[2], voxelize.range_max[2]
    assert high - low == pytest.approx(voxelize.voxel_size[2])
    assert (low + high) / 2 == pytest.approx((config.voxels.range_min[2] + config.voxels.range_max[2]) / 2)
    assert (high - low > 1000) == (slots == 0)
    if values is not None:  # voxserve stores rows for empty slots, which OpenPCDet's networks do not
        repeated = sum(t.size for name, t in network.tensors.items() if "empty" in name and ".running_" not in name)
        assert num_parameters(network) - repeated == values


def test_names_are_those_of_openpcdet(recorded: dict[str, Any]) -> None:
    FAMILIES["voxelnext"][1](name="n")
    assert recorded["backbone_3d.conv2.0.0.weight"].shape == (5, 5, 5, 5, 4)
    assert recorded["backbone_3d.conv6.1.conv1.bias"].shape == (8,)
    assert recorded["backbone_3d.conv_out.0.weight"].shape == (8, 3, 3, 8)
    assert recorded["backbone_3d.shared_conv.1.running_mean"].shape == (8,)
    assert recorded["dense_head.heads_list.1.hm.0.0.weight"].shape == (8, 1, 1, 8)
    assert recorded["dense_head.heads_list.1.hm.1.weight"].shape == (2, 1, 1, 8)
    recorded.clear()
    FAMILIES["centerpoint-pillar"][1](name="n")
    assert recorded["vfe.pfn_layers.0.linear.weight"].shape == (3, 11)
    assert recorded["vfe.pfn_layers.1.linear.weight"].shape == (8, 6)
    assert recorded["backbone_2d.deblocks.0.0.weight"].shape == (5, 6, 2, 2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: center_point.random_network(
                replace(SMALL_CENTER_POINT_PILLAR, voxels=SMALL_CENTER_POINT.voxels), name="n"
            ),
            "it must have 1 on z",
        ),
        (
            lambda: center_point.random_network(SMALL_CENTER_POINT_PILLAR, name="n", library="det3d"),
            "pillars are OpenPCDet's",
        ),
        (
            lambda: voxelnext.build(
                {"dense_head.heads_list.0.iou.1.weight": np.zeros(1)}, voxelnext.NUSCENES, name="n"
            ),
            "has an iou branch",
        ),
    ],
)
def test_bad_arguments(make: Callable[[], Network], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
