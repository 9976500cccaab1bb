"""Makes text of servers and files fit for a terminal, where control characters could move the cursor, hide text or
forge lines of a command. Errors and commands use it for all text that is not their own; results keep the text.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

Value = TypeVar("Value")


def printable(text: str) -> str:
    r"""Returns the text with escapes ("\x1b", "\n", "\u202e") in place of what is no printable character: control
    characters, line ends, characters that change the direction of text, halves of surrogate pairs.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Returns the text with each line printable."""
    return "\n".join(map(printable, text.split("\n")))


def with_printable_texts(value: Value) -> Value:
    """Returns the value with every text in it printable: in dataclasses, lists, tuples and dicts, at any depth."""
    made: object = value
    if isinstance(value, str):
        made = printable(value)
    elif isinstance(value, list | tuple):
        made = type(value)(map(with_printable_texts, value))
    elif isinstance(value, dict):
        made = {with_printable_texts(key): with_printable_texts(each) for key, each in value.items()}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        made = dataclasses.replace(value, **{name: with_printable_texts(each) for name, each in fields.items()})
    return made  # type: ignore[return-value]
