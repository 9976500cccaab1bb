"""Checks that every test that server/THREATS.md names exists, so that no row claims a protection without a test."""

from __future__ import annotations

import pytest
from named_tests import TESTS, Row, exists, missing_tests, named_tests, rows

ROWS = rows("server/THREATS.md")


def test_the_table_is_read() -> None:
    assert len(ROWS) > 30
    assert len({row.subject for row in ROWS}) == len(ROWS)
    assert all(len(row.cells) == 3 and all(row.cells) for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.subject)
def test_each_threat_names_tests_that_exist(row: Row) -> None:
    assert missing_tests(row.tests) == [], f"line {row.line}"


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("integration/test_threats.py", "test_nothing"),
        ("integration/test_none.py", "test_the_table_is_read"),
        ("server/http/http_server_test.cc", "HttpServerTest.Serves"),
        ("server/http/http_server_test.cc", "Other.ServesMetrics"),
        ("fuzz/http_fuzz.cc", "fuzz_pcd"),
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
