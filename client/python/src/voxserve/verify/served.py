"""Compares a running server's tensors or scores with a reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.client import Client
from voxserve.tensors import TensorRows
from voxserve.verify import sites as site_maths
from voxserve.verify.compare import Deviation, Model, compared
from voxserve.verify.interpreter import enum_name
from voxserve.verify.reference import Reference, Rows

Values = npt.NDArray[Any]
Columns = Callable[[Values], dict[str, Values]]  # makes the cloud for some of the voxels


def points_of(model: Model, coordinates: Values, features: Values) -> dict[str, Values]:
    """Returns a cloud with one point in each voxel. ValueError if no point can have a voxel's features."""
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


def deviations(model: Model, reference: Reference, address: str, name: str) -> dict[str, Deviation]:
    """Returns the deviation of the served model's tensors from the reference's outputs of the same nodes, or of its
    scores from the only output on voxels.
    """
    assert reference.input.coordinates is not None
    sites = model.sites(reference.input.coordinates)
    tensors = {output.node: output.name for output in model.network.outputs if output.name}
    with Client(address) as client:

        def columns_of(at: Values) -> dict[str, Values]:
            return points_of(model, sites[at], reference.input.values[at])

        if not tensors:
            return {f"{name} at {address}": _of_scores(model, reference, sites, columns_of, client, name)}
        wanted = {key: tensors[node] for key in reference.outputs if (node := model.outputs.get(key, key)) in tensors}
        if not wanted:
            raise ValueError(f"none of the reference's outputs is one of the tensors {', '.join(tensors.values())}")
        parts: dict[str, list[tuple[Values, Values]]] = {key: [] for key in wanted}
        for sample in np.unique(sites[:, 0]):
            at = sites[:, 0] == sample
            answer = client.tensors(name, columns_of(at), outputs=list(wanted.values()))
            for key, tensor_name in wanted.items():
                tensor = answer.tensors[tensor_name]
                if tensor.kind is TensorRows.CELLS:
                    raise ValueError(f"tensor '{tensor_name}' has one row per cell; those cannot be compared yet")
                where = sites[at] if tensor.kind is TensorRows.POINTS else np.full((len(tensor.rows), 1), sample)
                if tensor.coordinates is not None:
                    where = np.concatenate([where, tensor.coordinates], axis=1)
                parts[key].append((where.astype(np.int64), tensor.rows))
    return {key: _of_tensor(model, reference.outputs[key], sites, key, parts[key]) for key in wanted}


def _of_tensor(
    model: Model, expected: Rows, sites: site_maths.Sites, key: str, parts: list[tuple[Values, Values]]
) -> Deviation:
    """Compares a served tensor with the reference's output. parts: for each sample, the rows and their sites (the
    sample, then the coordinates).
    """
    where, rows = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    values = expected.values.astype(np.float64).reshape(len(expected.values), -1)
    if where.shape[1] == 1:  # rows of samples
        return compared(key, rows, values)
    theirs = sites if expected.coordinates is None else model.sites(expected.coordinates)
    order = site_maths.rows_of(where, theirs)
    if len(theirs) != len(values) or len(theirs) != len(where) or (order < 0).any():
        problem = f"tensor '{key}' has {len(where)} rows, the reference {len(values)} of {len(theirs)} known sites"
        return Deviation(key, problem=problem)
    return compared(key, rows[order], values)


def _of_scores(
    model: Model, reference: Reference, sites: site_maths.Sites, columns_of: Columns, client: Client, name: str
) -> Deviation:
    outputs = [rows for rows in reference.outputs.values() if rows.values.shape[:1] == (len(sites),)]
    if len(outputs) != 1:
        raise ValueError(
            f"the reference has {len(outputs)} outputs with one row per voxel; the server has scores of one"
        )
    expected = outputs[0].values.astype(np.float64)
    if outputs[0].coordinates is not None:
        order = site_maths.rows_of(model.sites(outputs[0].coordinates), sites)
        if (order < 0).any():
            raise ValueError(f"the reference's output lacks {int((order < 0).sum())} of the input's {len(sites)} sites")
        expected = expected[order]
    scores = np.zeros_like(expected)
    for sample in np.unique(sites[:, 0]):
        at = sites[:, 0] == sample
        answer = client.infer(name, columns_of(at), scores=True)
        if answer.scores is None:
            raise ValueError(f"the model '{name}' gives no scores")
        scores[at] = answer.scores
    return compared(name, scores, expected)
