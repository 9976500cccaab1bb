"""Compares DSVT's and FlatFormer's blocks, computed by NumPy, with what the libraries' own classes computed for them
(tests/golden/transformers), and tests the exported networks and what the commands refuse.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import window_golden
from graph_shapes import parse
from transformer_golden import FOLDER, values

from voxserve.export import Network, PointFeature, safetensors_file
from voxserve.export.__main__ import main
from voxserve.export.networks import dsvt, flatformer
from voxserve.export.networks.layers import Layers, spconv_weight
from voxserve.export.networks.spconv_backbone import SPARSE_EPSILON
from voxserve.export.networks.tensors import ExportError, RandomTensors, StateDict, Tensor
from voxserve.verify.interpreter import Interpreter

Values = np.ndarray[Any, Any]
TOLERANCE = 1e-5  # of the largest magnitude; the libraries computed in float64
GRID = 60  # pillars on x and y


def config_of(name: str, settings: dict[str, Any]) -> Any:
    voxels = replace(dsvt.WAYMO.voxels, range_min=(0, 0, 0), range_max=(GRID, GRID, 1), size=(1, 1, 1))
    if name == "dsvt":
        windows = tuple(dsvt.Windows(tuple(shape), tuple(shift)) for shape, shift in settings["windows"])
        return replace(dsvt.WAYMO, voxels=voxels, **{**settings, "windows": windows})
    return replace(flatformer.WAYMO, voxels=voxels, **{**settings, "window": tuple(settings["window"])})


def computed(name: str, change: dict[str, Any] | None = None) -> tuple[Values, Values]:
    """Returns the pillars' features behind the blocks: NumPy's, of the exported nodes, and the library's. change:
    other settings of the configuration.
    """
    module: Any = {"dsvt": dsvt, "flatformer": flatformer}[name]
    with np.load(FOLDER / f"{name}.npz") as file:
        pillars, answer, seed = file["pillars"].astype(np.int64), file["answer"], int(file["seed"])
        shapes, settings = json.loads(str(file["shapes"])), json.loads(str(file["config"]))
    tensors = StateDict({key: values(key, tuple(shape), seed) for key, shape in shapes.items()}, name)
    config = replace(config_of(name, settings), **(change or {}))
    network = Network(name)
    layers = Layers(network, tensors, spconv_weight, SPARSE_EPSILON)
    features = [PointFeature(f"f{i}", "1") for i in range(config.width)]
    network.voxelize("voxels", (1.0,) * 3, features, rounding="FLOOR")
    last = module.transformer(layers, config, layers.points("voxels", config.width))
    tensors.raise_problems()
    sites = np.c_[np.zeros(len(pillars), np.int64), pillars, np.zeros(len(pillars), np.int64)]
    rows = values("features", (len(pillars), config.width), seed).astype(np.float64)
    interpreter = Interpreter(parse(network), network.tensors, sites, rows)
    results = interpreter.run()
    assert interpreter.skipped == {}
    return results[last].values, answer


@pytest.mark.parametrize("name", ["dsvt", "flatformer"])
def test_numpy_computes_what_the_library_did(name: str) -> None:
    made, answer = computed(name)
    assert np.abs(made - answer).max() < TOLERANCE * np.abs(answer).max()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dsvt", {"group_size": 11}),
        ("dsvt", {"windows": (dsvt.Windows((6, 5), (0, 0)), dsvt.Windows((12, 10), (0, 0)))}),
        ("flatformer", {"group_size": 17}),
        ("flatformer", {"window": (7, 6)}),
        ("flatformer", {"temperature": 1000}),
    ],
)
def test_other_groups_give_other_features(name: str, change: dict[str, Any]) -> None:
    made, answer = computed(name, change)
    assert np.abs(made - answer).max() > 0.05


@pytest.mark.parametrize(("name", "count"), [("dsvt", 8_667_244), ("flatformer", 2_391_386)])
def test_random_networks_have_the_published_sizes(
    name: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--output", str(tmp_path / name)]) == 0
    assert f"{count:,} values, 3 classes" in capsys.readouterr().out


def test_what_the_head_of_dsvt_is() -> None:
    nodes = {node.name: node for node in parse(dsvt.random_network(dsvt.WAYMO, name="net")).nodes}
    decode, nms = nodes["task0.boxes"].center_head_decode, nodes["boxes"].nms
    assert list(decode.iou_powers) == pytest.approx([0.68, 0.71, 0.65])
    assert list(nodes["task0.boxes"].inputs)[-1] == "task0.iou"
    assert [(of.class_id, of.max_boxes_in, of.max_boxes_out) for of in nms.classes] == [
        (k, 4096, 500) for k in range(3)
    ]
    assert [of.iou_threshold for of in nms.classes] == pytest.approx([0.75, 0.6, 0.55])


def test_what_the_head_of_flatformer_is() -> None:
    nodes = {node.name: node for node in parse(flatformer.random_network(flatformer.WAYMO, name="net")).nodes}
    nms = nodes["boxes"].nms
    assert [(of.class_id, of.max_boxes_in, of.max_boxes_out) for of in nms.classes] == [
        (0, 2048, 300),
        (1, 1024, 100),
        (2, 1024, 100),
    ]
    assert list(nodes["decoded"].inputs) == ["score.logit", "reg", "height", "dim", "rot", "vel"]


def test_rectified_scores_of_flatformer_have_finite_logits() -> None:
    """Also where the IoU is below 0 or above 1, and where the score is 1; float16 holds the odds, too."""
    heat = np.array([[-90, 90, 0], [-3, 2, 9], [20, 20, 20], [1, 2, 3], [0, 0, 0]], np.float32)
    iou = np.array([0.5, 0.9, 1.2, -0.3, 0], np.float32)
    network = Network("scores")
    features = [PointFeature(f"f{i}", "1") for i in range(4)]
    network.voxelize(
        "voxels", (1.0,) * 3, features, rounding="FLOOR", origin="RANGE", range_min=(0, 0, 0), range_max=(5, 1, 1)
    )
    network.to_bev("image", "voxels")
    for name, rows in (("heat", [0, 1, 2]), ("iou", [3])):
        network.conv2d(name, "image", np.eye(4, dtype=np.float32)[rows][:, :, None, None])
    layers = Layers(network, StateDict({}, "flatformer"), spconv_weight, SPARSE_EPSILON)
    logits = flatformer._rectified(layers, flatformer.WAYMO, "heat", "iou")
    sites = np.stack([np.zeros(5), np.arange(5), np.zeros(5), np.zeros(5)], axis=1).astype(np.int64)
    results = Interpreter(parse(network), network.tensors, sites, np.c_[heat, iou].astype(np.float64)).run()
    found = results[logits].values[0, :, 0].T
    assert np.isfinite(found).all()
    expected = 1 / (1 + np.exp(-heat.astype(np.float64))) * np.clip(iou, 0, 1)[:, None] ** 2
    np.testing.assert_allclose(1 / (1 + np.exp(-found)), expected, atol=3e-5)
    assert results["score.odds"].values.max() < np.finfo(np.float16).max


def state_of_the_library(name: str) -> dict[str, Values]:
    """Returns all that the library's state dict of the published network has, by window_networks.py."""
    state = window_golden.read(name).state
    counts = [key.removesuffix("running_var") + "num_batches_tracked" for key in state if key.endswith("running_var")]
    assert len(counts) >= 20
    state |= dict.fromkeys(counts, np.ones((), np.int64))
    return state | ({"global_step": np.ones(1, np.int64)} if name == "dsvt" else {})


@pytest.mark.parametrize("name", ["dsvt", "flatformer"])
def test_the_state_dict_of_the_library_is_read(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, output = tmp_path / "weights.safetensors", tmp_path / "out"
    state = state_of_the_library(name)
    safetensors_file.write(path, state)
    assert main([name, str(path), "--output", str(output)]) == 0
    assert "range x -74.88 to 74.88" in capsys.readouterr().out
    written = safetensors_file.read(output / "1" / "weights.safetensors")
    key, node = {
        "dsvt": ("dense_head.heads_list.0.hm.1", "task0.heatmap"),
        "flatformer": ("bbox_head.task_heads.0.heatmap.1", "heatmap"),
    }[name]
    for part in ("weight", "bias"):
        np.testing.assert_array_equal(written[f"{node}.{part}"], state[f"{key}.{part}"])


@pytest.mark.parametrize("name", ["dsvt", "flatformer"])
def test_random_networks_have_the_tensors_of_the_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, tuple[int, ...]] = {}
    take = RandomTensors.take

    def recorded(self: RandomTensors, key: str, shape: Sequence[int], **options: Any) -> Tensor:
        asked[key] = tuple(shape)
        return take(self, key, shape, **options)

    monkeypatch.setattr(RandomTensors, "take", recorded)
    module: Any = {"dsvt": dsvt, "flatformer": flatformer}[name]
    module.random_network(module.WAYMO, name=name)
    # A random DSVT has biases before the norms of its head, which a state dict may lack (USE_BIAS_BEFORE_NORM).
    shapes = {key: tensor.shape for key, tensor in window_golden.read(name).state.items()}
    assert {key: asked.get(key) for key in shapes} == shapes
    assert all(key.startswith("dense_head.") and key.endswith(".0.bias") for key in asked.keys() - shapes.keys())


@pytest.mark.parametrize("name", ["dsvt", "flatformer"])
def test_missing_weights_are_told(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = state_of_the_library(name)
    missing = [key for key in state if not key.endswith(("num_batches_tracked", "global_step"))][::19]
    wrong = next(key for key in state if key.endswith("in_proj_weight") and key not in missing)
    for key in missing:
        del state[key]
    state[wrong] = state[wrong][:, 1:]
    path = tmp_path / "weights.safetensors"
    safetensors_file.write(path, state)
    assert main([name, str(path), "--output", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    for key in missing:
        assert f"tensor '{key}' " in error, key
    assert error.count("is missing") == len(missing)
    assert f"tensor '{wrong}' is [" in error
    assert not (tmp_path / "out").exists()


def test_a_tensor_too_many_is_told() -> None:
    with pytest.raises(ExportError, match="is not part of DSVT"):
        dsvt.build({"backbone_3d.more": np.zeros(3, np.float32)}, dsvt.WAYMO, name="net")
