"""How other libraries order the cells of a convolution's kernel, and the way to the served order.

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
    """TorchSparse [K, Cin, Cout] -> served order.

    TorchSparse runs K with the FIRST axis fastest where the kernel's volume is odd, with the LAST where it is even.
    """
    _check_volume(weight, kernel_size)
    if math.prod(kernel_size) % 2 == 0:
        return weight
    return first_axis_fastest(weight, kernel_size)


def first_axis_fastest(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> npt.NDArray[Any]:
    """[K, Cin, Cout] with the first axis fastest -> served order."""
    dimension = len(kernel_size)
    cells = weight.reshape(*reversed(kernel_size), *weight.shape[1:])
    axes = (*reversed(range(dimension)), dimension, dimension + 1)
    return np.ascontiguousarray(cells.transpose(axes)).reshape(weight.shape)


def from_minkowski(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> npt.NDArray[Any]:
    """MinkowskiEngine [K, Cin, Cout] -> served order. It runs the FIRST axis fastest, whatever the volume."""
    _check_volume(weight, kernel_size)
    return first_axis_fastest(weight, kernel_size)


def from_minkowski_cross(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> npt.NDArray[Any]:
    """MinkowskiEngine HYPER_CROSS [K, Cin, Cout] -> KERNEL_SHAPE_CROSS's order, whose axes are ascending.

    It has the centre first, then axis by axis +1 to +r and -r to -1.
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
    """spconv's weights of a network over (z, y, x) -> served order over (x, y, z).

    kernel_size is that of (x, y, z). spconv 2 stores [Cout, kz, ky, kx, Cin], spconv 1 [kz, ky, kx, Cin, Cout]; where
    a shape could be either, it is spconv 2's.

    A kernel of one cell is multiplied as it lies in memory: spconv 2 (2.0 to 2.3.8, every kind of convolution, int8
    apart) computes mm(x, weight.view(Cin, Cout)), though its shape says [Cout, 1, 1, 1, Cin].
    has_stride: the kernel of one cell belongs to a convolution with a stride, no submanifold one. Since 2.1.21 spconv
    reads that like any other kernel.
    axes: spconv's axis that is the served axis i; by default the last first, z, y, x being x, y, z here.
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
    """SparseConvNet [K, groups, Cin / groups, Cout / groups] -> [K, Cin / groups, Cout], the served order of groups.

    Before June 2019 it had no groups and stored [K, Cin, Cout]. The cells stay where they are: it runs the LAST axis
    fastest. Even submanifold kernels begin at -size / 2 there, which sparseconvnet_offsets lists.
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
    """What the cells of a SubmanifoldConvolution read, in the order of its weights: the `offsets` of an even one."""
    return list(itertools.product(*(range(-(size // 2), size - size // 2) for size in kernel_size)))


def _check_volume(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> None:
    if weight.ndim != 3 or weight.shape[0] != math.prod(kernel_size):
        raise ValueError(
            f"a {'x'.join(map(str, kernel_size))} kernel needs [{math.prod(kernel_size)}, Cin, Cout], "
            f"not {list(weight.shape)}"
        )
