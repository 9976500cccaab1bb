"""Converts sums, means and maxima of rows by an index (scatter, index_add) to pools: of the rows of each sample, and of
the points of each voxel. An index is recognized by its values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from voxserve.arrays import array_of
from voxserve.export.tracing import layouts
from voxserve.export.tracing.graph import INPUT, Graph, Place, Values
from voxserve.export.tracing.refusal import RefusalError

if TYPE_CHECKING:
    from voxserve.export.tracing.functions import Call

_REDUCE = {"sum": "SUM", "add": "SUM", "mean": "AVERAGE", "amax": "MAX"}
_WHAT_IS_SERVED = (
    "in the model format are sums, means and maxima of the rows of each sample (index: x.C[:, 0]) and of the points of "
    "each voxel. For coarser voxels use a pooling layer of the library whose kernel is as large as its stride"
)
_OF_MEANS = (
    "the module averages the points of each voxel: to serve clouds of points, say --reduce MEAN (reduce of Points)"
)
_OF_SUMS = "the module sums the points of each voxel, and served voxels have their mean: send voxels of one point"


def _scattered(call: Call) -> Place:
    """Handles target.scatter_add_(0, index, rows) and its like. The target has no features."""
    target, dim, index, rows = (call.get(i, key) for i, key in enumerate(("input", "dim", "index", "src")))
    rows = call.kwargs.get("source", rows)
    place = call.source(rows)
    name = call.name.rstrip("_")
    reduce = _REDUCE.get(call.get(4, "reduce", "") if "reduce" in name else "sum")
    is_plain = call.kwargs.get("alpha", 1) == 1 and layouts.axis_of(dim, len(rows.shape)) == 0
    if call.place_of(target) is not None or call.place_of(index) is not None or reduce is None or not is_plain:
        raise RefusalError(f"'{call.name}' with these arguments is not in the model format: {_WHAT_IS_SERVED}")
    start = array_of(target)
    includes = bool(call.kwargs.get("include_self", call.get(5, "include_self", True)))
    if not (start == 0).all() or (includes and reduce != "SUM"):
        raise RefusalError(
            f"'{call.name}' onto values that count too is not in the model format: take zeros, and include_self=False "
            "for a mean or a maximum"
        )
    return _pooled(call, place, _of_rows(call, array_of(index), len(rows)), len(start), reduce)


def _of_rows(call: Call, index: Values, count: int) -> Values:
    """Returns one index a row: of [N], or of [N, C] whose columns are the same."""
    columns = index.reshape(count, -1) if index.size and len(index) == count else None
    if columns is None or (columns != columns[:, :1]).any():
        raise RefusalError(f"'{call.name}' with another index for each channel is not in the model format")
    return columns[:, 0]


def _pooled(call: Call, x: Place, index: Values, count: int, reduce: str) -> Place:
    if x.kind == "points" and np.array_equal(index, x.index):
        return _of_points(call, x, count, reduce)
    if x.kind == "sites" and x.on_level().coordinates is None:
        return _of_rows_before_voxels(call, x, index, count, reduce)
    if x.kind == "sites":
        samples = x.on_level().sites()[:, 0]
        if np.array_equal(index, samples) and count == int(samples.max()) + 1:
            name = call.graph.node("pool", [x.node], lambda network, n: network.global_pool(n, x.node, reduce))
            _note(call.graph, name, reduce, x.node, index)
            return replace(x, kind="samples", node=name, level=None)
    raise RefusalError(f"'{call.name}' of {x.kind} by this index is not in the model format: {_WHAT_IS_SERVED}")


def _of_rows_before_voxels(call: Call, x: Place, index: Values, count: int, reduce: str) -> Place:
    """Handles a module that makes voxels of points before its first sparse tensor. Served voxels have the mean of their
    points, so the example has a point for each voxel.
    """
    if x.level is not call.graph.input_level or x.node != INPUT or reduce == "MAX":
        raise RefusalError(
            f"'{call.name}' of points that become voxels is in the model format as a mean of the features as they "
            "come: the server makes the voxels. Network.point_features and Network.point_to_voxel build other networks"
        )
    if count != len(index) or not np.array_equal(np.sort(index), np.arange(count)):
        raise RefusalError(
            f"'{call.name}' makes {count} voxels of the example's {len(index)} points: take an example with one point "
            "in each voxel, since the server makes the voxels"
        )
    call.graph.warn(_OF_MEANS if reduce == "AVERAGE" else _OF_SUMS)
    if reduce == "SUM":
        call.graph.made_by[INPUT] = ("scattered", INPUT, np.ones(count, np.int64))
    return replace(x, level=call.graph.reorder_input(index))


def _of_points(call: Call, x: Place, count: int, reduce: str) -> Place:
    """Returns the place of the mean or maximum of each voxel's points. It is the voxel's row: all its points have it,
    since the trace begins with rows of voxels.
    """
    voxels = np.unique(x.index)
    if reduce == "SUM" or count != len(call.graph.input_level.sites()) or len(voxels) != count:
        raise RefusalError(
            f"'{call.name}' of points is in the model format as a mean or a maximum of the points of every voxel"
        )
    return replace(x, kind="sites", level=call.graph.input_level, index=None)


def _note(graph: Graph, node: str, reduce: str, source: str, index: Values) -> None:
    """Notes how a pool was made, for a generalised mean and for a division by the number of the rows."""
    if reduce == "AVERAGE":
        graph.made_by[node] = ("average", source)
    elif reduce == "SUM":
        graph.made_by[node] = ("scattered", source, np.bincount(index))


def average(call: Call, x: Place, divisor: Any) -> Place | None:
    """Returns the place of a sum by an index divided by the number of each result's rows, or by 1 where there is none;
    None for another quotient.
    """
    kind, *rest = call.graph.made_by.get(x.node, ("",))
    if kind != "scattered" or not hasattr(divisor, "detach"):
        return None
    source, counts = rest
    given = array_of(divisor)
    given = given.reshape(len(given), -1) if given.ndim else given.reshape(1, 1)
    if divisor.ndim < 2 or (given != given[:, :1]).any():
        return None
    given = given[:, 0]
    if not np.array_equal(given, np.maximum(counts, 1)) and not np.array_equal(given, counts):
        return None
    if source == INPUT:
        call.graph.warnings.remove(_OF_SUMS)
        call.graph.warn(_OF_MEANS)
        return x
    name = call.graph.node("pool", [source], lambda network, n: network.global_pool(n, source, "AVERAGE"))
    call.graph.made_by[name] = ("average", source)
    return replace(x, node=name)


NAMES = ("index_add", "index_reduce", "scatter_add", "scatter_reduce")
HANDLERS: dict[str, Callable[[Call], Any]] = {name: _scattered for base in NAMES for name in (base, f"{base}_")}
