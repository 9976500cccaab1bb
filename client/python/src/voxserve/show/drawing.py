"""Draws clouds, labels and boxes: what picture(), plot() and a notebook show."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.inputs import PointsLike
from voxserve.point_cloud import PointCloud
from voxserve.results import Detections, Segmentation
from voxserve.show import colours, html
from voxserve.show import plot as plots
from voxserve.show.picture import Colour, Picture, from_above


def picture_of_cloud(cloud: PointCloud, size: int) -> Picture:
    """Returns the picture of a cloud, coloured by height."""
    positions = positions_of(cloud)
    index, palette = colours.of_heights(positions[:, 2])
    return from_above(positions, index, palette, size=size)


def picture_of(result: Segmentation | Detections, points: PointsLike | None, size: int) -> Picture:
    """Returns the picture of labels, or of boxes over points in grey. points: as in Source.cloud."""
    positions = positions_of(result.source.cloud(points))
    if isinstance(result, Detections):
        order = np.argsort(result.scores, kind="stable")  # the surest box lies over the others
        index, palette = colours.of_labels(result.class_ids[order], -1, result.classes)
        grey = np.zeros(len(positions), np.intp)
        return from_above(positions, grey, palette, result.boxes[order], index, size)
    if len(positions) != len(result.labels):
        raise ValueError(f"{len(result.labels)} labels, but {len(positions)} points")
    index, palette = colours.of_labels(result.labels, result.ignore_label, result.classes)
    return from_above(positions, index, palette, size=size)


def plot(result: Segmentation | Detections, points: PointsLike | None, ax: Any) -> Any:
    """Draws into matplotlib's Axes and returns them."""
    picture = picture_of(result, points, 800)
    legend = [(name, colour) for name, colour, _ in _rows_of(result)]
    what = f"{len(result)} boxes" if isinstance(result, Detections) else f"{len(result.labels):,} points"
    return plots.draw(picture, f"{what} by {result.model}", legend, ax)


def html_of(result: Segmentation | Detections) -> str:
    """Returns the HTML of a notebook's cell. It has no picture if the points are not in memory any more."""
    note, picture, rows = "", None, _rows_of(result)  # the text has the names that the rows have asked for
    try:
        picture = picture_of(result, None, 400)
    except ValueError as error:
        note = f"No picture: {error}, as in result.picture(points)."
    return html.of_answer(repr(result), picture, rows, note)


def positions_of(cloud: PointCloud) -> npt.NDArray[np.float32]:
    """Returns float32 [N, 3], in metres. ValueError if the cloud lacks x, y or z."""
    return np.stack([cloud.values(name) for name in ("x", "y", "z")], axis=1)


def _rows_of(result: Segmentation | Detections) -> list[tuple[str, Colour, str]]:
    """Returns the name, the colour and the number of each class, the most frequent first."""
    ids = {name: class_id for class_id, name in result.class_names.items()}
    if isinstance(result, Detections):
        ids |= {name: class_id for name, class_id in zip(result.names, result.class_ids.tolist(), strict=True) if name}
    rows = []
    for name, number in result.count_by_class().items():
        class_id = ids[name] if name in ids else int(name.removeprefix("class "))
        rows.append((name, colours.colour_of(class_id, result.classes), f"{number:,}"))
    return rows
