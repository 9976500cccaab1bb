"""Compares a running server's tensors or scores with a reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.client import Client
from voxserve.tensors import TensorRows
from voxserve.verify import dense
from voxserve.verify import sites as site_maths
from voxserve.verify.compare import Deviation, Model, compared
from voxserve.verify.interpreter import enum_name
from voxserve.verify.reference import Reference, Rows

Values = npt.NDArray[Any]
Columns = Callable[[Values], dict[str, Values]]  # takes a mask of voxels, and returns the columns of their cloud


def points_of(model: Model, coordinates: Values, features: Values) -> dict[str, Values]:
    """Returns the columns of a cloud with one point in each voxel. coordinates: [N, 1 + D], features: [N, C].
    ValueError if the model cannot read the voxels from any cloud.
    """
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
    """Runs the reference's input on the server at `address`. Returns the deviations of the served tensors from the
    reference's outputs of the same nodes. For a model without tensors, it returns the deviation of the scores from the
    reference's only output that has one row per voxel. name: the served model's.
    """
    assert reference.input.coordinates is not None
    sites = model.sites(reference.input.coordinates)
    tensors = {output.node: output.name for output in model.network.outputs if output.name}
    expected = model.expected(reference)
    with Client(address) as client:

        def columns_of(at: Values) -> dict[str, Values]:
            return points_of(model, sites[at], reference.input.values[at])

        if not tensors:
            return {f"{name} at {address}": _of_scores(model, expected, sites, columns_of, client, name)}
        wanted = {key: tensors[node] for key in expected if (node := model.outputs.get(key, key)) in tensors}
        if not wanted:
            raise ValueError(f"none of the reference's outputs is one of the tensors {', '.join(tensors.values())}")
        parts: dict[str, list[tuple[Values, Values]]] = {key: [] for key in wanted}
        are_cells = set()
        for sample in np.unique(sites[:, 0]):
            at = sites[:, 0] == sample
            answer = client.tensors(name, columns_of(at), outputs=list(wanted.values()))
            for key, tensor_name in wanted.items():
                tensor = answer.tensors[tensor_name]
                if tensor.kind is TensorRows.CELLS:
                    are_cells.add(key)
                where = sites[at] if tensor.kind is TensorRows.POINTS else np.full((len(tensor.rows), 1), sample)
                if tensor.coordinates is not None:
                    where = np.concatenate([where, tensor.coordinates], axis=1)
                parts[key].append((where.astype(np.int64), tensor.rows))
    return {
        key: _of_cells(expected[key], key, [rows for _, rows in parts[key]])
        if key in are_cells
        else _of_tensor(model, expected[key], sites, key, parts[key])
        for key in wanted
    }


def _of_cells(expected: Rows, key: str, samples: list[Values]) -> Deviation:
    """Compares a served dense tensor with the reference's output. samples: for each sample the rows [size of each
    axis..., C]; torch's images have C first.
    """
    ours = np.stack(samples)
    if ours.ndim == 4:
        ours = np.moveaxis(ours, -1, 1)
    theirs = expected.values
    if theirs.shape == (ours.shape[0] * ours.shape[1], *ours.shape[2:]):  # learned rows, one sample after another
        theirs = theirs.reshape(ours.shape)
    return compared(key, ours, theirs)


def _of_tensor(
    model: Model, expected: Rows, sites: site_maths.Sites, key: str, parts: list[tuple[Values, Values]]
) -> Deviation:
    """Compares a served tensor with the reference's output. parts: for each sample the sites of the rows (the sample,
    then the coordinates), and the rows.
    """
    where, rows = np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])
    values = expected.values.reshape(len(expected.values), -1)
    if where.shape[1] == 1:  # rows of samples
        return compared(key, rows, values)
    if dense.is_dense(expected, len(model.axes)):
        try:
            return compared(key, rows, model.at_sites(expected.values, where))
        except ValueError as error:
            return Deviation(key, problem=f"tensor '{key}': {error}")
    theirs = sites if expected.coordinates is None else model.sites(expected.coordinates)
    order = site_maths.rows_of(where, theirs)
    if len(theirs) != len(values) or len(theirs) != len(where) or (order < 0).any():
        problem = f"tensor '{key}' has {len(where)} rows, the reference {len(values)} of {len(theirs)} known sites"
        return Deviation(key, problem=problem)
    return compared(key, rows[order], values)


def _of_scores(
    model: Model, recorded: dict[str, Rows], sites: site_maths.Sites, columns_of: Columns, client: Client, name: str
) -> Deviation:
    dimension = len(model.axes)
    outputs = [r for r in recorded.values() if len(r.values) == len(sites) or dense.is_dense(r, dimension)]
    if len(outputs) != 1:
        raise ValueError(
            f"the reference has {len(outputs)} outputs with one row per voxel; the server has scores of one"
        )
    expected = outputs[0].values
    if dense.is_dense(outputs[0], dimension):
        expected = model.at_sites(expected, sites)
    elif outputs[0].coordinates is not None:
        order = site_maths.rows_of(model.sites(outputs[0].coordinates), sites)
        if (order < 0).any():
            raise ValueError(f"the reference's output lacks {int((order < 0).sum())} of the input's {len(sites)} sites")
        expected = expected[order]
    expected = expected.reshape(len(expected), -1)  # a result [N] is one channel
    scores = np.zeros(expected.shape)
    for sample in np.unique(sites[:, 0]):
        at = sites[:, 0] == sample
        answer = client.infer(name, columns_of(at), scores=True)
        if answer.scores is None:
            raise ValueError(f"the model '{name}' gives no scores")
        scores[at] = answer.scores
    return compared(name, scores, expected)
