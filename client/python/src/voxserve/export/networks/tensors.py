"""Defines the sources of a network's tensors: a state dict, whose names and shapes are checked, or a random seed.

The code that builds a network asks for every tensor by the name and shape that the network's own library gives it. So
the same code builds a network from a state dict and from a seed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from voxserve.export.spconv_order import SpconvOrder
from voxserve.export.unread import why_unread

Tensor = npt.NDArray[Any]
_STORED_DTYPES = (np.float16, np.float32)


class ExportError(ValueError):
    """A network cannot be exported. For example, its state dict lacks tensors, or a module has an operation that the
    model format does not have. `problems` lists all problems that were found.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"{len(self.problems)} problem(s):\n" + "\n".join(f"  {p}" for p in self.problems))


class Tensors(Protocol):
    """A source of tensors by name. A size of 0 stands for an unknown size, because the tensor that determines it is
    missing.
    """

    spconv: SpconvOrder  # the order in which spconv's weights are stored

    def __contains__(self, name: str) -> bool:
        """Returns whether the tensor certainly exists; always False for random tensors."""

    def size(self, name: str, axis: int) -> int:
        """Returns the size of a stored tensor along an axis; 0 if it is unknown."""

    def take(
        self,
        name: str,
        shape: Sequence[int],
        *,
        or_shapes: Sequence[Sequence[int]] = (),
        fan_in: int = 0,
        gain: float = 1.0,
        fill: float | None = None,
    ) -> Tensor:
        """Returns the tensor, whose shape must be `shape`, or one of `or_shapes` if it is stored with that shape.

        The other arguments are for random tensors. Weights are normally distributed with the variance gain^2 * 2 /
        fan_in, and the scale of a norm is about gain. fill: the value of all elements, instead.
        """

    def raise_problems(self) -> None:
        """Raises ExportError with all problems, if there are any."""


def num_numbered(names: Iterable[str], prefix: str, first: int = 0) -> int:
    """Returns how many of the parts PREFIX<first>, PREFIX<first + 1>, ... have tensors, up to the first one that has
    none.
    """
    there = {name.removeprefix(prefix).partition(".")[0] for name in names if name.startswith(prefix)}
    count = 0
    while str(first + count) in there:
        count += 1
    return count


class StateDict:
    """The tensors of a state dict. It collects problems, such as missing tensors and wrong shapes, which
    raise_problems() reports. Unknown sizes (0) are not checked.
    """

    def __init__(
        self,
        state: Mapping[str, Tensor],
        network: str,
        ignore: Callable[[str], bool] = lambda name: name.endswith(".num_batches_tracked"),
    ) -> None:
        """network: the network's name, for the report of unknown tensors. ignore: returns whether a tensor that the
        network does not use is no problem.
        """
        self._state = state
        self._network = network
        self._ignore = ignore
        self.spconv: SpconvOrder = getattr(state, "spconv", None) or SpconvOrder()
        self._taken: set[str] = set()
        self._problems: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._state

    def size(self, name: str, axis: int) -> int:
        shape = self._state[name].shape if name in self._state else ()
        return shape[axis] if -len(shape) <= axis < len(shape) else 0

    def take(
        self,
        name: str,
        shape: Sequence[int],
        *,
        or_shapes: Sequence[Sequence[int]] = (),
        fan_in: int = 0,
        gain: float = 1.0,
        fill: float | None = None,
    ) -> Tensor:
        """Returns the tensor, or zeros of the shape if the tensor is missing or has a problem."""
        self._taken.add(name)
        shapes = [shape, *or_shapes]
        expected = " or ".join("[" + ", ".join(str(n) if n else "?" for n in s) + "]" for s in shapes)
        if name not in self._state:
            self._problems.append(f"tensor '{name}' {expected} is missing")
            return np.zeros(tuple(shape), np.float32)
        tensor = self._state[name]
        if not any(_fits(tensor, s) for s in shapes):
            self._problems.append(f"tensor '{name}' is {list(tensor.shape)}, not {expected}")
        elif why_unread(tensor):
            self._problems.append(f"tensor '{name}' is no array of numbers: {why_unread(tensor)}")
        elif tensor.dtype not in _STORED_DTYPES:
            self._problems.append(f"tensor '{name}' is {tensor.dtype}, not float16, bfloat16 or float32")
        elif not np.isfinite(tensor).all():
            self._problems.append(f"tensor '{name}' has {int((~np.isfinite(tensor)).sum())} values that are not finite")
        elif name.endswith(".running_var") and (tensor < 0).any():
            self._problems.append(f"tensor '{name}' has {int((tensor < 0).sum())} negative variances")
        else:
            return tensor
        return np.zeros(tuple(shape), np.float32)

    def raise_problems(self) -> None:
        unknown = [n for n in self._state if n not in self._taken and not self._ignore(n)]
        problems = [*dict.fromkeys(self._problems)]  # without repetitions: two layers may share a tensor
        problems += [f"tensor '{n}' {list(self._state[n].shape)} is not part of {self._network}" for n in unknown]
        if problems:
            raise ExportError(problems)


class RandomTensors:
    """Random tensors, which depend only on the seed and the tensor's name, not on the rest of the network.

    Weights have the distribution of He et al. (2015). They are rounded to float16, so that a server computes with the
    same weights in every precision. Means and variances of batch norms are close to 0 and 1, so that activations
    neither vanish nor exceed float16.
    """

    def __init__(self, seed: int) -> None:
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed is {seed}; it must be 0 to 2^64 - 1")
        self._seed = seed
        self.spconv = SpconvOrder()

    def __contains__(self, name: str) -> bool:
        return False

    def size(self, name: str, axis: int) -> int:
        return 0

    def take(
        self,
        name: str,
        shape: Sequence[int],
        *,
        or_shapes: Sequence[Sequence[int]] = (),
        fan_in: int = 0,
        gain: float = 1.0,
        fill: float | None = None,
    ) -> Tensor:
        if fill is not None:
            return np.full(tuple(shape), fill, np.float32)
        rng = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        if fan_in > 0:
            values = rng.standard_normal(tuple(shape), np.float32) * np.float32(gain * (2.0 / fan_in) ** 0.5)
            return values.astype(np.float16)
        if name.endswith(".running_var"):
            return rng.uniform(0.8, 1.25, tuple(shape)).astype(np.float32)
        if name.endswith(".weight"):
            return (gain * rng.uniform(0.8, 1.25, tuple(shape))).astype(np.float32)
        return (0.1 * rng.standard_normal(tuple(shape))).astype(np.float32)

    def raise_problems(self) -> None:
        """Does nothing, since random tensors have no problems."""


def _fits(tensor: Tensor, shape: Sequence[int]) -> bool:
    return tensor.ndim == len(shape) and all(n in (0, m) for n, m in zip(shape, tensor.shape, strict=True))
