"""Converts MinkowskiEngine's layers to nodes. Its coordinates count voxels, as multiples of the tensor stride; those of
the model format count the steps of the tensor stride.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from voxserve.export import kernel_order
from voxserve.export.tracing import functions
from voxserve.export.tracing.graph import Graph, Level, Place, check_sites, constant
from voxserve.export.tracing.refusal import RefusalError
from voxserve.export.tracing.sparse_places import sparse_place
from voxserve.export.tracing.traced import place_of, unwrapped, wrap
from voxserve.verify import sites as site_maths


def like(x: Any, features: Any) -> Any:
    """Returns a sparse tensor with the features, on the coordinates of x."""
    return type(x)(features, coordinate_map_key=x.coordinate_map_key, coordinate_manager=x.coordinate_manager)


def _plain(x: Any) -> Any:
    return like(x, unwrapped(x.F))


def _finished(graph: Graph, result: Any, place: Place) -> Any:
    return like(result, wrap(result.F, place, graph))


def _sites(graph: Graph, x: Any) -> Any:
    return graph.sites_of(x.C, x.tensor_stride)


def _sites_onto(graph: Graph, result: Any, generator: Any, x: Any) -> Any:
    """Returns the sites of a convolution's result, in steps of the stride that follows from its input's. The result of
    a convolution onto a tensor of coordinates says the tensor stride 0.
    """
    return graph.sites_of(result.C, [a * b for a, b in zip(x.tensor_stride, generator.kernel_stride, strict=True)])


def _check_stride(x: Any) -> None:
    if 0 in x.tensor_stride:
        raise RefusalError(
            "a layer behind a convolution onto a tensor of coordinates: MinkowskiEngine gives that convolution's "
            "result the tensor stride 0, so that every cell of a later kernel reads the same site. Call the "
            "convolution with a SparseTensor or its coordinate_map_key instead of the coordinates"
        )


def _geometry(graph: Graph, generator: Any) -> tuple[Any, Any, Any, str]:
    """Returns the kernel size, stride and dilation in the model's order of axes, and the kernel's region: "CUBE",
    "CROSS" or "CUSTOM".
    """
    region = getattr(generator.region_type, "name", str(generator.region_type)).rpartition("_")[2]
    return (
        graph.axes_of(list(generator.kernel_size)),
        graph.axes_of(list(generator.kernel_stride)),
        graph.axes_of(list(generator.kernel_dilation)),
        region,
    )


def _cells(generator: Any, weight: Any, axes: tuple[int, ...], region: str) -> Any:
    """Returns the weight [K, ...] in the model format's order of cells."""
    size = [int(k) for k in generator.kernel_size]
    if region == "CROSS":
        ascending = kernel_order.from_minkowski_cross(weight, size)
        parts, begin = {}, 1
        for axis, k in enumerate(size):
            parts[axis] = ascending[begin : begin + k - 1]
            begin += k - 1
        return np.concatenate([ascending[:1], *(parts[a] for a in axes)])
    if region == "CUSTOM":
        return weight
    cells = kernel_order.from_minkowski(weight, size).reshape(*size, *weight.shape[1:])
    dimension = len(size)
    return np.ascontiguousarray(cells.transpose(*axes, dimension, dimension + 1)).reshape(weight.shape)


def _convolution(graph: Graph, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x, target = args[0], _target(args, kwargs)
    _check_stride(x)
    here, result = sparse_place(x), call(_plain(x), *_plain_rest(args[1:]), **_plain_named(kwargs))
    bias = None if module.bias is None else constant(module.bias).reshape(-1)
    weight = constant(module.kernel)
    if weight.ndim == 2 and "Channelwise" not in type(module).__name__:
        place = graph.linear(here, np.ascontiguousarray(weight.T), bias)
        return _finished(graph, result, place)
    groups = 1
    if weight.ndim == 2:
        weight, groups = weight[:, None, :], weight.shape[1]
    generator = module.kernel_generator
    region = _geometry(graph, generator)[3]
    weight = _cells(generator, weight, graph.axes, region)
    if region == "CROSS":
        graph.warn(f"'{graph.path[-1]}': {kernel_order.CROSS_OF_RELEASE}")
    if getattr(module, "is_transpose", False):
        place = _finer(graph, module, here, result, weight, bias, groups, target)
    elif generator.expand_coordinates and target is None and groups == 1:
        place = _expanded(graph, module, here, result, weight, bias)
    else:
        sites = _sites_onto(graph, result, generator, x)
        place = _coarser(graph, module, here, sites, weight, bias, groups, target)
    return _finished(graph, result, place)


def _target(args: Any, kwargs: Any) -> Any:
    values = [*args[1:], *kwargs.values()]
    return next((v for v in values if v is not None), None)


def _plain_rest(values: Any) -> list[Any]:
    return [_plain(v) if hasattr(v, "F") and place_of(v.F) is not None else v for v in values]


def _plain_named(values: Any) -> dict[str, Any]:
    return dict(zip(values, _plain_rest(values.values()), strict=True))


def _coarser(
    graph: Graph, module: Any, x: Place, sites: Any, weight: Any, bias: Any, groups: int, target: Any
) -> Place:
    generator = module.kernel_generator
    kernel, stride, dilation, region = _geometry(graph, generator)
    options = {"dilation": dilation, "groups": groups}
    is_submanifold = max(stride) == 1 and target is None
    if region == "CUSTOM":
        if not is_submanifold:
            raise RefusalError("a kernel of listed offsets with a stride is not traced")
        offsets = [tuple(int(o[a]) for a in graph.axes) for o in generator.region_offsets.tolist()]
        name = graph.node(
            "conv",
            [x.node],
            lambda network, n: network.submanifold_offsets(n, x.node, weight, offsets, bias, **options),
        )
        return replace(x, node=name)
    if region == "CROSS":
        options["is_cross"] = True
    if is_submanifold:
        name = graph.node(
            "conv", [x.node], lambda network, n: network.submanifold(n, x.node, weight, kernel, bias, **options)
        )
        return replace(x, node=name)
    if target is not None:
        unit = tuple(a * b for a, b in zip(x.on_level().stride, stride, strict=True))
        onto = _known_level(graph, sites, unit)
        name = graph.node(
            "conv",
            [x.node, onto.node],
            lambda network, n: network.strided_onto(n, x.node, weight, kernel, stride, onto.node, bias, **options),
        )
        return Place("sites", name, onto)
    name = graph.node(
        "conv", [x.node], lambda network, n: network.strided_floor(n, x.node, weight, kernel, stride, bias, **options)
    )
    return _floor_place(graph, name, x, stride, sites, (kernel, stride, dilation, region))


def _expanded(graph: Graph, module: Any, x: Place, result: Any, weight: Any, bias: Any) -> Place:
    """Adds a convolution with expand_coordinates. Its sites are c + delta_k for all input sites c and cells k, and its
    rows out[u] = sum_k in[u + delta_k] W_k, as those of other convolutions (MinkowskiEngine at 02fc608:
    src/coordinate_map_cpu.hpp, stride_region and kernel_map). A generative layer computes in[u - delta_k]. So it makes
    the rows where the kernel is symmetric, with the weights in reverse, and elsewhere the sites alone.
    """
    kernel, stride, dilation, region = _geometry(graph, module.kernel_generator)
    if region == "CUSTOM" or max(stride) > 1:
        what = "of listed offsets" if region == "CUSTOM" else f"with the stride {list(stride)}"
        raise RefusalError(
            f"a convolution {what} and expand_coordinates is not in the model format. Expand without a stride, and let "
            "a second convolution or a pool have the stride"
        )
    ones, options = (1,) * len(kernel), {"dilation": dilation, "is_cross": region == "CROSS"}
    level, sites = x.on_level(), _sites(graph, result)
    check_sites(sites, site_maths.reached(level.sites(), ones, _deltas(kernel, dilation, region)), "expand_coordinates")
    if region == "CUBE" and all(k % 2 for k in kernel):
        mirrored = np.ascontiguousarray(weight[::-1])
        name = graph.node(
            "conv",
            [x.node],
            lambda network, n: network.generative(n, x.node, mirrored, kernel, ones, bias, **options),
        )
    else:
        nothing = np.zeros((*weight.shape[:2], 1), weight.dtype)
        onto = graph.node(
            "sites", [x.node], lambda network, n: network.generative(n, x.node, nothing, kernel, ones, **options)
        )
        name = graph.node(
            "conv",
            [x.node, onto],
            lambda network, n: network.strided_onto(n, x.node, weight, kernel, ones, onto, bias, **options),
        )
    key = (*level.key, "expanded", kernel, dilation, region)
    return Place("sites", name, graph.level(key, name, level.stride, sites))


def _deltas(kernel: Any, dilation: Any, region: str) -> list[tuple[int, ...]]:
    """Returns the offsets of a kernel's cells, in any order."""
    deltas = site_maths.deltas(kernel, dilation)
    return [delta for delta in deltas if region != "CROSS" or sum(map(bool, delta)) <= 1]


def _floor_place(graph: Graph, name: str, x: Place, stride: Any, sites: Any, geometry: Any) -> Place:
    level = x.on_level()
    made = graph.floor_level(name, level, stride, sites, "a strided layer")
    graph.paired.setdefault((id(level), id(made), geometry), name)
    return Place("sites", name, made)


def _found_level(graph: Graph, sites: Any, unit: tuple[int, ...]) -> Level | None:
    for level in graph.levels:
        if level.coordinates is not None and level.stride == unit and np.array_equal(level.coordinates, sites):
            return level
    return None


def _known_level(graph: Graph, sites: Any, unit: tuple[int, ...]) -> Level:
    level = _found_level(graph, sites, unit)
    if level is None:
        raise RefusalError("a layer onto coordinates that no layer before has made")
    return level


def _finer(graph: Graph, module: Any, x: Place, result: Any, weight: Any, bias: Any, groups: int, target: Any) -> Place:
    generator = module.kernel_generator
    geometry = _geometry(graph, generator)
    kernel, stride, dilation, region = geometry
    level, unit = x.on_level(), _finer_unit(x.on_level(), stride)
    sites = graph.sites_of(result.C, [unit[graph.axes.index(a)] for a in range(len(unit))])
    options = {"dilation": dilation, "groups": groups}
    if region == "CUSTOM":
        raise RefusalError("a transposed convolution of listed offsets is not traced")
    if region == "CROSS":
        options["is_cross"] = True
    fine = None if generator.expand_coordinates and target is None else _found_level(graph, sites, unit)
    if fine is None and target is None:
        expected = site_maths.reached(level.sites(), stride, _deltas(kernel, dilation, region))
        check_sites(sites, expected, "a generative layer")
        name = graph.node(
            "conv", [x.node], lambda network, n: network.generative(n, x.node, weight, kernel, stride, bias, **options)
        )
        key = (*level.key, "generative", kernel, stride, dilation, region)
        return Place("sites", name, graph.level(key, name, unit, sites))
    fine = fine or _known_level(graph, sites, unit)
    partner = graph.paired.get((id(fine), id(level), geometry))
    if partner is not None:
        name = graph.node(
            "conv",
            [x.node, partner],
            lambda network, n: network.inverse(n, x.node, weight, partner, bias, groups=groups),
        )
    else:
        name = graph.node(
            "conv",
            [x.node, fine.node],
            lambda network, n: network.transposed_onto(n, x.node, weight, kernel, stride, fine.node, bias, **options),
        )
    return Place("sites", name, fine)


def _finer_unit(level: Level, stride: Any) -> tuple[int, ...]:
    if any(a % b for a, b in zip(level.stride, stride, strict=True)):
        raise RefusalError("a transposed layer to sites finer than the voxels is not traced")
    return tuple(a // b for a, b in zip(level.stride, stride, strict=True))


def _pool(reduce: str) -> Any:
    def layer(graph: Graph, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        x = args[0]
        if _target(args, kwargs) is not None:
            raise RefusalError("a pool onto other coordinates is not in the model format")
        here, result = sparse_place(x), call(_plain(x))
        geometry = _geometry(graph, module.kernel_generator)
        kernel, stride, dilation, region = geometry
        if region != "CUBE":
            raise RefusalError(f"a pool of shape {region} is not in the model format")
        _check_stride(x)
        if kernel == stride:
            dilation = (1,) * len(kernel)  # MinkowskiEngine then pools by floor(coordinates / stride) alone
            geometry = (kernel, stride, dilation, region)
        _check_pool(reduce, kernel, stride, dilation)
        sites, far = _sites(graph, result), dilation if max(dilation) > 1 else ()
        if module.is_transpose:
            level = here.on_level()
            fine = _known_level(graph, sites, _finer_unit(level, stride))
            partner = graph.paired.get((id(fine), id(level), geometry))
            if partner is None:
                raise RefusalError("a transposed pool without a strided layer of the same kernel and stride")
            name = graph.node(
                "pool", [here.node, partner], lambda network, n: network.unpool(n, here.node, partner, reduce)
            )
            return _finished(graph, result, Place("sites", name, fine))
        if max(stride) == 1:
            name = graph.node(
                "pool",
                [here.node],
                lambda network, n: network.pool_submanifold(n, here.node, reduce, kernel, dilation=far),
            )
            return _finished(graph, result, replace(here, node=name))
        name = graph.node(
            "pool",
            [here.node],
            lambda network, n: network.pool_strided_floor(n, here.node, reduce, kernel, stride, dilation=far),
        )
        return _finished(graph, result, _floor_place(graph, name, here, stride, sites, geometry))

    return layer


def _check_pool(reduce: str, kernel: Any, stride: Any, dilation: Any) -> None:
    """Raises RefusalError for pools whose cells are not those of the model format, where odd kernels are centred."""
    what = f"a pool with the kernel {list(kernel)} and the stride {list(stride)}"
    if kernel == stride:
        if any(k % 2 and k > 1 for k in kernel):
            raise RefusalError(
                f"{what}: where both are equal, MinkowskiEngine's kernel begins at its site, and an odd kernel of the "
                "model format is centred. Even kernels of the stride's size, or an odd kernel with another stride, are "
                "served"
            )
        return
    reach = [[d * (c - (k // 2 if k % 2 else 0)) for c in range(k)] for k, d in zip(kernel, dilation, strict=True)]
    if reduce == "MAX" and any(set(range(s)) - set(cells) for s, cells in zip(stride, reach, strict=True)):
        raise RefusalError(
            f"{what}: where a kernel has no site, MinkowskiEngine's maximum is -3.4e38. A kernel that covers its "
            "stride has no such place"
        )


def _global_pool(reduce: str) -> Any:
    """Returns the handler of a global pool. reduce: for modules without a pooling_mode; those of the library itself all
    have one.
    """

    def layer(graph: Graph, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if len(args) > 1 or kwargs:
            raise RefusalError(f"{type(module).__name__} onto given coordinates is not in the model format")
        mode = str(getattr(module, "pooling_mode", ""))  # such as PoolingMode.GLOBAL_MAX_POOLING_KERNEL
        names = {"_SUM_": "SUM", "_AVG_": "AVERAGE", "_MAX_": "MAX"}
        kind = next((value for part, value in names.items() if part in mode), reduce)
        here, result = sparse_place(args[0], needs_sites=False), call(_plain(args[0]))
        name = graph.node("global_pool", [here.node], lambda network, n: network.global_pool(n, here.node, kind))
        if kind == "AVERAGE":
            graph.made_by[name] = ("average", here.node)
        return _finished(graph, result, Place("samples", name))

    return layer


def _broadcast(function: str) -> Any:
    def layer(graph: Graph, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        x, samples = args
        here, result = sparse_place(x, needs_sites=False), call(_plain(x), _plain(samples))
        place = functions.broadcast(graph, here, sparse_place(samples, "samples").node, function)
        return _finished(graph, result, place)

    return layer


def _spread(graph: Graph, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Handles MinkowskiBroadcast, whose result can be added to rows of sites, multiplied with them, or joined."""
    x, samples = args
    result = call(_plain(x), _plain(samples))
    place = Place("spread", sparse_place(samples, "samples").node, index=sparse_place(x).on_level().sites()[:, 0])
    return _finished(graph, result, place)


def _instance_norm(epsilon: float) -> Any:
    def layer(graph: Graph, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        here, result = sparse_place(args[0], needs_sites=False), call(_plain(args[0]))
        tensors = {part: constant(getattr(module, part)).reshape(-1) for part in ("weight", "bias")}
        name = graph.node(
            "instance_norm", [here.node], lambda network, n: network.instance_norm(n, here.node, tensors, epsilon)
        )
        return _finished(graph, result, replace(here, node=name))

    return layer


def _union(graph: Graph, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return union(graph, call, list(args))


def union(graph: Graph, call: Callable[..., Any], tensors: list[Any]) -> Any:
    """Adds a node for the sum of the tensors on all sites that any of them has. Returns the sum's sparse tensor."""
    places = [sparse_place(x) for x in tensors]
    result = call(*(_plain(x) for x in tensors))
    node, level = places[0].node, places[0].on_level()
    for place in places[1:]:
        both, other = [node, place.node], place.on_level()
        node = graph.node("add", both, lambda network, n, both=both: network.add(n, both, union=True))
        level = Level(("union", level.key, other.key), node, level.stride, None, level.shape)
    made = graph.level(level.key, node, level.stride, _sites(graph, result), level.shape)
    return _finished(graph, result, Place("sites", node, made))


def _prune(graph: Graph, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    x, mask = args
    here, scores = sparse_place(x), place_of(mask)
    if scores is None or scores.kind != "mask":
        raise RefusalError("a pruning by a mask that is not 'features of one channel > number'")
    if not here.on_level().has_rows_of(scores.on_level()):
        raise RefusalError("a pruning by scores of other sites")
    result = call(_plain(x), unwrapped(mask))
    name = graph.node(
        "prune",
        [here.node, scores.node],
        lambda network, n: network.prune(n, here.node, scores.node, scores.threshold),
    )
    level = here.on_level()
    key = (*level.key, "pruned", scores.node, scores.threshold)
    made = graph.level(key, name, level.stride, _sites(graph, result), level.shape)
    return _finished(graph, result, Place("sites", name, made))


LAYERS: dict[str, Any] = {
    "MinkowskiConvolution": _convolution,
    "MinkowskiConvolutionTranspose": _convolution,
    "MinkowskiGenerativeConvolutionTranspose": _convolution,
    "MinkowskiChannelwiseConvolution": _convolution,
    "MinkowskiAvgPooling": _pool("AVERAGE"),
    "MinkowskiSumPooling": _pool("SUM"),
    "MinkowskiMaxPooling": _pool("MAX"),
    "MinkowskiPoolingTranspose": _pool("SUM"),
    "MinkowskiGlobalPooling": _global_pool("AVERAGE"),
    "MinkowskiGlobalAvgPooling": _global_pool("AVERAGE"),
    "MinkowskiGlobalSumPooling": _global_pool("SUM"),
    "MinkowskiGlobalMaxPooling": _global_pool("MAX"),
    "MinkowskiBroadcast": _spread,
    "MinkowskiBroadcastAddition": _broadcast("ADD"),
    "MinkowskiBroadcastMultiplication": _broadcast("MULTIPLY"),
    "MinkowskiBroadcastConcatenation": _broadcast("CONCAT"),
    "MinkowskiInstanceNorm": _instance_norm(1e-8),
    "MinkowskiStableInstanceNorm": _instance_norm(1e-6),
    "MinkowskiUnion": _union,
    "MinkowskiPruning": _prune,
}
