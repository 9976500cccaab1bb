"""Writes the codes of points alone, as the files that voxserve.label_file describes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from voxserve.pieces.reader import Array, Piece, PieceReader
from voxserve.pieces.writer import PieceWriter


class LabelWriter(PieceWriter):
    """Writes a .label file (uint32 a point) or an .npy file (uint8 or uint16 [N])."""

    def __init__(
        self, path: str, temporary: str, source: PieceReader, legend: Mapping[int, str], *, keeps_codes: bool
    ) -> None:
        self.notes = []
        number = source.contents.num_points
        is_wide = max(legend, default=0) > 255
        self._dtype = np.dtype("<u4" if path.lower().endswith(".label") else "<u2" if is_wide else "|u1")
        self._file = Path(temporary).open("wb")  # noqa: SIM115  # closed by close()
        if path.lower().endswith(".npy"):
            header = {"descr": self._dtype.str, "fortran_order": False, "shape": (number,)}
            np.lib.format.write_array_header_1_0(self._file, header)

    def write(self, piece: Piece, codes: Array, confidence: Array) -> None:
        self._file.write(codes.astype(self._dtype).tobytes())

    def close(self) -> None:
        self._file.close()
