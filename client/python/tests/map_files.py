"""Point files that the tests of voxserve.pieces and voxserve.maps write, and what they hold."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

laspy = pytest.importorskip("laspy", reason="laspy is not installed")

ORIGIN = np.array([500_000.0, 5_400_000.0, 300.0])


def cloud(number: int, seed: int = 1, size: float = 100.0) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the columns of a survey cloud of hills in a square of `size` metres, whose coordinates are whole
    millimetres.
    """
    random = np.random.default_rng(seed)
    x, y = random.uniform(0, size, (2, number))
    z = 2 * np.sin(x / 9) * np.cos(y / 7) + random.exponential(0.5, number)
    xyz = np.round(np.stack([x, y, z], axis=1) + ORIGIN, 3)
    return {
        "x": xyz[:, 0],
        "y": xyz[:, 1],
        "z": xyz[:, 2],
        "intensity": random.integers(0, 65536, number, np.uint16),
        "return_number": random.integers(1, 4, number, np.uint8),
        "gps_time": np.arange(number) * 1e-5,
        "red": random.integers(0, 65536, number, np.uint16),
        "green": random.integers(0, 65536, number, np.uint16),
        "blue": random.integers(0, 65536, number, np.uint16),
        "range": random.uniform(0, 9, number).astype(np.float32),
    }


def write_las(path: Path, columns: dict[str, np.ndarray[Any, Any]], point_format: int = 3, **header: Any) -> Path:
    """Writes a .las or .laz file. "range", and other names that LAS lacks, become extra dimensions."""
    head = laspy.LasHeader(
        point_format=point_format, version="1.4" if point_format > 5 else "1.3" if point_format > 3 else "1.2"
    )
    head.scales, head.offsets = np.full(3, 0.001), np.floor(ORIGIN)
    for name, value in header.items():
        setattr(head, name, value)
    own = set(head.point_format.dimension_names)
    for name, values in columns.items():
        if name not in own and name not in ("x", "y", "z"):
            head.add_extra_dims([laspy.ExtraBytesParams(name, values.dtype.str[1:])])
    las = laspy.LasData(head)
    for name, values in columns.items():
        las[name] = values
    las.write(path)
    return path


def write_e57(path: Path, columns: dict[str, np.ndarray[Any, Any]]) -> Path:
    """Writes the points as two scans, each with a pose of its own."""
    pye57 = pytest.importorskip("pye57", reason="pye57 is not installed")
    half = len(columns["x"]) // 2
    with pye57.E57(str(path), mode="w") as file:
        for rows, angle in ((slice(0, half), 0.5), (slice(half, None), -1.0)):
            rotation = np.array([np.cos(angle / 2), 0, 0, np.sin(angle / 2)])
            turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
            xyz = (np.stack([columns[axis][rows] for axis in "xyz"], axis=1) - ORIGIN) @ turn
            data = {f"cartesian{axis}": np.ascontiguousarray(xyz[:, i]) for i, axis in enumerate("XYZ")}
            data["intensity"] = (columns["intensity"][rows] / 65535).astype(np.float32)
            data["colorRed"] = data["colorGreen"] = data["colorBlue"] = (columns["red"][rows] >> 8).astype(np.uint8)
            file.write_scan_raw(data, rotation=rotation, translation=ORIGIN)
    return path


def write_table(path: Path, columns: dict[str, Any], **metadata: str) -> Path:
    """Writes a .parquet or .feather file."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table = arrow.table(columns).replace_schema_metadata(metadata or None)
    if path.suffix == ".parquet":
        from pyarrow import parquet

        parquet.write_table(table, path, row_group_size=30_000)
    else:
        from pyarrow import feather

        feather.write_feather(table, str(path), compression="lz4", chunksize=30_000)
    return path


def write_ply(path: Path, columns: dict[str, np.ndarray[Any, Any]]) -> Path:
    names = {"u1": "uchar", "u2": "ushort", "f4": "float", "f8": "double"}
    dtype = np.dtype([(name, values.dtype) for name, values in columns.items()])
    rows = np.empty(len(columns["x"]), dtype)
    for name, values in columns.items():
        rows[name] = values
    properties = "".join(f"property {names[dtype[name].str[1:]]} {name}\n" for name in columns)
    head = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(rows)}\n{properties}end_header\n"
    path.write_bytes(head.encode() + rows.tobytes())
    return path


def promise(path: Path, number: int) -> None:
    """Sets the number of points in the header of a LAS 1.2 file."""
    contents = bytearray(path.read_bytes())
    struct.pack_into("<I", contents, 107, number)
    path.write_bytes(contents)


def label(source: Path, target: Path, legend: dict[int, str], step: int = 30_000) -> Path:
    """Writes a labelled copy, whose codes and confidences depend on each point's place in the file."""
    from voxserve import pieces

    codes = list(legend)
    target.parent.mkdir(exist_ok=True)
    with pieces.open_reader(source) as reader:
        first, keeps_codes = 0, bool(reader.contents.codes)
        with pieces.open_writer(str(target), reader, legend, keeps_codes=keeps_codes) as writer:
            for piece in reader.pieces(step):
                index = np.arange(first, first + len(piece))
                writer.write(piece, np.take(codes, index % len(codes)), (index % 256 / 255).astype(np.float32))
                first += len(piece)
    return target
