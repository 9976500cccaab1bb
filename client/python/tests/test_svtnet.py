"""Compares SVT-Net, exported and computed by NumPy and by a server, with its definition in plain torch
(svtnet_reference.py).

The public weights are those of github.com/ZhenboSong/SVTNet (MIT), weights/model_MinkFPN_token_GeM_final.pth; the
environment variable VOXSERVE_SVTNET_WEIGHTS names the file. VOXSERVE_SVTNET_REPORT names a file for the deviations.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import SHARED, serving

from voxserve.client import Client
from voxserve.export import ExportError
from voxserve.export.__main__ import main
from voxserve.export.networks import svtnet
from voxserve.tensors import TensorRows
from voxserve.verify.compare import Model
from voxserve.verify.interpreter import Interpreter

torch = pytest.importorskip("torch", reason="torch is not installed")
import svtnet_reference as reference  # noqa: E402

TOLERANCE = 1e-5  # relative to the vector's largest magnitude
VOXEL = 0.01
WEIGHTS = "VOXSERVE_SVTNET_WEIGHTS"
REPORT = "VOXSERVE_SVTNET_REPORT"
Cloud = np.ndarray[Any, Any]
State = dict[str, Any]


def small_state(**changes: Any) -> State:
    return reference.random_state(3, **{"planes": (6, 8, 8), "layers": (1, 2, 1), "features": 24, **changes})


def cloud(num_points: int, seed: int) -> Cloud:
    """Returns points near three planes within -1 to 1, as a scan has many points on planes."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(-1, 1, (num_points, 3))
    planes = rng.integers(3, size=num_points)
    points[np.arange(num_points), planes] = 0.3 * planes - 0.4 + rng.normal(0, 0.01, num_points)
    return points.astype(np.float32)


def coordinates_of(points: Cloud) -> Cloud:
    """Returns floor(x / VOXEL) in float32 without repeats, as MinkowskiEngine quantizes a float32 tensor."""
    voxels: Cloud = np.unique(np.floor(points / np.float32(VOXEL)).astype(np.int64), axis=0)
    return voxels


def columns_of(points: Cloud) -> dict[str, Cloud]:
    return {axis: np.ascontiguousarray(points[:, i]) for i, axis in enumerate("xyz")}


def save(state: State, path: Path) -> Path:
    torch.save(state, path)
    return path


@pytest.mark.parametrize("is_renamed", [False, True], ids=["source", "weights"])
def test_the_exported_network_is_the_published_one(tmp_path: Path, is_renamed: bool) -> None:
    state = small_state()
    if is_renamed:  # the published weights use other names than the published source
        names = {"backbone.asvt.": "backbone.att_sa.", "backbone.csvt.": "backbone.att_token."}
        for ours, theirs in names.items():
            state = {name.replace(ours, theirs): tensor for name, tensor in state.items()}
    voxels = np.unique(np.random.default_rng(5).integers(-6, 7, (300, 3)), axis=0)
    assert main(["svtnet", str(save(state, tmp_path / "w.pth")), "--output", str(tmp_path / "net")]) == 0
    model = Model.read(tmp_path / "net")
    sites = np.concatenate([np.zeros((len(voxels), 1), np.int64), voxels], axis=1)
    interpreter = Interpreter(model.network, model.tensors, sites, np.ones((len(voxels), 1)))
    vector = interpreter.run()[svtnet.OUTPUT].values[0]
    expected = reference.descriptor(state, voxels).numpy()
    assert np.abs(vector - expected).max() <= 1e-6 * np.abs(expected).max()  # the batch norm's epsilon is a float32
    assert np.ptp(expected) > 0.1 * np.abs(expected).max(), "the channels differ"


def test_the_random_network_has_the_published_sizes() -> None:
    random = svtnet.random_network(name="n")
    state = reference.random_state(0, (32, 64), (1, 1), 256)
    built = svtnet.build({name: tensor.numpy() for name, tensor in state.items()}, name="n")
    assert {name: t.shape for name, t in random.tensors.items()} == {name: t.shape for name, t in built.tensors.items()}


def test_a_state_dict_that_is_none() -> None:
    state = {name: tensor.numpy() for name, tensor in small_state().items()}
    del state["backbone.csvt.T_conv.weight"]
    state["backbone.asvt.v_conv.kernel"] = state["backbone.asvt.v_conv.kernel"][:, :5]
    state["backbone.tconvs.0.kernel"] = np.zeros((8, 2, 2), np.float32)
    with pytest.raises(ExportError) as error:
        svtnet.build(state, name="n")
    assert error.value.problems == (
        "tensor 'backbone.csvt.T_conv.weight' [24, 24, 1] is missing",
        "tensor 'backbone.asvt.v_conv.kernel' is [24, 5], not [24, 24]",
        "tensor 'backbone.tconvs.0.kernel' [8, 2, 2] is not part of SVT-Net",
    )


def served_vectors(model: Path, clouds: dict[str, Cloud], log: Path) -> Iterator[tuple[str, Cloud]]:
    with serving(model.parent, log) as address, Client(address) as client:
        for name, points in clouds.items():
            answer = client.tensors(model.name, columns_of(points), outputs=[svtnet.OUTPUT])
            tensor = answer.tensors[svtnet.OUTPUT]
            assert tensor.kind is TensorRows.SAMPLES
            yield name, tensor.rows[0]


@pytest.mark.integration
def test_the_server_computes_the_vector(tmp_path: Path) -> None:
    state = small_state()
    model = tmp_path / "models" / "net"
    assert main(["svtnet", str(save(state, tmp_path / "w.pth")), "--output", str(model)]) == 0
    clouds = {f"{n} points": cloud(n, seed=n) for n in (1, 40, 700)}
    for name, vector in served_vectors(model, clouds, tmp_path / "log"):
        expected = reference.descriptor(state, coordinates_of(clouds[name])).numpy()
        assert np.abs(vector - expected).max() <= TOLERANCE * np.abs(expected).max(), name


def normalised(points: Cloud, num_points: int) -> Cloud:
    """Returns some of the points, with their mean moved to 0 and scaled to -1 to 1, as in MinkLoc3D's clouds."""
    rng = np.random.default_rng(1)
    chosen = points[np.sort(rng.choice(len(points), min(num_points, len(points)), replace=False))].astype(np.float64)
    moved = chosen - chosen.mean(axis=0)
    return (moved / np.abs(moved).max()).astype(np.float32)


def scans() -> dict[str, Cloud]:
    """Returns clouds by name: a generated one, and of each real scan 1,024 to 16,384 points within 25 m."""
    clouds = {"made, 4,096 points": cloud(4096, seed=4)}
    for path, width in (("semantickitti-00/000000.bin", 4), ("pandaset-002/60.bin", 5)):
        if not (SHARED / path).exists():
            continue
        points = np.fromfile(SHARED / path, np.float32).reshape(-1, width)[:, :3]
        points = points[np.isfinite(points).all(axis=1)]
        near = points[(np.abs(points[:, :2]) < 25).all(axis=1)]
        for size in (1024, 4096, 16384):
            clouds[f"{path}, {size:,} points"] = normalised(near, size)
    return clouds


@pytest.mark.integration
def test_the_public_weights_served(tmp_path: Path) -> None:
    weights = os.environ.get(WEIGHTS)
    if not weights:
        pytest.skip(f"{WEIGHTS} does not name the public weights")
    state = torch.load(weights, weights_only=True, map_location="cpu")
    model = tmp_path / "models" / "svtnet"
    assert main(["svtnet", weights, "--output", str(model)]) == 0
    clouds, lines = scans(), []
    for name, vector in served_vectors(model, clouds, tmp_path / "log"):
        voxels = coordinates_of(clouds[name])
        expected = reference.descriptor(state, voxels).numpy()
        largest = np.abs(expected).max()
        deviation = np.abs(vector - expected).max() / largest
        coarse = len(np.unique(voxels // 4, axis=0))
        lines.append(f"| {name} | {len(voxels):,} | {coarse:,} | {largest:.4f} | {deviation:.1e} |")
        assert deviation <= TOLERANCE, name
    if report := os.environ.get(REPORT):
        Path(report).write_text("\n".join(lines) + "\n")


def test_the_voxel_size_is_an_option(tmp_path: Path) -> None:
    assert main(["svtnet", "--voxel-size", "0.02", "--output", str(tmp_path / "net")]) == 0
    voxelize = Model.read(tmp_path / "net").network.nodes[0].voxelize
    assert list(voxelize.voxel_size) == pytest.approx([0.02] * 3)
    with pytest.raises(ValueError, match="voxel_size has 2 values; this network has 3 axes"):
        svtnet.random_network(name="n", voxel_size=(1, 2))
