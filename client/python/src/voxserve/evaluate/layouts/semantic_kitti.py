"""Reads SemanticKITTI (Behley et al. 2019; http://semantic-kitti.org), which has one label per point.

The folder has sequences/NN/velodyne/FFFFFF.bin with sequences/NN/labels/FFFFFF.label; or velodyne/ and labels/ of one
sequence; or NAME.bin beside NAME.label. Labels are uint32 with the class in the low 16 bits, and are mapped to the
benchmark's 19 classes. Other labels are counted by their names or numbers.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from voxserve import label_file, readers
from voxserve.evaluate.truth import Dataset, DatasetError, Frame, Scan

_LABELS = {  # label -> class, as the benchmark's learning_map has it
    10: "car", 11: "bicycle", 13: "other-vehicle", 15: "motorcycle", 16: "other-vehicle", 18: "truck",
    20: "other-vehicle", 30: "person", 31: "bicyclist", 32: "motorcyclist", 40: "road", 44: "parking", 48: "sidewalk",
    49: "other-ground", 50: "building", 51: "fence", 60: "road", 70: "vegetation", 71: "trunk", 72: "terrain",
    80: "pole", 81: "traffic-sign", 252: "car", 253: "bicyclist", 254: "person", 255: "motorcyclist",
    256: "other-vehicle", 257: "other-vehicle", 258: "truck", 259: "other-vehicle",
}  # fmt: skip
# Labels that the learning_map leaves out.
_OTHERS = {0: "unlabeled", 1: "outlier", 52: "other-structure", 99: "other-object"}
_ALIASES = {  # class -> names of coarser classes that a model may have for it
    "person": ("pedestrian",),
    "bicycle": ("two-wheeler",),
    "motorcycle": ("two-wheeler",),
    "bicyclist": ("cyclist", "two-wheeler"),
    "motorcyclist": ("two-wheeler",),
    "road": ("driveable_surface",),
    "parking": ("road", "driveable_surface"),
    "building": ("manmade",),
    "trunk": ("vegetation",),
    "traffic-sign": ("sign",),
    "fence": ("other-static", "manmade"),
    "pole": ("other-static", "manmade"),
}


def is_dataset(folder: Path) -> bool:
    """Returns whether the folder has this layout."""
    return bool(_sequences(folder)) or any(folder.glob("*.bin"))


def open_dataset(folder: Path, _num_sweeps: int = 1) -> Dataset:
    """Opens the folder. Raises DatasetError if a sequence has labels, but not for each of its scans."""
    frames: list[Frame] = []
    has_labels = False
    notes = []
    for name, scans, labels in _sequences(folder) or [("", folder, folder)]:
        paths = sorted(path for path in scans.glob("*.bin"))
        stems, wanted = {path.stem for path in paths}, {path.stem for path in labels.glob("*.label")}
        has_labels |= bool(wanted)
        if wanted and stems - wanted:
            raise DatasetError(
                f"{labels}: {len(wanted)} label files, but {scans} has {len(paths)} scans; "
                f"{min(stems - wanted)}.label is missing"
            )
        if wanted - stems:
            notes.append(
                f"{labels}: {len(wanted - stems)} label files have no scan, such as {min(wanted - stems)}.label"
            )
        frames += [_frame(f"{name}/{path.stem}" if name else path.stem, path, labels, bool(wanted)) for path in paths]
    return Dataset(
        "semantic-kitti",
        frames,
        _LABELS if has_labels else {},
        (),
        _ALIASES,
        other_labels=_OTHERS,
        notes=tuple(notes),
    )


def _sequences(folder: Path) -> list[tuple[str, Path, Path]]:
    """Returns for each sequence its name, its folder of scans and its folder of labels."""
    if (folder / "velodyne").is_dir():
        return [("", folder / "velodyne", folder / "labels")]
    inner = folder / "sequences" if (folder / "sequences").is_dir() else folder
    return [(p.name, p / "velodyne", p / "labels") for p in sorted(inner.iterdir()) if (p / "velodyne").is_dir()]


def _frame(name: str, path: Path, labels: Path, has_labels: bool) -> Frame:
    number = int(path.stem) if path.stem.isascii() and path.stem.isdigit() else None
    return Frame(name, number, partial(_read, path, labels / f"{path.stem}.label"), has_labels)


def _read(path: Path, labels: Path, with_labels: bool, _with_boxes: bool) -> Scan:
    cloud = readers.read(path)
    if not with_labels:
        return Scan(cloud)
    if not labels.is_file():
        raise DatasetError(f"{labels}: no such file, but {path} is there")
    return Scan(cloud, label_file.read(labels, cloud.num_points))
