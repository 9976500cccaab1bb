"""Collects the nodes of a network as text, and their tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.export.textproto import comment, quote

WEIGHTS_OF = "weights_of:"


@dataclass
class NodeList:
    """The nodes of a network in the order of the forward pass, and their tensors. Each method that adds a node returns
    the node's name.
    """

    name: str
    description: str = ""
    dimension: int = 3
    tensors: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    _lines: list[str] = field(default_factory=list)
    _outputs: list[str] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)
    # Node -> its index in _lines, the text of its inputs, and the text of its operator.
    _texts: dict[str, tuple[int, str, str]] = field(default_factory=dict)

    def section(self, title: str) -> None:
        """Adds a comment to model.textproto, before the nodes that follow."""
        self._lines.append(f"\n# {title}")

    def output(self, kind: str, node: str, name: str = "") -> None:
        """Adds an output of the model. kind: LABELS, SCORES, BOXES, or TENSOR for the rows of any node. name: the name
        of a TENSOR, "" for the other kinds; ValueError otherwise.
        """
        if (kind == "TENSOR") != bool(name):
            raise ValueError(f"an output of kind {kind} {'has no' if name else 'needs a'} name")
        named = f" name: {quote(name)}" if name else ""
        self._outputs.append(f"outputs {{ kind: KIND_{kind} node: {quote(node)}{named} }}")

    def to_textproto(self, notice: str = "") -> str:
        head = f"name: {quote(self.name)}\n"
        if self.description:
            head += f"description: {quote(self.description)}\n"
        if self.dimension != 3:
            head += f"dimension: {self.dimension}\n"
        header = "# proto-file: voxserve/model/v1/model.proto\n# proto-message: voxserve.model.v1.Model\n"
        return f"{header}{comment(notice)}\n{head}" + "\n".join([*self._lines, "", *self._outputs]) + "\n"

    @property
    def names(self) -> list[str]:
        """The names of the nodes, in their order."""
        return list(self._names)

    def text_of(self, name: str) -> str:
        """Returns a node's text in model.textproto."""
        return self._lines[self._texts[name][0]]

    @property
    def has_outputs(self) -> bool:
        return bool(self._outputs)

    def _bias(self, name: str, bias: npt.NDArray[Any] | None) -> str:
        if bias is None:
            return ""
        self.tensors[f"{name}.bias"] = bias
        return " bias: true"

    def _node(self, name: str, sources: Sequence[str], op: str) -> str:
        inputs = ", ".join(map(quote, sources))
        self._names.append(name)
        self._texts[name] = (len(self._lines), inputs, op)
        self._lines.append(f"nodes {{ name: {quote(name)} inputs: [{inputs}] {op} }}")
        return name

    def again(self, name: str, sources: Sequence[str], node: str) -> str:
        """Adds a node that has the operator, parameters and tensors of `node`, and other inputs. The tensors are stored
        once.
        """
        op = self._texts[node][2]
        shared = op if WEIGHTS_OF in op else f"{op} {WEIGHTS_OF} {quote(node)}"
        return self._node(name, sources, shared)

    def share_equal_weights(self) -> None:
        """Finds nodes with equal operators and tensors, such as those of a module that runs twice, and stores their
        tensors once.
        """
        parts: dict[str, dict[str, npt.NDArray[Any]]] = {}
        for key, values in self.tensors.items():
            node, _, part = key.rpartition(".")
            parts.setdefault(node, {})[part] = values
        owners: dict[Any, str] = {}
        for name, (line, inputs, op) in self._texts.items():
            if name not in parts or WEIGHTS_OF in op:
                continue
            of_node = sorted(parts[name].items())
            stored = (op, *((part, v.shape, v.dtype.str, _digest(v)) for part, v in of_node))
            owner = owners.setdefault(stored, name)
            if owner == name:
                continue
            shared = f"{op} {WEIGHTS_OF} {quote(owner)}"
            self._texts[name] = (line, inputs, shared)
            self._lines[line] = f"nodes {{ name: {quote(name)} inputs: [{inputs}] {shared} }}"
            for part in parts[name]:
                del self.tensors[f"{name}.{part}"]


def _digest(values: npt.NDArray[Any]) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).digest()
