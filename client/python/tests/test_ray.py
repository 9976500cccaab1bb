"""Tests voxserve.ray on a Ray of this machine, and that clients and models can be pickled."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FakeServer

import voxserve
from voxserve.ray import ScanLabeller, label, scans


def test_a_client_is_pickled(server: FakeServer, points: Any) -> None:
    with voxserve.Client(server.address, timeout=7, channels=3) as client:
        client.segment("minkunet", points)  # so that it has a connection
        again = pickle.loads(pickle.dumps(client))
    with again:
        assert again._options == client._options
        np.testing.assert_array_equal(again.segment("minkunet", points), np.arange(10) % 2)
        model = again.model("minkunet")
    assert pickle.loads(pickle.dumps(model)) == model
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(voxserve.Client(server.address, traceparent=str))


def test_a_batch(server: FakeServer, tmp_path: Path) -> None:
    np.full((5, 4), 0.5, np.float32).tofile(tmp_path / "a.bin")
    (tmp_path / "b.bin").write_bytes(b"123")
    paths = np.array([str(tmp_path / f"{name}.bin") for name in "abc"])
    with voxserve.Client(server.address) as client:
        result = ScanLabeller("minkunet", client)({"path": paths})
        assert result["points"].tolist() == [5, -1, -1]
        assert json.loads(result["classes"][0]) == {"road": 3, "car": 2}
        assert [json.loads(text or "{}").get("code") for text in result["error"]] == [
            None,
            "INVALID_ARGUMENT",
            "NOT_FOUND",
        ]
        assert [values.tolist() for values in result["labels"]] == [[0, 1, 0, 1, 0], [], []]
        with pytest.raises(voxserve.UnavailableError):
            ScanLabeller("broken", client, retry=0.0)({"path": paths[:1]})


def test_a_folder_of_models_becomes_an_engine(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.full((5, 4), 0.5, np.float32).tofile(tmp_path / "a.bin")
    paths = np.array([str(tmp_path / "a.bin")])
    made = []

    def engine(folder: str) -> voxserve.Client:  # an engine has a client's methods
        made.append(folder)
        return voxserve.Client(server.address)

    monkeypatch.setattr(voxserve.ray, "Engine", engine)
    result = ScanLabeller("minkunet", "/models")({"path": paths})
    assert result["points"].tolist() == [5]
    assert made == ["/models"]


class DyingLabeller(ScanLabeller):
    """Its process is killed within its first batch, once in all."""

    def __call__(self, batch: Any) -> dict[str, Any]:
        flag = Path(str(batch["save"][0])).parent / "died"
        try:
            flag.touch(exist_ok=False)
        except FileExistsError:
            return super().__call__(batch)
        super().__call__({name: values[:1] for name, values in batch.items()})
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="ray is not installed")
    paths = [str(Path(__file__).parent), str(Path(voxserve.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore"}},
    )
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield ray
    ray.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_two_workers_of_which_one_is_killed(cluster: Any, server: FakeServer, tmp_path: Path) -> None:
    for i in range(40):
        path = tmp_path / "in" / f"{i % 3}" / f"{i:03}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.full((i + 1, 4), 0.5, np.float32).tofile(path)
    (tmp_path / "in" / "0" / "003.bin").write_bytes(b"123")
    data = scans([str(tmp_path / "in")], str(tmp_path / "out"), ".label")
    client = voxserve.Client(server.address)
    done = label(data, "minkunet", client, workers=2, batch_size=4, labeller=DyingLabeller)
    rows = done.take_all()
    assert len(rows) == 40
    assert len(list((tmp_path / "out").rglob("died"))) >= 1
    bad = [row for row in rows if row["error"]]
    assert [Path(row["path"]).name for row in bad] == ["003.bin"]
    for row in rows:
        if not row["error"]:
            number = int(Path(row["path"]).stem) + 1
            found = np.fromfile(row["save"], np.uint32)
            np.testing.assert_array_equal(found, np.arange(number) % 2)
            assert row["points"] in (number, -1), "-1: the batch was repeated"
    server.requests.clear()
    assert len(label(data, "minkunet", client, workers=1).take_all()) == 40
    assert not server.requests


@pytest.mark.filterwarnings("ignore")
def test_labels_as_a_column(cluster: Any, server: FakeServer, tmp_path: Path) -> None:
    for i in range(4):
        np.full((i + 1, 4), 0.5, np.float32).tofile(tmp_path / f"{i}.bin")
    rows = label(scans([str(tmp_path)]), "minkunet", voxserve.Client(server.address), workers=1).take_all()
    assert sorted(len(row["labels"]) for row in rows) == [1, 2, 3, 4]
