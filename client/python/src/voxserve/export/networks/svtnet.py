"""Exports SVT-Net, which computes one vector for each cloud, by which places are recognised.

Z. Fan et al., "SVT-Net: Super Light-Weight Sparse Voxel Transformer for Large Scale Place Recognition", AAAI 2022. It
is a MinkLoc3D (J. Komorowski, WACV 2021) that ends with attention within the cloud. Its layers are MinkowskiEngine's:
a trunk whose levels have the sites floor(coordinates / 2), two parallel transformers, and a generalised mean of all
sites.

- asvt: every site attends to all sites.
- csvt: a few tokens are gathered from all sites, attend to each other, and every site attends to them. The scores of a
  token are one channel of k_conv. Here that is an attention whose queries are the rows of the identity matrix, each of
  which selects one channel.

State dicts: "backbone.conv0.kernel" to "pooling.p", of any planes, number of blocks, tokens and feature size. The
transformers are named asvt and csvt, as the published source has them, or att_sa and att_token, as the published
weights do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from voxserve.export.model_folder import Network, PointFeature
from voxserve.export.networks.layers import INPUT_GAIN, Layers, ResidualKeys, minkowski_weight
from voxserve.export.networks.tensors import RandomTensors, StateDict, Tensor, Tensors, num_numbered

_EPSILON = 1e-5
_POOL_EPSILON = 1e-6  # the epsilon of MinkLoc3D's generalised mean (GeM)
_CUBE, _PAIR = (3, 3, 3), (2, 2, 2)
# Clouds have no such field: every point's feature is 1.
FEATURES = (PointFeature("occupancy", "1", default=1.0),)
QUANTIZATION = (0.01, 0.01, 0.01)  # the voxel size for clouds that are scaled to -1 to 1, as MinkLoc3D's are
OUTPUT = "descriptor"


def build(
    state: Mapping[str, Tensor],
    *,
    name: str,
    description: str = "",
    voxel_size: Sequence[float] = QUANTIZATION,
) -> Network:
    """Returns the network of a state dict. ExportError names every tensor that is missing, unknown or misshaped."""
    tensors = StateDict(state, "SVT-Net")
    num_levels = max(num_numbered(state, f"backbone.{part}.") for part in ("convs", "bn", "blocks"))
    blocks = [num_numbered(state, f"backbone.blocks.{level}.") for level in range(num_levels)]
    planes = [tensors.size(f"backbone.blocks.{level}.0.norm1.bn.weight", 0) for level in range(num_levels)]
    asvt = "backbone.att_sa" if "backbone.att_sa.q_conv.kernel" in tensors else "backbone.asvt"
    csvt = "backbone.att_token" if "backbone.att_token.q_conv.kernel" in tensors else "backbone.csvt"
    builder = _Builder(Network(name, description), tensors, asvt, csvt)
    builder.build(
        voxel_size,
        stem=tensors.size("backbone.conv0.kernel", 2),
        blocks=blocks,
        planes=planes,
        feature_size=tensors.size("backbone.conv1x1.0.kernel", 1),
        key_channels=tensors.size(f"{asvt}.q_conv.kernel", 1),
        num_tokens=tensors.size(f"{csvt}.k_conv.kernel", 1),
    )
    tensors.raise_problems()
    return builder.network


def random_network(
    *,
    name: str,
    description: str = "",
    voxel_size: Sequence[float] = QUANTIZATION,
    seed: int = 0,
    planes: Sequence[int] = (32, 64),
    feature_size: int = 256,
) -> Network:
    """Returns the network with random weights. Its sizes are the published ones, except for planes and feature_size."""
    builder = _Builder(Network(name, description), RandomTensors(seed), "backbone.asvt", "backbone.csvt")
    builder.build(
        voxel_size,
        stem=planes[0],
        blocks=[1] * len(planes),
        planes=planes,
        feature_size=feature_size,
        key_channels=max(feature_size // 8, 1),
        num_tokens=8,
    )
    return builder.network


class _Builder:
    def __init__(self, network: Network, tensors: Tensors, asvt: str, csvt: str) -> None:
        """asvt, csvt: the names of the transformers in the state dict."""
        self.network = network
        self._tensors = tensors
        self._layers = Layers(network, tensors, minkowski_weight, _EPSILON)
        self._asvt_key, self._csvt_key = asvt, csvt

    def build(
        self,
        voxel_size: Sequence[float],
        *,
        stem: int,
        blocks: Sequence[int],
        planes: Sequence[int],
        feature_size: int,
        key_channels: int,
        num_tokens: int,
    ) -> None:
        network, layers = self.network, self._layers
        if len(voxel_size) != 3:
            raise ValueError(f"voxel_size has {len(voxel_size)} values; this network has 3 axes")
        network.section("Points to voxels, as MinkowskiEngine quantizes them.")
        network.voxelize("voxels", voxel_size, FEATURES, rounding="FLOOR", origin="ZERO")
        x = layers.points("voxels", len(FEATURES))
        network.section("Trunk.")
        x = layers.submanifold("conv0", "backbone.conv0", x, (5, 5, 5), stem, gain=INPUT_GAIN)
        x = layers.norm_relu(x, "backbone.bn0.bn")
        for level, (count, width) in enumerate(zip(blocks, planes, strict=True)):
            down = f"level{level + 1}.down"
            layers.strided(down, f"backbone.convs.{level}", x, _PAIR, _PAIR, layers.channels[x])
            x = layers.norm_relu(down, f"backbone.bn.{level}.bn")
            for block in range(count):
                x = self._block(f"level{level + 1}.{block}", f"backbone.blocks.{level}.{block}", x, width)
        x = layers.pointwise("features", "backbone.conv1x1.0", x, feature_size)
        gathered = self._csvt(x, num_tokens)
        attended = self._asvt(x, key_channels)
        x = layers.add("sum", [gathered, attended])
        network.section("The mean of all sites, generalised.")
        exponent = self._tensors.take("pooling.p", (1,), fill=3.0)
        network.global_pool(
            OUTPUT, x, "GENERALISED_MEAN", exponent=float(exponent.reshape(-1)[0]), epsilon=_POOL_EPSILON
        )
        network.output("TENSOR", OUTPUT, OUTPUT)

    def _block(self, name: str, key: str, x: str, out: int) -> str:
        convolve = partial(self._layers.submanifold, kernel=_CUBE, out=out)
        keys = ResidualKeys(
            convs=(f"{key}.conv1", f"{key}.conv2"),
            norms=(f"{key}.norm1.bn", f"{key}.norm2.bn"),
            shortcut=(f"{key}.downsample.0", f"{key}.downsample.1.bn"),
        )
        return self._layers.residual_block(name, keys, x, [convolve] * 2)

    def _asvt(self, x: str, key_channels: int) -> str:
        layers, key, features = self._layers, self._asvt_key, self._layers.channels[x]
        self.network.section("Sites attend to each other.")
        queries = layers.pointwise("asvt.queries", f"{key}.q_conv", x, key_channels)
        keys = layers.pointwise("asvt.keys", f"{key}.k_conv", x, key_channels)
        values = layers.pointwise("asvt.values", f"{key}.v_conv", x, features)
        return self._join("asvt", key, x, self._attention("asvt.attention", queries, keys, values))

    def _csvt(self, x: str, num_tokens: int) -> str:
        layers, key, features = self._layers, self._csvt_key, self._layers.channels[x]
        self.network.section("Tokens gather from the sites, attend to each other, and are brought back.")
        keys = layers.pointwise("csvt.keys", f"{key}.k_conv", x, num_tokens)
        values = layers.pointwise("csvt.values", f"{key}.q_conv", x, features)
        self.network.sample_rows("csvt.queries", np.eye(num_tokens, dtype=np.float32))
        tokens = self._attention("csvt.tokens", "csvt.queries", keys, values)
        # The published source multiplies keys by queries and takes the softmax over the queries.
        mixed = self._attention(
            "csvt.attention",
            self._of_tokens("csvt.token_keys", f"{key}.convkeys", tokens),
            self._of_tokens("csvt.token_queries", f"{key}.convquries", tokens),
            self._of_tokens("csvt.token_values", f"{key}.convvalues", tokens),
        )
        mixed = layers.add("csvt.mixed", [self._of_tokens("csvt.embedding", f"{key}.embedding1", mixed), tokens])
        projected = self._of_tokens("csvt.projected", f"{key}.T_conv", mixed)
        places = layers.pointwise("csvt.places", f"{key}.p_conv", x, features)
        return self._join("csvt", key, x, self._attention("csvt.back", places, projected, projected))

    def _join(self, name: str, key: str, x: str, attended: str) -> str:
        layers = self._layers
        made = layers.pointwise(f"{name}.trans", f"{key}.trans_conv", attended, layers.channels[x])
        return layers.add(f"{name}.sum", [layers.norm_relu(made, f"{key}.after_norm.bn"), x])

    def _attention(self, name: str, queries: str, keys: str, values: str) -> str:
        self._layers.channels[name] = self._layers.channels[values]
        return self.network.attention(name, queries, keys, values, scale=1.0)

    def _of_tokens(self, name: str, key: str, tokens: str) -> str:
        """Adds a torch Conv1d with kernel size 1 and as many output as input channels, on the tokens."""
        channels = self._layers.channels[tokens]
        weight = self._tensors.take(f"{key}.weight", (channels, channels, 1), fan_in=channels)
        self._layers.channels[name] = channels
        return self.network.linear(name, tokens, np.ascontiguousarray(weight[:, :, 0]))
