"""A scan with its labels or boxes from above, as a picture that a person enjoys looking at: a colour per class, range
rings around the sensor, driving direction up, and a legend with counts. Rare classes are drawn over common ones, so
that cars and people stand out from road and walls. Boxes are outlines in their class's colour, with a line from the
middle to the front; the less sure the network is, the fainter. Needs Pillow: pip install voxserve[picture].

    scan = AnnotatedScan.with_labels(points, labels, client.model("minkunet"))
    picture.draw(scan, "minkunet").save("bev.png")
    picture.draw(AnnotatedScan.with_boxes(points, found, client.model("centerpoint"))).save("boxes.png")
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from voxserve.annotated_scan import AnnotatedScan, ClassCount, Extent, count_classes, dense_extent
from voxserve.boxes_from_above import color_of, count_boxes, footprints

if TYPE_CHECKING:
    from PIL import Image, ImageDraw

_MAP_LONG_SIDE = 1480  # pixels
_MIN_MAP_WIDTH, _MIN_MAP_HEIGHT, _MAX_MAP_WIDTH = 860, 980, 1700
_LEGEND_WIDTH = 470
_MARGIN = 34
_SMOOTH = 2  # lines and text are drawn this many times larger and scaled down

_BACKGROUND = (8, 10, 14)
_PANEL = (14, 17, 23)
_INK = (237, 242, 250)
_FAINT_INK = (143, 158, 178)
_UNLABELLED = (89, 94, 102)

_PEN_RADIUS = 0.95  # pixels; grows with the distance
_SPREAD_PER_M, _MAX_SPREAD = 0.012, 0.9
_RARE = ((0.01, 1.45), (0.05, 1.2), (math.inf, 1.0))  # up to this share: times the pen's radius
_GLOW_RADIUS, _GLOW_SHARE = 5, 0.35
_CHUNK = 20_000  # points drawn at once, which bounds the memory

_Array = npt.NDArray[np.floating]


@dataclass(frozen=True)
class _Projection:
    """From the ground to the picture: forward is up, left is left."""

    pixels_per_m: float
    sensor: tuple[float, float]  # x, y in pixels
    width: int
    height: int

    @staticmethod
    def fit(extent: Extent) -> _Projection:
        scale = min(_MAP_LONG_SIDE / extent.length, _MAX_MAP_WIDTH / extent.width)
        width = round(max(extent.width * scale, _MIN_MAP_WIDTH))
        height = round(max(extent.length * scale, _MIN_MAP_HEIGHT))
        sensor = (
            width / 2 + (extent.max_y + extent.min_y) / 2 * scale,
            height / 2 + (extent.max_x + extent.min_x) / 2 * scale,
        )
        return _Projection(scale, sensor, width, height)


def draw(scan: AnnotatedScan, title: str = "", lines: Sequence[str] = ()) -> Image.Image:
    """An RGB image, at most 2,200 x 1,500 pixels whatever the scan's size. lines: small ones below the title."""
    from PIL import Image, ImageDraw, ImageFilter

    extent = dense_extent(scan.xyz, scan.detections)
    projection = _Projection.fit(extent)
    counts = count_classes(scan.labels, scan.ignore_label, scan.classes)
    size = (projection.width, projection.height)

    ground = Image.new("RGB", _larger(size), _BACKGROUND)
    _draw_rings(extent, projection, ImageDraw.Draw(ground, "RGBA"))
    pixels: _Array = np.array(ground.resize(size, Image.Resampling.BOX), np.float32) / np.float32(255)
    _draw_points(scan, counts, projection, pixels)
    points = Image.fromarray((np.clip(pixels, 0, 1) * 255 + 0.5).astype(np.uint8))
    blurred = np.asarray(points.filter(ImageFilter.GaussianBlur(_GLOW_RADIUS)), np.float32) / 255
    background = np.array(_BACKGROUND, np.float32) / 255
    pixels = np.clip(pixels + _GLOW_SHARE * np.maximum(blurred - background, 0), 0, 1)

    image = Image.new("RGB", (projection.width + _LEGEND_WIDTH, projection.height), _PANEL)
    image.paste(Image.fromarray((pixels * 255 + 0.5).astype(np.uint8)), (0, 0))
    larger = Image.new("RGBA", _larger(image.size))
    pen = ImageDraw.Draw(larger)
    _draw_ring_labels(extent, projection, pen)
    _draw_boxes(scan, projection, pen)
    _draw_sensor(projection, pen)
    _draw_legend(scan, counts, title, lines, image.size, pen)
    overlay = larger.resize(image.size, Image.Resampling.BOX)
    image.paste(overlay, (0, 0), overlay)
    return image


def _larger(size: tuple[int, int]) -> tuple[int, int]:
    return size[0] * _SMOOTH, size[1] * _SMOOTH


def _draw_points(scan: AnnotatedScan, counts: Sequence[ClassCount], projection: _Projection, pixels: _Array) -> None:
    heights = scan.xyz[np.isfinite(scan.xyz[:, 2]), 2]
    low, high = np.quantile(heights, [0.02, 0.95]) if len(heights) else (0.0, 1.0)
    layers = [(scan.ignore_label, _UNLABELLED, 1.0), *((c.id, c.color, c.share) for c in counts)]
    with np.errstate(invalid="ignore"):
        x = projection.sensor[0] - scan.xyz[:, 1] * projection.pixels_per_m
        y = projection.sensor[1] - scan.xyz[:, 0] * projection.pixels_per_m
        inside = (x > -8) & (x < projection.width + 8) & (y > -8) & (y < projection.height + 8)
    inside &= np.isfinite(scan.xyz[:, 2])
    for class_id, color, share in layers:
        of_class = np.flatnonzero(inside & (scan.labels == class_id))
        if len(of_class):
            xyz = scan.xyz[of_class]
            light = np.clip((xyz[:, 2] - low) / max(high - low, 1), 0, 1).astype(np.float32)
            spread = np.minimum(np.hypot(xyz[:, 0], xyz[:, 1]) * _SPREAD_PER_M, _MAX_SPREAD)
            emphasis = next(factor for limit, factor in _RARE if share < limit)
            _draw_layer(x[of_class], y[of_class], light, (_PEN_RADIUS + spread) * emphasis, color, pixels)


def _draw_layer(
    x: _Array, y: _Array, light: _Array, radius: _Array, color: tuple[int, int, int], pixels: _Array
) -> None:
    """Lays one class over the picture. light: 0..1 by a point's height. radius: of each point's pen."""
    margin = math.ceil(2 * float(radius.max())) + 1
    left, top = max(0, int(x.min()) - margin), max(0, int(y.min()) - margin)
    part = pixels[top : max(0, int(y.max()) + margin), left : max(0, int(x.max()) + margin)]
    if part.size == 0:
        return
    density, brightness = (
        _splat(x - left, y - top, radius, weights, part.shape[:2]) for weights in (np.ones_like(light), light)
    )
    brightness /= np.maximum(density, 1e-6)
    alpha = np.where(density < 0.004, 0, 1 - np.exp(-1.1 * density))[..., None]
    crowd = 1 - np.exp(-0.10 * density)  # many points at one place shine
    share = (0.74 + 0.26 * brightness)[..., None]
    shaded = np.array(_BACKGROUND, np.float32) / 255 * (1 - share) + np.array(color, np.float32) / 255 * share
    shaded += (1 - shaded) * (0.30 * crowd * brightness)[..., None]
    part += (shaded - part) * alpha


def _splat(x: _Array, y: _Array, radius: _Array, weights: _Array, shape: tuple[int, ...]) -> _Array:
    """[height, width]: the sum of a bell weight * exp(-r^2 / radius^2) around each point."""
    reach = math.ceil(2 * float(radius.max()))
    steps = np.arange(-reach, reach + 1)
    out = np.zeros(shape[0] * shape[1])
    for begin in range(0, len(x), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        columns, rows = (np.floor(at[chunk]).astype(np.int64)[:, None] + steps for at in (x, y))
        squared = 1 / radius[chunk, None] ** 2
        across = np.exp(-squared * (columns + 0.5 - x[chunk, None]) ** 2) * weights[chunk, None]
        down = np.exp(-squared * (rows + 0.5 - y[chunk, None]) ** 2)
        across[(columns < 0) | (columns >= shape[1])] = 0
        down[(rows < 0) | (rows >= shape[0])] = 0
        index = rows.clip(0, shape[0] - 1)[:, :, None] * shape[1] + columns.clip(0, shape[1] - 1)[:, None, :]
        bells = down[:, :, None] * across[:, None, :]
        out += np.bincount(index.reshape(-1), bells.reshape(-1), minlength=len(out))
    return out.reshape(shape).astype(np.float32)


def _ring_step(extent: Extent) -> float:
    reach = max(extent.max_x, -extent.min_x, extent.max_y, -extent.min_y)
    return next((step for step in (5, 10, 20, 25, 50, 100) if reach / step <= 6), 200)


def _draw_rings(extent: Extent, projection: _Projection, pen: ImageDraw.ImageDraw) -> None:
    reach = math.hypot(max(extent.max_x, -extent.min_x), max(extent.max_y, -extent.min_y))
    x, y = (at * _SMOOTH for at in projection.sensor)
    metres = _ring_step(extent)
    for ring in range(1, int(reach / metres) + 1):
        radius = ring * metres * projection.pixels_per_m * _SMOOTH
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), outline=(*_FAINT_INK, 51), width=3)


def _draw_ring_labels(extent: Extent, projection: _Projection, pen: ImageDraw.ImageDraw) -> None:
    """Ahead of the sensor and behind it, where the rings cross the middle."""
    step = _ring_step(extent)
    for ring in range(1, int(max(extent.max_x, -extent.min_x) / step) + 1):
        for sign in (1, -1):
            y = projection.sensor[1] - sign * ring * step * projection.pixels_per_m
            if 24 <= y <= projection.height - 24:
                text = f"{ring * step:g} m"
                half = _text_width(text, 20) / 2
                x = projection.sensor[0]
                box = [(x - half - 7) * _SMOOTH, (y - 14) * _SMOOTH, (x + half + 7) * _SMOOTH, (y + 14) * _SMOOTH]
                pen.rounded_rectangle(box, 7 * _SMOOTH, fill=(*_BACKGROUND, 184))
                _write(pen, text, x, y, 20, _FAINT_INK, "mm")


def _draw_boxes(scan: AnnotatedScan, projection: _Projection, pen: ImageDraw.ImageDraw) -> None:
    if scan.detections is None:
        return
    for index, footprint in footprints(scan.detections).items():
        color = color_of(int(scan.detections.class_ids[index]), scan.classes)
        alpha = round(255 * (0.4 + 0.6 * min(max(float(scan.detections.scores[index]), 0), 1)))
        for line in footprint.lines():
            ends = [
                (
                    (projection.sensor[0] - float(y) * projection.pixels_per_m) * _SMOOTH,
                    (projection.sensor[1] - float(x) * projection.pixels_per_m) * _SMOOTH,
                )
                for x, y in line
            ]
            pen.line(ends, fill=(*_BACKGROUND, alpha // 2), width=5 * _SMOOTH)
            pen.line(ends, fill=(*color, alpha), width=round(2.4 * _SMOOTH))


def _draw_sensor(projection: _Projection, pen: ImageDraw.ImageDraw) -> None:
    x, y = projection.sensor
    pen.ellipse([(v + d) * _SMOOTH for d in (-13, 13) for v in (x, y)], fill=(*_BACKGROUND, 140))
    arrow = [((x + dx) * _SMOOTH, (y + dy) * _SMOOTH) for dx, dy in ((0, -13), (9, 10), (0, 4), (-9, 10), (0, -13))]
    pen.line(arrow, fill=(255, 255, 255, 255), width=3 * _SMOOTH, joint="curve")


def _draw_legend(
    scan: AnnotatedScan,
    counts: Sequence[ClassCount],
    title: str,
    lines: Sequence[str],
    size: tuple[int, int],
    pen: ImageDraw.ImageDraw,
) -> None:
    left, right = size[0] - _LEGEND_WIDTH + _MARGIN, size[0] - _MARGIN
    y = _MARGIN + 30.0
    _write(pen, _shorten(title, 40, right - left), left, y, 40, _INK)
    y += 14
    for line in lines:
        y += 28
        _write(pen, _shorten(line, 21, right - left), left, y, 21, _FAINT_INK)
    y += 62
    row = 46
    rows = _legend_rows(scan, counts)
    shown = rows[: max(0, int((size[1] - y - 70) / row))]
    for entry in shown:
        _draw_legend_row(entry, max(r.number for r in rows), left, right, y, pen)
        y += row
    unlabelled = len(scan.labels) - sum(count.num_points for count in counts)
    rest = ["boxes, and the best score" if rows else "no boxes"] if scan.detections is not None else []
    rest += [f"{len(rows) - len(shown)} more classes"] if len(shown) < len(rows) else []
    rest += [f"{unlabelled:,} points not labelled"] if unlabelled and scan.detections is None else []
    _write(pen, ", ".join(rest), left, y, 20, _FAINT_INK)
    _write(pen, "seen from above, forward is up", left, size[1] - _MARGIN, 19, _FAINT_INK)


@dataclass(frozen=True)
class _LegendRow:
    name: str
    color: tuple[int, int, int]
    number: int  # of points or boxes
    note: str


def _legend_rows(scan: AnnotatedScan, counts: Sequence[ClassCount]) -> list[_LegendRow]:
    if scan.detections is not None:
        boxes = count_boxes(scan.detections, scan.classes)
        return [_LegendRow(c.name, c.color, c.num_boxes, f"{c.best_score:.2f}") for c in boxes]
    return [_LegendRow(c.name, c.color, c.num_points, "<0.1%" if c.share < 0.001 else f"{c.share:.1%}") for c in counts]


def _draw_legend_row(
    row: _LegendRow, largest: int, left: float, right: float, y: float, pen: ImageDraw.ImageDraw
) -> None:
    def box(x0: float, y0: float, x1: float, y1: float, radius: float, fill: tuple[int, ...]) -> None:
        pen.rounded_rectangle([v * _SMOOTH for v in (x0, y0, x1, y1)], radius * _SMOOTH, fill=fill)

    box(left, y - 16, left + 18, y + 2, 5, row.color)
    _write(pen, _shorten(row.name, 23, 190), left + 32, y, 23, _INK)
    _write(pen, f"{row.number:,}", right - 86, y, 23, _FAINT_INK, "rs")
    _write(pen, row.note, right, y, 23, _INK, "rs")
    box(left + 32, y + 9, right, y + 13, 2, (*_FAINT_INK, 33))
    bar = max((right - left - 32) * row.number / largest, 4)
    box(left + 32, y + 9, left + 32 + bar, y + 13, 2, (*row.color, 242))


def _write(
    pen: ImageDraw.ImageDraw, text: str, x: float, y: float, size: int, color: tuple[int, int, int], anchor: str = "ls"
) -> None:
    """anchor: Pillow's; "ls" is the left end of the baseline."""
    from PIL import ImageFont

    font = ImageFont.load_default(size * _SMOOTH)
    pen.text((x * _SMOOTH, y * _SMOOTH), text, fill=(*color, 255), font=font, anchor=anchor)


def _text_width(text: str, size: int) -> float:
    from PIL import ImageFont

    return float(ImageFont.load_default(size * _SMOOTH).getlength(text)) / _SMOOTH


def _shorten(text: str, size: int, width: float) -> str:
    """Cuts what does not fit, with "..."."""
    if _text_width(text, size) <= width:
        return text
    while text and _text_width(text + "...", size) > width:
        text = text[:-1]
    return text + "..."
