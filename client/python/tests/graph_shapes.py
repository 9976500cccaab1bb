"""Computes each node's channels, level and spatial shape, and checks the shapes of a network's tensors against them.

Written from the comments of proto/voxserve/model/v1/model.proto, for the operators that voxserve.export.networks uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from google.protobuf import text_format

from voxserve import wire
from voxserve.export import Network

CONV = wire.message_class("voxserve.model.v1.SparseConv")
POINTS, BOXES, LABELS = "points", "boxes", "labels"


def parse(network: Network) -> Any:
    return text_format.Parse(network.to_textproto("A notice."), wire.Model())


@dataclass(frozen=True)
class Result:
    """A node's result. level: a tuple that says how the result's sites are computed, or "image", POINTS or BOXES."""

    level: Any
    channels: int
    shape: tuple[int, ...] = ()  # for sites: cells per axis, if known; for an image: rows, columns


class Shapes:
    """Checks a network. results: by node name. Raises AssertionError with the node's name if shapes disagree."""

    def __init__(self, network: Network) -> None:
        self.model = parse(network)
        self.nodes = {node.name: node for node in self.model.nodes}
        assert len(self.nodes) == len(self.model.nodes), "two nodes of one name"
        self.dimension = self.model.dimension or 3
        self.results: dict[str, Result] = {}
        self._wanted: dict[str, tuple[int, ...]] = {}
        self._inputs: dict[str, Result] = {}  # the inputs of strided nodes, which inverse convolutions return to
        used = set()
        for node in self.model.nodes:
            used |= set(node.inputs)
            kind = node.WhichOneof("op")
            inputs = [self.results[name] for name in node.inputs]
            if kind == "voxelize":
                self._voxels = node.name
            self.results[node.name] = getattr(self, f"_{kind}")(node.name, getattr(node, kind), *inputs)
        for output in self.model.outputs:
            used.add(output.node)
        assert used == set(self.nodes), set(self.nodes) ^ used
        stored = {name: tuple(tensor.shape) for name, tensor in network.tensors.items()}
        assert stored == self._wanted, {k: (stored.get(k), self._wanted.get(k)) for k in stored | self._wanted}

    def _voxelize(self, name, op):
        assert len(op.voxel_size) == self.dimension, name
        shape: tuple[int, ...] = ()
        if op.origin == op.ORIGIN_RANGE:
            ranges = zip(op.range_min, op.range_max, op.voxel_size, strict=True)
            shape = tuple(round((high - low) / size) for low, high, size in ranges)
            if op.spatial_shape:
                assert all(a >= b for a, b in zip(op.spatial_shape, shape, strict=True)), name
                shape = tuple(op.spatial_shape)
        return Result(("voxels",), len(op.features), shape)

    def _sparse_conv(self, name, op, x):
        assert isinstance(x.level, tuple), f"{name} needs sites"
        kernel = tuple(op.kernel_size)
        volume = math.prod(kernel)
        if op.offsets:
            volume = len(op.offsets) // self.dimension
        elif op.kernel_shape == op.KERNEL_SHAPE_CROSS:
            volume = 1 + sum(k - 1 for k in kernel)
        out = Result(x.level, op.out_channels, x.shape)
        if op.kind == op.KIND_INVERSE:
            paired, partner = self._inputs[op.paired_with], self.nodes[op.paired_with].sparse_conv
            assert x.level == self.results[op.paired_with].level, f"{name} is not where {op.paired_with} led"
            out, volume = Result(paired.level, op.out_channels, paired.shape), math.prod(partner.kernel_size)
        elif op.kind == op.KIND_STRIDED:
            assert len(kernel) == len(op.stride) == self.dimension, name
            self._inputs[name] = x
            out = self._strided(x, op, kernel, op.out_channels)
        else:
            assert op.kind == op.KIND_SUBMANIFOLD, name
            assert op.offsets or len(kernel) == self.dimension, name
        self._take(name, "weight", (volume, x.channels, op.out_channels))
        if op.bias:
            self._take(name, "bias", (op.out_channels,))
        return out

    @staticmethod
    def _strided(x, op, kernel, channels):
        padding, stride = tuple(op.padding), tuple(op.stride)
        if op.rule == CONV.RULE_PADDED:
            sizes = zip(x.shape, kernel, stride, padding, strict=True)
            shape = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in sizes)
            assert min(shape) >= 1, shape
            return Result((*x.level, "padded", kernel, stride, padding), channels, shape)
        assert not padding
        floor = op.rule == CONV.RULE_FLOOR
        shape = tuple((n - 1) // s + 1 for n, s in zip(x.shape, stride, strict=False)) if floor else ()
        rule = ("floor", stride) if floor else ("expand", kernel, stride)
        return Result((*x.level, *rule), channels, shape)

    def _batch_norm(self, name, op, x):
        for part in ("weight", "bias", "running_mean", "running_var"):
            self._take(name, part, (x.channels,))
        return x

    def _activation(self, _name, _op, x):
        return x

    def _linear(self, name, op, x):
        self._take(name, "weight", (op.out_channels, x.channels))
        if op.bias:
            self._take(name, "bias", (op.out_channels,))
        return Result(x.level, op.out_channels, x.shape)

    def _pool(self, name, op, x):
        kernel, stride = tuple(op.kernel_size), tuple(op.stride)
        if op.kind == CONV.KIND_TRANSPOSED:
            shape = tuple((n - 1) * s + k for n, s, k in zip(x.shape, stride, kernel, strict=True))
            return Result((*x.level, "transposed", kernel, stride), x.channels, shape)
        assert (op.kind, op.rule) == (CONV.KIND_STRIDED, CONV.RULE_FLOOR), name
        return self._strided(x, op, kernel, x.channels)

    def _add(self, name, op, a, b):
        if op.sites == wire.SITES_UNION:
            assert a.channels == b.channels, (name, a, b)
            shape = tuple(max(n, m) for n, m in zip(a.shape, b.shape, strict=True))
            return Result(("union", a.level, b.level), a.channels, shape)
        assert a == b, (name, a, b)
        return a

    def _point_features(self, name, _op, voxels):
        assert voxels.level == ("voxels",), name
        return Result(POINTS, voxels.channels)

    def _point_offsets(self, name, _op, voxels):
        assert voxels.level == ("voxels",), name
        return Result(POINTS, self.dimension)

    def _concat(self, name, _op, *parts):
        assert len({(p.level, p.shape) for p in parts}) == 1, (name, parts)
        return Result(parts[0].level, sum(p.channels for p in parts), parts[0].shape)

    def _argmax(self, _name, _op, x):
        return Result((LABELS, x.level), 1)

    def _voxel_to_point(self, name, _op, x, voxels):
        assert voxels.level == ("voxels",), name
        assert x.level in (("voxels",), (LABELS, ("voxels",))), name
        return Result((LABELS, POINTS) if x.level[0] == LABELS else POINTS, x.channels)

    def _devoxelize(self, name, _op, x, onto):
        assert {type(x.level), type(onto.level)} == {tuple}, name
        assert x.level[: len(onto.level)] == onto.level, name
        is_of_points = self.nodes[self.nodes[name].inputs[1]].WhichOneof("op") == "voxelize"
        return Result(POINTS, x.channels) if is_of_points else Result(onto.level, x.channels, onto.shape)

    def _point_to_voxel(self, name, op, x, *others):
        voxels = others[-1] if others else None
        if op.has_empty_slots:
            assert (others[0].level, others[0].channels, len(others)) == (("voxels",), x.channels, 2), name
        sites = self.results[op.sites_of or self._voxels]
        if voxels is None:
            assert sites.level[: len(x.level)] == x.level, name
        else:
            assert (x.level, voxels.level) == (POINTS, ("voxels",)), name
        return Result(sites.level, x.channels, sites.shape)

    def _global_pool(self, name, _op, x):
        assert isinstance(x.level, tuple), name
        return Result("sample", x.channels)

    def _sample_rows(self, name, op):
        self._take(name, "weight", (op.num_rows, op.channels))
        return Result("sample", op.channels, (op.num_rows,))

    def _attention(self, name, _op, queries, keys, values):
        assert queries.channels == keys.channels, name
        assert (keys.level, keys.shape) == (values.level, values.shape), name
        return Result(queries.level, values.channels, queries.shape)

    def _to_bev(self, _name, _op, x):
        columns, rows, depth = x.shape
        return Result("image", x.channels * depth, (rows, columns))

    def _conv2d(self, name, op, x):
        kernel = tuple(op.kernel_size)
        self._take(name, "weight", (op.out_channels, x.channels, *kernel))
        if op.bias:
            self._take(name, "bias", (op.out_channels,))
        stride, padding = (list(op.stride) or [1])[0], (list(op.padding) or [0])[0]
        shape = tuple((n + 2 * padding - k) // stride + 1 for n, k in zip(x.shape, kernel, strict=True))
        return Result("image", op.out_channels, shape)

    def _conv_transpose2d(self, name, op, x):
        kernel = tuple(op.kernel_size)
        self._take(name, "weight", (x.channels, op.out_channels, *kernel))
        stride = (list(op.stride) or [1])[0]
        shape = tuple((n - 1) * stride + k for n, k in zip(x.shape, kernel, strict=True))
        return Result("image", op.out_channels, shape)

    def _center_head_decode(self, name, op, *images):
        assert [i.channels for i in images] == [len(op.class_ids), 2, 1, 3, 2, *([2] if op.has_velocity else [])], name
        assert len({(i.level, i.shape) for i in images}) == 1, name
        return Result(BOXES, 0)

    def _anchor_head_decode(self, name, op, *images):
        anchors = sum(len(a.rotations) for a in op.anchors)
        wanted = [anchors * len(op.anchors), anchors * 7, anchors * op.num_direction_bins]
        assert [i.channels for i in images] == wanted, name
        return Result(BOXES, 0)

    def _nms(self, name, _op, *boxes):
        assert all(b.level == BOXES for b in boxes), name
        return Result(BOXES, 0)

    def _take(self, name, part, shape):
        assert f"{name}.{part}" not in self._wanted
        self._wanted[f"{name}.{part}"] = shape
