"""Tests the builders of published networks: shapes, tensors by seed and by state dict, and errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graph_shapes import Shapes
from small_networks import FAMILIES, SMALL_CENTER_POINT, SMALL_SECOND, num_parameters

from voxserve.export import ExportError, Network
from voxserve.export.networks import center_point, minkowski_unet, minkunet, second, sp_unet, sparse_resnet
from voxserve.export.networks.spconv_backbone import depth_after

State = dict[str, np.ndarray[Any, Any]]


# Shapes and sizes


@pytest.mark.parametrize("family", FAMILIES)
def test_shapes_fit_from_node_to_node(family: str) -> None:
    Shapes(FAMILIES[family][1](name="n"))


@pytest.mark.usefixtures("no_values")
def test_segmentation_networks_have_the_published_sizes() -> None:
    # spvnas' table of parameters: MinkUNet 21.7M, with half the channels 5.5M, SPVCNN 21.8M.
    assert round(num_parameters(minkunet.random_minkunet(name="n")) / 1e6, 1) == 21.7
    assert round(num_parameters(minkunet.random_minkunet(name="n", width=0.5)) / 1e6, 1) == 5.4
    assert round(num_parameters(minkunet.random_spvcnn(name="n")) / 1e6, 1) == 21.8
    shapes = Shapes(sparse_resnet.random_network(name="n"))
    kinds = [node.WhichOneof("op") for node in shapes.model.nodes]
    assert kinds.count("sparse_conv") == 21
    strides = [list(n.sparse_conv.stride) for n in shapes.model.nodes if n.sparse_conv.stride]
    assert strides == [[2, 2, 2]] * 3 + [[1, 2, 1]]


@pytest.mark.usefixtures("no_values")
@pytest.mark.parametrize(
    ("dataset", "library", "grid", "image", "tasks", "values"),
    [
        ("nuscenes-0.075", "openpcdet", [1440, 1440, 41], (180, 180), 6, 8_941_590),
        ("nuscenes-0.1", "det3d", [1024, 1024, 41], (128, 128), 6, 8_941_590),
        ("waymo", "openpcdet", [1504, 1504, 41], (188, 188), 1, 7_758_811),
        ("pandaset", "openpcdet", [1504, 1504, 41], (188, 188), 1, 1_769_421),
    ],
)
def test_center_point_is_the_published_one(
    dataset: str, library: str, grid: list[int], image: tuple[int, int], tasks: int, values: int
) -> None:
    config = center_point.config_of(dataset, library)
    network = center_point.random_network(config, name="n", library=library)
    shapes = Shapes(network)
    assert list(shapes.nodes["voxels"].voxelize.spatial_shape) == grid
    assert shapes.results["from_above"].shape == shapes.results["bev"].shape == image
    channels = (128, 128) if dataset == "pandaset" else (256, 512)
    assert (shapes.results["from_above"].channels, shapes.results["bev"].channels) == channels
    decodes = [node.center_head_decode for node in shapes.model.nodes if node.HasField("center_head_decode")]
    assert [list(d.class_ids) for d in decodes] == [list(task) for task in config.tasks]
    assert len(decodes) == tasks
    assert list(shapes.nodes["boxes"].inputs) == [f"task{i}.boxes" for i in range(tasks)]
    assert num_parameters(network) == values
    convs = {name: node.sparse_conv for name, node in shapes.nodes.items() if node.HasField("sparse_conv")}
    assert len(convs) == 1 + 2 * 8 + 3 + 1
    assert list(convs["conv_out"].kernel_size) == [1, 1, 3]
    assert list(convs["conv_out"].stride) == [1, 1, 2]
    assert [list(convs[f"conv{stage}.down"].padding) for stage in (2, 3, 4)] == [[1, 1, 1], [1, 1, 1], [1, 1, 0]]
    assert all(conv.bias == (".conv" in name) for name, conv in convs.items())
    epsilons = {name: node.batch_norm.epsilon for name, node in shapes.nodes.items() if node.HasField("batch_norm")}
    assert all(e == pytest.approx(1e-5 if n.startswith(("shared", "task")) else 1e-3) for n, e in epsilons.items())


@pytest.mark.usefixtures("no_values")
def test_second_is_the_published_one() -> None:
    network = second.random_network(second.Config(), name="n")
    shapes = Shapes(network)
    assert list(shapes.nodes["voxels"].voxelize.spatial_shape) == [1408, 1600, 41]
    assert shapes.results["from_above"].shape == (200, 176)
    assert round(num_parameters(network) / 1e6, 2) == 5.33
    decode = shapes.nodes["decoded"].anchor_head_decode
    assert [a.class_id for a in decode.anchors] == [0, 1, 2]
    assert decode.direction_offset == pytest.approx(0.78539)
    assert len([n for n in shapes.model.nodes if n.HasField("sparse_conv")]) == 12


def test_height_of_the_grid() -> None:
    assert [depth_after(z) for z in (40, 24, 100)] == [2, 1, 5]
    with pytest.raises(ValueError, match="16 voxels on z are too few for five stages"):
        depth_after(16)


def test_spvcnn_exchanges_between_its_voxels_and_levels() -> None:
    shapes = Shapes(minkunet.random_spvcnn(name="n", width=0.125))
    ops = {name: node.WhichOneof("op") for name, node in shapes.nodes.items() if name.startswith("points.")}
    assert [n for n, op in ops.items() if op == "devoxelize"] == ["points.1.voxels_at", "points.2.voxels_at"]
    assert [n for n, op in ops.items() if op == "point_to_voxel"] == ["points.1.voxels", "points.2.voxels"]
    assert list(shapes.nodes["points.1.voxels_at"].inputs) == ["stage4.1.relu", "stem.1.relu"]
    assert list(shapes.nodes["points.3.add"].inputs) == ["up4.1.relu", "points.3.transform.relu"]
    assert list(shapes.nodes["up1.up"].inputs) == ["points.1.voxels"]
    cloud = Shapes(minkunet.random_spvcnn(name="n", width=0.125, points="cloud"))
    assert list(cloud.nodes["points.3.voxels_at"].inputs) == ["up4.1.relu", "voxels"]
    assert list(cloud.nodes["stage1.down"].inputs) == ["points.0.voxels"]
    assert cloud.results["classifier"].level == "points"


@pytest.mark.parametrize(("kernel", "volume"), [("cube", 27), ("hypercube", 81), ("hypercross", 9), ("cube_cross", 29)])
def test_kernels_of_four_axes(kernel: str, volume: int) -> None:
    network = minkowski_unet.random_network(
        name="n", kernel=kernel, width=0.125, voxel_size=(0.1, 0.1, 0.1, 0.5), num_classes=3
    )
    shapes = Shapes(network)
    assert shapes.model.dimension == 4
    assert network.tensors["level1.0.conv1.weight"].shape[0] == volume
    assert list(shapes.nodes["level1.down"].sparse_conv.stride) == [2, 2, 2, 1]
    conv = shapes.nodes["level1.0.conv1"].sparse_conv
    offsets = np.array(conv.offsets).reshape(-1, 4)
    if kernel == "cube_cross":
        assert len({tuple(o) for o in offsets.tolist()}) == 29
        assert np.abs(offsets).max() == 1
        assert sorted(o[3] for o in offsets.tolist() if o[3]) == [-1, 1]
    else:
        assert len(offsets) == 0


# Tensors


@pytest.mark.parametrize("family", FAMILIES)
def test_a_seed_is_a_network(family: str) -> None:
    make = FAMILIES[family][1]
    first, again, other = make(name="n", seed=1), make(name="n", seed=1), make(name="n", seed=2)
    assert first.to_textproto() == again.to_textproto() == other.to_textproto()
    assert all((first.tensors[name] == again.tensors[name]).all() for name in first.tensors)
    assert any((first.tensors[name] != other.tensors[name]).any() for name in first.tensors)
    assert all(np.isfinite(t).all() and t.dtype in (np.float16, np.float32) for t in first.tensors.values())


def test_heads_begin_as_their_libraries_do() -> None:
    tensors = FAMILIES["centerpoint"][1](name="n").tensors
    assert (tensors["task1.heatmap.bias"] == np.float32(-2.19)).all()
    assert (tensors["task1.center.bias"] != 0).any()
    tensors = FAMILIES["second"][1](name="n").tensors
    np.testing.assert_allclose(1 / (1 + np.exp(-tensors["scores.bias"])), 0.01, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_state_dicts_make_the_same_network(family: str, recorded: State) -> None:
    build, make = FAMILIES[family]
    random = make(name="n")
    built = build({**recorded, "a.num_batches_tracked": np.array(3)}, name="n")
    assert built.to_textproto() == random.to_textproto()
    assert built.tensors.keys() == random.tensors.keys()
    for name, tensor in random.tensors.items():
        np.testing.assert_array_equal(built.tensors[name], tensor)


def test_names_are_those_of_the_libraries(recorded: State) -> None:
    FAMILIES["centerpoint"][1](name="n")
    assert recorded["backbone_3d.conv4.0.0.weight"].shape == (8, 3, 3, 3, 6)
    assert recorded["backbone_3d.conv_out.0.weight"].shape == (8, 3, 1, 1, 8)
    assert recorded["backbone_3d.conv1.1.conv2.bias"].shape == (4,)
    assert recorded["backbone_2d.deblocks.0.0.weight"].shape == (6, 5, 1, 1)
    assert recorded["dense_head.heads_list.5.center_z.0.1.running_var"].shape == (6,)
    assert recorded["dense_head.heads_list.1.hm.1.weight"].shape == (2, 6, 3, 3)
    recorded.clear()
    FAMILIES["centerpoint-det3d"][1](name="n")
    assert recorded["backbone.conv3.4.bn2.weight"].shape == (6,)
    assert recorded["backbone.extra_conv.0.weight"].shape == (8, 3, 1, 1, 8)
    assert recorded["neck.blocks.1.4.weight"].shape == (8, 8, 3, 3)
    assert recorded["neck.deblocks.0.0.weight"].shape == (5, 6, 1, 1)
    assert recorded["bbox_head.tasks.1.reg.3.weight"].shape == (2, 6, 3, 3)
    recorded.clear()
    FAMILIES["second"][1](name="n")
    assert recorded["backbone_3d.conv1.0.0.weight"].shape == (4, 3, 3, 3, 4)
    assert recorded["dense_head.conv_dir_cls.weight"].shape == (12, 12, 1, 1)
    recorded.clear()
    FAMILIES["spvcnn"][1](name="n")
    assert recorded["up1.1.0.downsample.0.kernel"].shape == (48, 32)
    assert recorded["point_transforms.2.0.weight"].shape == (12, 16)
    recorded.clear()
    FAMILIES["minkowski"][1](name="n")
    assert recorded["conv0p1s1.kernel"].shape == (125, 4, 4)
    assert recorded["block4.0.downsample.1.bn.running_mean"].shape == (32,)
    assert recorded["final.bias"].shape == (1, 5)


def test_center_point_without_residual_blocks(recorded: State) -> None:
    """OpenPCDet's centerpoint_without_resnet.yaml has SECOND's backbone and CenterPoint's head."""
    second.random_network(replace(SMALL_SECOND, sparse_widths=(4, 5, 6, 6)), name="n")
    backbone = {n: t for n, t in recorded.items() if n.startswith("backbone_3d.") and "conv_input" not in n}
    recorded.clear()
    FAMILIES["centerpoint"][1](name="n")
    residual = {n for n in recorded if n.startswith("backbone_3d.") and "conv_input" not in n}
    state = {n: t for n, t in recorded.items() if n not in residual} | backbone
    shapes = Shapes(FAMILIES["centerpoint"][0](state, name="n"))
    assert len([n for n in shapes.model.nodes if n.HasField("sparse_conv")]) == 12
    assert shapes.results["conv4.1.relu"].channels == 6
    assert len([n for n in shapes.model.nodes if n.HasField("center_head_decode")]) == 6
    del state["backbone_3d.conv3.1.0.weight"]
    with pytest.raises(ExportError, match=r"'backbone_3d\.conv3\.1\.0\.weight' .* is missing"):
        FAMILIES["centerpoint"][0](state, name="n")


def test_spconv_1_weights_make_the_same_network(recorded: State) -> None:
    random = FAMILIES["second"][1](name="n")
    older = {n: np.moveaxis(t, 0, -1) if t.ndim == 5 else t for n, t in recorded.items()}
    built = FAMILIES["second"][0](older, name="n")
    for name, tensor in random.tensors.items():
        np.testing.assert_array_equal(built.tensors[name], tensor)


@pytest.mark.parametrize("voxel_size", [(0.1, 0.1, 0.1), (0.1, 0.1, 0.1, 0.5)])
def test_crosses_of_a_state_dict_become_ascending(recorded: State, voxel_size: tuple[float, ...]) -> None:
    options: dict[str, Any] = {"name": "n", "voxel_size": voxel_size}
    random = minkowski_unet.random_network(kernel="hypercross", width=0.125, num_classes=5, **options)
    built = minkowski_unet.build(recorded, **options)
    assert built.to_textproto() == random.to_textproto()
    kernel = recorded["block1.0.conv1.kernel"]
    # On every axis MinkowskiEngine stores the neighbour +1 before -1; the served order is the reverse.
    order = [0, *(k for axis in range(len(voxel_size)) for k in (2 * axis + 2, 2 * axis + 1))]
    np.testing.assert_array_equal(built.tensors["level1.0.conv1.weight"], kernel[order])
    np.testing.assert_array_equal(random.tensors["level1.0.conv1.weight"], kernel[order])


def test_hybrid_kernels_of_a_state_dict_are_refused(recorded: State) -> None:
    voxel_size = (0.1, 0.1, 0.1, 0.5)
    minkowski_unet.random_network(name="n", kernel="cube_cross", width=0.125, voxel_size=voxel_size)
    with pytest.raises(ExportError, match=r"'block1\.0\.conv1\.kernel' is \[29, 4, 4\], not \[27, 4, 4\]"):
        minkowski_unet.build(recorded, name="n", voxel_size=voxel_size)


def test_det3d_boxes_become_ours(recorded: State) -> None:
    tensors = FAMILIES["centerpoint-det3d"][1](name="n").tensors
    dim, rot = (recorded[f"bbox_head.tasks.2.{part}.3.weight"] for part in ("dim", "rot"))
    np.testing.assert_array_equal(tensors["task2.dim.weight"], dim[[1, 0, 2]])
    np.testing.assert_array_equal(tensors["task2.rot.weight"], -rot[[1, 0]])
    np.testing.assert_array_equal(tensors["task2.rot.bias"], -recorded["bbox_head.tasks.2.rot.3.bias"][[1, 0]])
    yaw = 0.3  # by det3d's convention
    sine, cosine = -np.cos(yaw), -np.sin(yaw)
    assert np.arctan2(sine, cosine) == pytest.approx(-yaw - np.pi / 2)


def test_heads_without_a_bias_before_their_norm(recorded: State) -> None:
    FAMILIES["centerpoint"][1](name="n")
    state = {n: t for n, t in recorded.items() if not (n.startswith("dense_head.") and n.endswith(".0.bias"))}
    shapes = Shapes(FAMILIES["centerpoint"][0](state, name="n"))
    assert not shapes.nodes["shared"].conv2d.bias
    assert not shapes.nodes["task0.dim.0"].conv2d.bias
    assert shapes.nodes["task0.dim"].conv2d.bias


# Errors of a state dict


@pytest.mark.parametrize("family", FAMILIES)
def test_all_problems_are_reported_at_once(family: str, recorded: State) -> None:
    build, make = FAMILIES[family]
    make(name="n")
    state = dict(recorded)
    norms = [n for n in state if n.endswith(".running_var")]
    weights = [n for n in state if state[n].ndim > 2]
    del state[norms[1]]
    state[norms[3]] = -state[norms[3]]
    state[weights[4]] = np.full_like(state[weights[4]], np.nan)
    state[weights[6]] = state[weights[6]].astype(np.int8)
    state[norms[0]] = state[norms[0]][:-1]
    state["extra.weight"] = np.zeros((1, 2), np.float16)
    with pytest.raises(ExportError) as caught:
        build(state, name="n")
    problems = caught.value.problems
    assert len(problems) == 6, problems
    for name, what in (
        (norms[1], "is missing"),
        (norms[3], "negative variances"),
        (weights[4], "not finite"),
        (weights[6], "is int8"),
        (norms[0], f"not [{recorded[norms[0]].shape[0]}]"),
        ("extra.weight", "is not part of"),
    ):
        assert any(f"'{name}'" in p and what in p for p in problems), (name, problems)


@pytest.mark.parametrize("family", FAMILIES)
def test_missing_tensors_are_named(family: str, recorded: State) -> None:
    build, make = FAMILIES[family]
    make(name="n")
    state = dict(recorded)
    # A head without its first bias is taken for one that has none, so that bias is never reported as missing.
    names = [n for n in state if n != "dense_head.shared_conv.0.bias" and n != "bbox_head.shared_conv.0.bias"]
    for name in names[:: max(len(names) // 12, 1)]:
        with pytest.raises(ExportError) as caught:
            build({n: t for n, t in state.items() if n != name}, name="n")
        assert any(f"'{name}'" in p and "is missing" in p for p in caught.value.problems), name


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "spvcnn"])
def test_an_empty_state_dict(family: str) -> None:
    with pytest.raises(ExportError, match="is missing"):
        FAMILIES[family][0]({}, name="n")


# Bad arguments


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: minkunet.random_minkunet(name="n", width=0.01), "width is 0.01"),
        (lambda: minkunet.random_minkunet(name="n", num_classes=0), "num_classes is 0"),
        (lambda: minkunet.random_minkunet(name="n", seed=-1), "seed is -1"),
        (lambda: minkunet.random_spvcnn(name="n", points="all"), "points is 'all', not one of voxels, cloud"),
        (lambda: sparse_resnet.random_network(name="n", width=0), "leave a layer without channels"),
        (lambda: minkowski_unet.random_network(name="n", variant="MinkUNet51"), "variant is 'MinkUNet51'"),
        (lambda: sp_unet.random_network(name="n", width=0.01), "leave a layer without channels"),
        (lambda: minkowski_unet.random_network(name="n", kernel="sphere"), "kernel is 'sphere'"),
        (lambda: minkowski_unet.random_network(name="n", kernel="cube_cross"), "cube_cross needs 4 axes"),
        (lambda: minkowski_unet.random_network(name="n", voxel_size=(1, 1)), "voxel_size has 2 values"),
        (lambda: minkowski_unet.random_network(name="n", width=0.001), "leave a layer without channels"),
        (lambda: center_point.config_of("kitti"), "dataset is 'kitti'"),
        (lambda: center_point.config_of("pandaset", "det3d"), "det3d has no configuration 'pandaset'"),
        (lambda: center_point.config_of("waymo", "mmdet3d"), "library is 'mmdet3d', not one of openpcdet, det3d"),
        (
            lambda: center_point.random_network(replace(SMALL_CENTER_POINT, tasks=((0,), (1, 1))), name="n"),
            "must have every class once",
        ),
        (
            lambda: center_point.random_network(
                replace(SMALL_CENTER_POINT, bev=replace(SMALL_CENTER_POINT.bev, widths=(4,))), name="n"
            ),
            "must be of one length",
        ),
        (
            lambda: second.random_network(
                replace(SMALL_SECOND, voxels=replace(SMALL_SECOND.voxels, size=(0.5, 0.5, 1.0))), name="n"
            ),
            "4 voxels on z are too few",
        ),
        (
            lambda: second.random_network(replace(SMALL_SECOND, anchors=SMALL_SECOND.anchors[:2]), name="n"),
            "one anchor a class",
        ),
    ],
)
def test_bad_arguments(make: Callable[[], Network], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
