"""Stand-in for MinkowskiEngine.MinkowskiFunctional: torch's functions, applied to the features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import functional


def _of_features(name: str) -> Callable[..., Any]:
    function = getattr(functional, name)
    return lambda x, *args, **kwargs: x.like(function(x.F, *args, **kwargs))


_FUNCTIONS = (
    *("relu", "leaky_relu", "prelu", "rrelu", "relu6", "elu", "selu", "celu", "gelu", "glu", "silu", "logsigmoid"),
    *("tanhshrink", "softmax", "softmin", "log_softmax", "gumbel_softmax", "softplus", "softshrink", "softsign"),
    *("hardshrink", "hardsigmoid", "hardtanh", "hardswish", "threshold", "dropout", "alpha_dropout", "normalize"),
    *("batch_norm", "linear"),
)
for _name in _FUNCTIONS:
    globals()[_name] = _of_features(_name)


def sigmoid(x: Any) -> Any:
    return x.like(x.F.sigmoid())


def tanh(x: Any) -> Any:
    return x.like(x.F.tanh())
