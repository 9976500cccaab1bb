"""Compares the traces of two clouds. A value that differs depends on the cloud, but would be a constant in the served
network.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from voxserve.export.tracing import sizes
from voxserve.export.tracing.graph import Step, Values
from voxserve.export.tracing.refusal import RefusalError
from voxserve.export.tracing.run import Trace

_ADVICE = (
    "the server's clouds have other numbers of voxels and samples, and another extent, than the example. Write it "
    "without them, or with a layer that the format has for each cloud, such as a global pool. If it is the number of "
    "samples, take an example of one sample"
)


def difference(made: Trace, other: Trace, keys: Sequence[str]) -> RefusalError | None:
    """Returns an error that names the first thing in which the trace of the example differs from that of another
    cloud, with the user's line; None if they are the same network. keys: the results that are served.
    """
    graph, of_other = made.graph, other.graph
    for comparison in sizes.dependent(graph.branches, of_other.branches):
        return RefusalError(
            f"a branch that depends on a size of the example: {_text(comparison.left)} is compared with "
            f"{_text(comparison.right)}; {_ADVICE}",
            comparison.line,
        )
    for (line, is_true), (other_line, is_true_there) in zip(graph.truths, of_other.truths, strict=False):
        if line == other_line and is_true != is_true_there and not sizes.is_harmless(line):
            return RefusalError(f"a branch that depends on the example's values; {_ADVICE}", line)
    if list(made.results) != list(other.results):
        names = [", ".join(trace.results) or "nothing" for trace in (made, other)]
        return RefusalError(f"the module returns {names[0]}, and {names[1]} for a smaller cloud; {_ADVICE}")
    nodes = [[trace.results[key].place.node for key in keys] for trace in (made, other)]
    for here, there in zip_longest(graph.steps(nodes[0]), of_other.steps(nodes[1])):
        problem = _differ(here, there)
        if problem:
            step = here or there
            at = None if step is None else step.line
            return RefusalError(f"the network depends on the example: {problem}; {_ADVICE}", at)
    shape, other_shape = graph.input_level.shape, of_other.input_level.shape
    if shape != other_shape:
        graph.warn(
            f"the module makes the spatial shape from the cloud: {list(shape)} for the example, {list(other_shape)} "
            "for a smaller one. The served network has the example's, and leaves out voxels beyond it: take an example "
            "that reaches as far as any cloud"
        )
    for line in dict.fromkeys(line for line, _ in graph.truths if not sizes.is_harmless(line)):
        graph.warn(f"a branch that depends on values, of which the network has the example's alone: {line}")
    return None


def _text(value: float) -> str:
    return f"{value:.6g}"


def _differ(here: Step | None, there: Step | None) -> str:
    """Returns how a node differs from that of the other cloud; "": it does not."""
    if here is None or there is None or here.name != there.name:
        names = [f"'{step.name}'" if step else "nothing" for step in (here, there)]
        return f"it computes {names[0]} where it computes {names[1]} of a smaller cloud"
    if here.text != there.text:
        return f"'{here.name}' is {_operator(here)}, and {_operator(there)} for a smaller cloud"
    for key, values in here.tensors.items():
        other = there.tensors[key]
        if values.shape != other.shape:
            return f"'{key}' is {list(values.shape)}, and {list(other.shape)} for a smaller cloud"
        at = _first_difference(values, other)
        if at is not None:
            return f"'{key}' has the value {_text(values[at])}, and {_text(other[at])} for a smaller cloud"
    return ""


def _operator(step: Step) -> str:
    return step.text.partition("] ")[2].rpartition(" }")[0]


def _first_difference(values: Values, other: Values) -> Any:
    """Returns the index of the first value that differs by more than rounding; None if none does."""
    if values is other or np.shares_memory(values, other):
        return None
    differs = ~np.isclose(values, other, rtol=1e-5, atol=1e-5 * float(np.abs(values).max(initial=0)), equal_nan=True)
    return tuple(np.argwhere(differs)[0]) if differs.any() else None
