"""The short texts of clouds and answers: one line each, whatever their size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from voxserve.point_cloud import PointCloud
    from voxserve.results import Answer, Detections, ModelVersion, Segmentation
    from voxserve.tensors import Tensor

_MAX_NAMED = 4


def of_cloud(cloud: PointCloud) -> str:
    """Returns a text such as <PointCloud of 107,288 points: x, y, z, intensity (f32); 1.7 MB>."""
    types = list(dict.fromkeys(field.type for field in cloud.fields))
    size = memoryview(cloud.data).nbytes / 1e6
    if len(types) == 1:
        fields = f"{_listed(field.name for field in cloud.fields)} ({types[0]})"
    else:
        fields = _listed(f"{field.name}:{field.type}" for field in cloud.fields)
    return f"<PointCloud of {cloud.num_points:,} points: {fields or 'no fields'}; {size:.1f} MB>"


def of_segmentation(result: Segmentation, counts: dict[str, int]) -> str:
    """Returns a text with the classes that have the most points. counts: as those of count_by_class()."""
    named = list(counts.items())
    parts = [f"{name} {number:,}" for name, number in named[:_MAX_NAMED]]
    if len(named) > _MAX_NAMED:
        parts.append(f"{len(named) - _MAX_NAMED} more classes")
    if missing := len(result.labels) - sum(counts.values()):
        parts.append(f"without a class {missing:,}")
    return f"<Segmentation {_by(result)}: {len(result.labels):,} points; {', '.join(parts)}{_rest(result)}>"


def of_detections(result: Detections) -> str:
    """Returns a text with the numbers of boxes by class."""
    counts = result.count_by_class()
    parts = [f"{name} {number}" for name, number in list(counts.items())[:_MAX_NAMED]]
    best = f"; best score {result.scores.max():.2f}" if len(result) else ""
    return f"<Detections {_by(result)}: {len(result)} boxes; {', '.join(parts) or 'none'}{best}{_rest(result)}>"


def of_answer(result: Answer) -> str:
    """Returns the text of an answer that has only tensors."""
    return f"<Tensors {_by(result)}{_rest(result)}>"


def of_tensor(tensor: Tensor) -> str:
    """Returns a text such as <Tensor float32 [812, 96] of sites, unit 8 x 8 x 8>."""
    unit = f", unit {' x '.join(f'{step:g}' for step in tensor.unit)}" if tensor.unit else ""
    return f"<Tensor {tensor.rows.dtype} {list(tensor.rows.shape)} of {tensor.kind.name.lower()}{unit}>"


def of_model(model: ModelVersion) -> str:
    """Returns a text with the state and the outputs of a model's version."""
    outputs = []
    if model.has_labels:
        outputs.append(f"labels of {len(model.classes)} classes")
    if model.has_boxes:
        outputs.append("boxes" if model.has_labels else f"boxes of {len(model.classes)} classes")
    outputs += [f"tensor {info.name}" for info in model.tensors]
    if model.state.name != "READY":
        what = "; ".join(model.problems)[:200] or "outputs are not known yet"
    else:
        what = f"{', '.join(outputs)}; reads {_listed(feature.name for feature in model.features)}"
    state = f"{model.state.name.lower()} on {model.device or 'no device'}"
    return f"<ModelVersion {model.name} {model.version}, {state}: {what}>"


def shape_of(values: object) -> str:
    """Returns the type and shape of an array as text."""
    array = np.asarray(values)
    return f"{array.dtype} {list(array.shape)}"


def _by(result: Answer) -> str:
    return f"by {result.model} {result.version} on {result.device}"


def _rest(result: Answer) -> str:
    text = "".join(f"; {name} {list(tensor.rows.shape)}" for name, tensor in list(result.tensors.items())[:_MAX_NAMED])
    return (
        text + f"; {result.round_trip * 1e3:.1f} ms" + (f"; {len(result.warnings)} warnings" if result.warnings else "")
    )


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:12]) + (f", and {len(listed) - 12} more" if len(listed) > 12 else "")
