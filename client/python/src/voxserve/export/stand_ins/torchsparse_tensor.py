"""Stand-in for torchsparse 2.1: coordinates [N, 4] with the sample first, in units of the tensor's stride."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from voxserve.export.stand_ins import products


class SparseTensor:
    """A sparse tensor: feats [N, C], coords int32 [N, 4]. spatial_range: the number of samples, then the number of
    cells on each axis.
    """

    def __init__(self, feats: Any, coords: Any, stride: Any = 1, spatial_range: Any = None) -> None:
        self.feats, self.coords = feats, coords
        self.stride = tuple(products.axes(stride, 3))
        self.spatial_range = None if spatial_range is None else tuple(spatial_range)
        self._caches = SimpleNamespace(cmaps={}, kmaps={})

    F = property(lambda self: self.feats, lambda self, value: setattr(self, "feats", value))
    C = property(lambda self: self.coords, lambda self, value: setattr(self, "coords", value))
    s = property(lambda self: self.stride)

    def to(self, *_device: Any, **_named: Any) -> SparseTensor:
        """Returns the tensor, since the stand-in computes on the CPU."""
        return self

    cuda = cpu = to

    def like(self, feats: Any) -> SparseTensor:
        made = SparseTensor(feats, self.coords, self.stride, self.spatial_range)
        made._caches = self._caches
        return made

    def __add__(self, other: SparseTensor) -> SparseTensor:
        return self.like(self.feats + other.feats)


def cat(inputs: list[SparseTensor]) -> SparseTensor:
    """Concatenates the channels of tensors. As in the library, the result has no spatial_range."""
    made = inputs[0].like(torch.cat([x.feats for x in inputs], dim=1))
    made.spatial_range = None
    return made
