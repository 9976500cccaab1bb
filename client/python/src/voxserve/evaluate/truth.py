"""Defines a data set: its frames, scans, and the true labels and boxes that people gave to the scans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from voxserve.point_cloud import PointCloud

Array = npt.NDArray[np.float64]


class DatasetError(ValueError):
    """The data set contradicts its layout. The message names the file and the problem."""


@dataclass(frozen=True)
class TrueBoxes:
    """The boxes that people drew in a scan, in the cloud's coordinates."""

    boxes: Array  # [N, 7], as Detections.boxes
    names: tuple[str, ...]  # [N] the classes as the data set names them, those that Dataset.box_names lacks included
    velocities: Array  # [N, 2] metres per second along the cloud's x and y; NaN if unknown
    num_points: npt.NDArray[np.int64]  # [N] points in the box; -1 if unknown
    # Only KITTI has the next three.
    image_boxes: Array | None = None  # [N, 4] left, top, right, bottom in the camera's image, pixels
    truncations: Array | None = None  # [N] the part of the box outside the image, 0 to 1
    occlusions: npt.NDArray[np.int64] | None = None  # [N] KITTI's level of occlusion, 0 to 3
    # Only nuScenes has these: [R, 7] bicycle racks. Bicycles and motorcycles in a rack are not evaluated.
    racks: Array | None = None


@dataclass(frozen=True)
class Scan:
    """A scan with its true labels and boxes."""

    cloud: PointCloud
    # [points] keys of Dataset.label_names; points with another label are counted, but not evaluated.
    labels: npt.NDArray[np.int64] | None = None
    boxes: TrueBoxes | None = None
    # Only KITTI sets it. Projects boxes [N, 7] into the camera's image: [N, 4] left, top, right, bottom in pixels; NaN
    # for a box outside the image.
    to_image: Callable[[Array], Array] | None = None
    origin: tuple[float, float] = (0.0, 0.0)  # x, y in the cloud's coordinates from which a box's distance is measured


@dataclass(frozen=True)
class Frame:
    """One scan of a data set. It is not read before `read` is called."""

    name: str  # such as "08/000123"
    number: int | None  # the number by which --frames can name the frame
    read: Callable[[bool, bool], Scan]  # (with labels, with boxes); may raise DatasetError or OSError
    has_labels: bool = True  # whether this frame has labels, where the data set has any
    has_boxes: bool = True  # the same of boxes


@dataclass(frozen=True)
class Dataset:
    """The frames of a data set in order, and the classes of its labels and boxes."""

    layout: str
    frames: Sequence[Frame]
    label_names: Mapping[int, str] = field(default_factory=dict)  # label -> class; empty: the data set has no labels
    box_names: tuple[str, ...] = ()  # the classes of boxes; empty: the data set has no boxes
    # Class -> further names that a model may give to it. The first one that the model has is taken.
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Class -> the largest distance at which boxes are evaluated, metres. Only nuScenes has them.
    ranges: Mapping[str, float] = field(default_factory=dict)
    # Class -> similar classes. To find a similar class instead is no error. Only KITTI sets it.
    neighbours: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Label -> name, of labels that the data set's own benchmark does not evaluate. --classes may name them.
    other_labels: Mapping[int, str] = field(default_factory=dict)
    names_are_open: bool = False  # whether boxes may have classes that box_names lacks and --classes may name
    notes: tuple[
        str, ...
    ] = ()  # what a reader of the report should know of the folder, such as files that are not used
