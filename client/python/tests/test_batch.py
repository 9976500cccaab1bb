"""Tests the command batch against the fake server: shards, resuming, refusals, and errors that may be transient."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FakeServer, unused_port

from voxserve.cli import batch
from voxserve.cli.main import main

Run = Callable[..., tuple[int, str, str]]
NUM_SCANS = 24


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    folder = tmp_path / "scans"
    folder.mkdir()
    for i in range(NUM_SCANS):
        np.full((i + 1, 4), 0.5, np.float32).tofile(folder / f"{i:06}.bin")
    return folder


@pytest.fixture
def run(server: FakeServer, scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def _run(*words: Any, model: str = "minkunet", save: Any = tmp_path / "out") -> tuple[int, str, str]:
        given = ["batch", "--model", model, str(scans), "--save", str(save), "--address", server.address]
        try:
            status = main([*given, *map(str, words)])
        except SystemExit as stop:
            status = int(str(stop.code))
        out, err = capsys.readouterr()
        return status, out, err

    return _run


def results(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.npy")}


def test_shards_do_every_scan_once(run: Run, server: FakeServer, tmp_path: Path) -> None:
    done: list[set[str]] = []
    for i in (1, 2, 3):
        before = results(tmp_path / "out")
        assert run("--shard", f"{i}/3")[0] == 0
        done.append(results(tmp_path / "out") - before)
    assert all(done), "each has some"
    assert len(set.union(*done)) == sum(map(len, done)) == NUM_SCANS == len(server.requests)
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "000002.npy"), [0, 1, 0])


@pytest.mark.parametrize("count", [2, 3, 8])
def test_shards_of_numbered_scans_are_alike(count: int) -> None:
    for pattern in ("{:06}.bin", "s{}.bin", "{}.pcd"):
        sizes = [0] * count
        for i in range(8000):
            sizes[batch.shard_of(pattern.format(i), count) - 1] += 1
        assert max(sizes) < 1.15 * 8000 / count, "15% are five standard deviations or more"
        assert min(sizes) > 0.85 * 8000 / count


def test_a_new_scan_changes_no_other_scans_shard(run: Run, scans: Path, tmp_path: Path) -> None:
    assert run("--shard", "2/3")[0] == 0
    before = results(tmp_path / "out")
    np.full((2, 4), 0.5, np.float32).tofile(scans / "000000a.bin")  # becomes the second scan in order
    assert run("--shard", "2/3")[0] == 0
    assert before <= results(tmp_path / "out") <= before | {"000000a"}


def test_it_goes_on_where_it_was_cut_off(run: Run, server: FakeServer, tmp_path: Path) -> None:
    assert run()[0] == 0
    for name in ("000003", "000007"):
        (tmp_path / "out" / f"{name}.npy").unlink()
    (tmp_path / "out" / "000003.npy.1.2.part").write_bytes(b"half")  # left by a run that was killed
    server.requests.clear()
    status, _, err = run()
    assert status == 0
    assert f"{NUM_SCANS} scans, {NUM_SCANS - 2} done before, 2 to do" in err
    assert sorted(request.cloud.num_points for request in server.requests) == [4, 8]
    server.requests.clear()
    assert run()[0] == 0
    assert not server.requests


def test_a_bad_scan_fails_alone_and_is_tried_again_later(run: Run, scans: Path, tmp_path: Path) -> None:
    good = (scans / "000005.bin").read_bytes()
    (scans / "000005.bin").write_bytes(b"123")
    status, _, err = run()
    assert status == 1
    assert "1 of 24 scans failed" in err
    assert "000005.bin" in err
    assert len(results(tmp_path / "out")) == NUM_SCANS - 1
    (scans / "000005.bin").write_bytes(good)
    assert run()[0] == 0
    assert len(results(tmp_path / "out")) == NUM_SCANS


@pytest.mark.parametrize(
    ("words", "model", "name"),
    [
        ([], "wide", "model"),
        (["--version", "2"], "minkunet", "version"),
        (["--sample", "3"], "minkunet", "sample"),
        (["--fields", "x:f32,y:f32,z:f32,intensity:f32*0.5"], "minkunet", "fields"),
    ],
)
def test_other_results_are_not_mixed_in(run: Run, tmp_path: Path, words: list[str], model: str, name: str) -> None:
    assert run("--shard", "1/2")[0] == 0
    before = results(tmp_path / "out")
    status, _, err = run("--shard", "2/2", *words, model=model)
    assert status == 2
    assert f"has results of {name}" in err
    assert "name another folder" in err
    assert results(tmp_path / "out") == before
    assert not list((tmp_path / "out").glob("*.part"))


def test_a_version_of_other_weights_is_refused(run: Run, tmp_path: Path) -> None:
    assert run("--shard", "1/2")[0] == 0
    note = tmp_path / "out" / batch.NOTE
    noted = json.loads(note.read_text())
    note.write_text(json.dumps({**noted, "digest": "other"}))
    status, _, err = run("--shard", "2/2")
    assert status == 2
    assert "has results of digest 'other'" in err


def test_the_noted_version_is_kept(run: Run, server: FakeServer) -> None:
    assert run("--shard", "1/2", "--version", "2")[0] == 0
    server.requests.clear()
    assert run("--shard", "2/2")[0] == 0  # not 3, which is the newest
    assert {request.version for request in server.requests} == {2}


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_note_is_named(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / batch.NOTE).write_text(text)
    status, _, err = run()
    assert status == 1
    assert batch.NOTE in err


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "a/b", "1/0", "-1/2", "1/2/3", ""])
def test_shards_that_cannot_be(run: Run, shard: str) -> None:
    status, _, err = run("--shard", shard)
    assert status == 2
    assert "--shard" in err


def test_one_file_is_refused(run: Run) -> None:
    status, _, err = run(save="labels.npy")
    assert status == 2
    assert "batch writes a folder" in err


def test_a_full_queue_is_waited_for(run: Run, server: FakeServer) -> None:
    status, _, err = run("--retry", "2s", "--concurrency", "24", model="busy")
    assert status == 1
    assert "24 of 24 scans failed" in err
    assert "the queue is full" in err
    # The server asks for a pause of 1.25 s, so each scan has time for one more attempt within 2 s.
    assert len(server.requests) == 2 * NUM_SCANS


@pytest.mark.parametrize(("model", "least"), [("broken", 0.0), ("loading", 0.5)])
def test_a_model_that_is_not_ready(run: Run, server: FakeServer, model: str, least: float) -> None:
    start = time.monotonic()
    # While the model is loading, the command asks again after pauses. The first four always fit into 2 s and together
    # last at least 0.75 s. A model that has failed is not asked for again.
    status, _, err = run("--retry", "2s", model=model)
    assert status == 1
    assert f"{model} version 3 is {'failed' if model == 'broken' else 'loading'}" in err
    assert least <= time.monotonic() - start < 30
    assert not server.requests


def test_a_server_that_restarts_is_waited_for(scans: Path, tmp_path: Path) -> None:
    started: list[FakeServer] = []
    with unused_port() as port:
        timer = threading.Timer(1.0, lambda: started.append(FakeServer(port)))
        timer.start()
        words = ["--model", "m", scans, "--save", tmp_path / "out", "--address", f"127.0.0.1:{port}", "--retry", "60s"]
        try:
            done = subprocess.run(
                [sys.executable, "-m", "voxserve.batch", *map(str, words)], capture_output=True, text=True, timeout=120
            )
        finally:
            timer.join()
            started[0].stop()
    assert done.returncode == 0, done.stderr
    assert len(results(tmp_path / "out")) == NUM_SCANS


def tree(folder: Path) -> Path:
    """Writes scans of equal names into sequences/NN/velodyne, as SemanticKITTI has them."""
    for sequence in ("00", "01"):
        for i in range(3):
            path = folder / "sequences" / sequence / "velodyne" / f"{i:06}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.full((int(sequence) * 10 + i + 1, 4), 0.5, np.float32).tofile(path)
    return folder


def batch_of(server: FakeServer, *words: Any) -> int:
    return main(["batch", "--model", "m", "--address", server.address, *map(str, words)])


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_tree_is_mirrored(server: FakeServer, tmp_path: Path) -> None:
    scans = tree(tmp_path / "kitti")
    assert batch_of(server, scans, "--save", tmp_path / "out", "--format", "label") == 0
    expected = [f"sequences/{s}/velodyne/{i:06}.label" for s in ("00", "01") for i in range(3)]
    assert files_in(tmp_path / "out") == [*expected, batch.NOTE]
    labels = np.fromfile(tmp_path / "out" / expected[4], np.uint32)
    np.testing.assert_array_equal(labels, np.arange(12) % 2)
    server.requests.clear()
    assert batch_of(server, scans, "--save", tmp_path / "out", "--format", "label") == 0
    assert not server.requests


def test_results_within_the_tree_are_no_scans(server: FakeServer, tmp_path: Path) -> None:
    scans = tree(tmp_path / "kitti")
    for _ in range(2):
        assert batch_of(server, scans, "--save", scans / "labels") == 0
        assert len(files_in(scans / "labels")) == 7
    assert len(server.requests) == 6


def test_equal_names_of_a_glob_are_kept_apart(server: FakeServer, tmp_path: Path) -> None:
    scans = sorted(tree(tmp_path / "kitti").glob("sequences/*/velodyne/000000.bin"))
    assert batch_of(server, *scans, "--save", tmp_path / "out") == 0
    assert files_in(tmp_path / "out") == ["00/velodyne/000000.npy", "01/velodyne/000000.npy", batch.NOTE]
    assert len(np.load(tmp_path / "out" / "01/velodyne/000000.npy")) == 11


def test_shards_of_a_tree_do_every_scan_once(server: FakeServer, tmp_path: Path) -> None:
    scans = tree(tmp_path / "kitti")
    for i in (1, 2):
        assert batch_of(server, scans, "--save", tmp_path / "out", "--shard", f"{i}/2") == 0
    assert len(server.requests) == 6
    assert len(files_in(tmp_path / "out")) == 7


def test_file_systems_without_hard_links(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scans: Path
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    assert batch_of(server, scans, "--save", tmp_path / "out", "--shard", "1/2") == 0
    assert batch_of(server, scans, "--save", tmp_path / "out", "--shard", "2/2") == 0
    assert json.loads((tmp_path / "out" / batch.NOTE).read_text())["model"] == "m"
    assert batch_of(server, scans, "--save", tmp_path / "out", "--sample", "3") == 2
    assert len(results(tmp_path / "out")) == NUM_SCANS


def test_a_manifest_has_a_row_for_each_scan(server: FakeServer, scans: Path, tmp_path: Path) -> None:
    (scans / "000005.bin").write_bytes(b"123")
    path = tmp_path / "m.jsonl"
    words = [scans, "--save", tmp_path / "out", "--manifest", path]
    assert batch_of(server, *words) == 1
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == NUM_SCANS
    (bad,) = (row for row in rows if "error" in row)
    assert bad["file"].endswith("000005.bin")
    good = next(row for row in rows if row["file"].endswith("000003.bin"))
    assert (good["points"], good["written"]) == (4, [str(tmp_path / "out" / "000003.npy")])
    with path.open("a") as file:
        file.write('{"file": "half')  # by a run that was killed
    np.full((6, 4), 0.5, np.float32).tofile(scans / "000005.bin")
    assert batch_of(server, *words) == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) == NUM_SCANS + 1
    assert rows[-1]["points"] == 6


def test_a_manifest_as_a_table(server: FakeServer, scans: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    (scans / "000005.bin").write_bytes(b"123")
    path = tmp_path / "m.parquet"
    words = [scans, "--save", tmp_path / "out", "--manifest", path]
    assert batch_of(server, *words) == 1
    assert parquet.read_table(path).num_rows == NUM_SCANS
    np.full((6, 4), 0.5, np.float32).tofile(scans / "000005.bin")
    assert batch_of(server, *words) == 0
    rows = {row["file"]: row for row in parquet.read_table(path).to_pylist()}
    assert len(rows) == NUM_SCANS, "the later row replaces that of the failure"
    assert sorted(row["points"] for row in rows.values()) == list(range(1, NUM_SCANS + 1))
    assert not list(tmp_path.glob("m.parquet.jsonl"))
    assert batch_of(server, scans, "--save", tmp_path / "out", "--manifest", tmp_path / "m.txt") == 1


def test_urls(server: FakeServer, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    memory = fsspec.filesystem("memory")
    for path in tree(tmp_path / "kitti").rglob("*.bin"):
        memory.pipe_file(f"/kitti/{path.relative_to(tmp_path / 'kitti')}", path.read_bytes())
    for _ in range(2):
        assert batch_of(server, "memory://kitti/sequences", "--save", "memory://out/labels") == 0
        assert len(server.requests) == 6
    assert len(memory.find("/out/labels")) == 7
    assert len(memory.cat_file("/out/labels/01/velodyne/000002.npy")) == 128 + 13
    assert batch_of(server, "memory://kitti/sequences", "--save", "memory://out/labels", "--sample", "1") == 2
    assert batch_of(server, f"file://{tmp_path}/kitti", "--save", f"file://{tmp_path}/out") == 0
    assert len(files_in(tmp_path / "out")) == 7
    assert batch_of(server, "memory://nowhere", "--save", "memory://out/labels") == 1
    memory.rm("/", recursive=True)


def test_s3(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    moto = pytest.importorskip("moto.server", reason="moto is not installed")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    store = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    store.start()
    try:
        host, port = store.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        s3fs.S3FileSystem.clear_instance_cache()
        bucket = s3fs.S3FileSystem()
        bucket.mkdir("scans")
        bucket.put(str(tree(tmp_path / "kitti")), "scans/kitti", recursive=True)
        for _ in range(2):
            assert batch_of(server, "s3://scans/kitti", "--save", "s3://scans/labels", "--format", "label") == 0
            assert len(server.requests) == 6
        found = bucket.find("scans/labels")
        assert len(found) == 7
        assert np.frombuffer(bucket.cat_file("scans/labels/sequences/01/velodyne/000000.label"), "<u4").size == 11
    finally:
        store.stop()
