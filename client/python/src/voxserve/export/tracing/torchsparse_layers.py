"""Converts torchsparse's layers to nodes (2.1: the sample is the first coordinate, a level has its own units)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from voxserve.export import kernel_order
from voxserve.export.tracing import functions
from voxserve.export.tracing.graph import Graph, Place, constant
from voxserve.export.tracing.refusal import RefusalError
from voxserve.export.tracing.traced import sparse_place, unwrapped, wrap


def _run(call: Callable[..., Any], x: Any) -> Any:
    """Returns the layer's result on plain features; restores x."""
    feats = x.feats
    x.feats = unwrapped(feats)
    try:
        return call(x)
    finally:
        x.feats = feats


def _convolution(graph: Graph, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    (x,) = args
    here, result = sparse_place(x), _run(call, x)
    kernel, stride = graph.axes_of(module.kernel_size), graph.axes_of(module.stride)
    if module.generative:
        raise RefusalError("torchsparse's generative convolution is not in the model format")
    if module.dilation not in (1, (1, 1, 1)):
        raise RefusalError("a dilation, which torchsparse accepts and ignores in some versions")
    bias = None if module.bias is None else constant(module.bias)
    weight = constant(module.kernel)
    if weight.ndim == 2:
        result.feats = wrap(result.feats, functions.linear(graph, here, np.ascontiguousarray(weight.T), bias), graph)
        return result
    weight = _served(graph, weight, module.kernel_size)
    if module.transposed:
        place = _inverse(graph, module, here, weight, bias, x)
    elif max(stride) == 1:
        if any(k % 2 == 0 for k in kernel):
            raise RefusalError(
                f"torchsparse's kernel {list(kernel)} without a stride: even sizes depend on its version"
            )
        name = graph.node(
            "conv", [here.node], lambda network, n: network.submanifold(n, here.node, weight, kernel, bias)
        )
        place = replace(here, node=name)
        graph.paired[tuple(x.stride), module.kernel_size, module.stride] = (name, here.on_level(), None)
    else:
        place = _strided(graph, module, here, weight, bias, x, result)
    result.feats = wrap(result.feats, place, graph)
    return result


def _served(graph: Graph, weight: Any, kernel_size: Any) -> Any:
    """Returns [K, Cin, Cout] in the served order of cells and axes."""
    ordered = kernel_order.from_torchsparse(weight, kernel_size)
    cells = ordered.reshape(*kernel_size, *weight.shape[1:]).transpose(*graph.axes, 3, 4)
    return np.ascontiguousarray(cells).reshape(weight.shape)


def _strided(graph: Graph, module: Any, here: Place, weight: Any, bias: Any, x: Any, result: Any) -> Place:
    kernel, stride = graph.axes_of(module.kernel_size), graph.axes_of(module.stride)
    if any((k, s) not in ((1, 1), (2, 2)) for k, s in zip(kernel, stride, strict=True)) or any(module.padding):
        raise RefusalError(
            f"torchsparse's kernel {list(kernel)} with stride {list(stride)}: which sites and cells it has depends on "
            "its version and on the whole batch (kernels of 2 with stride 2 do not)"
        )
    name = graph.node(
        "conv", [here.node], lambda network, n: network.strided_floor(n, here.node, weight, kernel, stride, bias)
    )
    level = here.on_level()
    made = graph.floor_level(name, level, stride, graph.sites_of(result.coords), "torchsparse's Conv3d")
    graph.paired[tuple(x.stride), module.kernel_size, module.stride] = (name, level, made)
    return Place("sites", name, made)


def _inverse(graph: Graph, module: Any, here: Place, weight: Any, bias: Any, x: Any) -> Place:
    finer = tuple(a // s for a, s in zip(x.stride, module.stride, strict=True))
    partner, fine, coarse = graph.paired.get((finer, module.kernel_size, module.stride), (None, None, None))
    if partner is None or coarse is None or not coarse.has_rows_of(here.on_level()):
        raise RefusalError("a transposed convolution without the strided one that it is paired with")
    name = graph.node(
        "conv", [here.node, partner], lambda network, n: network.inverse(n, here.node, weight, partner, bias)
    )
    return Place("sites", name, fine)


def _group_norm(graph: Graph, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    (x,) = args
    here, result = sparse_place(x), _run(call, x)
    tensors = {} if module.weight is None else {"weight": constant(module.weight), "bias": constant(module.bias)}
    name = graph.node(
        "group_norm",
        [here.node],
        lambda network, n: network.group_norm(n, here.node, tensors, module.eps, module.num_groups),
    )
    result.feats = wrap(result.feats, replace(here, node=name), graph)
    return result


def _instance_norm(*_unused: Any) -> Any:
    raise RefusalError("torchsparse's InstanceNorm normalises the rows of a batch, not a sample's sites")


def _global_pool(reduce: str) -> Any:
    def layer(graph: Graph, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        here, result = sparse_place(args[0]), _run(call, args[0])
        name = graph.node("global_pool", [here.node], lambda network, n: network.global_pool(n, here.node, reduce))
        if reduce == "AVERAGE":
            graph.made_by[name] = ("average", here.node)
        return wrap(result, Place("samples", name), graph)

    return layer


LAYERS: dict[str, Any] = {
    "Conv3d": _convolution,
    "GroupNorm": _group_norm,
    "InstanceNorm": _instance_norm,
    "GlobalAvgPool": _global_pool("AVERAGE"),
    "GlobalMaxPool": _global_pool("MAX"),
}
