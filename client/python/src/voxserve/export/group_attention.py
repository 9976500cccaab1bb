"""Defines voxserve.export.group_attention: attention within groups of sites along a curve, as point transformers have.

Training code makes such groups with sorts, paddings and flash attention's cu_seqlens, which a trace cannot follow. This
function computes the same in torch, and from_torch makes one node of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from voxserve.arrays import array_of
from voxserve.verify import groups

CURVES = {"z": "Z", "z-trans": "Z_TRANSPOSED", "hilbert": "HILBERT", "hilbert-trans": "HILBERT_TRANSPOSED"}
TAILS = ("borrows", "short")


def group_attention(
    query: Any,
    key: Any,
    value: Any,
    coordinates: Any,
    *,
    curve: str = "z",
    size: int = 1024,
    num_heads: int = 1,
    scale: float | None = None,
    tail: str = "borrows",
) -> Any:
    """Returns attention within groups of sites: a torch tensor [N, C], with gradients, on the tensors' device.

    query, key, value: [N, C], with heads of neighbouring channels, as Pointcept's qkv has them.
    coordinates: integers [N, 4] of the rows, not negative: the sample, then x, y, z in steps of the sites' stride
        (spconv's x.indices). Sites of a sample must differ.
    curve: z, z-trans, hilbert or hilbert-trans, as Pointcept names them. The sites of each sample are ordered along it.
        Hilbert's curves have as many bits as the sample's largest coordinate needs (PT-v3m2, LitePT).
    size: the sites of a group.
    scale: of the products of queries and keys; None: 1 / sqrt(channels of a head).
    tail: what the last group of a sample with more than `size` sites reads if it is not full. borrows: also the last
        rows of the group before, so that it has `size` keys (Pointcept with flash attention); short: its own rows.
    """
    import torch

    if curve not in CURVES or tail not in TAILS:
        raise ValueError(f"no curve {curve!r} of {', '.join(CURVES)}, or no tail {tail!r} of {', '.join(TAILS)}")
    tensors = (query, key, value)
    if torch.overrides.has_torch_function(tensors):
        return torch.overrides.handle_torch_function(
            group_attention,
            tensors,
            *tensors,
            coordinates,
            curve=curve,
            size=size,
            num_heads=num_heads,
            scale=scale,
            tail=tail,
        )
    sites = array_of(coordinates).astype(np.int64)
    rows = [part.unflatten(1, (num_heads, -1)).transpose(0, 1) for part in tensors]  # [heads, N, C / heads]
    factor = rows[0].shape[-1] ** -0.5 if scale is None else scale
    own: list[Any] = []
    results = []
    for sample in np.unique(sites[:, 0]):
        (of_sample,) = np.nonzero(sites[:, 0] == sample)
        places = sites[of_sample, 1:]
        codes = groups.codes(places, CURVES[curve], groups.depth_of(places))
        for group in groups.cut(of_sample[np.argsort(codes, kind="stable")], size, tail.upper()):
            asked, read = (torch.from_numpy(chosen).to(query.device) for chosen in (group.own, group.read))
            q, k, v = rows[0][:, asked], rows[1][:, read], rows[2][:, read]
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=factor)
            results.append(mixed.transpose(0, 1).flatten(1))
            own.append(asked)
    if not results:
        return value.new_zeros(value.shape)
    return torch.cat(results)[torch.argsort(torch.cat(own))]
