"""Tests that numbers are read strictly, wherever users or files write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from voxserve import field_spec
from voxserve.bag import command as bag
from voxserve.cli import arguments, batch
from voxserve.evaluate import command as evaluate
from voxserve.evaluate.layouts import kitti, nuscenes
from voxserve.export import __main__ as export
from voxserve.export import input_files
from voxserve.export.arguments import point_features, voxel_size
from voxserve.numbers import integer, real
from voxserve.verify import compare

# Python's int() and float() take all of these for numbers.
NOT_STRICT = ["+1", " 1", "1 ", "1\n", "1_000", "１", "١"]  # noqa: RUF001


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("-12", -12), ("007", 7), ("9" * 18, 10**18 - 1)])
def test_integers(text: str, value: int) -> None:
    assert integer(text) == value


@pytest.mark.parametrize("text", ["", "-", "1.0", "1e3", "0x10", "9" * 19, "nan", *NOT_STRICT])
def test_no_integers(text: str) -> None:
    with pytest.raises(ValueError, match="is no whole number"):
        integer(text)


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0.0), ("-0.5", -0.5), (".25", 0.25), ("1e-3", 1e-3), ("2E+2", 200.0), ("3.", 3.0)]
)
def test_real_numbers(text: str, value: float) -> None:
    assert real(text) == value


@pytest.mark.parametrize("text", ["", ".", "nan", "inf", "-inf", "infinity", "0x1p3", "1e", "1,5", *NOT_STRICT])
def test_no_real_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="is no number"):
        real(text)


FLAGS: dict[str, Callable[[str], Any]] = {
    "--max_message_bytes": lambda text: arguments.count(1)(text),
    "--timeout": lambda text: arguments.duration(f"{text}s"),
    "--rate": bag.rate,
    "--scale": lambda text: bag._scale(f"intensity={text}"),
    "--ranges": evaluate._edges,
    "--shard": lambda text: batch.parse_shard(f"{text}/3"),
    "--fields": lambda text: field_spec.parse(f"x:f32*{text}"),
    "--features": lambda text: point_features(f"intensity:1={text}"),
    "--voxel-size": voxel_size,
}


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("text", NOT_STRICT)
def test_values_of_flags_are_strict(flag: str, text: str) -> None:
    FLAGS[flag]("1")
    if text.strip() == "1" and flag == "--fields":
        text = f"{text.strip()}_0"  # white space around an entry is left out
    with pytest.raises(Exception, match=r"1|１|١"):  # noqa: RUF001
        FLAGS[flag](text)


@pytest.mark.parametrize("text", NOT_STRICT)
def test_flags_of_the_exporter_are_strict(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        export.main(["minkowski-unet", "--version", text])
    assert caught.value.code == 2
    assert "argument --version: invalid integer value" in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["1", 1.0, True, " 1"])
def test_ids_of_classes_are_numbers(tmp_path: Path, bad: object) -> None:
    path = tmp_path / "classes.json"
    path.write_text(json.dumps({"classes": [{"id": bad, "name": "a", "color": [1, 2, 3]}]}))
    with pytest.raises(ValueError, match="classes must be a list of"):
        input_files.read_classes(str(path))
    path.write_text(json.dumps({"classes": [{"id": 1, "name": "a", "color": [1, bad, 3]}]}))
    with pytest.raises(ValueError, match="classes must be a list of"):
        input_files.read_classes(str(path))
    path.write_text(json.dumps({"classes": [], "ignore_label": bad}))
    with pytest.raises(ValueError, match=r"ignore_label is .*, must be a whole number"):
        input_files.read_classes(str(path))


@pytest.mark.parametrize("bad", ["+1", " 1", "1_0", 1.5, True, None])
def test_indices_of_nuscenes_are_numbers(bad: object) -> None:
    assert nuscenes._by_index(Path("v"), [{"index": 1, "name": "a"}, {"index": "2", "name": "b"}]) == {1: "a", 2: "b"}
    with pytest.raises(ValueError, match="is no number"):
        nuscenes._by_index(Path("v"), [{"index": bad, "name": "a"}])


@pytest.mark.parametrize("bad", ["1_0", "１.5"])  # noqa: RUF001
def test_boxes_of_kitti_are_numbers(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "000000.txt"
    path.write_text(f"Car 0 0 0 1 2 3 4 1.5 1.6 3.9 {bad} 1.6 20 0\n")
    calibration: Any = None
    with pytest.raises(ValueError, match="line 1 is not a class and 14 numbers"):
        kitti.read_boxes(path, calibration)


@pytest.mark.parametrize("name", ["²", "１", "+2", "02", "0"])  # noqa: RUF001
def test_other_folders_are_no_versions(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "model.textproto").write_text("")
    with pytest.raises(FileNotFoundError):
        compare.Model.read(tmp_path)
