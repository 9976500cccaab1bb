"""Runs a model folder in plain NumPy. The engine and the exporter are tested against it.

It is written only from the operators' definitions in proto/voxserve/model/v1/model.proto and shares no code with the
engine or the exporter. It walks the nodes of model.textproto in order, in float32, without folding or fusing. It has
the operators of MinkUNet and SPVCNN: voxelize (HALF_EVEN, MINIMUM, FIRST), submanifold, FLOOR-strided and inverse
convolutions of three axes, batch norm, linear, ReLU, add, concat, argmax, voxel_to_point, and for SPVCNN's points
devoxelize and point_to_voxel.
"""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from google.protobuf import text_format

from voxserve import wire


@dataclass(frozen=True)
class Sparse:
    """Sites [M, 3] in lexicographic order and their features [M, C]. Neighbouring sites of this level are `unit` voxels
    apart.
    """

    sites: np.ndarray
    features: np.ndarray
    unit: int = 1


def load_tensors(path: Path) -> dict[str, np.ndarray]:
    """Returns the tensors of a safetensors file as float32, by name."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    kinds = {"F16": np.float16, "F32": np.float32}
    return {
        name: np.frombuffer(raw[8 + size :][slice(*entry["data_offsets"])], kinds[entry["dtype"]])
        .reshape(entry["shape"])
        .astype(np.float32)
        for name, entry in header.items()
        if name != "__metadata__"
    }


class MinkUNet:
    """run(points) returns the output of every node by the node's name."""

    def __init__(self, folder: Path) -> None:
        self._model = wire.Model()
        text_format.Parse((folder / "model.textproto").read_text(), self._model)
        self._tensors = load_tensors(folder / "weights.safetensors")

    def run(self, points: np.ndarray, last: str = "") -> dict[str, Sparse]:
        """points: float32 [N, 4], finite. The columns are in the order of the voxelize node's features. `last` names
        the node after which the run ends.
        """
        self._inverse_map = np.zeros(0, np.int64)
        self._sites_before: dict[str, np.ndarray] = {}
        self._kernels: dict[str, list[int]] = {}
        self._neighbours: dict[tuple[int, tuple[int, ...]], list[tuple[np.ndarray, np.ndarray]]] = {}
        self._levels: list[np.ndarray] = []
        values: dict[str, Sparse] = {}
        for node in self._model.nodes:
            inputs = [values[name] for name in node.inputs]
            if node.WhichOneof("op") == "point_to_voxel":
                inputs.append(values[node.point_to_voxel.sites_of])
            op = node.WhichOneof("op")
            values[node.name] = getattr(self, f"_{op}")(node, points if op == "voxelize" else None, *inputs)
            if node.name == last:
                break
        return values

    def _voxelize(self, node, points):
        op = node.voxelize
        assert (op.rounding, op.origin, op.reduce) == (op.ROUNDING_HALF_EVEN, op.ORIGIN_MINIMUM, op.REDUCE_FIRST)
        index = np.round(points[:, :3] / np.array(op.voxel_size, np.float32)).astype(np.int64)
        sites, first, inverse = np.unique(index - index.min(axis=0), axis=0, return_index=True, return_inverse=True)
        self._inverse_map = inverse.reshape(-1)
        return Sparse(sites, points[first].astype(np.float32))

    def _sparse_conv(self, node, _, x):
        op = node.sparse_conv
        weight = self._tensors[f"{node.name}.weight"]
        if op.kind == op.KIND_SUBMANIFOLD:
            return self._submanifold(x, weight, list(op.kernel_size))
        if op.kind == op.KIND_STRIDED:
            assert op.rule == op.RULE_FLOOR
            assert list(op.kernel_size) == list(op.stride)
            self._sites_before[node.name], self._kernels[node.name] = x.sites, list(op.stride)
            return self._strided(x, weight, list(op.stride))
        return self._inverse(x, weight, self._sites_before[op.paired_with], self._kernels[op.paired_with])

    def _submanifold(self, x, weight, kernel):
        out = np.zeros((len(x.sites), weight.shape[2]), np.float32)
        for k, (hit, rows) in enumerate(self._neighbours_of(x.sites, tuple(kernel))):
            out[hit] += x.features[rows] @ weight[k]
        return Sparse(x.sites, out, x.unit)

    def _neighbours_of(self, sites, kernel):
        """Returns, for each cell of a centred kernel, the rows of the sites that have that neighbour and the rows of
        the neighbours. The search runs once for each level.
        """
        key = (id(sites), kernel)
        if key not in self._neighbours:
            reach = [range(-(k // 2), k // 2 + 1) for k in kernel]
            found = []
            for delta in itertools.product(*reach):  # itertools.product runs the last axis fastest, as the weights do.
                rows = _find(sites, sites + delta)
                found.append((np.flatnonzero(rows >= 0), rows[rows >= 0]))
            self._neighbours[key] = found
            self._levels.append(sites)  # The reference keeps the array alive, so that id(sites) stays unique.
        return self._neighbours[key]

    def _strided(self, x, weight, stride):
        sites = np.unique(x.sites // stride, axis=0)
        out = np.zeros((len(sites), weight.shape[2]), np.float32)
        for k, delta in enumerate(itertools.product(*map(range, stride))):
            rows = _find(x.sites, sites * stride + delta)
            hit = rows >= 0
            out[hit] += x.features[rows[hit]] @ weight[k]
        return Sparse(sites, out, x.unit * stride[0])

    def _inverse(self, x, weight, sites, stride):
        out = np.zeros((len(sites), weight.shape[2]), np.float32)
        parents = _find(x.sites, sites // stride)
        for k, delta in enumerate(itertools.product(*map(range, stride))):
            hit = (sites % stride == delta).all(axis=1)
            out[hit] = x.features[parents[hit]] @ weight[k]
        return Sparse(sites, out, x.unit // stride[0])

    def _batch_norm(self, node, _, x):
        mean, variance, weight, bias = (
            self._tensors[f"{node.name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")
        )
        scaled = (x.features - mean) / np.sqrt(variance + np.float32(node.batch_norm.epsilon))
        return Sparse(x.sites, scaled * weight + bias, x.unit)

    def _linear(self, node, _, x):
        bias = self._tensors[f"{node.name}.bias"] if node.linear.bias else np.float32(0)
        return Sparse(x.sites, x.features @ self._tensors[f"{node.name}.weight"].T + bias, x.unit)

    def _activation(self, _node, _, x):
        return Sparse(x.sites, np.maximum(x.features, 0), x.unit)

    def _add(self, _node, _, a, b):
        return Sparse(a.sites, a.features + b.features, a.unit)

    def _concat(self, _node, _, *parts):
        return Sparse(parts[0].sites, np.concatenate([p.features for p in parts], axis=1), parts[0].unit)

    def _argmax(self, _node, _, x):
        return Sparse(x.sites, x.features.argmax(axis=1).astype(np.uint8)[:, None])

    def _voxel_to_point(self, _node, _, x, _voxels):
        return Sparse(x.sites[self._inverse_map], x.features[self._inverse_map])

    def _devoxelize(self, _node, _, x, onto):
        position = onto.sites * onto.unit / x.unit
        low = np.floor(position).astype(np.int64)
        out, total = np.zeros((len(position), x.features.shape[1])), np.zeros((len(position), 1))
        for corner in itertools.product((0, 1), repeat=3):
            rows = _find(x.sites, low + corner)
            weight = np.prod(1 - np.abs(position - (low + corner)), axis=1)[:, None] * (rows >= 0)[:, None]
            out += weight * x.features[rows]
            total += weight
        return Sparse(onto.sites, (out / (total + 1e-8)).astype(np.float32), onto.unit)

    def _point_to_voxel(self, node, _, x, onto):
        assert node.point_to_voxel.reduce == wire.message_class("voxserve.model.v1.Pool").REDUCE_AVERAGE
        rows = _find(onto.sites, x.sites * x.unit // onto.unit)
        out = np.zeros((len(onto.sites), x.features.shape[1]))
        np.add.at(out, rows, x.features)
        count = np.bincount(rows, minlength=len(out))[:, None]
        return Sparse(onto.sites, (out / np.maximum(count, 1)).astype(np.float32), onto.unit)


def _find(sites: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the row of each wanted site in `sites`, or -1. The sites are in lexicographic order and not negative."""
    extent = sites.max(axis=0) + 1
    scale = np.array([extent[1] * extent[2], extent[2], 1])
    keys = sites @ scale
    rows = np.searchsorted(keys, wanted @ scale).clip(max=len(keys) - 1)
    inside = ((wanted >= 0) & (wanted < extent)).all(axis=1)
    return np.where(inside & (keys[rows] == wanted @ scale), rows, -1)


def main() -> int:
    """Writes coords, logits and labels of one scan: minkunet_numpy.py MODEL_VERSION_FOLDER SCAN.bin OUT.npz."""
    folder, scan, out = map(Path, sys.argv[1:])
    values = MinkUNet(folder).run(np.fromfile(scan, np.float32).reshape(-1, 4))
    logits = values["classifier"]
    np.savez_compressed(
        out, coords=logits.sites.astype(np.int32), logits=logits.features, label=values["labels"].features[:, 0]
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
