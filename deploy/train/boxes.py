"""Decodes boxes from the images of CenterPoint's head, and makes the target images that the loss compares them with.
Boxes are [N, 7] as the server gives them: x, y, z of the centre, length, width, height (metres), yaw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from train.scenes import Scene
from voxserve.evaluate.overlaps import overlaps
from voxserve.export.networks.center_point import Config

_MIN_RADIUS = 2  # the least radius of a box's peak, in cells
_MIN_OVERLAP = 0.1  # IoU of two equal boxes whose centres are a peak's radius apart


@dataclass
class Targets:
    """The images and values that a batch's loss compares the head's images with."""

    heatmap: torch.Tensor  # [batch, classes, y, x]
    counted: torch.Tensor  # [batch, 1, y, x]: 0 where a high score is no error: around boxes that are not wanted
    sample: torch.Tensor  # int64 [N]: the sample of each wanted box of the batch
    cell: torch.Tensor  # int64 [N]: row * columns + column of the cell with the box's centre
    values: torch.Tensor  # [N, 8]: centre within its cell (2), z, log of the size (3), cos and sin of yaw


def grid_of(config: Config) -> tuple[int, int, float]:
    """Returns the rows and columns of the images, and a cell's size in metres."""
    x, y, _ = config.voxels.grid()
    return y // config.stride, x // config.stride, config.voxels.size[0] * config.stride


def _radii(boxes: torch.Tensor, cell: float) -> torch.Tensor:
    """Returns each box's CornerNet radius in cells, as OpenPCDet's gaussian_radius computes it."""
    a, b, r = boxes[:, 3] / cell, boxes[:, 4] / cell, _MIN_OVERLAP
    roots = []
    for k2, k1, k0 in (
        (1.0, a + b, a * b * (1 - r) / (1 + r)),
        (4.0, 2 * (a + b), (1 - r) * a * b),
        (4 * r, -2 * r * (a + b), (r - 1) * a * b),
    ):
        roots.append((k1 + (k1**2 - 4 * k2 * k0).clamp(min=0).sqrt()) / 2)
    return torch.stack(roots).amin(dim=0).floor().clamp(min=_MIN_RADIUS)


def make_targets(batch: Sequence[Scene], min_points: int, config: Config) -> Targets:
    """Makes the targets of a batch. A box is wanted if it has a class and at least min_points points. A box with points
    that is not wanted is not wrong either: a score near it is no error. A box without points is
    treated as absent.
    """
    rows, columns, cell = grid_of(config)
    low = config.voxels.range_min
    device = batch[0].boxes.device
    heatmap = torch.zeros(len(batch), len(config.classes), rows, columns, device=device)
    counted = torch.ones(len(batch), 1, rows, columns, device=device)
    samples, cells, values = [], [], []
    y, x = torch.arange(rows, device=device)[None, :, None], torch.arange(columns, device=device)[None, None, :]
    for index, scene in enumerate(batch):
        place = torch.stack([(scene.boxes[:, 0] - low[0]) / cell, (scene.boxes[:, 1] - low[1]) / cell], dim=1)
        size = torch.tensor([columns, rows], device=device)
        inside = ((place >= 0) & (place < size)).all(dim=1) & (scene.num_points > 0)
        box, of_class, place = scene.boxes[inside], scene.classes[inside], place[inside]
        column, row = place.long().unbind(1)
        radius = _radii(box, cell)[:, None, None]
        dy, dx = y - row[:, None, None], x - column[:, None, None]
        peak = torch.exp(-(dx**2 + dy**2) / (2 * ((2 * radius + 1) / 6) ** 2))
        peak = peak * ((dx.abs() <= radius) & (dy.abs() <= radius))
        is_wanted = (of_class >= 0) & (scene.num_points[inside] >= min_points)
        peak = torch.cat([peak, peak.new_zeros(1, rows, columns)])  # amax needs at least one peak
        wanted = torch.cat([is_wanted, is_wanted.new_zeros(1)])[:, None, None]
        of_peak = torch.cat([of_class, of_class.new_full((1,), -1)])[:, None, None]
        for number in range(len(config.classes)):
            heatmap[index, number] = torch.where(wanted & (of_peak == number), peak, 0.0).amax(dim=0)
        unsure = torch.where(wanted, 0.0, peak).amax(dim=0) > 0
        counted[index, 0] = torch.where(unsure & (heatmap[index].amax(dim=0) < 1), 0.0, 1.0)
        box, row, column = box[is_wanted], row[is_wanted], column[is_wanted]
        inner = place[is_wanted] - place[is_wanted].floor()
        yaw = box[:, 6:7]
        values.append(torch.cat([inner, box[:, 2:3], box[:, 3:6].log(), yaw.cos(), yaw.sin()], dim=1))
        cells.append(row * columns + column)
        samples.append(torch.full_like(row, index))
    return Targets(heatmap, counted, torch.cat(samples), torch.cat(cells), torch.cat(values))


def losses(images: dict[str, torch.Tensor], targets: Targets) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the heat map's focal loss (CornerNet's), and the boxes' L1 loss at their centres, each per box."""
    logits = images["hm"].float()
    score = logits.sigmoid().clamp(1e-4, 1 - 1e-4)
    is_centre = targets.heatmap == 1
    hit = -score.log() * (1 - score) ** 2 * is_centre
    miss = -(1 - score).log() * score**2 * (1 - targets.heatmap) ** 4 * ~is_centre * targets.counted
    number = is_centre.sum().clamp(min=1)
    parts = torch.cat([images[name].float() for name in ("center", "center_z", "dim", "rot")], dim=1)
    found = parts.flatten(2).permute(0, 2, 1)[targets.sample, targets.cell]
    error = (found - targets.values).abs().sum() / max(len(found), 1)
    return (hit + miss).sum() / number, error


def decode(images: dict[str, torch.Tensor], config: Config, score_threshold: float) -> list[tuple[Any, Any, Any]]:
    """Returns boxes [N, 7], classes and scores of each sample as NumPy float64, the best first. Decodes and suppresses
    boxes as OpenPCDet and the exported model do.
    """
    rows, columns, cell = grid_of(config)
    results = []
    for sample in range(len(images["hm"])):
        maps = {name: image[sample].detach().float().cpu().numpy().astype(np.float64) for name, image in images.items()}
        logits = maps["hm"].reshape(len(config.classes), -1)
        order = np.argsort(-logits, axis=None, kind="stable")[: config.max_boxes]
        classes, cells = np.unravel_index(order, logits.shape)
        scores = 1 / (1 + np.exp(-logits[classes, cells]))
        kept = scores > score_threshold
        classes, cells, scores = classes[kept], cells[kept], scores[kept]
        center, dim, rot = (maps[name].reshape(-1, rows * columns)[:, cells] for name in ("center", "dim", "rot"))
        row, column = np.divmod(cells, columns)
        boxes = np.stack(
            [
                (column + center[0]) * cell + config.voxels.range_min[0],
                (row + center[1]) * cell + config.voxels.range_min[1],
                maps["center_z"].reshape(-1)[cells],
                *np.exp(dim),
                np.arctan2(rot[1], rot[0]),
            ],
            axis=1,
        )
        low, high = np.array(config.center_min), np.array(config.center_max)
        inside = ((boxes[:, :3] >= low) & (boxes[:, :3] <= high)).all(axis=1)
        kept_rows = suppress(boxes[inside], config)
        results.append(tuple(array[inside][kept_rows] for array in (boxes, classes, scores)))
    return results


def suppress(boxes: Any, config: Config) -> Any:
    """Returns the indices of the boxes that non-maximum suppression keeps. boxes: the best first, of any classes."""
    shared, _ = overlaps(boxes[: config.nms_boxes_in], boxes[: config.nms_boxes_in])
    kept: list[int] = []
    for index in range(len(shared)):
        if len(kept) < config.nms_boxes_out and not (shared[index, kept] > config.nms_iou).any():
            kept.append(index)
    return np.array(kept, np.int64)
