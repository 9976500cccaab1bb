"""Prepares this machine for a run of a user's module: code that asks for a missing GPU runs on the CPU, spconv's code
for CPUs gets one thread, and compiled modules run as they were before torch.compile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

_LACKING = (  # what spconv 2.3.8 says on a CPU, in spconv/pytorch/ops.py
    "cpu don't support act and bias",  # indice_conv
    "Torch not compiled with CUDA enabled",  # get_indice_pairs_implicit_gemm, of average pools
    "not implemented in cpu-only spconv",  # global pools
)


@contextmanager
def prepared(module: Any = None) -> Iterator[list[str]]:
    """Prepares the machine inside the `with` block, and yields the list of what the user should know about it. The list
    grows until the block ends.

    module: the torch.nn.Module that is run; None: code that only makes one.

    ValueError, in place of spconv's own error, if its code for CPUs has to add a bias, to average, or to pool globally.
    """
    import torch

    texts: list[str] = []
    threads = torch.get_num_threads()
    is_spconv = module is not None and _is_spconv_on_cpu(module)
    is_alone = threads > 1 and is_spconv
    if is_alone:
        torch.set_num_threads(1)
        texts.append("spconv loses sums on a CPU when it has several threads: it gets one")
    try:
        with _not_compiled(), nullcontext() if torch.cuda.is_available() else _without_gpu(texts):
            yield texts
    except (AssertionError, RuntimeError) as error:
        if not is_spconv or not any(text in str(error) for text in _LACKING):
            raise
        raise ValueError(
            f"spconv says '{error}': on a CPU it adds no bias and has no average and global pools. Its stand-in has: "
            "--stand_in spconv, or in Python voxserve.export.stand_ins.install(replace=['spconv']) before spconv is "
            "imported"
        ) from None
    finally:
        if is_alone:
            torch.set_num_threads(threads)


def _not_compiled() -> Any:
    """Returns a context in which modules that torch.compile made compute what they were made of."""
    import torch

    is_used = "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance")
    return torch.compiler.set_stance("force_eager") if is_used else nullcontext()


def _is_spconv_on_cpu(module: Any) -> bool:
    classes = (cls for part in module.modules() for cls in type(part).__mro__)  # a part may be of a subclass
    is_spconv = any(cls.__module__.startswith("spconv.") for cls in classes)
    return is_spconv and all(values.device.type == "cpu" for values in module.parameters())


def _without_gpu(texts: list[str]) -> Any:
    """Returns a context in which .cuda(), .to("cuda") and device="cuda" mean the CPU. Appends a text if one is used."""
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):  # type: ignore[misc, unused-ignore]
        def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name = getattr(func, "__name__", "")
            if name == "cuda":
                self._tell()
                return args[0]
            if "device" in kwargs and _is_gpu(kwargs["device"]):
                self._tell()
                kwargs = {**kwargs, "device": "cpu"}
            if name == "to" and any(map(_is_gpu, args[1:])):
                self._tell()
                args = (args[0], *("cpu" if _is_gpu(value) else value for value in args[1:]))
            return func(*args, **kwargs)

        @staticmethod
        def _tell() -> None:
            text = "there is no GPU here: .cuda() and device='cuda' in your code mean the CPU"
            if text not in texts:
                texts.append(text)

    return OnCpu()


def _is_gpu(device: Any) -> bool:
    """Returns whether a device is a GPU. torch counts GPUs with numbers."""
    import torch

    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    return (isinstance(device, str) and device.startswith("cuda")) or (type(device) is int)
