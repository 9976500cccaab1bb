"""Reads a scan file as a cloud for the server. The extension selects the format:

    .bin       KITTI: float32 x, y, z, intensity (0..1)
    .pcd.bin   nuScenes: float32 x, y, z, intensity (0..255, scaled to 0..1), ring
    .pcd       PCD 0.7: ascii, binary or binary_compressed
    .ply       PLY 1.0: ascii, binary_little_endian or binary_big_endian; element "vertex"
    .npy       NumPy: [N, C] (columns x, y, z, intensity; more are skipped) or a structured array
    .las .laz .e57 .feather .parquet    as voxserve.pieces reads them, with optional libraries

Values are not converted: the server gets their bytes, and a description of the fields. In PCD and PLY an intensity or
reflectivity of uint8 or uint16 gets the scale that makes its type's largest value 1, unless the spec names it.

A field spec (voxserve.field_spec) describes a .bin file of another layout, from the first byte of a point to the last.
For .npy of shape [N, C] the spec names the columns in order. In files that name their fields (PCD, PLY, structured NPY)
an entry of the spec sets the scale and shift of the field with the same name. A spec whose types contradict the file is
refused. An entry NEW=OLD of the spec renames a field of any format. The C++ client makes the same cloud of a valid
file, and does not read the formats of voxserve.pieces.
"""

from __future__ import annotations

import os

from voxserve import field_spec, input_file, storage
from voxserve.field_spec import FieldSpec
from voxserve.point_cloud import PointCloud
from voxserve.readers import npy, pcd, ply

KITTI_LAYOUT = "x:f32,y:f32,z:f32,intensity:f32"
NUSCENES_LAYOUT = "x:f32,y:f32,z:f32,intensity:f32*0.00392156862745098,ring:f32"
# The longer ending comes first, since the first ending that matches a file's name is used.
_PACKED = {".pcd.bin": NUSCENES_LAYOUT, ".bin": KITTI_LAYOUT}
_WITH_HEADER = {".pcd": pcd.read, ".ply": ply.read, ".npy": npy.read}
_IN_PIECES = (".las", ".laz", ".e57", ".feather", ".parquet")
# Texts and packed files, whose bytes are no points whatever a field spec says.
_NOT_RAW = (".csv", ".txt", ".xyz", ".xyzi", ".pts", ".ptx", ".asc", ".json", ".npz", ".gz", ".bz2", ".xz", ".zst",
            ".zip", ".tar", ".h5", ".hdf5", ".pkl", ".pickle", ".pt", ".pth", ".mat", ".obj", ".off", ".stl", ".pcap",
            ".bag", ".mcap", ".db3", ".arrow")  # fmt: skip
# How files of other formats begin, by their usual extension: so many bytes that they are no coordinates.
_BEGINNINGS: dict[str, bytes | tuple[bytes, ...]] = {
    ".npy": b"\x93NUMPY", ".pcd": b"# .PCD", ".ply": (b"ply\n", b"ply\r"), ".las": b"LASF", ".e57": b"ASTM-E57",
    ".parquet": b"PAR1", ".feather": b"ARROW1", ".npz": b"PK\x03\x04", ".h5": b"\x89HDF\r\n\x1a\n",
    ".mcap": b"\x89MCAP0\r\n",
    # After these three bytes gzip has its flags, below 32, where a coordinate has its exponent.
    ".gz": tuple(b"\x1f\x8b\x08" + bytes([flags]) for flags in range(32)),
}  # fmt: skip
_ADVICE = {".npz": "save its array as .npy", ".h5": "save its points as .npy", ".gz": "unpack it",
           ".mcap": "python -m voxserve.bag labels recordings"}  # fmt: skip


def read(path: str | os.PathLike[str], fields: str = "") -> PointCloud:
    """Reads a scan file, as the docstring of voxserve.readers describes them; also from a URL (voxserve.storage).
    fields: a field spec; "" for the format's own layout.

    OSError if the file cannot be read, or is no regular file. ValueError, with the file's name and the problem, if the
    file or the spec is not valid, or has more bytes than a message can carry. The header of a broken or hostile file
    cannot make it allocate much more memory than the file's size.
    """
    spec = field_spec.parse(fields) if fields else None
    name = os.fspath(path).lower()
    if name.endswith(_IN_PIECES):
        from voxserve.pieces.whole import read_whole  # which imports this module

        return read_whole(path, spec)
    layout = None if spec is None else spec.layout
    try:
        _check_extension(name, layout)
    except ValueError as error:
        storage.check_there(path)
        raise ValueError(f"{os.fspath(path)}: {error}") from None
    contents = storage.read(path, input_file.MAX_SCAN_BYTES)
    try:
        cloud = read_contents(name, contents, layout)
        cloud = cloud if spec is None else cloud.renamed(spec.renames)
        return cloud.with_shares(spec) if name.endswith((".pcd", ".ply")) else cloud
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)}: {error}") from None


def read_contents(name: str, contents: bytes, layout: FieldSpec | None) -> PointCloud:
    """Returns the cloud of a file's contents, which may be a memory map. name: the file's name in lower case. layout: a
    field spec without renames. ValueError if the contents are not valid.
    """
    _check_extension(name, layout)
    for extension, reader in _WITH_HEADER.items():
        if name.endswith(extension):
            return reader(contents, layout)
    layout = layout or next(field_spec.parse(text) for ending, text in _PACKED.items() if name.endswith(ending))
    beginning = contents[:16]
    if other := next((ending for ending, magic in _BEGINNINGS.items() if beginning.startswith(magic)), None):
        advice = _ADVICE.get(other, f"it is read as one only by the extension {other}")
        raise ValueError(f"the file begins as {other} files do; {advice}")
    return read_packed(contents, layout)


def _check_extension(name: str, layout: FieldSpec | None) -> None:
    """Raises ValueError if files with this name are not read, whatever their contents."""
    if name.endswith(_NOT_RAW):
        raise ValueError("text, tables, archives and recordings are not read as a scan; save the points as .npy, e.g. "
                         "np.save('scan.npy', np.loadtxt('scan.csv', delimiter=',', skiprows=1)); python -m "
                         "voxserve.bag labels recordings")  # fmt: skip
    if layout is None and not name.endswith((*_PACKED, *_WITH_HEADER)):
        known = ", ".join((*_PACKED, *_WITH_HEADER, *_IN_PIECES))
        raise ValueError(f"unknown extension; known are {known}; a file of raw points needs --fields")


def read_packed(contents: bytes, spec: FieldSpec) -> PointCloud:
    """Returns the cloud of points that follow each other without gaps or a header. ValueError if the bytes are not a
    whole number of points.
    """
    num_points, rest = divmod(len(contents), spec.point_step)
    if rest:
        raise ValueError(
            f"{len(contents)} bytes are not a whole number of {spec.point_step}-byte points "
            f"({field_spec.describe(spec.fields)}); name the layout with --fields, e.g. --fields "
            "x:f32,y:f32,z:f32,intensity:f32,-:f32 for five floats a point"
        )
    return PointCloud(contents, num_points, spec.point_step, spec.fields)


def is_point_cloud_file(path: str | os.PathLike[str]) -> bool:
    """Returns whether read() knows the file's extension."""
    return os.fspath(path).lower().endswith((*_PACKED, *_WITH_HEADER, *_IN_PIECES))
