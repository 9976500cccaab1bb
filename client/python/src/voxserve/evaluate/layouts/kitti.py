"""Reads KITTI's object detection data set (Geiger et al. 2012): the folders velodyne/, calib/ and label_2/, or these in
training/.

People drew boxes only for objects that the left colour camera sees. So points and found boxes outside its image are
left out, as in the benchmark and in the usual training.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from voxserve import input_file, readers
from voxserve.evaluate.classes import plain
from voxserve.evaluate.truth import Array, Dataset, DatasetError, Frame, Scan, TrueBoxes
from voxserve.point_cloud import PointCloud
from voxserve.readers.text import number_of

NAMES = ("Car", "Van", "Truck", "Pedestrian", "Person_sitting", "Cyclist", "Tram", "Misc")
_ALIASES = {"Pedestrian": ("person",), "Cyclist": ("bicyclist", "bicycle", "two-wheeler")}
_NEIGHBOURS = {"Car": ("Van",), "Pedestrian": ("Person_sitting",)}
_IMAGE_SIZE = (1242, 375)  # width and height in pixels that are assumed if the frame's image file is missing
_DONT_CARE = plain("DontCare")
# The lines of a calibration file: their names in the object data set and in the tracking data set, and their sizes.
_CALIBRATION = {
    "P2": (("P2",), 12),
    "R0_rect": (("R0_rect", "R_rect"), 9),
    "Tr_velo_to_cam": (("Tr_velo_to_cam", "Tr_velo_cam"), 12),
}
_NEAR = 0.1  # metres; a box whose corners are all nearer to the camera, or behind it, is not in the image


@dataclass(frozen=True)
class Calibration:
    """A frame's calibration."""

    projection: Array  # [3, 4], from the rectified camera's coordinates to pixels
    to_camera: Array  # [4, 4], from the scanner's coordinates to the rectified camera's


def is_dataset(folder: Path) -> bool:
    """Returns whether the folder has this layout."""
    root = _root(folder)
    return (root / "velodyne").is_dir() and (root / "calib").is_dir()


def open_dataset(folder: Path, _num_sweeps: int = 1) -> Dataset:
    """Opens the folder. Raises DatasetError if a scan has no label file."""
    root = _root(folder)
    scans = {path.stem: path for path in sorted((root / "velodyne").glob("*.bin"))}
    if not scans and any(path.is_dir() for path in (root / "velodyne").iterdir()):
        raise DatasetError(
            f"{root / 'velodyne'} has folders, as the tracking data set has: one sequence with files NNNNNN.bin, "
            "NNNNNN.txt and a calibration each is read"
        )
    labels = {path.stem: path for path in sorted((root / "label_2").glob("*.txt"))}
    has_boxes = (root / "label_2").is_dir()
    missing = sorted(scans.keys() - labels)
    if has_boxes and missing:
        raise DatasetError(
            f"{root / 'label_2'}: {len(labels)} label files, but {root / 'velodyne'} has {len(scans)} scans; "
            f"{missing[0]}.txt is missing"
        )
    frames = [
        Frame(stem, int(stem) if stem.isascii() and stem.isdigit() else None, partial(_read, root, stem))
        for stem in scans
    ]
    alone = sorted(labels.keys() - scans)
    notes = [f"{root / 'label_2'}: {len(alone)} label files have no scan, such as {alone[0]}.txt"] if alone else []
    blind = [stem for stem in scans if not (root / "image_2" / f"{stem}.png").is_file()]
    if has_boxes and blind:
        width, height = _IMAGE_SIZE
        notes.append(
            f"{len(blind)} frames have no image, such as image_2/{blind[0]}.png: it is taken to have {width} x "
            f"{height} pixels, and what lies outside does not count"
        )
    names = (*NAMES, *_other_names(labels[stem] for stem in scans)) if has_boxes else ()
    return Dataset("kitti", frames, {}, names, _ALIASES, neighbours=_NEIGHBOURS, notes=tuple(notes))


def _other_names(paths: Iterable[Path]) -> list[str]:
    """Returns the classes of label files that are not of KITTI's, sorted; of several spellings one."""
    known = {plain(name): name for name in (*NAMES, _DONT_CARE)}
    for path in paths:
        for line in input_file.read_text(path, errors="replace").splitlines():
            for word in line.split(maxsplit=1)[:1]:
                known.setdefault(plain(word), word)
    return sorted(set(known.values()) - {*NAMES, _DONT_CARE})


def _root(folder: Path) -> Path:
    return folder / "training" if (folder / "training" / "velodyne").is_dir() else folder


def read_calibration(path: Path) -> Calibration:
    """Reads a frame's calibration. Raises DatasetError, with the file's name and the line, if it is not valid."""
    if not path.is_file():
        raise DatasetError(f"{path}: no such file, but the scan of this frame is there")
    lines: dict[str, str] = {}
    for line in input_file.read_text(path, errors="replace").splitlines():
        found = re.match(r"\s*([^\s:]+)\s*:?(.*)", line)  # the tracking data set has names without a colon
        if found:
            lines[found[1]] = found[2]
    rows = {key: _numbers(path, lines, *names_and_size) for key, names_and_size in _CALIBRATION.items()}
    rectify, to_camera = np.eye(4), np.eye(4)
    rectify[:3, :3] = rows["R0_rect"].reshape(3, 3)
    to_camera[:3] = rows["Tr_velo_to_cam"].reshape(3, 4)
    made = Calibration(rows["P2"].reshape(3, 4), rectify @ to_camera)
    for matrix, names in ((made.projection[:, :3], "P2"), (made.to_camera, "R0_rect and Tr_velo_to_cam")):
        if np.linalg.matrix_rank(matrix) < len(matrix):
            raise DatasetError(f"{path}: {names} cannot be those of a camera, since their matrix has no inverse")
    return made


def _numbers(path: Path, lines: Mapping[str, str], names: Sequence[str], size: int) -> Array:
    name = next((name for name in names if name in lines), "")
    try:
        numbers = np.array([number_of(number) for number in lines.get(name, "").split()])
    except ValueError:
        raise DatasetError(f"{path}: the line {name} holds something else than numbers") from None
    if numbers.size != size or not np.isfinite(numbers).all():
        raise DatasetError(f"{path}: no line {' or '.join(names)} of {size} numbers")
    return numbers


def _read(root: Path, stem: str, _with_labels: bool, with_boxes: bool) -> Scan:
    cloud = readers.read(root / "velodyne" / f"{stem}.bin")
    calibration = read_calibration(root / "calib" / f"{stem}.txt")
    size = _image_size(root / "image_2" / f"{stem}.png")
    points = np.stack([cloud.values(axis) for axis in ("x", "y", "z", "intensity")], axis=1)
    pixels, depth = _project(calibration, points[:, :3].astype(np.float64))
    seen = (depth > 0) & (pixels >= 0).all(axis=1) & (pixels < np.array(size)).all(axis=1)
    boxes = read_boxes(root / "label_2" / f"{stem}.txt", calibration) if with_boxes else None
    return Scan(PointCloud.from_array(points[seen]), None, boxes, partial(image_boxes, calibration, size))


def _image_size(path: Path) -> tuple[int, int]:
    """Returns the width and height of a PNG file, in pixels."""
    if not path.is_file():
        return _IMAGE_SIZE
    with input_file.open_regular(path) as file:
        head = file.read(24)
    if head[:8] != b"\x89PNG\r\n\x1a\n" or len(head) < 24:
        raise DatasetError(f"{path}: not a PNG")
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def _project(calibration: Calibration, points: Array) -> tuple[Array, Array]:
    """Returns the pixels (column, row) of points [N, 3] in the scanner's coordinates, [N, 2], and the points' distances
    in front of the camera in metres, [N].
    """
    camera = points @ calibration.to_camera[:3, :3].T + calibration.to_camera[:3, 3]
    image = camera @ calibration.projection[:, :3].T + calibration.projection[:, 3]
    depth = image[:, 2]
    return image[:, :2] / np.where(np.abs(depth) < 1e-9, 1e-9, depth)[:, None], depth


def image_boxes(calibration: Calibration, size: tuple[int, int], boxes: Array) -> Array:
    """Returns the left, top, right and bottom in pixels of boxes [N, 7] in the image, limited to the image: [N, 4].
    They are NaN for a box outside the image. size: the image's width and height.
    """
    out = np.full((len(boxes), 4), np.nan)
    signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]) / 2
    for index, (x, y, z, length, width, height, yaw) in enumerate(boxes.tolist()):
        local = signs * (length, width, height)
        cos, sin = np.cos(yaw), np.sin(yaw)
        corners = np.stack(
            [x + local[:, 0] * cos - local[:, 1] * sin, y + local[:, 0] * sin + local[:, 1] * cos, z + local[:, 2]], 1
        )
        pixels, depth = _project(calibration, corners)
        if depth.max() < _NEAR:
            continue
        left, top = np.clip(pixels.min(axis=0), 0, np.array(size) - 1)
        right, bottom = np.clip(pixels.max(axis=0), 0, np.array(size) - 1)
        if right > left and bottom > top:
            out[index] = left, top, right, bottom
    return out


def read_boxes(path: Path, calibration: Calibration) -> TrueBoxes:
    """Reads a frame's boxes. Leaves out DontCare regions, which are rectangles in the image without a box in space; the
    benchmark uses them only for boxes in the image. Raises DatasetError if the file is not valid.
    """
    if not path.is_file():
        raise DatasetError(f"{path}: no such file, but the scan of this frame is there")
    names, rows = [], []
    for number, line in enumerate(input_file.read_text(path, errors="replace").splitlines(), 1):
        words = line.split()
        if not words or plain(words[0]) == _DONT_CARE:
            continue
        try:
            values = [number_of(word) for word in words[1:15]]
        except ValueError:
            values = []
        if len(values) != 14:
            raise DatasetError(f"{path}: line {number} is not a class and 14 numbers")
        names.append(words[0])
        rows.append(values)
    values_of = np.array(rows, np.float64).reshape(-1, 14)
    height, width, length = values_of[:, 7], values_of[:, 8], values_of[:, 9]
    bottom = values_of[:, 10:13]  # the centre of the box's lower face, in the camera's coordinates (y points down)
    back = np.linalg.inv(calibration.to_camera)
    centres = (bottom - np.stack([0 * height, height / 2, 0 * height], axis=1)) @ back[:3, :3].T + back[:3, 3]
    turn = values_of[:, 13]
    headings = np.stack([np.cos(turn), 0 * turn, -np.sin(turn)], axis=1) @ back[:3, :3].T
    yaw = np.arctan2(headings[:, 1], headings[:, 0])
    boxes = np.concatenate([centres, np.stack([length, width, height, yaw], axis=1)], axis=1)
    return TrueBoxes(
        boxes,
        tuple(names),
        np.full((len(boxes), 2), np.nan),
        np.full(len(boxes), -1),
        values_of[:, 3:7],
        values_of[:, 0],
        values_of[:, 1].astype(np.int64),
    )
