"""MinkowskiEngine's MinkUNet and TorchSparse's SparseResNet21D, computed from their definitions over lists of sites.

The code is NumPy in float64. network_definitions.py says what the results are compared with.
"""

from __future__ import annotations

import itertools

import numpy as np
from spvcnn_definition import row_of


def cells_of_box(sizes):
    """Returns the offsets of a kernel's cells in the order of its weights. Odd sizes are centred on the site, even ones
    start at it. The first axis runs fastest, as in MinkowskiEngine, and as in TorchSparse if the kernel has an odd
    number of cells.
    """
    ranges = [range(-(size // 2), size // 2 + 1) if size % 2 else range(size) for size in sizes]
    return [tuple(reversed(cell)) for cell in itertools.product(*reversed(ranges))]


def cells_of_cross(dimension):
    """Returns the cells of MinkowskiEngine's HYPER_CROSS of size 3: the centre, then +1 and -1 on each axis."""
    cells = [(0,) * dimension]
    for axis, step in itertools.product(range(dimension), (1, -1)):
        cells.append(tuple(step if a == axis else 0 for a in range(dimension)))
    return cells


def cells_of_cube_cross():
    """Returns the cells of a cube in space and two neighbours in time, in the exporter's own order: the cube with its
    last axis fastest, then the steps before and after.
    """
    cube = [(*cell, 0) for cell in itertools.product((-1, 0, 1), repeat=3)]
    return [*cube, (0, 0, 0, -1), (0, 0, 0, 1)]


def convolution(sites, x, sites_out, stride, kernel, cells):
    """Returns out[s] = the sum over k of x[s * stride + cells[k]] @ kernel[k], over those inputs that exist."""
    assert len(kernel) == len(cells)
    rows = row_of(sites)
    out = np.zeros((len(sites_out), kernel.shape[2]))
    for weight, cell in zip(kernel, cells, strict=True):
        found = np.array([rows.get(tuple(s), -1) for s in (sites_out * stride + cell).tolist()])
        out[found >= 0] += x[found[found >= 0]] @ weight
    return out


def transposed_convolution(sites, x, sites_out, stride, kernel, cells):
    """Computes out[s * stride + cells[k]] += x[s] @ kernel[k] for all s and k, at those output sites that exist."""
    assert len(kernel) == len(cells)
    rows = row_of(sites_out)
    out = np.zeros((len(sites_out), kernel.shape[2]))
    for weight, cell in zip(kernel, cells, strict=True):
        found = np.array([rows.get(tuple(s), -1) for s in (sites * stride + cell).tolist()])
        np.add.at(out, found[found >= 0], x[found >= 0] @ weight)
    return out


class Layers:
    """The weights of a state dict in float64, and batch norm with them."""

    def __init__(self, state) -> None:
        self.state = {name: values.astype(np.float64) for name, values in state.items()}

    def norm(self, key, x):
        mean, var, weight, bias = (self.state[f"{key}.{p}"] for p in ("running_mean", "running_var", "weight", "bias"))
        return (x - mean) / np.sqrt(var + 1e-5) * weight + bias


class MinkowskiUnet(Layers):
    """MinkowskiEngine's examples/minkunet.py with basic blocks, for three axes, or for four of which the last is time.

    kernel: "cube"; for four axes also "hypercube", "hypercross" or "cube_cross". The first convolution and the strided
    ones cover one step in time.
    """

    def __init__(self, state, kernel, voxel_size) -> None:
        super().__init__(state)
        self.voxel_size = np.float32(voxel_size)
        dimension = len(voxel_size)
        self.step = np.array((2, 2, 2, 1)[:dimension])
        self.first = cells_of_box((5, 5, 5, 1)[:dimension])
        self.down = cells_of_box((2, 2, 2, 1)[:dimension])
        self.cells = {
            "cube": cells_of_box((3, 3, 3, 1)[:dimension]),
            "hypercube": cells_of_box((3,) * dimension),
            "hypercross": cells_of_cross(dimension),
            "cube_cross": cells_of_cube_cross(),
        }[kernel]

    def run(self, cloud):
        """cloud: float32 [N, 4 or 5] with x, y, z, intensity and perhaps time. Returns the logits of each point's
        voxel, [N, classes].
        """
        position = cloud[:, [0, 1, 2, 4][: len(self.voxel_size)]]
        index = np.floor(position / self.voxel_size).astype(np.int64)
        sites, inverse, counts = np.unique(index, axis=0, return_inverse=True, return_counts=True)
        inverse = inverse.reshape(-1)
        x = np.zeros((len(sites), 4))
        np.add.at(x, inverse, cloud[:, :4].astype(np.float64))
        x /= counts[:, None]

        x = convolution(sites, x, sites, 1, self.state["conv0p1s1.kernel"], self.first)
        x = self.norm("bn0.bn", x).clip(0)
        levels, skips = [sites], [x]
        for level in range(1, 5):
            coarse = np.unique(levels[-1] // self.step, axis=0)
            kernel = self.state[f"conv{level}p{2 ** (level - 1)}s2.kernel"]
            x = convolution(levels[-1], x, coarse, self.step, kernel, self.down)
            x = self._blocks(level, coarse, self.norm(f"bn{level}.bn", x).clip(0))
            levels.append(coarse)
            skips.append(x)
        for level in (3, 2, 1, 0):
            kernel = self.state[f"convtr{7 - level}p{2 ** (level + 1)}s2.kernel"]
            x = transposed_convolution(levels[level + 1], x, levels[level], self.step, kernel, self.down)
            x = np.concatenate([self.norm(f"bntr{7 - level}.bn", x).clip(0), skips[level]], axis=1)
            x = self._blocks(8 - level, levels[level], x)
        return (x @ self.state["final.kernel"] + self.state["final.bias"])[inverse]

    def _blocks(self, number, sites, x):
        for block in itertools.count():
            key = f"block{number}.{block}"
            if f"{key}.conv1.kernel" not in self.state:
                return x
            y = convolution(sites, x, sites, 1, self.state[f"{key}.conv1.kernel"], self.cells)
            y = self.norm(f"{key}.norm1.bn", y).clip(0)
            y = convolution(sites, y, sites, 1, self.state[f"{key}.conv2.kernel"], self.cells)
            y = self.norm(f"{key}.norm2.bn", y)
            if f"{key}.downsample.0.kernel" in self.state:
                x = self.norm(f"{key}.downsample.1.bn", x @ self.state[f"{key}.downsample.0.kernel"])
            x = (y + x).clip(0)


class SparseResnet(Layers):
    """SparseResNet21D of torchsparse/backbones/resnet.py with a classifier. A point's scores are interpolated between
    the eight sites around it.
    """

    # Each block: its number of residual layers, kernel size and stride.
    BLOCKS = (
        (2, (3, 3, 3), (1, 1, 1)),
        (2, (3, 3, 3), (2, 2, 2)),
        (2, (3, 3, 3), (2, 2, 2)),
        (2, (3, 3, 3), (2, 2, 2)),
        (0, (1, 3, 1), (1, 2, 1)),
    )

    def __init__(self, state, voxel_size, columns) -> None:
        """columns: which columns of a cloud are the three axes."""
        super().__init__(state)
        self.voxel_size = np.float32(voxel_size)
        self.columns = columns

    def run(self, cloud):
        """cloud: float32 [N, 4]. Returns the logits of every point, [N, classes]."""
        position = cloud[:, self.columns] / self.voxel_size
        index = np.round(position).astype(np.int64)
        origin = index.min(axis=0)
        sites, first = np.unique(index - origin, axis=0, return_index=True)
        x = cloud[first].astype(np.float64)
        unit = np.ones(3)
        for block, (num_residuals, size, stride) in enumerate(self.BLOCKS):
            cells, key = cells_of_box(size), f"backbone.{block}"
            coarse = sites if max(stride) == 1 else self._expand(sites, cells, np.array(stride))
            x = convolution(sites, x, coarse, np.array(stride), self.state[f"{key}.0.0.kernel"], cells)
            x = self.norm(f"{key}.0.1", x).clip(0)
            sites, unit = coarse, unit * stride
            for residual in range(1, num_residuals + 1):
                main = f"{key}.{residual}.main"
                y = convolution(sites, x, sites, 1, self.state[f"{main}.0.kernel"], cells)
                y = self.norm(f"{main}.1", y).clip(0)
                y = convolution(sites, y, sites, 1, self.state[f"{main}.3.kernel"], cells)
                x = (self.norm(f"{main}.4", y) + x).clip(0)
        logits = x @ self.state["classifier.weight"].T + self.state["classifier.bias"]
        return self._interpolate((position.astype(np.float64) - origin) / unit, sites, logits)

    @staticmethod
    def _expand(sites, cells, stride):
        """Returns the output sites of TorchSparse's downsampling: all sites with stride * site = input - cell, of which
        none lies below the inputs' minimum.
        """
        reached = np.concatenate([sites - cell for cell in cells])
        reached = reached[(reached % stride == 0).all(axis=1) & (reached >= sites.min(axis=0)).all(axis=1)]
        return np.unique(reached // stride, axis=0)

    @staticmethod
    def _interpolate(positions, sites, values):
        """Interpolates trilinearly. The weights of the corners that exist are divided by their sum + 1e-8."""
        rows = row_of(sites)
        base = np.floor(positions).astype(np.int64)
        out, total = np.zeros((len(positions), values.shape[1])), np.zeros((len(positions), 1))
        for corner in itertools.product((0, 1), repeat=3):
            found = np.array([rows.get(tuple(site), -1) for site in (base + corner).tolist()])
            weight = np.prod(1 - np.abs(positions - (base + corner)), axis=1)[:, None] * (found >= 0)[:, None]
            out += weight * values[found]
            total += weight
        return out / (total + 1e-8)
