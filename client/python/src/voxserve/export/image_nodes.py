"""Adds nodes for images (dense cells), convolutions over their two axes, detection heads and boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from voxserve.export.node_list import NodeList
from voxserve.export.textproto import number, numbers, quote, sizes


@dataclass(frozen=True)
class Anchor:
    """An anchor of SECOND's head: a reference box, relative to which the head predicts the boxes of a class."""

    class_id: int
    size: tuple[float, float, float]  # length, width, height in metres
    bottom: float  # z of its lower face, metres
    rotations: tuple[float, ...] = (0.0, 1.57)  # the yaws of the anchors at each cell, radians


@dataclass(frozen=True)
class ClassNms:
    """The suppression of one class's boxes."""

    class_id: int
    iou: float  # a box that overlaps a better one by more is dropped
    boxes_in: int  # the most boxes that are read; 0: all
    boxes_out: int  # the most boxes that are kept


class ImageNodes(NodeList):
    """The methods of Network for images and boxes."""

    def to_dense(self, name: str, source: str) -> str:
        """Adds a node that has a cell for every position of the sites' spatial shape; cells without a site are 0."""
        return self._node(name, [source], "to_dense {}")

    def from_dense(self, name: str, source: str, sites_of: str) -> str:
        """Adds a node on the sites of the node sites_of, where each site has the row of its cell in the source."""
        return self._node(name, [source], f"from_dense {{ sites_of: {quote(sites_of)} }}")

    def to_bev(self, name: str, source: str) -> str:
        """Adds the view from above of sites with two or three axes: an image whose rows are y and whose columns are x.
        Its channel c * depth + z holds the source's channel c at the height z.
        """
        return self._node(name, [source], "to_bev {}")

    def conv2d(
        self,
        name: str,
        source: str,
        weight: npt.NDArray[Any],
        bias: npt.NDArray[Any] | None = None,
        *,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> str:
        """Adds a 2-D convolution. weight: [out_channels, in_channels / groups, rows, columns]; bias: [out_channels].
        stride, padding and dilation: (rows, columns), or one value for both.
        """
        options = _size("dilation", dilation, 1) + (f" groups: {groups}" if groups != 1 else "")
        return self._image_conv("conv2d", name, source, weight, weight.shape[0], bias, stride, padding, options)

    def conv_transpose2d(
        self,
        name: str,
        source: str,
        weight: npt.NDArray[Any],
        bias: npt.NDArray[Any] | None = None,
        *,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
    ) -> str:
        """Adds a 2-D transposed convolution. weight: [in_channels, out_channels, rows, columns]; bias: [out_channels].
        stride, padding and output_padding: (rows, columns), or one value for both.
        """
        options = _size("output_padding", output_padding, 0)
        return self._image_conv(
            "conv_transpose2d", name, source, weight, weight.shape[1], bias, stride, padding, options
        )

    def max_pool2d(
        self,
        name: str,
        source: str,
        kernel_size: int | Sequence[int],
        *,
        stride: int | Sequence[int] | None = None,
        padding: int | Sequence[int] = 0,
    ) -> str:
        """Adds torch's MaxPool2d without dilation. Sizes: (rows, columns), or one value for both. stride: None for
        kernel_size.
        """
        kernel = (kernel_size,) if isinstance(kernel_size, int) else kernel_size
        step = f" stride: {sizes((stride,) if isinstance(stride, int) else stride)}" if stride is not None else ""
        parameters = f"kernel_size: {sizes(kernel)}{step}{_size('padding', padding, 0)}"
        return self._node(name, [source], f"max_pool2d {{ {parameters} }}")

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
        iou_powers: Sequence[float] = (),
    ) -> str:
        """Adds a node that decodes the branches of a CenterPoint head to boxes.

        branches: the nodes heatmap, center, height, dim, rot, vel if boxes have a velocity, and iou if there are
            iou_powers. Either all are images, or all have rows on the same sites, which have one cell on z (VoxelNeXt).
        convention: OPENPCDET or DET3D.
        class_ids: the class of each channel of the heat map.
        stride: the size of a cell in voxels.
        center_min, center_max: the range of the boxes' centres, x, y, z in metres; empty: no limit.
        iou_powers: of each class, p: the score becomes score^(1 - p) * iou^p; empty: it stays.
        """
        limits = f" center_min: {numbers(center_min)}" if center_min else ""
        limits += f" center_max: {numbers(center_max)}" if center_max else ""
        velocity = " has_velocity: true" if len(branches) - bool(iou_powers) == 6 else ""
        limits += f" iou_powers: {numbers(iou_powers)}" if iou_powers else ""
        return self._node(
            name,
            branches,
            f"center_head_decode {{ convention: CONVENTION_{convention} class_ids: {sizes(class_ids)} "
            f"stride: {stride} score_threshold: {number(score_threshold)} max_boxes: {max_boxes}{limits}{velocity} }}",
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
        """Adds a node that decodes the branches of SECOND's head to boxes. images: the nodes of scores, boxes and
        directions.
        """
        listed = "".join(
            f" anchors {{ class_id: {a.class_id} size: {numbers(a.size)} bottom: {number(a.bottom)} "
            f"rotations: {numbers(a.rotations)} }}"
            for a in anchors
        )
        return self._node(
            name,
            images,
            f"anchor_head_decode {{{listed} num_direction_bins: {num_direction_bins} "
            f"direction_offset: {number(direction_offset)} direction_limit_offset: {number(direction_limit_offset)} "
            f"score_threshold: {number(score_threshold)} max_boxes: {max_boxes} }}",
        )

    def nms(
        self, name: str, sources: Sequence[str], iou_threshold: float, max_boxes_in: int, max_boxes_out: int
    ) -> str:
        limits = f"max_boxes_in: {max_boxes_in} max_boxes_out: {max_boxes_out}"
        return self._node(name, sources, f"nms {{ iou_threshold: {number(iou_threshold)} {limits} }}")

    def class_nms(self, name: str, sources: Sequence[str], classes: Sequence[ClassNms]) -> str:
        """Adds a suppression among the boxes of each class alone. Boxes of classes that are not named are left out."""
        listed = "".join(
            f" classes {{ class_id: {of.class_id} iou_threshold: {number(of.iou)} max_boxes_in: {of.boxes_in} "
            f"max_boxes_out: {of.boxes_out} }}"
            for of in classes
        )
        return self._node(name, sources, f"nms {{{listed} }}")

    def _image_conv(
        self,
        op: str,
        name: str,
        source: str,
        weight: npt.NDArray[Any],
        out_channels: int,
        bias: npt.NDArray[Any] | None,
        stride: int | Sequence[int],
        padding: int | Sequence[int],
        options: str,
    ) -> str:
        self.tensors[f"{name}.weight"] = weight
        parameters = f"kernel_size: {sizes(weight.shape[2:])}{_size('stride', stride, 1)}{_size('padding', padding, 0)}"
        parameters += options + self._bias(name, bias)
        return self._node(name, [source], f"{op} {{ out_channels: {out_channels} {parameters} }}")


def _size(key: str, value: int | Sequence[int], default: int) -> str:
    """Returns the text of a field with one value for both axes or one for each; "" if it has the default value."""
    if isinstance(value, int):
        return f" {key}: {value}" if value != default else ""
    return f" {key}: {sizes(value)}" if any(v != default for v in value) else ""
