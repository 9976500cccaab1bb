"""Loads a checkpoint into a torch module, and reports the tensors that it ignored or converted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.export import spconv_order, weights
from voxserve.export.input_files import described
from voxserve.export.networks.tensors import ExportError
from voxserve.export.unread import why_unread

_COUNTER = ".num_batches_tracked"  # a counter of batch norms, which only training reads


def load(module: Any, state: Mapping[str, npt.NDArray[Any]], *, prefix: str = "", order: str = "") -> list[str]:
    """Sets every parameter and buffer of a torch module from the tensors of a checkpoint. Returns warnings, which name
    the tensors that were ignored or converted.

    prefix: only names that begin with it are used; "": those with the prefix that fits best.
    order: one of spconv_order.ORDERS, for spconv's weights whose shapes fit several; "" to find out.

    Raises ExportError, with all tensors that are missing, have another shape or are not finite, or if several sets of
    weights fit. It then does not change the module.
    """
    return _Loader(module, order).load(state, prefix)


def check_finite(module: Any) -> None:
    """Raises ExportError if a parameter of a torch module, or the mean or variance of a batch norm, is NaN or infinite.
    Other buffers, such as masks, may be infinite.
    """
    statistics = (".running_mean", ".running_var")
    tensors = dict(module.named_parameters()) | {n: t for n, t in module.named_buffers() if n.endswith(statistics)}
    problems = {name: _not_finite(tensor, name) for name, tensor in tensors.items()}
    if any(problems.values()):
        raise ExportError([f"tensor '{name}' {problem}" for name, problem in problems.items() if problem])


class _Loader:
    def __init__(self, module: Any, order: str) -> None:
        self._module = module
        self._order = spconv_order.SpconvOrder(order)
        state = module.state_dict(keep_vars=True)
        self._wanted = {name: value for name, value in state.items() if hasattr(value, "data_ptr")}
        self._names_at: dict[Any, list[str]] = {}  # the names of each tensor, by its place in memory
        for name, tensor in self._wanted.items():
            self._names_at.setdefault(_place(tensor), []).append(name)
        self._convolutions = {
            f"{path}.weight" if path else "weight": part
            for path, part in module.named_modules(remove_duplicate=False)
            if hasattr(part, "indice_key") and hasattr(part, "conv1x1")  # spconv's, or the stand-in's
        }
        # The tensors' names in the module by those without the parts that wrappers of modules add.
        self._names = {weights.without_wrappers(name): name for name in self._wanted}

    def load(self, state: Mapping[str, npt.NDArray[Any]], prefix: str) -> list[str]:
        import torch

        own = ""  # parts before all names of the module that the checkpoint's names do not have
        found = weights.find(state, self._fit, prefix=prefix)
        if not self._names.keys() & found.weights.keys():
            own = _common_prefix(self._names)
            found = weights.find(state, lambda name, tensor: self._fit(own + name, tensor), prefix=prefix)
        stored = {self._names.get(own + name, own + name): tensor for name, tensor in found.weights.items()}
        orders = self._orders(stored)
        problems, doubles, loaded = [], [], {}
        for name, tensor in self._wanted.items():
            if name.endswith(_COUNTER):
                continue
            shown, given = f"{found.prefix}{name.removeprefix(own)}", stored.get(name)
            if given is None:
                if not any(other in stored for other in self._shared_with(name)):
                    problems.append(f"tensor '{shown}' {list(tensor.shape)} is missing")
                continue
            if orders.get(name):
                given = spconv_order.to_krsc(given, orders[name], by_memory=self._convolutions[name].conv1x1)
            problem = _unusable(given, tensor) or self._difference(name, stored)
            if problem:
                problems.append(f"tensor '{shown}' {problem}")
                continue
            loaded[name] = torch.from_numpy(np.array(given)).to(tensor.dtype)
            problem = _not_finite(loaded[name], name)
            if problem:
                problems.append(f"tensor '{shown}' {problem}")
            if given.dtype == np.float64 and tensor.dtype == torch.float32:
                doubles.append(name)
        if not self._wanted.keys() & stored.keys():
            problems.append(f"no name fits: the checkpoint has {weights.summary(state)}")
        unused = [f"{found.prefix}{name}" for name in found.weights if own + name not in self._names]
        counters = [name for name in unused if name.endswith(_COUNTER)]
        others = [name for name in unused if name not in counters]
        if problems:
            raise ExportError([*problems, *([described("used by no part of the module", others)] if others else [])])
        self._module.load_state_dict(loaded, strict=False)
        kinds = (
            ("float64, stored as float32", doubles),
            ("counters of training, left out", counters),
            ("used by no part of the module, left out", others),
        )
        return [
            *found.warnings,
            *([f"names get the first part '{own}'"] if own else []),
            *self._order.warnings(),
            *(described(what, names) for what, names in kinds if names),
        ]

    def _fit(self, name: str, tensor: npt.NDArray[Any]) -> int:
        name = self._names.get(name, "")
        if name not in self._wanted:
            return 0
        has_shape = tuple(self._wanted[name].shape) == tensor.shape
        return 2 if has_shape or (name in self._convolutions and self._orders_of(name, tensor)) else 1

    def _orders_of(self, name: str, tensor: npt.NDArray[Any]) -> list[str]:
        part = self._convolutions[name]
        return spconv_order.fitting(tensor.shape, part.kernel_size, part.in_channels, part.out_channels)

    def _orders(self, stored: Mapping[str, npt.NDArray[Any]]) -> dict[str, str]:
        """Returns the order of each of spconv's weights. Those whose shapes fit one order alone are looked at first,
        since they decide for the others.
        """
        names = sorted(self._convolutions.keys() & stored.keys(), key=lambda n: (len(self._orders_of(n, stored[n])), n))
        parts = {name: self._convolutions[name] for name in names}
        return {
            name: self._order.find(name, stored[name].shape, part.kernel_size, part.in_channels, part.out_channels)
            for name, part in parts.items()
        }

    def _shared_with(self, name: str) -> list[str]:
        """Returns the other names of the same tensor of the module."""
        tensor = self._wanted[name]
        return [other for other in self._names_at[_place(tensor)] if other != name and tensor.numel()]

    def _difference(self, name: str, stored: Mapping[str, npt.NDArray[Any]]) -> str:
        for other in self._shared_with(name):
            if other in stored and not np.array_equal(stored[name], stored[other]):
                return f"and '{other}' are one tensor in the module, and differ in the checkpoint"
        return ""


def _place(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _common_prefix(names: Mapping[str, str]) -> str:
    """Returns the parts that all names begin with, with the dot at their end."""
    first, last = min(names, default=""), max(names, default="")
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return first[: first.rfind(".", 0, same) + 1]


def _unusable(given: npt.NDArray[Any], wanted: Any) -> str:
    """Returns why a stored tensor cannot be a tensor of the module; "" if it can."""
    if tuple(given.shape) != tuple(wanted.shape):
        return f"is {list(given.shape)}, not {list(wanted.shape)}"
    if why_unread(given):
        return f"is no array of numbers: {why_unread(given)}"
    if wanted.is_floating_point() and given.dtype.kind != "f":
        return f"is {given.dtype}, but the module has floating-point numbers there: is the checkpoint quantized?"
    if not wanted.is_floating_point() and given.dtype.kind not in "iub":
        return f"is {given.dtype}, but the module has whole numbers there"
    return ""


def _not_finite(values: Any, name: str) -> str:
    import torch

    count = int((~torch.isfinite(values)).sum())
    if count:
        return f"has {count} values that are not finite"
    if name.endswith(".running_var") and bool((values < 0).any()):
        return f"has {int((values < 0).sum())} negative variances"
    return ""
