"""Makes pandas' DataFrames of clouds and answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxserve import box_file
from voxserve.inputs import PointsLike
from voxserve.point_cloud import PointCloud
from voxserve.results import BOX_DTYPE, Detections, Segmentation
from voxserve.show.optional import library
from voxserve.source import PointsGoneError
from voxserve.tensors import Tensor


def of_cloud(cloud: PointCloud) -> Any:
    """Returns a row per point, and a column per field that can be read."""
    columns = {field.name: cloud.values(field.name) for field in cloud.fields if field.value_bytes}
    return library("pandas", "to_pandas()").DataFrame(columns)


def of_segmentation(result: Segmentation, points: PointsLike | None) -> Any:
    """Returns a row per point. The points' columns are left out if nobody has the points any more."""
    pandas = library("pandas", "to_pandas()")
    try:
        table = of_cloud(result.source.cloud(points))
    except PointsGoneError:
        table = pandas.DataFrame(index=range(len(result.labels)))
    if len(table) != len(result.labels):
        raise ValueError(f"{len(result.labels)} labels, but {len(table)} points")
    names = result.class_names
    ids = sorted({*names, *np.unique(result.labels).tolist()} - {result.ignore_label})
    codes = np.where(result.labels == result.ignore_label, -1, np.searchsorted(ids, result.labels))
    texts = [names.get(class_id, f"class {class_id}") for class_id in ids]
    if len(set(texts)) != len(texts):  # two classes of one name
        texts = [f"{text} ({class_id})" for text, class_id in zip(texts, ids, strict=True)]
    table["label"] = result.labels
    table["class_name"] = pandas.Categorical.from_codes(codes, categories=texts)
    return table


def of_detections(result: Detections) -> Any:
    """Returns a row per box."""
    numbers = result.structured().dtype.names or ()
    columns = ["class_id", "class_name", *numbers[1:]]
    table = library("pandas", "to_pandas()").DataFrame(box_file.records(result), columns=columns)
    kinds = {name: result.structured().dtype[name] for name in BOX_DTYPE.names}
    return table.astype(kinds)


def of_tensor(tensor: Tensor) -> Any:
    """Returns a row per row of a tensor. ValueError if its rows are cells of a dense result."""
    if tensor.rows.ndim != 2:
        raise ValueError(f"a tensor of shape {list(tensor.rows.shape)} is no table")
    pandas = library("pandas", "to_pandas()")
    values = pandas.DataFrame(tensor.rows)
    if tensor.coordinates is None:
        return values
    names = [f"axis_{axis}" for axis in range(tensor.coordinates.shape[1])]
    return pandas.concat([pandas.DataFrame(tensor.coordinates, columns=names), values], axis=1)
