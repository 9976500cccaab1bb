"""Converts calls of torch's functions that compute each row by itself: activations, powers, norms of rows, embeddings.

A module may compute a generalised mean by itself, as clamp(min=e).pow(p), an average over a sample's sites, and
pow(1 / p). This becomes one node, so that the powers, which can be large, are not stored as features, whose type may be
float16.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from voxserve.activations import OF_TORCH
from voxserve.export.tracing import attention, row_arithmetic
from voxserve.export.tracing.graph import Graph, Place, constant
from voxserve.export.tracing.refusal import RefusalError

if TYPE_CHECKING:
    from voxserve.export.tracing.functions import Call

_ROWS = ("sites", "points", "samples")
# The least threshold of a softplus that has no effect: for larger x, log(1 + exp(x)) and x are the same float32 value.
_LEAST_THRESHOLD = 15.0


def activated(call: Call, function: str, x: Place | None = None, **parameters: float) -> Place:
    x = x or call.source()
    if x.kind not in (*_ROWS, "image"):
        raise RefusalError(f"'{call.name}' of {x.kind} is not in the model format")
    name = call.graph.node(
        call.name.strip("_"),
        [x.node],
        lambda network, n: network.activation(n, x.node, function, **parameters),
    )
    return replace(x, node=name)


def _activation(function: str) -> Callable[[Call], Place]:
    return lambda call: activated(call, function)


def _gelu(call: Call) -> Place:
    kind = call.get(1, "approximate", "none")
    return activated(call, "GELU" if kind == "none" else "GELU_TANH")


def _leaky_relu(call: Call) -> Place:
    return activated(call, "LEAKY_RELU", negative_slope=float(call.get(1, "negative_slope", 0.01)))


def _rrelu(call: Call) -> Place:
    if call.get(3, "training", False):
        raise RefusalError(
            "'rrelu' is random in evaluation too, as its own argument `training` is true: write "
            "F.rrelu(x, training=self.training), or use torch.nn.RReLU"
        )
    slope = (float(call.get(1, "lower", 1 / 8)) + float(call.get(2, "upper", 1 / 3))) / 2
    return activated(call, "LEAKY_RELU", negative_slope=slope)


def _elu(call: Call) -> Place:
    if call.get(2, "scale", 1) != 1 or call.get(3, "input_scale", 1) != 1:
        raise RefusalError("'elu' with a scale is not in the model format")
    return activated(call, "ELU", alpha=float(call.get(1, "alpha", 1.0)))


def _celu(call: Call) -> Place:
    if call.get(1, "alpha", 1.0) != 1:
        raise RefusalError("'celu' with another alpha than 1 is not in the model format")
    return activated(call, "ELU", alpha=1.0)


def _softplus(call: Call) -> Place:
    beta, threshold = float(call.get(1, "beta", 1.0)), float(call.get(2, "threshold", 20.0))
    if threshold < _LEAST_THRESHOLD:
        raise RefusalError(f"'softplus' with the threshold {threshold} is not in the model format")
    return activated(call, "SOFTPLUS", beta=beta)


def _hardtanh(call: Call) -> Place:
    return _clamped(call, float(call.get(1, "min_val", -1.0)), float(call.get(2, "max_val", 1.0)))


def _relu6(call: Call) -> Place:
    return _clamped(call, 0.0, 6.0)


def _clamp(call: Call) -> Place:
    low, high = call.get(1, "min"), call.get(2, "max")
    if call.name.startswith("clamp_max"):
        low, high = None, call.get(1, "max")
    return _clamped(call, _number(call, low), _number(call, high))


def _clamped(call: Call, low: float | None, high: float | None) -> Place:
    x = call.source()
    if x.kind == "length" and low is not None and low > 0 and high is None:
        return replace(x, threshold=low)
    x = row_arithmetic.length_of(call.graph, x)
    if low == 0 and high is None:
        made = activated(call, "RELU", x)
    else:
        bounds: dict[str, Any] = {key: v for key, v in (("minimum", low), ("maximum", high)) if v is not None}
        if not bounds:
            raise RefusalError(f"'{call.name}' without a bound is not in the model format")
        made = activated(call, "CLAMP", x, **bounds)
    if low is not None and high is None:
        call.graph.made_by[made.node] = ("clamp", x.node, low)
    return made


def _number(call: Call, value: Any) -> float | None:
    """Returns a number, or the value of a parameter that has only one; None for other values."""
    if value is None or isinstance(value, (int, float)):
        return value
    if call.place_of(value) is not None or value.numel() != 1:
        raise RefusalError(f"'{call.name}' with another value for each channel is not in the model format")
    call.graph.check_stored(value)
    return float(constant(value).reshape(()))


def _power(call: Call) -> Place:
    if "rpow" in call.name or call.place_of(call.get(1, "exponent")) is not None:
        raise RefusalError(f"'{call.name}' with features as the exponent is not in the model format")
    exponent = call.get(1, "exponent")
    root_of = call.graph.made_by.get(call.source().node, ("",))[0] == "average"
    if root_of and not isinstance(exponent, (int, float)) and exponent.numel() == 1:
        value = float(exponent.detach().cpu())  # the module computed it, as 1 / p: it is not a parameter itself
    else:
        value = float(_number(call, exponent) or 0.0)
    return powered(call, value)


def powered(call: Call, exponent: float) -> Place:
    x = call.source()
    if exponent == 2:
        return activated(call, "SQUARE")
    mean = _generalised_mean(call.graph, x, exponent)
    if mean is not None:
        return mean
    made = activated(call, "SQRT") if exponent == 0.5 else activated(call, "POWER", exponent=exponent)
    call.graph.made_by[made.node] = ("power", x.node, exponent)
    return made


def _generalised_mean(graph: Graph, x: Place, root: float) -> Place | None:
    average, pooled = graph.made_by.get(x.node, ("", ""))[:2]
    power = graph.made_by.get(pooled, ("", "", 0.0))
    clamp = graph.made_by.get(power[1], ("", "", 0.0))
    if (average, power[0], clamp[0]) != ("average", "power", "clamp"):
        return None
    source, exponent, epsilon = clamp[1], power[2], clamp[2]
    if not math.isclose(exponent * root, 1, rel_tol=1e-5) or exponent <= 0 or epsilon <= 0:
        return None
    name = graph.node(
        "gem",
        [source],
        lambda network, n: network.global_pool(n, source, "GENERALISED_MEAN", exponent=exponent, epsilon=epsilon),
    )
    return replace(x, node=name)


def _check_channels(call: Call, x: Place, dim: Any) -> None:
    """Raises RefusalError if the dimension `dim` of a function is not that of the channels."""
    dimensions = len(call.get(0, "input").shape)
    if x.is_flat or x.kind not in (*_ROWS, "image"):
        raise RefusalError(f"'{call.name}' of {x.kind} is not in the model format")
    if dim not in (1, 1 - dimensions):
        raise RefusalError(f"'{call.name}' along dimension {dim}: channels are dimension 1")


def _softmax(call: Call) -> Place:
    weights = attention.softmax(call)
    if weights is not None:
        return weights
    x, dim = call.source(), call.get(1, "dim")
    _check_channels(call, x, 1 if dim is None else dim)
    name = call.graph.node("softmax", [x.node], lambda network, n: network.softmax(n, x.node))
    return replace(x, node=name)


def _layer_norm(call: Call) -> Place:
    x, shape = call.rows(), tuple(call.get(1, "normalized_shape"))
    channels = call.get(0, "input").shape[1]
    if shape != (channels,):
        raise RefusalError(f"'layer_norm' over {list(shape)} is not in the model format: over the channels it is")
    weight, bias, epsilon = call.get(2, "weight"), call.get(3, "bias"), float(call.get(4, "eps", 1e-5))
    tensors = {}
    if weight is not None or bias is not None:
        tensors["weight"] = np.ones(channels, np.float32) if weight is None else constant(weight)
        tensors["bias"] = np.zeros(channels, np.float32) if bias is None else constant(bias)
    name = call.graph.node("layer_norm", [x.node], lambda network, n: network.layer_norm(n, x.node, tensors, epsilon))
    return replace(x, node=name)


def _normalize(call: Call) -> Any:
    x, p = call.source(), call.get(1, "p", 2.0)
    if p == 1:
        return row_arithmetic.divided_by_sums(call, float(call.get(3, "eps", 1e-12)))
    if p != 2:
        raise RefusalError(f"'normalize' with p={p} is not in the model format: with 1 and 2 it is")
    _check_channels(call, x, call.get(2, "dim", 1))
    epsilon = float(call.get(3, "eps", 1e-12))
    name = call.graph.node("l2_norm", [x.node], lambda network, n: network.l2_norm(n, x.node, epsilon))
    return replace(x, node=name)


def is_of_own_length(x: Place | None, length: Place | None) -> bool:
    """Returns whether the second place has the lengths of the first one's rows, one channel each."""
    if x is None or length is None:
        return False
    return length.kind == "length" and not length.is_flat and x.node == length.node and x.kind == length.rows_kind


def divided_by_length(call: Call, x: Place, length: Place) -> Place:
    """Adds the node for x / |x|. A row of zeros stays one, where torch has NaN."""
    name = call.graph.node("l2_norm", [x.node], lambda network, n: network.l2_norm(n, x.node, length.threshold))
    return replace(x, node=name)


def _prelu(call: Call) -> Place:
    x, weight = call.source(), call.get(1, "weight")
    if x.is_flat or x.kind not in (*_ROWS, "image"):
        raise RefusalError(f"'{call.name}' of {x.kind} is not in the model format")
    call.graph.check_stored(weight)
    slopes = constant(weight).reshape(-1)
    name = call.graph.node("prelu", [x.node], lambda network, n: network.prelu(n, x.node, slopes))
    return replace(x, node=name)


def whole(call: Call, made: Any = torch.int64) -> Any:
    """Handles a cast to integers: of labels, and of a channel that has whole numbers. made: the type of integers."""
    values = call.get(0, "input").as_subclass(torch.Tensor)
    x = call.source()
    if x.kind not in ("column", "labels") and not x.is_flat:
        raise RefusalError(
            f"'{call.name}' of {x.kind} to integers is in the model format for the one channel of an embedding alone"
        )
    if not bool((values == values.to(made)).all()):
        raise RefusalError(f"'{call.name}' of features that are no whole numbers of this type in this example")
    return x


def _embedding(call: Call) -> Place:
    x, weight = call.source(), call.get(1, "weight")
    if call.get(3, "max_norm") is not None:
        raise RefusalError("'embedding' with max_norm is not in the model format")
    if x.kind != "column" and not (x.is_flat and x.kind in _ROWS):
        raise RefusalError("'embedding' is in the model format for one channel alone, such as x[:, 3].long()")
    call.graph.check_stored(weight)
    table, channel = constant(weight), int(x.index) if x.kind == "column" else 0
    name = call.graph.node("embedding", [x.node], lambda network, n: network.embedding(n, x.node, table, channel))
    kind = "sites" if x.level is not None else x.column_of or x.kind
    return replace(x, kind=kind, node=name, index=None, is_flat=False)


_BY_HANDLER: dict[Callable[[Call], Any], str] = {
    _gelu: "gelu",
    _leaky_relu: "leaky_relu leaky_relu_",
    _rrelu: "rrelu rrelu_",
    _elu: "elu elu_",
    _celu: "celu celu_",
    _softplus: "softplus",
    _relu6: "relu6",
    _hardtanh: "hardtanh hardtanh_",
    _clamp: "clamp clamp_ clip clip_ clamp_min clamp_min_ clamp_max clamp_max_",
    _power: "pow pow_ __pow__ __rpow__ __ipow__",
    lambda call: powered(call, 0.5): "sqrt sqrt_",
    lambda call: powered(call, -0.5): "rsqrt rsqrt_",
    lambda call: powered(call, -1.0): "reciprocal reciprocal_",
    _softmax: "softmax",
    _layer_norm: "layer_norm",
    _normalize: "normalize",
    _prelu: "prelu",
    _embedding: "embedding",
    whole: "long int",
}
HANDLERS: dict[str, Callable[[Call], Any]] = {
    **{name: handler for handler, names in _BY_HANDLER.items() for name in names.split()},
    **{name: _activation(function) for name, function in OF_TORCH.items()},
    "__abs__": _activation("ABS"),
}
