"""MinkUNet as TorchSparse defines it (SparseResUNet42) and a linear classifier, in plain PyTorch.

The state dict has TorchSparse's names and layouts, which voxserve.export reads. Axes are x, y, z.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from train import sparse

VOXEL_SIZE = 0.05  # metres
_WIDTHS = (32, 32, 64, 128, 256, 256, 128, 96, 96)
_STAGES = 4
_CUBE, _SMALL_CUBE = (3, 3, 3), (2, 2, 2)


def voxelize(points: torch.Tensor, batch_of: torch.Tensor, batch: int) -> tuple[torch.Tensor, sparse.Sites]:
    """Returns the row in `points` of each voxel's first point, and the voxels' sites. Coordinates are rounded half
    to even and begin at 0 in each sample, as in the exported model.
    """
    cells = (points[:, :3] / torch.tensor(VOXEL_SIZE, device=points.device)).round().long()
    low = cells.new_full((batch, 3), 2**40).scatter_reduce(0, batch_of[:, None].expand(-1, 3), cells, "amin")
    cells = cells - low[batch_of]
    step = 2**_STAGES  # the grid's sizes are multiples of this, so that every stage halves them exactly
    size = [(int(extent) // step + 1) * step for extent in cells.amax(dim=0)]
    shape = (size[0], size[1], size[2])
    keys, row = torch.unique(sparse.keys_of(torch.cat([batch_of[:, None], cells], 1), shape), return_inverse=True)
    order = torch.arange(len(points), device=points.device)
    first = torch.full_like(keys, len(points)).scatter_reduce(0, row, order, "amin")
    return first, sparse.sites_of(keys, shape, batch)


class _Block(nn.Module):
    def __init__(self, c_in: int, width: int) -> None:
        super().__init__()
        convs = sparse.TorchSparseKernel(c_in, width, 3), sparse.TorchSparseKernel(width, width, 3)
        self.main = nn.ModuleList(
            [convs[0], nn.BatchNorm1d(width), nn.ReLU(), convs[1], nn.BatchNorm1d(width)],
        )
        shortcut = [sparse.TorchSparseKernel(c_in, width, 1), nn.BatchNorm1d(width)] if c_in != width else []
        self.shortcut = nn.ModuleList(shortcut)

    def forward(self, x: torch.Tensor, rulebook: sparse.Rulebook) -> torch.Tensor:
        y = torch.relu(self.main[1](self.main[0](x, rulebook)))
        y = self.main[4](self.main[3](y, rulebook))
        return torch.relu(y + (self.shortcut[1](self.shortcut[0](x)) if len(self.shortcut) else x))


class SparseResUNet42(nn.Module):
    def __init__(self, c_in: int, width: float) -> None:
        super().__init__()
        w = [int(width * channels) for channels in _WIDTHS]
        first, second = sparse.TorchSparseKernel(c_in, w[0], 3), sparse.TorchSparseKernel(w[0], w[0], 3)
        self.stem = nn.ModuleList([first, nn.BatchNorm1d(w[0]), nn.ReLU(), second, nn.BatchNorm1d(w[0]), nn.ReLU()])
        self.encoders = nn.ModuleList()
        for stage in range(_STAGES):
            before, after = w[stage], w[stage + 1]
            down = nn.ModuleList([sparse.TorchSparseKernel(before, before, 2), nn.BatchNorm1d(before)])
            self.encoders.append(nn.ModuleList([down, _Block(before, after), _Block(after, after)]))
        self.decoders = nn.ModuleList()
        for up in range(_STAGES):
            before, after, skip = w[_STAGES + up], w[_STAGES + up + 1], w[_STAGES - up - 1]
            upsample = nn.ModuleList([sparse.TorchSparseKernel(before, after, 2), nn.BatchNorm1d(after)])
            fuse = nn.ModuleList([_Block(after + skip, after), _Block(after, after)])
            self.decoders.append(nn.ModuleDict({"upsample": upsample, "fuse": fuse}))

    def forward(self, x: torch.Tensor, sites: sparse.Sites) -> torch.Tensor:
        rulebook = sparse.submanifold(sites, _CUBE)
        for index in (0, 3):
            x = torch.relu(self.stem[index + 1](self.stem[index](x, rulebook)))
        levels: list[Any] = []
        for down, *blocks in self.encoders:
            strided = sparse.strided(sites, _SMALL_CUBE, (2, 2, 2), (0, 0, 0))
            levels.append((x, sites, strided))
            x, sites = torch.relu(down[1](down[0](x, strided))), strided.out
            rulebook = sparse.submanifold(sites, _CUBE)
            for block in blocks:
                x = block(x, rulebook)
        for decoder in self.decoders:
            skip, sites, strided = levels.pop()
            conv, norm = decoder["upsample"]
            x = torch.relu(norm(conv(x, strided.reversed(sites))))
            x = torch.cat([x, skip.to(x.dtype)], dim=1)
            rulebook = sparse.submanifold(sites, _CUBE)
            for block in decoder["fuse"]:
                x = block(x, rulebook)
        return x


class MinkUnet(nn.Module):
    def __init__(self, num_classes: int, width: float = 0.5) -> None:
        super().__init__()
        self.backbone = SparseResUNet42(4, width)
        self.classifier = nn.Linear(int(width * _WIDTHS[-1]), num_classes)

    def forward(self, features: torch.Tensor, sites: sparse.Sites) -> torch.Tensor:
        """Returns logits [sites, classes]. features: [sites, 4]: x, y, z, intensity of each voxel's first point."""
        logits: torch.Tensor = self.classifier(self.backbone(features, sites))
        return logits
