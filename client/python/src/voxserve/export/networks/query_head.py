"""Adds the head of TransFusion: queries at the peaks of a heat map, one decoder layer, and a box of each query.

X. Bai et al., "TransFusion: Robust LiDAR-Camera Fusion for 3D Object Detection with Transformers", CVPR 2022, its LiDAR
branch, as OpenPCDet, mit-han-lab/bevfusion, AWML, mmdetection3d's BEVFusion and autoware-ml have it.

A query is its cell's feature and an embedding of its class. A decoder layer attends to the queries, then to all cells,
and ends with two linear layers; each part is added to what it read, and normalised. Positions of queries and of cells
go through small networks. That of the cells reads no cloud, so it is computed here and becomes a `constant`.

autoware-ml's layers differ: the shared convolution has a norm and a ReLU, the positions' networks have no norm, and
the position is added to a query once, before the layer, in place of once for each attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from voxserve.export.networks.center_head import take_rows
from voxserve.export.networks.layers import Layers
from voxserve.export.networks.tensors import Tensor

_LAYER_NORM_EPSILON = 1e-5
_MOST_QUERIES, _MOST_KERNEL, _MOST_CLASSES = 1024, 15, 32  # the server's limits (model.proto, Select)
_HEATMAP_BIAS, _HEATMAP_GAIN, _BRANCH_GAIN = -2.19, 0.3, 0.1  # of random weights, as in center_head.py
_POSITION_GAIN = 0.02  # of random weights whose input are cells, up to some hundreds
_BRANCHES = {"heatmap": 0, "center": 2, "height": 1, "dim": 3, "rot": 2, "vel": 2}  # in query_decode's order


@dataclass(frozen=True)
class QueryHead:
    """A head's sizes, and what it does at borders, with heights and with boxes."""

    num_queries: int = 200
    peak_kernel: int = 3
    border: str = "DROP"  # Select.Border in model.proto; "" if every cell is a peak
    untested: tuple[int, ...] = ()  # the classes of which every cell is a peak
    has_velocity: bool = True
    center_min: tuple[float, ...] = ()  # the range of a box's centre, metres, bounds included; (): no range
    center_max: tuple[float, ...] = ()
    bounds_bottom: bool = False  # that of z holds for the lower face
    height_of: str = "CENTER"  # or TOP: what `height` is
    score_thresholds: tuple[float, ...] = ()  # one, or one for each class; (): 0
    stride: int = 8  # the size of a cell in voxels
    width: int = 128
    num_heads: int = 8
    feed_forward: int = 256
    branch_width: int = 64
    is_autoware: bool = False  # autoware-ml's layers
    # Width before length, and -yaw - pi / 2: networks of mmdetection3d below 1.0. They are converted.
    has_old_boxes: bool = False

    @property
    def epsilon(self) -> float:
        """The epsilon of the batch norms."""
        return 1e-3 if self.is_autoware else 1e-5


def problems(config: QueryHead, num_classes: int) -> list[str]:
    """Returns texts of what the server does not compute."""
    found = []
    if not 1 <= config.num_queries <= _MOST_QUERIES:
        found.append(f"selects {config.num_queries} queries; the server selects 1 to {_MOST_QUERIES}")
    if config.peak_kernel % 2 == 0 or config.peak_kernel > _MOST_KERNEL:
        found.append(f"has a window of {config.peak_kernel} cells for peaks; served are odd ones up to {_MOST_KERNEL}")
    if not 1 <= num_classes <= _MOST_CLASSES:
        found.append(f"has {num_classes} classes; the server has 1 to {_MOST_CLASSES}")
    if config.width % config.num_heads:
        found.append(f"has {config.num_heads} heads, which do not divide {config.width} channels")
    if any(not 0 <= threshold < 1 for threshold in config.score_thresholds):
        found.append(f"has the score thresholds {list(config.score_thresholds)}, not all in 0 to below 1")
    if any(low > high for low, high in zip(config.center_min, config.center_max, strict=True)):
        found.append(f"has the limits {config.center_min} to {config.center_max}, within which is no centre")
    return found


def add(
    layers: Layers,
    config: QueryHead,
    x: str,
    *,
    class_ids: Sequence[int],
    grid: tuple[int, int],
    key: Callable[[str], str],
) -> None:
    """Adds the head on the image x, and the output of boxes.

    class_ids: of the heat map's channels. grid: the image's rows and columns. key: returns the name of a tensor's layer
    for OpenPCDet's name without "dense_head.".
    """
    _Head(layers, config, key).boxes(x, class_ids, grid)


class _Head:
    def __init__(self, layers: Layers, config: QueryHead, key: Callable[[str], str]) -> None:
        self._layers, self._config, self._key = layers, config, key
        self._network, self._tensors = layers.network, layers.tensors

    def boxes(self, x: str, class_ids: Sequence[int], grid: tuple[int, int]) -> None:
        config, network = self._config, self._network
        network.section("Head: the heat map, and the queries at its peaks.")
        features = self._shared(x)
        select = network.select(
            "queries",
            self._logits(features, len(class_ids)),
            config.num_queries,
            config.peak_kernel,
            border=config.border,
            untested=config.untested,
        )
        queries = self._queries(features, select, len(class_ids))
        network.section("Decoder: the queries attend to each other, then to all cells.")
        rows = self._decoder(queries, select, features, grid)
        network.section("Boxes of the queries.")
        branches = [
            self._branch(name, rows, channels or len(class_ids))
            for name, channels in _BRANCHES.items()
            if name != "vel" or config.has_velocity
        ]
        network.query_decode(
            "boxes",
            select,
            branches,
            class_ids=class_ids,
            stride=config.stride,
            max_boxes=config.num_queries,
            height_of=config.height_of,
            score_thresholds=config.score_thresholds,
            center_min=config.center_min,
            center_max=config.center_max,
            bounds_bottom=config.bounds_bottom,
        )
        network.output("BOXES", "boxes")

    # Parts

    def _shared(self, x: str) -> str:
        layers, width = self._layers, self._config.width
        has_norm = self._config.is_autoware
        layers.conv2d("shared", self._key("shared_conv"), x, 3, width, padding=1, bias=not has_norm)
        if not has_norm:
            return "shared"
        return layers.norm_relu("shared", self._key("shared_norm"), epsilon=self._config.epsilon)

    def _logits(self, features: str, num_classes: int) -> str:
        layers, key = self._layers, self._key("heatmap_head.0.conv")
        has_bias = f"{key}.bias" in self._tensors  # OpenPCDet's USE_BIAS_BEFORE_NORM
        layers.conv2d("heat.0", key, features, 3, self._config.width, padding=1, bias=has_bias)
        y = layers.norm_relu("heat.0", self._key("heatmap_head.0.bn"), epsilon=self._config.epsilon)
        key = self._key("heatmap_head.1")
        gain, fill = _HEATMAP_GAIN, _HEATMAP_BIAS
        return layers.conv2d("heat", key, y, 3, num_classes, padding=1, bias=True, gain=gain, fill_bias=fill)

    def _queries(self, features: str, select: str, num_classes: int) -> str:
        width, key = self._config.width, self._key("class_encoding")
        weight = self._tensors.take(f"{key}.weight", (width, num_classes, 1), fan_in=num_classes)
        bias = self._tensors.take(f"{key}.bias", (width,))
        at = self._made(self._network.gather("query.features", select, "FEATURES", features), width)
        table = np.ascontiguousarray(weight[:, :, 0].T) + bias
        of = self._network.embedding("query.class", self._network.gather("query.class_id", select, "CLASS"), table)
        return self._layers.add("query", [at, self._made(of, width)])

    def _decoder(self, queries: str, select: str, features: str, grid: tuple[int, int]) -> str:
        layers, is_autoware = self._layers, self._config.is_autoware
        place = self._query_positions(select)
        keys = self._made(self._network.constant("key.positions", self._key_positions(grid)), self._config.width)
        keys = layers.add("keys", [features, keys])
        placed = layers.add("query.placed", [queries, place])
        mixed = self._attention("self", self._key("decoder.self_attn"), placed, placed)
        x = self._norm("self.norm", "norm1", layers.add("self.sum", [placed if is_autoware else queries, mixed]))
        asking = x if is_autoware else layers.add("cross.placed", [x, place])
        mixed = self._attention("cross", self._key("decoder.multihead_attn"), asking, keys)
        x = self._norm("cross.norm", "norm2", layers.add("cross.sum", [x, mixed]))
        y = layers.linear("ffn.0", self._key("decoder.linear1"), x, self._config.feed_forward)
        y = layers.relu("ffn.0.relu", y)
        y = layers.linear("ffn.1", self._key("decoder.linear2"), y, self._config.width, gain=0.5)
        return self._norm("ffn.norm", "norm3", layers.add("ffn.sum", [x, y]))

    def _attention(self, name: str, key: str, queries: str, keys: str) -> str:
        """Adds torch's MultiheadAttention, of which one tensor holds the weights of queries, keys and values."""
        width = self._config.width
        weight = self._tensors.take(f"{key}.in_proj_weight", (3 * width, width), fan_in=2 * width)
        bias = self._tensors.take(f"{key}.in_proj_bias", (3 * width,))
        parts = [
            self._network.linear(f"{name}.{part}", source, np.ascontiguousarray(w), np.ascontiguousarray(b))
            for part, source, w, b in zip(
                "qkv", (queries, keys, keys), np.split(weight, 3), np.split(bias, 3), strict=True
            )
        ]
        mixed = self._network.attention(f"{name}.attention", *parts, num_heads=self._config.num_heads)
        return self._layers.linear(f"{name}.proj", f"{key}.out_proj", self._made(mixed, width), width)

    def _branch(self, name: str, x: str, channels: int) -> str:
        """Adds a branch of two convolutions of one cell, which are linear layers."""
        config, key = self._config, self._key(f"prediction_head.{name}.0.0")
        width = config.width if config.is_autoware else config.branch_width
        self._pointwise(f"{name}.0", key, x, width, bias=f"{key}.bias" in self._tensors)
        norm = self._key(f"prediction_head.{name}.0.1")
        y = self._layers.norm_relu(f"{name}.0", norm, epsilon=config.epsilon)
        gain, fill = (_HEATMAP_GAIN, _HEATMAP_BIAS) if name == "heatmap" else (_BRANCH_GAIN, None)
        self._pointwise(name, self._key(f"prediction_head.{name}.1"), y, channels, gain=gain, fill_bias=fill)
        if config.has_old_boxes and name == "dim":
            take_rows(self._network, name, (1, 0, 2), 1)  # width, length, height -> length, width, height
        if config.has_old_boxes and name == "rot":
            take_rows(self._network, name, (1, 0), -1)  # sin(-r - pi/2) = -cos(r), cos(-r - pi/2) = -sin(r)
        return name

    # Positions

    def _query_positions(self, select: str) -> str:
        """Adds the network of the queries' positions."""
        network, layers, width = self._network, self._layers, self._config.width
        first, last = self._position_layers("self_posembed")
        place = self._made(network.gather("query.cell", select, "POSITION"), 2)
        network.linear("query.position.0", place, *(values.astype(np.float32) for values in first))
        y = layers.relu("query.position.0.relu", self._made("query.position.0", width))
        network.linear("query.position", y, *(values.astype(np.float32) for values in last))
        return self._made("query.position", width)

    def _key_positions(self, grid: tuple[int, int]) -> Tensor:
        """Returns what the network of the cells' positions gives, [rows, columns, width]."""
        (w0, b0), (w1, b1) = self._position_layers("cross_posembed")
        rows, columns = (np.arange(size) + 0.5 for size in grid)
        cells = np.stack(np.broadcast_arrays(columns[None, :], rows[:, None]), axis=-1)
        if w0.shape[-1:] != (2,) or w1.shape[-1:] != w0.shape[:1]:
            return np.zeros((*grid, self._config.width), np.float32)  # the tensors' problems are reported
        made: Tensor = np.maximum(cells @ w0.T + b0, 0) @ w1.T + b1
        return made.astype(np.float32)

    def _position_layers(self, part: str) -> list[tuple[Tensor, Tensor]]:
        """Returns the two linear layers of a positions' network in float64, with the norm between them folded in."""
        width, tensors = self._config.width, self._tensors
        key = self._key(f"decoder.{part}.position_embedding_head.0")
        last = self._key(f"decoder.{part}.position_embedding_head.3")
        shape = () if self._config.is_autoware else (1,)  # of a convolution, or of a linear layer
        w0 = tensors.take(f"{key}.weight", (width, 2, *shape), fan_in=2, gain=_POSITION_GAIN)
        w1 = tensors.take(f"{last}.weight", (width, width, *shape), fan_in=width)
        b0, b1 = (tensors.take(f"{name}.bias", (width,)).astype(np.float64) for name in (key, last))
        w0, w1 = (weight.reshape(weight.shape[:2]).astype(np.float64) for weight in (w0, w1))
        if not self._config.is_autoware:
            norm = self._key(f"decoder.{part}.position_embedding_head.1")
            scale, shift, mean, variance = (
                tensors.take(f"{norm}.{name}", (width,)).astype(np.float64)
                for name in ("weight", "bias", "running_mean", "running_var")
            )
            factor = scale / np.sqrt(variance + self._config.epsilon)
            w0, b0 = w0 * factor[:, None], (b0 - mean) * factor + shift
        return [(w0, b0), (w1, b1)]

    # Layers

    def _norm(self, name: str, key: str, x: str) -> str:
        channels = self._layers.channels[x]
        key = self._key(f"decoder.{key}")
        tensors = {part: self._tensors.take(f"{key}.{part}", (channels,)) for part in ("weight", "bias")}
        return self._made(self._network.layer_norm(name, x, tensors, _LAYER_NORM_EPSILON), channels)

    def _pointwise(
        self,
        name: str,
        key: str,
        x: str,
        out: int,
        *,
        bias: bool = True,
        gain: float = 1.0,
        fill_bias: float | None = None,
    ) -> str:
        c_in = self._layers.channels[x]
        weight = self._tensors.take(f"{key}.weight", (out, c_in, 1), fan_in=c_in, gain=gain)
        values = self._tensors.take(f"{key}.bias", (out,), fill=fill_bias) if bias else None
        self._network.linear(name, x, np.ascontiguousarray(weight[:, :, 0]), values)
        return self._made(name, out)

    def _made(self, name: str, channels: int) -> str:
        self._layers.channels[name] = channels
        return name
