"""Provides stand-ins for spconv.pytorch, torchsparse, MinkowskiEngine and torch_scatter, for machines on which they are
not installed.

They have the classes from which networks are built, with the libraries' names, shapes and storage orders of parameters.
They compute on the CPU with simple loops over a kernel's cells. They are for tracing and comparing, not for training.
A name that a stand-in lacks can be imported; using it raises NotImplementedError.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Collection
from types import ModuleType
from typing import Any

# Library -> module of the library -> the stand-in's module for it.
_MODULES = {
    "spconv": {
        "spconv": "spconv_pytorch",
        **{
            f"spconv.pytorch{part}": "spconv_pytorch"
            for part in ("", ".core", ".conv", ".modules", ".pool", ".tables", ".utils", ".ops", ".functional")
        },
        "spconv.utils": "spconv_pytorch",
    },
    "torchsparse": {
        "torchsparse": "torchsparse_tensor",
        "torchsparse.tensor": "torchsparse_tensor",
        "torchsparse.operators": "torchsparse_tensor",
        **{
            f"torchsparse.{part}": "torchsparse_nn"
            for part in ("nn", "nn.modules", "nn.functional", "nn.utils", "utils", "utils.quantize", "utils.collate")
        },
    },
    "MinkowskiEngine": {
        "MinkowskiEngine": "minkowski",
        "MinkowskiEngine.MinkowskiOps": "minkowski",
        "MinkowskiEngine.MinkowskiSparseTensor": "minkowski",
        "MinkowskiEngine.MinkowskiCoordinateManager": "minkowski",
        "MinkowskiEngine.MinkowskiKernelGenerator": "minkowski",
        "MinkowskiEngine.MinkowskiFunctional": "minkowski_functional",
        "MinkowskiEngine.modules": "minkowski_blocks",
        "MinkowskiEngine.modules.resnet_block": "minkowski_blocks",
        "MinkowskiEngine.utils": "minkowski_utils",
    },
    "torch_scatter": {"torch_scatter": "torch_scatter"},
}

LIBRARIES = tuple(_MODULES)
_VERSIONS = {  # the versions they replace
    "spconv": "2.3.8",
    "torchsparse": "2.1.0",
    "MinkowskiEngine": "0.5.4",
    "torch_scatter": "2.1.2",
}


def install(replace: Collection[str] = ()) -> list[str]:
    """Makes stand-ins importable for the libraries that are not installed, and for those in `replace`, which are
    installed but not to be used. Returns the names of the libraries that have a stand-in now.

    ValueError if `replace` names a library that has none, or that is imported already.
    """
    unknown = sorted(set(replace) - set(LIBRARIES))
    if unknown:
        raise ValueError(f"there is no stand-in for {', '.join(unknown)}: there is one for {', '.join(LIBRARIES)}")
    stood_in = []
    for library, modules in _MODULES.items():
        if library in sys.modules:
            if isinstance(sys.modules[library], _StandIn):
                stood_in.append(library)
            elif library in replace:
                raise ValueError(f"{library} is imported already: install its stand-in before anything imports it")
        elif library in replace or not _is_installed(library):
            for name, source in modules.items():
                sys.modules[name] = _StandIn(name, importlib.import_module(f"{__name__}.{source}"))
            sys.modules[library].__version__ = _VERSIONS[library]  # type: ignore[attr-defined]
            for name in modules:
                parent, _, child = name.rpartition(".")
                if parent:
                    setattr(sys.modules[parent], child, sys.modules[name])
            stood_in.append(library)
    return stood_in


def _is_installed(library: str) -> bool:
    """Returns whether Python finds the library. A folder of its name without code, such as a clone of its repository,
    is no library.
    """
    spec = importlib.util.find_spec(library)
    return spec is not None and spec.origin is not None


def remove() -> None:
    """Removes the stand-ins from the importable modules."""
    for name in [n for n, module in sys.modules.items() if isinstance(module, _StandIn)]:
        del sys.modules[name]


class _StandIn(ModuleType):
    """A module with a library's name, which has the classes of a stand-in's module."""

    def __init__(self, name: str, source: ModuleType) -> None:
        super().__init__(name, source.__doc__)
        self.__path__: list[str] = []  # so that modules below it can be imported
        self.__spec__ = None
        self.__dict__.update({key: value for key, value in vars(source).items() if not key.startswith("_")})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _missing(f"{self.__name__}.{name}")


# A name that a stand-in lacks -> the advice of its error: what a module can use instead.
_INSTEAD = {
    "TensorField": "make a SparseTensor with a row a voxel. The server makes the voxels of points (--voxel_size, or "
    "points of from_torch) and gives each point its voxel's result: return the sparse tensor in place of its slice",
    "MinkowskiInterpolation": "end the network before it; Network.devoxelize interpolates at points",
    "MinkowskiToDenseTensor": "return the sparse tensor, or use spconv's dense() with two axes or from above",
    "MinkowskiToSparseTensor": "begin with a SparseTensor: sites that depend on values are not in the model format",
    "SparseCrop": "end the network before it; Network.crop keeps the sites within bounds",
}


def _missing(full_name: str) -> type:
    instead = _INSTEAD.get(full_name.rpartition(".")[2], "install the library itself")

    def refuse(*_arguments: Any, **_named: Any) -> Any:
        raise NotImplementedError(f"voxserve's stand-in has no {full_name}: {instead}")

    return type(full_name.rpartition(".")[2], (), {"__new__": refuse})
