"""The nodes of a trace, and the levels that their rows are on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.export.model_folder import Network
from voxserve.export.tracing.refusal import RefusalError
from voxserve.verify import sites as site_maths

Values = npt.NDArray[Any]
INPUT = "voxels"  # the name of the voxelize node


@dataclass(eq=False)
class Level:
    """Sites that a library made, in the order of its rows. key: how they follow from the voxels.

    coordinates: [N, 1 + D], the sample first, served axes, the level's units; None for the voxels until they are known.
    """

    key: tuple[Any, ...]
    node: str
    stride: tuple[int, ...]
    coordinates: site_maths.Sites | None
    shape: tuple[int, ...] = ()

    def sites(self) -> site_maths.Sites:
        if self.coordinates is None:
            raise RefusalError("features are used before a sparse tensor is made of them")
        return self.coordinates

    def has_rows_of(self, other: Level) -> bool:
        """Returns whether both have the same sites in the same order."""
        return self is other or (self.key == other.key and np.array_equal(self.sites(), other.sites()))


@dataclass(frozen=True)
class Place:
    """The node and the rows that hold a tensor's values.

    kind: sites [N, C], points [P, C], samples [B, C], cells [B, C, ...], image [B, C, H, W], mask [N] (the node's rows
    above a threshold), spread [N, C] (rows of samples, one for each site), column [N] (one channel), labels [N], laid
    (rows in the layout of `layout`), or scores and weights of attention (the queries' node).
    """

    kind: str
    node: str
    level: Level | None = None
    threshold: float = 0.0  # of a mask
    index: Any = None  # of spread: each row's sample; of column: the channel; of scores and weights: attention.Scores
    column_of: str = ""  # of column: the kind of the rows
    padding: tuple[int, int] = (0, 0)  # zeros around an image that the next convolution has to add
    is_view: bool = False  # shares memory with another tensor
    is_flat: bool = False  # [N] of one channel
    layout: tuple[str | int, ...] = ()  # of laid, scores and weights: see layouts.py
    rows_kind: str = ""  # of laid: the kind of the rows

    def on_level(self) -> Level:
        if self.level is None:
            raise RefusalError(f"rows of sites are needed, and these are of {self.kind}")
        return self.level


@dataclass(frozen=True)
class _Step:
    needs: tuple[str, ...]
    emit: Callable[[Network], Any]


@dataclass
class Graph:
    """Collects steps while a module runs. axes[i]: the library's axis for the served axis i."""

    axes: tuple[int, ...] = ()
    path: list[str] = field(default_factory=list)  # the running modules, outermost first
    is_leaf: bool = False  # the innermost module is a library's layer, whose name the next node gets
    modules: dict[str, str] = field(default_factory=dict)  # module's path -> node of its result
    warnings: list[str] = field(default_factory=list)
    last_module: str = ""  # the last module that was traced completely
    num_features: int = 0
    stored: set[int] = field(default_factory=set)  # addresses of the module's parameters and buffers
    paired: dict[Any, Any] = field(default_factory=dict)  # strided convolutions, by their library's key
    levels: list[Level] = field(default_factory=list)
    # Has the nodes that may be parts of a generalised mean: ("clamp", source, least), ("power", source, exponent) or
    # ("average", source).
    made_by: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    _steps: dict[str, _Step] = field(default_factory=dict)
    _linears: dict[str, tuple[str, Values, Values | None]] = field(default_factory=dict)  # input, weight, bias by node

    def __post_init__(self) -> None:
        self.input_level = Level(("voxels",), INPUT, (), None)
        self.levels.append(self.input_level)

    def node(self, kind: str, needs: Sequence[str], emit: Callable[[Network, str], Any]) -> str:
        """Adds a node, named after the running module. needs: the nodes that it names."""
        where = self.path[-1] if self.path else ""
        base = where if self.is_leaf else ".".join(filter(None, (where, kind)))
        self.is_leaf = False
        name, number = base, 1
        while name in self._steps or name == INPUT:
            number += 1
            name = f"{base}.{number}"
        self._steps[name] = _Step(tuple(needs), lambda network: emit(network, name))
        return name

    def linear(self, x: Place, weight: Values, bias: Values | None = None) -> Place:
        """Adds a linear layer of rows [N, in]. weight: [out, in]."""
        name = self.node("linear", [x.node], lambda network, n: network.linear(n, x.node, weight, bias))
        self._linears[name] = (x.node, weight, bias)
        return replace(x, node=name, is_view=False)

    def channels(self, x: Place, chosen: Values, num_channels: int) -> Place:
        """Chooses channels of rows [N, num_channels]; of a linear layer's result by computing no others."""
        if np.array_equal(chosen, np.arange(num_channels)):
            return replace(x, is_view=True)
        source, weight, bias = self._linears.get(x.node, (x.node, np.eye(num_channels, dtype=np.float32), None))
        part = None if bias is None else bias[chosen]
        made = self.linear(replace(x, node=source), np.ascontiguousarray(weight[chosen]), part)
        return replace(made, is_view=True)

    def axes_of(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Converts a library's values, one per axis, to the served order."""
        return tuple(values[a] for a in self.axes)

    def sites_of(self, coordinates: Any, unit: Sequence[int] = ()) -> site_maths.Sites:
        """Converts a library's [N, 1 + D], the sample first, to the served order of axes and the level's units."""
        values = coordinates.detach().cpu().numpy().astype(np.int64)
        if unit:
            values[:, 1:] //= np.asarray(unit, np.int64)
        sites: site_maths.Sites = values[:, [0, *(1 + a for a in self.axes)]]
        return sites

    def level(
        self, key: tuple[Any, ...], node: str, stride: Sequence[int], sites: site_maths.Sites, shape: Sequence[int] = ()
    ) -> Level:
        """Returns the level with that key and those rows: a known one, or a new one."""
        made = Level(key, node, tuple(stride), sites, tuple(shape))
        for level in self.levels:
            if level.coordinates is not None and level.has_rows_of(made):
                return level
        self.levels.append(made)
        return made

    def floor_level(self, node: str, finer: Level, stride: Sequence[int], sites: site_maths.Sites, what: str) -> Level:
        """Returns the level of floor(c / stride). Raises RefusalError if the library's sites differ."""
        check_sites(sites, site_maths.floored(finer.sites(), stride), what)
        unit = tuple(a * b for a, b in zip(finer.stride, stride, strict=True))
        shape = tuple((n - 1) // s + 1 for n, s in zip(finer.shape, stride, strict=False))
        return self.level((*finer.key, "floor", tuple(stride)), node, unit, sites, shape)

    def check_stored(self, tensor: Any) -> None:
        """Warns of a constant that is not a parameter or buffer, since it may depend on the example."""
        if tensor.data_ptr() not in self.stored:
            where = f" in '{self.path[-1]}'" if self.path and self.path[-1] else ""
            self.warn(
                f"a tensor {list(tensor.shape)}{where} that is no parameter or buffer is stored with the values "
                "that it has for this example"
            )

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def write(self, network: Network, wanted: Sequence[str]) -> None:
        """Adds the nodes that the wanted ones need, in the order in which they ran."""
        needed, todo = set(), [name for name in wanted if name != INPUT]
        while todo:
            name = todo.pop()
            if name not in needed:
                needed.add(name)
                todo += [n for n in self._steps[name].needs if n != INPUT]
        for name, step in self._steps.items():
            if name in needed:
                step.emit(network)
        network.share_equal_weights()


def constant(value: Any) -> Values:
    """Returns a parameter's or a buffer's values as they are stored."""
    values: Values = np.ascontiguousarray(value.detach().cpu().numpy())
    if values.dtype not in (np.float16, np.float32):
        values = values.astype(np.float32)
    if not np.isfinite(values).all():
        raise RefusalError("a weight has values that are not finite")
    return values


def check_sites(made: site_maths.Sites, expected: site_maths.Sites, what: str) -> None:
    """Raises RefusalError if the library's sites differ from those of the served rule."""
    if not np.array_equal(site_maths.unique(made), site_maths.unique(expected)):
        raise RefusalError(f"{what} made {len(made)} sites, the served rule makes {len(expected)} others")
