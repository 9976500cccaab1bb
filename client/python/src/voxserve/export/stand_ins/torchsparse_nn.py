"""Stand-in for torchsparse.nn 2.1. Kernels with an odd number of cells have the first axis fastest, others the last."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from voxserve.export.stand_ins import products
from voxserve.export.stand_ins.torchsparse_tensor import SparseTensor
from voxserve.verify import sites as site_maths


def make_ntuple(value: Any, ndim: int) -> tuple[int, ...]:
    return tuple(products.axes(value, ndim))


def fapply(x: SparseTensor, function: Callable[..., Any], *args: Any, **kwargs: Any) -> SparseTensor:
    return x.like(function(x.feats, *args, **kwargs))


class Conv3d(nn.Module):
    """A convolution, or a transposed one. kernel: [K, Cin, Cout], or [Cin, Cout] for one cell without a stride."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any = 3,
        stride: Any = 1,
        padding: Any = 0,
        dilation: int = 1,
        bias: bool = False,
        transposed: bool = False,
        generative: bool = False,
        config: Any = None,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.dilation = in_channels, out_channels, dilation
        self.kernel_size, self.stride = make_ntuple(kernel_size, 3), make_ntuple(stride, 3)
        self.padding = tuple(
            (k - 1) // 2 if k % 2 and s == 1 else p
            for k, s, p in zip(self.kernel_size, self.stride, make_ntuple(padding, 3), strict=True)
        )
        self.transposed, self.generative = transposed, generative
        self.kernel_volume = math.prod(self.kernel_size)
        self.is_matrix = self.kernel_volume == 1 and max(self.stride) == 1
        shape = (in_channels, out_channels)
        self.kernel = nn.Parameter(
            torch.randn(shape if self.is_matrix else (self.kernel_volume, *shape))
            / (in_channels * self.kernel_volume) ** 0.5
        )
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def forward(self, x: SparseTensor) -> SparseTensor:
        if self.is_matrix:
            y = x.feats.matmul(self.kernel)
            return x.like(y if self.bias is None else y + self.bias)
        is_plain = all(k % 2 == 1 or s > 1 for k, s in zip(self.kernel_size, self.stride, strict=True))
        if self.generative or self.dilation != 1 or not is_plain:
            raise NotImplementedError(
                "voxserve's stand-in for torchsparse has no generative convolutions, dilation, or even kernels without "
                "a stride"
            )
        finer = tuple(a // s for a, s in zip(x.stride, self.stride, strict=True))
        x._caches.cmaps.setdefault(x.stride, (x.coords, x.spatial_range))
        here, spatial_range = products.to_sites(x.coords), x.spatial_range
        if self.transposed:
            deltas = x._caches.kmaps.get((finer, self.kernel_size, self.stride))
            if deltas is None:
                raise ValueError("a transposed convolution needs the map of a strided one")
            (coords, spatial_range), unit = x._caches.cmaps[finer], finer
            kernel_map = site_maths.KernelMap(products.to_sites(coords), here, self.stride, deltas, is_onto_fine=True)
        else:
            deltas = x._caches.kmaps.setdefault((x.stride, self.kernel_size, self.stride), self._deltas())
            coords, coarse, unit = x.coords, here, tuple(a * s for a, s in zip(x.stride, self.stride, strict=True))
            if max(self.stride) > 1:
                coarse, spatial_range = self._strided_sites(here, x.spatial_range, deltas)
                coords = torch.from_numpy(coarse.astype(np.int32))
            kernel_map = site_maths.KernelMap(here, coarse, self.stride, deltas)
        y = products.convolve(x.feats, self.kernel, kernel_map)
        made = SparseTensor(y if self.bias is None else y + self.bias, coords, unit, spatial_range)
        made._caches = x._caches
        made._caches.cmaps.setdefault(unit, (coords, spatial_range))
        return made

    def _strided_sites(
        self, here: site_maths.Sites, spatial_range: Any, deltas: list[tuple[int, ...]]
    ) -> tuple[site_maths.Sites, Any]:
        """Returns the sites and the spatial_range of the result.

        The library makes no sites beyond the spatial_range or, without one, beyond the batch's largest coordinates.
        Without a spatial_range, kernels as large as their stride have no such limit here, as with the library's
        kmap_mode "hashmap".
        """
        is_whole = self.kernel_size == self.stride and not any(self.padding)
        if spatial_range is None and is_whole:
            return site_maths.floored(here, self.stride), None
        cells = here[:, 1:].max(axis=0) + 1 if spatial_range is None else spatial_range[1:]
        sizes = zip(map(int, cells), self.kernel_size, self.stride, self.padding, strict=True)
        shape = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in sizes)
        coarse = site_maths.within(site_maths.reaching(here, self.stride, deltas), shape)
        return coarse, None if spatial_range is None else (*spatial_range[:1], *shape)

    def _deltas(self) -> list[tuple[int, ...]]:
        ones = (1, 1, 1)
        if self.kernel_volume % 2 == 0:
            return site_maths.deltas(self.kernel_size, ones, self.padding)
        backwards = site_maths.deltas(self.kernel_size[::-1], ones, self.padding[::-1])
        return [delta[::-1] for delta in backwards]


class BatchNorm(nn.BatchNorm1d):
    """Applies torch's function to the features."""

    def forward(self, x: SparseTensor) -> SparseTensor:
        return fapply(x, super().forward)


class GroupNorm(nn.GroupNorm):
    """Applies torch's function to the features of each sample."""

    def forward(self, x: SparseTensor) -> SparseTensor:
        y = torch.zeros_like(x.feats)
        for sample in x.coords[:, 0].unique():
            at = x.coords[:, 0] == sample
            y[at] = super().forward(x.feats[at].T[None])[0].T
        return x.like(y)


class ReLU(nn.ReLU):
    """Applies torch's function to the features."""

    def forward(self, x: SparseTensor) -> SparseTensor:
        return fapply(x, super().forward)


class LeakyReLU(nn.LeakyReLU):
    """Applies torch's function to the features."""

    def forward(self, x: SparseTensor) -> SparseTensor:
        return fapply(x, super().forward)


class SiLU(nn.SiLU):
    """Applies torch's function to the features."""

    def forward(self, x: SparseTensor) -> SparseTensor:
        return fapply(x, super().forward)


class GlobalAvgPool(nn.Module):
    """Returns the average of each sample's rows: [samples, C]."""

    def forward(self, x: SparseTensor) -> Any:
        return products.samples_of(x.feats, x.coords[:, 0], "mean", int(x.coords[:, 0].max()) + 1)


class GlobalMaxPool(nn.Module):
    """Returns the maximum of each sample's rows: [samples, C]."""

    def forward(self, x: SparseTensor) -> Any:
        return products.samples_of(x.feats, x.coords[:, 0], "amax", int(x.coords[:, 0].max()) + 1)


def relu(x: SparseTensor, inplace: bool = True) -> SparseTensor:
    """Applies torch's function to the features."""
    return fapply(x, nn.functional.relu, inplace=inplace)


def silu(x: SparseTensor, inplace: bool = True) -> SparseTensor:
    """Applies torch's function to the features."""
    return fapply(x, nn.functional.silu, inplace=inplace)


def leaky_relu(x: SparseTensor, negative_slope: float = 0.1, inplace: bool = True) -> SparseTensor:
    """Applies torch's function, with torchsparse's slope, to the features."""
    return fapply(x, nn.functional.leaky_relu, negative_slope=negative_slope, inplace=inplace)
