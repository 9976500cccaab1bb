"""Tests `voxserve.evaluate FOUND TRUTH` with measures that are computed point by point."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import map_files
import numpy as np
import pytest

from voxserve import pieces
from voxserve.evaluate import pairs
from voxserve.evaluate.command import main

NUMBER = 20_000
LEGEND = {1: "unclassified", 2: "ground", 5: "high vegetation", 6: "building"}
Codes = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def columns() -> dict[str, Any]:
    return map_files.cloud(NUMBER)


def labelled(path: Path, columns: dict[str, Any], codes: Codes, legend: dict[int, str]) -> Path:
    """Writes a copy with a legend, as voxserve.maps does."""
    source = map_files.write_las(path.with_name(f"source_of_{path.stem}.las"), columns)
    with pieces.open_reader(source) as reader, pieces.open_writer(str(path), reader, legend, keeps_codes=False) as out:
        first = 0
        for piece in reader.pieces(7000):
            out.write(piece, codes[first : first + len(piece)], np.ones(len(piece), np.float32))
            first += len(piece)
    source.unlink()
    return path


def draw(seed: int, choices: list[int]) -> Codes:
    return np.random.default_rng(seed).choice(choices, NUMBER)


def slowly(truth: Codes, found: Codes, code: int) -> dict[str, float]:
    both = sum(t == f == code for t, f in zip(truth.tolist(), found.tolist(), strict=True))
    true, told = int((truth == code).sum()), int((found == code).sum())
    return {"iou": both / (true + told - both), "precision": both / told, "recall": both / true, "count": true}


def report_of(tmp_path: Path, *words: Any) -> dict[str, Any]:
    assert main([*map(str, words), "--save", str(tmp_path / "report.json")]) == 0
    loaded: dict[str, Any] = json.loads((tmp_path / "report.json").read_text())
    return loaded


@pytest.mark.parametrize("ending", [".laz", ".ply", ".parquet"])
def test_measures(columns: dict[str, Any], tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "_PIECE", 3000)
    truth, found = draw(1, [2, 5, 6]), draw(2, [1, 2, 5, 6])
    found[::2] = truth[::2]
    labelled(tmp_path / "found.laz", columns, found, LEGEND)
    labelled(tmp_path / f"truth{ending}", columns, truth, {})  # without a legend: the same codes
    report = report_of(tmp_path, tmp_path / "found.laz", tmp_path / f"truth{ending}")
    rows = {row["code"]: row for row in report["classes"]}
    assert {code: row["name"] for code, row in rows.items()} == LEGEND
    for code in (2, 5, 6):
        for name, value in slowly(truth, found, code).items():
            assert rows[code][name] == pytest.approx(value, abs=1e-12), (code, name)
    assert report["mIoU"] == pytest.approx(np.mean([slowly(truth, found, code)["iou"] for code in (2, 5, 6)]))
    assert report["accuracy"] == pytest.approx((truth == found).mean())
    assert report["points"] == report["count"] == NUMBER
    matrix = [[int(((truth == t) & (found == f)).sum()) for f in LEGEND] for t in LEGEND]
    assert report["confusion"] == matrix


def test_names_join_other_codes(columns: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth, found = draw(1, [10, 20, 30]), draw(2, [2, 5])
    labelled(tmp_path / "truth.laz", columns, truth, {10: "Ground", 20: "High Vegetation", 30: "water"})
    labelled(tmp_path / "found.laz", columns, found, LEGEND)
    report = report_of(tmp_path, tmp_path / "found.laz", tmp_path / "truth.laz")
    as_found = np.select([truth == 10, truth == 20], [2, 5], 0)
    rows = {row["code"]: row for row in report["classes"]}
    for code in (2, 5):
        right = int(((as_found == code) & (found == code)).sum())
        assert rows[code]["recall"] == pytest.approx(right / (as_found == code).sum())
        assert rows[code]["precision"] == pytest.approx(right / ((found == code) & (as_found > 0)).sum())
    assert report["not_counted"] == {"water": int((truth == 30).sum())}
    text = capsys.readouterr().out
    assert "did not count: water" in text
    assert "precision" in text


def test_choices_and_ignored_codes(columns: dict[str, Any], tmp_path: Path) -> None:
    truth, found = draw(1, [0, 3, 4, 5]), draw(2, [2, 5])
    labelled(tmp_path / "truth.laz", columns, truth, {})
    labelled(tmp_path / "found.laz", columns, found, LEGEND)
    (tmp_path / "classes.json").write_text('{"high vegetation": ["3", "4", "5"]}')
    words = ["--classes", tmp_path / "classes.json", "--ignore", "0"]
    report = report_of(tmp_path, tmp_path / "found.laz", tmp_path / "truth.laz", *words)
    assert report["count"] == int((truth != 0).sum())
    assert report["not_counted"] == {}
    assert report["accuracy"] == pytest.approx((found == 5)[truth != 0].mean())


def test_codes_of_the_input(columns: dict[str, Any], tmp_path: Path) -> None:
    truth = draw(1, [2, 5]).astype(np.uint8)
    source = map_files.write_las(tmp_path / "in.laz", {**columns, "classification": truth})
    with pieces.open_reader(source) as reader:
        path = str(tmp_path / "out.laz")
        with pieces.open_writer(path, reader, LEGEND, keeps_codes=True) as writer:
            for piece in reader.pieces(NUMBER):
                writer.write(piece, np.full(NUMBER, 2), np.ones(NUMBER, np.float32))
    report = report_of(tmp_path, path, path, "--truth_field", pieces.BEFORE)
    assert report["accuracy"] == pytest.approx((truth == 2).mean())


def test_folders_pool_all_points(columns: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = {name: values[:100] for name, values in columns.items()}
    truths, founds = [], []
    for name, part in (("a/1", few), ("b/1", columns)):
        size = len(part["x"])
        truths.append(draw(3, [2, 5])[:size])
        founds.append(draw(4, [2, 5])[:size])
        for folder, codes in (("truth", truths[-1]), ("found", founds[-1])):
            (tmp_path / folder / name).parent.mkdir(parents=True)
            labelled(tmp_path / folder / f"{name}.laz", part, codes, LEGEND)
    report = report_of(tmp_path, tmp_path / "found", tmp_path / "truth")
    assert report["files"] == 2
    pooled = slowly(np.concatenate(truths), np.concatenate(founds), 2)["iou"]
    assert report["classes"][0]["iou"] == pytest.approx(pooled)
    (tmp_path / "truth/a/1.laz").unlink()
    assert main([str(tmp_path / "found"), str(tmp_path / "truth")]) == 1
    assert "has no partner a/1.*" in capsys.readouterr().err


def test_refusals(columns: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes = draw(1, [2, 5])
    whole = labelled(tmp_path / "whole.laz", columns, codes, LEGEND)
    few = labelled(tmp_path / "few.laz", {n: v[:9] for n, v in columns.items()}, codes, LEGEND)
    turned = labelled(tmp_path / "turned.laz", {n: v[::-1] for n, v in columns.items()}, codes, LEGEND)
    bare = map_files.write_table(tmp_path / "bare.parquet", columns)
    cases = [
        (few, "whole.laz has 20000 points, but"),
        (turned, "have other points, or these in another order"),
        (bare, "there is no column of classification; it has intensity"),
        (tmp_path / "missing.laz", "No such file"),
        (tmp_path, "is a file, but"),
    ]
    for other, message in cases:
        assert main([str(whole), str(other)]) == 1
        assert message in capsys.readouterr().err
    for words in ([str(whole)], [str(whole), str(whole), "--model", "m"], [str(whole), str(whole), "--ignore", "a"]):
        with pytest.raises(SystemExit, match="2"):
            main(words)
    assert main([str(whole), str(whole), "--truth_field", "gps_time"]) == 1
    assert "the column gps_time has the value" in capsys.readouterr().err
    assert main([str(whole), str(whole), "--truth_field", "nothing"]) == 1
    assert "no column of numbers 'nothing'" in capsys.readouterr().err


def with_codes(path: Path, codes: Codes) -> Path:
    xyz = {axis: np.arange(len(codes)) + 0.5 for axis in "xyz"}
    return map_files.write_table(path, {**xyz, "classification": codes})


def test_codes_may_be_floats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = with_codes(tmp_path / "a.parquet", np.array([1.0, 2, 2, 1], np.float32))
    truth = with_codes(tmp_path / "b.parquet", np.array([1, 2, 1, 1], np.uint8))
    assert report_of(tmp_path, found, truth)["accuracy"] == 0.75
    capsys.readouterr()


@pytest.mark.parametrize(("codes", "shown"), [([1, -1, 2], "-1"), ([1, 2.5, 3], "2.5"), ([1, np.nan, 3], "nan"),
                                              ([1, 2**31, 3], "2147483648")])  # fmt: skip
@pytest.mark.parametrize("is_truth", [True, False])
def test_values_that_are_no_codes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], codes: list[float], shown: str, is_truth: bool
) -> None:
    good, bad = (
        with_codes(tmp_path / "good.parquet", np.arange(3)),
        with_codes(tmp_path / "bad.parquet", np.array(codes)),
    )
    assert main([str(path) for path in ((good, bad) if is_truth else (bad, good))]) == 1
    error = capsys.readouterr().err
    assert f"bad.parquet: the column classification has the value {shown}" in error
    assert "--ignore" in error
