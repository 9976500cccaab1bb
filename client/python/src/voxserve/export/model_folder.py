"""Builds the canonical folder of a model: config.textproto, 1/model.textproto, 1/weights.safetensors.

A Network is a list of nodes and their tensors. Each method adds one node and returns its name, so that a network reads
as its forward pass. The messages are those of proto/voxserve/model/v1.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.export import safetensors_file


@dataclass(frozen=True)
class PointFeature:
    """One column of the network's input: a field of the cloud, in its canonical unit."""

    name: str
    unit: str
    default: float | None = None  # where the cloud has no such field; None: the field is required


@dataclass(frozen=True)
class ClassEntry:
    """A class of the model's config."""

    id: int
    name: str
    color: tuple[int, int, int]


@dataclass
class Network:
    """Nodes in the order of the forward pass, and the tensors that they name."""

    name: str
    description: str = ""
    tensors: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    _lines: list[str] = field(default_factory=list)
    _outputs: list[str] = field(default_factory=list)

    def section(self, title: str) -> None:
        """A comment before the nodes that follow."""
        self._lines.append(f"\n# {title}")

    def voxelize(self, name: str, voxel_size: Sequence[float], features: Sequence[PointFeature]) -> str:
        """Rounds half to even, subtracts the minimum, keeps a voxel's first point, as TorchSparse's datasets do."""
        columns = "".join(
            f"    features {{ name: {_quote(f.name)} unit: {_quote(f.unit)}"
            + (f" default_value: {_number(f.default)}" if f.default is not None else "")
            + " }\n"
            for f in features
        )
        self._lines.append(
            f"nodes {{\n  name: {_quote(name)}\n  voxelize {{\n"
            f"    voxel_size: [{', '.join(map(_number, voxel_size))}]\n"
            "    rounding: ROUNDING_HALF_EVEN\n    origin: ORIGIN_MINIMUM\n    reduce: REDUCE_FIRST\n"
            f"{columns}  }}\n}}"
        )
        return name

    def submanifold(self, name: str, source: str, weight: npt.NDArray[Any], kernel_size: Sequence[int]) -> str:
        return self._conv(name, source, weight, f"KIND_SUBMANIFOLD kernel_size: {_sizes(kernel_size)}")

    def strided_floor(
        self, name: str, source: str, weight: npt.NDArray[Any], kernel_size: Sequence[int], stride: Sequence[int]
    ) -> str:
        sizes = f"kernel_size: {_sizes(kernel_size)} stride: {_sizes(stride)}"
        return self._conv(name, source, weight, f"KIND_STRIDED rule: RULE_FLOOR {sizes}")

    def inverse(self, name: str, source: str, weight: npt.NDArray[Any], paired_with: str) -> str:
        return self._conv(name, source, weight, f"KIND_INVERSE paired_with: {_quote(paired_with)}")

    def batch_norm(self, name: str, source: str, tensors: dict[str, npt.NDArray[Any]], epsilon: float) -> str:
        """tensors: weight, bias, running_mean, running_var."""
        for key, values in tensors.items():
            self.tensors[f"{name}.{key}"] = values
        return self._node(name, [source], f"batch_norm {{ epsilon: {_number(epsilon)} }}")

    def instance_norm(self, name: str, source: str, tensors: dict[str, npt.NDArray[Any]], epsilon: float) -> str:
        """tensors: weight and bias, or nothing."""
        return self._sample_norm(name, source, tensors, f"instance_norm {{ epsilon: {_number(epsilon)}")

    def group_norm(
        self, name: str, source: str, tensors: dict[str, npt.NDArray[Any]], epsilon: float, num_groups: int
    ) -> str:
        """tensors: weight and bias, or nothing."""
        parameters = f"group_norm {{ num_groups: {num_groups} epsilon: {_number(epsilon)}"
        return self._sample_norm(name, source, tensors, parameters)

    def relu(self, name: str, source: str) -> str:
        return self.activation(name, source, "RELU")

    def activation(self, name: str, source: str, function: str, negative_slope: float | None = None) -> str:
        """function: RELU, LEAKY_RELU (which alone has a slope), SIGMOID, GELU, SILU or TANH."""
        slope = "" if negative_slope is None else f" negative_slope: {_number(negative_slope)}"
        return self._node(name, [source], f"activation {{ function: FUNCTION_{function}{slope} }}")

    def pool_strided_floor(
        self, name: str, source: str, reduce: str, kernel_size: Sequence[int], stride: Sequence[int]
    ) -> str:
        """reduce: MAX, AVERAGE or SUM."""
        sites = f"kind: KIND_STRIDED rule: RULE_FLOOR kernel_size: {_sizes(kernel_size)} stride: {_sizes(stride)}"
        return self._node(name, [source], f"pool {{ reduce: REDUCE_{reduce} {sites} }}")

    def unpool(self, name: str, source: str, paired_with: str) -> str:
        """The average of the rows that each site went into, as MinkowskiPoolingTranspose has it."""
        return self._node(
            name, [source], f"pool {{ reduce: REDUCE_AVERAGE kind: KIND_INVERSE paired_with: {_quote(paired_with)} }}"
        )

    def global_pool(self, name: str, source: str, reduce: str) -> str:
        """reduce: MAX, AVERAGE or SUM."""
        return self._node(name, [source], f"global_pool {{ reduce: REDUCE_{reduce} }}")

    def broadcast(self, name: str, sites: str, samples: str, function: str) -> str:
        """function: ADD, MULTIPLY or CONCAT."""
        return self._node(name, [sites, samples], f"broadcast {{ function: FUNCTION_{function} }}")

    def linear(self, name: str, source: str, weight: npt.NDArray[Any], bias: npt.NDArray[Any] | None = None) -> str:
        """weight: [out_channels, in_channels]."""
        self.tensors[f"{name}.weight"] = weight
        if bias is not None:
            self.tensors[f"{name}.bias"] = bias
        flag = "" if bias is None else " bias: true"
        return self._node(name, [source], f"linear {{ out_channels: {weight.shape[0]}{flag} }}")

    def add(self, name: str, sources: Sequence[str], union: bool = False) -> str:
        """union: on every site that either has, 0 where one has none; else both have the same sites."""
        return self._node(name, sources, f"add {{{' sites: SITES_UNION ' if union else ''}}}")

    def concat(self, name: str, sources: Sequence[str], union: bool = False) -> str:
        """union: as for add."""
        return self._node(name, sources, f"concat {{{' sites: SITES_UNION ' if union else ''}}}")

    def crop(self, name: str, source: str, lower: Sequence[int] = (), upper: Sequence[int] = ()) -> str:
        """The sites with lower <= coordinate < upper, in their own units; one value per axis, or none."""
        bounds = [f"{key}_bound: {_sizes(values)}" for key, values in (("lower", lower), ("upper", upper)) if values]
        return self._node(name, [source], f"crop {{ {' '.join(bounds)} }}")

    def prune(self, name: str, source: str, scores: str, threshold: float = 0.0) -> str:
        """The sites whose score, of one channel, is above the threshold."""
        return self._node(name, [source, scores], f"prune {{ threshold: {_number(threshold)} }}")

    def argmax(self, name: str, source: str) -> str:
        return self._node(name, [source], "argmax {}")

    def voxel_to_point(self, name: str, source: str, voxelize: str) -> str:
        return self._node(name, [source, voxelize], "voxel_to_point {}")

    def output(self, kind: str, node: str) -> None:
        """kind: LABELS or SCORES."""
        self._outputs.append(f"outputs {{ kind: KIND_{kind} node: {_quote(node)} }}")

    def to_textproto(self, notice: str = "") -> str:
        head = f"name: {_quote(self.name)}\n"
        if self.description:
            head += f"description: {_quote(self.description)}\n"
        header = "# proto-file: voxserve/model/v1/model.proto\n# proto-message: voxserve.model.v1.Model\n"
        return f"{header}{_comment(notice)}\n{head}" + "\n".join([*self._lines, "", *self._outputs]) + "\n"

    def _conv(self, name: str, source: str, weight: npt.NDArray[Any], rest: str) -> str:
        self.tensors[f"{name}.weight"] = weight
        return self._node(name, [source], f"sparse_conv {{ kind: {rest} out_channels: {weight.shape[2]} }}")

    def _sample_norm(self, name: str, source: str, tensors: dict[str, npt.NDArray[Any]], parameters: str) -> str:
        for key, values in tensors.items():
            self.tensors[f"{name}.{key}"] = values
        affine = " affine: true" if tensors else ""
        return self._node(name, [source], f"{parameters}{affine} }}")

    def _node(self, name: str, sources: Sequence[str], op: str) -> str:
        inputs = ", ".join(map(_quote, sources))
        self._lines.append(f"nodes {{ name: {_quote(name)} inputs: [{inputs}] {op} }}")
        return name


def config_textproto(classes: Sequence[ClassEntry], ignore_label: int | None = None, notice: str = "") -> str:
    """The text of config.textproto."""
    lines = ["# proto-file: voxserve/model/v1/config.proto\n# proto-message: voxserve.model.v1.ModelConfig"]
    if notice:
        lines.append(_comment(notice).rstrip("\n"))
    lines.append("")
    for entry in classes:
        color = "#{:02x}{:02x}{:02x}".format(*entry.color)
        lines.append(f"classes {{ id: {entry.id} name: {_quote(entry.name)} color: {_quote(color)} }}")
    if ignore_label is not None:
        lines.append(f"ignore_label: {ignore_label}")
    return "\n".join(lines) + "\n"


def write(folder: str | Path, network: Network, config: str, version: int = 1, notice: str = "") -> Path:
    """Writes the folder; files of the same name are replaced. Returns the version's folder."""
    version_folder = Path(folder) / str(version)
    version_folder.mkdir(parents=True, exist_ok=True)
    (Path(folder) / "config.textproto").write_text(config, encoding="utf-8")
    (version_folder / "model.textproto").write_text(network.to_textproto(notice), encoding="utf-8")
    safetensors_file.write(version_folder / "weights.safetensors", network.tensors)
    return version_folder


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _number(value: float) -> str:
    return repr(float(np.float32(value))) if value == float(np.float32(value)) else repr(float(value))


def _sizes(values: Sequence[int]) -> str:
    return f"[{', '.join(map(str, values))}]"


def _comment(text: str) -> str:
    lines = [line for paragraph in text.splitlines() for line in textwrap.wrap(paragraph, 116) or [""]]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)
