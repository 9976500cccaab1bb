"""Stand-in for MinkowskiEngine's sparse tensors and for the coordinates that they share."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from voxserve.export.stand_ins import products
from voxserve.verify import sites as site_maths


class SparseTensorQuantizationMode(enum.Enum):
    """How several rows with the same coordinates become one row."""

    RANDOM_SUBSAMPLE = 0
    UNWEIGHTED_AVERAGE = 1
    UNWEIGHTED_SUM = 2
    NO_QUANTIZATION = 3
    MAX_POOL = 4
    SPLAT_LINEAR_INTERPOLATION = 5


class CoordinateMapKey(NamedTuple):
    """Names the coordinates of a sparse tensor in its coordinate manager."""

    stride: tuple[int, ...]  # the tensor stride, in voxels
    name: str = ""

    def get_tensor_stride(self) -> list[int]:
        return list(self.stride)

    def get_coordinate_size(self) -> int:
        return 1 + len(self.stride)

    def get_key(self) -> tuple[list[int], str]:
        return list(self.stride), self.name


class CoordinateManager:
    """Keeps the coordinates of all sparse tensors of a network's run, by their keys."""

    def __init__(self, D: int = 3, **_unused: Any) -> None:  # noqa: N803
        self.D = D
        self.maps: dict[CoordinateMapKey, Any] = {}

    def new_key(self, stride: Sequence[int], coordinates: Any, name: str = "") -> CoordinateMapKey:
        """Keeps coordinates under a new key. Its name gets a mark if there is such a key, as in the library."""
        while (tuple(stride), name) in self.maps:
            name += "'"
        key = CoordinateMapKey(tuple(stride), name)
        self.maps[key] = coordinates
        return key


class Tensor:
    """The operators of SparseTensor, which inherits them from a class of this name in the library too."""

    _F: Any
    _manager: CoordinateManager
    coordinate_map_key: CoordinateMapKey

    F = property(lambda self: self._F)
    features = property(lambda self: self._F)
    C = property(lambda self: self._manager.maps[self.coordinate_map_key])
    coordinates = C
    coordinate_manager = property(lambda self: self._manager)
    coordinate_key = property(lambda self: self.coordinate_map_key)
    tensor_stride = property(lambda self: list(self.coordinate_map_key.stride))
    D = property(lambda self: self._manager.D)
    dimension = D
    shape = property(lambda self: self._F.shape)
    device = property(lambda self: self._F.device)
    dtype = property(lambda self: self._F.dtype)
    requires_grad = property(lambda self: self._F.requires_grad)

    def size(self) -> Any:
        return self._F.size()

    def __len__(self) -> int:
        return len(self._F)

    # Samples

    _batchwise_row_indices = property(lambda self: [self._rows_of(b) for b in self._samples()])
    _sorted_batchwise_row_indices = _batchwise_row_indices
    decomposition_permutations = _batchwise_row_indices
    decomposed_features = property(lambda self: [self.features_at(b) for b in self._samples()])
    decomposed_coordinates = property(lambda self: [self.coordinates_at(b) for b in self._samples()])
    decomposed_coordinates_and_features = property(lambda self: (self.decomposed_coordinates, self.decomposed_features))

    def features_at(self, batch_index: int) -> Any:
        """Returns the rows of a sample."""
        return self._F[self._rows_of(batch_index)]

    def coordinates_at(self, batch_index: int) -> Any:
        """Returns the coordinates of a sample, [N, D], without the column of the sample."""
        return self.C[self._rows_of(batch_index), 1:]

    def coordinates_and_features_at(self, batch_index: int) -> tuple[Any, Any]:
        return self.coordinates_at(batch_index), self.features_at(batch_index)

    def _samples(self) -> range:
        return range(int(self.C[:, 0].max()) + 1)

    def _rows_of(self, sample: int) -> Any:
        return (self.C[:, 0] == sample).nonzero()[:, 0]

    # Arithmetic

    def like(self, features: Any) -> SparseTensor:
        return self.on(self.coordinate_map_key, features)

    def on(self, key: Any, features: Any) -> SparseTensor:
        """Returns a tensor with these features on other coordinates of the same manager."""
        return SparseTensor(features, coordinate_map_key=key, coordinate_manager=self._manager)

    def __iadd__(self, other: Tensor) -> Tensor:
        self._check_same_sites(other, "+=")
        self._F += other.F
        return self

    def __isub__(self, other: Tensor) -> Tensor:
        self._check_same_sites(other, "-=")
        self._F -= other.F
        return self

    def __imul__(self, other: Tensor) -> Tensor:
        self._check_same_sites(other, "*=")
        self._F *= other.F
        return self

    def __add__(self, other: Any) -> SparseTensor:
        return self._combined(other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> SparseTensor:
        return self._combined(other, lambda a, b: a - b)

    def __mul__(self, other: Any) -> SparseTensor:
        return self._combined(other, lambda a, b: a * b)

    def __truediv__(self, other: Any) -> SparseTensor:
        return self._combined(other, lambda a, b: a / b)

    def _combined(self, other: Any, function: Callable[[Any, Any], Any]) -> SparseTensor:
        """Applies a function to the features. On other sites than its own, a tensor counts as 0, but where `other` has
        no site, the result is this tensor's row, whatever the function: so the library computes products.
        """
        if isinstance(other, torch.Tensor):
            return self.like(function(self._F, other))
        if not isinstance(other, Tensor):  # the library asserts it
            raise TypeError(f"a sparse tensor is combined with sparse tensors and torch tensors, not {type(other)}")
        if self.coordinate_map_key == other.coordinate_map_key:
            return self.like(function(self._F, other.F))
        key, (mine, theirs) = _union([self, other])
        y = self._F.new_zeros((len(self._manager.maps[key]), self._F.shape[1]))
        y[mine] = self._F
        y[theirs] = function(y[theirs], other.F)
        return self.on(key, y)

    def _check_same_sites(self, other: Tensor, operator: str) -> None:
        if self.coordinate_map_key != other.coordinate_map_key:
            raise ValueError(f"{operator} needs the same coordinates")


class SparseTensor(Tensor):
    """A sparse tensor. F: the features, [N, C]; C: the coordinates, int32 [N, 1 + D], the sample first."""

    def __init__(
        self,
        features: Any,
        coordinates: Any = None,
        tensor_stride: Any = 1,
        coordinate_map_key: Any = None,
        coordinate_manager: CoordinateManager | None = None,
        quantization_mode: SparseTensorQuantizationMode = SparseTensorQuantizationMode.RANDOM_SUBSAMPLE,
        **_unused: Any,
    ) -> None:
        self._F = features
        if coordinate_map_key is None:
            coordinates = coordinates.floor().int() if coordinates.is_floating_point() else coordinates.int()
            if len(site_maths.unique(coordinates.numpy())) != len(coordinates):
                raise NotImplementedError(
                    "voxserve's stand-in for MinkowskiEngine does not merge equal coordinates: give the example one "
                    "row per voxel, as MinkowskiEngine.utils.sparse_quantize makes them"
                )
            coordinate_manager = coordinate_manager or CoordinateManager(coordinates.shape[1] - 1)
            stride = tuple(products.axes(tensor_stride, coordinate_manager.D))
            coordinate_map_key = coordinate_manager.new_key(stride, coordinates)
        if coordinate_manager is None:
            raise ValueError("a coordinate_map_key needs its coordinate_manager")
        self.coordinate_map_key, self._manager = coordinate_map_key, coordinate_manager
        self.quantization_mode = quantization_mode


def _union(tensors: Sequence[Tensor]) -> tuple[CoordinateMapKey, list[Any]]:
    """Keeps every site that any of the tensors has. Returns the key of these sites, and for each tensor the numbers of
    its rows among them.
    """
    sites = [products.to_sites(x.C) for x in tensors]
    made = site_maths.unique(np.concatenate(sites))
    strides = zip(*(x.coordinate_map_key.stride for x in tensors), strict=True)
    key = tensors[0].coordinate_manager.new_key(tuple(map(min, strides)), torch.from_numpy(made).int(), "merge")
    return key, [torch.from_numpy(site_maths.rows_of(made, at)) for at in sites]


def union(tensors: Sequence[Tensor]) -> SparseTensor:
    """Adds the tensors on every site that any of them has."""
    key, rows = _union(tensors)
    y = tensors[0].F.new_zeros((len(tensors[0].coordinate_manager.maps[key]), tensors[0].F.shape[1]))
    for x, at in zip(tensors, rows, strict=True):
        y.index_add_(0, at, x.F)
    return tensors[0].on(key, y)


def _of_same_sites(function: Callable[[list[Any]], Any]) -> Callable[..., SparseTensor]:
    """Returns a function of tensors with the same coordinates that applies `function` to the list of their features."""

    def applied(*tensors: Any) -> SparseTensor:
        listed = tensors[0] if len(tensors) == 1 else tensors
        if any(x.coordinate_map_key != listed[0].coordinate_map_key for x in listed):
            raise ValueError("the tensors need the same coordinates")
        made: SparseTensor = listed[0].like(function([x.F for x in listed]))
        return made

    return applied


def _mean(features: list[Any]) -> Any:
    return functools.reduce(lambda a, b: a + b, features) / len(features)


cat = _of_same_sites(lambda features: torch.cat(features, dim=1))
sum = _of_same_sites(lambda features: functools.reduce(lambda a, b: a + b, features))  # noqa: A001, the library's name
mean = _of_same_sites(_mean)
