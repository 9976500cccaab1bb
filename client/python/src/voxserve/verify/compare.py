"""Compares the nodes of a model, computed by the interpreter, with a reference."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf import text_format

from voxserve import input_file, wire
from voxserve.export import safetensors_file
from voxserve.export.tracing.from_torch import TRACE_FILE
from voxserve.verify import dense
from voxserve.verify import sites as site_maths
from voxserve.verify.interpreter import Interpreter, Result
from voxserve.verify.reference import Reference, Rows, part_name

Values = npt.NDArray[Any]
_VERSION = re.compile("[1-9][0-9]*")


@dataclass(frozen=True)
class Deviation:
    """The deviation of a node's result from the reference's."""

    node: str
    largest: float = 0.0  # the largest absolute difference
    mean: float = 0.0  # the mean absolute difference
    magnitude: float = 0.0  # the reference's largest absolute value
    problem: str = ""  # why the results cannot be compared; "": they can

    def is_within(self, tolerance: float) -> bool:
        return not self.problem and self.largest <= tolerance * max(self.magnitude, 1e-30)

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        part = self.largest / self.magnitude if self.magnitude else 0.0
        return (
            f"largest deviation {self.largest:.3g} ({part:.2g} of the largest magnitude {self.magnitude:.4g}), "
            f"mean {self.mean:.3g}"
        )


@dataclass(frozen=True)
class Model:
    """The folder of a model's version."""

    network: Any  # the Model message
    tensors: dict[str, Values]
    axes: tuple[int, ...]  # axes[i]: which of the library's axes is the model's axis i
    outputs: dict[str, str]  # name of a result of the user's module -> node
    modules: dict[str, str]  # path of a part of the user's module -> node of its result
    cut: str = ""  # the part of the user's module after which the network ends; "": it has all parts

    @staticmethod
    def read(folder: str | Path) -> Model:
        """Reads a version's folder, or the newest version in a model's folder. Raises OSError or ValueError."""
        folder = Path(folder)
        versions = sorted((p for p in folder.glob("*") if _VERSION.fullmatch(p.name)), key=lambda p: int(p.name))
        folder = folder if (folder / "model.textproto").exists() or not versions else versions[-1]
        network = text_format.Parse(input_file.read_text(folder / "model.textproto"), wire.Model())
        names: dict[str, Any] = {}
        if (folder / TRACE_FILE).exists():
            names = input_file.parse_json(input_file.read(folder / TRACE_FILE))
        axes = tuple(names.get("axes", range(network.dimension or 3)))
        weights = safetensors_file.read(folder / "weights.safetensors")
        return Model(network, weights, axes, names.get("outputs", {}), names.get("modules", {}), names.get("cut", ""))

    def sites(self, coordinates: Values) -> site_maths.Sites:
        """Returns the sites of coordinates [N, 1 + D] in the library's order of axes, in the model's order of axes."""
        if coordinates.shape[1] != 1 + len(self.axes):
            raise ValueError(f"the reference has {coordinates.shape[1] - 1} axes, the model {len(self.axes)}")
        sites: site_maths.Sites = coordinates.astype(np.int64)[:, [0, *(1 + a for a in self.axes)]]
        return sites

    def at_sites(self, values: Values, sites: site_maths.Sites) -> Values:
        """Returns the values at the sites, in the model's order of axes, of a library's dense result [samples, C, ...]:
        [N, C]. ValueError as for dense.at_sites.
        """
        library = sites[:, [0, *(1 + self.axes.index(a) for a in range(len(self.axes)))]]
        return dense.at_sites(values, library)

    def expected(self, reference: Reference) -> dict[str, Rows]:
        """Returns the reference's results for the model's outputs, by name: for a traced network those that it serves,
        or all if it serves none of them. For a network that was cut, they are the results of the part after which it
        ends; ValueError if the reference does not have them.
        """
        if not self.cut:
            served = {name: rows for name, rows in reference.outputs.items() if name in self.outputs}
            return served or reference.outputs
        found = {name: reference.modules.get(part_name(self.cut, name)) for name in self.outputs}
        there = {name: rows for name, rows in found.items() if rows is not None}
        if not there:
            raise ValueError(
                f"the network was cut after '{self.cut}', and the reference does not hold that module's result: record "
                "it with intermediates"
            )
        return there


class Comparison:
    """Computes the model's nodes once, on a reference's input."""

    def __init__(self, model: Model, reference: Reference) -> None:
        self._model, self._reference = model, reference
        assert reference.input.coordinates is not None
        self._input = model.sites(reference.input.coordinates)
        self._interpreter = Interpreter(model.network, model.tensors, self._input, reference.input.values)
        self._results = self._interpreter.run()

    @property
    def skipped(self) -> dict[str, str]:
        """Returns the nodes that were not computed, with reasons."""
        return self._interpreter.skipped

    @property
    def not_served(self) -> list[str]:
        """The names of the reference's outputs that the model does not serve."""
        if self._model.cut:
            return []
        return [name for name in self._reference.outputs if name not in self._model.expected(self._reference)]

    def outputs(self) -> dict[str, Deviation]:
        """Returns the deviation of each of the reference's outputs that the model serves."""
        return {
            name: self._deviation(self._model.outputs.get(name, name), rows)
            for name, rows in self._model.expected(self._reference).items()
        }

    def modules(self) -> list[tuple[str, Deviation]]:
        """Returns the deviation of each part of the module whose node is known, in the order of the nodes. Leaves out
        results whose sites the reference does not have.
        """
        order = {node: i for i, node in enumerate(self._interpreter.order())}
        known = [
            (name, node, rows)
            for name, rows in self._reference.modules.items()
            if (node := self._node_of(name)) in order and (self._is_dense(rows, node) or self._is_placed(rows, node))
        ]
        known.sort(key=lambda entry: order[entry[1]])
        return [(name, self._deviation(node, rows)) for name, node, rows in known]

    def _node_of(self, module: str) -> str:
        """Returns the node of a part's result. A traced network lists it; in others the node has the part's name."""
        return self._model.modules.get(module, "" if self._model.modules else module)

    def _is_dense(self, rows: Rows, node: str) -> bool:
        return self._results[node].sites is not None and dense.is_dense(rows, len(self._model.axes))

    def _is_placed(self, rows: Rows, node: str) -> bool:
        return self._results[node].sites is None or self._sites_of(rows, self._results[node]) is not None

    def _deviation(self, node: str, rows: Rows) -> Deviation:
        if node not in self._results:
            reason = self._interpreter.skipped.get(node, "the model has no such node")
            return Deviation(node, problem=f"node '{node}' cannot be compared: {reason}")
        result = self._results[node]
        if result.sites is None:
            return compared(node, result.values, rows.values)
        if self._is_dense(rows, node):
            try:
                return compared(node, result.values, self._model.at_sites(rows.values, result.sites))
            except ValueError as error:
                return Deviation(node, problem=f"node '{node}': {error}")
        sites = self._sites_of(rows, result)
        if sites is None:
            shape = list(rows.values.shape)
            form = f"has the shape {shape}" if len(shape) > 2 else f"has {shape[0]} rows"
            text = f"the reference {form} and no coordinates, but node '{node}' has {len(result.sites)} sites"
            return Deviation(node, problem=f"{text}: record the module's sparse output")
        at = site_maths.rows_of(result.sites, sites)
        if (at < 0).any() or len(sites) != len(result.sites):
            text = (
                f"other sites: {int((at < 0).sum())} of the reference's {len(sites)} are not among {len(result.sites)}"
            )
            return Deviation(node, problem=f"node '{node}' has {text}")
        return compared(node, result.values[at], rows.values.reshape(len(sites), -1))

    def _sites_of(self, rows: Rows, result: Result) -> site_maths.Sites | None:
        if rows.coordinates is not None:
            return self._model.sites(rows.coordinates)
        shape = _without_ones(rows.values.shape) if rows.values.ndim > 2 else rows.values.shape
        is_of_input = shape[:1] == (len(self._input),) and result.sites is not None
        return self._input if is_of_input and len(result.values) == len(self._input) else None


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


def compared(node: str, ours: Values, theirs: Values) -> Deviation:
    """Returns the deviation of `ours` from `theirs`, the reference's result. Dimensions of size 1, as in [1, N, C], do
    not count.
    """
    if _without_ones(ours.shape) == _without_ones(theirs.shape):
        theirs = theirs.reshape(ours.shape)
    if ours.shape != theirs.shape:
        return Deviation(node, problem=f"node '{node}' is {list(ours.shape)}, the reference {list(theirs.shape)}")
    if not theirs.size:
        return Deviation(node)
    theirs = theirs.astype(np.float64)
    difference = np.abs(ours - theirs)
    difference = np.where(np.isnan(difference), np.inf, difference)
    return Deviation(node, float(difference.max()), float(difference.mean()), float(np.abs(theirs).max()))
