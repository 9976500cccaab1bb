"""Stand-in for MinkowskiEngine's kernels: which cells they have, in which order, with the first axis fastest."""

from __future__ import annotations

import enum
from typing import Any

from voxserve.export.stand_ins import products
from voxserve.verify import sites as site_maths


class RegionType(enum.Enum):
    """The shape of a kernel."""

    HYPER_CUBE = 0
    HYPER_CROSS = 1
    CUSTOM = 2


class KernelGenerator:
    """Lists a kernel's cells."""

    def __init__(
        self,
        kernel_size: Any = -1,
        stride: Any = 1,
        dilation: Any = 1,
        is_transpose: bool = False,  # as in the library, it says nothing: the layer knows
        region_type: RegionType = RegionType.HYPER_CUBE,
        region_offsets: Any = None,
        expand_coordinates: bool = False,
        axis_types: Any = None,
        dimension: int = -1,
    ) -> None:
        if axis_types is not None:
            raise NotImplementedError("voxserve's stand-in has no axis_types")
        self.dimension, self.region_type, self.expand_coordinates = dimension, region_type, expand_coordinates
        self.kernel_size = products.axes(kernel_size, dimension)
        self.kernel_stride, self.kernel_dilation = products.axes(stride, dimension), products.axes(dilation, dimension)
        self.region_offsets, self.axis_types = region_offsets, axis_types
        self.cells = self._cells()
        self.kernel_volume = len(self.cells)
        # The library's test is reduce(lambda a, b: a == 1 and b == 1, stride), which is true for every single number
        # (MinkowskiKernelGenerator.py): on one axis, a kernel of one cell ignores its stride.
        self.requires_strided_coordinates = dimension == 1 or max(self.kernel_stride) == 1

    def _cells(self) -> list[tuple[int, ...]]:
        if self.region_type is RegionType.CUSTOM:
            return [tuple(int(v) for v in offset) for offset in self.region_offsets]
        if self.region_type is RegionType.HYPER_CROSS:
            if any(size % 2 == 0 for size in self.kernel_size):
                raise ValueError(f"kernel_size {self.kernel_size} must be odd for region_type HYPER_CROSS")
            cells = [(0,) * self.dimension]
            for axis, size in enumerate(self.kernel_size):
                for step in (*range(1, size // 2 + 1), *range(-(size // 2), 0)):
                    cells.append(tuple(step if i == axis else 0 for i in range(self.dimension)))
            return cells
        last_axis_fastest = site_maths.deltas(self.kernel_size[::-1], [1] * self.dimension)
        return [cell[::-1] for cell in last_axis_fastest]

    def deltas(self) -> list[tuple[int, ...]]:
        return [tuple(d * c for d, c in zip(self.kernel_dilation, cell, strict=True)) for cell in self.cells]
