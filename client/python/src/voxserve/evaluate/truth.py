"""Defines the labels and boxes that people gave to a scan, and the parts of a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from voxserve.point_cloud import PointCloud

Array = npt.NDArray[np.float64]


class DatasetError(ValueError):
    """The data set is not as its layout says; the message names the file and what is wrong."""


@dataclass(frozen=True)
class TrueBoxes:
    """Boxes that people drew, in the cloud's coordinates."""

    boxes: Array  # [N, 7], as Detections.boxes
    names: tuple[str, ...]  # [N] the data set's names of classes
    velocities: Array  # [N, 2] metres a second along the cloud's x and y; NaN where unknown
    num_points: npt.NDArray[np.int64]  # [N] points in the box; -1 where unknown
    # Only KITTI has these. [N, 4] left, top, right, bottom in the image; [N] the share of the box outside the image
    # (0..1); [N] KITTI's level of occlusion, 0 to 3.
    image_boxes: Array | None = None
    truncations: Array | None = None
    occlusions: npt.NDArray[np.int64] | None = None
    # Only nuScenes has these: [R, 7] racks, in which bicycles and motorcycles are left out.
    racks: Array | None = None


@dataclass(frozen=True)
class Scan:
    """A scan with its true labels and boxes."""

    cloud: PointCloud
    labels: npt.NDArray[np.int64] | None = None  # [points] keys of Dataset.label_names; others do not count
    boxes: TrueBoxes | None = None
    # KITTI sets it. Projects boxes [N, 7] into the image: [N, 4], NaN if a box is not in it.
    to_image: Callable[[Array], Array] | None = None
    origin: tuple[float, float] = (0.0, 0.0)  # x, y from which a box's distance counts


@dataclass(frozen=True)
class Frame:
    """A scan that is read only when `read` is called."""

    name: str  # "08/000123"
    number: int | None  # that --frames can name
    read: Callable[[bool, bool], Scan]  # (with labels, with boxes); may raise DatasetError or OSError


@dataclass(frozen=True)
class Dataset:
    """The frames of a data set in order, and the classes of its labels and boxes."""

    layout: str
    frames: Sequence[Frame]
    label_names: Mapping[int, str] = field(default_factory=dict)  # classes of points; none: it has no labels
    box_names: tuple[str, ...] = ()  # classes of boxes; none: it has no boxes
    # Names besides a class's own that a model may give it. The first one that the model has is taken.
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ranges: Mapping[str, float] = field(default_factory=dict)  # nuScenes' range of a class, metres
    # KITTI sets it. Maps a class to classes so similar that finding one of them is no error.
    neighbours: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
