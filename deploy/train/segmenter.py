"""Trains and measures MinkUNet 0.5x on PandaSet's labelled points (README.md). Run it in deploy/:

    python -m train.segmenter train --data DATA --out PART1 --max_seconds 445
    python -m train.segmenter train --data DATA --out PART2 --resume PART1 --max_seconds 445
    python -m train.segmenter evaluate --data DATA --weights PART2/weights.safetensors
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from train import arguments, frames, loop, scenes
from train.minkunet import MinkUnet, voxelize
from voxserve.evaluate import segmentation

# PandaSet's ids of each class; the others are ignored (smoke, exhaust, spray, reflection, animals).
CLASSES = {
    "road": (7, 8, 9, 10),
    "sidewalk": (6, 11, 12),
    "vegetation": (5,),
    "building": (41,),
    "other-static": (42,),
    "car": (13,),
    "truck": (14, 15, 16, 17),
    "other-vehicle": (19, 20, 22, 23, 27, 28, 29),
    "two-wheeler": (18, 21, 24, 25, 26),
    "pedestrian": (30, 31),
    "sign": (36,),
    "cone-barrier": (34, 35, 37, 38, 39, 40),
}
_IGNORED = 255
_PASTED = {"car": 4, "truck": 6, "construction-vehicle": 4, "pedestrian": 16, "traffic-cone": 12}  # tried per scene
_SCHEDULE = loop.Schedule(max_rate=4e-3, total_seconds=840)
_WEIGHTS = (0.4, 4.0)  # the smallest and the largest weight of a class


@dataclass
class Batch:
    points: torch.Tensor  # [N, 4]
    batch_of: torch.Tensor  # int64 [N]: the sample of each point
    labels: torch.Tensor  # int64 [N]: the index in CLASSES, or _IGNORED


def main() -> int:
    begun = time.monotonic()
    options = arguments.parse("train.segmenter", "MinkUNet on PandaSet's labelled points.", _SCHEDULE, batch=4)
    try:
        if options.command == "train":
            train(options, begun)
        else:
            model = MinkUnet(len(CLASSES)).to(options.device)
            loop.load_weights(model, options.weights)
            _measure(model, options.data, options.device, options.save)
    except (OSError, ValueError) as error:
        print(f"train.segmenter: {error}", file=sys.stderr)
        return 1
    return 0


def class_of_label(device: torch.device) -> torch.Tensor:
    """Returns int64 [256]: for each of PandaSet's ids the index in CLASSES, or _IGNORED."""
    table = torch.full((256,), _IGNORED, device=device)
    for index, ids in enumerate(CLASSES.values()):
        table[list(ids)] = index
    return table


def class_weights(labelled: list[frames.LabelledFrame], device: torch.device) -> torch.Tensor:
    """Returns each class's weight: sqrt(median share / its share of the points), clipped to _WEIGHTS."""
    table = class_of_label(torch.device("cpu")).numpy()
    counts = sum(np.bincount(table[frame.labels], minlength=256)[: len(CLASSES)] for frame in labelled)
    share = np.maximum(counts, 1) / np.maximum(counts, 1).sum()
    weights = np.clip(np.sqrt(np.median(share) / share), *_WEIGHTS)
    return torch.tensor(weights, dtype=torch.float32, device=device)


def train(options: argparse.Namespace, begun: float) -> None:
    device = arguments.prepare_device(options)
    model = MinkUnet(len(CLASSES)).to(device)
    schedule = loop.Schedule(_SCHEDULE.max_rate, options.total_seconds, options.steps)
    run = loop.Run(model, schedule, options.out, options.resume)
    labelled = frames.read_all(options.data, frames.TRAIN_FRAMES)
    pasted = {name: index for index, name in enumerate(_PASTED)}
    maker = scenes.SceneMaker(
        labelled,
        {theirs: pasted[ours] for theirs, ours in frames.BOX_CLASSES.items()},
        scenes.Augmentation({pasted[name]: number for name, number in _PASTED.items()}),
        5,
        device,
        options.seed + 1000 * run.progress.part,
    )
    table, weights, ahead = class_of_label(device), class_weights(labelled, device), loop.Ahead(device)

    def prepare() -> Batch:
        drawn = [maker.draw() for _ in range(options.batch)]
        numbers = torch.tensor([len(scene.points) for scene in drawn], device=device)
        batch_of = torch.repeat_interleave(torch.arange(len(drawn), device=device), numbers)
        labels = table[torch.cat([scene.labels for scene in drawn]).long()]
        return Batch(torch.cat([scene.points for scene in drawn]), batch_of, labels)

    def loss_of() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        batch = ahead.prepare(prepare)
        first, sites = voxelize(batch.points, batch.batch_of, options.batch)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = model(batch.points[first], sites)
        labels = batch.labels[first]
        loss = nn.functional.cross_entropy(logits.float(), labels, weights, ignore_index=_IGNORED)
        right = (logits.argmax(dim=1) == labels).sum() / (labels != _IGNORED).sum()
        return loss, {"loss": loss.detach(), "accuracy": right}

    run.train(loss_of, begun + options.max_seconds)
    loop.write_weights(options.out / "weights.safetensors", run.average())
    averaged = MinkUnet(len(CLASSES)).to(device)
    loop.load_weights(averaged, options.out / "weights.safetensors")
    _measure(averaged, options.data, options.device, options.out / "metrics.json")


@torch.no_grad()
def _measure(model: MinkUnet, data: Path, device: str, save: Path | None) -> None:
    """Prints the IoU over the first point of each voxel in the test frames."""
    model.eval()
    table = class_of_label(torch.device("cpu")).numpy()
    counts = np.zeros((len(CLASSES), len(CLASSES) + 1), np.int64)
    for frame in frames.read_all(data, frames.TEST_FRAMES):
        points = torch.from_numpy(frame.points).to(device)
        first, sites = voxelize(points, torch.zeros(len(points), dtype=torch.long, device=device), 1)
        found = model(points[first], sites).argmax(dim=1).cpu().numpy()
        truth = table[frame.labels[first.cpu().numpy()]]
        counts += segmentation.confusion(np.where(truth == _IGNORED, segmentation.IGNORED, truth), found, len(CLASSES))
    scores = segmentation.scores(counts, np.ones(len(CLASSES), bool))
    ious = {name: float(iou) for name, iou in zip(CLASSES, scores.ious, strict=True)}
    print(f"mIoU {scores.mean_iou:.3f}, accuracy {scores.accuracy:.3f}")
    print(", ".join(f"{name} {iou:.3f}" for name, iou in ious.items()))
    if save is not None:
        result = {"mIoU": float(scores.mean_iou), "accuracy": float(scores.accuracy), "classes": ious}
        save.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
