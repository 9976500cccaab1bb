"""Reads the point clouds of Open3D, without importing it: both of its classes are known by their attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# The columns of an attribute [N, 3]; other attributes with one column keep their name.
_TRIPLES = {
    "positions": ("x", "y", "z"),
    "colors": ("red", "green", "blue"),
    "normals": ("normal_x", "normal_y", "normal_z"),
}
_NAMES = {"intensities": "intensity"}


def columns_of(points: Any) -> dict[str, npt.NDArray[Any]] | None:
    """Returns the columns, [N] each, of an open3d.geometry.PointCloud (x, y, z, and red, green, blue and the normal if
    it has them), or of an open3d.t.geometry.PointCloud, whose further attributes become columns of the same name, or
    NAME_0, NAME_1, ... if they have several values. None for anything else. ValueError for a cloud without positions.
    """
    if hasattr(points, "point") and hasattr(points, "to_legacy"):
        attributes = {name: _host_array(points.point[name]) for name in points.point}
    elif all(hasattr(points, name) for name in ("points", "colors", "normals", "has_points")):
        named = {"positions": points.points, "colors": points.colors, "normals": points.normals}
        attributes = {name: np.asarray(values) for name, values in named.items()}
        attributes = {name: values for name, values in attributes.items() if len(values) or name == "positions"}
    else:
        return None
    if "positions" not in attributes:
        raise ValueError(f"the Open3D cloud has no positions; it has {', '.join(attributes) or 'nothing'}")
    columns: dict[str, npt.NDArray[Any]] = {}
    for name, values in attributes.items():
        flat = values.reshape(len(values), -1) if len(values) else values.reshape(0, values.shape[-1])
        columns |= dict(zip(_column_names(name, flat.shape[1]), flat.T, strict=True))
    return columns


def _column_names(name: str, width: int) -> tuple[str, ...]:
    if width == 3 and name in _TRIPLES:
        return _TRIPLES[name]
    plain = _NAMES.get(name, name)
    return (plain,) if width == 1 else tuple(f"{plain}_{i}" for i in range(width))


def _host_array(tensor: Any) -> npt.NDArray[Any]:
    """Returns the values of an open3d.core.Tensor of any device."""
    array: npt.NDArray[Any] = tensor.cpu().numpy()
    return array
