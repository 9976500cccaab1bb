"""Reads the files of a training configuration, with the base files that they name, into one dict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from voxserve import input_file
from voxserve.export.detector_configs import python_file
from voxserve.export.detector_configs.python_file import copied, merge_into

_KINDS = (".py", ".json", ".yaml", ".yml")
_OPENPCDET_BASE = "_BASE_CONFIG_"
_MOST_VALUES = 200_000  # of a file; references to one value count each, since a few lines can nest them without end


def read(path: str) -> dict[str, Any]:
    """Returns the settings of a file, merged with its base files. OSError if a file cannot be read; ValueError if a
    file is not what its name says, or a base file cannot be found.
    """
    try:
        return _read(Path(path), ())
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply") from None


def _read(path: Path, readers: tuple[Path, ...]) -> dict[str, Any]:
    """readers: the files that this one is a base of."""
    if path.resolve() in readers:
        raise ValueError(f"{path} is a base file of itself")
    inner = (*readers, path.resolve())
    if path.suffix.lower() == ".py":
        bases = _mmengine_bases(path, python_file.base_paths(path), inner)
        own = _limited(path, python_file.read(path, bases, lambda base: _read(base, inner)))
    elif path.suffix.lower() == ".json":
        own = _mapping(path, _json(path))
        bases = _mmengine_bases(path, own.pop("_base_", None), inner)
        own = _with_base_names(path, own, bases)
    elif path.suffix.lower() in _KINDS:
        own = _mapping(path, _yaml(path))
        bases = _mmengine_bases(path, own.pop("_base_", None), inner)
        own = _with_openpcdet_bases(path, _with_base_names(path, own, bases))
    else:
        raise ValueError(f"{path} is no configuration: its name must end in {', '.join(_KINDS)}")
    try:
        merge_into(bases, own)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return bases


def _mapping(path: Path, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds no settings by name")
    return _limited(path, values)


def _limited(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings, if they are not too many to walk through."""
    count, waiting = 0, [values]
    while waiting:
        value: Any = waiting.pop()
        items = list(value.values()) if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        count += len(items)
        waiting.extend(items)
        if count > _MOST_VALUES:
            raise ValueError(f"{path} has more than {_MOST_VALUES} values")
    return values


def _json(path: Path) -> Any:
    try:
        return input_file.parse_json(input_file.read(path))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def _yaml(path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        raise ValueError(f"{path} is a YAML file, which needs PyYAML: pip install PyYAML") from None
    try:
        return yaml.safe_load(input_file.read_text(path))
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None


def _mmengine_bases(path: Path, names: Any, readers: tuple[Path, ...]) -> dict[str, Any]:
    """Returns the settings of the files that mmengine's `_base_` names, relative to the file."""
    names = [names] if isinstance(names, str) else [] if names is None else names
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path}: _base_ is not a list of files")
    merged: dict[str, Any] = {}
    for name in names:
        if "::" in name or "://" in name:
            raise ValueError(f"{path}: the base file {name} is in another package; give a resolved configuration")
        base = _read(path.parent / name, readers)
        twice = sorted(set(base) & set(merged))
        if twice:
            raise ValueError(f"{path}: two base files have '{twice[0]}', which mmengine refuses")
        merged.update(base)
    return merged


def _with_base_names(path: Path, value: Any, bases: dict[str, Any]) -> Any:
    """Replaces texts of the form {{_base_.name}}."""
    if isinstance(value, dict):
        return {key: _with_base_names(path, item, bases) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_base_names(path, item, bases) for item in value]
    if not isinstance(value, str) or not value.startswith("{{") or not value.endswith("}}"):
        return value
    found: Any = {"_base_": bases}
    for part in value[2:-2].strip().split("."):
        if not isinstance(found, dict) or part not in found:
            raise ValueError(f"{path}: {value} is in no base file")
        found = found[part]
    return copied(found)


def _with_openpcdet_bases(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Merges as OpenPCDet's merge_new_config() does: a section's own settings replace those of the file that its
    _BASE_CONFIG_ names, dict by dict.
    """
    made: dict[str, Any] = {}
    base = values.get(_OPENPCDET_BASE)
    if base is not None:
        found = _openpcdet_base(path, base)
        made = _mapping(found, _yaml(found))
        if _OPENPCDET_BASE in made:
            raise ValueError(f"{found} has a {_OPENPCDET_BASE} of its own, which OpenPCDet does not read")
    for key, value in values.items():
        if key == _OPENPCDET_BASE:
            continue
        if isinstance(value, dict):
            inner = _with_openpcdet_bases(path, value)
            if isinstance(made.get(key), dict):
                merge_into(made[key], inner)
                continue
            value = inner
        made[key] = value
    return made


def _openpcdet_base(path: Path, name: Any) -> Path:
    """Finds the base file, which OpenPCDet names as seen from its folder tools/."""
    if not isinstance(name, str):
        raise ValueError(f"{path}: {_OPENPCDET_BASE} is not a file's name")
    folders = [Path(), *path.resolve().parents]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise ValueError(
        f"{path}: the base file {name} is neither below the working directory nor below a folder that "
        f"{path.name} lies in; OpenPCDet keeps it in tools/"
    )
