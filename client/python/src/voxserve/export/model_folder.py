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

VOXEL_OVERFLOWS = ("REJECT", "NEAREST_FIRST", "FIRST_SEEN")  # of the config's VoxelOverflowPolicy


@dataclass(frozen=True)
class PointFeature:
    """One column of the network's input: a field of the cloud, in its canonical unit."""

    name: str
    unit: str
    default: float | None = None  # where the cloud has no such field; None: the field is required
    scale: float = 1.0  # column = field * scale


@dataclass(frozen=True)
class ClassEntry:
    """A class of the model's config."""

    id: int
    name: str
    color: tuple[int, int, int]


@dataclass(frozen=True)
class Anchor:
    """What SECOND's head predicts a class's boxes against."""

    class_id: int
    size: tuple[float, float, float]  # length, width, height in metres
    bottom: float  # z of its lower face, metres
    rotations: tuple[float, ...] = (0.0, 1.57)  # yaw, radians


@dataclass
class Network:
    """Nodes in the order of the forward pass, and the tensors that they name."""

    name: str
    description: str = ""
    dimension: int = 3
    tensors: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    _lines: list[str] = field(default_factory=list)
    _outputs: list[str] = field(default_factory=list)

    def section(self, title: str) -> None:
        """A comment before the nodes that follow."""
        self._lines.append(f"\n# {title}")

    def voxelize(
        self,
        name: str,
        voxel_size: Sequence[float],
        features: Sequence[PointFeature],
        *,
        rounding: str = "HALF_EVEN",
        origin: str = "MINIMUM",
        reduce: str = "FIRST",
        range_min: Sequence[float] = (),
        range_max: Sequence[float] = (),
        max_points_per_voxel: int = 0,
        spatial_shape: Sequence[int] = (),
        axes: Sequence[str] = (),
    ) -> str:
        """Rounds half to even, subtracts the minimum, keeps a voxel's first point, as TorchSparse's datasets do.

        rounding: HALF_EVEN or FLOOR. origin: MINIMUM, RANGE or ZERO. reduce: FIRST or MEAN.
        """
        if len(voxel_size) != self.dimension:
            raise ValueError(f"voxel_size has {len(voxel_size)} values; this network has {self.dimension} axes")
        columns = "".join(
            f"    features {{ name: {_quote(f.name)} unit: {_quote(f.unit)}"
            + (f" scale: {_number(f.scale)}" if f.scale != 1 else "")
            + (f" default_value: {_number(f.default)}" if f.default is not None else "")
            + " }\n"
            for f in features
        )
        lists = {"range_min": _numbers(range_min), "range_max": _numbers(range_max)}
        lists |= {"spatial_shape": _sizes(spatial_shape), "axes": f"[{', '.join(map(_quote, axes))}]"}
        optional = "".join(f"    {key}: {values}\n" for key, values in lists.items() if values != "[]")
        limit = f"    max_points_per_voxel: {max_points_per_voxel}\n" if max_points_per_voxel else ""
        self._lines.append(
            f"nodes {{\n  name: {_quote(name)}\n  voxelize {{\n"
            f"    voxel_size: {_numbers(voxel_size)}\n"
            f"    rounding: ROUNDING_{rounding}\n    origin: ORIGIN_{origin}\n    reduce: REDUCE_{reduce}\n"
            f"{limit}{optional}{columns}  }}\n}}"
        )
        return name

    def submanifold(
        self,
        name: str,
        source: str,
        weight: npt.NDArray[Any],
        kernel_size: Sequence[int],
        bias: npt.NDArray[Any] | None = None,
        *,
        is_cross: bool = False,
    ) -> str:
        """is_cross: the kernel's cells are the centre and what lies on the axes, in KERNEL_SHAPE_CROSS's order."""
        shape = " kernel_shape: KERNEL_SHAPE_CROSS" if is_cross else ""
        return self._conv(name, source, weight, f"KIND_SUBMANIFOLD kernel_size: {_sizes(kernel_size)}{shape}", bias)

    def submanifold_offsets(
        self, name: str, source: str, weight: npt.NDArray[Any], offsets: Sequence[Sequence[int]]
    ) -> str:
        """A kernel of listed offsets, a value an axis each."""
        values = [value for offset in offsets for value in offset]
        return self._conv(name, source, weight, f"KIND_SUBMANIFOLD offsets: {_sizes(values)}")

    def strided_floor(
        self, name: str, source: str, weight: npt.NDArray[Any], kernel_size: Sequence[int], stride: Sequence[int]
    ) -> str:
        return self._strided(name, source, weight, "FLOOR", kernel_size, stride)

    def strided_expand(
        self, name: str, source: str, weight: npt.NDArray[Any], kernel_size: Sequence[int], stride: Sequence[int]
    ) -> str:
        """Sites as TorchSparse (MLSys 2022) makes them."""
        return self._strided(name, source, weight, "EXPAND", kernel_size, stride)

    def strided_padded(
        self,
        name: str,
        source: str,
        weight: npt.NDArray[Any],
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        bias: npt.NDArray[Any] | None = None,
    ) -> str:
        """Sites as spconv's SparseConv makes them."""
        return self._strided(name, source, weight, "PADDED", kernel_size, stride, f" padding: {_sizes(padding)}", bias)

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
        """function: a name of model.proto without FUNCTION_, such as RELU. LEAKY_RELU alone has a slope."""
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

    def to_dense(self, name: str, source: str) -> str:
        """A cell for every position of the sites' range."""
        return self._node(name, [source], "to_dense {}")

    def from_dense(self, name: str, source: str, sites_of: str) -> str:
        """Every site of a node's result gets its cell's row."""
        return self._node(name, [source], f"from_dense {{ sites_of: {_quote(sites_of)} }}")

    def linear(self, name: str, source: str, weight: npt.NDArray[Any], bias: npt.NDArray[Any] | None = None) -> str:
        """weight: [out_channels, in_channels]."""
        self.tensors[f"{name}.weight"] = weight
        flag = self._bias(name, bias)
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

    def point_features(self, name: str, voxelize: str) -> str:
        """The cloud's features, a row a point."""
        return self._node(name, [voxelize], "point_features {}")

    def point_to_voxel(self, name: str, source: str, voxelize: str, reduce: str, sites_of: str = "") -> str:
        """Rows of points to the sites of a node, or to the voxels. reduce: MAX, AVERAGE or SUM.

        voxelize: empty where the source is on finer sites, which are the points then.
        """
        sites = f" sites_of: {_quote(sites_of)}" if sites_of else ""
        sources = [source, voxelize] if voxelize else [source]
        return self._node(name, sources, f"point_to_voxel {{ reduce: REDUCE_{reduce}{sites} }}")

    def devoxelize(self, name: str, source: str, positions: str) -> str:
        """Trilinear, to the points where positions is the voxelize, or to the sites of a tensor of finer units."""
        return self._node(name, [source, positions], "devoxelize {}")

    def to_bev(self, name: str, source: str) -> str:
        """channel = c * depth + z; rows are y, columns are x."""
        return self._node(name, [source], "to_bev {}")

    def conv2d(
        self,
        name: str,
        source: str,
        weight: npt.NDArray[Any],
        bias: npt.NDArray[Any] | None = None,
        *,
        stride: int = 1,
        padding: int = 0,
    ) -> str:
        """weight: [out_channels, in_channels, rows, columns]."""
        return self._image_conv("conv2d", name, source, weight, weight.shape[0], bias, stride, padding)

    def conv_transpose2d(
        self,
        name: str,
        source: str,
        weight: npt.NDArray[Any],
        bias: npt.NDArray[Any] | None = None,
        *,
        stride: int = 1,
        padding: int = 0,
    ) -> str:
        """weight: [in_channels, out_channels, rows, columns]."""
        return self._image_conv("conv_transpose2d", name, source, weight, weight.shape[1], bias, stride, padding)

    def center_head_decode(
        self,
        name: str,
        branches: Sequence[str],
        *,
        convention: str,
        class_ids: Sequence[int],
        stride: int,
        score_threshold: float,
        max_boxes: int,
        center_min: Sequence[float] = (),
        center_max: Sequence[float] = (),
    ) -> str:
        """branches: heatmap, center, height, dim, rot and, where boxes have a velocity, vel.

        convention: OPENPCDET or DET3D.
        """
        limits = f" center_min: {_numbers(center_min)}" if center_min else ""
        limits += f" center_max: {_numbers(center_max)}" if center_max else ""
        velocity = " has_velocity: true" if len(branches) == 6 else ""
        return self._node(
            name,
            branches,
            f"center_head_decode {{ convention: CONVENTION_{convention} class_ids: {_sizes(class_ids)} "
            f"stride: {stride} score_threshold: {_number(score_threshold)} max_boxes: {max_boxes}{limits}{velocity} }}",
        )

    def anchor_head_decode(
        self,
        name: str,
        images: Sequence[str],
        anchors: Sequence[Anchor],
        *,
        num_direction_bins: int,
        direction_offset: float,
        direction_limit_offset: float,
        score_threshold: float,
        max_boxes: int,
    ) -> str:
        """images: scores, boxes, directions."""
        listed = "".join(
            f" anchors {{ class_id: {a.class_id} size: {_numbers(a.size)} bottom: {_number(a.bottom)} "
            f"rotations: {_numbers(a.rotations)} }}"
            for a in anchors
        )
        return self._node(
            name,
            images,
            f"anchor_head_decode {{{listed} num_direction_bins: {num_direction_bins} "
            f"direction_offset: {_number(direction_offset)} direction_limit_offset: {_number(direction_limit_offset)} "
            f"score_threshold: {_number(score_threshold)} max_boxes: {max_boxes} }}",
        )

    def nms(
        self, name: str, sources: Sequence[str], iou_threshold: float, max_boxes_in: int, max_boxes_out: int
    ) -> str:
        limits = f"max_boxes_in: {max_boxes_in} max_boxes_out: {max_boxes_out}"
        return self._node(name, sources, f"nms {{ iou_threshold: {_number(iou_threshold)} {limits} }}")

    def output(self, kind: str, node: str) -> None:
        """kind: LABELS, SCORES or BOXES."""
        self._outputs.append(f"outputs {{ kind: KIND_{kind} node: {_quote(node)} }}")

    def to_textproto(self, notice: str = "") -> str:
        head = f"name: {_quote(self.name)}\n"
        if self.description:
            head += f"description: {_quote(self.description)}\n"
        if self.dimension != 3:
            head += f"dimension: {self.dimension}\n"
        header = "# proto-file: voxserve/model/v1/model.proto\n# proto-message: voxserve.model.v1.Model\n"
        return f"{header}{_comment(notice)}\n{head}" + "\n".join([*self._lines, "", *self._outputs]) + "\n"

    def _conv(
        self, name: str, source: str, weight: npt.NDArray[Any], rest: str, bias: npt.NDArray[Any] | None = None
    ) -> str:
        self.tensors[f"{name}.weight"] = weight
        flag = self._bias(name, bias)
        return self._node(name, [source], f"sparse_conv {{ kind: {rest} out_channels: {weight.shape[2]}{flag} }}")

    def _strided(
        self,
        name: str,
        source: str,
        weight: npt.NDArray[Any],
        rule: str,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: str = "",
        bias: npt.NDArray[Any] | None = None,
    ) -> str:
        sizes = f"kernel_size: {_sizes(kernel_size)} stride: {_sizes(stride)}{padding}"
        return self._conv(name, source, weight, f"KIND_STRIDED rule: RULE_{rule} {sizes}", bias)

    def _image_conv(
        self,
        op: str,
        name: str,
        source: str,
        weight: npt.NDArray[Any],
        out_channels: int,
        bias: npt.NDArray[Any] | None,
        stride: int,
        padding: int,
    ) -> str:
        self.tensors[f"{name}.weight"] = weight
        sizes = f"kernel_size: {_sizes(weight.shape[2:])}"
        sizes += f" stride: {stride}" if stride != 1 else ""
        sizes += f" padding: {padding}" if padding else ""
        return self._node(name, [source], f"{op} {{ out_channels: {out_channels} {sizes}{self._bias(name, bias)} }}")

    def _bias(self, name: str, bias: npt.NDArray[Any] | None) -> str:
        if bias is None:
            return ""
        self.tensors[f"{name}.bias"] = bias
        return " bias: true"

    def _sample_norm(self, name: str, source: str, tensors: dict[str, npt.NDArray[Any]], parameters: str) -> str:
        for key, values in tensors.items():
            self.tensors[f"{name}.{key}"] = values
        affine = " affine: true" if tensors else ""
        return self._node(name, [source], f"{parameters}{affine} }}")

    def _node(self, name: str, sources: Sequence[str], op: str) -> str:
        inputs = ", ".join(map(_quote, sources))
        self._lines.append(f"nodes {{ name: {_quote(name)} inputs: [{inputs}] {op} }}")
        return name


def config_textproto(
    classes: Sequence[ClassEntry],
    ignore_label: int | None = None,
    notice: str = "",
    max_voxels: int = 0,
    voxel_overflow: str = "REJECT",
) -> str:
    """The text of config.textproto.

    max_voxels: of a request; 0: no limit. voxel_overflow: what happens above it, REJECT, NEAREST_FIRST (the nearest to
    the sensor are kept) or FIRST_SEEN (the first in input order, as spconv and OpenPCDet have it).
    """
    if voxel_overflow not in VOXEL_OVERFLOWS:
        raise ValueError(f"voxel_overflow is '{voxel_overflow}', not one of {', '.join(VOXEL_OVERFLOWS)}")
    if max_voxels < 0:
        raise ValueError(f"max_voxels is {max_voxels}; it must be 0 (no limit) or more")
    lines = ["# proto-file: voxserve/model/v1/config.proto\n# proto-message: voxserve.model.v1.ModelConfig"]
    if notice:
        lines.append(_comment(notice).rstrip("\n"))
    lines.append("")
    for entry in classes:
        color = "#{:02x}{:02x}{:02x}".format(*entry.color)
        lines.append(f"classes {{ id: {entry.id} name: {_quote(entry.name)} color: {_quote(color)} }}")
    if ignore_label is not None:
        lines.append(f"ignore_label: {ignore_label}")
    if max_voxels > 0:
        lines.append(f"max_voxels: {max_voxels}")
        lines.append(f"voxel_overflow_policy: VOXEL_OVERFLOW_POLICY_{voxel_overflow}")
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


def _numbers(values: Sequence[float]) -> str:
    return f"[{', '.join(map(_number, values))}]"


def _sizes(values: Sequence[int]) -> str:
    return f"[{', '.join(map(str, values))}]"


def _comment(text: str) -> str:
    lines = [line for paragraph in text.splitlines() for line in textwrap.wrap(paragraph, 116) or [""]]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines)
