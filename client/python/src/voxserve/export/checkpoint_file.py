"""Reads the tensors of a checkpoint: a .safetensors file, or a file of torch with the things that training code stores
beside the weights.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy.typing as npt

from voxserve import input_file
from voxserve.export import safetensors_file, torch_file

_TORCH_ENDINGS = (".pt", ".pth", ".ckpt", ".bin", ".tar")
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80\x02"  # how torch's files begin: since torch 1.6, and before
_HEAD_BYTES = 32
_SHARD = re.compile(r"(bf16_)?zero_pp_rank_\d+_")  # a file of DeepSpeed's ZeRO, which has a part of every tensor
_OF_RANK = re.compile(r"mp_rank_\d+_model_states\.pt")
_PART = re.compile(r"-\d{5}-of-\d{5}\.")  # one of several files that an index.json lists
_OPTIMIZER = "optim"  # in the name of a dict: optimizer, optimizer_state, optim_state_dict
_MAX_DEPTH = 32  # of dicts in dicts
_MAX_VALUES = 1_000_000  # in all of a file's dicts; a small file can name the same dict many times
_MERGE = "python zero_to_fp32.py FOLDER weights.pth (DeepSpeed leaves the script beside the folder)"
# How files of other kinds begin, and what to do with them.
_OTHER_KINDS = (
    (b"version https://git-lfs", "it is a pointer of Git LFS, not the file itself: git lfs pull fetches it"),
    (b"<", "it is a web page or XML, so the download failed: fetch the file again"),
    (b"\x1f\x8b", "it is compressed (gzip): unpack it"),
    (b"BZh", "it is compressed (bzip2): unpack it"),
    (b"\xfd7zXZ", "it is compressed (xz): unpack it"),
    (b"\x89HDF", "it is an HDF5 file, as Keras writes them: save the tensors as .safetensors or by torch.save"),
    (b"\x93NUMPY", "it is one array of NumPy: save the tensors by name as .safetensors or by torch.save"),
)

# Files of compiled networks, which have no names that say whose weights are which. They are known by their endings.
_COMPILED = {".onnx": "ONNX", ".engine": "TensorRT", ".plan": "TensorRT", ".trt": "TensorRT"}


def read(path: str) -> dict[str, npt.NDArray[Any]]:
    """Returns all tensors of a file by name.

    A torch file may hold dicts within dicts. A tensor's name is then that of its place, with a dot after each dict's:
    "state_dict.conv.weight". The states of optimizers, which can have the names of the weights too, and other values
    are left out. A tensor of a type that NumPy does not have is an array without values (voxserve.export.unread).

    Raises OSError if the file cannot be read, ValueError, with what to do, if it has no tensors by name.
    """
    head = _head(path)
    if _PART.search(path):
        raise ValueError(f"{path} has the tensors of one of several files: merge those that the index lists into one")
    if _is_safetensors(head):
        return safetensors_file.read(path, keep_unread=True)
    _check_kind(path, head)
    if not head.startswith((_ZIP, _PICKLE)) and not path.endswith(_TORCH_ENDINGS):
        return safetensors_file.read(path, keep_unread=True)  # whose error says what is wrong with it
    loaded = torch_file.load(path)
    if not isinstance(loaded, dict):
        raise ValueError(f"{path} holds a {type(loaded).__name__}, not a state dict")
    _check_deepspeed(path, loaded)
    try:
        tensors = _flat(loaded)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not tensors:
        raise ValueError(f"{path} holds no tensors by name")
    return tensors


def settings(path: str) -> dict[str, Any] | None:
    """Returns the network's settings that a torch file holds beside the weights, under the name config; None if it
    holds none. Raises OSError or ValueError as read() does.
    """
    if _is_safetensors(_head(path)):
        return None
    loaded = torch_file.load(path)
    found = loaded.get("config") if isinstance(loaded, dict) else None
    return found if isinstance(found, dict) else None


def _flat(loaded: dict[Any, Any]) -> dict[str, npt.NDArray[Any]]:
    """Returns the tensors in a dict, and in dicts in it, by their places. ValueError if there are too many places."""
    tensors: dict[str, npt.NDArray[Any]] = {}
    num_values = 0

    def add(values: dict[Any, Any], place: str, depth: int) -> None:
        nonlocal num_values
        num_values += len(values)
        if depth > _MAX_DEPTH or num_values > _MAX_VALUES:
            raise ValueError(f"its dicts are deeper than {_MAX_DEPTH}, or have more than {_MAX_VALUES} values")
        for key, value in values.items():
            if not isinstance(key, str):  # of an optimizer's state by numbers
                continue
            if isinstance(value, dict):
                if _OPTIMIZER not in key.lower():
                    add(value, f"{place}{key}.", depth + 1)
            else:
                tensor = torch_file.array_of(value)
                if tensor is not None:
                    tensors[f"{place}{key}"] = tensor

    add(loaded, "", 0)
    return tensors


def _head(path: str) -> bytes:
    place = Path(path)
    if place.is_dir():
        raise IsADirectoryError(f"Is a directory: '{path}'. {_in_folder(place)}")
    with input_file.open_regular(path) as file:
        return file.read(_HEAD_BYTES)


def _is_safetensors(head: bytes) -> bool:
    """Returns whether a file's head is that of a safetensors file: a length, and a JSON object. The length's bytes
    alone may be the beginning of another kind of file: 640 is that of a pickle.
    """
    return head[8:9] == b"{" and head[:1] != b"{"


def _check_kind(path: str, head: bytes) -> None:
    """Raises ValueError for a file of a kind that is none of a checkpoint, with what to do."""
    place = Path(path)
    if not head:
        raise ValueError(f"{path} is empty")
    for beginning, text in _OTHER_KINDS:
        if head.startswith(beginning):
            raise ValueError(f"{path} is not a file of tensors: {text}")
    kind = _COMPILED.get(place.suffix.lower())
    if kind:
        raise ValueError(f"{path} is a network of {kind}: name the checkpoint of the training that it was made of")
    if path.endswith(".json"):
        raise ValueError(f"{path} is a JSON file: name the file of the weights; merge those of an index into one")
    if head.startswith(_ZIP):
        _check_zip(path)
    elif tarfile.is_tarfile(path):
        raise ValueError(f"{path} is not a torch file of tensors alone: it is a tar file, {_in_tar(path)}")
    if _SHARD.match(place.name):
        raise ValueError(f"{path} has a part of DeepSpeed's ZeRO alone. Merge the parts: {_MERGE}")
    if _OF_RANK.fullmatch(place.name):
        others = sorted(p.name for p in place.parent.iterdir() if _OF_RANK.fullmatch(p.name))
        if len(others) > 1:
            raise ValueError(
                f"{path} has the weights of one of {len(others)} ranks of model parallelism ({', '.join(others)}): "
                "merge them with the code that trained the network"
            )


def _in_tar(path: str) -> str:
    try:
        with tarfile.open(path) as archive:
            is_old = {"pickle", "storages", "tensors"} <= set(archive.getnames())
    except (tarfile.TarError, EOFError, OSError):
        return "and damaged"
    return "as torch wrote before 0.1.10: load and save it with an older torch" if is_old else "an archive: unpack it"


def _check_zip(path: str) -> None:
    try:
        names = zipfile.ZipFile(path).namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError):  # damaged: torch's reader says so
        return
    if any(name.endswith(".npy") for name in names):
        raise ValueError(f"{path} is an archive of NumPy: save its tensors as .safetensors or by torch.save")
    if any(name.endswith("archive_format") for name in names):
        raise ValueError(f"{path} is a program of torch.export: save its state_dict()")
    if not any(name == "data.pkl" or name.endswith("/data.pkl") for name in names):
        raise ValueError(
            f"{path} is a zip archive without torch's data.pkl ({', '.join(map(repr, names[:3]))}): unpack it"
        )


def _in_folder(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir())
    if any(name.endswith(".distcp") for name in names):
        return (
            "It is one of torch.distributed.checkpoint: python -m torch.distributed.checkpoint.format_utils "
            f"dcp_to_torch {folder} weights.pth makes one file"
        )
    if any(_SHARD.match(name) for name in names) or "zero_to_fp32.py" in names:
        return f"It is one of DeepSpeed. Merge its parts: {_MERGE}"
    return "Name the file of the weights in it"


def _check_deepspeed(path: str, loaded: dict[Any, Any]) -> None:
    """Refuses the files of DeepSpeed that hold parts of tensors, by their contents, since files are renamed."""
    if "ds_version" not in loaded:
        return
    config = loaded.get("ds_config")
    zero = config.get("zero_optimization") if isinstance(config, dict) else None
    is_split = isinstance(zero, dict) and zero.get("stage") == 3
    module = loaded.get("module")
    if is_split or not isinstance(module, dict) or not any(t.size for t in _flat(module).values()):
        raise ValueError(f"{path} has a part of DeepSpeed's ZeRO alone. Merge the parts: {_MERGE}")
