"""Exports Point Transformer V3 and the networks that follow it: attention within groups of sites along curves.

- PT-v3m1: X. Wu et al., "Point Transformer V3: Simpler, Faster, Stronger", CVPR 2024; Pointcept's and autoware-ml's.
- PT-v3m2: Sonata (CVPR 2025) and Concerto (NeurIPS 2025). PT-v3m3: Utonia. Their encoders alone give features.
- LitePT: Y. Yue et al., "LitePT: Lighter Yet Stronger Point Transformer", CVPR 2026.

A block adds to each row x: LayerNorm(linear(conv3(x))); proj(attention(LayerNorm(x))); fc2(GELU(fc1(LayerNorm(x)))).
Levels have the sites floor(coordinates / stride). Block i of a stage orders the sites along curve i of the list, modulo
its length. The libraries shuffle the list in each run, also in evaluation.

Three things are folded into weights, exactly: the linear layer behind the convolution, the layer scales, and the
classifier of an encoder, whose features of all levels a library repeats for each voxel and joins: here each level's
share of the scores is computed before it is repeated.

autoware-ml's joint network also has boxes, which ptv3_boxes.py adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from voxserve.export.model_folder import ClassEntry, Network, PointFeature
from voxserve.export.networks import ptv3_boxes
from voxserve.export.networks.layers import INPUT_GAIN, Layers, spconv_xyz_weight
from voxserve.export.networks.minkunet import LIDAR_FEATURES
from voxserve.export.networks.ptv3_boxes import BoxBranch
from voxserve.export.networks.tensors import ExportError, RandomTensors, StateDict, Tensor, Tensors

CURVES = {"z": "Z", "z-trans": "Z_TRANSPOSED", "hilbert": "HILBERT", "hilbert-trans": "HILBERT_TRANSPOSED"}
FEATURES, POINT_FEATURES, LEVEL_FEATURES = "features", "point_features", "level_features"
_BATCH_NORM_EPSILON, _LAYER_NORM_EPSILON = 1e-3, 1e-5
_RESIDUAL_GAIN = 0.5  # for random residual branches, so that the sum of many branches does not exceed float16
_CUBE = (3, 3, 3)


@dataclass(frozen=True)
class Stage:
    """The blocks of one level, in the encoder or in the decoder."""

    depth: int  # blocks
    channels: int
    num_heads: int
    group_size: int
    has_convs: bool = True  # LitePT leaves out the convolutions of coarse levels,
    has_attention: bool = True  # and the attention of fine ones
    rotary_base: float = 0.0  # of the rotary position embedding; 0: none


@dataclass(frozen=True)
class Names:
    """The names that a library gives to parts of the network in its state dicts."""

    encoder: str = "backbone."  # before embedding and enc
    decoder: str = "backbone."  # before dec
    stem: str = "embedding.stem.conv"
    stem_norm: str = "embedding.stem.norm"
    convs: str = "cpe"
    classifier: str = "seg_head"


@dataclass(frozen=True)
class Config:
    """A network: its input, sizes and variant. The defaults are those of PTv3-base on nuScenes."""

    voxel_size: tuple[float, ...] = (0.05, 0.05, 0.05)  # metres
    features: tuple[PointFeature, ...] = LIDAR_FEATURES
    range_min: tuple[float, ...] = ()  # metres; the origin of the voxels' coordinates; (): the cloud's minimum
    range_max: tuple[float, ...] = ()
    orders: tuple[str, ...] = tuple(CURVES)
    strides: tuple[int, ...] = (2, 2, 2, 2)
    encoder: tuple[Stage, ...] = (
        Stage(2, 32, 2, 1024),
        Stage(2, 64, 4, 1024),
        Stage(2, 128, 8, 1024),
        Stage(6, 256, 16, 1024),
        Stage(2, 512, 32, 1024),
    )
    decoder: tuple[Stage, ...] = (  # finest first; (): the encoder alone
        Stage(2, 64, 4, 1024),
        Stage(2, 64, 4, 1024),
        Stage(2, 128, 8, 1024),
        Stage(2, 256, 16, 1024),
    )
    num_classes: int = 16  # 0: the network has no classifier, and gives features
    classes: tuple[ClassEntry, ...] = ()
    stem_kernel: int = 5  # cells on an axis of the stem's convolution; 0: it is a linear layer
    has_batch_norms: bool = True  # of the stem and the pools; False: they have layer norms
    mlp_ratio: float = 4.0
    has_qkv_bias: bool = True
    scale: float | None = None  # of the scores; None: 1 / sqrt(channels of a head)
    has_layer_scale: bool = False
    # A decoder's first convolution reads the encoder's rows alone: PT-v3m1 adds the coarse level's to the features, and
    # not to the sparse tensor that the convolution reads. It was trained so.
    is_conv_of_skip: bool = True
    depth: str = "FIRST_LEVEL"  # whose coordinates decide the bits of Hilbert's curves: PT-v3m1 halves the first codes
    # Rotary positions are those of points, times this, averaged at each pool; 0: they are the sites' coordinates.
    position_scale: float = 0.0
    num_joined: int = 2  # levels whose features an encoder's coarsest ones are joined with, as its README does
    names: Names = Names()
    boxes: BoxBranch | None = None  # autoware-ml's, of the two coarsest levels

    @property
    def num_levels(self) -> int:
        return len(self.encoder)


def build(state: Mapping[str, Tensor], config: Config, *, name: str, description: str = "") -> Network:
    """Returns the network of a state dict. ExportError names every tensor that is missing, unknown or misshaped."""
    tensors = StateDict(state, "the network", _is_of_training)
    names = config.names
    if names.encoder == "backbone." and not any(key.startswith("backbone.") for key in state):
        names = Names(**{**vars(names), "encoder": "", "decoder": ""})
    network = Network(name, description)
    _Builder(network, tensors, config, names).build()
    tensors.raise_problems()
    return network


def random_network(config: Config, *, name: str, description: str = "", seed: int = 0) -> Network:
    network = Network(name, description)
    _Builder(network, RandomTensors(seed), config, config.names).build()
    return network


def _is_of_training(name: str) -> bool:
    return name.endswith((".num_batches_tracked", "embedding.mask_token")) or name.startswith("criteria.")


class _Builder:
    def __init__(self, network: Network, tensors: Tensors, config: Config, names: Names) -> None:
        self._network, self._tensors, self._config, self._names = network, tensors, config, names
        self._layers = Layers(network, tensors, spconv_xyz_weight, _BATCH_NORM_EPSILON)
        self._groups: dict[tuple[int, str, int], str] = {}  # level, curve, size -> node
        self._positions: list[str] = []  # the nodes of the levels' positions
        self._pools: list[str] = []  # the pool to level i + 1

    def build(self) -> None:
        network, config = self._network, self._config
        network.section("Points to voxels, as the library's GridSample makes them: rounded down, one point of each.")
        origin = "RANGE" if config.range_min else "MINIMUM"
        network.voxelize(
            "voxels",
            config.voxel_size,
            config.features,
            rounding="FLOOR",
            origin=origin,
            range_min=config.range_min,
            range_max=config.range_max,
        )
        x = self._stem(self._layers.points("voxels", len(config.features)))
        if config.position_scale:
            scale = (config.position_scale,) * 3
            self._positions.append(network.site_position("positions", "voxels", scale=scale))
        levels = []
        for level, stage in enumerate(config.encoder):
            network.section(f"Encoder {level}.")
            key = f"{self._names.encoder}enc.enc{level}"
            if level:
                x = self._pool(level, key, x, stage.channels)
            x = self._blocks(f"enc{level}", key, level, x, stage)
            levels.append(x)
        if config.boxes:
            last = config.num_levels - 1
            ptv3_boxes.add(
                self._layers, config.boxes, levels[last], levels[last - 1], lambda y: self._repeated(last - 1, y)
            )
        if config.decoder:
            for level in reversed(range(len(config.decoder))):
                network.section(f"Decoder {level}, joined with the encoder's rows.")
                stage, key = config.decoder[level], f"{self._names.decoder}dec.dec{level}"
                x, skip = self._unpool(level, key, x, levels[level], stage.channels)
                x = self._blocks(f"dec{level}", key, level, x, stage, skip if config.is_conv_of_skip else "")
            levels = [x]
        if config.num_classes:
            self._label(levels)
        elif config.boxes is None:
            self._output_features(levels)

    # Parts of the network

    def _stem(self, x: str) -> str:
        self._network.section("Stem.")
        names, size, out = self._names, self._config.stem_kernel, self._config.encoder[0].channels
        key, norm = names.encoder + names.stem, names.encoder + names.stem_norm
        if size:
            x = self._layers.submanifold("stem", key, x, (size,) * 3, out, gain=INPUT_GAIN)
        else:
            x = self._layers.linear("stem", key, x, out, gain=INPUT_GAIN)
        return self._norm_gelu(x, norm)

    def _pool(self, level: int, key: str, x: str, out: int) -> str:
        stride = (self._config.strides[level - 1],) * 3
        x = self._layers.linear(f"down{level}.proj", f"{key}.down.proj", x, out)
        pool = self._network.pool_strided_floor(f"down{level}", x, "MAX", stride, stride)
        self._layers.channels[pool] = out
        self._pools.append(pool)
        if self._positions:
            name, finer = f"down{level}.positions", self._positions[-1]
            self._positions.append(self._network.pool_strided_floor(name, finer, "AVERAGE", stride, stride))
        return self._norm_gelu(pool, f"{key}.down.norm.0")

    def _unpool(self, level: int, key: str, coarse: str, skip: str, out: int) -> tuple[str, str]:
        """Returns the sum of the coarse level's rows and the encoder's, and the latter."""
        layers = self._layers
        y = layers.linear(f"up{level}.skip", f"{key}.up.proj_skip.0", skip, out)
        y = self._norm_gelu(y, f"{key}.up.proj_skip.1")
        x = layers.linear(f"up{level}.proj", f"{key}.up.proj.0", coarse, out)
        # The unpooling comes last, so that it computes the sum too.
        x = self._repeated(level, self._norm_gelu(x, f"{key}.up.proj.1"))
        return layers.add(f"up{level}.sum", [y, x]), y

    def _repeated(self, level: int, x: str) -> str:
        """Returns the rows of level + 1 on the sites of `level`: each site's is that of the site that it lies in."""
        name = self._network.unpool(f"{x}.to{level}", x, self._pools[level], "SUM")
        self._layers.channels[name] = self._layers.channels[x]
        return name

    def _blocks(self, name: str, key: str, level: int, x: str, stage: Stage, of_first: str = "") -> str:
        """of_first: what the first block's convolution reads; "": the block's rows x."""
        for block in range(stage.depth):
            curve = self._config.orders[block % len(self._config.orders)]
            read = of_first if of_first and block == 0 else x
            x = self._block(f"{name}.{block}", f"{key}.block{block}", level, x, stage, curve, read)
        return x

    def _block(self, name: str, key: str, level: int, x: str, stage: Stage, curve: str, read: str) -> str:
        layers = self._layers
        if stage.has_convs:
            y = self._convolved(f"{name}.conv", f"{key}.{self._names.convs}", read)
            x = layers.add(f"{name}.conv.sum", [x, y])
        else:
            x = self._layer_norm(f"{name}.norm", f"{key}.norm0.0", x)
        if not stage.has_attention:
            return x
        y = self._layer_norm(f"{name}.attention.norm", f"{key}.norm1.0", x)
        y = self._attention(f"{name}.attention", f"{key}.attn", level, y, stage, curve)
        y = self._scaled_linear(f"{name}.proj", f"{key}.attn.proj", y, stage.channels, f"{key}.ls1.0")
        x = layers.add(f"{name}.attention.sum", [x, y])
        y = self._layer_norm(f"{name}.mlp.norm", f"{key}.norm2.0", x)
        y = layers.linear(f"{name}.fc1", f"{key}.mlp.0.fc1", y, int(stage.channels * self._config.mlp_ratio))
        y = self._made(self._network.activation(f"{name}.gelu", y, "GELU"), layers.channels[y])
        y = self._scaled_linear(f"{name}.fc2", f"{key}.mlp.0.fc2", y, stage.channels, f"{key}.ls2.0")
        return layers.add(f"{name}.mlp.sum", [x, y])

    def _convolved(self, name: str, key: str, x: str) -> str:
        """Adds the convolution and the linear layer behind it, as one convolution, and their norm."""
        channels = self._layers.channels[x]
        weight = spconv_xyz_weight(self._tensors, f"{key}.0", _CUBE, channels, channels, 1.0)
        bias = self._tensors.take(f"{key}.0.bias", (channels,))
        linear = self._tensors.take(f"{key}.1.weight", (channels, channels), fan_in=channels, gain=_RESIDUAL_GAIN)
        last = self._tensors.take(f"{key}.1.bias", (channels,))
        if weight.shape[1:] == (channels, channels) == linear.shape:
            folded = weight.astype(np.float64) @ linear.astype(np.float64).T
            shift = linear.astype(np.float64) @ bias.astype(np.float64) + last
            weight, bias = folded.astype(np.float32), shift.astype(np.float32)
        self._network.submanifold(name, x, weight, _CUBE, bias)
        return self._layer_norm(f"{name}.norm", f"{key}.2", self._made(name, channels))

    def _attention(self, name: str, key: str, level: int, x: str, stage: Stage, curve: str) -> str:
        parts = dict(zip("qkv", self._query_key_value(name, f"{key}.qkv", x), strict=True))
        if stage.rotary_base:
            self._check_rotary(f"{key}.rope.inv_freq", stage)
            positions = self._positions[level] if self._positions else ""
            for part in "qk":
                place, heads = f"{name}.{part}.rotary", stage.num_heads
                parts[part] = self._network.rotary(
                    place, parts[part], positions, num_heads=heads, base=stage.rotary_base
                )
        groups = self._groups_of(level, curve, stage.group_size, x)
        heads, scale = stage.num_heads, self._config.scale
        self._network.attention(name, *parts.values(), num_heads=heads, scale=scale, groups_of=groups)
        return self._made(name, stage.channels)

    def _query_key_value(self, name: str, key: str, x: str) -> list[str]:
        """Cuts the library's one linear layer [3 C, C] in three."""
        channels = self._layers.channels[x]
        weight = self._tensors.take(f"{key}.weight", (3 * channels, channels), fan_in=2 * channels)
        bias = self._tensors.take(f"{key}.bias", (3 * channels,)) if self._config.has_qkv_bias else None
        biases = [None] * 3 if bias is None else np.split(bias, 3)
        made = zip("qkv", np.split(weight, 3), biases, strict=True)
        return [self._network.linear(f"{name}.{part}", x, np.ascontiguousarray(w), b) for part, w, b in made]

    def _check_rotary(self, key: str, stage: Stage) -> None:
        """Refuses frequencies other than those of the base, which Utonia's state dicts hold."""
        if key not in self._tensors:
            return
        half = stage.channels // stage.num_heads // 6
        stored = self._tensors.take(key, (half,))
        expected = stage.rotary_base ** (-np.arange(half) / max(half, 1))
        if stored.shape == expected.shape and not np.allclose(stored, expected, rtol=1e-3):
            raise ExportError([f"tensor '{key}' has other frequencies than the base {stage.rotary_base:g}"])

    def _groups_of(self, level: int, curve: str, size: int, x: str) -> str:
        place = (level, curve, size)
        if place not in self._groups:
            name = f"groups{level}.{curve}" + (f".{size}" if (level, curve) in {p[:2] for p in self._groups} else "")
            depth = self._config.depth if curve.startswith("hilbert") else ""
            self._groups[place] = self._network.groups(name, x, CURVES[curve], size, depth=depth)
        return self._groups[place]

    # Heads

    def _label(self, levels: Sequence[str]) -> None:
        """Adds the classifier of the levels' rows, which all voxels of a site share, finest first."""
        self._network.section("Head.")
        widths = [self._layers.channels[x] for x in levels]
        classes, key = self._config.num_classes, self._names.classifier
        weight = self._tensors.take(f"{key}.weight", (classes, sum(widths)), fan_in=sum(widths))
        bias = self._tensors.take(f"{key}.bias", (classes,))
        shares = np.split(weight, np.cumsum(widths)[:-1], axis=1)
        x = ""
        for level in reversed(range(len(levels))):
            share = np.ascontiguousarray(shares[level])
            name = f"final{level}" if len(levels) > 1 else "final"
            self._network.linear(name, levels[level], share, None if level else bias)
            self._made(name, classes)
            x = self._layers.add(f"{name}.sum", [name, self._repeated(level, x)]) if x else name
        network = self._network
        network.argmax("argmax", x)
        network.voxel_to_point("labels", "argmax", "voxels")
        network.voxel_to_point("scores", x, "voxels")
        network.output("LABELS", "labels")
        network.output("SCORES", "scores")

    def _output_features(self, levels: Sequence[str]) -> None:
        network, last = self._network, len(levels) - 1
        network.section(f"Features: the coarsest level's, joined with those of {self._config.num_joined} finer ones.")
        x = levels[last]
        for level in reversed(range(last)):
            if last - level > self._config.num_joined:
                break
            x = self._layers.concat(f"joined{level}", [levels[level], self._repeated(level, x)])
        joined = x
        for level in reversed(range(last - self._config.num_joined)):
            x = self._repeated(level, x)
        network.voxel_to_point("of_points", x, "voxels")
        network.output("TENSOR", x, FEATURES)
        network.output("TENSOR", "of_points", POINT_FEATURES)
        if joined != x:
            network.output("TENSOR", joined, LEVEL_FEATURES)

    # Layers

    def _norm_gelu(self, x: str, key: str) -> str:
        if self._config.has_batch_norms:
            y = self._layers.norm(f"{x}.norm", key, x)
        else:
            y = self._layer_norm(f"{x}.norm", key, x)
        return self._made(self._network.activation(f"{x}.gelu", y, "GELU"), self._layers.channels[x])

    def _layer_norm(self, name: str, key: str, x: str) -> str:
        channels = self._layers.channels[x]
        tensors = {part: self._tensors.take(f"{key}.{part}", (channels,)) for part in ("weight", "bias")}
        return self._made(self._network.layer_norm(name, x, tensors, _LAYER_NORM_EPSILON), channels)

    def _scaled_linear(self, name: str, key: str, x: str, out: int, scale: str) -> str:
        """Adds a linear layer, and the layer scale behind it as a factor of its weights."""
        if not self._config.has_layer_scale:
            return self._layers.linear(name, key, x, out, gain=_RESIDUAL_GAIN)
        c_in = self._layers.channels[x]
        weight = self._tensors.take(f"{key}.weight", (out, c_in), fan_in=c_in, gain=_RESIDUAL_GAIN)
        bias, factors = (self._tensors.take(part, (out,)) for part in (f"{key}.bias", f"{scale}.gamma"))
        weight, bias = (
            (values.astype(np.float64) * by).astype(np.float32)
            for values, by in ((weight, factors.astype(np.float64)[:, None]), (bias, factors.astype(np.float64)))
        )
        self._network.linear(name, x, weight, bias)
        return self._made(name, out)

    def _made(self, name: str, channels: int) -> str:
        self._layers.channels[name] = channels
        return name
