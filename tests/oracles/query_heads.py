"""Computes boxes with the libraries' own modules, for networks whose heads have queries, with random weights
(query_golden.py of client/python/tests), and writes them to tests/golden/queries/CASE.npz:

    pip install torch PyYAML six platformdirs termcolor addict yapf spconv scipy
    pip install --no-deps mmdet3d==1.4.0 mmdet==3.3.0 mmengine==0.10.7 mmcv-lite==2.2.0
    OMP_NUM_THREADS=1 PYTHONPATH=client/python/src:client/python/tests \\
        python tests/oracles/query_heads.py CASE CLONE tests/golden/queries/CASE.npz

CASE and its CLONE: openpcdet (open-mmlab/OpenPCDet 8caccce), bevfusion (mit-han-lab/bevfusion 326653d), awml-bevfusion
and awml-transfusion (tier4/AWML 7a6ec07c), autoware-ptv3 (autoware-ml 04952df).

The libraries' classes compute everything from the voxels to the boxes, with spconv 2.3.8 on a CPU. Voxels are made
here, since the compiled operators of mmcv and bevfusion are not installed, and bevfusion's copy of spconv 1 is replaced
by mmdetection3d's layers on spconv 2. Calls of .cuda() do nothing. What autoware-ml needs a GPU for is replaced as in
tests/golden/README.md.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np
from mmdetection3d_boxes import Unused, cells_of

SEED = 5
THRESHOLD = 0.3  # boxes have a higher score
RANGE, SIZE = (-25.6, -25.6, -3.0, 25.6, 25.6, 5.0), (0.1, 0.1, 0.2)
PILLAR_SIZE = (0.2, 0.2, 8)
GRID = (512, 512, 41)  # x, y, z, with spconv's additional cell


def fill(module, prefix=""):
    """Fills a module with the weights of the golden's rule. Returns their shapes, and the values of buffers that no
    rule gives, by name.
    """
    import torch
    from query_golden import values

    shapes, buffers = {}, {}
    for name, tensor in module.state_dict().items():
        key = prefix + name
        if name.endswith("num_batches_tracked"):
            continue
        if "aug_features" in name or name.endswith("exponents"):
            buffers[key] = tensor.tolist()
            continue
        shapes[key] = list(tensor.shape)
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(values(key, tuple(tensor.shape), SEED)))
    module.eval()
    return shapes, buffers


def stub(name, **names):
    """Puts a module with some names in the place of one that cannot be imported."""
    module = types.ModuleType(name)
    module.__path__ = []
    vars(module).update(names)
    sys.modules[name] = module
    return module


class Config(dict):
    """A dict whose values are attributes too, as OpenPCDet reads its configurations."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]

    @staticmethod
    def of(value):
        if isinstance(value, list):
            return [Config.of(one) for one in value]
        return Config({k: Config.of(v) for k, v in value.items()}) if isinstance(value, dict) else value


def read_config(path):
    """Returns the Config of a yaml file."""
    import yaml

    return Config.of(yaml.safe_load(path.read_text()))


def file_module(name, path):
    """Imports one file under a name."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def voxels(points, size, most, *, is_xyz):
    """Returns the means of voxels' first points, and coordinates (batch, then z, y, x or x, y, z)."""
    import torch

    layer = types.SimpleNamespace(point_cloud_range=RANGE, voxel_size=size, max_num_points=most)
    cells = cells_of(points, layer)
    means = torch.from_numpy(np.array([np.mean(rows, axis=0, dtype=np.float32) for rows in cells.values()]))
    places = np.array(list(cells))
    places = places[:, ::-1] if is_xyz else places
    return means, torch.tensor(np.c_[np.zeros(len(places), np.int64), places].astype(np.int32)), cells


def rows_of(boxes, scores, labels, *, z_is_bottom, is_old=False):
    """Returns the golden's rows. is_old: the boxes have width before length, and -yaw - pi / 2."""
    boxes, result = boxes.numpy(), np.zeros((len(scores), 11), np.float32)
    result[:, : boxes.shape[1]] = boxes
    if is_old:
        result[:, 3:5] = boxes[:, 4:2:-1]
        result[:, 6] = -boxes[:, 6] - np.pi / 2
    if z_is_bottom:
        result[:, 2] += boxes[:, 5] / 2
    result[:, 6] = np.arctan2(np.sin(result[:, 6]), np.cos(result[:, 6]))
    result[:, 9], result[:, 10] = scores.numpy(), labels.numpy()
    return result


# Cases: each returns shapes, buffers, boxes and labels.


def openpcdet(clone, points):
    import torch

    for name in ("pcdet", "pcdet.models", "pcdet.models.dense_heads", "pcdet.models.dense_heads.target_assigner"):
        stub(name).__path__ = [str(clone / name.replace(".", "/"))]
    for name in ("pcdet.models.backbones_3d", "pcdet.models.backbones_2d", "pcdet.models.backbones_2d.map_to_bev"):
        stub(name).__path__ = [str(clone / name.replace(".", "/"))]
    stub("pcdet.models.model_utils").__path__ = [str(clone / "pcdet/models/model_utils")]
    stub("pcdet.utils").__path__ = [str(clone / "pcdet/utils")]
    for name in ("loss_utils", "box_utils", "common_utils"):
        stub(f"pcdet.utils.{name}", SigmoidFocalLossCls=None)
    loss = types.SimpleNamespace
    sys.modules["pcdet.utils"].loss_utils = loss(
        SigmoidFocalClassificationLoss=loss, L1Loss=loss, GaussianFocalLoss=loss
    )
    stub("pcdet.models.model_utils.centernet_utils")
    sys.modules["pcdet.models.model_utils"].centernet_utils = None
    stub("pcdet.models.dense_heads.target_assigner.hungarian_assigner", HungarianAssigner3D=loss)
    torch.Tensor.cuda = lambda self: self
    np.int = int  # which NumPy no longer has
    load = importlib.import_module
    config = read_config(clone / "tools/cfgs/nuscenes_models/transfusion_lidar.yaml")
    model = config.MODEL
    model.DENSE_HEAD.POST_PROCESSING |= {"SCORE_THRESH": THRESHOLD, "POST_CENTER_RANGE": [-24.0, -24.0, -9, 24, 24, 9.0]}
    backbone = load("pcdet.models.backbones_3d.spconv_backbone").VoxelResBackBone8x(
        model.BACKBONE_3D, points.shape[1], np.array([512, 512, 40])
    )
    to_bev = load("pcdet.models.backbones_2d.map_to_bev.height_compression").HeightCompression(model.MAP_TO_BEV)
    image = load("pcdet.models.backbones_2d.base_bev_backbone").BaseBEVBackbone(model.BACKBONE_2D, 256)
    head = load("pcdet.models.dense_heads.transfusion_head").TransFusionHead(
        model.DENSE_HEAD, 512, 10, config.CLASS_NAMES, np.array([512, 512, 40]), RANGE, SIZE
    )
    shapes = {}
    for name, part in (("backbone_3d", backbone), ("backbone_2d", image), ("dense_head", head)):
        shapes |= fill(part, f"{name}.")[0]
    means, places, _ = voxels(points, SIZE, 10, is_xyz=False)
    batch = {"batch_size": 1, "voxel_features": means, "voxel_coords": places}
    found = head(image(to_bev(backbone(batch))))["final_box_dicts"][0]
    boxes = rows_of(found["pred_boxes"], found["pred_scores"], found["pred_labels"] - 1, z_is_bottom=False)
    return shapes, {}, boxes, np.zeros(0)


def mmdetection3d_parts():
    """Makes mmdetection3d importable without compiled operators."""
    import mmcv

    mmcv.__version__ = "2.1.0"  # which mmdet3d asks for
    from mmengine.registry import init_default_scope

    init_default_scope("mmdet3d")


COMMON_HEADS = {"center": [2, 2], "height": [1, 2], "dim": [3, 2], "rot": [2, 2], "vel": [2, 2]}
SPARSE = {
    "in_channels": 5,
    "sparse_shape": list(GRID),
    "output_channels": 128,
    "order": ("conv", "norm", "act"),
    "encoder_channels": ((16, 16, 32), (32, 32, 64), (64, 64, 128), (128, 128)),
    "encoder_paddings": ((0, 0, 1), (0, 0, 1), (0, 0, (1, 1, 0)), (0, 0)),
    "block_type": "basicblock",
}
NORM = {"type": "BN", "eps": 1e-3, "momentum": 0.01}
SECOND = {
    "in_channels": 256,
    "out_channels": [128, 256],
    "layer_nums": [5, 5],
    "layer_strides": [1, 2],
    "norm_cfg": NORM,
    "conv_cfg": {"type": "Conv2d", "bias": False},
}
FPN = {
    "in_channels": [128, 256],
    "out_channels": [256, 256],
    "upsample_strides": [1, 2],
    "norm_cfg": NORM,
    "upsample_cfg": {"type": "deconv", "bias": False},
    "use_conv_for_no_stride": True,
}


def coder(made, size, factor, limits):
    return made(pc_range=RANGE[:2], out_size_factor=factor, voxel_size=size[:2], post_center_range=limits,
                score_threshold=THRESHOLD, code_size=10)  # fmt: skip


def bevfusion(clone, points):
    """mit-han-lab/bevfusion, of mmdetection3d 0.x, on mmcv-lite 2 and mmdetection3d 1.4's sparse layers."""
    mmdetection3d_parts()
    from mmdet3d.models.layers import SparseBasicBlock, make_sparse_convmodule
    from mmengine.model import BaseModule
    from mmengine.registry import Registry

    registry = Registry("mit")
    keep = lambda *_, **__: lambda function: function  # noqa: E731
    stub("mmcv.runner", BaseModule=BaseModule, auto_fp16=keep, force_fp32=keep)
    import mmdet.models
    import spconv.pytorch

    # mmdetection3d 0.x imports these names, which 1.4 has in other modules.
    import mmcv.cnn
    import mmengine.model

    mmcv.cnn.kaiming_init = mmengine.model.kaiming_init
    mmdet.models.BACKBONES, mmdet.models.NECKS = registry, registry
    stub("mmdet3d.ops", SparseBasicBlock=SparseBasicBlock, make_sparse_convmodule=make_sparse_convmodule,
         spconv=spconv.pytorch)  # fmt: skip
    root, nothing = clone / "mmdet3d/models", dict.fromkeys
    encoder = file_module("mit.encoder", root / "backbones/sparse_encoder.py").SparseEncoder(**SPARSE)
    backbone = file_module("mit.second", root / "backbones/second.py").SECOND(**SECOND)
    neck = file_module("mit.fpn", root / "necks/second.py").SECONDFPN(**FPN)
    layers = file_module("mit.transformer", root / "utils/transformer.py")
    stub("mmdet.core")
    stub("mmdet.core.bbox", BaseBBoxCoder=object)
    stub("mmdet.core.bbox.builder", BBOX_CODERS=Registry("coders"))
    coders = file_module("mit.coder", clone / "mmdet3d/core/bbox/coders/transfusion_bbox_coder.py")
    names = ("PseudoSampler", "circle_nms", "draw_heatmap_gaussian", "gaussian_radius", "xywhr2xyxyr")
    stub("mmdet3d.core", **nothing(names))
    stub("mmdet3d.models.builder", HEADS=registry, build_loss=lambda _: None)
    stub("mmdet3d.models.utils", **{k: getattr(layers, k) for k in layers.__all__})
    stub("mmdet3d.ops.iou3d")
    stub("mmdet3d.ops.iou3d.iou3d_utils", nms_gpu=None)
    limits = [-24.0, -24.0, -9, 24, 24, 9.0]
    stub("mmdet.core", AssignResult=None, build_assigner=None, build_sampler=None,
         build_bbox_coder=lambda _: coder(coders.TransFusionBBoxCoder, SIZE, 8, limits),
         multi_apply=lambda f, *given: tuple(map(list, zip(*map(f, *given), strict=True))))  # fmt: skip
    head = file_module("mit.head", root / "heads/bbox/transfusion.py").TransFusionHead(
        num_proposals=200, in_channels=512, num_classes=10, num_decoder_layers=1, nms_kernel_size=3,
        common_heads=COMMON_HEADS, loss_cls={"use_sigmoid": True}, bbox_coder={},
        test_cfg={"dataset": "nuScenes", "grid_size": GRID, "out_size_factor": 8, "nms_type": None},
    )  # fmt: skip
    shapes = {}
    for name, part in (("encoders.lidar.backbone", encoder), ("decoder.backbone", backbone), ("decoder.neck", neck),
                       ("heads.object", head)):  # fmt: skip
        shapes |= fill(part, f"{name}.")[0]
    means, places, _ = voxels(points, SIZE, 10, is_xyz=True)
    x = neck(backbone(encoder(means, places, 1)))[0]
    boxes, scores, labels = head.get_bboxes(
        head(x, [{}]), [{"box_type_3d": lambda tensor, box_dim: types.SimpleNamespace(tensor=tensor)}]
    )[0]
    return shapes, {}, rows_of(boxes.tensor, scores, labels, z_is_bottom=True, is_old=True), np.zeros(0)


DECODER = {
    "type": "TransformerDecoderLayer",
    "self_attn_cfg": {"embed_dims": 128, "num_heads": 8, "dropout": 0.1},
    "cross_attn_cfg": {"embed_dims": 128, "num_heads": 8, "dropout": 0.1},
    "ffn_cfg": {"embed_dims": 128, "feedforward_channels": 256, "num_fcs": 2, "ffn_drop": 0.1,
                "act_cfg": {"type": "ReLU", "inplace": True}},
    "norm_cfg": {"type": "LN"},
    "pos_encoding_cfg": {"input_channel": 2, "num_pos_feats": 128},
}  # fmt: skip
AWML_CLASSES = ["car", "truck", "bus", "bicycle", "pedestrian"]


def awml_head(head, **options):
    return head(
        auxiliary=True, hidden_channel=128, nms_kernel_size=3, num_decoder_layers=1, decoder_layer=DECODER,
        common_heads=COMMON_HEADS, loss_cls={"type": "mmdet.FocalLoss", "use_sigmoid": True},
        loss_bbox={"type": "mmdet.L1Loss"}, loss_heatmap={"type": "mmdet.GaussianFocalLoss"}, **options,
    )  # fmt: skip


def awml_boxes(head, x):
    from mmdet3d.structures import LiDARInstance3DBoxes

    found = head.predict(x, [{"box_type_3d": LiDARInstance3DBoxes}])[0]
    return rows_of(found.bboxes_3d.tensor, found.scores_3d, found.labels_3d, z_is_bottom=True)


def awml_bevfusion(clone, points):
    mmdetection3d_parts()
    from mmdet3d.registry import MODELS

    folder = clone / "projects/BEVFusion/bevfusion"
    for name in ("transformer", "utils"):
        file_module(f"awml.{name}", folder / f"{name}.py")
    encoder = file_module("awml.encoder", folder / "sparse_encoder.py").BEVFusionSparseEncoder(
        num_aug_features=5, aug_features_min_values=[*RANGE[:3], 0.0, 0.0],
        aug_features_max_values=[*RANGE[3:], 255.0, 0.2], **SPARSE,
    )  # fmt: skip
    backbone, neck = MODELS.build({"type": "SECOND", **SECOND}), MODELS.build({"type": "SECONDFPN", **FPN})
    limits = [-24.0, -24.0, -9, 24, 24, 9.0]
    head = awml_head(
        file_module("awml.head", folder / "bevfusion_head.py").BEVFusionHead,
        class_names=AWML_CLASSES, num_proposals=500, in_channels=512,
        dense_heatmap_pooling_classes=["car", "truck", "bus", "bicycle"],
        test_cfg={"dataset": "t4datasets", "grid_size": GRID, "out_size_factor": 8, "nms_type": None},
        bbox_coder={"type": "TransFusionBBoxCoder", "pc_range": RANGE[:2], "voxel_size": SIZE[:2],
                    "post_center_range": limits, "score_threshold": THRESHOLD, "out_size_factor": 8, "code_size": 10},
    )  # fmt: skip
    shapes, buffers = fill(encoder, "pts_middle_encoder.")
    for name, part in (("pts_backbone", backbone), ("pts_neck", neck), ("bbox_head", head)):
        shapes |= fill(part, f"{name}.")[0]
    scaled = points * np.float32([1, 1, 1, 255, 1])
    means, places, _ = voxels(scaled, SIZE, 10, is_xyz=True)
    x = neck(backbone(encoder(means, places, 1)))
    return shapes, buffers, awml_boxes(head, x), np.zeros(0)


def awml_transfusion(clone, points):
    import torch

    mmdetection3d_parts()
    from mmdet3d.registry import MODELS

    folder = clone / "projects/TransFusion/transfusion"
    source = (folder / "transfusion_head.py").read_text()
    layers = clone / "projects/BEVFusion/bevfusion"
    for name in ("transformer", "utils"):
        if "TransformerDecoderLayer" not in source:
            file_module(f"awml.{name}", layers / f"{name}.py")
    voxel_encoder = MODELS.build({"type": "PillarFeatureNet", "in_channels": 5, "feat_channels": [64, 64],
                                  "voxel_size": PILLAR_SIZE, "point_cloud_range": RANGE, "with_distance": False,
                                  "norm_cfg": {"type": "BN1d", "eps": 1e-3, "momentum": 0.01}})  # fmt: skip
    scatter = MODELS.build({"type": "PointPillarsScatter", "in_channels": 64, "output_shape": (256, 256)})
    second = SECOND | {"in_channels": 64, "out_channels": [64, 128, 256], "layer_nums": [3, 5, 5],
                       "layer_strides": [2, 2, 2]}  # fmt: skip
    fpn = FPN | {"in_channels": [64, 128, 256], "out_channels": [128] * 3, "upsample_strides": [0.5, 1, 2]}
    backbone, neck = MODELS.build({"type": "SECOND", **second}), MODELS.build({"type": "SECONDFPN", **fpn})
    limits = [-24.0, -24.0, -9, 24, 24, 9.0]
    head = awml_head(
        file_module("awml.head", folder / "transfusion_head.py").TransFusionHead,
        num_classes=5, num_proposals=300, in_channels=384,
        test_cfg={"dataset": "nuScenes", "grid_size": [256, 256, 1], "out_size_factor": 4, "nms_type": None},
        bbox_coder={"type": "TransFusionBBoxCoder", "pc_range": RANGE[:2], "voxel_size": PILLAR_SIZE[:2],
                    "post_center_range": limits, "score_threshold": THRESHOLD, "out_size_factor": 4, "code_size": 10},
    )  # fmt: skip
    shapes = {}
    for name, part in (("voxel_encoder", voxel_encoder), ("backbone", backbone), ("neck", neck), ("bbox_head", head)):
        shapes |= fill(part, f"pts_{name}.")[0]
    points = points * np.float32([1, 1, 1, 255, 1])
    _, places, cells = voxels(points, PILLAR_SIZE, 20, is_xyz=False)
    slots = torch.zeros(len(cells), 20, 5)
    for i, rows in enumerate(cells.values()):
        slots[i, : len(rows)] = torch.from_numpy(np.array(rows))
    x = voxel_encoder(slots, torch.tensor([len(rows) for rows in cells.values()]), places)
    x = neck(backbone(scatter(x, places, 1)))
    return shapes, {}, awml_boxes(head, x), np.zeros(0)


ENCODER = {
    "in_channels": 4, "order": ["z", "z-trans"], "stride": [2, 2, 2, 2], "enc_depths": [1, 1, 1, 2, 1],
    "enc_channels": [12, 16, 24, 32, 48], "enc_num_head": [2, 2, 3, 4, 4], "enc_patch_size": [64] * 5,
    "shuffle_orders": False, "mlp_ratio": 4, "qkv_bias": True, "qk_scale": None, "attn_drop": 0.0, "proj_drop": 0.0,
    "drop_path": 0.0, "pre_norm": True, "enable_rpe": False, "enable_flash": True, "upcast_attention": False,
    "upcast_softmax": False,
}  # fmt: skip
SEG_HEAD = {key: value for key, value in ENCODER.items() if key not in ("in_channels", "stride", "shuffle_orders")}
SEG_HEAD = {key: value for key, value in SEG_HEAD.items() if not key.startswith("enc_")} | {
    "num_classes": 9, "ignore_index": -1, "enc_channels": ENCODER["enc_channels"], "dec_depths": [0, 0, 1, 1],
    "dec_channels": [16, 16, 24, 32], "dec_num_head": [2, 2, 3, 4], "dec_patch_size": [64] * 4,
}  # fmt: skip
PTV3_CLASSES = ["car", "truck", "bus", "bicycle", "pedestrian"]
PTV3_GRID, PTV3_RANGE = 0.2, (-51.2, -51.2, -4.0, 51.2, 51.2, 4.0)


def attention_of_pieces(qkv, cu_seqlens, softmax_scale, **_):
    """flash_attn_varlen_qkvpacked_func, without its rounding to half."""
    import torch

    rows = []
    for begin, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        q, k, v = qkv[begin:end].permute(1, 2, 0, 3)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=softmax_scale)
        rows.append(mixed.transpose(0, 1))
    return torch.cat(rows)


def _add_biases_apart():
    """Lets spconv's submanifold convolutions have a bias on a CPU, where it refuses one."""
    import spconv.pytorch as spconv

    convolve = spconv.SubMConv3d.forward

    def forward(self, x):
        bias, self.bias = self.bias, None
        y, self.bias = convolve(self, x), bias
        return y if bias is None else y.replace_feature(y.features + bias)

    spconv.SubMConv3d.forward = forward


def autoware_ptv3(clone, points):
    import torch

    sys.path.insert(0, str(clone))
    torch.Tensor.half = lambda self: self
    stub("autoware_ml.models.base", BaseModel=torch.nn.Module)
    stub("autoware_ml.utils.deploy", ExportSpec=object)
    stub("autoware_ml.metrics.detection3d.eval_output", detection_eval_output=None)
    for name in ("autoware_ml.metrics", "autoware_ml.metrics.detection3d"):
        stub(name)
    stub("autoware_ml.ops.spconv.sparse_conv", SubMConv3d=type("Unused", (torch.nn.Module,), {}))
    stub("flash_attn", flash_attn_varlen_qkvpacked_func=attention_of_pieces)
    _add_biases_apart()
    load = importlib.import_module
    encoder = load("autoware_ml.models.segmentation3d.encoders.ptv3").PointTransformerV3Encoder(**ENCODER)
    seg_head = load("autoware_ml.models.segmentation3d.heads.ptv3").PTv3SegDecoderHead(**SEG_HEAD)
    parts = load("autoware_ml.models.detection3d.ptv3")
    neck = parts.PTv3DetBEVNeck(
        parts.PTv3DetFeatureFusion(48, 32, 40),
        parts.PTv3BEVProjection(40, 32, [64, 64]),
        parts.PTv3BEVEncoder(32, 24, 32, [1, 2, 5, 2]),
    )
    coders = load("autoware_ml.models.detection3d.task_modules.bbox_coders")
    cell = 8 * PTV3_GRID
    head = load("autoware_ml.models.detection3d.heads.transfusion").TransFusionHead(
        num_proposals=200, auxiliary=True, in_channels=32, hidden_channel=32, num_classes=5, num_decoder_layers=1,
        num_heads=4, feedforward_channels=48, common_heads=COMMON_HEADS, assigner=None, code_weights=[1.0] * 10,
        bbox_coder=coders.TransFusionBBoxCoder(
            pc_range=list(PTV3_RANGE), out_size_factor=1, voxel_size=[cell, cell, 8.0], code_size=10,
            post_center_range=None, score_threshold=0.3,
        ),
        point_cloud_range=list(PTV3_RANGE), voxel_size=[cell, cell, 8.0], out_size_factor=1, min_radius=2,
        gaussian_overlap=0.1, score_threshold=0.1, post_max_size=100, nms_min_radius=1.0, class_names=PTV3_CLASSES,
        dense_heatmap_pooling_classes=["car", "truck", "bus"],
    )  # fmt: skip
    shapes = {}
    for name, part in (("encoder", encoder), ("seg3d_head", seg_head), ("bev_neck", neck), ("bbox_head", head)):
        shapes |= fill(part, f"{name}.")[0]
    low, high = np.float32(PTV3_RANGE[:3]), np.float32(PTV3_RANGE[3:])
    inside = ((points[:, :3] >= low) & (points[:, :3] < high)).all(axis=1)
    cells = np.floor((points[inside, :3] - low) / np.float32(PTV3_GRID)).astype(np.int64)
    places, first, inverse = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    rows = torch.from_numpy(points[inside][first])
    point = encoder({"coord": rows[:, :3], "feat": rows, "grid_coord": torch.from_numpy(places),
                     "offset": torch.tensor([len(places)])})  # fmt: skip
    found = head.predict(head(neck(point)))[0]
    labels = np.full(len(points), 255, np.uint8)
    logits = seg_head(point).numpy()
    labels[inside] = logits.argmax(axis=1)[inverse.reshape(-1)]
    margins = np.sort(logits, axis=1)
    print(f"labels {np.unique(labels, return_counts=True)}, smallest margin {(margins[:, -1] - margins[:, -2]).min():.2g}")
    boxes = rows_of(found["bboxes_3d"], found["scores_3d"], found["labels_3d"], z_is_bottom=False)
    return shapes, {}, boxes, labels


CASES = {
    "openpcdet": openpcdet,
    "bevfusion": bevfusion,
    "awml-bevfusion": awml_bevfusion,
    "awml-transfusion": awml_transfusion,
    "autoware-ptv3": autoware_ptv3,
}


def main(case, clone, path):
    sys.meta_path.append(Unused())
    import query_golden
    import torch

    with torch.no_grad():
        shapes, buffers, boxes, labels = CASES[case](Path(clone).resolve(), query_golden.points(case))
    print(f"{len(boxes)} boxes, scores {boxes[:, 9].min():.4f} to {boxes[:, 9].max():.4f}, classes "
          f"{np.bincount(boxes[:, 10].astype(int))}, largest size {boxes[:, 3:6].max():.3g}")  # fmt: skip
    np.savez_compressed(path, boxes=boxes, labels=labels, seed=SEED, shapes=json.dumps(shapes),
                        buffers=json.dumps(buffers))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
