"""Stand-in for MinkowskiEngine.utils: what makes voxels and batches, and the first values of kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def kaiming_normal_(tensor: Any, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Any:
    """Fills a kernel [K, Cin, Cout], or a weight [Cout, Cin], with normal values, as torch's function does for dense
    layers.
    """
    if mode.lower() not in ("fan_in", "fan_out") or tensor.ndim < 2:
        raise ValueError(f"mode is '{mode}', fan_in or fan_out, and the tensor {list(tensor.shape)}, 2 axes or more")
    fans = tensor.shape[:2] if tensor.ndim == 2 else tensor.shape[2:0:-1]  # (out, in)
    fan = fans[mode.lower() == "fan_in"] * (1 if tensor.ndim == 2 else tensor.shape[0])
    with torch.no_grad():
        return tensor.normal_(0, torch.nn.init.calculate_gain(nonlinearity, a) / math.sqrt(fan))


def batched_coordinates(coords: Sequence[Any], dtype: Any = torch.int32, device: Any = None) -> Any:
    """Returns the coordinates [N, 1 + D] of several samples' coordinates [N, D], the sample first."""
    parts = []
    for sample, values in enumerate(coords):
        at = torch.as_tensor(values)
        at = at.floor() if dtype == torch.int32 and at.is_floating_point() else at
        parts.append(torch.cat([torch.full((len(at), 1), sample, dtype=dtype), at.to(dtype)], dim=1))
    return torch.cat(parts)


def sparse_collate(
    coords: Sequence[Any], feats: Sequence[Any], labels: Any = None, dtype: Any = torch.int32, device: Any = None
) -> Any:
    """Returns the coordinates and features of several samples as those of a batch, and the labels if there are any."""
    made = (batched_coordinates(coords, dtype), torch.cat([torch.as_tensor(f) for f in feats]))
    return made if labels is None else (*made, torch.cat([torch.as_tensor(v) for v in labels]))


def sparse_quantize(
    coordinates: Any,
    features: Any = None,
    labels: Any = None,
    ignore_label: int = -100,
    return_index: bool = False,
    return_inverse: bool = False,
    return_maps_only: bool = False,
    quantization_size: Any = None,
    device: str = "cpu",
) -> Any:
    """Returns the voxels of points, each once, with the features of its first point; then what else is asked for."""
    if labels is not None:
        raise NotImplementedError("voxserve's stand-in quantizes no labels: an example needs none")
    size = 1 if quantization_size is None else np.asarray(quantization_size)
    voxels = np.floor(np.asarray(coordinates) / size).astype(np.int32)
    _, first, inverse = np.unique(voxels, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)  # the library keeps the order of the points
    index, inverse = torch.from_numpy(first[order]), torch.from_numpy(np.argsort(order)[inverse.reshape(-1)])
    maps = [index] * (return_index or return_maps_only) + [inverse] * return_inverse
    made = [] if return_maps_only else [torch.from_numpy(voxels)[index]]
    if features is not None and not return_maps_only:
        made.append(features[index if isinstance(features, torch.Tensor) else index.numpy()])
    result = tuple(made + maps)
    return result if len(result) > 1 else result[0]
