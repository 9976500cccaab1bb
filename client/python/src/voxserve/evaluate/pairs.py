"""Compares the classification of point files with that of other files of the same points.

Two codes are equal if their names in the files' legends are; a file without a legend has that of the other one. In
folders, a file's partner is at the same place, whatever its extension. All points are pooled before IoUs are computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve import pieces, readers, storage
from voxserve.cli.scan_jobs import find_files
from voxserve.evaluate import classes, segmentation
from voxserve.evaluate.truth import DatasetError
from voxserve.pieces import Piece, PieceReader
from voxserve.results import ClassInfo

_PIECE = 1 << 20
_LARGEST_CODE = (1 << 31) - 1
_TOLERANCE = 0.002  # metres by which the coordinates of a point may differ in the two files, beside their rounding


@dataclass
class Pairs:
    """The codes of all points that were compared."""

    counts: Counter[tuple[int, int]] = field(default_factory=Counter)  # points by their true and their found code
    found_names: dict[int, str] = field(default_factory=dict)
    truth_names: dict[int, str] = field(default_factory=dict)
    num_files: int = 0
    num_points: int = 0

    def add(self, found: PieceReader, truth: PieceReader, found_field: str, truth_field: str) -> None:
        """Adds the points of two files. DatasetError if they have not the same points in the same order, lack the
        column of codes, or have values in it that are no codes.
        """
        if found.contents.num_points != truth.contents.num_points:
            raise DatasetError(
                f"{found.path} has {found.contents.num_points} points, but {truth.path} {truth.contents.num_points}"
            )
        columns = _column(found, found_field), _column(truth, truth_field)
        for own, others in _in_step(found, truth):
            if not np.allclose(own.xyz, others.xyz, rtol=1e-9, atol=_TOLERANCE, equal_nan=True):
                raise DatasetError(f"{found.path} and {truth.path} have other points, or these in another order")
            codes = _codes(found, own, columns[0]), _codes(truth, others, columns[1])
            keys, numbers = np.unique(codes[1] << 32 | codes[0], return_counts=True)
            for key, number in zip(keys.tolist(), numbers.tolist(), strict=True):
                self.counts[key >> 32, key & 0xFFFFFFFF] += number
            self.num_points += len(own)
        self.found_names |= found.contents.legend
        self.truth_names |= truth.contents.legend if truth_field != pieces.BEFORE else {}
        self.num_files += 1

    def report(self, ignored: Sequence[int], chosen: Mapping[str, Sequence[str]] | None) -> dict[str, Any]:
        """Returns the measures as values that JSON can hold. ignored: true codes that do not count. chosen: for each
        found class, the true classes that it stands for. ValueError if no class matches.
        """
        found_names = self.found_names or self.truth_names
        truth_names = self.truth_names or self.found_names
        found_codes = sorted({code for _, code in self.counts} | set(found_names))
        truth_codes = sorted({code for code, _ in self.counts} - set(ignored))
        infos = [ClassInfo(code, found_names.get(code, str(code)), (0, 0, 0)) for code in found_codes]
        names = {code: truth_names.get(code, str(code)) for code in truth_codes}
        match = classes.match(names.values(), {}, infos, chosen, has_numbers=True)
        place = {code: row for row, code in enumerate(found_codes)}
        matrix = np.zeros((len(infos), len(infos) + 1), np.int64)
        not_counted: Counter[str] = Counter()
        for (true, found), number in self.counts.items():
            if true in ignored:
                continue
            code = match.ids.get(str(true), match.ids.get(names.get(true, "")))
            if code is None:
                not_counted[names.get(true, str(true))] += number
                continue
            matrix[place[code], place[found]] += number
        judged = np.isin(found_codes, list(match.ids.values()))
        scores = segmentation.scores(matrix, judged)
        shown = [row for row in range(len(infos)) if scores.points[row] or matrix[:, row].sum()]
        return {
            "files": self.num_files,
            "points": self.num_points,
            "not_counted": dict(not_counted.most_common()),
            "count": int(scores.points.sum()),
            "mIoU": segmentation.known(scores.mean_iou),
            "accuracy": segmentation.known(scores.accuracy),
            "classes": [
                {
                    "code": infos[row].id,
                    "name": infos[row].name,
                    "count": int(scores.points[row]),
                    "iou": segmentation.known(scores.ious[row]),
                    "precision": segmentation.known(scores.precisions[row]),
                    "recall": segmentation.known(scores.recalls[row]),
                }
                for row in shown
            ],
            "confusion": matrix[np.ix_(shown, shown)].tolist(),  # rows are the true class
        }


def evaluate(
    found: str,
    truth: str,
    found_field: str = "",
    truth_field: str = "",
    ignored: Sequence[int] = (),
    chosen: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Compares two files or two folders, and returns the report. OSError, ValueError."""
    pairs = Pairs()
    for own, other in _partners(found, truth):
        with pieces.open_reader(own) as first, pieces.open_reader(other) as second:
            pairs.add(first, second, found_field, truth_field)
    return {"found": found, "truth": truth, **pairs.report(ignored, chosen)}


def _partners(found: str, truth: str) -> list[tuple[str, str]]:
    if not storage.is_folder(found):
        if storage.is_folder(truth):
            raise DatasetError(f"{found} is a file, but {truth} is a folder")
        return [(found, truth)]
    others = {each.relative(""): each.path for each in find_files([truth], readers.is_point_cloud_file)}
    partners = []
    for each in find_files([found], readers.is_point_cloud_file):
        if each.relative("") not in others:
            raise DatasetError(f"{each.path} has no partner {each.relative('')}.* in {truth}")
        partners.append((each.path, others[each.relative("")]))
    return partners


def _column(reader: PieceReader, name: str) -> str:
    column = name or reader.contents.codes
    dtype = reader.contents.dtypes.get(column)
    if dtype is None or dtype.kind not in "iuf" or dtype.shape:
        wanted = f"numbers '{name}'" if name else "classification"
        raise DatasetError(f"{reader.path}: there is no column of {wanted}; it has {', '.join(reader.contents.dtypes)}")
    return column


def _codes(reader: PieceReader, piece: Piece, column: str) -> npt.NDArray[np.int64]:
    """Returns the codes of a piece. DatasetError if a value is missing, negative or no whole number."""
    values = piece.column(column)
    wrong = ~((values >= 0) & (values <= _LARGEST_CODE) & (values == np.floor(values)))
    if wrong.any():
        raise DatasetError(
            f"{reader.path}: the column {column} has the value {values[wrong.argmax()]}, and codes are whole numbers "
            f"from 0 to {_LARGEST_CODE}; give points without a class a code of their own, and name it in --ignore"
        )
    return values.astype(np.int64)


def _in_step(first: PieceReader, second: PieceReader) -> Iterator[tuple[Piece, Piece]]:
    """Yields the pieces of two files with equally many points, the same points of both."""
    others, parts = second.pieces(_PIECE), list[Piece]()
    for piece in first.pieces(_PIECE):
        while sum(map(len, parts)) < len(piece):
            parts.append(next(others))
        whole = _joined(parts)
        yield piece, _rows(whole, slice(0, len(piece)))
        parts = [_rows(whole, slice(len(piece), None))] if len(whole) > len(piece) else []
    for _ in others:  # so that the reader checks the end of its file
        pass


def _joined(parts: Sequence[Piece]) -> Piece:
    if len(parts) == 1:
        return parts[0]
    xyz = np.concatenate([part.xyz for part in parts])
    return Piece(xyz, lambda name: np.concatenate([part.column(name) for part in parts]))


def _rows(piece: Piece, rows: slice) -> Piece:
    return piece if rows == slice(0, len(piece)) else Piece(piece.xyz[rows], lambda name: piece.column(name)[rows])


def format_report(report: dict[str, Any]) -> str:
    """Returns a report as text for people."""
    text = f"{report['found']} against {report['truth']}: {report['files']} files, {report['points']:,} points\n"
    if report["not_counted"]:
        text += f"  did not count: {', '.join(f'{n} ({c:,})' for n, c in report['not_counted'].items())}\n"
    text += f"\nmIoU {_number(report['mIoU'])}, accuracy {_number(report['accuracy'])} of {report['count']:,} points\n"
    text += f"  {'class':<30}{'points':>14}{'IoU':>8}{'precision':>11}{'recall':>8}\n"
    for row in report["classes"]:
        text += f"  {row['code']:>5} {row['name']:<24}{row['count']:>14,}{_number(row['iou']):>8}"
        text += f"{_number(row['precision']):>11}{_number(row['recall']):>8}\n"
    text += f"\n  {'points, true class by row':<30}" + "".join(f"{row['code']:>11}" for row in report["classes"]) + "\n"
    for row, numbers in zip(report["classes"], report["confusion"], strict=True):
        text += f"  {row['code']:>5} {row['name']:<24}" + "".join(f"{number:>11,}" for number in numbers) + "\n"
    return text


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
