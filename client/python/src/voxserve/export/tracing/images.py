"""Converts calls of torch's functions on images to nodes, and dense sites to an image."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from voxserve.export.limits import LIMITS
from voxserve.export.tracing import layouts
from voxserve.export.tracing.graph import Graph, Place, Values, constant
from voxserve.export.tracing.refusal import LimitError, RefusalError

if TYPE_CHECKING:
    from voxserve.export.tracing.functions import Call


def _image(call: Call) -> Place:
    x = call.source()
    if x.kind != "image":
        raise RefusalError(f"'{call.name}' of {x.kind} is not in the model format")
    return x


def _weights(call: Call) -> tuple[Values, Values | None]:
    weight, bias = call.get(1, "weight"), call.get(2, "bias")
    return constant(weight), None if bias is None else constant(bias)


def _two(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def _conv2d(call: Call) -> Place:
    x, (weight, bias) = _image(call), _weights(call)
    stride, padding, dilation = _two(call.get(3, "stride", 1)), call.get(4, "padding", 0), call.get(5, "dilation", 1)
    dilation, groups = _two(dilation), int(call.get(6, "groups", 1))
    if isinstance(padding, str):
        ends = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        if padding == "same" and any(end % 2 for end in ends):
            raise RefusalError("conv2d with padding='same' and an even kernel is not in the model format")
        padding = (ends[0] // 2, ends[1] // 2) if padding == "same" else (0, 0)
    rows, columns = (a + b for a, b in zip(_two(padding), x.padding, strict=True))
    name = call.graph.node(
        "conv2d",
        [x.node],
        lambda network, n: network.conv2d(
            n, x.node, weight, bias, stride=stride, padding=(rows, columns), dilation=dilation, groups=groups
        ),
    )
    return Place("image", name)


def _conv_transpose2d(call: Call) -> Place:
    x, (weight, bias) = _image(call), _weights(call)
    if call.get(6, "groups", 1) != 1 or _two(call.get(7, "dilation", 1)) != (1, 1):
        raise RefusalError("conv_transpose2d with groups or dilation is not in the model format")
    stride, padding = _two(call.get(3, "stride", 1)), _two(call.get(4, "padding", 0))
    output_padding = _two(call.get(5, "output_padding", 0))
    name = call.graph.node(
        "conv_transpose2d",
        [x.node],
        lambda network, n: network.conv_transpose2d(
            n, x.node, weight, bias, stride=stride, padding=padding, output_padding=output_padding
        ),
    )
    return Place("image", name)


def _max_pool2d(call: Call) -> Place:
    x, kernel = _image(call), _two(call.get(1, "kernel_size"))
    if _two(call.get(4, "dilation", 1)) != (1, 1) or call.get(5, "ceil_mode", False):
        raise RefusalError("max_pool2d with dilation or ceil_mode is not in the model format")
    stride = call.get(2, "stride") or kernel
    stride, padding = _two(stride), _two(call.get(3, "padding", 0))
    name = call.graph.node(
        "max_pool2d",
        [x.node],
        lambda network, n: network.max_pool2d(n, x.node, kernel, stride=stride, padding=padding),
    )
    return Place("image", name)


def _pad(call: Call) -> Place:
    x, pad = _image(call), tuple(call.get(1, "pad"))
    if call.get(2, "mode", "constant") != "constant" or call.get(3, "value") not in (None, 0):
        raise RefusalError("padding by anything but zeros is not in the model format")
    left, right, top, bottom, *others = (*pad, 0, 0) if len(pad) == 2 else pad
    if any(others):
        raise RefusalError(f"padding {pad} of the channels is not in the model format")
    if left != right or top != bottom or min(left, top) < 0:
        raise RefusalError(f"padding {pad}, which is not the same on both sides, is not in the model format")
    return replace(x, padding=(x.padding[0] + top, x.padding[1] + left))


def _reshape(call: Call) -> Any:
    tensor, x = call.args[0], call.source()
    shape = call.args[1:] if len(call.args) > 1 else (call.kwargs.get("shape") or call.kwargs.get("size"),)
    first: Any = shape[0]
    shape = tuple(first) if len(shape) == 1 and not isinstance(first, int) else tuple(shape)
    known = int(np.prod([n for n in shape if n != -1]))
    wanted = tuple(int(np.prod(tensor.shape)) // known if n == -1 else int(n) for n in shape)
    if wanted == tuple(tensor.shape):
        return tensor
    if x.kind in layouts.KINDS:
        return layouts.reshaped(call, x, wanted)
    if x.kind == "mask":
        return x
    if x.is_flat:
        return replace(x, is_flat=len(wanted) == 1)
    if x.kind == "cells" and len(tensor.shape) == 5:
        batch, channels, depth, rows, columns = tensor.shape
        if wanted == (batch, channels * depth, rows, columns):
            return from_above(call, x)
    if x.kind == "sites" and tensor.shape[1] == 1 and len(wanted) == 1:
        return replace(x, is_flat=True)
    if x.kind in ("sites", "points", "samples"):
        return layouts.reshaped(call, x, wanted)
    raise RefusalError(f"'{call.name}' of {x.kind} {list(tensor.shape)} to {list(wanted)} is not in the model format")


def _flatten(call: Call) -> Any:
    tensor, x = call.args[0], call.source()
    start, end = call.get(1, "start_dim", 0), call.get(2, "end_dim", -1)
    if x.kind in layouts.KINDS:
        first, last = (layouts.axis_of(d, len(tensor.shape)) for d in (start, end))
        shape = tuple(tensor.shape)
        whole = int(np.prod(shape[first : last + 1]))
        return layouts.reshaped(call, x, (*shape[:first], whole, *shape[last + 1 :]))
    if x.kind == "cells" and len(tensor.shape) == 5 and (start, end) == (1, 2):
        return from_above(call, x)
    if len(tensor.shape) == 2 and start == 1:
        return tensor
    raise RefusalError(f"'{call.name}' of {x.kind} is not in the model format")


def _unflatten(call: Call) -> Any:
    x, shape, sizes = call.source(), tuple(call.args[0].shape), tuple(call.get(2, "sizes"))
    at = layouts.axis_of(call.get(1, "dim"), len(shape))
    known = int(np.prod([n for n in sizes if n != -1]))
    sizes = tuple(shape[at] // known if n == -1 else n for n in sizes)
    return layouts.reshaped(call, x, (*shape[:at], *sizes, *shape[at + 1 :]))


def of_two_axes(graph: Graph, x: Place) -> Place:
    """Adds the image of sites with two axes, whose rows are the library's first axis."""
    if graph.axes == (0, 1):
        name = graph.node("to_dense", [x.node], lambda network, n: network.to_dense(n, x.node))
    else:
        name = graph.node("to_bev", [x.node], lambda network, n: network.to_bev(n, x.node))
    return Place("image", name)


def from_above(call: Call, x: Place) -> Place:
    """Adds the view from above of cells [B, C, D, H, W], which the module reshapes to [B, C * D, H, W]."""
    if call.graph.axes != (2, 1, 0):
        raise RefusalError("the first axis is folded into the channels, which is z in the model format: say axes='zyx'")
    channels, heights = call.args[0].shape[1:3]
    if channels * heights > LIMITS["kMaxChannels"]:
        most = LIMITS["kMaxChannels"]
        raise LimitError(f"an image of {channels} channels at {heights} heights; at most {most} channels are possible")
    name = call.graph.node("to_bev", [x.node], lambda network, n: network.to_bev(n, x.node))
    return Place("image", name)


HANDLERS: dict[str, Any] = {
    "conv2d": _conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "max_pool2d": _max_pool2d,
    "pad": _pad,
    "view": _reshape,
    "reshape": _reshape,
    "flatten": _flatten,
    "unflatten": _unflatten,
}
