"""Reads OpenPCDet's configurations of TransFusion (tools/cfgs/nuscenes_models/transfusion_lidar.yaml).

Read in OpenPCDet at 8caccce: pcdet/models/dense_heads/transfusion_head.py.
"""

from __future__ import annotations

from typing import Any

from voxserve.export.detector_configs import common
from voxserve.export.detector_configs.openpcdet_layers import (
    must_be_name,
    read_backbone_3d,
    read_bev,
    read_branches,
    read_vfe,
    read_voxels,
)
from voxserve.export.detector_configs.settings import Settings
from voxserve.export.networks import trans_fusion
from voxserve.export.networks.query_head import QueryHead

_BRANCHES = {"center": 2, "height": 1, "dim": 3, "rot": 2, "vel": 2}


def _head(dense: Settings, names: Any) -> QueryHead:
    """Returns what a TransFusionHead says. names: the classes."""
    dense.must_be("CLASS_AGNOSTIC", False, "scores of each class are served", default=False)
    dense.must_be("NUM_HM_CONV", 2, "branches of two convolutions are served")
    dense.must_be("ACTIVATION", "relu", "no other activation is served")
    dense.must_be("NUM_CLASSES", len(names), "the number of CLASS_NAMES", default=len(names))
    dense.skip("USE_BIAS_BEFORE_NORM", "DROPOUT", "BN_MOMENTUM", "PREDICT_BOXES_WHEN_TRAINING")
    loss = dense.section("LOSS_CONFIG")
    loss.section("LOSS_CLS").must_be("use_sigmoid", True, "scores are sigmoids", default=False)
    branches = read_branches(dense, _BRANCHES)
    target, post = dense.section("TARGET_ASSIGNER_CONFIG"), dense.section("POST_PROCESSING")
    post.refuse("NMS_CONFIG", "the library's head has no NMS", harmless=(None,))
    limits = post.numbers("POST_CENTER_RANGE", 6)
    head = QueryHead(
        num_queries=dense.count("NUM_PROPOSALS"),
        peak_kernel=dense.count("NMS_KERNEL_SIZE"),
        untested=common.untested_classes(target.text("DATASET", "nuScenes"), len(names)),
        has_velocity="vel" in branches,
        center_min=limits[:3],
        center_max=limits[3:],
        score_thresholds=(post.number("SCORE_THRESH"),),
        stride=target.count("FEATURE_MAP_STRIDE"),
        width=dense.count("HIDDEN_CHANNEL"),
        num_heads=dense.count("NUM_HEADS"),
        feed_forward=dense.count("FFN_CHANNEL"),
    )
    post.finish()
    common.check_queries(head, len(names), dense, kernel="NMS_KERNEL_SIZE")
    return head


def read(model: Settings, data: Settings, names: Any, features: Any) -> tuple[str, str, Any]:
    """Returns the command, the library and the configuration."""
    pillars = read_vfe(model)
    voxels = read_voxels(data, features, is_dynamic=pillars[1])
    has_bias = not pillars[0] and model.section("BACKBONE_3D").flag("USE_BIAS", True)
    plain, widths = read_backbone_3d(model, bool(pillars[0]), has_bias=has_bias)
    bev, bev_settings = read_bev(model)
    dense = model.section("DENSE_HEAD")
    must_be_name(dense, "TransFusionHead")
    head = _head(dense, names)
    common.check_bev(bev, 1 if pillars[0] else 8, head.stride, bev_settings, "FEATURE_MAP_STRIDE")
    common.check_voxels(voxels, data, "POINT_CLOUD_RANGE", is_pillar=bool(pillars[0]), is_sparse=True)
    config = trans_fusion.Config(
        voxels=voxels,
        classes=common.class_entries(names, model, "CLASS_NAMES"),
        head=head,
        sparse_widths=widths,
        is_plain=bool(plain),
        has_block_bias=has_bias,
        pillar_widths=pillars[0],
        bev=bev,
    )
    if min(voxels.size) > 0 and len(set(config.cells())) != 1:
        rows, columns = config.cells()
        data.problem(
            "POINT_CLOUD_RANGE",
            f"has {columns} x {rows} cells on x and y: the library numbers the positions of a square alone rightly",
        )
    dense.finish()
    model.skip("POST_PROCESSING")  # for measuring
    return "transfusion-l", "openpcdet", config
