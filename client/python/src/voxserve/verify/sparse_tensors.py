"""Reads the sparse tensors of spconv, torchsparse and MinkowskiEngine, recognized by their classes' names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def kind_of(value: Any) -> str:
    """Returns spconv, torchsparse or MinkowskiEngine for a sparse tensor; "" for other values."""
    for cls in type(value).__mro__:
        if cls.__name__ == "SparseConvTensor":
            return "spconv"
        if cls.__name__ == "SparseTensor":
            return "MinkowskiEngine" if hasattr(cls, "coordinate_manager") else "torchsparse"
    return ""


def features_of(value: Any) -> Any:
    """Returns the features of a sparse tensor, or the value itself."""
    kind = kind_of(value)
    return (value.features if kind == "spconv" else value.F) if kind else value


def coordinates_of(value: Any) -> Any:
    """Returns [N, 1 + D] as NumPy, the sample first, in the library's order of axes and the level's units."""
    coordinates = (value.indices if kind_of(value) == "spconv" else value.C).detach().cpu().numpy().astype("int64")
    if kind_of(value) == "MinkowskiEngine":
        coordinates[:, 1:] //= [max(stride, 1) for stride in value.tensor_stride]  # a stride of 0: one row per sample
    return coordinates


def named(result: Any, name: str = "output") -> Iterator[tuple[str, Any]]:
    """Yields a module's results by name: a dict's keys, a list's indices, "output" for a single value."""
    if isinstance(result, dict):
        for key, value in result.items():
            yield from named(value, str(key) if name == "output" else f"{name}.{key}")
    elif isinstance(result, (list, tuple)):
        for number, value in enumerate(result):
            yield from named(value, f"{name}.{number}")
    else:
        yield name, result
