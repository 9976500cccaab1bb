"""The activation functions of model folders: what each computes, and torch's functions that mean the same.

voxserve.verify computes by this table and voxserve.export.from_torch maps torch's functions by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]


class Activation(NamedTuple):
    """One function. compute: takes the values, and the parameters by their names in the message Activation, each with
    the default of model.proto. torch: the names of torch's functions that compute it and have no parameter.
    """

    compute: Callable[..., Values]
    torch: str = ""


def _softplus(x: Values) -> Values:
    return np.logaddexp(0, x)


def _sigmoid(x: Values) -> Values:
    sigmoid: Values = (1 + np.tanh(x / 2)) / 2
    return sigmoid


def _hard_sigmoid(x: Values) -> Values:
    hard_sigmoid: Values = np.clip(x + 3, 0, 6) / 6
    return hard_sigmoid


_erf = np.vectorize(math.erf, otypes=[np.float64])

# The functions by their names in Activation.Function of model.proto, without FUNCTION_.
ACTIVATIONS = {
    "RELU": Activation(lambda x: np.maximum(x, 0), "relu"),
    "LEAKY_RELU": Activation(lambda x, negative_slope=0.01: np.where(x < 0, negative_slope * x, x)),
    "SIGMOID": Activation(_sigmoid, "sigmoid"),
    "GELU": Activation(lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2),
    "SILU": Activation(lambda x: x * _sigmoid(x), "silu"),
    "TANH": Activation(np.tanh, "tanh"),
    "ELU": Activation(lambda x, alpha=1.0: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x)),
    "CLAMP": Activation(lambda x, minimum=-np.inf, maximum=np.inf: np.clip(x, minimum, maximum)),
    "HARD_SIGMOID": Activation(_hard_sigmoid, "hardsigmoid"),
    "HARD_SWISH": Activation(lambda x: x * _hard_sigmoid(x), "hardswish"),
    "SOFTPLUS": Activation(lambda x, beta=1.0: _softplus(beta * x) / beta),
    "MISH": Activation(lambda x: x * np.tanh(_softplus(x)), "mish"),
    "GELU_TANH": Activation(lambda x: x * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "EXP": Activation(np.exp, "exp"),
    "LOG": Activation(np.log, "log"),
    "SQUARE": Activation(lambda x: x * x, "square"),
    "SQRT": Activation(np.sqrt),
    "ABS": Activation(np.abs, "abs absolute"),
    "POWER": Activation(lambda x, exponent: np.power(x, exponent)),
}

# The functions by the names of torch's functions that have no parameter. A name that ends in "_" changes its tensor.
OF_TORCH = {
    name + end: function for function, a in ACTIVATIONS.items() for name in a.torch.split() for end in ("", "_")
}
