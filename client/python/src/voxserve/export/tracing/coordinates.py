"""Follows the coordinates of sites that a module uses as features, such as torch.cat([x.F, 0.05 * x.C[:, 1:]], 1).

Coordinates are plain tensors in a trace. While the module runs, each call of torch is seen: a tensor of integers that
equals the coordinates of a level is recognized by its values, and before the first sparse tensor by its shape. Columns
of it that constants scale and shift are followed. Where such a tensor meets traced features, or a function of features
such as a linear layer, it becomes a traced tensor of its own. Everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from voxserve.arrays import array_of
from voxserve.export.tracing import groups, scatter
from voxserve.export.tracing.graph import Graph, Level, Place
from voxserve.export.tracing.refusal import RefusalError
from voxserve.export.tracing.traced import Traced, unwrapped, wrap

_SAMPLE = -1  # Column.axis of the column with the sample's number
_LARGEST_EXACT = 2048.0  # float16 has every whole number up to this one


@dataclass(frozen=True)
class Column:
    """One column: the coordinate on an axis of the model, in sites of the level, times `scale`, plus `shift`."""

    axis: int
    scale: float = 1.0
    shift: float = 0.0

    def changed(self, scale: float, shift: float) -> Column:
        """Returns the column times `scale`, plus `shift`."""
        return Column(self.axis, self.scale * scale, self.shift * scale + shift)


@dataclass(frozen=True)
class Columns:
    """What a plain tensor has in its columns. is_flat: the tensor is [N], the only column."""

    level: Level
    columns: tuple[Column, ...]
    sites: Any  # [N, 1 + D] the level's, or what is taken for them before the first sparse tensor
    is_flat: bool = False


class Following(TorchFunctionMode):
    """Follows coordinates while it is entered."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._graph = graph
        self._known: Any = WeakIdKeyDictionary()  # tensor -> its Columns
        self._derived: Any = WeakIdKeyDictionary()  # tensors that come from coordinates in another way

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if not self._graph.axes or name in ("__get__", "__set__", "_make_subclass"):
            return func(*args, **kwargs)
        if name in _LIKE and args and isinstance(args[0], torch.Tensor) and not isinstance(args[0], Traced):
            args, kwargs, types = unwrapped(args), unwrapped(kwargs), ()  # features are only the example of a type
        found, is_traced = self._found(args), any(issubclass(t, Traced) for t in types)
        is_derived = self._has_derived(args)
        if is_traced and is_derived and name in _JOINING:
            raise _refusal()
        if (not found and not is_derived) or (is_traced and _bare(name) in _INDEXING):
            return func(*args, **kwargs)
        can_follow = not (is_traced or is_derived or kwargs.get("out") is not None)
        columns = _followed(name, args, kwargs, self._columns) if can_follow else None
        if columns is None and (is_traced or _is_of_features(name, found)):
            made = self._of_traced(func, args, kwargs, is_traced)
            if made is not None:
                return made
        result = func(*args, **kwargs)
        if _is_in_place(name):
            self._forget(args[0])
        if isinstance(result, torch.Tensor) and not isinstance(result, Traced):
            if columns is not None:
                self._known[result] = columns
            else:
                self._derived[result] = True
        return result

    def _of_traced(self, func: Any, args: Any, kwargs: Any, is_traced: bool) -> Any:
        """Returns the call's result with coordinates as traced tensors. Returns None if the model format does not have
        the function, and no other argument is traced: the plain tensor may serve something else than features.
        """
        if is_traced:
            return func(*self._traced(args), **kwargs)
        try:
            return func(*self._traced(args), **kwargs)
        except RefusalError:
            return None

    def _found(self, value: Any) -> list[torch.Tensor]:
        """Returns the tensors with known columns in a call's arguments."""
        if isinstance(value, (list, tuple)):
            return [tensor for entry in value for tensor in self._found(entry)]
        return [value] if isinstance(value, torch.Tensor) and self._columns(value) is not None else []

    def _has_derived(self, value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return any(map(self._has_derived, value))
        return isinstance(value, torch.Tensor) and value in self._derived

    def _columns(self, tensor: Any) -> Columns | None:
        if not isinstance(tensor, torch.Tensor) or isinstance(tensor, Traced):
            return None
        known: Columns | None = self._known.get(tensor)
        if known is not None or tensor.is_floating_point() or tensor.ndim != 2:
            return known
        axes = self._graph.axes
        if tensor.shape[1] != 1 + len(axes):
            return None
        order = [0, *(1 + a for a in axes)]
        values = array_of(tensor.as_subclass(torch.Tensor))[:, order]
        for level in self._graph.levels:
            if level.coordinates is None and len(values) == self._graph.num_rows:
                whole = (Column(_SAMPLE), *(Column(axes.index(a)) for a in range(len(axes))))
                return Columns(level, whole, values.astype(np.int64))
            if level.coordinates is None or len(level.coordinates) != len(values):
                continue
            for stride in dict.fromkeys(((1,) * len(axes), level.stride)):
                if np.array_equal(values, level.coordinates * (1, *stride)):
                    columns = (Column(axes.index(a), float(stride[axes.index(a)])) for a in range(len(axes)))
                    return Columns(level, (Column(_SAMPLE), *columns), level.coordinates)
        return None

    def _forget(self, tensor: torch.Tensor) -> None:
        """Forgets what lies in the memory of a tensor that was changed in place."""
        address = tensor.untyped_storage().data_ptr()
        for other in list(self._known):
            if other.untyped_storage().data_ptr() == address:
                del self._known[other]

    def _traced(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(self._traced, value))
        columns = self._columns(value) if isinstance(value, torch.Tensor) else None
        if columns is None:
            return value
        values = value.as_subclass(torch.Tensor)
        return wrap(values.clone(), self._place(columns, array_of(values)), self._graph)

    def _place(self, columns: Columns, values: Any) -> Place:
        """Adds the nodes that compute columns, and returns the place of the result."""
        level, listed = columns.level, columns.columns
        dimension = len(self._graph.axes)
        by_axis = {column.axis: column for column in listed}
        if _SAMPLE in by_axis:
            raise RefusalError("the number of the sample is used as a feature, and it is another one in every batch")
        if len(by_axis) != len(set(listed)):
            raise RefusalError("one axis's coordinates with two scales are used as features: join them afterwards")
        whole = [by_axis.get(axis, Column(axis)) for axis in range(dimension)]
        sites = columns.sites
        expected = np.stack([sites[:, 1 + c.axis] * c.scale + c.shift for c in listed], axis=1).reshape(values.shape)
        if not np.allclose(values, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max(initial=0))):
            raise _refusal()
        if level.coordinates is None:
            self._graph.assumed.append(sites)
        if np.abs(expected).max(initial=0) > _LARGEST_EXACT:
            self._graph.warn(
                f"coordinates up to {np.abs(expected).max():.0f} are features: float16 does not have all whole numbers "
                "above 2048. Scale them, or serve the model in float32"
            )
        scale, shift = [c.scale for c in whole], [c.shift for c in whole]
        source = level.node
        name = self._graph.node(
            "coordinates", [source], lambda network, n: network.site_coordinates(n, source, scale, shift)
        )
        place = self._graph.channels(Place("sites", name, level), np.array([c.axis for c in listed]), dimension)
        return replace(place, is_flat=columns.is_flat)


# Functions that keep the columns, or scale and shift them. Every other function ends the following.
_SAME = (
    "float",
    "double",
    "long",
    "int",
    "to",
    "type",
    "type_as",
    "contiguous",
    "clone",
    "detach",
    "cpu",
    "cuda",
    "alias",
)
_SCALING = ("add", "sub", "rsub", "mul", "multiply", "div", "true_divide", "divide", "neg", "negative")
_LIKE = ("to", "type_as", "expand_as", "view_as", "reshape_as")
# Functions of features whose other arguments are no features.
_INDEXING = (
    *("getitem", "setitem", "index_select", "gather", "embedding", "repeat_interleave", *scatter.NAMES),
    *groups.HANDLERS,
)
_JOINING = ("cat", "concat", "concatenate", "stack")
_FEATURES = (
    "linear",
    "matmul",
    "mm",
    "__matmul__",
    "layer_norm",
    "batch_norm",
    "norm",
    "linalg_norm",
    "normalize",
    "sum",
)


def _is_of_features(name: str, found: list[torch.Tensor]) -> bool:
    """Returns whether a function of plain tensors makes features of them, as a layer of torch does."""
    return name in _FEATURES and any(tensor.is_floating_point() for tensor in found)


def _refusal() -> RefusalError:
    return RefusalError(
        "coordinates that are rounded, reduced or changed in another way are used as features: in the model format are "
        "coordinates that constants scale and shift, such as x.C[:, 1:] * 0.1 + 0.5"
    )


def _is_in_place(name: str) -> bool:
    return (name.endswith("_") and not name.endswith("__")) or name.startswith(("__i", "__setitem__"))


def _bare(name: str) -> str:
    """Returns a function's name without what says that it is a method of an operator or works in place."""
    if name in ("__itruediv__", "__truediv__", "__div__", "__idiv__"):
        return "div"
    if name.startswith("__i") and name.endswith("__"):
        return name[3:-2]
    return name.strip("_") if name.startswith("__") else name.removesuffix("_")


def _followed(name: str, args: Any, kwargs: Any, columns_of: Callable[[Any], Columns | None]) -> Columns | None:
    """Returns the columns of a call's result; None: they are not followed."""
    if name in _JOINING:
        return _joined(name, args, kwargs, columns_of)
    bare = _bare(name)
    columns = columns_of(args[0]) if args else None
    if name == "__getitem__" and columns is not None:
        return _indexed(columns, args[1])
    if bare in _SAME:
        return columns
    if name == "unsqueeze" and columns is not None and columns.is_flat:
        return replace(columns, is_flat=False) if (args[1:] or kwargs.values()) in ((1,), (-1,)) else None
    bare = {"radd": "add", "rmul": "mul"}.get(bare, bare)
    if bare not in _SCALING:
        return None
    if bare in ("neg", "negative"):
        return None if columns is None else _changed(columns, -1.0, 0.0)
    if kwargs or len(args) != 2:
        return None
    return _scaled(bare, args[0], args[1], columns_of)


def _scaled(bare: str, a: Any, b: Any, columns_of: Callable[[Any], Columns | None]) -> Columns | None:
    """Returns the columns of a sum, difference, product or quotient with constants."""
    if bare == "rsub":
        bare, a, b = "sub", b, a
    first, second = columns_of(a), columns_of(b)
    if (first is None) == (second is None):
        return None
    columns = first or second
    assert columns is not None
    values = _constants(b if second is None else a, columns)
    if values is None:
        return None
    if bare == "add":
        return _changed(columns, 1.0, values)
    if bare == "sub":
        return _changed(columns, 1.0, -values) if second is None else _changed(columns, -1.0, values)
    if bare in ("mul", "multiply"):
        return _changed(columns, values, 0.0)
    return _changed(columns, 1 / values, 0.0) if second is None and (values != 0).all() else None


def _constants(value: Any, columns: Columns) -> Any:
    """Returns one constant for each column; None for anything that is no such list."""
    count = len(columns.columns)
    if type(value) in (bool, int, float):  # a sizes.Size or Ratio comes from the example
        return np.full(count, float(value))
    if not isinstance(value, torch.Tensor) or isinstance(value, Traced) or value.numel() not in (1, count):
        return None
    shape = tuple(value.shape)
    if value.numel() != 1 and (columns.is_flat or shape not in ((count,), (1, count))):
        return None
    return np.broadcast_to(array_of(value).reshape(-1).astype(np.float64), (count,))


def _changed(columns: Columns, scale: Any, shift: Any) -> Columns:
    count = len(columns.columns)
    scales, shifts = np.broadcast_to(scale, (count,)), np.broadcast_to(shift, (count,))
    changed = (c.changed(float(a), float(b)) for c, a, b in zip(columns.columns, scales, shifts, strict=True))
    return replace(columns, columns=tuple(changed))


def _indexed(columns: Columns, index: Any) -> Columns | None:
    """Returns the columns of coordinates[:, index]; None for a choice of rows."""
    if not isinstance(index, tuple) or len(index) != 2 or columns.is_flat:
        is_none = isinstance(index, tuple) and len(index) == 2 and columns.is_flat and index[1] is None
        return replace(columns, is_flat=False) if is_none and index[0] == slice(None) else None
    rows, chosen = index
    if not (rows is Ellipsis or (isinstance(rows, slice) and rows == slice(None))):
        return None
    if isinstance(chosen, torch.Tensor):
        chosen = chosen.tolist()
    if isinstance(chosen, int) and not isinstance(chosen, bool):
        return replace(columns, columns=(columns.columns[chosen],), is_flat=True)
    if not isinstance(chosen, slice) and not (isinstance(chosen, list) and all(type(i) is int for i in chosen)):
        return None
    numbers = np.arange(len(columns.columns))[chosen]
    return replace(columns, columns=tuple(columns.columns[i] for i in numbers))


def _joined(name: str, args: Any, kwargs: Any, columns_of: Callable[[Any], Columns | None]) -> Columns | None:
    tensors = args[0] if args else kwargs.get("tensors", ())
    dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
    parts = [columns_of(tensor) for tensor in tensors]
    first = parts[0] if parts else None
    if first is None or dim not in (1, -1):
        return None
    joined: list[Column] = []
    for part in parts:
        if part is None or part.level is not first.level or part.is_flat != (name == "stack"):
            return None
        if not np.array_equal(part.sites, first.sites):
            return None
        joined += part.columns
    return Columns(first.level, tuple(joined), first.sites)
