"""Replaces functions of torch, of Python and of the sparse libraries during a trace: the call of a module, the sizes of
tensors, and the constructor and some methods of sparse tensors.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from voxserve.export.tracing import layers, layouts, minkowski_layers, sizes, sparse_places, spconv_layers
from voxserve.export.tracing.graph import Graph
from voxserve.export.tracing.refusal import Line, RefusalError, is_of_user
from voxserve.export.tracing.traced import place_of
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
        for name, value in _sizes(graph).items():
            replace(torch.Tensor, name, value)
        replace(builtins, "len", _length(graph, len))
        for library, name in _SPARSE_TENSORS.items():
            if library not in sys.modules:
                continue
            tensor = getattr(sys.modules[library], name)
            replace(tensor, "__init__", _noting(graph, tensor.__init__))
            if library == "spconv.pytorch":
                replace(tensor, "dense", _dense(graph, tensor.dense))
                for cls in _spconv_layers():
                    replace(cls, "forward", _forward(graph, cls.forward))
            elif library == "torchsparse" and hasattr(tensor, "dense"):
                replace(tensor, "dense", _refused_dense(tensor.dense))
            elif library == "MinkowskiEngine":
                replace(tensor, "__add__", _sum(graph, tensor.__add__))
                replace(tensor, "__sub__", _difference(tensor.__sub__))
                for name in ("__mul__", "__truediv__"):
                    replace(tensor, name, _refused_on_other_sites(getattr(tensor, name)))
        yield
    finally:
        for owner, name, value in reversed(own):
            if value is None:  # inherited
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def _traced_call(graph: Graph, paths: dict[int, str], cut: str, original: Callable[..., Any]) -> Any:
    counts: dict[str, int] = {}

    def run(module: Any, *args: Any, **kwargs: Any) -> Any:
        layer = layers.layer_of(module)
        if layer is None:
            return original(module, *args, **kwargs)
        if "forward" in vars(module):
            raise RefusalError(
                f"the object's own forward was replaced, so that it is no {type(module).__name__} of the library: "
                "write a class of your own with this forward"
            )
        forward = module.forward
        # The layer is computed where its forward is called, so that hooks of the module work on traced features.
        module.__dict__["forward"] = lambda *a, **k: layer(graph, module, forward, a, k)
        try:
            return original(module, *args, **kwargs)
        finally:
            del module.__dict__["forward"]

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        path = paths.get(id(module), "")
        if not path:  # the whole module, or one made in a forward, such as MinkowskiUnion(): each may be a layer too
            return run(module, *args, **kwargs)
        counts[path] = counts.get(path, 0) + 1
        name = path if counts[path] == 1 else f"{path}#{counts[path]}"
        was_leaf, graph.is_leaf = graph.is_leaf, layers.is_library_layer(module)
        graph.path.append(path)
        try:
            result = run(module, *args, **kwargs)
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


def _spconv_layers() -> list[Any]:
    """Returns spconv's classes whose forward runs code that is not torch's."""
    names = {"conv": "SparseConvolution", "pool": "SparseMaxPool"}
    return [getattr(sys.modules[f"spconv.pytorch.{part}"], name) for part, name in names.items()]


def _forward(graph: Graph, original: Callable[..., Any]) -> Any:
    """Returns the forward of a layer, which a user's subclass may call for itself. spconv's own code writes into
    tensors behind torch's back, so it never gets traced features.
    """

    def forward(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        if place_of(features_of(x)) is None:
            return original(self, x, *args, **kwargs)
        name = next(cls.__name__ for cls in type(self).__mro__ if cls.__name__ in spconv_layers.LAYERS)
        handler = spconv_layers.LAYERS[name]
        return handler(graph, self, lambda *a, **k: original(self, *a, **k), (x, *args), kwargs)

    return forward


def _noting(graph: Graph, original: Callable[..., Any]) -> Any:
    """Returns a constructor for sparse tensors that also notes the voxels' coordinates, from the first sparse tensor
    that the module makes of the example's features.
    """

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if kind_of(self) == "spconv":
            self.batch_size = sizes.of(self.batch_size, graph.branches)
        sparse_places.note(self)

    return __init__


def _sizes(graph: Graph) -> dict[str, Any]:
    """Returns properties and methods of torch.Tensor whose results note what the user's code compares them with."""
    base: Any = torch.Tensor

    def sized(value: Any) -> Any:
        if isinstance(value, tuple):
            return torch.Size(sizes.of(n, graph.branches) for n in value)
        return sizes.of(value, graph.branches)

    def noting(original: Any) -> Any:
        @wraps(original)  # torch names a method to Traced by its attributes
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return sized(original(self, *args, **kwargs))

        return method

    @wraps(base.__bool__)
    def is_true(self: Any) -> bool:
        result = bool(is_true_of(self))
        frame = sys._getframe(1)
        if is_of_user(frame.f_code.co_filename):
            graph.truths.append((Line(frame.f_code.co_filename, frame.f_lineno), result))
        return result

    shape, is_true_of = base.shape, base.__bool__
    methods = {name: noting(getattr(base, name)) for name in ("size", "numel", "nelement", "item")}
    return {"shape": property(lambda self: sized(shape.__get__(self))), "__bool__": is_true, **methods}


def _length(graph: Graph, original: Callable[[Any], int]) -> Any:
    def length(value: Any, /) -> int:
        result = original(value)
        is_sized = isinstance(value, torch.Tensor) or kind_of(value)
        return sizes.of(result, graph.branches) if is_sized else result

    return length


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
        if _is_on_other_sites(self, other):
            return minkowski_layers.union(graph, original, [self, other])
        return original(self, other)

    return __add__


def _difference(original: Callable[..., Any]) -> Any:
    def __sub__(self: Any, other: Any) -> Any:  # noqa: N807
        if kind_of(other) == "MinkowskiEngine" and place_of(self.F) is not None and place_of(other.F) is not None:
            return self + minkowski_layers.like(other, -other.F)
        return original(self, other)

    return __sub__


def _refused_on_other_sites(original: Callable[..., Any]) -> Any:
    def combine(self: Any, other: Any) -> Any:
        if _is_on_other_sites(self, other):
            raise RefusalError(
                "a product or quotient of sparse tensors on other sites is not in the model format: the library leaves "
                "the first tensor's rows as they are where the second one has no site"
            )
        return original(self, other)

    return combine


def _is_on_other_sites(x: Any, other: Any) -> bool:
    """Returns whether two traced sparse tensors of MinkowskiEngine have different coordinates."""
    if kind_of(other) != "MinkowskiEngine" or place_of(x.F) is None or place_of(other.F) is None:
        return False
    return bool(x.coordinate_map_key != other.coordinate_map_key)
