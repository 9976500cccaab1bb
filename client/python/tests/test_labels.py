"""Tests labels: their counts by class, their comparison with the truth, and label files."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxserve import ClassInfo, label_file
from voxserve.cli.label_counts import Agreement, count_classes
from voxserve.new_file import new_file

CLASSES = (ClassInfo(0, "road", (128, 64, 128)), ClassInfo(1, "car", (40, 90, 255)), ClassInfo(2, "cat", (255, 0, 0)))


def test_counts() -> None:
    counts = count_classes(np.array([1, 1, 1, 0, 255, 7, 7, 0, 1, 255]), 255, CLASSES)
    assert [(c.id, c.name, c.num_points, c.share) for c in counts] == [
        (1, "car", 4, 0.4),
        (0, "road", 2, 0.2),
        (7, "class 7", 2, 0.2),
    ]


def test_counts_of_nothing() -> None:
    assert count_classes(np.zeros(0, np.uint8), 255, CLASSES) == []


def test_agreement_and_its_sum() -> None:
    labels = np.array([0, 0, 1, 1, 2, 2])
    first = Agreement.compare(labels, np.array([0, 1, 1, 255, 9, 1]), 255, CLASSES)
    assert (first.num_points, first.num_agreeing, first.num_without) == (4, 2, 2)
    assert first.by_class == {0: (1, 1), 1: (3, 1)}
    first.add(Agreement.compare(labels, np.array([2, 2, 2, 2, 2, 2]), 255, CLASSES))
    assert (first.num_points, first.num_agreeing, first.num_without) == (10, 4, 2)
    assert first.of(2) == (6, 2)


# Label files


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_label_files_round_trip(tmp_path: Path, dtype: Any) -> None:
    labels = np.array([0, 3, 255], dtype)
    for name in ("a.npy", "a.label"):
        label_file.write(tmp_path / name, labels)
        np.testing.assert_array_equal(label_file.read(tmp_path / name, 3), labels)
    assert np.load(tmp_path / "a.npy").dtype == dtype


def test_semantickitti_instances_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.label").write_bytes(np.array([5 << 16 | 40, 10], "<u4").tobytes())
    assert label_file.read(tmp_path / "a.label", 2).tolist() == [40, 10]


def test_raw_labels_of_one_or_four_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.u8").write_bytes(bytes([1, 2]))
    (tmp_path / "b.u32").write_bytes(np.array([1, 2], "<u4").tobytes())
    assert label_file.read(tmp_path / "a.u8", 2).tolist() == [1, 2]
    assert label_file.read(tmp_path / "b.u32", 2).tolist() == [1, 2]


def test_label_files_that_do_not_fit(tmp_path: Path) -> None:
    (tmp_path / "a.u8").write_bytes(bytes(3))
    np.save(tmp_path / "f.npy", np.zeros(2))
    np.save(tmp_path / "s.npy", np.zeros((), np.uint8))
    with pytest.raises(ValueError, match="3 bytes are not 2 labels of 1 or 4 bytes"):
        label_file.read(tmp_path / "a.u8", 2)
    for name in ("f.npy", "s.npy"):
        with pytest.raises(ValueError, match="labels must be integers"):
            label_file.read(tmp_path / name, 2)
    with pytest.raises(ValueError, match=r"written as \.npy or \.label"):
        label_file.write(tmp_path / "a.txt", np.zeros(2, np.uint8))


@pytest.mark.parametrize("name", ["a.npy", "a.label"])
def test_label_files_are_whole_or_as_they_were(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    label_file.write(path, np.array([1, 2], np.uint8))
    old = path.read_bytes()

    def disk_full(file: Any, *_: Any) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device", file.name)

    class Labels(np.ndarray):  # type: ignore[type-arg]
        def astype(self, *_: Any, **__: Any) -> Any:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", disk_full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        label_file.write(path, np.zeros(3, np.uint8).view(Labels))
    assert caught.value.filename == str(path)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_new_files_keep_the_message_of_a_library(tmp_path: Path) -> None:
    def fail(file: Any) -> None:
        file.write(b"half")
        raise OSError("the encoder failed")

    with pytest.raises(OSError, match="the encoder failed"), new_file(tmp_path / "a.npy") as file:
        fail(file)
    assert not list(tmp_path.iterdir())


def test_label_files_in_folders_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "a.npy"
    with pytest.raises(FileNotFoundError) as caught:
        label_file.write(path, np.zeros(2, np.uint8))
    assert caught.value.filename == str(path)
