"""Reads configurations of mit-han-lab/flatformer (configs/flatformer/*.py), which are mmdetection3d's of version 0.15
with parts of its own.

Read in mit-han-lab/flatformer at d4243bb: mmdet3d/models/{voxel_encoders,middle_encoders,backbones,dense_heads},
mmdet3d/datasets/pipelines/loading.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from voxserve.export.detector_configs import common
from voxserve.export.detector_configs.mmdetection3d_layers import (
    check_norm,
    must_be_type,
    read_bev,
    read_columns,
    same,
)
from voxserve.export.detector_configs.settings import Settings
from voxserve.export.image_nodes import ClassNms
from voxserve.export.model_folder import PointFeature
from voxserve.export.networks import flatformer
from voxserve.export.networks.spconv_backbone import Voxels

_BRANCHES = {"reg": 2, "height": 1, "dim": 3, "rot": 2, "vel": 2, "iou": 1}
_EACH = "is {}: one for each class is served"
_NEED = "the network has pillars of any number of points"


def read(
    file: Settings, model: Settings, given: tuple[PointFeature, ...], data_names: tuple[str, ...]
) -> tuple[str, str, Any]:
    """Returns the command, the library and the configuration. given: the input's columns; empty: by the file.
    data_names: the data set's classes; none if the file does not say them.
    """
    voxels, pillar_width, width = _pillars(file, model, given)
    bev, neck = read_bev(model, "", has_sums=True)
    common.check_bev(bev, 1, 1, neck, "the size of the head's cells, in pillars,")
    if any(up < 1 or up != round(up) for up in bev.up_strides):
        neck.problem("upsample_strides", f"is {list(bev.up_strides)}: whole numbers are served")
    if bev.has_conv_for_no_stride:
        neck.problem("use_conv_for_no_stride", "is True: transposed convolutions are served")
    blocks = _blocks(model.section("middle_encoder"), voxels, width)
    names, head = _head(model.section("bbox_head"), voxels)
    if data_names and [name.lower() for name in data_names] != [name.lower() for name in names]:
        model.problem("bbox_head.tasks", f"are of {list(names)}, but the data set's classes are {list(data_names)}")
    test = model.section("test_cfg")
    config = flatformer.Config(
        voxels=voxels,
        classes=_classes(names, model),
        tasks=(tuple(range(len(names))),),
        has_velocity=True,
        pillar_width=pillar_width,
        width=width,
        bev=bev,
        epsilon=1e-3,
        **blocks,
        **_decoding(model.section("bbox_head").section("bbox_coder"), test, head, len(names)),
    )
    common.check_boxes(config, test)
    test.finish()
    return "flatformer", "mmdetection3d", config


def _classes(names: Sequence[str], model: Settings) -> Any:
    """Returns the classes, with the published network's colours where it has them."""
    published = {entry.name: entry.color for entry in flatformer.CLASSES}
    entries = common.class_entries(names, model, "bbox_head.tasks")
    return tuple(replace(entry, color=published.get(entry.name, entry.color)) for entry in entries)


def _pillars(file: Settings, model: Settings, given: tuple[PointFeature, ...]) -> tuple[Voxels, int, int]:
    """Returns the voxels, the channels of a point, and those of a pillar."""
    layer = model.section("voxel_layer")
    bounds, size = layer.numbers("point_cloud_range", 6), layer.numbers("voxel_size", 3)
    layer.must_be("max_num_points", -1, _NEED)
    layer.must_be("max_voxels", [-1, -1], _NEED, default=[-1, -1])
    layer.skip("deterministic")
    layer.finish()
    columns = read_columns(file, given, bounds)
    encoder = model.section("voxel_encoder")
    must_be_type(encoder, "DynamicVFE")
    encoder.must_be("in_channels", len(columns), "the number of the test pipeline's columns", default=4)
    encoder.must_be("with_distance", False, "distances are not served", default=False)
    encoder.must_be("with_cluster_center", True, "offsets from the mean are served", default=False)
    encoder.must_be("with_voxel_center", True, "offsets from the centre are served", default=False)
    encoder.must_be("mode", "max", "the maximum over points is served", default="max")
    encoder.refuse("fusion_layer", "images are not served", harmless=(None,))
    encoder.refuse("return_point_feats", "one row for each pillar is served")
    same(encoder, "voxel_size", size, (0.2, 0.2, 4.0), "that of the voxel_layer")
    same(encoder, "point_cloud_range", bounds, (0.0, -40.0, -3.0, 70.4, 40.0, 1.0), "that of the voxel_layer")
    check_norm(encoder)
    widths = encoder.counts("feat_channels")
    if len(widths) != 2:
        encoder.problem("feat_channels", f"is {list(widths)}: two layers are served")
        widths = (1, 1)
    encoder.finish()
    voxels = Voxels(bounds[:3], bounds[3:], size, 0, 0, columns)  # type: ignore[arg-type]
    common.check_voxels(voxels, model, "voxel_layer", is_pillar=True, is_sparse=False)
    return voxels, widths[0], widths[1]


def _blocks(middle: Settings, voxels: Voxels, width: int) -> dict[str, Any]:
    must_be_type(middle, "FlatFormer")
    grid = voxels.grid() if min(voxels.size) > 0 else (1, 1, 1)
    middle.must_be("in_channels", width, "the channels of a pillar", default=128)
    middle.must_be("activation", "gelu", "no other activation is served", default="gelu")
    middle.must_be("sparse_shape", list(grid), "the range's pillars on x, y and z", default=[468, 468, 1])
    middle.must_be("output_shape", [grid[1], grid[0]], "the range's pillars on y and x", default=[468, 468])
    middle.must_be("normalize_pos", False, "coordinates are embedded as they are", default=False)
    window = middle.counts("window_shape", (9, 9, 1))
    if len(window) != 3 or window[2] != 1:
        middle.problem("window_shape", f"is {list(window)}, not the sizes on x and y, and 1 on z")
        window = (1, 1, 1)
    num_heads, temperature = middle.count("num_heads", 8), middle.number("pos_temperature", 10000)
    if width % num_heads:
        middle.problem("num_heads", f"is {num_heads}, which does not divide the {width} channels")
    if not temperature > 0:
        middle.problem("pos_temperature", f"is {temperature}, not above 0")
    made = {
        "num_heads": num_heads,
        "num_blocks": middle.count("num_blocks", 2),
        "group_size": middle.count("group_size", 69),
        "window": window[:2],
        "temperature": temperature,
    }
    middle.finish()
    return made


def _head(dense: Settings, voxels: Voxels) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Returns the classes, and what the head says besides its boxes."""
    must_be_type(dense, "CenterHead")
    tasks = dense.sections("tasks")
    if len(tasks) != 1:
        dense.problem("tasks", f"are {len(tasks)}: one is served")
    names = tasks[0].names("class_names") if tasks else ()
    branches = dense.section("common_heads")
    for name, channels in _BRANCHES.items():
        branches.must_be(name, [channels, 2], "channels and convolutions that are served")
    branches.finish()
    dense.must_be("num_heatmap_convs", 2, "branches of two convolutions are served", default=2)
    dense.must_be("norm_bbox", True, "sizes are the exponential of the branch", default=True)
    dense.must_be("conv_cfg", {"type": "Conv2d"}, "no other convolution is served", default={"type": "Conv2d"})
    check_norm(dense)
    dense.skip("in_channels", "loss_cls", "loss_bbox", "bias", "init_cfg", "train_cfg", "test_cfg")
    width = dense.count("share_conv_channel", 64)
    separate = dense.section("separate_head")
    must_be_type(separate, "SeparateHead")
    separate.must_be("final_kernel", 3, "kernels of 3 are served", default=1)
    separate.must_be("head_conv", width, "the width of the shared convolution", default=64)
    separate.refuse("norm_cfg", "torch's default is served", harmless=(None, {"type": "BN2d"}))
    separate.skip("init_bias", "bias")
    separate.finish()
    coder = dense.section("bbox_coder")
    must_be_type(coder, "CenterPointBBoxCoder")
    same(coder, "voxel_size", voxels.size[:2], None, "that of the voxel_layer", first=2)
    same(coder, "pc_range", voxels.range_min[:2], None, "that of the voxel_layer", first=2)
    dense.finish()
    return names, {"head_width": width}


def _decoding(coder: Settings, test: Settings, head: dict[str, Any], num_classes: int) -> dict[str, Any]:
    """Returns the head's parameters, with those of its boxes."""
    coder.must_be("out_size_factor", 1, "cells as large as pillars are served")
    coder.must_be("code_size", 9, "boxes with velocities are served", default=9)
    coder.skip("type", "voxel_size", "pc_range")
    limits = coder.numbers("post_center_range", 6)
    late = test.numbers("post_center_limit_range", 6)
    if any(a > b for a, b in zip(late[:3], limits[:3], strict=True)) or any(
        a < b for a, b in zip(late[3:], limits[3:], strict=True)
    ):
        test.problem("post_center_limit_range", f"is {list(late)}, which leaves out more than the bbox_coder's range")
    test.must_be("nms_type", "rotate", "NMS of rotated boxes is served")
    test.must_be("max_pool_nms", False, "NMS of rotated boxes is served", default=False)
    test.must_be("out_size_factor", 1, "that of the bbox_coder", default=1)
    # The head does not read these, or reads them for circles alone.
    test.skip("max_per_img", "min_radius", "pc_range", "voxel_size", "grid_size", "point_cloud_range")
    values: dict[str, tuple[float, ...]] = {}
    for key in ("nms_thr", "pre_max_size", "post_max_size"):
        found = test.raw(key)
        if not isinstance(found, list) or len(found) != num_classes:
            test.problem(key, _EACH.format(found))
            found = [1] * num_classes
        one = Settings({key: found}, test.path, test.report)
        values[key] = one.numbers(key) if key == "nms_thr" else one.counts(key)
    if not all(0 <= overlap <= 1 for overlap in values["nms_thr"]):
        test.problem("nms_thr", f"is {list(values['nms_thr'])}: overlaps of 0 to 1 are served")
    if isinstance(test.readable("iou_pow"), (list, tuple)):
        test.problem("iou_pow", "is a list: one power for all classes is served")
        power = 2.0
    else:
        power = test.number("iou_pow", 2.0)
        if not power > 0:
            test.problem("iou_pow", f"is {power}, not above 0")
    rows = zip(values["nms_thr"], values["pre_max_size"], values["post_max_size"], strict=True)
    made = {
        **head,
        "center_min": limits[:3],
        "center_max": limits[3:],
        "score_threshold": max(coder.number("score_threshold", 0.0), test.number("score_threshold", 0.0)),
        "max_boxes": coder.count("max_num", 100),
        "iou_power": power,
        "nms_iou": 0,
        "nms_boxes_in": 0,
        "nms_boxes_out": 0,
        "nms_classes": tuple(
            ClassNms(i, overlap, round(reads), round(keeps)) for i, (overlap, reads, keeps) in enumerate(rows)
        ),
    }
    coder.finish()
    return made
