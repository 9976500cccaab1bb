"""Adds nodes for attention: learned rows, the groups within which it stays, and positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from voxserve.export.node_list import NodeList
from voxserve.export.textproto import number, numbers, quote, sizes


class AttentionNodes(NodeList):
    """The methods of Network for attention."""

    def sample_rows(self, name: str, weight: npt.NDArray[Any]) -> str:
        """Adds a node without inputs, whose rows are learned and are the same for every sample. weight: [num_rows,
        channels].
        """
        self.tensors[f"{name}.weight"] = weight
        num_rows, channels = weight.shape
        return self._node(name, [], f"sample_rows {{ num_rows: {num_rows} channels: {channels} }}")

    def attention(
        self,
        name: str,
        queries: str,
        keys: str,
        values: str,
        *,
        num_heads: int = 1,
        scale: float | None = None,
        groups_of: str = "",
    ) -> str:
        """Adds attention within each sample: for each query the mean of the values, weighted by softmax(scale * query .
        key). The result has one row per query. scale: None for 1 / sqrt(channels of a head's keys).

        groups_of: a node of groups(), within whose groups attention stays; all three sources are on its sites.
        """
        heads = f" num_heads: {num_heads}" if num_heads != 1 else ""
        factor = "" if scale is None else f" scale: {number(scale)}"
        groups = f" groups_of: {quote(groups_of)}" if groups_of else ""
        return self._node(name, [queries, keys, values], f"attention {{{heads}{factor}{groups} }}")

    def groups(self, name: str, source: str, curve: str, size: int, *, depth: str = "", tail: str = "BORROWS") -> str:
        """Adds a node that orders the source's sites along a curve, and cuts the order into groups. It has no features.

        curve: Z, Z_TRANSPOSED, HILBERT or HILBERT_TRANSPOSED. size: the sites of a group, 1 to 4096.
        depth: whose largest coordinate decides a Hilbert curve's bits: FIRST_LEVEL (the voxels') or OWN_LEVEL.
        tail: BORROWS: the last group reads rows of the group before, so that it is full; SHORT: it does not.
        """
        bits = f" depth: DEPTH_{depth}" if depth else ""
        return self._node(name, [source], f"groups {{ curve: CURVE_{curve}{bits} size: {size} tail: TAIL_{tail} }}")

    def window_groups(
        self,
        name: str,
        source: str,
        shape: Sequence[int],
        size: int,
        *,
        shift: Sequence[int] = (),
        axes: str = "XYZ",
        snake: bool = False,
        tail: str = "SPREAD",
    ) -> str:
        """Adds a node that orders the source's sites window by window, and cuts the order into groups. It has no
        features.

        shape, shift: of the windows on x, y and z, in sites. axes: rows of windows run along the first, and so do the
            rows of sites in a window. snake: every second row runs backwards (FlatFormer).
        tail: SPREAD: each window is cut on its own, in groups of about as many sites (DSVT); BORROWS or SHORT: groups
            cross the borders of windows, and the last one is as groups() says.
        """
        moved = f" shift: {sizes(shift)}" if any(shift) else ""
        order = f" axes: [{', '.join(f'AXIS_{axis}' for axis in axes)}]" if axes != "XYZ" else ""
        windows = f"windows {{ shape: {sizes(shape)}{moved}{order}{' snake: true' if snake else ''} }}"
        return self._node(name, [source], f"groups {{ {windows} size: {size} tail: TAIL_{tail} }}")

    def rotary(self, name: str, source: str, positions: str = "", *, num_heads: int = 1, base: float) -> str:
        """Adds a rotation of pairs of channels by angles that grow with the position of the row's site.

        positions: a node with a channel for each axis on the same sites; "": the sites' coordinates.
        """
        heads = f" num_heads: {num_heads}" if num_heads != 1 else ""
        sources = [source, positions] if positions else [source]
        return self._node(name, sources, f"rotary {{{heads} base: {number(base)} }}")

    def site_position(
        self,
        name: str,
        voxelize: str,
        of: str = "FIRST_POINT",
        *,
        scale: Sequence[float] = (),
        shift: Sequence[float] = (),
        from_minimum: bool = False,
    ) -> str:
        """Adds the position of each voxel's points, a channel for each axis: metres * scale + shift, in float32.

        of: FIRST_POINT or MEAN_POINT of the voxel. scale, shift: one value per axis, or none for 1 and 0.
        from_minimum: subtracts the smallest coordinates of the sample's points first.
        """
        lists = "".join(f" {key}: {numbers(values)}" for key, values in (("scale", scale), ("shift", shift)) if values)
        minimum = " from_minimum: true" if from_minimum else ""
        return self._node(name, [voxelize], f"site_position {{ of: OF_{of}{lists}{minimum} }}")
