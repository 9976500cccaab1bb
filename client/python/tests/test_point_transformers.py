"""Compares exported point transformers, computed by NumPy, with what the libraries' own code computed for them
(tests/golden/transformers), and tests what the commands read and refuse.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformer_golden import Golden, Values

from voxserve.export import safetensors_file, transformer_command
from voxserve.export.__main__ import main
from voxserve.export.networks import point_transformer
from voxserve.verify.compare import Model
from voxserve.verify.interpreter import Interpreter

TOLERANCE = 1e-5  # of the largest magnitude; the libraries computed in float64
POINTCEPT = ("ptv3-m1", "ptv3-m2", "ptv3-m2-encoder", "ptv3-m3")
LIDAR, COLORED = ("coord", "strength"), ("coord", "color", "normal")
CONFIG = """_base_ = ["runtime.py"]
num_classes = {num_classes}
grid = 0.05
model = dict(
    type="{segmentor}",
    num_classes=num_classes,
    backbone_out_channels={out},
    backbone=dict({backbone}),
    criteria=[dict(type="CrossEntropyLoss", loss_weight=1.0)],
)
names = {names}
data = dict(
    num_classes=num_classes,
    names=names,
    val=dict(
        type="NuScenesDataset",
        transform=[
            dict(type="Copy", keys_dict={{"segment": "origin_segment"}}),
            {steps}
            dict(type="GridSample", grid_size=grid, hash_type="fnv", mode="train", return_grid_coord=True),
            dict(type="ToTensor"),
            dict(type="Collect", keys=("coord", "grid_coord", "segment"), feat_keys={keys}),
        ],
    ),
)
"""


def config_of(
    folder: Path, golden: Golden, *, steps: str = "", segmentor: str = "DefaultSegmentorV2", **changes: Any
) -> Path:
    """Writes a configuration as Pointcept has them. changes: settings of the backbone; None leaves one out."""
    settings = {key: value for key, value in {**golden.settings, **changes}.items() if value is not None}
    text = CONFIG.format(
        num_classes=golden.num_classes,
        segmentor=segmentor,
        out=golden.backbone_channels,
        backbone=", ".join(f"{key}={value!r}" for key, value in settings.items()),
        names=[f"class {i}" for i in range(golden.num_classes)],
        steps=steps,
        keys=LIDAR if golden.features.shape[1] == 4 else COLORED,
    )
    (folder / "runtime.py").write_text("enable_amp = True\n")
    path = folder / "config.py"
    path.write_text(text)
    return path


def command_of(golden: Golden) -> str:
    return "litept" if golden.settings["type"].startswith("LitePT") else "pointcept-ptv3"


def export(golden: Golden, folder: Path, *arguments: str, prefix: str = "", **changes: Any) -> Model:
    weights, config = golden.write(folder, prefix), config_of(folder, golden, **changes)
    command = [command_of(golden), str(weights), "--config", str(config), "--output", str(folder / "net"), *arguments]
    assert main(command) == 0
    return Model.read(folder / "net")


def computed(model: Model, golden: Golden, points: Values | None = None) -> dict[str, Values]:
    points = golden.points if points is None else points
    interpreter = Interpreter(model.network, model.tensors, golden.sites, golden.features, points)
    results = interpreter.run()
    assert interpreter.skipped == {}
    outputs = {output.name or output.node: output.node for output in model.network.outputs}
    return {name: results[node].values for name, node in outputs.items()}


def deviation(ours: Values, theirs: Values) -> float:
    assert ours.shape == theirs.shape
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize("name", [*POINTCEPT, "litept"])
def test_numpy_computes_what_the_library_did(name: str, tmp_path: Path) -> None:
    golden = Golden.read(name)
    answer = computed(export(golden, tmp_path), golden)
    assert deviation(answer["scores"], golden.answer) < TOLERANCE
    assert (answer["labels"][:, 0] == golden.answer.argmax(axis=1)).all()
    assert len(np.unique(answer["labels"])) > 1


@pytest.mark.parametrize("name", [*POINTCEPT, "litept"])
def test_other_curves_give_other_scores(name: str, tmp_path: Path) -> None:
    golden = Golden.read(name)
    answer = computed(export(golden, tmp_path, "--orders", "z-trans,z,hilbert-trans,hilbert"), golden)
    assert deviation(answer["scores"], golden.answer) > 100 * TOLERANCE


def test_hilberts_bits_of_the_other_variant_give_other_scores(tmp_path: Path) -> None:
    golden = Golden.read("ptv3-m1")
    model = export(golden, tmp_path)
    for node in model.network.nodes:
        if node.WhichOneof("op") == "groups" and node.groups.depth:
            assert node.groups.depth == node.groups.DEPTH_FIRST_LEVEL
            node.groups.depth = node.groups.DEPTH_OWN_LEVEL
    assert deviation(computed(model, golden)["scores"], golden.answer) > 100 * TOLERANCE


def test_names_of_data_parallel(tmp_path: Path) -> None:
    golden = Golden.read("ptv3-m1")
    answer = computed(export(golden, tmp_path, prefix="module."), golden)
    assert deviation(answer["scores"], golden.answer) < TOLERANCE


def test_the_input_is_that_of_the_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = export(Golden.read("ptv3-m1"), tmp_path)
    voxelize = model.network.nodes[0].voxelize
    assert (list(voxelize.voxel_size), voxelize.rounding) == (pytest.approx([0.05] * 3), voxelize.ROUNDING_FLOOR)
    assert voxelize.origin == voxelize.ORIGIN_MINIMUM
    assert [(f.name, f.unit) for f in voxelize.features] == [("x", "m"), ("y", "m"), ("z", "m"), ("intensity", "1")]
    printed = capsys.readouterr()
    assert "the curves are fixed, block by block: z, z-trans, hilbert, hilbert-trans" in printed.out
    assert printed.err == ""
    config = (tmp_path / "net" / "config.textproto").read_text()
    assert config.count("classes {") == 5
    assert 'id: 4 name: "class 4"' in config


def test_scaled_coordinates_and_colors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = """dict(type="RandomScale", scale=[0.2, 0.2]), dict(type="NormalizeColor"),
        dict(type="PointClip", point_cloud_range=(-35.2 * 0.2, -35.2 * 0.2, -4 * 0.2, 35.2 * 0.2, 35.2 * 0.2, 2 * 0.2)),
        dict(type="CenterShift", apply_z=True),"""
    golden = Golden.read("ptv3-m3")
    model = export(golden, tmp_path, steps=steps)
    nodes = {node.name: node for node in model.network.nodes}
    assert list(nodes["voxels"].voxelize.voxel_size) == pytest.approx([0.25] * 3)
    scales = [feature.scale for feature in nodes["voxels"].voxelize.features]
    assert scales[:6] == pytest.approx([0.2] * 3 + [1 / 255] * 3)
    assert [f.name for f in nodes["voxels"].voxelize.features[3:]] == ["red", "green", "blue", "nx", "ny", "nz"]
    assert list(nodes["positions"].site_position.scale) == pytest.approx([0.2] * 3)
    # The library's points are the scaled ones.
    answer = computed(model, golden, golden.points / np.float32(0.2))
    assert deviation(answer["scores"], golden.answer) < TOLERANCE
    warnings = capsys.readouterr().err
    assert "PointClip moves points outside of -35.2, -35.2, -4, 35.2, 35.2, 2 (metres) onto the border" in warnings
    assert "CenterShift: clients subtract the middle of x and y and the lowest z" in warnings
    assert "for weights that they trained, clients send 2 * c - 255 in its place" in warnings


def test_columns_that_the_command_names_are_scaled_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = Golden.read("ptv3-m3")
    steps = 'dict(type="RandomScale", scale=[0.2, 0.2]), dict(type="NormalizeColor"),'
    columns = "x:m,y:m,z:m,red:1=0,green:1=0,b:1@0..1,nx:1=0,ny:1=0,nz:1=0"
    model = export(golden, tmp_path, "--features", columns, steps=steps)
    scales = [feature.scale for feature in model.network.nodes[0].voxelize.features]
    assert scales == pytest.approx([0.2] * 3 + [1 / 255] * 2 + [0] * 4)  # 0: the format's default, 1
    assert "clients send 2 * c - 255" in capsys.readouterr().err


def refused(golden: Golden, folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str, **changes: Any) -> str:
    weights, config = golden.write(folder), config_of(folder, golden, **changes)
    command = [command_of(golden), str(weights), "--config", str(config), "--output", str(folder / "net"), *arguments]
    assert main(command) == 1
    assert not (folder / "net").exists()
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("ptv3-m1", {"enable_rpe": True}, "model.backbone.enable_rpe is True, not False: tables of relative positions"),
        ("ptv3-m1", {"enable_flash": False}, "the groups' size depends on the smallest cloud of a batch"),
        ("ptv3-m1", {"order": ("z", "peano")}, "order has the order 'peano'; served are z, z-trans, hilbert"),
        ("ptv3-m1", {"order": ()}, "order is empty"),
        ("ptv3-m1", {"enc_num_head": (2, 3, 3, 4)}, "enc_num_head is 3, which does not divide 16 channels"),
        ("ptv3-m1", {"pdnorm_bn": True}, "norms with a set of weights for each data set are not served"),
        ("ptv3-m1", {"cls_mode": True}, "a label for each cloud is not served"),
        ("ptv3-m1", {"pre_norm": False}, "only blocks with the norm first are served"),
        ("ptv3-m1", {"enc_depths": (2, 3, 4)}, "lists of the stages have several lengths"),
        ("ptv3-m1", {"dec_patch_size": (32, 48, 32)}, "48 in stage 1, where the encoder has 32"),
        ("ptv3-m1", {"enc_patch_size": (5000, 32, 32, 64)}, "enc_patch_size is 5000; at most 4096"),
        ("ptv3-m1", {"stride": (2, 3, 2)}, "stride is [2, 3, 2]; served are powers of 2"),
        ("ptv3-m1", {"stride": (2, 2)}, "stride has 2 strides for 4 levels"),
        ("ptv3-m1", {"in_channels": 6}, "in_channels is 6, but the input has 4 columns: x, y, z, intensity"),
        ("ptv3-m1", {"window": 7}, "model.backbone.window is 7: the exporter does not know this setting"),
        ("ptv3-m1", {"type": "PT-v2m2"}, "'PT-v2m2': this command exports PT-v3m1, PT-v3m2, PT-v3m3"),
        ("ptv3-m1", {"type": "LitePT-v1"}, "'LitePT-v1': use the command litept"),
        ("litept", {"type": "PT-v3m1"}, "'PT-v3m1': use the command pointcept-ptv3"),
        ("ptv3-m3", {"enc_num_head": (2, 3, 4, 3)}, "heads of 8 channels; rotary positions need a multiple of 6"),
        (
            "litept",
            {"enc_num_head": (2, 3, 3, 2)},
            "makes heads of 8 channels; rotary needs a multiple of 6",
        ),
        ("litept", {"dec_attn": (True, False, True), "dec_depths": (1, 1, 2)}, "where the encoder has no attention"),
        ("litept", {"enc_conv": (1, 2, 3, 4)}, "enc_conv is not a list of True and False"),
        ("ptv3-m1", {"segmentor": "PPT-v1m3"}, "its classes are texts, which a language model embeds"),
        ("ptv3-m1", {"segmentor": "Other"}, "model.type is 'Other': served are DefaultSegmentorV2, Sonata-v1m1"),
        ("ptv3-m1", {"steps": "dict(type='RandomScale', scale=[0.9, 1.1]),"}, "0.9 to 1.1, which is random"),
        ("ptv3-m1", {"steps": "dict(type='NormalizeCoord'),"}, "does not know what this step does to clouds"),
    ],
)
def test_what_is_refused(
    name: str, changes: dict[str, Any], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in refused(Golden.read(name), tmp_path, capsys, **changes)


def test_tensors_that_are_missing_or_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = Golden.read("ptv3-m1")
    del golden.state["backbone.enc.enc1.block1.attn.qkv.bias"]
    golden.state["backbone.enc.enc1.block1.attn.rpe.rpe_table"] = np.zeros((3, 2), np.float32)
    golden.state["backbone.dec.dec0.up.proj.0.weight"] = np.zeros((16, 20), np.float32)
    problems = refused(golden, tmp_path, capsys)
    assert "tensor 'backbone.enc.enc1.block1.attn.qkv.bias' [48] is missing" in problems
    assert "tensor 'backbone.enc.enc1.block1.attn.rpe.rpe_table' [3, 2] is not part of the network" in problems
    assert "tensor 'backbone.dec.dec0.up.proj.0.weight' is [16, 20], not [16, 16]" in problems


def test_frequencies_of_another_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = Golden.read("ptv3-m3")
    golden.state["backbone.enc.enc0.block0.attn.rope.inv_freq"] = np.array([1.0], np.float32)
    golden.state["backbone.enc.enc3.block0.attn.rope.inv_freq"] = 10 ** -np.array([0, 0.5], np.float32)
    assert computed(export(golden, tmp_path), golden)["scores"].shape == golden.answer.shape
    problem = "'backbone.enc.enc3.block0.attn.rope.inv_freq' has other frequencies than the base 100"
    (tmp_path / "other").mkdir()
    assert problem in refused(golden, tmp_path / "other", capsys, rope_base=100)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = Golden.read("ptv3-m1")
    assert "--orders has 'peano'" in refused(golden, tmp_path, capsys, "--orders", "z,peano")
    assert "--join is 1: for an encoder without a classifier" in refused(golden, tmp_path, capsys, "--join", "1")
    weights = golden.write(tmp_path)
    assert main(["pointcept-ptv3", str(weights), "--output", str(tmp_path / "net")]) == 1
    assert "does not say the sizes of its network: add --config FILE" in capsys.readouterr().err


def features_of(model: Model, golden: Golden) -> Values:
    answer = computed(model, golden)
    assert list(answer) == ["features", "point_features", *(["level_features"] if len(answer) > 2 else [])]
    np.testing.assert_array_equal(answer["features"], answer["point_features"])
    return answer["features"]


def scores_of(features: Values, golden: Golden) -> Values:
    weight, bias = golden.state["seg_head.weight"], golden.state["seg_head.bias"]
    scores: Values = features @ weight.astype(np.float64).T + bias
    return scores


def test_the_features_of_an_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The library's classifier read the features of all levels. Pre-training has a student and a teacher."""
    golden = Golden.read("ptv3-m2-encoder")
    backbone = {key: tensor for key, tensor in golden.state.items() if key.startswith("backbone.")}
    stored = {f"student.{key}": tensor for key, tensor in backbone.items()}
    stored |= {f"teacher.{key}": 2 * tensor for key, tensor in backbone.items()}
    weights = tmp_path / "pretrained.safetensors"
    safetensors_file.write(weights, stored)
    config = config_of(tmp_path, golden, segmentor="Sonata-v1m1", mask_token=True)
    command = ["pointcept-ptv3", str(weights), "--config", str(config), "--output", str(tmp_path / "net")]
    assert main(command) == 1
    assert "2 sets of weights fit equally well, and they differ: student, teacher" in capsys.readouterr().err
    assert main([*command, "--prefix", "student", "--join", "3"]) == 0
    assert "levels of 12, 16, 24, 32 channels; features" in capsys.readouterr().out
    everything = features_of(Model.read(tmp_path / "net"), golden)
    assert deviation(scores_of(everything, golden), golden.answer) < TOLERANCE
    for joined, channels in ((2, 72), (1, 56), (0, 32)):
        assert main([*command, "--prefix", "student", "--join", str(joined)]) == 0
        model = Model.read(tmp_path / "net")
        np.testing.assert_array_equal(features_of(model, golden), everything[:, -channels:])
        results = Interpreter(model.network, model.tensors, golden.sites, golden.features).run()
        node = next(output.node for output in model.network.outputs if output.name == "level_features")
        assert results[node].sites is not None
        at = np.unique(golden.voxels >> (3 - joined), axis=0)
        np.testing.assert_array_equal(results[node].sites[:, 1:], at)


def test_the_settings_beside_the_weights_of_an_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    golden = Golden.read("ptv3-m2-encoder")
    state = {
        key.removeprefix("backbone."): torch.from_numpy(tensor)
        for key, tensor in golden.state.items()
        if key.startswith("backbone.")
    }
    settings = {key: value for key, value in golden.settings.items() if key != "type"}
    torch.save({"config": settings, "state_dict": state}, tmp_path / "encoder.pth")
    command = ["pointcept-ptv3", str(tmp_path / "encoder.pth"), "--output", str(tmp_path / "net")]
    assert main([*command, "--join", "3", "--grid", "0.05"]) == 0
    model = Model.read(tmp_path / "net")
    assert deviation(scores_of(features_of(model, golden), golden), golden.answer) < TOLERANCE
    features = model.network.nodes[0].voxelize.features
    assert [f.name for f in features if f.HasField("default_value")] == ["red", "green", "blue", "nx", "ny", "nz"]
    assert "clients subtract the middle of x and y" in capsys.readouterr().err
    assert main([*command, "--scale", "0.2"]) == 0
    assert list(Model.read(tmp_path / "net").network.nodes[0].voxelize.voxel_size) == pytest.approx([0.1] * 3)
    assert main([*command, "--scale", "0"]) == 1
    for changes, problem in (
        ({"enc_mode": False}, "config.dec_depths is missing"),
        ({"in_channels": 6}, "config.in_channels is 6, but the input has 9 columns"),
        ({"window": 7}, "config.window is 7: the exporter does not know this setting"),
    ):
        torch.save({"config": {**settings, **changes}, "state_dict": state}, tmp_path / "encoder.pth")
        assert main(command) == 1
        assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "values"), [(point_transformer.Config(), 45_018_576), (transformer_command.LITEPT_S, 12_654_340)]
)
def test_random_networks_have_the_published_sizes(config: point_transformer.Config, values: int) -> None:
    """Pointcept's PTv3-base has 46,163,344 values, of which 1,144,768 are the linear layers that are folded. Its
    LitePT-S has 12,709,276 and 54,936.
    """
    network = point_transformer.random_network(config, name="net")
    assert sum(tensor.size for tensor in network.tensors.values()) == values


def test_a_random_network_of_a_configuration(tmp_path: Path) -> None:
    golden = Golden.read("litept")
    command = ["litept", "--config", str(config_of(tmp_path, golden)), "--seed", "3", "--output", str(tmp_path / "net")]
    assert main(command) == 0
    assert np.isfinite(computed(Model.read(tmp_path / "net"), golden)["scores"]).all()


@pytest.mark.parametrize("config", [point_transformer.Config(), transformer_command.LITEPT_S])
def test_the_unpooling_comes_last_before_its_addition(config: point_transformer.Config) -> None:
    """The engine computes an addition with the last of its inputs, unless an activation ends that input's layer."""
    network = point_transformer.random_network(config, name="net")
    for level in range(len(config.decoder)):
        total = f"up{level}.sum"
        unpooling = network.names[network.names.index(total) - 1]
        assert f'KIND_INVERSE paired_with: "down{level + 1}"' in network.text_of(unpooling)
        assert f'"{unpooling}"' in network.text_of(total)
