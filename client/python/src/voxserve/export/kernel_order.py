"""Converts the order of a convolution kernel's cells from other libraries' to the served one.

Served weights are [K, in_channels, out_channels] with the LAST axis of the kernel fastest in K.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def from_torchsparse(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> npt.NDArray[Any]:
    """Converts TorchSparse's [K, Cin, Cout].

    TorchSparse runs K with the FIRST axis fastest if the kernel's volume is odd, with the LAST if it is even.
    """
    _check_volume(weight, kernel_size)
    if math.prod(kernel_size) % 2 == 0:
        return weight
    return first_axis_fastest(weight, kernel_size)


def first_axis_fastest(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> npt.NDArray[Any]:
    """Converts [K, Cin, Cout] with the first axis fastest."""
    dimension = len(kernel_size)
    cells = weight.reshape(*reversed(kernel_size), *weight.shape[1:])
    axes = (*reversed(range(dimension)), dimension, dimension + 1)
    return np.ascontiguousarray(cells.transpose(axes)).reshape(weight.shape)


def from_minkowski(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> npt.NDArray[Any]:
    """Converts MinkowskiEngine's [K, Cin, Cout], in which the FIRST axis is fastest for any volume."""
    _check_volume(weight, kernel_size)
    return first_axis_fastest(weight, kernel_size)


def from_minkowski_cross(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> npt.NDArray[Any]:
    """Converts MinkowskiEngine's HYPER_CROSS [K, Cin, Cout] to KERNEL_SHAPE_CROSS's order, with ascending axes.

    MinkowskiEngine has the centre first, then for each axis +1 to +r and -r to -1.
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
    """Converts spconv's weights of a network over (z, y, x) to the served order over (x, y, z).

    kernel_size is over (x, y, z). spconv 2 stores [Cout, kz, ky, kx, Cin], spconv 1 [kz, ky, kx, Cin, Cout]; a shape
    that could be either is taken as spconv 2's.

    A kernel of one cell is multiplied as it lies in memory: spconv 2 (2.0 to 2.3.8, every kind of convolution except
    int8) computes mm(x, weight.view(Cin, Cout)), though its shape says [Cout, 1, 1, 1, Cin].
    has_stride: a kernel of one cell belongs to a convolution with a stride, not to a submanifold one. Since 2.1.21
    spconv reads such a kernel like any other.
    axes: axes[i] is spconv's axis for the served axis i; by default reversed, from z, y, x to x, y, z.
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
    """Converts SparseConvNet's [K, groups, Cin / groups, Cout / groups] to [K, Cin / groups, Cout].

    Before June 2019 it had no groups and stored [K, Cin, Cout]. The order of the cells does not change: it runs the
    LAST axis fastest. Its even submanifold kernels begin at -size / 2; sparseconvnet_offsets lists their cells.
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
    """Returns the offsets that a SubmanifoldConvolution reads, in its weights' order (for even kernels)."""
    return list(itertools.product(*(range(-(size // 2), size - size // 2) for size in kernel_size)))


def _check_volume(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> None:
    if weight.ndim != 3 or weight.shape[0] != math.prod(kernel_size):
        raise ValueError(
            f"a {'x'.join(map(str, kernel_size))} kernel needs [{math.prod(kernel_size)}, Cin, Cout], "
            f"not {list(weight.shape)}"
        )
