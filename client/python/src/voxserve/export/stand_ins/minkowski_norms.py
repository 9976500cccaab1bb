"""Stand-ins for MinkowskiEngine's norms and its linear layer, which do not depend on coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from voxserve.export.stand_ins.minkowski_tensor import SparseTensor


class MinkowskiBatchNorm(nn.Module):
    """Applies torch's function to the features."""

    def __init__(self, num_features: int, **kwargs: Any) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(num_features, **kwargs)

    def forward(self, x: SparseTensor) -> SparseTensor:
        return x.like(self.bn(x.F))


class MinkowskiSyncBatchNorm(MinkowskiBatchNorm):
    """Equals MinkowskiBatchNorm, since there is one process."""


class MinkowskiInstanceNorm(nn.Module):
    """Normalizes each channel of each sample by its own mean and variance, with an epsilon of 1e-8."""

    epsilon = 1e-8

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, num_features))
        self.bias = nn.Parameter(torch.zeros(1, num_features))

    def forward(self, x: SparseTensor) -> SparseTensor:
        y = torch.zeros_like(x.F)
        for sample in x.C[:, 0].unique():
            at = x.C[:, 0] == sample
            centred = x.F[at] - x.F[at].mean(0)
            y[at] = centred / ((centred**2).mean(0) + self.epsilon).sqrt()
        return x.like(y * self.weight + self.bias)


class MinkowskiStableInstanceNorm(MinkowskiInstanceNorm):
    """Equals MinkowskiInstanceNorm with an epsilon of 1e-6."""

    epsilon = 1e-6


class MinkowskiLinear(nn.Module):
    """Applies torch's function to the features."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)

    def forward(self, x: SparseTensor) -> SparseTensor:
        return x.like(self.linear(x.F))
