"""Formats values as parts of a protobuf message in text format."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence

import numpy as np


def quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def number(value: float) -> str:
    return repr(float(np.float32(value))) if value == float(np.float32(value)) else repr(float(value))


def numbers(values: Sequence[float]) -> str:
    return f"[{', '.join(map(number, values))}]"


def sizes(values: Sequence[int]) -> str:
    return f"[{', '.join(map(str, values))}]"


def comment(text: str) -> str:
    lines = [line for paragraph in text.splitlines() for line in textwrap.wrap(paragraph, 116) or [""]]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)
