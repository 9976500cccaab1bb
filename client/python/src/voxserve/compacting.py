"""Makes clouds of 16-bit values, which have half the bytes of float32 ones and the same points.

    compacted = voxserve.compact(points)
    print(compacted)                       # 124668 points, 1994688 -> 997344 bytes, x within 0.0012 m, ...
    client.infer("minkunet", compacted.cloud)

Client.infer(..., compact=True) and --compact do the same. x, y and z become int16, each in equal steps of its own; an
intensity becomes uint16 in steps of its range. Other fields, and values of 16 bits or fewer, stay as they are.

A step is the axis' extent by 65,534, at least 1 mm. The steps begin at the smallest coordinate, which stays what it is.
So a grid that begins there (ORIGIN_MINIMUM) stays where it is, and only points within half a step of a voxel's border
can change their voxel. Coordinates that are integers of 32 bits, such as those of Voxels, keep their values where their
range fits 16 bits.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve import field_spec
from voxserve.field_spec import Field
from voxserve.inputs import PointsLike
from voxserve.point_cloud import Fields, PointCloud, as_cloud
from voxserve.row_layout import row_step_of

FINEST_STEP = 1e-3  # metres
COARSEST_STEP = 0.02  # metres; a cloud that would need coarser steps (1.3 km) is not compacted
_STEPS = 65_534  # from -32,767 to 32,767
_AXES = ("x", "y", "z")
_SHARES = ("intensity", "reflectivity")
_COMPACT_ALREADY = "no value has more than 16 bits"


class CompactWarning(UserWarning):
    """A cloud was sent as it is, since 16 bits cannot hold its values."""


@dataclass(frozen=True)
class Compacted:
    """A cloud and what its 16 bits cost."""

    cloud: PointCloud
    num_bytes_before: int
    errors: Mapping[str, float] = field(default_factory=dict)  # by field: the largest change of a value, in its unit
    reason: str = ""  # why the cloud is the one that was given; "": it is compacted

    @property
    def num_bytes(self) -> int:
        return memoryview(self.cloud.data).nbytes

    def __str__(self) -> str:
        if self.reason:
            return f"not compacted: {self.reason}"
        within = (f"{name} within {error:.2g}{' m' if name.lower() in _AXES else ''}"
                  for name, error in self.errors.items())  # fmt: skip
        return ", ".join(
            (f"{self.cloud.num_points} points, {self.num_bytes_before} -> {self.num_bytes} bytes", *within)
        )


def compact(points: PointsLike, fields: Fields = None) -> Compacted:
    """Returns the cloud with x, y, z and the intensity in 16 bits. points, fields: as in Client.infer.

    The cloud stays as it is, and `reason` says why, if a coordinate or an intensity is not a finite number (the server
    leaves such points out, and 16-bit integers have no such value), if an axis is longer than 1.3 km, or if there is
    nothing to convert. ValueError for points that are no cloud, and for a cloud without x, y or z.
    """
    cloud = as_cloud(points, fields)
    given = memoryview(cloud.data).nbytes
    converted: dict[str, tuple[Field, npt.NDArray[Any]]] = {}
    errors: dict[str, float] = {}
    for name in (*_AXES, *_SHARES):
        own = cloud.field(name)
        if own is None and name in _AXES:
            raise ValueError(f"the cloud has no field '{name}'; it has {', '.join(f.name for f in cloud.fields)}")
        if own is None or own.value_bytes <= 2:
            continue
        raw = _raw(cloud, own)[:, 0]
        values = raw.astype(np.float64) * own.scale + own.shift
        if not np.isfinite(values).all():
            return Compacted(cloud, given, reason=f"a point's {own.name} is not a finite number")
        made = (_whole_axis(own, raw) or _axis(own, values)) if name in _AXES else _share(own, values)
        if made is None:
            return Compacted(cloud, given, reason=f"{own.name} spans {np.ptp(values):.0f} m, at most "
                             f"{COARSEST_STEP * _STEPS:.0f} m fit steps of {COARSEST_STEP:g} m")  # fmt: skip
        converted[own.name] = made
        sent = made[1].astype(np.float64) * made[0].scale + made[0].shift
        errors[own.name] = float(np.abs(sent - values).max(initial=0))
    if not converted:
        return Compacted(cloud, given, reason=_COMPACT_ALREADY)
    return Compacted(_packed(cloud, converted), given, errors)


def compact_or_warn(cloud: PointCloud) -> PointCloud:
    """Returns compact(cloud).cloud. Issues a CompactWarning if the cloud stays as it is although values have more than
    16 bits.
    """
    made = compact(cloud)
    if made.reason not in ("", _COMPACT_ALREADY):
        warnings.warn(f"the cloud is sent with all its bits: {made.reason}", CompactWarning, stacklevel=3)
    return made.cloud


def _whole_axis(own: Field, raw: npt.NDArray[Any]) -> tuple[Field, npt.NDArray[np.int16]] | None:
    """Returns an axis of integers in int16, unchanged; None if its numbers are no integers or their range is larger."""
    if raw.dtype.kind not in "iu":
        return None
    low, high = (int(raw.min()), int(raw.max())) if raw.size else (0, 0)
    if high - low > _STEPS:
        return None
    middle = low + _STEPS // 2
    field = replace(own, type="i16", count=1, shift=own.shift + middle * own.scale)
    return field, (raw.astype(np.int64) - middle).astype(np.int16)


def _axis(own: Field, values: npt.NDArray[np.float64]) -> tuple[Field, npt.NDArray[np.int16]] | None:
    """Returns the axis in int16; None if its steps would be too coarse."""
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    step = max(FINEST_STEP, math.ceil((high - low) / _STEPS * 1e4) / 1e4)
    if step > COARSEST_STEP:
        return None
    raw = (np.rint((values - low) / step) - _STEPS // 2).astype(np.int16)
    return replace(own, type="i16", count=1, scale=step, shift=low + _STEPS // 2 * step), raw


def _share(own: Field, values: npt.NDArray[np.float64]) -> tuple[Field, npt.NDArray[np.uint16]]:
    """Returns an intensity in uint16. The steps begin at 0 unless a value is negative."""
    low = min(0.0, float(values.min(initial=0)))
    step = (float(values.max(initial=0)) - low) / 65_535 or 1 / 65_535
    raw = np.rint((values - low) / step).astype(np.uint16)
    return replace(own, type="u16", count=1, scale=step, shift=low), raw


def _raw(cloud: PointCloud, of: Field) -> npt.NDArray[Any]:
    """Returns the values of a field as they are stored: [num_points, count]."""
    rows = max(1, cloud.height)
    row_step = row_step_of(cloud.num_points, rows, cloud.point_step, cloud.row_step, memoryview(cloud.data).nbytes)
    if of.offset + of.value_bytes * of.count > cloud.point_step:
        raise ValueError(f"field '{of.name}' at offset {of.offset} does not fit a point of {cloud.point_step} bytes")
    dtype = np.dtype((">" if cloud.is_bigendian else "<") + field_spec.NUMPY_CODES[of.type])
    if cloud.num_points == 0:
        return np.zeros((0, of.count), dtype)
    shape = (rows, cloud.num_points // rows, of.count)
    strides = (row_step, cloud.point_step, dtype.itemsize)
    values: npt.NDArray[Any] = np.ndarray(shape, dtype, cloud.data, of.offset, strides)
    return values.reshape(-1, of.count)


def _packed(cloud: PointCloud, converted: Mapping[str, tuple[Field, npt.NDArray[Any]]]) -> PointCloud:
    """Returns the cloud with the converted fields in place of its own, without gaps between points."""
    fields: list[Field] = []
    columns: list[npt.NDArray[Any]] = []
    offset = 0
    for own in cloud.fields:
        if not own.value_bytes:
            fields.append(own)
            continue
        made, values = converted.get(own.name, (own, None))
        column = _raw(cloud, own) if values is None else values[:, None]
        columns.append(column.astype(column.dtype.newbyteorder("<"), copy=False))
        fields.append(replace(made, offset=offset))
        offset += made.value_bytes * made.count
    packed = np.empty((cloud.num_points, offset), np.uint8)
    at = 0
    for column in columns:
        size = column.dtype.itemsize * column.shape[1]
        packed[:, at : at + size] = np.ascontiguousarray(column).view(np.uint8).reshape(cloud.num_points, size)
        at += size
    return replace(
        cloud,
        data=packed.reshape(-1).data,
        point_step=offset,
        fields=tuple(fields),
        row_step=0,
        is_bigendian=False,
    )
