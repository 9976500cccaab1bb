"""Draws a cloud from above, x to the right and y up, as a small picture with a palette. It needs NumPy alone.

The picture shows the part of the ground where 98% of the points are along each axis. A pixel with several points has
the colour of the highest one, which is what one sees from above.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxserve import storage

Colour = tuple[int, int, int]  # red, green, blue, 0 to 255 each

SIZE = 400  # pixels of the longer side
BACKGROUND: Colour = (18, 20, 26)
_OUTLINE: Colour = (255, 255, 255)
_MARGIN = 0.01  # the share of points beyond each edge
_MAX_COLOURS = 250
_FAR = 1e5  # metres


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture that notebooks show. save() writes it to a PNG file."""

    pixels: npt.NDArray[np.uint8]  # [height, width], indices of `palette`; the first row is the upper one
    palette: tuple[Colour, ...]
    extent: tuple[float, float, float, float]  # metres: the left, right, lower and upper edge

    def png(self) -> bytes:
        """Returns the bytes of a PNG file."""
        height, width = self.pixels.shape
        rows = np.zeros((height, width + 1), np.uint8)  # each row begins with its filter, 0
        rows[:, 1:] = self.pixels
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            (
                _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
                _chunk(b"PLTE", bytes(part for colour in self.palette for part in colour)),
                _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
                _chunk(b"IEND", b""),
            )
        )

    def rgb(self) -> npt.NDArray[np.uint8]:
        """Returns the pixels' colours: uint8 [height, width, 3]."""
        colours: npt.NDArray[np.uint8] = np.array(self.palette, np.uint8)[self.pixels]
        return colours

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a PNG file. ValueError for another extension, OSError if the file cannot be written."""
        if not os.fspath(path).lower().endswith(".png"):
            raise ValueError(f"{os.fspath(path)}: pictures are written as .png")
        with storage.new(path) as file:
            file.write(self.png())

    def _repr_png_(self) -> bytes:
        return self.png()

    def __repr__(self) -> str:
        height, width = self.pixels.shape
        left, right, lower, upper = self.extent
        return f"<Picture of {width} x {height} pixels, {right - left:.0f} m x {upper - lower:.0f} m>"


def from_above(
    positions: npt.NDArray[np.float32],
    colours: npt.NDArray[np.integer],
    palette: Sequence[Colour],
    boxes: npt.NDArray[np.float32] | None = None,
    box_colours: npt.NDArray[np.integer] | None = None,
    size: int = SIZE,
) -> Picture:
    """Draws points, and the outlines of boxes over them.

    positions: [N, 3] metres. colours: [N] indices of `palette`, which has 250 entries at most. boxes: [M, 7] as in
    Detections.boxes; a line leads from each box's centre to its front. The last box lies over the others. box_colours:
    [M] indices of `palette`; None: white. size: the pixels of the longer side. Points and boxes with numbers that are
    not finite, or beyond 100 km, are left out. ValueError for a size that is not 16 to 4096.
    """
    if not 16 <= size <= 4096:
        raise ValueError(f"size is {size}, must be 16 to 4096 pixels")
    if len(palette) > _MAX_COLOURS:
        raise ValueError(f"{len(palette)} colours; a picture has {_MAX_COLOURS} at most")
    with np.errstate(invalid="ignore"):
        finite = (np.abs(positions) < _FAR).all(axis=1)
    places: npt.NDArray[np.float64] = positions[finite].astype(np.float64)
    colours = colours[finite]
    shown = np.zeros((0, 7)) if boxes is None else np.asarray(boxes, np.float64).reshape(-1, 7)
    outlines = np.full(len(shown), len(palette)) if box_colours is None else box_colours
    near = (np.abs(shown) < _FAR).all(axis=1)
    shown, outlines = shown[near], outlines[near]
    left, right, lower, upper = extent = _extent_of(places, shown)
    scale = size / max(right - left, upper - lower)
    width, height = max(1, round((right - left) * scale)), max(1, round((upper - lower) * scale))
    pixels = np.zeros((height, width), np.uint8)
    columns = np.floor((places[:, 0] - left) * scale).astype(np.int64)
    rows = height - 1 - np.floor((places[:, 1] - lower) * scale).astype(np.int64)
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    order = np.argsort(places[inside, 2], kind="stable")
    pixels[rows[inside][order], columns[inside][order]] = colours[inside][order] + 1
    for start, end, outline in _lines_of(shown, outlines + 1):
        steps = int(np.ceil(np.abs(end - start).max() * scale)) * 2 + 1
        if steps > 64 * size:  # a box that is much larger than the scan
            continue
        line = start + np.linspace(0, 1, steps)[:, None] * (end - start)
        column = np.floor((line[:, 0] - left) * scale).astype(np.int64)
        row = height - 1 - np.floor((line[:, 1] - lower) * scale).astype(np.int64)
        drawn = (column >= 0) & (column < width) & (row >= 0) & (row < height)
        pixels[row[drawn], column[drawn]] = outline
    return Picture(pixels, (BACKGROUND, *palette, _OUTLINE), extent)


def _extent_of(positions: npt.NDArray[np.float64], boxes: npt.NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Returns the left, right, lower and upper edge: the middle 98% of the points, and the centres of all boxes within
    200 m of these; at least 1 m.
    """
    edges = []
    for axis in (0, 1):
        values = positions[:, axis]
        low, high = np.quantile(values, (_MARGIN, 1 - _MARGIN)) if len(values) else (0.0, 0.0)
        centres = boxes[:, axis]
        centres = centres[(centres > low - 200) & (centres < high + 200)]
        low, high = min([low, *centres]), max([high, *centres])
        missing = max(0.0, 1 - (high - low)) / 2
        edges += [float(low - missing), float(high + missing)]
    return edges[0], edges[1], edges[2], edges[3]


def _lines_of(
    boxes: npt.NDArray[np.float64], outlines: npt.NDArray[np.integer]
) -> list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], int]]:
    """Returns the lines [2] to [2] of the boxes' outlines and of their fronts, each with its box's colour."""
    lines = []
    for (x, y, _, length, width, _, yaw), outline in zip(boxes, outlines.tolist(), strict=True):
        along = np.array([np.cos(yaw), np.sin(yaw)]) * length / 2
        across = np.array([-np.sin(yaw), np.cos(yaw)]) * width / 2
        centre = np.array([x, y])
        corners = [centre + along + across, centre + along - across, centre - along - across, centre - along + across]
        lines += [(corners[i], corners[(i + 1) % 4], outline) for i in range(4)]
        lines.append((centre, centre + along, outline))
    return lines


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
