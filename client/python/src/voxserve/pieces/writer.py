"""The interface of the files that labelled points are written to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from voxserve.pieces.reader import Array, Piece, PieceReader

CLASSIFICATION = "classification"
CONFIDENCE = "confidence"
BEFORE = "classification_before"  # the input's own codes, if it has some


class PieceWriter:
    """Writes one file, piece by piece, with two more columns: classification, the codes of the legend, and confidence,
    0 to 1. A subclass implements write() and close(). The file is complete after close().

    path: the file's name; temporary: where it is written. legend: the names of the codes. keeps_codes: the input has
    codes, which the copy keeps in classification_before.
    """

    notes: list[str]  # what of the input has no place in the file
    passes = 1  # over all points, until the file is complete

    def __init__(
        self, path: str, temporary: str, source: PieceReader, legend: Mapping[int, str], *, keeps_codes: bool
    ) -> None:
        raise NotImplementedError

    @classmethod
    def check(cls, path: str, source: PieceReader) -> None:
        """Raises ValueError if a file of this kind cannot be written, or cannot hold the points of `source`."""

    def write(self, piece: Piece, codes: Array, confidence: Array) -> None:
        """Writes the next points. codes: integers [N]; confidence: float32 [N]."""
        raise NotImplementedError

    def arrange(self, tell: Callable[[int], None]) -> None:
        """Does what is left after the last point where `passes` is 2, and tells how many points are done."""

    def close(self) -> None:
        """Completes the file."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Closes the file, which is incomplete and will be removed."""
        self.close()
