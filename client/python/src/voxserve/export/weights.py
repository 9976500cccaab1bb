"""Finds a network's weights among the tensors of a checkpoint.

Training code puts parts before the names of a network's tensors, such as "module." (DataParallel), "model." (Lightning)
and "_orig_mod." (torch.compile), or stores them in dicts within dicts ("state_dict.model.conv.weight" here). The common
prefix with the most tensors of the network is taken away, whatever it is. A file can hold the weights several times,
as they are and averaged (ema). Where they differ, the user says which to take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from voxserve.export.networks.tensors import ExportError, Tensor
from voxserve.export.spconv_order import SpconvOrder

# Parts of names that wrappers of modules add anywhere, and that no module of a user's has.
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_MAX_LISTED = 12  # names in a message
_CONTAINERS = ("state_dict.", "model_state_dict.", "model_state.")  # dicts whose name says nothing about the weights


class Weights(dict[str, Tensor]):
    """The tensors of one network by the network's own names."""

    def __init__(
        self, tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = (), spconv_order: str = ""
    ) -> None:
        super().__init__(tensors)
        self.spconv = SpconvOrder(spconv_order)


@dataclass(frozen=True)
class Found:
    """A network's weights in a checkpoint."""

    weights: Weights
    prefix: str  # what the names lost, without the name of the dict that they were in; with the dot at its end
    warnings: tuple[str, ...]


def find(
    tensors: Mapping[str, Tensor],
    fit: Callable[[str, Tensor], int],
    *,
    prefix: str = "",
    spconv_order: str = "",
) -> Found:
    """Finds the weights of a network.

    tensors: all of the checkpoint (checkpoint_file.read).
    fit: returns how well a tensor fits the network under a name, 0 for not at all.
    prefix: only names that begin with this prefix are used; "": the names with the prefix that fits best.
    spconv_order: one of spconv_order.ORDERS, for weights whose shapes fit several orders; "": found by SpconvOrder.

    Raises ExportError if several prefixes fit equally well and their tensors differ, or no name begins with `prefix`.
    """
    wanted = f"{prefix.rstrip('.')}." if prefix else ""
    plain = _without_wrappers(tensors)
    inside = {name: tensor for name, tensor in plain.items() if name.startswith(wanted)}
    if not inside:
        raise ExportError([f"--prefix {prefix}: no tensor's name begins so; there are {summary(plain)}"])
    marks = {p: count for p, count in _marks(inside, fit).items() if p.startswith(wanted)}
    best = _best(inside, marks) if marks else wanted or _container(inside)
    weights = Weights(
        ((name.removeprefix(best), tensor) for name, tensor in inside.items() if name.startswith(best)), spconv_order
    )
    lost = best.removeprefix(_container([best]))
    return Found(weights, lost, tuple(_warnings(tensors, plain, marks, best, lost)))


def of_roots(roots: Sequence[str]) -> Callable[[str, Tensor], int]:
    """Returns a `fit` for a network whose tensors' names begin with one of these parts."""
    known = frozenset(roots)
    return lambda name, _tensor: int(name.partition(".")[0] in known)


def summary(names: Iterable[str]) -> str:
    """Returns a text that counts tensors by the first part of their names."""
    return _listed(_groups(names, ""))


def without_wrappers(name: str) -> str:
    """Returns a tensor's name without the parts that wrappers of modules add, such as torch.compile's "_orig_mod"."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _without_wrappers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors by their names without wrappers' parts. A name that another tensor has stays as it is."""
    made: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        plain = without_wrappers(name)
        made[name if plain in tensors and plain != name else plain] = tensor
    return made


def _marks(tensors: Mapping[str, Tensor], fit: Callable[[str, Tensor], int]) -> Counter[str]:
    """Returns how well the tensors fit by prefix, for each prefix by which at least one does."""
    marks: Counter[str] = Counter()
    for name, tensor in tensors.items():
        start = 0
        while True:
            mark = fit(name[start:], tensor)
            if mark:
                marks[name[:start]] += mark
            start = name.find(".", start) + 1
            if start == 0:
                break
    return marks


def _best(tensors: Mapping[str, Tensor], marks: Mapping[str, int]) -> str:
    """Returns the prefix that fits best. Raises ExportError if there are several, and their tensors differ."""
    best = _shortest(prefix for prefix, mark in marks.items() if mark == max(marks.values()))
    if any(not _are_equal(tensors, best[0], other) for other in best[1:]):
        raise ExportError(
            [
                f"{len(best)} sets of weights fit equally well, and they differ: {_listed(map(_shown, best))}. Choose "
                f"one with --prefix, for example --prefix {_shown(best[0])}{_about_averages(best)}"
            ]
        )
    return best[0]


def _shortest(prefixes: Iterable[str]) -> list[str]:
    """Returns the prefixes that do not begin with another one, in order. "a." and "a.b." have the same tensors."""
    prefixes = tuple(prefixes)
    return [p for p in prefixes if not any(p != shorter and p.startswith(shorter) for shorter in prefixes)]


def _container(names: Iterable[str]) -> str:
    """Returns the dict of _CONTAINERS that all names are in; "" if there is none."""
    names = tuple(names)
    return next((c for c in _CONTAINERS if all(name.startswith(c) for name in names)), "")


def _are_equal(tensors: Mapping[str, Tensor], first: str, second: str) -> bool:
    one = {name.removeprefix(first): tensor for name, tensor in tensors.items() if name.startswith(first)}
    other = {name.removeprefix(second): tensor for name, tensor in tensors.items() if name.startswith(second)}
    common = one.keys() & other.keys()
    return bool(common) and all(np.array_equal(one[name], other[name]) for name in common)


def _about_averages(prefixes: Sequence[str]) -> str:
    if {"state_dict", "ema_state_dict"} == {prefix.partition(".")[0] for prefix in prefixes}:
        return ". A file of mmengine's EMAHook has the averaged weights in state_dict"
    return ""


def _warnings(
    tensors: Mapping[str, Tensor], plain: Mapping[str, Tensor], marks: Mapping[str, int], best: str, lost: str
) -> list[str]:
    warnings = []
    wrappers = sorted({part for name in tensors.keys() - plain.keys() for part in name.split(".")} & _WRAPPERS)
    if wrappers:
        warnings.append(f"names lose the parts {_listed(f'{part}.' for part in wrappers)}")
    if lost:
        warnings.append(f"names lose their first part '{lost}'")
    others = _shortest(p for p, mark in marks.items() if 2 * mark > marks[best])
    others = [p for p in others if not p.startswith(best) and not best.startswith(p) and not _are_equal(plain, best, p)]
    if others:
        warnings.append(
            f"the weights are those of {_shown(best)}; those of {_listed(map(_shown, others))} fit too: --prefix takes "
            "them instead"
        )
    outside = [name for name, tensor in plain.items() if tensor.ndim and not name.startswith(best)]
    if outside:
        warnings.append(f"tensors outside of {_shown(best)} are left out: {_listed(_groups(outside, best))}")
    return warnings


def _groups(tensors: Iterable[str], prefix: str) -> list[str]:
    """Returns texts that count tensors by the first part of their names that differs from the prefix."""
    groups: Counter[str] = Counter()
    for name in tensors:
        parts, common = name.split("."), prefix.split(".")
        same = 0
        while same < min(len(parts) - 1, len(common)) and parts[same] == common[same]:
            same += 1
        groups[".".join(parts[: same + 1])] += 1
    return [f"{name} ({count})" if count > 1 else name for name, count in groups.items()]


def _shown(prefix: str) -> str:
    return prefix.rstrip(".") or "the file itself"


def _listed(names: Iterable[str]) -> str:
    """Returns the names with commas; of many the first ones."""
    names = tuple(names)
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more
