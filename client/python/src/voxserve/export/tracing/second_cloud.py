"""Makes a second, smaller example of a module's input: some of the rows of one sample.

If its trace differs from the example's, the traced operations depend on the example and are no network for other
clouds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from voxserve.arrays import array_of
from voxserve.export.tracing.graph import Graph, Values
from voxserve.verify.sparse_tensors import coordinates_of, features_of, kind_of

_MOST_ROWS = 509
_LEAST_ROWS = 2
_LEAST_INSIDE = 0.25  # of the rows, for a cloud of those alone that lie inside of the extent


def smaller(example: Any, features: str = "") -> Iterator[Callable[[], Any]]:
    """Yields functions that make smaller examples, with other numbers of rows; nothing for an example of two rows or
    less. The numbers are primes, which channels rarely are: code that reshapes is followed by its sizes. The rows have
    another extent than the example if enough of them lie inside of it, so that what is computed of it differs.

    features: the key of the features, if the example is a dict of several tensors.
    """
    found = list(_features(example, features))
    if len(found) != 1:
        return
    samples, coordinates = _sites(example, found[0])
    candidates = np.flatnonzero(samples == samples.min(initial=0))
    if len(candidates) <= _LEAST_ROWS:
        candidates = np.arange(len(samples))
    inside = candidates[_inside(coordinates[candidates])]
    if len(inside) > max(_LEAST_ROWS + 1, _LEAST_INSIDE * len(candidates)):
        candidates = inside
    count = min(len(candidates) // 2 + 1, _MOST_ROWS)
    for number in range(2):
        while count > _LEAST_ROWS and any(count % d == 0 for d in range(2, count)):
            count -= 1
        if not _LEAST_ROWS <= count < len(candidates):
            return
        begin = number * (len(candidates) // count // 2)
        rows = candidates[begin + np.arange(count) * (len(candidates) // count)]
        yield partial(_Thinned(example, samples, rows).of, example)
        count -= 1


def is_features(value: Any, key: str, features: str) -> bool:
    """Returns whether a tensor in an example, with a key or "", is that of the features. features: their key, or ""."""
    return getattr(value, "ndim", 0) == 2 and value.is_floating_point() and key == (features or key)


def check_coordinates(graph: Graph, example: Any) -> None:
    """Adds a warning if the module computes the coordinates of its first sparse tensor, and no tensor of the example
    has them.
    """
    sites = graph.input_level.coordinates
    if sites is None or any(kind_of(found) for found in _features(example, "")):
        return
    coordinates = sites[:, [1 + graph.axes.index(a) for a in range(len(graph.axes))]]
    for tensor in _tensors(example):
        values = array_of(tensor)
        if graph.order is not None and len(values) == len(graph.order):
            values = values[np.argsort(graph.order)]
        if values.ndim == 2 and np.array_equal(values[:, -coordinates.shape[1] :], coordinates):
            return
    graph.warn(
        "the module computes the coordinates of its first sparse tensor, and they are in no tensor of the example: the "
        "served network's voxels have those of the sparse tensor"
    )


def _features(value: Any, features: str, key: str = "") -> Iterator[Any]:
    """Yields the sparse tensors, or the tensors of features, in an example."""
    if kind_of(value):
        yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _features(entry, features)
    elif isinstance(value, dict):
        for name, entry in value.items():
            yield from _features(entry, features, str(name))
    elif is_features(value, key, features):
        yield value


def _tensors(value: Any) -> Iterator[Any]:
    """Yields the tensors in an example."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for entry in value:
            yield from _tensors(entry)
    elif hasattr(value, "detach"):
        yield value


def _integers(value: Any) -> Iterator[Values]:
    return (array_of(t) for t in _tensors(value) if not t.is_floating_point() and not t.is_complex())


def _sites(example: Any, table: Any) -> tuple[Values, Values]:
    """Returns the sample [N] and the coordinates [N, D] of each row of features; none, [N, 0], if no tensor of the
    example has them.
    """
    if kind_of(table):
        sites = coordinates_of(table)
        return sites[:, 0], sites[:, 1:]
    length = len(table)
    samples: Values | None = None
    coordinates = np.zeros((length, 0), np.int64)
    for values in _integers(example):
        is_table = values.ndim == 2 and len(values) == length
        if samples is None and values.ndim == 1 and _are_ends(values, length):
            samples = np.searchsorted(values, np.arange(length), side="right")
        elif is_table and values.shape[1] > 3:
            samples = values[:, 0].astype(np.int64) if samples is None else samples
            coordinates = values[:, 1:].astype(np.int64)
        elif is_table and values.shape[1] == 3:
            coordinates = values.astype(np.int64)
    return np.zeros(length, np.int64) if samples is None else samples, coordinates


def _inside(coordinates: Values) -> Values:
    """Returns which rows have neither the least nor the largest coordinate of an axis on which there are others."""
    if not len(coordinates):
        return np.zeros(0, np.bool_)
    low, high = coordinates.min(axis=0), coordinates.max(axis=0)
    is_flat = high - low < 2
    inside: Values = (is_flat | ((coordinates > low) & (coordinates < high))).all(axis=1)
    return inside


def _are_ends(values: Values, length: int) -> bool:
    """Returns whether values are the ends of the samples in a list of rows: ascending, the last one all rows."""
    return 0 < len(values) < length and int(values[-1]) == length and bool((np.diff(values) > 0).all())


def _are_rows(values: Values, length: int) -> bool:
    """Returns whether values are numbers of rows, for another number of things. Labels are smaller numbers."""
    is_of_others = values.ndim == 1 and len(values) != length and values.min(initial=0) >= 0
    return bool(is_of_others and length // 2 <= values.max(initial=-1) < length)


class _Thinned:
    """Selects rows of every tensor in an example that has as many rows as the features. If a tensor of integers gives
    the voxel of each point, it also selects the points of the selected rows. rows: the rows to select.
    """

    def __init__(self, example: Any, samples: Values, rows: Values) -> None:
        self._samples, self._rows = samples, rows
        self._num_samples = int(samples.max()) + 1
        self._num_left = int(samples[rows].max()) + 1
        place = np.full(len(samples), -1)  # row -> its place among the rows that are taken; -1: none
        place[rows] = np.arange(len(rows))
        self._voxel_of_point = next((v for v in _integers(example) if _are_rows(v, len(samples))), np.zeros(0))
        self._places = place[self._voxel_of_point.astype(np.int64)]
        self._points = np.flatnonzero(self._places >= 0)

    def of(self, value: Any, key: str = "") -> Any:
        kind = kind_of(value)
        if kind:
            return self._sparse(value, kind)
        if isinstance(value, dict):
            return {k: self.of(v, str(k)) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.of, value))
        if hasattr(value, "detach") and value.ndim > 0:
            return self._tensor(value)
        is_count = isinstance(value, int) and "batch" in key and value == self._num_samples
        return self._num_left if is_count else value

    def _sparse(self, value: Any, kind: str) -> Any:
        features = _taken(features_of(value), self._rows)
        if kind == "spconv":
            indices = _taken(value.indices, self._rows)
            return type(value)(features, indices, value.spatial_shape, self._num_left)
        coordinates = _taken(value.C, self._rows)
        if kind == "MinkowskiEngine":
            return type(value)(features, coordinates=coordinates)
        limits = value.spatial_range
        return type(value)(features, coordinates, value.stride, limits and (self._num_left, *limits[1:]))

    def _tensor(self, value: Any) -> Any:
        if len(value) == len(self._samples):
            return _taken(value, self._rows)
        values = array_of(value)
        if np.array_equal(values, self._voxel_of_point):
            return value.new_tensor(self._places[self._points])
        if len(value) == len(self._voxel_of_point):
            return _taken(value, self._points)
        if value.ndim == 1 and not value.is_floating_point() and _are_ends(values, len(self._samples)):
            return value.new_tensor(np.cumsum(np.bincount(self._samples[self._rows])))
        return value


def _taken(tensor: Any, rows: Values) -> Any:
    import torch

    return tensor[torch.from_numpy(rows).to(tensor.device)]
