"""Holds a running server's scores against a reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.client import Client
from voxserve.verify import sites as site_maths
from voxserve.verify.compare import Deviation, Model, compared
from voxserve.verify.interpreter import enum_name
from voxserve.verify.reference import Reference

Values = npt.NDArray[Any]


def points_of(model: Model, coordinates: Values, features: Values) -> dict[str, Values]:
    """A cloud with one point in each voxel. Raises ValueError where no point can have a voxel's features."""
    voxelize = next(n.voxelize for n in model.network.nodes if n.WhichOneof("op") == "voxelize")
    is_floor, origin = enum_name(voxelize, "rounding") == "ROUNDING_FLOOR", enum_name(voxelize, "origin")
    if origin == "ORIGIN_MINIMUM":
        raise ValueError("the model subtracts the cloud's minimum: voxels cannot be sent as they are")
    axes = list(voxelize.axes) or ["x", "y", "z", "t"][: len(model.axes)]
    begin = list(voxelize.range_min) if origin == "ORIGIN_RANGE" else [0.0] * len(axes)
    columns = {}
    for feature, values in zip(voxelize.features, features.T, strict=True):
        scale = feature.scale if feature.HasField("scale") else 1.0
        columns[feature.name] = ((values - feature.shift) / scale).astype(np.float32)
    for axis, name in enumerate(axes):
        size, index = np.float32(voxelize.voxel_size[axis]), coordinates[:, 1 + axis]
        centre = ((index + (0.5 if is_floor else 0)) * size + begin[axis]).astype(np.float32)
        if name in columns:
            position = (columns[name] - np.float32(begin[axis])) / size
            made = np.floor(position) if is_floor else np.round(position)
            if (made != index).any():
                raise ValueError(f"feature '{name}' is also an axis, and its values lie in other voxels")
        else:
            columns[name] = centre
    return columns


def deviation(model: Model, reference: Reference, address: str, name: str) -> Deviation:
    """The deviation of the served model's scores from the reference's one output of voxels."""
    assert reference.input.coordinates is not None
    sites = model.sites(reference.input.coordinates)
    outputs = [rows for rows in reference.outputs.values() if rows.values.shape[:1] == (len(sites),)]
    if len(outputs) != 1:
        raise ValueError(f"the reference has {len(outputs)} outputs with a row a voxel; the server has scores of one")
    expected = outputs[0].values.astype(np.float64)
    if outputs[0].coordinates is not None:
        order = site_maths.rows_of(model.sites(outputs[0].coordinates), sites)
        if (order < 0).any():
            raise ValueError(f"the reference's output lacks {int((order < 0).sum())} of the input's {len(sites)} sites")
        expected = expected[order]
    scores = np.zeros_like(expected)
    with Client(address) as client:
        for sample in np.unique(sites[:, 0]):
            at = sites[:, 0] == sample
            columns = points_of(model, sites[at], reference.input.values[at])
            answer = client.infer(name, columns, scores=True)
            if answer.scores is None:
                raise ValueError(f"the model '{name}' gives no scores")
            scores[at] = answer.scores
    return compared(f"{name} at {address}", scores, expected)
