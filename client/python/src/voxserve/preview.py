"""A scan with its labels or boxes from above in a terminal: two pixels a character in the classes' colours, or, without
colours, a letter per class. Driving direction up, or to the right where the scan is longer than it is wide. Boxes are
outlines, with a line from the middle to the front, over points that have no label.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxserve.annotated_scan import AnnotatedScan, count_classes, dense_extent
from voxserve.boxes_from_above import count_boxes, footprints

_BACKGROUND = (11, 14, 20)
_GROUND = (107, 112, 120)
_SENSOR = (255, 255, 255)
_UPPER_HALF = "\u2580"


@dataclass(frozen=True)
class _Kind:
    """What is told apart: a class of points or of boxes, or points without labels."""

    id: int | None  # of the class; None: what boxes are drawn over
    name: str
    color: tuple[int, int, int]
    num_points: int

    def has(self, labels: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Of which points."""
        return np.full(labels.shape, True) if self.id is None else labels == self.id


@dataclass(frozen=True)
class _Grid:
    classes: npt.NDArray[np.int64]  # [height, width] places among the kinds, -1 for nothing
    strengths: npt.NDArray[np.float64]  # the same, 0..1, by how many points lie there
    sensor: tuple[int, int]  # row, column
    caption: str


def draw(scan: AnnotatedScan, *, columns: int = 72, rows: int = 24, color: bool = True) -> str:
    """Lines, each ended by a newline. color: 24-bit colours and Unicode half blocks, else plain ASCII and a legend."""
    kinds = _kinds_of(scan)
    if color:
        grid = _make_grid(scan, kinds, columns, 2 * rows, 1)
        return _colored(grid, kinds) + grid.caption
    grid = _make_grid(scan, kinds, columns, rows, 2)
    return _plain(grid, kinds) + grid.caption


def _kinds_of(scan: AnnotatedScan) -> list[_Kind]:
    """Classes of points; or those of boxes, and last the points."""
    if scan.detections is None:
        counts = count_classes(scan.labels, scan.ignore_label, scan.classes)
        return [_Kind(c.id, c.name, c.color, c.num_points) for c in counts]
    kinds = [_Kind(c.id, c.name, c.color, 0) for c in count_boxes(scan.detections, scan.classes)]
    return [*kinds, _Kind(None, "points", _GROUND, len(scan.xyz))] if len(scan.xyz) else kinds


def _make_grid(scan: AnnotatedScan, kinds: Sequence[_Kind], width: int, height: int, aspect: float) -> _Grid:
    """aspect: a cell's height by its width."""
    extent = dense_extent(scan.xyz, scan.detections)
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

    shown = (np.abs(scan.xyz[:, :2]) < 2 * max(across, down)).all(axis=1)
    if scan.detections is None:
        shown &= scan.labels != scan.ignore_label
    at = cells(scan.xyz[shown, :2].astype(np.float64))
    inside = ((at >= 0) & (at < (height, width))).all(axis=1)
    flat = at[inside, 0] * width + at[inside, 1]
    labels = scan.labels[shown][inside]
    points = np.array(
        [np.bincount(flat[kind.has(labels)], minlength=height * width) for kind in kinds], np.float64
    ).reshape(len(kinds), height * width)
    # A class weighs by how much of it lies here, not by points alone: else walls and roads hide all else.
    weights = points / np.sqrt([[max(kind.num_points, 1)] for kind in kinds]) if kinds else points
    total = points.sum(axis=0)
    best = np.where(total > 0, weights.argmax(axis=0), -1) if kinds else np.full(height * width, -1)
    strengths = np.minimum(1, 0.45 + 0.15 * np.log2(1 + total))
    for outlined, place in _outlines(scan, kinds, min(metres_per_column, metres_per_row) / 2):
        at = cells(place)
        at = at[((at >= 0) & (at < (height, width))).all(axis=1)]
        best[at[:, 0] * width + at[:, 1]] = outlined
        strengths[at[:, 0] * width + at[:, 1]] = 1
    sensor_row, sensor_column = cells(np.zeros((1, 2)))[0].tolist()
    direction = "right" if forward_right else "up"
    size = f"{width * metres_per_column:.0f} m x {height * metres_per_row:.0f} m"
    return _Grid(
        best.reshape(height, width),
        strengths.reshape(height, width),
        (sensor_row, sensor_column),
        f"from above, forward is {direction}, {size}\n",
    )


def _outlines(
    scan: AnnotatedScan, kinds: Sequence[_Kind], step: float
) -> Iterator[tuple[int, npt.NDArray[np.float64]]]:
    """Of each box, the place of its kind and points on its lines, [N, 2], at most `step` metres apart."""
    if scan.detections is None:
        return
    place_of = {kind.id: place for place, kind in enumerate(kinds)}
    for index, footprint in footprints(scan.detections).items():
        for begin, end in footprint.lines():
            t = np.linspace(0, 1, int(np.hypot(*(end - begin)) / step) + 2)[:, None]
            yield place_of[int(scan.detections.class_ids[index])], begin + t * (end - begin)


def _colored(grid: _Grid, kinds: Sequence[_Kind]) -> str:
    palette = np.array([*(kind.color for kind in kinds), _BACKGROUND], np.float64)
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


def _plain(grid: _Grid, kinds: Sequence[_Kind]) -> str:
    letters = _letters(kinds)
    text = ""
    for row, line in enumerate(grid.classes.tolist()):
        cells = [
            "@" if (row, column) == grid.sensor else letters[i] if i >= 0 else " " for column, i in enumerate(line)
        ]
        text += "".join(cells).rstrip() + "\n"
    legend = [f"{letter} {kind.name}" for letter, kind in zip(letters, kinds, strict=True)]
    return text + "  ".join(["@ sensor", *legend]) + "\n"


def _letters(kinds: Sequence[_Kind]) -> list[str]:
    """A letter of each kind's name that none before it has taken; others when they run out. Points are a full stop."""
    letters: list[str] = []
    for kind in kinds:
        candidates = kind.name + string.ascii_lowercase + string.digits
        free = (c for c in candidates if c.isascii() and c.isalnum() and c not in letters)
        letters.append("." if kind.id is None else next(free, "?"))
    return letters
