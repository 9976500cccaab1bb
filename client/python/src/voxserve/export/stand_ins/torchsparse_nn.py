"""Stand-in for torchsparse.nn 2.1. Kernels of odd volume run the first axis fastest, others the last."""

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
    """kernel [K, Cin, Cout], or [Cin, Cout] of one cell without a stride."""

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
        is_plain = all(
            k % 2 == 1 if s == 1 else k == s == 2 for k, s in zip(self.kernel_size, self.stride, strict=True)
        )
        if self.generative or self.dilation != 1 or not is_plain:
            raise NotImplementedError(
                "voxserve's stand-in for torchsparse has odd kernels without a stride and kernels of 2 with stride 2"
            )
        finer = tuple(a // s for a, s in zip(x.stride, self.stride, strict=True))
        coarser = tuple(a * s for a, s in zip(x.stride, self.stride, strict=True))
        x._caches.cmaps.setdefault(x.stride, x.coords)
        here, deltas = products.to_sites(x.coords), self._deltas()
        if self.transposed:
            if (finer, self.kernel_size, self.stride) not in x._caches.kmaps:
                raise ValueError("a transposed convolution needs the map of a strided one")
            coords, unit = x._caches.cmaps[finer], finer
            kernel_map = site_maths.KernelMap(products.to_sites(coords), here, self.stride, deltas, is_onto_fine=True)
        else:
            x._caches.kmaps[x.stride, self.kernel_size, self.stride] = True
            coords, coarse, unit = x.coords, here, coarser
            if max(self.stride) > 1:
                coarse = site_maths.floored(here, self.stride)
                coords = torch.from_numpy(coarse.astype(np.int32))
            kernel_map = site_maths.KernelMap(here, coarse, self.stride, deltas)
        y = products.convolve(x.feats, self.kernel, kernel_map)
        made = SparseTensor(y if self.bias is None else y + self.bias, coords, unit)
        made._caches = x._caches
        made._caches.cmaps.setdefault(unit, coords)
        return made

    def _deltas(self) -> list[tuple[int, ...]]:
        if self.kernel_volume % 2 == 0:
            return site_maths.deltas(self.kernel_size, (1, 1, 1))
        return [delta[::-1] for delta in site_maths.deltas(self.kernel_size[::-1], (1, 1, 1))]


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
    """[samples, C]."""

    def forward(self, x: SparseTensor) -> Any:
        return products.samples_of(x.feats, x.coords[:, 0], "mean", int(x.coords[:, 0].max()) + 1)


class GlobalMaxPool(nn.Module):
    """[samples, C]."""

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
