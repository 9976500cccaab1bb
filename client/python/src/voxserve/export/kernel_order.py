"""Converts the weights of sparse convolutions from other libraries' orders of the kernel's cells to that of the model
format.

The model format has weights [K, in_channels, out_channels], where K counts the kernel's cells with the LAST axis
fastest. All functions raise ValueError if the weight has another shape than the kernel needs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

CROSS_OF_RELEASE = (
    "a HYPER_CROSS is served as MinkowskiEngine computes it since 80b6350 (January 2022). Its release 0.5.4 reads the "
    "first cells of the cube instead: a network that it trained is not served right"
)


def from_torchsparse(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> npt.NDArray[Any]:
    """Converts TorchSparse's weight [K, Cin, Cout]. It has the FIRST axis fastest if the kernel's number of cells is
    odd, and the LAST axis if the number is even.
    """
    _check_volume(weight, kernel_size)
    if math.prod(kernel_size) % 2 == 0:
        return weight
    return first_axis_fastest(weight, kernel_size)


def first_axis_fastest(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> npt.NDArray[Any]:
    """Converts a weight [K, Cin, Cout] whose cells have the first axis fastest to the model format's order."""
    dimension = len(kernel_size)
    cells = weight.reshape(*reversed(kernel_size), *weight.shape[1:])
    axes = (*reversed(range(dimension)), dimension, dimension + 1)
    return np.ascontiguousarray(cells.transpose(axes)).reshape(weight.shape)


def from_minkowski(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> npt.NDArray[Any]:
    """Converts MinkowskiEngine's weight [K, Cin, Cout], which always has the FIRST axis fastest."""
    _check_volume(weight, kernel_size)
    return first_axis_fastest(weight, kernel_size)


def from_minkowski_cross(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> npt.NDArray[Any]:
    """Converts the weight [K, Cin, Cout] of a MinkowskiEngine kernel with region type HYPER_CROSS to the order of
    KERNEL_SHAPE_CROSS (model.proto): the centre, then for each axis -r to -1 and +1 to +r. MinkowskiEngine has +1 to +r
    before -r to -1. r is half the kernel's size on the axis.
    """
    volume = 1 + sum(size - 1 for size in kernel_size)
    if weight.ndim != 3 or weight.shape[0] != volume or any(size % 2 == 0 for size in kernel_size):
        raise ValueError(
            f"a cross of {'x'.join(map(str, kernel_size))}, odd sizes, needs [{volume}, Cin, Cout], "
            f"not {list(weight.shape)}"
        )
    cells = [0]
    for size in kernel_size:
        begin, reach = len(cells), size // 2
        cells += [*range(begin + reach, begin + 2 * reach), *range(begin, begin + reach)]
    return np.ascontiguousarray(weight[cells])


def from_spconv(
    weight: npt.NDArray[Any],
    kernel_size: Sequence[int],
    out_channels: int,
    *,
    has_stride: bool = False,
    axes: Sequence[int] | None = None,
) -> npt.NDArray[Any]:
    """Converts spconv's weight of a network over the axes z, y, x to the model's order over x, y, z.

    kernel_size: over x, y, z. spconv 2 stores [Cout, kz, ky, kx, Cin], spconv 1 [kz, ky, kx, Cin, Cout]. A shape that
    could be either is taken as spconv 2's.

    spconv 2 (2.0 to 2.3.8, every kind of convolution except int8) uses the values of a kernel of one cell in the order
    in which they are in memory: it computes mm(x, weight.view(Cin, Cout)), although the weight's shape is [Cout, 1, 1,
    1, Cin].
    has_stride: a kernel of one cell belongs to a strided convolution, not to a submanifold one. Since 2.1.21 spconv
    uses such a kernel by its shape, like larger ones.
    axes: axes[i] is spconv's axis for the model's axis i; None reverses them, from z, y, x to x, y, z.
    """
    dimension = len(kernel_size)
    order = tuple(reversed(range(dimension))) if axes is None else tuple(axes)
    stored_size = tuple(kernel_size[order.index(axis)] for axis in range(dimension))
    sizes = ", ".join(map(str, stored_size))
    if weight.shape[1:-1] == stored_size and weight.shape[0] == out_channels:
        moved = (*(1 + axis for axis in order), dimension + 1, 0)
    elif weight.shape[:dimension] == stored_size and weight.shape[-1] == out_channels:
        moved = (*order, dimension, dimension + 1)
    else:
        raise ValueError(
            f"a {'x'.join(map(str, stored_size))} kernel needs [{out_channels}, {sizes}, Cin] or "
            f"[{sizes}, Cin, {out_channels}], not {list(weight.shape)}"
        )
    if math.prod(kernel_size) == 1 and not has_stride:
        return np.ascontiguousarray(weight).reshape(1, -1, out_channels)
    cells = weight.transpose(moved)
    return np.ascontiguousarray(cells).reshape(math.prod(kernel_size), *cells.shape[dimension:])


def from_sparseconvnet(
    weight: npt.NDArray[Any], kernel_size: Sequence[int], out_channels: int, groups: int = 1
) -> npt.NDArray[Any]:
    """Converts SparseConvNet's weight [K, groups, Cin / groups, Cout / groups] to [K, Cin / groups, Cout].

    Before June 2019 SparseConvNet had no groups and stored [K, Cin, Cout]. Its order of the cells, with the LAST axis
    fastest, is that of the model format. Its submanifold kernels of even size begin at -size / 2;
    sparseconvnet_offsets() returns their offsets.
    """
    volume = math.prod(kernel_size)
    if groups < 1 or out_channels % groups:
        raise ValueError(f"{out_channels} output channels do not make {groups} groups")
    cells = weight[:, np.newaxis] if weight.ndim == 3 and groups == 1 else weight
    if cells.ndim != 4 or cells.shape[:2] != (volume, groups) or cells.shape[3] * groups != out_channels:
        older = f" or [{volume}, Cin, {out_channels}]" if groups == 1 else ""
        raise ValueError(
            f"a {'x'.join(map(str, kernel_size))} kernel of {groups} groups needs "
            f"[{volume}, {groups}, Cin / {groups}, {out_channels // groups}]{older}, not {list(weight.shape)}"
        )
    return np.ascontiguousarray(cells.transpose(0, 2, 1, 3)).reshape(volume, cells.shape[2], out_channels)


def sparseconvnet_offsets(kernel_size: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns the offsets of the cells of SparseConvNet's SubmanifoldConvolution, in the order of its weights. Kernels
    of even size need them (Network.submanifold_offsets).
    """
    return list(itertools.product(*(range(-(size // 2), size - size // 2) for size in kernel_size)))


def _check_volume(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> None:
    if weight.ndim != 3 or weight.shape[0] != math.prod(kernel_size):
        raise ValueError(
            f"a {'x'.join(map(str, kernel_size))} kernel needs [{math.prod(kernel_size)}, Cin, Cout], "
            f"not {list(weight.shape)}"
        )
