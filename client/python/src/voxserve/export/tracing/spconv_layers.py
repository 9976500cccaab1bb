"""Converts spconv's layers to nodes. The layers' weights have the storage order of spconv 2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from voxserve.export import kernel_order
from voxserve.export.tracing import images
from voxserve.export.tracing.graph import Graph, Place, check_sites, constant
from voxserve.export.tracing.refusal import RefusalError
from voxserve.export.tracing.sparse_places import sparse_place
from voxserve.export.tracing.traced import unwrapped, wrap
from voxserve.verify import sites as site_maths


def _run(call: Callable[..., Any], x: Any) -> Any:
    if type(x).__module__.startswith("spconv") and not x.indices.is_contiguous():
        raise RefusalError(
            "the indices of a SparseConvTensor do not lie row by row in memory, as those of torch.nonzero, and spconv "
            "reads them as if they did: make the tensor of indices.contiguous()"
        )
    return call(x.replace_feature(unwrapped(x.features)))


def _finished(graph: Graph, result: Any, place: Place) -> Any:
    return result.replace_feature(wrap(result.features, place, graph))


def _bias(module: Any) -> Any:
    return None if module.bias is None else constant(module.bias)


def _convolution(graph: Graph, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if len(args) != 1 or kwargs:
        raise RefusalError("a convolution with add_input is not in the model format")
    (x,) = args
    act = getattr(module, "act_type", None)
    if act is not None and not str(act).endswith("None_"):
        raise RefusalError(f"a convolution with the fused activation {act} is not in the model format")
    here = sparse_place(x)
    result = _run(call, x)
    if module.conv1x1:
        weight = constant(module.weight).reshape(module.in_channels, module.out_channels)  # as it lies in memory
        place = graph.linear(here, np.ascontiguousarray(weight.T), _bias(module))
        return _finished(graph, result, place)
    if module.subm:
        return _finished(graph, result, _submanifold(graph, module, here))
    if module.inverse:
        return _finished(graph, result, _inverse(graph, module, here))
    if module.transposed:
        return _finished(graph, result, _transposed(graph, module, here, result))
    return _finished(graph, result, _strided(graph, module, here, result))


def _weight(graph: Graph, module: Any) -> Any:
    kernel = graph.axes_of(module.kernel_size)
    return kernel_order.from_spconv(
        constant(module.weight), kernel, module.out_channels, has_stride=True, axes=graph.axes
    )


def _submanifold(graph: Graph, module: Any, x: Place) -> Place:
    weight, bias, kernel = _weight(graph, module), _bias(module), graph.axes_of(module.kernel_size)
    dilation = graph.axes_of(module.dilation)
    if any(k % 2 == 0 for k in kernel):
        raise RefusalError(f"an even submanifold kernel {list(kernel)} is not spconv's")
    name = graph.node(
        "conv", [x.node], lambda network, n: network.submanifold(n, x.node, weight, kernel, bias, dilation=dilation)
    )
    return replace(x, node=name)


def _sizes(graph: Graph, module: Any) -> tuple[Any, Any, Any, Any]:
    return (
        graph.axes_of(module.kernel_size),
        graph.axes_of(module.stride),
        graph.axes_of(module.padding),
        graph.axes_of(module.dilation),
    )


def _strided(graph: Graph, module: Any, x: Place, result: Any) -> Place:
    weight, bias = _weight(graph, module), _bias(module)
    kernel, stride, padding, dilation = _sizes(graph, module)
    name = graph.node(
        "conv",
        [x.node],
        lambda network, n: network.strided_padded(n, x.node, weight, kernel, stride, padding, bias, dilation=dilation),
    )
    return _onto_padded(graph, module, x, result, name)


def _onto_padded(graph: Graph, module: Any, x: Place, result: Any, name: str) -> Place:
    """Returns the place of a strided convolution's or pool's result, with the sites of spconv's rule. Remembers the
    node for the inverse convolution that uses its indice_key.
    """
    kernel, stride, padding, dilation = _sizes(graph, module)
    shape, sites = graph.axes_of(result.spatial_shape), graph.sites_of(result.indices)
    level = x.on_level()
    expected = site_maths.reaching(level.sites(), stride, site_maths.deltas(kernel, dilation, padding))
    check_sites(sites, site_maths.within(expected, shape), type(module).__name__)
    key = (*level.key, "padded", kernel, stride, padding, dilation)
    unit = tuple(a * b for a, b in zip(level.stride, stride, strict=True))
    made = graph.level(key, name, unit, sites, shape)
    if module.indice_key is not None:
        graph.paired[module.indice_key] = (name, level, x.node, made)
    return Place("sites", name, made)


def _inverse(graph: Graph, module: Any, x: Place) -> Place:
    if module.indice_key not in graph.paired:
        raise RefusalError(
            f"an inverse convolution of the indice_key '{module.indice_key}', which no strided layer has"
        )
    partner, fine, _, coarse = graph.paired[module.indice_key]
    if not coarse.has_rows_of(x.on_level()):
        raise RefusalError(
            f"an inverse convolution of other sites than '{partner}' made (indice_key '{module.indice_key}')"
        )
    weight, bias = _weight(graph, module), _bias(module)
    name = graph.node("conv", [x.node, partner], lambda network, n: network.inverse(n, x.node, weight, partner, bias))
    return Place("sites", name, fine)


def _transposed(graph: Graph, module: Any, x: Place, result: Any) -> Place:
    kernel, stride, padding, dilation = _sizes(graph, module)
    if max(dilation) > 1:
        raise RefusalError("a transposed convolution with a dilation: spconv's shape leaves it out")
    weight, bias, extra = _weight(graph, module), _bias(module), graph.axes_of(module.output_padding)
    name = graph.node(
        "conv",
        [x.node],
        lambda network, n: network.transposed(
            n, x.node, weight, kernel, stride, padding, bias, output_padding=extra if any(extra) else ()
        ),
    )
    level, shape, sites = x.on_level(), graph.axes_of(result.spatial_shape), graph.sites_of(result.indices)
    expected = site_maths.reached(level.sites(), stride, site_maths.deltas(kernel, dilation, padding))
    check_sites(sites, site_maths.within(expected, shape), "SparseConvTranspose")
    key = (*level.key, "transposed", kernel, stride, padding, extra)
    unit = tuple(a // b for a, b in zip(level.stride, stride, strict=True))
    return Place("sites", name, graph.level(key, name, unit, sites, shape))


def _pool(reduce: str) -> Any:
    def layer(graph: Graph, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        (x,) = args
        if module.subm:
            raise RefusalError("spconv's submanifold pools are not in the model format")
        here, result = sparse_place(x), _run(call, x)
        kernel, stride, padding, dilation = _sizes(graph, module)
        name = graph.node(
            "pool",
            [here.node],
            lambda network, n: network.pool_strided_padded(
                n, here.node, reduce, kernel, stride, padding, dilation=dilation if max(dilation) > 1 else ()
            ),
        )
        place = _onto_padded(graph, module, here, result, name)
        begins_at_zero = str(module.algo).endswith("Native")
        if reduce == "MAX" and bool((unwrapped(x.features) < 0).any()):
            served = "Native" if begins_at_zero else "the default"
            graph.warn(
                f"'{name}': the pool's input has values below 0. There spconv's algorithms differ: Native, that of its "
                "CPU build and of spconv 1, begins a maximum at 0, and its default on a GPU does not. Served is what "
                f"{served} computes. For the other one, give the layer algo=spconv.ConvAlgo.Native, or export with "
                "--stand_in spconv"
            )
        if reduce == "MAX" and begins_at_zero:  # a ReLU after the pool does the same
            relu = graph.node("relu", [name], lambda network, n: network.relu(n, name))
            place = replace(place, node=relu)
        return _finished(graph, result, place)

    return layer


def _global_max(graph: Graph, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    here, result = sparse_place(args[0], needs_sites=False), _run(call, args[0])
    name = graph.node("global_pool", [here.node], lambda network, n: network.global_pool(n, here.node, "MAX"))
    return wrap(result, Place("samples", name), graph)


def _global_average(*_unused: Any) -> Any:
    raise RefusalError("SparseGlobalAvgPool: spconv 2.3 returns the first channel alone")


def dense(graph: Graph, call: Callable[..., Any], x: Any, channels_first: bool = True) -> Any:
    """Handles SparseConvTensor.dense()."""
    place = sparse_place(x)
    if not channels_first:
        raise RefusalError("dense(channels_first=False) is not in the model format")
    if len(graph.axes) == 2:
        return wrap(_run(call, x), images.of_two_axes(graph, place), graph)
    return wrap(_run(call, x), replace(place, kind="cells"), graph)


LAYERS: dict[str, Any] = {
    "SparseConvolution": _convolution,
    "SparseMaxPool": _pool("MAX"),
    "SparseAvgPool": _pool("AVERAGE"),
    "SparseGlobalMaxPool": _global_max,
    "SparseGlobalAvgPool": _global_average,
}
