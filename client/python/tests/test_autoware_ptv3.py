"""Compares autoware-ml's PTv3, exported and computed by NumPy, with what its own classes computed
(tests/golden/transformers), and tests what the command reads of Hydra's files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_shapes import parse
from transformer_golden import Golden

from voxserve.export import transformer_command
from voxserve.export.__main__ import main
from voxserve.export.detector_configs.settings import Unreadable
from voxserve.export.networks import point_transformer
from voxserve.export.transformer_configs import hydra_file
from voxserve.verify.compare import Model
from voxserve.verify.interpreter import Interpreter

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
TOLERANCE = 1e-5  # of the largest magnitude; the library computed in float64
# The files as autoware-ml has them: a task names a base, two parts of the model and a data set.
TASK = """# @package _global_
defaults:
  - /tasks/base
  - /tasks/head_tiny
  - /datasets/t4dataset/segmentation3d
  - _self_
dataset: ${t4dataset}
grid_size: 0.05
point_cloud_range: [-1.6, -1.6, -0.8, 1.6, 1.6, 0.77]
datamodule:
  data_root: ${oc.env:DATA}/t4dataset
  predict_transforms:
    pipeline:
      - {_target_: autoware_ml.transforms.point_cloud.loading.LoadPointsFromFile, load_dim: 5}
      - {_target_: autoware_ml.transforms.point_cloud.sampling.GridSample, grid_size: "${grid_size}"}
      - {_target_: autoware_ml.transforms.common.packing.BuildPointFeatures, keys: [coord, strength]}
"""
BASE = """# @package _global_
defaults:
  - encoder
  - _self_
model:
  _target_: autoware_ml.models.segmentation3d.ptv3.PTv3SegmentationModel
  metrics: ${dataset.segmentation3d.metrics}
  grid_size: ${grid_size}
"""
DATA_SET = """# @package t4dataset.segmentation3d
class_mapping: {car: 0, kart: 0, truck: 1, bus: 2, road: 3, animal: "${t4dataset.segmentation3d.ignore}"}
ignore: -1
num_classes: 5
metrics:
  - class_names: ${seg_class_names:${t4dataset.segmentation3d.class_mapping}, 5}
"""


def write_configs(root: Path, golden: Golden, task: str = TASK, **changes: Any) -> Path:
    """Writes the files of a configuration. changes: settings of the encoder; of the head if they begin with head_."""
    encoder = {**golden.settings["encoder"], "_target_": "PointTransformerV3Encoder"}
    head = {**golden.settings["seg3d_head"], "num_classes": "${dataset.segmentation3d.num_classes}"}
    head |= {"order": "${model.encoder.order}", "mlp_ratio": "${model.encoder.mlp_ratio}", "dec_depths": [2, 2, 2]}
    head |= {key.removeprefix("head_"): value for key, value in changes.items() if key.startswith("head_")}
    encoder |= {key: value for key, value in changes.items() if not key.startswith("head_")}
    encoder = {**encoder, "order": ["z", "z-trans", "hilbert", "hilbert-trans"]}
    head_text = f"# @package model.seg3d_head\n{yaml.safe_dump(head)}"
    files = {
        "tasks/ptv3/task.yaml": task,
        "tasks/base.yaml": BASE,
        "tasks/encoder.yaml": f"# @package model.encoder\n{yaml.safe_dump(encoder)}",
        "tasks/head.yaml": head_text,
        # Later files replace settings of earlier ones.
        "tasks/head_tiny.yaml": "# @package model.seg3d_head\ndefaults: [head, _self_]\ndec_depths: [0, 1, 2]\n",
        "datasets/t4dataset/segmentation3d.yaml": DATA_SET,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root / "tasks" / "ptv3" / "task.yaml"


def run(golden: Golden, folder: Path, config: Path, prefix: str = "") -> int:
    weights = golden.write(folder, prefix)
    return main(["autoware-ptv3", str(weights), "--config", str(config), "--output", str(folder / "net")])


def test_numpy_computes_what_the_library_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = Golden.read("autoware-ptv3")
    assert run(golden, tmp_path, write_configs(tmp_path, golden), "state_dict.model.") == 0
    model = Model.read(tmp_path / "net")
    interpreter = Interpreter(model.network, model.tensors, golden.sites, golden.features)
    scores = interpreter.run()["scores"].values
    assert interpreter.skipped == {}
    assert np.abs(scores - golden.answer).max() < TOLERANCE * np.abs(golden.answer).max()
    assert "the curves are fixed, block by block: z, z-trans, and from the first on again" in capsys.readouterr().out


def test_the_input_and_the_classes_are_those_of_the_configuration(tmp_path: Path) -> None:
    golden = Golden.read("autoware-ptv3")
    assert run(golden, tmp_path, write_configs(tmp_path, golden)) == 0
    voxelize = Model.read(tmp_path / "net").network.nodes[0].voxelize
    assert voxelize.origin == voxelize.ORIGIN_RANGE
    assert list(voxelize.voxel_size) == pytest.approx([0.05] * 3)
    assert list(voxelize.range_min) == pytest.approx([-1.6, -1.6, -0.8])
    # 31.4 voxels on z would be rounded to 31.
    assert list(voxelize.range_max) == pytest.approx([1.6, 1.6, 0.8])
    assert [feature.name for feature in voxelize.features] == ["x", "y", "z", "intensity"]
    config = (tmp_path / "net" / "config.textproto").read_text()
    names = ["car-kart", "truck", "bus", "road", "class_4"]
    assert [line.split('"')[1] for line in config.splitlines() if line.startswith("classes")] == names


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"enable_rpe": True}, "model.encoder.enable_rpe is True, not False: tables of relative positions"),
        ({"enable_flash": False}, "the groups' size depends on the smallest cloud of a batch"),
        ({"head_enable_flash": False}, "model.seg3d_head.enable_flash is False"),
        ({"head_enc_channels": [12, 16, 24, 48]}, "model.seg3d_head.enc_channels are not those of the encoder"),
        ({"head_qkv_bias": False}, "model.seg3d_head.qkv_bias is False, not True: the encoder has another value"),
        ({"head_dec_channels": [16, 16]}, "lists of the stages have several lengths"),
        ({"stem_type": "mlp"}, "model.encoder.stem_type is 'mlp', not linear or conv"),
        ({"stem_type": "conv", "stem_kernel_size": 4}, "stem_kernel_size is 4; a convolution of the same sites"),
        ({"in_channels": 5}, "in_channels is 5, but the input has 4 columns"),
        ({"window": 7}, "model.encoder.window is 7: the exporter does not know this setting"),
        ({"stride": [2, 2, "${missing.one}"]}, "is ${missing.one}, which no file defines"),
        ({"task": TASK.replace("-0.8, 1.6", "-0.81, 1.6")}, "begins between two cells on z"),
        ({"task": TASK.replace("/tasks/base", "/tasks/bass")}, "/tasks/bass.yaml of its defaults list is below none"),
        ({"task": TASK + "model: {_target_: a.PTv3FlowModel}"}, "_target_ is PTv3FlowModel; served are"),
        ({"task": "a: [1"}, "is not YAML"),
        ({"task": "a: 1"}, "has no model with a _target_"),
    ],
)
def test_what_is_refused(
    changes: dict[str, Any], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = Golden.read("autoware-ptv3")
    assert run(golden, tmp_path, write_configs(tmp_path, golden, **changes)) == 1
    assert problem in capsys.readouterr().err


def test_a_file_of_hydra(tmp_path: Path) -> None:
    values = hydra_file.read(str(write_configs(tmp_path, Golden.read("autoware-ptv3"))))
    assert values["model"]["grid_size"] == 0.05
    assert values["model"]["seg3d_head"]["dec_depths"] == [0, 1, 2]
    assert values["dataset"]["segmentation3d"]["class_mapping"]["animal"] == -1
    assert isinstance(values["model"]["metrics"][0]["class_names"], Unreadable)
    (tmp_path / "loop.yaml").write_text("defaults: [loop]")
    with pytest.raises(ValueError, match="is in its own defaults list"):
        hydra_file.read(str(tmp_path / "loop.yaml"))
    (tmp_path / "self.yaml").write_text("a: ${b}\nb: ${a}")
    with pytest.raises(ValueError, match="refers to itself"):
        hydra_file.read(str(tmp_path / "self.yaml"))


def test_the_random_network_is_the_tiny_one() -> None:
    """autoware-ml's tiny has 31,701,231 values, of which 782,656 are the linear layers that are folded."""
    network = point_transformer.random_network(transformer_command.AUTOWARE_TINY, name="net")
    assert sum(tensor.size for tensor in network.tensors.values()) == 31_701_231 - 782_656
    found = [node.groups for node in parse(network).nodes if node.WhichOneof("op") == "groups"]
    assert len(found) == 10
    assert {group.size for group in found} == {512}
    assert {group.curve for group in found} == {found[0].CURVE_Z, found[0].CURVE_Z_TRANSPOSED}
