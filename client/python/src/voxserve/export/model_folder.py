"""Builds the folder of a model that the server loads: config.textproto, 1/model.textproto, 1/weights.safetensors.

A Network is a list of nodes and their tensors. Each of its methods adds one node and returns the node's name, so that
the code that builds a network reads like its forward pass. proto/voxserve/model/v1 defines the messages.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from voxserve.export import safetensors_file
from voxserve.export.attention_nodes import AttentionNodes
from voxserve.export.conv_nodes import ConvNodes
from voxserve.export.image_nodes import Anchor, ImageNodes
from voxserve.export.query_nodes import QueryNodes
from voxserve.export.row_nodes import RowNodes
from voxserve.export.textproto import comment, number, numbers, quote, sizes
from voxserve.new_file import new_file

__all__ = ["Anchor", "ClassEntry", "Network", "PointFeature", "config_textproto", "write"]

VOXEL_OVERFLOWS = ("REJECT", "NEAREST_FIRST", "FIRST_SEEN")  # the values of VoxelOverflowPolicy in config.proto


@dataclass(frozen=True)
class PointFeature:
    """One feature of the network's input: a field of the cloud."""

    name: str  # the field's name
    unit: str  # the field's canonical unit: "m", "s", or "1" for a number without a unit
    default: float | None = None  # the value for clouds that do not have the field; None: the field is required
    scale: float = 1.0  # the feature is the field's value in its unit, times scale
    range: tuple[float, float] | None = None  # of the training data, in the unit; the server warns of other clouds


@dataclass(frozen=True)
class ClassEntry:
    """A class of the model, for config.textproto."""

    id: int
    name: str
    color: tuple[int, int, int]  # red, green, blue, 0 to 255


class Network(ConvNodes, ImageNodes, RowNodes, AttentionNodes, QueryNodes):
    """A network under construction: its nodes in the order of the forward pass, and their tensors. Each method that
    adds a node takes the node's name and the names of its inputs (source, sources, ...), and returns the node's name.

    network = Network("small")
    network.voxelize("voxels", (0.1, 0.1, 0.1), (PointFeature("x", "m"), PointFeature("intensity", "1")))
    network.submanifold("conv", "voxels", weight, (3, 3, 3), bias)  # weight: [27, 2, 16], the last axis fastest
    network.relu("relu", "conv")
    network.linear("scores", "relu", classes)  # [num_classes, 16]
    network.voxel_to_point("point_scores", "scores", "voxels")
    network.argmax("labels", "point_scores")
    network.output("LABELS", "labels")
    network.output("SCORES", "point_scores")
    model_folder.write("models/small", network, model_folder.config_textproto(classes=()))

    This class refuses only what it cannot write. The server reports other mistakes, with the node's name.
    """

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
        """Adds the voxelize node, which makes voxels of the cloud's points. The defaults are those of TorchSparse.

        voxel_size: metres (seconds for a time axis), one value per axis.
        rounding: HALF_EVEN or FLOOR, from a position in voxels to a voxel's index.
        origin: what is subtracted from positions: MINIMUM (of the cloud's voxels), RANGE (range_min) or ZERO (nothing).
        reduce: a voxel's features: those of its FIRST point, or the MEAN of its points.
        range_min, range_max: metres, one value per axis; points outside are left out.
        max_points_per_voxel: the first points of a voxel that MEAN counts; 0: all.
        spatial_shape: the number of cells on each axis, if it differs from the range's.
        axes: the names of the fields that are the axes; default: x, y, z.
        """
        if len(voxel_size) != self.dimension:
            raise ValueError(f"voxel_size has {len(voxel_size)} values; this network has {self.dimension} axes")
        columns = "".join(
            f"    features {{ name: {quote(f.name)} unit: {quote(f.unit)}"
            + (f" scale: {number(f.scale)}" if f.scale != 1 else "")
            + (f" default_value: {number(f.default)}" if f.default is not None else "")
            + (f" range {{ low: {number(f.range[0])} high: {number(f.range[1])} }}" if f.range is not None else "")
            + " }\n"
            for f in features
        )
        lists = {"range_min": numbers(range_min), "range_max": numbers(range_max)}
        lists |= {"spatial_shape": sizes(spatial_shape), "axes": f"[{', '.join(map(quote, axes))}]"}
        optional = "".join(f"    {key}: {values}\n" for key, values in lists.items() if values != "[]")
        limit = f"    max_points_per_voxel: {max_points_per_voxel}\n" if max_points_per_voxel else ""
        self._lines.append(
            f"nodes {{\n  name: {quote(name)}\n  voxelize {{\n"
            f"    voxel_size: {numbers(voxel_size)}\n"
            f"    rounding: ROUNDING_{rounding}\n    origin: ORIGIN_{origin}\n    reduce: REDUCE_{reduce}\n"
            f"{limit}{optional}{columns}  }}\n}}"
        )
        return name

    def batch_norm(self, name: str, source: str, tensors: dict[str, npt.NDArray[Any]], epsilon: float) -> str:
        """Adds a batch norm. tensors: weight, bias, running_mean and running_var, [channels] each."""
        for key, values in tensors.items():
            self.tensors[f"{name}.{key}"] = values
        return self._node(name, [source], f"batch_norm {{ epsilon: {number(epsilon)} }}")

    def instance_norm(self, name: str, source: str, tensors: dict[str, npt.NDArray[Any]], epsilon: float) -> str:
        """Adds an instance norm: each channel is normalized over a sample's rows. tensors: weight and bias, [channels]
        each, or empty.
        """
        return self._sample_norm(name, source, tensors, f"instance_norm {{ epsilon: {number(epsilon)}")

    def group_norm(
        self, name: str, source: str, tensors: dict[str, npt.NDArray[Any]], epsilon: float, num_groups: int
    ) -> str:
        """Adds a group norm: each group of channels is normalized over a sample's rows. tensors: weight and bias,
        [channels] each, or empty.
        """
        parameters = f"group_norm {{ num_groups: {num_groups} epsilon: {number(epsilon)}"
        return self._sample_norm(name, source, tensors, parameters)

    def global_pool(self, name: str, source: str, reduce: str, **parameters: float) -> str:
        """Adds a pool over all rows of each sample, whose result has one row per sample. reduce: MAX, AVERAGE, SUM or
        GENERALISED_MEAN, which has the parameters exponent and epsilon.
        """
        text = "".join(f" {key}: {number(value)}" for key, value in parameters.items())
        return self._node(name, [source], f"global_pool {{ reduce: REDUCE_{reduce}{text} }}")

    def broadcast(self, name: str, sites: str, samples: str, function: str) -> str:
        """Adds a node that combines the row of every site with its sample's row. function: ADD, MULTIPLY or CONCAT."""
        return self._node(name, [sites, samples], f"broadcast {{ function: FUNCTION_{function} }}")

    def linear(self, name: str, source: str, weight: npt.NDArray[Any], bias: npt.NDArray[Any] | None = None) -> str:
        """Adds a linear layer. weight: [out_channels, in_channels]; bias: [out_channels]."""
        self.tensors[f"{name}.weight"] = weight
        flag = self._bias(name, bias)
        return self._node(name, [source], f"linear {{ out_channels: {weight.shape[0]}{flag} }}")

    def add(self, name: str, sources: Sequence[str], union: bool = False) -> str:
        """Adds the sum of tensors. union: the result has every site that any source has, and a source's missing rows
        are 0; False: the sources must have the same sites.
        """
        return self._node(name, sources, f"add {{{' sites: SITES_UNION ' if union else ''}}}")

    def concat(self, name: str, sources: Sequence[str], union: bool = False) -> str:
        """Adds the concatenation of the channels of tensors. union: as for add()."""
        return self._node(name, sources, f"concat {{{' sites: SITES_UNION ' if union else ''}}}")

    def crop(self, name: str, source: str, lower: Sequence[int] = (), upper: Sequence[int] = ()) -> str:
        """Adds a node that keeps the sites with lower <= coordinate < upper, in steps of the sites' stride. lower,
        upper: one value per axis; empty: no bound.
        """
        bounds = [f"{key}_bound: {sizes(values)}" for key, values in (("lower", lower), ("upper", upper)) if values]
        return self._node(name, [source], f"crop {{ {' '.join(bounds)} }}")

    def prune(self, name: str, source: str, scores: str, threshold: float = 0.0) -> str:
        """Adds a node that keeps the sites whose score is above the threshold. scores: a node with one channel."""
        return self._node(name, [source, scores], f"prune {{ threshold: {number(threshold)} }}")

    def argmax(self, name: str, source: str) -> str:
        return self._node(name, [source], "argmax {}")

    def voxel_to_point(self, name: str, source: str, voxelize: str) -> str:
        return self._node(name, [source, voxelize], "voxel_to_point {}")

    def point_features(self, name: str, voxelize: str) -> str:
        """Adds a node with the features of the cloud's points, one row per point."""
        return self._node(name, [voxelize], "point_features {}")

    def point_offsets(self, name: str, voxelize: str, reference: str, *, max_points: int = 0) -> str:
        """Adds a node with each point's offset from the reference of its voxel, in metres on each axis.

        reference: MEAN of the voxel's points (only of the first max_points, if that is not 0), or CENTER of its cell.
        """
        limit = f" max_points: {max_points}" if max_points else ""
        return self._node(name, [voxelize], f"point_offsets {{ reference: REFERENCE_{reference}{limit} }}")

    def point_to_voxel(
        self,
        name: str,
        source: str,
        voxelize: str,
        reduce: str,
        sites_of: str = "",
        *,
        max_points: int = 0,
        empty_slots: str = "",
    ) -> str:
        """Adds a node that pools the rows of the points in each site. reduce: MAX, AVERAGE or SUM.

        voxelize: the voxelize node; "" if the source has rows on finer sites, which then are the points.
        sites_of: the node whose sites the result has; "": the voxels.
        max_points: only the first max_points points of a site count; 0: all points.
        empty_slots: a node with one row per voxel; MAX includes that row if a voxel has fewer than max_points points.
        """
        parameters = f"reduce: REDUCE_{reduce}" + (f" sites_of: {quote(sites_of)}" if sites_of else "")
        parameters += (f" max_points: {max_points}" if max_points else "") + (
            " has_empty_slots: true" if empty_slots else ""
        )
        sources = [node for node in (source, empty_slots, voxelize) if node]
        return self._node(name, sources, f"point_to_voxel {{ {parameters} }}")

    def devoxelize(self, name: str, source: str, positions: str) -> str:
        """Adds the interpolation (trilinear with 3 axes) of the source's rows. positions: the voxelize node, for a row
        per point, or a node on finer sites, for a row per site.
        """
        return self._node(name, [source, positions], "devoxelize {}")

    def _sample_norm(self, name: str, source: str, tensors: dict[str, npt.NDArray[Any]], parameters: str) -> str:
        for key, values in tensors.items():
            self.tensors[f"{name}.{key}"] = values
        affine = " affine: true" if tensors else ""
        return self._node(name, [source], f"{parameters}{affine} }}")


def config_textproto(
    classes: Sequence[ClassEntry],
    ignore_label: int | None = None,
    notice: str = "",
    max_voxels: int = 0,
    voxel_overflow: str = "REJECT",
) -> str:
    """Returns the text of config.textproto.

    ignore_label: the label of points that have no class; None: the server's default.
    notice: a comment at the beginning, such as the source and attribution of the weights.
    max_voxels: the limit of voxels in a request; 0: no limit.
    voxel_overflow: what happens above max_voxels: REJECT the request, NEAREST_FIRST keeps the voxels nearest to the
        sensor, FIRST_SEEN keeps the first voxels in the order of the points, as spconv and OpenPCDet do.

    ValueError for another voxel_overflow, or a negative max_voxels.
    """
    if voxel_overflow not in VOXEL_OVERFLOWS:
        raise ValueError(f"voxel_overflow is '{voxel_overflow}', not one of {', '.join(VOXEL_OVERFLOWS)}")
    if max_voxels < 0:
        raise ValueError(f"max_voxels is {max_voxels}; it must be 0 (no limit) or more")
    lines = ["# proto-file: voxserve/model/v1/config.proto\n# proto-message: voxserve.model.v1.ModelConfig"]
    if notice:
        lines.append(comment(notice).rstrip("\n"))
    lines.append("")
    for entry in classes:
        color = "#{:02x}{:02x}{:02x}".format(*entry.color)
        lines.append(f"classes {{ id: {entry.id} name: {quote(entry.name)} color: {quote(color)} }}")
    if ignore_label is not None:
        lines.append(f"ignore_label: {ignore_label}")
    if max_voxels > 0:
        lines.append(f"max_voxels: {max_voxels}")
        lines.append(f"voxel_overflow_policy: VOXEL_OVERFLOW_POLICY_{voxel_overflow}")
    return "\n".join(lines) + "\n"


def write(
    folder: str | Path,
    network: Network,
    config: str,
    version: int = 1,
    notice: str = "",
    files: Mapping[str, str] | None = None,
) -> Path:
    """Writes a version of a model into the model's folder, and replaces a version with the same number. Returns the
    version's folder.

    config: the text of config.textproto. notice: a comment at the beginning of model.textproto. files: further texts by
    file name, which the server does not read.

    A running server sees the version only when it is complete, since its files are first written into a hidden folder
    that the server ignores. If an error occurs, that folder is removed.
    """
    folder = Path(folder)
    is_new = not folder.exists()
    version_folder, partial = folder / str(version), folder / f".{version}.{os.getpid()}.part"
    replaced = folder / f".{version}.{os.getpid()}.old"
    try:
        partial.mkdir(parents=True)
        (partial / "model.textproto").write_text(network.to_textproto(notice), encoding="utf-8")
        safetensors_file.write(partial / "weights.safetensors", network.tensors)
        for name, text in (files or {}).items():
            (partial / name).write_text(text, encoding="utf-8")
        with new_file(folder / "config.textproto") as file:
            file.write(config.encode())
        if version_folder.exists():
            version_folder.rename(replaced)
        partial.rename(version_folder)
    except BaseException:
        shutil.rmtree(folder if is_new else partial, ignore_errors=True)
        raise
    shutil.rmtree(replaced, ignore_errors=True)
    return version_folder
