"""TorchSparse's SparseResUNet42 with a linear classifier (the MinkUNet of SPVNAS) -> a served network.

Expects the tensors of torch.nn.ModuleDict({"backbone": SparseResUNet42(...), "classifier": Linear(...)}), that is
"backbone.stem.0.kernel" to "classifier.bias". Channels are read from the tensors' shapes, so that any width serves.
TorchSparse's 2x2x2 stride-2 convolutions make sites floor(c / 2); its kernels are reordered by kernel_order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.export import kernel_order
from voxserve.export.model_folder import Network, PointFeature

_NUM_STAGES = 4
_BATCH_NORM_EPSILON = 1e-5  # torch's default, which SparseResUNet42 keeps
_BATCH_NORM_TENSORS = ("weight", "bias", "running_mean", "running_var")
_STORED_DTYPES = (np.float16, np.float32)
LIDAR_FEATURES = (
    PointFeature("x", "m"),
    PointFeature("y", "m"),
    PointFeature("z", "m"),
    PointFeature("intensity", "1"),
)


class ExportError(ValueError):
    """A state dict that is not the network it should be. `problems` lists everything that is wrong with it."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(f"{len(self.problems)} problem(s):\n" + "\n".join(f"  {p}" for p in self.problems))


def build(
    state: Mapping[str, npt.NDArray[Any]],
    *,
    name: str,
    description: str = "",
    voxel_size: Sequence[float] = (0.05, 0.05, 0.05),
    features: Sequence[PointFeature] = LIDAR_FEATURES,
) -> Network:
    """The network of a state dict. Raises ExportError with every tensor that is missing, unknown or misshaped."""
    weights = _Weights(state)
    network = Network(name, description)
    size = " x ".join(f"{v:g}" for v in voxel_size)
    network.section(f"Points to voxels of {size} m, as TorchSparse's datasets make them.")
    voxels = network.voxelize("voxels", voxel_size, features)
    layers = _Layers(network, weights)

    network.section("Stem.")
    x = layers.conv_norm_relu("stem.0", "backbone.stem", 0, voxels, 3, len(features))
    x = layers.conv_norm_relu("stem.1", "backbone.stem", 3, x, 3, layers.channels[x])
    skips = [x]
    for stage in range(1, _NUM_STAGES + 1):
        network.section(f"Stage {stage}: stride {2**stage}.")
        source = f"backbone.encoders.{stage - 1}"
        x = layers.conv_norm_relu(f"stage{stage}.down", f"{source}.0", 0, x, 2, layers.channels[x])
        x = layers.residual(f"stage{stage}.0", f"{source}.1", x)
        x = layers.residual(f"stage{stage}.1", f"{source}.2", x)
        skips.append(x)
    for up in range(1, _NUM_STAGES + 1):
        stage = _NUM_STAGES + 1 - up
        network.section(f"Up {up}: back to stride {2 ** (stage - 1)}, joined by the skip connection.")
        source = f"backbone.decoders.{up - 1}"
        x = layers.conv_norm_relu(f"up{up}.up", f"{source}.upsample", 0, x, 2, layers.channels[x], f"stage{stage}.down")
        x = layers.concat(f"up{up}.concat", [x, skips[stage - 1]])
        x = layers.residual(f"up{up}.0", f"{source}.fuse.0", x)
        x = layers.residual(f"up{up}.1", f"{source}.fuse.1", x)

    network.section("Head.")
    classes = weights.size("classifier.weight", 0)
    weight = weights.take("classifier.weight", (classes, layers.channels[x]))
    network.linear("classifier", x, weight, weights.take("classifier.bias", (classes,)))
    network.argmax("argmax", "classifier")
    network.voxel_to_point("labels", "argmax", voxels)
    network.voxel_to_point("scores", "classifier", voxels)
    network.output("LABELS", "labels")
    network.output("SCORES", "scores")
    weights.raise_problems()
    return network


class _Weights:
    """Hands out the tensors of a state dict and remembers what was wrong with them.

    A size of 0 is one that could not be read, because its tensor is missing: it is not held against other tensors.
    """

    def __init__(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self._state = state
        self._taken: set[str] = set()
        self._problems: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._state

    def size(self, name: str, axis: int) -> int:
        shape = self._state[name].shape if name in self._state else ()
        return shape[axis] if -len(shape) <= axis < len(shape) else 0

    def take(self, name: str, shape: Sequence[int]) -> npt.NDArray[Any]:
        """The tensor, or zeros of that shape where it has a problem."""
        self._taken.add(name)
        expected = "[" + ", ".join(str(n) if n else "?" for n in shape) + "]"
        if name not in self._state:
            self._problems.append(f"tensor '{name}' {expected} is missing")
            return np.zeros(tuple(shape), np.float32)
        tensor = self._state[name]
        fits = tensor.ndim == len(shape) and all(n in (0, m) for n, m in zip(shape, tensor.shape, strict=True))
        if not fits:
            self._problems.append(f"tensor '{name}' is {list(tensor.shape)}, not {expected}")
        elif tensor.dtype not in _STORED_DTYPES:
            self._problems.append(f"tensor '{name}' is {tensor.dtype}, not float16, bfloat16 or float32")
        elif not np.isfinite(tensor).all():
            self._problems.append(f"tensor '{name}' has {int((~np.isfinite(tensor)).sum())} values that are not finite")
        elif name.endswith(".running_var") and (tensor < 0).any():
            self._problems.append(f"tensor '{name}' has {int((tensor < 0).sum())} negative variances")
        else:
            return tensor
        return np.zeros(tuple(shape), np.float32)

    def raise_problems(self) -> None:
        unknown = [n for n in self._state if n not in self._taken and not n.endswith(".num_batches_tracked")]
        problems = self._problems + [
            f"tensor '{n}' {list(self._state[n].shape)} is not part of SparseResUNet42 + classifier" for n in unknown
        ]
        if problems:
            raise ExportError(problems)


class _Layers:
    """The network's building blocks. `channels` knows how wide each node's output is."""

    def __init__(self, network: Network, weights: _Weights) -> None:
        self._network = network
        self._weights = weights
        self.channels: dict[str, int] = {}

    def conv_norm_relu(
        self, name: str, source: str, index: int, x: str, kernel: int, in_channels: int, paired_with: str = ""
    ) -> str:
        """Convolution, batch norm and ReLU: entries index, index + 1 and index + 2 of a torch Sequential."""
        self._conv(name, f"{source}.{index}", x, kernel, in_channels, paired_with)
        x = self._norm(f"{name}.norm", f"{source}.{index + 1}", name)
        return self._relu(f"{name}.relu", x)

    def residual(self, name: str, source: str, x: str) -> str:
        """Two 3x3x3 convolutions beside a shortcut, which is a linear layer where the channels change."""
        y = self.conv_norm_relu(f"{name}.conv1", f"{source}.main", 0, x, 3, self.channels[x])
        self._conv(f"{name}.conv2", f"{source}.main.3", y, 3, self.channels[y])
        y = self._norm(f"{name}.conv2.norm", f"{source}.main.4", f"{name}.conv2")
        shortcut = f"{source}.shortcut.0.kernel"
        changes = 0 not in (self.channels[x], self.channels[y]) and self.channels[x] != self.channels[y]
        if shortcut in self._weights or changes:
            weight = self._weights.take(shortcut, (self.channels[x], self.channels[y]))
            x = self._network.linear(f"{name}.shortcut", x, np.ascontiguousarray(weight.T))
            self.channels[x] = self.channels[y]
            x = self._norm(f"{name}.shortcut.norm", f"{source}.shortcut.1", x)
        total = self._network.add(f"{name}.add", [y, x])
        self.channels[total] = self.channels[y]
        return self._relu(f"{name}.relu", total)

    def concat(self, name: str, sources: Sequence[str]) -> str:
        widths = [self.channels[s] for s in sources]
        self.channels[name] = 0 if 0 in widths else sum(widths)
        return self._network.concat(name, sources)

    def _conv(self, name: str, source: str, x: str, kernel: int, in_channels: int, paired_with: str = "") -> None:
        sizes = (kernel,) * 3
        key = f"{source}.kernel"
        out_channels = self._weights.size(key, 2)
        weight = kernel_order.from_torchsparse(self._weights.take(key, (kernel**3, in_channels, out_channels)), sizes)
        if paired_with:
            self._network.inverse(name, x, weight, paired_with)
        elif kernel % 2 == 0:
            self._network.strided_floor(name, x, weight, sizes, sizes)
        else:
            self._network.submanifold(name, x, weight, sizes)
        self.channels[name] = out_channels

    def _norm(self, name: str, source: str, x: str) -> str:
        width = (self.channels[x],)
        tensors = {key: self._weights.take(f"{source}.{key}", width) for key in _BATCH_NORM_TENSORS}
        self.channels[name] = self.channels[x]
        return self._network.batch_norm(name, x, tensors, _BATCH_NORM_EPSILON)

    def _relu(self, name: str, x: str) -> str:
        self.channels[name] = self.channels[x]
        return self._network.relu(name, x)
