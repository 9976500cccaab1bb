"""Tests the exporter of MinkUNet: the published network, the folder's round trip, and all errors reported at once."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY, SHARED
from google.protobuf import text_format
from graph_shapes import parse

from voxserve import wire
from voxserve.export import ExportError, PointFeature, arguments, safetensors_file
from voxserve.export.__main__ import main
from voxserve.export.checkpoint_file import read as read_checkpoint
from voxserve.export.model_folder import config_textproto
from voxserve.export.networks import center_point, minkowski_unet, minkunet, second

State = dict[str, np.ndarray[Any, Any]]


def make_state(cs: Sequence[int] = (2, 2, 3, 4, 5, 5, 4, 3, 3), inputs: int = 4, classes: int = 6) -> State:
    """Returns a state dict of SparseResUNet42 by its published architecture, with random values."""
    rng = np.random.default_rng(5)
    state: State = {}

    def conv(name: str, kernel: int, a: int, b: int) -> None:
        shape = (kernel**3, a, b) if kernel > 1 else (a, b)
        state[f"{name}.kernel"] = rng.normal(size=shape).astype(np.float16)

    def norm(name: str, width: int) -> None:
        for key in ("weight", "bias"):
            state[f"{name}.{key}"] = rng.normal(size=width).astype(np.float16)
        state[f"{name}.running_mean"] = rng.normal(size=width).astype(np.float32)
        state[f"{name}.running_var"] = rng.uniform(0.5, 2, size=width).astype(np.float32)
        state[f"{name}.num_batches_tracked"] = np.array(3)

    def residual(name: str, a: int, b: int) -> None:
        conv(f"{name}.main.0", 3, a, b)
        norm(f"{name}.main.1", b)
        conv(f"{name}.main.3", 3, b, b)
        norm(f"{name}.main.4", b)
        if a != b:
            conv(f"{name}.shortcut.0", 1, a, b)
            norm(f"{name}.shortcut.1", b)

    conv("backbone.stem.0", 3, inputs, cs[0])
    norm("backbone.stem.1", cs[0])
    conv("backbone.stem.3", 3, cs[0], cs[0])
    norm("backbone.stem.4", cs[0])
    for stage in range(4):
        name = f"backbone.encoders.{stage}"
        conv(f"{name}.0.0", 2, cs[stage], cs[stage])
        norm(f"{name}.0.1", cs[stage])
        residual(f"{name}.1", cs[stage], cs[stage + 1])
        residual(f"{name}.2", cs[stage + 1], cs[stage + 1])
    for up in range(4):
        name = f"backbone.decoders.{up}"
        conv(f"{name}.upsample.0", 2, cs[4 + up], cs[5 + up])
        norm(f"{name}.upsample.1", cs[5 + up])
        residual(f"{name}.fuse.0", cs[5 + up] + cs[3 - up], cs[5 + up])
        residual(f"{name}.fuse.1", cs[5 + up], cs[5 + up])
    state["classifier.weight"] = rng.normal(size=(classes, cs[8])).astype(np.float16)
    state["classifier.bias"] = rng.normal(size=classes).astype(np.float16)
    return state


def build(state: State, **options: Any) -> Any:
    return minkunet.build(state, name="n", **options)


# The network


def test_nodes_are_the_published_architecture() -> None:
    model = parse(build(make_state()))
    nodes = {node.name: node for node in model.nodes}
    kinds = [node.WhichOneof("op") for node in model.nodes]
    convs = [node.sparse_conv for node in model.nodes if node.WhichOneof("op") == "sparse_conv"]
    kind = wire.message_class("voxserve.model.v1.SparseConv")
    assert len(convs) == 42
    assert sum(c.kind == kind.KIND_STRIDED for c in convs) == 4
    assert sum(c.kind == kind.KIND_INVERSE for c in convs) == 4
    assert kinds.count("concat") == 4
    assert kinds.count("add") == 16
    assert [nodes[f"up{i}.up"].sparse_conv.paired_with for i in range(1, 5)] == [f"stage{i}.down" for i in (4, 3, 2, 1)]
    assert list(nodes["up1.concat"].inputs) == ["up1.up.relu", "stage3.1.relu"]
    assert list(nodes["up4.concat"].inputs) == ["up4.up.relu", "stem.1.relu"]
    assert [(o.kind, o.node) for o in model.outputs] == [(1, "labels"), (2, "scores")]
    assert list(nodes["labels"].inputs) == ["argmax", "voxels"]


def test_shortcuts_stand_where_the_channels_change() -> None:
    model = parse(build(make_state()))
    shortcuts = [node.name for node in model.nodes if node.name.endswith(".shortcut")]
    assert shortcuts == [f"stage{i}.0.shortcut" for i in (2, 3, 4)] + [f"up{i}.0.shortcut" for i in (1, 2, 3, 4)]


def test_every_tensor_is_named_by_a_node_and_the_other_way_round() -> None:
    network = build(make_state())
    wanted = set()
    for node in parse(network).nodes:
        op = node.WhichOneof("op")
        if op in ("sparse_conv", "linear", "batch_norm"):
            wanted.add(f"{node.name}.weight")
        if op == "batch_norm" or (op == "linear" and node.linear.bias):
            wanted.add(f"{node.name}.bias")
        if op == "batch_norm":
            wanted |= {f"{node.name}.running_mean", f"{node.name}.running_var"}
    assert wanted == set(network.tensors)


def test_values_and_their_storage_are_kept() -> None:
    state = make_state()
    tensors = build(state).tensors
    source = state["backbone.encoders.1.1.shortcut.0.kernel"]
    np.testing.assert_array_equal(tensors["stage2.0.shortcut.weight"], source.T)
    np.testing.assert_array_equal(tensors["stage1.down.weight"], state["backbone.encoders.0.0.0.kernel"])
    np.testing.assert_array_equal(tensors["stem.0.norm.running_var"], state["backbone.stem.1.running_var"])
    np.testing.assert_array_equal(tensors["classifier.weight"], state["classifier.weight"])
    assert tensors["stem.0.weight"].dtype == np.float16
    assert tensors["stem.0.norm.running_mean"].dtype == np.float32


def test_other_inputs_and_voxels() -> None:
    features = (PointFeature("x", "m"), PointFeature("intensity", "1", 0.25))
    network = build(make_state(inputs=2), features=features, voxel_size=(0.1, 0.1, 0.2))
    voxelize = parse(network).nodes[0].voxelize
    assert [f.name for f in voxelize.features] == ["x", "intensity"]
    assert voxelize.features[1].default_value == 0.25
    assert not voxelize.features[0].HasField("default_value")
    np.testing.assert_array_equal(np.float32(voxelize.voxel_size), np.float32([0.1, 0.1, 0.2]))


def test_a_feature_has_the_range_of_its_training_data() -> None:
    def ranges(network: Any) -> list[tuple[str, float, float] | None]:
        features = parse(network).nodes[0].voxelize.features
        return [(f.name, f.range.low, f.range.high) if f.HasField("range") else None for f in features]

    assert ranges(build(make_state())) == [None, None, None, ("intensity", 0, 1)]
    features = (PointFeature("x", "m"), PointFeature("ring", "1", 0.25, range=(0, 63.5)))
    assert ranges(build(make_state(inputs=2), features=features)) == [None, ("ring", 0, 63.5)]
    published = [
        *center_point._NUSCENES_FEATURES, *center_point.WAYMO_FEATURES, *center_point._PANDASET_FEATURES,
        *second.KITTI_VOXELS.features, *minkunet.LIDAR_FEATURES, *minkowski_unet.LIDAR_FEATURES,
    ]  # fmt: skip
    assert {feature.range for feature in published if feature.name == "intensity"} == {(0, 1)}
    assert {feature.range for feature in published if feature.name != "intensity"} == {None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x:m", PointFeature("x", "m")),
        ("intensity:1@0..1", PointFeature("intensity", "1", range=(0, 1))),
        ("i:1=0.5@-1..2.5e1", PointFeature("i", "1", 0.5, range=(-1, 25))),
    ],
)
def test_features_of_a_command_line(text: str, expected: PointFeature) -> None:
    assert arguments.point_features(f"{text},y:m") == (expected, PointFeature("y", "m"))


@pytest.mark.parametrize(
    "text", ["x", ":m", "x:", "x:m=a", "x:m@", "x:m@1", "x:m@1..1", "x:m@2..1", "x:m@a..2", "x:m@0..inf", "x:m@nan..1",
             "x:m@0..1..2"],
)  # fmt: skip
def test_features_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not NAME:UNIT\[=DEFAULT\]\[@LOW..HIGH\]"):
        arguments.point_features(f"y:m,{text}")


# Errors of a state dict


def test_all_problems_are_reported_at_once() -> None:
    state = make_state()
    del state["backbone.stem.4.running_var"]
    del state["backbone.encoders.2.1.shortcut.0.kernel"]
    state["backbone.encoders.0.1.main.0.kernel"] = np.zeros((27, 7, 2), np.float16)
    state["backbone.extra.kernel"] = np.zeros((1, 2), np.float16)
    state["classifier.bias"] = np.full(6, np.nan, np.float16)
    state["backbone.stem.1.running_var"] = -state["backbone.stem.1.running_var"]
    state["backbone.stem.1.weight"] = state["backbone.stem.1.weight"].astype(np.int8)
    with pytest.raises(ExportError) as caught:
        build(state)
    assert set(caught.value.problems) == {
        "tensor 'backbone.stem.4.running_var' [2] is missing",
        "tensor 'backbone.encoders.2.1.shortcut.0.kernel' [3, 4] is missing",
        "tensor 'backbone.encoders.0.1.main.0.kernel' is [27, 7, 2], not [27, 2, 2]",
        "tensor 'backbone.extra.kernel' [1, 2] is not part of SparseResUNet42 + classifier",
        "tensor 'classifier.bias' has 6 values that are not finite",
        "tensor 'backbone.stem.1.running_var' has 2 negative variances",
        "tensor 'backbone.stem.1.weight' is int8, not float16, bfloat16 or float32",
    }
    assert str(caught.value).startswith("7 problem(s):")


def test_every_single_missing_tensor_is_named() -> None:
    state = make_state()
    for name in [n for n in state if not n.endswith("num_batches_tracked")]:
        with pytest.raises(ExportError) as caught:
            build({n: t for n, t in state.items() if n != name})
        assert any(f"'{name}'" in problem and "missing" in problem for problem in caught.value.problems), name


def test_a_state_dict_of_another_number_of_inputs() -> None:
    with pytest.raises(ExportError, match=r"'backbone\.stem\.0\.kernel' is \[27, 5, 2\], not \[27, 4, 2\]"):
        build(make_state(inputs=5))


def test_an_empty_state_dict() -> None:
    with pytest.raises(ExportError, match=r"'backbone\.stem\.0\.kernel' \[27, 4, \?\] is missing"):
        build({})


# Files


def test_command_line_round_trip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = {n: t for n, t in make_state().items() if t.ndim}
    safetensors_file.write(tmp_path / "weights.safetensors", state)
    classes = [{"id": i, "name": f'class "{i}"', "color": [i, 2 * i, 255]} for i in range(6)]
    (tmp_path / "card.json").write_text(json.dumps({"classes": classes, "ignore_label": 99}))
    arguments = [str(tmp_path / "weights.safetensors"), "--classes", str(tmp_path / "card.json")]
    folder = tmp_path / "unet"
    notice = "First line.\nSecond line."
    arguments += ["--notice", notice, "--max-voxels", "7000", "--voxel-overflow", "FIRST_SEEN"]
    assert main(["torchsparse-minkunet", *arguments, "--output", str(folder)]) == 0
    assert "6 classes" in capsys.readouterr().out
    model = text_format.Parse((folder / "1" / "model.textproto").read_text(), wire.Model())
    assert model.name == "unet"
    config = text_format.Parse((folder / "config.textproto").read_text(), wire.ModelConfig())
    assert [(c.id, c.name, c.color) for c in config.classes][3] == (3, 'class "3"', "#0306ff")
    assert config.ignore_label == 99
    assert (config.max_voxels, config.voxel_overflow_policy) == (7000, wire.VOXEL_OVERFLOW_POLICY_FIRST_SEEN)
    tensors = safetensors_file.read(folder / "1" / "weights.safetensors")
    expected = build(make_state()).tensors
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(tensors[name], tensor)
        assert tensors[name].dtype == tensor.dtype


def test_names_of_data_parallel_lose_their_prefix(tmp_path: Path) -> None:
    state = {n: t for n, t in make_state().items() if t.ndim}
    path = tmp_path / "w.safetensors"
    safetensors_file.write(path, {f"module.{n}": t for n, t in state.items()})
    assert main(["torchsparse-minkunet", str(path), "--output", str(tmp_path / "m")]) == 0
    tensors = safetensors_file.read(tmp_path / "m" / "1" / "weights.safetensors")
    for name, tensor in build(state).tensors.items():
        np.testing.assert_array_equal(tensors[name], tensor)


def test_bad_voxel_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="voxel_overflow is 'LAST_SEEN', not one of REJECT, NEAREST_FIRST, FIRST_SEEN"):
        config_textproto((), voxel_overflow="LAST_SEEN")
    safetensors_file.write(tmp_path / "w.safetensors", {n: t for n, t in make_state().items() if t.ndim})
    arguments = [str(tmp_path / "w.safetensors"), "--output", str(tmp_path / "m"), "--max-voxels", "-1"]
    assert main(["torchsparse-minkunet", *arguments]) == 1
    assert "max_voxels is -1" in capsys.readouterr().err
    assert "max_voxels" not in config_textproto(())


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ({"classes": [{"id": 0, "name": "a", "color": [1, 2, 3]}]}, "class ids [0], the classifier has 6 outputs"),
        ({"classes": [{"id": 0, "name": "a"}]}, "classes must be a list of"),
        ({"classes": [{"id": i, "name": "a", "color": [1, 2, 3]} for i in range(6)]}, "two classes have the name 'a'"),
        ({"classes": [], "ignore_index": 255}, "has 'ignore_index'; the label of points without a class is named"),
        ({"classes": [{"id": 0, "name": "a", "color": [1, 2, 300]}]}, "classes must be a list of"),
        ({}, "classes must be a list of"),
    ],
)
def test_bad_class_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], card: Any, message: str) -> None:
    safetensors_file.write(tmp_path / "w.safetensors", {n: t for n, t in make_state().items() if t.ndim})
    (tmp_path / "card.json").write_text(json.dumps(card))
    arguments = [str(tmp_path / "w.safetensors"), "--classes", str(tmp_path / "card.json")]
    assert main(["torchsparse-minkunet", *arguments, "--output", str(tmp_path / "m")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_bfloat16_is_widened_exactly(tmp_path: Path) -> None:
    raw = np.array([0x3F80, 0xC000, 0x3EAB], "<u2")  # bfloat16 of 1, -2 and 0.333984375
    header = json.dumps({"__metadata__": {"a": "b"}, "t": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}})
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + raw.tobytes())
    assert safetensors_file.read(path)["t"].tolist() == [1, -2, 0.333984375]


def safetensors(entry: Any, data: bytes = bytes(8)) -> bytes:
    header = (entry if isinstance(entry, str) else json.dumps({"t": entry})).encode()
    return len(header).to_bytes(8, "little") + header + data


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"1234", "4 bytes are too few"),
        (b"\xff" * 16, "the header claims"),
        (safetensors("{nonsense"), "not JSON"),
        (safetensors("[]"), "not a JSON object"),
        (safetensors({}), "needs dtype, shape and two data_offsets"),
        (safetensors({"dtype": "F8", "shape": [2], "data_offsets": [0, 8]}), "dtype 'F8' is none of"),
        (safetensors({"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}), "integers of 0 or more"),
        (safetensors({"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}), "outside the file's 8"),
        (safetensors({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}), "outside the file's 8"),
        (safetensors({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}), r"\[3\] takes 12 bytes, not 8"),
        (safetensors({"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 8]}), "bytes, not 8"),
    ],
)
def test_broken_safetensors(tmp_path: Path, contents: bytes, message: str) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(contents)
    with pytest.raises(safetensors_file.SafetensorsError, match=message):
        safetensors_file.read(path)


def test_torch_files_are_exported_byte_for_byte_alike(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    weights = SHARED / "minkunet-pandaset" / "minkunet-0.5-pandaset.safetensors"
    if weights.exists():
        state = safetensors_file.read(weights)
    else:
        state = make_state()
        safetensors_file.write(tmp_path / "w.safetensors", {n: t for n, t in state.items() if t.ndim})
        weights = tmp_path / "w.safetensors"
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in state.items()}
    torch.save(tensors, tmp_path / "w.pt")
    torch.save({"state_dict": tensors, "epoch": 3}, tmp_path / "w.pth")
    torch.save({"model_state": tensors, "it": 3}, tmp_path / "pcdet.pth")
    torch.save({"model": tensors}, tmp_path / "w.ckpt")
    for index, path in enumerate([weights, *(tmp_path / n for n in ("w.pt", "w.pth", "pcdet.pth", "w.ckpt"))]):
        output = tmp_path / str(index)
        assert main(["torchsparse-minkunet", str(path), "--output", str(output), "--name", "unet"]) == 0
        for name in ("config.textproto", "1/model.textproto", "1/weights.safetensors"):
            assert (output / name).read_bytes() == (tmp_path / "0" / name).read_bytes(), (path, name)


def test_torch_files_of_bfloat16_and_of_parameters(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    values = torch.tensor([[1, -2, 0.333984375]])
    state = {"a": values.bfloat16(), "b": torch.nn.Parameter(values.half()), "c": values.T}
    torch.save(state, tmp_path / "w.pt")
    read = read_checkpoint(str(tmp_path / "w.pt"))
    assert {n: (t.dtype, t.tolist()) for n, t in read.items()} == {
        "a": (np.float32, [[1, -2, 0.333984375]]),
        "b": (np.float16, [[1, -2, 0.333984375]]),
        "c": (np.float32, [[1], [-2], [0.333984375]]),
    }


def test_torch_files_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "text.pt").write_text("not a torch file")
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(Path("anything")))
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    torch.save({}, tmp_path / "nothing.pt")
    messages = {
        "text": "is not a torch file of tensors alone",
        "empty": "is empty",
        "pickle": "is not a torch file of tensors alone",
        "tensor": "holds a Tensor, not a state dict",
        "nothing": "holds no tensors by name",
    }
    for name, message in messages.items():
        assert main(["torchsparse-minkunet", str(tmp_path / f"{name}.pt"), "--output", str(tmp_path / "m")]) == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_torch_files_without_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["torchsparse-minkunet", str(tmp_path / "w.pt"), "--output", str(tmp_path / "m")]) == 1
    error = capsys.readouterr().err
    assert "needs torch" in error or "No such file" in error


@pytest.mark.parametrize(
    ("name", "values", "tensors", "classes", "convolutions"),
    [("minkunet", 5_441_036, 247, 12, 42), ("centerpoint", 1_773_069, 211, 5, 21)],
)
def test_the_served_models_are_parseable_and_complete(
    name: str, values: int, tensors: int, classes: int, convolutions: int
) -> None:
    folder = REPOSITORY / "deploy" / "models" / name
    model = text_format.Parse((folder / "1" / "model.textproto").read_text(), wire.Model())
    config = text_format.Parse((folder / "config.textproto").read_text(), wire.ModelConfig())
    stored = safetensors_file.read(folder / "1" / "weights.safetensors")
    assert (sum(t.size for t in stored.values()), len(stored)) == (values, tensors)
    assert [c.id for c in config.classes] == list(range(classes))
    assert len([n for n in model.nodes if n.WhichOneof("op") == "sparse_conv"]) == convolutions


def test_the_served_model_is_what_the_exporter_writes(tmp_path: Path) -> None:
    source = SHARED / "minkunet-pandaset"
    if not source.exists():
        pytest.skip(f"{source} is missing (set VOXSERVE_SHARED_DATA)")
    folder = REPOSITORY / "deploy" / "models" / "minkunet"
    shutil.copy(folder / "export.sh", tmp_path)
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([tmp_path / "export.sh", source], check=True, env=environment, stdout=subprocess.DEVNULL)
    for name in ("config.textproto", "1/model.textproto", "1/weights.safetensors"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name
