"""Stand-in for MinkowskiEngine 0.5: coordinates in units of the tensor stride, kernels with the first axis fastest.

The rules of sites and kernel maps are those of its source at 02fc608, the last commit of its repository:
src/coordinate_map_manager.cpp (kernel_map, stride, stride_region), src/coordinate_map_cpu.hpp (stride_region,
stride_map) and src/kernel_region.hpp (coordinate_at). tests/golden/minkowski_layers.npz has what the library computed.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import torch
from torch import nn

from voxserve.export.stand_ins import products
from voxserve.export.stand_ins.minkowski_kernels import KernelGenerator, RegionType  # noqa: F401, the library's names
from voxserve.export.stand_ins.minkowski_norms import (  # noqa: F401, the library has them all in one module
    MinkowskiBatchNorm,
    MinkowskiInstanceNorm,
    MinkowskiLinear,
    MinkowskiStableInstanceNorm,
    MinkowskiSyncBatchNorm,
)
from voxserve.export.stand_ins.minkowski_tensor import (  # noqa: F401
    CoordinateManager,
    CoordinateMapKey,
    SparseTensor,
    SparseTensorQuantizationMode,
    Tensor,
    cat,
    mean,
    sum,  # noqa: A004
    union,
)
from voxserve.verify import sites as site_maths


class _Layer(nn.Module):
    """A layer that has a kernel generator, and maps sites to sites."""

    kernel_generator: KernelGenerator
    is_transpose = False
    is_generative = False
    can_expand = False  # whether the layer follows its kernel generator's expand_coordinates

    def place(
        self, x: SparseTensor, coordinates: Any = None, listed_stride: int = 1
    ) -> tuple[CoordinateMapKey, site_maths.KernelMap]:
        """Returns the key of the output's coordinates, and the kernel map, whose coordinates are in voxels.

        coordinates: the output's, if the caller chooses them. listed_stride: the tensor stride of an output whose
            coordinates are a tensor, not a sparse tensor or a key.
        """
        generator, manager = self.kernel_generator, x.coordinate_manager
        unit, name = x.coordinate_map_key
        strides, expands = generator.kernel_stride, self.can_expand and generator.expand_coordinates
        if self.is_transpose and any(u % s for u, s in zip(unit, strides, strict=True)):
            raise ValueError(f"a transposed layer's stride {strides} does not divide the tensor stride {list(unit)}")
        made_unit = tuple(u // s if self.is_transpose else u * s for u, s in zip(unit, strides, strict=True))
        cell_unit = made_unit if self.is_transpose else unit  # a kernel's cells are on the finer sites
        deltas = [tuple(u * d for u, d in zip(cell_unit, delta, strict=True)) for delta in generator.deltas()]
        here, ones = products.to_sites(x.C), [1] * x.D
        if coordinates is not None:
            key = _given(manager, coordinates, listed_stride)
        elif not self.is_transpose and not expands:
            key = CoordinateMapKey(made_unit, name)
            if key not in manager.maps:
                made = site_maths.floored(here, made_unit)
                made[:, 1:] *= np.array(made_unit)
                manager.maps[key] = torch.from_numpy(made).int()
        else:
            # The key has no name, not even after a pruning: a transposed layer goes back to the first tensor's sites.
            key = CoordinateMapKey(made_unit)
            if key not in manager.maps or expands:
                made = site_maths.reached(here, ones, deltas)
                if not self.is_transpose:
                    made = made[(made[:, 1:] % np.array(made_unit) == 0).all(axis=1)]
                key = manager.new_key(made_unit, torch.from_numpy(made).int())
        there = products.to_sites(manager.maps[key])
        if self.is_transpose:
            return key, site_maths.KernelMap(there, here, ones, deltas, is_onto_fine=True)
        return key, site_maths.KernelMap(here, there, ones, deltas)


def _given(manager: CoordinateManager, coordinates: Any, listed_stride: int) -> CoordinateMapKey:
    """Returns the key of coordinates that a layer's caller chooses: a sparse tensor's, a key or a tensor [N, 1 + D]."""
    if isinstance(coordinates, torch.Tensor):
        return manager.new_key((listed_stride,) * manager.D, coordinates.int())
    return coordinates if isinstance(coordinates, CoordinateMapKey) else coordinates.coordinate_map_key


class MinkowskiConvolutionBase(_Layer):
    """The base of the convolutions. kernel: [K, Cin, Cout], or [Cin, Cout] for one cell without a stride; bias: [1,
    Cout].
    """

    can_expand = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any = -1,
        stride: Any = 1,
        dilation: Any = 1,
        bias: bool = False,
        kernel_generator: KernelGenerator | None = None,
        expand_coordinates: bool = False,
        convolution_mode: Any = None,
        dimension: int = -1,
    ) -> None:
        super().__init__()
        generator = kernel_generator or KernelGenerator(kernel_size, stride, dilation, dimension=dimension)
        generator.expand_coordinates = expand_coordinates or self.is_generative
        self.in_channels, self.out_channels, self.dimension = in_channels, out_channels, dimension
        self.kernel_generator = generator
        self.use_mm = generator.kernel_volume == 1 and generator.requires_strided_coordinates
        shape = (in_channels, out_channels) if self.use_mm else (generator.kernel_volume, in_channels, out_channels)
        self.kernel = nn.Parameter(torch.randn(shape) / (in_channels * generator.kernel_volume) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(1, out_channels)) if bias else None

    def forward(self, x: SparseTensor, coordinates: Any = None) -> SparseTensor:
        if self.use_mm:
            key, y = x.coordinate_map_key, x.F.mm(self.kernel)
        else:
            # The library means to pass expand_coordinates and passes it as the tensor stride (MinkowskiConvolution.py).
            stride = int(self.kernel_generator.expand_coordinates)
            key, kernel_map = self.place(x, coordinates, listed_stride=stride)
            y = products.convolve(x.F, self.kernel, kernel_map)
        y = y if self.bias is None else y + self.bias
        return x.on(key, y)


class MinkowskiConvolution(MinkowskiConvolutionBase):
    """A convolution whose output sites are floor(coordinates / stride)."""


class MinkowskiConvolutionTranspose(MinkowskiConvolutionBase):
    """A transposed convolution onto finer coordinates that the coordinate manager already has."""

    is_transpose = True


class MinkowskiGenerativeConvolutionTranspose(MinkowskiConvolutionBase):
    """A transposed convolution onto all finer coordinates that an input site reaches."""

    is_transpose = True
    is_generative = True


class MinkowskiChannelwiseConvolution(_Layer):
    """A convolution of each channel by itself. kernel: [K, C]."""

    def __init__(
        self,
        in_channels: int,
        kernel_size: Any = -1,
        stride: Any = 1,
        dilation: Any = 1,
        bias: bool = False,
        kernel_generator: KernelGenerator | None = None,
        dimension: int = -1,
    ) -> None:
        super().__init__()
        self.kernel_generator = kernel_generator or KernelGenerator(kernel_size, stride, dilation, dimension=dimension)
        self.in_channels, self.dimension = in_channels, dimension
        self.kernel = nn.Parameter(torch.randn(self.kernel_generator.kernel_volume, in_channels))
        self.bias = nn.Parameter(torch.zeros(1, in_channels)) if bias else None

    def forward(self, x: SparseTensor, coords: Any = None) -> SparseTensor:
        key, kernel_map = self.place(x)
        y = products.convolve(x.F, torch.diag_embed(self.kernel), kernel_map)
        y = y if self.bias is None else y + self.bias
        return x.on(key, y)


class MinkowskiPoolingBase(_Layer):
    """The base of the pools, which reduce the rows of the input sites in the kernel."""

    reduce = "mean"

    def __init__(
        self,
        kernel_size: Any = -1,
        stride: Any = 1,
        dilation: Any = 1,
        kernel_generator: KernelGenerator | None = None,
        dimension: int = -1,
    ) -> None:
        super().__init__()
        self.kernel_generator = kernel_generator or KernelGenerator(kernel_size, stride, dilation, dimension=dimension)
        self.dimension = dimension

    def forward(self, x: SparseTensor, coordinates: Any = None) -> SparseTensor:
        key, kernel_map = self.place(x, coordinates)
        if self.kernel_generator.kernel_size == self.kernel_generator.kernel_stride:
            kernel_map = self._blocks(x, key)
        empty = -torch.finfo(x.F.dtype).max if self.reduce == "amax" else 0  # as on a CPU: pooling_max_kernel.hpp
        return x.on(key, products.pool(x.F, self.reduce, kernel_map, empty))

    def _blocks(self, x: SparseTensor, key: CoordinateMapKey) -> site_maths.KernelMap:
        """Returns the kernel map of a kernel as large as its stride: a coarse site has the fine sites whose coordinates
        floor to it. The kernel is not centred, and its dilation and shape do not count (stride_map in the library).
        """
        here, there = products.to_sites(x.C), products.to_sites(x.coordinate_manager.maps[key])
        fine, coarse = (there, here) if self.is_transpose else (here, there)
        unit = key.stride if self.is_transpose else x.coordinate_map_key.stride
        size = self.kernel_generator.kernel_size
        deltas = [tuple(u * c for u, c in zip(unit, cell, strict=True)) for cell in site_maths.box(size)]
        return site_maths.KernelMap(fine, coarse, [1] * x.D, deltas, is_onto_fine=self.is_transpose)


class MinkowskiAvgPooling(MinkowskiPoolingBase):
    """Averages the rows of the input sites in the kernel."""


class MinkowskiSumPooling(MinkowskiPoolingBase):
    """Adds the rows of the input sites in the kernel."""

    reduce = "sum"


class MinkowskiMaxPooling(MinkowskiPoolingBase):
    """Takes the maximum of the rows of the input sites in the kernel."""

    reduce = "amax"


class MinkowskiPoolingTranspose(MinkowskiPoolingBase):
    """An unpool onto finer coordinates: adds the rows of the coarse sites that a fine site contributed to. The
    library's text says that it divides by their number, but its code does not, on a CPU or a GPU
    (src/local_pooling_transpose_cpu.cpp, use_avg false).
    """

    is_transpose = True
    can_expand = True
    reduce = "sum"

    def __init__(
        self,
        kernel_size: Any,
        stride: Any,
        dilation: Any = 1,
        kernel_generator: KernelGenerator | None = None,
        expand_coordinates: bool = False,
        dimension: int = -1,
    ) -> None:
        super().__init__(kernel_size, stride, dilation, kernel_generator, dimension)
        if kernel_generator is None:
            self.kernel_generator.expand_coordinates = expand_coordinates


PoolingMode = enum.Enum(
    "PoolingMode",
    [
        f"GLOBAL_{kind}_POOLING_{how}"
        for how in ("DEFAULT", "KERNEL", "PYTORCH_INDEX")
        for kind in ("SUM", "AVG", "MAX")
    ],
)


class MinkowskiGlobalPooling(nn.Module):
    """Reduces each sample to one row: the average, or what the mode says."""

    kind = "AVG"

    def __init__(self, mode: Any = None) -> None:
        super().__init__()
        self.pooling_mode = mode or PoolingMode[f"GLOBAL_{self.kind}_POOLING_PYTORCH_INDEX"]

    def forward(self, x: SparseTensor, coordinates: Any = None) -> SparseTensor:
        if coordinates is not None:
            raise NotImplementedError("voxserve's stand-in pools samples alone")
        size = int(x.C[:, 0].max()) + 1
        reduce = {"SUM": "sum", "AVG": "mean", "MAX": "amax"}[self.pooling_mode.name.split("_")[1]]
        y = products.samples_of(x.F, x.C[:, 0], reduce, size)
        origins = torch.zeros((size, 1 + x.D), dtype=torch.int32)
        origins[:, 0] = torch.arange(size)
        key = x.coordinate_manager.new_key((0,) * x.D, origins, "origin")
        return x.on(key, y)


class MinkowskiGlobalAvgPooling(MinkowskiGlobalPooling):
    """Averages each sample's rows."""


class MinkowskiGlobalSumPooling(MinkowskiGlobalPooling):
    """Adds each sample's rows."""

    kind = "SUM"


class MinkowskiGlobalMaxPooling(MinkowskiGlobalPooling):
    """Takes the maximum of each sample's rows."""

    kind = "MAX"


class MinkowskiBroadcastAddition(nn.Module):
    """Adds its sample's row to every site."""

    def forward(self, x: SparseTensor, x_glob: SparseTensor) -> SparseTensor:
        return x.like(x.F + x_glob.F[x.C[:, 0].long()])


class MinkowskiBroadcastMultiplication(nn.Module):
    """Multiplies every site by its sample's row."""

    def forward(self, x: SparseTensor, x_glob: SparseTensor) -> SparseTensor:
        return x.like(x.F * x_glob.F[x.C[:, 0].long()])


class MinkowskiBroadcast(nn.Module):
    """Returns its sample's row at every site."""

    def forward(self, x: SparseTensor, x_glob: SparseTensor) -> SparseTensor:
        return x.like(x_glob.F[x.C[:, 0].long()])


class MinkowskiBroadcastConcatenation(nn.Module):
    """Concatenates every site with its sample's row."""

    def forward(self, x: SparseTensor, x_glob: SparseTensor) -> SparseTensor:
        return x.like(torch.cat([x.F, x_glob.F[x.C[:, 0].long()]], dim=1))


class MinkowskiUnion(nn.Module):
    """Adds tensors on every site that any of them has."""

    def forward(self, *tensors: SparseTensor) -> SparseTensor:
        return union(tensors)


class MinkowskiPruning(nn.Module):
    """Keeps the sites where the mask is true."""

    def forward(self, x: SparseTensor, mask: Any) -> SparseTensor:
        key = x.coordinate_manager.new_key(x.coordinate_map_key[0], x.C[mask], "pruned")
        return x.on(key, x.F[mask])


class MinkowskiNetwork(nn.Module):
    """The base class of networks with D axes."""

    def __init__(self, D: int) -> None:  # noqa: N803
        super().__init__()
        self.D = D


class _Nonlinearity(nn.Module):
    kind: type = nn.ReLU

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = self.kind(*args, **kwargs)

    def forward(self, x: SparseTensor) -> SparseTensor:
        return x.like(self.module(x.F))


_NONLINEARITIES = (
    *("ReLU", "LeakyReLU", "PReLU", "RReLU", "ReLU6", "ELU", "SELU", "CELU", "GELU", "SiLU", "Sigmoid", "LogSigmoid"),
    *("Tanh", "Tanhshrink", "Softmax", "Softmin", "LogSoftmax", "Softplus", "Softshrink", "Softsign", "Hardshrink"),
    *("Hardsigmoid", "Hardtanh", "Hardswish", "Threshold", "Dropout", "AlphaDropout"),
)
for _name in _NONLINEARITIES:
    _fixed = {"kind": getattr(nn, _name), "__module__": __name__, "__doc__": f"torch's {_name}, of the features."}
    globals()[f"Minkowski{_name}"] = type(f"Minkowski{_name}", (_Nonlinearity,), _fixed)
