"""Stand-in for MinkowskiEngine.MinkowskiFunctional: torch's functions, of the features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import functional


def _of_features(name: str) -> Callable[..., Any]:
    function = getattr(functional, name)
    return lambda x, *args, **kwargs: x.like(function(x.F, *args, **kwargs))


for _name in ("relu", "leaky_relu", "prelu", "elu", "selu", "gelu", "silu", "softmax", "log_softmax", "dropout"):
    globals()[_name] = _of_features(_name)


def sigmoid(x: Any) -> Any:
    return x.like(x.F.sigmoid())


def tanh(x: Any) -> Any:
    return x.like(x.F.tanh())
