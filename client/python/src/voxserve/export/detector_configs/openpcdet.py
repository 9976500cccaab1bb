"""Reads OpenPCDet's configurations (tools/cfgs/*_models/*.yaml) of CenterPoint, SECOND, PointPillars and VoxelNeXt.
openpcdet_queries.py reads TransFusion's head, openpcdet_dsvt.py DSVT, openpcdet_layers.py the layers before the heads.

Read in OpenPCDet at 8caccce (v0.6.0): pcdet/models/{backbones_3d,backbones_2d,dense_heads,detectors},
pcdet/datasets/processor.
"""

from __future__ import annotations

from typing import Any

from voxserve.export.detector_configs import common, openpcdet_dsvt, openpcdet_queries
from voxserve.export.detector_configs.common import Detector, Head
from voxserve.export.detector_configs.openpcdet_layers import (
    FIXED,
    must_be_name,
    read_backbone_3d,
    read_bev,
    read_branches,
    read_vfe,
    read_voxels,
)
from voxserve.export.detector_configs.settings import Report, Settings
from voxserve.export.model_folder import Anchor, PointFeature
from voxserve.export.networks import center_point, second, voxelnext
from voxserve.export.networks.spconv_backbone import Bev

LIBRARY = "openpcdet"
_BRANCHES = {"center": 2, "center_z": 1, "dim": 3, "rot": 2, "vel": 2}
_NMS = "only NMS of rotated boxes, without regard to classes, is served (NMS_TYPE: nms_gpu, MULTI_CLASSES_NMS: False)"


def is_openpcdet(values: dict[str, Any]) -> bool:
    return "MODEL" in values or "DATA_CONFIG" in values


def read(values: dict[str, Any], report: Report, features: tuple[PointFeature, ...]) -> Detector | None:
    """Returns the detector; None if the report says why not. features: the input's columns where the file's names do
    not say enough; empty: by the data set.
    """
    file = Settings(values, "", report)
    names, data, model = file.names("CLASS_NAMES"), file.section("DATA_CONFIG"), file.section("MODEL")
    kind = model.text("NAME")
    known = {
        "CenterPoint": _center_point,
        "SECONDNet": _anchors,
        "PointPillar": _anchors,
        "VoxelNeXt": _voxelnext,
        "TransFusion": openpcdet_queries.read,
    }
    if kind not in known:
        if kind:
            model.problem("NAME", f"is '{kind}', not one of {', '.join(known)}")
        return None
    model.refuse("ROI_HEAD", "a second stage is not served", harmless=(None,))
    make = openpcdet_dsvt.read if kind == "CenterPoint" and openpcdet_dsvt.is_dsvt(model) else known[kind]
    made = make(model, data, names, features)
    for section in (model, data):
        section.finish()
    return None if report.problems or made is None else Detector(*made, notes=tuple(report.notes))


# Detectors: each returns the command, the library and the configuration.


def _center_point(model: Settings, data: Settings, names: Any, features: Any) -> tuple[str, str, Any]:
    pillars = read_vfe(model)
    voxels = read_voxels(data, features, is_dynamic=pillars[1])
    plain, widths = read_backbone_3d(model, bool(pillars[0]))
    bev = read_bev(model)
    dense = model.section("DENSE_HEAD")
    must_be_name(dense, "CenterHead")
    head = _head(dense)
    common.check_bev(bev[0], 1 if pillars[0] else 8, head.stride, bev[1], "FEATURE_MAP_STRIDE")
    common.check_voxels(voxels, data, "POINT_CLOUD_RANGE", is_pillar=bool(pillars[0]), is_sparse=True)
    config = center_point.Config(
        voxels=voxels,
        classes=common.class_entries(names, dense, "CLASS_NAMES_EACH_HEAD"),
        tasks=common.tasks_of(head.tasks, names),
        has_velocity=head.has_velocity,
        **_post_processing(dense),
        sparse_widths=widths,
        is_plain=plain,
        pillar_widths=pillars[0],
        bev=bev[0],
        head_width=head.width,
        stride=head.stride,
    )
    _finish_head(model, dense, config, names)
    return "centerpoint-pillar" if pillars[0] else "centerpoint", LIBRARY, config


def _voxelnext(model: Settings, data: Settings, names: Any, features: Any) -> tuple[str, str, Any]:
    if read_vfe(model)[0]:
        model.problem("VFE", "makes pillars; VoxelNeXt is served on voxels alone")
    voxels = read_voxels(data, features, is_dynamic=False)
    common.check_voxels(voxels, data, "POINT_CLOUD_RANGE", is_pillar=False, is_sparse=False)
    backbone = model.section("BACKBONE_3D")
    must_be_name(backbone, "VoxelResBackBone8xVoxelNeXt")
    widths = backbone.counts("CHANNELS", (16, 32, 64, 128, 128))
    kernels = backbone.counts("SPCONV_KERNEL_SIZES", (3, 3, 3, 3))
    out = backbone.count("OUT_CHANNEL", 128)
    if len(widths) != 5 or len(kernels) != 4:
        backbone.problem("", "must have 5 CHANNELS and 4 SPCONV_KERNEL_SIZES")
    elif widths[3] != widths[4]:
        backbone.problem("CHANNELS", f"is {widths}: the last two must be equal, since their sites are added")
    if any(size % 2 == 0 for size in kernels):
        backbone.problem("SPCONV_KERNEL_SIZES", f"is {kernels}: even sizes are not served")
    backbone.finish()
    dense = model.section("DENSE_HEAD")
    must_be_name(dense, "VoxelNeXtHead")
    dense.refuse("IOU_BRANCH", "scores of two branches are not served")
    dense.refuse("DOUBLE_FLIP", "a test on flipped copies is not served")
    dense.skip("INPUT_FEATURES", "GAUSSIAN_RATIO", "GAUSSIAN_TYPE")
    kernel = dense.count("KERNEL_SIZE_HEAD", 3)
    head = _head(dense, default_width=128)
    if head.width != out:
        dense.problem("SHARED_CONV_CHANNEL", f"is {head.width}, but the backbone has OUT_CHANNEL {out}")
    if head.stride != 8:
        dense.problem("TARGET_ASSIGNER_CONFIG.FEATURE_MAP_STRIDE", f"is {head.stride}, but the sites have the stride 8")
    config = voxelnext.Config(
        voxels=voxels,
        classes=common.class_entries(names, dense, "CLASS_NAMES_EACH_HEAD"),
        tasks=common.tasks_of(head.tasks, names),
        has_velocity=head.has_velocity,
        **_post_processing(dense),
        widths=(widths * 5)[:5] if len(widths) != 5 else widths,  # type: ignore[arg-type]
        kernel_sizes=(kernels * 4)[:4] if len(kernels) != 4 else kernels,  # type: ignore[arg-type]
        out_width=out,
        head_kernel=kernel,
    )
    _finish_head(model, dense, config, names)
    return "voxelnext", LIBRARY, config


def _anchors(model: Settings, data: Settings, names: Any, features: Any) -> tuple[str, str, Any]:
    pillars = read_vfe(model)
    voxels = read_voxels(data, features, is_dynamic=pillars[1])
    plain, widths = read_backbone_3d(model, bool(pillars[0]))
    if plain is False:
        model.problem("BACKBONE_3D.NAME", "is VoxelResBackBone8x: SECOND is served with VoxelBackBone8x alone")
    bev, bev_settings = read_bev(model)
    dense = model.section("DENSE_HEAD")
    must_be_name(dense, "AnchorHeadSingle")
    dense.must_be("USE_DIRECTION_CLASSIFIER", True, "boxes are decoded with a direction classifier", default=None)
    dense.must_be("CLASS_AGNOSTIC", False, "scores of each class are served", default=False)
    dense.refuse("USE_MULTIHEAD", "one head is served")
    dense.skip("LOSS_CONFIG", "PREDICT_BOXES_WHEN_TRAINING")
    target = dense.optional_section("TARGET_ASSIGNER_CONFIG")
    target.must_be("BOX_CODER", "ResidualCoder", "no other box coder is served", default="ResidualCoder")
    target.refuse("BOX_CODER_CONFIG", "boxes have the code of the second.yaml's ResidualCoder", harmless=(None, {}))
    bins, offset = dense.count("NUM_DIR_BINS"), dense.number("DIR_OFFSET")
    limit = dense.number("DIR_LIMIT_OFFSET")
    anchors = _anchor_list(dense, bev, bev_settings, 1 if pillars[0] else 8)
    if len(anchors) != len(names):
        dense.problem(
            "ANCHOR_GENERATOR_CONFIG", f"has {len(anchors)} anchors for {len(names)} classes; served is one each"
        )
    common.check_voxels(voxels, data, "POINT_CLOUD_RANGE", is_pillar=bool(pillars[0]), is_sparse=True)
    post = model.section("POST_PROCESSING")
    post.skip("RECALL_THRESH_LIST", "EVAL_METRIC")
    post.must_be("OUTPUT_RAW_SCORE", False, "raw scores are not served", default=False)
    nms = post.section("NMS_CONFIG")
    config = second.Config(
        voxels=voxels,
        classes=common.class_entries(names, model, "CLASS_NAMES"),
        anchors=anchors,
        num_direction_bins=bins,
        direction_offset=offset,
        direction_limit_offset=limit,
        score_threshold=post.number("SCORE_THRESH"),
        **_nms(nms),
        sparse_widths=widths,
        pillar_widths=pillars[0],
        bev=bev,
    )
    common.check_boxes(config, nms)
    for section in (dense, post):
        section.finish()
    return "pointpillars" if pillars[0] else "second", LIBRARY, config


# Parts


def _head(dense: Settings, default_width: int | None = None) -> Head:
    dense.must_be("CLASS_AGNOSTIC", False, "scores of each class are served", default=False)
    dense.must_be("NUM_HM_CONV", 2, "branches of two convolutions are served")
    dense.must_be("BN_EPS", 1e-5, FIXED, default=1e-5)
    dense.skip("LOSS_CONFIG", "USE_BIAS_BEFORE_NORM", "BN_MOM", "IOU_REG_LOSS", "PREDICT_BOXES_WHEN_TRAINING")
    tasks = dense.raw("CLASS_NAMES_EACH_HEAD")
    if not isinstance(tasks, list) or not all(isinstance(task, list) for task in tasks):
        dense.problem("CLASS_NAMES_EACH_HEAD", "is not a list of lists of names")
        tasks = []
    branches = read_branches(dense, _BRANCHES)
    target = dense.section("TARGET_ASSIGNER_CONFIG")
    width = (
        dense.count("SHARED_CONV_CHANNEL")
        if default_width is None
        else dense.count("SHARED_CONV_CHANNEL", default_width)
    )
    return Head(tuple(tuple(task) for task in tasks), width, "vel" in branches, target.count("FEATURE_MAP_STRIDE"))


def _post_processing(dense: Settings) -> dict[str, Any]:
    post = dense.section("POST_PROCESSING")
    post.refuse("USE_IOU_TO_RECTIFY_SCORE", "scores of two branches are not served")
    limits = post.numbers("POST_CENTER_LIMIT_RANGE", 6)
    nms = _nms(post.section("NMS_CONFIG"))
    made = {
        "center_min": limits[:3],
        "center_max": limits[3:],
        "score_threshold": post.number("SCORE_THRESH"),
        "max_boxes": post.count("MAX_OBJ_PER_SAMPLE"),
        **nms,
    }
    post.finish()
    return made


def _nms(nms: Settings) -> dict[str, Any]:
    nms.must_be("NMS_TYPE", "nms_gpu", _NMS)
    made = {
        "nms_iou": nms.number("NMS_THRESH"),
        "nms_boxes_in": nms.count("NMS_PRE_MAXSIZE"),
        "nms_boxes_out": nms.count("NMS_POST_MAXSIZE"),
    }
    nms.must_be("MULTI_CLASSES_NMS", False, _NMS, default=False)
    nms.skip("SCORE_THRESH")  # NMS_TYPE nms_gpu does not read it
    nms.finish()
    return made


def _finish_head(model: Settings, dense: Settings, config: Any, names: Any) -> None:
    common.check_tasks(config.tasks, names, dense, "CLASS_NAMES_EACH_HEAD")
    common.check_boxes(config, dense)
    dense.finish()
    # The head decodes and suppresses by itself; the detector's own section is for measuring.
    model.skip("POST_PROCESSING")


def _anchor_list(dense: Settings, bev: Bev, bev_settings: Settings, stride: int) -> tuple[Anchor, ...]:
    anchors = []
    for i, one in enumerate(dense.sections("ANCHOR_GENERATOR_CONFIG")):
        one.skip("class_name", "matched_threshold", "unmatched_threshold")
        one.must_be(
            "align_center", False, "anchors are served with the first and last on the range's borders", default=False
        )
        sizes = one.raw("anchor_sizes")
        if not isinstance(sizes, list) or len(sizes) != 1 or not isinstance(sizes[0], list) or len(sizes[0]) != 3:
            one.problem("anchor_sizes", f"is {sizes}: one size, of three numbers, is served")
            sizes = [[1.0, 1.0, 1.0]]
        size = Settings({"anchor_sizes": sizes[0]}, one.path, one.report).numbers("anchor_sizes", 3)
        bottoms = one.numbers("anchor_bottom_heights", 1)
        rotations = one.numbers("anchor_rotations")
        common.check_bev(
            bev, stride, one.count("feature_map_stride"), bev_settings, "feature_map_stride of the anchors"
        )
        one.finish()
        # A class's score is a channel's, whatever the anchor's class: the i-th anchor's id names the i-th channel.
        anchors.append(Anchor(i, (size[0], size[1], size[2]), bottoms[0], rotations))
    return tuple(anchors)
