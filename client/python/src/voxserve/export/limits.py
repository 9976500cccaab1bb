"""Lists the server's limits for a network, so that an exporter can refuse what the server would refuse.

The numbers are those of C++ constants, by the constants' names. tests/test_limits.py compares each with the file in
which the server has it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

LIMITS = {
    "kMaxDimension": 4,  # axes of a network
    "kMaxPointColumns": 40,  # features and kMaxDimension together
    "kMaxChannels": 65536,  # of any tensor
    "kMaxClasses": 65535,
    "kMaxTensors": 64,  # outputs of kind TENSOR
    "kMaxKernelOffsets": 4096,  # cells of a sparse kernel that is a box
    "kMaxSpreadWeights": 1 << 28,  # values of a sparse kernel with groups, once zeros fill what they leave out
    "kMaxListedCells": 343,  # cells of a sparse kernel that is a cross or a list
    "kCoordinateMargin": 128,  # sites of a sparse kernel's size, stride, dilation, padding and reach, on an axis
    "kMaxConv2dKernelSize": 7,
    "kMaxPool2dKernelSize": 15,
    "kMost": 128,  # stride, padding and dilation of a layer of images
    "kMaxHeads": 64,
    "kMaxAttentionHeadChannels": 256,
    "kMaxSampleRows": 4096,  # learned rows
    "kMaxGroupSize": 4096,  # sites of a group that attention stays within
    "kMaxEmbeddingRows": 1 << 24,
}
MAX_FEATURES = LIMITS["kMaxPointColumns"] - LIMITS["kMaxDimension"]


def problems(node: Any, shapes: dict[str, tuple[int, ...]], dimension: int) -> Iterator[str]:
    """Yields what the server would refuse about a node (a Node message). shapes: those of the node's tensors, such as
    {"weight": (27, 3, 16)}. dimension: the network's axes.
    """
    kind = node.WhichOneof("op")
    op = getattr(node, kind)
    if kind in ("sparse_conv", "pool"):
        yield from _of_sparse_kernel(op, dimension)
        if getattr(op, "groups", 0) > 1:
            spread = math.prod(shapes["weight"]) * op.groups
            yield from _above("its weight's number of values, groups spread,", [spread], LIMITS["kMaxSpreadWeights"])
    elif kind in ("conv2d", "conv_transpose2d", "max_pool2d"):
        most = LIMITS["kMaxPool2dKernelSize" if kind == "max_pool2d" else "kMaxConv2dKernelSize"]
        yield from _above("kernel_size", op.kernel_size, most)
        for name in ("stride", "padding", "dilation", "output_padding"):
            yield from _above(name, getattr(op, name, ()), LIMITS["kMost"])
    elif kind in ("attention", "rotary"):
        yield from _above("num_heads", [op.num_heads], LIMITS["kMaxHeads"])
    elif kind == "groups":
        yield from _above("size", [op.size], LIMITS["kMaxGroupSize"])
    elif kind == "sample_rows":
        yield from _above("num_rows", [op.num_rows], LIMITS["kMaxSampleRows"])
        yield from _above("channels", [op.channels], LIMITS["kMaxChannels"])
    elif kind == "embedding":
        rows, channels = shapes["weight"]
        yield from _above("the table's number of rows", [rows], LIMITS["kMaxEmbeddingRows"])
        yield from _above("the table's number of channels", [channels], LIMITS["kMaxChannels"])
    yield from _above("out_channels", [getattr(op, "out_channels", 0)], LIMITS["kMaxChannels"])


def _of_sparse_kernel(op: Any, dimension: int) -> Iterator[str]:
    margin = LIMITS["kCoordinateMargin"]
    for name in ("kernel_size", "stride", "dilation", "padding"):
        yield from _above(name, getattr(op, name), margin)
    dilation = list(op.dilation) or [1] * dimension
    offsets = list(getattr(op, "offsets", ()))
    if offsets:
        on_axes = [offsets[axis::dimension] for axis in range(dimension)]
        yield from _too_many("kMaxListedCells", len(offsets) // dimension)
        for values in on_axes:
            if max(values) - min(values) >= margin:
                yield f"its offsets span {max(values) - min(values) + 1} sites; at most {margin} are possible"
        reach = [d * max(map(abs, values)) for d, values in zip(dilation, on_axes, strict=True)]
    elif op.kernel_size:
        size = list(op.kernel_size)
        is_cross = bool(getattr(op, "kernel_shape", 0))
        cells = 1 + sum(k - 1 for k in size) if is_cross else math.prod(size)
        yield from _too_many("kMaxListedCells" if is_cross else "kMaxKernelOffsets", cells)
        centre = [d * (k // 2) if k % 2 else 0 for d, k in zip(dilation, size, strict=True)]
        padding = list(op.padding) or centre
        reach = [max(p, d * (k - 1) - p) for d, k, p in zip(dilation, size, padding, strict=True)]
    else:  # an inverse, whose kernel is its partner's
        return
    if max(reach) > margin:
        yield f"its kernel reaches {max(reach)} sites; at most {margin} are possible"


def _too_many(limit: str, cells: int) -> Iterator[str]:
    if cells > LIMITS[limit]:
        yield f"its kernel has {cells} cells; at most {LIMITS[limit]} are possible"


def _above(name: str, values: Sequence[int], most: int) -> Iterator[str]:
    if values and max(values) > most:
        yield f"{name} is {max(values)}; at most {most} is possible"
