"""Finds models on this machine: by the path of a model or of a repository, or by the name of a model of the package
voxserve-models.

A model is a folder with versions (minkunet/1/model.textproto); a repository is a folder of models. The engine and the
server take repositories, so models that are named one by one become a folder of links.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

ModelPath = str | os.PathLike[str]
_NO_MODELS = "name a model's folder or a folder of models, or pip install 'voxserve[server]', which brings two models"


def packaged() -> Path | None:
    """Returns the repository of the package voxserve-models; None if it is not installed."""
    try:
        folder: Path = importlib.import_module("voxserve_models").models()
    except ImportError:
        return None
    return folder


def packaged_scan() -> Path | None:
    """Returns the scan of the package voxserve-models; None if it is not installed."""
    try:
        scan: Path = importlib.import_module("voxserve_models").scan()
    except ImportError:
        return None
    return scan


def is_model(folder: Path) -> bool:
    """Returns whether the folder is a model's: it has a version's folder with a graph."""
    return any(
        child.name.isascii() and child.name.isdigit() and (child / "model.textproto").is_file()
        for child in folder.iterdir()
    )


def repository_of(paths: Sequence[ModelPath]) -> Path:
    """Returns the repository with these models: the folder itself, if a repository is named, else a folder with a link
    for each model, in the user's cache. No paths: the models of voxserve-models.

    FileNotFoundError if there is no such folder or model; ValueError if the folders do not go together.
    """
    if not paths:
        folder = packaged()
        if folder is None:
            raise FileNotFoundError(f"no models: {_NO_MODELS}")
        return folder
    folders = [_found(path) for path in paths]
    models = [folder for folder in folders if is_model(folder)]
    if not models and len(folders) == 1:
        return folders[0]
    if len(models) < len(folders):
        other = next(folder for folder in folders if folder not in models)
        raise ValueError(f"{other} is no model's folder (it has no 1/model.textproto); name models, or one repository")
    names = [model.name for model in models]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two of the models are named '{twice}'")
    return _linked(models)


def _found(path: ModelPath) -> Path:
    folder = Path(path)
    if folder.is_dir():
        folder = folder.resolve()
        if (folder / "model.textproto").is_file():
            raise ValueError(f"{folder} is one version of a model; name the model, {folder.parent}")
        return folder
    known = packaged()
    if known is not None and folder.name == os.fspath(path) and (known / folder.name).is_dir():
        return known / folder.name
    raise FileNotFoundError(f"{os.fspath(path)} is no folder" + ("" if known is None else f", and not in {known}"))


def _linked(models: Sequence[Path]) -> Path:
    """Returns the folder of links. It is the same for the same models, so that the cache does not grow."""
    digest = hashlib.sha256("\0".join(sorted(map(str, models))).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "voxserve" / "repositories"
        folder = cache / digest
        if folder.is_dir():
            return folder
        cache.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=cache))
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        new = folder = Path(tempfile.mkdtemp(prefix="voxserve-"))
    for model in models:
        (new / model.name).symlink_to(model)
    if new != folder:
        try:
            new.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(new)
    return folder
