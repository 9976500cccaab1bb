"""Tests Network: the nodes that it writes, read back as messages, and the model folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import REPOSITORY
from google.protobuf import text_format
from graph_shapes import parse

from voxserve import wire
from voxserve.export import model_folder, safetensors_file


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


def test_the_documented_network_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (REPOSITORY / "client" / "python" / "NETWORKS.md").read_text()
    section = text[text.index("## Networks by hand") :]
    block = "\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))
    w = b = m = v = bias = np.ones(4, np.float32)
    values = {"kernel": np.ones((27, 2, 4)), "kernel2": np.ones((8, 4, 6)), "kernel3": np.ones((8, 6, 4))}
    values = {name: array.astype(np.float32) for name, array in values.items()}
    monkeypatch.chdir(tmp_path)
    exec(block, {**values, "w": w, "b": b, "m": m, "v": v, "bias": bias, "weight": np.ones((3, 8), np.float32)})
    model = text_format.Parse((tmp_path / "models" / "small" / "1" / "model.textproto").read_text(), wire.Model())
    assert [n.WhichOneof("op") for n in model.nodes].count("sparse_conv") == 3
    assert [o.node for o in model.outputs] == ["labels"]


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


def test_maxima_of_images_and_what_pillars_are_made_of() -> None:
    network = model_folder.Network("net")
    network.max_pool2d("a", "x", 3)
    network.max_pool2d("b", "a", (3, 2), stride=(2, 1), padding=(1, 0))
    network.point_offsets("mean", "voxels", "MEAN", max_points=5)
    network.point_offsets("center", "voxels", "CENTER")
    network.point_to_voxel("pillars", "points", "voxels", "MAX", max_points=5, empty_slots="empty")
    network.pool_transposed("moved", "x", "SUM", (1, 1, 1), (2, 2, 2))
    nodes = {node.name: node for node in parse(network).nodes}
    offsets = wire.message_class("voxserve.model.v1.PointOffsets")
    conv = wire.message_class("voxserve.model.v1.SparseConv")
    a, b = nodes["a"].max_pool2d, nodes["b"].max_pool2d
    assert (list(a.kernel_size), list(a.stride), list(a.padding)) == ([3], [], [])
    assert (list(b.kernel_size), list(b.stride), list(b.padding)) == ([3, 2], [2, 1], [1, 0])
    mean, center = nodes["mean"].point_offsets, nodes["center"].point_offsets
    assert (mean.reference, mean.max_points) == (offsets.REFERENCE_MEAN, 5)
    assert (center.reference, center.max_points) == (offsets.REFERENCE_CENTER, 0)
    pillars = nodes["pillars"].point_to_voxel
    assert (pillars.max_points, pillars.has_empty_slots) == (5, True)
    assert list(nodes["pillars"].inputs) == ["points", "empty", "voxels"]
    assert (nodes["moved"].pool.kind, list(nodes["moved"].pool.stride)) == (conv.KIND_TRANSPOSED, [2, 2, 2])


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
    union = 2  # SITES_UNION of model.proto
    assert (list(nodes["part"].crop.lower_bound), list(nodes["part"].crop.upper_bound)) == ([1, 2, -3], [4, 5, 6])
    assert (list(nodes["half"].crop.lower_bound), list(nodes["half"].crop.upper_bound)) == ([], [4, 5, 6])
    assert (list(nodes["kept"].inputs), nodes["kept"].prune.threshold) == (["x", "score"], 0.25)
    assert (nodes["sum"].add.sites, nodes["both"].concat.sites, nodes["same"].add.sites) == (union, union, 0)
