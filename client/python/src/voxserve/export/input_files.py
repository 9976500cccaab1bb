"""Reads the list of classes that the exporters take, and prepares tensors for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve import input_file
from voxserve.export.class_lists import CLASS_LISTS
from voxserve.export.model_folder import ClassEntry


def narrow(tensors: dict[str, npt.NDArray[Any]]) -> list[str]:
    """Converts float64 to float32. Returns a list with a warning that names these tensors, or an empty list."""
    doubles = [name for name, tensor in tensors.items() if tensor.dtype == np.float64]
    with np.errstate(over="ignore"):  # infinities are reported later, by name
        tensors.update({name: tensors[name].astype(np.float32) for name in doubles})
    return [described("float64, stored as float32", doubles)] if doubles else []


def described(what: str, names: Sequence[str]) -> str:
    return f"{len(names)} tensors are {what}: {', '.join(names)}"


# Other libraries' names of ignore_label.
_OTHER_IGNORE_LABELS = ("ignore_index", "ignore_id", "ignored_label", "ignore_value")


def read_classes(path: str) -> tuple[tuple[ClassEntry, ...], int | None]:
    """Returns the classes and the ignore label (None if it has none) of a JSON file {"classes": [{"id", "name",
    "color": [r, g, b]}], "ignore_label"}. path may also be the name of a public data set in CLASS_LISTS. Raises OSError
    or ValueError.
    """
    if path in CLASS_LISTS:
        return CLASS_LISTS[path], None
    try:
        card = input_file.parse_json(input_file.read(path))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    try:
        classes = tuple(ClassEntry(_whole(c["id"]), str(c["name"]), _rgb(c["color"])) for c in card["classes"])
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path}: classes must be a list of {{id, name, color: [r, g, b]}}") from None
    names = [entry.name for entry in classes]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{path}: two classes have the name '{twice}'")
    if other := next((key for key in card if key in _OTHER_IGNORE_LABELS), None):
        raise ValueError(f"{path}: has '{other}'; the label of points without a class is named ignore_label")
    ignore_label = card.get("ignore_label")
    try:
        return classes, None if ignore_label is None else _whole(ignore_label)
    except ValueError:
        raise ValueError(f"{path}: ignore_label is {ignore_label!r}, must be a whole number") from None


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(value)
    return value


def _rgb(values: Sequence[int]) -> tuple[int, int, int]:
    red, green, blue = (_whole(v) for v in values)
    if not all(0 <= v <= 255 for v in (red, green, blue)):
        raise ValueError(values)
    return red, green, blue
