#!/usr/bin/env python3
"""Draws what a GPU did in one batch as an SVG picture, from the lines of timeline_cuda_bench, and prints where the
time went as a table.

    timeline_cuda_bench >timeline.csv
    plot_timeline.py timeline.csv [--out timeline.svg] [--title TEXT]

Each way of running the batch is one line of the picture. Every kernel and copy is a bar, coloured by its stage; what is
white is time in which the GPU waited for the host, or between two kernels. The table has, by stage, the time in which
that stage ran and nothing before it did, so that the sum of a way is its span. Needs only Python.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, LEFT, RIGHT, TOP, LANE, BAR = 1000, 90, 20, 40, 54, 30
STAGES = {
    "copy": "#8d99ae",
    "voxelize": "#edae49",
    "map": "#d1495b",
    "gather": "#6a4c93",
    "matmul": "#00798c",
    "scatter": "#30638e",
    "head": "#52796f",
    "other": "#444444",
}


@dataclass(frozen=True)
class Bar:
    """A kernel, copy or memset, with its times in microseconds since the batch's first."""

    stage: str
    what: str
    begin: float
    end: float


Ways = dict[str, list[Bar]]


def read_ways(lines: Iterable[str]) -> Ways:
    """Returns the bars of each way in the order of their begin. Raises ValueError where a line has no such columns."""
    ways: Ways = {}
    for row in csv.DictReader(lines):
        try:
            kind, begin, end = row["kind"], float(row["begin_us"]), float(row["end_us"])
            stage = "copy" if kind.startswith("copy") else row["stage"]
            bar = Bar(stage if stage in STAGES else "other", row["what"] or kind, begin, end)
            ways.setdefault(row["way"], []).append(bar)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no line of timeline_cuda_bench: {row}") from error
    for bars in ways.values():
        bars.sort(key=lambda bar: bar.begin)
    return ways


def times_by_stage(bars: Sequence[Bar]) -> dict[str, float]:
    """Returns the microseconds of each stage, and of "idle", in which nothing ran. Where bars overlap, the time is that
    of the bar that began first, so that all of it adds up to the span.
    """
    times: dict[str, float] = {}
    reached = bars[0].begin
    for bar in bars:
        if bar.begin > reached:
            times["idle"] = times.get("idle", 0) + bar.begin - reached
            reached = bar.begin
        if bar.end > reached:
            times[bar.stage] = times.get(bar.stage, 0) + bar.end - reached
            reached = bar.end
    return times


def table(ways: Ways) -> str:
    """Returns a Markdown table of microseconds: a row for each way, a column for each stage."""
    times = {way: times_by_stage(bars) for way, bars in ways.items()}
    stages = [stage for stage in [*STAGES, "idle"] if any(stage in of_way for of_way in times.values())]
    lines = [
        f"| way | kernels and copies | span us | {' | '.join(f'{stage} us' for stage in stages)} |",
        "|---" + "|--:" * (2 + len(stages)) + "|",
    ]
    for way, of_way in times.items():
        cells = [f"{of_way.get(stage, 0):.0f}" for stage in stages]
        lines.append(f"| {way} | {len(ways[way])} | {sum(of_way.values()):.0f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def picture(ways: Ways, title: str) -> str:
    """Returns the SVG text. Every way must have at least one bar."""
    longest = max(bar.end for bars in ways.values() for bar in bars)
    height = TOP + LANE * len(ways) + 60

    def x_of(us: float) -> float:
        return LEFT + us / longest * (WIDTH - LEFT - RIGHT)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="{TOP - 16}" font-size="14">{escape(title)}</text>',
    ]
    step = next(step for step in (50, 100, 200, 500, 1000, 10_000, 100_000, longest) if longest / step <= 20)
    bottom = TOP + LANE * len(ways)
    for tick in range(int(longest / step) + 1):
        x = x_of(tick * step)
        lines.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>')
        lines.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{tick * step:g}</text>')
    lines.append(f'<text x="{WIDTH - RIGHT}" y="{bottom + 32}" text-anchor="end">us</text>')
    for index, (way, bars) in enumerate(ways.items()):
        y = TOP + LANE * index + (LANE - BAR) / 2
        lines.append(f'<text x="{LEFT - 8}" y="{y + BAR / 2 + 4:.1f}" text-anchor="end">{escape(way)}</text>')
        for bar in bars:
            width = max(x_of(bar.end) - x_of(bar.begin), 0.3)
            lines.append(
                f'<rect x="{x_of(bar.begin):.2f}" y="{y:.1f}" width="{width:.2f}" height="{BAR}"'
                f' fill="{STAGES[bar.stage]}"><title>{escape(bar.what)}: {bar.end - bar.begin:.1f} us</title></rect>'
            )
    used = [stage for stage in STAGES if any(bar.stage == stage for bars in ways.values() for bar in bars)]
    for index, stage in enumerate(used):
        x = LEFT + 100 * index
        lines.append(f'<rect x="{x}" y="{height - 18}" width="12" height="8" fill="{STAGES[stage]}"/>')
        lines.append(f'<text x="{x + 18}" y="{height - 10}">{stage}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the picture, prints the table, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("timeline", type=Path)
    parser.add_argument("--out", type=Path, default=Path("timeline.svg"))
    parser.add_argument("--title", default="MinkUNet 1.0x, fp16, one batch on the GPU")
    options = parser.parse_args(arguments)
    try:
        ways = read_ways(options.timeline.read_text(encoding="utf-8").splitlines())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if not ways:
        print(f"{options.timeline} has no lines of timeline_cuda_bench", file=sys.stderr)
        return 1
    options.out.write_text(picture(ways, options.title), encoding="utf-8")
    print(table(ways), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
