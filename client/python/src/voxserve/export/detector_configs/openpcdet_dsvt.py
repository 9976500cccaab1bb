"""Reads configurations of DSVT on pillars: OpenPCDet's (tools/cfgs/waymo_models/dsvt_pillar.yaml) and those of
Haiyang-W/DSVT (tools/cfgs/dsvt_models/dsvt_plain_1f_onestage.yaml), which has other names of some parts.

Read in OpenPCDet at 8caccce, and in Haiyang-W/DSVT at 3a328f2: pcdet/models/{backbones_3d,backbones_2d,dense_heads},
model_utils/model_nms_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from voxserve.export.detector_configs import common
from voxserve.export.detector_configs.openpcdet_layers import bev_of, must_be_name, read_branches, read_voxels
from voxserve.export.detector_configs.settings import Settings
from voxserve.export.image_nodes import ClassNms
from voxserve.export.networks import dsvt
from voxserve.export.networks.dsvt import BevStage, Windows

_BRANCHES = {"center": 2, "center_z": 1, "dim": 3, "rot": 2, "vel": 2}
_FIRST, _OWN = "DynamicVoxelVFE", "DynPillarVFE3D"  # OpenPCDet's name, and that of Haiyang-W/DSVT
_ONE_STAGE = "one stage, on pillars, is served"
_TURNED = (
    "the library's multi_class_nms turns each box by a quarter turn before it compares them; the server compares the "
    "boxes as they are, so other boxes may be suppressed"
)


def is_dsvt(model: Settings) -> bool:
    """Returns whether the network has DSVT's blocks, and a head that is served after them."""
    backbone = model.readable("BACKBONE_3D")
    return isinstance(backbone, Mapping) and backbone.get("NAME") == "DSVT"


def read(model: Settings, data: Settings, names: Any, features: Any) -> tuple[str, str, Any]:
    """Returns the command, the library and the configuration."""
    vfe = model.section("VFE")
    is_own = vfe.readable("NAME") == _OWN
    widths = _vfe(vfe)
    # Haiyang-W/DSVT takes tanh of both columns, and has no setting for it.
    voxels = read_voxels(data, features, is_dynamic=True, tanh_columns=(3, 4) if is_own else (3,))
    common.check_voxels(voxels, data, "POINT_CLOUD_RANGE", is_pillar=True, is_sparse=False)
    grid = list(voxels.grid()) if min(voxels.size) > 0 else []
    blocks = _blocks(model.section("BACKBONE_3D"), grid)
    if widths and set(widths) != {blocks["width"]}:
        vfe.problem("NUM_FILTERS", f"is {list(widths)}, but the blocks have {blocks['width']} channels")
    to_bev = model.section("MAP_TO_BEV")
    must_be_name(to_bev, "PointPillarScatter3d")
    to_bev.must_be("INPUT_SHAPE", grid, "the range's pillars on x, y and z")
    to_bev.must_be("NUM_BEV_FEATURES", blocks["width"], "the channels of the blocks")
    to_bev.finish()
    dense = model.section("DENSE_HEAD")
    must_be_name(dense, "CenterHead")
    stages = _stages(model.section("BACKBONE_2D"))
    config = dsvt.Config(
        voxels=voxels,
        classes=common.class_entries(names, dense, "CLASS_NAMES_EACH_HEAD"),
        **_head(dense, names),
        **blocks,
        stages=stages,
    )
    common.check_tasks(config.tasks, names, dense, "CLASS_NAMES_EACH_HEAD")
    common.check_boxes(config, dense)
    dense.finish()
    model.skip("POST_PROCESSING")  # for measuring: the head decodes and suppresses by itself
    return "dsvt", "openpcdet", config


def _vfe(vfe: Settings) -> tuple[int, ...]:
    """Returns the widths of the pillars' two layers."""
    name = vfe.text("NAME")
    if name and name not in (_FIRST, _OWN):
        vfe.problem("NAME", f"is '{name}', not {_FIRST} or {_OWN}")
        vfe.drop()
        return ()
    vfe.must_be("WITH_DISTANCE", False, "distances are not served")
    vfe.must_be("USE_ABSLOTE_XYZ", True, "pillars are served with absolute positions")
    vfe.must_be("USE_NORM", True, "pillars are served with batch norms")
    widths = vfe.counts("NUM_FILTERS")
    if len(widths) != 2 or len(set(widths)) != 1 or widths[0] % 2:
        vfe.problem("NUM_FILTERS", f"is {list(widths)}: two layers of one even width are served")
    vfe.finish()
    return widths


def _blocks(backbone: Settings, grid: Sequence[int]) -> dict[str, Any]:
    """Returns what the section says of the blocks. grid: the range's pillars."""
    inputs = backbone.section("INPUT_LAYER")
    inputs.must_be("sparse_shape", list(grid), "the range's pillars on x, y and z")
    inputs.must_be("downsample_stride", [], _ONE_STAGE, default=[])
    inputs.must_be("normalize_pos", False, "places in windows are served as they are")
    backbone.must_be("block_name", ["DSVTBlock"], _ONE_STAGE)
    backbone.must_be("activation", "gelu", "no other activation is served")
    backbone.skip("NAME", "dropout", "USE_CHECKPOINT", "ues_checkpoint", "reduction_type", "output_shape")
    width = _count(backbone, "d_model")
    group_size, num_blocks = _numbers(backbone, "set_info", _stage(backbone, "set_info"), 2)
    for key in ("d_model", "set_info"):
        inputs.must_be(key, backbone.raw(key), f"that of {backbone.place('')}")
    backbone.must_be("conv_out_channel", width, "the channels of the blocks")
    num_heads = _count(backbone, "nhead")
    if width % num_heads:
        backbone.problem("nhead", f"is {num_heads}, which does not divide the {width} channels")
    made = {
        "width": width,
        "num_heads": num_heads,
        "hidden": _count(backbone, "dim_feedforward"),
        "num_blocks": num_blocks,
        "group_size": group_size,
        "windows": _windows(inputs),
    }
    inputs.finish()
    backbone.finish()
    return made


def _stage(settings: Settings, key: str) -> Any:
    """Returns the only value of a list with a value for each stage; None if it has others."""
    values = settings.items(key)
    if len(values) != 1:
        settings.problem(key, f"is {list(values)}: {_ONE_STAGE}")
        return None
    return values[0]


def _count(settings: Settings, key: str) -> int:
    value = _stage(settings, key)
    return 1 if value is None else Settings({key: value}, settings.path, settings.report).count(key)


def _numbers(settings: Settings, key: str, values: Any, length: int, *, low: int = 1) -> tuple[int, ...]:
    """Returns whole numbers of a list that lies in the list `key`."""
    if values is not None:
        found = Settings({key: values}, settings.path, settings.report).counts(key, low=low)
        if len(found) == length:
            return found
        settings.problem(key, f"has {len(found)} numbers for a stage, not {length}")
    return (low,) * length


def _windows(inputs: Settings) -> tuple[Windows, Windows]:
    """Returns the windows of even and of odd blocks."""
    shape = _numbers(inputs, "window_shape", _stage(inputs, "window_shape"), 3)
    factors = _numbers(inputs, "hybrid_factor", inputs.items("hybrid_factor"), 3)
    shifts = _stage(inputs, "shifts_list")
    if shifts is not None and (not isinstance(shifts, (list, tuple)) or len(shifts) != 2):
        inputs.problem("shifts_list", f"has {shifts} for a stage, not two shifts")
        shifts = None
    moved = [_numbers(inputs, "shifts_list", one, 3, low=0) for one in shifts or (None, None)]
    if shape[2] * factors[2] != 1 or any(one[2] for one in moved):
        inputs.problem("window_shape", "with hybrid_factor and shifts_list must have one pillar on z, and no shift")
    sizes = [(shape[0], shape[1]), (shape[0] * factors[0], shape[1] * factors[1])]
    for size, shift in zip(sizes, moved, strict=True):
        if not all(a < b for a, b in zip(shift, size, strict=False)):
            inputs.problem("shifts_list", f"has {list(shift)}, which is not below the window's {list(size)}")
    first, second = (Windows(size, (shift[0], shift[1])) for size, shift in zip(sizes, moved, strict=True))
    return first, second


def _stages(settings: Settings) -> tuple[BevStage, ...]:
    must_be_name(settings, "BaseBEVResBackbone")
    bev = bev_of(settings)
    settings.finish()
    common.check_bev(bev, 1, 1, settings, "the size of the head's cells, in pillars,")
    if any(up < 1 for up in bev.up_strides):
        settings.problem("UPSAMPLE_STRIDES", f"is {list(bev.up_strides)}: strides of 1 or more are served")
    rows = zip(bev.num_layers, bev.strides, bev.widths, bev.up_strides, bev.up_widths, strict=False)
    return tuple(BevStage(num, stride, width, round(up), up_width) for num, stride, width, up, up_width in rows)


def _head(dense: Settings, names: Sequence[str]) -> dict[str, Any]:
    """Returns what the head says. names: the classes."""
    dense.must_be("CLASS_AGNOSTIC", False, "scores of each class are served", default=False)
    dense.must_be("NUM_HM_CONV", 2, "branches of two convolutions are served")
    dense.must_be("UPSAMPLE", 1, "a head without upsampling is served", default=1)
    dense.skip("LOSS_CONFIG", "USE_BIAS_BEFORE_NORM", "BN_MOM", "IOU_REG_LOSS", "PREDICT_BOXES_WHEN_TRAINING")
    tasks = dense.raw("CLASS_NAMES_EACH_HEAD")
    if not isinstance(tasks, list) or not all(isinstance(task, list) for task in tasks):
        dense.problem("CLASS_NAMES_EACH_HEAD", "is not a list of lists of names")
        tasks = []
    has_iou = "iou" in dense.section("SEPARATE_HEAD_CFG").section("HEAD_DICT")
    branches = read_branches(dense, _BRANCHES, beside={"iou": 1} if has_iou else {})
    dense.section("TARGET_ASSIGNER_CONFIG").must_be("FEATURE_MAP_STRIDE", 1, "cells as large as pillars are served")
    epsilon = dense.number("BN_EPS", 1e-5)
    if not epsilon > 0:
        dense.problem("BN_EPS", f"is {epsilon}, not above 0")
    post = dense.section("POST_PROCESSING")
    limits = post.numbers("POST_CENTER_LIMIT_RANGE", 6)
    made = {
        "tasks": common.tasks_of(tasks, names),
        "has_velocity": "vel" in branches,
        "center_min": limits[:3],
        "center_max": limits[3:],
        "score_threshold": post.number("SCORE_THRESH"),
        "max_boxes": post.count("MAX_OBJ_PER_SAMPLE"),
        "epsilon": epsilon,
        "head_width": dense.count("SHARED_CONV_CHANNEL"),
        "iou_powers": _powers(post, has_iou, len(names)),
        **_nms(post.section("NMS_CONFIG"), len(names)),
    }
    post.finish()
    return made


def _powers(post: Settings, has_iou: bool, num_classes: int) -> tuple[float, ...]:
    post.must_be("USE_IOU_TO_RECTIFY_SCORE", has_iou, "as the head has a branch iou, or has none", default=False)
    if not has_iou:
        post.skip("IOU_RECTIFIER")
        return ()
    powers = post.numbers("IOU_RECTIFIER", num_classes)
    if not all(0 <= power <= 1 for power in powers):
        post.problem("IOU_RECTIFIER", f"is {list(powers)}: powers of 0 to 1 are served")
    return powers


def _nms(nms: Settings, num_classes: int) -> dict[str, Any]:
    """Returns the suppression, class by class."""
    kind = nms.text("NMS_TYPE")
    if kind == "multi_class_nms":
        nms.report.notes.append(_TURNED)
    elif kind and kind != "class_specific_nms":
        nms.problem("NMS_TYPE", f"is '{kind}', not class_specific_nms or multi_class_nms")
    nms.refuse("SCORE_THRESH", "another threshold than the head's is not served", harmless=(None,))
    overlaps = nms.numbers("NMS_THRESH", num_classes)
    reads, keeps = nms.counts("NMS_PRE_MAXSIZE"), nms.counts("NMS_POST_MAXSIZE")
    for key, values in (("NMS_PRE_MAXSIZE", reads), ("NMS_POST_MAXSIZE", keeps)):
        if len(values) != num_classes:
            nms.problem(key, f"has {len(values)} numbers, not {num_classes}")
    if not all(0 <= overlap <= 1 for overlap in overlaps):
        nms.problem("NMS_THRESH", f"is {list(overlaps)}: overlaps of 0 to 1 are served")
    nms.finish()
    classes = tuple(ClassNms(i, *values) for i, values in enumerate(zip(overlaps, reads, keeps, strict=False)))
    return {"nms_iou": 0, "nms_boxes_in": 0, "nms_boxes_out": 0, "nms_classes": classes}
