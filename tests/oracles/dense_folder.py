"""Runs a detector's model folder as plain dense tensors in float64, up to the inputs of its heads.

It is written only from the operators' definitions in proto/voxserve/model/v1/model.proto. Tensors on sites are dense
[C, x, y, z] with a mask, images are [C, rows, columns], and tensors on points are [C, points]. It has voxelize (FLOOR,
RANGE, MEAN), submanifold convolutions and strided ones of RULE_PADDED, batch norm, linear, ReLU, add, concat, to_bev,
conv2d, conv_transpose2d, and the operators on points that pillar networks use. Points out of the range are left out.
Needs torch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from google.protobuf import text_format
from minkunet_numpy import load_tensors

from voxserve import wire

_POOL = wire.message_class("voxserve.model.v1.Pool")
_CONV = wire.message_class("voxserve.model.v1.SparseConv")


class DenseFolder:
    """run(points) returns the output of every node that the heads read, by the node's name."""

    def __init__(self, folder: Path) -> None:
        self._model = wire.Model()
        text_format.Parse((folder / "model.textproto").read_text(), self._model)
        tensors = load_tensors(folder / "weights.safetensors")
        self._tensors = {name: torch.from_numpy(values.astype(np.float64)) for name, values in tensors.items()}

    def run(self, points: np.ndarray) -> dict[str, torch.Tensor]:
        """points: float32 [N, fields], in the order of the voxelize node's features."""
        values: dict[str, torch.Tensor] = {}
        masks: dict[str, torch.Tensor] = {}
        for node in self._model.nodes:
            op = node.WhichOneof("op")
            if op in ("center_head_decode", "anchor_head_decode", "nms"):
                continue
            inputs = [values[name] for name in node.inputs]
            mask = masks.get(node.inputs[0]) if node.inputs else None
            if op in ("point_features", "point_offsets", "voxel_to_point"):
                mask = None
            elif op == "point_to_voxel":
                mask = masks[node.inputs[-1]]
            if op == "voxelize":
                values[node.name], mask = self._voxelize(node.voxelize, points)
            elif op == "sparse_conv":
                values[node.name], mask = self._sparse_conv(node, inputs[0], mask)
            elif op == "to_bev":
                values[node.name], mask = inputs[0].permute(0, 3, 2, 1).flatten(0, 1), None
            else:
                values[node.name] = getattr(self, f"_{op}")(node, *inputs)
            if mask is not None:
                values[node.name] = values[node.name] * mask
                masks[node.name] = mask
        return values

    def _voxelize(self, op, points):
        assert (op.rounding, op.origin, op.reduce) == (op.ROUNDING_FLOOR, op.ORIGIN_RANGE, op.REDUCE_MEAN)
        low, high, size = (np.float32(v) for v in (op.range_min, op.range_max, op.voxel_size))
        points = points[((points[:, :3] >= low) & (points[:, :3] < high)).all(axis=1)]
        shape = tuple(op.spatial_shape) or tuple(np.round((high - low) / size).astype(int).tolist())
        dense = torch.zeros((len(op.features), *shape), dtype=torch.float64)
        counts = torch.zeros(shape, dtype=torch.float64)
        columns = np.zeros((len(points), len(op.features)))
        for i, feature in enumerate(op.features):
            value = points[:, i].astype(np.float64) if i < points.shape[1] else feature.default_value
            columns[:, i] = value * (feature.scale if feature.HasField("scale") else 1) + feature.shift
        cells = np.floor((points[:, :3] - low) / size).astype(int)
        self._columns, self._points = torch.from_numpy(columns).T, torch.from_numpy(points[:, :3].astype(np.float64)).T
        self._cells, self._centers = cells, torch.from_numpy((cells + 0.5) * size.astype(np.float64) + low).T
        self._shape = tuple(dense.shape[1:])
        for cell, row in zip(map(tuple, cells.tolist()), torch.from_numpy(columns), strict=True):
            if op.max_points_per_voxel == 0 or counts[cell] < op.max_points_per_voxel:
                dense[(slice(None), *cell)] += row
                counts[cell] += 1
        return dense / counts.clamp(min=1), (counts > 0).double()

    def _sparse_conv(self, node, x, mask):
        op = node.sparse_conv
        kernel = tuple(op.kernel_size)
        # The weights are [K, in, out]. K counts the kernel's cells with the last axis fastest.
        weight = self._tensors[f"{node.name}.weight"]
        weight = weight.reshape(*kernel, *weight.shape[1:]).permute(4, 3, 0, 1, 2)
        bias = self._tensors[f"{node.name}.bias"] if op.bias else None
        if op.kind == _CONV.KIND_SUBMANIFOLD:
            padding = [k // 2 for k in kernel]
            return torch.nn.functional.conv3d(x[None], weight, bias, padding=padding)[0], mask
        assert (op.kind, op.rule) == (_CONV.KIND_STRIDED, _CONV.RULE_PADDED)
        steps = {"stride": tuple(op.stride), "padding": tuple(op.padding)}
        reached = torch.nn.functional.conv3d(mask[None, None], torch.ones(1, 1, *kernel, dtype=torch.float64), **steps)
        return torch.nn.functional.conv3d(x[None], weight, bias, **steps)[0], (reached[0, 0] > 0).double()

    def _point_features(self, _node, _voxels):
        return self._columns

    def _point_offsets(self, node, _voxels):
        op = node.point_offsets
        if op.reference == op.REFERENCE_CENTER:
            return self._points - self._centers
        return self._points - self._of_points(self._reduced(self._points, "mean", op.max_points)[0])

    def _point_to_voxel(self, node, x, *others):
        op = node.point_to_voxel
        assert op.reduce == _POOL.REDUCE_MAX
        most, counts = self._reduced(x, "largest", op.max_points)
        if op.has_empty_slots:
            most = torch.where(counts < op.max_points, torch.maximum(most, others[0]), most)
        return most

    def _voxel_to_point(self, _node, x, _voxels):
        return self._of_points(x)

    def _of_points(self, dense):
        """Returns the value of each point's voxel: [C, points] from [C, x, y, z]."""
        return dense[(slice(None), *self._cells.T)]

    def _reduced(self, x, reduce, max_points):
        """Reduces each voxel's first `max_points` points by mean or maximum. Returns the results [C, x, y, z] and how
        many points each voxel has.
        """
        flat = np.ravel_multi_index(self._cells.T, self._shape)
        order = np.argsort(flat, kind="stable")
        begins = np.searchsorted(flat[order], flat[order])
        rank = np.empty_like(flat)
        rank[order] = np.arange(len(flat)) - begins
        first = np.flatnonzero(rank < (max_points or len(flat)))
        cells, rows = flat[first], x.numpy().T[first]
        size = int(np.prod(self._shape))
        if reduce == "mean":
            result = np.zeros((size, len(x)))
            np.add.at(result, cells, rows)
            result /= np.maximum(np.bincount(cells, minlength=size), 1)[:, None]
        else:
            result = np.full((size, len(x)), -np.inf)
            np.maximum.at(result, cells, rows)
            result[np.isinf(result)] = 0
        counts = torch.from_numpy(np.bincount(flat, minlength=size))
        return torch.from_numpy(result.T).reshape(-1, *self._shape), counts.reshape(self._shape)

    def _linear(self, node, x):
        assert not node.linear.bias
        return torch.einsum("oi,i...->o...", self._tensors[f"{node.name}.weight"], x)

    def _batch_norm(self, node, x):
        parts = ("running_mean", "running_var", "weight", "bias")
        values = [self._tensors[f"{node.name}.{part}"] for part in parts]
        return torch.nn.functional.batch_norm(x[None], *values, training=False, eps=node.batch_norm.epsilon)[0]

    def _activation(self, node, x):
        assert node.activation.function == node.activation.FUNCTION_RELU
        return x.clamp(min=0)

    def _add(self, _node, a, b):
        return a + b

    def _concat(self, _node, *parts):
        return torch.cat(parts)

    def _conv2d(self, node, x):
        op = node.conv2d
        bias = self._tensors[f"{node.name}.bias"] if op.bias else None
        stride, padding = list(op.stride) or [1], list(op.padding) or [0]
        weight = self._tensors[f"{node.name}.weight"]
        return torch.nn.functional.conv2d(x[None], weight, bias, stride=stride, padding=padding)[0]

    def _conv_transpose2d(self, node, x):
        weight, op = self._tensors[f"{node.name}.weight"], node.conv_transpose2d
        return torch.nn.functional.conv_transpose2d(x[None], weight, stride=list(op.stride) or [1])[0]
