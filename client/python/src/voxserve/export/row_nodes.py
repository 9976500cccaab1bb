"""Adds nodes that compute each row by itself: activations, products, norms of rows, embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from voxserve.export.node_list import NodeList
from voxserve.export.textproto import number, sizes


class RowNodes(NodeList):
    """The methods of Network for nodes whose rows belong to the same points, sites or samples as their input's rows."""

    def relu(self, name: str, source: str) -> str:
        return self.activation(name, source, "RELU")

    def activation(
        self, name: str, source: str, function: str, negative_slope: float | None = None, **parameters: float
    ) -> str:
        """Adds an activation.

        function: a name in Activation.Function of model.proto without FUNCTION_, such as RELU.
        negative_slope: only for LEAKY_RELU.
        parameters: alpha for ELU, beta for SOFTPLUS, minimum and maximum for CLAMP, exponent for POWER.
        """
        named = parameters if negative_slope is None else {"negative_slope": negative_slope, **parameters}
        text = "".join(f" {key}: {number(value)}" for key, value in named.items())
        return self._node(name, [source], f"activation {{ function: FUNCTION_{function}{text} }}")

    def multiply(self, name: str, a: str, b: str) -> str:
        """Adds the element-wise product of two tensors on the same rows."""
        return self._node(name, [a, b], "multiply {}")

    def elementwise(self, name: str, a: str, b: str, function: str, epsilon: float = 0.0) -> str:
        """Adds a function of two tensors on the same rows, of as many channels or of one.

        function: a name in Elementwise.Function of model.proto without FUNCTION_, such as DIVIDE.
        epsilon: only for DIVIDE, added to b.
        """
        added = f" epsilon: {number(epsilon)}" if epsilon else ""
        return self._node(name, [a, b], f"elementwise {{ function: FUNCTION_{function}{added} }}")

    def row_reduce(self, name: str, source: str, function: str) -> str:
        """Adds a reduction of each row's channels to one. function: SUM, MEAN, MAX, MIN or LENGTH."""
        return self._node(name, [source], f"row_reduce {{ function: FUNCTION_{function} }}")

    def site_coordinates(
        self,
        name: str,
        source: str,
        scale: Sequence[float] = (),
        shift: Sequence[float] = (),
        *,
        window_shape: Sequence[int] = (),
        window_shift: Sequence[int] = (),
    ) -> str:
        """Adds the coordinate of each site of the source: scale * coordinate + shift, in the unit of the sites' level.

        scale, shift: one value per axis, or none for 1 and 0.
        window_shape: with one value per axis, the coordinate is that in the site's window: (coordinate + window_shift)
            mod window_shape.
        """
        parts = [f" {key}: [{', '.join(map(number, v))}]" for key, v in (("scale", scale), ("shift", shift)) if v]
        windows = (("window_shape", window_shape), ("window_shift", window_shift))
        parts += [f" {key}: {sizes(values)}" for key, values in windows if any(values)]
        return self._node(name, [source], f"site_coordinates {{{''.join(parts)} }}")

    def softmax(self, name: str, source: str) -> str:
        """Adds a softmax over each row's channels."""
        return self._node(name, [source], "softmax {}")

    def layer_norm(self, name: str, source: str, tensors: dict[str, npt.NDArray[Any]], epsilon: float = 1e-5) -> str:
        """Adds a layer norm over each row's channels. tensors: weight and bias, [channels] each, or empty."""
        for key, values in tensors.items():
            self.tensors[f"{name}.{key}"] = values
        affine = " affine: true" if tensors else ""
        return self._node(name, [source], f"layer_norm {{ epsilon: {number(epsilon)}{affine} }}")

    def l2_norm(self, name: str, source: str, epsilon: float = 1e-12) -> str:
        """Adds a node that divides each row by its Euclidean length, or by epsilon if the length is smaller."""
        return self._node(name, [source], f"l2_norm {{ epsilon: {number(epsilon)} }}")

    def prelu(self, name: str, source: str, weight: npt.NDArray[Any]) -> str:
        """Adds a PReLU. weight: [1] or [channels]."""
        self.tensors[f"{name}.weight"] = weight
        return self._node(name, [source], "prelu {}")

    def embedding(self, name: str, source: str, weight: npt.NDArray[Any], channel: int = 0) -> str:
        """Adds an embedding: for each row of the source, the row of a table whose index is in a channel of the source.
        weight: the table, [num_rows, channels].
        """
        self.tensors[f"{name}.weight"] = weight
        return self._node(name, [source], f"embedding {{ channel: {channel} }}")
