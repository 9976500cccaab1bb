"""Reads configurations of heads with queries: AWML's TransFusion, and the BEVFusion of AWML and mmdetection3d without
cameras.

Read in AWML at 7a6ec07c: projects/TransFusion/transfusion, projects/BEVFusion/bevfusion; in mmdetection3d at fe25f7a51
(v1.4.0): projects/BEVFusion/bevfusion.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from voxserve.export.detector_configs import common
from voxserve.export.detector_configs.mmdetection3d_layers import Layers, must_be_type, read_layers, same
from voxserve.export.detector_configs.settings import Settings
from voxserve.export.networks import trans_fusion
from voxserve.export.networks.query_head import QueryHead

LIBRARY = "mmdetection3d"
_BRANCHES = {"center": 2, "height": 1, "dim": 3, "rot": 2, "vel": 2}
_CAMERAS = ("img_backbone", "img_neck", "view_transform", "fusion_layer")
_CAMERA = "cameras are not served: give the configuration of the LiDAR alone"


def trans_fusion_l(file: Settings, model: Settings, given: Any, names: tuple[str, ...]) -> tuple[str, str, Any]:
    """Returns the command, the library and the configuration of AWML's TransFusion. names: the data set's classes."""
    layers = read_layers(file, model, "pts_", given)
    dense = model.section("pts_bbox_head")
    must_be_type(dense, "TransFusionHead")
    test = model.section("test_cfg").section("pts")
    model.skip("freeze_img")
    head = _head(dense, test, layers, names)  # all classes are tested for peaks
    return "transfusion-l", LIBRARY, _config(layers, names, dense, test, head)


def bev_fusion(file: Settings, model: Settings, given: Any, names: tuple[str, ...]) -> tuple[str, str, Any]:
    """Returns the command, the library and the configuration of BEVFusion. names: the data set's classes."""
    for part in _CAMERAS:
        model.refuse(part, _CAMERA, harmless=(None,))
    model.refuse("seg_head", "its head for a map is not served", harmless=(None,))
    layers = read_layers(file, model, "pts_", given, is_bev_fusion=True)
    dense = model.section("bbox_head")
    kind = dense.type()
    if kind not in ("TransFusionHead", "BEVFusionHead"):
        must_be_type(dense, "BEVFusionHead")
    dense.skip("type")
    test = dense.section("test_cfg")
    if kind == "BEVFusionHead":
        names = dense.names("class_names")
        head = _head(dense, test, layers, names)
        tested = dense.names("dense_heatmap_pooling_classes", ())
        unknown = [name for name in tested if name not in names]
        if unknown:
            dense.problem("dense_heatmap_pooling_classes", f"has '{unknown[0]}', which is no class of class_names")
        if "dense_heatmap_pooling_classes" in dense:
            head = replace(head, untested=tuple(i for i, name in enumerate(names) if name not in tested))
        else:
            head = replace(head, peak_kernel=1, border="")
    else:
        head = _head(dense, test, layers, names)
        data_set = test.text("dataset")
        head = replace(head, untested=common.untested_classes(data_set, len(names)))
    return "bevfusion-l", LIBRARY, _config(layers, names, dense, test, head, is_xyz=True)


def _config(
    layers: Layers, names: tuple[str, ...], dense: Settings, test: Settings, head: QueryHead, *, is_xyz: bool = False
) -> trans_fusion.Config:
    common.check_bev(layers.bev, layers.stride, head.stride, layers.neck, "out_size_factor of the bbox_coder")
    common.check_queries(head, len(names), dense, kernel="nms_kernel_size")
    for section in (dense, test):
        section.finish()
    return trans_fusion.Config(
        voxels=layers.voxels,
        classes=common.class_entries(names, dense, "class_names"),
        head=head,
        sparse_widths=layers.sparse_widths,
        sparse_out_width=layers.sparse_out_width,
        is_plain=bool(layers.is_plain),
        pillar_widths=layers.pillar_widths,
        is_legacy_pillar=layers.is_legacy_pillar,
        bev=layers.bev,
        is_xyz=is_xyz,
        waves=layers.waves,
    )


def _head(dense: Settings, test: Settings, layers: Layers, names: tuple[str, ...]) -> QueryHead:
    """Returns what a head says. test: its section for testing."""
    if "class_names" not in dense and dense.count("num_classes", 4) != len(names):
        dense.problem("num_classes", f"is {dense.count('num_classes', 4)}, but the data set has {list(names)}")
    dense.must_be("num_decoder_layers", 1, "one decoder layer is served", default=3)
    dense.must_be("num_heatmap_convs", 2, "branches of two convolutions are served", default=2)
    dense.must_be("conv_cfg", {"type": "Conv1d"}, "no other convolution is served", default={"type": "Conv1d"})
    dense.must_be("norm_cfg", {"type": "BN1d"}, "torch's default is served", default={"type": "BN1d"})
    dense.must_be("bias", "auto", "the library's default is served", default="auto")
    dense.skip("auxiliary", "in_channels", "num_heads", "bn_momentum", "loss_bbox", "loss_heatmap", "train_cfg")
    dense.skip("test_cfg", "init_cfg", "class_names")
    dense.section("loss_cls").must_be("use_sigmoid", True, "scores are sigmoids", default=False)
    width = dense.count("hidden_channel", 128)
    heads, feed_forward = _decoder(dense.section("decoder_layer"), width)
    branches = dense.section("common_heads")
    for name, channels in _BRANCHES.items():
        if name != "vel" or name in branches:
            branches.must_be(name, [channels, 2], "channels and convolutions that are served")
    branches.finish()
    coder = dense.section("bbox_coder")
    must_be_type(coder, "TransFusionBBoxCoder")
    same(coder, "voxel_size", layers.voxels.size[:2], None, "that of the voxels", first=2)
    same(coder, "pc_range", layers.voxels.range_min[:2], None, "that of the voxels", first=2)
    coder.skip("code_size")
    limits = coder.numbers("post_center_range", 6)
    threshold, stride = coder.number("score_threshold", 0.0), coder.count("out_size_factor")
    coder.finish()
    _test(test, layers, stride)
    return QueryHead(
        num_queries=dense.count("num_proposals", 128),
        peak_kernel=dense.count("nms_kernel_size", 1),
        has_velocity="vel" in branches,
        center_min=limits[:3],
        center_max=limits[3:],
        bounds_bottom=True,
        score_thresholds=(threshold,),
        stride=stride,
        width=width,
        num_heads=heads,
        feed_forward=feed_forward,
    )


def _decoder(layer: Settings, width: int) -> tuple[int, int]:
    """Returns a decoder layer's number of heads, and the width of its feed-forward network."""
    must_be_type(layer, "TransformerDecoderLayer")
    numbers = []
    for key in ("self_attn_cfg", "cross_attn_cfg"):
        attention = layer.section(key)
        attention.must_be("embed_dims", width, "the head's hidden_channel", default=256)
        attention.skip("dropout", "attn_drop", "proj_drop")
        numbers.append(attention.count("num_heads", 8))
        attention.finish()
    if numbers[0] != numbers[1]:
        layer.problem("cross_attn_cfg.num_heads", f"is {numbers[1]}, but that of self_attn_cfg is {numbers[0]}")
    ffn = layer.section("ffn_cfg")
    ffn.must_be("embed_dims", width, "the head's hidden_channel", default=256)
    ffn.must_be("num_fcs", 2, "two layers are served", default=2)
    feed_forward = ffn.count("feedforward_channels", 1024)
    ffn.skip("ffn_drop", "dropout_layer")
    activation = ffn.optional_section("act_cfg")
    activation.must_be("type", "ReLU", "no other activation is served", default="ReLU")
    activation.skip("inplace")
    for section in (activation, ffn):
        section.finish()
    layer.must_be("norm_cfg", {"type": "LN"}, "layer norms are served", default={"type": "LN"})
    positions = layer.optional_section("pos_encoding_cfg")
    positions.must_be("input_channel", 2, "positions of two numbers are served", default=2)
    positions.must_be("num_pos_feats", width, "the head's hidden_channel", default=128)
    positions.finish()
    layer.finish()
    return numbers[0], feed_forward


def _test(test: Settings, layers: Layers, stride: int) -> None:
    kind = test.raw("nms_type")
    if kind is not None:
        test.problem(
            "nms_type",
            f"is {kind!r}: NMS of a head with queries, by the distance of centres or group by group, is not served. "
            "The same weights can be served with nms_type=None",
        )
    test.skip("nms_clusters", "pre_max_size", "post_max_size", "pre_maxsize", "post_maxsize", "dataset")
    test.must_be("out_size_factor", stride, "that of the bbox_coder", default=stride)
    test.skip("voxel_size", "pc_range", "point_cloud_range")
    grid = layers.voxels.grid() if min(layers.voxels.size) > 0 else (1, 1, 1)
    cells = test.items("grid_size")
    if list(cells[:2]) != list(grid[:2]):
        test.problem("grid_size", f"is {list(cells)}, but the range has {grid[0]} x {grid[1]} voxels on x and y")
