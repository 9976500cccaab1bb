"""CenterPoint on voxels as OpenPCDet defines it (VoxelResBackBone8x, BaseBEVBackbone, CenterHead), in plain PyTorch.

The state dict has OpenPCDet's names and layouts, which voxserve.export reads. Widths, range and classes are those of
voxserve.export.networks.center_point. Axes are z, y, x as in spconv.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from train import sparse
from voxserve.export.networks.center_head import HEAD_EPSILON
from voxserve.export.networks.center_point import Config
from voxserve.export.networks.spconv_backbone import SPARSE_EPSILON, Bev, depth_after

BRANCHES = {"hm": 0, "center": 2, "center_z": 1, "dim": 3, "rot": 2}  # channels; hm has one per class
_MOMENTUM = 0.01
_CUBE = (3, 3, 3)


def voxelize(points: torch.Tensor, batch_of: torch.Tensor, batch: int, config: Config) -> tuple[Any, sparse.Sites]:
    """Returns the mean of each voxel's points [N, 4], and the voxels' sites."""
    voxels = config.voxels
    low = torch.tensor(voxels.range_min, dtype=torch.float32, device=points.device)
    high = torch.tensor(voxels.range_max, dtype=torch.float32, device=points.device)
    size = torch.tensor(voxels.size, dtype=torch.float32, device=points.device)
    inside = ((points[:, :3] >= low) & (points[:, :3] < high)).all(dim=1)
    points, batch_of = points[inside], batch_of[inside]
    x, y, z = voxels.grid()
    shape = (z + 1, y, x)
    cells = ((points[:, :3] - low) / size).floor().long().flip(1)  # z, y, x
    keys, row = torch.unique(sparse.keys_of(torch.cat([batch_of[:, None], cells], 1), shape), return_inverse=True)
    sums = points.new_zeros(len(keys), 5).index_add_(0, row, torch.cat([points, torch.ones_like(points[:, :1])], 1))
    return sums[:, :4] / sums[:, 4:], sparse.sites_of(keys, shape, batch)


def _norm(width: int) -> nn.BatchNorm1d:
    return nn.BatchNorm1d(width, eps=SPARSE_EPSILON, momentum=_MOMENTUM)


class SparseBlock(nn.Module):
    """OpenPCDet's SparseBasicBlock: two submanifold convolutions with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = sparse.SpconvWeight(width, width, bias=True), _norm(width)
        self.conv2, self.bn2 = sparse.SpconvWeight(width, width, bias=True), _norm(width)

    def forward(self, x: torch.Tensor, rulebook: sparse.Rulebook) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x, rulebook)))
        return torch.relu(self.bn2(self.conv2(y, rulebook)) + x)


class VoxelResBackBone8x(nn.Module):
    def __init__(self, c_in: int, widths: tuple[int, ...], out: int) -> None:
        super().__init__()
        self.conv_input = nn.ModuleList([sparse.SpconvWeight(c_in, widths[0]), _norm(widths[0])])
        self.conv1 = nn.ModuleList([SparseBlock(widths[0]), SparseBlock(widths[0])])
        for stage in (2, 3, 4):
            before, width = widths[stage - 2], widths[stage - 1]
            down = nn.ModuleList([sparse.SpconvWeight(before, width), _norm(width)])
            setattr(self, f"conv{stage}", nn.ModuleList([down, SparseBlock(width), SparseBlock(width)]))
        self.conv_out = nn.ModuleList([sparse.SpconvWeight(widths[3], out, (3, 1, 1)), _norm(out)])

    def forward(self, x: torch.Tensor, sites: sparse.Sites) -> torch.Tensor:
        """Returns the image from above, [batch, out * depth, rows of y, columns of x]."""
        rulebook = sparse.submanifold(sites, _CUBE)
        x = self._layer(self.conv_input, x, rulebook)
        for block in self.conv1:
            x = block(x, rulebook)
        for stage, padding in ((2, (1, 1, 1)), (3, (1, 1, 1)), (4, (0, 1, 1))):
            down, *blocks = getattr(self, f"conv{stage}")
            rulebook = sparse.strided(sites, _CUBE, (2, 2, 2), padding)
            x, sites = self._layer(down, x, rulebook), rulebook.out
            rulebook = sparse.submanifold(sites, _CUBE)
            for block in blocks:
                x = block(x, rulebook)
        rulebook = sparse.strided(sites, (3, 1, 1), (2, 1, 1), (0, 0, 0))
        x, sites = self._layer(self.conv_out, x, rulebook), rulebook.out
        cells = x.new_zeros(sites.batch * sites.shape[0] * sites.shape[1] * sites.shape[2], x.shape[1])
        image = cells.index_copy(0, sites.keys, x).view(sites.batch, *sites.shape, -1)
        return image.permute(0, 2, 3, 4, 1).flatten(3).permute(0, 3, 1, 2)  # channel = c * depth + z, channels last

    @staticmethod
    def _layer(layer: Any, x: torch.Tensor, rulebook: sparse.Rulebook) -> torch.Tensor:
        return torch.relu(layer[1](layer[0](x, rulebook)))


def _layer_2d(convolution: nn.Module, width: int, epsilon: float, momentum: float) -> list[nn.Module]:
    return [convolution, nn.BatchNorm2d(width, eps=epsilon, momentum=momentum), nn.ReLU()]


class BaseBevBackbone(nn.Module):
    def __init__(self, c_in: int, bev: Bev) -> None:
        super().__init__()
        self.blocks, self.deblocks = nn.ModuleList(), nn.ModuleList()
        lists = (bev.num_layers, bev.strides, bev.widths, bev.up_strides, bev.up_widths)
        for count, stride, width, up, up_width in zip(*lists, strict=True):
            first = nn.Conv2d(c_in, width, 3, stride, bias=False)
            layers: list[nn.Module] = [nn.ZeroPad2d(1), *_layer_2d(first, width, SPARSE_EPSILON, _MOMENTUM)]
            for _ in range(count):
                layers += _layer_2d(nn.Conv2d(width, width, 3, padding=1, bias=False), width, SPARSE_EPSILON, _MOMENTUM)
            transposed = nn.ConvTranspose2d(width, up_width, round(up), round(up), bias=False)
            self.blocks.append(nn.Sequential(*layers))
            self.deblocks.append(nn.Sequential(*_layer_2d(transposed, up_width, SPARSE_EPSILON, _MOMENTUM)))
            c_in = width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ups = []
        for block, deblock in zip(self.blocks, self.deblocks, strict=True):
            x = block(x)
            ups.append(deblock(x))
        return torch.cat(ups, dim=1)


class CenterHead(nn.Module):
    """CenterPoint's head, with one task for all classes."""

    def __init__(self, c_in: int, width: int, num_classes: int) -> None:
        super().__init__()
        self.shared_conv = nn.Sequential(*self._layer(c_in, width))
        branches = {name: self._branch(width, channels or num_classes) for name, channels in BRANCHES.items()}
        nn.init.constant_(branches["hm"][-1].bias, -2.19)  # the first scores are 0.1
        self.heads_list = nn.ModuleList([nn.ModuleDict(branches)])

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.shared_conv(x)
        return {name: branch(x) for name, branch in self.heads_list[0].items()}

    @staticmethod
    def _layer(c_in: int, width: int) -> list[nn.Module]:
        return _layer_2d(nn.Conv2d(c_in, width, 3, padding=1, bias=False), width, HEAD_EPSILON, _MOMENTUM)

    @classmethod
    def _branch(cls, width: int, channels: int) -> nn.Sequential:
        last = nn.Conv2d(width, channels, 3, padding=1)
        nn.init.zeros_(last.bias)
        return nn.Sequential(nn.Sequential(*cls._layer(width, width)), last)


class CenterPoint(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.backbone_3d = VoxelResBackBone8x(4, config.sparse_widths, config.sparse_out_width)
        depth = depth_after(config.voxels.grid()[2])
        self.backbone_2d = BaseBevBackbone(config.sparse_out_width * depth, config.bev)
        self.dense_head = CenterHead(sum(config.bev.up_widths), config.head_width, len(config.classes))

    def forward(self, points: torch.Tensor, batch_of: torch.Tensor, batch: int) -> dict[str, torch.Tensor]:
        """Returns the head's images [batch, C, y, x], by the names of BRANCHES. points: [N, 4] of all samples;
        batch_of: int64 [N], the sample of each point.
        """
        x, sites = voxelize(points, batch_of, batch, self.config)
        return self.dense_head(self.backbone_2d(self.backbone_3d(x, sites)))
