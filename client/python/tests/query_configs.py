"""The configurations of the networks of tests/golden/queries, in the libraries' own form."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

LIMITS = [-24.0, -24.0, -9, 24, 24, 9.0]
THRESHOLD = 0.3
RANGE, SIZE, PILLAR_SIZE = [-25.6, -25.6, -3.0, 25.6, 25.6, 5.0], [0.1, 0.1, 0.2], [0.2, 0.2, 8]
NUSCENES = ["car", "truck", "construction_vehicle", "bus", "trailer"]
NUSCENES += ["barrier", "motorcycle", "bicycle", "pedestrian", "traffic_cone"]
T4 = ["car", "truck", "bus", "bicycle", "pedestrian"]
_COLUMNS = ["x", "y", "z", "intensity", "timestamp"]
_PIPELINE = [
    {"type": "LoadPointsFromFile", "coord_type": "LIDAR", "load_dim": 5, "use_dim": 5},
    {"type": "LoadPointsFromMultiSweeps", "sweeps_num": 1, "load_dim": 5, "use_dim": [0, 1, 2, 3, 4]},
    {"type": "PointsRangeFilter", "point_cloud_range": RANGE},
    {"type": "Pack3DDetInputs", "keys": ["points"]},
]
_BRANCHES = {"center": (2, 2), "height": (1, 2), "dim": (3, 2), "rot": (2, 2), "vel": (2, 2)}
_ATTENTION = {"embed_dims": 128, "num_heads": 8, "dropout": 0.1}
_DECODER = {
    "type": "TransformerDecoderLayer",
    "self_attn_cfg": _ATTENTION,
    "cross_attn_cfg": {**_ATTENTION},
    "ffn_cfg": {
        "embed_dims": 128,
        "feedforward_channels": 256,
        "num_fcs": 2,
        "ffn_drop": 0.1,
        "act_cfg": {"type": "ReLU", "inplace": True},
    },
    "norm_cfg": {"type": "LN"},
    "pos_encoding_cfg": {"input_channel": 2, "num_pos_feats": 128},
}
_NORM = {"type": "BN", "eps": 0.001, "momentum": 0.01}


def openpcdet() -> dict[str, Any]:
    """Returns the settings of OpenPCDet's transfusion_lidar.yaml that say how a network answers, on a small range."""
    branches = {name: {"out_channels": n, "num_conv": convs} for name, (n, convs) in _BRANCHES.items()}
    return {
        "CLASS_NAMES": NUSCENES,
        "DATA_CONFIG": {
            "DATASET": "CustomDataset",
            "POINT_CLOUD_RANGE": RANGE,
            "POINT_FEATURE_ENCODING": {
                "encoding_type": "absolute_coordinates_encoding",
                "used_feature_list": _COLUMNS,
                "src_feature_list": _COLUMNS,
            },
            "DATA_PROCESSOR": [
                {"NAME": "mask_points_and_boxes_outside_range", "REMOVE_OUTSIDE_BOXES": True},
                {
                    "NAME": "transform_points_to_voxels",
                    "VOXEL_SIZE": SIZE,
                    "MAX_POINTS_PER_VOXEL": 10,
                    "MAX_NUMBER_OF_VOXELS": {"train": 120000, "test": 160000},
                },
            ],
        },
        "MODEL": {
            "NAME": "TransFusion",
            "VFE": {"NAME": "MeanVFE"},
            "BACKBONE_3D": {"NAME": "VoxelResBackBone8x", "USE_BIAS": False},
            "MAP_TO_BEV": {"NAME": "HeightCompression", "NUM_BEV_FEATURES": 256},
            "BACKBONE_2D": {
                "NAME": "BaseBEVBackbone",
                "LAYER_NUMS": [5, 5],
                "LAYER_STRIDES": [1, 2],
                "NUM_FILTERS": [128, 256],
                "UPSAMPLE_STRIDES": [1, 2],
                "NUM_UPSAMPLE_FILTERS": [256, 256],
                "USE_CONV_FOR_NO_STRIDE": True,
            },
            "DENSE_HEAD": {
                "CLASS_AGNOSTIC": False,
                "NAME": "TransFusionHead",
                "USE_BIAS_BEFORE_NORM": False,
                "NUM_PROPOSALS": 200,
                "HIDDEN_CHANNEL": 128,
                "NUM_CLASSES": 10,
                "NUM_HEADS": 8,
                "NMS_KERNEL_SIZE": 3,
                "FFN_CHANNEL": 256,
                "DROPOUT": 0.1,
                "BN_MOMENTUM": 0.1,
                "ACTIVATION": "relu",
                "NUM_HM_CONV": 2,
                "SEPARATE_HEAD_CFG": {"HEAD_ORDER": list(_BRANCHES), "HEAD_DICT": branches},
                "TARGET_ASSIGNER_CONFIG": {"FEATURE_MAP_STRIDE": 8, "DATASET": "nuScenes", "GAUSSIAN_OVERLAP": 0.1},
                "LOSS_CONFIG": {"LOSS_CLS": {"use_sigmoid": True, "gamma": 2.0, "alpha": 0.25}},
                "POST_PROCESSING": {"SCORE_THRESH": THRESHOLD, "POST_CENTER_RANGE": LIMITS},
            },
            "POST_PROCESSING": {"RECALL_THRESH_LIST": [0.3], "SCORE_THRESH": 0.1},
        },
    }


def _awml(name: str, head: dict[str, Any], size: list[float], factor: int, queries: int) -> dict[str, Any]:
    model = {
        "type": name,
        "pts_backbone": {
            "type": "SECOND",
            "in_channels": 256,
            "out_channels": [128, 256],
            "layer_nums": [5, 5],
            "layer_strides": [1, 2],
            "norm_cfg": _NORM,
            "conv_cfg": {"type": "Conv2d", "bias": False},
        },
        "pts_neck": {
            "type": "SECONDFPN",
            "in_channels": [128, 256],
            "out_channels": [256, 256],
            "upsample_strides": [1, 2],
            "norm_cfg": _NORM,
            "upsample_cfg": {"type": "deconv", "bias": False},
            "use_conv_for_no_stride": True,
        },
    }
    head |= {
        "num_proposals": queries,
        "auxiliary": True,
        "hidden_channel": 128,
        "nms_kernel_size": 3,
        "bn_momentum": 0.1,
        "num_decoder_layers": 1,
        "decoder_layer": _DECODER,
        "common_heads": _BRANCHES,
        "bbox_coder": {
            "type": "TransFusionBBoxCoder",
            "pc_range": RANGE[:2],
            "voxel_size": size[:2],
            "out_size_factor": factor,
            "post_center_range": LIMITS,
            "score_threshold": THRESHOLD,
            "code_size": 10,
        },
        "loss_cls": {"type": "mmdet.FocalLoss", "use_sigmoid": True},
    }
    return {
        "dataset_type": "T4Dataset",
        "model": model,
        "test_dataloader": {"dataset": {"type": "T4Dataset", "metainfo": {"classes": T4}, "pipeline": _PIPELINE}},
    }


def bev_fusion() -> dict[str, Any]:
    """Returns the settings of AWML's BEVFusion-L, on a small range."""
    test = {"dataset": "t4datasets", "grid_size": [512, 512, 41], "out_size_factor": 8, "nms_type": None}
    head: dict[str, Any] = {"type": "BEVFusionHead", "class_names": T4, "in_channels": 512, "test_cfg": test}
    head["dense_heatmap_pooling_classes"] = ["car", "truck", "bus", "bicycle"]
    values = _awml("BEVFusion", head, SIZE, 8, 500)
    layer = {"max_num_points": 10, "max_voxels": [120000, 160000], "voxelize_reduce": True}
    values["model"] |= {
        "voxelize_cfg": {**layer, "point_cloud_range": RANGE, "voxel_size": SIZE},
        "data_preprocessor": {"type": "Det3DDataPreprocessor", "pad_size_divisor": 32},
        "pts_voxel_encoder": {"type": "HardSimpleVFE", "num_features": 5},
        "pts_middle_encoder": {
            "type": "BEVFusionSparseEncoder",
            "in_channels": 5,
            "sparse_shape": [512, 512, 41],
            "num_aug_features": 5,
            "aug_features_min_values": [*RANGE[:3], 0.0, 0.0],
            "aug_features_max_values": [*RANGE[3:], 255.0, 0.2],
            "order": ("conv", "norm", "act"),
            "norm_cfg": {"type": "BN1d", "eps": 0.001, "momentum": 0.01},
            "encoder_channels": ((16, 16, 32), (32, 32, 64), (64, 64, 128), (128, 128)),
            "encoder_paddings": ((0, 0, 1), (0, 0, 1), (0, 0, (1, 1, 0)), (0, 0)),
            "block_type": "basicblock",
        },
        "bbox_head": head,
    }
    return copy.deepcopy(values)


def trans_fusion() -> dict[str, Any]:
    """Returns the settings of AWML's TransFusion on pillars, on a small range."""
    head: dict[str, Any] = {"type": "TransFusionHead", "num_classes": 5, "in_channels": 384}
    values = _awml("TransFusion", head, PILLAR_SIZE, 4, 300)
    layer = {"max_num_points": 20, "point_cloud_range": RANGE, "voxel_size": PILLAR_SIZE, "max_voxels": (60000, 60000)}
    model = values["model"]
    image = {"in_channels": 64, "out_channels": [64, 128, 256], "layer_nums": [3, 5, 5], "layer_strides": [2, 2, 2]}
    model["pts_backbone"] |= image
    model["pts_neck"] |= {"in_channels": [64, 128, 256], "out_channels": [128] * 3, "upsample_strides": [0.5, 1, 2]}
    model |= {
        "data_preprocessor": {"type": "Det3DDataPreprocessor", "voxel": True, "voxel_layer": layer},
        "pts_voxel_encoder": {
            "type": "PillarFeatureNet",
            "in_channels": 5,
            "feat_channels": [64, 64],
            "voxel_size": PILLAR_SIZE,
            "norm_cfg": {"type": "BN1d", "eps": 0.001, "momentum": 0.01},
            "point_cloud_range": RANGE,
            "with_distance": False,
        },
        "pts_middle_encoder": {"type": "PointPillarsScatter", "in_channels": 64, "output_shape": (256, 256)},
        "pts_bbox_head": head,
        "test_cfg": {
            "pts": {
                "dataset": "nuScenes",
                "grid_size": [256, 256, 1],
                "out_size_factor": 4,
                "pc_range": RANGE[:2],
                "voxel_size": PILLAR_SIZE[:2],
                "nms_type": None,
            }
        },
    }
    return copy.deepcopy(values)


def write(folder: Path, values: dict[str, Any]) -> Path:
    """Writes a configuration as its library has it: a yaml or a py file."""
    if "MODEL" in values:
        import yaml

        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(values))
    else:
        path = folder / "config.py"
        path.write_text("".join(f"{name} = {value!r}\n" for name, value in values.items()))
    return path


# autoware-ml's joint network of tests/golden/queries, in Hydra's files.
_PTV3_TASK = """# @package _global_
defaults:
  - /tasks/base
  - /datasets/t4dataset/segmentation3d
  - _self_
dataset: ${t4dataset}
grid_size: 0.2
head_voxel_size: [1.6, 1.6, 8.0]
num_proposals: 200
point_cloud_range: [-51.2, -51.2, -4.0, 51.2, 51.2, 4.0]
datamodule:
  predict_transforms:
    pipeline:
      - {_target_: autoware_ml.transforms.common.packing.BuildPointFeatures, keys: [coord, strength]}
"""
_PTV3_BASE = """# @package _global_
defaults:
  - encoder
  - _self_
model:
  _target_: autoware_ml.models.multi.ptv3_segdet.PTv3SegDetModel
  metrics: ${merge_lists:${dataset.detection3d.metrics},${dataset.segmentation3d.metrics}}
  bev_neck:
    _target_: autoware_ml.models.detection3d.ptv3.PTv3DetBEVNeck
    fusion:
      in_channels: ${model.encoder.enc_channels[4]}
      skip_channels: ${model.encoder.enc_channels[3]}
      out_channels: 40
    bev_projector: {in_channels: "${model.bev_neck.fusion.out_channels}", out_channels: 32, output_shape: [64, 64]}
    bev_encoder: {in_channels: 32, hidden_channels: 24, out_channels: 32, dilations: [1, 2, 5, 2]}
  bbox_head:
    _target_: autoware_ml.models.detection3d.heads.transfusion.TransFusionHead
    num_proposals: ${num_proposals}
    auxiliary: true
    in_channels: 32
    hidden_channel: 32
    num_classes: 5
    class_names: [car, truck, bus, bicycle, pedestrian]
    dense_heatmap_pooling_classes: [car, truck, bus]
    num_decoder_layers: 1
    num_heads: 4
    feedforward_channels: 48
    common_heads: {center: [2, 2], height: [1, 2], dim: [3, 2], rot: [2, 2], vel: [2, 2]}
    bbox_coder:
      _target_: autoware_ml.models.detection3d.task_modules.bbox_coders.TransFusionBBoxCoder
      pc_range: ${point_cloud_range}
      voxel_size: ${head_voxel_size}
      out_size_factor: 1
      score_threshold: 0.3
      code_size: 10
    assigner: {_target_: autoware_ml.models.detection3d.task_modules.assigners.HungarianAssigner3D}
    point_cloud_range: ${point_cloud_range}
    voxel_size: ${head_voxel_size}
    out_size_factor: 1
    code_weights: [1.0, 1.0]
    score_threshold: 0.1
    post_max_size: 100
    nms_min_radius: 1.0
    nms_kernel_size: 3
    use_velocity: true
"""
_PTV3_DATA = """# @package t4dataset.segmentation3d
class_mapping: {car: 0, kart: 0, truck: 1, bus: 2, bicycle: 3, pedestrian: 4, road: 5, tree: 6, wall: 7, noise: 8}
num_classes: 9
"""
_PTV3_BLOCKS = {
    "order": ["z", "z-trans"],
    "mlp_ratio": 4,
    "qkv_bias": True,
    "qk_scale": None,
    "pre_norm": True,
    "enable_rpe": False,
    "enable_flash": True,
}
_PTV3_ENCODER = {
    **_PTV3_BLOCKS,
    "in_channels": 4,
    "stride": [2, 2, 2, 2],
    "enc_depths": [1, 1, 1, 2, 1],
    "enc_channels": [12, 16, 24, 32, 48],
    "enc_num_head": [2, 2, 3, 4, 4],
    "enc_patch_size": [64] * 5,
}
_PTV3_HEAD = {
    **_PTV3_BLOCKS,
    "num_classes": 9,
    "enc_channels": "${model.encoder.enc_channels}",
    "dec_depths": [0, 0, 1, 1],
    "dec_channels": [16, 16, 24, 32],
    "dec_num_head": [2, 2, 3, 4],
    "dec_patch_size": [64] * 4,
}


def write_ptv3(folder: Path, *changes: tuple[str, str]) -> Path:
    """Writes the files of the joint network's configuration. changes: texts in them, and what replaces them."""
    import yaml

    files = {
        "tasks/multi/task.yaml": _PTV3_TASK,
        "tasks/base.yaml": _PTV3_BASE,
        "tasks/encoder.yaml": yaml.safe_dump({"model": {"encoder": _PTV3_ENCODER, "seg3d_head": _PTV3_HEAD}}),
        "datasets/t4dataset/segmentation3d.yaml": _PTV3_DATA,
    }
    for name, text in files.items():
        for old, new in changes:
            text = text.replace(old, new)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "tasks" / "multi" / "task.yaml"
