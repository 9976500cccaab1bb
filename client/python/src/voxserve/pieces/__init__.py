"""Reads and writes large point files in pieces.

    .las .laz           LAS, LAZ and COPC (voxserve.pieces.las)
    .copc.laz           written as COPC (voxserve.pieces.copc)
    .e57                voxserve.pieces.e57, written by voxserve.pieces.e57_writer
    .feather .parquet   tables with the columns x, y and z (voxserve.pieces.table); .parquet also Waymo's range images
                        (voxserve.pieces.waymo)
    .ply .pcd           voxserve.pieces.cloud
    .bin .npy           only read, as voxserve.read does
    .label, .npy        only written: the codes alone (voxserve.label_file)

The libraries are optional: pip install 'voxserve[maps]'.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from voxserve import label_file
from voxserve.field_spec import FieldSpec
from voxserve.pieces import copc, e57, las, table, waymo
from voxserve.pieces.cloud import CloudReader, CloudWriter
from voxserve.pieces.e57_writer import E57Writer
from voxserve.pieces.labels import LabelWriter
from voxserve.pieces.reader import Piece, PieceReader
from voxserve.pieces.writer import BEFORE, CLASSIFICATION, CONFIDENCE, PieceWriter

__all__ = [
    "BEFORE",
    "CLASSIFICATION",
    "CONFIDENCE",
    "Piece",
    "PieceReader",
    "PieceWriter",
    "check_writable",
    "ending_of",
    "is_writable",
    "open_reader",
    "open_writer",
    "remove_abandoned",
]


def _open_table(path: str | os.PathLike[str]) -> PieceReader:
    is_waymo = os.fspath(path).lower().endswith(".parquet") and waymo.has_range_images(path)
    return waymo.WaymoReader(path) if is_waymo else table.TableReader(path)


_READERS: dict[tuple[str, ...], Callable[[str | os.PathLike[str]], PieceReader]] = {
    las.ENDINGS: las.LasReader,
    e57.ENDINGS: e57.E57Reader,
    table.ENDINGS: _open_table,
}
_WRITERS: dict[tuple[str, ...], type[PieceWriter]] = {
    copc.ENDINGS: copc.CopcWriter,  # before .laz
    las.ENDINGS: las.LasWriter,
    table.ENDINGS: table.TableWriter,
    e57.ENDINGS: E57Writer,
    (".ply", ".pcd"): CloudWriter,
}
WRITABLE = tuple(ending for endings in _WRITERS for ending in endings)


def ending_of(path: str | os.PathLike[str]) -> str:
    """Returns the extension of a path in lower case, such as ".copc.laz"."""
    name = os.fspath(path).lower()
    return next((ending for ending in WRITABLE if name.endswith(ending)), Path(name).suffix)


def is_writable(path: str | os.PathLike[str]) -> bool:
    """Returns whether open_writer() knows the file's extension."""
    return os.fspath(path).lower().endswith(WRITABLE) or label_file.is_label_file(path)


def open_reader(path: str | os.PathLike[str], spec: FieldSpec | None = None) -> PieceReader:
    """Opens a point file, whose extension tells its kind. spec: the layout of a .bin file. OSError if it cannot be
    read; ValueError, with the file's name, if it is damaged or its library is not installed.
    """
    name = os.fspath(path).lower()
    for endings, reader in _READERS.items():
        if name.endswith(endings):
            return reader(path)
    return CloudReader(path, spec)


@contextmanager
def open_writer(
    path: str, source: PieceReader, legend: Mapping[int, str], *, keeps_codes: bool
) -> Iterator[PieceWriter]:
    """Yields a writer of a copy of `source`. At the end of the block the file replaces that at `path`. If the block
    raises an error, nothing is left.

    legend: the names of the codes. keeps_codes: the input has codes, which the copy keeps in classification_before.
    """
    temporary = f"{path}.{os.getpid()}.part"
    try:
        check_writable(path, source)
        writer = _writer_of(path)(path, temporary, source, legend, keeps_codes=keeps_codes)
        try:
            yield writer
        except BaseException:
            with suppress(Exception):  # the file is incomplete, of which the writer may complain
                writer.abandon()
            raise
        writer.close()
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def remove_abandoned(path: str) -> None:
    """Removes the incomplete files that open_writer() left for this path, since its process was killed. Those of
    processes that run stay.
    """
    target = Path(path)
    name = re.compile(re.escape(target.name) + r"\.([0-9]+)\.part")
    for file in target.parent.iterdir():
        if (found := name.fullmatch(file.name)) and not _runs(int(found[1])) and file.is_file():
            file.unlink(missing_ok=True)


def _runs(process_id: int) -> bool:
    """Returns whether a process with this id runs on this machine; True if that is not known."""
    if os.name != "posix":  # where this signal would end the process
        return True
    try:
        os.kill(process_id, 0)
    except (ProcessLookupError, OverflowError):  # OverflowError: no process has such a number
        return False
    except PermissionError:  # it is another user's
        return True
    return True


def check_writable(path: str, source: PieceReader) -> None:
    """Raises ValueError if open_writer() cannot write a copy of `source`: its library is not installed, or the format
    has no place for the points.
    """
    _writer_of(path).check(path, source)


def _writer_of(path: str) -> type[PieceWriter]:
    return next((writer for endings, writer in _WRITERS.items() if path.lower().endswith(endings)), LabelWriter)
