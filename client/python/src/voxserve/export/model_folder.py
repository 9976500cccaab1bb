"""Builds the canonical folder of a model: config.textproto, 1/model.textproto, 1/weights.safetensors.

A Network is a list of nodes and their tensors. Each method adds one node and returns its name, so that a network reads
as its forward pass. The messages are those of proto/voxserve/model/v1.
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
from voxserve.export.conv_nodes import ConvNodes
from voxserve.export.image_nodes import Anchor, ImageNodes
from voxserve.export.row_nodes import RowNodes
from voxserve.export.textproto import comment, number, numbers, quote, sizes
from voxserve.new_file import new_file

__all__ = ["Anchor", "ClassEntry", "Network", "PointFeature", "config_textproto", "write"]

VOXEL_OVERFLOWS = ("REJECT", "NEAREST_FIRST", "FIRST_SEEN")  # the config's VoxelOverflowPolicy


@dataclass(frozen=True)
class PointFeature:
    """One column of the network's input: a field of the cloud, in its canonical unit."""

    name: str
    unit: str
    default: float | None = None  # for clouds without the field; None: the field is required
    scale: float = 1.0  # column = field * scale


@dataclass(frozen=True)
class ClassEntry:
    """A class of the model's config."""

    id: int
    name: str
    color: tuple[int, int, int]


class Network(ConvNodes, ImageNodes, RowNodes):
    """Nodes in the order of the forward pass, and the tensors that they name.

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

    This class checks only what could not be written: the server reports other mistakes, with the node's name.
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
        """Adds the voxelize node. Defaults are TorchSparse's: half to even, minimum subtracted, first point kept.

        rounding: HALF_EVEN or FLOOR. origin: MINIMUM, RANGE or ZERO. reduce: FIRST or MEAN.
        """
        if len(voxel_size) != self.dimension:
            raise ValueError(f"voxel_size has {len(voxel_size)} values; this network has {self.dimension} axes")
        columns = "".join(
            f"    features {{ name: {quote(f.name)} unit: {quote(f.unit)}"
            + (f" scale: {number(f.scale)}" if f.scale != 1 else "")
            + (f" default_value: {number(f.default)}" if f.default is not None else "")
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
        """Adds a batch norm. tensors: weight, bias, running_mean, running_var."""
        for key, values in tensors.items():
            self.tensors[f"{name}.{key}"] = values
        return self._node(name, [source], f"batch_norm {{ epsilon: {number(epsilon)} }}")

    def instance_norm(self, name: str, source: str, tensors: dict[str, npt.NDArray[Any]], epsilon: float) -> str:
        """Adds an instance norm. tensors: weight and bias, or nothing."""
        return self._sample_norm(name, source, tensors, f"instance_norm {{ epsilon: {number(epsilon)}")

    def group_norm(
        self, name: str, source: str, tensors: dict[str, npt.NDArray[Any]], epsilon: float, num_groups: int
    ) -> str:
        """Adds a group norm. tensors: weight and bias, or nothing."""
        parameters = f"group_norm {{ num_groups: {num_groups} epsilon: {number(epsilon)}"
        return self._sample_norm(name, source, tensors, parameters)

    def global_pool(self, name: str, source: str, reduce: str, **parameters: float) -> str:
        """Adds a reduction of all rows of a sample. reduce: MAX, AVERAGE, SUM or GENERALISED_MEAN, which has the
        parameters exponent and epsilon.
        """
        text = "".join(f" {key}: {number(value)}" for key, value in parameters.items())
        return self._node(name, [source], f"global_pool {{ reduce: REDUCE_{reduce}{text} }}")

    def broadcast(self, name: str, sites: str, samples: str, function: str) -> str:
        """Combines every site with its sample's row. function: ADD, MULTIPLY or CONCAT."""
        return self._node(name, [sites, samples], f"broadcast {{ function: FUNCTION_{function} }}")

    def sample_rows(self, name: str, weight: npt.NDArray[Any]) -> str:
        """Adds learned rows, which are the same for every sample. weight: [num_rows, channels]."""
        self.tensors[f"{name}.weight"] = weight
        num_rows, channels = weight.shape
        return self._node(name, [], f"sample_rows {{ num_rows: {num_rows} channels: {channels} }}")

    def attention(
        self, name: str, queries: str, keys: str, values: str, *, num_heads: int = 1, scale: float | None = None
    ) -> str:
        """Adds attention: each query's mean of its sample's values, weighted by softmax(scale * query . key).

        The result has the queries' rows. scale: None for 1 / sqrt(channels of a head's keys).
        """
        heads = f" num_heads: {num_heads}" if num_heads != 1 else ""
        factor = "" if scale is None else f" scale: {number(scale)}"
        return self._node(name, [queries, keys, values], f"attention {{{heads}{factor} }}")

    def linear(self, name: str, source: str, weight: npt.NDArray[Any], bias: npt.NDArray[Any] | None = None) -> str:
        """Adds a linear layer. weight: [out_channels, in_channels]."""
        self.tensors[f"{name}.weight"] = weight
        flag = self._bias(name, bias)
        return self._node(name, [source], f"linear {{ out_channels: {weight.shape[0]}{flag} }}")

    def add(self, name: str, sources: Sequence[str], union: bool = False) -> str:
        """Adds tensors. union: the result has every site of any source, and missing rows are 0; else the sources must
        have the same sites.
        """
        return self._node(name, sources, f"add {{{' sites: SITES_UNION ' if union else ''}}}")

    def concat(self, name: str, sources: Sequence[str], union: bool = False) -> str:
        """Concatenates the channels of tensors. union: as for add."""
        return self._node(name, sources, f"concat {{{' sites: SITES_UNION ' if union else ''}}}")

    def crop(self, name: str, source: str, lower: Sequence[int] = (), upper: Sequence[int] = ()) -> str:
        """Keeps the sites with lower <= coordinate < upper, in their own units; one value per axis, or none."""
        bounds = [f"{key}_bound: {sizes(values)}" for key, values in (("lower", lower), ("upper", upper)) if values]
        return self._node(name, [source], f"crop {{ {' '.join(bounds)} }}")

    def prune(self, name: str, source: str, scores: str, threshold: float = 0.0) -> str:
        """Keeps the sites whose score, which has one channel, is above the threshold."""
        return self._node(name, [source, scores], f"prune {{ threshold: {number(threshold)} }}")

    def argmax(self, name: str, source: str) -> str:
        return self._node(name, [source], "argmax {}")

    def voxel_to_point(self, name: str, source: str, voxelize: str) -> str:
        return self._node(name, [source, voxelize], "voxel_to_point {}")

    def point_features(self, name: str, voxelize: str) -> str:
        """Adds the cloud's features, one row per point."""
        return self._node(name, [voxelize], "point_features {}")

    def point_offsets(self, name: str, voxelize: str, reference: str, *, max_points: int = 0) -> str:
        """Adds each point's offset in its voxel, metres on each axis.

        reference: MEAN of the voxel's points (if max_points is set, of that many first ones), or CENTER of its cell.
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
        """Reduces rows of points to the sites of a node, or to the voxels. reduce: MAX, AVERAGE or SUM.

        voxelize: empty if the source is on finer sites, which then act as the points.
        max_points: the number of first points of a site that count; 0: all.
        empty_slots: rows on the voxels. MAX includes a voxel's row if the voxel has fewer than max_points points.
        """
        parameters = f"reduce: REDUCE_{reduce}" + (f" sites_of: {quote(sites_of)}" if sites_of else "")
        parameters += (f" max_points: {max_points}" if max_points else "") + (
            " has_empty_slots: true" if empty_slots else ""
        )
        sources = [node for node in (source, empty_slots, voxelize) if node]
        return self._node(name, sources, f"point_to_voxel {{ {parameters} }}")

    def devoxelize(self, name: str, source: str, positions: str) -> str:
        """Interpolates (trilinear) at the points if positions is the voxelize, or at the sites of a finer tensor."""
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

    max_voxels: limit per request; 0: none. voxel_overflow: what happens above it: REJECT, NEAREST_FIRST (keeps those
    nearest to the sensor) or FIRST_SEEN (keeps the first in input order, as spconv and OpenPCDet do).
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
    """Writes the folder and replaces a version with the same number. Returns the version's folder.

    files: further texts by file name, which the server does not read.

    The version appears as a whole: its files are written into a hidden folder beside it, which the server ignores, and
    an error leaves nothing behind.
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
