"""Converts calls of torch's functions on rows to nodes. A handler gets the call and returns the place of the result, or
the traced tensor itself if the function does not change it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from voxserve.arrays import array_of
from voxserve.export.tracing import attention, groups, images, layouts, row_arithmetic, row_functions, scatter
from voxserve.export.tracing.graph import Graph, Place, Values, constant
from voxserve.export.tracing.refusal import RefusalError

Handler = Callable[["Call"], Any]
_ROWS = ("sites", "points", "samples")


@dataclass(frozen=True)
class Call:
    """A call of a torch function that has a traced tensor among its arguments."""

    graph: Graph
    name: str
    args: Any
    kwargs: dict[str, Any]
    place_of: Callable[[Any], Place | None]

    def get(self, index: int, key: str, default: Any = None) -> Any:
        """Returns the argument at a position or with a name; `default` if it was not given."""
        return self.args[index] if len(self.args) > index else self.kwargs.get(key, default)

    def source(self, value: Any = None) -> Place:
        """Returns the place of a value; None stands for the first argument. Raises RefusalError if the value was not
        traced, or if the model format does not have the function for it.
        """
        value = self.get(0, "input") if value is None else value
        place = self.place_of(value)
        if place is None:
            raise RefusalError(f"'{self.name}' of features and a tensor that does not come from them")
        if self.name not in _OF_LENGTHS:
            place = row_arithmetic.length_of(self.graph, place)
        if any(place.padding) and self.name not in ("conv2d", "pad"):
            raise RefusalError(f"'{self.name}' of a padded image: only a convolution can follow the padding")
        if place.kind in ("scores", "weights") and self.name not in OF_LAYOUTS and self.name not in _OF_SCORES:
            raise RefusalError(f"'{self.name}' of attention's {place.kind} is not in the model format")
        return place

    def rows(self, value: Any = None) -> Place:
        place = self.source(value)
        if place.kind not in _ROWS or place.is_flat:
            raise RefusalError(f"'{self.name}' of {place.kind} is not in the model format")
        return place


def same(call: Call) -> Any:
    return call.get(0, "input")


def _dropout(call: Call) -> Any:
    if call.get(2, "training", True):
        raise RefusalError(
            f"'{call.name}' drops features in evaluation too, as its own argument `training` is true: write "
            f"F.{call.name}(x, p, training=self.training), or use torch.nn.Dropout"
        )
    return call.get(0, "input")


def _linear(call: Call) -> Place:
    weight, bias = call.get(1, "weight"), call.get(2, "bias")
    call.graph.check_stored(weight)
    return call.graph.linear(call.rows(), constant(weight), None if bias is None else constant(bias))


def _matmul(call: Call) -> Place:
    features, other = call.get(0, "input"), call.get(1, "mat2", call.kwargs.get("other"))
    if call.place_of(other) is not None:
        return attention.product(replace(call, args=(features, other), kwargs={}))
    call.graph.check_stored(other)
    x, weight = call.source(), np.ascontiguousarray(constant(other).T)
    if x.kind != "laid":
        return call.graph.linear(call.rows(), weight)
    if weight.ndim != 2 or x.layout[-1] != 0 or len(layouts.parts_of(x.layout)) != 1:
        raise layouts.refuse(call, features.shape)
    return layouts.laid(call.graph.linear(layouts.base(x), weight), x.layout)


def _batch_norm(call: Call) -> Place:
    x = call.source()
    mean, variance = call.get(1, "running_mean"), call.get(2, "running_var")
    weight, bias = call.get(3, "weight"), call.get(4, "bias")
    if mean is None or variance is None:
        raise RefusalError(
            "a batch norm without running statistics (track_running_stats=False) normalises by those of each batch, "
            "in evaluation too: the model format has norms with stored statistics. Train it with them, or use an "
            "instance norm of the library, which is of each cloud"
        )
    if call.get(5, "training", False):
        raise RefusalError(
            "a batch norm normalises by the batch in evaluation too, as its own argument `training` is true: write "
            "F.batch_norm(..., training=self.training), or use torch.nn.BatchNorm1d"
        )
    channels = len(mean)
    return batch_norm(
        call.graph,
        x,
        {
            "weight": np.ones(channels, np.float32) if weight is None else constant(weight),
            "bias": np.zeros(channels, np.float32) if bias is None else constant(bias),
            "running_mean": constant(mean),
            "running_var": constant(variance),
        },
        float(call.get(7, "eps", 1e-5)),
    )


def batch_norm(graph: Graph, x: Place, tensors: dict[str, Values], epsilon: float) -> Place:
    if x.kind not in (*_ROWS, "image"):
        raise RefusalError(f"a batch norm of {x.kind} is not in the model format")
    name = graph.node("batch_norm", [x.node], lambda network, n: network.batch_norm(n, x.node, tensors, epsilon))
    return replace(x, node=name)


def affine(graph: Graph, x: Place, scale: Values, shift: Values) -> Place:
    """Adds a node that computes x * scale + shift per channel: a batch norm with mean 0, variance 1 and epsilon 0."""
    zeros, ones = np.zeros(len(scale), np.float32), np.ones(len(scale), np.float32)
    weight, bias = scale.astype(np.float32), shift.astype(np.float32)
    tensors = {"weight": weight, "bias": bias, "running_mean": zeros, "running_var": ones}
    return batch_norm(graph, x, tensors, 0.0)


def _per_channel(call: Call, value: Any, tensor: Any) -> Values:
    channels = _width(tensor)
    if isinstance(value, (int, float)):
        return np.full(channels, value, np.float32)
    call.graph.check_stored(value)
    values = array_of(value)
    is_image = len(tensor.shape) == 4
    expected = (channels, 1, 1) if is_image else (channels,)
    shape = values.shape[1:] if values.ndim > len(expected) and values.shape[0] == 1 else values.shape
    if values.size == 1:
        return np.full(channels, values.reshape(()), np.float32)
    if shape != expected:
        followed = ". What TorchScript and extensions compute is not followed" if shape == tuple(tensor.shape) else ""
        raise RefusalError(
            f"'{call.name}' of features and a tensor {list(values.shape)}, not a value a channel{followed}"
        )
    flat: Values = values.reshape(channels).astype(np.float32)
    return flat


def _width(tensor: Any) -> int:
    """Returns the number of channels of rows [N, C], or [N] of one channel."""
    return tensor.shape[1] if len(tensor.shape) > 1 else 1


def _add(call: Call) -> Place:
    a, b = call.get(0, "input"), call.get(1, "other")
    is_minus = "sub" in call.name
    if call.get(2, "alpha", 1) != 1:
        raise RefusalError(f"'{call.name}' with alpha is not in the model format: write a + alpha * b")
    if call.place_of(a) is not None and call.place_of(b) is not None:
        places = call.source(a), call.source(b)
        if is_minus and "spread" in (places[0].kind, places[1].kind):
            first, second = reversed(places) if "rsub" in call.name else places
            ones = np.ones(_width(a), np.float32)
            return _spread(call, first, _of_samples(second, lambda x: affine(call.graph, x, -ones, 0 * ones)), "ADD")
        if is_minus:
            return row_arithmetic.difference(call, *places)
        is_of_one = places[0].kind == places[1].kind and a.shape != b.shape
        return row_arithmetic.elementwise(call, "ADD", *places) if is_of_one else add(call, *places)
    traced, value = (a, b) if call.place_of(a) is not None else (b, a)
    x = call.source(traced)
    values = _per_channel(call, value, traced)
    ones = np.ones_like(values)
    if is_minus:
        negated = traced is b or "rsub" in call.name
        return affine(call.graph, x, -ones if negated else ones, values if negated else -values)
    made = affine(call.graph, x, ones, values)
    if isinstance(value, (int, float)):
        call.graph.made_by[made.node] = ("plus", x.node, float(value))
    return made


def add(call: Call, a: Place, b: Place) -> Place:
    if "spread" in (a.kind, b.kind):
        return _spread(call, a, b, "ADD")
    row_arithmetic.check_same_rows(call, [a, b])
    name = call.graph.node("add", [a.node, b.node], lambda network, n: network.add(n, [a.node, b.node]))
    return replace(a, node=name)


def _multiply(call: Call) -> Place:
    a, b = call.get(0, "input"), call.get(1, "other")
    is_division = "div" in call.name
    places = [call.place_of(a), call.place_of(b)]
    if places[0] is not None and places[1] is not None:
        kinds = {places[0].kind, places[1].kind}
        if not is_division and "spread" in kinds and "sites" in kinds:
            return _spread(call, places[0], places[1], "MULTIPLY")
        if is_division and places[0].kind == "sites" and places[1].kind == "spread":
            inverse = _of_samples(places[1], lambda x: row_functions.activated(call, "POWER", x, exponent=-1.0))
            return _spread(call, places[0], inverse, "MULTIPLY")
        if is_division and row_functions.is_of_own_length(*places):
            return row_functions.divided_by_length(call, call.source(a), places[1])
        x, y = (row_arithmetic.length_of(call.graph, call.source(value)) for value in (a, b))
        return row_arithmetic.quotient(call, x, y) if is_division else _product(call, x, y)
    traced, value = (a, b) if places[0] is not None else (b, a)
    x = row_arithmetic.length_of(call.graph, call.source(traced))
    if x.kind in ("scores", "weights"):
        if is_division and (traced is b or "rdiv" in call.name):
            raise RefusalError(f"'{call.name}' by attention's {x.kind} is not in the model format")
        return attention.scaled(call, x, 1 / value if is_division else value)
    if is_division and traced is a and (made := scatter.average(call, x, value)) is not None:
        return made
    values = _per_channel(call, value, traced)
    if is_division:
        if call.kwargs.get("rounding_mode"):
            raise RefusalError(f"'{call.name}' with a rounding_mode is not in the model format: write it without")
        if traced is b or "rdiv" in call.name or "rtruediv" in call.name:
            x = row_functions.activated(call, "POWER", x=x, exponent=-1.0)
        else:
            values = 1 / values
    return affine(call.graph, x, values, np.zeros_like(values))


def _product(call: Call, a: Place, b: Place) -> Place:
    if call.get(0, "input").shape != call.get(1, "other").shape:
        return row_arithmetic.elementwise(call, "MULTIPLY", a, b)
    row_arithmetic.check_same_rows(call, [a, b])
    name = call.graph.node("multiply", [a.node, b.node], lambda network, n: network.multiply(n, a.node, b.node))
    return replace(a, node=name)


def _negative(call: Call) -> Place:
    ones = np.ones(_width(call.get(0, "input")), np.float32)
    return affine(call.graph, call.source(), -ones, 0 * ones)


def _concat(call: Call) -> Place:
    tensors, dim = call.get(0, "tensors"), call.get(1, "dim", call.kwargs.get("axis", 0))
    if len(tensors) == 1:
        return tensors[0]
    if dim not in (1, 1 - len(tensors[0].shape)):
        raise RefusalError(f"'{call.name}' along dimension {dim}: channels are dimension 1")
    places = [call.source(t) for t in tensors]
    if len(places) == 2 and places[1].kind == "spread":
        return _spread(call, places[0], places[1], "CONCAT")
    row_arithmetic.check_same_rows(call, places)
    if any(place.is_flat for place in places):
        raise RefusalError(f"'{call.name}' of tensors [N]: write x[:, None], or keepdim=True where they are made")
    nodes = [p.node for p in places]
    name = call.graph.node("concat", nodes, lambda network, n: network.concat(n, nodes))
    return replace(places[0], node=name)


def _of_samples(x: Place, change: Callable[[Place], Place]) -> Place:
    """Changes the rows of samples of which each site has its own, or any other rows."""
    return replace(x, node=change(replace(x, kind="samples") if x.kind == "spread" else x).node)


def _spread(call: Call, a: Place, b: Place, function: str) -> Place:
    x, samples = (a, b) if b.kind == "spread" else (b, a)
    if x.kind != "sites" or not np.array_equal(x.on_level().sites()[:, 0], samples.index):
        raise RefusalError(f"'{call.name}' of rows of samples and rows of other sites")
    return broadcast(call.graph, x, samples.node, function)


def broadcast(graph: Graph, x: Place, samples: str, function: str) -> Place:
    needs = [x.node, samples]
    name = graph.node("broadcast", needs, lambda network, n: network.broadcast(n, x.node, samples, function))
    return replace(x, node=name)


def _get_item(call: Call) -> Any:
    tensor, index = call.args
    x = call.source()
    first = index[0] if isinstance(index, tuple) and index else index
    is_rows = x.kind in _ROWS and not x.is_flat
    is_pair = isinstance(index, tuple) and len(index) == 2 and layouts.is_all(first, len(tensor))
    if x.is_flat and is_pair and index[1] is None:
        return replace(x, is_flat=False)
    if is_rows and isinstance(index, tuple) and any(entry is None for entry in index):
        return layouts.indexed(call, x, tensor, index)
    if is_rows and is_pair:
        index = (slice(None), index[1])
    elif x.kind in layouts.KINDS or (is_rows and layouts.is_choice(first, len(tensor))):
        return layouts.indexed(call, x, tensor, index)
    if isinstance(index, tuple) and len(index) == 2 and index[0] == slice(None) and x.kind in _ROWS and not x.is_flat:
        return _channels(call, x, tensor.shape[1], index[1])
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if isinstance(index, torch.Tensor) and call.place_of(index) is None and index.ndim == 1:
        values = array_of(index)
        if values.dtype.kind in "iu":
            return _indexed(x, values)
        raise RefusalError("a choice of rows by a mask is not in the model format (MinkowskiPruning is)")
    raise RefusalError(f"indexing {x.kind} by {type(index).__name__} is not in the model format")


def _channels(call: Call, x: Place, num_channels: int, index: Any) -> Place:
    if num_channels == 1 and index in (0, -1):
        return replace(x, is_flat=True)
    if isinstance(index, int):  # a column, which only an embedding can use
        return replace(x, kind="column", index=index % num_channels, column_of=x.kind)
    if not isinstance(index, (slice, list)):
        raise RefusalError(f"channels chosen by {type(index).__name__} are not in the model format")
    return call.graph.channels(x, np.arange(num_channels)[index], num_channels)


def _indexed(x: Place, index: Values) -> Place:
    if x.kind == "samples":
        return Place("spread", x.node, index=index)
    if x.kind == "sites" and x.on_level().key == ("voxels",):
        return replace(x, kind="points", level=None, index=index)
    if x.kind == "sites" and np.array_equal(index, np.arange(len(x.on_level().sites()))):
        return x  # the rows of the only sample
    raise RefusalError(
        "rows chosen by an index are in the model format for the voxels (their points) and for samples alone; if they "
        "are those of one sample, trace with an example of one sample; attention within groups of sites is "
        "voxserve.export.group_attention"
    )


def _index_select(call: Call) -> Any:
    if call.get(1, "dim") != 0:
        raise RefusalError("'index_select' along another dimension than 0 is not in the model format")
    return _indexed(call.rows(), array_of(call.get(2, "index")))


def _squeeze(call: Call) -> Any:
    tensor, x = call.args[0], call.source()
    if x.is_flat or len(tensor.shape) == 1:
        return tensor
    if x.kind in layouts.KINDS:
        return layouts.squeezed(call, x)
    if x.kind == "mask":
        return x
    if len(tensor.shape) == 2 and tensor.shape[1] == 1 and call.get(1, "dim", -1) in (1, -1):
        return replace(x, is_flat=True)
    raise RefusalError(f"'{call.name}' of {x.kind} is not in the model format")


def _above(call: Call) -> Place:
    x, threshold = call.source(), call.get(1, "other")
    if x.kind != "sites" or (call.args[0].shape[-1] != 1 and not x.is_flat) or not isinstance(threshold, (int, float)):
        raise RefusalError("a mask is in the model format for one channel above a number alone")
    return replace(x, kind="mask", threshold=float(threshold))


def _argmax(call: Call) -> Place:
    x, dim = call.rows(), call.get(1, "dim")
    if dim not in (1, -1) or call.get(2, "keepdim", False):
        raise RefusalError("'argmax' is in the model format along the channels alone")
    name = call.graph.node("argmax", [x.node], lambda network, n: network.argmax(n, x.node))
    return replace(x, kind="labels", node=name)


def warn_of_half(graph: Graph) -> None:
    graph.warn("features are cast to half precision in the module; the server chooses its own precision")


def _cast(call: Call) -> Any:
    """Handles casts to a floating-point type, which the server does not follow, and to integers, which rounds."""
    tensor, others = call.args[0], tuple(map(_plain, call.args[1:]))
    named = {key: _plain(value) for key, value in call.kwargs.items()}
    empty = tensor.as_subclass(torch.Tensor).new_empty(0)
    made = getattr(empty, call.name)(*others, **named).dtype
    if not made.is_floating_point and made != tensor.dtype:
        return row_functions.whole(call, made)
    if made in (torch.float16, torch.bfloat16):
        warn_of_half(call.graph)
    return tensor


def _plain(value: Any) -> Any:
    return value.as_subclass(torch.Tensor) if isinstance(value, torch.Tensor) else value


_BY_HANDLER: dict[Handler, str] = {
    same: "contiguous detach clone float double cpu cuda alias",
    _cast: "to type type_as half bfloat16",
    _dropout: "dropout dropout1d dropout2d alpha_dropout feature_alpha_dropout",
    _linear: "linear",
    _matmul: "matmul mm bmm __matmul__ __rmatmul__",
    _batch_norm: "batch_norm",
    _add: "add add_ __add__ __radd__ __iadd__ sub sub_ __sub__ __rsub__ __isub__ rsub",
    _multiply: "mul mul_ multiply __mul__ __rmul__ __imul__ div div_ true_divide true_divide_ __div__ __rdiv__ "
    "__truediv__ __rtruediv__ __itruediv__",
    _negative: "neg negative __neg__",
    _concat: "cat concat concatenate",
    _get_item: "__getitem__",
    _index_select: "index_select",
    _squeeze: "squeeze",
    _above: "gt greater __gt__",
    _argmax: "argmax",
}
# The functions in OF_LAYOUTS handle tensors with a layout themselves. attention.of_rows calls the others with rows
# [N, C].
_SHAPING = ("view", "reshape", "flatten", "unflatten")
_FOLLOWED = " ".join(_BY_HANDLER[handler] for handler in (same, _cast, _matmul, _get_item, _squeeze, _concat))
OF_LAYOUTS = frozenset(
    (*layouts.HANDLERS, *attention.HANDLERS, *row_arithmetic.HANDLERS, *_SHAPING, *_FOLLOWED.split())
)
_OF_LENGTHS = frozenset(f"clamp clamp_ clip clip_ clamp_min clamp_min_ {_BY_HANDLER[_multiply]}".split())
_OF_SCORES = frozenset(f"softmax {_BY_HANDLER[_dropout]} {_BY_HANDLER[_multiply]}".split())
HANDLERS: dict[str, Handler] = {
    **{name: handler for handler, names in _BY_HANDLER.items() for name in names.split()},
    **row_functions.HANDLERS,
    **row_arithmetic.HANDLERS,
    **scatter.HANDLERS,
    **images.HANDLERS,
    **layouts.HANDLERS,
    **attention.HANDLERS,
    **groups.HANDLERS,
}
