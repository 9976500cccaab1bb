"""Stand-in for torch_scatter 2.1: sums, means, maxima and minima of rows by an index, made of torch's functions.

A reduction has zeros where no index points, as in the library. The second result of a maximum or minimum, the rows'
numbers, is refused where it is used.
"""

from __future__ import annotations

from typing import Any

import torch


def broadcast(src: Any, other: Any, dim: int) -> Any:
    """Returns an index [N] as one of the shape of `other`, whose dimension `dim` it counts along."""
    dim = other.dim() + dim if dim < 0 else dim
    if src.dim() == 1:
        src = src.view(*([1] * dim), -1)
    return src.view(*src.shape, *([1] * (other.dim() - src.dim()))).expand_as(other)


def scatter(src: Any, index: Any, dim: int = -1, out: Any = None, dim_size: Any = None, reduce: str = "sum") -> Any:
    reductions = {"sum": "sum", "add": "sum", "mean": "mean", "max": "amax", "min": "amin", "mul": "prod"}
    if reduce not in reductions:
        raise ValueError(f"reduce is '{reduce}', not one of {', '.join(reductions)}")
    if out is not None:
        raise NotImplementedError("voxserve's stand-in for torch_scatter has no out: use the result")
    dim = src.dim() + dim if dim < 0 else dim
    if dim_size is None:
        dim_size = int(index.max()) + 1 if index.numel() else 0
    shape = [*src.shape[:dim], dim_size, *src.shape[dim + 1 :]]
    start = torch.zeros(shape, dtype=src.dtype)
    index = broadcast(index, src, dim)
    if reduce in ("sum", "add"):
        return start.scatter_add(dim, index, src)
    return start.scatter_reduce(dim, index, src, reductions[reduce], include_self=False)


def scatter_sum(src: Any, index: Any, dim: int = -1, out: Any = None, dim_size: Any = None) -> Any:
    return scatter(src, index, dim, out, dim_size)


def scatter_mean(src: Any, index: Any, dim: int = -1, out: Any = None, dim_size: Any = None) -> Any:
    return scatter(src, index, dim, out, dim_size, "mean")


def scatter_max(src: Any, index: Any, dim: int = -1, out: Any = None, dim_size: Any = None) -> tuple[Any, Any]:
    return scatter(src, index, dim, out, dim_size, "max"), NumbersOfRows()


def scatter_min(src: Any, index: Any, dim: int = -1, out: Any = None, dim_size: Any = None) -> tuple[Any, Any]:
    return scatter(src, index, dim, out, dim_size, "min"), NumbersOfRows()


scatter_add = scatter_sum


class NumbersOfRows:
    """Stands for the rows that a maximum or minimum took. Nothing can be done with it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotImplementedError("voxserve's stand-in for torch_scatter has no numbers of the rows of a maximum")
