"""Stand-in for spconv.pytorch 2.3, with the sites of its convolutions and the storage order of its weights."""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from voxserve.export.stand_ins import products
from voxserve.verify import sites as site_maths


class ConvAlgo(enum.Enum):
    """How spconv computes a layer. Only a maximum depends on it."""

    Native = 0
    MaskImplicitGemm = 1
    MaskSplitImplicitGemm = 2


class SparseConvTensor:
    """A sparse tensor: features [N, C], indices int32 [N, 1 + D], the sample first."""

    def __init__(
        self,
        features: Any,
        indices: Any,
        spatial_shape: Any,
        batch_size: int,
        grid: Any = None,
        voxel_num: Any = None,
        indice_dict: dict[str, Any] | None = None,
        benchmark: bool = False,
    ) -> None:
        if indices.dtype != torch.int32:
            raise ValueError(f"indices are {indices.dtype}, not int32")
        if len(spatial_shape) != indices.shape[1] - 1:
            raise ValueError(f"spatial_shape {list(spatial_shape)} must have {indices.shape[1] - 1} values")
        self._features = features
        self.indices = indices
        self.spatial_shape = [int(v) for v in spatial_shape]
        self.batch_size = batch_size
        self.indice_dict = {} if indice_dict is None else indice_dict
        self.grid, self.voxel_num, self.benchmark = grid, voxel_num, benchmark

    @property
    def features(self) -> Any:
        return self._features

    @features.setter
    def features(self, value: Any) -> None:  # spconv 1 allows it; spconv 2 asks for replace_feature
        self._features = value

    def replace_feature(self, feature: Any) -> SparseConvTensor:
        return SparseConvTensor(
            feature, self.indices, self.spatial_shape, self.batch_size, indice_dict=self.indice_dict
        )

    def shadow_copy(self) -> SparseConvTensor:
        return self.replace_feature(self._features)

    def find_indice_pair(self, key: str | None) -> Any:
        return None if key is None else self.indice_dict.get(key)

    def dense(self, channels_first: bool = True) -> Any:
        shape = [self.batch_size, *self.spatial_shape, self.features.shape[1]]
        cells = self.features.new_zeros(shape)
        cells[tuple(self.indices.long().T)] = self.features
        return cells.movedim(-1, 1).contiguous() if channels_first else cells

    def __add__(self, other: Any) -> SparseConvTensor:
        return self.replace_feature(self.features + (other if isinstance(other, torch.Tensor) else other.features))

    __radd__ = __add__


class SparseModule(nn.Module):
    """The base class of modules that take a SparseConvTensor."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name


class SparseSequential(SparseModule):
    """Runs modules one after another. Sparse modules get the sparse tensor, other modules its features."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        is_ordered = len(args) == 1 and isinstance(args[0], OrderedDict)
        entries = args[0].items() if is_ordered else ((str(i), module) for i, module in enumerate(args))
        for name, module in (*entries, *kwargs.items()):
            self.add_module(name, module)

    def __getitem__(self, index: int) -> Any:
        return list(self._modules.values())[index]

    def __len__(self) -> int:
        return len(self._modules)

    def add(self, module: Any, name: str | None = None) -> None:
        self.add_module(name or str(len(self._modules)), module)

    def forward(self, x: Any) -> Any:
        for module in self._modules.values():
            if isinstance(module, SparseModule) or not isinstance(x, SparseConvTensor):
                x = module(x)
            elif len(x.indices):
                x = x.replace_feature(module(x.features))
        return x


class SparseConvolution(SparseModule):
    """The base of all kinds of convolutions, of which a subclass chooses one."""

    def __init__(
        self,
        ndim: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Any = 3,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        subm: bool = False,
        output_padding: Any = 0,
        transposed: bool = False,
        inverse: bool = False,
        indice_key: str | None = None,
        **_unused: Any,
    ) -> None:
        super().__init__()
        if groups != 1:
            raise ValueError("spconv has no groups")
        self.ndim, self.in_channels, self.out_channels, self.groups = ndim, in_channels, out_channels, groups
        self.kernel_size, self.stride = products.axes(kernel_size, ndim), products.axes(stride, ndim)
        self.padding, self.dilation = products.axes(padding, ndim), products.axes(dilation, ndim)
        self.output_padding = products.axes(output_padding, ndim)
        self.subm, self.transposed, self.inverse, self.indice_key = subm, transposed, inverse, indice_key
        self.conv1x1 = max(self.kernel_size) == 1 and (subm or max(self.stride) == 1)
        self.weight = nn.Parameter(torch.randn(out_channels, *self.kernel_size, in_channels) / in_channels**0.5)
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        if self.conv1x1:  # spconv uses the weight's values in the order in which they are in memory
            y = torch.mm(x.features, self.weight.view(self.in_channels, self.out_channels))
            return x.replace_feature(y if self.bias is None else y + self.bias)
        sites = products.to_sites(x.indices)
        known = x.find_indice_pair(self.indice_key)
        if self.subm:
            if known is not None and known != ("subm", self.kernel_size, self.dilation):
                raise ValueError(f"indice_key '{self.indice_key}' has another kernel: {known}")
            known, shape = ("subm", self.kernel_size, self.dilation), x.spatial_shape
            centre = [d * (k // 2) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            deltas = site_maths.deltas(self.kernel_size, self.dilation, centre)
            kernel_map = site_maths.KernelMap(sites, sites, [1] * self.ndim, deltas)
        elif self.inverse:
            if known is None or known[0] != "conv" or known[1] != self.kernel_size:
                raise ValueError(f"indice_key '{self.indice_key}' is of no convolution with kernel {self.kernel_size}")
            _, _, strided, shape = known
            kernel_map = replace(strided, is_onto_fine=True)
        elif self.transposed:
            sizes = zip(x.spatial_shape, self.stride, self.padding, self.kernel_size, self.output_padding, strict=True)
            known, shape = ("transposed",), [(n - 1) * s - 2 * p + k + e for n, s, p, k, e in sizes]
            deltas = site_maths.deltas(self.kernel_size, self.dilation, self.padding)
            fine = site_maths.within(site_maths.reached(sites, self.stride, deltas), shape)
            kernel_map = site_maths.KernelMap(fine, sites, self.stride, deltas, is_onto_fine=True)
        else:
            kernel_map, shape = _strided(self, x)
            known = ("conv", self.kernel_size, kernel_map, x.spatial_shape)
        cells = self.weight.reshape(self.out_channels, -1, self.in_channels).permute(1, 2, 0)
        y = products.convolve(x.features, cells, kernel_map)
        return _made(x, y if self.bias is None else y + self.bias, kernel_map.targets, shape, self, known)


class SparsePool(SparseModule):
    """The base of the pools, over the input sites in the kernel. The average divides by the number of these sites. The
    maximum begins at 0 with the Native algorithm, and not with the others (spconv 2.3.8, spconv/pytorch/ops.py,
    indice_maxpool, and spconv/csrc/sparse/maxpool.py, forward_implicit_gemm_kernel); pool.py makes Native the default
    for kernels of more than 128 cells, as here, and in spconv's CPU build.
    """

    reduce = "amax"

    def __init__(
        self,
        ndim: int,
        kernel_size: Any = 3,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        indice_key: str | None = None,
        subm: bool = False,
        algo: ConvAlgo | None = None,
        **_unused: Any,
    ) -> None:
        super().__init__()
        self.ndim, self.kernel_size = ndim, products.axes(kernel_size, ndim)
        self.stride = products.axes(kernel_size if stride is None else stride, ndim)
        self.padding, self.dilation = products.axes(padding, ndim), products.axes(dilation, ndim)
        self.subm, self.indice_key = subm, indice_key
        is_large = math.prod(self.kernel_size) > 128
        self.algo = algo or (ConvAlgo.Native if is_large else ConvAlgo.MaskImplicitGemm)
        if subm:
            raise NotImplementedError("voxserve's stand-in has no submanifold pool")

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        kernel_map, shape = _strided(self, x)
        y = products.pool(x.features, self.reduce, kernel_map)
        known = ("conv", self.kernel_size, kernel_map, x.spatial_shape)
        if self.reduce == "amax" and self.algo is ConvAlgo.Native:
            y = y.clamp(min=0)
        return _made(x, y, kernel_map.targets, shape, self, known)


class SparseMaxPool(SparsePool):
    """spconv's SparseMaxPool."""


class SparseAvgPool(SparsePool):
    """spconv's SparseAvgPool."""

    reduce = "mean"


class SparseGlobalMaxPool(SparseModule):
    """Returns the maximum of each sample's rows: [batch_size, C]."""

    def forward(self, x: SparseConvTensor) -> Any:
        return products.samples_of(x.features, x.indices[:, 0], "amax", x.batch_size)


class ToDense(SparseModule):
    """Returns the dense tensor [batch_size, C, *spatial_shape], with 0 in cells without a site."""

    def forward(self, x: SparseConvTensor) -> Any:
        return x.dense()


class RemoveGrid(SparseModule):
    """Drops spconv's lookup grid, which only saves time."""

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        x.grid = None
        return x


class Identity(nn.Module):
    """Returns its input."""

    def forward(self, x: Any) -> Any:
        return x


class _OfFeatures:
    def forward(self, x: Any) -> Any:
        if isinstance(x, SparseConvTensor):
            return x.replace_feature(super().forward(x.features))  # type: ignore[misc]
        return super().forward(x)  # type: ignore[misc]


class SparseBatchNorm(_OfFeatures, nn.BatchNorm1d):
    """Applies torch's function to the features."""


class SparseReLU(_OfFeatures, nn.ReLU):
    """Applies torch's function to the features."""


class SparseIdentity(_OfFeatures, nn.Identity):
    """Applies torch's function to the features."""


class ConcatTable(SparseModule):
    """Returns a list of each module's result."""

    def add(self, module: Any) -> ConcatTable:
        self._modules[str(len(self._modules))] = module
        return self

    def forward(self, x: Any) -> list[Any]:
        return [module(x) for module in self._modules.values() if module is not None]


class AddTable(SparseModule):
    """Adds tensors on the same sites."""

    def forward(self, inputs: list[SparseConvTensor]) -> SparseConvTensor:
        total = inputs[0].features
        for x in inputs[1:]:
            total = total + x.features
        return inputs[0].replace_feature(total)


class JoinTable(SparseModule):
    """Concatenates the channels of tensors on the same sites."""

    def forward(self, inputs: list[SparseConvTensor]) -> SparseConvTensor:
        return inputs[0].replace_feature(torch.cat([x.features for x in inputs], 1))


def _made(x: Any, features: Any, sites: Any, shape: list[int], module: Any, known: Any) -> SparseConvTensor:
    kept = dict(x.indice_dict)
    if module.indice_key is not None and not getattr(module, "inverse", False):
        kept[module.indice_key] = known
    same = sites.shape == tuple(x.indices.shape) and (sites == x.indices.numpy()).all()
    indices = x.indices if same else torch.from_numpy(sites.astype(np.int32))
    return SparseConvTensor(features, indices, shape, x.batch_size, indice_dict=kept)


def _strided(module: Any, x: SparseConvTensor) -> tuple[site_maths.KernelMap, list[int]]:
    """Returns the kernel map of a strided layer, and the spatial shape of its output."""
    sizes = zip(x.spatial_shape, module.padding, module.dilation, module.kernel_size, module.stride, strict=True)
    shape = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in sizes]
    sites, deltas = products.to_sites(x.indices), site_maths.deltas(module.kernel_size, module.dilation, module.padding)
    coarse = site_maths.within(site_maths.reaching(sites, module.stride, deltas), shape)
    return site_maths.KernelMap(sites, coarse, module.stride, deltas), shape


def _class(name: str, base: type, ndim: int, names: tuple[str, ...], **fixed: Any) -> type:
    """Returns a subclass of `base` with spconv's name. names: its positional arguments; fixed: arguments with fixed
    values.
    """

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        base.__init__(self, ndim, **{**dict(zip(names, args, strict=False)), **kwargs, **fixed})  # type: ignore[misc]

    return type(name, (base,), {"__init__": __init__, "__module__": __name__, "__doc__": f"spconv's {name}."})


_CONV = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "bias", "indice_key")
_INVERSE = ("in_channels", "out_channels", "kernel_size", "indice_key", "bias")
_POOL = ("kernel_size", "stride", "padding", "dilation", "indice_key")
for _d in (1, 2, 3, 4):
    for _name, _base, _names, _fixed in (
        ("SubMConv", SparseConvolution, _CONV, {"subm": True}),
        ("SparseConv", SparseConvolution, _CONV, {}),
        ("SparseConvTranspose", SparseConvolution, _CONV, {"transposed": True}),
        ("SparseInverseConv", SparseConvolution, _INVERSE, {"inverse": True}),
        ("SparseMaxPool", SparseMaxPool, _POOL, {}),
        ("SparseAvgPool", SparseAvgPool, _POOL, {}),
    ):
        globals()[f"{_name}{_d}d"] = _class(f"{_name}{_d}d", _base, _d, _names, **_fixed)
