"""Tests --config: training configurations of OpenPCDet, and what the command says without one."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detector_config_files import NUSCENES, openpcdet, put
from google.protobuf import text_format
from small_networks import FAMILIES, SMALL_CENTER_POINT, SMALL_SECOND

from voxserve import wire
from voxserve.export import ExportError, detector_configs, safetensors_file
from voxserve.export.__main__ import main
from voxserve.export.arguments import point_features
from voxserve.export.networks import center_point, second

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
State = dict[str, np.ndarray[Any, Any]]
PUBLISHED = [
    "centerpoint nuscenes-0.075",
    "centerpoint nuscenes-0.1",
    "centerpoint waymo",
    "centerpoint-pillar nuscenes",
    "centerpoint-pillar waymo",
    "voxelnext nuscenes",
    "second kitti",
    "pointpillars kitti",
]


def write_yaml(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def folder_of(tmp_path: Path, *arguments: str) -> dict[str, bytes]:
    """Exports a network, and returns the files of its folder."""
    output = tmp_path / "exported"
    assert main([*arguments, "--output", str(output), "--name", "n"]) == 0
    return files_of(output)


# Tests of settings that are read


@pytest.mark.usefixtures("no_values")
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_file_gives_the_published_folder(tmp_path: Path, name: str) -> None:
    command, _, data_set = name.partition(" ")
    source = [] if command in ("voxelnext", "second", "pointpillars") else ["--dataset", data_set]
    config = write_yaml(tmp_path / "c.yaml", openpcdet(name))
    assert folder_of(tmp_path, command, "--config", str(config)) == folder_of(tmp_path, command, *source)


def test_a_published_file_without_residual_blocks(tmp_path: Path, recorded: State) -> None:
    """The data set's own configuration knows them by the tensors' names."""
    config = detector_configs.read(str(write_yaml(tmp_path / "c.yaml", openpcdet("centerpoint waymo-plain"))))
    center_point.random_network(config.config, name="n")
    weights = tmp_path / "w.safetensors"
    safetensors_file.write(weights, recorded)
    assert "backbone_3d.conv4.1.0.weight" in recorded
    given = ["centerpoint", str(weights), "--config", str(tmp_path / "c.yaml")]
    assert folder_of(tmp_path, *given) == folder_of(tmp_path, *given[:2], "--dataset", "waymo")


def own_center_point() -> dict[str, Any]:
    """Returns a configuration with a range, voxels, classes and suppression of its own."""
    values = openpcdet("centerpoint waymo")
    values["CLASS_NAMES"] = ["Bus", "Vehicle", "Pedestrian", "Cyclist", "Tram"]
    data, head = values["DATA_CONFIG"], values["MODEL"]["DENSE_HEAD"]
    data["DATASET"] = "CustomDataset"
    data["POINT_CLOUD_RANGE"] = [0, -16, -1, 64, 16, 3]
    put(data, "DATA_PROCESSOR.2.VOXEL_SIZE", [0.2, 0.2, 0.1])
    put(data, "DATA_PROCESSOR.2.MAX_POINTS_PER_VOXEL", 7)
    put(data, "DATA_PROCESSOR.2.MAX_NUMBER_OF_VOXELS.test", 12345)
    data["POINT_FEATURE_ENCODING"]["used_feature_list"] = ["x", "y", "z", "intensity", "ring", "timestamp"]
    head["CLASS_NAMES_EACH_HEAD"] = [["Pedestrian", "Cyclist"], ["Vehicle", "Bus", "Tram"]]
    head["POST_PROCESSING"] |= {"SCORE_THRESH": 0.3, "MAX_OBJ_PER_SAMPLE": 60}
    head["POST_PROCESSING"]["NMS_CONFIG"] |= {"NMS_THRESH": 0.4, "NMS_PRE_MAXSIZE": 50, "NMS_POST_MAXSIZE": 40}
    head["POST_PROCESSING"]["POST_CENTER_LIMIT_RANGE"] = [1, -15, -2, 63, 15, 2]
    return values


@pytest.mark.usefixtures("no_values")
def test_an_own_detector_has_its_own_range_classes_and_boxes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, output = write_yaml(tmp_path / "own.yaml", own_center_point()), tmp_path / "model"
    assert main(["centerpoint", "--config", str(path), "--output", str(output)]) == 0
    told, warned = capsys.readouterr()
    assert "range x 0 to 64, y -16 to 16, z -1 to 3 m; voxels of 0.2 x 0.2 x 0.1 m (320 x 160 x 40)" in told
    assert "at most 7 points each and 12,345 in a cloud; features x, y, z, intensity, ring, age" in told
    assert "5 classes: Bus, Vehicle, Pedestrian, Cyclist, Tram" in told
    assert "warning: the intensity reaches the network as it is sent: send it as the training's files had it" in warned
    config = text_format.Parse((output / "config.textproto").read_text(), wire.ModelConfig())
    assert [(c.id, c.name) for c in config.classes] == list(
        enumerate(["Bus", "Vehicle", "Pedestrian", "Cyclist", "Tram"])
    )
    assert len({c.color for c in config.classes}) == 5
    assert config.max_voxels == 12345
    nodes = {n.name: n for n in text_format.Parse((output / "1" / "model.textproto").read_text(), wire.Model()).nodes}
    voxels = nodes["voxels"].voxelize
    np.testing.assert_allclose(voxels.voxel_size, [0.2, 0.2, 0.1])
    assert (list(voxels.range_min), list(voxels.range_max)) == ([0, -16, -1], [64, 16, 3])
    assert (list(voxels.spatial_shape), voxels.max_points_per_voxel) == ([320, 160, 41], 7)
    assert [f.name for f in voxels.features] == ["x", "y", "z", "intensity", "ring", "age"]
    decoded = [nodes[f"task{i}.boxes"].center_head_decode for i in range(2)]
    assert [list(d.class_ids) for d in decoded] == [[2, 3], [1, 0, 4]]
    assert [(d.stride, d.max_boxes, list(d.center_min)) for d in decoded] == [(8, 60, [1, -15, -2])] * 2
    assert decoded[0].score_threshold == pytest.approx(0.3)
    nms = nodes["boxes"].nms
    assert (nms.max_boxes_in, nms.max_boxes_out) == (50, 40)
    assert nms.iou_threshold == pytest.approx(0.4)


@pytest.mark.usefixtures("no_values")
def test_own_anchors_and_directions(tmp_path: Path) -> None:
    values = openpcdet("second kitti")
    values["CLASS_NAMES"] = ["Van", "Tram"]
    head = values["MODEL"]["DENSE_HEAD"]
    # In another order than the classes: a class's score is that of its number, whatever the anchor's name.
    anchors = [{**head["ANCHOR_GENERATOR_CONFIG"][0], "class_name": name} for name in ("Tram", "Van")]
    anchors[0] |= {"anchor_sizes": [[14, 2.5, 3.5]], "anchor_bottom_heights": [-2], "anchor_rotations": [0, 0.8, 1.6]}
    head |= {"ANCHOR_GENERATOR_CONFIG": anchors, "NUM_DIR_BINS": 3, "DIR_OFFSET": 0.1, "DIR_LIMIT_OFFSET": 0.5}
    output = tmp_path / "model"
    assert main(["second", "--config", str(write_yaml(tmp_path / "c.yaml", values)), "--output", str(output)]) == 0
    model = text_format.Parse((output / "1" / "model.textproto").read_text(), wire.Model())
    nodes = {n.name: n for n in model.nodes}
    decode = nodes["decoded"].anchor_head_decode
    assert [(a.class_id, list(a.size), a.bottom) for a in decode.anchors] == [
        (0, pytest.approx([14, 2.5, 3.5]), -2),
        (1, pytest.approx([3.9, 1.6, 1.56]), pytest.approx(-1.78)),
    ]
    assert list(decode.anchors[0].rotations) == pytest.approx([0, 0.8, 1.6])
    assert (decode.num_direction_bins, decode.direction_limit_offset) == (3, 0.5)
    assert decode.direction_offset == pytest.approx(0.1)
    assert [nodes[n].conv2d.out_channels for n in ("scores", "residuals", "directions")] == [10, 35, 15]


def test_weights_of_an_own_detector(tmp_path: Path, recorded: State, capsys: pytest.CaptureFixture[str]) -> None:
    """The report of the issue: a network of other classes and another range is not taken for Waymo's."""
    path = str(write_yaml(tmp_path / "own.yaml", own_center_point()))
    center_point.random_network(detector_configs.read(path).config, name="n")
    weights, output = tmp_path / "w.safetensors", tmp_path / "model"
    safetensors_file.write(weights, recorded)
    assert main(["centerpoint", str(weights), "--dataset", "waymo", "--output", str(output)]) == 1
    error = capsys.readouterr().err
    assert "tensor 'backbone_3d.conv_input.0.weight' is [16, 3, 3, 3, 6], not [16, 3, 3, 3, 5]" in error
    assert "tensor 'dense_head.heads_list.0.hm.1.weight' is [2, 64, 3, 3], not [3, 64, 3, 3]" in error
    assert "'dense_head.heads_list.1.hm.1.weight' [3, 64, 3, 3] is not part of CenterPoint" in error
    assert "assumed of --dataset waymo, since weights do not say it (--config FILE states another)" in error
    assert "3 classes, 5 features, 40 voxels on z" in error
    assert not output.exists()
    assert main(["centerpoint", str(weights), "--config", path, "--output", str(output)]) == 0
    # The error lists every setting that the tensors contradict.
    values = own_center_point()
    values["DATA_CONFIG"]["POINT_CLOUD_RANGE"][5] = 7
    other = str(write_yaml(tmp_path / "high.yaml", values))
    assert main(["centerpoint", str(weights), "--config", other, "--output", str(output)]) == 1
    error = capsys.readouterr().err
    assert "'backbone_2d.blocks.0.1.weight' is [128, 256, 3, 3], not [128, 512, 3, 3]" in error
    assert f"the tensors are not those of {other}: range x 0 to 64, y -16 to 16, z -1 to 7 m" in error


@pytest.mark.parametrize("name", ["centerpoint waymo", "centerpoint waymo-plain", "second kitti"])
def test_widths_that_code_states_are_read_from_the_tensors(tmp_path: Path, recorded: State, name: str) -> None:
    path = str(write_yaml(tmp_path / "c.yaml", openpcdet(name)))
    command, config = name.partition(" ")[0], detector_configs.read(path).config
    narrow = replace(config, sparse_widths=(4, 5, 6, 7), sparse_out_width=8)
    module: Any = second if command == "second" else center_point
    module.random_network(narrow, name="n")
    safetensors_file.write(tmp_path / "w.safetensors", recorded)
    output = tmp_path / "model"
    assert main([command, str(tmp_path / "w.safetensors"), "--config", path, "--output", str(output)]) == 0
    tensors = safetensors_file.read(str(output / "1" / "weights.safetensors"))
    assert tensors["conv4.down.weight"].shape == (27, 6, 7)
    assert tensors["conv_out.weight"].shape == (3, 7, 8)


# Without a file


@pytest.mark.parametrize(
    ("arguments", "family", "assumed"),
    [
        (["centerpoint", "--dataset", "waymo"], "centerpoint", "--dataset waymo"),
        (["second"], "second", "the published network"),
    ],
)
def test_a_command_says_what_it_assumes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    recorded: State,
    arguments: list[str],
    family: str,
    assumed: str,
) -> None:
    monkeypatch.setitem(center_point.CONFIGS, "waymo", SMALL_CENTER_POINT)
    monkeypatch.setattr(second, "Config", lambda: SMALL_SECOND)
    FAMILIES[family][1](name="n")
    weights = tmp_path / "w.safetensors"
    safetensors_file.write(weights, recorded)
    assert main([arguments[0], str(weights), *arguments[1:], "--output", str(tmp_path / "model")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith(
        f"assumed of {assumed}, since weights do not say it (--config FILE states another): range"
    )
    assert "x 0 to 32, y -8 to 8, z -2 to 2 m; voxels of 0.5 x 0.5 x 0.1 m (64 x 32 x 40)" in told[0]
    names = ", ".join(c.name for c in (SMALL_SECOND if family == "second" else SMALL_CENTER_POINT).classes)
    assert told[0].endswith(f"classes: {names}")
    assert told[1].startswith("wrote ")


def test_another_number_of_classes_is_compared_with_what_is_assumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], recorded: State
) -> None:
    monkeypatch.setattr(second, "Config", lambda: SMALL_SECOND)
    two = replace(SMALL_SECOND, classes=SMALL_SECOND.classes[:2], anchors=SMALL_SECOND.anchors[:2])
    second.random_network(two, name="n")
    safetensors_file.write(tmp_path / "w.safetensors", recorded)
    assert main(["second", str(tmp_path / "w.safetensors"), "--output", str(tmp_path / "model")]) == 1
    error = capsys.readouterr().err
    assert "tensor 'dense_head.conv_cls.weight' is [8, 12, 1, 1], not [18, 12, 1, 1]" in error
    assert "3 classes, 6 anchors at a cell, 4 features, 40 voxels on z" in error
    assert not (tmp_path / "model").exists()


def test_tensors_of_another_library_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(state: State, *arguments: str) -> str:
        safetensors_file.write(tmp_path / "w.safetensors", state)
        output = tmp_path / "model"
        first, *others = arguments
        assert main([first, str(tmp_path / "w.safetensors"), *others, "--output", str(output)]) == 1
        assert not output.exists()
        return capsys.readouterr().err

    one = np.zeros((3, 3), np.float32)
    theirs = {"pts_middle_encoder.conv_input.0.weight": one}
    error = refused(theirs, "centerpoint", "--dataset", "waymo")
    assert "has mmdetection3d's names of tensors, not openpcdet's: add its configuration, --config FILE.py" in error
    assert "has mmdetection3d's names" in refused({"bbox_head.conv_reg.weight": one}, "pointpillars")
    det3d = {"bbox_head.tasks.0.hm.3.weight": one}
    assert "det3d's names of tensors, not openpcdet's: add --dataset and --library det3d" in refused(
        det3d, "centerpoint", "--dataset", "waymo"
    )
    error = refused({"backbone_3d.x": one}, "centerpoint", "--dataset", "waymo", "--library", "det3d")
    assert "has openpcdet's names of tensors, not det3d's" in error


# Base files


def test_a_base_file_is_found_and_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenPCDet names a base file as seen from tools/, and merges dict by dict."""
    whole = own_center_point()
    tools = tmp_path / "repo" / "tools"
    (tools / "cfgs" / "dataset_configs").mkdir(parents=True)
    (tools / "cfgs" / "own_models").mkdir()
    base = openpcdet("centerpoint waymo")["DATA_CONFIG"]
    write_yaml(tools / "cfgs" / "dataset_configs" / "waymo.yaml", base)
    own = {key: v for key, v in whole["DATA_CONFIG"].items() if v != base[key]}
    own["POINT_FEATURE_ENCODING"] = {"used_feature_list": own["POINT_FEATURE_ENCODING"]["used_feature_list"]}
    values = {**whole, "DATA_CONFIG": {"_BASE_CONFIG_": "cfgs/dataset_configs/waymo.yaml", **own}}
    path = str(write_yaml(tools / "cfgs" / "own_models" / "own.yaml", values))
    expected = detector_configs.read(str(write_yaml(tmp_path / "whole.yaml", whole)))
    assert detector_configs.read(path) == expected
    monkeypatch.chdir(tools)
    assert detector_configs.read("cfgs/own_models/own.yaml") == expected
    alone = str(write_yaml(tmp_path / "own.yaml", values))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"the base file cfgs/dataset_configs/waymo.yaml is neither below the working"):
        detector_configs.read(alone)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "holds no settings by name"),
        ("a: [1\n", "is not YAML: "),
        ("x: !!python/object/apply:os.system ['touch touched']\n", "is not YAML: could not determine a constructor"),
        ("a: 1\n", "is no configuration of a detector: it has neither MODEL and DATA_CONFIG"),
        ("MODEL: {}\n", "CLASS_NAMES is missing"),
        ("MODEL: 3\nDATA_CONFIG: 1\n", "MODEL is 3, not settings by name"),
        ("DATA_CONFIG: {_BASE_CONFIG_: 3}\n", "_BASE_CONFIG_ is not a file's name"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"c\.yaml") as caught:
        detector_configs.read(str(path))
    assert message in str(caught.value)
    assert not Path("touched").exists()


def test_a_file_of_references_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    lines = ["a0: &a0 [1, 2]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60))]
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"has more than 200000 values"):
        detector_configs.read(str(path))
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"nested too deeply|is not JSON"):
        detector_configs.read(str(deep))


def test_yaml_needs_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_yaml(tmp_path / "c.yaml", {})
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ValueError, match=r"which needs PyYAML: pip install PyYAML"):
        detector_configs.read(str(path))


# Tests of settings that are refused


HEAD, POST = "MODEL.DENSE_HEAD", "MODEL.DENSE_HEAD.POST_PROCESSING"
STEP = "DATA_CONFIG.DATA_PROCESSOR.2"
REFUSED = [
    ("centerpoint waymo", "MODEL.NAME", "PVRCNN", "MODEL.NAME is 'PVRCNN', not one of CenterPoint"),
    ("centerpoint waymo", "MODEL.ROI_HEAD", {"NAME": "A"}, "MODEL.ROI_HEAD is {'NAME': 'A'}: a second stage"),
    ("centerpoint waymo", "MODEL.VFE.NAME", "DynamicVFE", "MODEL.VFE.NAME is 'DynamicVFE', not one of MeanVFE"),
    ("centerpoint waymo", "MODEL.BACKBONE_3D.NAME", "VoxelWideRes", "'VoxelWideRes', not one of VoxelResBackBone8x"),
    ("centerpoint waymo", "MODEL.BACKBONE_3D.last_pad", 1, "last_pad is 1, not 0"),
    ("centerpoint waymo", "MODEL.BACKBONE_2D.UPSAMPLE_STRIDES", [1, 2, 4], "lists of one length"),
    ("centerpoint waymo", "MODEL.BACKBONE_2D.UPSAMPLE_STRIDES", [2, 2], "to strides of [4.0, 8.0] voxels"),
    ("centerpoint waymo", "MODEL.BACKBONE_2D.UPSAMPLE_STRIDES", [1, 1.5], "has the upsampling stride 1.5"),
    ("centerpoint waymo", "MODEL.BACKBONE_2D.NUM_FILTERS", [128, "wide"], "NUM_FILTERS is 'wide', not a number"),
    ("centerpoint waymo", f"{HEAD}.NAME", "TransFusionHead", "'TransFusionHead', not CenterHead"),
    ("centerpoint waymo", f"{HEAD}.SEPARATE_HEAD_CFG.HEAD_DICT.iou", {"num_conv": 2}, "HEAD_DICT.iou is"),
    ("centerpoint waymo", f"{HEAD}.SEPARATE_HEAD_CFG.HEAD_DICT.rot.num_conv", 3, "rot.num_conv is 3, not 2"),
    ("centerpoint waymo", f"{HEAD}.NUM_HM_CONV", 1, "NUM_HM_CONV is 1, not 2"),
    ("centerpoint waymo", f"{HEAD}.CLASS_NAMES_EACH_HEAD", [["Vehicle"]], "does not have each class of Vehicle"),
    (
        "centerpoint waymo",
        f"{HEAD}.TARGET_ASSIGNER_CONFIG.FEATURE_MAP_STRIDE",
        4,
        "is 4, but the network's layers have",
    ),
    ("centerpoint waymo", f"{HEAD}.NEW_SETTING", 7, "NEW_SETTING is 7: the exporter does not know this setting"),
    ("centerpoint waymo", f"{POST}.NMS_CONFIG.NMS_TYPE", "class_specific_nms", "NMS_TYPE is 'class_specific_nms', not"),
    ("centerpoint waymo", f"{POST}.NMS_CONFIG.NMS_THRESH", [0.8, 0.5, 0.5], "NMS_THRESH is [0.8, 0.5, 0.5], not a"),
    ("centerpoint waymo", f"{POST}.NMS_CONFIG.NMS_THRESH", 1.5, "has the overlap 1.5"),
    ("centerpoint waymo", f"{POST}.USE_IOU_TO_RECTIFY_SCORE", True, "scores of two branches"),
    ("centerpoint waymo", f"{POST}.MAX_OBJ_PER_SAMPLE", 5000, "decodes 5000 boxes; the server decodes 1 to 4096"),
    ("centerpoint waymo", f"{POST}.SCORE_THRESH", float("nan"), "SCORE_THRESH is nan, not a number"),
    ("centerpoint waymo", f"{POST}.SCORE_THRESH", True, "SCORE_THRESH is True, not a number"),
    ("centerpoint waymo", f"{POST}.POST_CENTER_LIMIT_RANGE", [1, 2, 3], "has 3 numbers, not 6"),
    ("centerpoint waymo", f"{POST}.POST_CENTER_LIMIT_RANGE", [1, 0, 0, 0, 1, 1], "within which is no centre"),
    ("centerpoint waymo", "CLASS_NAMES", ["Vehicle", "Vehicle", "Cyclist"], "has 'Vehicle' more than once"),
    ("centerpoint waymo", "DATA_CONFIG.POINT_CLOUD_RANGE", [0, 0, 0, 0, 1, 1], "is empty"),
    ("centerpoint waymo", "DATA_CONFIG.POINT_CLOUD_RANGE", [0, 0, -2, 10.03, 10, 4], "not a multiple of the voxel's"),
    ("centerpoint waymo", "DATA_CONFIG.POINT_CLOUD_RANGE", [0, 0, 0, 8, 8, 1.5], "too few for five stages"),
    ("centerpoint waymo", "DATA_CONFIG.SHIFT_COOR", [0, 0, 1.8], "SHIFT_COOR is [0, 0, 1.8]: the training moved"),
    ("centerpoint waymo", "DATA_CONFIG.NORMALIZE", True, "NORMALIZE is True: the exporter does not know"),
    ("centerpoint waymo", f"{STEP}.NAME", "sample_points", "'sample_points', a step that is not served"),
    ("centerpoint waymo", f"{STEP}.DOUBLE_FLIP", True, "DOUBLE_FLIP is True"),
    ("centerpoint waymo", f"{STEP}.MAX_NUMBER_OF_VOXELS", {"train": 1}, "MAX_NUMBER_OF_VOXELS.test is missing"),
    ("centerpoint waymo", f"{STEP}.MAX_POINTS_PER_VOXEL", 2.5, "is 2.5, not a whole number of 1 or more"),
    ("centerpoint waymo", f"{STEP}.VOXEL_SIZE", [0.1, 0, 0.15], "is empty"),
    ("centerpoint-pillar waymo", f"{STEP}.VOXEL_SIZE", [0.32, 0.32, 3], "has 2 pillars above each other"),
    ("centerpoint-pillar waymo", "MODEL.VFE.WITH_DISTANCE", True, "distances are not served"),
    ("centerpoint-pillar waymo", "MODEL.VFE.USE_ABSLOTE_XYZ", False, "USE_ABSLOTE_XYZ is False, not True"),
    ("centerpoint-pillar waymo", "MODEL.VFE.NUM_FILTERS", [63, 64], "even ones before the last"),
    ("voxelnext nuscenes", f"{HEAD}.IOU_BRANCH", True, "scores of two branches are not served"),
    ("voxelnext nuscenes", f"{HEAD}.DOUBLE_FLIP", True, "a test on flipped copies is not served"),
    ("voxelnext nuscenes", f"{HEAD}.SHARED_CONV_CHANNEL", 64, "is 64, but the backbone has OUT_CHANNEL 128"),
    ("voxelnext nuscenes", "MODEL.BACKBONE_3D.SPCONV_KERNEL_SIZES", [4, 3, 3, 3], "even sizes are not served"),
    ("voxelnext nuscenes", "MODEL.BACKBONE_3D.CHANNELS", [16, 32, 64, 96, 128], "the last two must be equal"),
    ("second kitti", "MODEL.BACKBONE_3D.NAME", "VoxelResBackBone8x", "SECOND is served with VoxelBackBone8x alone"),
    ("second kitti", f"{HEAD}.USE_DIRECTION_CLASSIFIER", False, "boxes are decoded with a direction classifier"),
    ("second kitti", f"{HEAD}.TARGET_ASSIGNER_CONFIG.BOX_CODER", "PointResidualCoder", "no other box coder is served"),
    ("second kitti", f"{HEAD}.TARGET_ASSIGNER_CONFIG.BOX_CODER_CONFIG", {"code_size": 9}, "BOX_CODER_CONFIG is"),
    ("second kitti", f"{HEAD}.ANCHOR_GENERATOR_CONFIG.0.align_center", True, "align_center is True, not False"),
    ("second kitti", f"{HEAD}.ANCHOR_GENERATOR_CONFIG.0.anchor_sizes", [[1, 2, 3], [2, 3, 4]], "one size, of three"),
    ("second kitti", f"{HEAD}.ANCHOR_GENERATOR_CONFIG.0.anchor_bottom_heights", [0, 1], "has 2 numbers, not 1"),
    ("second kitti", f"{HEAD}.ANCHOR_GENERATOR_CONFIG.0.anchor_sizes", [[1, 2, 0]], "a size that is not above 0"),
    ("second kitti", f"{HEAD}.ANCHOR_GENERATOR_CONFIG.0.feature_map_stride", 4, "is 4, but the network's layers have"),
    ("second kitti", "CLASS_NAMES", ["Car"], "has 3 anchors for 1 classes"),
    ("second kitti", "MODEL.POST_PROCESSING.NMS_CONFIG.MULTI_CLASSES_NMS", True, "MULTI_CLASSES_NMS is True, not"),
    ("second kitti", "MODEL.POST_PROCESSING.OUTPUT_RAW_SCORE", True, "raw scores are not served"),
    ("pointpillars kitti", "MODEL.POST_PROCESSING.NMS_CONFIG.NMS_PRE_MAXSIZE", 9000, "decodes 9000 boxes"),
]


@pytest.mark.parametrize(("name", "path", "value", "message"), REFUSED)
def test_what_is_not_served_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, path: str, value: Any, message: str
) -> None:
    values = openpcdet(name)
    put(values, path, value)
    config, output = tmp_path / "c.json", tmp_path / "model"
    config.write_text(json.dumps(values))
    assert main([name.partition(" ")[0], "--config", str(config), "--output", str(output)]) == 1
    assert message in capsys.readouterr().err
    assert not output.exists()


def test_every_missing_setting_is_told(tmp_path: Path) -> None:
    values = openpcdet("centerpoint waymo")
    del values["MODEL"]["DENSE_HEAD"]["POST_PROCESSING"], values["MODEL"]["BACKBONE_2D"]["NUM_FILTERS"]
    del values["DATA_CONFIG"]["DATA_PROCESSOR"][2]["VOXEL_SIZE"]
    with pytest.raises(ExportError) as caught:
        detector_configs.read(str(write_yaml(tmp_path / "c.yaml", values)))
    missing = [p.partition(": ")[2] for p in caught.value.problems if p.endswith("is missing")]
    assert missing == [
        "DATA_CONFIG.DATA_PROCESSOR[2].VOXEL_SIZE is missing",
        "MODEL.BACKBONE_2D.NUM_FILTERS is missing",
        "MODEL.DENSE_HEAD.POST_PROCESSING is missing",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["centerpoint-pillar"], "describes a network of the command centerpoint: use that one"),
        (["second"], "describes a network of the command centerpoint: use that one"),
        (["centerpoint", "--library", "det3d"], "--library is det3d, but"),
        (["centerpoint", "--features", "x:m,y:m,z:m"], "has 5 columns, but --features names 3"),
    ],
)
def test_arguments_that_contradict_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    path = str(write_yaml(tmp_path / "c.yaml", openpcdet("centerpoint waymo")))
    assert main([*arguments, "--config", path, "--output", str(tmp_path / "model")]) == 1
    assert message in capsys.readouterr().err


def test_command_lines_that_say_too_much_or_too_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = ["--output", str(tmp_path / "model")]
    for arguments, message in (
        (["centerpoint"], "one of the arguments --dataset --config is required"),
        (["centerpoint", "--dataset", "waymo", "--config", "c.yaml"], "not allowed with argument --dataset"),
    ):
        with pytest.raises(SystemExit):
            main([*arguments, *output])
        assert message in capsys.readouterr().err
    assert main(["second", "--features", "x:m", *output]) == 1
    assert "--features names the columns of a configuration: add --config" in capsys.readouterr().err
    assert main(["second", "--config", str(tmp_path / "no.yaml"), *output]) == 1
    assert "No such file" in capsys.readouterr().err
    assert main(["second", "--config", str(tmp_path / "c.txt"), *output]) == 1
    assert "its name must end in .py, .json, .yaml, .yml" in capsys.readouterr().err


@pytest.mark.usefixtures("no_values")
def test_columns_of_another_name(tmp_path: Path) -> None:
    path = str(write_yaml(tmp_path / "c.yaml", openpcdet("second kitti")))
    columns = "x:m,y:m,z:m,reflectivity:1=0.5"
    assert main(["second", "--config", path, "--features", columns, "--output", str(tmp_path / "model")]) == 0
    assert 'name: "reflectivity" unit: "1" default_value: 0.5' in (tmp_path / "model/1/model.textproto").read_text()


def test_columns_of_known_names_have_the_scale_of_the_data_set(tmp_path: Path) -> None:
    path = str(write_yaml(tmp_path / "c.yaml", openpcdet("centerpoint nuscenes-0.1")))
    for column, scale in (("intensity:1", 255), ("intensity:1@0..1", 255), ("intensity:1@0..255", 1), ("gain:1", 1)):
        made = detector_configs.read(path, point_features(f"x:m,y:m,z:m,{column},time:s=0"))
        assert [feature.scale for feature in made.config.voxels.features] == [1, 1, 1, scale, 1], column
    path = str(write_yaml(tmp_path / "c.yaml", openpcdet("centerpoint waymo")))
    (tanh,) = detector_configs.read(path, point_features("x:m,y:m,z:m,intensity:1,elongation:1")).notes
    assert "took tanh of the intensity" in tanh


def test_what_clouds_must_be_like_is_noted(tmp_path: Path) -> None:
    def notes(name: str, **data: Any) -> tuple[str, ...]:
        values = openpcdet(name)
        values["DATA_CONFIG"] |= data
        return detector_configs.read(str(write_yaml(tmp_path / "c.yaml", values))).notes

    assert notes("second kitti") == ()
    (view,) = notes("second kitti", FOV_POINTS_ONLY=True)
    assert view == "the training had only the points in the camera's view: send only those"
    (sweeps,) = notes("centerpoint nuscenes-0.1", MAX_SWEEPS=10)
    assert sweeps == "the training had up to 10 sweeps in one cloud: send as many, with their age"
    frames, tanh = notes("centerpoint waymo", SEQUENCE_CONFIG={"ENABLED": True, "SAMPLE_OFFSET": [-3, 0]})
    assert "frames [-3, 0] in one cloud" in frames
    assert "took tanh of the intensity" in tanh
    assert [c for task in NUSCENES for c in task] == [c.name for c in center_point.NUSCENES_CLASSES]
