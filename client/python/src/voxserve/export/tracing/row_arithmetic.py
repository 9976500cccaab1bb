"""Converts arithmetic of two tensors of rows, and reductions of each row's channels, to nodes.

Functions that torch computes of these are composed of them: a handler calls torch's functions with the traced tensor,
which add the nodes.
"""

from __future__ import annotations

import functools
import math
import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from voxserve.export.tracing import layouts
from voxserve.export.tracing.graph import Graph, Place
from voxserve.export.tracing.refusal import RefusalError

if TYPE_CHECKING:
    from voxserve.export.tracing.functions import Call

_ROWS = ("sites", "points", "samples")
_MOST_COMPARED = 32  # the most values of a part of the channels, such as heads, whose largest one is computed
LEAST_LENGTH = 1e-12  # by which a shorter row is divided


def elementwise(call: Call, function: str, a: Place, b: Place, epsilon: float = 0.0) -> Place:
    """Adds the node for a function of two tensors on the same rows, of as many channels or of one. a, b: the places of
    the call's first two arguments. function: such as SUBTRACT. epsilon: for DIVIDE, added to b.
    """
    check_same_rows(call, [a, b])
    shapes = [tuple(call.get(i, key).shape) for i, key in enumerate(("input", "other"))]
    channels = [1 if place.is_flat else shape[1] for place, shape in zip((a, b), shapes, strict=True)]
    rest = [shape[:1] + shape[2:] for shape in shapes]
    if a.is_flat != b.is_flat or rest[0] != rest[1] or (len(set(channels)) > 1 and 1 not in channels):
        raise RefusalError(
            f"'{call.name}' of features {list(shapes[0])} and {list(shapes[1])}: in the model format both have as many "
            "channels, or one of them is [N, 1], as a reduction over the channels with keepdim=True makes"
        )
    return _combined(call.graph, function, a, b, epsilon)


def _combined(graph: Graph, function: str, a: Place, b: Place, epsilon: float = 0.0) -> Place:
    """Adds the node for a function of two places of the same rows and fitting channels."""
    name = graph.node(
        "elementwise", [a.node, b.node], lambda network, n: network.elementwise(n, a.node, b.node, function, epsilon)
    )
    return replace(a, node=name)


def check_same_rows(call: Call, places: Sequence[Place]) -> None:
    """Raises RefusalError unless the places have rows of the same kind and sites."""
    first = places[0]
    for place in places[1:]:
        if place.kind != first.kind:
            raise RefusalError(f"'{call.name}' of {first.kind} and {place.kind} is not in the model format")
        if first.kind == "sites" and not first.on_level().has_rows_of(place.on_level()):
            raise RefusalError(f"'{call.name}' of tensors on different sites")
        if first.kind == "points" and not np.array_equal(first.index, place.index):
            raise RefusalError(
                f"'{call.name}' of rows of voxels that two indices choose, such as a voxel's neighbours: a row reads "
                "other rows through convolutions, pools, norms and attention alone"
            )


def difference(call: Call, a: Place, b: Place) -> Place:
    return elementwise(call, "SUBTRACT", *((b, a) if "rsub" in call.name else (a, b)))


def quotient(call: Call, a: Place, b: Place) -> Place:
    """Adds the node for a / b. A number that was added to b is added in the node, in float32."""
    if call.kwargs.get("rounding_mode"):
        raise RefusalError(f"'{call.name}' with a rounding_mode is not in the model format: write it without")
    kind, *rest = call.graph.made_by.get(b.node, ("",))
    if kind == "plus":
        return elementwise(call, "DIVIDE", a, replace(b, node=rest[0]), rest[1])
    return elementwise(call, "DIVIDE", a, b)


def length_of(graph: Graph, x: Place) -> Place:
    """Returns the place of the values of a place of kind "length", by which rows may be divided without computing it.
    Returns any other place as it is.
    """
    if x.kind != "length":
        return x
    source = x.node
    name = graph.node("length", [source], lambda network, n: network.row_reduce(n, source, "LENGTH"))
    if x.threshold > LEAST_LENGTH:
        length, least = name, x.threshold
        name = graph.node("clamp", [length], lambda network, n: network.activation(n, length, "CLAMP", minimum=least))
    return replace(x, kind=x.rows_kind, node=name, threshold=0.0, rows_kind="")


def stacked(call: Call, tensors: Sequence[Any], dim: int) -> Place:
    """Adds a node for rows [N, C] that are stacked along a new dimension, or [N] that become channels."""
    places = [call.source(tensor) for tensor in tensors]
    check_same_rows(call, places)
    first, shapes = places[0], {tuple(tensor.shape) for tensor in tensors}
    at = layouts.axis_of(dim, len(tensors[0].shape) + 1)
    if first.kind not in _ROWS or len(shapes) != 1 or len({place.is_flat for place in places}) != 1:
        raise RefusalError(f"'{call.name}' of {first.kind} {sorted(map(list, shapes))} is not in the model format")
    if first.is_flat and at == 0:
        raise RefusalError(f"'{call.name}' of tensors [N] along dimension 0 is not in the model format: along 1 it is")
    nodes = [place.node for place in places]
    name = call.graph.node("concat", nodes, lambda network, n: network.concat(n, nodes))
    made = replace(first, node=name, is_flat=False)
    # The channels of the first tensor come first: part 0 counts the tensors, part 1 their channels.
    of_rows: dict[int, layouts.Layout] = {0: (0, "rows", 1), 1: ("rows", 0, 1), 2: ("rows", 1, 0)}
    return made if first.is_flat else layouts.laid(made, of_rows[at])


# Reductions

_FUNCTIONS = {"sum": "SUM", "mean": "MEAN", "amax": "MAX", "amin": "MIN", "max": "MAX", "min": "MIN"}
_POOLS = {"SUM": "SUM", "MEAN": "AVERAGE", "MAX": "MAX"}


def _dim(call: Call, position: int = 1) -> int:
    """Returns the one dimension of a reduction, counted from the first."""
    given = call.get(position, "dim", call.kwargs.get("axis"))
    given = given[0] if isinstance(given, (list, tuple)) and len(given) == 1 else given
    shape = call.get(0, "input").shape
    if not isinstance(given, int):
        raise RefusalError(
            f"'{call.name}' over {'all' if given is None else 'several'} dimensions is not in the model format: over "
            "the channels, dim=1, it is, and a global pool of the library reduces a cloud's rows"
        )
    return layouts.axis_of(given, len(shape))


def reduced(call: Call, function: str, *, has_keepdim_at: int = 2) -> Place:
    """Adds the nodes for a reduction along one dimension, which the call's arguments name."""
    x, dim = call.source(), _dim(call)
    keeps = bool(call.get(has_keepdim_at, "keepdim", False))
    if x.kind == "laid":
        return _of_part(call, x, function, dim, keeps)
    if x.is_flat or x.kind not in (*_ROWS, "image"):
        raise RefusalError(f"'{call.name}' of {x.kind} is not in the model format")
    if dim == 1 and (keeps or x.kind != "image"):
        return replace(_one_channel(call.graph, function, x), is_flat=not keeps)
    if dim == 0 and x.kind == "sites" and function in _POOLS:
        return _of_all_rows(call, x, _POOLS[function], keeps)
    raise RefusalError(
        f"'{call.name}' of {x.kind} along dimension {dim} is not in the model format: along the channels, dim=1, it is"
        + (", with keepdim=True" if dim == 1 else "")
    )


def _one_channel(graph: Graph, function: str, x: Place) -> Place:
    """Adds the node that reduces each row to one channel."""
    name = graph.node("reduce", [x.node], lambda network, n: network.row_reduce(n, x.node, function))
    return replace(x, node=name)


def _of_all_rows(call: Call, x: Place, function: str, keeps: bool) -> Place:
    samples = len(np.unique(x.on_level().sites()[:, 0]))
    if samples != 1 or not keeps:
        raise RefusalError(
            f"'{call.name}' of all rows, along dimension 0, is in the model format for each cloud alone: take an "
            "example of one sample and keepdim=True, or a global pool of the library"
        )
    name = call.graph.node("pool", [x.node], lambda network, n: network.global_pool(n, x.node, function))
    return Place("samples", name)


def _of_part(call: Call, x: Place, function: str, dim: int, keeps: bool) -> Place:
    """Handles a reduction of rows that are laid out as several dimensions, along a part of the channels."""
    shape, layout = list(call.get(0, "input").shape), x.layout
    part, parts = layout[dim], layouts.parts_of(layout)
    if not isinstance(part, int):
        raise layouts.refuse(call, shape)
    count = shape[dim]
    if len(parts) == 1:
        made = _one_channel(call.graph, function, layouts.base(x))
        if keeps:
            return layouts.laid(made, layout)
        rest = tuple(d for i, d in enumerate(layout) if i != dim)
        return replace(made, is_flat=True) if rest == ("rows",) else layouts.laid(made, (*rest, 0))
    if function in ("MAX", "MIN"):
        if count > _MOST_COMPARED:
            raise layouts.refuse(call, shape)
        of_two = {"MAX": "MAXIMUM", "MIN": "MINIMUM"}[function]
        chosen = [layouts.chosen(call, x, shape, dim, i) for i in range(count)]
        rest_layout = layouts.layout_of(call, chosen[0])
        made = functools.reduce(functools.partial(_combined, call.graph, of_two), map(layouts.base, chosen))
    else:
        sizes = [shape[layout.index(p)] for p in sorted(parts)]
        numbers = np.arange(math.prod(sizes)).reshape(sizes)
        groups = np.moveaxis(numbers, part, -1).reshape(-1, count)  # [results, the channels of each]
        weight = np.zeros((len(groups), numbers.size), np.float32)
        np.put_along_axis(weight, groups, 1 / count if function == "MEAN" else 1, axis=1)
        made = call.graph.linear(layouts.base(x), weight)
        rest_layout = tuple(d - 1 if isinstance(d, int) and d > part else d for i, d in enumerate(layout) if i != dim)
    return layouts.laid(made, (*rest_layout[:dim], "one", *rest_layout[dim:]) if keeps else rest_layout)


def _sum(call: Call) -> Any:
    return reduced(call, _FUNCTIONS[call.name])


def _extreme(call: Call) -> Any:
    """Handles max and min: of two tensors, along a dimension with the index of the value, or of everything."""
    function, other = _FUNCTIONS[call.name], call.get(1, "other")
    if isinstance(other, torch.Tensor):
        return _of_two(replace(call, args=(call.get(0, "input"), other), kwargs={}))
    place = reduced(call, function)
    signed = call.get(0, "input") if function == "MAX" else -call.get(0, "input")
    is_of_channels = place.kind != "laid" and call.source().kind in _ROWS and _dim(call) == 1
    if is_of_channels and not call.get(2, "keepdim", False):
        return [place, signed.argmax(dim=1).place]
    return [place, Place("indices that nothing can read", place.node)]


def _of_two(call: Call) -> Place:
    a, b = call.get(0, "input"), call.get(1, "other")
    function = "MAXIMUM" if call.name.startswith("max") else "MINIMUM"
    return elementwise(call, function, call.source(a), call.source(b))


def _norm(call: Call) -> Any:
    """Handles the norm of each row. That by which rows may be divided is a place of its own kind."""
    x, p = call.get(0, "input"), call.get(1, "p", call.kwargs.get("ord"))
    dim, keeps = _dim(call, 2), bool(call.get(3, "keepdim", False))
    place = call.source()
    if p in (None, 2, "fro") and place.kind in _ROWS and not place.is_flat and dim == 1:
        return replace(place, kind="length", rows_kind=place.kind, threshold=LEAST_LENGTH, is_flat=not keeps)
    if p in (None, 2, "fro"):
        return x.square().sum(dim=dim, keepdim=keeps).sqrt()
    if p == 1:
        return x.abs().sum(dim=dim, keepdim=keeps)
    if p == math.inf:
        return x.abs().amax(dim=dim, keepdim=keeps)
    raise RefusalError(f"'{call.name}' with p={p} is not in the model format: with 1, 2 and infinity it is")


# Functions that are composed


def divided_by_sums(call: Call, epsilon: float) -> Any:
    """Returns rows divided by the sums of their absolute values. epsilon: the least divisor; it is added here, which
    only matters for rows of which it is no small part.
    """
    x = call.get(0, "input")
    dim = _dim(call, 2) if len(call.args) > 2 or "dim" in call.kwargs else 1
    return x / (x.abs().sum(dim=dim, keepdim=True) + epsilon)


def _deviation(call: Call) -> Any:
    """Handles std and var along the channels."""
    x, dim = call.get(0, "input"), call.get(1, "dim")
    keeps, correction = call.kwargs.get("keepdim", False), call.kwargs.get("correction", 1)
    if isinstance(dim, bool) or dim is None or "unbiased" in call.kwargs or len(call.args) > 2:
        raise RefusalError(f"'{call.name}' is in the model format as x.{call.name}(dim=1, correction=1, keepdim=True)")
    at = _dim(call)
    centred = x - x.mean(dim=at, keepdim=True)
    variance = centred.square().sum(dim=at, keepdim=keeps) / (x.shape[at] - correction)
    return variance.sqrt() if call.name == "std" else variance


def _logarithm_of_sum(call: Call) -> Any:
    x, at = call.get(0, "input"), _dim(call)
    largest = x.amax(dim=at, keepdim=True)
    summed = (x - largest).exp().sum(dim=at, keepdim=True).log() + largest
    return summed if call.get(2, "keepdim", False) else summed[:, 0]


def _log_softmax(call: Call) -> Any:
    x, at = call.get(0, "input"), _dim(call)
    shifted = x - x.amax(dim=at, keepdim=True)
    return shifted - shifted.exp().sum(dim=at, keepdim=True).log()


def _cosine(call: Call) -> Any:
    a, b, at = call.get(0, "x1"), call.get(1, "x2"), _dim(call, 2) if len(call.args) > 2 or call.kwargs else 1
    epsilon = float(call.get(3, "eps", 1e-8))
    normal = torch.nn.functional.normalize
    return (normal(a, dim=at, eps=epsilon) * normal(b, dim=at, eps=epsilon)).sum(dim=at)


def _lerp(call: Call) -> Any:
    a, b, weight = call.get(0, "input"), call.get(1, "end"), call.get(2, "weight")
    return a + (b - a) * weight


def _einsum(call: Call) -> Any:
    """Handles einsum of two tensors as a product of matrices, or as a sum of products of the same rows."""
    equation, operands = call.args[0], call.args[1:]
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not isinstance(equation, str) or len(operands) != 2 or "." in equation:
        raise RefusalError("'einsum' is in the model format with an equation of two tensors, without '...'")
    terms, _, made = equation.replace(" ", "").partition("->")
    a, b = terms.split(",")
    made = made or "".join(sorted(c for c in string.ascii_letters if (a + b).count(c) == 1))
    if len(set(a)) != len(a) or len(set(b)) != len(b):
        raise RefusalError(f"'einsum' of '{equation}', with a diagonal, is not in the model format")
    x, y = operands
    traced = [call.place_of(value) is not None for value in operands]
    if all(traced) and a == b and len(a) == 2 and made in (a, a[0]):
        product = x * y
        return product if made == a else product.sum(dim=1)
    if traced == [False, True]:
        x, y, a, b = y, x, b, a
    summed = [c for c in a if c in b and c not in made]
    both, first, second = ([c for c in made if (c in a, c in b) == at] for at in ((1, 1), (1, 0), (0, 1)))
    if len(summed) != 1 or len(second) != 1 or len(made) != len(both) + len(first) + 1:
        raise _unserved(equation)
    if not all(traced):  # features by a constant matrix
        if both or b not in (summed[0] + second[0], second[0] + summed[0]):
            raise _unserved(equation)
        matrix = y if b[0] == summed[0] else y.T
        product = x.permute([a.index(c) for c in (*first, *summed)]) @ matrix
    else:
        if len(first) != 1:
            raise _unserved(equation)
        left = x.permute([a.index(c) for c in (*both, *first, *summed)])
        product = left @ y.permute([b.index(c) for c in (*both, *summed, *second)])
    order = [*both, *first, *second]
    return product.permute([order.index(c) for c in made]) if order != list(made) else product


def _unserved(equation: str) -> RefusalError:
    return RefusalError(
        f"'einsum' of '{equation}' is not in the model format: features by a constant matrix (nc,cd->nd), sums of "
        "products of the same rows (nc,nc->n), and attention (nhd,mhd->hnm) are"
    )


_BY_HANDLER: dict[Callable[[Call], Any], str] = {
    _sum: "sum mean amax amin",
    _extreme: "max min",
    _of_two: "maximum minimum",
    _norm: "norm linalg_norm linalg_vector_norm",
    _deviation: "std var",
    _logarithm_of_sum: "logsumexp",
    _log_softmax: "log_softmax",
    lambda call: (-call.get(0, "input")).softmax(dim=_dim(call)): "softmin",
    _cosine: "cosine_similarity",
    _lerp: "lerp",
    _einsum: "einsum",
}
HANDLERS: dict[str, Callable[[Call], Any]] = {
    name: handler for handler, names in _BY_HANDLER.items() for name in names.split()
}
