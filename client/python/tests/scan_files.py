"""Scan files that the tests of readers write, and what they hold."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import voxserve

Write = Callable[[str, bytes | str], Path]
POINTS = np.array([[1.5, -2.25, 3, 0.5], [4, 5, -6.75, 0.25], [7, 8, 9, 1]], np.float32)


def writer(folder: Path) -> Write:
    """Returns a function that writes a file into the folder, and returns its path."""

    def write(name: str, contents: bytes | str) -> Path:
        path = folder / name
        path.write_bytes(contents if isinstance(contents, bytes) else contents.encode("latin-1"))
        return path

    return write


def table(cloud: voxserve.PointCloud, *names: str) -> Any:
    return np.stack([cloud.values(name) for name in names or ("x", "y", "z", "intensity")], axis=1)


def pcd_header(data: str, count: int = 3, **changes: str) -> str:
    lines = {
        "VERSION": "0.7",
        "FIELDS": "x y z intensity",
        "SIZE": "4 4 4 4",
        "TYPE": "F F F F",
        "COUNT": "1 1 1 1",
        "WIDTH": str(count),
        "HEIGHT": "1",
        "VIEWPOINT": "0 0 0 1 0 0 0",
        "POINTS": str(count),
        "DATA": data,
        **changes,
    }
    return "# .PCD v0.7\n" + "".join(f"{key} {value}\n" for key, value in lines.items() if value)


def ply_header(kind: str, *extra: str, count: int = 3, before: str = "") -> bytes:
    properties = "".join(f"property float {name}\n" for name in ("x", "y", "z", "scalar_Intensity"))
    lines = f"ply\nformat {kind} 1.0\ncomment made by hand\n{before}element vertex {count}\n{properties}"
    return (lines + "".join(f"{line}\n" for line in extra) + "end_header\n").encode()


def ply_with_lists(kind: str) -> bytes:
    """Returns POINTS with lists before the vertices, among their values (CloudCompare#1455) and behind them."""
    header = (
        f"ply\nformat {kind} 1.0\nelement tag 2\nproperty list uchar short a\nelement vertex 3\n"
        "property list uint float64 b\nproperty float x\nproperty float y\nproperty list char uchar c\n"
        "property float z\nproperty float intensity\nelement face 1\nproperty list uchar int d\nend_header\n"
    ).encode()
    lists: list[tuple[tuple[float, ...], tuple[int, ...]]] = [((0.5, 1.5), ()), ((), (7,)), ((9.5,), (1, 2, 3))]
    if kind == "ascii":
        rows = ["2 5 6", "0"]
        for (x, y, z, i), (b, c) in zip(POINTS.tolist(), lists, strict=True):
            rows.append(" ".join(map(str, [len(b), *b, x, y, len(c), *c, z, i])))
        return header + "".join(f"{row}\n" for row in [*rows, "3 0 1 2"]).encode()
    order = "<" if kind == "binary_little_endian" else ">"
    body = struct.pack(order + "BhhB", 2, 5, 6, 0)
    for (x, y, z, i), (b, c) in zip(POINTS.tolist(), lists, strict=True):
        body += struct.pack(f"{order}I{len(b)}dffb{len(c)}Bff", len(b), *b, x, y, len(c), *c, z, i)
    return header + body + struct.pack(order + "Biii", 3, 0, 1, 2)


def npy(header: bytes, body: bytes = b"", version: int = 1) -> bytes:
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(header)) + header + body


def table_of(descr: str, body: bytes = bytes(16)) -> bytes:
    """Returns an NPY file of four items whose type is `descr`."""
    return npy(f"{{'descr': {descr}, 'fortran_order': False, 'shape': (4,)}}".encode(), body)
