"""SPVCNN, computed from its definition over dicts of sites, in float64 NumPy. network_definitions.py says what the
results are compared with.
"""

from __future__ import annotations

import itertools

import numpy as np

VOXEL_SIZE = (0.2, 0.2, 0.2)  # metres


class Spvcnn:
    """spvnas' core/models/semantic_kitti/spvcnn.py over dicts of sites. Its point branch has one point for each voxel,
    at the voxel's coordinates.
    """

    def __init__(self, state) -> None:
        self.state = {name: values.astype(np.float64) for name, values in state.items()}

    def run(self, cloud):
        """cloud: float32 [N, 4]. Returns the logits of each point's voxel, [N, classes]."""
        index = np.round(cloud[:, :3] / np.float32(VOXEL_SIZE)).astype(np.int64)
        index -= index.min(axis=0)
        points, first, inverse = np.unique(index, axis=0, return_index=True, return_inverse=True)
        features = cloud[first].astype(np.float64)

        x0 = self._stem(points, features)
        z0 = self._voxel_to_point(points, points, x0, 1)
        x1 = self._point_to_voxel(points, points, z0, 1)
        levels, skips = [points], [x0]
        x = x1
        for stage in range(1, 5):
            x = self._stage(stage, levels, x)
            skips.append(x)
        z1 = self._voxel_to_point(points, levels[4], x, 16) + self._transform(0, z0)
        y = self._point_to_voxel(points, levels[4], z1, 16)
        y = self._up(1, levels, y, skips)
        y = self._up(2, levels, y, skips)
        z2 = self._voxel_to_point(points, levels[2], y, 4) + self._transform(1, z1)
        y = self._point_to_voxel(points, levels[2], z2, 4)
        y = self._up(3, levels, y, skips)
        y = self._up(4, levels, y, skips)
        z3 = self._voxel_to_point(points, points, y, 1) + self._transform(2, z2)
        logits = z3 @ self.state["classifier.0.weight"].T + self.state["classifier.0.bias"]
        return logits[inverse.reshape(-1)]

    def _stem(self, sites, x):
        for conv, norm in ((0, 1), (3, 4)):
            x = self._norm(f"stem.{norm}", self._conv3(f"stem.{conv}", sites, x)).clip(0)
        return x

    def _stage(self, stage, levels, x):
        fine = levels[-1]
        coarse = np.unique(fine // 2, axis=0)
        levels.append(coarse)
        key = f"stage{stage}"
        rows = row_of(coarse)
        y = np.zeros((len(coarse), self.state[f"{key}.0.net.0.kernel"].shape[2]))
        for site, row in zip(fine, x, strict=True):
            # In kernels with an even number of cells, TorchSparse's last axis runs fastest.
            k = int((site % 2) @ (4, 2, 1))
            y[rows[tuple(site // 2)]] += row @ self.state[f"{key}.0.net.0.kernel"][k]
        y = self._norm(f"{key}.0.net.1", y).clip(0)
        return self._residual(f"{key}.2", coarse, self._residual(f"{key}.1", coarse, y))

    def _up(self, up, levels, x, skips):
        fine, coarse = levels[4 - up], row_of(levels[5 - up])
        kernel = self.state[f"up{up}.0.net.0.kernel"]
        y = np.array([x[coarse[tuple(s // 2)]] @ kernel[int((s % 2) @ (4, 2, 1))] for s in fine])
        y = np.concatenate([self._norm(f"up{up}.0.net.1", y).clip(0), skips[4 - up]], axis=1)
        return self._residual(f"up{up}.1.1", fine, self._residual(f"up{up}.1.0", fine, y))

    def _residual(self, key, sites, x):
        y = self._norm(f"{key}.net.1", self._conv3(f"{key}.net.0", sites, x)).clip(0)
        y = self._norm(f"{key}.net.4", self._conv3(f"{key}.net.3", sites, y))
        if f"{key}.downsample.0.kernel" in self.state:
            x = self._norm(f"{key}.downsample.1", x @ self.state[f"{key}.downsample.0.kernel"])
        return (y + x).clip(0)

    def _conv3(self, key, sites, x):
        kernel = self.state[f"{key}.kernel"]
        rows = row_of(sites)
        out = np.zeros((len(sites), kernel.shape[2]))
        # In kernels with an odd number of cells, TorchSparse's first axis runs fastest.
        for k, (dz, dy, dx) in enumerate(itertools.product((-1, 0, 1), repeat=3)):
            found = np.array([rows.get((a + dx, b + dy, c + dz), -1) for a, b, c in sites.tolist()])
            out[found >= 0] += x[found[found >= 0]] @ kernel[k]
        return out

    def _norm(self, key, x):
        mean, var, weight, bias = (self.state[f"{key}.{p}"] for p in ("running_mean", "running_var", "weight", "bias"))
        return (x - mean) / np.sqrt(var + 1e-5) * weight + bias

    def _transform(self, index, z):
        key = f"point_transforms.{index}"
        return self._norm(f"{key}.1", z @ self.state[f"{key}.0.weight"].T + self.state[f"{key}.0.bias"]).clip(0)

    @staticmethod
    def _voxel_to_point(points, sites, x, stride):
        """Interpolates trilinearly. The weights of the neighbours that exist are divided by their sum + 1e-8."""
        rows = row_of(sites)
        out = np.zeros((len(points), x.shape[1]))
        for i, point in enumerate(points):
            position = point / stride
            base = np.floor(position).astype(int)
            total = 0.0
            for corner in itertools.product((0, 1), repeat=3):
                row = rows.get(tuple((base + corner).tolist()))
                weight = np.prod(np.where(corner, position - base, 1 - (position - base)))
                if row is not None:
                    out[i] += weight * x[row]
                    total += weight
            out[i] /= total + 1e-8
        return out

    @staticmethod
    def _point_to_voxel(points, sites, z, stride):
        rows = row_of(sites)
        found = np.array([rows[tuple(p)] for p in (points // stride).tolist()])
        out = np.zeros((len(sites), z.shape[1]))
        np.add.at(out, found, z)
        return out / np.bincount(found, minlength=len(sites))[:, None]


def row_of(sites):
    return {tuple(site): row for row, site in enumerate(sites.tolist())}
