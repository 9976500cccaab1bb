"""The layers of spconv, torchsparse and MinkowskiEngine, as nodes.

A layer runs as the library has it, on features without places; its result gets the place of the node that it is.
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
    """The layer that a module is, by the name of its class or of one that it derives from."""
    for cls in type(module).__mro__:
        if cls.__module__.startswith(_OWNERS) and cls.__name__ in _LAYERS:
            return _LAYERS[cls.__name__]
    return None


def is_library_layer(module: Any) -> bool:
    """Whether a module is one of a library's own, without others in it."""
    return type(module).__module__.startswith((*_OWNERS, "torch.nn")) and not any(module.children())
