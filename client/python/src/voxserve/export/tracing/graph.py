"""Collects the nodes of a trace, and the levels that their rows are on."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.arrays import array_of
from voxserve.export import limits
from voxserve.export.model_folder import Network
from voxserve.export.tracing import sizes
from voxserve.export.tracing.refusal import LimitError, Line, RefusalError, line_of_user
from voxserve.verify import sites as site_maths

Values = npt.NDArray[Any]
INPUT = "voxels"  # the name of the voxelize node


@dataclass(eq=False)
class Level:
    """A level: the sites of one sparse tensor that a library made, in the order of its rows."""

    key: tuple[Any, ...]  # describes how the sites were computed from the voxels
    node: str  # a node on these sites
    stride: tuple[int, ...]  # voxels from one site to the next on each axis
    # [N, 1 + D]: the sample, then the coordinates in the model's order of axes, in steps of `stride`. None for the
    # voxels before the module has made a sparse tensor of them.
    coordinates: site_maths.Sites | None
    shape: tuple[int, ...] = ()  # the number of cells on each axis, if the sites are limited to a spatial shape

    def sites(self) -> site_maths.Sites:
        if self.coordinates is None:
            raise RefusalError("features are used before a sparse tensor is made of them")
        return self.coordinates

    def has_rows_of(self, other: Level) -> bool:
        """Returns whether both levels have the same sites in the same order."""
        return self is other or (self.key == other.key and np.array_equal(self.sites(), other.sites()))


@dataclass(frozen=True)
class Place:
    """Where the network has the values of a traced tensor: the node that computes them, and how the tensor's dimensions
    correspond to the node's rows.

    kind: sites [N, C], points [P, C], samples [B, C], cells [B, C, ...] (dense sites), image [B, C, H, W], mask [N]
        (which of the node's rows are above a threshold), length [N, 1] (of the node's rows, at least a threshold),
        spread [N, C] (each site's row of its sample), column [N] (one channel), labels [N], laid (rows whose dimensions
        are rearranged, layouts.py), scores or weights (of attention; the node is that of the queries).
    """

    kind: str
    node: str
    level: Level | None = None  # for sites: the level of the rows
    threshold: float = 0.0  # for mask and length
    # For spread: the sample of each row. For column: the channel. For scores and weights: attention.Scores.
    index: Any = None
    column_of: str = ""  # for column: the kind of the rows
    padding: tuple[int, int] = (0, 0)  # for image: rows and columns of zeros that the next convolution has to add
    is_flat: bool = False  # whether the tensor is [N], the only channel of the rows
    layout: tuple[str | int, ...] = ()  # for laid, scores and weights: see layouts.py
    rows_kind: str = ""  # for laid: the kind of the rows

    def on_level(self) -> Level:
        if self.level is None:
            raise RefusalError(f"rows of sites are needed, and these are of {self.kind}")
        return self.level


@dataclass(frozen=True)
class Step:
    """A node of a trace, with what it needs, and how it is added to a network."""

    name: str
    needs: tuple[str, ...]
    emit: Callable[[Network], Any]
    text: str  # the node in model.textproto
    tensors: dict[str, Values]  # by their names in weights.safetensors
    line: Line | None  # the user's line of Python that asked for it


@dataclass
class Graph:
    """Collects the nodes while a module runs. axes[i]: which of the library's axes is the model's axis i."""

    axes: tuple[int, ...] = ()
    path: list[str] = field(default_factory=list)  # the paths of the modules that are running, outermost first
    is_leaf: bool = False  # whether the innermost of them is a library's layer, whose name its node gets
    modules: dict[str, str] = field(default_factory=dict)  # path of a module -> node of its result
    warnings: list[str] = field(default_factory=list)
    last_module: str = ""  # the path of the last module that was traced completely
    num_features: int = 0
    num_rows: int = 0  # of the example's features
    # [N, 1 + D] each: what is a feature, as the voxels' sites, before the module makes its first sparse tensor
    assumed: list[Values] = field(default_factory=list)
    stored: set[int] = field(default_factory=set)  # addresses of the module's parameters and buffers
    paired: dict[Any, Any] = field(default_factory=dict)  # strided convolutions, by their library's key
    levels: list[Level] = field(default_factory=list)
    # Node -> how it was made, for nodes that a later call may make part of one node, such as a generalised mean:
    # ("clamp", source, least), ("power", source, exponent), ("average", source), ("plus", source, number) or
    # ("scattered", source, number of rows of each result).
    made_by: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    has_groups: bool = False  # whether a node orders sites along a curve, which have no negative coordinates then
    order: Any = None  # [N] which voxel each row of the example became, if the module reordered them; None: the same
    branches: list[sizes.Comparison] = field(default_factory=list)  # what the user's code compared sizes with
    truths: list[tuple[Line, bool]] = field(default_factory=list)  # where it asked whether a tensor is true
    _steps: dict[str, Step] = field(default_factory=dict)
    _memory: dict[int, list[weakref.ref[Any]]] = field(default_factory=dict)  # address -> the tensors that lie there
    _linears: dict[str, tuple[str, Values, Values | None]] = field(default_factory=dict)  # node -> input, weight, bias

    def __post_init__(self) -> None:
        self.input_level = Level(("voxels",), INPUT, (), None)
        self.levels.append(self.input_level)

    def reorder_input(self, order: Values) -> Level:
        """Begins the voxels anew in another order, before a sparse tensor is made of them. Returns their level; rows in
        the order of the example are on no level that has sites. order: [N] the new place of each row.
        """
        self.order = order if self.order is None else order[self.order]
        self.input_level = self.levels[0] = Level(("voxels",), INPUT, (), None)
        return self.input_level

    def node(self, kind: str, needs: Sequence[str], emit: Callable[[Network, str], Any]) -> str:
        """Adds a node and returns its name, which is derived from the running module's path. needs: the nodes that it
        refers to. emit: adds the node with a name to a Network; write() calls it.
        """
        where = self.path[-1] if self.path else ""
        base = where if self.is_leaf else ".".join(filter(None, (where, kind)))
        self.is_leaf = False
        name, number = base, 1
        while name in self._steps or name == INPUT:
            number += 1
            name = f"{base}.{number}"
        # Imported here, since networks' configurations are imported where there is no protobuf (deploy/train).
        from google.protobuf import text_format

        from voxserve import wire

        alone = Network("", dimension=len(self.axes))
        emit(alone, name)
        text = alone.text_of(name)
        shapes = {key.removeprefix(f"{name}."): values.shape for key, values in alone.tensors.items()}
        node = text_format.Parse(text, wire.Model()).nodes[0]
        for problem in limits.problems(node, shapes, len(self.axes)):
            raise LimitError(f"the server cannot run '{name}': {problem}")
        step = Step(name, tuple(needs), lambda network: emit(network, name), text, alone.tensors, line_of_user())
        self._steps[name] = step
        return name

    def linear(self, x: Place, weight: Values, bias: Values | None = None) -> Place:
        """Adds a linear layer of rows [N, in]. weight: [out, in]."""
        name = self.node("linear", [x.node], lambda network, n: network.linear(n, x.node, weight, bias))
        self._linears[name] = (x.node, weight, bias)
        return replace(x, node=name)

    def channels(self, x: Place, chosen: Values, num_channels: int) -> Place:
        """Adds a node that selects channels of rows [N, num_channels], and returns its place. If the rows are the
        result of a linear layer, the node is a smaller linear layer that computes only these channels.
        """
        if np.array_equal(chosen, np.arange(num_channels)):
            return x
        source, weight, bias = self._linears.get(x.node, (x.node, np.eye(num_channels, dtype=np.float32), None))
        part = None if bias is None else bias[chosen]
        return self.linear(replace(x, node=source), np.ascontiguousarray(weight[chosen]), part)

    def shares_memory(self, tensor: Any, address: int) -> bool:
        """Returns whether another tensor of the trace that is still in use lies in the memory of `tensor`."""
        return any(ref() is not None and ref() is not tensor for ref in self._memory.get(address, ()))

    def note_memory(self, tensor: Any, address: int) -> None:
        alive = [ref for ref in self._memory.get(address, ()) if ref() is not None]
        self._memory[address] = [*alive, weakref.ref(tensor)]

    def axes_of(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Returns a library's values, one per axis, in the model's order of axes."""
        return tuple(values[a] for a in self.axes)

    def sites_of(self, coordinates: Any, unit: Sequence[int] = ()) -> site_maths.Sites:
        """Returns the sites of a library's coordinates [N, 1 + D], the sample first, in the model's order of axes.
        unit: what the coordinates are divided by, one value per axis in the library's order; empty: 1.
        """
        values = array_of(coordinates).astype(np.int64)
        if unit:
            values[:, 1:] //= np.asarray(unit, np.int64)
        sites: site_maths.Sites = values[:, [0, *(1 + a for a in self.axes)]]
        return sites

    def level(
        self, key: tuple[Any, ...], node: str, stride: Sequence[int], sites: site_maths.Sites, shape: Sequence[int] = ()
    ) -> Level:
        """Returns the level with this key and these sites in this order. It is a new one if none is known."""
        made = Level(key, node, tuple(stride), sites, tuple(shape))
        for level in self.levels:
            if level.coordinates is not None and level.has_rows_of(made):
                return level
        self.levels.append(made)
        return made

    def floor_level(self, node: str, finer: Level, stride: Sequence[int], sites: site_maths.Sites, what: str) -> Level:
        """Returns the level whose sites are floor(coordinates / stride) of `finer`. Raises RefusalError if the
        library's sites differ from those. what: names the layer in the error.
        """
        check_sites(sites, site_maths.floored(finer.sites(), stride), what)
        unit = tuple(a * b for a, b in zip(finer.stride, stride, strict=True))
        shape = tuple((n - 1) // s + 1 for n, s in zip(finer.shape, stride, strict=False))
        return self.level((*finer.key, "floor", tuple(stride)), node, unit, sites, shape)

    def check_stored(self, tensor: Any) -> None:
        """Adds a warning if a tensor that becomes a constant is neither a parameter nor a buffer, since it may depend
        on the example.
        """
        if tensor.data_ptr() not in self.stored:
            where = f" in '{self.path[-1]}'" if self.path and self.path[-1] else ""
            self.warn(
                f"a tensor {list(tensor.shape)}{where} that is no parameter or buffer is stored with the values "
                "that it has for this example"
            )

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def steps(self, wanted: Sequence[str]) -> list[Step]:
        """Returns the wanted nodes, and those that they need, in the order in which they ran."""
        needed, todo = set(), [name for name in wanted if name != INPUT]
        while todo:
            name = todo.pop()
            if name not in needed:
                needed.add(name)
                todo += [n for n in self._steps[name].needs if n != INPUT]
        return [step for name, step in self._steps.items() if name in needed]

    def write(self, network: Network, wanted: Sequence[str]) -> None:
        """Adds the wanted nodes, and those that they need, to the network."""
        for step in self.steps(wanted):
            step.emit(network)
        network.share_equal_weights()


def constant(value: Any) -> Values:
    """Returns a parameter's or a buffer's values as they are stored."""
    values: Values = np.ascontiguousarray(array_of(value))
    if values.dtype not in (np.float16, np.float32):
        values = values.astype(np.float32)
    if not np.isfinite(values).all():
        raise RefusalError("a weight has values that are not finite")
    return values


def check_sites(made: site_maths.Sites, expected: site_maths.Sites, what: str) -> None:
    """Raises RefusalError if the sites that the library made differ from the expected ones, by the model's rule."""
    if not np.array_equal(site_maths.unique(made), site_maths.unique(expected)):
        raise RefusalError(f"{what} made {len(made)} sites, the served rule makes {len(expected)} others")
