"""Exports checkpoints with mmdetection3d's names by its configurations, and compares the server's boxes with those that
mmdetection3d itself computed (tests/golden/mmdetection3d.npz).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mmdetection3d_networks as theirs
import numpy as np
import pytest
from conftest import REPOSITORY, serving
from detector_config_files import mmdetection3d
from google.protobuf import text_format
from mmdetection3d_networks import CASES, PLAIN, center_point, configuration, scan, weights
from test_integration_detect import expect_boxes
from test_mmdetection3d_configs import write_python

import voxserve
from voxserve import wire
from voxserve.export import detector_configs, safetensors_file
from voxserve.export.__main__ import main
from voxserve.export.networks import center_point as center_point_network
from voxserve.export.networks import second as second_network


def export(folder: Path, case: str, state: theirs.State, values: dict[str, Any] | None = None) -> int:
    checkpoint, config = folder / f"{case}.safetensors", folder / f"{case}.py"
    safetensors_file.write(checkpoint, {name: t for name, t in state.items() if t.ndim})
    write_python(config, configuration(case) if values is None else values)
    output = folder / "models" / case
    return main([CASES[case][1], str(checkpoint), "--config", str(config), "--output", str(output)])


@pytest.mark.integration
def test_the_server_has_the_boxes_of_mmdetection3d(tmp_path: Path) -> None:
    with np.load(REPOSITORY / "tests" / "golden" / "mmdetection3d.npz") as arrays:
        expected = dict(arrays)
    assert set(expected) == set(CASES)
    assert len(np.unique(expected["second"][:, 10])) == 3
    for case, (name, _, is_spconv_1) in CASES.items():
        assert export(tmp_path, case, weights(name, is_spconv_1=is_spconv_1)) == 0
    cloud = voxserve.PointCloud.from_array(scan(), fields=("x", "y", "z", "intensity", "age"))
    with serving(tmp_path / "models", tmp_path / "log") as address, voxserve.Client(address, timeout=120) as client:
        for case, boxes in expected.items():
            found = client.detect(case, cloud)
            assert len(found) == len(boxes), case
            expect_boxes(found, boxes)


def test_boxes_of_every_class_are_suppressed_class_by_class(tmp_path: Path) -> None:
    assert export(tmp_path, "second", weights("second", is_spconv_1=False)) == 0
    folder = tmp_path / "models" / "second"
    model = text_format.Parse((folder / "1" / "model.textproto").read_text(), wire.Model())
    nodes = {n.name: n for n in model.nodes}
    assert list(nodes["boxes"].inputs) == ["decoded.0", "decoded.1", "decoded.2"]
    assert list(nodes["decoded.1"].inputs) == ["scores.1", "residuals", "directions"]
    tensors = safetensors_file.read(str(folder / "1" / "weights.safetensors"))
    theirs_cls = weights("second", is_spconv_1=False)["bbox_head.conv_cls.weight"]
    own = np.arange(18) % 3 == 1
    np.testing.assert_array_equal(tensors["scores.1.weight"][own], theirs_cls[own])
    assert not tensors["scores.1.weight"][~own].any()
    assert (tensors["scores.1.bias"][~own] == -100).all()


class Shapes(theirs.Weights):
    """Makes zeros instead of random numbers, of which the published sizes have millions."""

    def normal(self, name: str, shape: Sequence[int], scale: float) -> None:
        self.state[name] = np.zeros(tuple(shape), np.float16)


@pytest.mark.parametrize("name", ["voxel", "pillar", "second"])
def test_published_sizes_have_the_tensors_of_the_library(tmp_path: Path, name: str) -> None:
    made, ups = Shapes(0, is_spconv_1=True), (0.5, 1, 2)
    if name == "pillar":
        theirs.pillar_net(made, "pts_voxel_encoder", 5, (64,))
        theirs.image_layers(made, "pts_", 64, (3, 5, 5), (64, 128, 256), ups, (128,) * 3, conv=True)
    elif name == "voxel":
        channels = ((16, 16, 32), (32, 32, 64), (64, 64, 128), (128, 128))
        theirs.sparse_encoder(made, "pts_middle_encoder", 5, channels, "basicblock", 16, 128)
        theirs.image_layers(made, "pts_", 256, (5, 5), (128, 256), (1, 2), (256,) * 2, conv=True)
    else:
        channels = ((16,), (32,) * 3, (64,) * 3, (64,) * 3)
        theirs.sparse_encoder(made, "middle_encoder", 4, channels, "conv_module", 16, 128)
        theirs.image_layers(made, "", 256, (5, 5), (128, 256), (1, 2), (256,) * 2, conv=False)
        theirs.anchor_head(made, "bbox_head", 512, 6, 3)
    if name != "second":
        theirs.center_head(made, "pts_bbox_head", 384 if name == "pillar" else 512, 64, (1, 2, 2, 1, 2, 2), 3)
    detector = detector_configs.read(str(write_python(tmp_path / "c.py", mmdetection3d(name))))
    module: Any = second_network if name == "second" else center_point_network
    module.build(made.state, detector.config, name="n", library=detector.library)


@pytest.mark.parametrize("case", ["voxel", "pillar", "second"])
def test_every_missing_tensor_is_named_as_in_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    state = weights(CASES[case][0], is_spconv_1=False)
    used = [name for name in state if not name.endswith("num_batches_tracked")]
    left = {name: tensor for name, tensor in state.items() if name not in used[::3]}
    assert export(tmp_path, case, left) == 1
    error = capsys.readouterr().err
    for name in used[::3]:
        assert f"tensor '{name}' " in error, name
    assert error.count("is missing") == len(used[::3])
    extra = {**state, "img_backbone.conv1.weight": np.zeros((2, 2), np.float32)}
    assert export(tmp_path, case, extra) == 1
    assert "'img_backbone.conv1.weight' [2, 2] is not part of" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


def test_other_tensors_than_the_configuration_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = center_point("voxel")
    values["model"]["pts_middle_encoder"]["block_type"] = "conv_module"
    values["model"]["pts_middle_encoder"] |= {"encoder_channels": PLAIN}
    del values["model"]["pts_middle_encoder"]["encoder_paddings"]
    assert export(tmp_path, "voxel", weights("voxel", is_spconv_1=False), values) == 1
    error = capsys.readouterr().err
    assert "'pts_middle_encoder.encoder_layers.encoder_layer1.0.0.weight' [4, 3, 3, 3, 4] or [3" in error
    assert "'pts_middle_encoder.encoder_layers.encoder_layer1.0.conv1.weight' [4, 3, 3, 3, 4] is not part of" in error
    names = {
        name.replace("pts_middle_encoder", "backbone_3d"): np.zeros((2,), np.float32)
        for name in ("pts_middle_encoder.x",)
    }
    assert export(tmp_path, "voxel", names) == 1
    assert "has openpcdet's names of tensors, not mmdetection3d's" in capsys.readouterr().err
