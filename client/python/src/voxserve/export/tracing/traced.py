"""Defines Traced, a torch tensor that knows which node computes it. torch functions of it add nodes to the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from voxserve.export.tracing import advice, attention, functions, scatter
from voxserve.export.tracing.functions import Call
from voxserve.export.tracing.graph import Graph, Place
from voxserve.export.tracing.refusal import RefusalError

# Functions that return a tensor's shape and none of its values, or make constants of its size.
_SHAPES = ("size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "element_size", "__len__")
_TRAITS = ("is_contiguous", "is_floating_point", "is_complex", "is_same_size", "get_device", "data_ptr", "__hash__")
# Functions that read no values of their second tensor.
_AS_ANOTHER = ("expand_as", "view_as", "reshape_as", "type_as", "to")
_TEXTS = ("__repr__", "__format__", "__str__")
_CONSTANTS = ("zeros_like", "ones_like", "empty_like", "new_zeros", "new_ones", "new_empty", "new_tensor", "new_full")
_ABOUT = frozenset((*_SHAPES, *_TRAITS, *_TEXTS, *_CONSTANTS))
_PROPERTIES_OF_VALUES = frozenset(("T", "mT", "H", "mH", "real", "imag", "data"))


class Traced(torch.Tensor):
    """A torch tensor whose values the node of `place`, in `graph`, computes."""

    place: Place
    graph: Graph

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = _without_scalars(args), _without_scalars(kwargs or {})
        name = getattr(func, "__name__", type(func).__name__)  # TorchScript's ScriptMethod has no name
        if name == "__set__":
            raise RefusalError("an assignment to a property of traced features is not in the model format")
        plain_args, plain_kwargs = unwrapped(args), unwrapped(kwargs)
        if name == "__get__":
            owner = getattr(getattr(func, "__self__", None), "__name__", "")
            if owner not in _PROPERTIES_OF_VALUES:
                return func(*plain_args, **plain_kwargs)
            if owner == "data":
                return args[0]
            if owner not in ("T", "mT"):
                raise RefusalError(f"Tensor.{owner} of traced features is not in the model format")
            name = owner
        if name == "requires_grad_":  # a trace computes no gradients
            return args[0]
        is_question = name == "type" and len(args) == 1 and not kwargs  # the type's name
        if is_question or name in _ABOUT or (name in _AS_ANOTHER and not isinstance(args[0], Traced)):
            return func(*plain_args, **plain_kwargs)
        graph = next(t.graph for t in _leaves((args, kwargs)) if isinstance(t, Traced))
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            functions.warn_of_half(graph)
        handler = functions.HANDLERS.get(name)
        if handler is None:
            raise RefusalError(f"'{name}' is not in the model format{advice.on(name)}")
        if kwargs.get("out") is not None:
            raise RefusalError(f"'{name}' with out= is not in the model format")
        if (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or kwargs.get("inplace"):
            return _in_place(graph, handler, name, func, args, kwargs)
        place = _handled(handler, Call(graph, name, args, kwargs, place_of))
        # The values are computed after the place, so that an error about the function is a RefusalError that names it.
        result = func(*plain_args, **plain_kwargs)
        if isinstance(place, Traced):  # the function leaves the values as they are, or copies them
            return place if _address(result) == _address(unwrapped(place)) else wrap(result, place.place, graph)
        if isinstance(place, list):
            pairs = zip(result, place, strict=True)
            wrapped = tuple(wrap(r, p, graph) if isinstance(r, torch.Tensor) else r for r, p in pairs)
            has_names = type(result).__module__ == "torch.return_types"  # such as .values and .indices of a maximum
            return type(result)(wrapped) if has_names else wrapped
        return wrap(result, place, graph)


def _handled(handler: Callable[[Call], Any], call: Call) -> Any:
    """Returns what the handler returns: a place, a list of places, or a traced tensor that the function leaves as it
    is.
    """
    kinds = [t.place.kind for t in _leaves((call.args, call.kwargs)) if isinstance(t, Traced)]
    if "laid" not in kinds or call.name in functions.OF_LAYOUTS:
        return handler(call)
    weights = attention.softmax(call) if call.name == "softmax" else None
    return attention.of_rows(handler, call, wrap) if weights is None else weights


def _in_place(graph: Graph, handler: Any, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    target = args[0]
    if not isinstance(target, Traced) and name in scatter.HANDLERS:
        place = handler(Call(graph, name, args, kwargs, place_of))
        func(*unwrapped(args), **unwrapped(kwargs))
        address = _address(target)
        target.__class__ = Traced  # the module goes on with this tensor, and not with the result
        target.place, target.graph = place, graph
        graph.note_memory(target, address)
        return target
    if not isinstance(target, Traced):
        raise RefusalError(f"'{name}' writes features into a tensor that is not traced")
    if graph.shares_memory(target, _address(unwrapped(target))):
        raise RefusalError(f"'{name}' changes a view of another tensor, or a tensor that has views")
    place = _handled(handler, Call(graph, name, args, kwargs, place_of))
    func(*unwrapped(args), **unwrapped(kwargs))
    if isinstance(place, Place):
        target.place = place
    return target


def wrap(values: Any, place: Place, graph: Graph) -> Traced:
    made: Traced = torch.Tensor._make_subclass(Traced, values.detach())  # type: ignore[arg-type]
    made.place, made.graph = place, graph
    graph.note_memory(made, _address(values))
    return made


def _address(values: Any) -> int:
    """Returns the address of a tensor's memory, which its views share."""
    return int(values.untyped_storage().data_ptr())


def place_of(value: Any) -> Place | None:
    return value.place if isinstance(value, Traced) else None


def unwrapped(value: Any) -> Any:
    """Returns the value with plain torch tensors instead of traced ones."""
    if isinstance(value, Traced):
        return value.as_subclass(torch.Tensor)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(unwrapped, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(unwrapped, value))
    if isinstance(value, dict):
        return {key: unwrapped(v) for key, v in value.items()}
    return value


def _without_scalars(value: Any) -> Any:
    """Returns a call's arguments with Python's numbers instead of NumPy's."""
    if type(value) is tuple:
        return tuple(map(_without_scalars, value))
    if isinstance(value, dict):
        return {key: _without_scalars(v) for key, v in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for v in value for leaf in _leaves(v)]
    if isinstance(value, dict):
        return [leaf for v in value.values() for leaf in _leaves(v)]
    return [value]
