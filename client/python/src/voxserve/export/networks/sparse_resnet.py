"""Exports SparseResNet21D, TorchSparse's backbone for detectors, as a network that labels points.

The network has five blocks. Each is a strided convolution, followed by residual blocks with the same kernel size. The
last block has a stride only on the second axis. TorchSparse's network ends there; here a linear classifier follows, and
every point gets the interpolated scores of the sites around it.

State dict: torch.nn.ModuleDict({"backbone": SparseResNet21D(...), "classifier": Linear(...)}), "backbone.0.0.0.kernel"
to "classifier.bias". The sites are those of TorchSparse's MLSys 2022 version (RULE_EXPAND). `axes` names the fields of
the three axes; with ("x", "z", "y"), the last block halves the height.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from voxserve.export.model_folder import Network, PointFeature
from voxserve.export.networks.layers import INPUT_GAIN, Layers, ResidualKeys, torchsparse_weight
from voxserve.export.networks.minkunet import LIDAR_FEATURES
from voxserve.export.networks.tensors import RandomTensors, StateDict, Tensor, Tensors

_EPSILON = 1e-5
_BLOCKS = (
    (3, 16, (3, 3, 3), (1, 1, 1)),
    (3, 32, (3, 3, 3), (2, 2, 2)),
    (3, 64, (3, 3, 3), (2, 2, 2)),
    (3, 128, (3, 3, 3), (2, 2, 2)),
    (1, 128, (1, 3, 1), (1, 2, 1)),
)


def build(
    state: Mapping[str, Tensor],
    *,
    name: str,
    description: str = "",
    voxel_size: Sequence[float] = (0.1, 0.1, 0.1),
    features: Sequence[PointFeature] = LIDAR_FEATURES,
    axes: Sequence[str] = (),
) -> Network:
    """Returns the network of a state dict. Raises ExportError with all missing, unknown or misshaped tensors."""
    tensors = StateDict(state, "SparseResNet21D + classifier")
    widths = [tensors.size(f"backbone.{block}.0.0.kernel", 2) for block in range(len(_BLOCKS))]
    num_classes = tensors.size("classifier.weight", 0)
    network = _build(tensors, name, description, voxel_size, features, axes, widths, num_classes)
    tensors.raise_problems()
    return network


def random_network(
    *,
    name: str,
    width: float = 1.0,
    num_classes: int = 19,
    seed: int = 0,
    description: str = "",
    voxel_size: Sequence[float] = (0.1, 0.1, 0.1),
    features: Sequence[PointFeature] = LIDAR_FEATURES,
    axes: Sequence[str] = (),
) -> Network:
    """Returns SparseResNet21D with random weights. width multiplies the channels."""
    widths = [int(width * channels) for _, channels, _, _ in _BLOCKS]
    if min(widths) < 1 or num_classes < 1:
        raise ValueError(f"width {width} and {num_classes} classes leave a layer without channels")
    return _build(RandomTensors(seed), name, description, voxel_size, features, axes, widths, num_classes)


def _build(
    tensors: Tensors,
    name: str,
    description: str,
    voxel_size: Sequence[float],
    features: Sequence[PointFeature],
    axes: Sequence[str],
    widths: Sequence[int],
    num_classes: int,
) -> Network:
    network = Network(name, description)
    layers = Layers(network, tensors, torchsparse_weight, _EPSILON)
    network.section("Points to voxels.")
    voxels = layers.points(network.voxelize("voxels", voxel_size, features, axes=axes), len(features))
    x = voxels
    for block, (count, _, kernel, stride) in enumerate(_BLOCKS):
        network.section(f"Block {block}.")
        key, conv, width = f"backbone.{block}.0", f"block{block}.conv", widths[block]
        if max(stride) == 1:
            layers.submanifold(conv, f"{key}.0", x, kernel, width, gain=INPUT_GAIN)
        else:
            layers.strided(conv, f"{key}.0", x, kernel, stride, width, rule="EXPAND")
        x = layers.norm_relu(conv, f"{key}.1")
        for residual in range(1, count):
            key = f"backbone.{block}.{residual}.main"
            keys = ResidualKeys(convs=(f"{key}.0", f"{key}.3"), norms=(f"{key}.1", f"{key}.4"))
            convolve = partial(layers.submanifold, kernel=kernel, out=width)
            x = layers.residual_block(f"block{block}.{residual}", keys, x, [convolve] * 2)
    network.section("Head.")
    layers.linear("classifier", "classifier", x, num_classes)
    network.devoxelize("scores", "classifier", voxels)
    network.argmax("labels", "scores")
    network.output("LABELS", "labels")
    network.output("SCORES", "scores")
    return network
