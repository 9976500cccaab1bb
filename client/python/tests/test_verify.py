"""Tests voxserve.record and voxserve.verify: their output, and their errors for bad files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import voxserve
from voxserve.export import Network, from_torch, model_folder, safetensors_file
from voxserve.verify import reference
from voxserve.verify.__main__ import main
from voxserve.verify.compare import Model
from voxserve.verify.reference import Reference, Rows
from voxserve.verify.served import points_of

COORDINATES = np.array([[0, 0, 0, 0], [0, 1, 0, 0], [1, 5, 2, 3]], np.int32)
FEATURES = np.array([[1, -2], [3, 4], [-5, 6]], np.float32)


@pytest.fixture
def recorded(stand_in_libraries: None, tmp_path: Path) -> Path:
    """Returns a folder with an exported "model" and the recorded reference.npz of its module."""
    from traced_networks import made

    module, example, options = made("spconv-zyx")
    from_torch(module, example, **options).write(tmp_path / "model")
    voxserve.record(module, example, tmp_path / "reference.npz")
    return tmp_path


def verify(folder: Path, *options: str) -> int:
    return main([str(folder / "model"), str(folder / "reference.npz"), *options])


def change(folder: Path, tensor: str) -> None:
    path = folder / "model" / "1" / "weights.safetensors"
    tensors = safetensors_file.read(path)
    tensors[tensor] = tensors[tensor] * np.float32(1.01)
    safetensors_file.write(path, tensors)


def test_an_equal_model(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(recorded) == 0
    out = capsys.readouterr().out
    assert "output (node 'head.3'): largest deviation" in out
    assert "25 intermediate results do not deviate" in out
    assert out.endswith("equal within 0.0001 of the largest magnitude\n")
    assert verify(recorded, "--tolerance", "0") == 1


@pytest.mark.parametrize("tensor", ["down.1.weight", "head.0.weight"])
def test_the_first_node_that_deviates(recorded: Path, capsys: pytest.CaptureFixture[str], tensor: str) -> None:
    change(recorded, tensor)
    assert verify(recorded) == 1
    out = capsys.readouterr().out
    node = tensor.removesuffix(".weight")
    assert f"first node that deviates: '{node}' (module {node}): largest deviation" in out
    assert "NOT equal" in out


def test_without_intermediate_results(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from traced_networks import made

    module, example, _ = made("spconv-zyx")
    voxserve.record(module, example, recorded / "reference.npz", intermediates=False)
    assert verify(recorded) == 0
    change(recorded, "stem.conv1.weight")
    assert verify(recorded) == 1
    assert "holds no intermediate results" in capsys.readouterr().out


def test_what_cannot_be_recorded(stand_in_libraries: None, tmp_path: Path) -> None:
    import torch

    path = tmp_path / "r.npz"
    with pytest.raises(ValueError, match="training mode"):
        voxserve.record(torch.nn.ReLU(), torch.zeros(2, 2), path)
    with pytest.raises(ValueError, match="no sparse tensor"):
        voxserve.record(torch.nn.ReLU().eval(), torch.zeros(2, 2), path)
    assert not path.exists()


@pytest.mark.parametrize("samples", [1, 2])
def test_features_of_each_sample(
    stand_in_libraries: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], samples: int
) -> None:
    """MinkowskiEngine's decomposed_features are copies of rows, of which nothing says the sites."""
    import MinkowskiEngine as engine  # noqa: N813
    import torch
    import traced_networks as networks

    class Decomposed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = engine.MinkowskiConvolution(networks.CHANNELS, 5, kernel_size=2, stride=2, dimension=3)

        def forward(self, x: Any) -> Any:
            return self.down(x).decomposed_features

    def example(samples: int) -> Any:
        coordinates = networks.sites(4, samples=samples)
        return engine.SparseTensor(networks.features(coordinates), coordinates=coordinates)

    module = networks.randomize(Decomposed())
    from_torch(module, example(1)).write(tmp_path / "model")
    recorded = voxserve.record(module, example(samples), tmp_path / "reference.npz", intermediates=False)
    assert len(recorded.outputs) == samples
    assert verify(tmp_path) == 0
    out = capsys.readouterr().out
    assert "output.0 (node 'down'): largest deviation" in out
    assert ("not compared, since the model does not serve them: output.1" in out) == (samples == 2)
    change(tmp_path, "down.weight")
    assert verify(tmp_path) == 1


def test_scores_of_points(stand_in_libraries: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    import traced_networks as networks

    spconv = networks.load("spconv.pytorch")
    module, example, options = networks.made("spconv-zyx")
    inverse = torch.randint(len(example.indices), (50,), generator=torch.Generator().manual_seed(1))

    class OfPoints(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = module

        def forward(self, features: Any, indices: Any, inverse: Any) -> Any:
            return self.network(spconv.SparseConvTensor(features, indices, example.spatial_shape, 2))[inverse]

    arguments = (example.features, example.indices, inverse)
    from_torch(OfPoints().eval(), arguments, **options).write(tmp_path / "model")
    for intermediates in (True, False):
        voxserve.record(OfPoints().eval(), arguments, tmp_path / "reference.npz", intermediates=intermediates)
        assert verify(tmp_path) == 0
        assert "output (node 'network.head.3'): largest deviation" in capsys.readouterr().out
    change(tmp_path, "network.head.0.weight")
    assert verify(tmp_path) == 1


# A model built by hand, and references for it


def write_model(folder: Path, **voxelize: Any) -> None:
    network = Network("small")
    features = [model_folder.PointFeature(n, "1") for n in ("a", "b")]
    network.voxelize("voxels", (0.5, 0.5, 2), features, **{"rounding": "FLOOR", "origin": "ZERO", **voxelize})
    network.relu("relu", "voxels")
    model_folder.write(folder / "model", network, "")


def write_reference(folder: Path, name: str, values: Any, coordinates: Any = COORDINATES) -> None:
    rows = Rows(np.asarray(values, np.float32), coordinates)
    Reference(Rows(FEATURES, COORDINATES), {name: rows}).write(folder / "reference.npz")


def test_outputs_are_matched_by_their_sites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path)
    order = [2, 0, 1]
    write_reference(tmp_path, "relu", np.maximum(FEATURES, 0)[order], COORDINATES[order])
    assert verify(tmp_path) == 0
    write_reference(tmp_path, "relu", np.maximum(FEATURES, 0), None)  # no coordinates: rows as in the input
    assert verify(tmp_path) == 0
    capsys.readouterr()
    for values, coordinates, message in (
        (np.maximum(FEATURES, 0), COORDINATES + 1, "has other sites: 3 of the reference's 3 are not among 3"),
        (np.maximum(FEATURES, 0)[:2], COORDINATES[:2], "has other sites: 0 of the reference's 2 are not among 3"),
        (np.maximum(FEATURES, 0)[:, :1], COORDINATES, "node 'relu' is [3, 2], the reference [3, 1]"),
        (np.full_like(FEATURES, np.nan), COORDINATES, "largest deviation inf"),
        (FEATURES[:2], None, "the reference has 2 rows and no coordinates, but node 'relu' has 3 sites"),
        (np.zeros((1, 2, 4, 4)), None, "the reference has the shape [1, 2, 4, 4] and no coordinates"),
        (np.zeros((2, 2, 5, 4, 4)), None, "1 of 3 sites lie outside the reference's shape [2, 2, 5, 4, 4]"),
        (np.ones((2, 2, 6, 4, 4)), None, "the reference has 378 values that are not 0 in cells without a site"),
    ):
        write_reference(tmp_path, "relu", values, coordinates)
        assert verify(tmp_path) == 1
        assert message in capsys.readouterr().out
    cells = np.zeros((2, 2, 6, 4, 4))
    cells[COORDINATES[:, 0], :, COORDINATES[:, 1], COORDINATES[:, 2], COORDINATES[:, 3]] = np.maximum(FEATURES, 0)
    write_reference(tmp_path, "relu", cells, None)
    assert verify(tmp_path) == 0
    capsys.readouterr()
    write_reference(tmp_path, "other", FEATURES)
    assert verify(tmp_path) == 1
    assert "node 'other' cannot be compared: the model has no such node" in capsys.readouterr().out


def test_scores_of_other_sites_are_not_held_against_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path)
    elsewhere = COORDINATES.copy()
    elsewhere[2, 3] += 1
    write_reference(tmp_path, "relu", np.maximum(FEATURES, 0), elsewhere)
    assert verify(tmp_path, "--address", "localhost:1") == 1
    assert "the reference's output lacks 1 of the input's 3 sites" in capsys.readouterr().err


def test_files_that_are_no_references(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path)
    path = tmp_path / "reference.npz"
    assert verify(tmp_path) == 1
    path.write_text("nothing")
    assert verify(tmp_path) == 1
    np.savez(path, a=np.zeros(3))
    assert verify(tmp_path) == 1
    np.savez(path, **{"format": "other", "input/features": FEATURES, "input/coordinates": COORDINATES})
    assert verify(tmp_path) == 1
    np.savez(path, format=np.array([object()]))
    assert verify(tmp_path) == 1
    error = capsys.readouterr().err
    assert error.count("is not a reference that voxserve.record wrote") == 4
    assert "it has no format, input/features, input/coordinates" in error
    assert "its format is 'other'" in error
    with pytest.raises(ValueError, match="is not a reference"):
        reference.read(path)
    write_reference(tmp_path, "relu", FEATURES)
    (tmp_path / "model" / "1" / "trace.json").write_text(json.dumps({"axes": [0, 1]}))
    assert verify(tmp_path) == 1
    assert "the reference has 3 axes, the model 2" in capsys.readouterr().err


def test_a_point_for_every_voxel(tmp_path: Path) -> None:
    write_model(tmp_path)
    columns = points_of(Model.read(tmp_path / "model"), COORDINATES, FEATURES)
    np.testing.assert_array_equal(columns["x"], np.float32([0.25, 0.75, 2.75]))
    np.testing.assert_array_equal(columns["z"], np.float32([1, 1, 7]))
    np.testing.assert_array_equal(columns["b"], FEATURES[:, 1])
    write_model(tmp_path, origin="MINIMUM")
    with pytest.raises(ValueError, match="subtracts the cloud's minimum"):
        points_of(Model.read(tmp_path / "model"), COORDINATES, FEATURES)
    write_model(tmp_path, axes=("a", "y", "z"))
    with pytest.raises(ValueError, match="feature 'a' is also an axis"):
        points_of(Model.read(tmp_path / "model"), COORDINATES, FEATURES)
