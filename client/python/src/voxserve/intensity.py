"""Finds the unit of intensities, which models read as 0..1.

ROS' PointCloud2, PCD and PLY do not state the unit of a field. For an integer it follows from the type: a uint8 is 0 to
255 (Autoware's PointXYZIRC), a uint16 0 to 65535. For a float32 it is unknown: drivers send 0..255 (Velodyne, Hesai) or
0..1. So this module looks at the values, and returns a warning if they seem wrong.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from voxserve.point_cloud import PointCloud
    from voxserve.results import FeatureInfo

_NAMES = ("intensity", "reflectivity")
_LARGEST = {"u8": 255, "u16": 65535}  # the largest value of a type: an intensity of 1
_MOST = 1.5  # a cloud with larger values is probably not scaled to 0..1


def scale_of(name: str, kind: str) -> float:
    """Returns the factor that brings a field of a ROS message or a PCD or PLY file to 0..1, if its name is that of an
    intensity, in any case, and its type (a key of field_spec.WIRE_TYPES) gives its largest value; else 1.
    """
    return 1 / _LARGEST[kind] if name.lower() in _NAMES and kind in _LARGEST else 1.0


def problem(cloud: PointCloud, features: Iterable[FeatureInfo]) -> str:
    """Returns what is wrong if the model reads an intensity of 0..1 and the cloud has larger values, which is the
    commonest cause of wrong answers; "" if nothing is wrong. features: those of the model.
    """
    # The server looks at the values itself where the model states a range.
    reads = any(each.name == "intensity" and each.unit == "1" and each.range is None for each in features)
    if not reads or cloud.field("intensity") is None:
        return ""
    values = cloud.values("intensity")
    largest = float(values[np.isfinite(values)].max(initial=0))
    return f"reach {largest:g}" if largest > _MOST else ""
