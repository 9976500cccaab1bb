"""Parses numbers that users and files write. int() and float() also take white space around the number, a plus sign,
underscores between its digits, digits of other scripts, and float() "nan" and "inf".
"""

from __future__ import annotations

import re

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_REAL = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def integer(text: str) -> int:
    """Returns the value of a decimal integer of at most 18 digits; ValueError for any other text."""
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"'{text}' is no whole number")
    return int(text)


def real(text: str) -> float:
    """Returns the value of a decimal number such as 12, -0.5 and 1e-3; ValueError for any other text."""
    if not _REAL.fullmatch(text):
        raise ValueError(f"'{text}' is no number")
    return float(text)
