"""The sparse tensors of spconv, torchsparse and MinkowskiEngine, told by their classes' names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def kind_of(value: Any) -> str:
    """spconv, torchsparse or MinkowskiEngine of a sparse tensor; empty of anything else."""
    for cls in type(value).__mro__:
        if cls.__name__ == "SparseConvTensor":
            return "spconv"
        if cls.__name__ == "SparseTensor":
            return "MinkowskiEngine" if hasattr(cls, "coordinate_manager") else "torchsparse"
    return ""


def features_of(value: Any) -> Any:
    """The features of a sparse tensor, or the value itself."""
    kind = kind_of(value)
    return (value.features if kind == "spconv" else value.F) if kind else value


def coordinates_of(value: Any) -> Any:
    """[N, 1 + D], the sample first, in the library's order of axes and in the level's own units. NumPy."""
    coordinates = (value.indices if kind_of(value) == "spconv" else value.C).detach().cpu().numpy().astype("int64")
    if kind_of(value) == "MinkowskiEngine":
        coordinates[:, 1:] //= [max(stride, 1) for stride in value.tensor_stride]  # 0: a row a sample
    return coordinates


def named(result: Any, name: str = "output") -> Iterator[tuple[str, Any]]:
    """The results of a module by name: a dict's keys, a list's numbers, "output" of a single value."""
    if isinstance(result, dict):
        for key, value in result.items():
            yield from named(value, str(key) if name == "output" else f"{name}.{key}")
    elif isinstance(result, (list, tuple)):
        for number, value in enumerate(result):
            yield from named(value, f"{name}.{number}")
    else:
        yield name, result
