"""Defines the tensors of an answer: the unchanged values of nodes of the model's network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from voxserve import wire
from voxserve.show import texts

TensorType = Literal["float32", "float16"]
_TYPES = {"float32": wire.ELEMENT_TYPE_UNSPECIFIED, "float16": wire.ELEMENT_TYPE_FLOAT16}
_DTYPES = {wire.ELEMENT_TYPE_FLOAT32: "<f4", wire.ELEMENT_TYPE_FLOAT16: "<f2"}


class TensorRows(Enum):
    """The kind of thing that one row of a tensor belongs to."""

    UNKNOWN = 0  # a kind that a newer server may have
    POINTS = 1  # a point; the rows have the order of the points. The row of a point without a voxel is 0
    # A site of a level (Tensor.unit). The order of the rows is not defined; use Tensor.coordinates.
    SITES = 2
    SAMPLES = 3  # the whole cloud: there is one row
    CELLS = 4  # a cell of a dense result, such as a pixel of an image


@dataclass(frozen=True)
class TensorInfo:
    """A tensor that a model can answer with."""

    name: str
    kind: TensorRows
    channels: int
    unit: tuple[float, ...] = ()  # for SITES: as Tensor.unit
    cells: tuple[int, ...] = ()  # for CELLS: the number of cells on each axis


@dataclass(frozen=True)
class Tensor:
    """The values of one tensor for one cloud. They may be NaN or infinite."""

    rows: npt.NDArray[Any]  # float32 or float16 [N, channels]; for CELLS [size of each axis..., channels]
    kind: TensorRows
    # For SITES: [N, axes], the coordinates of each row's site, counted in steps of `unit`. coordinates * unit is the
    # index of a voxel at the network's input.
    coordinates: npt.NDArray[np.int32] | None = None
    unit: tuple[float, ...] = ()  # for SITES: the voxels from one site to the next on each axis (the tensor stride)

    def to_pandas(self) -> Any:
        """Returns a pandas.DataFrame with a row per row: the columns 0, 1, ..., and for SITES before them those of the
        coordinates, axis_0, axis_1, ... ValueError for CELLS; ImportError without pandas.
        """
        from voxserve.show import tables

        return tables.of_tensor(self)

    def __repr__(self) -> str:
        return texts.of_tensor(self)


@dataclass(frozen=True)
class Wanted:
    """The tensors that a request asks for (the arguments outputs and tensor_type of Client.infer)."""

    names: Sequence[str] = ()
    type: TensorType = "float32"

    def __post_init__(self) -> None:
        if isinstance(self.names, str):
            raise ValueError(f"outputs is '{self.names}'; write a list of names")
        if self.type not in _TYPES:
            raise ValueError(f"tensor_type is '{self.type}', must be float32 or float16")

    @property
    def number(self) -> int:
        """Returns the protobuf enum's value of the type."""
        return _TYPES[self.type]


UNNAMED = Wanted()  # names no tensors: the server returns those of a model that has neither labels nor boxes


def read_info(info: wire.TensorInfo) -> TensorInfo:
    """Returns the TensorInfo of a message."""
    return TensorInfo(info.name, _kind_of(info.rows), info.channels, tuple(info.unit), tuple(info.cells))


def read_tensor(tensor: wire.Tensor, num_points: int) -> Tensor:
    """Returns the Tensor of a message. ValueError if the message contradicts itself or the number of points."""
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
