"""Tests the picture and the table of one batch's timeline."""

from __future__ import annotations

from pathlib import Path

import plot_timeline
import pytest

_HEAD = "way,kind,stage,what,begin_us,end_us"
_LINES = [
    _HEAD,
    "before,copy in,other,,0.0,10.0",
    "before,kernel,map,Search<3>,15.0,25.0",
    "before,kernel,matmul,ImplicitGemm,20.0,40.0",
    "after,kernel,matmul,ImplicitGemm,0.0,30.0",
]


def test_times_add_up_to_the_span_and_overlaps_count_once() -> None:
    ways = plot_timeline.read_ways(_LINES)
    assert plot_timeline.times_by_stage(ways["before"]) == {"copy": 10, "idle": 5, "map": 10, "matmul": 15}
    assert plot_timeline.table(ways).splitlines() == [
        "| way | kernels and copies | span us | copy us | map us | matmul us | idle us |",
        "|---|--:|--:|--:|--:|--:|--:|",
        "| before | 3 | 40 | 10 | 10 | 15 | 5 |",
        "| after | 1 | 30 | 0 | 0 | 30 | 0 |",
    ]


def test_the_picture_has_a_bar_for_every_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timeline, out = tmp_path / "timeline.csv", tmp_path / "timeline.svg"
    timeline.write_text("\n".join(_LINES))
    assert plot_timeline.main([str(timeline), "--out", str(out), "--title", "a < b"]) == 0
    text = out.read_text()
    assert text.count("<title>") == 4
    assert "<title>Search&lt;3&gt;: 10.0 us</title>" in text
    assert "a &lt; b" in text
    assert capsys.readouterr().out.startswith("| way |")


@pytest.mark.parametrize("lines", [[], [_HEAD], [_HEAD, "before,kernel,map"], ["what is this", "1"]])
def test_what_is_no_timeline_is_told(lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timeline = tmp_path / "timeline.csv"
    timeline.write_text("\n".join(lines))
    assert plot_timeline.main([str(timeline), "--out", str(tmp_path / "timeline.svg")]) == 1
    assert "timeline_cuda_bench" in capsys.readouterr().err
    assert not (tmp_path / "timeline.svg").exists()
