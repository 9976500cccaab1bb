"""Follows the sizes of tensors through the user's Python code during a trace: the numbers of rows, sites and samples,
which are other ones for each cloud.

A trace contains the branch that the example took. So a comparison of a size with a number, as in `if len(x) > 100`, is
noted with both values. dependent() finds those whose values are other ones for another cloud.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from voxserve.export.tracing.refusal import Line, is_of_user

_ARITHMETIC = "add sub mul truediv floordiv mod pow"
_UNARY = "neg pos abs"
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


@dataclass(frozen=True)
class Comparison:
    """A comparison in the user's code whose left value is the size of a tensor, or was computed from one."""

    line: Line
    operator: str  # lt, le, gt, ge, eq or ne
    left: float
    right: float
    are_both_sizes: bool

    @property
    def is_of_emptiness(self) -> bool:
        """Returns whether the comparison only asks whether there is anything."""
        return (self.operator, self.right) in _OF_EMPTINESS

    @property
    def result(self) -> bool:
        return bool(getattr(operator, self.operator)(self.left, self.right))


_OF_EMPTINESS = (("eq", 0), ("ne", 0), ("gt", 0), ("le", 0), ("ge", 1), ("lt", 1))
_HARMLESS = re.compile(r"assert\b|.*\bmax\(1, ")


class _Size:
    """The methods of Size and Ratio. Arithmetic returns a Size or a Ratio; comparisons are noted in `noted`."""

    noted: list[Comparison]


class Size(_Size, int):
    """An integer that is the size of a tensor, or was computed from one."""


class Ratio(_Size, float):
    """A number that was computed from the size of a tensor."""


def of(value: Any, noted: list[Comparison]) -> Any:
    """Returns the number as a Size or a Ratio that notes its comparisons; other values as they are."""
    if type(value) is bool or not isinstance(value, (int, float)):
        return value
    made = Size(value) if isinstance(value, int) else Ratio(value)
    made.noted = noted
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, Size):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, Ratio) else value


def _arithmetic(function: Callable[..., Any], is_swapped: bool = False) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        if not all(isinstance(other, (int, float)) for other in others):
            return NotImplemented
        values = [_plain(self), *map(_plain, others)]
        return of(function(*(reversed(values) if is_swapped else values)), self.noted)

    return method


def _comparison(name: str) -> Callable[[Any, Any], Any]:
    function = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)):
            return NotImplemented
        left, right = _plain(self), _plain(other)
        frame = sys._getframe(1)
        if is_of_user(frame.f_code.co_filename):
            line = Line(frame.f_code.co_filename, frame.f_lineno)
            self.noted.append(Comparison(line, name, left, right, isinstance(other, _Size)))
        return function(left, right)

    return method


for _name in _ARITHMETIC.split():
    _function = pow if _name == "pow" else getattr(operator, _name)
    setattr(_Size, f"__{_name}__", _arithmetic(_function))
    setattr(_Size, f"__r{_name}__", _arithmetic(_function, is_swapped=True))
for _name in _UNARY.split():
    setattr(_Size, f"__{_name}__", _arithmetic(getattr(operator, _name)))
for _name in ("floor", "ceil", "trunc"):
    setattr(_Size, f"__{_name}__", _arithmetic(getattr(math, _name)))
_Size.__round__ = _arithmetic(round)  # type: ignore[attr-defined]
for _name in _COMPARISONS:
    setattr(_Size, f"__{_name}__", _comparison(_name))
Size.__hash__ = int.__hash__  # type: ignore[method-assign, assignment]
Ratio.__hash__ = float.__hash__  # type: ignore[method-assign, assignment]


def is_harmless(line: Line) -> bool:
    """Returns whether a comparison in a line decides nothing: in an assertion, or where it keeps a divisor from 0."""
    return bool(_HARMLESS.match(line.code))


def dependent(noted: Sequence[Comparison], of_other: Sequence[Comparison]) -> Iterator[Comparison]:
    """Yields the comparisons that another cloud makes with other values, so that a branch may depend on them. noted,
    of_other: the comparisons of both clouds.

    Assertions, comparisons of two sizes for equality, and those that ask whether there is anything are left out: a
    cloud that has something goes the way that the example goes.
    """
    others: dict[Line, list[Comparison]] = defaultdict(list)
    for comparison in of_other:
        others[comparison.line].append(comparison)
    seen: dict[Line, int] = defaultdict(int)
    for here in noted:
        at, seen[here.line] = seen[here.line], seen[here.line] + 1
        there = others[here.line][at] if at < len(others[here.line]) else None
        if there is None or (here.left, here.right) == (there.left, there.right):
            continue
        is_equality = here.are_both_sizes and here.operator in ("eq", "ne") and here.result == there.result
        if not (is_equality or here.is_of_emptiness or is_harmless(here.line)):
            yield here
