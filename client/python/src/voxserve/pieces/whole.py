"""Reads a whole file as one cloud, for the commands and clients that send one request a scan."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from voxserve import input_file, storage
from voxserve.field_spec import FieldSpec
from voxserve.pieces import open_reader
from voxserve.pieces.reader import SHARES, PieceReader
from voxserve.point_cloud import PointCloud

_PIECE = 1 << 20
# float32 tells coordinates apart that differ by 8 mm up to here. Larger ones get a shift.
_LARGEST_METRES = 1e5


def read_whole(path: str | os.PathLike[str], spec: FieldSpec | None) -> PointCloud:
    """Returns the cloud of a file that voxserve.pieces reads. Coordinates are float64, and get the scale that makes
    them metres where the file says their unit. If they are beyond 100 km, each axis gets a shift, so that the network
    sees them relative to the least whole metre. Intensities and colours get the scale that makes them 0..1. A spec may
    say another scale and shift of each. OSError; ValueError for a file that is damaged, has more bytes than a message
    can carry, or has coordinates in degrees.
    """
    if storage.is_url(path):
        with TemporaryDirectory() as folder:
            target = Path(folder) / Path(os.fspath(path)).name
            storage.fetch(path, target)
            return read_whole(target, spec)
    with open_reader(storage.plain(path)) as reader:
        return _read(reader, spec)


def _read(reader: PieceReader, spec: FieldSpec | None) -> PointCloud:
    contents = reader.contents
    described = {entry.name.lower() for entry in (spec.fields if spec else ())}
    if contents.is_geographic and not described >= {"x", "y"}:
        raise ValueError(f"{reader.path}: the coordinates are degrees; project the file to metres first")
    names = [n for n, d in contents.dtypes.items() if not d.shape and d.kind in "iuf"]
    size = contents.num_points * (24 + sum(contents.dtypes[name].itemsize for name in names))
    if size > input_file.MAX_SCAN_BYTES:
        raise ValueError(f"{reader.path}: {size} bytes of points; python -m voxserve.maps labels larger clouds")
    columns: dict[str, list[Any]] = {name: [] for name in ("x", "y", "z", *names)}
    for piece in reader.pieces(_PIECE):
        for axis, name in enumerate("xyz"):
            columns[name].append(piece.xyz[:, axis])
        for name in names:
            columns[name].append(piece.column(name).astype(contents.dtypes[name]))
    kinds = {**dict.fromkeys("xyz", np.dtype(np.float64)), **contents.dtypes}
    whole = {name: np.concatenate(parts) if parts else np.zeros(0, kinds[name]) for name, parts in columns.items()}
    cloud = PointCloud.from_columns(whole)
    fields = []
    for field in cloud.fields:
        if field.name in ("x", "y", "z"):
            unit = contents.metres["xyz".index(field.name)]
            metres = whole[field.name][np.isfinite(whole[field.name])] * unit
            is_far = len(metres) and np.abs(metres).max() > _LARGEST_METRES
            field = replace(field, scale=unit, shift=-float(np.floor(metres.min())) if is_far else 0.0)
        elif field.name.lower() in SHARES and field.name in contents.ranges:
            low, high = contents.ranges[field.name]
            field = replace(field, scale=1 / (high - low), shift=-low / (high - low))
        fields.append(field)
    cloud = replace(cloud, fields=tuple(fields))
    try:
        return cloud if spec is None else cloud.described_by(spec)
    except ValueError as error:
        raise ValueError(f"{reader.path}: {error}") from None
