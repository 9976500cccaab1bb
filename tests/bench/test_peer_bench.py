"""Tests the parts of peer_bench.py that need neither a peer nor a GPU."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import peer_bench
import pytest

SCRIPT = pathlib.Path(peer_bench.__file__)


def write_inputs(folder, clouds):
    for i, cloud in enumerate(clouds):
        cloud.astype(np.float32).tofile(folder / f"{i:02}.bin")
    description = {"scan": "a/b", "voxel_size_m": 0.1, "columns": ["x", "y", "z", "intensity"]}
    (folder / "inputs.json").write_text(json.dumps(description | {"num_inputs": len(clouds)}), encoding="utf-8")


def test_voxels_are_rounded_and_have_their_first_point():
    points = np.array([[1.04, -1, 0, 5], [0.96, -1, 0, 6], [-0.26, 0, 0.2, 7]], np.float32)
    coordinates, features = peer_bench.voxelize(points, 0.1)
    assert coordinates.tolist() == [[0, 10, 2], [13, 0, 0]]
    assert features[:, 3].tolist() == [7, 5]


def test_a_batch_numbers_its_samples():
    voxels = [(np.array([[1, 2, 3]], np.int32), np.array([[9.0]], np.float32)),
              (np.array([[4, 5, 6], [7, 8, 9]], np.int32), np.array([[1.0], [2.0]], np.float32))]
    coordinates, features = peer_bench.batch_of(voxels, [1, 0])
    assert coordinates.tolist() == [[0, 4, 5, 6], [0, 7, 8, 9], [1, 1, 2, 3]]
    assert coordinates.dtype == np.int32
    assert features[:, 0].tolist() == [1, 2, 9]


@pytest.mark.parametrize(
    ("intervals", "length"),
    [([], 0), ([(1, 2)], 1), ([(5, 7), (1, 2)], 3), ([(1, 4), (2, 3), (3, 6)], 5), ([(1, 2), (1, 2)], 1)],
)
def test_overlaps_count_once(intervals, length):
    assert peer_bench.union_length(intervals) == length


def test_percentiles_are_those_of_our_own_benchmark():
    assert peer_bench.percentile([3, 1, 2], 0.5) == 2
    assert peer_bench.percentile([4, 1, 3, 2], 0.5) == 3
    assert peer_bench.percentile([1, 2], 1) == 2


def test_inputs_are_read_as_they_were_written(tmp_path):
    clouds = [np.arange(8.0).reshape(2, 4), np.ones((3, 4))]
    write_inputs(tmp_path, clouds)
    description, points = peer_bench.read_inputs(tmp_path)
    assert description["voxel_size_m"] == 0.1
    assert [cloud.tolist() for cloud in points] == [cloud.tolist() for cloud in clouds]


def run(*arguments, path=None):
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(path or "")}
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True,
                          timeout=60, check=False, env=environment)


def test_a_missing_peer_is_named(tmp_path):
    write_inputs(tmp_path, [np.ones((3, 4))])
    (tmp_path / "torch.py").write_text("", encoding="utf-8")
    (tmp_path / "spconv.py").write_text("raise ImportError('no spconv')", encoding="utf-8")
    done = run("spconv", tmp_path, "--device", "cpu", path=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "spconv is not installed here, or cannot run: no spconv\n"


def test_ptv3_needs_a_gpu(tmp_path):
    write_inputs(tmp_path, [np.ones((3, 4))])
    (tmp_path / "torch.py").write_text("", encoding="utf-8")
    done = run("ptv3", tmp_path, "--device", "cpu", path=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "ptv3 is not installed here, or cannot run: its flash attention runs on a GPU alone\n"


def test_missing_torch_is_named(tmp_path):
    write_inputs(tmp_path, [np.ones((3, 4))])
    (tmp_path / "torch.py").write_text("raise ImportError('no torch')", encoding="utf-8")
    done = run("spconv", tmp_path, path=tmp_path)
    assert (done.returncode, done.stderr) == (1, "torch is not installed: no torch\n")


def test_missing_inputs_are_named(tmp_path):
    done = run("spconv", tmp_path)
    assert done.returncode == 1
    assert "has no inputs.json; varied_inputs_cuda_bench --save_points writes it" in done.stderr


def test_an_unknown_peer_is_refused(tmp_path):
    assert run("minkowski", tmp_path).returncode == 2
