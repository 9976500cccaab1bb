"""Matches a model's classes with those of a data set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from voxserve import input_file

if TYPE_CHECKING:  # this module imports gRPC, which deploy/train, a user of this file, does not have
    from voxserve.results import ClassInfo


@dataclass(frozen=True)
class ClassMatch:
    """Which class of the model stands for each class of a data set."""

    ids: Mapping[str, int]  # the data set's class -> the id of the model's class, for the classes that the model has
    left_out: tuple[str, ...]  # the data set's classes that the model does not have; the measures ignore them


def plain(name: str) -> str:
    """Returns a name in lower case with letters and digits only, so that "construction_vehicle" and "Construction
    Vehicle" are equal. A name without letters and digits only loses the spaces around it.
    """
    return "".join(letter for letter in name.lower() if letter.isalnum()) or name.strip()


def match(
    names: Iterable[str],
    aliases: Mapping[str, tuple[str, ...]],
    classes: Sequence[ClassInfo],
    chosen: Mapping[str, Sequence[str]] | None = None,
    *,
    others: Iterable[str] = (),
    has_numbers: bool = False,
    is_open: bool = False,
) -> ClassMatch:
    """Matches the classes of a model with those of a data set.

    names: the data set's classes. aliases: further names that a model may give to one of them; the first one that the
    model has is taken. classes: the model's classes.
    chosen: for each class of the model, the data set's classes that it stands for; None: match by names and aliases.
    others: names of the data set that only `chosen` may name. is_open: `chosen` may name further classes too.
    has_numbers: `chosen` may name a label by its number, such as "99", which then is a key of the result.

    Raises ValueError if `chosen` names an unknown class, or gives one to two classes of the model, or if no class
    matches.
    """
    wanted = list(dict.fromkeys(names))
    by_name = {plain(info.name): info.id for info in classes}
    found: dict[str, int] = {}
    if chosen is not None:
        known_names = list(dict.fromkeys((*wanted, *others)))
        plain_names = {plain(name): name for name in reversed(known_names)}
        for model_name, dataset_names in chosen.items():
            if plain(model_name) not in by_name:
                raise ValueError(f"--classes names '{model_name}'; the model has {_listed(c.name for c in classes)}")
            for name in dataset_names:
                is_number = has_numbers and _is_number(plain(name))
                if not is_number and not is_open and plain(name) not in plain_names:
                    numbers = ", or labels by their numbers" if has_numbers else ""
                    raise ValueError(f"--classes names '{name}'; the data set has {_listed(known_names)}{numbers}")
                key = str(int(plain(name))) if is_number else plain_names.get(plain(name), name.strip())
                class_id = by_name[plain(model_name)]
                if found.setdefault(key, class_id) != class_id:
                    raise ValueError(f"--classes gives '{name}' to two classes of the model, '{model_name}' is one")
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


def without(
    chosen: Mapping[str, Sequence[str]] | None,
    others: Iterable[str],
    names: Iterable[str],
    *,
    drops_numbers: bool = False,
) -> dict[str, list[str]] | None:
    """Returns a choice for one half of a data set, its points or its boxes, without the classes that the other half
    alone has. names, others: the classes of this half and of the other. drops_numbers: numbers are labels of the other.
    """
    if chosen is None:
        return None
    other = {plain(name) for name in others} - {plain(name) for name in names}

    def is_other(name: str) -> bool:
        return plain(name) in other or (drops_numbers and _is_number(plain(name)))

    return {model_name: [name for name in listed if not is_other(name)] for model_name, listed in chosen.items()}


def read_choice(path: str) -> dict[str, list[str]]:
    """Reads the file of --classes, a JSON object {"model's class": ["data set's class", ...]}. Raises ValueError, with
    the file's name, for anything else.
    """
    try:
        value = input_file.parse_json(input_file.read(path), _without_repetitions)
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    is_right = isinstance(value, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in value.values()
    )
    if not is_right:
        raise ValueError(f'{path}: must be an object {{"model\'s class": ["data set\'s class", ...]}}')
    return {str(name): list(names) for name, names in value.items()}


def _without_repetitions(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError(f"a name stands twice among {', '.join(name for name, _ in pairs)}")
    return dict(pairs)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
