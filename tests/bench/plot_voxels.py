#!/usr/bin/env python3
"""Draws times over numbers of voxels, both logarithmic, from tables of varied_inputs_cuda_bench, as an SVG picture.

    varied_inputs_cuda_bench voxels >voxels.md
    plot_voxels.py voxels.md... [--out voxels.svg] [--title TEXT]

One file gives a series each of p50, p99 and, if it has it, GPU busy. With several files, each gives one line of p50
with the file's name. Needs only Python.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from layer_profile import read_table

WIDTH, HEIGHT = 760, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 40, 60
COLUMNS = ("p99 ms", "p50 ms", "GPU busy ms")
COLORS = ("#d1495b", "#00798c", "#edae49", "#30638e", "#6a4c93", "#52796f")

Series = tuple[str, list[tuple[float, float]]]


def read_series(text: str, column: str) -> list[tuple[float, float]]:
    """Returns (voxels, ms) of the table's rows that have the column, in ascending order."""
    rows = read_table(text, "p50 ms")
    return sorted((float(row["voxels"]), float(row[column])) for row in rows if row.get(column))


def decades(low: float, high: float) -> tuple[int, int]:
    """Returns the exponents of the powers of ten between which the axis lies. `low` and `high` may lie beyond them by a
    tenth.
    """
    begin = math.floor(math.log10(low * 1.1))
    return begin, max(begin + 1, math.ceil(math.log10(high / 1.1)))


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def picture(series: Sequence[Series], title: str) -> str:
    """Returns the SVG text. Every series must have at least one point, and only numbers above 0."""
    points = [point for _, of_series in series for point in of_series]
    (x_low, x_high), (y_low, y_high) = (decades(min(axis), max(axis)) for axis in zip(*points, strict=True))

    def place(voxels: float, ms: float) -> tuple[float, float]:
        x = (math.log10(voxels) - x_low) / (x_high - x_low)
        y = (math.log10(ms) - y_low) / (y_high - y_low)
        return LEFT + x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="{TOP - 16}" font-size="14">{escape(title)}</text>',
    ]

    def rule(begin: tuple[float, float], end: tuple[float, float], color: str) -> None:
        lines.append(f'<line x1="{begin[0]:.1f}" y1="{begin[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
                     f' stroke="{color}"/>')

    for step in range(9 * (x_high - x_low) + 1):
        voxels = (step % 9 + 1) * 10.0 ** (x_low + step // 9)
        begin, end = place(voxels, 10.0**y_low), place(voxels, 10.0**y_high)
        rule(begin, end, "#bbb" if step % 9 == 0 else "#eee")
        if step % 9 == 0:
            x, y = begin[0], begin[1] + 18
            lines.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{number(voxels)}</text>')
    for step in range(9 * (y_high - y_low) + 1):
        ms = (step % 9 + 1) * 10.0 ** (y_low + step // 9)
        begin, end = place(10.0**x_low, ms), place(10.0**x_high, ms)
        rule(begin, end, "#bbb" if step % 9 == 0 else "#eee")
        if step % 9 == 0:
            lines.append(f'<text x="{begin[0] - 8:.1f}" y="{begin[1] + 4:.1f}" text-anchor="end">{number(ms)}</text>')
    lines.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 16}" text-anchor="middle">voxels</text>')
    lines.append(f'<text x="16" y="{HEIGHT / 2:.0f}" text-anchor="middle" transform="rotate(-90 16 {HEIGHT / 2:.0f})">'
                 "ms</text>")
    for index, (name, of_series) in enumerate(series):
        color = COLORS[index % len(COLORS)]
        places = [place(*point) for point in of_series]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places]
        y = TOP + 20 * index + 10
        lines.append(f'<rect x="{WIDTH - RIGHT + 14}" y="{y - 6}" width="12" height="4" fill="{color}"/>')
        lines.append(f'<text x="{WIDTH - RIGHT + 32}" y="{y}">{escape(name)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the picture and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("voxels.svg"))
    parser.add_argument("--title", default="MinkUNet 1.0x, fp16, from points to labels")
    options = parser.parse_args(arguments)
    texts = {table.stem: table.read_text(encoding="utf-8") for table in options.tables}
    if len(texts) == 1:
        text = next(iter(texts.values()))
        series = [(column.removesuffix(" ms"), read_series(text, column)) for column in COLUMNS]
    else:
        series = [(name, read_series(text, "p50 ms")) for name, text in texts.items()]
    series = [(name, points) for name, points in series if points]
    if not series:
        print(f"no table with voxels and p50 ms in {', '.join(map(str, options.tables))}", file=sys.stderr)
        return 1
    options.out.write_text(picture(series, options.title), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
