"""Computes random convolutions with spconv: the output sites and features, over a wide range of parameters.

Writes the cases that tests/engine/executor/spconv_convolutions_test.cc runs:

    pip install torch spconv
    OMP_NUM_THREADS=1 python3 tests/oracles/spconv_convolutions.py tests/golden/spconv_convolutions.npz

The version is spconv 2.3.8 on a CPU, with its native algorithm. Before a case is written, it is compared with PyTorch's
dense convolution of the same grid, masked to the sites that spconv made. The random numbers have a fixed seed, so a
second run writes the same numbers. With several threads, spconv's results are sometimes wrong.
"""

import sys
from pathlib import Path

import numpy as np
import spconv.pytorch as spconv
import torch
import torch.nn.functional as F

SUBMANIFOLD, STRIDED, INVERSE, TRANSPOSED, DILATED_TRANSPOSED, INVERSE_OF_POOL = 0, 1, 2, 3, 4, 5
MAX_DIMENSION = 4
CLASSES = {
    SUBMANIFOLD: [spconv.SubMConv1d, spconv.SubMConv2d, spconv.SubMConv3d, spconv.SubMConv4d],
    STRIDED: [spconv.SparseConv1d, spconv.SparseConv2d, spconv.SparseConv3d, spconv.SparseConv4d],
    INVERSE: [spconv.SparseInverseConv1d, spconv.SparseInverseConv2d, spconv.SparseInverseConv3d],
    TRANSPOSED: [spconv.SparseConvTranspose1d, spconv.SparseConvTranspose2d, spconv.SparseConvTranspose3d],
}
POOLS = [spconv.SparseMaxPool1d, spconv.SparseMaxPool2d, spconv.SparseMaxPool3d]


def random_sites(rng, dimension, num_samples, shape):
    """Returns sites [N, 1 + D] in random order. Each sample fills 10 to 40% of an anisotropic grid."""
    sites = []
    for sample in range(num_samples):
        box = np.stack(np.meshgrid(*(np.arange(n) for n in shape), indexing="ij"), -1).reshape(-1, dimension)
        keep = rng.random(len(box)) < rng.uniform(0.1, 0.4)
        keep[rng.integers(len(box))] = True
        sites.append(np.concatenate([np.full((keep.sum(), 1), sample), box[keep]], axis=1))
    sites = np.concatenate(sites)
    return sites[rng.permutation(len(sites))].astype(np.int32)


def to_cells(weight):
    """Converts spconv 2's weight [out, k..., in] to [K, in, out], where K counts cells with the last axis fastest."""
    out_channels, in_channels = weight.shape[0], weight.shape[-1]
    return weight.reshape(out_channels, -1, in_channels).transpose(1, 2, 0)


def check_dense(case, tensor, weight, result):
    """Checks that spconv's result equals PyTorch's dense convolution at every site that spconv made."""
    dimension = len(case["kernel_size"])
    if dimension > 3 or case["kind"] in (INVERSE, INVERSE_OF_POOL):
        return
    dense = tensor.dense()
    kernel = weight.movedim(-1, 1)  # [out, in, k...]
    if case["kind"] in (TRANSPOSED, DILATED_TRANSPOSED):
        convolve = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d][dimension - 1]
        expected = convolve(
            dense,
            kernel.transpose(0, 1),
            stride=case["stride"],
            padding=case["padding"],
            dilation=case["dilation"],
        )
    else:
        convolve = [F.conv1d, F.conv2d, F.conv3d][dimension - 1]
        padding = case["padding"]
        if case["kind"] == SUBMANIFOLD:
            padding = [r * (k // 2) for k, r in zip(case["kernel_size"], case["dilation"])]
        expected = convolve(dense, kernel, stride=case["stride"], padding=padding, dilation=case["dilation"])
    at = result.indices.long()
    rows = expected.movedim(1, -1)[tuple(at[:, axis] for axis in range(1 + dimension))]
    error = (rows - result.features).abs().max().item()
    described = {name: case[name] for name in ("kind", "kernel_size", "stride", "dilation", "padding", "shape")}
    assert error < 1e-4, (described, error)


def make_case(rng, kind, dimension):
    num_samples = int(rng.choice([1, 1, 2]))
    largest = {1: 40, 2: 12, 3: 8, 4: 5}[dimension]
    shape = [int(n) for n in rng.integers(largest // 2, largest + 1, size=dimension)]
    kernel_size = [int(k) for k in rng.integers(1, 6 if dimension < 3 else 4, size=dimension)]
    dilation = [int(d) for d in rng.integers(1, 3, size=dimension)]
    stride = [int(s) for s in rng.integers(1, 4, size=dimension)]
    padding = [int(p) for p in rng.integers(0, 3, size=dimension)]
    if kind == SUBMANIFOLD:
        kernel_size = [k if k % 2 else k + 1 for k in kernel_size]
        stride, padding = [1] * dimension, [0] * dimension
    if max(kernel_size) == 1:
        # spconv reads the weight of a kernel with one cell as [in, out], whatever its shape says, so the kernel gets
        # more cells.
        kernel_size[0] = 3
    if kind in (TRANSPOSED, DILATED_TRANSPOSED):
        if kind == TRANSPOSED:
            # spconv computes the output shape without the dilation, so these cases have none.
            dilation = [1] * dimension
        elif max(dilation) == 1:
            dilation[0] = 2
        padding = [min(p, k - 1) for p, k in zip(padding, kernel_size)]
    if kind in (STRIDED, INVERSE, INVERSE_OF_POOL):
        # spconv's native algorithm refuses a stride and a dilation at once. The loop below pads until the kernel fits.
        if rng.random() < 0.5:
            dilation = [1] * dimension
        else:
            stride = [1] * dimension
        for axis in range(dimension):
            while shape[axis] + 2 * padding[axis] < dilation[axis] * (kernel_size[axis] - 1) + 1:
                padding[axis] += 1
    in_channels, out_channels = (int(c) for c in rng.integers(1, 7, size=2))
    case = dict(kind=kind, kernel_size=kernel_size, stride=stride, dilation=dilation, padding=padding, shape=shape)
    case["in"] = random_sites(rng, dimension, num_samples, shape)
    case["x"] = rng.uniform(-1, 1, size=(len(case["in"]), in_channels)).astype(np.float32)
    case["num_samples"] = num_samples

    tensor = spconv.SparseConvTensor(torch.from_numpy(case["x"]), torch.from_numpy(case["in"]), shape, num_samples)
    with torch.no_grad():
        if kind == INVERSE_OF_POOL:
            pool = POOLS[dimension - 1](kernel_size, stride, padding, dilation, indice_key="map")
            result, middle_channels = pool(tensor), in_channels
        else:
            layer = CLASSES[{INVERSE: STRIDED, DILATED_TRANSPOSED: TRANSPOSED}.get(kind, kind)][dimension - 1](
                in_channels,
                out_channels,
                kernel_size,
                stride=stride,
                padding=padding,
                dilation=dilation,
                bias=False,
                indice_key="map",
            )
            weight = torch.from_numpy(rng.uniform(-1, 1, size=tuple(layer.weight.shape)).astype(np.float32))
            layer.weight.copy_(weight)
            result, middle_channels = layer(tensor), out_channels
            check_dense(case, tensor, weight, result)
            case["w"] = to_cells(weight.numpy())
        if kind in (INVERSE, INVERSE_OF_POOL):
            back = CLASSES[INVERSE][dimension - 1](middle_channels, in_channels, kernel_size, "map", bias=False)
            weight = torch.from_numpy(rng.uniform(-1, 1, size=tuple(back.weight.shape)).astype(np.float32))
            back.weight.copy_(weight)
            case["w2"] = to_cells(weight.numpy())
            case["mid"] = result.indices.numpy()
            result = back(result)
    case["out_shape"] = list(result.spatial_shape)
    case["out"], case["y"] = result.indices.numpy(), result.features.numpy()
    return case


def padded_to(values, fill):
    return list(values) + [fill] * (MAX_DIMENSION - len(values))


def main():
    rng = np.random.default_rng(20261121)
    arrays = {}
    number = 0
    for kind, counts in (
        (SUBMANIFOLD, (4, 8, 20, 4)),
        (STRIDED, (8, 16, 40, 6)),
        (INVERSE, (4, 8, 20, 0)),
        (TRANSPOSED, (8, 16, 40, 0)),
        (DILATED_TRANSPOSED, (4, 8, 12, 0)),
        (INVERSE_OF_POOL, (4, 8, 12, 0)),
    ):
        for dimension, count in enumerate(counts, start=1):
            for _ in range(count):
                case = make_case(rng, kind, dimension)
                name = f"s{number:03d}"
                number += 1
                arrays[f"{name}_params"] = np.array(
                    [dimension, kind, case["num_samples"]]
                    + padded_to(case["kernel_size"], 1)
                    + padded_to(case["stride"], 1)
                    + padded_to(case["dilation"], 1)
                    + padded_to(case["padding"], 0)
                    + padded_to(case["shape"], 1)
                    + padded_to(case["out_shape"], 1),
                    dtype=np.int32,
                )
                for part in ("in", "out", "mid"):
                    if part in case:
                        arrays[f"{name}_{part}"] = case[part].astype(np.int16)
                for part in ("x", "y", "w", "w2"):
                    if part in case:
                        arrays[f"{name}_{part}"] = np.ascontiguousarray(case[part], dtype=np.float32)
    np.savez_compressed(Path(sys.argv[1]), **arrays)


if __name__ == "__main__":
    main()
