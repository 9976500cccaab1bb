"""Opens data sets: finds out which layout a folder has, and lists its frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from voxserve.evaluate.layouts import kitti, nuscenes, pandaset, semantic_kitti
from voxserve.evaluate.truth import Dataset, DatasetError

# The layouts by name, in the order in which they are tried. The first function returns whether a folder has the layout;
# the second opens the folder, and takes the number of sweeps to merge.
LAYOUTS: dict[str, tuple[Callable[[Path], bool], Callable[[Path, int], Dataset]]] = {
    "nuscenes": (nuscenes.is_dataset, nuscenes.open_dataset),
    "pandaset": (pandaset.is_dataset, pandaset.open_dataset),
    "kitti": (kitti.is_dataset, kitti.open_dataset),
    "semantic-kitti": (semantic_kitti.is_dataset, semantic_kitti.open_dataset),
}


def open_dataset(folder: str, layout: str = "", num_sweeps: int = 1) -> Dataset:
    """Opens the data set in a folder. layout: a key of LAYOUTS; "": the first one that the folder has. num_sweeps: the
    number of sweeps to merge into each scan; more than 1 only for nuScenes. Raises DatasetError if the folder does not
    have the layout, has none of the layouts, or has no frames.
    """
    path = Path(folder)
    if not path.is_dir():
        raise DatasetError(f"{folder}: {'not a folder' if path.exists() else 'no such folder'}")
    if not any(path.iterdir()):
        raise DatasetError(f"{folder}: the folder is empty")
    if layout and not LAYOUTS[layout][0](path):
        raise DatasetError(f"{folder}: not of the layout {layout}; {WANTED[layout]}")
    found = layout or next((name for name, (fits, _) in LAYOUTS.items() if fits(path)), "")
    if not found:
        wanted = "; ".join(f"{name}: {text}" for name, text in WANTED.items())
        raise DatasetError(f"{folder}: none of the known layouts. {wanted}")
    if num_sweeps > 1 and found != "nuscenes":
        raise DatasetError(f"--sweeps merges nuScenes' sweeps, but {folder} has the layout {found}")
    dataset = LAYOUTS[found][1](path, num_sweeps)
    if not dataset.frames:
        raise DatasetError(f"{folder}: layout {found}, but it has no scans")
    return dataset


WANTED = {
    "nuscenes": "needs v1.*/sample.json, or is the folder of one version in such a folder",
    "pandaset": "needs lidar/ and annotations/ (of a sequence, or folders of sequences), or NN.bin with classes.json",
    "kitti": "needs velodyne/, calib/ and label_2/ (or these in training/)",
    "semantic-kitti": "needs sequences/NN/velodyne, or velodyne/ and labels/, or NAME.bin beside NAME.label",
}
