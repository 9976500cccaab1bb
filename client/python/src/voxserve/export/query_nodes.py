"""Adds nodes for heads with queries, as TransFusion has: what is selected in an image, what lies there, and boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from voxserve.export.node_list import NodeList
from voxserve.export.textproto import numbers, sizes


class QueryNodes(NodeList):
    """The methods of Network for queries, which are the best peaks of an image of scores."""

    def select(
        self, name: str, source: str, k: int, peak_kernel: int, *, border: str = "", untested: Sequence[int] = ()
    ) -> str:
        """Adds a node that selects the k best peaks of each sample. It has no features; gather and query_decode read
        it.

        source: an image of logits, with a channel for each class. peak_kernel: rows and columns of the window, odd.
        border: which cells are peaks where the window leaves the image: DROP, KEEP or PAD; "" for a window of one cell.
        untested: the channels in which every cell is a peak.
        """
        rule = f" border: BORDER_{border}" if border else ""
        rule += f" classes_without_peak_test: {sizes(untested)}" if untested else ""
        return self._node(name, [source], f"select {{ k: {k} peak_kernel: {peak_kernel}{rule} }}")

    def gather(self, name: str, select: str, of: str, image: str = "") -> str:
        """Adds a row for each query of a select. of: FEATURES (of the image at the query's cell), CLASS, SCORE or
        POSITION (column + 0.5, row + 0.5). image: for FEATURES alone.
        """
        return self._node(name, [image, select] if image else [select], f"gather {{ of: OF_{of} }}")

    def constant(self, name: str, weight: npt.NDArray[Any]) -> str:
        """Adds an image that is the same for every sample. weight: [rows, columns, channels]."""
        self.tensors[f"{name}.weight"] = weight
        rows, columns, channels = weight.shape
        return self._node(name, [], f"constant {{ rows: {rows} columns: {columns} channels: {channels} }}")

    def query_decode(
        self,
        name: str,
        select: str,
        branches: Sequence[str],
        *,
        class_ids: Sequence[int],
        stride: int,
        max_boxes: int,
        height_of: str,
        score_thresholds: Sequence[float] = (),
        center_min: Sequence[float] = (),
        center_max: Sequence[float] = (),
        bounds_bottom: bool = False,
        min_rot_lengths: Sequence[float] = (),
    ) -> str:
        """Adds a node that decodes a box of each query.

        branches: rows of the select's queries: heatmap, center, height, dim, rot and, if boxes have a velocity, vel.
        class_ids: the class of each channel of the heat map. stride: the size of a cell in voxels.
        height_of: CENTER, or TOP if `height` is the upper face's z.
        score_thresholds, min_rot_lengths: one value, or one for each class; empty: 0.
        center_min, center_max: the range of the boxes' centres, x, y, z in metres; empty: no limit. bounds_bottom: that
            of z holds for the lower face.
        """
        lists = {"score_thresholds": score_thresholds, "center_min": center_min, "center_max": center_max}
        text = "".join(f" {key}: {numbers(values)}" for key, values in lists.items() if values)
        text += " bounds_bottom: true" if bounds_bottom else ""
        text += " has_velocity: true" if len(branches) == 6 else ""
        text += f" min_rot_lengths: {numbers(min_rot_lengths)}" if min_rot_lengths else ""
        return self._node(
            name,
            [select, *branches],
            f"query_decode {{ class_ids: {sizes(class_ids)} stride: {stride} max_boxes: {max_boxes} "
            f"height_of: HEIGHT_{height_of}{text} }}",
        )
