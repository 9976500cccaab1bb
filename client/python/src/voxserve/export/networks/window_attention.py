"""Adds the blocks of transformers on pillars: attention within groups of windows, with norms behind the sums.

x = norm1(x + attention(x + position, x + position, x)); x = norm2(x + linear2(GELU(linear1(x)))). Queries and keys have
the position's embedding, values have not. The attention is torch's MultiheadAttention.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voxserve.export.networks.layers import Layers

_LAYER_NORM_EPSILON = 1e-5
_RESIDUAL_GAIN = 0.5  # for random residual branches, so that the sum of many branches does not exceed float16


@dataclass(frozen=True)
class Keys:
    """The names of a block's tensors in a state dict."""

    attention: str  # of MultiheadAttention
    norm1: str
    linear1: str
    linear2: str
    norm2: str


class WindowAttention:
    """Adds blocks to a network of pillars."""

    def __init__(self, layers: Layers, num_heads: int, hidden: int) -> None:
        """hidden: the channels between a block's two linear layers."""
        self._layers = layers
        self._num_heads = num_heads
        self._hidden = hidden

    def block(self, name: str, keys: Keys, x: str, position: str, groups: str) -> str:
        """Adds a block. position: the node of the positions' embedding; groups: that of the groups."""
        layers = self._layers
        y = self._attention(f"{name}.attention", keys.attention, x, position, groups)
        x = self.norm(f"{name}.norm1", keys.norm1, layers.add(f"{name}.attention.sum", [x, y]))
        y = layers.linear(f"{name}.linear1", keys.linear1, x, self._hidden)
        y = self._made(layers.network.activation(f"{name}.gelu", y, "GELU"), self._hidden)
        y = layers.linear(f"{name}.linear2", keys.linear2, y, layers.channels[x], gain=_RESIDUAL_GAIN)
        return self.norm(f"{name}.norm2", keys.norm2, layers.add(f"{name}.sum", [x, y]))

    def norm(self, name: str, key: str, x: str) -> str:
        """Adds a layer norm."""
        channels = self._layers.channels[x]
        tensors = {part: self._layers.tensors.take(f"{key}.{part}", (channels,)) for part in ("weight", "bias")}
        return self._made(self._layers.network.layer_norm(name, x, tensors, _LAYER_NORM_EPSILON), channels)

    def _attention(self, name: str, key: str, x: str, position: str, groups: str) -> str:
        layers, network = self._layers, self._layers.network
        channels = layers.channels[x]
        weight = layers.tensors.take(f"{key}.in_proj_weight", (3 * channels, channels), fan_in=2 * channels)
        bias = layers.tensors.take(f"{key}.in_proj_bias", (3 * channels,))
        placed = layers.add(f"{name}.placed", [x, position])
        parts = [
            network.linear(f"{name}.{part}", source, np.ascontiguousarray(w), b)
            for part, source, w, b in zip(
                "qkv", (placed, placed, x), np.split(weight, 3), np.split(bias, 3), strict=True
            )
        ]
        network.attention(name, *parts, num_heads=self._num_heads, groups_of=groups)
        return layers.linear(
            f"{name}.proj", f"{key}.out_proj", self._made(name, channels), channels, gain=_RESIDUAL_GAIN
        )

    def _made(self, name: str, channels: int) -> str:
        self._layers.channels[name] = channels
        return name
