"""Tests that readers of files are not held up by what is no file, and refuse what is nested too deeply."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import voxserve
from voxserve import input_file, label_file, readers
from voxserve.bag.open_recording import open_recording
from voxserve.cli.batch import NOTE, _read_note
from voxserve.evaluate import classes as evaluated_classes
from voxserve.evaluate.layouts import dataframe, kitti, nuscenes
from voxserve.export import checkpoint_file, input_files, safetensors_file
from voxserve.export.detector_configs import files as detector_configs
from voxserve.verify import reference
from voxserve.verify.compare import Model
from voxserve.view import labelled_bag

SECONDS = 60  # a reader that waits or reads on is ended by then
DEPTH = 100_000


def read_labels(path: Path) -> object:
    return label_file.read(path, 10)


def read_note(path: Path) -> object:
    return _read_note(str(path.parent))


def read_weights(path: Path) -> object:
    return Model.read(path.parent)


# The name of a file, and what reads it.
READERS: dict[str, Callable[[Path], Any]] = {
    "scan.bin": readers.read,
    "scan.pcd.bin": readers.read,
    "scan.pcd": readers.read,
    "scan.ply": readers.read,
    "scan.npy": readers.read,
    "scan.label": read_labels,
    "labels.npy": read_labels,
    "weights.pt": lambda path: checkpoint_file.read(str(path)),
    "weights.safetensors": safetensors_file.read,
    "config.py": detector_configs.read,
    "config.json": detector_configs.read,
    "config.yaml": detector_configs.read,
    "classes.json": lambda path: input_files.read_classes(str(path)),
    "choice.json": lambda path: evaluated_classes.read_choice(str(path)),
    "bag.mcap": open_recording,
    "bag.db3": open_recording,
    "bag.bag": open_recording,
    "labelled.mcap": lambda path: list(labelled_bag.read(str(path))),
    "reference.npz": reference.read,
    "model.textproto": read_weights,
    "table.pkl.gz": dataframe.read,
    NOTE: read_note,
}
# These readers check that the file exists before they open it.
LOOKING = {"sample.json": nuscenes._table, "calib.txt": kitti.read_calibration}


class HungError(BaseException):
    """A reader is held up. It is no Exception, which a reader might catch."""


def say_that_it_hangs(*_: object) -> None:
    raise HungError


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, say_that_it_hangs)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_reader_refuses_what_is_no_file(tmp_path: Path, name: str, kind: str) -> None:
    pytest.importorskip("mcap") if "bag" in name or "labelled" in name else None
    path = tmp_path / name
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises((OSError, ValueError), match=r"Not a regular file|\[Errno 22\]"):
        READERS[name](path)


@pytest.mark.parametrize("name", LOOKING)
def test_a_reader_that_looks_finds_no_file(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match="no such file"):
        LOOKING[name](tmp_path / name)


JSON = {
    "config.json": "{path} is not JSON: nested too deeply",
    "classes.json": "{path}: not JSON: nested too deeply",
    "choice.json": "{path}: not JSON: nested too deeply",
    NOTE: "{path}: nested too deeply",
}


@pytest.mark.parametrize("name", [*JSON, "sample.json"])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_json_that_is_nested_deeply_is_no_json(tmp_path: Path, name: str, opening: str) -> None:
    path = tmp_path / name
    path.write_text(opening * DEPTH)
    with pytest.raises(ValueError, match="nested too deeply") as caught:
        (READERS | LOOKING)[name](path)
    if name in JSON:
        assert str(caught.value) == JSON[name].format(path=path)


def test_a_safetensors_header_that_is_nested_deeply(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(DEPTH.to_bytes(8, "little") + b"[" * DEPTH)
    with pytest.raises(safetensors_file.SafetensorsError, match="the header is not JSON: nested too deeply"):
        safetensors_file.read(path)


@pytest.mark.parametrize("text", ["[" * DEPTH, "a: " * 1000 + "[" * DEPTH, "- " * DEPTH])
def test_yaml_that_is_nested_deeply(tmp_path: Path, text: str) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"is nested too deeply|is not YAML"):
        detector_configs.read(path)
    pytest.importorskip("ruamel.yaml")
    (tmp_path / "bag").mkdir()
    (tmp_path / "bag" / "metadata.yaml").write_text(text)
    with pytest.raises(ValueError, match="the file is no YAML"):
        open_recording(tmp_path / "bag")


@pytest.mark.parametrize(
    "text", ["(" * DEPTH, "x = " + "-" * DEPTH + "1", "x = " + "not " * DEPTH + "1", "x = " + "1+" * DEPTH + "1",
             "x = " + "a." * DEPTH + "b", "x = " + "a(" * DEPTH],
)  # fmt: skip
def test_python_that_is_nested_deeply(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        detector_configs.read(path)


def test_a_scan_has_no_more_bytes_than_a_message(tmp_path: Path) -> None:
    path = tmp_path / "scan.bin"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole
    with pytest.raises(ValueError, match=r"scan\.bin: 1099511627776 bytes, more than the 2147483648"):
        readers.read(path)


def test_a_folder_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        input_file.read(tmp_path)


def test_a_token_may_come_through_a_pipe_but_not_for_ever(tmp_path: Path) -> None:
    pipe = tmp_path / "token"
    os.mkfifo(pipe)
    if not os.fork():
        pipe.write_bytes(b"token-of-a-truck\n")
        os._exit(0)
    assert input_file.read_small(pipe) == b"token-of-a-truck\n"
    os.wait()
    with pytest.raises(ValueError, match="/dev/zero: more than the 1048576 bytes"):
        input_file.read_small("/dev/zero")
    with pytest.raises(ValueError, match="/dev/zero: more than the 1048576 bytes"):
        voxserve.Client("localhost:1", tls_ca="/dev/zero")
