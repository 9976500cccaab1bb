"""Runs a short form of the soak with attacks by turns, which has all parts of a long one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import hostile_soak
from hostile_soak import ATTACKS, QUIET, Options, Part, main

RATIO = "the 99th percentile"  # of a few hundred waits says nothing


@pytest.mark.alone
def test_attacks_by_turns_lose_nothing(tmp_path: Path) -> None:
    binary = os.environ.get("VOXSERVE_BINARY")
    if not binary:
        pytest.skip("VOXSERVE_BINARY does not name the server's binary; tests/run.sh sets it")
    outcome = hostile_soak.soak(Options(32, tmp_path, binary, part_seconds=8, quiet_seconds=5))
    print(outcome.text)
    assert [problem for problem in outcome.problems if not problem.startswith(RATIO)] == []
    for title in (QUIET, *ATTACKS):
        assert len(outcome.parts[title].waits) >= 10, title
    counts = {name: count for part in outcome.parts.values() for name, count in part.counts.items()}
    assert counts["floods"] >= 1
    assert counts["refused"] >= 3
    assert counts["held"] >= 500
    assert counts["signals"] >= 20
    assert "STRAY_BYTES" in outcome.text
    assert "CONNECTION_LIMIT" in outcome.text
    assert "log lines were lost" in (tmp_path / "log").read_text()
    assert (tmp_path / "hostile_soak.md").read_text().strip() == outcome.text


def test_a_part_without_answers_has_no_percentile() -> None:
    assert Part().percentile(99) != Part().percentile(99), "NaN"
    assert Part(waits=[0.001] * 99 + [1.0]).percentile(50) == pytest.approx(1)


def test_a_server_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--out", str(tmp_path), "--server", "/nothing/there"])
    assert error.value.code == 2
    assert "there is no server '/nothing/there'" in capsys.readouterr().err
