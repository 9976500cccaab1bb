"""Follows tensors whose dimensions torch code rearranges for matrix products: transposed, divided into heads, or with
added dimensions of size 1.

A layout names each dimension of a tensor: "rows", "keys" (of attention scores), "one" (of size 1), or the number of a
part of the channels. For example, 8 channels that were reshaped to 2 heads of 4 have the parts 0 and 1, and channel =
index in part 0 * 4 + index in part 1, as in the model format. Rows [N, C] have the layout ("rows", 0).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from voxserve.export.tracing.graph import Place
from voxserve.export.tracing.refusal import RefusalError

if TYPE_CHECKING:
    from voxserve.export.tracing.functions import Call

Layout = tuple[str | int, ...]
ROWS: Layout = ("rows", 0)
KINDS = ("laid", "scores", "weights")
_ROW_KINDS = ("sites", "points", "samples")


def layout_of(call: Call, place: Place) -> Layout:
    if place.kind in KINDS:
        return place.layout
    if place.kind in _ROW_KINDS and not place.is_flat:
        return ROWS
    raise RefusalError(f"'{call.name}' of {place.kind} is not in the model format")


def base(place: Place) -> Place:
    """Returns the place as rows [N, C], without its layout."""
    return replace(place, kind=place.rows_kind, layout=(), rows_kind="") if place.kind == "laid" else place


def laid(place: Place, layout: Layout) -> Place:
    """Returns the place, whose kind is that of rows, scores or weights, with another layout."""
    if place.kind in ("scores", "weights"):
        return replace(place, layout=layout)
    rows = base(place)
    return rows if layout == ROWS else replace(rows, kind="laid", rows_kind=rows.kind, layout=layout)


def is_rows(place: Place) -> bool:
    """Returns whether a tensor's values are in memory as in its node's result, apart from dimensions of size 1."""
    return place.kind not in KINDS or (place.kind == "laid" and without_ones(place.layout) == ROWS)


def without_ones(layout: Layout) -> Layout:
    return tuple(d for d in layout if d != "one")


def parts_of(layout: Layout) -> list[int]:
    return [d for d in layout if isinstance(d, int)]


def axis_of(dim: int, dimensions: int) -> int:
    return dim + dimensions if dim < 0 else dim


def refuse(call: Call, shape: Sequence[int]) -> RefusalError:
    return RefusalError(f"'{call.name}' of rows laid out as {list(shape)} is not in the model format")


# Handlers


def _permuted(call: Call, order: Sequence[int]) -> Place:
    x = call.source()
    layout = layout_of(call, x)
    return laid(x, tuple(layout[i] for i in order))


def _transpose(call: Call) -> Place:
    n = len(call.args[0].shape)
    order = list(range(n))
    if call.name in ("t", "T", "mT"):
        if n != 2 and call.name != "mT":
            raise refuse(call, call.args[0].shape)
        a, b = n - 2, n - 1
    else:
        a, b = axis_of(call.get(1, "dim0"), n), axis_of(call.get(2, "dim1"), n)
    order[a], order[b] = order[b], order[a]
    return _permuted(call, order)


def _permute(call: Call) -> Place:
    dims = call.args[1:] if len(call.args) > 1 else (call.kwargs["dims"],)
    dims = tuple(dims[0]) if len(dims) == 1 and not isinstance(dims[0], int) else dims
    return _permuted(call, [axis_of(d, len(dims)) for d in dims])


def _unsqueeze(call: Call) -> Place:
    x, at = call.source(), axis_of(call.get(1, "dim"), len(call.args[0].shape) + 1)
    if x.is_flat and at == 1 and x.kind in _ROW_KINDS:
        return replace(x, is_flat=False)
    layout = layout_of(call, x)
    return laid(x, (*layout[:at], "one", *layout[at:]))


def squeezed(call: Call, x: Place) -> Any:
    tensor, dim = call.args[0], call.get(1, "dim")
    layout = layout_of(call, x)
    if dim is None:
        if any(n == 1 and d != "one" for n, d in zip(tensor.shape, layout, strict=True)):
            raise refuse(call, tensor.shape)
        return laid(x, without_ones(layout))
    at = axis_of(dim, len(layout))
    if tensor.shape[at] != 1:
        return tensor
    if layout[at] != "one":
        raise refuse(call, tensor.shape)
    return laid(x, (*layout[:at], *layout[at + 1 :]))


def reshaped(call: Call, x: Place, wanted: Sequence[int]) -> Place:
    """Returns the place of a reshaped tensor. Channels may become heads, heads may become channels, and dimensions of
    size 1 may be added or removed; any other shape is refused. wanted: the new shape.
    """
    shape, layout = list(call.args[0].shape), layout_of(call, x)
    left = [(n, d) for n, d in zip(shape, layout, strict=True) if d != "one"]
    # The new dimensions: "rows", "keys", "one", or the list of the old parts that the new part consists of.
    made: list[str | list[int]] = []
    sizes = list(wanted)
    while sizes:
        size = sizes.pop(0)
        if left and left[0][0] == size:
            d = left.pop(0)[1]
            made.append([d] if isinstance(d, int) else d)
        elif size == 1:
            made.append("one")
        elif left and isinstance(left[0][1], int) and size > left[0][0]:  # several old parts become one
            product = 1
            merged: list[int] = []
            while left and isinstance(left[0][1], int) and product < size:
                if merged and left[0][1] != merged[-1] + 1:
                    raise refuse(call, wanted)
                product, merged = product * left[0][0], [*merged, left[0][1]]
                left.pop(0)
            if product != size:
                raise refuse(call, wanted)
            made.append(merged)
        elif left and isinstance(left[0][1], int) and left[0][0] % size == 0:  # an old part becomes several
            part = left[0][1]
            made.append([part])
            left[0] = (left[0][0] // size, part)
        else:
            raise refuse(call, wanted)
    if left:
        raise refuse(call, wanted)
    return laid(x, _numbered(made))


def _numbered(made: Sequence[str | list[int]]) -> Layout:
    """Returns the layout of the new dimensions `made`. The parts are numbered in the order of the channels."""
    order = sorted((parts[0], at) for at, parts in enumerate(made) if isinstance(parts, list))
    number = {at: i for i, (_, at) in enumerate(order)}
    return tuple(number[at] if isinstance(entry, list) else entry for at, entry in enumerate(made))


def chosen(call: Call, x: Place, shape: Sequence[int], at: int, index: Any) -> Place:
    """Returns the place of x indexed along dimension `at`, which is a part of the channels. index: an integer, which
    removes the dimension, or a slice.
    """
    layout = layout_of(call, x)
    part, parts = layout[at], parts_of(layout)
    if isinstance(index, int) and len(parts) == 1:
        raise refuse(call, shape)
    sizes = [shape[layout.index(p)] for p in sorted(parts)]
    assert isinstance(part, int)
    numbers = np.arange(int(np.prod(sizes))).reshape(sizes)
    channels = np.take(numbers, np.arange(sizes[part])[index], axis=part).reshape(-1)
    made = call.graph.channels(base(x), channels, numbers.size)
    if not isinstance(index, int):
        return laid(made, layout)
    rest = [d - 1 if isinstance(d, int) and d > part else d for i, d in enumerate(layout) if i != at]
    return laid(made, tuple(rest))


def indexed(call: Call, x: Place, tensor: Any, index: Any) -> Any:
    """Handles x[index] of a tensor with a layout, or of all rows."""
    entries = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [e for e in entries if not hasattr(e, "shape")]:
        raise refuse(call, tensor.shape)
    shape, place = list(tensor.shape), x
    at = 0
    for entry in entries:
        layout = layout_of(call, place)
        if entry is None:
            place = laid(place, (*layout[:at], "one", *layout[at:]))
            shape.insert(at, 1)
            at += 1
        elif is_all(entry, shape[at]):
            at += 1
        elif isinstance(entry, int) and layout[at] == "one":
            place = laid(place, (*layout[:at], *layout[at + 1 :]))
            shape.pop(at)
        elif isinstance(entry, (int, slice)) and isinstance(layout[at], int) and place.kind not in KINDS[1:]:
            place = chosen(call, place, shape, at, entry)
            if isinstance(entry, int):
                shape.pop(at)
            else:
                shape[at], at = len(range(*entry.indices(shape[at]))), at + 1
        elif layout[at] == "rows":
            raise RefusalError(
                f"rows chosen by {'a mask' if hasattr(entry, 'shape') else 'a slice'}: if they are those of one "
                "sample, trace with an example of one sample"
            )
        else:
            raise refuse(call, tensor.shape)
    return place


def is_all(entry: Any, size: int) -> bool:
    """Returns whether an index of one dimension, which has the size `size`, selects all of it in its order."""
    if isinstance(entry, slice):
        return entry.indices(size) == (0, size, 1)
    is_mask = hasattr(entry, "dtype") and str(entry.dtype) == "torch.bool" and tuple(entry.shape) == (size,)
    return is_mask and bool(entry.all())


def is_choice(entry: Any, size: int) -> bool:
    """Returns whether an index of the rows adds a dimension (None), or is a slice or a mask that is true everywhere."""
    return entry is None or isinstance(entry, slice) or is_all(entry, size)


def _pieces(call: Call) -> Any:
    """Handles unbind, chunk and split along the channels."""
    tensor, x = call.args[0], call.source()
    if call.name == "unbind":
        at = axis_of(call.get(1, "dim", 0), len(tensor.shape))
        indices: list[Any] = list(range(tensor.shape[at]))
    else:
        at, size = axis_of(call.get(2, "dim", 0), len(tensor.shape)), call.get(1, "split_size_or_sections")
        if call.name == "chunk":
            size = -(-tensor.shape[at] // call.get(1, "chunks"))
        sizes = [size] * (tensor.shape[at] // size) if isinstance(size, int) else list(size)
        sizes += [tensor.shape[at] - sum(sizes)] if sum(sizes) < tensor.shape[at] else []
        ends = np.cumsum([0, *sizes]).tolist()
        indices = [slice(a, b) for a, b in itertools.pairwise(ends)]
    layout = layout_of(call, x)
    if not isinstance(layout[at], int) or x.kind in KINDS[1:]:
        raise refuse(call, tensor.shape)
    return [chosen(call, x, tensor.shape, at, index) for index in indices]


HANDLERS: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(("t", "T", "mT", "transpose", "swapaxes", "swapdims"), _transpose),
    "permute": _permute,
    "unsqueeze": _unsqueeze,
    **dict.fromkeys(("unbind", "chunk", "split"), _pieces),
}
