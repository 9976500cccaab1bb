"""Reads PandaSet (Hesai and Scale AI; https://pandaset.org) in one of two layouts:

- as the devkit reads it: NNN/lidar/FF.pkl.gz, lidar/poses.json, annotations/semseg/FF.pkl.gz and cuboids/FF.pkl.gz, in
  a folder with one sequence or a folder of sequences;
- unpacked: FF.bin (float32 x, y, z, intensity 0..255, sensor) and FF.label (uint32) in the vehicle's coordinates, with
  classes.json.

Only the points of the spinning scanner, the Pandar64, are used. They are transformed into its coordinates: x forward,
y left, z up, where the road is near z = -2.25 m.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve import input_file, label_file
from voxserve.evaluate.layouts import dataframe
from voxserve.evaluate.overlaps import count_inside
from voxserve.evaluate.truth import Array, Dataset, DatasetError, Frame, Scan, TrueBoxes
from voxserve.point_cloud import PointCloud
from voxserve.pose import Pose

# The scanner's position (metres) and its upward axis in the vehicle's coordinates (x right, y forward). The devkit does
# not contain them. They were fitted to the Pandar64's published elevation angles (deploy/models/minkunet).
_ORIGIN = np.array([0.0002, 0.7789, 1.8592])
_UP = np.array([-0.0005, -0.0157, 1.0])

_VEHICLE = ("other-vehicle", "vehicle")
_CYCLE = ("two-wheeler", "cyclist")
_CONE = ("cone-barrier",)
_NAMES: dict[str, tuple[str, ...]] = {  # class -> names of coarser classes that a model may have for it
    "Smoke": (),
    "Exhaust": (),
    "Spray or rain": (),
    "Reflection": (),
    "Vegetation": (),
    "Ground": ("sidewalk",),
    "Road": ("driveable_surface",),
    "Lane Line Marking": ("road", "driveable_surface"),
    "Stop Line Marking": ("road", "driveable_surface"),
    "Other Road Marking": ("road", "driveable_surface"),
    "Sidewalk": (),
    "Driveway": ("sidewalk",),
    "Car": ("vehicle",),
    "Pickup Truck": ("pickup", "truck", "vehicle"),
    "Medium-sized Truck": ("truck", "vehicle"),
    "Semi-truck": ("truck", "vehicle"),
    "Towed Object": ("trailer", "truck", "vehicle"),
    "Motorcycle": _CYCLE,
    "Other Vehicle - Construction Vehicle": ("construction_vehicle", *_VEHICLE),
    "Other Vehicle - Uncommon": _VEHICLE,
    "Other Vehicle - Pedicab": _CYCLE,
    "Emergency Vehicle": _VEHICLE,
    "Bus": _VEHICLE,
    "Personal Mobility Device": _CYCLE,
    "Motorized Scooter": _CYCLE,
    "Bicycle": _CYCLE,
    "Train": _VEHICLE,
    "Trolley": _VEHICLE,
    "Tram / Subway": _VEHICLE,
    "Pedestrian": ("person",),
    "Pedestrian with Object": ("pedestrian", "person"),
    "Animals - Bird": (),
    "Animals - Other": (),
    "Pylons": _CONE,
    "Road Barriers": ("barrier", *_CONE),
    "Signs": ("sign", "traffic-sign"),
    "Cones": ("traffic_cone", *_CONE),
    "Construction Signs": _CONE,
    "Temporary Construction Barriers": ("barrier", *_CONE),
    "Rolling Containers": _CONE,
    "Building": ("manmade",),
    "Other Static Object": ("other-static", "manmade"),
}
_LABELS = dict(enumerate(_NAMES, 1))  # label -> class
_BOX_NAMES = tuple(_NAMES)[12:40]  # from Car to Rolling Containers: ground and buildings have no boxes


def is_dataset(folder: Path) -> bool:
    """Returns whether the folder has this layout."""
    return (folder / "classes.json").is_file() or bool(_sequences(folder))


def open_dataset(folder: Path, _num_sweeps: int = 1) -> Dataset:
    """Opens the folder. Raises DatasetError if its files cannot be read."""
    if (folder / "classes.json").is_file():
        frames = [_unpacked_frame(path) for path in sorted(folder.glob("*.bin"))]
        has_labels, has_boxes = any(folder.glob("*.label")), False
    else:
        frames = []
        for sequence in _sequences(folder):
            frames += _frames(sequence, "" if sequence == folder else f"{sequence.name}/")
        has_labels, has_boxes = any(f.has_labels for f in frames), any(f.has_boxes for f in frames)
    labels, boxes = _LABELS if has_labels else {}, _BOX_NAMES if has_boxes else ()
    return Dataset("pandaset", frames, labels, boxes, _NAMES, names_are_open=True)


def _sequences(folder: Path) -> list[Path]:
    return [path for path in (folder, *sorted(folder.iterdir())) if (path / "lidar" / "poses.json").is_file()]


def sensor_axes() -> Array:
    """Returns the scanner's axes x, y and z in the vehicle's coordinates as rows: [3, 3]. Its x axis is the vehicle's y
    axis, turned to be perpendicular to the scanner's z axis.
    """
    up = _UP / np.linalg.norm(_UP)
    forward = np.array([0.0, 1.0, 0.0]) - up[1] * up
    forward /= np.linalg.norm(forward)
    return np.stack([forward, np.cross(up, forward), up])


def _to_cloud(points: Array, intensity: npt.NDArray[Any]) -> PointCloud:
    """Returns the cloud, in the scanner's coordinates, of points [N, 3] in the vehicle's coordinates. intensity: [N],
    0..255.
    """
    moved = (points - _ORIGIN) @ sensor_axes().T
    columns = np.concatenate([moved, np.asarray(intensity, np.float64)[:, None] / 255], axis=1)
    return PointCloud.from_array(columns.astype(np.float32))


def _number(path: Path) -> int | None:
    stem = path.name.split(".")[0]
    return int(stem) if stem.isascii() and stem.isdigit() else None


def _unpacked_frame(path: Path) -> Frame:
    def read(with_labels: bool, _with_boxes: bool) -> Scan:
        contents = input_file.read(path, input_file.MAX_SCAN_BYTES)
        if len(contents) % 20:
            raise DatasetError(f"{path}: {len(contents)} bytes are not a whole number of points of five float32")
        values = np.frombuffer(contents, "<f4").reshape(-1, 5)
        spins = values[:, 4] == 0
        labels = None
        if with_labels:
            labels = label_file.read(_there(path.with_suffix(".label")), len(values))[spins]
        return Scan(_to_cloud(values[spins, :3].astype(np.float64), values[spins, 3]), labels)

    return Frame(path.stem, _number(path), read)


def _there(path: Path) -> Path:
    if not path.is_file():
        raise DatasetError(f"{path}: no such file, but the scan of this frame is there")
    return path


def _frames(sequence: Path, prefix: str) -> list[Frame]:
    poses = _poses(sequence / "lidar" / "poses.json")
    annotations = sequence / "annotations"
    has_labels, has_boxes = (annotations / "semseg").is_dir(), (annotations / "cuboids").is_dir()
    frames = []
    for path in sorted((sequence / "lidar").glob("*.pkl.gz")):
        number = _number(path)
        if number is None or number >= len(poses):
            raise DatasetError(f"{path}: poses.json has {len(poses)} poses, none for this frame")
        read = partial(_read, sequence, path.name, poses[number])
        frames.append(Frame(prefix + path.name.split(".")[0], number, read, has_labels, has_boxes))
    return frames


def _poses(path: Path) -> list[Array]:
    """Returns each frame's transform from the vehicle to the world, [4, 4]."""
    try:
        entries = input_file.parse_json(input_file.read(path))
        return [
            Pose(
                (entry["position"]["x"], entry["position"]["y"], entry["position"]["z"]),
                tuple(entry["heading"][k] for k in "wxyz"),
            ).matrix()
            for entry in entries
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{path}: not a list of poses ({type(error).__name__}: {error})") from None


def _column(table: dict[str, npt.NDArray[Any]], name: str, path: Path) -> Array:
    if name not in table:
        raise DatasetError(f"{path}: the table has no column '{name}'; it has {', '.join(table)}")
    return np.asarray(table[name], np.float64)


def _read(sequence: Path, name: str, pose: Array, with_labels: bool, with_boxes: bool) -> Scan:
    rotation, translation = pose[:3, :3], pose[:3, 3]
    path = sequence / "lidar" / name
    table = dataframe.read(path)
    points = np.stack([_column(table, axis, path) for axis in "xyz"], axis=1)
    spins = _column(table, "d", path) == 0
    cloud = _to_cloud((points[spins] - translation) @ rotation, _column(table, "i", path)[spins])
    labels = boxes = None
    if with_labels:
        place = _there(sequence / "annotations" / "semseg" / name)
        classes = _column(dataframe.read(place), "class", place)
        labels = np.where(np.isfinite(classes), classes, -1).astype(np.int64)
        if len(labels) != len(points):
            raise DatasetError(f"{place}: {len(labels)} labels, but {path} has {len(points)} points")
        labels = labels[spins]
    if with_boxes:
        boxes = _boxes(_there(sequence / "annotations" / "cuboids" / name), rotation, translation, cloud)
    return Scan(cloud, labels, boxes)


def _boxes(path: Path, rotation: Array, translation: Array, cloud: PointCloud) -> TrueBoxes:
    table = dataframe.read(path)
    value: Callable[[str], Array] = partial(_column, table, path=path)
    if "label" not in table:
        raise DatasetError(f"{path}: the table has no column 'label'; it has {', '.join(table)}")
    centres = np.stack([value(f"position.{axis}") for axis in "xyz"], axis=1)
    axes = sensor_axes()
    centres = ((centres - translation) @ rotation - _ORIGIN) @ axes.T
    yaw = value("yaw")  # 0 for a box whose front points along the world's y axis
    headings = np.stack([-np.sin(yaw), np.cos(yaw), np.zeros_like(yaw)], axis=1) @ rotation @ axes.T
    boxes = np.concatenate(
        [
            centres,
            np.stack([value("dimensions.y"), value("dimensions.x"), value("dimensions.z")], axis=1),
            np.arctan2(headings[:, 1], headings[:, 0])[:, None],
        ],
        axis=1,
    )
    # An object that both scanners see has two boxes. A sensor_id of 1 marks those of the forward-looking PandarGT.
    spins = value("cuboids.sensor_id") != 1 if "cuboids.sensor_id" in table else np.ones(len(boxes), bool)
    names = tuple(str(name) for name, keep in zip(table["label"], spins, strict=True) if keep)
    boxes = boxes[spins]
    points = np.stack([cloud.values(axis) for axis in "xyz"], axis=1)
    return TrueBoxes(boxes, names, np.full((len(boxes), 2), np.nan), count_inside(boxes, points))
