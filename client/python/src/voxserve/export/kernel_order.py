"""How other libraries order the cells of a convolution's kernel, and the way to the served order.

Served weights are [K, in_channels, out_channels] with the LAST axis of the kernel fastest in K.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def from_torchsparse(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> npt.NDArray[Any]:
    """TorchSparse [K, Cin, Cout] -> served order.

    TorchSparse runs K with the FIRST axis fastest where the kernel's volume is odd, with the LAST where it is even.
    """
    if weight.ndim != 3 or weight.shape[0] != math.prod(kernel_size):
        raise ValueError(
            f"a {'x'.join(map(str, kernel_size))} kernel needs [{math.prod(kernel_size)}, Cin, Cout], "
            f"not {list(weight.shape)}"
        )
    if math.prod(kernel_size) % 2 == 0:
        return weight
    return first_axis_fastest(weight, kernel_size)


def first_axis_fastest(weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> npt.NDArray[Any]:
    """[K, Cin, Cout] with the first axis fastest -> served order."""
    dimension = len(kernel_size)
    cells = weight.reshape(*reversed(kernel_size), *weight.shape[1:])
    axes = (*reversed(range(dimension)), dimension, dimension + 1)
    return np.ascontiguousarray(cells.transpose(axes)).reshape(weight.shape)
