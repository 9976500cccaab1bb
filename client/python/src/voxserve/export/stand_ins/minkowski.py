"""Stand-in for MinkowskiEngine 0.5: coordinates in units of the tensor stride, kernels with the first axis fastest."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from voxserve.export.stand_ins import products
from voxserve.export.stand_ins.minkowski_norms import (  # noqa: F401, the library has them all in one module
    MinkowskiBatchNorm,
    MinkowskiInstanceNorm,
    MinkowskiLinear,
    MinkowskiStableInstanceNorm,
    MinkowskiSyncBatchNorm,
)
from voxserve.verify import sites as site_maths


class RegionType(enum.Enum):
    """The shape of a kernel."""

    HYPER_CUBE = 0
    HYPER_CROSS = 1
    CUSTOM = 2


class CoordinateManager:
    """Keeps the coordinates of all sparse tensors of a network's run, by their keys (tensor stride, name)."""

    def __init__(self, D: int = 3, **_unused: Any) -> None:  # noqa: N803
        self.D = D
        self.maps: dict[Any, Any] = {}

    def new_key(self, stride: tuple[int, ...], coordinates: Any, name: str = "") -> Any:
        while (stride, name) in self.maps:
            name += "'"
        self.maps[stride, name] = coordinates
        return (stride, name)


class Tensor:
    """The operators of SparseTensor, which inherits them from a class of this name in the library too."""

    _F: Any
    _manager: CoordinateManager
    coordinate_map_key: Any

    F = property(lambda self: self._F)
    features = property(lambda self: self._F)
    C = property(lambda self: self._manager.maps[self.coordinate_map_key])
    coordinates = C
    coordinate_manager = property(lambda self: self._manager)
    tensor_stride = property(lambda self: list(self.coordinate_map_key[0]))
    D = property(lambda self: self._manager.D)
    shape = property(lambda self: self._F.shape)
    device = property(lambda self: self._F.device)
    dtype = property(lambda self: self._F.dtype)

    def size(self) -> Any:
        return self._F.size()

    def features_at(self, batch_index: int) -> Any:
        """Returns the rows of a sample."""
        return self._F[self._rows_of(batch_index)]

    def coordinates_at(self, batch_index: int) -> Any:
        """Returns the coordinates of a sample, [N, D], without the column of the sample."""
        return self.C[self._rows_of(batch_index), 1:]

    decomposed_features = property(lambda self: [self.features_at(b) for b in self._samples()])
    decomposed_coordinates = property(lambda self: [self.coordinates_at(b) for b in self._samples()])
    decomposed_coordinates_and_features = property(lambda self: (self.decomposed_coordinates, self.decomposed_features))

    def _samples(self) -> range:
        return range(int(self.C[:, 0].max()) + 1)

    def _rows_of(self, sample: int) -> Any:
        return (self.C[:, 0] == sample).nonzero()[:, 0]

    def __len__(self) -> int:
        return len(self._F)

    def like(self, features: Any) -> SparseTensor:
        return self.on(self.coordinate_map_key, features)

    def on(self, key: Any, features: Any) -> SparseTensor:
        """Returns a tensor with these features on other coordinates of the same manager."""
        return SparseTensor(features, coordinate_map_key=key, coordinate_manager=self._manager)

    def __iadd__(self, other: Tensor) -> Tensor:
        if self.coordinate_map_key != other.coordinate_map_key:
            raise ValueError("+= needs the same coordinates")
        self._F += other.F
        return self

    def __add__(self, other: Any) -> SparseTensor:
        if isinstance(other, torch.Tensor):
            return self.like(self._F + other)
        if self.coordinate_map_key == other.coordinate_map_key:
            return self.like(self._F + other.F)
        return union([self, other])

    def __mul__(self, other: Any) -> SparseTensor:
        if isinstance(other, SparseTensor) and self.coordinate_map_key != other.coordinate_map_key:
            raise NotImplementedError("voxserve's stand-in multiplies tensors with the same coordinates")
        return self.like(self._F * (other if isinstance(other, torch.Tensor) else other.F))


class SparseTensor(Tensor):
    """A sparse tensor. F: the features, [N, C]; C: the coordinates, int32 [N, 1 + D], the sample first."""

    def __init__(
        self,
        features: Any,
        coordinates: Any = None,
        tensor_stride: Any = 1,
        coordinate_map_key: Any = None,
        coordinate_manager: CoordinateManager | None = None,
        **_unused: Any,
    ) -> None:
        self._F = features
        if coordinate_map_key is None:
            coordinates = coordinates.int()
            if len(site_maths.unique(coordinates.numpy())) != len(coordinates):
                raise NotImplementedError("voxserve's stand-in for MinkowskiEngine does not merge equal coordinates")
            coordinate_manager = coordinate_manager or CoordinateManager(coordinates.shape[1] - 1)
            stride = tuple(products.axes(tensor_stride, coordinate_manager.D))
            coordinate_map_key = coordinate_manager.new_key(stride, coordinates)
        if coordinate_manager is None:
            raise ValueError("a coordinate_map_key needs its coordinate_manager")
        self.coordinate_map_key, self._manager = coordinate_map_key, coordinate_manager


def union(tensors: Sequence[Tensor]) -> SparseTensor:
    """Adds the tensors on every site that any of them has."""
    sites = [products.to_sites(x.C) for x in tensors]
    made = site_maths.unique(np.concatenate(sites))
    y = tensors[0].F.new_zeros((len(made), tensors[0].F.shape[1]))
    for x, at in zip(tensors, sites, strict=True):
        y.index_add_(0, torch.from_numpy(site_maths.rows_of(made, at)), x.F)
    manager = tensors[0].coordinate_manager
    key = manager.new_key(tensors[0].coordinate_map_key[0], torch.from_numpy(made).int(), "union")
    return tensors[0].on(key, y)


def cat(*tensors: Any) -> SparseTensor:
    """Concatenates the channels of tensors with the same coordinates."""
    listed = tensors[0] if len(tensors) == 1 else tensors
    if any(x.coordinate_map_key != listed[0].coordinate_map_key for x in listed):
        raise ValueError("cat needs the same coordinates")
    made: SparseTensor = listed[0].like(torch.cat([x.F for x in listed], dim=1))
    return made


class KernelGenerator:
    """Lists a kernel's cells."""

    def __init__(
        self,
        kernel_size: Any = -1,
        stride: Any = 1,
        dilation: Any = 1,
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
        self.region_offsets = region_offsets
        self.cells = self._cells()
        self.kernel_volume = len(self.cells)
        self.requires_strided_coordinates = max(self.kernel_stride) == 1

    def _cells(self) -> list[tuple[int, ...]]:
        if self.region_type is RegionType.CUSTOM:
            return [tuple(int(v) for v in offset) for offset in self.region_offsets]
        if self.region_type is RegionType.HYPER_CROSS:
            cells = [(0,) * self.dimension]
            for axis, size in enumerate(self.kernel_size):
                for step in (*range(1, size // 2 + 1), *range(-(size // 2), 0)):
                    cells.append(tuple(step if i == axis else 0 for i in range(self.dimension)))
            return cells
        last_axis_fastest = site_maths.deltas(self.kernel_size[::-1], [1] * self.dimension)
        return [cell[::-1] for cell in last_axis_fastest]

    def deltas(self) -> list[tuple[int, ...]]:
        return [tuple(d * c for d, c in zip(self.kernel_dilation, cell, strict=True)) for cell in self.cells]


class _Layer(nn.Module):
    """A layer that has a kernel generator, and maps sites to sites."""

    kernel_generator: KernelGenerator
    is_transpose = False
    is_generative = False

    def place(self, x: SparseTensor, coordinates: Any = None) -> tuple[Any, site_maths.KernelMap]:
        """Returns the key of the output's coordinates, and the kernel map, whose coordinates are in voxels."""
        generator, manager = self.kernel_generator, x.coordinate_manager
        unit, name = x.coordinate_map_key
        here, strides, ones = products.to_sites(x.C), generator.kernel_stride, [1] * x.D
        onto_fine = self.is_transpose or generator.expand_coordinates
        if onto_fine:
            fine_unit = tuple(u // s for u, s in zip(unit, strides, strict=True))
            deltas = [tuple(u * d for u, d in zip(fine_unit, delta, strict=True)) for delta in generator.deltas()]
            if coordinates is not None:
                key = coordinates.coordinate_map_key if isinstance(coordinates, SparseTensor) else coordinates
            elif (fine_unit, name) in manager.maps and not (self.is_generative or generator.expand_coordinates):
                key = (fine_unit, name)
            else:
                made = site_maths.reached(here, ones, deltas)
                key = manager.new_key(fine_unit, torch.from_numpy(made).int(), name)
            return key, site_maths.KernelMap(products.to_sites(manager.maps[key]), here, ones, deltas, onto_fine)
        deltas = [tuple(u * d for u, d in zip(unit, delta, strict=True)) for delta in generator.deltas()]
        coarse_unit = tuple(u * s for u, s in zip(unit, strides, strict=True))
        key = (coarse_unit, name)
        if coordinates is not None:
            key = coordinates.coordinate_map_key if isinstance(coordinates, SparseTensor) else coordinates
        elif key not in manager.maps:
            made = site_maths.floored(here, coarse_unit)
            made[:, 1:] *= np.array(coarse_unit)
            manager.maps[key] = torch.from_numpy(made).int()
        return key, site_maths.KernelMap(here, products.to_sites(manager.maps[key]), ones, deltas)


class MinkowskiConvolutionBase(_Layer):
    """The base of the convolutions. kernel: [K, Cin, Cout], or [Cin, Cout] for one cell without a stride; bias: [1,
    Cout].
    """

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
            key, kernel_map = self.place(x, coordinates)
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
        return x.on(key, products.pool(x.F, self.reduce, kernel_map))


class MinkowskiAvgPooling(MinkowskiPoolingBase):
    """Averages the rows of the input sites in the kernel."""


class MinkowskiSumPooling(MinkowskiPoolingBase):
    """Adds the rows of the input sites in the kernel."""

    reduce = "sum"


class MinkowskiMaxPooling(MinkowskiPoolingBase):
    """Takes the maximum of the rows of the input sites in the kernel."""

    reduce = "amax"


class MinkowskiPoolingTranspose(MinkowskiPoolingBase):
    """An unpool onto finer coordinates: averages the rows of the coarse sites that a fine site contributed to."""

    is_transpose = True


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
