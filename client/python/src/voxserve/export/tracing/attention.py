"""Converts attention within a cloud to nodes: matrix products of rows with rows, their softmax, and the weighted sums
that follow, and torch's own functions for attention.

The trace needs an example of one sample. With two samples, code that loops over the samples has different rows in each
iteration, and code that does not loop mixes the samples.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from voxserve.activations import OF_TORCH
from voxserve.export.limits import LIMITS
from voxserve.export.tracing import layouts, row_arithmetic
from voxserve.export.tracing.graph import Graph, Place, Values, constant
from voxserve.export.tracing.layouts import Layout, base, laid, layout_of, without_ones
from voxserve.export.tracing.refusal import LimitError, RefusalError

if TYPE_CHECKING:
    from voxserve.export.tracing.functions import Call


@dataclass(frozen=True)
class Scores:
    """The products of queries and keys, or their softmax (Place.index of the kinds scores and weights)."""

    queries: Place
    keys: Place
    heads: int  # the number of heads; 0 if the tensor has no dimension for them
    scale: float = 1.0


def check_one_sample(graph: Graph) -> None:
    samples = len(np.unique(graph.input_level.sites()[:, 0]))
    if samples != 1:
        raise RefusalError(
            f"attention among the rows of an example of {samples} samples: trace it with an example of one sample"
        )


def _check_head(channels: int) -> None:
    most = LIMITS["kMaxAttentionHeadChannels"]
    if channels > most:
        raise LimitError(f"attention with heads of {channels} channels; the server has at most {most}")


def learned_rows(graph: Graph, values: Values) -> Place:
    """Adds a node with learned rows, which are the same for every sample, and returns its place. values: [rows, C]."""
    name = graph.node("rows", [], lambda network, n: network.sample_rows(n, values))
    return Place("samples", name)


def _operand(call: Call, value: Any) -> tuple[Place, Layout]:
    """Returns the place and the layout of a factor of a matrix product. A parameter becomes learned rows."""
    place = call.place_of(value)
    if place is not None:
        return place, layout_of(call, place)
    shape = tuple(value.shape)
    at = next((i for i, n in enumerate(shape[:-1]) if n != 1), len(shape) - 2)
    if at < 0 or math.prod(shape[:-1]) != shape[at]:
        raise RefusalError(f"'{call.name}' of features and a tensor {list(shape)} that does not come from them")
    call.graph.check_stored(value)
    rows = learned_rows(call.graph, constant(value).reshape(shape[at], shape[-1]))
    return rows, (*("rows" if i == at else "one" for i in range(len(shape) - 1)), 0)


def _with_rows_at(at: int, place: Place, layout: Layout, shape: Sequence[int]) -> Layout:
    """Returns the layout in which dimension `at`, of size 1, is the rows. This is possible only if there is one row, in
    every cloud.
    """
    rows = place.index.queries if place.kind in ("scores", "weights") else base(place)
    if layout[at] != "one" or rows.kind != "samples" or shape[layout.index("rows")] != 1:
        return layout
    moved: list[str | int] = ["one" if d == "rows" else d for d in layout]
    moved[at] = "rows"
    return tuple(moved)


def _have_equal_heads(*seen: Layout) -> bool:
    """Returns whether a matrix product of tensors with these layouts multiplies each head with the same head of the
    other. torch aligns the dimensions from the last one.
    """
    heads = {without_ones(layout)[:-2] for layout in seen}
    return heads == {()} or (heads == {(0,)} and len({layout.index(0) - len(layout) for layout in seen}) == 1)


def product(call: Call) -> Place:
    """Handles a matrix product of two tensors that are both traced, or learned rows."""
    factors = [call.get(0, "input"), call.get(1, "mat2")]
    (a, a_layout), (b, b_layout) = (_operand(call, factor) for factor in factors)
    first, second = (
        _with_rows_at(-1 if layout[-1] == "one" else -2, place, layout, factor.shape)
        for place, layout, factor in ((a, a_layout, factors[0]), (b, b_layout, factors[1]))
    )
    if _have_equal_heads(first, second):
        heads = without_ones(first)[:-2]
        channels = len(heads)  # the number of the part that is summed over
        pair = (first[-2:], second[-2:])
        if (
            a.kind == "weights"
            and b.kind not in ("scores", "weights")
            and pair == (("rows", "keys"), ("rows", channels))
        ):
            return laid(attended(call, a.index, base(b)), (*a_layout[:-1], channels))
        if (
            b.kind == "weights"
            and a.kind not in ("scores", "weights")
            and pair == ((channels, "rows"), ("keys", "rows"))
        ):
            return laid(attended(call, b.index, base(a)), (*b_layout[:-2], channels, "rows"))
        if "keys" not in (*a_layout, *b_layout) and pair == (("rows", channels), (channels, "rows")):
            _check_head(factors[0].shape[-1])
            number = factors[0].shape[a_layout.index(0)] if heads else 0
            ones = ("one",) * (len(b_layout) - len(a_layout))
            return scores(call, base(a), base(b), number, 1.0, (*ones, *a_layout[:-1], "keys"))
    raise RefusalError(f"'{call.name}' of features with features is in the model format for attention alone")


def scores(call: Call, queries: Place, keys: Place, heads: int, scale: float, layout: Layout) -> Place:
    check_one_sample(call.graph)
    return Place("scores", queries.node, index=Scores(queries, keys, heads, scale), layout=layout)


def attended(call: Call, weights: Scores, values: Place) -> Place:
    """Adds the attention node, which computes the sums of the values by these weights. Returns its place, which has the
    queries' rows.
    """
    keys, queries = weights.keys, weights.queries
    if keys.kind == "points":
        raise RefusalError(f"'{call.name}': attention of points is not in the model format, of sites and samples it is")
    if keys.kind != values.kind or (keys.kind == "sites" and not keys.on_level().has_rows_of(values.on_level())):
        raise RefusalError(f"'{call.name}': attention of keys and values on other rows")
    check_one_sample(call.graph)
    name = call.graph.node(
        "attention",
        [queries.node, keys.node, values.node],
        lambda network, n: network.attention(
            n, queries.node, keys.node, values.node, num_heads=weights.heads or 1, scale=weights.scale
        ),
    )
    return replace(queries, node=name)


def scaled(call: Call, x: Place, factor: Any) -> Place:
    """Returns the place of attention scores multiplied by a number."""
    if x.kind != "scores" or not (isinstance(factor, (int, float)) or getattr(factor, "numel", lambda: 0)() == 1):
        raise RefusalError(f"'{call.name}' of attention's {x.kind}: scores alone are scaled, by a number")
    value = float(factor) if isinstance(factor, (int, float)) else float(factor.detach().cpu().reshape(()))
    if not isinstance(factor, (int, float)):
        call.graph.check_stored(factor)
    return replace(x, index=replace(x.index, scale=x.index.scale * value))


def softmax(call: Call) -> Place | None:
    """Handles a softmax. Returns the weights for a softmax of scores over the keys, or of rows over the rows of the
    cloud. Returns None for a softmax over the channels, which is a node of its own.
    """
    x, dim = call.source(), call.get(1, "dim")
    dimensions = len(call.get(0, "input").shape)
    if x.kind not in layouts.KINDS and (x.kind not in ("sites", "samples") or dim is None or x.is_flat):
        return None
    layout = layout_of(call, x)
    along = layout[layouts.axis_of(-1 if dim is None else dim, dimensions)]
    if x.kind == "scores" and along == "keys":
        return replace(x, kind="weights")
    if x.kind in ("scores", "weights"):
        raise RefusalError(f"'{call.name}' of attention's {x.kind}: it goes once, along the keys")
    if along != "rows":
        return None
    if sorted(map(str, without_ones(layout))) != ["0", "rows"]:
        raise layouts.refuse(call, call.get(0, "input").shape)
    # Learned queries, the rows of the identity matrix, express this as attention: query i . row = channel i of the row.
    channels = call.get(0, "input").shape[layout.index(0)]
    queries = learned_rows(call.graph, np.eye(channels, dtype=np.float32))
    names: dict[str | int, str | int] = {0: "rows", "rows": "keys"}
    made = scores(call, queries, base(x), 0, 1.0, tuple(names.get(d, d) for d in layout))
    return replace(made, kind="weights")


def _dot_product(call: Call) -> Place:
    if call.get(3, "attn_mask") is not None or call.get(5, "is_causal", False) or call.kwargs.get("enable_gqa", False):
        raise RefusalError(f"'{call.name}' with a mask or grouped heads is not in the model format")
    if call.get(4, "dropout_p", 0.0):
        raise RefusalError(
            f"'{call.name}' drops weights in evaluation too, as its argument dropout_p is not 0: write "
            "dropout_p=p if self.training else 0.0"
        )
    tensors = [call.get(i, key) for i, key in enumerate(("query", "key", "value"))]
    (q, q_layout), (k, k_layout), (v, v_layout) = (_operand(call, t) for t in tensors)
    places = ((q, q_layout), (k, k_layout), (v, v_layout))
    seen = [_with_rows_at(-2, *place, t.shape) for place, t in zip(places, tensors, strict=True)]
    if not _have_equal_heads(*seen) or {d[-2:] for d in seen} not in ({("rows", 0)}, {("rows", 1)}):
        raise RefusalError(
            f"{layouts.refuse(call, tensors[0].shape)}: the last two dimensions must be the rows and the channels"
        )
    _check_head(max(tensors[0].shape[-1], tensors[2].shape[-1]))
    heads = tensors[0].shape[q_layout.index(0)] if 1 in q_layout else 0
    scale = call.kwargs.get("scale")
    factor = tensors[0].shape[-1] ** -0.5 if scale is None else float(scale)
    return laid(attended(call, Scores(base(q), base(k), heads, factor), base(v)), q_layout)


def _multi_head(call: Call) -> list[Any]:
    """Handles torch.nn.MultiheadAttention on tensors [N, C], or [N, 1, C] for a batch of one."""
    names = inspect.signature(torch.nn.functional.multi_head_attention_forward).parameters
    given = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    refused = ("bias_k", "bias_v", "key_padding_mask", "attn_mask", "static_k", "static_v")
    unserved = [name for name in refused if given.get(name) is not None]
    if unserved or given.get("add_zero_attn") or given.get("is_causal"):
        raise RefusalError(
            f"MultiheadAttention with {', '.join(unserved) or 'zeros or a mask'} is not in the model format"
        )
    if given.get("training", False) and given["dropout_p"]:
        raise RefusalError(
            "multi_head_attention_forward drops weights in evaluation too, as its own argument `training` is true: "
            "write training=self.training, or use torch.nn.MultiheadAttention"
        )
    width, heads = given["embed_dim_to_check"], given["num_heads"]
    _check_head(width // heads)
    if given.get("use_separate_proj_weight"):
        weights = [constant(given[f"{part}_proj_weight"]) for part in "qkv"]
    else:
        weights = np.split(constant(given["in_proj_weight"]), 3)
    bias = given.get("in_proj_bias")
    biases = [None] * 3 if bias is None else np.split(constant(bias), 3)
    rows: list[Place] = []
    layout = layouts.ROWS
    for name, weight, shift in zip(("query", "key", "value"), weights, biases, strict=True):
        place, of_this = _operand(call, given[name])
        if _with_rows_at(0, place, of_this, given[name].shape) not in (layouts.ROWS, ("rows", "one", 0)):
            raise RefusalError(
                f"MultiheadAttention of rows laid out as {list(given[name].shape)} is not in the model format: the "
                "rows must be the first dimension, [N, C] or [N, 1, C]; with batch_first=True they may be [1, N, C]"
            )
        layout = layout if rows else of_this
        rows.append(call.graph.linear(base(place), weight, shift))
    y = attended(call, Scores(rows[0], rows[1], heads, (width // heads) ** -0.5), rows[2])
    out_bias = given.get("out_proj_bias")
    y = call.graph.linear(y, constant(given["out_proj_weight"]), None if out_bias is None else constant(out_bias))
    unused = Place("weights that nothing can read", y.node)
    return [laid(y, layout), unused]


def _conv1d(call: Call) -> Place:
    """Handles a conv1d of rows [1, C, N] or [C, N] with kernel size 1, and one of the channels of rows [N, 1, C], as in
    efficient channel attention (ECA). Both are linear layers.
    """
    x, weight, bias = call.source(), call.get(1, "weight"), call.get(2, "bias")
    layout, size = layout_of(call, x), int(weight.shape[2])
    padding = call.get(4, "padding", 0)
    padding = int(padding[0]) if isinstance(padding, tuple) else padding
    plain = call.get(3, "stride", 1) in (1, (1,)) and call.get(6, "groups", 1) == 1
    values = None if bias is None else constant(bias)
    if plain and layout[-2:] == (0, "rows") and size == 1 and padding in (0, "valid", "same"):
        matrix = constant(weight)[:, :, 0]
    elif plain and layout == ("rows", "one", 0) and weight.shape[:2] == (1, 1) and padding in ("same", size // 2):
        matrix = _banded(call, constant(weight)[0, 0])
        values = None if values is None else np.full(len(matrix), values[0])
    else:
        raise RefusalError(
            "'conv1d' is in the model format with a kernel of one, along rows laid out as [1, C, N], and with an odd "
            "kernel that is padded, along the channels of rows laid out as [N, 1, C]"
        )
    call.graph.check_stored(weight)
    return laid(call.graph.linear(base(x), np.ascontiguousarray(matrix), values), x.layout)


def _banded(call: Call, kernel: Values) -> Values:
    """Returns the matrix [C, C] that convolves C channels with a kernel of one axis, padded by zeros."""
    channels, half, dilation = call.get(0, "input").shape[-1], len(kernel) // 2, call.get(5, "dilation", 1)
    if len(kernel) % 2 == 0 or dilation not in (1, (1,)):
        raise RefusalError("'conv1d' along the channels with an even kernel or a dilation is not in the model format")
    matrix = np.zeros((channels, channels), kernel.dtype)
    for at, value in enumerate(kernel):
        matrix += np.diag(np.full(max(channels - abs(at - half), 0), value), at - half)[:channels, :channels]
    return matrix


def _stack(call: Call) -> Place:
    tensors, dim = call.get(0, "tensors"), call.get(1, "dim", 0)
    if len(tensors) != 1:
        return row_arithmetic.stacked(call, tensors, dim)
    x = call.source(tensors[0])
    layout = layout_of(call, x)
    at = layouts.axis_of(dim, len(layout) + 1)
    return laid(x, (*layout[:at], "one", *layout[at:]))


HANDLERS: dict[str, Callable[[Call], Any]] = {
    "scaled_dot_product_attention": _dot_product,
    "multi_head_attention_forward": _multi_head,
    "conv1d": _conv1d,
    "stack": _stack,
}

# The functions of tensors with a layout that of_rows handles as functions of rows [N, C].

_EACH_VALUE = """gelu leaky_relu leaky_relu_ elu elu_ softplus hardtanh hardtanh_ relu6 sqrt neg clamp clamp_min pow
    __pow__ dropout dropout1d"""
_OF_TWO = "add add_ __add__ __radd__ __iadd__ sub __sub__ __rsub__ mul mul_ __mul__ __rmul__ __imul__ div __truediv__"
_OF_CHANNELS = "linear layer_norm softmax normalize"
_NEED_CHANNELS = frozenset(_OF_CHANNELS.split())
_MAY_NEED_CHANNELS = frozenset(_OF_TWO.split())  # if the other operand has one value per channel
_OF_ROWS = frozenset((*OF_TORCH, *_EACH_VALUE.split())) | _NEED_CHANNELS | _MAY_NEED_CHANNELS


def of_rows(handler: Callable[[Call], Any], call: Call, wrap: Callable[[Any, Place, Graph], Any]) -> Any:
    """Calls a handler of rows [N, C] for tensors with a layout. It passes their rows [N, C] to the handler, and returns
    the handler's result in the tensors' layout.
    """
    found = [t for t in (*call.args, *call.kwargs.values()) if call.place_of(t) is not None]
    places = [call.place_of(t) for t in found]
    layout = next(p.layout for p in places if p is not None and p.kind == "laid")
    if any(p is None or p.kind != "laid" or p.layout != layout for p in places):
        raise RefusalError(f"'{call.name}' of tensors that are laid out in other ways")
    name, shape = call.name, tuple(found[0].shape)
    others = [v for v in call.args[1:] if hasattr(v, "numel") and v.numel() != 1 and call.place_of(v) is None]
    needs_channels = name in _NEED_CHANNELS or (name in _MAY_NEED_CHANNELS and others)
    is_last = isinstance(layout[-1], int) and len(layouts.parts_of(layout)) == 1
    if name == "batch_norm" and layout == ("one", 0, "rows"):
        is_last = True
    elif name not in _OF_ROWS:
        raise layouts.refuse(call, shape)
    if needs_channels and not is_last:
        raise layouts.refuse(call, shape)
    order = [layout.index("rows"), *(layout.index(p) for p in sorted(layouts.parts_of(layout)))]
    order = [*(i for i, d in enumerate(layout) if d == "one"), *order]

    def flat(value: Any) -> Any:
        place = call.place_of(value)
        if place is None:
            return value
        plain = value.as_subclass(torch.Tensor).permute(order)
        return wrap(plain.reshape(math.prod(plain.shape[: layout.count("one") + 1]), -1), base(place), call.graph)

    args, kwargs = [flat(v) for v in call.args], {k: flat(v) for k, v in call.kwargs.items()}
    position = {"softmax": 1, "normalize": 2}.get(name)
    if position is not None:
        dim = call.get(position, "dim", 1)
        if layouts.axis_of(-1 if dim is None else dim, len(layout)) != len(layout) - 1:
            raise layouts.refuse(call, shape)
        if len(args) > position:
            args[position] = -1
        else:
            kwargs["dim"] = -1
    made = handler(replace(call, args=tuple(args), kwargs=kwargs))
    return laid(made, layout) if isinstance(made, Place) else found[0]
