"""The interface of the files that labelled points are written to."""

from __future__ import annotations

from voxserve.pieces.reader import Array, Piece

CLASSIFICATION = "classification"
CONFIDENCE = "confidence"
BEFORE = "classification_before"  # the input's own codes, if it has some


class PieceWriter:
    """Writes one file, piece by piece, with two more columns: classification, the codes of the legend, and confidence,
    0 to 1. A subclass implements write() and close(). The file is complete after close().
    """

    notes: list[str]  # what of the input has no place in the file

    def write(self, piece: Piece, codes: Array, confidence: Array) -> None:
        """Writes the next points. codes: integers [N]; confidence: float32 [N]."""
        raise NotImplementedError

    def close(self) -> None:
        """Completes the file."""
        raise NotImplementedError
