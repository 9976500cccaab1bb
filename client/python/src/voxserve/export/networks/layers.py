"""Defines the layers that the networks share. They read tensors with a library's names and orders, and add nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from voxserve.export import kernel_order, spconv_order
from voxserve.export.model_folder import Network
from voxserve.export.networks.tensors import Tensor, Tensors

_BATCH_NORM_TENSORS = ("weight", "bias", "running_mean", "running_var")
_RESIDUAL_GAIN = 0.5  # for random residual branches, so that the sum of many branches does not exceed float16
# For a random network's first convolution, whose inputs are metres.
INPUT_GAIN = 0.05


@dataclass(frozen=True)
class ResidualKeys:
    """The names of a residual block's tensors in a state dict."""

    convs: tuple[str, ...]
    norms: tuple[str, ...]
    shortcut: tuple[str, str] | None = None  # the shortcut's convolution of one cell and its norm, if there may be one


# Adds a convolution of a residual block: takes the node's name, the tensors' name and the input node, returns the node.
Convolve = Callable[[str, str, str], str]

# Reads a weight: takes the tensors, the weight's name, kernel size, in channels, out channels and the gain of random
# weights; returns the weight [K, in, out] in the model format's order.
WeightReader = Callable[[Tensors, str, Sequence[int], int, int, float], Tensor]


def usual_fan_in(volume: int, c_in: int) -> int:
    """Returns the fan-in for random weights of a sparse convolution: the usual number of values that it sums. In a scan
    about a third of a kernel's cells have a site.
    """
    return max(volume * c_in // 3, c_in)


def torchsparse_weight(tensors: Tensors, key: str, kernel: Sequence[int], c_in: int, c_out: int, gain: float) -> Tensor:
    return kernel_order.from_torchsparse(_kernel(tensors, key, kernel, c_in, c_out, gain), kernel)


def minkowski_weight(tensors: Tensors, key: str, kernel: Sequence[int], c_in: int, c_out: int, gain: float) -> Tensor:
    return kernel_order.from_minkowski(_kernel(tensors, key, kernel, c_in, c_out, gain), kernel)


def _kernel(tensors: Tensors, key: str, kernel: Sequence[int], c_in: int, c_out: int, gain: float) -> Tensor:
    """Reads a weight [K, in, out] of TorchSparse or MinkowskiEngine, which store a kernel of one cell as [in, out]."""
    volume = math.prod(kernel)
    shape = (c_in, c_out) if volume == 1 else (volume, c_in, c_out)
    weight = tensors.take(f"{key}.kernel", shape, fan_in=usual_fan_in(volume, c_in), gain=gain)
    return weight[np.newaxis] if volume == 1 else weight


def spconv_weight(tensors: Tensors, key: str, kernel: Sequence[int], c_in: int, c_out: int, gain: float) -> Tensor:
    """Reads a weight of spconv. kernel: the size on x, y, z (or x, y); the stored tensor has the axes z, y, x (or y,
    x).
    """
    return _spconv_weight(tensors, key, kernel, c_in, c_out, gain, tuple(reversed(range(len(kernel)))))


def spconv_xyz_weight(tensors: Tensors, key: str, kernel: Sequence[int], c_in: int, c_out: int, gain: float) -> Tensor:
    """Reads a weight of spconv in a network whose coordinates are x, y, z."""
    return _spconv_weight(tensors, key, kernel, c_in, c_out, gain, tuple(range(len(kernel))))


def _spconv_weight(
    tensors: Tensors, key: str, kernel: Sequence[int], c_in: int, c_out: int, gain: float, axes: Sequence[int]
) -> Tensor:
    stored = tuple(kernel[axis] for axis in axes)
    fan_in = usual_fan_in(math.prod(kernel), c_in)
    name = f"{key}.weight"
    krsc, *others = (spconv_order.shape_of(order, stored, c_in, c_out) for order in spconv_order.ORDERS)
    weight = tensors.take(name, krsc, or_shapes=others, fan_in=fan_in, gain=gain)
    if 0 in weight.shape:  # the number of channels is unknown, since a tensor is missing
        return np.zeros((math.prod(kernel), c_in, c_out), np.float32)
    if name in tensors:
        order = tensors.spconv.find(name, weight.shape, stored, c_in, c_out)
        weight = spconv_order.to_krsc(weight, order, by_memory=math.prod(kernel) == 1)
    return kernel_order.from_spconv(weight, kernel, weight.shape[0], axes=axes)


class Layers:
    """Adds layers to a network. The argument `key` is the name of a layer's tensors in the library's state dict.
    `channels` has the number of channels of each node; 0 if the tensor that determines it is missing.
    """

    def __init__(self, network: Network, tensors: Tensors, read_weight: WeightReader, epsilon: float) -> None:
        self.network = network
        self.tensors = tensors
        self.epsilon = epsilon  # the default of batch norms
        self.channels: dict[str, int] = {}
        self._read_weight = read_weight
        self._kernels: dict[str, Sequence[int]] = {}  # strided convolution -> kernel size, for its inverse

    def points(self, name: str, num_features: int) -> str:
        """Registers the voxelize node, which the caller has added. Returns its name."""
        self.channels[name] = num_features
        return name

    def submanifold(
        self,
        name: str,
        key: str,
        x: str,
        kernel: Sequence[int],
        out: int,
        *,
        bias: bool = False,
        gain: float = 1.0,
        fill_bias: float | None = None,
        is_flat: bool = False,
    ) -> str:
        """Adds a submanifold convolution. fill_bias: the value of a random bias. is_flat: as for strided()."""
        weight = self._read_weight(self.tensors, key, _of_axes(kernel, is_flat), self.channels[x], out, gain)
        self.network.submanifold(name, x, weight, kernel, self._bias(key, out, bias, fill_bias))
        return self._made(name, out)

    def strided(
        self,
        name: str,
        key: str,
        x: str,
        kernel: Sequence[int],
        stride: Sequence[int],
        out: int,
        *,
        rule: str = "FLOOR",
        padding: Sequence[int] = (),
        gain: float = 1.0,
        is_flat: bool = False,
    ) -> str:
        """Adds a strided convolution. rule: FLOOR, EXPAND or PADDED, of the output's sites; only PADDED has a padding.

        is_flat: the library's layer has no z axis; here its kernel has the size 1 on z.
        """
        weight = self._read_weight(self.tensors, key, _of_axes(kernel, is_flat), self.channels[x], out, gain)
        if rule == "PADDED":
            self.network.strided_padded(name, x, weight, kernel, stride, padding)
        elif rule == "EXPAND":
            self.network.strided_expand(name, x, weight, kernel, stride)
        else:
            self.network.strided_floor(name, x, weight, kernel, stride)
        self._kernels[name] = kernel
        return self._made(name, out)

    def inverse(self, name: str, key: str, x: str, out: int, paired_with: str) -> str:
        weight = self._read_weight(self.tensors, key, self._kernels[paired_with], self.channels[x], out, 1.0)
        self.network.inverse(name, x, weight, paired_with)
        return self._made(name, out)

    def norm(self, name: str, key: str, x: str, *, epsilon: float | None = None, gain: float = 1.0) -> str:
        tensors = {
            part: self.tensors.take(f"{key}.{part}", (self.channels[x],), gain=gain) for part in _BATCH_NORM_TENSORS
        }
        self.network.batch_norm(name, x, tensors, self.epsilon if epsilon is None else epsilon)
        return self._made(name, self.channels[x])

    def relu(self, name: str, x: str) -> str:
        return self._made(self.network.relu(name, x), self.channels[x])

    def norm_relu(self, x: str, key: str, *, epsilon: float | None = None) -> str:
        """Adds batch norm and ReLU to the layer x, with names derived from it."""
        return self.relu(f"{x}.relu", self.norm(f"{x}.norm", key, x, epsilon=epsilon))

    def residual_block(self, name: str, keys: ResidualKeys, x: str, convolves: Sequence[Convolve]) -> str:
        """Adds a residual block: the convolutions, and a shortcut, which is a convolution of one cell if the number of
        channels changes.
        """
        y, last = x, len(convolves)
        for index, (convolve, conv, norm) in enumerate(zip(convolves, keys.convs, keys.norms, strict=True), start=1):
            y = convolve(f"{name}.conv{index}", conv, y)
            y = self.norm_relu(y, norm) if index < last else self.norm(f"{y}.norm", norm, y, gain=_RESIDUAL_GAIN)
        if keys.shortcut is not None:
            key, norm = keys.shortcut
            c_in, out = self.channels[x], self.channels[y]
            is_stored = f"{key}.kernel" in self.tensors or f"{key}.weight" in self.tensors
            if is_stored or (0 not in (c_in, out) and c_in != out):
                x = self.pointwise(f"{name}.shortcut", key, x, out)
                x = self.norm(f"{name}.shortcut.norm", norm, x)
        return self.relu(f"{name}.relu", self.add(f"{name}.add", [y, x]))

    def linear(self, name: str, key: str, x: str, out: int, *, gain: float = 1.0, bias: bool = True) -> str:
        """Adds a torch Linear."""
        shape = (out, self.channels[x])
        weight = self.tensors.take(f"{key}.weight", shape, fan_in=self.channels[x], gain=gain)
        self.network.linear(name, x, weight, self._bias(key, out, bias))
        return self._made(name, out)

    def pointwise(self, name: str, key: str, x: str, out: int, *, bias: bool = False) -> str:
        """Adds a sparse convolution of one cell without a stride, which is a linear layer."""
        kernel = (1,) * self.network.dimension
        weight = self._read_weight(self.tensors, key, kernel, self.channels[x], out, 1.0)
        self.network.linear(name, x, np.ascontiguousarray(weight[0].T), self._bias(key, out, bias))
        return self._made(name, out)

    def add(self, name: str, sources: Sequence[str], *, union: bool = False) -> str:
        return self._made(self.network.add(name, sources, union), self.channels[sources[0]])

    def concat(self, name: str, sources: Sequence[str]) -> str:
        widths = [self.channels[s] for s in sources]
        return self._made(self.network.concat(name, sources), 0 if 0 in widths else sum(widths))

    def devoxelize(self, name: str, x: str, positions: str) -> str:
        return self._made(self.network.devoxelize(name, x, positions), self.channels[x])

    def conv2d(
        self,
        name: str,
        key: str,
        x: str,
        kernel: int,
        out: int,
        *,
        stride: int = 1,
        padding: int = 0,
        dilation: int = 1,
        bias: bool = False,
        gain: float = 1.0,
        fill_bias: float | None = None,
    ) -> str:
        """Adds a torch Conv2d. fill_bias: the value of a random network's bias."""
        shape = (out, self.channels[x], kernel, kernel)
        weight = self.tensors.take(f"{key}.weight", shape, fan_in=math.prod(shape[1:]), gain=gain)
        values = self._bias(key, out, bias, fill_bias)
        self.network.conv2d(name, x, weight, values, stride=stride, padding=padding, dilation=dilation)
        return self._made(name, out)

    def conv_transpose2d(self, name: str, key: str, x: str, kernel: int, out: int, *, stride: int) -> str:
        """Adds a torch ConvTranspose2d without a bias."""
        shape = (self.channels[x], out, kernel, kernel)
        fan_in = self.channels[x] * kernel * kernel // (stride * stride)
        weight = self.tensors.take(f"{key}.weight", shape, fan_in=fan_in)
        self.network.conv_transpose2d(name, x, weight, stride=stride)
        return self._made(name, out)

    def _bias(self, key: str, out: int, has_bias: bool, fill: float | None = None) -> Tensor | None:
        return self.tensors.take(f"{key}.bias", (out,), fill=fill) if has_bias else None

    def _made(self, name: str, channels: int) -> str:
        self.channels[name] = channels
        return name


def _of_axes(kernel: Sequence[int], is_flat: bool) -> Sequence[int]:
    return kernel[:2] if is_flat else kernel
