"""Tests the networks that the command line writes, with random weights and with weights from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from small_networks import FAMILIES

from voxserve import wire
from voxserve.export import safetensors_file
from voxserve.export.__main__ import main

State = dict[str, np.ndarray[Any, Any]]


@pytest.mark.parametrize(
    ("arguments", "classes"),
    [
        (["torchsparse-minkunet", "--width", "0.125"], 19),
        (["spvcnn", "--width", "0.125", "--num-classes", "4", "--points", "cloud", "--voxel-size", "0.2"], 4),
        (["torchsparse-resnet21d", "--width", "0.125", "--axes", "x,z,y", "--seed", "3"], 19),
        (["pointcept-spunet", "--width", "0.125", "--voxel-size", "0.2"], 19),
        (["minkowski-unet", "--width", "0.125", "--variant", "MinkUNet50"], 19),
        (["minkowski-unet", "--width", "0.125", "--kernel", "cube_cross", "--voxel-size", "0.1,0.1,0.1,0.5"], 19),
    ],
)
def test_random_segmentation_networks_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], classes: int
) -> None:
    folder = tmp_path / "model"
    assert main([*arguments, "--output", str(folder)]) == 0
    assert f"{classes} classes" in capsys.readouterr().out
    model = text_format.Parse((folder / "1" / "model.textproto").read_text(), wire.Model())
    assert model.name == "model"
    assert list(model.nodes[0].voxelize.axes) == (["x", "z", "y"] if "--axes" in arguments else [])
    assert safetensors_file.read(folder / "1" / "weights.safetensors")


@pytest.mark.parametrize("kernel", ["hypercross", "cube"])
def test_crosses_of_a_state_dict_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recorded: State, kernel: str
) -> None:
    arguments = ["--voxel-size", "0.1,0.1,0.1,0.5", "--output", str(tmp_path / "model")]
    assert main(["minkowski-unet", "--width", "0.125", "--kernel", kernel, *arguments]) == 0
    assert "warning" not in capsys.readouterr().err
    safetensors_file.write(tmp_path / "w.safetensors", dict(recorded))
    assert main(["minkowski-unet", str(tmp_path / "w.safetensors"), *arguments]) == 0
    told = "Its release 0.5.4 reads the first cells of the cube instead" in capsys.readouterr().err
    assert told == (kernel == "hypercross")


@pytest.mark.parametrize(("data_set", "count", "some"), [("semantic-kitti", 19, "road"), ("nuscenes", 16, "car")])
def test_classes_of_data_sets_have_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data_set: str, count: int, some: str
) -> None:
    arguments = ["pointcept-spunet", "--width", "0.125", "--classes", data_set, "--output", str(tmp_path / "model")]
    assert main([*arguments, "--num-classes", str(count)]) == 0
    config = text_format.Parse((tmp_path / "model" / "config.textproto").read_text(), wire.ModelConfig())
    names = [entry.name for entry in config.classes]
    assert len(set(names)) == count
    assert some in names
    assert main([*arguments, "--num-classes", str(count + 1)]) == 1
    assert f"the classifier has {count + 1} outputs" in capsys.readouterr().err


@pytest.mark.usefixtures("no_values")
@pytest.mark.parametrize(
    ("arguments", "classes", "max_voxels"),
    [
        (["centerpoint", "--dataset", "waymo"], 3, 150_000),
        (["centerpoint", "--dataset", "nuscenes-0.1", "--library", "det3d"], 10, 120_000),
        (["centerpoint", "--dataset", "nuscenes-0.075", "--library", "det3d"], 10, 160_000),
        (["centerpoint", "--dataset", "pandaset"], 5, 150_000),
        (["second", "--max-voxels", "7"], 3, 7),
        (["voxelnext"], 10, 160_000),
        (["pointpillars"], 3, 40_000),
        (["centerpoint-pillar", "--dataset", "waymo"], 3, 150_000),
        (["centerpoint-pillar", "--dataset", "nuscenes", "--max-voxels", "30000"], 10, 30_000),
    ],
)
def test_detectors_are_written_with_their_limits(
    tmp_path: Path, arguments: list[str], classes: int, max_voxels: int
) -> None:
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    config = text_format.Parse((tmp_path / "config.textproto").read_text(), wire.ModelConfig())
    assert [c.id for c in config.classes] == list(range(classes))
    assert config.max_voxels == max_voxels
    assert config.voxel_overflow_policy == 3  # VOXEL_OVERFLOW_POLICY_FIRST_SEEN
    model = text_format.Parse((tmp_path / "1" / "model.textproto").read_text(), wire.Model())
    assert [(o.kind, o.node) for o in model.outputs] == [(3, "boxes")]


@pytest.mark.usefixtures("no_values")
def test_what_happens_above_a_limit_needs_one(tmp_path: Path) -> None:
    def export(output: Path, *arguments: str) -> int:
        return main(["second", "--voxel-overflow", "NEAREST_FIRST", *arguments, "--output", str(output)])

    with pytest.raises(SystemExit) as caught:
        export(tmp_path / "without", "--max-voxels", "0")
    assert caught.value.code == 2
    assert not (tmp_path / "without").exists()
    assert export(tmp_path / "own") == 0  # this network has a default limit
    config = text_format.Parse((tmp_path / "own" / "config.textproto").read_text(), wire.ModelConfig())
    assert config.max_voxels > 0
    assert config.voxel_overflow_policy == wire.VOXEL_OVERFLOW_POLICY_NEAREST_FIRST


def test_weights_of_another_network_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    safetensors_file.write(tmp_path / "w.safetensors", {"a.weight": np.zeros(3, np.float32)})
    output = tmp_path / "model"
    arguments = ["centerpoint", str(tmp_path / "w.safetensors"), "--dataset", "waymo", "--output", str(output)]
    assert main(arguments) == 1
    assert "'a.weight' [3] is not part of CenterPoint" in capsys.readouterr().err
    assert not output.exists()


def test_minkunet_is_not_taken_for_spvcnn(tmp_path: Path, capsys: pytest.CaptureFixture[str], recorded: State) -> None:
    FAMILIES["minkunet"][1](name="n")
    weights, output = tmp_path / "w.safetensors", tmp_path / "model"
    safetensors_file.write(weights, recorded)
    assert main(["spvcnn", str(weights), "--output", str(output)]) == 1
    message = "has no point_transforms, which SPVCNN has: torchsparse-minkunet exports MinkUNet"
    assert f"{weights} {message}" in capsys.readouterr().err
    assert not output.exists()
    assert main(["torchsparse-minkunet", str(weights), "--output", str(output)]) == 0


@pytest.mark.parametrize("network", ["torchsparse-minkunet", "spvcnn", "torchsparse-resnet21d"])
@pytest.mark.parametrize(("voxel_size", "count"), [("0.1,0.1", 2), ("0.1,0.1,0.1,0.1", 4)])
def test_a_voxel_size_has_a_value_an_axis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], network: str, voxel_size: str, count: int
) -> None:
    output = tmp_path / "model"
    arguments = [network, "--width", "0.125", "--voxel-size", voxel_size, "--output", str(output)]
    assert main(arguments) == 1
    assert capsys.readouterr().err == f"export: voxel_size has {count} values; this network has 3 axes\n"
    assert not output.exists()


@pytest.mark.parametrize(
    ("network", "has_time"), [("minkowski-unet", True), ("spvcnn", False), ("torchsparse-resnet21d", False)]
)
def test_help_mentions_time_where_there_is_one(
    capsys: pytest.CaptureFixture[str], network: str, has_time: bool
) -> None:
    with pytest.raises(SystemExit):
        main([network, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert ("seconds of a fourth" in text) == ("M[,M,M[,S]]" in text) == has_time


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["second", "w.safetensors", "--seed", "1", "--output", "m"], "--seed makes random weights"),
        (["spvcnn", "w.safetensors", "--num-classes", "1", "--output", "m"], "--num_classes makes random weights"),
        (["spvcnn", "--prefix", "ema", "--output", "m"], "are of a checkpoint, and none is given"),
        (["spvcnn", "w.pth", "--spconv-order", "KCRS", "--output", "m"], "invalid choice: 'KCRS'"),
        (["centerpoint", "--output", "m"], "--dataset"),
        (["centerpoint", "--dataset", "kitti", "--output", "m"], "invalid choice: 'kitti'"),
        (["spvcnn", "--voxel-size", "small", "--output", "m"], "invalid voxel_size value"),
        (
            ["spvcnn", "--width", "0.125", "--voxel-overflow", "FIRST_SEEN", "--output", "m"],
            "--voxel_overflow needs a limit: add --max_voxels",
        ),
    ],
)
def test_bad_command_lines(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
