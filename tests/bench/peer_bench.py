#!/usr/bin/env python3
"""Times MinkUNet of an installed sparse-convolution library on the inputs of varied_inputs_cuda_bench. Prints the same
columns.

    varied_inputs_cuda_bench --save_points DIR
    peer_bench.py spconv|torchsparse|ptv3 DIR/SCAN... [--batches 1 4] [--seconds S] [--width W] [--batch_norm]

The network is built here from the library's plain layers: submanifold 3x3x3, 2x2x2 of stride 2, and its inverse. Times
are those of the network alone, in float16, by the host's clock: voxels are on the device beforehand, maps are made anew
in every run, and the host waits for the device at the end. GPU busy is the time of a run's kernels, copies and memsets
by torch.profiler; overlaps count once. Norms count as folded into the convolutions' weights, so each convolution has a
bias; --batch_norm runs the norms instead.

  spconv       2.3: the mask implicit GEMM, which is its default
  torchsparse  2.1 (TorchSparse++): implicit GEMM and fetch-on-demand, tuned by its own tuner on two of the inputs
  ptv3         an installed Pointcept's PTv3-base in place of MinkUNet, with spconv and flash attention (ptv3_peer.py);
               its norms run, and --width does not count

Needs torch with CUDA and the library; exits with 1 and says so if one of them is missing. Without a GPU, spconv's CPU
build can be tried in float32 by --device cpu --batch_norm, since it has no bias.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ptv3_peer import Ptv3

BASE_WIDTHS = (32, 32, 64, 128, 256, 256, 128, 96, 96)
NUM_CLASSES = 19
NUM_LEVELS = 5
HEADER = (
    "| network, scan | batch | points | voxels | p50 ms | p99 ms | a scan ms | features ms | GPU busy ms | device MiB |"
    " runs |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def voxelize(points: np.ndarray, voxel_size_m: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns coordinates [voxels, 3] (rounded, minus each axis's minimum) and features [voxels, columns]. A voxel
    has the features of its first point.
    """
    coordinates = np.rint(points[:, :3] / np.float32(voxel_size_m)).astype(np.int32)
    coordinates -= coordinates.min(axis=0)
    coordinates, first = np.unique(coordinates, axis=0, return_index=True)
    return coordinates, points[first]


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the percentile as percentile.h defines it, like varied_inputs_cuda_bench."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def union_length(intervals: Iterable[tuple[float, float]]) -> float:
    """Returns the length of the union of the intervals (begin, end)."""
    length, covered_to = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        length += max(0.0, end - max(begin, covered_to))
        covered_to = max(covered_to, end)
    return length


def read_inputs(folder: Path) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Reads a folder of --save_points. Returns its description, and [points, columns] for each input."""
    description = json.loads((folder / "inputs.json").read_text(encoding="utf-8"))
    columns = len(description["columns"])
    return description, [
        np.fromfile(folder / f"{i:02}.bin", np.float32).reshape(-1, columns) for i in range(description["num_inputs"])
    ]


def batch_of(voxels: Sequence[tuple[np.ndarray, np.ndarray]], indices: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns coordinates [rows, 4] (sample, x, y, z) and features [rows, columns] of these inputs."""
    coordinates = [np.insert(voxels[index][0], 0, sample, axis=1) for sample, index in enumerate(indices)]
    return np.concatenate(coordinates), np.concatenate([voxels[index][1] for index in indices])


class Spconv:
    """Makes spconv's layers. Each convolution names its map, so that the layers of a level share one."""

    def __init__(self, on_cuda: bool) -> None:
        import spconv.pytorch as spconv

        self._spconv = spconv
        self._algorithm = spconv.ConvAlgo.MaskImplicitGemm if on_cuda else spconv.ConvAlgo.Native

    def tensor(self, coordinates: Any, features: Any, num_samples: int, size: Sequence[int]) -> Any:
        # The size must be a multiple of all strides, since a strided convolution drops a last row of cells that it
        # cannot fill.
        whole = 2 ** (NUM_LEVELS - 1)
        shape = [-(-length // whole) * whole for length in size]
        return self._spconv.SparseConvTensor(features, coordinates, shape, num_samples)

    def submanifold(self, c_in: int, c_out: int, level: int, bias: bool) -> Any:
        return self._spconv.SubMConv3d(c_in, c_out, 3, bias=bias, indice_key=f"level{level}", algo=self._algorithm)

    def down(self, c_in: int, c_out: int, level: int, bias: bool) -> Any:
        key = f"down{level}"
        return self._spconv.SparseConv3d(c_in, c_out, 2, 2, bias=bias, indice_key=key, algo=self._algorithm)

    def up(self, c_in: int, c_out: int, level: int, bias: bool) -> Any:
        key = f"down{level}"
        return self._spconv.SparseInverseConv3d(c_in, c_out, 2, key, bias=bias, algo=self._algorithm)

    def features(self, x: Any) -> Any:
        return x.features

    def replaced(self, x: Any, features: Any) -> Any:
        return x.replace_feature(features)

    def tune(self, network: Any, inputs: Sequence[Any]) -> None:
        """Does nothing, since spconv chooses a layer's kernels when the layer first runs."""


class TorchSparse:
    """Makes TorchSparse's layers. Maps live in a cache that the tensors of one run share."""

    def __init__(self, on_cuda: bool) -> None:
        if not on_cuda:
            raise ImportError("TorchSparse++ runs on a GPU alone")
        import torchsparse
        import torchsparse.nn as layers
        from torchsparse.nn.utils import fapply

        self._torchsparse, self._layers, self._fapply = torchsparse, layers, fapply

    def tensor(self, coordinates: Any, features: Any, num_samples: int, size: Sequence[int]) -> Any:
        del num_samples, size
        return self._torchsparse.SparseTensor(features, coordinates)

    def submanifold(self, c_in: int, c_out: int, level: int, bias: bool) -> Any:
        del level
        return self._layers.Conv3d(c_in, c_out, 3, bias=bias)

    def down(self, c_in: int, c_out: int, level: int, bias: bool) -> Any:
        del level
        return self._layers.Conv3d(c_in, c_out, 2, stride=2, bias=bias)

    def up(self, c_in: int, c_out: int, level: int, bias: bool) -> Any:
        del level
        return self._layers.Conv3d(c_in, c_out, 2, stride=2, transposed=True, bias=bias)

    def features(self, x: Any) -> Any:
        return x.feats

    def replaced(self, x: Any, features: Any) -> Any:
        return self._fapply(x, lambda _: features)

    def tune(self, network: Any, inputs: Sequence[Any]) -> None:
        from torchsparse.nn import functional

        flows = [functional.Dataflow.ImplicitGEMM, functional.Dataflow.FetchOnDemand]
        with tempfile.TemporaryDirectory() as folder:
            self._torchsparse.tune(
                model=network,
                data_loader=list(inputs),
                n_samples=len(inputs),
                enable_fp16=True,
                save_dir=folder,
                force_retune=True,
                dataflow_range=flows,
                verbose=False,
                skip_warning=True,
            )


PEERS: dict[str, Callable[[bool], Any]] = {"spconv": Spconv, "torchsparse": TorchSparse, "ptv3": Ptv3}


def minkunet(peer: Any, width: float, in_channels: int, has_norms: bool) -> Any:
    """Builds MinkUNet (C. Choy et al., CVPR 2019, as in spvnas) of a peer's layers. It maps voxels to a score per voxel
    and class.
    """
    import torch
    from torch import nn

    widths = [int(width * channels) for channels in BASE_WIDTHS]

    class Conv(nn.Module):
        """A convolution with its norm and, if asked for, ReLU."""

        def __init__(self, conv: Any, c_out: int, has_relu: bool = True) -> None:
            super().__init__()
            self.conv = conv
            self.norm = nn.BatchNorm1d(c_out) if has_norms else nn.Identity()
            self.has_relu = has_relu

        def forward(self, x: Any) -> Any:
            x = self.conv(x)
            rows = self.norm(peer.features(x))
            return peer.replaced(x, rows.relu_() if self.has_relu else rows)

    class Residual(nn.Module):
        def __init__(self, c_in: int, c_out: int, level: int) -> None:
            super().__init__()
            self.first = Conv(peer.submanifold(c_in, c_out, level, not has_norms), c_out)
            self.second = Conv(peer.submanifold(c_out, c_out, level, not has_norms), c_out, has_relu=False)
            self.shortcut: nn.Module = nn.Identity()
            if c_in != c_out:
                linear = nn.Linear(c_in, c_out, bias=not has_norms)
                self.shortcut = nn.Sequential(linear, nn.BatchNorm1d(c_out)) if has_norms else linear

        def forward(self, x: Any) -> Any:
            y = self.second(self.first(x))
            return peer.replaced(y, peer.features(y).add_(self.shortcut(peer.features(x))).relu_())

    class MinkUNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            bias = not has_norms
            self.stem = nn.Sequential(
                Conv(peer.submanifold(in_channels, widths[0], 0, bias), widths[0]),
                Conv(peer.submanifold(widths[0], widths[0], 0, bias), widths[0]),
            )
            self.stages, self.ups, self.fuses = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
            for level in range(1, NUM_LEVELS):
                c_in, c_out = widths[level - 1], widths[level]
                down = Conv(peer.down(c_in, c_in, level, bias), c_in)
                self.stages.append(nn.Sequential(down, Residual(c_in, c_out, level), Residual(c_out, c_out, level)))
            for i in range(1, NUM_LEVELS):
                level = NUM_LEVELS - 1 - i  # the level to which this part of the decoder leads
                c_in, c_out = widths[NUM_LEVELS + i - 2], widths[NUM_LEVELS + i - 1]
                self.ups.append(Conv(peer.up(c_in, c_out, level + 1, bias), c_out))
                blocks = Residual(c_out + widths[level], c_out, level), Residual(c_out, c_out, level)
                self.fuses.append(nn.Sequential(*blocks))
            self.classifier = nn.Linear(widths[-1], NUM_CLASSES)

        def forward(self, x: Any) -> Any:
            skips = [self.stem(x)]
            for stage in self.stages:
                skips.append(stage(skips[-1]))
            x = skips.pop()
            for up, fuse in zip(self.ups, self.fuses, strict=True):
                x = up(x)
                joined = torch.cat([peer.features(x), peer.features(skips.pop())], dim=1)
                x = fuse(peer.replaced(x, joined))
            return self.classifier(peer.features(x))

    return MinkUNet()


def initialise(network: Any) -> None:
    """Sets random weights that keep activations near 1 for the neighbours that LiDAR scans have, in float16 too.

    Zeros and small numbers would let a GPU run at higher clocks.
    """
    from torch import nn

    neighbours = {27: 7, 8: 2}  # how many cells of the kernel typically hold a site, by the kernel's volume
    is_first = True
    for module in network.modules():
        if not hasattr(module, "kernel_size"):
            continue
        scale = 0.05 if is_first else 0.7  # the first inputs are in metres; residual blocks add two terms
        is_first = False
        deviation = scale * (2 / (module.in_channels * neighbours[int(np.prod(module.kernel_size))])) ** 0.5
        for name, parameter in module.named_parameters():
            nn.init.normal_(parameter, std=0.1 if name == "bias" else deviation)


def busy_ms(run: Callable[[int], None], num_runs: int) -> float:
    """Returns the milliseconds per run in which the GPU was busy, by torch.profiler."""
    import torch
    from torch.autograd import DeviceType

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for i in range(num_runs):
            run(i)
    intervals = [
        (event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == DeviceType.CUDA
    ]
    return union_length(intervals) / 1e3 / num_runs


def measure(peer: Any, name: str, folder: Path, options: argparse.Namespace) -> None:
    """Times the inputs of one scan and prints a row per batch size."""
    import torch

    on_cuda = options.device == "cuda"
    device = torch.device("cuda:0" if on_cuda else "cpu")
    dtype = torch.float16 if on_cuda else torch.float32
    description, points = read_inputs(folder)
    voxels = [voxelize(cloud, description["voxel_size_m"]) for cloud in points]
    torch.manual_seed(1)
    label = f"MinkUNet {options.width:.1f}x"
    if isinstance(peer, Ptv3):
        label, network = "PTv3-base", peer.network(points[0].shape[1])
    else:
        network = minkunet(peer, options.width, points[0].shape[1], options.batch_norm)
        initialise(network)
    network = network.eval().to(device, dtype)
    for batch in options.batches:
        batches = []
        for i in range(len(voxels)):
            coordinates, features = batch_of(voxels, [(i + sample) % len(voxels) for sample in range(batch)])
            size = (coordinates[:, 1:].max(axis=0) + 1).tolist()
            rows = torch.from_numpy(features).to(device, dtype)
            batches.append((torch.from_numpy(coordinates).to(device), rows, size))

        def tensor(i: int, batches: list[Any] = batches, batch: int = batch) -> Any:
            coordinates, features, size = batches[i % len(batches)]
            return peer.tensor(coordinates, features, batch, size)

        def run(i: int, tensor: Callable[[int], Any] = tensor) -> None:
            network(tensor(i))
            if on_cuda:
                torch.cuda.synchronize()

        peer.tune(network, [tensor(i) for i in range(2)])
        for i in range(2 * len(batches) if on_cuda else 0):
            run(i)
        times_ms: list[float] = []
        begin = time.perf_counter()
        while len(times_ms) < 2 * len(batches) or time.perf_counter() - begin < options.seconds:
            for i in range(len(batches)):
                start = time.perf_counter()
                run(i)
                times_ms.append((time.perf_counter() - start) * 1e3)
        p50 = percentile(times_ms, 0.5)
        busy = f"{busy_ms(run, len(batches)):.3f}" if on_cuda else ""
        memory_mib = torch.cuda.memory_reserved() / 2**20 if on_cuda else 0
        print(
            f"| {name}: {label}, {description['scan']} | {batch} |"
            f" {np.mean([len(cloud) for cloud in points]):.0f} | {np.mean([len(v[0]) for v in voxels]):.0f} |"
            f" {p50:.3f} | {percentile(times_ms, 0.99):.3f} | {p50 / batch:.3f} | | {busy} | {memory_mib:.0f} |"
            f" {len(times_ms)} |",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("scans", nargs="+", type=Path, metavar="DIR/SCAN")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--seconds", type=float, default=1.0, help="of the timed runs of a row")
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--batch_norm", action="store_true", help="run the norms, which are folded otherwise")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args(arguments)
    if min(options.batches) < 1:
        parser.error("a batch has one scan or more")
    for folder in options.scans:
        if not (folder / "inputs.json").is_file():
            print(f"{folder} has no inputs.json; varied_inputs_cuda_bench --save_points writes it", file=sys.stderr)
            return 1
    try:
        import torch
    except ImportError as error:
        print(f"torch is not installed: {error}", file=sys.stderr)
        return 1
    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch sees no CUDA device here", file=sys.stderr)
        return 1
    try:
        peer = PEERS[options.peer](options.device == "cuda")
    except ImportError as error:
        print(f"{options.peer} is not installed here, or cannot run: {error}", file=sys.stderr)
        return 1
    module = sys.modules["spconv" if options.peer == "ptv3" else options.peer]
    name = f"{options.peer} {getattr(module, '__version__', '')}".strip()
    print(f"{name}, torch {torch.__version__}, {'norms run' if options.batch_norm else 'norms folded'}\n\n{HEADER}")
    with torch.no_grad():
        for folder in options.scans:
            measure(peer, name, folder, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
