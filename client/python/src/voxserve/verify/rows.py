"""Computes operators of rows and images by their definitions, with NumPy alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]


def grouped_product(rows: Values, weight: Values, groups: int) -> Values:
    """Returns the product of rows [N, Cin] and weight [Cin / groups, Cout]."""
    if groups == 1:
        product: Values = rows @ weight
        return product
    inputs, outputs = np.split(rows, groups, axis=1), np.split(weight, groups, axis=1)
    return np.concatenate([a @ b for a, b in zip(inputs, outputs, strict=True)], axis=1)


def reduced(rows: Values, targets: Values, num_targets: int, reduce: str) -> Values:
    """Reduces the rows of each target by MAX, AVERAGE or SUM; 0 for a target without rows."""
    counts = np.bincount(targets, minlength=num_targets)[:, None]
    if reduce == "MAX":
        result = np.full((num_targets, rows.shape[1]), -np.inf)
        np.maximum.at(result, targets, rows)
        return np.where(counts > 0, result, 0)
    result = np.zeros((num_targets, rows.shape[1]))
    np.add.at(result, targets, rows)
    return result / np.maximum(counts, 1) if reduce == "AVERAGE" else result


def sample_normalized(rows: Values, samples: Values, num_groups: int, epsilon: float) -> Values:
    """Normalizes each sample's groups of neighbouring channels to mean 0 and variance 1."""
    result = np.zeros_like(rows)
    for sample in np.unique(samples):
        at = samples == sample
        part = rows[at].reshape(at.sum(), num_groups, -1)
        mean = part.mean(axis=(0, 2), keepdims=True)
        variance = ((part - mean) ** 2).mean(axis=(0, 2), keepdims=True)
        result[at] = ((part - mean) / np.sqrt(variance + epsilon)).reshape(at.sum(), -1)
    return result


def activated(x: Values, function: str, slope: float) -> Values:
    """function: a name of Activation.Function."""
    if function == "FUNCTION_RELU":
        return np.maximum(x, 0)
    if function == "FUNCTION_LEAKY_RELU":
        leaky: Values = np.where(x < 0, slope * x, x)
        return leaky
    if function == "FUNCTION_TANH":
        return np.tanh(x)
    if function == "FUNCTION_GELU":
        erf = np.vectorize(math.erf, otypes=[np.float64])
        gelu: Values = x * (1 + erf(x / math.sqrt(2))) / 2
        return gelu
    sigmoid: Values = (1 + np.tanh(x / 2)) / 2
    return x * sigmoid if function == "FUNCTION_SILU" else sigmoid


def conv2d(
    x: Values,
    weight: Values,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> Values:
    """x [B, Cin, H, W], weight [Cout, Cin / groups, kh, kw]."""
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    kernel = weight.shape[2:]
    height, width = (
        (n - d * (k - 1) - 1) // s + 1 for n, d, k, s in zip(x.shape[2:], dilation, kernel, stride, strict=True)
    )
    y = np.zeros((len(x), len(weight), height, width))
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            top, left = row * dilation[0], column * dilation[1]
            part = x[:, :, top : top + stride[0] * height : stride[0], left : left + stride[1] * width : stride[1]]
            inputs = np.split(part[:, :, :height, :width], groups, axis=1)
            weights = np.split(weight[:, :, row, column], groups)
            y += np.concatenate(
                [np.einsum("bihw,oi->bohw", a, w) for a, w in zip(inputs, weights, strict=True)], axis=1
            )
    return y


def max_pool2d(x: Values, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> Values:
    """x: [B, C, H, W]. Cells outside the image do not count."""
    height, width = ((n + 2 * p - k) // s + 1 for n, p, k, s in zip(x.shape[2:], padding, kernel, stride, strict=True))
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2), constant_values=-np.inf)
    y = np.full((*x.shape[:2], height, width), -np.inf)
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            part = x[:, :, row : row + stride[0] * height : stride[0], column : column + stride[1] * width : stride[1]]
            y = np.maximum(y, part[:, :, :height, :width])
    return y


def conv_transpose2d(
    x: Values, weight: Values, stride: tuple[int, int], padding: tuple[int, int], output_padding: tuple[int, int]
) -> Values:
    """x [B, Cin, H, W], weight [Cin, Cout, kh, kw]."""
    kernel = weight.shape[2:]
    full = [(n - 1) * s + k for n, s, k in zip(x.shape[2:], stride, kernel, strict=True)]
    sizes = [n - 2 * p + e for n, p, e in zip(full, padding, output_padding, strict=True)]
    y = np.zeros((len(x), weight.shape[1], full[0] + output_padding[0], full[1] + output_padding[1]))
    for row in range(kernel[0]):
        for column in range(kernel[1]):
            rows = slice(row, row + stride[0] * x.shape[2], stride[0])
            columns = slice(column, column + stride[1] * x.shape[3], stride[1])
            y[:, :, rows, columns] += np.einsum("bihw,io->bohw", x, weight[:, :, row, column])
    return y[:, :, padding[0] : padding[0] + sizes[0], padding[1] : padding[1] + sizes[1]]
