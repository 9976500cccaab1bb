"""Minimal training configurations of detectors, in the form of OpenPCDet's yaml and of mmdetection3d's py files.

They have the figures of the published files, and only what says how a network answers.
"""

from __future__ import annotations

import copy
from typing import Any

NUSCENES = [
    ["car"],
    ["truck", "construction_vehicle"],
    ["bus", "trailer"],
    ["barrier"],
    ["motorcycle", "bicycle"],
    ["pedestrian", "traffic_cone"],
]
WAYMO = [["Vehicle", "Pedestrian", "Cyclist"]]
KITTI = ["Car", "Pedestrian", "Cyclist"]
_COLUMNS = {
    "NuScenesDataset": ["x", "y", "z", "intensity", "timestamp"],
    "WaymoDataset": ["x", "y", "z", "intensity", "elongation"],
}
_BEV = ([5, 5], [1, 2], [128, 256], [1, 2], [256, 256])
_PILLAR_BEV = ([3, 5, 5], [1, 2, 2], [64, 128, 256], [1, 2, 4], [128, 128, 128])


def put(values: Any, path: str, value: Any) -> None:
    """Sets the value at a path of names and numbers, such as "DATA_CONFIG.DATA_PROCESSOR.2.VOXEL_SIZE"."""
    *parts, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parts:
        values = values[part] if isinstance(part, int) else values.setdefault(part, {})
    values[last] = value


def _data(data_set: str, bounds: list[float], size: list[float], points: int, most: int) -> dict[str, Any]:
    columns = _COLUMNS.get(data_set, ["x", "y", "z", "intensity"])
    step: dict[str, Any] = {"NAME": "transform_points_to_voxels_placeholder", "VOXEL_SIZE": size}
    if points:
        step = {"NAME": "transform_points_to_voxels", "VOXEL_SIZE": size, "MAX_POINTS_PER_VOXEL": points}
        step["MAX_NUMBER_OF_VOXELS"] = {"train": 16000, "test": most}
    return {
        "DATASET": data_set,
        "DATA_PATH": "../data",
        "POINT_CLOUD_RANGE": bounds,
        "POINT_FEATURE_ENCODING": {
            "encoding_type": "absolute_coordinates_encoding",
            "used_feature_list": columns,
            "src_feature_list": columns,
        },
        "DATA_PROCESSOR": [
            {"NAME": "mask_points_and_boxes_outside_range", "REMOVE_OUTSIDE_BOXES": True},
            {"NAME": "shuffle_points", "SHUFFLE_ENABLED": {"train": True, "test": False}},
            step,
        ],
    }


def _backbones(bev: Any, sparse: str = "", vfe: dict[str, Any] | None = None) -> dict[str, Any]:
    names = ("LAYER_NUMS", "LAYER_STRIDES", "NUM_FILTERS", "UPSAMPLE_STRIDES", "NUM_UPSAMPLE_FILTERS")
    made: dict[str, Any] = {
        "VFE": vfe or {"NAME": "MeanVFE"},
        "MAP_TO_BEV": {"NAME": "HeightCompression" if sparse else "PointPillarScatter", "NUM_BEV_FEATURES": 256},
        "BACKBONE_2D": {"NAME": "BaseBEVBackbone", **dict(zip(names, bev, strict=True))},
    }
    return made | ({"BACKBONE_3D": {"NAME": sparse}} if sparse else {})


def _vfe(name: str, widths: list[int]) -> dict[str, Any]:
    return {"NAME": name, "WITH_DISTANCE": False, "USE_ABSLOTE_XYZ": True, "USE_NORM": True, "NUM_FILTERS": widths}


def _center_head(tasks: Any, name: str, width: int, stride: int, limits: Any, nms: Any) -> dict[str, Any]:
    branches = {"center": 2, "center_z": 1, "dim": 3, "rot": 2} | ({"vel": 2} if len(tasks) > 1 else {})
    threshold, before, after = nms
    return {
        "NAME": name,
        "CLASS_AGNOSTIC": False,
        "CLASS_NAMES_EACH_HEAD": tasks,
        "SHARED_CONV_CHANNEL": width,
        "USE_BIAS_BEFORE_NORM": True,
        "NUM_HM_CONV": 2,
        "SEPARATE_HEAD_CFG": {
            "HEAD_ORDER": list(branches),
            "HEAD_DICT": {key: {"out_channels": n, "num_conv": 2} for key, n in branches.items()},
        },
        "TARGET_ASSIGNER_CONFIG": {"FEATURE_MAP_STRIDE": stride},
        "POST_PROCESSING": {
            "SCORE_THRESH": 0.1,
            "POST_CENTER_LIMIT_RANGE": limits,
            "MAX_OBJ_PER_SAMPLE": 500,
            "NMS_CONFIG": {
                "NMS_TYPE": "nms_gpu",
                "NMS_THRESH": threshold,
                "NMS_PRE_MAXSIZE": before,
                "NMS_POST_MAXSIZE": after,
            },
        },
    }


def _anchor_head(names: list[str], stride: int) -> dict[str, Any]:
    sizes = ([3.9, 1.6, 1.56], -1.78), ([0.8, 0.6, 1.73], -0.6), ([1.76, 0.6, 1.73], -0.6)
    return {
        "NAME": "AnchorHeadSingle",
        "CLASS_AGNOSTIC": False,
        "USE_DIRECTION_CLASSIFIER": True,
        "DIR_OFFSET": 0.78539,
        "DIR_LIMIT_OFFSET": 0.0,
        "NUM_DIR_BINS": 2,
        "ANCHOR_GENERATOR_CONFIG": [
            {
                "class_name": name,
                "anchor_sizes": [size],
                "anchor_rotations": [0, 1.57],
                "anchor_bottom_heights": [bottom],
                "align_center": False,
                "feature_map_stride": stride,
            }
            for name, (size, bottom) in zip(names, sizes, strict=True)
        ],
        "TARGET_ASSIGNER_CONFIG": {"BOX_CODER": "ResidualCoder"},
    }


_SUPPRESSION = {
    "SCORE_THRESH": 0.1,
    "OUTPUT_RAW_SCORE": False,
    "NMS_CONFIG": {
        "MULTI_CLASSES_NMS": False,
        "NMS_TYPE": "nms_gpu",
        "NMS_THRESH": 0.01,
        "NMS_PRE_MAXSIZE": 4096,
        "NMS_POST_MAXSIZE": 500,
    },
}
_FAR = [-61.2, -61.2, -10.0, 61.2, 61.2, 10.0]
_NUSCENES_NMS, _WAYMO_NMS = (0.2, 1000, 83), (0.7, 4096, 500)


def openpcdet(name: str) -> dict[str, Any]:
    """Returns a published configuration: the exporter's command and data set, such as "centerpoint waymo"."""
    names = {"n": [c for task in NUSCENES for c in task], "w": WAYMO[0]}
    model: dict[str, Any]
    if name.startswith("centerpoint nuscenes"):
        reach, size, most = (54.0, 0.075, 160000) if name.endswith("0.075") else (51.2, 0.1, 60000)
        data = _data("NuScenesDataset", [-reach, -reach, -5.0, reach, reach, 3.0], [size, size, 0.2], 10, most)
        model = _backbones(_BEV, "VoxelResBackBone8x")
        model["DENSE_HEAD"] = _center_head(NUSCENES, "CenterHead", 64, 8, _FAR, _NUSCENES_NMS)
    elif name in ("centerpoint waymo", "centerpoint waymo-plain"):
        bounds = [-75.2, -75.2, -2, 75.2, 75.2, 4]
        data = _data("WaymoDataset", bounds, [0.1, 0.1, 0.15], 5, 150000)
        model = _backbones(_BEV, "VoxelBackBone8x" if name.endswith("plain") else "VoxelResBackBone8x")
        model["DENSE_HEAD"] = _center_head(WAYMO, "CenterHead", 64, 8, bounds, _WAYMO_NMS)
    elif name == "centerpoint-pillar nuscenes":
        data = _data("NuScenesDataset", [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0], [0.2, 0.2, 8.0], 0, 0)
        bev = ([3, 5, 5], [2, 2, 2], [64, 128, 256], [0.5, 1, 2], [128, 128, 128])
        model = _backbones(bev, vfe=_vfe("DynPillarVFE", [64, 64]))
        model["DENSE_HEAD"] = _center_head(NUSCENES, "CenterHead", 64, 4, _FAR, _NUSCENES_NMS)
    elif name == "centerpoint-pillar waymo":
        bounds = [-74.88, -74.88, -2, 74.88, 74.88, 4.0]
        data = _data("WaymoDataset", bounds, [0.32, 0.32, 6.0], 20, 150000)
        model = _backbones(_PILLAR_BEV, vfe=_vfe("PillarVFE", [64, 64]))
        limits = [-80, -80, -10.0, 80, 80, 10.0]
        model["DENSE_HEAD"] = _center_head(WAYMO, "CenterHead", 64, 1, limits, _WAYMO_NMS)
    elif name == "voxelnext nuscenes":
        data = _data("NuScenesDataset", [-54.0, -54.0, -5.0, 54.0, 54.0, 3.0], [0.075, 0.075, 0.2], 10, 160000)
        head = _center_head(NUSCENES, "VoxelNeXtHead", 128, 8, _FAR, _NUSCENES_NMS)
        model = {"VFE": {"NAME": "MeanVFE"}, "BACKBONE_3D": {"NAME": "VoxelResBackBone8xVoxelNeXt"}}
        model["DENSE_HEAD"] = head | {"INPUT_FEATURES": 128, "KERNEL_SIZE_HEAD": 1}
    elif name == "second kitti":
        data = _data("KittiDataset", [0, -40, -3, 70.4, 40, 1], [0.05, 0.05, 0.1], 5, 40000)
        model = _backbones(_BEV, "VoxelBackBone8x") | {"DENSE_HEAD": _anchor_head(KITTI, 8)}
        model["POST_PROCESSING"] = _SUPPRESSION
    else:
        assert name == "pointpillars kitti"
        data = _data("KittiDataset", [0, -39.68, -3, 69.12, 39.68, 1], [0.16, 0.16, 4], 32, 40000)
        bev = ([3, 5, 5], [2, 2, 2], [64, 128, 256], [1, 2, 4], [128, 128, 128])
        model = _backbones(bev, vfe=_vfe("PillarVFE", [64])) | {"DENSE_HEAD": _anchor_head(KITTI, 2)}
        model["POST_PROCESSING"] = _SUPPRESSION
    kind = {"centerpoint": "CenterPoint", "voxelnext": "VoxelNeXt", "second": "SECONDNet"}
    model["NAME"] = kind.get(name.partition(" ")[0], "PointPillar" if "pointpillars" in name else "CenterPoint")
    classes = KITTI if name.endswith("kitti") else names["n" if "nuscenes" in name else "w"]
    made = {"CLASS_NAMES": classes, "DATA_CONFIG": data, "MODEL": model, "OPTIMIZATION": {"NUM_EPOCHS": 30}}
    return copy.deepcopy(made)  # a test may change a part


def _pipeline(use: Any, sweeps: int = 0) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [{"type": "LoadPointsFromFile", "coord_type": "LIDAR", "load_dim": 5, "use_dim": use}]
    if sweeps:
        steps.append({"type": "LoadPointsFromMultiSweeps", "sweeps_num": sweeps, "use_dim": [0, 1, 2, 3, 4]})
    return [*steps, {"type": "Pack3DDetInputs", "keys": ["points"]}]


def _image(inputs: int, nums: Any, strides: Any, widths: Any, ups: Any, up_widths: Any, conv: bool) -> dict[str, Any]:
    norm = {"type": "BN", "eps": 0.001, "momentum": 0.01}
    return {
        "backbone": {
            "type": "SECOND",
            "in_channels": inputs,
            "out_channels": widths,
            "layer_nums": nums,
            "layer_strides": strides,
            "norm_cfg": norm,
            "conv_cfg": {"type": "Conv2d", "bias": False},
        },
        "neck": {
            "type": "SECONDFPN",
            "in_channels": widths,
            "out_channels": up_widths,
            "upsample_strides": ups,
            "norm_cfg": norm,
            "upsample_cfg": {"type": "deconv", "bias": False},
            "use_conv_for_no_stride": conv,
        },
    }


def _voxels(bounds: list[float], size: list[float], points: int, most: tuple[int, int]) -> dict[str, Any]:
    layer = {"max_num_points": points, "voxel_size": size, "max_voxels": most, "point_cloud_range": bounds}
    return {"type": "Det3DDataPreprocessor", "voxel": True, "voxel_layer": layer}


def mmdetection3d(name: str) -> dict[str, Any]:
    """Returns a configuration of mmdetection3d with a published one's figures: "voxel", "pillar" or "second"."""
    if name == "second":
        return _mmdetection3d_second()
    bounds = [-51.2, -51.2, -5.0, 51.2, 51.2, 3.0]
    if name == "voxel":
        size, factor = [0.1, 0.1, 0.2], 8
        model = _image(256, [5, 5], [1, 2], [128, 256], [1, 2], [256, 256], True)
        processor = _voxels(bounds, size, 10, (90000, 120000))
        encoder: dict[str, Any] = {"type": "HardSimpleVFE", "num_features": 5}
        middle: dict[str, Any] = {
            "type": "SparseEncoder",
            "in_channels": 5,
            "sparse_shape": [41, 1024, 1024],
            "output_channels": 128,
            "order": ("conv", "norm", "act"),
            "encoder_channels": ((16, 16, 32), (32, 32, 64), (64, 64, 128), (128, 128)),
            "encoder_paddings": ((0, 0, 1), (0, 0, 1), (0, 0, [0, 1, 1]), (0, 0)),
            "block_type": "basicblock",
        }
    else:
        size, factor = [0.2, 0.2, 8], 4
        model = _image(64, [3, 5, 5], [2, 2, 2], [64, 128, 256], [0.5, 1, 2], [128, 128, 128], True)
        processor = _voxels(bounds, size, 20, (30000, 40000))
        encoder = {"type": "PillarFeatureNet", "in_channels": 5, "feat_channels": [64], "with_distance": False}
        encoder |= {"voxel_size": size, "point_cloud_range": bounds, "legacy": False}
        encoder["norm_cfg"] = {"type": "BN1d", "eps": 0.001, "momentum": 0.01}
        middle = {"type": "PointPillarsScatter", "in_channels": 64, "output_shape": (512, 512)}
    limits = [-61.2, -61.2, -10.0, 61.2, 61.2, 10.0]
    head = {
        "type": "CenterHead",
        "in_channels": 512,
        "tasks": [{"num_class": len(task), "class_names": task} for task in NUSCENES],
        "common_heads": {"reg": (2, 2), "height": (1, 2), "dim": (3, 2), "rot": (2, 2), "vel": (2, 2)},
        "share_conv_channel": 64,
        "bbox_coder": {
            "type": "CenterPointBBoxCoder",
            "post_center_range": limits,
            "max_num": 500,
            "score_threshold": 0.1,
            "out_size_factor": factor,
            "voxel_size": size[:2],
            "pc_range": bounds[:2],
            "code_size": 9,
        },
        "separate_head": {"type": "SeparateHead", "init_bias": -2.19, "final_kernel": 3},
        "loss_cls": {"type": "mmdet.GaussianFocalLoss"},
        "norm_bbox": True,
    }
    test = {
        "post_center_limit_range": limits,
        "max_per_img": 500,
        "min_radius": [4, 12, 10, 1, 0.85, 0.175],
        "score_threshold": 0.1,
        "nms_type": "rotate",
        "pre_max_size": 1000,
        "post_max_size": 83,
        "nms_thr": 0.2,
    }
    parts = {"voxel_encoder": encoder, "middle_encoder": middle, **model, "bbox_head": head}
    made = {"type": "CenterPoint", "data_preprocessor": processor}
    made |= {f"pts_{key}": part for key, part in parts.items()} | {"test_cfg": {"pts": test}, "train_cfg": {"pts": {}}}
    classes = [name for task in NUSCENES for name in task]
    return copy.deepcopy(
        {
            "model": made,
            "dataset_type": "NuScenesDataset",
            "class_names": classes,
            "test_pipeline": _pipeline(5, sweeps=9),
        }
    )


def _mmdetection3d_second() -> dict[str, Any]:
    bounds = [0, -40, -3, 70.4, 40, 1]
    names, sizes = ["Pedestrian", "Cyclist", "Car"], [[0.8, 0.6, 1.73], [1.76, 0.6, 1.73], [3.9, 1.6, 1.56]]
    head = {
        "type": "Anchor3DHead",
        "num_classes": 3,
        "in_channels": 512,
        "feat_channels": 512,
        "use_direction_classifier": True,
        "anchor_generator": {
            "type": "Anchor3DRangeGenerator",
            "ranges": [[0, -40, z, 70.4, 40, z] for z in (-0.6, -0.6, -1.78)],
            "sizes": sizes,
            "rotations": [0, 1.57],
            "reshape_out": False,
        },
        "bbox_coder": {"type": "DeltaXYZWLHRBBoxCoder"},
        "loss_cls": {"type": "mmdet.FocalLoss", "use_sigmoid": True},
    }
    model = {
        "type": "VoxelNet",
        "data_preprocessor": _voxels(bounds, [0.05, 0.05, 0.1], 5, (16000, 40000)),
        "voxel_encoder": {"type": "HardSimpleVFE"},
        "middle_encoder": {"type": "SparseEncoder", "in_channels": 4, "sparse_shape": [41, 1600, 1408]},
        **_image(256, [5, 5], [1, 2], [128, 256], [1, 2], [256, 256], False),
        "bbox_head": head,
        "test_cfg": {"use_rotate_nms": True, "nms_thr": 0.01, "score_thr": 0.1, "nms_pre": 100, "max_num": 50},
    }
    return copy.deepcopy(
        {
            "model": model,
            "dataset_type": "KittiDataset",
            "metainfo": {"classes": names},
            "test_pipeline": _pipeline(4),
        }
    )
