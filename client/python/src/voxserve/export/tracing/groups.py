"""Converts calls of voxserve.export.group_attention to nodes: the groups of a level's sites, and attention in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from voxserve.export.group_attention import CURVES
from voxserve.export.limits import LIMITS
from voxserve.export.tracing.graph import Graph, Level, Place
from voxserve.export.tracing.refusal import LimitError, RefusalError

if TYPE_CHECKING:
    from voxserve.export.tracing.functions import Call

KIND = "groups"  # of the nodes' names


def _group_attention(call: Call) -> Place:
    queries, keys, values = (call.rows(call.get(i, name)) for i, name in enumerate(("query", "key", "value")))
    if {place.kind for place in (queries, keys, values)} != {"sites"}:
        raise RefusalError("group_attention is in the model format for rows of sites alone")
    level = queries.on_level()
    if not all(level.has_rows_of(place.on_level()) for place in (keys, values)):
        raise RefusalError("group_attention of queries, keys and values on other sites")
    _check_sites(call.graph, level, call.get(3, "coordinates"))
    heads, scale = int(call.kwargs.get("num_heads", 1)), call.kwargs.get("scale")
    width = call.get(0, "query").shape[1] // heads
    if width > LIMITS["kMaxAttentionHeadChannels"]:
        raise LimitError(f"heads of {width} channels; the server has at most {LIMITS['kMaxAttentionHeadChannels']}")
    curve, size = CURVES[call.kwargs.get("curve", "z")], int(call.kwargs.get("size", 1024))
    tail, depth = call.kwargs.get("tail", "borrows").upper(), ""
    if curve.startswith("HILBERT"):
        depth = "OWN_LEVEL"
    groups = call.graph.node(
        KIND,
        [level.node],
        lambda network, n: network.groups(n, level.node, curve, size, depth=depth, tail=tail),
    )
    call.graph.has_groups = True
    name = call.graph.node(
        "attention",
        [queries.node, keys.node, values.node, groups],
        lambda network, n: network.attention(
            n,
            queries.node,
            keys.node,
            values.node,
            num_heads=heads,
            scale=None if scale is None else float(scale),
            groups_of=groups,
        ),
    )
    return replace(queries, node=name)


def _check_sites(graph: Graph, level: Level, coordinates: Any) -> None:
    if graph.axes != (0, 1, 2):
        raise RefusalError("group_attention orders sites by x, y, z: it needs a library whose axes are xyz")
    if not np.array_equal(graph.sites_of(coordinates), level.sites()):
        raise RefusalError(
            "group_attention has other coordinates than its rows: give those of the sparse tensor that has the rows, "
            "in steps of its stride"
        )


HANDLERS: dict[str, Callable[[Call], Any]] = {"group_attention": _group_attention}
