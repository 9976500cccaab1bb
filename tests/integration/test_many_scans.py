"""Sends hundreds of small scans that all differ. There must be no error and no growth of memory, and the answers' bytes
must be equal for a scan alone, in a batch, and in a second process.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import voxserve

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "gpu"))

import many_scans
from many_scans import MEBIBYTE, Findings, Memory, Report, check, main, run, serving, varied

MODELS = REPOSITORY / "deploy" / "models"
SCAN = REPOSITORY / "deploy" / "scans" / "pandaset_070.bin"
FEW = many_scans.read_scan(str(SCAN))[::400]
DEVICES = ["cpu", "cuda:0"]


@pytest.mark.parametrize("device", DEVICES)
def test_many_scans(binary: str, device: str, tmp_path: Path) -> None:
    if device != "cpu" and not many_scans.used_by_gpus():
        pytest.skip("no GPU")
    count = 300
    # Every answer is compared with two others for the same scan: sent alone, and from another server process.
    report = check(binary, MODELS, "minkunet", [FEW], count, 8, tmp_path, [f"--devices={device}"], alone_every=1)
    print(report.text())
    assert report.failures(32 * MEBIBYTE) == []
    assert len(report.findings.digests) == report.num_compared == count
    assert len(set(report.findings.digests.values())) == count, "the scans all differ"
    assert report.after.resident > 0


def test_scans_can_be_scaled_too() -> None:
    same = [varied(FEW, seed) for seed in range(20)]
    scaled = [varied(FEW, seed, 10) for seed in range(20)]
    factors = [float(np.abs(b[:, :3]).max() / np.abs(a[:, :3]).max()) for a, b in zip(same, scaled, strict=True)]
    assert all(0.0999 < factor <= 1 for factor in factors)
    assert min(factors) < 0.3 < 0.7 < max(factors), "the factors differ"
    assert all(np.array_equal(a, varied(FEW, seed, 1)) for seed, a in enumerate(same))


def test_what_the_server_refuses_is_found(binary: str, tmp_path: Path) -> None:
    with serving(binary, MODELS, tmp_path / "log", []) as server:
        unknown = run(server.address, "nothing", [FEW], range(3), 2)
        empty = run(server.address, "minkunet", [FEW[:0]], range(3), 2)
        broken = run(server.address, "minkunet", [np.full((5, 4), np.nan, np.float32)], range(3), 2)
    assert sum(unknown.problems.values()) == 3
    assert not unknown.digests
    assert not empty.problems, "no points are no error"
    assert sum(broken.problems.values()) == 3, "they have no voxels"
    assert all(problem.startswith("0 voxels of ") for problem in broken.problems)


def test_varied() -> None:
    first, again, other = varied(FEW, 1), varied(FEW, 1), varied(FEW, 2)
    np.testing.assert_array_equal(first, again)
    assert first.dtype == np.float32
    assert 0.7 * len(FEW) < len(first) <= len(FEW)
    assert first.shape != other.shape or not np.array_equal(first, other)
    np.testing.assert_array_equal(np.isin(first[:, 3], FEW[:, 3]), True)
    assert len(varied(FEW[:0], 1)) == 0


def test_differences_are_found() -> None:
    findings = Findings({1: b"a", 2: b"b"})
    findings.compare("alone", Findings({1: b"a"}, Counter({"it broke": 2})))
    findings.compare("in a second process", Findings({1: b"a", 2: b"x"}))
    assert findings.problems == Counter({"it broke": 2, "in a second process: other bytes": 1})
    memory = Memory(resident=100, device=10, used=0, reruns=3)
    assert Report(findings, memory, memory).failures(0) == [
        "2 times: it broke",
        "1 times: in a second process: other bytes",
    ]


@pytest.mark.parametrize("grown", ["resident", "device", "used"])
def test_growth_is_found(grown: str) -> None:
    before = Memory(resident=100, device=10, used=0, reruns=3)
    after = dataclasses.replace(before, **{grown: 64 * MEBIBYTE})
    report = Report(Findings(), before, after)
    assert report.failures(64 * MEBIBYTE) == []
    assert report.failures(32 * MEBIBYTE) == ["memory grew by 64 MiB"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, ""),
        ({"labels": np.zeros(3, np.uint8)}, "3 labels of 4 points"),
        ({"labels": np.full(4, 9, np.uint8)}, "labels that are no class"),
        ({"labels": np.full(4, 255, np.uint8)}, ""),
        ({"scores": np.full((4, 2), np.nan, np.float32)}, "scores that are not finite"),
        ({"used": 3}, "the fates of 3 of 4 points"),
        ({"not_finite": 1}, "scores that are not finite"),
        ({"voxels": 5}, "5 voxels of 4 points"),
        ({"voxels": 0}, "0 voxels of 4 points"),
    ],
)
def test_a_wrong_answer_is_found(change: dict[str, Any], problem: str) -> None:
    counts = {"used": 4, "invalid": 0, "out_of_range": 0, "dropped": 0, "voxels": 2, "not_finite": 0}
    counts.update({name: value for name, value in change.items() if name in counts})
    answer: Any = SimpleNamespace(
        labels=change.get("labels", np.zeros(4, np.uint8)),
        scores=change.get("scores"),
        counts=voxserve.PointCounts(**counts),
        num_classes=2,
        ignore_label=255,
    )
    assert many_scans.what_is_wrong(answer, np.zeros((4, 4), np.float32)) == problem
    assert many_scans.digest(answer) != many_scans.digest(SimpleNamespace(labels=np.ones(4, np.uint8), scores=None))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--count", "0", str(SCAN)],
        ["--clients", "-1", str(SCAN)],
        ["--max_growth_mb", "x", str(SCAN)],
        ["/nothing/there.bin"],
        [],
    ],
)
def test_arguments_that_cannot_be(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--server", "x", "--repository", str(MODELS), "--model", "minkunet", *arguments])
    assert error.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("num_bytes", [0, 15, 33])
def test_a_file_without_points(num_bytes: int, tmp_path: Path) -> None:
    (tmp_path / "scan.bin").write_bytes(bytes(num_bytes))
    with pytest.raises(ValueError, match="no points of 4 float32"):
        many_scans.read_scan(str(tmp_path / "scan.bin"))


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--server", "x", "--repository", str(MODELS), "--model", "nothing", str(SCAN)])
    assert "has no folder 'nothing'" in capsys.readouterr().err
