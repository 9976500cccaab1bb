"""Computes sparse convolutions of every kind with PyTorch's dense ones. The results are masked to the sites that the
kind's rule makes active.

Writes the cases that tests/engine/executor/dense_convolutions_test.cc reads:

    pip install torch==2.13.0 numpy
    python3 tests/oracles/dense_convolutions.py tests/golden/dense_convolutions.npz

A case is a network of two convolutions: one of the kind under test, and one back to the voxels. (An inverse convolution
needs the convolution that it inverts, so there it is the second.) Its samples fill 10 to 40% of an anisotropic grid.
conv1d to conv3d and conv_transpose1d to 3d compute the features of the whole grid. The same convolution of the
occupancy, with weights of one, says which sites are active. All numbers are multiples of 1/8, so the sums are exact and
a second run writes the same file.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

CONV = [F.conv1d, F.conv2d, F.conv3d]
CONV_TRANSPOSE = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d]
AXES = ("x", "y", "z")
KINDS = ("ODD", "EVEN", "FLOOR", "PADDED", "EXPAND", "INVERSE", "TRANSPOSED", "GENERATIVE")
CASES_BY_DIMENSION = (4, 5, 7)  # The number of cases of each kind, for 1, 2 and 3 axes.


class Grid:
    """Features [1, C, ...] of the cells lowest <= cell < lowest + size, and a mask of those that are active."""

    def __init__(self, features, active, lowest):
        self.features, self.active, self.lowest = features * active, active, list(lowest)

    def size(self):
        return list(self.active.shape[2:])


def window(tensor, lowest, wanted, size):
    """Returns the cells wanted <= cell < wanted + size of a tensor whose first cell is `lowest`. Cells that it does not
    have are 0.
    """
    out = torch.zeros(*tensor.shape[:2], *size, dtype=tensor.dtype)
    to, of = [], []
    for low, have, want, length in zip(lowest, tensor.shape[2:], wanted, size):
        begin, end = max(low, want), max(low, want, min(low + have, want + length))
        to.append(slice(begin - want, end - want))
        of.append(slice(begin - low, end - low))
    out[(..., *to)] = tensor[(..., *of)]
    return out


class Convolution:
    """The parameters of a convolution, its weights [K, in / groups, out] and its bias [out]."""

    def __init__(self, draw, kernel_size, stride, dilation, padding, in_channels, out_channels, groups, bias):
        self.kernel_size, self.stride, self.dilation, self.padding = kernel_size, stride, dilation, padding
        self.groups = groups
        self.weight = draw.eighths(int(np.prod(kernel_size)), in_channels // groups, out_channels)
        self.bias = draw.eighths(out_channels) if bias else None

    def text(self, kind, parameters=""):
        bias = " bias: true" if self.bias is not None else ""
        return (
            f"sparse_conv {{ kind: KIND_{kind} kernel_size: {self.kernel_size} stride: {self.stride}"
            f" dilation: {self.dilation} groups: {self.groups} out_channels: {self.weight.shape[2]}{bias} {parameters} }}"
        )

    def forward(self, grid, lowest, size):
        """Returns out[o] = sum_k in[s o + delta_k] W_k for the cells lowest <= o < lowest + size, and a mask of the
        cells that an active input reaches.
        """
        groups, (cells, in_group, out) = self.groups, self.weight.shape
        weight = self.weight.permute(2, 1, 0).reshape(out, in_group, *self.kernel_size)
        begin = [s * low - p for s, low, p in zip(self.stride, lowest, self.padding)]
        reach = [
            s * (n - 1) + d * (k - 1) + 1 for s, n, d, k in zip(self.stride, size, self.dilation, self.kernel_size)
        ]
        convolve = CONV[len(size) - 1]
        how = dict(stride=self.stride, dilation=self.dilation)
        features = convolve(window(grid.features, grid.lowest, begin, reach), weight, groups=groups, **how)
        ones = torch.ones(1, 1, *self.kernel_size, dtype=torch.float64)
        reached = convolve(window(grid.active, grid.lowest, begin, reach), ones, **how) > 0
        return self.biased(features), reached.double()

    def backward(self, grid, lowest, size):
        """Returns out[f] = the sum over all c and k with f = s c + delta_k of in[c] W_k, for the cells lowest <= f <
        lowest + size, and a mask of the cells that an active input reaches.
        """
        groups, (cells, in_group, out) = self.groups, self.weight.shape
        out_group = out // groups
        weight = self.weight.reshape(cells, in_group, groups, out_group).permute(2, 1, 3, 0)
        weight = weight.reshape(groups * in_group, out_group, *self.kernel_size)
        convolve = CONV_TRANSPOSE[len(size) - 1]
        how = dict(stride=self.stride, dilation=self.dilation)
        begin = [s * low - p for s, low, p in zip(self.stride, grid.lowest, self.padding)]
        features = convolve(grid.features, weight, groups=groups, **how)
        ones = torch.ones(1, 1, *self.kernel_size, dtype=torch.float64)
        reached = (convolve(grid.active, ones, **how) > 0).double()
        return self.biased(window(features, begin, lowest, size)), window(reached, begin, lowest, size)

    def biased(self, features):
        if self.bias is None:
            return features
        return features + self.bias.reshape(1, -1, *[1] * (features.dim() - 2))


class Draw:
    def __init__(self, rng, dimension):
        self.rng, self.dimension = rng, dimension

    def axes(self, low, high):
        return [int(v) for v in self.rng.integers(low, high + 1, size=self.dimension)]

    def one_of(self, values):
        return values[int(self.rng.integers(len(values)))]

    def eighths(self, *shape):
        return torch.from_numpy(self.rng.integers(-8, 9, size=shape) / 8.0)


def centred(kernel_size, dilation):
    """Returns the padding of submanifold convolutions: a kernel of odd size is centred on its site, one of even size
    begins at it.
    """
    return [d * (k // 2) if k % 2 else 0 for k, d in zip(kernel_size, dilation)]


def voxels(draw, shape, channels):
    """Returns a grid of which a random 10 to 40% are active, but at least one cell."""
    fill = draw.rng.uniform(0.1, 0.4)
    active = draw.rng.random(shape) < fill
    active[tuple(draw.rng.integers(n) for n in shape)] = True
    features = draw.eighths(1, channels, *shape)
    return Grid(features, torch.from_numpy(active)[None, None].double(), [0] * draw.dimension)


def at_sites(tensor, lowest, sites):
    """Returns the rows [V, C] of `tensor` at `sites`. Its first cell is `lowest`."""
    at = tuple(torch.from_numpy(sites[:, axis].astype(np.int64)) - low for axis, low in enumerate(lowest))
    return tensor[0].movedim(0, -1)[at]


class Case:
    """A network and its samples: for each, the voxels and the network's output there."""

    def __init__(self, draw, kind, number):
        self.draw, self.kind = draw, kind
        dimension = draw.dimension
        self.nodes, self.tensors = [], {}
        shape = draw.axes(*((20, 40), (6, 12), (4, 7))[dimension - 1])
        groups = draw.one_of([1, 1, 2])
        in_channels, middle_channels, out_channels = groups * draw.one_of([1, 2]), groups * draw.one_of([1, 2, 3]), 3
        samples = [voxels(draw, shape, in_channels) for _ in range(draw.one_of([1, 2]))]
        kernel_size, dilation = draw.axes(1, 5 if dimension == 1 else 3), draw.axes(1, 2)
        stride = draw.axes(1, 3)
        if kind == "ODD":
            kernel_size = [k if k % 2 else k + 1 for k in kernel_size]
        if kind == "EVEN":
            kernel_size = [draw.one_of([2, 4]) if dimension == 1 else 2 for _ in kernel_size]
        if kind in ("ODD", "EVEN"):
            stride = [1] * dimension
        rule = draw.one_of(["FLOOR", "PADDED", "EXPAND"]) if kind == "INVERSE" else kind
        padding = centred(kernel_size, dilation)
        if rule in ("PADDED", "TRANSPOSED"):
            padding = [min(p, d * (k - 1)) for p, d, k in zip(draw.axes(0, 2), dilation, kernel_size)]
        if rule == "PADDED":  # Padding makes the grid at least as large as the kernel.
            least = [-(-(d * (k - 1) + 1 - n) // 2) for d, k, n in zip(dilation, kernel_size, shape)]
            padding = [max(p, low) for p, low in zip(padding, least)]
        more = [
            int(draw.rng.integers(0, max(s, d))) for s, d in zip(stride, dilation)
        ]  # torch accepts an output padding below the stride or the dilation.
        # With EXPAND and a stride of 1 or the kernel's size, TorchSparse has the same sites as with FLOOR, and bounds
        # are refused.
        is_quotient = rule == "FLOOR" or (rule == "EXPAND" and all(s in (1, k) for s, k in zip(stride, kernel_size)))
        has_bounds = rule == "EXPAND" and not is_quotient and draw.one_of([True, False])
        bounds = (draw.axes(-2, 2), draw.axes(3, 8)) if has_bounds else None
        bias = draw.one_of([True, False])
        conv = Convolution(draw, kernel_size, stride, dilation, padding, in_channels, middle_channels, groups, bias)
        makes_finer = kind in ("TRANSPOSED", "GENERATIVE")

        def middle_of(grid):
            window_of = [(0, n) for n in shape]
            if is_quotient:
                window_of = [(0, -(-n // s)) for n, s in zip(shape, stride)]
            elif rule == "PADDED":
                window_of = [
                    (0, (n + 2 * p - d * (k - 1) - 1) // s + 1)
                    for n, p, d, k, s in zip(shape, padding, dilation, kernel_size, stride)
                ]
            elif rule == "EXPAND":
                window_of = [
                    (-((d * (k - 1)) // s) - 3, (n - 1 + p) // s + 1 + (d * (k - 1)) // s + 3)
                    for n, p, d, k, s in zip(shape, padding, dilation, kernel_size, stride)
                ]
            elif rule == "TRANSPOSED":
                window_of = [
                    (0, (n - 1) * s - 2 * p + d * (k - 1) + 1 + m)
                    for n, p, d, k, s, m in zip(shape, padding, dilation, kernel_size, stride, more)
                ]
            elif rule == "GENERATIVE":
                window_of = [
                    (-p, (n - 1) * s + d * (k - 1) + 1)
                    for n, p, d, k, s in zip(shape, padding, dilation, kernel_size, stride)
                ]
            lowest, size = [low for low, _ in window_of], [n for _, n in window_of]
            features, active = (conv.backward if makes_finer else conv.forward)(grid, lowest, size)
            if kind in ("ODD", "EVEN"):
                active = grid.active
            elif is_quotient:
                whole = window(grid.active, [0] * dimension, [0] * dimension, [n * s for n, s in zip(size, stride)])
                ones = torch.ones(1, 1, *stride, dtype=torch.float64)
                active = (CONV[dimension - 1](whole, ones, stride=stride) > 0).double()
            elif rule == "EXPAND":
                sites = grid.active[0, 0].nonzero()
                for axis in range(dimension):
                    fine = stride[axis] * (torch.arange(size[axis]) + lowest[axis])
                    lower, upper = (bounds[0][axis], bounds[1][axis]) if bounds else (sites[:, axis].min(), fine.max())
                    within = (fine >= lower) & (fine <= upper)
                    active = active * within.reshape([-1 if a == axis else 1 for a in range(-2, dimension)])
            return Grid(features, active, lowest)

        parameters = ""
        if rule in ("FLOOR", "PADDED", "EXPAND"):
            parameters = f"rule: RULE_{rule}"
        if rule in ("PADDED", "TRANSPOSED"):
            parameters += f" padding: {padding}"
        if rule == "TRANSPOSED":
            parameters += f" output_padding: {more}"
        if bounds:
            parameters += f" lower_bound: {bounds[0]} upper_bound: {bounds[1]}"
        self.add(
            "voxels",
            conv,
            {"ODD": "SUBMANIFOLD", "EVEN": "SUBMANIFOLD"}.get(rule, "STRIDED") if not makes_finer else rule,
            parameters,
        )

        if kind == "INVERSE":
            back_groups = draw.one_of([1, middle_channels])
            back = Convolution(
                draw, kernel_size, stride, dilation, padding, middle_channels, 2 * back_groups, back_groups, bias=True
            )
            self.nodes.append(
                f'nodes {{ name: "conv1" inputs: "conv0" sparse_conv {{ kind: KIND_INVERSE paired_with: "conv0"'
                f" groups: {back_groups} out_channels: {2 * back_groups} bias: true }} }}"
            )
            self.keep("conv1", back)
        else:
            # The kernel covers at least one stride on each axis, so that every site contributes to a voxel.
            stays = kind in ("ODD", "EVEN")
            covers = [s + int(draw.rng.integers(0, 3)) for s in stride]
            shift = [int(draw.rng.integers(0, k)) for k in covers]
            back = Convolution(
                draw, covers, stride, [1] * dimension, shift, middle_channels, out_channels, 1, bias=False
            )
            self.add(
                "conv0",
                back,
                "STRIDED" if makes_finer or stays else "TRANSPOSED",
                f'sites_of: "voxels" padding: {shift}',
            )
        self.samples = []
        for grid in samples:
            middle = middle_of(grid)
            compute = back.forward if makes_finer or kind in ("ODD", "EVEN") else back.backward
            result, _ = compute(middle, [0] * dimension, shape)
            sites = grid.active[0, 0].nonzero().numpy().astype(np.int8)
            self.samples.append(
                (sites, at_sites(grid.features, grid.lowest, sites), at_sites(result, [0] * dimension, sites))
            )
        axes = AXES[:dimension]
        features = " ".join(f'features {{ name: "f{c}" }}' for c in range(in_channels))
        names = ", ".join(f'"{axis}"' for axis in axes)
        self.text = (
            f"# {kind.lower()}\ndimension: {dimension}\n"
            f'nodes {{ name: "voxels" voxelize {{ voxel_size: {[1] * dimension} rounding: ROUNDING_FLOOR'
            f" origin: ORIGIN_RANGE range_min: {[0] * dimension} range_max: {shape} reduce: REDUCE_FIRST"
            f" axes: [{names}] {features} }} }}\n" + "\n".join(self.nodes) + "\n"
            'nodes { name: "best" inputs: "conv1" argmax {} }\n'
            'nodes { name: "labels" inputs: ["best", "voxels"] voxel_to_point {} }\n'
            'nodes { name: "scores" inputs: ["conv1", "voxels"] voxel_to_point {} }\n'
            'outputs { kind: KIND_LABELS node: "labels" } outputs { kind: KIND_SCORES node: "scores" }\n'
        )

    def add(self, source, conv, kind, parameters):
        name = f"conv{len(self.nodes)}"
        self.nodes.append(f'nodes {{ name: "{name}" inputs: "{source}" {conv.text(kind, parameters)} }}')
        self.keep(name, conv)

    def keep(self, name, conv):
        self.tensors[f"{name}.weight"] = conv.weight
        if conv.bias is not None:
            self.tensors[f"{name}.bias"] = conv.bias

    def arrays(self, name):
        arrays = {f"{name}/model": np.frombuffer(self.text.encode(), np.uint8)}
        for tensor, values in self.tensors.items():
            arrays[f"{name}/{tensor}"] = values.numpy().astype(np.float32)
        for number, (sites, x, y) in enumerate(self.samples):
            arrays[f"{name}/sites{number}"] = sites
            arrays[f"{name}/x{number}"] = x.numpy().astype(np.float32)
            arrays[f"{name}/y{number}"] = y.numpy().astype(np.float32)
        return {key: np.ascontiguousarray(values) for key, values in arrays.items()}


def main():
    rng = np.random.default_rng(20261122)
    arrays = {}
    number = 0
    for kind in KINDS:
        for dimension, count in enumerate(CASES_BY_DIMENSION, start=1):
            for _ in range(count):
                arrays.update(Case(Draw(rng, dimension), kind, number).arrays(f"{number:03d}"))
                number += 1
    np.savez_compressed(Path(sys.argv[1]), **arrays)


if __name__ == "__main__":
    main()
