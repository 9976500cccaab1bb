"""Tests --config with mmdetection3d's configurations: Python that is not run, JSON, base files, and refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from detector_config_files import mmdetection3d, put

from voxserve.export import ExportError, detector_configs
from voxserve.export.arguments import point_features
from voxserve.export.detector_configs import files
from voxserve.export.detector_configs.settings import Unreadable
from voxserve.export.networks import center_point, second
from voxserve.export.networks.spconv_backbone import Bev, Voxels


def write_python(path: Path, values: dict[str, Any]) -> Path:
    path.write_text("\n".join(f"{name} = {value!r}" for name, value in values.items()) + "\n")
    return path


def read(tmp_path: Path, values: dict[str, Any]) -> detector_configs.Detector:
    return detector_configs.read(str(write_python(tmp_path / "c.py", values)))


def test_the_published_center_point_on_voxels(tmp_path: Path) -> None:
    made = read(tmp_path, mmdetection3d("voxel"))
    assert (made.command, made.library) == ("centerpoint", "mmdetection3d")
    assert made.notes == (
        "boxes are read as mmdetection3d 1.x has them: weights that 0.x trained have width before length, and another "
        "yaw",
        "the training had up to 9 sweeps besides a cloud: send as many, with their age",
    )
    published = center_point.CONFIGS["nuscenes-0.1"]
    expected = center_point.Config(
        voxels=Voxels((-51.2, -51.2, -5), (51.2, 51.2, 3), (0.1, 0.1, 0.2), 10, 120_000, published.voxels.features),
        classes=published.classes,
        tasks=published.tasks,
        has_velocity=True,
        center_min=(-61.2, -61.2, -10),
        center_max=(61.2, 61.2, 10),
        nms_iou=0.2,
        nms_boxes_in=1000,
        nms_boxes_out=83,
        bev=Bev(has_conv_for_no_stride=True),
        is_plain=False,
    )
    assert made.config == expected


def test_a_wrapped_data_set_keeps_its_scale(tmp_path: Path) -> None:
    values = mmdetection3d("voxel")
    inner = {"type": values.pop("dataset_type"), "pipeline": values["test_pipeline"]}
    values["test_dataloader"] = {"dataset": {"type": "CBGSDataset", "dataset": inner}}
    made = read(tmp_path, values)
    assert [feature.scale for feature in made.config.voxels.features] == [1, 1, 1, 255, 1]


def test_the_published_center_point_on_pillars(tmp_path: Path) -> None:
    made = read(tmp_path, mmdetection3d("pillar"))
    assert made.command == "centerpoint-pillar"
    config = made.config
    assert isinstance(config, center_point.Config)
    assert (config.voxels.size, config.voxels.max_points_per_voxel, config.voxels.max_voxels) == (
        (0.2, 0.2, 8),
        20,
        40000,
    )
    assert (config.pillar_widths, config.is_legacy_pillar, config.stride) == ((64,), False, 4)
    assert config.bev == Bev((3, 5, 5), (2, 2, 2), (64, 128, 256), (0.5, 1, 2), (128, 128, 128), True)


def test_the_published_second(tmp_path: Path) -> None:
    made = read(tmp_path, mmdetection3d("second"))
    assert made.command == "second"
    config = made.config
    assert isinstance(config, second.Config)
    assert config.voxels == second.KITTI_VOXELS
    assert [(c.id, c.name) for c in config.classes] == [(0, "Pedestrian"), (1, "Cyclist"), (2, "Car")]
    assert [(a.class_id, a.size, a.bottom, a.rotations) for a in config.anchors] == [
        (0, (0.8, 0.6, 1.73), -0.6, (0, 1.57)),
        (1, (1.76, 0.6, 1.73), -0.6, (0, 1.57)),
        (2, (3.9, 1.6, 1.56), -1.78, (0, 1.57)),
    ]
    assert (config.num_direction_bins, config.direction_offset, config.direction_limit_offset) == (2, -math.pi / 2, 0)
    assert (config.nms_boxes_in, config.nms_boxes_out, config.nms_iou, config.score_threshold) == (100, 50, 0.01, 0.1)
    assert config.is_nms_per_class
    assert any("keeps 50 boxes of all classes together" in note for note in made.notes)
    assert any("only the points in the camera's view" in note for note in made.notes)


def test_a_network_of_one_class_has_no_suppression_of_several(tmp_path: Path) -> None:
    values = mmdetection3d("second")
    generator = values["model"]["bbox_head"]["anchor_generator"]
    generator |= {"ranges": generator["ranges"][2:], "sizes": generator["sizes"][2:]}
    values["model"]["bbox_head"]["num_classes"] = 1
    values["metainfo"] = {"classes": ["Car"]}
    made = read(tmp_path, values)
    assert isinstance(made.config, second.Config)
    assert not made.config.is_nms_per_class
    assert not any("keeps 50 boxes" in note for note in made.notes)


# Files


def test_json_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps(mmdetection3d("voxel")))
    assert detector_configs.read(str(path)) == read(tmp_path, mmdetection3d("voxel"))


BASE = """
# A base file, as published ones are written.
voxel_size = [0.1, 0.1, 0.2]
widths = [128, 256]
common = dict(eps=1e-3, momentum=0.01)
model = dict(
    type='CenterPoint',
    size=voxel_size[:2],
    inputs=sum([256, 256]),
    beta=1.0 / 9.0,
    half=-3.14 / 2,
    norm=dict(type='BN', **common),
    widths=widths + [2 * w for w in widths] if False else widths * 2,
    head=dict(kind='old', tasks=[dict(n=1), dict(n=2)]),
    data='data/' + 'kitti')
"""


def test_python_is_computed_from_its_syntax(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text(BASE)
    own = tmp_path / "own.py"
    own.write_text(
        "_base_ = ['./base.py']\n"
        "point_cloud_range = [0, -40, -3, 70.4, 40, 1]\n"
        "names = {{_base_.widths}}\n"
        "again = _base_.model.norm\n"
        "a, b = 3, {'x': [1, 2]}\n"
        "b['x'][0] = 7\n"
        "b['x'] += [9]\n"
        "model = dict(range=point_cloud_range[:2], head=dict(tasks=dict(_delete_=True, m=5)), norm=dict(eps=2))\n"
        "if a > 2:\n    chosen = 'large'\nelse:\n    chosen = 'small'\n"
    )
    values = files.read(str(own))
    assert values["model"] == {
        "type": "CenterPoint",
        "size": [0.1, 0.1],
        "inputs": 512,
        "beta": pytest.approx(1 / 9),
        "half": pytest.approx(-1.57),
        "norm": {"type": "BN", "eps": 2, "momentum": 0.01},
        "widths": [128, 256, 128, 256],
        "head": {"kind": "old", "tasks": {"m": 5}},
        "data": "data/kitti",
        "range": [0, -40],
    }
    assert (values["names"], values["again"]) == ([128, 256], {"type": "BN", "eps": 0.001, "momentum": 0.01})
    assert (values["a"], values["b"], values["chosen"]) == (3, {"x": [7, 2, 9]}, "large")


def test_a_list_with_two_names_is_extended_under_both(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text("a = [1]\nb = a\na += [2]\nc = [a]\nc[0] += (3,)\nd = 'x'\nd += 'y'\ne = (4,)\nf = e\ne += (5,)\n")
    values = files.read(str(own))
    assert values == {"a": [1, 2, 3], "b": [1, 2, 3], "c": [[1, 2, 3]], "d": "xy", "e": (4, 5), "f": (4,)}


def test_lists_and_settings_change_under_all_of_their_names(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "a = [dict(n=1), dict(n=2), dict(n=3)]\nb = a\na.insert(0, 5)\na.remove(5)\na.pop(1)\na.reverse()\n"
        "c = dict(x=1, y=[1, 2, 3])\nd = c\ndel c['x'], c['y'][1:]\ne = 1\ndel e\n"
    )
    assert files.read(str(own)) == {key: value for keys, value in (
        ("ab", [{"n": 3}, {"n": 1}]), ("cd", {"y": [1]})) for key in keys}  # fmt: skip
    for loop in ("step['n'] = c[0]", "step.update(n=c[0])", "a.append(c[0])"):
        own.write_text(f"a = [dict(n=1)]\nb = dict(steps=a)\nc = [2]\nd = dict(c=c)\nfor step in a:\n    {loop}\n")
        values = files.read(str(own))
        assert isinstance(values["b"]["steps"][0], Unreadable)
        assert values["d"] == {"c": [2]}
    own.write_text("a = [1]\na.remove(2)\n")
    assert isinstance(files.read(str(own))["a"], Unreadable)


def test_a_list_of_a_base_file_is_changed_by_numbers(tmp_path: Path) -> None:
    (tmp_path / "base.py").write_text("steps = [dict(a=1, b=2), 5]\n")
    (tmp_path / "own.py").write_text("_base_ = 'base.py'\nsteps = {'0': dict(b=3)}\n")
    assert files.read(str(tmp_path / "own.py"))["steps"] == [{"a": 1, "b": 3}, 5]
    (tmp_path / "own.py").write_text("_base_ = 'base.py'\nsteps = {'2': dict(b=3)}\n")
    with pytest.raises(ValueError, match=r"'steps' has 2 items, and a base file's number 2 is changed"):
        files.read(str(tmp_path / "own.py"))


def test_the_newer_form_of_python(tmp_path: Path) -> None:
    """Base files are imported, types are classes, and dicts merge by update()."""
    (tmp_path / "_base_").mkdir()
    (tmp_path / "_base_" / "model.py").write_text(
        "from mmdet3d.models import SECOND\nfrom torch import nn\nimport numpy as np\n"
        "model = dict(type=SECOND, act=nn.ReLU, turn=np.pi, voxels=dict(size=[1, 2], most=3))\nother = 1\n"
    )
    (tmp_path / "configs").mkdir()
    own = tmp_path / "configs" / "own.py"
    own.write_text(
        "from mmengine import read_base\nwith read_base():\n    from .._base_.model import *\n"
        "model.update(dict(voxels=dict(range=[0, 1])))\nother = 2\n"
    )
    assert files.read(str(own)) == {
        "model": {
            "type": "SECOND",
            "act": "ReLU",
            "turn": math.pi,
            "voxels": {"size": [1, 2], "most": 3, "range": [0, 1]},
        },
        "other": 2,
    }


CODE = [
    "x = open('touched', 'w')",
    "x = __import__('os').system('touch touched')",
    "x = (lambda: 1)()",
    "x = [c for c in ().__class__.__base__.__subclasses__()]",
    "import os\nx = os.system('touch touched')",
    "from pathlib import Path\nx = Path('touched').touch()",
    "x = 9 ** 99999999",
    "x = [0] * 10 ** 9",
    "x = 'a' * 2 ** 60",
    "x = '%999999999d' % 1",
    "def f():\n    return 1\nx = f()",
    "x = 1\nfor i in range(3):\n    x = i",
    "x = 1\nwhile True:\n    x += 1",
    "x = undefined",
    "x = 1 / 0",
    "x = [1][4]",
    "x = dict\nx = dict(a=1)\ndict = 3\nx = dict(a=1)",
    "eval('x = 1')\nx = eval('1')",
    "class A:\n    x = 1\nx = A.x",
    "try:\n    x = 1\nexcept Exception:\n    x = 2",
]


@pytest.mark.parametrize("text", CODE)
def test_code_is_not_run_and_its_values_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "c.py"
    path.write_text(f"y = 2\n{text}\nz = 3\n")
    values = files.read(str(path))
    assert isinstance(values["x"], Unreadable), values["x"]
    assert (values["y"], values["z"]) == (2, 3)
    assert not Path("touched").exists()


def test_a_setting_that_is_code_is_refused_with_its_line(tmp_path: Path) -> None:
    values = mmdetection3d("voxel")
    path = write_python(tmp_path / "c.py", values)
    text = path.read_text().replace("'max_num_points': 10", "'max_num_points': int(env('POINTS'))")
    path.write_text("import os\n" + text)
    with pytest.raises(ExportError) as caught:
        detector_configs.read(str(path))
    (problem,) = caught.value.problems
    assert "model.data_preprocessor.voxel_layer.max_num_points is the result of code, which is not run" in problem
    assert f"({path}:2: env('POINTS'))" in problem
    assert "Config.fromfile('FILE').dump('resolved.py')" in problem
    # Code that no setting of the network needs is no problem.
    path.write_text("import os\nwork_dir = os.environ['HOME']\n" + write_python(tmp_path / "d.py", values).read_text())
    assert detector_configs.read(str(path)).command == "centerpoint"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = dict(\n", "is not Python"),
        ("_base_ = 'c.py'\n", "is a base file of itself"),
        ("_base_ = name()\n", "_base_ is code, which is not run"),
        ("_base_ = 3\n", "_base_ is not a list of files"),
        ("_base_ = ['one.py', 'two.py']\n", "two base files have 'model', which mmengine refuses"),
        ("_base_ = 'mmdet3d::centerpoint/x.py'\n", "is in another package; give a resolved configuration"),
        ("model = 3\n", "is no configuration of a detector"),
        ("model = dict(type='FCOSMono3D')\n", "model.type is 'FCOSMono3D', not CenterPoint, VoxelNet"),
        ("model = dict(type='VoxelNet', voxel_layer=dict())\n", "model.voxel_layer is of mmdetection3d 0.x"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    for name in ("one.py", "two.py"):
        (tmp_path / name).write_text("model = dict(type='VoxelNet')\n")
    (tmp_path / "c.py").write_text(text)
    with pytest.raises(ValueError, match=r"c\.py") as caught:
        detector_configs.read(str(tmp_path / "c.py"))
    assert message in str(caught.value)


# Tests of settings that are refused

TEST, HEAD = "model.test_cfg.pts", "model.pts_bbox_head"
REFUSED = [
    ("voxel", "model.pts_voxel_encoder.type", "DynamicVFE", "is 'DynamicVFE', not HardSimpleVFE or PillarFeatureNet"),
    ("voxel", "model.pts_voxel_encoder.num_features", 6, "is 6, but the test pipeline has 5 columns"),
    ("voxel", "model.data_preprocessor.voxel_type", "dynamic", "voxel_type is 'dynamic', not 'hard'"),
    ("voxel", "model.pts_middle_encoder.sparse_shape", [41, 1440, 1440], "not [41, 1024, 1024]: the range's voxels"),
    ("voxel", "model.pts_middle_encoder.order", ("norm", "act", "conv"), "no other order is served"),
    ("voxel", "model.pts_middle_encoder.block_type", "bottleneck", "not conv_module or basicblock"),
    ("voxel", "model.pts_middle_encoder.encoder_channels", ((16,), (32,)), "must have four stages"),
    ("voxel", "model.pts_middle_encoder.encoder_paddings", ((0, 0, 0),) * 4, "ends its stages with [0, 0, 0]"),
    ("voxel", "model.pts_middle_encoder.norm_cfg", {"type": "LN"}, "is 'LN': batch norms are served"),
    ("voxel", "model.pts_backbone.type", "ResNet", "is 'ResNet', not SECOND"),
    ("voxel", "model.pts_backbone.norm_cfg.eps", 1e-5, "norm_cfg.eps is 1e-05, not 0.001"),
    ("voxel", "model.pts_neck.type", "FPN", "is 'FPN', not SECONDFPN"),
    ("voxel", "model.img_backbone", {"type": "ResNet"}, "model.img_backbone is {'type': 'ResNet'}: the exporter does"),
    ("voxel", f"{HEAD}.type", "TransFusionHead", "is 'TransFusionHead', not CenterHead"),
    ("voxel", f"{HEAD}.separate_head.type", "DCNSeparateHead", "deformable convolutions are not served"),
    ("voxel", f"{HEAD}.separate_head.final_kernel", 2, "is 2; odd sizes are served"),
    ("voxel", f"{HEAD}.separate_head.head_conv", 32, "head_conv is 32, not 64"),
    ("voxel", f"{HEAD}.common_heads.iou", (1, 2), "common_heads.iou is (1, 2): the exporter does not know"),
    ("voxel", f"{HEAD}.common_heads.rot", (2, 3), "common_heads.rot is (2, 3), not [2, 2]"),
    ("voxel", f"{HEAD}.norm_bbox", False, "norm_bbox is False, not True"),
    ("voxel", f"{HEAD}.bbox_coder.out_size_factor", 4, "is 4, but the network's layers have the stride 8"),
    ("voxel", f"{HEAD}.bbox_coder.pc_range", [0, 0], "is [0, 0], not [-51.2, -51.2], that of the voxel_layer"),
    ("voxel", f"{HEAD}.bbox_coder.y_axis_reference", True, "y_axis_reference is True: the exporter does not know"),
    ("voxel", f"{TEST}.nms_type", "circle", "nms_type is 'circle': NMS by the distance of centres is not served"),
    ("voxel", f"{TEST}.post_center_limit_range", [-50, -50, -9, 50, 50, 9], "that of the bbox_coder"),
    ("voxel", "class_names", ["truck", "car"], "but the data set's classes, whose numbers they have"),
    (
        "voxel",
        "test_pipeline.1",
        {"type": "PointsRangeFilter", "point_cloud_range": [0] * 6},
        "that of the voxel_layer",
    ),
    ("voxel", "test_pipeline.1", {"type": "MultiScaleFlipAug3D", "flip": True}, "flipped copies is not served"),
    ("voxel", "test_pipeline.1", {"type": "GlobalRotScaleTrans", "rot_range": [0, 1]}, "turned copies is not served"),
    ("voxel", "test_pipeline", [], "has no LoadPointsFromFile, which says the columns: name them with --features"),
    ("pillar", "model.pts_voxel_encoder.with_voxel_center", False, "with_voxel_center is False, not True"),
    ("pillar", "model.pts_voxel_encoder.mode", "avg", "mode is 'avg', not 'max'"),
    ("pillar", "model.pts_voxel_encoder.voxel_size", (0.16, 0.16, 4), "is [0.16, 0.16, 4], not [0.2, 0.2, 8]"),
    ("pillar", "model.pts_voxel_encoder.in_channels", 4, "in_channels is 4, but the test pipeline has 5 columns"),
    ("pillar", "model.pts_middle_encoder.output_shape", (400, 512), "output_shape is (400, 512), not [512, 512]"),
    ("second", "model.bbox_head.anchor_generator.type", "AlignedAnchor3DRangeGenerator", "on the range's borders"),
    ("second", "model.bbox_head.anchor_generator.ranges", [[0, -39, 0, 70, 39, 0]] * 3, "not that of the voxel_layer"),
    ("second", "model.bbox_head.anchor_generator.sizes", [[1, 2, 3]] * 2, "are 3 for 2 sizes"),
    ("second", "model.bbox_head.num_classes", 4, "num_classes is 4, but the data set has the classes"),
    ("second", "model.bbox_head.bbox_coder.code_size", 9, "code_size is 9, not 7"),
    ("second", "model.bbox_head.loss_cls", {"type": "CrossEntropyLoss"}, "use_sigmoid is False, not True"),
    ("second", "model.bbox_head.use_direction_classifier", False, "boxes are decoded with a direction classifier"),
    ("second", "model.test_cfg.use_rotate_nms", False, "NMS of rotated boxes is served"),
    ("second", "model.middle_encoder.block_type", "basicblock", "SECOND is served with conv_module alone"),
    ("second", "model.middle_encoder.encoder_channels", ((16,), (32, 32), (64, 64, 64), (64, 64, 64)), "three stages"),
]


@pytest.mark.parametrize(("name", "path", "value", "message"), REFUSED)
def test_what_is_not_served_is_refused_by_name(tmp_path: Path, name: str, path: str, value: Any, message: str) -> None:
    values = mmdetection3d(name)
    put(values, path, value)
    with pytest.raises(ExportError) as caught:
        read(tmp_path, values)
    assert message in str(caught.value)


def test_columns_that_the_command_names_keep_the_scale_of_intensity(tmp_path: Path) -> None:
    values = mmdetection3d("voxel")
    columns = point_features("x:m,y:m,z:m,intensity:1,time:s=0")
    for steps in (values["test_pipeline"], []):
        path = str(write_python(tmp_path / "c.py", {**values, "test_pipeline": steps}))
        assert [f.scale for f in detector_configs.read(path, columns).config.voxels.features] == [1, 1, 1, 255, 1]


def test_columns_are_named_by_the_pipeline(tmp_path: Path) -> None:
    values = mmdetection3d("voxel")
    values["model"]["pts_voxel_encoder"]["num_features"] = 4
    values["model"]["pts_middle_encoder"]["in_channels"] = 4
    values["test_pipeline"][1]["use_dim"] = [0, 1, 2, 4]  # as AWML's: no intensity
    made = read(tmp_path, values)
    assert [f.name for f in made.config.voxels.features] == ["x", "y", "z", "age"]
    values["test_pipeline"][1] = {"type": "PointSample", "num_points": 100}
    values["test_pipeline"][0]["use_dim"] = [0, 1, 2, 4]
    with pytest.raises(ExportError, match=r"reads the columns \(0, 1, 2, 4\), of which some have no known name"):
        read(tmp_path, values)
    values["dataset_type"] = "WaymoDataset"
    values["test_pipeline"][0]["norm_elongation"] = True
    made = read(tmp_path, values)
    assert [f.name for f in made.config.voxels.features] == ["x", "y", "z", "elongation"]
    assert any("tanh of the elongation" in note for note in made.notes)
    assert not any("intensity" in note for note in made.notes)
    assert "the test pipeline has PointSample, which is not known here: do it before you send" in made.notes
