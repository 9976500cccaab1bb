"""Reads and writes tables with pyarrow: Parquet, and Feather (Arrow IPC), as Argoverse 2 stores its sweeps.

The coordinates are the columns x, y and z, in any case. A written copy has every column of the input unchanged, also
those that are no numbers. The legend is in the schema's metadata, as JSON under the key voxserve.legend.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from voxserve.pieces.reader import SHARES, Array, Contents, Piece, PieceReader, check_file, damaged, legend_of, library
from voxserve.pieces.writer import BEFORE, CLASSIFICATION, CONFIDENCE, PieceWriter

ENDINGS = (".feather", ".parquet")
_LEGEND = b"voxserve.legend"
_COORDINATES = ("x", "y", "z")
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}  # the names that Arrow has for them


class TableReader(PieceReader):
    """Reads a .feather or .parquet file. ValueError if it is damaged, or has no columns x, y and z."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._pyarrow: Any = library("pyarrow")
        self._is_parquet = self.path.lower().endswith(".parquet")
        check_file(path)
        try:
            self._file = self._open()
            number, missing = (self._file.metadata.num_rows, None) if self._is_parquet else self._count()
        except Exception as error:  # ArrowInvalid, OSError of a damaged footer, ...
            raise damaged(path, error) from None
        self.schema: Any = self._file.schema_arrow if self._is_parquet else self._file.schema
        self._axes = [next((n for n in self.schema.names if n.lower() == axis), "") for axis in _COORDINATES]
        if "" in self._axes:
            axis = _COORDINATES[self._axes.index("")]
            raise ValueError(f"{self.path}: there is no column '{axis}'; the file has {', '.join(self.schema.names)}")
        self.contents = self._contents(number, missing)

    def _open(self) -> Any:
        if self._is_parquet:
            return library("pyarrow.parquet").ParquetFile(self.path)
        return self._pyarrow.ipc.open_file(self._pyarrow.memory_map(self.path))

    def _count(self) -> tuple[int, set[str]]:
        """Returns the number of points of a Feather file, and the columns that have missing values. Reads all of it."""
        number, missing = 0, set[str]()
        for batch in self._batches(0):
            number += batch.num_rows
            columns = zip(batch.schema.names, batch.columns, strict=True)
            missing.update(name for name, column in columns if column.null_count)
        return number, missing

    def _contents(self, number: int, missing: set[str] | None) -> Contents:
        """missing: the columns that have missing values; None if they are not known yet."""
        types = self._pyarrow.types
        dtypes: dict[str, np.dtype[Any]] = {}
        for field in self.schema:
            if field.name in self._axes:
                continue
            if types.is_integer(field.type) or types.is_floating(field.type):
                dtypes[field.name] = np.dtype(_FLOATS.get(str(field.type), str(field.type)))
            elif types.is_boolean(field.type):
                dtypes[field.name] = np.dtype(np.uint8)
            elif types.is_decimal(field.type):
                dtypes[field.name] = np.dtype(np.float64)
        largest = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0}
        ranges = {n: (0.0, largest[d]) for n, d in dtypes.items() if n.lower() in SHARES and d in largest}
        integers = {name: dtype for name, dtype in dtypes.items() if dtype.kind != "f"}
        missing = self._with_missing(list(integers)) if missing is None else missing
        integers = {name: dtype for name, dtype in integers.items() if name in missing}
        dtypes.update(dict.fromkeys(integers, np.dtype(np.float64)))  # which has NaN for a missing value
        legend = legend_of((self.schema.metadata or {}).get(_LEGEND, b""))
        return Contents(number, dtypes, ranges, integers, legend=legend)

    def _with_missing(self, names: list[str]) -> set[str]:
        """Returns those of these columns of a Parquet file that have missing values."""
        metadata, found, unknown = self._file.metadata, set(), set()
        for group in (metadata.row_group(i) for i in range(metadata.num_row_groups)):
            for chunk in (group.column(i) for i in range(group.num_columns)):
                if chunk.statistics is None or not chunk.statistics.has_null_count:
                    unknown.add(chunk.path_in_schema)
                elif chunk.statistics.null_count:
                    found.add(chunk.path_in_schema)
        read = [name for name in names if name in unknown - found]
        batches = self._file.iter_batches(columns=read) if read else ()
        return {*found.intersection(names), *(n for batch in batches for n in read if batch.column(n).null_count)}

    def _pieces(self, num_points: int) -> Iterator[Piece]:
        for batch in self._batches(num_points):
            for first in range(0, batch.num_rows, num_points):
                yield self._piece(batch.slice(first, num_points))

    def _batches(self, num_points: int) -> Iterator[Any]:
        if self._is_parquet:
            yield from self._file.iter_batches(batch_size=num_points)
            return
        for index in range(self._file.num_record_batches):
            yield self._file.get_batch(index)

    def _piece(self, batch: Any) -> Piece:
        def column(name: str) -> Array:
            values = batch.column(name)
            if self._pyarrow.types.is_boolean(values.type):
                values = values.cast(self._pyarrow.uint8())
            elif self._pyarrow.types.is_decimal(values.type):
                values = values.cast(self._pyarrow.float64())
            found = np.asarray(values.to_numpy(zero_copy_only=False))
            return found.astype(self.contents.dtypes.get(name, found.dtype), copy=False)

        return Piece(np.stack([column(axis).astype(np.float64) for axis in self._axes], axis=1), column, batch)


class TableWriter(PieceWriter):
    """Writes a .feather or .parquet file."""

    @classmethod
    def check(cls, path: str, source: PieceReader) -> None:
        library("pyarrow")

    def __init__(
        self, path: str, temporary: str, source: PieceReader, legend: Mapping[int, str], *, keeps_codes: bool
    ) -> None:
        self._pyarrow: Any = library("pyarrow")
        arrow = self._pyarrow
        self.notes: list[str] = []
        self._is_copy = isinstance(source, TableReader)
        old = source.schema if isinstance(source, TableReader) else self._made(source)
        own = next((name for name in old.names if name.lower() == CLASSIFICATION), None)
        fields, self._sources = [], []
        for field in old:
            if field.name.lower() == CONFIDENCE or (field.name == own and not keeps_codes):
                continue
            self._sources.append(field.name)
            fields.append(field.with_name(BEFORE) if field.name == own else field)
        code = arrow.uint8() if max(legend, default=0) < 256 else arrow.uint16()
        fields += [arrow.field(CLASSIFICATION, code), arrow.field(CONFIDENCE, arrow.float32())]
        metadata = {**(old.metadata or {}), _LEGEND: json.dumps({str(c): n for c, n in legend.items()}).encode()}
        self._schema = arrow.schema(fields, metadata)
        if path.lower().endswith(".parquet"):
            self._writer: Any = library("pyarrow.parquet").ParquetWriter(temporary, self._schema)
        else:
            options = arrow.ipc.IpcWriteOptions(compression="lz4")
            self._writer = arrow.ipc.new_file(temporary, self._schema, options=options)

    def _made(self, source: PieceReader) -> Any:
        arrow = self._pyarrow
        fields = [arrow.field(axis, arrow.float64()) for axis in _COORDINATES]
        for name, dtype in source.contents.dtypes.items():
            if dtype.shape:
                self.notes.append(f"the column '{name}' ({dtype}) has no place in this file")
                continue
            fields.append(arrow.field(name, arrow.from_numpy_dtype(dtype)))
        return arrow.schema(fields)

    def write(self, piece: Piece, codes: Array, confidence: Array) -> None:
        arrow = self._pyarrow
        arrays = []
        for name in self._sources:
            if self._is_copy:
                arrays.append(piece.record.column(name))
            elif name in _COORDINATES:
                arrays.append(arrow.array(piece.xyz[:, _COORDINATES.index(name)]))
            else:
                arrays.append(arrow.array(piece.column(name)))
        for values in (codes, np.asarray(confidence, np.float32)):
            kind = self._schema.types[len(arrays)]
            arrays.append(arrow.array(values).cast(kind))
        self._writer.write_batch(arrow.record_batch(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()
