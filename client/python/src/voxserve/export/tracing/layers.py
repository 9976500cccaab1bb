"""Converts the layers of spconv, torchsparse and MinkowskiEngine to nodes.

A layer runs in the library, on features without places; then its result gets the place of its node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from voxserve.export.tracing import minkowski_layers, spconv_layers, torchsparse_layers
from voxserve.export.tracing.graph import Graph

Layer = Callable[[Graph, Any, Callable[..., Any], Any, Any], Any]

_OWNERS = ("spconv", "torchsparse", "Minkowski", "voxserve.export.stand_ins")
_LAYERS: dict[str, Layer] = {
    **spconv_layers.LAYERS,
    **torchsparse_layers.LAYERS,
    **minkowski_layers.LAYERS,
}


def layer_of(module: Any) -> Layer | None:
    """Returns the layer for a module, by the name of its class or a base class.

    A class of the user's own that has a `forward` of its own computes something else than its base class: it is no layer,
    and what its `forward` does is followed.
    """
    for cls in type(module).__mro__:
        if cls.__module__.startswith(_OWNERS):
            if cls.__name__ in _LAYERS:
                return _LAYERS[cls.__name__]
        elif "forward" in vars(cls):
            return None
    return None


def is_library_layer(module: Any) -> bool:
    """Returns whether a module is one of a library's own, without others in it."""
    return type(module).__module__.startswith((*_OWNERS, "torch.nn")) and not any(module.children())
