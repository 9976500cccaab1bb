"""Tensors of an answer: the values of nodes of the model's network, unchanged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from voxserve import wire

TensorType = Literal["float32", "float16"]
_TYPES = {"float32": wire.ELEMENT_TYPE_UNSPECIFIED, "float16": wire.ELEMENT_TYPE_FLOAT16}
_DTYPES = {wire.ELEMENT_TYPE_FLOAT32: "<f4", wire.ELEMENT_TYPE_FLOAT16: "<f2"}


class TensorRows(Enum):
    """The kind of thing that a tensor's row belongs to."""

    UNKNOWN = 0
    POINTS = 1  # the points, in their order; 0 for points without a voxel
    SITES = 2  # the occupied voxels of a level, in an order that may change: identify them by their coordinates
    SAMPLES = 3  # the whole cloud: one row
    CELLS = 4  # all cells of a dense result: an image's rows and columns


@dataclass(frozen=True)
class TensorInfo:
    """A tensor that a model can answer with."""

    name: str
    kind: TensorRows
    channels: int
    unit: tuple[float, ...] = ()  # as in Tensor
    cells: tuple[int, ...] = ()  # for CELLS: the size of each axis


@dataclass(frozen=True)
class Tensor:
    """A tensor's rows for one cloud. NaN and infinite values are returned unchanged."""

    rows: npt.NDArray[Any]  # float32 or float16 [N, channels]; for CELLS [size of each axis..., channels]
    kind: TensorRows
    coordinates: npt.NDArray[np.int32] | None = None  # for SITES: [N, axes], in units of the level
    # For SITES: the step of a coordinate in voxels, one per axis. coordinates * unit is the index of a voxel.
    unit: tuple[float, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """The tensors that a request asks for."""

    names: Sequence[str] = ()
    type: TensorType = "float32"

    def __post_init__(self) -> None:
        if isinstance(self.names, str):
            raise ValueError(f"outputs is '{self.names}'; write a list of names")
        if self.type not in _TYPES:
            raise ValueError(f"tensor_type is '{self.type}', must be float32 or float16")

    @property
    def number(self) -> int:
        """Returns the wire's number of the type."""
        return _TYPES[self.type]


UNNAMED = Wanted()  # asks for no names, so the server chooses


def read_info(info: wire.TensorInfo) -> TensorInfo:
    """Converts a TensorInfo message."""
    return TensorInfo(info.name, _kind_of(info.rows), info.channels, tuple(info.unit), tuple(info.cells))


def read_tensor(tensor: wire.Tensor, num_points: int) -> Tensor:
    """Converts a Tensor message. ValueError if it contradicts itself or the points."""
    where, kind, shape = f"tensor '{tensor.name}'", _kind_of(tensor.rows), tuple(tensor.shape)
    if tensor.type not in _DTYPES or kind is TensorRows.UNKNOWN:
        raise ValueError(f"{where} of type {tensor.type} and rows {tensor.rows}")
    dtype = np.dtype(_DTYPES[tensor.type])
    if len(shape) < 2 or math.prod(shape) * dtype.itemsize != len(tensor.data):
        raise ValueError(f"{where} has shape {list(shape)} and {len(tensor.data)} bytes")
    if kind is TensorRows.POINTS and shape[0] != num_points:
        raise ValueError(f"{where} has {shape[0]} rows for {num_points} points")
    rows = np.frombuffer(tensor.data, dtype).reshape(shape).copy()
    if kind is not TensorRows.SITES:
        return Tensor(rows, kind)
    axes = len(tensor.unit)
    if not axes or len(tensor.coordinates) != 4 * axes * shape[0]:
        raise ValueError(f"{where} has {len(tensor.coordinates)} bytes of coordinates for {shape[0]} sites")
    coordinates = np.frombuffer(tensor.coordinates, "<i4").reshape(shape[0], axes).copy()
    return Tensor(rows, kind, coordinates, tuple(tensor.unit))


def _kind_of(number: int) -> TensorRows:
    return TensorRows(number) if number in range(5) else TensorRows.UNKNOWN
