"""Tests attention within a cloud and learned rows: the builder's nodes, and the server's values against NumPy's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import serving
from graph_shapes import parse

from voxserve.client import Client
from voxserve.export import Network, PointFeature, model_folder
from voxserve.tensors import TensorRows
from voxserve.verify import rows
from voxserve.verify.compare import Model
from voxserve.verify.interpreter import Interpreter
from voxserve.verify.served import points_of


def test_operators_are_written_as_the_messages_read_them() -> None:
    network = Network("net")
    network.sample_rows("tokens", np.ones((3, 4), np.float32))
    network.attention("plain", "q", "k", "v")
    network.attention("scaled", "q", "k", "v", num_heads=2, scale=1)
    nodes = {node.name: node for node in parse(network).nodes}
    assert (nodes["tokens"].sample_rows.num_rows, nodes["tokens"].sample_rows.channels) == (3, 4)
    assert not nodes["tokens"].inputs
    assert list(nodes["plain"].inputs) == ["q", "k", "v"]
    assert not nodes["plain"].attention.HasField("scale")
    assert (nodes["scaled"].attention.num_heads, nodes["scaled"].attention.scale) == (2, 1)
    assert set(network.tensors) == {"tokens.weight"}


def test_attention_by_hand() -> None:
    queries, keys = np.array([[0.0], [np.log(3)]]), np.array([[1.0], [2.0]])
    values = np.array([[4.0, 0.0], [0.0, 8.0]])
    np.testing.assert_allclose(rows.attended(queries, keys, values, 1, 1.0), [[2, 4], [1, 6]])
    np.testing.assert_allclose(rows.attended(queries, keys, values, 1, 0.0), [[2, 4], [2, 4]])
    assert rows.attended(queries, keys[:0], values[:0], 1, 1.0).tolist() == [[0, 0], [0, 0]]
    # The second head's queries and keys are 0, so that all its scores are equal.
    wide_queries, wide_keys = (np.concatenate([part, 0 * part], axis=1) for part in (queries, keys))
    np.testing.assert_allclose(rows.attended(wide_queries, wide_keys, values, 2, 1.0), [[2, 4], [1, 4]])


def network_of(rng: np.random.Generator) -> Network:
    def weight(*shape: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal(shape).astype(np.float32)

    network = Network("net")
    features = tuple(PointFeature(f"f{i}", "1") for i in range(4))
    network.voxelize("voxels", (1.0,) * 3, features, rounding="FLOOR", origin="ZERO")
    network.sample_rows("learned", weight(3, 4))
    network.attention("tokens", "learned", "voxels", "voxels", num_heads=2)
    network.linear("mixed", "tokens", weight(4, 4), weight(4))
    network.activation("sigmoid", "mixed", "SIGMOID")
    network.add("sum", ["sigmoid", "learned"])
    network.concat("both", ["sum", "tokens"])
    network.attention("back", "voxels", "sum", "both", scale=0.5)
    network.sample_rows("one", weight(1, 4))
    network.attention("pooled", "one", "voxels", "back")
    for node in ("both", "back", "pooled"):
        network.output("TENSOR", node, node)
    return network


@pytest.mark.integration
def test_the_server_computes_what_numpy_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    model_folder.write(tmp_path / "models" / "net", network_of(rng), model_folder.config_textproto(()))
    model = Model.read(tmp_path / "models" / "net")
    sites = np.unique(rng.integers(-5, 6, (500, 3)), axis=0)
    coordinates = np.concatenate([np.zeros((len(sites), 1), np.int64), sites], axis=1)
    features = rng.standard_normal((len(sites), 4)).astype(np.float32)
    interpreter = Interpreter(model.network, model.tensors, coordinates, features)
    expected = interpreter.run()
    assert interpreter.skipped == {}
    with serving(tmp_path / "models", tmp_path / "log") as address, Client(address) as client:
        answer = client.tensors("net", points_of(model, coordinates, features)).tensors
    assert (answer["both"].kind, answer["both"].rows.shape) == (TensorRows.CELLS, (3, 8))
    assert (answer["pooled"].kind, answer["pooled"].rows.shape) == (TensorRows.SAMPLES, (1, 8))
    np.testing.assert_allclose(answer["both"].rows, expected["both"].values, atol=1e-5)
    np.testing.assert_allclose(answer["pooled"].rows, expected["pooled"].values, atol=1e-5)
    back = answer["back"]
    assert back.coordinates is not None
    order = {tuple(site): row for row, site in enumerate(sites.tolist())}
    rows_of = [order[tuple(site)] for site in back.coordinates.tolist()]
    np.testing.assert_allclose(back.rows, expected["back"].values[rows_of], atol=1e-5)
