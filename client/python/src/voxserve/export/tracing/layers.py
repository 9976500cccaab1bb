"""Converts the layers of spconv, torchsparse and MinkowskiEngine to nodes.

The library computes a layer on plain features (tensors without places). Then the result gets the place of the new node.
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
    """Returns the handler for a module that is a layer of a library, by the name of its class or of a base class.
    Returns None for other modules: the trace then follows what their `forward` does. A user's class with its own
    `forward` is such a module, since it computes something else than its base class.
    """
    for cls in type(module).__mro__:
        if cls.__module__.startswith(_OWNERS):
            if cls.__name__ in _LAYERS:
                return _LAYERS[cls.__name__]
        elif "forward" in vars(cls):
            return None
    return None


def is_library_layer(module: Any) -> bool:
    """Returns whether a module is of a library's or torch's class and contains no other modules."""
    return type(module).__module__.startswith((*_OWNERS, "torch.nn")) and not any(module.children())
