"""Tests deploy/train's files of frames, and that training needs neither gRPC nor protobuf."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
sys.path.insert(0, str(DEPLOY))

from train import frames  # noqa: E402


def _frame(number: int = 7) -> frames.LabelledFrame:
    random = np.random.default_rng(number)
    points = np.concatenate([random.uniform(-60, 60, (500, 2)), random.uniform(-3, 5, (500, 1))], axis=1)
    points = np.concatenate([points, random.integers(0, 256, (500, 1)) / 255], axis=1).astype(np.float32)
    points[3, :2] = 200  # farther than MAX_RANGE, so it is dropped
    boxes = np.array([[1, 2, -1, 4, 2, 1.5, 0.3], [9, -3, 0, 1, 1, 2, -2]], np.float32)
    return frames.LabelledFrame(
        number, points, random.integers(1, 43, 500).astype(np.uint8), boxes, ("Car", "Cones"), np.array([12, 0])
    )


def test_points_move_by_less_than_the_steps_and_keep_their_labels(tmp_path: Path) -> None:
    frame = _frame()
    frames.write(tmp_path / "07.npz", frame)
    read = frames.read(tmp_path / "07.npz")
    near = np.linalg.norm(frame.points[:, :3], axis=1) <= frames.MAX_RANGE
    assert len(read.points) == near.sum() == 499
    distances = np.linalg.norm(read.points[:, None, :3] - frame.points[None, :, :3], axis=2)
    nearest = distances.argmin(axis=1)
    assert sorted(nearest) == np.flatnonzero(near).tolist()
    assert distances.min(axis=1).max() < 0.01
    np.testing.assert_array_equal(read.labels, frame.labels[nearest])
    np.testing.assert_allclose(read.points[:, 3], frame.points[nearest, 3], atol=1e-6)
    np.testing.assert_array_equal(read.boxes, frame.boxes)
    assert (read.number, read.names, read.num_points.tolist()) == (7, ("Car", "Cones"), [12, 0])


def test_all_frames_of_a_range_are_read_and_a_folder_without_any_is_refused(tmp_path: Path) -> None:
    for number in (3, 59, 60):
        frames.write(tmp_path / f"{number:02d}.npz", _frame(number))
    (tmp_path / "notes.npz").touch()
    assert [frame.number for frame in frames.read_all(tmp_path, frames.TRAIN_FRAMES)] == [3, 59]
    assert [frame.number for frame in frames.read_all(tmp_path, frames.TEST_FRAMES)] == [60]
    with pytest.raises(ValueError, match="has none of the frames 61 to 62"):
        frames.read_all(tmp_path, range(61, 63))


def test_a_packed_file_cannot_run_code(tmp_path: Path) -> None:
    np.savez(tmp_path / "01.npz", steps=np.array([print], object))
    with pytest.raises(ValueError, match="allow_pickle"):
        frames.read(tmp_path / "01.npz")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "the following arguments are required: source, target"),
        (["none", "data"], 1, "error: .*none"),
        (["empty", "data"], 1, "error: empty is no sequence of PandaSet with labels and boxes"),
        (["unlabelled", "data"], 1, "error: unlabelled is no sequence of PandaSet with labels and boxes"),
    ],
)
def test_packing_says_what_is_wrong(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "unlabelled").mkdir()
    (tmp_path / "unlabelled" / "classes.json").write_text("{}")
    (tmp_path / "unlabelled" / "00.bin").touch()
    environment = {**os.environ, "PYTHONPATH": str(DEPLOY)}
    command = [sys.executable, "-m", "train.frames", *arguments]
    made = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert made.returncode == code
    assert re.search(message, made.stderr)
    assert "Traceback" not in made.stderr
    assert not (tmp_path / "data").exists()


def test_configurations_and_rules_are_imported_without_grpc_and_protobuf() -> None:
    code = (
        "import sys; sys.modules['grpc'] = sys.modules['google.protobuf'] = None; import train;"
        "from voxserve.evaluate.detection import Detection; from voxserve.evaluate import segmentation;"
        "from voxserve.export.networks.center_point import CONFIGS; print(len(CONFIGS['pandaset'].classes))"
    )
    made = subprocess.run([sys.executable, "-c", code], cwd=DEPLOY, capture_output=True, text=True, timeout=60)
    assert (made.stdout, made.stderr) == ("5\n", "")
