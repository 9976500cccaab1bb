"""The types of what callers pass as points. No library of tensors, tables or point clouds is imported: the types say
which methods an object must have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from voxserve.point_cloud import PointCloud


class HasCloud(Protocol):
    """An object that makes its own cloud, such as voxserve.Voxels."""

    def cloud(self) -> PointCloud:
        """Returns the cloud to send."""


class HasArray(Protocol):
    """An array of another library that NumPy can read, such as JAX's."""

    def __array__(self) -> npt.NDArray[Any]:
        """Returns the values."""


class HasDLPack(Protocol):
    """An array of another library in the host's memory, in the exchange format DLPack."""

    def __dlpack__(self) -> Any:
        """Returns the capsule."""

    def __dlpack_device__(self) -> tuple[Any, int]:
        """Returns the kind and the number of the device."""


class TensorLike(Protocol):
    """A tensor of PyTorch, on any device."""

    def detach(self) -> Any:
        """Returns the tensor without its gradient."""

    def cpu(self) -> Any:
        """Returns the tensor in the host's memory."""


class DataFrameLike(Protocol):
    """A table whose columns have names, of pandas or polars."""

    @property
    def columns(self) -> Any:
        """The names of the columns."""

    def __getitem__(self, name: Any, /) -> Any:
        """Returns a column."""


class ArrowTableLike(Protocol):
    """A table of pyarrow."""

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""

    def __getitem__(self, name: Any, /) -> Any:
        """Returns a column."""


class PointCloud2Like(Protocol):
    """A sensor_msgs/PointCloud2 of ROS 1 or 2."""

    fields: Any
    data: Any
    width: Any
    height: Any
    point_step: Any
    row_step: Any
    is_bigendian: Any


class Open3DLike(Protocol):
    """An open3d.geometry.PointCloud."""

    @property
    def points(self) -> Any:
        """The coordinates, [N, 3]."""

    @property
    def colors(self) -> Any:
        """The colours, [N, 3] of 0 to 1, or none."""


class Open3DTensorLike(Protocol):
    """An open3d.t.geometry.PointCloud."""

    @property
    def point(self) -> Any:
        """The attributes of the points, by name; "positions" is one."""


# A column of a mapping: N values.
Column: TypeAlias = npt.NDArray[Any] | Sequence[float] | HasArray | HasDLPack | TensorLike
# The points of a cloud, in any of the forms that voxserve.Client.infer lists.
PointsLike: TypeAlias = Union[  # the last name is none yet when this module is read
    npt.NDArray[Any],
    Sequence[Sequence[float]],
    Sequence[npt.NDArray[np.generic]],
    Mapping[str, Column],
    HasCloud,
    HasArray,
    HasDLPack,
    TensorLike,
    DataFrameLike,
    ArrowTableLike,
    PointCloud2Like,
    Open3DLike,
    Open3DTensorLike,
    "PointCloud",
]
