"""Known networks as in their repositories: the same module trees, names and forward passes, on any library.

Each network takes features [N, C] and coordinates int32 [N, 4] (sample, x, y, z) and returns logits [N, classes]. After
a run its `levels` holds the coordinates of the coarser levels, in units of the input's coordinates. Needs torch.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from functools import partial
from typing import Any

import torch
from torch import nn
from traced_networks import load

CHANNELS, CLASSES = 4, 5


# mmdetection3d: mmdet3d/models/backbones/minkunet_backbone.py and spvcnn_backone.py, decode_heads/minkunet_head.py


class _Net(nn.Module):
    """mmdetection3d's TorchSparseConvModule and MinkowskiConvModule: convolution, norm and activation in `net`."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return self.net(x)


class _TorchSparseBlock(nn.Module):
    def __init__(self, spnn: Any, a: int, b: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            spnn.Conv3d(a, b, 3), spnn.BatchNorm(b), spnn.ReLU(True), spnn.Conv3d(b, b, 3), spnn.BatchNorm(b)
        )
        self.downsample = nn.Identity() if a == b else nn.Sequential(spnn.Conv3d(a, b, 1), spnn.BatchNorm(b))
        self.relu = spnn.ReLU(True)

    def forward(self, x: Any) -> Any:
        return self.relu(self.net(x) + self.downsample(x))


class _TorchSparse:
    """A backend: makes convolutions of size 3, strided and transposed ones of size 2, and residual blocks."""

    def __init__(self) -> None:
        self.library, self.spnn = load("torchsparse"), load("torchsparse.nn")

    def conv(self, a: int, b: int, _key: str) -> Any:
        return _Net(self.spnn.Conv3d(a, b, 3), self.spnn.BatchNorm(b), self.spnn.ReLU(True))

    def down(self, a: int, b: int, _key: str) -> Any:
        return _Net(self.spnn.Conv3d(a, b, 2, 2), self.spnn.BatchNorm(b), self.spnn.ReLU(True))

    def up(self, a: int, b: int, _key: str) -> Any:
        conv = self.spnn.Conv3d(a, b, 2, 2, transposed=True)
        return _Net(conv, self.spnn.BatchNorm(b), self.spnn.ReLU(True))

    def block(self, a: int, b: int, _key: str) -> Any:
        return _TorchSparseBlock(self.spnn, a, b)

    def tensor(self, features: Any, coordinates: Any) -> Any:
        return self.library.SparseTensor(features, coordinates)

    def cat(self, x: Any, y: Any) -> Any:
        return self.library.cat([x, y])

    def features(self, x: Any) -> Any:
        return x.F

    def coordinates(self, x: Any) -> Any:
        return x.C * torch.tensor((1, *x.s))


class _Minkowski(_TorchSparse):
    def __init__(self) -> None:
        self.library = load("MinkowskiEngine")
        self.basic = load("MinkowskiEngine.modules.resnet_block").BasicBlock

    def _net(self, conv: Any, b: int, *, is_active: bool = True) -> Any:
        layers = [conv, self.library.MinkowskiBatchNorm(b)]
        return _Net(*layers, *([self.library.MinkowskiReLU(inplace=True)] if is_active else []))

    def conv(self, a: int, b: int, _key: str) -> Any:
        return self._net(self.library.MinkowskiConvolution(a, b, 3, 1, dimension=3), b)

    def down(self, a: int, b: int, _key: str) -> Any:
        return self._net(self.library.MinkowskiConvolution(a, b, 2, 2, dimension=3), b)

    def up(self, a: int, b: int, _key: str) -> Any:
        return self._net(self.library.MinkowskiConvolutionTranspose(a, b, 2, 2, dimension=3), b)

    def block(self, a: int, b: int, _key: str) -> Any:
        branch = self._net(self.library.MinkowskiConvolution(a, b, 1, 1, dimension=3), b, is_active=False)
        return self.basic(a, b, downsample=None if a == b else branch, dimension=3)

    def tensor(self, features: Any, coordinates: Any) -> Any:
        return self.library.SparseTensor(features, coordinates)

    def cat(self, x: Any, y: Any) -> Any:
        return self.library.cat(x, y)

    def coordinates(self, x: Any) -> Any:
        return x.C


def spconv_block(spconv: Any, a: int, b: int, key: str, epsilon: float, shortcut: str, branch: Any) -> Any:
    """Makes a residual block on spconv. branch: the layer of the skip connection, or None; shortcut: its name."""

    class Block(spconv.SparseModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            conv = partial(spconv.SubMConv3d, kernel_size=3, padding=1, bias=False, indice_key=key)
            self.conv1, self.bn1 = conv(a, b), nn.BatchNorm1d(b, eps=epsilon)
            self.conv2, self.bn2 = conv(b, b), nn.BatchNorm1d(b, eps=epsilon)
            self.relu = nn.ReLU()
            self.add_module(shortcut, branch)

        def forward(self, x: Any) -> Any:
            y = self.conv1(x)
            y = y.replace_feature(self.relu(self.bn1(y.features)))
            y = self.conv2(y)
            y = y.replace_feature(self.bn2(y.features))
            identity = x if branch is None else branch(x)
            return y.replace_feature(self.relu(y.features + identity.features))

    return Block()


class _Spconv(_TorchSparse):
    def __init__(self) -> None:
        self.library = load("spconv.pytorch")

    def _module(self, conv: Any, b: int, *, is_active: bool = True) -> Any:
        layers = [conv, nn.BatchNorm1d(b), *([nn.ReLU(inplace=True)] if is_active else [])]
        return self.library.SparseSequential(*layers)

    def conv(self, a: int, b: int, key: str) -> Any:
        return self._module(self.library.SubMConv3d(a, b, 3, 1, 1, bias=False, indice_key=key), b)

    def down(self, a: int, b: int, key: str) -> Any:
        return self._module(self.library.SparseConv3d(a, b, 2, 2, 0, bias=False, indice_key=key), b)

    def up(self, a: int, b: int, key: str) -> Any:
        return self._module(self.library.SparseInverseConv3d(a, b, 2, bias=False, indice_key=key), b)

    def block(self, a: int, b: int, key: str) -> Any:
        branch = self._module(self.library.SubMConv3d(a, b, 1, 1, 0, bias=False), b, is_active=False)
        return spconv_block(self.library, a, b, key, 1e-5, "downsample", None if a == b else branch)

    def tensor(self, features: Any, coordinates: Any) -> Any:
        shape = (coordinates.max(0)[0][1:] + 1).tolist()
        return self.library.SparseConvTensor(features, coordinates, shape, int(coordinates[-1, 0]) + 1)

    def cat(self, x: Any, y: Any) -> Any:
        return x.replace_feature(torch.cat((x.features, y.features), dim=1))

    def features(self, x: Any) -> Any:
        return x.features

    def coordinates(self, x: Any) -> Any:
        return x.indices


BACKENDS = {"torchsparse": _TorchSparse, "minkowski": _Minkowski, "spconv": _Spconv}


def trilinear(points: Any, coordinates: Any, values: Any, stride: int) -> Any:
    """Equals voxel_to_point: interpolates the eight sites around a point, with weights that sum to 1."""
    rows = {tuple(site): row for row, site in enumerate(coordinates.tolist())}
    out = values.new_zeros((len(points), values.shape[1]))
    for i, (sample, *point) in enumerate(points.tolist()):
        total = 0.0
        for corner in itertools.product((0, 1), repeat=3):
            at = [p // stride * stride + stride * c for p, c in zip(point, corner, strict=True)]
            weight = 1.0
            for p, site in zip(point, at, strict=True):
                weight *= 1 - abs(p - site) / stride
            row = rows.get((sample, *at))
            if row is not None and weight:
                out[i] += weight * values[row]
                total += weight
        out[i] /= total + 1e-8
    return out


def averaged(points: Any, coordinates: Any, values: Any, stride: int) -> Any:
    """Equals point_to_voxel: returns the mean of the points' rows at each site."""
    rows = {tuple(site): row for row, site in enumerate(coordinates.tolist())}
    found = torch.tensor([rows[(s, *(v // stride * stride for v in xyz))] for s, *xyz in points.tolist()])
    sums = values.new_zeros((len(coordinates), values.shape[1])).index_add_(0, found, values)
    return sums / torch.bincount(found, minlength=len(coordinates))[:, None]


class _Backbone(nn.Module):
    """mmdetection3d's MinkUNetBackbone. kind: MinkUNet, MinkUNetV2 or SPVCNN."""

    def __init__(self, backend: str, kind: str, widths: tuple[int, ...], depths: tuple[int, ...]) -> None:
        super().__init__()
        make = self.make = BACKENDS[backend]()
        base, encoder, decoder = widths[0], [*widths[:5]], [widths[4], *widths[5:]]
        self.kind, self.levels = kind, []
        self.conv_input = nn.Sequential(make.conv(CHANNELS, base, "subm0"), make.conv(base, base, "subm0"))
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        for i in range(4):
            a, b = encoder[i], encoder[i + 1]
            blocks = [make.block(a if j == 0 else b, b, f"subm{i + 1}") for j in range(depths[i])]
            self.encoder.append(nn.Sequential(make.down(a, a, f"spconv{i + 1}"), *blocks))
            a, b, skip = decoder[i], decoder[i + 1], encoder[-2 - i]
            blocks = [make.block(b + skip if j == 0 else b, b, f"subm{3 - i}") for j in range(depths[4 + i])]
            self.decoder.append(nn.ModuleList([make.up(a, b, f"spconv{4 - i}"), nn.Sequential(*blocks)]))
        if kind == "SPVCNN":
            pairs = ((base, encoder[-1]), (encoder[-1], decoder[2]), (decoder[2], decoder[4]))
            self.point_transforms = nn.ModuleList(
                nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(True)) for a, b in pairs
            )

    def forward(self, features: Any, coordinates: Any) -> Any:
        make = self.make
        x = self.conv_input(make.tensor(features, coordinates))
        points, joined, laterals = make.features(x), [], [x]
        for i, layer in enumerate(self.encoder):
            x = layer(x)
            laterals.append(x)
            self.levels = [*self.levels[:i], make.coordinates(x)]

        def exchange(x: Any, points: Any, index: int, stride: int) -> Any:
            here = make.coordinates(x)
            points = trilinear(coordinates, here, make.features(x), stride) + self.point_transforms[index](points)
            if stride > 1:
                x.F = averaged(coordinates, here, points, stride)
            return points

        if self.kind == "SPVCNN":
            points = exchange(x, points, 0, 16)
        if self.kind == "MinkUNetV2":
            joined.append(trilinear(coordinates, make.coordinates(x), make.features(x), 16))
        for i, layer in enumerate(self.decoder):
            x = layer[1](make.cat(layer[0](x), laterals[3 - i]))
            if self.kind == "SPVCNN" and i == 1:
                points = exchange(x, points, 1, 4)
            if self.kind == "MinkUNetV2" and i % 2 == 1:
                joined.append(trilinear(coordinates, make.coordinates(x), make.features(x), (4, 1)[i // 2]))
        if self.kind == "SPVCNN":
            return exchange(x, points, 2, 1)
        return torch.cat(joined, dim=1) if joined else make.features(x)


class Mmdet3dSegmentor(nn.Module):
    """mmdetection3d's EncoderDecoder3D with a MinkUNetBackbone and a MinkUNetHead."""

    def __init__(
        self,
        backend: str,
        kind: str = "MinkUNet",
        widths: tuple[int, ...] = (4, 6, 8, 10, 12, 11, 9, 7, 6),
        depths: tuple[int, ...] = (2, 3, 1, 2, 2, 1, 2, 2),
    ) -> None:
        super().__init__()
        self.backbone = _Backbone(backend, kind, widths, depths)
        self.decode_head = nn.Module()
        joined = widths[4] + widths[6] + widths[8] if kind == "MinkUNetV2" else widths[8]
        self.decode_head.conv_seg = nn.Linear(joined, CLASSES)

    @property
    def levels(self) -> list[Any]:
        return list(self.backbone.levels)

    def forward(self, features: Any, coordinates: Any) -> Any:
        return self.decode_head.conv_seg(self.backbone(features, coordinates))


# spvnas: core/models/semantic_kitti/minkunet.py. Its SPVCNN has the same names.


class SpvnasMinkUnet(nn.Module):
    """spvnas' MinkUNet. Its state dict has point_transforms, which the forward pass does not use."""

    def __init__(self, widths: tuple[int, ...] = (4, 4, 8, 10, 12, 11, 9, 7, 6)) -> None:
        super().__init__()
        make, spnn = _TorchSparse(), load("torchsparse.nn")
        self.make, self.levels = make, []
        layers = [spnn.Conv3d(CHANNELS, widths[0], 3), spnn.BatchNorm(widths[0]), spnn.ReLU(True)]
        layers += [spnn.Conv3d(widths[0], widths[0], 3), spnn.BatchNorm(widths[0]), spnn.ReLU(True)]
        self.stem = nn.Sequential(*layers)
        for i in range(1, 5):
            a, b = widths[i - 1], widths[i]
            self.add_module(f"stage{i}", nn.Sequential(make.down(a, a, ""), make.block(a, b, ""), make.block(b, b, "")))
        for i in range(1, 5):
            a, b, skip = widths[3 + i], widths[4 + i], widths[4 - i]
            blocks = nn.Sequential(make.block(b + skip, b, ""), make.block(b, b, ""))
            self.add_module(f"up{i}", nn.ModuleList([make.up(a, b, ""), blocks]))
        self.classifier = nn.Sequential(nn.Linear(widths[8], CLASSES))
        pairs = ((widths[0], widths[4]), (widths[4], widths[6]), (widths[6], widths[8]))
        self.point_transforms = nn.ModuleList(
            nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU(True)) for a, b in pairs
        )

    def forward(self, features: Any, coordinates: Any) -> Any:
        x = [self.stem(self.make.tensor(features, coordinates))]
        for i in range(1, 5):
            x.append(getattr(self, f"stage{i}")(x[-1]))
        self.levels = [self.make.coordinates(level) for level in x[1:]]
        y = x[4]
        for i in range(1, 5):
            up, blocks = getattr(self, f"up{i}")
            y = blocks(self.make.cat(up(y), x[4 - i]))
        return self.classifier(y.F)


# Pointcept: pointcept/models/sparse_unet/spconv_unet_v1m1_base.py in a DefaultSegmentor or a DefaultSegmentorV2


class _SpUnet(nn.Module):
    def __init__(self, base: int, channels: tuple[int, ...], layers: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        spconv = self.spconv = load("spconv.pytorch")
        norm = partial(nn.BatchNorm1d, eps=1e-3, momentum=0.01)
        stages = self.num_stages = len(layers) // 2
        self.levels: list[Any] = []

        def sequence(conv: Any, width: int) -> Any:
            return spconv.SparseSequential(conv, norm(width), nn.ReLU())

        def blocks(first: int, width: int, count: int, key: str) -> Any:
            made = []
            for i in range(count):
                a = first if i == 0 else width
                identity = spconv.SparseSequential(nn.Identity())
                conv = partial(spconv.SubMConv3d, kernel_size=1, bias=False)
                proj = identity if a == width else spconv.SparseSequential(conv(a, width), norm(width))
                made.append((f"block{i}", spconv_block(spconv, a, width, key, 1e-3, "proj", proj)))
            return spconv.SparseSequential(OrderedDict(made))

        stem = spconv.SubMConv3d(CHANNELS, base, kernel_size=5, padding=1, bias=False, indice_key="stem")
        self.conv_input = sequence(stem, base)
        self.down, self.up, self.enc, self.dec = (nn.ModuleList() for _ in range(4))
        enc, dec = base, channels[-1]
        for s in range(stages):
            down = spconv.SparseConv3d(enc, channels[s], 2, stride=2, bias=False, indice_key=f"spconv{s + 1}")
            self.down.append(sequence(down, channels[s]))
            self.enc.append(blocks(channels[s], channels[s], layers[s], f"subm{s + 1}"))
            deep = channels[len(channels) - s - 2]
            up = spconv.SparseInverseConv3d(deep, dec, 2, bias=False, indice_key=f"spconv{s + 1}")
            self.up.append(sequence(up, dec))
            self.dec.append(blocks(dec + enc, dec, layers[len(channels) - s - 1], f"subm{s}"))
            enc, dec = channels[s], deep
        final = partial(spconv.SubMConv3d, kernel_size=1, padding=1, bias=True)
        self.final = final(channels[-1], num_classes) if num_classes else nn.Identity()

    def forward(self, features: Any, coordinates: Any) -> Any:
        shape = (coordinates[:, 1:].max(0).values + 96).tolist()
        x = self.spconv.SparseConvTensor(features, coordinates, shape, int(coordinates[-1, 0]) + 1)
        x = self.conv_input(x)
        skips = [x]
        for s in range(self.num_stages):
            x = self.enc[s](self.down[s](x))
            skips.append(x)
        self.levels = [level.indices for level in skips[1:]]
        x = skips.pop()
        for s in reversed(range(self.num_stages)):
            x = self.up[s](x)
            x = x.replace_feature(torch.cat((x.features, skips.pop().features), dim=1))
            x = self.dec[s](x)
        return self.final(x).features


class PointceptSegmentor(nn.Module):
    """Pointcept's segmentor. has_head: a DefaultSegmentorV2, whose classifier is not in the backbone."""

    def __init__(
        self,
        *,
        has_head: bool = False,
        base: int = 4,
        channels: tuple[int, ...] = (4, 8, 12, 10, 6, 7),
        layers: tuple[int, ...] = (1, 2, 1, 2, 1, 3),
    ) -> None:
        super().__init__()
        self.backbone = _SpUnet(base, channels, layers, 0 if has_head else CLASSES)
        self.seg_head = nn.Linear(channels[-1], CLASSES) if has_head else nn.Identity()

    @property
    def levels(self) -> list[Any]:
        return self.backbone.levels

    def forward(self, features: Any, coordinates: Any) -> Any:
        return self.seg_head(self.backbone(features, coordinates))


# MinkowskiEngine: examples/minkunet.py and the _make_layer of examples/resnet.py


class MinkowskiUnet(nn.Module):
    def __init__(
        self,
        layers: tuple[int, ...],
        planes: tuple[int, ...],
        *,
        is_bottleneck: bool = False,
        init_width: int = 32,
        num_classes: int = CLASSES,
    ) -> None:
        super().__init__()
        engine = self.engine = load("MinkowskiEngine")
        blocks = load("MinkowskiEngine.modules.resnet_block")
        self.block = blocks.Bottleneck if is_bottleneck else blocks.BasicBlock
        expansion, self.inplanes = self.block.expansion, init_width
        self.levels: list[Any] = []
        conv = partial(engine.MinkowskiConvolution, dimension=3)
        back = partial(engine.MinkowskiConvolutionTranspose, kernel_size=2, stride=2, dimension=3)
        self.conv0p1s1 = conv(CHANNELS, init_width, kernel_size=5)
        self.bn0 = engine.MinkowskiBatchNorm(init_width)
        for i in range(1, 5):
            self.add_module(f"conv{i}p{2 ** (i - 1)}s2", conv(self.inplanes, self.inplanes, kernel_size=2, stride=2))
            self.add_module(f"bn{i}", engine.MinkowskiBatchNorm(self.inplanes))
            self.add_module(f"block{i}", self._make_layer(planes[i - 1], layers[i - 1]))
        for i in range(4, 8):
            self.add_module(f"convtr{i}p{2 ** (8 - i)}s2", back(self.inplanes, planes[i]))
            self.add_module(f"bntr{i}", engine.MinkowskiBatchNorm(planes[i]))
            self.inplanes = planes[i] + (planes[6 - i] * expansion if i < 7 else init_width)
            self.add_module(f"block{i + 1}", self._make_layer(planes[i], layers[i]))
        self.final = conv(planes[7] * expansion, num_classes, kernel_size=1, bias=True)
        self.relu = engine.MinkowskiReLU(inplace=True)

    def _make_layer(self, planes: int, blocks: int) -> Any:
        engine, out, downsample = self.engine, planes * self.block.expansion, None
        if self.inplanes != out:
            conv = engine.MinkowskiConvolution(self.inplanes, out, kernel_size=1, stride=1, dimension=3)
            downsample = nn.Sequential(conv, engine.MinkowskiBatchNorm(out))
        made = [self.block(self.inplanes, planes, downsample=downsample, dimension=3)]
        self.inplanes = out
        return nn.Sequential(*made, *(self.block(out, planes, dimension=3) for _ in range(1, blocks)))

    def forward(self, features: Any, coordinates: Any) -> Any:
        x = self.relu(self.bn0(self.conv0p1s1(self.engine.SparseTensor(features, coordinates))))
        skips = [x]
        for i in range(1, 5):
            x = getattr(self, f"conv{i}p{2 ** (i - 1)}s2")(x)
            x = getattr(self, f"block{i}")(self.relu(getattr(self, f"bn{i}")(x)))
            skips.append(x)
        self.levels = [level.C for level in skips[1:]]
        for i in range(4, 8):
            x = self.relu(getattr(self, f"bntr{i}")(getattr(self, f"convtr{i}p{2 ** (8 - i)}s2")(x)))
            x = getattr(self, f"block{i + 1}")(self.engine.cat(x, skips[7 - i]))
        return self.final(x).F
