"""Exports networks whose heads have queries by their libraries' configurations, and compares the server's boxes with
those that the libraries' own classes computed (tests/golden/queries).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import query_configs
from conftest import serving
from detector_config_files import put
from google.protobuf import text_format
from query_golden import Golden

import voxserve
from voxserve import wire
from voxserve.export import detector_configs, model_folder
from voxserve.export.__main__ import main
from voxserve.export.networks import trans_fusion

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
METRES, SCORE = 1e-3, 1e-4  # allowed differences of boxes, and of scores
DETECTORS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "openpcdet": ("transfusion-l", query_configs.openpcdet),
    "awml-bevfusion": ("bevfusion-l", query_configs.bev_fusion),
    "awml-transfusion": ("transfusion-l", query_configs.trans_fusion),
}


def export(folder: Path, case: str, values: dict[str, Any] | None = None, golden: Golden | None = None) -> int:
    command, config = DETECTORS[case]
    folder.mkdir(exist_ok=True)
    weights = (golden or Golden.read(case)).write(folder)
    path = query_configs.write(folder, config() if values is None else values)
    return main([command, str(weights), "--config", str(path), "--output", str(folder.parent / "models" / case)])


def expect_boxes(found: voxserve.Detections, golden: np.ndarray[Any, Any]) -> None:
    """Every box of the library is there once, within the allowed differences, and there is no other."""
    assert len(golden) > 20
    rows = np.concatenate(
        [found.boxes, found.velocities, found.scores[:, None], found.class_ids[:, None]], axis=1, dtype=np.float64
    )
    assert len(rows) == len(golden)
    difference = np.abs(rows[:, None] - golden[None])
    difference[..., 6] = np.minimum(difference[..., 6], 2 * np.pi - difference[..., 6])
    fits = (difference[..., :9] < METRES).all(axis=2) & (difference[..., 9] < SCORE) & (difference[..., 10] == 0)
    assert (fits.sum(axis=0) == 1).all()
    assert (fits.sum(axis=1) == 1).all()
    assert found.queries is not None
    assert len(set(found.queries.tolist())) == len(rows)


def detect(folder: Path, case: str, points: np.ndarray[Any, Any]) -> tuple[voxserve.Detections, ...]:
    """Returns the boxes of a cloud, and those of an empty one."""
    fields = ("x", "y", "z", "intensity", "age")
    with serving(folder / "models", folder / "log") as address, voxserve.Client(address, timeout=120) as client:
        clouds = (voxserve.PointCloud.from_array(part, fields=fields) for part in (points, points[:0]))
        return tuple(client.detect(case, cloud) for cloud in clouds)


@pytest.mark.integration
@pytest.mark.parametrize("case", DETECTORS)
def test_the_server_has_the_boxes_of_the_library(tmp_path: Path, case: str) -> None:
    golden = Golden.read(case)
    assert export(tmp_path / case, case, golden=golden) == 0
    found, empty = detect(tmp_path, case, golden.points)
    expect_boxes(found, golden.boxes)
    assert np.isfinite(empty.boxes).all()


def bevfusion_config() -> trans_fusion.Config:
    """Returns mit-han-lab/bevfusion's published configuration on a small range."""
    config = trans_fusion.config_of("nuscenes-0.1", "bevfusion")
    features = tuple(replace(feature, scale=1.0) for feature in config.voxels.features)
    low, high = (-25.6, -25.6, -3.0), (25.6, 25.6, 5.0)
    limits = {"center_min": (-24.0, -24.0, -9.0), "center_max": (24.0, 24.0, 9.0), "score_thresholds": (0.3,)}
    return replace(
        config,
        voxels=replace(config.voxels, range_min=low, range_max=high, features=features),
        head=replace(config.head, **limits),
    )


@pytest.mark.integration
def test_the_server_has_the_boxes_of_bevfusion(tmp_path: Path) -> None:
    golden = Golden.read("bevfusion")
    config = bevfusion_config()
    network = trans_fusion.build(golden.state, config, name="bevfusion", library="bevfusion")
    text = model_folder.config_textproto(config.classes, max_voxels=0)
    model_folder.write(str(tmp_path / "models" / "bevfusion"), network, text)
    found, _ = detect(tmp_path, "bevfusion", golden.points)
    expect_boxes(found, golden.boxes)


@pytest.mark.integration
def test_one_request_has_the_labels_and_boxes_of_autoware_ml(tmp_path: Path) -> None:
    golden = Golden.read("autoware-ptv3")
    config = query_configs.write_ptv3(tmp_path)
    weights = golden.write(tmp_path)
    output = tmp_path / "models" / "ptv3"
    assert main(["autoware-ptv3", str(weights), "--config", str(config), "--output", str(output)]) == 0
    with serving(tmp_path / "models", tmp_path / "log") as address, voxserve.Client(address, timeout=120) as client:
        segmentation = client.infer("ptv3", golden.points)
        found = segmentation.detections
    assert found is not None
    expect_boxes(found, golden.boxes)
    assert len(np.unique(golden.labels)) > 3
    # Two logits of a voxel may be closer than float32 computes them.
    assert (segmentation.labels == golden.labels).mean() > 0.9999


REFUSED: list[tuple[str, str, Any, str]] = [
    ("openpcdet", "MODEL.DENSE_HEAD.NMS_KERNEL_SIZE", 1, "NMS_KERNEL_SIZE is 1, with which the library stops"),
    ("openpcdet", "MODEL.DENSE_HEAD.NMS_KERNEL_SIZE", 4, "has a window of 4 cells for peaks; served are odd ones"),
    ("openpcdet", "MODEL.DENSE_HEAD.NUM_PROPOSALS", 2000, "selects 2000 queries; the server selects 1 to 1024"),
    ("openpcdet", "MODEL.DENSE_HEAD.NUM_HEADS", 7, "has 7 heads, which do not divide 128 channels"),
    ("openpcdet", "MODEL.DENSE_HEAD.ACTIVATION", "gelu", "ACTIVATION is 'gelu', not 'relu'"),
    ("openpcdet", "MODEL.DENSE_HEAD.NUM_CLASSES", 9, "NUM_CLASSES is 9, not 10: the number of CLASS_NAMES"),
    ("openpcdet", "MODEL.DENSE_HEAD.LOSS_CONFIG.LOSS_CLS.use_sigmoid", False, "use_sigmoid is False, not True"),
    ("openpcdet", "MODEL.DENSE_HEAD.POST_PROCESSING.NMS_CONFIG", {"NMS_TYPE": "circle_nms"}, "head has no NMS"),
    ("openpcdet", "MODEL.DENSE_HEAD.POST_PROCESSING.SCORE_THRESH", 1.5, "has the score thresholds [1.5]"),
    (
        "openpcdet",
        "MODEL.DENSE_HEAD.TARGET_ASSIGNER_CONFIG.FEATURE_MAP_STRIDE",
        4,
        "the network's layers have the stride",
    ),
    ("openpcdet", "MODEL.DENSE_HEAD.QUERY_NOISE", 3, "QUERY_NOISE is 3: the exporter does not know this setting"),
    ("openpcdet", "DATA_CONFIG.POINT_CLOUD_RANGE", [-25.6, -51.2, -3, 25.6, 51.2, 5], "has 64 x 128 cells on x and y"),
    ("awml-transfusion", "model.test_cfg.pts.nms_type", "circle", "nms_type is 'circle': NMS of a head with queries"),
    (
        "awml-transfusion",
        "model.test_cfg.pts.grid_size",
        [512, 512, 1],
        "grid_size is [512, 512, 1], but the range has",
    ),
    ("awml-transfusion", "model.pts_bbox_head.num_classes", 4, "num_classes is 4, but the data set has ['car',"),
    ("awml-transfusion", "model.pts_bbox_head.num_decoder_layers", 2, "num_decoder_layers is 2, not 1"),
    (
        "awml-transfusion",
        "model.pts_bbox_head.decoder_layer.ffn_cfg.act_cfg.type",
        "GELU",
        "type is 'GELU', not 'ReLU'",
    ),
    ("awml-transfusion", "model.pts_bbox_head.decoder_layer.cross_attn_cfg.num_heads", 4, "that of self_attn_cfg is 8"),
    ("awml-transfusion", "model.pts_bbox_head.bbox_coder.post_center_range", [9, 0, 0, 8, 1, 1], "within which is no"),
    ("awml-bevfusion", "model.img_backbone", {"type": "SwinTransformer"}, "cameras are not served: give the configur"),
    ("awml-bevfusion", "model.seg_head", {"type": "BEVSegmentationHead"}, "its head for a map is not served"),
    ("awml-bevfusion", "model.voxelize_cfg.voxelize_reduce", False, "voxelize_reduce is False, not True"),
    ("awml-bevfusion", "model.bbox_head.dense_heatmap_pooling_classes", ["tram"], "has 'tram', which is no class of"),
    ("awml-bevfusion", "model.pts_middle_encoder.sparse_shape", [41, 512, 512], "the range's voxels on x, y and z"),
    (
        "awml-bevfusion",
        "model.pts_middle_encoder.aug_features_max_values",
        [1, 2],
        "each of the 5 features needs a range",
    ),
    ("awml-bevfusion", "model.pts_middle_encoder.num_aug_features", 40, "num_aug_features is 40; served are up to 16"),
    ("awml-bevfusion", "model.bbox_head.type", "CenterHead", "type is 'CenterHead', not BEVFusionHead"),
]


@pytest.mark.parametrize(("case", "path", "value", "problem"), REFUSED)
def test_what_is_not_served_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str, path: str, value: Any, problem: str
) -> None:
    command, config = DETECTORS[case]
    values = config()
    put(values, path, value)
    written = query_configs.write(tmp_path, values)
    assert main([command, "--config", str(written), "--output", str(tmp_path / "net")]) == 1
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "net").exists()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "use_velocity: true",
            "nms_type: circle",
            "nms_type is 'circle': NMS by the distance of centres is not served",
        ),
        (
            "class_names: [car, truck, bus, bicycle, ped",
            "class_names: [car, tram, bus, bicycle, ped",
            "has 'tram', which is",
        ),
        ("class_names: [car, truck", "class_names: [car, kart", "two classes that are one class of the points"),
        ("output_shape: [64, 64]", "output_shape: [64, 128]", "output_shape is [64, 128], not [64, 64]"),
        ("[1.6, 1.6, 8.0]", "[0.8, 0.8, 8.0]", "times 1 is not 1.6 m, the size of the image's cells"),
        ("score_threshold: 0.3", "score_threshold: [0.3, 0.2]", "score_threshold has 2 values for 5 classes"),
        ("pooling_classes: [car, truck, bus]", "pooling_classes: [car, 7]", "has 7, which is no class of the head"),
        ("num_decoder_layers: 1", "num_decoder_layers: 2", "num_decoder_layers is 2, not 1"),
        ("bev_encoder: {in_channels: 32", "bev_encoder: {in_channels: 33", "but the bev_projector has 32 channels"),
        ("num_proposals: 200", "num_proposals: 1025", "selects 1025 queries; the server selects 1 to 1024"),
        ("enc_channels[3]}", "enc_channels[9]}", "is ${model.encoder.enc_channels[9]}, which no file defines"),
        ("multi.ptv3_segdet.PTv3SegDetModel", "multi.PTv3Flow", "_target_ is PTv3Flow; served are PTv3Segmentation"),
    ],
)
def test_what_autoware_ml_has_and_is_not_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, problem: str
) -> None:
    config = query_configs.write_ptv3(tmp_path, (old, new))
    assert main(["autoware-ptv3", "--config", str(config), "--output", str(tmp_path / "net")]) == 1
    assert problem in capsys.readouterr().err


def test_boxes_alone_and_thresholds_of_classes(tmp_path: Path) -> None:
    changes = [("multi.ptv3_segdet.PTv3SegDetModel", "detection3d.ptv3.PTv3DetectionModel")]
    changes += [("score_threshold: 0.3", "score_threshold: [0.1, 0.2, 0.3, 0.4, 0.5]")]
    changes += [("dense_heatmap_pooling_classes: [car, truck, bus]", "use_own: true"), ("    use_own: true\n", "")]
    config = query_configs.write_ptv3(tmp_path, *changes)
    assert main(["autoware-ptv3", "--config", str(config), "--output", str(tmp_path / "net")]) == 0
    model = text_format.Parse((tmp_path / "net" / "1" / "model.textproto").read_text(), wire.Model())
    assert [output.kind for output in model.outputs] == [wire.Output.KIND_BOXES]
    nodes = {node.name: node for node in model.nodes}
    decode, select = nodes["boxes"].query_decode, nodes["queries"].select
    assert list(decode.score_thresholds) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert decode.height_of == decode.HEIGHT_TOP
    assert (list(decode.class_ids), decode.stride, list(decode.center_min)) == ([0, 1, 2, 3, 4], 8, [])
    assert select.border == select.BORDER_PAD
    assert list(select.classes_without_peak_test) == []
    text = (tmp_path / "net" / "config.textproto").read_text()
    assert [line.split('"')[1] for line in text.splitlines() if line.startswith("classes")] == query_configs.T4


@pytest.mark.parametrize("case", DETECTORS)
def test_every_tensor_that_does_not_fit_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    golden = Golden.read(case)
    state = dict(golden.state)
    missing = [name for name in state if "aug_features" not in name and "exponents" not in name][::7]
    wrong = next(name for name in state if name.endswith("in_proj_weight") and name not in missing)
    for name in missing:
        del state[name]
    state[wrong] = state[wrong][:, :64]
    state["img_backbone.x"] = np.zeros((2, 2), np.float32)
    assert export(tmp_path / case, case, golden=replace(golden, state=state)) == 1
    error = capsys.readouterr().err
    for name in missing:
        assert f"tensor '{name}' " in error, name
    assert f"tensor '{wrong}' is [384, 64], not [384, 128]" in error
    assert "'img_backbone.x' [2, 2] is not part of the network" in error
    assert not (tmp_path / "models").exists()


def test_ranges_of_waves_are_those_of_the_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = query_configs.bev_fusion()
    put(values, "model.pts_middle_encoder.aug_features_max_values", [25.6, 25.6, 5.0, 1.0, 0.2])
    assert export(tmp_path / "a", "awml-bevfusion", values) == 1
    assert "'aug_features_max_values' is [25.6" in capsys.readouterr().err


def test_the_library_of_the_tensors_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = Golden.read("bevfusion").write(tmp_path)
    command = ["transfusion-l", str(weights), "--output", str(tmp_path / "net"), "--dataset", "nuscenes-0.1"]
    assert main([*command[:-1], "nuscenes-0.075"]) == 1
    assert "has bevfusion's names of tensors, not openpcdet's: add --library bevfusion" in capsys.readouterr().err
    assert main(command) == 1
    assert "openpcdet has no configuration 'nuscenes-0.1', only bevfusion" in capsys.readouterr().err
    assert main([*command, "--library", "bevfusion"]) == 0
    model = text_format.Parse((tmp_path / "net" / "1" / "model.textproto").read_text(), wire.Model())
    constant = next(node.constant for node in model.nodes if node.WhichOneof("op") == "constant")
    assert (constant.rows, constant.columns, constant.channels) == (128, 128, 128)


@pytest.mark.parametrize(
    ("arguments", "queries", "boxes"),
    [
        (["transfusion-l", "--dataset", "nuscenes-0.075"], 200, "CENTER"),
        (["bevfusion-l"], 500, "CENTER"),
        (["autoware-ptv3", "--boxes"], 500, "TOP"),
    ],
)
@pytest.mark.usefixtures("no_values")
def test_published_networks_with_random_weights(tmp_path: Path, arguments: list[str], queries: int, boxes: str) -> None:
    assert main([*arguments, "--output", str(tmp_path / "net")]) == 0
    model = text_format.Parse((tmp_path / "net" / "1" / "model.textproto").read_text(), wire.Model())
    nodes = {node.name: node for node in model.nodes}
    assert nodes["queries"].select.k == queries
    decode = nodes["boxes"].query_decode
    assert wire.QueryDecode.Height.Name(decode.height_of) == f"HEIGHT_{boxes}"


MIT_DEFAULTS = {
    "default.yaml": """
point_cloud_range: [-25.6, -25.6, -3.0, 25.6, 25.6, 5.0]
voxel_size: [0.1, 0.1, 0.2]
dataset_type: OwnDataset
object_classes: [car, truck, construction_vehicle, bus, trailer, barrier, motorcycle, bicycle, pedestrian, traffic_cone]
paths: ["${dataset_root + 'x'}", "${augment.sizes[0]}"]
test_pipeline:
  - {type: LoadMultiViewImageFromFiles}
  - {type: LoadPointsFromFile, coord_type: LIDAR, load_dim: 5, use_dim: 5}
  - {type: LoadPointsFromMultiSweeps, sweeps_num: 9, load_dim: 5, use_dim: [0, 1, 2, 3, 4]}
model: {type: BEVFusion, encoders: null, fuser: null, heads: {map: null}}
""",
    "transfusion/default.yaml": """
model:
  decoder:
    backbone:
      {type: SECOND, in_channels: 256, out_channels: [128, 256], layer_nums: [5, 5], layer_strides: [1, 2],
       norm_cfg: {type: BN, eps: 1.0e-3, momentum: 0.01}, conv_cfg: {type: Conv2d, bias: false}}
    neck:
      {type: SECONDFPN, in_channels: [128, 256], out_channels: [256, 256], upsample_strides: [1, 2],
       norm_cfg: {type: BN, eps: 1.0e-3, momentum: 0.01}, upsample_cfg: {type: deconv, bias: false},
       use_conv_for_no_stride: true}
  heads:
    object:
      type: TransFusionHead
      num_proposals: 200
      in_channels: 512
      hidden_channel: 128
      num_classes: 10
      num_decoder_layers: 1
      num_heads: 8
      nms_kernel_size: 3
      ffn_channel: 256
      dropout: 0.1
      activation: relu
      test_cfg: {dataset: nuScenes, grid_size: [512, 512, 1], out_size_factor: 8, voxel_size: "${voxel_size[:2]}",
                 pc_range: "${point_cloud_range[:2]}", nms_type: null}
      common_heads: {center: [2, 2], height: [1, 2], dim: [3, 2], rot: [2, 2], vel: [2, 2]}
      bbox_coder: {type: TransFusionBBoxCoder, pc_range: "${point_cloud_range[:2]}", out_size_factor: 8,
                   post_center_range: [-24.0, -24.0, -9.0, 24.0, 24.0, 9.0], score_threshold: 0.3,
                   voxel_size: "${voxel_size[:2]}", code_size: 10}
      loss_cls: {type: FocalLoss, use_sigmoid: true}
""",
    "transfusion/lidar.yaml": """
model:
  encoders:
    camera: null
    lidar:
      voxelize: {max_num_points: 10, point_cloud_range: "${point_cloud_range}", voxel_size: "${voxel_size}",
                 max_voxels: [90000, 120000]}
      backbone: {type: SparseEncoder, in_channels: 5, sparse_shape: [512, 512, 41], output_channels: 128,
                 order: [conv, norm, act], encoder_channels: [[16, 16, 32], [32, 32, 64], [64, 64, 128], [128, 128]],
                 encoder_paddings: [[0, 0, 1], [0, 0, 1], [0, 0, [1, 1, 0]], [0, 0]], block_type: basicblock}
""",
}


def write_mit(folder: Path, *changes: tuple[str, str]) -> Path:
    """Writes the files of bevfusion's configuration, each of which inherits from those of the folders above."""
    for name, text in MIT_DEFAULTS.items():
        for old, new in changes:
            text = text.replace(old, new)
        path = folder / "configs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "configs" / "transfusion" / "lidar.yaml"


def test_the_configuration_of_bevfusion_is_read(tmp_path: Path) -> None:
    read = detector_configs.read(str(write_mit(tmp_path)))
    expected = bevfusion_config()
    assert (read.command, read.library) == ("transfusion-l", "bevfusion")
    assert replace(read.config, voxels=expected.voxels) == expected
    assert read.config.voxels.range_max == expected.voxels.range_max
    assert read.config.voxels.size == expected.voxels.size
    weights = Golden.read("bevfusion").write(tmp_path)
    command = ["transfusion-l", str(weights), "--config", str(write_mit(tmp_path)), "--output", str(tmp_path / "net")]
    assert main(command) == 0


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("camera: null", "camera: {backbone: {}}", "camera is {'backbone': {}}: only the LiDAR is served"),
        ("fuser: null", "fuser: {type: ConvFuser}", "fuser is {'type': 'ConvFuser'}: cameras are not served"),
        ("heads: {map: null}", "heads: {map: {type: Map}}", "its head for a map is not served"),
        ("nms_type: null", "nms_type: circle", "nms_type is 'circle': NMS of a head with queries"),
        ("activation: relu", "activation: gelu", "act_cfg.type is 'another', not 'ReLU'"),
        ("num_proposals: 200", 'num_proposals: "${2 * 100}"', "is '${2 * 100}', which is no setting of the files"),
        ("num_proposals: 200", 'num_proposals: "${voxel_size[7]}"', "and the list is shorter"),
        ("num_proposals: 200", 'num_proposals: "${model}"', "is '${model}', which names a section"),
        ("decoder:", "decode:", "is missing"),
    ],
)
def test_what_bevfusion_has_and_is_not_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, problem: str
) -> None:
    config = write_mit(tmp_path, (old, new))
    assert main(["transfusion-l", "--config", str(config), "--output", str(tmp_path / "net")]) == 1
    assert problem in capsys.readouterr().err
