"""Tests tensors and voxels in requests and answers: their messages, and with the real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import serving

import voxserve
from voxserve import answers, tensor_file, wire
from voxserve.cli.main import main
from voxserve.export import model_folder
from voxserve.export.tracing.from_torch import _tensor_names
from voxserve.point_cloud import as_cloud
from voxserve.tensors import TensorRows, Wanted, read_tensor

COORDINATES = np.array([[-3, 7, 0], [-4, 6, 1], [5, 5, 5]])
FEATURES = np.array([[1, 1], [3, 0], [2.5, 1]])  # f0, f1; the served model computes 2 f0 - f1: 1, 6, 4


def sites_message(**changes: Any) -> wire.Tensor:
    fields = {
        "name": "t",
        "shape": [2, 3],
        "type": wire.ELEMENT_TYPE_FLOAT32,
        "data": np.arange(6, dtype="<f4").tobytes(),
        "rows": wire.TENSOR_ROWS_SITES,
        "coordinates": np.array([[1, -2], [3, 4]], "<i4").tobytes(),
        "unit": [2, 0.5],
    }
    return wire.Tensor(**{**fields, **changes})


def test_a_tensor_is_read() -> None:
    tensor = read_tensor(sites_message(), 7)
    assert tensor.rows.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensor.rows.dtype == np.float32
    assert tensor.kind is TensorRows.SITES
    assert tensor.coordinates is not None
    assert tensor.coordinates.tolist() == [[1, -2], [3, 4]]
    assert tensor.unit == (2, 0.5)
    half = sites_message(type=wire.ELEMENT_TYPE_FLOAT16, data=np.arange(6, dtype="<f2").tobytes())
    assert read_tensor(half, 7).rows.dtype == np.float16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": [2]}, "shape"),
        ({"shape": [3, 3]}, "24 bytes"),
        ({"data": b"1"}, "1 bytes"),
        ({"type": 7}, "type 7"),
        ({"rows": 9}, "rows 9"),
        ({"rows": wire.TENSOR_ROWS_POINTS}, "2 rows for 7 points"),
        ({"coordinates": b""}, "0 bytes of coordinates"),
        ({"unit": []}, "coordinates for 2 sites"),
    ],
)
def test_a_tensor_that_contradicts_itself(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_tensor(sites_message(**changes), 7)


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="write a list of names"):
        Wanted("name")
    with pytest.raises(ValueError, match="must be float32 or float16"):
        Wanted(type="int8")  # type: ignore[arg-type]
    network = model_folder.Network("n")
    with pytest.raises(ValueError, match="needs a name"):
        network.output("TENSOR", "a")
    with pytest.raises(ValueError, match="has no name"):
        network.output("LABELS", "a", "b")


def test_names_of_results_as_those_of_tensors() -> None:
    assert _tensor_names(["output.0", "a b", "a/b", "labels", "_x"]) == [
        "output.0", "a_b", "a_b.2", "output.labels", "output._x"]  # fmt: skip
    assert _tensor_names(["a.unit", "a.coordinates", ".unit"]) == ["a_unit", "a_coordinates", "output._unit"]
    assert [len(name) for name in _tensor_names(["x" * 99, "x" * 98])] == [64, 62]


def test_voxels_are_points() -> None:
    cloud = voxserve.Voxels([[1, -2, 3, -4]], np.array([[0.5, 2]], np.float64)).cloud()
    assert [(f.name, f.type) for f in cloud.fields] == [
        ("x", "i32"), ("y", "i32"), ("z", "i32"), ("t", "i32"), ("f0", "f32"), ("f1", "f32")]  # fmt: skip
    assert [cloud.values(name)[0] for name in ("x", "y", "z", "t", "f0", "f1")] == [1, -2, 3, -4, 0.5, 2]
    assert voxserve.Voxels(np.zeros((0, 3), int), np.zeros((0, 1))).cloud().num_points == 0
    assert voxserve.Voxels([[130943, 0, -130944]], [[0]]).cloud().num_points == 1


@pytest.mark.parametrize(
    ("coordinates", "features", "message"),
    [
        ([1, 2, 3], [[1]], "axes"),
        (np.zeros((1, 5), int), [[1]], "axes"),
        ([["a", "b", "c"]], [[1]], "integers are needed"),
        ([[0.5, 0, 0]], [[1]], "not all integers"),
        ([[np.nan, 0, 0]], [[1]], "coordinate nan"),
        ([[130944, 0, 0]], [[1]], "is not within -130944 to 130943"),
        ([[0, 0, 0, -3969]], [[1]], "coordinate -3969"),
        ([[1, 2, 3], [1, 2, 3]], [[1], [2]], "appears twice"),
        ([[1, 2, 3]], [[1], [2]], "features have shape"),
        ([[1, 2, 3]], [["a"]], "real numbers"),
        ([[1, 2, 3]], [[np.inf]], "not all finite"),
        ([[1, 2, 3]], [[1e39]], "not all finite"),
        ([[1, 2, 3]], np.zeros((1, 254)), "3 axes and 254 features; a cloud has 256 fields at most"),
    ],
)
def test_what_cannot_be_voxels(coordinates: Any, features: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        voxserve.Voxels(coordinates, features).cloud()


def test_torch_tensors_of_every_kind_are_clouds() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    coordinates = torch.tensor([[1, 2, 3], [4, 5, 6]])
    expected = voxserve.Voxels(coordinates.numpy(), [[0.5], [-2.0]]).cloud()
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        features = torch.tensor([[0.5], [-2.0]], dtype=kind, requires_grad=True)
        assert bytes(voxserve.Voxels(coordinates, features).cloud().data) == bytes(expected.data)
    points = torch.ones(2, 4, requires_grad=True)
    assert voxserve.PointCloud.from_array(points).num_points == 2
    assert voxserve.PointCloud.from_array(points.bfloat16()).fields[0].type == "f32"
    columns = dict.fromkeys("xyz", points[:, 0])
    assert voxserve.PointCloud.from_columns(columns).num_points == 2


def test_what_has_a_method_cloud_is_voxels_and_no_column_is() -> None:
    class Table(dict[str, Any]):
        cloud = np.zeros(1)

    table = Table(x=[1.0], y=[2.0], z=[3.0], cloud=[4.0])
    assert as_cloud(table).values("cloud").tolist() == [4]


def test_no_tensors_where_there_is_something_else() -> None:
    asked = answers.Asked(num_points=0, start=0)
    for field, text in (("segmentation", "answers labels"), ("detections", "answers boxes")):
        response = wire.InferResponse(model="m")
        getattr(response, field).SetInParent()
        with pytest.raises(voxserve.InvalidArgumentError, match=text) as refused:
            answers.read_tensors(response, asked)
        assert refused.value.reason == "UNSUPPORTED_OUTPUT"
    with pytest.raises(voxserve.InferenceError, match="neither labels nor boxes nor tensors") as broken:
        answers.read_tensors(wire.InferResponse(), asked)
    assert broken.value.reason == "MALFORMED_RESPONSE"


def test_two_arrays_of_one_name_are_not_written(tmp_path: Path) -> None:
    sites = read_tensor(sites_message(), 7)
    with pytest.raises(ValueError, match=r"two arrays would be named t\.unit"):
        tensor_file.write(tmp_path / "a.npz", {"t": sites, "t.unit": sites})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("no archive")
    tensor_file.write(tmp_path / "a.npz", {"t": read_tensor(sites_message(), 7)})
    with np.load(tmp_path / "a.npz") as saved:
        assert saved["t"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("tensors")
    network = model_folder.Network("tensors")
    features = tuple(model_folder.PointFeature(name, "1") for name in ("f0", "f1"))
    network.voxelize("voxels", (1, 1, 1), features, rounding="FLOOR", origin="ZERO")
    network.linear("head", "voxels", np.array([[2, -1]], np.float32))
    network.global_pool("best", "head", "MAX")
    network.voxel_to_point("points", "head", "voxels")
    for name, node in (("rows", "head"), ("vector", "best"), ("of_points", "points")):
        network.output("TENSOR", node, name)
    model_folder.write(folder / "models" / "tensors", network, model_folder.config_textproto(classes=()))
    with serving(folder / "models", folder / "log") as started:
        yield started


def check(answer: voxserve.Tensors) -> None:
    rows = answer.tensors["rows"]
    assert rows.coordinates is not None
    found = {tuple(site): row[0] for site, row in zip(rows.coordinates.tolist(), rows.rows, strict=True)}
    assert found == {(-3, 7, 0): 1, (-4, 6, 1): 6, (5, 5, 5): 4}
    assert rows.unit == (1, 1, 1)
    assert answer.tensors["vector"].rows.tolist() == [[6]]
    assert answer.tensors["of_points"].rows.tolist() == [[1], [6], [4]]


@pytest.mark.integration
def test_tensors_of_a_real_server(address: str) -> None:
    voxels = voxserve.Voxels(COORDINATES, FEATURES)
    with voxserve.Client(address) as client:
        check(client.tensors("tensors", voxels))
        half = client.tensors("tensors", voxels, outputs=["vector"], tensor_type="float16")
        assert list(half.tensors) == ["vector"]
        assert half.tensors["vector"].rows.dtype == np.float16
        empty = client.tensors("tensors", voxserve.Voxels(np.zeros((0, 3), int), np.zeros((0, 2))))
        assert empty.tensors["rows"].rows.shape == (0, 1)
        with pytest.raises(voxserve.InvalidArgumentError, match="it has rows, vector, of_points") as refused:
            client.tensors("tensors", voxels, outputs=["nobody"])
        assert refused.value.reason == "UNSUPPORTED_OUTPUT"
        with pytest.raises(voxserve.InvalidArgumentError, match="answers tensors and no labels; ask it with tensors"):
            client.segment("tensors", voxels)
        model = client.model("tensors")
        assert not model.has_labels
        assert [(t.name, t.kind, t.channels) for t in model.tensors] == [
            ("rows", TensorRows.SITES, 1),
            ("vector", TensorRows.SAMPLES, 1),
            ("of_points", TensorRows.POINTS, 1),
        ]
        with client.stream("tensors", policy="queue", outputs=["vector"]) as stream:
            stream.send(1, voxels)
            stream.close_sends()
            (result,) = list(stream)
            assert result.error is None
            assert result.tensors is not None
            assert result.tensors.tensors["vector"].rows.tolist() == [[6]]


@pytest.mark.integration
def test_tensors_by_coroutines(address: str) -> None:
    async def ask() -> None:
        async with voxserve.aio.Client(address) as client:
            check(await client.tensors("tensors", voxserve.Voxels(COORDINATES, FEATURES)))

    asyncio.run(ask())


@pytest.mark.integration
def test_the_command_line_saves_them(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scan = np.zeros(3, [("x", "i4"), ("y", "i4"), ("z", "i4"), ("f0", "f4"), ("f1", "f4")])
    for column, values in zip(scan.dtype.names, np.hstack([COORDINATES, FEATURES]).T, strict=True):
        scan[column] = values
    np.save(tmp_path / "scan.npy", scan)
    words = ["infer", "--address", address, "--model", "tensors", str(tmp_path / "scan.npy")]
    assert main([*words, "--save", str(tmp_path / "out.npz")]) == 0
    assert "rows" in capsys.readouterr().out
    with np.load(tmp_path / "out.npz") as saved:
        assert sorted(saved.files) == ["of_points", "rows", "rows.coordinates", "rows.unit", "vector"]
        assert saved["of_points"].tolist() == [[1], [6], [4]]
        assert saved["rows.unit"].tolist() == [1, 1, 1]
    assert main([*words, "--save", str(tmp_path / "out"), "--outputs", "vector"]) == 0
    with np.load(tmp_path / "out" / "scan.npz") as saved:
        assert saved.files == ["vector"]
    # The saved scan.npz lies beside scan.npy, and must not be taken for a scan.
    assert main([*words, "--save", str(tmp_path), "--outputs", "vector", "--tensor_type", "float16"]) == 0
    with np.load(tmp_path / "scan.npz") as saved:
        assert saved["vector"].dtype == np.float16
    assert main([*words, "--save", str(tmp_path / "labels.label")]) == 2
    assert "answers with tensors, written as .npz" in capsys.readouterr().err
