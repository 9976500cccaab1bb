"""Reads the sparse tensors of spconv, torchsparse and MinkowskiEngine. It recognizes them by the names of their
classes, so that none of the libraries is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from voxserve.arrays import array_of


def kind_of(value: Any) -> str:
    """Returns the library of a sparse tensor: "spconv", "torchsparse" or "MinkowskiEngine"; "" for other values."""
    for cls in type(value).__mro__:
        if cls.__name__ == "SparseConvTensor":
            return "spconv"
        if cls.__name__ == "SparseTensor":
            return "MinkowskiEngine" if hasattr(cls, "coordinate_manager") else "torchsparse"
    return ""


def features_of(value: Any) -> Any:
    """Returns the features [N, C] of a sparse tensor. Returns any other value unchanged."""
    kind = kind_of(value)
    return (value.features if kind == "spconv" else value.F) if kind else value


def coordinates_of(value: Any) -> Any:
    """Returns the coordinates of a sparse tensor as a NumPy array int64 [N, 1 + D]: the sample, then the coordinates in
    the library's order of axes, in steps of the sites' stride.
    """
    coordinates = array_of(value.indices if kind_of(value) == "spconv" else value.C).astype("int64")
    if kind_of(value) == "MinkowskiEngine":
        coordinates[:, 1:] //= [max(stride, 1) for stride in value.tensor_stride]  # a stride of 0: one row per sample
    return coordinates


def named(result: Any, name: str = "output") -> Iterator[tuple[str, Any]]:
    """Yields a module's results with their names. A single value is named "output", the values of a dict by their keys,
    those of a list or tuple output.0, output.1, ...; deeper values get names such as KEY.0.
    """
    if isinstance(result, dict):
        for key, value in result.items():
            yield from named(value, str(key) if name == "output" else f"{name}.{key}")
    elif isinstance(result, (list, tuple)):
        for number, value in enumerate(result):
            yield from named(value, f"{name}.{number}")
    else:
        yield name, result
