"""The codes that the points of each class are written with.

Without --codes they are the model's class ids. "asprs" gives classes whose names the LAS specification has its codes
(ASPRS LAS 1.4 R15, table 17), and the others 64, 65, ..., which it leaves to users. NAME=CODE,... sets them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from voxserve.evaluate.classes import plain
from voxserve.results import ClassInfo

UNCLASSIFIED = "unclassified"
_ASPRS = {
    1: ("unclassified", "unlabeled", "other"),
    2: ("ground", "terrain", "bare earth"),
    3: ("low vegetation", "low veg", "grass"),
    4: ("medium vegetation",),
    5: ("high vegetation", "vegetation", "tree", "trees"),
    6: ("building", "buildings"),
    7: ("low noise", "noise"),
    9: ("water",),
    10: ("rail", "railway"),
    11: ("road", "road surface"),
    13: ("wire guard",),
    14: ("wire conductor", "wire", "powerline", "power line"),
    15: ("transmission tower", "tower"),
    16: ("wire structure connector",),
    17: ("bridge deck", "bridge"),
    18: ("high noise",),
}
_FIRST_OF_USERS = 64
_UNCLASSIFIED_OF_ASPRS = 1


@dataclass(frozen=True)
class Legend:
    """The code of each class, and the names of codes."""

    codes: dict[int, int]  # class id -> code
    names: dict[int, str]  # code -> name, with that of points without a class
    unclassified: int  # the code of points without a class


def make(classes: Sequence[ClassInfo], ignore_label: int, text: str) -> Legend:
    """Returns the legend of a model's classes. text: the value of --codes, or "". ValueError for an unknown class, a
    code that is not 0 to 65535, or an unclassified code that a class has too.
    """
    codes = {info.id: info.id for info in classes}
    unclassified = ignore_label
    if text == "asprs":
        by_name = {plain(name): code for code, names in _ASPRS.items() for name in names}
        free = iter(range(_FIRST_OF_USERS, 1 << 16))
        codes = {info.id: by_name.get(plain(info.name)) or next(free) for info in classes}
        unclassified = _UNCLASSIFIED_OF_ASPRS
    elif text:
        chosen = _chosen(text)
        unclassified = chosen.pop(plain(UNCLASSIFIED), ignore_label)
        by_plain = {plain(info.name): info.id for info in classes}
        for name, code in chosen.items():
            if name not in by_plain:
                raise ValueError(f"--codes names '{name}'; the model has {', '.join(info.name for info in classes)}")
            codes[by_plain[name]] = code
        if unclassified in codes.values():
            raise ValueError(f"--codes: {unclassified} is the code of a class and of points without one")
    names = {unclassified: UNCLASSIFIED}
    for info in classes:  # classes that share a code share its line of the legend
        code = codes[info.id]
        names[code] = f"{names[code]}, {info.name}" if code in names and code != unclassified else info.name
    return Legend(codes, dict(sorted(names.items())), unclassified)


def _chosen(text: str) -> dict[str, int]:
    chosen: dict[str, int] = {}
    for part in text.split(","):
        name, equals, code = part.rpartition("=")
        if not equals or not name.strip() or not code.isascii() or not code.isdigit() or int(code) > 65535:
            raise ValueError(f"--codes: '{part}' is not NAME=CODE, such as ground=2")
        if plain(name) in chosen:
            raise ValueError(f"--codes names '{name.strip()}' twice")
        chosen[plain(name)] = int(code)
    return chosen
