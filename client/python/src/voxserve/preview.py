"""A labelled scan from above in a terminal: two pixels a character in the classes' colours, or, without colours, a
letter per class. Driving direction up, or to the right where the scan is longer than it is wide.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxserve.labelled_scan import ClassCount, LabelledScan, count_classes, dense_extent

_BACKGROUND = (11, 14, 20)
_SENSOR = (255, 255, 255)
_UPPER_HALF = "\u2580"


@dataclass(frozen=True)
class _Grid:
    classes: npt.NDArray[np.int64]  # [height, width] places in the counts, -1 for nothing
    strengths: npt.NDArray[np.float64]  # the same, 0..1, by how many points lie there
    sensor: tuple[int, int]  # row, column
    caption: str


def draw(scan: LabelledScan, *, columns: int = 72, rows: int = 24, color: bool = True) -> str:
    """Lines, each ended by a newline. color: 24-bit colours and Unicode half blocks, else plain ASCII and a legend."""
    counts = count_classes(scan.labels, scan.ignore_label, scan.classes)
    if color:
        grid = _make_grid(scan, counts, columns, 2 * rows, 1)
        return _colored(grid, counts) + grid.caption
    grid = _make_grid(scan, counts, columns, rows, 2)
    return _plain(grid, counts) + grid.caption


def _make_grid(scan: LabelledScan, counts: Sequence[ClassCount], width: int, height: int, aspect: float) -> _Grid:
    """aspect: a cell's height by its width."""
    extent = dense_extent(scan.xyz)
    forward_right = extent.length > extent.width
    across, down = (extent.length, extent.width) if forward_right else (extent.width, extent.length)
    metres_per_column = max(across / width, down / (height * aspect))
    metres_per_row = metres_per_column * aspect
    middle = np.array([extent.min_x + extent.max_x, extent.min_y + extent.max_y]) / 2

    def cells(xy: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        ahead, left = (xy - middle).T
        right_of, below = (ahead, -left) if forward_right else (-left, -ahead)
        row = np.floor(height / 2 + below / metres_per_row)
        return np.stack([row, np.floor(width / 2 + right_of / metres_per_column)], axis=1).astype(np.int64)

    shown = (np.abs(scan.xyz[:, :2]) < 2 * max(across, down)).all(axis=1) & (scan.labels != scan.ignore_label)
    at = cells(scan.xyz[shown, :2].astype(np.float64))
    inside = ((at >= 0) & (at < (height, width))).all(axis=1)
    flat = at[inside, 0] * width + at[inside, 1]
    labels = scan.labels[shown][inside]
    points = np.array(
        [np.bincount(flat[labels == count.id], minlength=height * width) for count in counts], np.float64
    ).reshape(len(counts), height * width)
    # A class weighs by how much of it lies here, not by points alone: else walls and roads hide all else.
    weights = points / np.sqrt([[count.num_points] for count in counts]) if counts else points
    total = points.sum(axis=0)
    best = np.where(total > 0, weights.argmax(axis=0), -1) if counts else np.full(height * width, -1)
    strengths = np.minimum(1, 0.45 + 0.15 * np.log2(1 + total))
    sensor_row, sensor_column = cells(np.zeros((1, 2)))[0].tolist()
    direction = "right" if forward_right else "up"
    size = f"{width * metres_per_column:.0f} m x {height * metres_per_row:.0f} m"
    return _Grid(
        best.reshape(height, width),
        strengths.reshape(height, width),
        (sensor_row, sensor_column),
        f"from above, forward is {direction}, {size}\n",
    )


def _colored(grid: _Grid, counts: Sequence[ClassCount]) -> str:
    palette = np.array([*(count.color for count in counts), _BACKGROUND], np.float64)
    strengths = np.where(grid.classes < 0, 1, grid.strengths)
    pixels = (palette[grid.classes] * strengths[..., None]).astype(int)
    if all(0 <= at < size for at, size in zip(grid.sensor, grid.classes.shape, strict=True)):
        pixels[grid.sensor] = _SENSOR
    lines = []
    for upper, lower in zip(pixels[0::2].tolist(), pixels[1::2].tolist(), strict=True):
        line, foreground, background = "", None, None
        for top, bottom in zip(upper, lower, strict=True):
            if top != foreground:
                line += "\x1b[38;2;{};{};{}m".format(*top)
            if bottom != background:
                line += "\x1b[48;2;{};{};{}m".format(*bottom)
            foreground, background = top, bottom
            line += _UPPER_HALF
        lines.append(line + "\x1b[0m\n")
    return "".join(lines)


def _plain(grid: _Grid, counts: Sequence[ClassCount]) -> str:
    letters = _letters(counts)
    text = ""
    for row, line in enumerate(grid.classes.tolist()):
        cells = [
            "@" if (row, column) == grid.sensor else letters[i] if i >= 0 else " " for column, i in enumerate(line)
        ]
        text += "".join(cells).rstrip() + "\n"
    legend = [f"{letter} {count.name}" for letter, count in zip(letters, counts, strict=True)]
    return text + "  ".join(["@ sensor", *legend]) + "\n"


def _letters(counts: Sequence[ClassCount]) -> list[str]:
    """A letter of each class's name that no class before it has taken; others when they run out."""
    letters: list[str] = []
    for count in counts:
        candidates = count.name + string.ascii_lowercase + string.digits
        free = (c for c in candidates if c.isascii() and c.isalnum() and c not in letters)
        letters.append(next(free, "?"))
    return letters
