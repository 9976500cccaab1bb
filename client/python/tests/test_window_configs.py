"""Tests --config of dsvt and flatformer: the published training configurations, own ones, and refusals."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import window_golden
from detector_config_files import put

from voxserve.export import ExportError, detector_configs, safetensors_file
from voxserve.export.__main__ import main
from voxserve.export.image_nodes import ClassNms
from voxserve.export.model_folder import PointFeature
from voxserve.export.networks import dsvt, flatformer
from voxserve.export.networks.dsvt import BevStage, Windows

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
NAMES = ["Vehicle", "Pedestrian", "Cyclist"]
BOUNDS, SIZE = [-74.88, -74.88, -2, 74.88, 74.88, 4.0], [0.32, 0.32, 6]
COLUMNS = ["x", "y", "z", "intensity", "elongation"]
TANH = "the training took tanh of the {}: send that value, since no scale expresses it"
NOTES = (TANH.format("elongation"), TANH.format("intensity"))


def of_dsvt() -> dict[str, Any]:
    """Returns the settings of OpenPCDet's dsvt_pillar.yaml that say how the network answers."""
    branch = {"center": 2, "center_z": 1, "dim": 3, "rot": 2, "iou": 1}
    return copy.deepcopy(
        {
            "CLASS_NAMES": NAMES,
            "DATA_CONFIG": {
                "DATASET": "WaymoDataset",
                "POINT_CLOUD_RANGE": BOUNDS,
                "POINTS_TANH_DIM": [3, 4],
                "POINT_FEATURE_ENCODING": {
                    "encoding_type": "absolute_coordinates_encoding",
                    "used_feature_list": COLUMNS,
                    "src_feature_list": COLUMNS,
                },
                "DATA_PROCESSOR": [
                    {"NAME": "mask_points_and_boxes_outside_range", "REMOVE_OUTSIDE_BOXES": True},
                    {"NAME": "shuffle_points", "SHUFFLE_ENABLED": {"train": True, "test": True}},
                    {"NAME": "transform_points_to_voxels_placeholder", "VOXEL_SIZE": SIZE},
                ],
            },
            "MODEL": {
                "NAME": "CenterPoint",
                "VFE": {
                    "NAME": "DynamicVoxelVFE",
                    "WITH_DISTANCE": False,
                    "USE_ABSLOTE_XYZ": True,
                    "USE_NORM": True,
                    "NUM_FILTERS": [192, 192],
                },
                "BACKBONE_3D": {
                    "NAME": "DSVT",
                    "INPUT_LAYER": {
                        "sparse_shape": [468, 468, 1],
                        "downsample_stride": [],
                        "d_model": [192],
                        "set_info": [[36, 4]],
                        "window_shape": [[12, 12, 1]],
                        "hybrid_factor": [2, 2, 1],
                        "shifts_list": [[[0, 0, 0], [6, 6, 0]]],
                        "normalize_pos": False,
                    },
                    "block_name": ["DSVTBlock"],
                    "set_info": [[36, 4]],
                    "d_model": [192],
                    "nhead": [8],
                    "dim_feedforward": [384],
                    "dropout": 0.0,
                    "activation": "gelu",
                    "output_shape": [468, 468],
                    "conv_out_channel": 192,
                    "USE_CHECKPOINT": True,
                },
                "MAP_TO_BEV": {
                    "NAME": "PointPillarScatter3d",
                    "INPUT_SHAPE": [468, 468, 1],
                    "NUM_BEV_FEATURES": 192,
                },
                "BACKBONE_2D": {
                    "NAME": "BaseBEVResBackbone",
                    "LAYER_NUMS": [1, 2, 2],
                    "LAYER_STRIDES": [1, 2, 2],
                    "NUM_FILTERS": [128, 128, 256],
                    "UPSAMPLE_STRIDES": [1, 2, 4],
                    "NUM_UPSAMPLE_FILTERS": [128, 128, 128],
                },
                "DENSE_HEAD": {
                    "NAME": "CenterHead",
                    "CLASS_AGNOSTIC": False,
                    "CLASS_NAMES_EACH_HEAD": [NAMES],
                    "SHARED_CONV_CHANNEL": 64,
                    "USE_BIAS_BEFORE_NORM": False,
                    "NUM_HM_CONV": 2,
                    "BN_EPS": 0.001,
                    "BN_MOM": 0.01,
                    "SEPARATE_HEAD_CFG": {
                        "HEAD_ORDER": ["center", "center_z", "dim", "rot"],
                        "HEAD_DICT": {name: {"out_channels": n, "num_conv": 2} for name, n in branch.items()},
                    },
                    "TARGET_ASSIGNER_CONFIG": {"FEATURE_MAP_STRIDE": 1, "NUM_MAX_OBJS": 500},
                    "IOU_REG_LOSS": True,
                    "POST_PROCESSING": {
                        "SCORE_THRESH": 0.1,
                        "POST_CENTER_LIMIT_RANGE": [-80, -80, -10.0, 80, 80, 10.0],
                        "MAX_OBJ_PER_SAMPLE": 500,
                        "USE_IOU_TO_RECTIFY_SCORE": True,
                        "IOU_RECTIFIER": [0.68, 0.71, 0.65],
                        "NMS_CONFIG": {
                            "NMS_TYPE": "class_specific_nms",
                            "NMS_THRESH": [0.75, 0.6, 0.55],
                            "NMS_PRE_MAXSIZE": [4096, 4096, 4096],
                            "NMS_POST_MAXSIZE": [500, 500, 500],
                        },
                    },
                },
                "POST_PROCESSING": {"RECALL_THRESH_LIST": [0.3, 0.5, 0.7], "EVAL_METRIC": "waymo"},
            },
            "OPTIMIZATION": {"NUM_EPOCHS": 24},
        }
    )


def of_flatformer() -> dict[str, Any]:
    """Returns the settings of flatformer_waymo_D1_2x_3class.py, merged with its data set's, that say how the network
    answers.
    """
    inside = [*BOUNDS[:2], -1.999, *BOUNDS[3:5], 3.999]  # a small margin on z
    norm = {"type": "naiveSyncBN2d", "eps": 1e-3, "momentum": 0.01}
    return copy.deepcopy(
        {
            "dataset_type": "WaymoDataset",
            "class_names": ["Car", "Pedestrian", "Cyclist"],
            "test_pipeline": [
                {
                    "type": "LoadPointsFromFile",
                    "coord_type": "LIDAR",
                    "load_dim": 6,
                    "use_dim": 5,
                    "tanh_dim": [3, 4],
                },
                {
                    "type": "MultiScaleFlipAug3D",
                    "img_scale": (1333, 800),
                    "flip": False,
                    "transforms": [
                        {"type": "RandomFlip3D"},
                        {"type": "PointsRangeFilter", "point_cloud_range": inside},
                        {"type": "DefaultFormatBundle3D", "class_names": ["Car"], "with_label": False},
                        {"type": "Collect3D", "keys": ["points"]},
                    ],
                },
            ],
            "model": {
                "type": "DynamicCenterPoint",
                "voxel_layer": {
                    "voxel_size": tuple(SIZE),
                    "max_num_points": -1,
                    "point_cloud_range": BOUNDS,
                    "max_voxels": (-1, -1),
                },
                "voxel_encoder": {
                    "type": "DynamicVFE",
                    "in_channels": 5,
                    "feat_channels": [64, 128],
                    "with_distance": False,
                    "voxel_size": tuple(SIZE),
                    "with_cluster_center": True,
                    "with_voxel_center": True,
                    "point_cloud_range": BOUNDS,
                    "norm_cfg": {**norm, "type": "naiveSyncBN1d"},
                },
                "middle_encoder": {
                    "type": "FlatFormer",
                    "in_channels": 128,
                    "num_heads": 8,
                    "num_blocks": 2,
                    "activation": "gelu",
                    "window_shape": (13, 13, 1),
                    "sparse_shape": (468, 468, 1),
                    "output_shape": (468, 468),
                    "pos_temperature": 10000,
                    "normalize_pos": False,
                    "group_size": 144,
                },
                "backbone": {
                    "type": "SECOND",
                    "in_channels": 128,
                    "out_channels": [64, 128],
                    "layer_nums": [3, 3],
                    "layer_strides": [1, 2],
                    "conv_cfg": {"type": "Conv2d", "bias": False},
                    "norm_cfg": norm,
                    "residual": True,
                },
                "neck": {
                    "type": "SECONDFPN",
                    "norm_cfg": norm,
                    "in_channels": [64, 128],
                    "upsample_strides": [1, 2],
                    "out_channels": [128, 128],
                },
                "bbox_head": {
                    "type": "CenterHead",
                    "in_channels": 256,
                    "tasks": [{"num_class": 3, "class_names": ["car", "pedestrian", "cyclist"]}],
                    "common_heads": {
                        name: (n, 2)
                        for name, n in {"reg": 2, "height": 1, "dim": 3, "rot": 2, "vel": 2, "iou": 1}.items()
                    },
                    "share_conv_channel": 64,
                    "bbox_coder": {
                        "type": "CenterPointBBoxCoder",
                        "post_center_range": [-74.88, -74.88, -10.0, 74.88, 74.88, 10.0],
                        "max_num": 4096,
                        "score_threshold": 0.1,
                        "out_size_factor": 1,
                        "voxel_size": tuple(SIZE[:2]),
                        "pc_range": BOUNDS[:2],
                        "code_size": 9,
                    },
                    "separate_head": {"type": "SeparateHead", "init_bias": -2.19, "final_kernel": 3},
                    "norm_cfg": norm,
                    "loss_cls": {"type": "GaussianFocalLoss", "reduction": "mean"},
                    "loss_bbox": {"type": "L1Loss"},
                    "norm_bbox": True,
                },
                "train_cfg": {"grid_size": [468, 468, 1]},
                "test_cfg": {
                    "post_center_limit_range": [-80, -80, -10, 80, 80, 10],
                    "max_per_img": 500,
                    "max_pool_nms": False,
                    "min_radius": [4, 12, 10, 1, 0.85, 0.175],
                    "score_threshold": 0.1,
                    "pc_range": BOUNDS[:2],
                    "out_size_factor": 1,
                    "voxel_size": tuple(SIZE[:2]),
                    "nms_type": "rotate",
                    "pre_max_size": [2048, 1024, 1024],
                    "post_max_size": [300, 100, 100],
                    "nms_thr": [0.8, 0.55, 0.55],
                    "iou_pow": 2.0,
                },
            },
        }
    )


def write(folder: Path, values: dict[str, Any]) -> Path:
    if "MODEL" in values:
        path, text = folder / "c.yaml", yaml.safe_dump(values, sort_keys=False)
    else:
        path, text = folder / "c.py", "".join(f"{name} = {value!r}\n" for name, value in values.items())
    path.write_text(text)
    return path


def read(folder: Path, values: dict[str, Any], features: tuple[PointFeature, ...] = ()) -> detector_configs.Detector:
    return detector_configs.read(str(write(folder, values)), features)


PUBLISHED: dict[str, Any] = {"dsvt": (of_dsvt, dsvt), "flatformer": (of_flatformer, flatformer)}


# Published files


@pytest.mark.usefixtures("no_values")
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_gives_the_published_network(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values, module = PUBLISHED[name][0](), PUBLISHED[name][1]
    made = read(tmp_path, values)
    assert (made.command, made.config) == (name, module.WAYMO)
    files = []
    for given in ([], ["--config", str(write(tmp_path, values))]):
        output = tmp_path / f"made{len(given)}"
        assert main([name, *given, "--output", str(output), "--name", "net"]) == 0
        files.append({p.name: p.read_bytes() for p in output.rglob("*") if p.is_file()})
    assert files[0] == files[1]
    told, warned = capsys.readouterr()
    assert "range x -74.88 to 74.88" in told
    for note in NOTES:
        assert f"warning: {note}" in warned
    assert ("leaves out points outside" in warned) == (name == "flatformer")


def test_dsvts_own_file_is_read_with_its_own_names(tmp_path: Path) -> None:
    """Haiyang-W/DSVT takes tanh without a setting, and suppresses in a way of its own."""
    values = of_dsvt()
    del values["DATA_CONFIG"]["POINTS_TANH_DIM"]
    values["MODEL"]["VFE"]["NAME"] = "DynPillarVFE3D"
    nms = values["MODEL"]["DENSE_HEAD"]["POST_PROCESSING"]["NMS_CONFIG"]
    nms |= {"NMS_TYPE": "multi_class_nms", "NMS_THRESH": [0.7, 0.6, 0.55]}
    made = read(tmp_path, values)
    assert made.config == replace(dsvt.WAYMO, nms_classes=(ClassNms(0, 0.7, 4096, 500), *dsvt.WAYMO.nms_classes[1:]))
    assert made.notes[:2] == NOTES
    assert made.notes[2].startswith("the library's multi_class_nms turns each box by a quarter turn")
    values["MODEL"]["VFE"]["NAME"] = "DynamicVoxelVFE"  # OpenPCDet's code takes that of the intensity alone
    assert read(tmp_path, values).notes[:1] == NOTES[1:]


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_are_read_with_a_file(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tmp_path / "weights.safetensors"
    safetensors_file.write(weights, window_golden.read(name).state)
    config, output = write(tmp_path, PUBLISHED[name][0]()), tmp_path / "out"
    assert main([name, str(weights), "--config", str(config), "--output", str(output)]) == 0
    assert f"read {config}" in capsys.readouterr().out
    alone = tmp_path / "alone"
    assert main([name, str(weights), "--output", str(alone), "--name", "out"]) == 0
    assert "assumed of the published network, since weights do not say it (--config FILE" in capsys.readouterr().out
    for file in ("config.textproto", "1/model.textproto", "1/weights.safetensors"):
        assert (output / file).read_bytes() == (alone / file).read_bytes()


# Own files


def test_an_own_dsvt(tmp_path: Path) -> None:
    values = of_dsvt()
    values["CLASS_NAMES"] = ["Bus", "Car"]
    for path, value in {
        "DATA_CONFIG.DATASET": "CustomDataset",
        "DATA_CONFIG.POINTS_TANH_DIM": None,
        "DATA_CONFIG.POINT_CLOUD_RANGE": [-16, -32, -1, 16, 32, 3],
        "DATA_CONFIG.POINT_FEATURE_ENCODING.used_feature_list": ["x", "y", "z", "intensity"],
        "DATA_CONFIG.DATA_PROCESSOR.2.VOXEL_SIZE": [0.5, 0.25, 4],
        "MODEL.VFE.NUM_FILTERS": [96, 96],
        "MODEL.BACKBONE_3D.INPUT_LAYER": {
            "sparse_shape": [64, 256, 1],
            "downsample_stride": [],
            "d_model": [96],
            "set_info": [[90, 3]],
            "window_shape": [[30, 20, 1]],
            "hybrid_factor": [1, 2, 1],
            "shifts_list": [[[0, 5, 0], [15, 0, 0]]],
            "normalize_pos": False,
        },
        "MODEL.BACKBONE_3D.set_info": [[90, 3]],
        "MODEL.BACKBONE_3D.d_model": [96],
        "MODEL.BACKBONE_3D.nhead": [4],
        "MODEL.BACKBONE_3D.dim_feedforward": [200],
        "MODEL.BACKBONE_3D.conv_out_channel": 96,
        "MODEL.MAP_TO_BEV.INPUT_SHAPE": [64, 256, 1],
        "MODEL.MAP_TO_BEV.NUM_BEV_FEATURES": 96,
        "MODEL.BACKBONE_2D": {
            "NAME": "BaseBEVResBackbone",
            "LAYER_NUMS": [0, 3],
            "LAYER_STRIDES": [2, 2],
            "NUM_FILTERS": [32, 64],
            "UPSAMPLE_STRIDES": [2, 4],
            "NUM_UPSAMPLE_FILTERS": [16, 48],
        },
        "MODEL.DENSE_HEAD.CLASS_NAMES_EACH_HEAD": [["Car"], ["Bus"]],
        "MODEL.DENSE_HEAD.SHARED_CONV_CHANNEL": 32,
        "MODEL.DENSE_HEAD.BN_EPS": None,
        "MODEL.DENSE_HEAD.SEPARATE_HEAD_CFG.HEAD_ORDER": ["center", "center_z", "dim", "rot", "vel"],
        "MODEL.DENSE_HEAD.SEPARATE_HEAD_CFG.HEAD_DICT.vel": {"out_channels": 2, "num_conv": 2},
        "MODEL.DENSE_HEAD.SEPARATE_HEAD_CFG.HEAD_DICT.iou": None,
        "MODEL.DENSE_HEAD.POST_PROCESSING": {
            "SCORE_THRESH": 0.2,
            "POST_CENTER_LIMIT_RANGE": [-20, -40, -5, 20, 40, 5],
            "MAX_OBJ_PER_SAMPLE": 90,
            "NMS_CONFIG": {
                "NMS_TYPE": "class_specific_nms",
                "NMS_THRESH": [0.3, 0.4],
                "NMS_PRE_MAXSIZE": [80, 70],
                "NMS_POST_MAXSIZE": [60, 50],
            },
        },
    }.items():
        put(values, path, value)
    made = read(tmp_path, values)
    config = made.config
    assert isinstance(config, dsvt.Config)
    assert config.voxels.grid() == (64, 256, 1)
    assert [feature.name for feature in config.voxels.features] == ["x", "y", "z", "intensity"]
    assert ([entry.name for entry in config.classes], config.tasks) == (["Bus", "Car"], ((1,), (0,)))
    assert (config.width, config.num_heads, config.hidden) == (96, 4, 200)
    assert (config.num_blocks, config.group_size) == (3, 90)
    assert config.windows == (Windows((30, 20), (0, 5)), Windows((30, 40), (15, 0)))
    assert config.stages == (BevStage(0, 2, 32, 2, 16), BevStage(3, 2, 64, 4, 48))
    assert (config.head_width, config.epsilon, config.has_velocity) == (32, 1e-5, True)
    assert (config.iou_powers, config.max_boxes, config.score_threshold) == ((), 90, 0.2)
    assert config.nms_classes == (ClassNms(0, 0.3, 80, 60), ClassNms(1, 0.4, 70, 50))
    dsvt.random_network(config, name="own").to_textproto()


def test_an_own_flatformer(tmp_path: Path) -> None:
    values = of_flatformer()
    for path, value in {
        "class_names": ["Tram", "car"],
        "model.voxel_layer.point_cloud_range": [0, -8, -1, 32, 8, 3],
        "model.voxel_layer.voxel_size": [0.5, 0.25, 4],
        "model.voxel_encoder.point_cloud_range": [0, -8, -1, 32, 8, 3],
        "model.voxel_encoder.voxel_size": [0.5, 0.25, 4],
        "model.voxel_encoder.feat_channels": [24, 48],
        "test_pipeline.1.transforms.1.point_cloud_range": [0, -8, -1, 32, 8, 3],
        "model.middle_encoder": {
            "type": "FlatFormer",
            "in_channels": 48,
            "num_heads": 4,
            "num_blocks": 3,
            "window_shape": (7, 5, 1),
            "sparse_shape": (64, 64, 1),
            "output_shape": (64, 64),
            "pos_temperature": 500,
        },
        "model.bbox_head.tasks.0.class_names": ["tram", "car"],
        "model.bbox_head.bbox_coder.voxel_size": [0.5, 0.25],
        "model.bbox_head.bbox_coder.pc_range": [0, -8],
        "model.bbox_head.bbox_coder.max_num": 77,
        "model.test_cfg.score_threshold": 0.3,
        "model.test_cfg.nms_thr": [0.1, 0.2],
        "model.test_cfg.pre_max_size": [30, 40],
        "model.test_cfg.post_max_size": [10, 20],
        "model.test_cfg.iou_pow": 1.5,
    }.items():
        put(values, path, value)
    made = read(tmp_path, values)
    assert set(made.notes) == set(NOTES)
    config = made.config
    assert isinstance(config, flatformer.Config)
    assert (config.voxels.grid(), config.pillar_width, config.width) == ((64, 64, 1), 24, 48)
    assert (config.num_heads, config.num_blocks, config.window) == (4, 3, (7, 5))
    assert (config.group_size, config.temperature) == (69, 500), "the library's default, and the file's"
    assert [entry.name for entry in config.classes] == ["tram", "car"]
    assert (config.max_boxes, config.score_threshold, config.iou_power) == (77, 0.3, 1.5)
    assert config.nms_classes == (ClassNms(0, 0.1, 30, 10), ClassNms(1, 0.2, 40, 20))
    flatformer.random_network(config, name="own").to_textproto()


def test_several_frames_need_the_names_of_columns(tmp_path: Path) -> None:
    """The fifth column of flatformer's files of 2 and 3 frames is minus a number of frames."""
    values = of_flatformer()
    values["dataset_type"] = "MultiSweepsWaymoDataset"
    step = {"type": "LoadPointsFromMultiSweepsWaymo", "sweeps_num": 2, "use_dim": [0, 1, 2, 3, 4]}
    values["test_pipeline"].insert(1, step)
    with pytest.raises(ExportError, match="some have no known name: name them with --features"):
        read(tmp_path, values)
    features = (*flatformer.WAYMO.voxels.features[:4], PointFeature("frame", "1", 0))
    made = read(tmp_path, values, features)
    assert made.config.voxels.features == features
    assert TANH.format("intensity") in made.notes
    assert TANH.format("elongation") not in made.notes
    assert any("LoadPointsFromMultiSweepsWaymo, which is not known here" in note for note in made.notes)


# Refusals

INPUT, BLOCKS, HEAD = "MODEL.BACKBONE_3D.INPUT_LAYER", "MODEL.BACKBONE_3D", "MODEL.DENSE_HEAD"
REFUSED: list[tuple[str, str, Any, str]] = [
    ("dsvt", "DATA_CONFIG.POINTS_TANH_DIM", [2], "POINTS_TANH_DIM is [2]: 3 and 4 are served"),
    ("dsvt", "DATA_CONFIG.DATASET", "KittiDataset", "POINTS_TANH_DIM is [3, 4]: a tanh of columns is not served"),
    ("dsvt", "MODEL.VFE.NAME", "PillarVFE", "VFE.NAME is 'PillarVFE', not DynamicVoxelVFE or DynPillarVFE3D"),
    ("dsvt", "MODEL.VFE.NUM_FILTERS", [192, 128], "VFE.NUM_FILTERS is [192, 128]: two layers of one even width"),
    ("dsvt", "MODEL.VFE.NUM_FILTERS", [64, 64], "is [64, 64], but the blocks have 192 channels"),
    ("dsvt", f"{INPUT}.sparse_shape", [468, 468, 32], "sparse_shape is [468, 468, 32], not [468, 468, 1]"),
    ("dsvt", f"{INPUT}.downsample_stride", [[1, 1, 4]], "downsample_stride is [[1, 1, 4]], not []: one stage"),
    ("dsvt", f"{INPUT}.normalize_pos", True, "normalize_pos is True, not False"),
    ("dsvt", f"{INPUT}.set_info", [[48, 4]], "INPUT_LAYER.set_info is [[48, 4]], not [[36, 4]]"),
    ("dsvt", f"{INPUT}.window_shape", [[12, 12, 2]], "must have one pillar on z"),
    ("dsvt", f"{INPUT}.window_shape", [[12, 12, 1]] * 2, "window_shape is [[12, 12, 1], [12, 12, 1]]: one stage"),
    ("dsvt", f"{INPUT}.shifts_list", [[[0, 0, 0], [24, 6, 0]]], "has [24, 6, 0], which is not below the window's"),
    ("dsvt", f"{INPUT}.shifts_list", [[[0, 0, 0]]], "has [[0, 0, 0]] for a stage, not two shifts"),
    ("dsvt", f"{INPUT}.more", 3, "INPUT_LAYER.more is 3: the exporter does not know this setting"),
    ("dsvt", f"{BLOCKS}.block_name", ["DSVTBlock"] * 2, "block_name is ['DSVTBlock', 'DSVTBlock'], not ['DSVTBlock']"),
    ("dsvt", f"{BLOCKS}.set_info", [[36]], "BACKBONE_3D.set_info has 1 numbers for a stage, not 2"),
    ("dsvt", f"{BLOCKS}.nhead", [7], "nhead is 7, which does not divide the 192 channels"),
    ("dsvt", f"{BLOCKS}.activation", "relu", "activation is 'relu', not 'gelu'"),
    ("dsvt", f"{BLOCKS}.conv_out_channel", 128, "conv_out_channel is 128, not 192"),
    ("dsvt", "MODEL.MAP_TO_BEV.INPUT_SHAPE", [400, 468, 1], "INPUT_SHAPE is [400, 468, 1], not [468, 468, 1]"),
    ("dsvt", "MODEL.BACKBONE_2D.NAME", "BaseBEVBackbone", "is 'BaseBEVBackbone', not BaseBEVResBackbone"),
    ("dsvt", "MODEL.BACKBONE_2D.UPSAMPLE_STRIDES", [0.5, 1, 2], "the network's layers have the stride 2"),
    ("dsvt", f"{HEAD}.TARGET_ASSIGNER_CONFIG.FEATURE_MAP_STRIDE", 2, "is 2, not 1: cells as large as pillars"),
    ("dsvt", f"{HEAD}.BN_EPS", 0, "BN_EPS is 0, not above 0"),
    ("dsvt", f"{HEAD}.UPSAMPLE", 2, "UPSAMPLE is 2, not 1"),
    ("dsvt", f"{HEAD}.SEPARATE_HEAD_CFG.HEAD_DICT.iou.out_channels", 2, "iou.out_channels is 2, not 1"),
    ("dsvt", f"{HEAD}.SEPARATE_HEAD_CFG.HEAD_DICT.iou", None, "USE_IOU_TO_RECTIFY_SCORE is True, not False"),
    ("dsvt", f"{HEAD}.POST_PROCESSING.USE_IOU_TO_RECTIFY_SCORE", False, "SCORE is False, not True: as the head has"),
    ("dsvt", f"{HEAD}.POST_PROCESSING.IOU_RECTIFIER", [0.5, 2, 0.5], "IOU_RECTIFIER is [0.5, 2, 0.5]: powers of 0"),
    ("dsvt", f"{HEAD}.POST_PROCESSING.IOU_RECTIFIER", [0.5], "IOU_RECTIFIER has 1 numbers, not 3"),
    ("dsvt", f"{HEAD}.POST_PROCESSING.NMS_CONFIG.NMS_TYPE", "nms_gpu", "is 'nms_gpu', not class_specific_nms"),
    ("dsvt", f"{HEAD}.POST_PROCESSING.NMS_CONFIG.NMS_THRESH", [0.7, 1.5, 0.5], "overlaps of 0 to 1 are served"),
    ("dsvt", f"{HEAD}.POST_PROCESSING.NMS_CONFIG.NMS_PRE_MAXSIZE", [9, 9], "NMS_PRE_MAXSIZE has 2 numbers, not 3"),
    ("dsvt", f"{HEAD}.POST_PROCESSING.NMS_CONFIG.SCORE_THRESH", 0.3, "another threshold than the head's"),
    ("dsvt", f"{HEAD}.CLASS_NAMES_EACH_HEAD", [["Vehicle", "Cyclist"]], "does not have each class of"),
    ("flatformer", "model.voxel_layer.max_num_points", 20, "max_num_points is 20, not -1"),
    ("flatformer", "model.voxel_layer.max_voxels", 9000, "max_voxels is 9000, not [-1, -1]"),
    ("flatformer", "model.voxel_encoder.in_channels", 4, "in_channels is 4, not 5: the number of the test pipeline"),
    ("flatformer", "model.voxel_encoder.mode", "avg", "mode is 'avg', not 'max'"),
    ("flatformer", "model.voxel_encoder.feat_channels", [128], "feat_channels is [128]: two layers are served"),
    ("flatformer", "model.voxel_encoder.norm_cfg.eps", 1e-5, "norm_cfg.eps is 1e-05, not 0.001"),
    ("flatformer", "model.voxel_encoder.with_voxel_center", False, "with_voxel_center is False, not True"),
    ("flatformer", "model.middle_encoder.type", "IdentityMiddleEncoder", "is 'IdentityMiddleEncoder', not FlatFormer"),
    ("flatformer", "model.middle_encoder.window_shape", (13, 13, 2), "window_shape is [13, 13, 2]"),
    ("flatformer", "model.middle_encoder.sparse_shape", (400, 400, 1), "sparse_shape is (400, 400, 1), not [468,"),
    ("flatformer", "model.middle_encoder.normalize_pos", True, "normalize_pos is True, not False"),
    ("flatformer", "model.middle_encoder.num_heads", 7, "num_heads is 7, which does not divide the 128 channels"),
    ("flatformer", "model.middle_encoder.extra", 1, "middle_encoder.extra is 1: the exporter does not know"),
    ("flatformer", "model.backbone.residual", False, "backbone.residual is False, not True"),
    ("flatformer", "model.neck.use_conv_for_no_stride", True, "transposed convolutions are served"),
    ("flatformer", "model.neck.upsample_strides", [0.5, 1], "upsampl"),
    ("flatformer", "model.bbox_head.common_heads.iou", None, "common_heads.iou is missing"),
    ("flatformer", "model.bbox_head.separate_head.final_kernel", 1, "final_kernel is 1, not 3"),
    ("flatformer", "model.bbox_head.bbox_coder.out_size_factor", 2, "out_size_factor is 2, not 1"),
    ("flatformer", "model.bbox_head.tasks.0.class_names", ["car", "bus", "cyclist"], "but the data set's classes are"),
    ("flatformer", "model.test_cfg.nms_type", "circle", "nms_type is 'circle', not 'rotate'"),
    ("flatformer", "model.test_cfg.nms_thr", 0.7, "nms_thr is 0.7: one for each class is served"),
    ("flatformer", "model.test_cfg.iou_pow", [0.5] * 3, "iou_pow is a list: one power for all classes is served"),
    ("flatformer", "model.test_cfg.post_center_limit_range", [-60, -60, -10, 60, 60, 10], "leaves out more than"),
    ("flatformer", "test_pipeline.0.tanh_dim", [3, 5], "tanh_dim is [3, 5]: those of intensity and elongation"),
    ("flatformer", "test_pipeline.1.transforms.1.point_cloud_range", [*BOUNDS[:5], 3], "that of the voxel_layer"),
]


@pytest.mark.parametrize(("name", "path", "value", "message"), REFUSED)
def test_what_is_not_served_is_named(name: str, path: str, value: Any, message: str, tmp_path: Path) -> None:
    values = PUBLISHED[name][0]()
    put(values, path, value)
    with pytest.raises(ExportError) as caught:
        read(tmp_path, values)
    assert message in str(caught.value)


def test_a_file_of_another_network_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(write(tmp_path, of_dsvt()))
    assert main(["flatformer", "--config", config, "--output", str(tmp_path / "out")]) == 1
    assert "describes a network of the command dsvt: use that one" in capsys.readouterr().err
    assert main(["dsvt", "--features", "x:m,y:m,z:m", "--output", str(tmp_path / "out")]) == 1
    assert "--features names the columns of a configuration: add --config" in capsys.readouterr().err
