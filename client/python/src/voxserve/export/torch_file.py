"""Reads torch's files of tensors with torch.load and weights_only=True, so that nothing in a file can run code.

torch refuses every class that it does not know. Frameworks store some that do no harm, beside the weights: scalars and
arrays of NumPy, mmengine's HistoryBuffer, OmegaConf's configurations, paths. An allow-list names them here, and each is
replaced by a class or function of this file, which runs nothing of theirs. Arrays of numbers are read, since they may
be weights.
"""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve import input_file
from voxserve.export.unread import unread

_PLAIN_NUMBER = re.compile(r"[biufc]\d{1,2}")
_MAX_BYTES_PER_NUMBER = 16


class _Kept:
    """Stands in for an object that has no weights. It forgets what it is made of."""

    def __init__(self, *_arguments: Any, **_named: Any) -> None: ...

    def __setstate__(self, _state: Any) -> None: ...


class _DType(_Kept):
    """Stands in for numpy.dtype."""

    def __init__(self, code: Any = "", *_flags: Any) -> None:
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        self.order = state[1] if isinstance(state, tuple) and len(state) > 1 else "="

    def of_numbers(self) -> np.dtype[Any] | None:
        """Returns the type; None unless it is one of plain numbers."""
        is_plain = isinstance(self.code, str) and _PLAIN_NUMBER.fullmatch(self.code) and self.order in tuple("<>|=")
        try:
            dtype = np.dtype(f"{self.order}{self.code}") if is_plain else None
        except TypeError:
            return None
        return dtype if dtype is None or 0 < dtype.itemsize <= _MAX_BYTES_PER_NUMBER else None


class _Array(_Kept):
    """Stands in for numpy.ndarray."""

    def __init__(self, *_arguments: Any) -> None:
        self.values: npt.NDArray[Any] | None = None

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, is_fortran, contents = state
        kind = dtype.of_numbers() if isinstance(dtype, _DType) else None
        if kind is not None and isinstance(contents, (bytes, bytearray)):
            self.values = np.frombuffer(contents, kind).reshape(tuple(shape), order="F" if is_fortran else "C")


def _scalar(dtype: Any = None, contents: Any = b"") -> Any:
    """Stands in for numpy's function that makes a scalar. The scalar is an array without axes here."""
    made = _Array()
    made.__setstate__((1, (), dtype, False, contents))
    return made


def _dict(*_arguments: Any) -> dict[Any, Any]:
    """Stands in for collections.defaultdict, since torch adds items only to plain dicts."""
    return {}


def _list(*_arguments: Any) -> list[Any]:
    """Stands in for collections.deque, since torch adds items only to plain lists."""
    return []


def _named(path: str, base: Any) -> Any:
    """Returns a class or function that torch's allow-list knows by the name `path`."""
    module, _, name = path.rpartition(".")
    if isinstance(base, type):
        return type(name, (base,), {"__module__": module, "__qualname__": name})

    def function(*arguments: Any) -> Any:
        return base(*arguments)

    function.__module__, function.__qualname__ = module, name
    return function


_HISTORY = _named("mmengine.logging.history_buffer.HistoryBuffer", _Kept)


def _method(owner: Any = None, *_name: Any) -> None:
    """Stands in for getattr, by which mmengine's HistoryBuffer stores its own methods. It gets none."""
    if owner is not _HISTORY:
        raise pickle.UnpicklingError("GLOBAL getattr of another class")


_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray")  # before NumPy 2, and since
_SYSTEMS = ("Posix", "Windows")
_HARMLESS = (
    "numpy.ndarray",  # the class alone: _reconstruct makes the array
    "argparse.Namespace",
    "types.SimpleNamespace",
    "torch.torch_version.TorchVersion",
    *(f"datetime.{kind}" for kind in ("datetime", "date", "timedelta")),
    *(f"pathlib{part}.{kind}{system}Path" for part in ("", "._local") for kind in ("", "Pure") for system in _SYSTEMS),
    # OmegaConf's, in the hyper_parameters of Lightning's files, with the types that they name.
    *(f"omegaconf.{kind}" for kind in ("dictconfig.DictConfig", "listconfig.ListConfig", "base.ContainerMetadata")),
    *(f"omegaconf.nodes.{kind}Node" for kind in ("Any", "Integer", "Float", "Boolean", "String", "Bytes", "Path")),
    *("omegaconf.base.Metadata", "typing.Any"),
    *(f"builtins.{kind}" for kind in ("dict", "list", "tuple", "int", "float", "bool", "str")),
)
_ALLOWED: tuple[Any, ...] = (
    _named("numpy.dtype", _DType),
    *(_named(f"{module}.scalar", _scalar) for module in _NUMPY),
    *(_named(f"{module}._reconstruct", _Array) for module in _NUMPY),
    _named("collections.defaultdict", _dict),
    _named("collections.deque", _list),
    _HISTORY,
    _named("builtins.getattr", _method),
    *(_named(path, _Kept) for path in _HARMLESS),
)


def load(path: str) -> Any:
    """Returns what a torch file holds: dicts, lists, tensors and numbers. Objects of the allow-list are replaced.

    Raises ValueError if torch is missing or too old, or the file is damaged, of another format, or asks for a class
    that is not in the allow-list; OSError if it cannot be read.
    """
    try:
        import torch
    except ImportError:
        raise ValueError(
            f"{path} is a torch file, which needs torch: pip install torch, or save the state dict as .safetensors"
        ) from None
    # With older versions than 2.6, a file could run code in spite of weights_only (CVE-2025-32434).
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise ValueError(f"{path} is a torch file, which needs torch 2.6 or newer; here is {torch.__version__}")
    with input_file.open_regular(path) as file, torch.serialization.safe_globals(list(_ALLOWED)):
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # errors of the zip file or the pickle, or for something that weights_only forbids
            raise ValueError(f"{path} is not a torch file of tensors alone: {_why_not(error)}") from None


def array_of(value: Any) -> npt.NDArray[Any] | None:
    """Returns the array of numbers that a value from load() holds, such as a tensor; None if it holds none.

    A tensor whose values cannot be read (sparse, quantized, of 8-bit floats) becomes an array without values of the
    same shape (voxserve.export.unread).
    """
    if isinstance(value, _Array):
        return value.values
    if type(value).__module__.partition(".")[0] != "torch" or not hasattr(value, "detach"):
        return None
    import torch

    tensor = value.detach()
    try:
        values: npt.NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    except (TypeError, RuntimeError, NotImplementedError) as error:
        return unread(tensor.shape, str(error).splitlines()[0])
    return values


def _why_not(error: Exception) -> str:
    """Returns a line that says why a torch file cannot be loaded. torch's own messages are not used, since they suggest
    the option that runs the file's code.
    """
    text = str(error)
    forbidden = re.search(r"(?:GLOBAL|[Gg]lobal) ([\w.]+)", text)
    if forbidden and forbidden[1].startswith("deepspeed."):
        return (
            f"it wants {forbidden[1]}, so it is a part of a DeepSpeed checkpoint. Merge its parts with the script that "
            "DeepSpeed leaves beside them: python zero_to_fp32.py FOLDER weights.pth"
        )
    if forbidden:
        return (
            f"it wants {forbidden[1]}, which could run code. Only where you trust it, save its tensors alone: "
            "torch.save(torch.load(path, weights_only=False)['state_dict'], other_path)"
        )
    if "TorchScript" in text:
        return "it is a TorchScript program; save its state_dict()"
    if "legacy .tar format" in text:
        return "it has the format of torch before 0.1.10: load and save it with an older torch"
    if "Unsupported operand" in text:
        return (
            "its pickle has another protocol than torch.save's 2, which torch reads without running code: save it again"
        )
    return "it is damaged, cut off, or of another format"
