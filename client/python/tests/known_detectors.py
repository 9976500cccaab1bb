"""OpenPCDet's CenterPoint on voxels and SECOND as module trees: their parameters have the same names and shapes.

pcdet/models: backbones_3d/spconv_backbone.py, backbones_2d/base_bev_backbone.py, dense_heads/center_head.py and
anchor_head_single.py, put together as detectors/detector3d_template.py does. Needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn
from traced_networks import load

norm1d = partial(nn.BatchNorm1d, eps=1e-3, momentum=0.01)
norm2d = partial(nn.BatchNorm2d, eps=1e-3, momentum=0.01)


class _BasicBlock(nn.Module):
    def __init__(self, spconv: Any, width: int) -> None:
        super().__init__()
        self.conv1 = spconv.SubMConv3d(width, width, kernel_size=3, stride=1, padding=1, bias=True)
        self.bn1, self.relu = norm1d(width), nn.ReLU()
        self.conv2 = spconv.SubMConv3d(width, width, kernel_size=3, stride=1, padding=1, bias=True)
        self.bn2 = norm1d(width)


def backbone_3d(inputs: int, *, is_residual: bool) -> Any:
    """Makes OpenPCDet's VoxelResBackBone8x (is_residual) or VoxelBackBone8x."""
    spconv, backbone = load("spconv.pytorch"), nn.Module()

    def block(a: int, b: int, **options: Any) -> Any:
        kind = spconv.SparseConv3d if options else spconv.SubMConv3d
        conv = kind(a, b, options.pop("kernel_size", 3), bias=False, **options)
        return spconv.SparseSequential(conv, norm1d(b), nn.ReLU())

    def stage(a: int, b: int, padding: Any) -> Any:
        blocks = [_BasicBlock(spconv, b) if is_residual else block(b, b) for _ in range(2)]
        return spconv.SparseSequential(block(a, b, stride=2, padding=padding), *blocks)

    last = 128 if is_residual else 64
    backbone.conv_input = block(inputs, 16)
    first = [_BasicBlock(spconv, 16), _BasicBlock(spconv, 16)] if is_residual else [block(16, 16)]
    backbone.conv1 = spconv.SparseSequential(*first)
    backbone.conv2, backbone.conv3 = stage(16, 32, 1), stage(32, 64, 1)
    backbone.conv4 = stage(64, last, (0, 1, 1))
    backbone.conv_out = block(last, 128, kernel_size=(3, 1, 1), stride=(2, 1, 1), padding=0)
    return backbone


def backbone_2d() -> Any:
    """Makes the BaseBEVBackbone with LAYER_NUMS [5, 5] of both configurations."""
    backbone, inputs = nn.Module(), (256, 128)
    backbone.blocks, backbone.deblocks = nn.ModuleList(), nn.ModuleList()
    for a, width, stride in zip(inputs, (128, 256), (1, 2), strict=True):
        first = nn.Conv2d(a, width, kernel_size=3, stride=stride, padding=0, bias=False)
        layers = [nn.ZeroPad2d(1), first, norm2d(width), nn.ReLU()]
        for _ in range(5):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), norm2d(width), nn.ReLU()]
        backbone.blocks.append(nn.Sequential(*layers))
        up = nn.ConvTranspose2d(width, 256, stride, stride=stride, bias=False)
        backbone.deblocks.append(nn.Sequential(up, norm2d(256), nn.ReLU()))
    return backbone


class CenterPoint(nn.Module):
    """OpenPCDet's CenterPoint. tasks: the number of classes of each task."""

    def __init__(self, tasks: Sequence[int], *, has_velocity: bool, is_residual: bool = True) -> None:
        super().__init__()
        self.backbone_3d, self.backbone_2d = backbone_3d(5, is_residual=is_residual), backbone_2d()
        self.dense_head = nn.Module()
        self.dense_head.shared_conv = nn.Sequential(
            nn.Conv2d(512, 64, 3, padding=1, bias=True), nn.BatchNorm2d(64), nn.ReLU()
        )
        self.dense_head.heads_list = nn.ModuleList()
        for classes in tasks:
            branches = {"center": 2, "center_z": 1, "dim": 3, "rot": 2, "hm": classes}
            head = nn.Module()
            for name, channels in (branches | ({"vel": 2} if has_velocity else {})).items():
                conv = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1, bias=True), nn.BatchNorm2d(64), nn.ReLU())
                head.add_module(name, nn.Sequential(conv, nn.Conv2d(64, channels, 3, padding=1, bias=True)))
            self.dense_head.heads_list.append(head)


class Second(nn.Module):
    """OpenPCDet's SECOND: three classes, and two anchors per class at every cell."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone_3d, self.backbone_2d = backbone_3d(4, is_residual=False), backbone_2d()
        self.dense_head = nn.Module()
        self.dense_head.conv_cls = nn.Conv2d(512, 6 * 3, kernel_size=1)
        self.dense_head.conv_box = nn.Conv2d(512, 6 * 7, kernel_size=1)
        self.dense_head.conv_dir_cls = nn.Conv2d(512, 6 * 2, kernel_size=1)
