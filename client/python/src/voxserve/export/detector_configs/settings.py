"""Reads the settings of a training configuration one by one, and remembers which ones were read.

A setting that nobody read could change what a network answers, so finish() refuses it by its name. All problems of a
file are collected, and reported together.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_NOT_GIVEN: Any = object()


@dataclass(frozen=True)
class Unreadable:
    """A setting's value that only running code would give; no code is run. reason: a text with file and line."""

    reason: str


@dataclass
class Report:
    """The problems and notes that the reader of a configuration has found."""

    problems: list[str] = field(default_factory=list)  # each refuses the file
    notes: list[str] = field(default_factory=list)  # what a client must do with clouds, such as scaling


class Settings:
    """The settings of one section of a configuration. Each method takes a setting's key, and returns its value. If the
    value is missing or wrong, it adds a problem to the report and returns a value of the right type, so that reading
    can go on.
    """

    def __init__(self, values: Any, path: str, report: Report, *, is_missing: bool = False) -> None:
        """path: the section's place in the file, such as "MODEL.VFE"; "" for the whole file."""
        self.path = path
        self.report = report
        self._is_missing = is_missing  # the lack of the section itself was reported
        self._values: dict[str, Any] = {}
        self._read: set[str] = set()
        if isinstance(values, Mapping):
            self._values = {str(key): value for key, value in values.items()}
        elif isinstance(values, Unreadable):
            self.problem("", values.reason)
            self._is_missing = True
        else:
            self.problem("", f"is {_short(values)}, not settings by name")
            self._is_missing = True

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def problem(self, key: str, text: str) -> None:
        self.report.problems.append(f"{self.place(key)} {text}".strip())

    def place(self, key: str) -> str:
        return ".".join(part for part in (self.path, key) if part)

    def section(self, key: str) -> Settings:
        """Returns a section; an empty one if it is missing."""
        value = self._take(key, _NOT_GIVEN)
        return Settings({} if value is None else value, self.place(key), self.report, is_missing=value is None)

    def optional_section(self, key: str) -> Settings:
        """Returns a section; one without settings if the file has none."""
        value = self._take(key, None)
        return Settings({} if value is None else value, self.place(key), self.report)

    def sections(self, key: str) -> list[Settings]:
        values = self.items(key, _NOT_GIVEN)
        return [Settings(value, f"{self.place(key)}[{i}]", self.report) for i, value in enumerate(values)]

    def raw(self, key: str) -> Any:
        """Returns a value unchanged from the file; None if the file has no such setting."""
        return self._take(key, None)

    def readable(self, key: str) -> Any:
        """Returns a value unchanged from the file; None if the file has no such setting, or only code would give it."""
        self._read.add(key)
        value = self._values.get(key)
        return None if isinstance(value, Unreadable) else value

    def items(self, key: str, default: Any = _NOT_GIVEN) -> Sequence[Any]:
        """Returns a list with values of any type."""
        value = self._take(key, default)
        if value is not None and not isinstance(value, (list, tuple)):
            self.problem(key, f"is {_short(value)}, not a list")
            value = None
        return () if value is None else value

    def text(self, key: str, default: Any = _NOT_GIVEN) -> str:
        value = self._take(key, default)
        if value is not None and not isinstance(value, str):
            self.problem(key, f"is {_short(value)}, not a text")
            value = None
        return "" if value is None else value

    def type(self, key: str = "type", default: Any = _NOT_GIVEN) -> str:
        """Returns the name of a class without its package or scope: SECOND for mmdet3d.SECOND."""
        return self.text(key, default).rpartition(".")[2]

    def flag(self, key: str, default: Any = _NOT_GIVEN) -> bool:
        value = self._take(key, default)
        if value is not None and not isinstance(value, bool):
            self.problem(key, f"is {_short(value)}, not True or False")
            value = None
        return bool(value)

    def number(self, key: str, default: Any = _NOT_GIVEN) -> float:
        value = self._take(key, default)
        return 1.0 if value is None else self._number(key, value)

    def count(self, key: str, default: Any = _NOT_GIVEN, *, low: int = 1) -> int:
        """Returns a whole number of `low` or more."""
        value = self._take(key, default)
        return low if value is None else self._count(key, value, low)

    def numbers(self, key: str, length: int = 0, default: Any = _NOT_GIVEN) -> tuple[float, ...]:
        """Returns a list of numbers, of the length `length` if that is not 0."""
        values = self.items(key, default)
        if length and len(values) != length:
            if values or key in self._values:
                self.problem(key, f"has {len(values)} numbers, not {length}")
            values = [1.0] * length
        return tuple(self._number(key, value) for value in values)

    def counts(self, key: str, default: Any = _NOT_GIVEN, *, low: int = 1) -> tuple[int, ...]:
        return tuple(self._count(key, value, low) for value in self.items(key, default))

    def names(self, key: str, default: Any = _NOT_GIVEN) -> tuple[str, ...]:
        values = self.items(key, default)
        if not all(isinstance(value, str) and value for value in values):
            self.problem(key, f"is {_short(values)}, not a list of names")
            return ()
        return tuple(values)

    def must_be(self, key: str, served: Any, reason: str, default: Any = _NOT_GIVEN) -> None:
        """Refuses any value but `served`. reason: why; default: the library's value, for a file without the setting."""
        value = self._take(key, default)
        if value is not None and _plain(value) != _plain(served):
            self.problem(key, f"is {_short(value)}, not {_short(served)}: {reason}")

    def refuse(self, key: str, reason: str, harmless: Sequence[Any] = (False, None)) -> None:
        """Refuses a setting, unless the file does not have it or it has a harmless value."""
        value = self._take(key, None)
        if not any(value is one or _plain(value) == _plain(one) for one in harmless):
            self.problem(key, f"is {_short(value)}: {reason}")

    def skip(self, *keys: str) -> None:
        """Marks settings as read that change nothing in the answers, such as those of the training."""
        self._read.update(keys)

    def drop(self) -> None:
        """Marks all settings as read, and none as missing: the section was refused as a whole."""
        self._is_missing = True
        self._read.update(self._values)

    def finish(self) -> None:
        """Refuses every setting that was not read."""
        for key, value in self._values.items():
            if key not in self._read and value is not None:
                self.problem(
                    key,
                    f"is {_short(value)}: the exporter does not know this setting. If it changes nothing in the "
                    "network's answers, leave it out of the file",
                )

    def _take(self, key: str, default: Any) -> Any:
        """Returns a value, or None if it is missing, or has been reported."""
        self._read.add(key)
        value = self._values.get(key)
        if isinstance(value, Unreadable):
            self.problem(key, value.reason)
            return None
        if value is None and default is not _NOT_GIVEN:
            return default
        if value is None and not self._is_missing:
            self.problem(key, "is missing")
        return value

    def _number(self, key: str, value: Any) -> float:
        if isinstance(value, Unreadable):
            self.problem(key, value.reason)
            return 1.0
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            self.problem(key, f"is {_short(value)}, not a number")
            return 1.0
        return value

    def _count(self, key: str, value: Any, low: int) -> int:
        number = self._number(key, value)
        if number != int(number) or number < low:
            self.problem(key, f"is {_short(value)}, not a whole number of {low} or more")
            return low
        return int(number)


def _plain(value: Any) -> Any:
    """Returns the value with lists for tuples, so that both compare as equal."""
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _short(value: Any) -> str:
    return value.reason if isinstance(value, Unreadable) else reprlib.repr(value)
