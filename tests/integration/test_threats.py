"""Checks that every test that server/THREATS.md names exists, so that no row claims what nothing covers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"


class Row(NamedTuple):
    line: int
    threat: str
    defence: str
    tests: str


def rows(text: str) -> list[Row]:
    """Returns the rows of all tables of a document, without their headings."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells != ["threat", "what stops it", "test"] and set(line) != set("|-"):
            assert len(cells) == 3, f"line {number} has {len(cells)} columns"
            found.append(Row(number, *cells))
    return found


ROWS = rows((ROOT / "server" / "THREATS.md").read_text(encoding="utf-8"))


def named_tests(cell: str) -> list[tuple[str, str]]:
    """Returns file and name of each test in a cell: `file`: `name`, `name`; `file`: `name`."""
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
        return name == f"fuzz_{fuzzer}_test" and built and any((path.parent / "corpus" / fuzzer).iterdir())
    suite, _, test = name.partition(".")
    return re.search(rf"^TEST(?:_F|_P)?\({suite},\s+{test}\)", text, re.MULTILINE) is not None


def test_the_table_is_read() -> None:
    assert len(ROWS) > 30
    assert len({row.threat for row in ROWS}) == len(ROWS)
    assert all(row.threat and row.defence for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.threat)
def test_each_threat_names_tests_that_exist(row: Row) -> None:
    missing = [f"{file}: {name}" for file, name in named_tests(row.tests) if not exists(file, name)]
    assert missing == [], f"line {row.line}"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("integration/test_threats.py", "test_nothing"),
        ("integration/test_none.py", "test_the_table_is_read"),
        ("server/http/http_server_test.cc", "HttpServerTest.Serves"),
        ("server/http/http_server_test.cc", "Other.ServesMetrics"),
        ("fuzz/http_fuzz.cc", "fuzz_pcd_test"),
    ],
)
def test_a_test_that_is_gone_is_noticed(file: str, name: str) -> None:
    assert not exists(file, name)


def test_every_fuzzer_and_every_attack_is_in_the_table() -> None:
    named = {file for row in ROWS for file, _ in named_tests(row.tests)}
    fuzzers = {f"fuzz/{file.name}" for file in (TESTS / "fuzz").glob("*_fuzz.cc")}
    attacks = {f"hostile/{file.name}" for file in (TESTS / "hostile").glob("test_*.py")}
    assert fuzzers
    assert attacks
    assert fuzzers | attacks <= named
