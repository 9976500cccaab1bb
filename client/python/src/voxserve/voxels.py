"""Sends voxels, as training code has them, instead of points: integer coordinates and features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.arrays import array_of
from voxserve.point_cloud import PointCloud
from voxserve.show import texts

AXES = ("x", "y", "z", "t")
# The bits of all coordinates in the server's key of a voxel. The axes share them equally, at most 32 bits each.
_KEY_BITS = 54
_MAX_FIELDS = 256  # the server's limit for a cloud
_MARGIN = 128  # cells that the server keeps free at both ends of an axis
_EXACT = 1 << 24  # float32, in which the server computes voxels, holds all integers up to this one exactly


@dataclass(frozen=True, eq=False)
class Voxels:
    """The voxels of one cloud. Methods that take points also take Voxels. The model must be one that reads voxels, such
    as a model that voxserve.export.from_torch made without `points`: its node voxelize has voxel size 1 and origin 0,
    and reads the features f0, f1, ...

    coordinates: [N, 1 to 4] integers, one column per axis in the model's order (x, y, z, t). They may be negative. No
        voxel may appear twice.
    features: [N, C] numbers, which are sent as float32. The number of axes and C together are at most 256.

    cloud(), and so a call with Voxels, raises ValueError if a shape or type is wrong, if a coordinate is not an integer
    or is out of the server's range (-130,944 to 130,943 with 3 axes, -3,968 to 3,967 with 4), if a voxel appears
    twice, or if a feature is not finite in float32.
    """

    coordinates: npt.ArrayLike
    features: npt.ArrayLike

    def __repr__(self) -> str:
        coordinates, features = texts.shape_of(array_of(self.coordinates)), texts.shape_of(array_of(self.features))
        return f"<Voxels of coordinates {coordinates}, features {features}>"

    def cloud(self) -> PointCloud:
        """Returns a cloud with one point per voxel. Its fields are the int32 coordinates x, y, z, t (as many as there
        are axes), then the float32 features f0, f1, ...
        """
        coordinates, features = _integers(self.coordinates), array_of(self.features)
        if features.ndim != 2 or len(features) != len(coordinates):
            raise ValueError(f"features have shape {features.shape}; ({len(coordinates)}, channels) is needed")
        if coordinates.shape[1] + features.shape[1] > _MAX_FIELDS:
            counts = f"{coordinates.shape[1]} axes and {features.shape[1]} features"
            raise ValueError(f"{counts}; a cloud has {_MAX_FIELDS} fields at most")
        if not np.issubdtype(features.dtype, np.number) or np.iscomplexobj(features):
            raise ValueError(f"features are {features.dtype}; real numbers are needed")
        with np.errstate(over="ignore"):
            values = features.astype(np.float32)
        if not np.isfinite(values).all():
            raise ValueError("features are not all finite in float32")
        columns: dict[str, npt.NDArray[Any]] = dict(zip(AXES, coordinates.T, strict=False))
        columns |= {f"f{i}": column for i, column in enumerate(values.T)}
        return PointCloud.from_columns(columns)


def _integers(values: npt.ArrayLike) -> npt.NDArray[np.int32]:
    given: npt.NDArray[np.generic] = array_of(values)
    if given.ndim != 2 or not 1 <= given.shape[1] <= len(AXES):
        raise ValueError(f"coordinates have shape {given.shape}; (N, 1 to {len(AXES)} axes) is needed")
    if given.dtype.kind not in "iuf":
        raise ValueError(f"coordinates are {given.dtype}; integers are needed")
    half = 1 << (min(32, _KEY_BITS // given.shape[1]) - 1)
    lowest, highest = max(-half + _MARGIN, -_EXACT), min(half - 1 - _MARGIN, _EXACT)
    for value in given.min(initial=0), given.max(initial=0):
        if not lowest <= value <= highest:  # false for NaN
            raise ValueError(f"coordinate {value} is not within {lowest} to {highest}")
    coordinates = given.astype(np.int32)
    if (coordinates != given).any():
        raise ValueError("coordinates are not all integers")
    if len(np.unique(coordinates, axis=0)) != len(coordinates):
        raise ValueError("a site appears twice in the coordinates")
    return coordinates
