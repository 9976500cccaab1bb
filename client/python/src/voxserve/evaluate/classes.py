"""Matches a model's classes with those of a data set."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports gRPC, and deploy/train measures without it
    from voxserve.results import ClassInfo


@dataclass(frozen=True)
class ClassMatch:
    """The matching classes, by the data set's names."""

    ids: Mapping[str, int]  # the id of the model's class, for each class of the data set that the model has
    left_out: tuple[str, ...]  # the data set's classes that the model does not have; they do not count


def plain(name: str) -> str:
    """Returns a name in lower case without signs and spaces: construction_vehicle equals Construction Vehicle."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def match(
    names: Iterable[str],
    aliases: Mapping[str, tuple[str, ...]],
    classes: Sequence[ClassInfo],
    chosen: Mapping[str, Sequence[str]] | None = None,
) -> ClassMatch:
    """Matches the model's classes with the data set's. `chosen` names the data set's classes for each of the model's;
    without it, equal names match. Raises ValueError if it names an unknown class, or if nothing matches.
    """
    wanted = list(dict.fromkeys(names))
    by_name = {plain(info.name): info.id for info in classes}
    found: dict[str, int] = {}
    if chosen is not None:
        plain_names = {plain(name): name for name in wanted}
        for model_name, dataset_names in chosen.items():
            if plain(model_name) not in by_name:
                raise ValueError(f"--classes names '{model_name}'; the model has {_listed(c.name for c in classes)}")
            for name in dataset_names:
                if plain(name) not in plain_names:
                    raise ValueError(f"--classes names '{name}'; the data set has {_listed(wanted)}")
                found[plain_names[plain(name)]] = by_name[plain(model_name)]
    else:
        for name in wanted:
            known = next((by_name[plain(n)] for n in (name, *aliases.get(name, ())) if plain(n) in by_name), None)
            if known is not None:
                found[name] = known
    if not found:
        raise ValueError(
            f"no class in common: the data set has {_listed(wanted)}; the model has "
            f"{_listed(c.name for c in classes)}. Say with --classes which is which"
        )
    return ClassMatch(found, tuple(name for name in wanted if name not in found))


def read_choice(path: str) -> dict[str, list[str]]:
    """Reads a JSON object: {"model's class": ["data set's class", ...]}. The ValueError for anything else names the
    file.
    """
    try:
        value = json.loads(Path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    is_right = isinstance(value, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in value.values()
    )
    if not is_right:
        raise ValueError(f'{path}: must be an object {{"model\'s class": ["data set\'s class", ...]}}')
    return {str(name): list(names) for name, names in value.items()}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
