"""Tests that text of servers and files is fit for a terminal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import pytest

from voxserve import errors
from voxserve.printable import printable, printable_lines, with_printable_texts

CLEAR = "\x1b[2J\u009b31m\x07"
FORGED = "a\r\nvoxserve: done\u2028\u202egnp"


@pytest.mark.parametrize("text", ["", "minkunet 1, 'road' \\ 100%", "Fußgänger 行人 🚗 é"])
def test_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_control_characters_are_escaped() -> None:
    assert printable(CLEAR) == "\\x1b[2J\\x9b31m\\x07"
    assert printable(FORGED) == "a\\r\\nvoxserve: done\\u2028\\u202egnp"
    assert printable_lines("a\nb\x1b") == "a\nb\\x1b"
    assert printable("\udcff\x7f\0") == "\\udcff\\x7f\\x00"


def test_texts_at_any_depth_are_escaped() -> None:
    @dataclass(frozen=True)
    class Inner:
        name: str
        array: Any = None

    @dataclass(frozen=True)
    class Outer:
        inner: tuple[Inner, ...]
        by_name: dict[str, list[str]] = field(default_factory=dict)
        number: float = 1.5

    array = np.zeros(3)
    made = with_printable_texts(Outer((Inner("\x1b", array),), {"\n": ["\x07", "x"]}))
    assert made == Outer((Inner("\\x1b", made.inner[0].array),), {"\\n": ["\\x07", "x"]})
    assert made.inner[0].array is array, "arrays are not copied"


def test_an_error_prints_what_is_printable_and_keeps_its_message() -> None:
    error = errors.make(grpc.StatusCode.NOT_FOUND, f"no model {CLEAR}", "MODEL_NOT_FOUND")
    assert str(error) == "no model \\x1b[2J\\x9b31m\\x07 [MODEL_NOT_FOUND]"
    assert error.message == f"no model {CLEAR}"
