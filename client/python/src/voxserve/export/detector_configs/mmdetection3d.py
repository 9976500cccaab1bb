"""Reads mmdetection3d's configurations (version 1.1 and later) of CenterPoint, SECOND and PointPillars.
mmdetection3d_queries.py reads those of heads with queries, mmdetection3d_flatformer.py those of FlatFormer.

Read in mmdetection3d at fe25f7a51 (v1.4.0), mmdet3d/models: dense_heads, task_modules/{anchor,coders},
layers/box3d_nms.py. mmdetection3d_layers.py reads the layers before the heads.
Boxes are those of its LiDARInstance3DBoxes: x, y, z of the lower face's centre, length, width, height, yaw from x to y.
The heads themselves predict the centre's z, which the server keeps.
"""

from __future__ import annotations

import math
from typing import Any

from voxserve.export.detector_configs import common, mmdetection3d_flatformer, mmdetection3d_queries
from voxserve.export.detector_configs.common import Detector, Head
from voxserve.export.detector_configs.mmdetection3d_layers import must_be_type, read_layers, same
from voxserve.export.detector_configs.settings import Report, Settings
from voxserve.export.model_folder import Anchor, PointFeature
from voxserve.export.networks import center_point, second
from voxserve.export.networks.spconv_backbone import Voxels

LIBRARY = "mmdetection3d"
_BRANCHES = {"reg": 2, "height": 1, "dim": 3, "rot": 2, "vel": 2}
_TRAINING = ("train_cfg", "init_cfg", "pretrained", "data_preprocessor")
_HEAD_NORM = {"type": "BN2d"}
_CONVENTION = (
    "boxes are read as mmdetection3d 1.x has them: weights that 0.x trained have width before length, and another yaw"
)
_OLD = "is of mmdetection3d 0.x, whose boxes have another order and origin: give the configuration of 1.1 or later"


def is_mmdetection3d(values: dict[str, Any]) -> bool:
    return isinstance(values.get("model"), dict) and "type" in values["model"]


def read(values: dict[str, Any], report: Report, features: tuple[PointFeature, ...]) -> Detector | None:
    """Returns the detector; None if the report says why not. features: the input's columns where the file's names do
    not say enough; empty: by the data set.
    """
    file = Settings(values, "", report)
    model = file.section("model")
    kind = model.type()
    if kind in ("TransFusion", "BEVFusion"):
        return _queries(kind, file, model, features)
    if kind == "DynamicCenterPoint":  # of a fork of 0.15, whose boxes the builder knows
        _begin(file, model)
        return _ended(report, model, mmdetection3d_flatformer.read(file, model, features, _metainfo(file)))
    if kind == "CenterPoint":
        prefix, make = "pts_", _center_point
    elif kind in ("VoxelNet", "MVXFasterRCNN"):
        prefix, make = "" if kind == "VoxelNet" else "pts_", _anchors
    else:
        if kind:
            known = "CenterPoint, VoxelNet or MVXFasterRCNN (SECOND, PointPillars), TransFusion, BEVFusion"
            model.problem("type", f"is '{kind}', not {known} or DynamicCenterPoint (FlatFormer)")
        return None
    for old in ("pts_voxel_layer", "voxel_layer"):
        if old in model:
            model.problem(old, _OLD)
            return None
    report.notes.append(_CONVENTION)
    _begin(file, model)
    return _ended(report, model, make(file, model, prefix, features))


def _queries(kind: str, file: Settings, model: Settings, features: tuple[PointFeature, ...]) -> Detector | None:
    """Reads a network whose head has queries."""
    names = _metainfo(file)
    _begin(file, model)
    make = mmdetection3d_queries.trans_fusion_l if kind == "TransFusion" else mmdetection3d_queries.bev_fusion
    return _ended(file.report, model, make(file, model, features, names))


def _begin(file: Settings, model: Settings) -> None:
    if "custom_imports" in file:
        file.report.notes.append(
            "the file imports code of its own (custom_imports): layers that it replaces are not seen"
        )
    model.skip(*_TRAINING)


def _ended(report: Report, model: Settings, made: tuple[str, str, Any]) -> Detector | None:
    model.finish()
    return None if report.problems else Detector(*made, notes=tuple(report.notes))


# Detectors: each returns the command, the library and the configuration.


def _center_point(file: Settings, model: Settings, prefix: str, given: Any) -> tuple[str, str, Any]:
    layers = read_layers(file, model, prefix, given)
    dense = model.section(f"{prefix}bbox_head")
    must_be_type(dense, "CenterHead")
    head, kernel = _head(dense)
    names = tuple(name for task in head.tasks for name in task)
    stated = _metainfo(file)
    if stated and stated != names:
        dense.problem(
            "tasks", f"are of {list(names)}, but the data set's classes, whose numbers they have, {list(stated)}"
        )
    coder = dense.section("bbox_coder")
    must_be_type(coder, "CenterPointBBoxCoder")
    test = model.section("test_cfg").section("pts")
    boxes = _decoding(coder, test, layers.voxels, head.stride)
    common.check_bev(layers.bev, layers.stride, head.stride, layers.neck, "out_size_factor of the bbox_coder")
    config = center_point.Config(
        voxels=layers.voxels,
        classes=common.class_entries(names, dense, "tasks"),
        tasks=common.tasks_of(head.tasks, names),
        has_velocity=head.has_velocity,
        **boxes,
        sparse_widths=layers.sparse_widths,
        sparse_out_width=layers.sparse_out_width,
        is_plain=layers.is_plain,
        pillar_widths=layers.pillar_widths,
        is_legacy_pillar=layers.is_legacy_pillar,
        bev=layers.bev,
        head_width=head.width,
        head_kernel=kernel,
        stride=head.stride,
    )
    common.check_tasks(config.tasks, names, dense, "tasks")
    common.check_boxes(config, test)
    for section in (dense, coder, test):
        section.finish()
    return "centerpoint-pillar" if layers.pillar_widths else "centerpoint", LIBRARY, config


def _anchors(file: Settings, model: Settings, prefix: str, given: Any) -> tuple[str, str, Any]:
    layers = read_layers(file, model, prefix, given)
    if layers.is_plain is False:
        model.problem(f"{prefix}middle_encoder.block_type", "is basicblock: SECOND is served with conv_module alone")
    dense = model.section(f"{prefix}bbox_head")
    must_be_type(dense, "Anchor3DHead")
    dense.must_be("use_direction_classifier", True, "boxes are decoded with a direction classifier", default=True)
    dense.skip("in_channels", "assigner_per_size", "assign_per_class", "diff_rad_by_sin", "loss_bbox", "loss_dir")
    channels = dense.count("feat_channels", 256)
    if channels != sum(layers.bev.up_widths):
        dense.problem("feat_channels", f"is {channels}, but the neck has {sum(layers.bev.up_widths)} channels")
    loss = dense.section("loss_cls")
    loss.must_be("use_sigmoid", True, "scores are sigmoids", default=False)
    coder = dense.optional_section("bbox_coder")
    coder.must_be("type", "DeltaXYZWLHRBBoxCoder", "no other box coder is served", default="DeltaXYZWLHRBBoxCoder")
    coder.must_be("code_size", 7, "boxes of 7 numbers are served", default=7)
    names = _metainfo(file)
    if len(names) != dense.count("num_classes"):
        dense.problem("num_classes", f"is {dense.count('num_classes')}, but the data set has the classes {list(names)}")
    anchors = _anchor_list(dense.section("anchor_generator"), layers.voxels)
    if len(anchors) != len(names):
        dense.problem("anchor_generator", f"has {len(anchors)} sizes for {len(names)} classes; served is one each")
    offset = dense.number("dir_offset", -math.pi / 2)
    limit = dense.number("dir_limit_offset", 0.0)
    test = model.section("test_cfg").section("pts") if prefix else model.section("test_cfg")
    test.must_be("use_rotate_nms", True, "NMS of rotated boxes is served")
    test.skip("nms_across_levels", "min_bbox_size")  # heads of boxes in space do not read them
    best, most = test.count("nms_pre"), test.count("max_num")
    if len(names) > 1:
        file.report.notes.append(
            f"the library's NMS reads the {best} anchors of the best scores of any class, and keeps {most} boxes of "
            "all classes together; the server reads and keeps as many of each class. A cloud with more boxes gives more"
        )
    common.check_bev(layers.bev, layers.stride, None, layers.neck, "")
    config = second.Config(
        voxels=layers.voxels,
        classes=common.class_entries(names, dense, "num_classes"),
        anchors=anchors,
        num_direction_bins=2,
        direction_offset=offset,
        direction_limit_offset=limit,
        score_threshold=test.number("score_thr"),
        nms_iou=test.number("nms_thr"),
        nms_boxes_in=best,
        nms_boxes_out=most,
        is_nms_per_class=len(names) > 1,
        sparse_widths=layers.sparse_widths,
        sparse_out_width=layers.sparse_out_width,
        pillar_widths=layers.pillar_widths,
        is_legacy_pillar=layers.is_legacy_pillar,
        bev=layers.bev,
    )
    common.check_boxes(config, test)
    for section in (dense, coder, test):
        section.finish()
    return "pointpillars" if layers.pillar_widths else "second", LIBRARY, config


# Parts


def _metainfo(file: Settings) -> tuple[str, ...]:
    """Returns the classes in the order of their numbers; none if the file does not say them."""
    data = file.optional_section("test_dataloader").optional_section("dataset").optional_section("metainfo")
    if "classes" in data:
        return data.names("classes")
    meta = file.optional_section("metainfo")
    return meta.names("classes") if "classes" in meta else file.names("class_names", ())


def _head(dense: Settings) -> tuple[Head, int]:
    """Returns what a CenterHead says, and the size of its branches' kernels."""
    tasks = tuple(task.names("class_names") for task in dense.sections("tasks"))
    branches = dense.section("common_heads")
    for name, channels in _BRANCHES.items():
        if name != "vel" or name in branches:
            branches.must_be(name, [channels, 2], "channels and convolutions that are served")
    branches.finish()
    dense.must_be("num_heatmap_convs", 2, "branches of two convolutions are served", default=2)
    dense.must_be("norm_bbox", True, "sizes are the exponential of the branch", default=True)
    dense.must_be("conv_cfg", {"type": "Conv2d"}, "no other convolution is served", default={"type": "Conv2d"})
    dense.must_be("norm_cfg", _HEAD_NORM, "torch's default is served", default=_HEAD_NORM)
    dense.skip("in_channels", "loss_cls", "loss_bbox", "bias", "init_cfg", "train_cfg", "test_cfg")
    width = dense.count("share_conv_channel", 64)
    separate = dense.section("separate_head")
    kind = separate.type()
    if kind == "DCNSeparateHead":
        separate.problem("type", "is DCNSeparateHead: deformable convolutions are not served")
    elif kind not in (
        "",
        "SeparateHead",
        "CustomSeparateHead",
    ):  # AWML's Custom one differs in how it begins a training
        separate.problem("type", f"is '{kind}', not SeparateHead")
    kernel = separate.count("final_kernel", 1)
    if kernel % 2 == 0:
        separate.problem("final_kernel", f"is {kernel}; odd sizes are served")
    separate.must_be("head_conv", width, "the width of the shared convolution", default=64)
    separate.skip("init_bias", "bias")
    if kind != "DCNSeparateHead":
        separate.finish()
    stride = dense.section("bbox_coder").count("out_size_factor")
    return Head(tasks, width, "vel" in branches, stride), kernel


def _decoding(coder: Settings, test: Settings, voxels: Voxels, stride: int) -> dict[str, Any]:
    same(coder, "voxel_size", voxels.size[:2], None, "that of the voxel_layer", first=2)
    same(coder, "pc_range", voxels.range_min[:2], None, "that of the voxel_layer", first=2)
    coder.skip("code_size", "out_size_factor")
    limits = coder.numbers("post_center_range", 6)
    for key in ("voxel_size", "pc_range", "point_cloud_range", "grid_size", "max_per_img", "min_radius"):
        test.skip(key)  # CenterHead does not read them, or reads them for circles alone
    kind = test.text("nms_type")
    if kind and kind != "rotate":
        test.problem(
            "nms_type",
            f"is '{kind}': NMS by the distance of centres is not served. The same weights can be served "
            'with nms_type="rotate", nms_thr, pre_max_size and post_max_size',
        )
        test.skip("post_max_size", "pre_max_size", "nms_thr", "score_threshold", "post_center_limit_range")
        test.skip("out_size_factor", "max_pool_nms")
        coder.skip("max_num", "score_threshold")
        return {
            "center_min": limits[:3],
            "center_max": limits[3:],
            "nms_iou": 0.0,
            "nms_boxes_in": 1,
            "nms_boxes_out": 1,
        }
    test.must_be("max_pool_nms", False, "NMS of rotated boxes is served", default=False)
    test.must_be("out_size_factor", stride, "that of the bbox_coder", default=stride)
    test.must_be("post_center_limit_range", list(limits), "that of the bbox_coder")
    return {
        "center_min": limits[:3],
        "center_max": limits[3:],
        "score_threshold": max(coder.number("score_threshold", 0.0), test.number("score_threshold", 0.0)),
        "max_boxes": coder.count("max_num", 100),
        "nms_iou": test.number("nms_thr"),
        "nms_boxes_in": test.count("pre_max_size"),
        "nms_boxes_out": test.count("post_max_size"),
    }


def _anchor_list(generator: Settings, voxels: Voxels) -> tuple[Anchor, ...]:
    kind = generator.type()
    if kind and kind != "Anchor3DRangeGenerator":
        generator.problem(
            "type",
            f"is '{kind}': anchors are served with the first and last on the range's borders, as "
            "Anchor3DRangeGenerator makes them",
        )
    generator.skip("reshape_out")
    generator.must_be("custom_values", [], "boxes of 7 numbers are served", default=[])
    generator.must_be("scales", [1], "one scale is served", default=[1])
    generator.must_be("size_per_range", True, "a range for each size is served", default=True)
    ranges, sizes = generator.items("ranges"), generator.items("sizes")
    rotations = generator.numbers("rotations", default=(0, 1.5707963))
    if len(ranges) != len(sizes):
        generator.problem("ranges", f"are {len(ranges)} for {len(sizes)} sizes")
    anchors = []
    for i, (bounds, size) in enumerate(zip(ranges, sizes, strict=False)):
        one = Settings({"ranges": bounds, "sizes": size}, f"{generator.path}[{i}]", generator.report)
        bounds, size = one.numbers("ranges", 6), one.numbers("sizes", 3)
        if bounds[:2] != voxels.range_min[:2] or bounds[3:5] != voxels.range_max[:2] or bounds[2] != bounds[5]:
            one.problem("ranges", f"is {bounds}, not that of the voxel_layer on x and y with one height")
        anchors.append(Anchor(i, (size[0], size[1], size[2]), bounds[2], rotations))
    generator.finish()
    return tuple(anchors)
