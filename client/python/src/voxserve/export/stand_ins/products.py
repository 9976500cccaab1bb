"""Computes convolutions and pools of rows of features in torch, with loops over a kernel's cells."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from voxserve.verify import sites as site_maths


def to_sites(coordinates: Any) -> site_maths.Sites:
    sites: site_maths.Sites = coordinates.detach().cpu().numpy().astype(np.int64)
    return sites


def convolve(x: Any, cells: Any, kernel_map: site_maths.KernelMap) -> Any:
    """Returns the rows out[target] = sum of x[source] @ cells[k] over all cells k and their pairs (source, target) in
    the kernel map. cells: [K, Cin, Cout].
    """
    y = x.new_zeros((len(kernel_map.targets), cells[0].shape[1]))
    for cell, (sources, targets) in zip(cells, kernel_map.pairs(), strict=True):
        y.index_add_(0, torch.from_numpy(targets), x[torch.from_numpy(sources)] @ cell)
    return y


def pool(x: Any, reduce: str, kernel_map: site_maths.KernelMap, empty: float = 0) -> Any:
    """Returns for each target the amax, mean or sum of the rows of its sources in the kernel map; `empty` if it has
    none.
    """
    sources, targets = (torch.from_numpy(np.concatenate(rows)) for rows in zip(*kernel_map.pairs(), strict=True))
    return _reduced(x[sources], targets, len(kernel_map.targets), reduce, empty)


def samples_of(x: Any, batch: Any, reduce: str, batch_size: int) -> Any:
    """Returns the amax, mean or sum of each sample's rows: [batch_size, C]. batch: [N], the sample of each row."""
    return _reduced(x, batch.long(), batch_size, reduce)


def _reduced(rows: Any, targets: Any, num_targets: int, reduce: str, empty: float = 0) -> Any:
    y = rows.new_full((num_targets, rows.shape[1]), empty)
    return y.scatter_reduce_(0, targets[:, None].expand_as(rows), rows, reduce, include_self=False)


def axes(value: Any, dimension: int) -> list[int]:
    """Returns a list with one value per axis. A single value is used for all axes."""
    if isinstance(value, int):
        return [value] * dimension
    values = [int(v) for v in value]
    if len(values) != dimension:
        raise ValueError(f"{values} must have {dimension} values")
    return values
