"""Reads a configuration of Hydra (YAML) with the files that its defaults list names, without Hydra.

Each file's settings go to the place that its line "# @package" names, or to that of its folder. A text ${a.b} stands
for the setting a.b, and ${a.b[1]} for the second of its list. The value of any other ${...} is Unreadable: only a
setting that somebody reads is refused for it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from voxserve import input_file
from voxserve.export.detector_configs.python_file import copied, merge_into
from voxserve.export.detector_configs.settings import Unreadable

_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)\s*$", re.MULTILINE)
_REFERENCE = re.compile(r"\$\{([A-Za-z0-9_.]+(?:\[\d+\])*)\}")
_PARTS = re.compile(r"[A-Za-z0-9_]+")
_MOST_DEPTH = 32  # of files that name files, and of settings in settings
_MOST_VALUES = 200_000


def read(path: str) -> dict[str, Any]:
    """Returns the settings of a file and of those that it names. OSError if a file cannot be read; ValueError if a file
    is not YAML, or cannot be found.
    """
    place = Path(path)
    settings: dict[str, Any] = {}
    _add(settings, place, place, ())
    return _Resolver(settings, path).resolved()


def _add(settings: dict[str, Any], path: Path, first: Path, readers: tuple[Path, ...]) -> None:
    """Merges a file, and the files of its defaults list in their order, into the settings. first: the file that the
    user named, above which the folder of all files is.
    """
    if path.resolve() in readers or len(readers) > _MOST_DEPTH:
        raise ValueError(f"{path} is in its own defaults list")
    text = input_file.read_text(path)
    own = _yaml(path, text)
    found = _PACKAGE.search(text)
    package = found[1] if found else "_global_"
    entries = own.pop("defaults", [])
    if not isinstance(entries, list):
        raise ValueError(f"{path}: defaults is not a list")
    names = [entry for entry in entries if isinstance(entry, str)]
    for name in names if "_self_" in names else [*names, "_self_"]:
        if name == "_self_":
            _merge(settings, own, package)
        else:
            _add(settings, _file_of(name, path, first), first, (*readers, path.resolve()))


def _yaml(path: Path, text: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError:
        raise ValueError(f"{path} is a YAML file, which needs PyYAML: pip install PyYAML") from None
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds no settings by name")
    return values


def _file_of(name: str, path: Path, first: Path) -> Path:
    """Returns the file of an entry: one that begins with / is seen from a folder above the first file."""
    if not name.startswith("/"):
        return path.parent / f"{name}.yaml"
    for folder in first.resolve().parents:
        if (folder / f"{name[1:]}.yaml").is_file():
            return folder / f"{name[1:]}.yaml"
    raise ValueError(f"{path}: {name}.yaml of its defaults list is below none of the folders that {first} lies in")


def _merge(settings: dict[str, Any], own: dict[str, Any], package: str) -> None:
    target = settings
    for part in [] if package == "_global_" else package.split("."):
        inner = target.setdefault(part, {})
        if not isinstance(inner, dict):
            inner = target[part] = {}
        target = inner
    merge_into(target, own)


class _Resolver:
    """Replaces the texts ${...}."""

    def __init__(self, settings: dict[str, Any], path: str) -> None:
        self._settings, self._path = settings, path
        self._count = 0

    def resolved(self) -> dict[str, Any]:
        made: dict[str, Any] = self._value(self._settings, 0)
        return made

    def _value(self, value: Any, depth: int) -> Any:
        self._count += 1
        if depth > _MOST_DEPTH or self._count > _MOST_VALUES:
            raise ValueError(f"{self._path} refers to itself, or has more than {_MOST_VALUES} values")
        if isinstance(value, dict):
            return {key: self._value(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self._value(item, depth + 1) for item in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        reference = _REFERENCE.fullmatch(value)
        if reference is None:
            return Unreadable(f"is {value!r}, which Hydra computes, and this command does not ({self._path})")
        found: Any = self._settings
        for part in _PARTS.findall(reference[1]):
            if isinstance(found, str) and "${" in found:
                found = self._value(found, depth + 1)
            if isinstance(found, list) and part.isdigit() and int(part) < len(found):
                found = found[int(part)]
            elif isinstance(found, dict) and part in found:
                found = found[part]
            else:
                return Unreadable(f"is {value}, which no file defines ({self._path})")
        return self._value(copied(found), depth + 1)
