"""Writes an answer to the file format that the extension names."""

from __future__ import annotations

import os

from voxserve import box_file, label_file, tensor_file
from voxserve.results import Answer, Detections, Segmentation


def save(result: Answer, path: str | os.PathLike[str]) -> None:
    """Writes the file; Answer.save describes the formats."""
    name = os.fspath(path)
    boxes = box_file.boxes_of(result)
    if isinstance(result, Segmentation | Detections) and name.lower().endswith(".png"):
        result.picture().save(path)
    elif isinstance(result, Segmentation) and label_file.is_label_file(path):
        label_file.write(path, result.labels)
    elif boxes is not None and box_file.is_box_file(path):
        box_file.write(path, boxes)
    elif result.tensors and tensor_file.is_tensor_file(path):
        tensor_file.write(path, result.tensors)
    else:
        raise ValueError(f"{name}: {_formats(result)}")


def _formats(result: Answer) -> str:
    formats = []
    if isinstance(result, Segmentation):
        formats.append("labels are written as .npy, .label or .png")
        if result.detections is not None:
            formats.append("boxes are written as .json or .csv")
    if isinstance(result, Detections):
        formats.append("boxes are written as .json, .csv, .npy or .png")
    if result.tensors:
        formats.append("tensors are written as .npz")
    return ", ".join(formats) or "the answer has nothing to write"
