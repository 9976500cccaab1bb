"""Writes the boxes of Detections to files, one record per box, in the order of Detections.boxes.

.json    an array of objects: class_id, class_name, score, x, y, z, length, width, height, yaw, velocity_x, velocity_y,
         and if there are queries, query
.csv     a first line with the same names, then a line per box
.npy     NumPy, the structured array [N] that Detections.structured returns; it has no class_name
"""

from __future__ import annotations

import csv
import io
import json
import os
from typing import Any

import numpy as np

from voxserve import storage
from voxserve.results import BOX_DTYPE, Answer, Detections, Segmentation


def boxes_of(result: Answer) -> Detections | None:
    """Returns the boxes of an answer, which may be beside its labels."""
    if isinstance(result, Segmentation):
        return result.detections
    return result if isinstance(result, Detections) else None


def is_box_file(path: str | os.PathLike[str]) -> bool:
    """Returns whether write() knows the extension."""
    return os.fspath(path).lower().endswith((".json", ".csv", ".npy"))


def records(detections: Detections) -> list[dict[str, Any]]:
    """Returns one dictionary per box, as .json holds them. Numbers have the fewest digits that identify the float32
    value.
    """
    rows = []
    for values, name in zip(detections.structured(), detections.names, strict=True):
        numbers = {field: float(str(values[field])) for field in BOX_DTYPE.names[1:]}
        row = {"class_id": int(values["class_id"]), "class_name": name, **numbers}
        if detections.queries is not None:
            row["query"] = int(values["query"])
        rows.append(row)
    return rows


def write(path: str | os.PathLike[str], detections: Detections) -> None:
    """Writes the boxes. An older file is replaced when the new one is complete. ValueError for another extension,
    OSError if the file cannot be written.
    """
    if not is_box_file(path):
        raise ValueError(f"{os.fspath(path)}: boxes are written as .json, .csv or .npy")
    extension = os.fspath(path).lower().rsplit(".", 1)[-1]
    with storage.new(path) as file:
        if extension == "npy":
            np.save(file, detections.structured())
        elif extension == "json":
            file.write((json.dumps(records(detections), indent=1) + "\n").encode())
        else:
            file.write(_csv(detections).encode())


def _csv(detections: Detections) -> str:
    text = io.StringIO()
    names = detections.structured().dtype.names or ()
    writer = csv.DictWriter(text, [names[0], "class_name", *names[1:]], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records(detections))
    return text.getvalue()
