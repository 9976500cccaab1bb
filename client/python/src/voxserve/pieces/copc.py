"""Writes COPC 1.0 (copc.io) with laspy and lazrs: LAZ 1.4 whose chunks are the nodes of an octree.

- The copy of a COPC file has the octree of that file, and so the same order of points.
- From another file an octree is made (voxserve.pieces.octree) after all points are there. Until then they are in a
  temporary LAS file in the folder of the result, which vanishes if the process is killed.
- The point formats are 6, 7 and 8, so older ones are converted. Wave packets have no place in COPC.

laspy reads COPC but writes none; copclib writes nodes, but no records such as the legend or GeoTIFF keys.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from voxserve.pieces.las import LasReader, LasWriter
from voxserve.pieces.octree import GRID_BITS, Key, Octree, Records, codes_of
from voxserve.pieces.reader import Array, Piece, PieceReader, library

ENDINGS = (".copc.laz",)
_ENTRY = np.dtype([("key", "<i4", 4), ("offset", "<u8"), ("bytes", "<i4"), ("points", "<i4")])
_INFO = struct.Struct("<5d2Q2d88x")  # center, half size, spacing, the place and size of the hierarchy, times
_RECORD_HEAD_BYTES = 60  # of an extended variable length record
_OTHER_PAGE = -1  # the number of points of an entry that names another page
_BATCH_POINTS = 1 << 19  # so many are compressed at once, on all cores


class CopcWriter(LasWriter):
    """Writes a .copc.laz file."""

    _is_copc = True

    @classmethod
    def check(cls, path: str, source: PieceReader) -> None:
        super().check(path, source)
        if isinstance(source, LasReader) and source.copc_info is not None:
            _nodes_of(source)

    def __init__(
        self, path: str, temporary: str, source: PieceReader, legend: Mapping[int, str], *, keeps_codes: bool
    ) -> None:
        super().__init__(path, temporary, source, legend, keeps_codes=keeps_codes)
        self._octree: Array | None = None
        self._target: _CopcFile | None = None
        if isinstance(source, LasReader) and source.copc_info is not None:
            info = source.copc_info
            self._octree = _nodes_of(source)
            self._ends = np.cumsum(self._octree["points"])
            self._node, self._done, self._parts = 0, 0, list[Array]()
            self._target = _CopcFile(temporary, self._header, info.center, info.halfsize, info.spacing)
        else:
            self.passes = 2

    def write(self, piece: Piece, codes: Array, confidence: Array) -> None:
        if self._target is None:
            super().write(piece, codes, confidence)
            return
        assert self._octree is not None
        records, first = self._points(piece, codes, confidence).array, 0
        while self._node < len(self._ends) and self._ends[self._node] <= self._done + len(records):
            end = int(self._ends[self._node]) - self._done
            key = tuple(self._octree["key"][self._node].tolist())
            self._target.write(key, np.concatenate([*self._parts, records[first:end]]))
            self._parts, first = [], end
            self._node += 1
        self._parts.append(records[first:])
        self._done += len(records)

    def _new_writer(self) -> Any:
        self._unsorted = tempfile.TemporaryFile(dir=Path(self._temporary).parent)  # noqa: SIM115  # closed by close()
        return self._laspy.open(self._unsorted, mode="w", header=self._header, do_compress=False, closefd=False)

    def arrange(self, tell: Callable[[int], None]) -> None:
        if self._target is not None:
            return
        if self._writer is None:
            self._open(None)
        self._writer.close()
        with self._unsorted:
            header, folder = self._writer.header, Path(self._temporary).parent
            minimum, maximum = np.asarray(header.mins), np.asarray(header.maxs)
            # The cube's first corner is that of the points: copclib takes it from the header.
            size = float(max((maximum - minimum).max(), *header.scales))
            center, spacing = minimum + size / 2, size / (1 << GRID_BITS)
            self._target = _CopcFile(self._temporary, self._header, center, size / 2, spacing)
            scales, offsets = np.asarray(header.scales), np.asarray(header.offsets)

            def code_of(records: Array) -> Any:
                xyz = np.stack([records[axis] for axis in "XYZ"], axis=1) * scales + offsets
                return codes_of(xyz, minimum, size)

            dtype, number = header.point_format.dtype(), 0
            records = Records(self._unsorted, dtype, header.offset_to_point_data, header.point_count)
            for key, points in Octree(records, code_of, str(folder)).nodes():
                self._target.write(key, points)
                number += len(points)
                tell(number)

    def close(self) -> None:
        self.arrange(lambda _: None)
        assert self._target is not None
        self._target.close()

    def abandon(self) -> None:
        if self._target is not None:
            self._target.abandon()
        if self._writer is not None:
            self._unsorted.close()


class _CopcFile:
    """A COPC file to which nodes are written one by one."""

    def __init__(self, path: str, header: Any, center: Any, half_size: float, spacing: float) -> None:
        laspy = library("laspy")
        self._laspy, self._lists = laspy, type(header.vlrs)
        self._octree = (*(float(value) for value in center), float(half_size), float(spacing))
        self._others = list(header.evlrs or ())
        self._times = (np.inf, -np.inf)
        self._keys: list[Key] = []
        self._info = laspy.VLR("copc", 1, "COPC info", bytes(_INFO.size))
        header.vlrs = self._lists([self._info, *header.vlrs])
        header.global_encoding.wkt = True  # as the newer point formats demand
        header.extra_header_bytes = header.extra_vlr_bytes = b""  # the first record begins at byte 375
        self._file = Path(path).open("w+b")  # noqa: SIM115  # closed by close()
        self._writer = laspy.LasWriter(self._file, header, laz_backend=_Nodes(), closefd=False)

    def write(self, key: Key, records: Array) -> None:
        """Writes the points of a node."""
        self._keys.append(key)
        header = self._writer.header
        points = self._laspy.ScaleAwarePointRecord(records, header.point_format, header.scales, header.offsets)
        times = records["gps_time"]
        self._times = (min(self._times[0], float(times.min())), max(self._times[1], float(times.max())))
        self._writer.write_points(points)

    def close(self) -> None:
        header, nodes = self._writer.header, self._writer.point_writer
        nodes.done()
        entries = np.zeros(max(1, len(self._keys)), _ENTRY)  # that of the root, if there are no points
        if self._keys:
            entries["key"] = self._keys
            entries["points"], entries["bytes"] = nodes.chunks().T
            entries["offset"] = header.offset_to_point_data + 8 + np.cumsum(entries["bytes"]) - entries["bytes"]
        self._file.seek(0, os.SEEK_END)
        hierarchy = self._laspy.VLR("copc", 1000, "EPT hierarchy", entries.tobytes())
        self._writer.write_evlrs(self._lists([hierarchy, *self._others]))
        times = self._times if self._keys else (0.0, 0.0)
        place = header.start_of_first_evlr + _RECORD_HEAD_BYTES
        self._info.record_data = _INFO.pack(*self._octree, place, entries.nbytes, *times)
        header.vlrs[0].record_data = self._info.record_data
        self._writer.close()
        self._file.close()

    def abandon(self) -> None:
        self._file.close()


class _Nodes:
    """Writes each record of points as one chunk: what laspy calls a backend, and the writer that it makes."""

    def is_available(self) -> bool:
        return True

    def create_writer(self, file: BinaryIO, header: Any) -> _Nodes:
        self._lazrs: Any = library("lazrs")
        point_format = header.point_format
        self._vlr = self._lazrs.LazVlr.new_for_compression(point_format.id, point_format.num_extra_bytes, True)
        self._file, self._waiting, self._num_waiting, self._is_done = file, list[Array](), 0, False
        return self

    def write_initial_header_and_vlrs(self, header: Any, encoding_errors: str) -> None:
        header.vlrs.append(library("laspy.vlrs.known").LasZipVlr(self._vlr.record_data()))
        header.write_to(self._file, encoding_errors=encoding_errors)
        self._begin = self._file.tell()
        self._compressor = self._lazrs.ParLasZipCompressor(self._file, self._vlr)

    def write_points(self, points: Any) -> None:
        self._waiting.append(np.frombuffer(points.array, np.uint8))
        self._num_waiting += len(points)
        if self._num_waiting >= _BATCH_POINTS:
            self._flush()

    def _flush(self) -> None:
        self._compressor.compress_chunks(self._waiting)
        self._waiting, self._num_waiting = [], 0

    def done(self) -> None:
        if not self._is_done:
            self._flush()
            self._compressor.done()
            self._is_done = True

    def chunks(self) -> Array:
        """Returns the number of points and the bytes of each chunk: int64 [N, 2]. Call it after done()."""
        self._file.seek(self._begin)
        return np.array(self._lazrs.read_chunk_table(self._file, self._vlr), np.int64).reshape(-1, 2)

    def write_updated_header(self, header: Any, encoding_errors: str) -> None:
        self._file.seek(0)
        header.write_to(self._file, ensure_same_size=True, encoding_errors=encoding_errors)


def _nodes_of(source: LasReader) -> Array:
    """Returns the entries of the nodes that have points, in the order of the points. ValueError if they are damaged."""
    info, found, seen = source.copc_info, [], set[int]()
    pages = [(int(info.hierarchy_root_offset), int(info.hierarchy_root_size))]
    with Path(source.path).open("rb") as file:
        file_bytes = os.fstat(file.fileno()).st_size
        while pages:
            offset, size = pages.pop()
            if offset in seen:
                continue
            seen.add(offset)
            if size < 0 or offset + size > file_bytes:
                raise ValueError(
                    f"{source.path}: the octree has a page of {size} bytes at byte {offset}, but the file has "
                    f"{file_bytes} bytes"
                )
            file.seek(offset)
            entries = np.frombuffer(file.read(size // _ENTRY.itemsize * _ENTRY.itemsize), _ENTRY)
            pages += entries[entries["points"] == _OTHER_PAGE][["offset", "bytes"]].tolist()
            found.append(entries[entries["points"] > 0])
    nodes = np.concatenate(found)
    nodes = nodes[np.argsort(nodes["offset"], kind="stable")]
    number = int(nodes["points"].sum(dtype=np.int64))
    if number != source.contents.num_points:
        raise ValueError(
            f"{source.path}: the header promises {source.contents.num_points} points, but the octree has {number}; "
            "write .laz"
        )
    return nodes
