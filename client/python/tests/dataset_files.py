"""Small labelled data sets for tests, in the layouts of SemanticKITTI, KITTI, nuScenes and PandaSet."""

from __future__ import annotations

import gzip
import json
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def points(number: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Returns random x, y, z within 50 m on each axis, and intensity: [N, 4]."""
    random = np.random.default_rng(seed)
    return np.concatenate([random.uniform(-50, 50, (number, 3)), random.uniform(0, 1, (number, 1))], 1).astype("<f4")


def semantic_kitti(folder: Path, labels: list[int], number: int = 2) -> Path:
    """Writes sequence 08: `number` scans with these raw labels, and instance ids in the labels' high bits."""
    for name in ("velodyne", "labels"):
        (folder / "sequences" / "08" / name).mkdir(parents=True)
    for index in range(number):
        stem = f"{index:06d}"
        points(len(labels), index).tofile(folder / "sequences/08/velodyne" / f"{stem}.bin")
        (np.array(labels, "<u4") | 7 << 16).tofile(folder / "sequences/08/labels" / f"{stem}.label")
    return folder


# A camera that looks along the scanner's x: camera x = -y, y = -z, z = x.
_CALIBRATION = """\
P2: 700 0 600 0 0 700 180 0 0 0 1 0
R0_rect: 1 0 0 0 1 0 0 0 1
Tr_velo_to_cam: 0 -1 0 0 0 0 -1 0 1 0 0 0
"""


def kitti(folder: Path, lines: list[str]) -> Path:
    """Writes one frame whose label_2 file has these lines, and whose points lie on a grid."""
    for name in ("velodyne", "calib", "label_2"):
        (folder / "training" / name).mkdir(parents=True)
    grid = np.stack([*np.meshgrid(np.arange(-30, 30, 1.0), np.arange(-30, 30, 1.0)), np.zeros((60, 60))], -1)
    rows = np.concatenate([grid.reshape(-1, 3), np.full((3600, 1), 0.5)], 1).astype("<f4")
    rows.tofile(folder / "training/velodyne/000007.bin")
    (folder / "training/calib/000007.txt").write_text(_CALIBRATION)
    (folder / "training/label_2/000007.txt").write_text("\n".join(lines) + "\n")
    return folder


def nuscenes(folder: Path, labels: list[int], annotations: list[dict[str, Any]]) -> Path:
    """Writes two key frames half a second apart, with a sweep between them. The vehicle drives 5 m along x in that
    time.

    annotations: token, category, translation, size (width, length, height), prev, next, sample (0 or 1), num_lidar_pts.
    """
    version = folder / "v1.0-mini"
    for name in ("v1.0-mini", "samples/LIDAR_TOP", "sweeps/LIDAR_TOP", "lidarseg/v1.0-mini"):
        (folder / name).mkdir(parents=True)
    level = [1.0, 0.0, 0.0, 0.0]
    scans = [("a", 0, True, 0.0), ("b", 0, False, 2.5), ("c", 1, True, 5.0)]
    data = []
    for index, (token, sample, is_key, x) in enumerate(scans):
        name = f"{'samples' if is_key else 'sweeps'}/LIDAR_TOP/{token}.pcd.bin"
        rows = np.concatenate([points(len(labels), index) * (1, 1, 1, 255), np.zeros((len(labels), 1))], 1)
        rows.astype("<f4").tofile(folder / name)
        prev, after = ("", *"abc", "")[index], ("", *"abc", "")[index + 2]
        data.append(
            {"token": token, "sample_token": f"s{sample}", "ego_pose_token": token, "calibrated_sensor_token": "l",
             "timestamp": 10**15 + index * 250_000, "is_key_frame": is_key, "filename": name, "prev": prev,
             "next": after, "x": x}
        )  # fmt: skip
        if is_key:
            np.array(labels, np.uint8).tofile(folder / f"lidarseg/v1.0-mini/{token}_lidarseg.bin")
    names = {
        1: "human.pedestrian.adult", 2: "static_object.bicycle_rack", 14: "vehicle.bicycle", 17: "vehicle.car",
        24: "flat.driveable_surface", 31: "vehicle.ego",
    }  # fmt: skip
    categories = [{"token": name, "name": name, "index": index} for index, name in names.items()]
    tables: dict[str, list[dict[str, Any]]] = {
        "scene": [{"token": "scene", "name": "scene-0001"}],
        "sample": [
            {"token": f"s{i}", "scene_token": "scene", "timestamp": 10**15 + i * 500_000} for i in range(2)
        ],
        "sample_data": data,
        "ego_pose": [{"token": r["token"], "translation": [r["x"], 0.0, 0.0], "rotation": level} for r in data],
        "calibrated_sensor": [{"token": "l", "sensor_token": "l", "translation": [1.0, 0.0, 2.0], "rotation": level}],
        "sensor": [{"token": "l", "channel": "LIDAR_TOP"}],
        "category": categories,
        "instance": [{"token": name, "category_token": name} for name in names.values()],
        "lidarseg": [
            {"token": t, "sample_data_token": t, "filename": f"lidarseg/v1.0-mini/{t}_lidarseg.bin"} for t in "ac"
        ],
        "sample_annotation": [
            {"token": a["token"], "sample_token": f"s{a['sample']}", "instance_token": a["category"],
             "num_radar_pts": 0, "rotation": level,
             **{k: a[k] for k in ("translation", "size", "prev", "next", "num_lidar_pts")}}
            for a in annotations
        ],
    }  # fmt: skip
    for name, rows_of in tables.items():
        (version / f"{name}.json").write_text(json.dumps(rows_of))
    return folder


class _Modules:
    """Stand-ins for pandas' modules and classes while a table is pickled, so that the pickle has their names."""

    def __enter__(self) -> dict[str, Any]:
        self.made: dict[str, Any] = {}
        names: dict[str, list[str]] = {
            "pandas": [],
            "pandas.core": [],
            "pandas.core.internals": [],
            "pandas.core.indexes": [],
            "pandas.core.frame": ["DataFrame"],
            "pandas.core.internals.managers": ["BlockManager"],
            "pandas.core.indexes.base": ["Index"],
        }
        self.old = {name: sys.modules.get(name) for name in names}
        for module_name, classes in names.items():
            module = types.ModuleType(module_name)
            module.__path__ = []  # type: ignore[attr-defined]  # a package may have submodules
            for name in classes:
                self.made[name] = type(name, (), {"__module__": module_name})
                setattr(module, name, self.made[name])
            sys.modules[module_name] = module

        def new_index(kind: Any, values: Any) -> Any:
            return kind, values

        new_index.__module__, new_index.__qualname__ = "pandas.core.indexes.base", "_new_Index"
        sys.modules["pandas.core.indexes.base"]._new_Index = new_index  # type: ignore[attr-defined]
        index = self.made["Index"]
        index.__reduce__ = lambda self: (new_index, (index, {"data": self.data, "name": None}))
        return self.made

    def __exit__(self, *_: object) -> None:
        for name, module in self.old.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def table(path: Path, columns: dict[str, Array]) -> None:
    """Writes a pandas.DataFrame as pandas 0.25 pickles it: columns of one type in one block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _Modules() as made:
        names = list(columns)
        axis = made["Index"]()
        axis.data = np.array(names, object)
        blocks = []
        for kind in dict.fromkeys(values.dtype for values in columns.values()):
            places = [i for i, name in enumerate(names) if columns[name].dtype == kind]
            values = np.stack([columns[names[place]] for place in places])
            blocks.append({"values": values, "mgr_locs": np.array(places)})
        manager, frame = made["BlockManager"](), made["DataFrame"]()
        state = ([axis], [], [], {"0.14.1": {"axes": [axis], "blocks": blocks}})
        made["BlockManager"].__getstate__ = lambda self: state
        made["DataFrame"].__getstate__ = lambda self: {"_data": manager, "_typ": "dataframe"}
        with gzip.open(path, "wb") as file:
            file.write(pickle.dumps(frame, protocol=3))


def pandaset(folder: Path, labels: list[int], cuboids: dict[str, Array] | None = None) -> Path:
    """Writes a sequence of one frame, whose vehicle stands at (10, 20, 0) in the world and looks along the world's y.
    The last point is from the other sensor (d = 1).
    """
    rows = points(len(labels)).astype(np.float64)
    values = {"x": rows[:, 0] + 10, "y": rows[:, 1] + 20, "z": rows[:, 2], "i": 255 * rows[:, 3]}
    sensor = np.zeros(len(labels), np.int64)
    sensor[-1] = 1
    table(folder / "lidar" / "00.pkl.gz", {**values, "t": np.zeros(len(labels)), "d": sensor})
    pose = {"position": {"x": 10, "y": 20, "z": 0}, "heading": {"w": 1, "x": 0, "y": 0, "z": 0}}
    (folder / "lidar" / "poses.json").write_text(json.dumps([pose]))
    table(folder / "annotations/semseg/00.pkl.gz", {"class": np.array(labels, np.int64)})
    if cuboids is not None:
        table(folder / "annotations/cuboids/00.pkl.gz", cuboids)
    return folder
