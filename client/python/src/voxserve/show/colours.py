"""The colours of classes and of heights in pictures."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from voxserve.show.picture import Colour

if TYPE_CHECKING:
    from voxserve.results import ClassInfo

GREY: Colour = (110, 110, 110)
_NUM_HEIGHTS = 64
_MAX_CLASSES = 249  # a picture has 250 colours; one is for points without a class


def colour_of(class_id: int, classes: Sequence[ClassInfo]) -> Colour:
    """Returns the colour that the model gives a class. A class without one, or with black, gets a colour of its own."""
    own = next((info.color for info in classes if info.id == class_id), (0, 0, 0))
    if own != (0, 0, 0):
        return own
    red, green, blue = colorsys.hsv_to_rgb(class_id * 0.618034 % 1, 0.65, 0.95)
    return round(red * 255), round(green * 255), round(blue * 255)


def of_labels(
    labels: npt.NDArray[np.integer], ignore_label: int, classes: Sequence[ClassInfo]
) -> tuple[npt.NDArray[np.intp], tuple[Colour, ...]]:
    """Returns the points' colours, [N] indices of the palette, and the palette. Points without a class are grey, and so
    are those of classes beyond the 249 with the lowest numbers.
    """
    ids, index = np.unique(labels, return_inverse=True)
    known = [class_id for class_id in ids.tolist() if class_id != ignore_label][:_MAX_CLASSES]
    palette = (GREY, *(colour_of(class_id, classes) for class_id in known))
    place = {class_id: i for i, class_id in enumerate(known, 1)}
    return np.array([place.get(class_id, 0) for class_id in ids.tolist()], np.intp)[index.reshape(-1)], palette


def of_heights(z: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.intp], tuple[Colour, ...]]:
    """Returns colours from blue (low) over green to yellow (high), as of_labels does."""
    palette = []
    for i in range(_NUM_HEIGHTS):
        red, green, blue = colorsys.hsv_to_rgb(
            0.62 - 0.48 * i / (_NUM_HEIGHTS - 1), 0.75, 0.55 + 0.45 * i / _NUM_HEIGHTS
        )
        palette.append((round(red * 255), round(green * 255), round(blue * 255)))
    finite = z[np.isfinite(z)]
    low, high = np.quantile(finite, (0.02, 0.98)) if len(finite) else (0.0, 1.0)
    with np.errstate(invalid="ignore"):
        share = (np.nan_to_num(z.astype(np.float64)) - low) / max(high - low, 1e-6)
    return np.clip(share * _NUM_HEIGHTS, 0, _NUM_HEIGHTS - 1).astype(np.intp), tuple(palette)
