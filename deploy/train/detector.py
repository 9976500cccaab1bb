"""Trains and measures CenterPoint on PandaSet's cuboids (README.md). Run it in deploy/:

    python -m train.detector train --data DATA --out PART1 --max_seconds 445
    python -m train.detector train --data DATA --out PART2 --resume PART1 --max_seconds 445
    python -m train.detector evaluate --data DATA --weights PART2/weights.safetensors
    python -m train.detector find --weights PART2/weights.safetensors --scan scan.bin --save boxes.npz
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from train import arguments, boxes, frames, loop, scenes
from train.center_point import CenterPoint
from voxserve.evaluate.detection import Detection
from voxserve.evaluate.truth import Dataset, Scan, TrueBoxes
from voxserve.export.networks.center_point import CONFIGS, Config
from voxserve.point_cloud import PointCloud

CONFIG = CONFIGS["pandaset"]
_MIN_POINTS = 3  # boxes with fewer points are not learned, but finding one is no error (boxes.make_targets)
_PASTED = {"car": 12, "truck": 8, "construction-vehicle": 6, "pedestrian": 16, "traffic-cone": 8}  # tried per scene
_SCHEDULE = loop.Schedule(max_rate=3e-3, total_seconds=840)
_BOX_WEIGHT = 2.0  # OpenPCDet's loc_weight on Waymo
_EVALUATED_POINTS = 5  # the evaluation leaves out boxes with fewer points
_EVALUATED_DISTANCE = 75.0  # metres
_BINS = ((0.0, 25.0), (25.0, 50.0), (50.0, 75.0))


def main() -> int:
    begun = time.monotonic()
    text = "CenterPoint on PandaSet's cuboids."
    options = arguments.parse("train.detector", text, _SCHEDULE, batch=6, finds_boxes=True)
    try:
        if options.command == "train":
            train(options, begun)
        else:
            model = CenterPoint(CONFIG).to(options.device)
            loop.load_weights(model, options.weights)
            if options.command == "evaluate":
                _measure(model, options.data, options.device, options.save)
            else:
                _save_boxes(model, options)
    except (OSError, ValueError) as error:
        print(f"train.detector: {error}", file=sys.stderr)
        return 1
    return 0


def class_ids(config: Config) -> dict[str, int]:
    """Returns the model's class ids by PandaSet's names."""
    ids = {entry.name: entry.id for entry in config.classes}
    return {theirs: ids[ours] for theirs, ours in frames.BOX_CLASSES.items()}


def train(options: argparse.Namespace, begun: float) -> None:
    device = arguments.prepare_device(options)
    model = CenterPoint(CONFIG).to(device)
    for images in (model.backbone_2d, model.dense_head):
        images.to(memory_format=torch.channels_last)
    schedule = loop.Schedule(_SCHEDULE.max_rate, options.total_seconds, options.steps)
    run = loop.Run(model, schedule, options.out, options.resume)
    ids = {entry.name: entry.id for entry in CONFIG.classes}
    augmentation = scenes.Augmentation({ids[name]: number for name, number in _PASTED.items()})
    maker = scenes.SceneMaker(
        frames.read_all(options.data, frames.TRAIN_FRAMES),
        class_ids(CONFIG),
        augmentation,
        _EVALUATED_POINTS,
        device,
        options.seed + 1000 * run.progress.part,  # each part draws other scenes
    )
    names = {entry.id: entry.name for entry in CONFIG.classes}
    print("objects to paste:", {names[c]: number for c, number in maker.object_counts().items()}, flush=True)

    ahead = loop.Ahead(device)

    def prepare() -> tuple[list[scenes.Scene], boxes.Targets]:
        batch = [maker.draw() for _ in range(options.batch)]
        return batch, boxes.make_targets(batch, _MIN_POINTS, CONFIG)

    def loss_of() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        batch, targets = ahead.prepare(prepare)
        peaks, errors = boxes.losses(forward(model, batch, is_narrow=device.type == "cuda"), targets)
        return peaks + _BOX_WEIGHT * errors, {"heatmap": peaks.detach(), "boxes": errors.detach()}

    run.train(loss_of, begun + options.max_seconds)
    if device.type == "cuda":
        print(f"memory {torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB", flush=True)
    loop.write_weights(options.out / "weights.safetensors", run.average())
    averaged = CenterPoint(CONFIG).to(device)
    loop.load_weights(averaged, options.out / "weights.safetensors")
    _measure(averaged, options.data, options.device, options.out / "metrics.json")


def forward(model: CenterPoint, batch: list[scenes.Scene], *, is_narrow: bool) -> dict[str, torch.Tensor]:
    points = torch.cat([scene.points for scene in batch])
    numbers = torch.tensor([len(scene.points) for scene in batch], device=points.device)
    batch_of = torch.repeat_interleave(torch.arange(len(batch), device=points.device), numbers)
    with torch.autocast(points.device.type, torch.bfloat16, enabled=is_narrow):
        images: dict[str, torch.Tensor] = model(points, batch_of, len(batch))
    return images


@torch.no_grad()
def find(model: CenterPoint, points: Any, device: str) -> tuple[Any, Any, Any]:
    """Returns boxes [N, 7], classes and scores of a scan, in float32."""
    model.eval()
    tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    cloud = torch.from_numpy(np.ascontiguousarray(points, np.float32)).to(device)
    images = model(cloud, torch.zeros(len(cloud), dtype=torch.long, device=device), 1)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = tf32
    return boxes.decode(images, model.config, model.config.score_threshold)[0]


def _save_boxes(model: CenterPoint, options: argparse.Namespace) -> None:
    points = np.fromfile(options.scan, np.float32)
    if len(points) % 4:
        raise ValueError(f"{options.scan} has {len(points)} numbers, which are not four for each point")
    found, classes, scores = find(model, points.reshape(-1, 4), options.device)
    np.savez_compressed(options.save, boxes=found, classes=classes, scores=scores)
    print(f"{len(found)} boxes")


def _measure(model: CenterPoint, data: Path, device: str, save: Path | None) -> None:
    """Prints the metrics of voxserve.evaluate for the test frames."""
    names = tuple(frames.BOX_CLASSES)
    detection = Detection(
        Dataset("pandaset", [], box_names=names),
        [SimpleNamespace(id=entry.id, name=entry.name) for entry in CONFIG.classes],
        class_ids(CONFIG),
        _EVALUATED_POINTS,
        _EVALUATED_DISTANCE,
    )
    for frame in frames.read_all(data, frames.TEST_FRAMES):
        found, classes, scores = find(model, frame.points, device)
        truth = TrueBoxes(
            frame.boxes.astype(np.float64), frame.names, np.full((len(frame.boxes), 2), np.nan), frame.num_points
        )
        detection.add(
            Scan(PointCloud.from_array(frame.points), boxes=truth),
            SimpleNamespace(boxes=found, class_ids=classes, scores=scores, velocities=np.zeros((len(found), 2))),
        )
    result = detection.result(_BINS)
    for centres, overlap in zip(result["nuscenes"]["classes"], result["kitti"]["classes"], strict=True):
        aps = " ".join(f"{distance} m {_told(ap)}" for distance, ap in centres["ap"].items())
        overlaps = f"IoU {overlap['min_overlap']} bev {_told(overlap['all']['bev'])} 3d {_told(overlap['all']['3d'])}"
        near = " ".join(f"{b['from']:g}-{b['to']:g} m {_told(b['mAP'])}" for b in centres["by_distance"])
        counts = f"{centres['boxes']:>5} boxes, {centres['found']:>5} found"
        print(f"{centres['name']:<22}{counts}: {aps} | {overlaps} | {near}")
    if save is not None:
        save.write_text(json.dumps(result, indent=1) + "\n")


def _told(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())
