"""Sparse convolutions in plain PyTorch, for training. Sites are found by sorting, features by gather and matmul.

A convolution reads a table [N, K]: for each output site and kernel offset, the row of the input site. If there is no
such site, the entry is the number of input sites, and a row of zeros is read. One gather makes [N, K * c_in], and one
matrix product does the rest. The input's gradient is computed in the same way with the table of the opposite direction,
so nothing is scattered.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass
class Sites:
    """The occupied cells of a batch, sorted by batch and coordinates."""

    coords: torch.Tensor  # int64 [N, 4]: batch, then three axes, the last one fastest in the order
    shape: tuple[int, int, int]  # of the grid
    batch: int
    keys: torch.Tensor  # int64 [N]: keys_of(coords), ascending
    tables: dict[Any, Any] = field(default_factory=dict)  # rulebooks that several layers share

    def __len__(self) -> int:
        return len(self.keys)


@dataclass
class Rulebook:
    """The tables of a convolution: for each output site the rows of its inputs, and the other way round."""

    out: Sites
    table: torch.Tensor  # int32 [out, K]: input rows
    back: torch.Tensor  # int32 [in, K]: output rows

    def reversed(self, sites: Sites) -> Rulebook:
        """Returns the rulebook of the inverse convolution, from `out` back to the sites."""
        return Rulebook(sites, self.back, self.table)


def keys_of(coords: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
    batch, a, b, c = coords.unbind(-1)
    return ((batch * shape[0] + a) * shape[1] + b) * shape[2] + c


def coords_of(keys: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
    c, rest = keys % shape[2], keys // shape[2]
    b, rest = rest % shape[1], rest // shape[1]
    return torch.stack([rest // shape[0], rest % shape[0], b, c], dim=-1)


def sites_of(keys: torch.Tensor, shape: tuple[int, int, int], batch: int) -> Sites:
    """Returns the sites of keys, which ascend and are unique."""
    return Sites(coords_of(keys, shape), shape, batch, keys)


def offsets(kernel: tuple[int, int, int], device: torch.device) -> torch.Tensor:
    """Returns the offsets of a kernel from its first cell, the last axis fastest: [K, 3]."""
    return torch.tensor(list(itertools.product(*map(range, kernel))), device=device)


def look_up(sites: Sites, coords: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Returns the rows of coordinates [..., 4], int32 [...]. A coordinate without a site gets the number of sites."""
    keys = keys_of(coords, sites.shape)
    rows = torch.searchsorted(sites.keys, keys).clamp_(max=max(len(sites) - 1, 0))
    if len(sites):
        valid = valid & (sites.keys[rows] == keys)
    return torch.where(valid, rows, len(sites)).int()


def within(coords: torch.Tensor, shape: tuple[int, int, int]) -> torch.Tensor:
    size = torch.tensor(shape, device=coords.device)
    return ((coords[..., 1:] >= 0) & (coords[..., 1:] < size)).all(dim=-1)


def submanifold(sites: Sites, kernel: tuple[int, int, int]) -> Rulebook:
    if ("submanifold", kernel) not in sites.tables:
        steps = offsets(kernel, sites.keys.device) - torch.tensor(kernel, device=sites.keys.device) // 2
        coords = sites.coords[:, None].repeat(1, len(steps), 1)
        coords[..., 1:] += steps
        table = look_up(sites, coords, within(coords, sites.shape))
        sites.tables["submanifold", kernel] = Rulebook(sites, table, table.flip(1).contiguous())
    found: Rulebook = sites.tables["submanifold", kernel]
    return found


def strided(sites: Sites, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]) -> Rulebook:
    """Returns the rulebook of a strided convolution by spconv's rule: an output site is any whose kernel holds an input
    site. With kernel = stride and no padding, these are the sites of RULE_FLOOR (model.proto).
    """
    device = sites.keys.device
    steps, s, p = offsets(kernel, device), torch.tensor(stride, device=device), torch.tensor(padding, device=device)
    grid = [(n + 2 * q - k) // t + 1 for n, k, t, q in zip(sites.shape, kernel, stride, padding, strict=True)]
    shape = (grid[0], grid[1], grid[2])
    begins = sites.coords[:, None, 1:] + p - steps
    coords = torch.cat([sites.coords[:, None, :1].expand(-1, len(steps), -1), begins.div(s, rounding_mode="floor")], -1)
    valid = (begins % s == 0).all(dim=-1) & within(coords, shape)
    out = sites_of(torch.unique(keys_of(coords[valid], shape)), shape, sites.batch)
    inputs = out.coords[:, None].repeat(1, len(steps), 1)
    inputs[..., 1:] = inputs[..., 1:] * s - p + steps
    table = look_up(sites, inputs, within(inputs, sites.shape))
    return Rulebook(out, table, look_up(out, coords, valid))


def _gather(rows: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    padded = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
    return padded.index_select(0, table.reshape(-1)).view(len(table), table.shape[1] * rows.shape[1])


class _Convolve(torch.autograd.Function):
    """Convolves x [in, c_in] with weight [K, c_in, c_out]. The backward pass gathers again, so that
    the gathered rows are not kept in memory.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, table: torch.Tensor, back: torch.Tensor) -> Any:
        ctx.save_for_backward(x, weight, table, back)
        return _gather(x, table) @ weight.flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight, table, back = ctx.saved_tensors
        grad = grad.contiguous()
        grad_weight = (_gather(x, table).T @ grad).view_as(weight)
        grad_x = _gather(grad, back) @ weight.transpose(1, 2).flatten(0, 1) if ctx.needs_input_grad[0] else None
        return grad_x, grad_weight, None, None


def convolve(x: torch.Tensor, weight: torch.Tensor, rulebook: Rulebook) -> torch.Tensor:
    """Convolves x. weight: [K, c_in, c_out]. Under autocast it computes in autocast's narrow type."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        narrow = torch.get_autocast_dtype(kind)
        x, weight = x.to(narrow), weight.to(narrow)
    with torch.autocast(kind, enabled=False):
        result: torch.Tensor = _Convolve.apply(x, weight, rulebook.table, rulebook.back)
    return result


class SpconvWeight(nn.Module):
    """A convolution's tensors as spconv 2 stores them: [c_out, kernel..., c_in]."""

    def __init__(self, c_in: int, c_out: int, kernel: tuple[int, int, int] = (3, 3, 3), bias: bool = False) -> None:
        super().__init__()
        self.kernel = kernel
        bound = math.sqrt(2 / (max(math.prod(kernel) // 3, 1) * c_in))  # as if a third of a kernel's cells had sites
        self.weight = nn.Parameter(torch.randn(c_out, *kernel, c_in) * bound)
        self.bias = nn.Parameter(torch.zeros(c_out)) if bias else None

    def forward(self, x: torch.Tensor, rulebook: Rulebook) -> torch.Tensor:
        y = convolve(x, self.weight.flatten(1, 3).permute(1, 2, 0), rulebook)
        return y if self.bias is None else y + self.bias.to(y.dtype)


class TorchSparseKernel(nn.Module):
    """A convolution's tensor as TorchSparse stores it: [K, c_in, c_out], or [c_in, c_out] of one cell.

    TorchSparse counts the offsets of odd kernels with the first axis fastest, and of even kernels with the last axis
    fastest. Rulebooks here have the last axis fastest.
    """

    def __init__(self, c_in: int, c_out: int, size: int) -> None:
        super().__init__()
        volume = size**3
        shape = (c_in, c_out) if volume == 1 else (volume, c_in, c_out)
        self.kernel = nn.Parameter(torch.randn(*shape) * math.sqrt(2 / (max(volume // 3, 1) * c_in)))
        order = torch.arange(volume).view(size, size, size)
        order = order.permute(2, 1, 0) if size % 2 else order
        self.register_buffer("order", order.flatten(), persistent=False)

    def forward(self, x: torch.Tensor, rulebook: Rulebook | None = None) -> torch.Tensor:
        return x @ self.kernel if rulebook is None else convolve(x, self.kernel[self.order], rulebook)
