"""Finds the places of sparse tensors' features, and checks that their coordinates are the sites of the network."""

from __future__ import annotations

from typing import Any

import numpy as np

from voxserve.arrays import array_of
from voxserve.export.limits import LIMITS
from voxserve.export.tracing.graph import Graph, Level, Place, Values
from voxserve.export.tracing.refusal import LimitError, RefusalError
from voxserve.export.tracing.traced import Traced, place_of
from voxserve.verify import sites as site_maths
from voxserve.verify.sparse_tensors import features_of, kind_of


def sparse_place(tensor: Any, kind: str = "sites", *, needs_sites: bool = True) -> Place:
    """Returns the place of a sparse tensor's features. Raises RefusalError if its coordinates are not the sites of the
    rows in the network, since a module can make a sparse tensor of any features and coordinates.

    needs_sites: False for what reads the sample of each row alone, such as a global pool.
    """
    features = features_of(tensor)
    if not kind_of(tensor):
        given = "Tensor" if isinstance(tensor, Traced) else type(tensor).__name__
        raise RefusalError(f"a layer of sparse tensors is called with a {given}")
    place = place_of(features)
    if place is None or place.kind != kind:
        raise RefusalError(f"a sparse tensor whose features are not {kind} that come from the example's")
    if kind == "sites":
        _check(features.graph, place.on_level(), tensor, needs_sites)
    return place


def note(tensor: Any) -> None:
    """Notes the voxels' coordinates and spatial shape, of the first sparse tensor of the example's features."""
    features = features_of(tensor)
    if not isinstance(features, Traced):
        return
    graph, level = features.graph, features.graph.input_level
    if features.place.level is not level or level.coordinates is not None:
        return
    coordinates = tensor.indices if kind_of(tensor) == "spconv" else tensor.C
    dimension = int(coordinates.shape[1]) - 1
    if dimension > LIMITS["kMaxDimension"]:
        raise LimitError(f"the sparse tensor has {dimension} axes; the server has at most {LIMITS['kMaxDimension']}")
    if not graph.axes:
        graph.axes = tuple(range(dimension))
    if len(graph.axes) != dimension:
        raise RefusalError(f"axes has {len(graph.axes)} names, the sparse tensor {dimension} axes")
    unit = _unit(graph, tensor)
    if any(s != 1 for s in unit):
        raise RefusalError(f"the example's tensor stride is {list(unit)}, not 1")
    level.coordinates = graph.sites_of(coordinates)
    if any(not np.array_equal(sites, level.coordinates) for sites in graph.assumed):
        raise RefusalError(
            "integers that are used as features, as coordinates, are not those of the sparse tensor that is made "
            "after: take the coordinates of the sparse tensor, or features of the example"
        )
    level.stride = (1,) * dimension
    level.shape = _shape(graph, tensor)
    if kind_of(tensor) == "torchsparse" and _has_the_sample_last(array_of(coordinates)):
        graph.warn(
            "the coordinates look like those of torchsparse 1.x, which has the sample last; in 2.1, whose networks are "
            "served, it is the first column"
        )


def _has_the_sample_last(coordinates: Values) -> bool:
    """Returns whether the last column, and not the first one, has the samples: 0, ..., 0, 1, ..., 1, 2, ..."""
    steps = [np.diff(column, prepend=0) for column in (coordinates[:, 0], coordinates[:, -1])]
    first, last = (bool(((step == 0) | (step == 1)).all()) for step in steps)
    return last and not first


def _check(graph: Graph, level: Level, tensor: Any, needs_sites: bool) -> None:
    unit, known = _unit(graph, tensor), level.sites()
    if 0 in unit:  # MinkowskiEngine says so of a result on coordinates that were given to a layer
        unit = level.stride
    coordinates = tensor.indices if kind_of(tensor) == "spconv" else tensor.C
    sites = graph.sites_of(coordinates)
    if kind_of(tensor) == "MinkowskiEngine":
        sites[:, 1:] //= np.asarray(unit)
    if not needs_sites:
        sites, known = sites[:, :1], known[:, :1]
    if not np.array_equal(sites, known):
        is_permuted = sites.shape == known.shape and np.array_equal(site_maths.unique(sites), site_maths.unique(known))
        raise RefusalError(
            f"a sparse tensor has coordinates {'in another order than' if is_permuted else 'that are not'} those of "
            "its features' own sites: coordinates that the module computes (scaled, moved, permuted) are not in the "
            "model format. Make the coordinates before the example, or keep those of the sparse tensor"
        )
    if not needs_sites:
        return
    shape = _shape(graph, tensor)
    if unit and unit != level.stride:
        raise RefusalError(f"a sparse tensor has the stride {list(unit)}, and its features' sites {list(level.stride)}")
    if kind_of(tensor) == "spconv" and shape != level.shape:
        raise RefusalError(
            f"a sparse tensor has the spatial shape {list(shape)}, and its features' sites {list(level.shape)}"
        )


def _unit(graph: Graph, tensor: Any) -> tuple[int, ...]:
    """Returns the tensor stride on each axis; empty for spconv, which has none."""
    if kind_of(tensor) == "spconv":
        return ()
    return tuple(map(int, graph.axes_of(tensor.tensor_stride if hasattr(tensor, "tensor_stride") else tensor.stride)))


def _shape(graph: Graph, tensor: Any) -> tuple[int, ...]:
    """Returns the number of cells on each axis; empty if the sites are not limited."""
    if kind_of(tensor) == "spconv":
        return tuple(map(int, graph.axes_of(tensor.spatial_shape)))
    limits = getattr(tensor, "spatial_range", None)
    return () if limits is None else tuple(map(int, graph.axes_of(tuple(limits)[1:])))  # the samples are first
