"""Draws series over time as an SVG picture, one panel below the other. Needs Python alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

_WIDTH, _PANEL, _GAP = 860, 110, 34
_LEFT, _RIGHT, _TOP = 64, 150, 44
_COLORS = ("#00798c", "#d1495b", "#edae49", "#30638e")
_MOST_POINTS = 240  # of a line; longer lines are thinned, and the largest point of each run stays

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """Lines that share an axis. Points are (seconds, value); a NaN is left out and does not interrupt its line."""

    title: str
    lines: dict[str, Points] = field(default_factory=dict)


def draw(title: str, panels: Sequence[Panel], bands: Sequence[tuple[float, float]] = ()) -> str:
    """Returns the SVG text. bands: times (begin, end) in seconds that are shaded."""
    panels = [panel for panel in panels if any(_finite(points) for points in panel.lines.values())]
    end = max(t for panel in panels for points in panel.lines.values() for t, _ in points)
    height = _TOP + len(panels) * (_PANEL + _GAP) + 10
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif"'
        ' font-size="11">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{_LEFT}" y="18" font-size="14">{escape(title)}</text>',
    ]
    scale = (_WIDTH - _LEFT - _RIGHT) / end
    shades = [f"M{_LEFT + a * scale:.1f} {_TOP}v{height - _TOP}h{(b - a) * scale:.1f}V{_TOP}z" for a, b in bands]
    if shades:
        out.append(f'<path d="{"".join(shades)}" fill="#f6f2e9"/>')
    for i, panel in enumerate(panels):
        out += _panel(panel, _TOP + i * (_PANEL + _GAP), end)
    return "\n".join([*out, "</svg>", ""])


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(t, y) for t, y in points if math.isfinite(y)]


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    run = math.ceil(len(points) / _MOST_POINTS)
    return [max(points[i : i + run], key=lambda point: point[1]) for i in range(0, len(points), max(1, run))]


def _step(length: float, most: int) -> float:
    """Returns a round step of an axis, so that at most `most` steps fit into the length."""
    power = 10 ** math.floor(math.log10(length / most))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * most >= length)


def _panel(panel: Panel, top: float, end: float) -> list[str]:
    lines = {name: _thin(_finite(points)) for name, points in panel.lines.items()}
    lines = {name: points for name, points in lines.items() if points}
    high = max(y for points in lines.values() for _, y in points) * 1.05 or 1.0
    width = _WIDTH - _LEFT - _RIGHT

    def place(t: float, y: float) -> tuple[float, float]:
        return _LEFT + t / end * width, top + _PANEL - y / high * _PANEL

    out = [f'<text x="{_LEFT}" y="{top - 6}" font-weight="bold">{escape(panel.title)}</text>']
    y_step, t_step = _step(high, 4), max(1, round(_step(end / 60, 8), 2)) * 60
    for k in range(int(high / y_step) + 1):
        y = place(0, k * y_step)[1]
        out.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + width}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{k * y_step:,g}</text>')
    for k in range(int(end / t_step) + 1):
        x = place(k * t_step, 0)[0]
        text = f"{k * t_step / 60:g} min"
        out.append(f'<text x="{x:.1f}" y="{top + _PANEL + 13}" text-anchor="middle" fill="#666">{text}</text>')
    for i, (name, points) in enumerate(lines.items()):
        color = _COLORS[i % len(_COLORS)]
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(t, y) for t, y in points))
        out.append(f'<polyline points="{text}" fill="none" stroke="{color}" stroke-width="1.3"/>')
        out.append(f'<text x="{_LEFT + width + 8}" y="{top + 14 + 15 * i}" fill="{color}">{escape(name)}</text>')
    return out
