"""Checks that each row of server/COMPARISON.md names tests that exist, or a reason."""

from __future__ import annotations

import pytest
from named_tests import Row, missing_tests, rows

ROWS = rows("server/COMPARISON.md")
REASON = "None: "


def test_the_tables_are_read() -> None:
    assert len(ROWS) > 40
    assert len({row.subject for row in ROWS}) == len(ROWS)
    assert all(all(row.cells) for row in ROWS)
    assert {len(row.cells) for row in ROWS} == {4, 5}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.subject)
def test_each_row_has_a_test_or_a_reason(row: Row) -> None:
    if row.tests.startswith(REASON):
        assert len(row.tests.split()) > 5, "a reason is a sentence"
    else:
        assert missing_tests(row.tests) == [], f"line {row.line}"
