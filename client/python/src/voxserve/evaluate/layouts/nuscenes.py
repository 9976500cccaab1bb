"""Reads nuScenes (Caesar et al. 2020): the tables of v1.0-*, and samples/, sweeps/ and lidarseg/.

Points and boxes are in the coordinates of LIDAR_TOP (x right, y forward). With --sweeps, the points of the sweeps
before a key frame are transformed into the key frame's coordinates, as in the usual training. The field "age" then
holds a point's age in seconds; evaluate.command renames it to the model's feature for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from voxserve import readers
from voxserve.evaluate.truth import Array, Dataset, DatasetError, Frame, Scan, TrueBoxes
from voxserve.point_cloud import PointCloud
from voxserve.pose import Pose

RANGES = {  # class -> the range of nuScenes' detection task, metres
    "car": 50.0, "truck": 50.0, "bus": 50.0, "trailer": 50.0, "construction_vehicle": 50.0, "pedestrian": 40.0,
    "motorcycle": 40.0, "bicycle": 40.0, "traffic_cone": 30.0, "barrier": 30.0,
}  # fmt: skip
_CATEGORIES = {  # category of a box -> class of the detection task
    "movable_object.barrier": "barrier", "vehicle.bicycle": "bicycle", "vehicle.bus.bendy": "bus",
    "vehicle.bus.rigid": "bus", "vehicle.car": "car", "vehicle.construction": "construction_vehicle",
    "vehicle.motorcycle": "motorcycle", "human.pedestrian.adult": "pedestrian",
    "human.pedestrian.child": "pedestrian", "human.pedestrian.construction_worker": "pedestrian",
    "human.pedestrian.police_officer": "pedestrian", "movable_object.trafficcone": "traffic_cone",
    "vehicle.trailer": "trailer", "vehicle.truck": "truck",
}  # fmt: skip
_LIDARSEG = {  # category of a point -> class, besides _CATEGORIES
    "flat.driveable_surface": "driveable_surface", "flat.other": "other_flat", "flat.sidewalk": "sidewalk",
    "flat.terrain": "terrain", "static.manmade": "manmade", "static.vegetation": "vegetation",
}  # fmt: skip
_ALIASES = {
    "pedestrian": ("person",),
    "bicycle": ("two-wheeler", "cyclist"),
    "motorcycle": ("two-wheeler",),
    "bus": ("other-vehicle",),
    "trailer": ("other-vehicle",),
    "construction_vehicle": ("other-vehicle",),
    "traffic_cone": ("cone-barrier",),
    "barrier": ("cone-barrier",),
    "driveable_surface": ("road",),
    "manmade": ("building",),
}
_MICROSECONDS = 1e-6
_VELOCITY_SECONDS = 1.5  # the longest time between two annotations of an object from which a velocity is computed
_RACK = "static_object.bicycle_rack"


@dataclass(frozen=True)
class _Tables:
    folder: Path
    rows: dict[str, dict[str, Any]]  # by table and token
    key_scans: dict[str, Any]  # sample token -> its sample_data of LIDAR_TOP
    annotations: dict[str, list[Any]]  # sample token -> its annotations
    labels: dict[str, str]  # sample_data token -> file of lidarseg


def is_dataset(folder: Path) -> bool:
    """Returns whether the folder has this layout."""
    return any(folder.glob("v1.0-*/sample.json"))


def open_dataset(folder: Path, num_sweeps: int = 1) -> Dataset:
    """Opens the folder. Raises DatasetError if tables are missing or contradict each other."""
    versions = sorted(path.parent for path in folder.glob("v1.0-*/sample.json"))
    if len(versions) != 1:
        raise DatasetError(f"{folder}: {len(versions)} versions ({', '.join(p.name for p in versions)}); one is needed")
    names = ("sample", "sample_data", "calibrated_sensor", "ego_pose", "sensor", "scene", "category")
    rows = {name: {row["token"]: row for row in _table(versions[0] / f"{name}.json")} for name in names}
    optional = {"sample_annotation", "instance", "lidarseg"}
    more = {name: _table(versions[0] / f"{name}.json") for name in optional if (versions[0] / f"{name}.json").is_file()}
    rows.update({name: {row["token"]: row for row in table} for name, table in more.items()})
    try:
        return _open(folder, versions[0], rows, num_sweeps)
    except KeyError as error:
        raise DatasetError(f"{versions[0]}: a table names {error}, which is nowhere") from None


def _open(folder: Path, version: Path, rows: dict[str, dict[str, Any]], num_sweeps: int) -> Dataset:
    key_scans: dict[str, Any] = {}
    for row in rows["sample_data"].values():
        sensor = rows["sensor"][rows["calibrated_sensor"][row["calibrated_sensor_token"]]["sensor_token"]]
        if sensor["channel"] == "LIDAR_TOP" and row["is_key_frame"]:
            key_scans[row["sample_token"]] = row
    annotations: dict[str, list[Any]] = {}
    for row in rows.get("sample_annotation", {}).values():
        annotations.setdefault(row["sample_token"], []).append(row)
    labels = {row["sample_data_token"]: row["filename"] for row in rows.get("lidarseg", {}).values()}
    tables = _Tables(folder, rows, key_scans, annotations, labels)
    samples = sorted(
        rows["sample"].values(), key=lambda row: (rows["scene"][row["scene_token"]]["name"], row["timestamp"])
    )
    frames = []
    for index, row in enumerate(samples):
        if row["token"] not in key_scans:
            raise DatasetError(f"{version / 'sample_data.json'}: sample {row['token']} has no scan of LIDAR_TOP")
        name = f"{rows['scene'][row['scene_token']]['name']}/{row['token']}"
        frames.append(Frame(name, index, partial(_read_frame, version, tables, row["token"], num_sweeps)))
    label_names = {}
    if labels:
        known = _CATEGORIES | _LIDARSEG
        label_names = {row["index"]: known[row["name"]] for row in rows["category"].values() if row["name"] in known}
    box_names = tuple(RANGES) if annotations else ()
    return Dataset("nuscenes", frames, label_names, box_names, _ALIASES, RANGES)


def _table(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise DatasetError(f"{path}: no such file; nuScenes' tables have it")
    try:
        table = json.loads(path.read_text())
    except ValueError as error:
        raise DatasetError(f"{path}: not JSON: {error}") from None
    if not isinstance(table, list) or not all(isinstance(row, dict) and "token" in row for row in table):
        raise DatasetError(f"{path}: not a list of objects with tokens")
    return table


def _matrix(row: dict[str, Any]) -> Array:
    return Pose(tuple(row["translation"]), tuple(row["rotation"])).matrix()


def _to_world(tables: _Tables, scan: dict[str, Any]) -> Array:
    sensor = tables.rows["calibrated_sensor"][scan["calibrated_sensor_token"]]
    return _matrix(tables.rows["ego_pose"][scan["ego_pose_token"]]) @ _matrix(sensor)


def _read_frame(
    version: Path, tables: _Tables, sample: str, num_sweeps: int, with_labels: bool, with_boxes: bool
) -> Scan:
    try:
        return _read(tables, sample, num_sweeps, with_labels, with_boxes)
    except KeyError as error:
        raise DatasetError(f"{version}: a table names {error}, which is nowhere") from None


def _read(tables: _Tables, sample: str, num_sweeps: int, with_labels: bool, with_boxes: bool) -> Scan:
    scan = tables.key_scans[sample]
    cloud = readers.read(_named(tables.folder / scan["filename"]))
    labels = boxes = None
    if with_labels:
        if scan["token"] not in tables.labels:
            raise DatasetError(f"lidarseg.json has no labels of {scan['filename']}")
        path = _named(tables.folder / tables.labels[scan["token"]])
        labels = np.fromfile(path, np.uint8).astype(np.int64)
        if len(labels) != cloud.num_points:
            raise DatasetError(f"{path}: {len(labels)} labels, but {scan['filename']} has {cloud.num_points} points")
    if with_boxes:
        boxes = _boxes(tables, sample, scan)
    if num_sweeps > 1:
        cloud = _merged(tables, scan, cloud, num_sweeps)
    sensor = _matrix(tables.rows["calibrated_sensor"][scan["calibrated_sensor_token"]])
    x, y, _, _ = np.linalg.inv(sensor)[:, 3].tolist()
    return Scan(cloud, labels, boxes, origin=(x, y))  # distances are measured from the vehicle, not from the sensor


def _named(path: Path) -> Path:
    if not path.is_file():
        raise DatasetError(f"{path}: no such file, but the tables name it")
    return path


def _merged(tables: _Tables, scan: dict[str, Any], cloud: PointCloud, num_sweeps: int) -> PointCloud:
    """Returns the key frame's points, followed by those of the num_sweeps - 1 sweeps before it, in the key frame's
    coordinates. Leaves out the earlier sweeps' points on the vehicle itself: those with |x| and |y| below 1 m.
    """
    world_to_scan = np.linalg.inv(_to_world(tables, scan))
    parts = []
    other: dict[str, Any] = scan
    for index in range(num_sweeps):
        values = cloud if index == 0 else readers.read(_named(tables.folder / other["filename"]))
        points = np.stack([values.values(axis) for axis in ("x", "y", "z")], axis=1).astype(np.float64)
        age = (scan["timestamp"] - other["timestamp"]) * _MICROSECONDS
        keep = np.ones(len(points), bool)
        if index:
            keep = ~((np.abs(points[:, 0]) < 1) & (np.abs(points[:, 1]) < 1))
            move = world_to_scan @ _to_world(tables, other)
            points = points @ move[:3, :3].T + move[:3, 3]
        columns = (points, values.values("intensity")[:, None], np.full((len(points), 1), age))
        parts.append(np.concatenate(columns, axis=1)[keep])
        if not other["prev"]:
            break
        other = tables.rows["sample_data"][other["prev"]]
    merged = np.concatenate(parts).astype(np.float32)
    names = ("x", "y", "z", "intensity", "age")
    return PointCloud.from_array(merged, list(names))


def _boxes(tables: _Tables, sample: str, scan: dict[str, Any]) -> TrueBoxes:
    """Returns the boxes of the detection task's classes, and the bicycle racks."""
    world_to_scan = np.linalg.inv(_to_world(tables, scan))
    boxes, names, velocities, counts = [], [], [], []
    racks: list[Array] = []
    for row in tables.annotations.get(sample, []):
        category = _category(tables, row)
        name = _CATEGORIES.get(category)
        if name is None and category != _RACK:
            continue
        pose = world_to_scan @ _matrix(row)
        width, length, height = row["size"]
        box = np.array([*pose[:3, 3], length, width, height, np.arctan2(pose[1, 0], pose[0, 0])])
        if name is None:
            racks.append(box)
            continue
        boxes.append(box)
        names.append(name)
        velocities.append((world_to_scan[:3, :3] @ _velocity(tables, row))[:2])
        counts.append(row["num_lidar_pts"] + row["num_radar_pts"])
    return TrueBoxes(
        np.array(boxes, np.float64).reshape(-1, 7),
        tuple(names),
        np.array(velocities, np.float64).reshape(-1, 2),
        np.array(counts, np.int64),
        racks=np.array(racks, np.float64).reshape(-1, 7),
    )


def _category(tables: _Tables, row: dict[str, Any]) -> str:
    instance = tables.rows["instance"][row["instance_token"]]
    return str(tables.rows["category"][instance["category_token"]]["name"])


def _velocity(tables: _Tables, row: dict[str, Any]) -> Array:
    """Returns an object's velocity in the world's coordinates, [3] in metres per second, from the annotations of the
    object before and after this one. It is NaN if there is neither, or if they are too far apart in time.
    """
    rows = tables.rows["sample_annotation"]
    first = rows[row["prev"]] if row["prev"] else row
    last = rows[row["next"]] if row["next"] else row
    samples = tables.rows["sample"]
    seconds = _MICROSECONDS * (samples[last["sample_token"]]["timestamp"] - samples[first["sample_token"]]["timestamp"])
    longest = _VELOCITY_SECONDS * (2 if row["prev"] and row["next"] else 1)
    if first is last or not 0 < seconds <= longest:
        return np.full(3, np.nan)
    velocity: Array = (np.array(last["translation"], np.float64) - np.array(first["translation"], np.float64)) / seconds
    return velocity
