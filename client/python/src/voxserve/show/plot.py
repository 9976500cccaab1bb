"""Draws answers with matplotlib: the picture from above with axes in metres, and a legend of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voxserve.show.optional import library
from voxserve.show.picture import Colour, Picture

_MAX_LEGEND = 24


def draw(picture: Picture, title: str, legend: Sequence[tuple[str, Colour]], ax: Any = None) -> Any:
    """Draws into the Axes `ax`, or into those of a new figure, and returns the Axes. legend: names and their colours;
    the first 24 are drawn. ImportError without matplotlib.
    """
    library("matplotlib", "plot()")
    if ax is None:
        ax = library("matplotlib.pyplot", "plot()").subplots(figsize=(7, 5), layout="constrained")[1]
    ax.imshow(picture.rgb(), extent=picture.extent, interpolation="nearest", aspect="equal")
    ax.set(xlabel="x in metres", ylabel="y in metres", title=title)
    patches = library("matplotlib.patches", "plot()")
    handles = [
        patches.Patch(color=[part / 255 for part in colour], label=name) for name, colour in legend[:_MAX_LEGEND]
    ]
    if handles:
        ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1), fontsize="small", frameon=False)
    return ax
