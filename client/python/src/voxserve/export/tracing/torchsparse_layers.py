"""Converts the layers of torchsparse 2.1 to nodes. In this version the sample is the first coordinate, and coordinates
are in steps of the tensor stride.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from voxserve.export import kernel_order
from voxserve.export.tracing.graph import Graph, Level, Place, check_sites, constant
from voxserve.export.tracing.refusal import RefusalError
from voxserve.export.tracing.sparse_places import sparse_place
from voxserve.export.tracing.traced import unwrapped, wrap
from voxserve.verify import sites as site_maths

_Axes = tuple[int, ...]
_ON_THE_FLY = "hashmap_on_the_fly"  # torchsparse's default


def _run(call: Callable[..., Any], x: Any) -> Any:
    """Returns the result that the library computes for x with plain features. x itself keeps its traced features."""
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
        result.feats = wrap(result.feats, graph.linear(here, np.ascontiguousarray(weight.T), bias), graph)
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
    """Returns the weight [K, Cin, Cout] in the model format's order of cells and axes."""
    ordered = kernel_order.from_torchsparse(weight, kernel_size)
    cells = ordered.reshape(*kernel_size, *weight.shape[1:]).transpose(*graph.axes, 3, 4)
    return np.ascontiguousarray(cells).reshape(weight.shape)


def _strided(graph: Graph, module: Any, here: Place, weight: Any, bias: Any, x: Any, result: Any) -> Place:
    """Adds a strided convolution with the output sites of version 2.1. With a spatial_range they are spconv's; without
    one they are floor(coordinates / stride), where _check_floor allows it.
    """
    kernel, stride, padding = (graph.axes_of(v) for v in (module.kernel_size, module.stride, module.padding))
    level, sites = here.on_level(), graph.sites_of(result.coords)
    key: tuple[Any, ...] = ("floor", stride)
    if level.shape and _kmap_mode(module) == _ON_THE_FLY:
        key = ("padded", kernel, stride, padding)
        shape, expected = _padded(level, kernel, stride, padding)
        name = graph.node(
            "conv",
            [here.node],
            lambda network, n: network.strided_padded(n, here.node, weight, kernel, stride, padding, bias),
        )
    else:
        _check_floor(module, kernel, stride, padding)
        shape = tuple((n - 1) // s + 1 for n, s in zip(level.shape, stride, strict=False))
        expected = site_maths.floored(level.sites(), stride)
        name = graph.node(
            "conv", [here.node], lambda network, n: network.strided_floor(n, here.node, weight, kernel, stride, bias)
        )
    _check_sites(graph, name, sites, expected, _last(level, kernel, stride, padding))
    unit = tuple(a * b for a, b in zip(level.stride, stride, strict=True))
    made = graph.level((*level.key, *key), name, unit, sites, shape)
    graph.paired[tuple(x.stride), module.kernel_size, module.stride] = (name, level, made)
    return Place("sites", name, made)


def _kmap_mode(module: Any) -> str:
    """Returns torchsparse's kmap_mode, by which it finds the pairs of a convolution's sites: the module's own, else the
    global one.
    """
    settings = getattr(module, "_config", None)
    if settings is None:
        functional = sys.modules.get("torchsparse.nn.functional")
        of_all = getattr(getattr(functional, "conv_config", None), "get_global_conv_config", None)
        settings = None if of_all is None else of_all()
    return _ON_THE_FLY if settings is None else str(settings.kmap_mode)


def _padded(level: Level, kernel: _Axes, stride: _Axes, padding: _Axes) -> tuple[_Axes, site_maths.Sites]:
    """Returns the spatial shape and the sites of a strided convolution's output by spconv's rule."""
    sizes = zip(level.shape, kernel, stride, padding, strict=True)
    shape = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in sizes)
    deltas = site_maths.deltas(kernel, (1,) * len(kernel), padding)
    return shape, site_maths.within(site_maths.reaching(level.sites(), stride, deltas), shape)


def _check_floor(module: Any, kernel: _Axes, stride: _Axes, padding: _Axes) -> None:
    if all(k == s in (1, 2) for k, s in zip(kernel, stride, strict=True)) and not any(padding):
        return
    what = f"torchsparse's kernel {list(kernel)} with stride {list(stride)}"
    if _kmap_mode(module) != _ON_THE_FLY:
        raise RefusalError(f"{what} and kmap_mode 'hashmap', which reads other cells, is not in the model format")
    raise RefusalError(
        f"{what}: its sites end where the batch's largest coordinates do. Give the example's SparseTensor a "
        "spatial_range, (samples, cells of each axis), and they end there; kernels of 2 with stride 2 need none"
    )


def _check_sites(graph: Graph, name: str, made: site_maths.Sites, expected: site_maths.Sites, last: _Axes) -> None:
    """Raises RefusalError if the sites that the library made differ from the expected ones. If the library only lacks
    sites beyond `last`, the library's last site on each axis, it adds a warning instead.
    """
    if len(made) != len(expected):
        number = len(expected)
        expected = expected[(expected[:, 1:] <= np.asarray(last)).all(axis=1)]
        graph.warn(
            f"'{name}': torchsparse leaves out {number - len(made)} of {number} sites at the end of the batch's "
            "extent, and the served network has them. To see that the rest is equal, take an example whose largest "
            "coordinates end with a whole kernel, or give it a spatial_range"
        )
    check_sites(made, expected, "torchsparse's Conv3d")


def _last(level: Level, kernel: _Axes, stride: _Axes, padding: _Axes) -> _Axes:
    """Returns the largest output coordinate on each axis that version 2.1 makes for a batch without a spatial_range."""
    largest = level.sites()[:, 1:].max(axis=0, initial=0).tolist()
    return tuple((n + 2 * p - k + 1) // s for n, k, s, p in zip(largest, kernel, stride, padding, strict=True))


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
    here, result = sparse_place(x, needs_sites=False), _run(call, x)
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
        here, result = sparse_place(args[0], needs_sites=False), _run(call, args[0])
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
