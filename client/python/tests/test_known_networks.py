"""Exports state dicts of known networks, named as in their repositories, and compares them with those modules.

The modules (known_networks.py) run on the stand-ins, and on spconv itself where it is installed. The exported networks
run by NumPy from the model's text, voxel by voxel, and in the server, from the points on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import serving

from voxserve.client import Client
from voxserve.export import ExportError, Network, model_folder, safetensors_file
from voxserve.export.__main__ import main
from voxserve.export.networks import center_point, minkowski_unet, minkunet, second, sp_unet
from voxserve.export.networks.tensors import RandomTensors
from voxserve.verify.compare import Model
from voxserve.verify.interpreter import Interpreter

torch = pytest.importorskip("torch", reason="torch is not installed")
import known_detectors as detectors  # noqa: E402
import known_networks as known  # noqa: E402
from traced_networks import randomize  # noqa: E402

TOLERANCE = 1e-4  # relative to the largest magnitude
VOXEL = 0.5  # metres
State = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Known:
    """A known network. command: the exporter's; rounding, is_mean, is_moved: how its repository voxelizes points."""

    make: Callable[[], Any]
    build: Callable[..., Network]
    command: str
    rounding: Callable[..., Any] = np.round
    is_mean: bool = False
    is_moved: bool = True  # the smallest coordinate is moved to 0
    levels: tuple[str, ...] = ("stage1.down", "stage2.down", "stage3.down", "stage4.down")


def _minkunet(make: Callable[[], Any], **options: Any) -> Known:
    return Known(make, lambda state, **o: minkunet.build(state, **o, **options), "torchsparse-minkunet")


def _pointcept(**options: Any) -> Known:
    make = lambda: known.PointceptSegmentor(**options)  # noqa: E731
    return Known(make, sp_unet.build, "pointcept-spunet", np.floor, levels=("down0", "down1", "down2"))


def _minkowski(*, is_bottleneck: bool) -> Known:
    def make() -> Any:
        planes = (4, 5, 6, 7, 6, 5, 4, 3)
        return known.MinkowskiUnet((1, 2, 1, 1, 1, 1, 1, 2), planes, is_bottleneck=is_bottleneck, init_width=4)

    levels = ("level1.down", "level2.down", "level3.down", "level4.down")
    return Known(make, minkowski_unet.build, "minkowski-unet", np.floor, True, False, levels)


NETWORKS = {
    "spvnas-minkunet": _minkunet(known.SpvnasMinkUnet, points=""),
    "mmdet3d-torchsparse": _minkunet(lambda: known.Mmdet3dSegmentor("torchsparse")),
    "mmdet3d-minkowski": _minkunet(lambda: known.Mmdet3dSegmentor("minkowski")),
    "mmdet3d-spconv": _minkunet(lambda: known.Mmdet3dSegmentor("spconv")),
    "mmdet3d-v2": _minkunet(lambda: known.Mmdet3dSegmentor("torchsparse", "MinkUNetV2")),
    "mmdet3d-spvcnn": Known(lambda: known.Mmdet3dSegmentor("torchsparse", "SPVCNN"), minkunet.build, "spvcnn"),
    "pointcept": _pointcept(),
    "pointcept-v2": _pointcept(has_head=True),
    "minkowski-basic": _minkowski(is_bottleneck=False),
    "minkowski-bottleneck": _minkowski(is_bottleneck=True),
}
BY_SERVER_ALONE = ("mmdet3d-v2", "mmdet3d-spvcnn")  # voxserve.verify, which runs by NumPy, cannot interpolate
ON_SPCONV = ("mmdet3d-spconv", "pointcept", "pointcept-v2")


def state_of(module: Any) -> State:
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def cloud() -> np.ndarray[Any, Any]:
    """Returns float32 [N, 4]: points in the corners and 700 voxels of a box of 16 x 16 x 16, several in some."""
    rng = np.random.default_rng(5)
    cells = np.stack(np.meshgrid(*[np.arange(16)] * 3, indexing="ij"), -1).reshape(-1, 3)
    corners = cells[np.isin(cells, (0, 15)).all(axis=1)]
    chosen = np.concatenate([rng.permutation(cells)[:700], corners])
    chosen = rng.permutation(np.concatenate([chosen, chosen[:200]]))
    # Positions give the same voxel with either rounding: below its centre and at least 0.05 above its lower face.
    position = (chosen - 9 + rng.uniform(0.05, 0.45, chosen.shape)) * VOXEL
    return np.concatenate([position, rng.uniform(0, 1, (len(chosen), 1))], axis=1).astype(np.float32)


def voxelized(points: np.ndarray[Any, Any], network: Known) -> tuple[Any, Any, np.ndarray[Any, Any]]:
    """Returns features, coordinates (sample first), and each point's voxel, as the repository's data set makes them."""
    index = network.rounding(points[:, :3] / np.float32(VOXEL)).astype(np.int64)
    if network.is_moved:
        index -= index.min(axis=0)
    sites, first, inverse = np.unique(index, axis=0, return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    features = points[first]
    if network.is_mean:
        features = np.zeros((len(sites), 4))
        np.add.at(features, inverse, points)
        features = (features / np.bincount(inverse)[:, None]).astype(np.float32)
    coordinates = np.concatenate([np.zeros((len(sites), 1), np.int64), sites], axis=1).astype(np.int32)
    return torch.from_numpy(features), torch.from_numpy(coordinates), inverse


def assert_close(values: Any, expected: np.ndarray[Any, Any]) -> None:
    magnitude = np.abs(expected).max()
    assert magnitude > 0.1
    assert expected.std(axis=0).min() > 1e-3 * magnitude
    assert np.abs(values - expected).max() <= TOLERANCE * magnitude


def check_by_numpy(folder: Path, network: Known) -> None:
    module = randomize(network.make())
    features, coordinates, _ = voxelized(cloud(), network)
    with torch.no_grad():
        expected = module(features, coordinates).numpy()
    exported = network.build(state_of(module), name="n", voxel_size=(VOXEL,) * 3)
    model_folder.write(folder, exported, model_folder.config_textproto(()))
    model = Model.read(folder)
    results = Interpreter(model.network, model.tensors, coordinates.numpy(), features.numpy())
    computed = results.run()
    assert results.skipped == {}
    scores = next(output.node for output in model.network.outputs if output.kind == 2)
    assert_close(computed[scores].values, expected)
    assert len(module.levels) == len(network.levels)
    for stride, (node, level) in enumerate(zip(network.levels, module.levels, strict=True), start=1):
        made, theirs = computed[node].sites, level.numpy().astype(np.int64)
        assert made is not None
        unit = 1 if np.abs(made).max() == np.abs(theirs).max() else 2**stride
        np.testing.assert_array_equal(np.unique(made * (1, *[unit] * 3), axis=0), np.unique(theirs, axis=0))


@pytest.mark.usefixtures("stand_in_libraries")
@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in BY_SERVER_ALONE])
def test_exported_networks_are_the_modules(tmp_path: Path, name: str) -> None:
    check_by_numpy(tmp_path / "model", NETWORKS[name])


@pytest.mark.filterwarnings("ignore")  # spconv and its libraries warn
@pytest.mark.parametrize("name", ON_SPCONV)
def test_exported_networks_are_the_modules_on_spconv(tmp_path: Path, name: str) -> None:
    pytest.importorskip("spconv.pytorch", reason="spconv is not installed")
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # with two or more threads, spconv 2.3 on a CPU loses some of the sums
    try:
        check_by_numpy(tmp_path / "model", NETWORKS[name])
    finally:
        torch.set_num_threads(before)


@pytest.mark.integration
@pytest.mark.usefixtures("stand_in_libraries")
def test_the_server_computes_the_modules(tmp_path: Path) -> None:
    """The command line exports the checkpoint; the server voxelizes the points and runs the network."""
    points, expected = cloud(), {}
    for name, network in NETWORKS.items():
        module = randomize(network.make())
        checkpoint = tmp_path / f"{name}.pth"
        torch.save({"state_dict": module.state_dict(), "epoch": 3}, checkpoint)
        output = tmp_path / "models" / name
        assert main([network.command, str(checkpoint), "--output", str(output), "--voxel-size", str(VOXEL)]) == 0
        features, coordinates, inverse = voxelized(points, network)
        with torch.no_grad():
            expected[name] = module(features, coordinates).numpy()[inverse]
    with serving(tmp_path / "models", tmp_path / "log") as address, Client(address) as client:
        for name, scores in expected.items():
            answer = client.infer(name, points, scores=True)
            assert answer.scores is not None
            assert_close(answer.scores, scores)
            np.testing.assert_array_equal(answer.labels, answer.scores.argmax(axis=1), err_msg=name)


# Names and shapes at their published sizes


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, ...]]:
    """Returns the shapes that random networks ask for from now on."""
    shapes: dict[str, tuple[int, ...]] = {}

    def record(self: RandomTensors, name: str, shape: Any, **options: Any) -> Any:
        shapes[name] = tuple(shape)
        return np.zeros(shapes[name], np.float16)

    monkeypatch.setattr(RandomTensors, "take", record)
    return shapes


def shapes_of(make: Callable[[], Any]) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        state = make().state_dict()
    return {name: tuple(t.shape) for name, t in state.items() if not name.endswith(".num_batches_tracked")}


@pytest.mark.usefixtures("stand_in_libraries")
@pytest.mark.parametrize("variant", minkowski_unet.VARIANTS)
def test_minkowski_variants_have_the_modules_tensors(variant: str, recorded: dict[str, tuple[int, ...]]) -> None:
    layers, planes = minkowski_unet.VARIANTS[variant]
    bottleneck = variant in ("MinkUNet50", "MinkUNet101")
    minkowski_unet.random_network(name="n", variant=variant, num_classes=known.CLASSES)
    assert recorded == shapes_of(lambda: known.MinkowskiUnet(layers, planes, is_bottleneck=bottleneck))


def test_minkowski_variants_are_the_published_ones() -> None:
    planes = {
        "": (32, 64, 128, 256, 256, 128, 96, 96),
        "14A": (32, 64, 128, 256, 128, 128, 96, 96),
        "14B": (32, 64, 128, 256, 128, 128, 128, 128),
        "14C": (32, 64, 128, 256, 192, 192, 128, 128),
        "14D": (32, 64, 128, 256, 384, 384, 384, 384),
        "34A": (32, 64, 128, 256, 256, 128, 64, 64),
        "34B": (32, 64, 128, 256, 256, 128, 64, 32),
    }
    planes |= {"18A": planes["14A"], "18B": planes["14B"], "18D": planes["14D"], "34C": planes[""]}
    depths = {"14": (1,) * 8, "18": (2,) * 8, "34": (2, 3, 4, 6, 2, 2, 2, 2), "101": (2, 3, 4, 23, 2, 2, 2, 2)}
    depths["50"] = depths["34"]
    expected = {f"MinkUNet{n}": (depth, planes[""]) for n, depth in depths.items()}
    expected |= {f"MinkUNet{n}": (depths[n[:2]], widths) for n, widths in planes.items() if n}
    assert expected == minkowski_unet.VARIANTS


@pytest.mark.usefixtures("stand_in_libraries")
def test_published_sizes_have_the_modules_tensors(recorded: dict[str, tuple[int, ...]]) -> None:
    sp_unet.random_network(name="n", num_classes=known.CLASSES)
    channels, layers = (32, 64, 128, 256, 256, 128, 96, 96), (2, 3, 4, 6, 2, 2, 2, 2)
    assert recorded == shapes_of(lambda: known.PointceptSegmentor(base=32, channels=channels, layers=layers))
    recorded.clear()
    minkunet.random_spvcnn(name="n", num_classes=known.CLASSES)
    assert recorded == shapes_of(lambda: known.SpvnasMinkUnet((32, 32, 64, 128, 256, 256, 128, 96, 96)))


@pytest.mark.usefixtures("stand_in_libraries")
def test_detectors_have_the_modules_tensors(recorded: dict[str, tuple[int, ...]]) -> None:
    for dataset, tasks in (
        ("nuscenes-0.075", (1, 2, 2, 1, 2, 2)),
        ("nuscenes-0.1", (1, 2, 2, 1, 2, 2)),
        ("waymo", (3,)),
    ):
        recorded.clear()
        center_point.random_network(center_point.config_of(dataset), name="n")
        has_velocity = dataset != "waymo"
        assert recorded == shapes_of(lambda t=tasks, v=has_velocity: detectors.CenterPoint(t, has_velocity=v)), dataset
    recorded.clear()
    second.random_network(second.Config(), name="n")
    assert recorded == shapes_of(detectors.Second)


@pytest.mark.usefixtures("stand_in_libraries")
def test_a_center_point_without_residual_blocks_is_exported() -> None:
    shapes = shapes_of(lambda: detectors.CenterPoint((3,), has_velocity=False, is_residual=False))
    state = {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}
    network = center_point.build({**state, "global_step": np.zeros(1)}, center_point.config_of("waymo"), name="n")
    assert len([n for n in network.names if n.endswith(".down")]) == 3
    assert network.tensors["conv4.1.weight"].shape == (27, 64, 64)


# Variants of a checkpoint, and what is refused


@pytest.mark.usefixtures("stand_in_libraries")
def test_names_without_their_segmentor_and_spconv_1() -> None:
    state = state_of(randomize(known.PointceptSegmentor()))
    network = sp_unet.build(state, name="n")
    bare = {name.removeprefix("backbone."): tensor for name, tensor in state.items()}
    older = {name: np.moveaxis(t, 0, -1) if t.ndim == 5 else t for name, t in bare.items()}
    for other in (bare, older):
        built = sp_unet.build(other, name="n")
        assert built.to_textproto() == network.to_textproto()
    for name, tensor in network.tensors.items():
        # spconv multiplies kernels of one cell as they lie in memory, so spconv 1's order of storage changes them.
        if name != "final.weight" and not name.endswith(".shortcut.weight"):
            np.testing.assert_array_equal(built.tensors[name], tensor)


@pytest.mark.usefixtures("stand_in_libraries")
@pytest.mark.parametrize("name", NETWORKS)
def test_every_missing_tensor_is_named(name: str) -> None:
    network = NETWORKS[name]
    state = state_of(randomize(network.make()))
    used = [n for n in state if not n.endswith(".num_batches_tracked")]
    if name == "spvnas-minkunet":
        used = [n for n in used if "point_transforms" not in n]
    for missing in used[:: max(len(used) // 20, 1)]:
        with pytest.raises(ExportError) as caught:
            network.build({n: t for n, t in state.items() if n != missing}, name="n")
        assert any(f"'{missing}'" in p and "is missing" in p for p in caught.value.problems), missing


@pytest.mark.usefixtures("stand_in_libraries")
def test_a_network_of_clouds_is_refused() -> None:
    state = state_of(known.PointceptSegmentor())
    state = {n: t for n, t in state.items() if not n.startswith(("backbone.dec.", "backbone.up."))}
    with pytest.raises(ExportError, match="has no decoder"):
        sp_unet.build(state, name="n")


@pytest.mark.usefixtures("stand_in_libraries")
def test_what_a_checkpoint_does_not_say_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, output = tmp_path / "w.safetensors", tmp_path / "model"

    def export(module: Any, command: str) -> tuple[int, str]:
        safetensors_file.write(weights, {n: t for n, t in state_of(module).items() if t.ndim})
        return main([command, str(weights), "--output", str(output)]), capsys.readouterr().err

    code, error = export(known.SpvnasMinkUnet(), "torchsparse-minkunet")
    assert code == 0
    assert "warning: the point_transforms are left out: spvnas' MinkUNet has them and does not use them" in error
    assert export(known.SpvnasMinkUnet(), "spvcnn") == (0, "")
    code, error = export(known.Mmdet3dSegmentor("spconv"), "torchsparse-minkunet")
    assert code == 0
    assert "warning: mmdetection3d takes the batch's extent as spconv's spatial shape" in error
    code, error = export(known.Mmdet3dSegmentor("torchsparse", "SPVCNN"), "torchsparse-minkunet")
    assert (code, "has point_transforms, which MinkUNet has not: spvcnn exports it" in error) == (1, True)
    code, error = export(known.Mmdet3dSegmentor("minkowski"), "spvcnn")
    assert (code, "has no point_transforms, which SPVCNN has" in error) == (1, True)
