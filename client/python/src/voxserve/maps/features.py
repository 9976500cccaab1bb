"""Selects the columns of a file that a model reads, and describes them for the server.

A feature is found by its name, or by the name that --fields gives to a column. Its scale is, in this order: that of
--fields; for intensities, reflectivities and colours the one that brings the column's range (pieces.Contents.ranges)
to 0..1, or to 0..255 or 0..65535 if that is the model's range; else 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve import field_spec
from voxserve.field_spec import Field, FieldSpec
from voxserve.pieces import Piece
from voxserve.pieces.reader import SHARES, Contents
from voxserve.point_cloud import PointCloud
from voxserve.results import FeatureInfo, ModelVersion

_TYPE_OF_CODE = {code: name for name, code in field_spec.NUMPY_CODES.items()}
_COORDINATES = ("x", "y", "z")
_WHOLE_RANGES = (255.0, 65535.0)
Points = npt.NDArray[Any]  # structured, of Features.dtype


@dataclass(frozen=True)
class Features:
    """The columns that the points of one file are sent with."""

    sources: tuple[str, ...]  # the file's columns, in the order of `fields`
    fields: tuple[Field, ...]  # the model's features without coordinates; offsets are those of a sent point
    dtype: np.dtype[Any]  # of a stored point: index, x, y, z, then f0, f1, ...

    @property
    def sent_dtype(self) -> np.dtype[Any]:
        """The type of a sent point: x, y, z as float32, then f0, f1, ..."""
        return _sent_dtype([self.dtype[f"f{i}"] for i in range(len(self.sources))])

    def store(self, piece: Piece, first: int, metres: Sequence[float]) -> Points:
        """Returns the points of a piece whose coordinates are finite, in metres. first: the number of points before
        the piece. metres: those of a unit of x, y and z.
        """
        kept = np.flatnonzero(np.isfinite(piece.xyz).all(axis=1))
        points = np.empty(len(kept), self.dtype)
        points["index"] = kept + first
        for axis, name in enumerate(_COORDINATES):
            points[name] = piece.xyz[kept, axis] * metres[axis]
        for i, source in enumerate(self.sources):
            points[f"f{i}"] = piece.column(source)[kept]
        return points

    def cloud(self, points: Points, xyz: npt.NDArray[np.float32]) -> PointCloud:
        """Returns the cloud of stored points to send. xyz: their coordinates in the tile, [N, 3]."""
        sent = np.empty(len(points), self.sent_dtype)
        for axis, name in enumerate(_COORDINATES):
            sent[name] = xyz[:, axis]
        for i in range(len(self.sources)):
            sent[f"f{i}"] = points[f"f{i}"]
        own = tuple(Field(name, "f32", 4 * axis) for axis, name in enumerate(_COORDINATES))
        return PointCloud(sent.view(np.uint8).data, len(sent), sent.dtype.itemsize, (*own, *self.fields))


def choose(path: str, contents: Contents, model: ModelVersion, spec: FieldSpec | None) -> Features:
    """Returns the features of a file for a model. spec: that of --fields. ValueError if the file lacks a column that
    the spec names or the model needs.
    """
    columns = {
        # Integers of 8 bytes are sent as float64.
        name: _TYPE_OF_CODE.get(dtype.base.str[1:], "f64" if dtype.kind in "iu" else field_spec.NO_TYPE)
        for name, dtype in contents.dtypes.items()
        if not dtype.shape
    }
    sources = list(columns)
    # The offset of a field is the number of its column while names and scales are settled.
    cloud = PointCloud(b"", 0, 1, tuple(Field(name, kind, i) for i, (name, kind) in enumerate(columns.items())))
    try:
        described = cloud if spec is None else cloud.described_by(spec)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    explicit = _explicit(spec)
    names, fields = [], []
    for feature in model.features:
        if feature.name.lower() in _COORDINATES:
            continue
        field = described.field(feature.name)
        if field is None or not field.value_bytes:
            if feature.default is None:
                raise ValueError(_lacks(path, model, feature, described))
            continue
        source = sources[field.offset]
        names.append(source)
        if source not in explicit and feature.name not in explicit and source.lower() in SHARES:
            field = _in_unit(field, feature, contents.ranges.get(source))
        fields.append(replace(field, name=feature.name))
    kinds = [np.dtype("<" + field_spec.NUMPY_CODES[field.type]) for field in fields]
    stored = [(f"f{i}", kind) for i, kind in enumerate(kinds)]
    sent = _sent_dtype(kinds)
    members: Mapping[str, tuple[Any, ...]] = sent.fields or {}
    offsets = [int(members[f"f{i}"][1]) for i in range(len(kinds))]
    return Features(
        tuple(names),
        tuple(replace(field, offset=offset) for field, offset in zip(fields, offsets, strict=True)),
        np.dtype([("index", "<u8"), *((axis, "<f8") for axis in _COORDINATES), *stored]),
    )


def _sent_dtype(kinds: list[np.dtype[Any]]) -> np.dtype[Any]:
    return np.dtype([*((axis, "<f4") for axis in _COORDINATES), *((f"f{i}", kind) for i, kind in enumerate(kinds))])


def _explicit(spec: FieldSpec | None) -> set[str]:
    """Returns the names of the fields whose scale the spec says."""
    if spec is None:
        return set()
    renames = {each.name for each in spec.renames if each.scale is not None or each.shift is not None}
    return renames | {field.name for field in spec.fields}


def _in_unit(field: Field, feature: FeatureInfo, limits: tuple[float, float] | None) -> Field:
    if limits is None:
        return field
    whole = feature.range[1] if feature.range is not None and feature.range[0] == 0 else 1.0
    scale = (whole if whole in _WHOLE_RANGES else 1.0) / (limits[1] - limits[0])
    return replace(field, scale=scale, shift=-limits[0] * scale)


def _lacks(path: str, model: ModelVersion, feature: FeatureInfo, cloud: PointCloud) -> str:
    names = ", ".join(field.name for field in cloud.fields) or "none beside the coordinates"
    return (
        f"{path}: {model.name} reads {feature.name}, which the file does not have; its columns are {names}. "
        f"--fields {feature.name}=COLUMN names another one"
    )


def describe(features: Features) -> Mapping[str, str]:
    """Returns a text for each feature that says where it comes from, such as "intensity*1.52588e-05"."""
    return {
        field.name: field_spec.describe([replace(field, name=source)]).replace(f":{field.type}", "")
        for field, source in zip(features.fields, features.sources, strict=True)
    }
