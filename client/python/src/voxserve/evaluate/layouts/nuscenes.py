"""Reads nuScenes (Caesar et al. 2020) and folders like it, such as Lyft's: the tables of v1.*, and samples/, sweeps/
and lidarseg/. A root with several versions is opened by the folder of one, such as nuscenes/v1.0-mini.

A category that is not in the detection task or lidarseg keeps its own name. It is counted, and --classes may name it.

A scan of LIDAR_TOP has five float32 a point: x, y, z, intensity and ring, as the devkits read it
(nuscenes/utils/data_classes.py, LidarPointCloud.from_file; Lyft's is the same), whether its name ends in .pcd.bin or
.bin.

Points and boxes are in the coordinates of LIDAR_TOP (x right, y forward). With --sweeps, the points of the sweeps
before a key frame are transformed into the key frame's coordinates, as in the usual training. The field "age" then
holds a point's age in seconds; evaluate.command renames it to the model's feature for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from voxserve import field_spec, input_file, readers
from voxserve.evaluate.classes import plain
from voxserve.evaluate.truth import Array, Dataset, DatasetError, Frame, Scan, TrueBoxes
from voxserve.numbers import integer
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
_BY_PLAIN_NAME = {plain(name): name for name in RANGES}
_POINT = field_spec.parse(readers.NUSCENES_LAYOUT)


@dataclass(frozen=True)
class _Tables:
    folder: Path
    rows: dict[str, dict[str, Any]]  # by table and token
    key_scans: dict[str, Any]  # sample token -> its sample_data of LIDAR_TOP
    annotations: dict[str, list[Any]]  # sample token -> its annotations
    labels: dict[str, str]  # sample_data token -> file of lidarseg


def is_dataset(folder: Path) -> bool:
    """Returns whether the folder has this layout, or is the folder of a version in one that has."""
    return bool(_versions(folder))


def open_dataset(folder: Path, num_sweeps: int = 1) -> Dataset:
    """Opens the folder. Raises DatasetError if it has several versions, or its tables are incomplete or contradict each
    other.
    """
    versions = _versions(folder)
    if len(versions) != 1:
        raise DatasetError(
            f"{folder} has {len(versions)} versions, {', '.join(p.name for p in versions)}: name the one to read, such "
            f"as {versions[0]}"
        )
    names = ("sample", "sample_data", "calibrated_sensor", "ego_pose", "sensor", "scene", "category")
    rows = {name: {row["token"]: row for row in _table(versions[0] / f"{name}.json")} for name in names}
    optional = {"sample_annotation", "instance", "lidarseg"}
    more = {name: _table(versions[0] / f"{name}.json") for name in optional if (versions[0] / f"{name}.json").is_file()}
    rows.update({name: {row["token"]: row for row in table} for name, table in more.items()})
    try:
        return _open(versions[0].parent, versions[0], rows, num_sweeps)
    except KeyError as error:
        raise DatasetError(f"{versions[0]}: a table names {error}, which is nowhere") from None


def _versions(folder: Path) -> list[Path]:
    """Returns the folders of tables: those in the folder, or itself."""
    if (folder / "sample.json").is_file() and (folder / "sample_data.json").is_file():
        return [folder.resolve()]
    return sorted(path.parent for path in folder.glob("v1.*/sample.json"))


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
        read = partial(_read_frame, version, tables, row["token"], num_sweeps)
        frames.append(Frame(name, index, read, key_scans[row["token"]]["token"] in labels))
    of_category = {str(row["name"]): _label_class(str(row["name"])) for row in rows["category"].values()}
    categories = _by_index(version, rows["category"].values()) if labels else {}
    label_names = {index: str(of_category[name]) for index, name in categories.items() if of_category[name]}
    others = {index: name for index, name in categories.items() if not of_category[name]}
    notes = []
    if labels and not categories:
        notes.append(
            f"{version / 'category.json'} has no index, as the one of nuScenes-lidarseg has: no label has a name"
        )
    alone = labels.keys() - {row["token"] for row in key_scans.values()}
    if alone:
        notes.append(f"{version / 'lidarseg.json'}: {len(alone)} label files are of no key frame of LIDAR_TOP")
    names = dict.fromkeys(RANGES)
    names.update(dict.fromkeys(_box_class(_category(tables, row)) for rows in annotations.values() for row in rows))
    return Dataset(
        "nuscenes",
        frames,
        label_names,
        tuple(name for name in names if name != _RACK) if annotations else (),
        _ALIASES,
        RANGES,
        other_labels=others,
        notes=tuple(notes),
    )


def _by_index(version: Path, categories: Iterable[dict[str, Any]]) -> dict[int, str]:
    """Returns the categories of points by their labels; none if the table has no labels."""
    names: dict[int, str] = {}
    for row in categories:
        if "index" not in row:
            continue
        try:
            index = integer(str(row["index"]))
        except ValueError:
            raise DatasetError(f"{version / 'category.json'}: the index {row['index']!r} is no number") from None
        name = str(row["name"])
        if names.setdefault(index, name) != name:
            raise DatasetError(f"{version / 'category.json'}: {names[index]} and {name} have the index {index}")
    return names


def _box_class(category: str) -> str:
    """Returns the class of a box's category: one of the detection task's, or the category itself."""
    name = category.strip()
    return _CATEGORIES.get(name.lower()) or _BY_PLAIN_NAME.get(plain(name)) or name


def _label_class(category: str) -> str | None:
    """Returns the class of a point's category; None if nuScenes-lidarseg's benchmark has none for it."""
    name = category.strip().lower()
    return _CATEGORIES.get(name) or _LIDARSEG.get(name)


def _table(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise DatasetError(f"{path}: no such file; nuScenes' tables have it")
    try:
        table = input_file.parse_json(input_file.read(path))
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
    cloud = _cloud(tables, scan)
    labels = boxes = None
    if with_labels:
        path = _named(tables.folder / tables.labels[scan["token"]])
        labels = np.frombuffer(input_file.read(path, input_file.MAX_SCAN_BYTES), np.uint8).astype(np.int64)
        if len(labels) != cloud.num_points:
            raise DatasetError(f"{path}: {len(labels)} labels, but {scan['filename']} has {cloud.num_points} points")
    if with_boxes:
        boxes = _boxes(tables, sample, scan)
    if num_sweeps > 1:
        cloud = _merged(tables, scan, cloud, num_sweeps)
    sensor = _matrix(tables.rows["calibrated_sensor"][scan["calibrated_sensor_token"]])
    x, y, _, _ = np.linalg.inv(sensor)[:, 3].tolist()
    return Scan(cloud, labels, boxes, origin=(x, y))  # distances are measured from the vehicle, not from the sensor


def _cloud(tables: _Tables, scan: dict[str, Any]) -> PointCloud:
    """Reads a scan of LIDAR_TOP. Raises DatasetError if it cannot have five numbers a point."""
    path = _named(tables.folder / scan["filename"])
    if not path.name.lower().endswith(".bin"):
        return readers.read(path)
    contents = input_file.read(path, input_file.MAX_SCAN_BYTES)
    if len(contents) % _POINT.point_step:
        raise DatasetError(
            f"{path}: {len(contents)} bytes are not a whole number of points of five float32 (x, y, z, intensity, "
            "ring), as nuScenes and Lyft store LIDAR_TOP: convert the scans"
        )
    cloud = readers.read_packed(contents, _POINT)
    is_plain = not path.name.lower().endswith(".pcd.bin")
    if is_plain and len(contents) % 16 == 0:  # as many bytes could be points of four numbers: is the fifth a ring?
        ring = cloud.values("ring")
        if not (np.isfinite(ring) & (ring >= 0) & (ring == np.rint(ring))).all():
            raise DatasetError(
                f"{path}: the fifth number of its points is no ring, as it is in nuScenes' and Lyft's scans, so the "
                "points seem to have four numbers: convert the scans to x, y, z, intensity, ring"
            )
    return cloud


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
        values = cloud if index == 0 else _cloud(tables, other)
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
    """Returns the boxes, and the bicycle racks."""
    world_to_scan = np.linalg.inv(_to_world(tables, scan))
    boxes, names, velocities, counts = [], [], [], []
    racks: list[Array] = []
    for row in tables.annotations.get(sample, []):
        name = _box_class(_category(tables, row))
        pose = world_to_scan @ _matrix(row)
        width, length, height = row["size"]
        box = np.array([*pose[:3, 3], length, width, height, np.arctan2(pose[1, 0], pose[0, 0])])
        if name == _RACK:
            racks.append(box)
            continue
        boxes.append(box)
        names.append(name)
        velocities.append((world_to_scan[:3, :3] @ _velocity(tables, row))[:2])
        counts.append(row["num_lidar_pts"] + row.get("num_radar_pts", 0) if "num_lidar_pts" in row else -1)
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
