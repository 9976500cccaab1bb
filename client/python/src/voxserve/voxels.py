"""Voxels as training code has them: integer coordinates and features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from voxserve.point_cloud import PointCloud

AXES = ("x", "y", "z", "t")
_KEY_BITS = 54  # of a server's key, divided equally among the axes, at most 32 bits each
_MAX_FIELDS = 256  # the server's limit for a cloud
_MARGIN = 128  # cells that the server keeps free at both ends
_EXACT = 1 << 24  # limit of exact integers in float32, which the server computes voxels with


@dataclass(frozen=True, eq=False)
class Voxels:
    """One sample's voxels, accepted wherever points are. The model's voxelize must have voxel size 1, begin at 0 and
    read f0, f1, ..., as in a model that voxserve.export.from_torch made without `points`.

    coordinates: [N, 1 to 4 axes] integers of any sign, in the model's order of axes (x, y, z, t), no site twice.
    features: [N, C] numbers, sent as float32; the sum of axes and C is at most 256.

    ValueError if a coordinate is not an integer or exceeds the server's range (131,072 - 128 cells in each direction
    with 3 axes, 3,968 in 4), if a site occurs twice, or if a feature is not finite in float32.
    """

    coordinates: npt.ArrayLike
    features: npt.ArrayLike

    def cloud(self) -> PointCloud:
        """Returns a cloud with a point per voxel: int32 fields x, y, z, t, then float32 fields f0, f1, ..."""
        coordinates, features = _integers(self.coordinates), np.asarray(self.features)
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
        columns: dict[str, npt.ArrayLike] = dict(zip(AXES, coordinates.T, strict=False))
        columns |= {f"f{i}": column for i, column in enumerate(values.T)}
        return PointCloud.from_columns(columns)


def _integers(values: npt.ArrayLike) -> npt.NDArray[np.int32]:
    given = np.asarray(values)
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
