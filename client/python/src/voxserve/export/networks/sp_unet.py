"""Exports Pointcept's SpUNet (SpUNet-v1m1, pointcept/models/sparse_unet/spconv_unet_v1m1_base.py) on spconv.

The network is a U-Net of submanifold residual blocks, by default with MinkUNet34C's depths. Its axes are x, y, z, its
batch norms have an epsilon of 1e-3, and its stem has a kernel of 5. Its residual shortcuts are kernels of one cell,
whose values spconv uses in the order in which they are in memory (kernel_order.from_spconv). The spatial shape is the
cloud's extent plus 96. So a strided convolution with kernel and stride 2 has all sites floor(coordinates / 2).

Points: Pointcept's GridSample rounds down, subtracts the smallest voxel, and takes one of a voxel's points (a random
one in training); here it is the first. Its test loop runs every point of a voxel, and scaled and flipped clouds, and
adds their scores; a client that wants this must do it.

State dicts: a DefaultSegmentor's "backbone.conv_input.0.weight" to "backbone.final.bias", the same without "backbone.",
or a DefaultSegmentorV2's with "seg_head.weight"; of spconv 1 or 2. Depths and widths are read from the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from voxserve.export.model_folder import Network, PointFeature
from voxserve.export.networks.layers import INPUT_GAIN, Layers, ResidualKeys, spconv_xyz_weight
from voxserve.export.networks.minkunet import LIDAR_FEATURES
from voxserve.export.networks.tensors import ExportError, RandomTensors, StateDict, Tensor, Tensors, num_numbered

_EPSILON = 1e-3
_BASE_WIDTH = 32
_WIDTHS = (32, 64, 128, 256, 256, 128, 96, 96)  # the encoder's stages, finest first, then the decoder's, deepest first
_DEPTHS = (2, 3, 4, 6, 2, 2, 2, 2)
_HEAD = "seg_head"  # the classifier of a DefaultSegmentorV2


def build(
    state: Mapping[str, Tensor],
    *,
    name: str,
    description: str = "",
    voxel_size: Sequence[float] = (0.05, 0.05, 0.05),
    features: Sequence[PointFeature] = LIDAR_FEATURES,
) -> Network:
    """Returns the network of a state dict. Raises ExportError with all missing, unknown or misshaped tensors."""
    prefix = "backbone." if any(key.startswith("backbone.") for key in state) else ""
    num_stages = max(num_numbered(state, f"{prefix}down."), 1)
    if not any(key.startswith(f"{prefix}dec.") for key in state) and any(k.startswith(f"{prefix}enc.") for k in state):
        raise ExportError(["the state dict has no decoder ('dec.'): a SpUNet that classifies clouds (enc_mode)"])
    tensors = StateDict(state, "SpUNet")
    stages = range(num_stages)
    depths = [max(num_numbered(state, f"{prefix}{part}.{s}.block"), 1) for part in ("enc", "dec") for s in stages]
    widths = [tensors.size(f"{prefix}{part}.{s}.1.weight", 0) for part in ("down", "up") for s in stages]
    base_width = tensors.size(f"{prefix}conv_input.1.weight", 0)
    has_head = f"{_HEAD}.weight" in state
    num_classes = tensors.size(f"{_HEAD}.weight", 0) if has_head else tensors.size(f"{prefix}final.bias", 0)
    network = Network(name, description)
    builder = _Builder(network, tensors, prefix, has_head=has_head)
    builder.build(voxel_size, features, base_width, widths, depths, num_classes)
    tensors.raise_problems()
    return network


def random_network(
    *,
    name: str,
    width: float = 1.0,
    num_classes: int = 19,
    seed: int = 0,
    description: str = "",
    voxel_size: Sequence[float] = (0.05, 0.05, 0.05),
    features: Sequence[PointFeature] = LIDAR_FEATURES,
) -> Network:
    """Returns the published network with random weights. width multiplies the channels."""
    num_stages = len(_WIDTHS) // 2
    encoder, decoder = _WIDTHS[:num_stages], _WIDTHS[: num_stages - 1 : -1]
    depths = (*_DEPTHS[:num_stages], *_DEPTHS[: num_stages - 1 : -1])
    widths = [int(width * w) for w in (_BASE_WIDTH, *encoder, *decoder)]
    if min(widths) < 1 or num_classes < 1:
        raise ValueError(f"width {width} and {num_classes} classes leave a layer without channels")
    network = Network(name, description)
    builder = _Builder(network, RandomTensors(seed), "backbone.")
    builder.build(voxel_size, features, widths[0], widths[1:], depths, num_classes)
    return network


class _Builder:
    def __init__(self, network: Network, tensors: Tensors, prefix: str, *, has_head: bool = False) -> None:
        self._network = network
        self._layers = Layers(network, tensors, spconv_xyz_weight, _EPSILON)
        self._prefix = prefix
        self._has_head = has_head

    def build(
        self,
        voxel_size: Sequence[float],
        features: Sequence[PointFeature],
        base_width: int,
        widths: Sequence[int],
        depths: Sequence[int],
        num_classes: int,
    ) -> None:
        """Adds all nodes. widths, depths: the values of the encoder's stages, finest first, then those of the decoder's
        stages, finest first.
        """
        network, layers, prefix, num_stages = self._network, self._layers, self._prefix, len(widths) // 2
        network.section("Points to voxels, as Pointcept's GridSample makes them: floor, the smallest one subtracted.")
        network.voxelize("voxels", voxel_size, features, rounding="FLOOR", origin="MINIMUM", reduce="FIRST")
        x = layers.points("voxels", len(features))
        network.section("Stem.")
        key = f"{prefix}conv_input"
        x = layers.submanifold("conv_input", f"{key}.0", x, (5, 5, 5), base_width, gain=INPUT_GAIN)
        x = layers.norm_relu(x, f"{key}.1")
        skips = []
        for stage in range(num_stages):
            skips.append(x)
            network.section(f"Encoder {stage}: stride {2 ** (stage + 1)}.")
            key, name = f"{prefix}down.{stage}", f"down{stage}"
            layers.strided(name, f"{key}.0", x, (2, 2, 2), (2, 2, 2), widths[stage])
            x = layers.norm_relu(name, f"{key}.1")
            x = self._blocks("enc", stage, x, depths[stage], widths[stage])
        for stage in reversed(range(num_stages)):
            network.section(f"Decoder {stage}: back to stride {2**stage}, joined by the skip connection.")
            key, name, width = f"{prefix}up.{stage}", f"up{stage}", widths[num_stages + stage]
            layers.inverse(name, f"{key}.0", x, width, f"down{stage}")
            x = layers.concat(f"{name}.concat", [layers.norm_relu(name, f"{key}.1"), skips[stage]])
            x = self._blocks("dec", stage, x, depths[num_stages + stage], width)
        network.section("Head.")
        if self._has_head:
            layers.linear("final", _HEAD, x, num_classes)
        else:
            layers.pointwise("final", f"{prefix}final", x, num_classes, bias=True)
        network.argmax("argmax", "final")
        network.voxel_to_point("labels", "argmax", "voxels")
        network.voxel_to_point("scores", "final", "voxels")
        network.output("LABELS", "labels")
        network.output("SCORES", "scores")

    def _blocks(self, part: str, stage: int, x: str, count: int, out: int) -> str:
        for block in range(count):
            key = f"{self._prefix}{part}.{stage}.block{block}"
            keys = ResidualKeys(
                convs=(f"{key}.conv1", f"{key}.conv2"),
                norms=(f"{key}.bn1", f"{key}.bn2"),
                shortcut=(f"{key}.proj.0", f"{key}.proj.1"),
            )
            convolve = partial(self._layers.submanifold, kernel=(3, 3, 3), out=out)
            x = self._layers.residual_block(f"{part}{stage}.{block}", keys, x, [convolve] * 2)
        return x
