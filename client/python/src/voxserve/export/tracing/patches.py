"""Replaces functions of torch and of the sparse libraries during a trace: the call of a module, and the constructor and
some methods of sparse tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from voxserve.export.tracing import layers, layouts, minkowski_layers, spconv_layers
from voxserve.export.tracing.graph import Graph
from voxserve.export.tracing.refusal import RefusalError
from voxserve.export.tracing.traced import Traced, place_of
from voxserve.verify.sparse_tensors import features_of, kind_of

_SPARSE_TENSORS = {  # library -> its class of sparse tensors
    "spconv.pytorch": "SparseConvTensor",
    "torchsparse": "SparseTensor",
    "MinkowskiEngine": "SparseTensor",
}


class Cut(Exception):  # noqa: N818
    """Ends a trace after the part of the module that `cut` names. result: the part's result."""

    def __init__(self, result: Any) -> None:
        super().__init__("the network is cut here")
        self.result = result


@contextmanager
def patched(graph: Graph, module: Any, cut: str) -> Iterator[None]:
    """Makes the calls of the module's parts add nodes to the graph, inside the `with` block. cut: the path of the part
    after which the trace ends; "": none. ValueError if there is no such part.
    """
    paths = {id(part): path for path, part in module.named_modules()}
    if cut and cut not in paths.values():
        raise ValueError(f"cut is '{cut}', which is no module of the network")
    own: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Any) -> None:
        own.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, value)

    try:
        replace(torch.nn.Module, "__call__", _traced_call(graph, paths, cut, torch.nn.Module.__call__))
        for library, name in _SPARSE_TENSORS.items():
            if library not in sys.modules:
                continue
            tensor = getattr(sys.modules[library], name)
            replace(tensor, "__init__", _noting(graph, tensor.__init__))
            if library == "spconv.pytorch":
                replace(tensor, "dense", _dense(graph, tensor.dense))
            elif library == "torchsparse" and hasattr(tensor, "dense"):
                replace(tensor, "dense", _refused_dense(tensor.dense))
            elif library == "MinkowskiEngine":
                replace(tensor, "__add__", _sum(graph, tensor.__add__))
        yield
    finally:
        for owner, name, value in reversed(own):
            if value is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def _traced_call(graph: Graph, paths: dict[int, str], cut: str, original: Callable[..., Any]) -> Any:
    counts: dict[str, int] = {}

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        path = paths.get(id(module), "")
        if not path:
            return original(module, *args, **kwargs)
        counts[path] = counts.get(path, 0) + 1
        name = path if counts[path] == 1 else f"{path}#{counts[path]}"
        was_leaf, graph.is_leaf = graph.is_leaf, layers.is_library_layer(module)
        graph.path.append(path)
        try:
            layer = layers.layer_of(module)
            if layer is None:
                result = original(module, *args, **kwargs)
            else:
                result = layer(graph, module, lambda *a, **k: original(module, *a, **k), args, kwargs)
        finally:
            graph.path.pop()
            graph.is_leaf = was_leaf
        place = place_of(features_of(result))
        if place is not None and not any(place.padding) and layouts.is_rows(place):
            graph.modules[name] = place.node
            graph.last_module = path
        if path == cut:
            raise Cut(result)
        return result

    return call


def _noting(graph: Graph, original: Callable[..., Any]) -> Any:
    """Returns a constructor for sparse tensors that also notes the voxels' coordinates, from the first sparse tensor
    that the module makes of the example's features.
    """

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        _note(graph, self)

    return __init__


def _note(graph: Graph, tensor: Any) -> None:
    features = features_of(tensor)
    level = graph.input_level
    if not isinstance(features, Traced) or level.coordinates is not None or features.place.level is not level:
        return
    kind = kind_of(tensor)
    coordinates = tensor.indices if kind == "spconv" else tensor.C
    if not graph.axes:
        graph.axes = tuple(range(coordinates.shape[1] - 1))
    if len(graph.axes) != coordinates.shape[1] - 1:
        raise RefusalError(f"axes has {len(graph.axes)} names, the sparse tensor {coordinates.shape[1] - 1} axes")
    if kind == "MinkowskiEngine" and any(s != 1 for s in tensor.tensor_stride):
        raise RefusalError(f"the example's tensor stride is {list(tensor.tensor_stride)}, not 1")
    level.coordinates = graph.sites_of(coordinates)
    level.stride = (1,) * len(graph.axes)
    if kind == "spconv":
        level.shape = graph.axes_of(tensor.spatial_shape)
    elif kind == "torchsparse" and tensor.spatial_range is not None:
        level.shape = graph.axes_of(tuple(map(int, tensor.spatial_range[1:])))  # the samples are first


def _dense(graph: Graph, original: Callable[..., Any]) -> Any:
    def dense(self: Any, *args: Any, **kwargs: Any) -> Any:
        if place_of(self.features) is None:
            return original(self, *args, **kwargs)
        return spconv_layers.dense(graph, original, self, *args, **kwargs)

    return dense


def _refused_dense(original: Callable[..., Any]) -> Any:
    def dense(self: Any, *args: Any, **kwargs: Any) -> Any:
        if place_of(self.feats) is None:
            return original(self, *args, **kwargs)
        raise RefusalError("torchsparse's dense() is not yet traced: return the sparse tensor")

    return dense


def _sum(graph: Graph, original: Callable[..., Any]) -> Any:
    def __add__(self: Any, other: Any) -> Any:  # noqa: N807
        is_union = kind_of(other) == "MinkowskiEngine" and self.coordinate_map_key != other.coordinate_map_key
        if is_union and place_of(self.F) is not None and place_of(other.F) is not None:
            return minkowski_layers.union(graph, original, [self, other])
        return original(self, other)

    return __add__
