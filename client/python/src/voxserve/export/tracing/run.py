"""Runs a module on one example, and records what it computes of the example's features: a trace."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from voxserve.export.limits import MAX_FEATURES
from voxserve.export.networks.tensors import ExportError
from voxserve.export.tracing.graph import INPUT, Graph, Place
from voxserve.export.tracing.refusal import LimitError, RefusalError
from voxserve.export.tracing.second_cloud import is_features
from voxserve.verify import machine
from voxserve.verify.sparse_tensors import features_of, kind_of, named


@dataclass(frozen=True)
class Result:
    """A result of the module that comes from the example's features."""

    place: Place
    channels: int


@dataclass(frozen=True)
class Trace:
    """The record of a module's run on one example."""

    graph: Graph
    results: dict[str, Result]
    others: tuple[str, ...]  # the names of the results that are tensors and do not come from the features


def trace(module: Any, example: Any, axes: tuple[int, ...], cut: str, features: str) -> Trace:
    """Runs module(example). The module's attributes are afterwards as they were. The arguments are those of from_torch;
    axes: Graph.axes, or () if they are not known.
    """
    import torch

    from voxserve.export.tracing import coordinates, patches

    graph = Graph(axes=axes)
    stored = module.state_dict(keep_vars=True).values()
    graph.stored = {tensor.data_ptr() for tensor in stored if hasattr(tensor, "data_ptr")}  # others: get_extra_state()
    with (
        torch.no_grad(),
        machine.prepared(module) as texts,
        _unchanged(module),
        patches.patched(graph, module, cut),
        coordinates.Following(graph),
    ):
        try:
            arguments = _traced_example(graph, example, features)
            returned = module(*arguments) if isinstance(arguments, tuple) else module(arguments)
        except patches.Cut as ended:
            returned = ended.result
        except LimitError:
            raise
        except RefusalError as refusal:
            raise refusal.offering(graph.last_module) from None
        except RuntimeError as error:
            short = {p.dtype for p in module.parameters() if p.dtype in (torch.float16, torch.bfloat16)}
            if not short:
                raise
            kinds = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in short))
            raise ExportError(
                [
                    f"{error}: the module has weights in {kinds}, which not every layer computes with here: say "
                    "module.float() before"
                ]
            ) from error
    for text in texts:
        graph.warn(text)
    return _results(graph, returned)


@contextmanager
def _unchanged(module: Any) -> Iterator[None]:
    """Gives the module's parts the attributes that they had before, such as tables that they make when they first
    run.
    """
    before = []
    for part in module.modules():
        attributes = vars(part)
        inner = [(v, v.copy()) for v in attributes.values() if isinstance(v, (dict, list))]
        before += [(attributes, attributes.copy()), *inner]
    try:
        yield
    finally:
        for held, content in before:
            if isinstance(held, list):
                held[:] = content
            else:
                held.clear()
                held.update(content)


def _traced_example(graph: Graph, example: Any, features: str) -> Any:
    """Returns the example with its features replaced by a traced tensor. The example keeps its own."""
    from voxserve.export.tracing import minkowski_layers
    from voxserve.export.tracing.traced import wrap

    found = []

    def traced(tensor: Any) -> Any:
        found.append(tensor)
        graph.num_rows, graph.num_features = map(int, tensor.shape)
        return wrap(tensor.detach().clone(), Place("sites", INPUT, graph.input_level), graph)

    def replaced(value: Any, key: str = "") -> Any:
        kind = kind_of(value)
        if kind == "spconv":
            value = value.replace_feature(traced(value.features))
        elif kind == "MinkowskiEngine":
            value = minkowski_layers.like(value, traced(value.F))
        elif kind == "torchsparse":
            value = type(value)(traced(value.feats), value.coords, value.stride, value.spatial_range)
        elif isinstance(value, tuple):
            value = tuple(replaced(v) for v in value)
        elif isinstance(value, list):
            value = [replaced(v) for v in value]
        elif isinstance(value, dict):
            value = {k: replaced(v, str(k)) for k, v in value.items()}
        elif is_features(value, key, features):
            value = traced(value)
        return value

    made = replaced(example)
    if len(found) != 1:
        what = "features='name' names them" if found else "a sparse tensor, or a dict of tensors"
        raise ExportError([f"the example has {len(found)} tensors of features, and it needs one: {what}"])
    if graph.num_features > MAX_FEATURES:
        raise LimitError(f"the example has {graph.num_features} features; the server has at most {MAX_FEATURES}")
    return made


def _results(graph: Graph, returned: Any) -> Trace:
    from voxserve.export.tracing.row_arithmetic import length_of
    from voxserve.export.tracing.sparse_places import sparse_place
    from voxserve.export.tracing.traced import place_of

    results, others = {}, []
    for name, value in named(returned):
        tensor = features_of(value)
        place = place_of(tensor)
        if place is not None and place.node != INPUT:
            place = length_of(graph, place)
            if kind_of(value) and place.kind in ("sites", "points"):
                sparse_place(value)
            results[name] = Result(place, _channels(tuple(tensor.shape), place))
        elif hasattr(tensor, "detach"):
            others.append(name)
    return Trace(graph, results, tuple(others))


def _channels(shape: tuple[int, ...], place: Place) -> int:
    if place.kind == "laid":
        return math.prod(n for n, d in zip(shape, place.layout, strict=True) if isinstance(d, int))
    return shape[1] if len(shape) > 1 else 1
