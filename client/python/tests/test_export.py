"""The exporter: kernel order against a dense convolution, the folder's round trip, and every error at once."""

from __future__ import annotations

import itertools
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

from voxserve import wire
from voxserve.export import (
    ExportError,
    PointFeature,
    kernel_order,
    model_folder,
    safetensors_file,
)
from voxserve.export.__main__ import main
from voxserve.export.input_files import read_state_dict
from voxserve.export.model_folder import config_textproto
from voxserve.export.networks import minkunet

State = dict[str, np.ndarray[Any, Any]]


def make_state(cs: Sequence[int] = (2, 2, 3, 4, 5, 5, 4, 3, 3), inputs: int = 4, classes: int = 6) -> State:
    """A SparseResUNet42's tensors by its published architecture, with distinct values."""
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


def parse(network: Any) -> Any:
    return text_format.Parse(network.to_textproto("A notice."), wire.Model())


# Kernel order


@pytest.mark.parametrize("sizes", [(3, 3, 3), (1, 3, 5), (3, 1), (5,)])
def test_odd_kernels_run_the_first_axis_fastest(sizes: tuple[int, ...]) -> None:
    cells = list(itertools.product(*map(range, sizes)))
    weight = np.zeros((len(cells), 2, 3))
    for cell in cells:  # the published rule: k = d0 + k0 * (d1 + k1 * d2)
        k = sum(d * int(np.prod(sizes[:axis])) for axis, d in enumerate(cell))
        weight[k] = hash_of(cell)
    served = kernel_order.from_torchsparse(weight, sizes)
    for k, cell in enumerate(cells):  # product runs the last axis fastest, as the served order does
        assert (served[k] == hash_of(cell)).all()


def hash_of(cell: tuple[int, ...]) -> int:
    return sum(d * 100**axis for axis, d in enumerate(cell))


def test_even_kernels_stay_as_they_are() -> None:
    weight = np.arange(8 * 2 * 3).reshape(8, 2, 3)
    np.testing.assert_array_equal(kernel_order.from_torchsparse(weight, (2, 2, 2)), weight)


def test_kernels_of_another_volume_are_refused() -> None:
    with pytest.raises(ValueError, match=r"3x3x3 kernel needs \[27, Cin, Cout\], not \[8, 2, 3\]"):
        kernel_order.from_torchsparse(np.zeros((8, 2, 3)), (3, 3, 3))


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


def test_operators_are_written_as_the_messages_read_them() -> None:
    network = model_folder.Network("net")
    affine = {"weight": np.ones(4, np.float32), "bias": np.zeros(4, np.float32)}
    network.activation("leaky", "x", "LEAKY_RELU", 0.125)
    network.activation("gelu", "x", "GELU")
    network.pool_strided_floor("pool", "x", "MAX", (2, 2, 2), (2, 2, 2))
    network.unpool("unpool", "pool", "pool")
    network.global_pool("global", "x", "SUM")
    network.broadcast("gate", "x", "global", "MULTIPLY")
    network.instance_norm("instance", "x", {}, 1e-5)
    network.group_norm("group", "x", affine, 1e-3, 2)
    network.point_features("points", "voxels")
    network.point_to_voxel("fine", "points", "voxels", "MAX")
    network.point_to_voxel("coarse", "points", "voxels", "AVERAGE", sites_of="pool")
    network.devoxelize("back", "coarse", "voxels")
    network.to_dense("cells", "x")
    network.from_dense("kept", "cells", "x")
    nodes = {node.name: node for node in parse(network).nodes}
    functions = wire.message_class("voxserve.model.v1.Activation")
    pool = wire.message_class("voxserve.model.v1.Pool")
    conv = wire.message_class("voxserve.model.v1.SparseConv")
    broadcast = wire.message_class("voxserve.model.v1.Broadcast")
    assert nodes["leaky"].activation.function == functions.FUNCTION_LEAKY_RELU
    assert nodes["leaky"].activation.negative_slope == 0.125
    assert nodes["gelu"].activation.function == functions.FUNCTION_GELU
    assert not nodes["gelu"].activation.HasField("negative_slope")
    assert (nodes["pool"].pool.reduce, nodes["pool"].pool.kind) == (pool.REDUCE_MAX, conv.KIND_STRIDED)
    assert (list(nodes["pool"].pool.kernel_size), nodes["pool"].pool.rule) == ([2, 2, 2], conv.RULE_FLOOR)
    assert (nodes["unpool"].pool.kind, nodes["unpool"].pool.paired_with) == (conv.KIND_INVERSE, "pool")
    assert nodes["global"].global_pool.reduce == pool.REDUCE_SUM
    assert list(nodes["gate"].inputs) == ["x", "global"]
    assert nodes["gate"].broadcast.function == broadcast.FUNCTION_MULTIPLY
    assert not nodes["instance"].instance_norm.affine
    assert (nodes["group"].group_norm.num_groups, nodes["group"].group_norm.affine) == (2, True)
    assert (list(nodes["points"].inputs), nodes["points"].WhichOneof("op")) == (["voxels"], "point_features")
    assert (nodes["fine"].point_to_voxel.reduce, nodes["fine"].point_to_voxel.sites_of) == (pool.REDUCE_MAX, "")
    assert (nodes["coarse"].point_to_voxel.reduce, nodes["coarse"].point_to_voxel.sites_of) == (
        pool.REDUCE_AVERAGE,
        "pool",
    )
    assert (list(nodes["back"].inputs), nodes["back"].WhichOneof("op")) == (["coarse", "voxels"], "devoxelize")
    assert nodes["cells"].WhichOneof("op") == "to_dense"
    assert (list(nodes["kept"].inputs), nodes["kept"].from_dense.sites_of) == (["cells"], "x")
    assert set(network.tensors) == {"group.weight", "group.bias"}


def test_every_convolution_kind_with_bias_dilation_and_groups() -> None:
    network = model_folder.Network("net")
    weight, bias = np.zeros((27, 2, 6), np.float32), np.ones(6, np.float32)
    cube, pair, ones = (3, 3, 3), (2, 2, 2), (1, 1, 1)
    more = {"dilation": pair, "groups": 2}
    network.submanifold("submanifold", "x", weight, cube, bias, **more)
    network.submanifold_offsets("offsets", "x", weight[:2], [(0, 0, 0), (0, -1, 2)], bias, **more)
    network.strided_floor("floor", "x", weight, cube, pair, bias, **more)
    network.strided_floor("cross", "x", weight[:7], cube, pair, bias, is_cross=True)
    network.strided_expand("expand", "x", weight, cube, pair, bias, lower=(-1, -2, -3), upper=(4, 5, 6), **more)
    network.strided_padded("padded", "x", weight, cube, pair, ones, bias, **more)
    network.strided_onto("onto", "x", weight, cube, pair, "floor", bias, padding=ones, **more)
    network.inverse("inverse", "floor", weight, "floor", bias, groups=2)
    network.transposed("transposed", "x", weight, cube, pair, ones, bias, output_padding=ones, **more)
    network.transposed_onto("back", "floor", weight, cube, pair, "x", bias, padding=ones, **more)
    network.generative("generative", "x", weight, cube, pair, bias, **more)
    network.pool_submanifold("pool", "x", "MAX", cube, dilation=pair)
    network.pool_strided_padded("padded_pool", "x", "AVERAGE", cube, pair, ones, dilation=pair)
    network.unpool("unpool", "padded_pool", "padded_pool", "SUM")
    nodes = {node.name: node for node in parse(network).nodes}
    conv = wire.message_class("voxserve.model.v1.SparseConv")
    kinds = {
        "submanifold": (conv.KIND_SUBMANIFOLD, 0),
        "offsets": (conv.KIND_SUBMANIFOLD, 0),
        "floor": (conv.KIND_STRIDED, conv.RULE_FLOOR),
        "cross": (conv.KIND_STRIDED, conv.RULE_FLOOR),
        "expand": (conv.KIND_STRIDED, conv.RULE_EXPAND),
        "padded": (conv.KIND_STRIDED, conv.RULE_PADDED),
        "onto": (conv.KIND_STRIDED, 0),
        "inverse": (conv.KIND_INVERSE, 0),
        "transposed": (conv.KIND_TRANSPOSED, 0),
        "back": (conv.KIND_TRANSPOSED, 0),
        "generative": (conv.KIND_GENERATIVE, 0),
    }
    for name, (kind, rule) in kinds.items():
        op = nodes[name].sparse_conv
        assert (op.kind, op.rule, op.bias, op.out_channels) == (kind, rule, True, 6), name
        assert op.groups == (0 if name == "cross" else 2), name
        assert list(op.dilation) == ([] if name in ("cross", "inverse") else [2, 2, 2]), name
        assert list(op.kernel_size) == ([] if name in ("offsets", "inverse") else [3, 3, 3]), name
        stays = kind == conv.KIND_SUBMANIFOLD or name == "inverse"
        assert list(op.stride) == ([] if stays else [2, 2, 2]), name
        assert list(op.padding) == ([1, 1, 1] if name in ("padded", "onto", "transposed", "back") else []), name
        np.testing.assert_array_equal(network.tensors[f"{name}.bias"], bias)
    assert list(nodes["offsets"].sparse_conv.offsets) == [0, 0, 0, 0, -1, 2]
    assert nodes["cross"].sparse_conv.kernel_shape == conv.KERNEL_SHAPE_CROSS
    expand = nodes["expand"].sparse_conv
    assert (list(expand.lower_bound), list(expand.upper_bound)) == ([-1, -2, -3], [4, 5, 6])
    assert (nodes["onto"].sparse_conv.sites_of, nodes["back"].sparse_conv.sites_of) == ("floor", "x")
    assert list(nodes["transposed"].sparse_conv.output_padding) == [1, 1, 1]
    assert (nodes["pool"].pool.kind, list(nodes["pool"].pool.dilation)) == (conv.KIND_SUBMANIFOLD, [2, 2, 2])
    assert (nodes["padded_pool"].pool.rule, list(nodes["padded_pool"].pool.padding)) == (conv.RULE_PADDED, [1, 1, 1])
    assert nodes["unpool"].pool.reduce == wire.message_class("voxserve.model.v1.Pool").REDUCE_SUM


def test_the_readme_network_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (REPOSITORY / "client" / "python" / "README.md").read_text()
    section = text[text.index("### Networks by hand") :]
    block = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    w = b = m = v = bias = np.ones(4, np.float32)
    values = {"kernel": np.ones((27, 2, 4)), "kernel2": np.ones((8, 4, 6)), "kernel3": np.ones((8, 6, 4))}
    values = {name: array.astype(np.float32) for name, array in values.items()}
    monkeypatch.chdir(tmp_path)
    exec(block, {**values, "w": w, "b": b, "m": m, "v": v, "bias": bias, "weight": np.ones((3, 8), np.float32)})
    model = text_format.Parse((tmp_path / "models" / "small" / "1" / "model.textproto").read_text(), wire.Model())
    assert [n.WhichOneof("op") for n in model.nodes].count("sparse_conv") == 3
    assert [o.node for o in model.outputs] == ["labels", "point_scores"]


def test_images_with_sizes_of_each_axis() -> None:
    network = model_folder.Network("net")
    network.conv2d("a", "x", np.zeros((6, 2, 3, 1)), stride=(1, 2), padding=(1, 0), dilation=(2, 1), groups=2)
    network.conv2d("b", "a", np.zeros((6, 6, 1, 1)), stride=(1, 1), padding=0)
    network.conv_transpose2d("c", "b", np.zeros((6, 4, 2, 2)), stride=2, output_padding=(0, 1))
    nodes = {node.name: node for node in parse(network).nodes}
    a = nodes["a"].conv2d
    assert (list(a.stride), list(a.padding), list(a.dilation), a.groups) == ([1, 2], [1, 0], [2, 1], 2)
    assert list(nodes["b"].conv2d.stride) == []
    assert list(nodes["c"].conv_transpose2d.output_padding) == [0, 1]


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    network = model_folder.Network("net")
    network.linear("x", "y", np.zeros((2, 2), np.complex64))
    with pytest.raises(safetensors_file.SafetensorsError, match="complex64"):
        model_folder.write(tmp_path / "new", network, "")
    assert list(tmp_path.iterdir()) == []
    good = model_folder.Network("net")
    model_folder.write(tmp_path / "old", good, "ignore_label: 1\n")
    with pytest.raises(safetensors_file.SafetensorsError, match="complex64"):
        model_folder.write(tmp_path / "old", network, "ignore_label: 2\n")
    assert sorted(p.name for p in (tmp_path / "old").iterdir()) == ["1", "config.textproto"]
    assert (tmp_path / "old" / "config.textproto").read_text() == "ignore_label: 1\n"
    model_folder.write(tmp_path / "old", good, "ignore_label: 3\n")
    assert sorted(p.name for p in (tmp_path / "old").iterdir()) == ["1", "config.textproto"]
    assert (tmp_path / "old" / "config.textproto").read_text() == "ignore_label: 3\n"


def test_sites_that_are_made_of_others() -> None:
    network = model_folder.Network("net")
    network.crop("part", "x", (1, 2, -3), (4, 5, 6))
    network.crop("half", "x", upper=(4, 5, 6))
    network.prune("kept", "x", "score", 0.25)
    network.add("sum", ["part", "half"], union=True)
    network.concat("both", ["part", "half"], union=True)
    network.add("same", ["x", "y"])
    nodes = {node.name: node for node in parse(network).nodes}
    union = 2  # SITES_UNION
    assert (list(nodes["part"].crop.lower_bound), list(nodes["part"].crop.upper_bound)) == ([1, 2, -3], [4, 5, 6])
    assert (list(nodes["half"].crop.lower_bound), list(nodes["half"].crop.upper_bound)) == ([], [4, 5, 6])
    assert (list(nodes["kept"].inputs), nodes["kept"].prune.threshold) == (["x", "score"], 0.25)
    assert (nodes["sum"].add.sites, nodes["both"].concat.sites, nodes["same"].add.sites) == (union, union, 0)


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


# What is wrong with a state dict


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


def test_a_prefix_that_not_all_names_have_is_part_of_them(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    for names in (["module.a", "b"], ["modulea", "module.b"]):
        safetensors_file.write(path, {n: np.zeros(1, np.float32) for n in names})
        assert list(read_state_dict(str(path))) == names
    safetensors_file.write(path, {"module.module.a": np.zeros(1, np.float32)})
    assert list(read_state_dict(str(path))) == ["module.a"]


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
    raw = np.array([0x3F80, 0xC000, 0x3EAB], "<u2")  # 1, -2, 0.333984375
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
    read = read_state_dict(str(tmp_path / "w.pt"))
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
        "empty": "is not a torch file of tensors alone",
        "pickle": "is not a torch file of tensors alone",
        "tensor": "holds a Tensor, not a state dict",
        "nothing": "is missing",
    }
    for name, message in messages.items():
        assert main(["torchsparse-minkunet", str(tmp_path / f"{name}.pt"), "--output", str(tmp_path / "m")]) == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_torch_files_without_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["torchsparse-minkunet", str(tmp_path / "w.pt"), "--output", str(tmp_path / "m")]) == 1
    error = capsys.readouterr().err
    assert "needs torch" in error or "No such file" in error


def test_the_served_model_is_parseable_and_complete() -> None:
    folder = REPOSITORY / "deploy" / "models" / "minkunet"
    model = text_format.Parse((folder / "1" / "model.textproto").read_text(), wire.Model())
    config = text_format.Parse((folder / "config.textproto").read_text(), wire.ModelConfig())
    tensors = safetensors_file.read(folder / "1" / "weights.safetensors")
    assert sum(t.size for t in tensors.values()) == 5_441_036
    assert len(tensors) == 247
    assert [c.id for c in config.classes] == list(range(12))
    assert len([n for n in model.nodes if n.WhichOneof("op") == "sparse_conv"]) == 42


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
