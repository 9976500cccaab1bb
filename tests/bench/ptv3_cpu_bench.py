#!/usr/bin/env python3
"""Times PTv3-base on this machine's CPU: voxserve.Engine beside Pointcept's own PyTorch code, in turns, in one run.

    export PYTHONPATH=client/python/src:build/dev/client/python/native:POINTCEPT
    python tests/bench/ptv3_cpu_bench.py SCAN.bin

SCAN.bin: float32 x, y, z, intensity. Needs an installed Pointcept with spconv (its CPU build will do) and torch. Both
have the same random weights and voxels of 5 cm, each with the features of its first point; orders are not shuffled. The
peer's time is that of the network, from voxels; ours includes the voxels and the labels of all points. The peer's
attention is timed in two ways: as Pointcept computes it without flash attention, and by torch's
scaled_dot_product_attention. Prints Markdown.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ptv3_peer import GROUP, NUM_CLASSES, ORDERS, WIDTH, backbone

import voxserve
from voxserve.export import safetensors_file
from voxserve.export.__main__ import main as export

VOXEL_M = 0.05
OURS = "voxserve.Engine, points to labels"
BY_TORCH = "Pointcept, scaled_dot_product_attention"
AS_PUBLISHED = "Pointcept, its attention without flash"
# The sizes are the defaults of Pointcept's class.
CONFIG = f"""
model = dict(
    type="DefaultSegmentorV2", num_classes={NUM_CLASSES}, backbone_out_channels={WIDTH},
    backbone=dict(type="PT-v3m1", in_channels=4, order={ORDERS}, stride=(2, 2, 2, 2), enc_depths=(2, 2, 2, 6, 2),
                  enc_channels=(32, 64, 128, 256, 512), enc_num_head=(2, 4, 8, 16, 32), enc_patch_size={(GROUP,) * 5},
                  dec_depths=(2, 2, 2, 2), dec_channels=(64, 64, 128, 256), dec_num_head=(4, 4, 8, 16),
                  dec_patch_size={(GROUP,) * 4}, shuffle_orders=False),
)
data = dict(
    num_classes={NUM_CLASSES}, names={[f"class {i}" for i in range(NUM_CLASSES)]},
    val=dict(type="SemanticKITTIDataset", transform=[
        dict(type="GridSample", grid_size={VOXEL_M}, hash_type="fnv", mode="train", return_grid_coord=True),
        dict(type="ToTensor"),
        dict(type="Collect", keys=("coord", "grid_coord", "segment"), feat_keys=("coord", "strength")),
    ]),
)
"""


def attend(attention: Any, point: Any) -> Any:
    """Computes Pointcept's SerializedAttention, whose `forward` it replaces, by torch's scaled_dot_product_attention.
    It assumes one cloud, and no relative position encoding.
    """
    attention.patch_size = min(int(point.offset[0]), attention.patch_size_max)
    pad, unpad, _ = attention.get_padding_and_inverse(point)
    order = point.serialized_order[attention.order_index][pad]
    inverse = unpad[point.serialized_inverse[attention.order_index]]
    rows = attention.qkv(point.feat)[order]
    heads = attention.num_heads
    # Each of them: [patches, heads, points of a patch, channels of a head].
    q, k, v = rows.reshape(-1, attention.patch_size, 3, heads, attention.channels // heads).permute(2, 0, 3, 1, 4)
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=attention.scale)
    point.feat = attention.proj(mixed.transpose(1, 2).reshape(-1, attention.channels)[inverse])
    return point


def pointcept_network() -> Any:
    """Makes the network with random weights."""
    torch.manual_seed(1)
    made = backbone(4, enable_flash=False, upcast_attention=False, upcast_softmax=False)
    with torch.no_grad():
        made.embedding.stem.conv.weight.mul_(0.02)  # its inputs are in metres; others are near 1
    return torch.nn.ModuleDict({"backbone": made, "seg_head": torch.nn.Linear(WIDTH, NUM_CLASSES)}).eval()


def add_biases_apart(network: Any) -> None:
    """Takes the biases out of spconv's convolutions, whose CPU build refuses them, and adds them to their results."""
    for layer in network.modules():
        if type(layer).__name__ == "SubMConv3d" and layer.bias is not None:
            bias, layer.bias = layer.bias, None
            layer.register_forward_hook(lambda _, __, x, bias=bias: x.replace_feature(x.features + bias))


def exported(network: Any, folder: Path) -> Path:
    """Writes the network's model folder by the exporter."""
    weights = folder / "weights.safetensors"
    safetensors_file.write(weights, {name: tensor.numpy() for name, tensor in network.state_dict().items()})
    (folder / "config.py").write_text(CONFIG)
    command = ["pointcept-ptv3", str(weights), "--config", str(folder / "config.py"), "--output", str(folder / "ptv3")]
    if export(command) != 0:
        raise SystemExit("the network was not exported")
    return folder / "ptv3"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scan", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    points = np.fromfile(options.scan, np.float32).reshape(-1, 4)
    # Both Pointcept's GridSample and the server make voxels like this.
    corners = np.floor(points[:, :3].astype(np.float64) / VOXEL_M)
    places = (corners - corners.min(axis=0)).astype(np.int32)
    places, first = np.unique(places, axis=0, return_index=True)
    cloud = points[first]
    cloud[:, :3] = (corners[first] + 0.5) * VOXEL_M  # in the voxels' middles, so that rounding moves none
    grid, rows = torch.from_numpy(places), torch.from_numpy(cloud)
    network = pointcept_network()

    def as_published() -> Any:
        data = {"coord": rows[:, :3], "grid_coord": grid, "feat": rows, "offset": torch.tensor([len(rows)])}
        return network["seg_head"](network["backbone"](data).feat)

    def by_torch() -> Any:
        """Runs the network with attend() in place of its attention."""
        changed = [part for part in network.modules() if type(part).__name__ == "SerializedAttention"]
        for part in changed:
            part.forward = attend.__get__(part)
        try:
            return as_published()
        finally:
            for part in changed:
                del part.forward

    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        ours = voxserve.load(exported(network, Path(folder)), device="cpu")
        add_biases_apart(network)  # after the export, which needs the biases in their layers
        runs: dict[str, Callable[[], Any]] = {
            OURS: lambda: ours.infer(cloud, scores=True),
            BY_TORCH: by_torch,
            AS_PUBLISHED: as_published,
        }
        answers, times = {}, {name: [] for name in runs}
        for _ in range(options.rounds):
            for name, run in runs.items():
                begin = time.perf_counter()
                answers[name] = run()
                times[name].append(time.perf_counter() - begin)
    expected, scores = answers[BY_TORCH].numpy(), np.asarray(answers[OURS].scores)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; {len(points):,} points, {len(cloud):,} voxels"
    )
    print(
        f"largest deviation of a score, of the largest: {np.abs(scores - expected).max() / np.abs(expected).max():.1e}"
    )
    print(f"labels that differ: {(scores.argmax(axis=1) != expected.argmax(axis=1)).sum():,}\n")
    print("| | seconds, least of the rounds | all rounds |\n|---|--:|---|")
    for name, seconds in times.items():
        print(f"| {name} | {min(seconds):.2f} | {', '.join(f'{s:.2f}' for s in seconds)} |")


if __name__ == "__main__":
    main()
