"""Computes SVT-Net in plain torch and float64, one cloud at a time, by its published source (models/svtnet.py and
MinkLoc3D's GeM).

Neighbours are found site by site in a dictionary; nothing of MinkowskiEngine or voxserve is used. The cells of a kernel
are in MinkowskiEngine's order, with the first axis fastest. Needs torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

Site = tuple[int, ...]
EPSILON, POOL_EPSILON = 1e-5, 1e-6


def random_state(
    seed: int, planes: Sequence[int], layers: Sequence[int], features: int, num_tokens: int = 8, reduction: int = 8
) -> dict[str, torch.Tensor]:
    """Returns random weights and statistics with the names of the published source."""
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, torch.Tensor] = {}

    def kernel(name: str, cells: int, ins: int, outs: int) -> None:
        shape = (ins, outs) if cells == 1 else (cells, ins, outs)
        state[f"{name}.kernel"] = torch.randn(shape, generator=generator) * (2 / (max(cells / 3, 1) * ins)) ** 0.5

    def norm(name: str, channels: int) -> None:
        for part, low, high in (("weight", 0.5, 1.5), ("bias", -0.5, 0.5), ("running_mean", -0.5, 0.5)):
            state[f"{name}.bn.{part}"] = torch.rand(channels, generator=generator) * (high - low) + low
        state[f"{name}.bn.running_var"] = torch.rand(channels, generator=generator) + 0.5
        state[f"{name}.bn.num_batches_tracked"] = torch.tensor(7)

    kernel("backbone.conv0", 125, 1, planes[0])
    norm("backbone.bn0", planes[0])
    width = planes[0]
    for level, (plane, count) in enumerate(zip(planes, layers, strict=True)):
        kernel(f"backbone.convs.{level}", 8, width, width)
        norm(f"backbone.bn.{level}", width)
        for block in range(count):
            name = f"backbone.blocks.{level}.{block}"
            for number, ins in ((1, width), (2, plane)):
                kernel(f"{name}.conv{number}", 27, ins, plane)
                norm(f"{name}.norm{number}", plane)
            if width != plane:
                kernel(f"{name}.downsample.0", 1, width, plane)
                norm(f"{name}.downsample.1", plane)
            width = plane
    kernel("backbone.conv1x1.0", 1, width, features)
    for name, first, second in (
        ("asvt", ("q_conv", features // reduction), ("k_conv", features // reduction)),
        ("csvt", ("q_conv", features), ("k_conv", num_tokens)),
    ):
        for part, outs in (first, second):
            kernel(f"backbone.{name}.{part}", 1, features, outs)
        kernel(f"backbone.{name}.trans_conv", 1, features, features)
        norm(f"backbone.{name}.after_norm", features)
    kernel("backbone.asvt.v_conv", 1, features, features)
    kernel("backbone.csvt.p_conv", 1, features, features)
    for part in ("convvalues", "convkeys", "convquries", "embedding1", "T_conv"):
        weight = torch.randn((features, features, 1), generator=generator) / features**0.5
        state[f"backbone.csvt.{part}.weight"] = weight
    state["pooling.p"] = torch.tensor([2.7])
    return state


def descriptor(state: Mapping[str, torch.Tensor], coordinates: Any) -> torch.Tensor:
    """Returns a cloud's vector [features]. coordinates: [N, 3], integers, each voxel of the cloud once."""
    return _Network(state).run([tuple(int(c) for c in row) for row in coordinates])


class _Network:
    def __init__(self, state: Mapping[str, torch.Tensor]) -> None:
        self._state = {name: tensor.double() for name, tensor in state.items()}

    def run(self, sites: list[Site]) -> torch.Tensor:
        state = self._state
        x = torch.ones((len(sites), 1), dtype=torch.float64)
        x = self._norm("backbone.bn0", self._submanifold("backbone.conv0", 5, sites, x)).relu()
        level = 0
        while f"backbone.convs.{level}.kernel" in state:
            sites, x = self._down(f"backbone.convs.{level}", sites, x)
            x = self._norm(f"backbone.bn.{level}", x).relu()
            block = 0
            while f"backbone.blocks.{level}.{block}.conv1.kernel" in state:
                x = self._block(f"backbone.blocks.{level}.{block}", sites, x)
                block += 1
            level += 1
        x = x @ state["backbone.conv1x1.0.kernel"]
        is_renamed = "backbone.att_sa.q_conv.kernel" in state
        asvt, csvt = ("att_sa", "att_token") if is_renamed else ("asvt", "csvt")
        x = self._csvt(f"backbone.{csvt}", x) + self._asvt(f"backbone.{asvt}", x)
        p = state["pooling.p"]
        return x.clamp(min=POOL_EPSILON).pow(p).mean(dim=0).pow(1 / p)

    def _asvt(self, key: str, x: torch.Tensor) -> torch.Tensor:
        queries, keys, values = (x @ self._state[f"{key}.{part}_conv.kernel"] for part in "qkv")
        attended = torch.softmax(queries @ keys.T, dim=-1) @ values
        return self._joined(key, x, attended)

    def _csvt(self, key: str, x: torch.Tensor) -> torch.Tensor:
        """Computes the source's layer csvt. As there, tokens are columns."""
        weights = torch.softmax((x @ self._state[f"{key}.k_conv.kernel"]).T, dim=-1)  # [tokens, N]
        tokens = (weights @ (x @ self._state[f"{key}.q_conv.kernel"])).T[None]  # [1, C, tokens]
        values, keys, queries = (self._conv1d(f"{key}.conv{part}", tokens) for part in ("values", "keys", "quries"))
        attention = torch.softmax(keys.transpose(1, 2) @ queries, dim=-1)
        mixed = (attention @ values.transpose(1, 2)).transpose(1, 2)
        tokens = self._conv1d(f"{key}.T_conv", tokens + self._conv1d(f"{key}.embedding1", mixed))[0]  # [C, tokens]
        of_sites = torch.softmax(x @ self._state[f"{key}.p_conv.kernel"] @ tokens, dim=-1)
        return self._joined(key, x, of_sites @ tokens.T)

    def _joined(self, key: str, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        return x + self._norm(f"{key}.after_norm", attended @ self._state[f"{key}.trans_conv.kernel"]).relu()

    def _conv1d(self, key: str, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv1d(x, self._state[f"{key}.weight"])

    def _block(self, key: str, sites: list[Site], x: torch.Tensor) -> torch.Tensor:
        y = self._norm(f"{key}.norm1", self._submanifold(f"{key}.conv1", 3, sites, x)).relu()
        y = self._norm(f"{key}.norm2", self._submanifold(f"{key}.conv2", 3, sites, y))
        if f"{key}.downsample.0.kernel" in self._state:
            x = self._norm(f"{key}.downsample.1", x @ self._state[f"{key}.downsample.0.kernel"])
        return (y + x).relu()

    def _norm(self, key: str, x: torch.Tensor) -> torch.Tensor:
        mean, variance, weight, bias = (
            self._state[f"{key}.bn.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / torch.sqrt(variance + EPSILON) * weight + bias

    def _submanifold(self, key: str, size: int, sites: list[Site], x: torch.Tensor) -> torch.Tensor:
        """Convolves with a centred kernel: out[o] is the sum over the cells d of in[o + d] W_d."""
        row_of = {site: row for row, site in enumerate(sites)}
        reach = range(-(size // 2), size // 2 + 1)
        deltas = [tuple(reversed(cell)) for cell in itertools.product(reach, repeat=3)]  # with the first axis fastest
        out = torch.zeros((len(sites), self._state[f"{key}.kernel"].shape[-1]), dtype=torch.float64)
        for delta, weight in zip(deltas, self._state[f"{key}.kernel"], strict=True):
            pairs = [
                (row_of[neighbour], row)
                for row, site in enumerate(sites)
                if (neighbour := tuple(c + d for c, d in zip(site, delta, strict=True))) in row_of
            ]
            self._add_products(pairs, x, weight, out)
        return out

    def _down(self, key: str, sites: list[Site], x: torch.Tensor) -> tuple[list[Site], torch.Tensor]:
        """Convolves with a kernel and a stride of 2: a site c adds to floor(c / 2), by the weight of its cell c % 2."""
        coarse = list(dict.fromkeys(tuple(c // 2 for c in site) for site in sites))
        row_of = {site: row for row, site in enumerate(coarse)}
        out = torch.zeros((len(coarse), self._state[f"{key}.kernel"].shape[-1]), dtype=torch.float64)
        for cell, weight in enumerate(self._state[f"{key}.kernel"]):
            delta = (cell & 1, cell >> 1 & 1, cell >> 2)
            pairs = [
                (row, row_of[tuple(c // 2 for c in site)])
                for row, site in enumerate(sites)
                if tuple(c % 2 for c in site) == delta
            ]
            self._add_products(pairs, x, weight, out)
        return coarse, out

    @staticmethod
    def _add_products(pairs: list[tuple[int, int]], x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        if pairs:
            sources, targets = torch.tensor(pairs).T
            out.index_add_(0, targets, x[sources] @ weight)
