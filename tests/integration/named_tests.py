"""Reads the tables of documents whose last column names tests, and checks whether the tests exist.

A cell has the form `file`: `name`, `name`; `file`: `name`. The files' paths are relative to tests/.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"


class Row(NamedTuple):
    line: int
    cells: tuple[str, ...]

    @property
    def subject(self) -> str:
        return self.cells[0]

    @property
    def tests(self) -> str:
        return self.cells[-1]


def rows(document: str) -> list[Row]:
    """Returns the rows of all tables of a document (its path from the repository's root), without their headings."""
    found: list[Row] = []
    lines = (ROOT / document).read_text(encoding="utf-8").splitlines()
    columns = 0
    for number, line in enumerate(lines, 1):
        if not line.startswith("|"):
            columns = 0
            continue
        cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
        if columns == 0:
            columns = len(cells)  # the heading
        elif set(line) != set("|-"):
            assert len(cells) == columns, f"{document}, line {number} has {len(cells)} columns"
            found.append(Row(number, cells))
    return found


def named_tests(cell: str) -> list[tuple[str, str]]:
    """Returns file and name of each test in a cell."""
    named = []
    for part in cell.split("; "):
        form = re.fullmatch(r"`([\w/]+\.(?:py|cc))`: (`[\w.]+`(?:, `[\w.]+`)*)", part)
        assert form, f"not of the form `file`: `name`, `name`: {part}"
        named += [(form[1], name) for name in re.findall(r"`([\w.]+)`", form[2])]
    return named


def exists(file: str, name: str) -> bool:
    """Returns whether the file, relative to tests/, has the test."""
    path = TESTS / file
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return re.search(rf"^def {re.escape(name)}\(", text, re.MULTILINE) is not None
    if path.parent.name == "fuzz":
        fuzzer = path.stem.removesuffix("_fuzz")
        built = f"voxserve_fuzz({fuzzer} " in (path.parent / "CMakeLists.txt").read_text(encoding="utf-8")
        defined = f"FUZZER({fuzzer}) " in text
        return name == f"fuzz_{fuzzer}" and built and defined and any((path.parent / "corpus" / fuzzer).iterdir())
    suite, _, test = name.partition(".")
    return re.search(rf"^TEST(?:_F|_P)?\({suite},\s+{test}\)", text, re.MULTILINE) is not None


def missing_tests(cell: str) -> list[str]:
    """Returns those of a cell's tests that do not exist."""
    return [f"{file}: {name}" for file, name in named_tests(cell) if not exists(file, name)]
