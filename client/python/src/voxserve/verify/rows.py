"""Computes operators on rows and on images by their definitions, with NumPy alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.activations import ACTIVATIONS

Values = npt.NDArray[Any]


def grouped_product(rows: Values, weight: Values, groups: int) -> Values:
    """Returns the product of rows [N, Cin] and weight [Cin / groups, Cout], group by group: [N, Cout]."""
    if groups == 1:
        product: Values = rows @ weight
        return product
    inputs, outputs = np.split(rows, groups, axis=1), np.split(weight, groups, axis=1)
    return np.concatenate([a @ b for a, b in zip(inputs, outputs, strict=True)], axis=1)


def reduced(rows: Values, targets: Values, num_targets: int, reduce: str) -> Values:
    """Returns the MAX, AVERAGE or SUM of the rows of each target: [num_targets, C]; 0 for a target without rows.
    targets: [N] the target of each row [N, C].
    """
    counts = np.bincount(targets, minlength=num_targets)[:, None]
    if reduce == "MAX":
        result = np.full((num_targets, rows.shape[1]), -np.inf)
        np.maximum.at(result, targets, rows)
        return np.where(counts > 0, result, 0)
    result = np.zeros((num_targets, rows.shape[1]))
    np.add.at(result, targets, rows)
    return result / np.maximum(counts, 1) if reduce == "AVERAGE" else result


def sample_normalized(rows: Values, samples: Values, num_groups: int, epsilon: float) -> Values:
    """Normalizes each group of neighbouring channels, over all rows of a sample, to mean 0 and variance 1. samples: [N]
    the sample of each row.
    """
    result = np.zeros_like(rows)
    for sample in np.unique(samples):
        at = samples == sample
        part = rows[at].reshape(at.sum(), num_groups, -1)
        mean = part.mean(axis=(0, 2), keepdims=True)
        variance = ((part - mean) ** 2).mean(axis=(0, 2), keepdims=True)
        result[at] = ((part - mean) / np.sqrt(variance + epsilon)).reshape(at.sum(), -1)
    return result


def attended(queries: Values, keys: Values, values: Values, num_heads: int, scale: float) -> Values:
    """Returns the attention of one sample: for each query the mean of the values, weighted by softmax(scale * query .
    key). Returns 0 if there are no keys.
    """
    if len(keys) == 0:
        return np.zeros((len(queries), values.shape[1]))
    results = []
    heads = (np.split(part, num_heads, axis=1) for part in (queries, keys, values))
    for q, k, v in zip(*heads, strict=True):
        scores = scale * (q @ k.T)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        results.append(weights / weights.sum(axis=1, keepdims=True) @ v)
    return np.concatenate(results, axis=1)


def generalised_means(rows: Values, targets: Values, num_targets: int, exponent: float, epsilon: float) -> Values:
    """Returns the generalised mean, mean(max(row, epsilon)^exponent)^(1 / exponent), of the rows of each target; 0 for
    a target without rows.
    """
    powers = np.maximum(rows, epsilon) ** exponent
    means: Values = reduced(powers, targets, num_targets, "AVERAGE") ** (1 / exponent)
    return means


def activated(x: Values, function: str, op: Any) -> Values:
    """Applies an activation. function: a name of Activation.Function; op: the node's message, with the parameters."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        parameters = {field.name: value for field, value in op.ListFields() if field.name != "function"}
        return ACTIVATIONS[function.removeprefix("FUNCTION_")].compute(x, **parameters)


def softmax(x: Values) -> Values:
    """Returns the softmax over the channels, which are axis 1."""
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    result: Values = powers / powers.sum(axis=1, keepdims=True)
    return result


def combined(a: Values, b: Values, function: str, epsilon: float) -> Values:
    """Returns a function of Elementwise of two tensors. One may have 1 channel. epsilon: for DIVIDE, added to b."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        functions = {"ADD": np.add, "SUBTRACT": np.subtract, "MULTIPLY": np.multiply, "DIVIDE": np.divide}
        functions |= {"MAXIMUM": np.maximum, "MINIMUM": np.minimum}
        result: Values = functions[function](a, b + epsilon if epsilon else b)
        return result


def of_each_row(x: Values, function: str) -> Values:
    """Returns the SUM, MEAN, MAX, MIN or LENGTH of the channels, which are axis 1, as 1 channel."""
    functions: dict[str, Callable[[Values], Any]] = {
        "SUM": lambda x: x.sum(axis=1, keepdims=True),
        "MEAN": lambda x: x.mean(axis=1, keepdims=True),
        "MAX": lambda x: x.max(axis=1, keepdims=True),
        "MIN": lambda x: x.min(axis=1, keepdims=True),
        "LENGTH": lambda x: np.sqrt((x**2).sum(axis=1, keepdims=True)),
    }
    result: Values = functions[function](x)
    return result


def layer_normalized(x: Values, epsilon: float) -> Values:
    deviation = x - x.mean(axis=1, keepdims=True)
    result: Values = deviation / np.sqrt((deviation**2).mean(axis=1, keepdims=True) + epsilon)
    return result


def l2_normalized(x: Values, epsilon: float) -> Values:
    result: Values = x / np.maximum(np.sqrt((x**2).sum(axis=1, keepdims=True)), epsilon)
    return result


def of_channels(values: Values, x: Values) -> Values:
    """Returns one value per channel in a shape that NumPy broadcasts to x, whose channels are axis 1."""
    return values.astype(np.float64).reshape(-1, *(1,) * (x.ndim - 2))


def embedded(numbers: Values, table: Values) -> Values:
    """Returns the rows of the table with these row numbers [N]: [N, C]; NaN if the table has no such row."""
    is_there = (numbers >= 0) & (numbers < len(table)) & (numbers == np.floor(numbers))
    result = np.full((len(numbers), table.shape[1]), np.nan)
    result[is_there] = table[numbers[is_there].astype(np.int64)]
    return result


def conv2d(
    x: Values,
    weight: Values,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> Values:
    """Convolves x [B, Cin, H, W] with weight [Cout, Cin / groups, kh, kw]."""
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
    """Pools x [B, C, H, W]. Cells outside the image do not count."""
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
    """Computes the transposed convolution of x [B, Cin, H, W] with weight [Cin, Cout, kh, kw]."""
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
