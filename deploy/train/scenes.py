"""Makes training scenes on the device: objects of other frames are pasted into frames, which are flipped, turned and
scaled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from train.frames import LabelledFrame

_GROUND_CELL = 4.0  # metres
_GROUND_REACH = 112.0  # metres
_GROUND_QUANTILE = 0.05
_MAX_STEP = 1.5  # metres: the most by which an object is raised or lowered to the ground of its new place
_MARGIN = 0.2  # metres around a pasted box in which the scene's points are removed


@dataclass
class Scene:
    """A scan with boxes, on a device."""

    points: torch.Tensor  # [N, 4]
    labels: torch.Tensor  # uint8 [N]: PandaSet's classes
    boxes: torch.Tensor  # [M, 7]
    classes: torch.Tensor  # int64 [M]: the model's class; -1: no class
    num_points: torch.Tensor  # int64 [M]: of the points in each box


@dataclass(frozen=True)
class Augmentation:
    pasted: Mapping[int, int]  # by class, the number of objects that are tried in a scene
    max_scale: float = 0.05
    max_shift: float = 0.5  # metres of height, since sensors stand at different heights
    min_kept: float = 0.5  # the smallest share of the points that stays where points are dropped
    max_brightness: float = 1.5
    no_intensity: float = 0.1  # the share of scenes whose intensity becomes 0


def scene_of(frame: LabelledFrame, class_of: Mapping[str, int], device: torch.device) -> Scene:
    """Brings a frame to the device. class_of: the model's classes by PandaSet's names."""
    return Scene(
        torch.from_numpy(frame.points).to(device),
        torch.from_numpy(frame.labels).to(device),
        torch.from_numpy(frame.boxes).to(device),
        torch.tensor([class_of.get(name, -1) for name in frame.names], dtype=torch.long, device=device),
        torch.from_numpy(frame.num_points).long().to(device),
    )


def inside(boxes: torch.Tensor, points: torch.Tensor, margin: float = 0.0) -> torch.Tensor:
    """Returns bool [M, N]: whether a box, enlarged by `margin` metres on every side, holds a point."""
    offset = points[None, :, :3] - boxes[:, None, :3]
    cos, sin = boxes[:, 6, None].cos(), boxes[:, 6, None].sin()
    along = offset[..., 0] * cos + offset[..., 1] * sin
    across = offset[..., 1] * cos - offset[..., 0] * sin
    half = boxes[:, None, 3:6] / 2 + margin
    return (along.abs() <= half[..., 0]) & (across.abs() <= half[..., 1]) & (offset[..., 2].abs() <= half[..., 2])


def collide(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Returns bool [M, M']: whether two boxes overlap, seen from above (separating axis theorem)."""
    hit = torch.ones(len(first), len(second), dtype=torch.bool, device=first.device)
    for boxes in (first[:, None], second[None]):
        for turn in (0.0, math.pi / 2):
            axis = torch.stack([(boxes[..., 6] + turn).cos(), (boxes[..., 6] + turn).sin()], dim=-1)
            distance = ((second[None, :, :2] - first[:, None, :2]) * axis).sum(-1).abs()
            hit &= distance < _reach(first[:, None], axis) + _reach(second[None], axis)
    return hit


def _reach(boxes: torch.Tensor, axis: torch.Tensor) -> torch.Tensor:
    """Returns half of the boxes' extent along an axis."""
    cos, sin = boxes[..., 6].cos(), boxes[..., 6].sin()
    along = (axis[..., 0] * cos + axis[..., 1] * sin).abs() * boxes[..., 3] / 2
    return along + (axis[..., 1] * cos - axis[..., 0] * sin).abs() * boxes[..., 4] / 2


def _ground(points: np.ndarray) -> np.ndarray:
    """Returns the ground's z in each cell [x, y], NaN where a cell has fewer than 5 points."""
    count = int(2 * _GROUND_REACH / _GROUND_CELL)
    cell = np.floor((points[:, :2] + _GROUND_REACH) / _GROUND_CELL).astype(np.int64).clip(0, count - 1)
    key = cell[:, 0] * count + cell[:, 1]
    order = np.lexsort((points[:, 2], key))
    cells, begin, number = np.unique(key[order], return_index=True, return_counts=True)
    z = points[order[begin + (_GROUND_QUANTILE * number).astype(np.int64)], 2]
    ground = np.full(count * count, np.nan, np.float32)
    ground[cells[number >= 5]] = z[number >= 5]
    return ground.reshape(count, count)


class SceneMaker:
    """Draws scenes from labelled frames."""

    def __init__(
        self,
        frames: Sequence[LabelledFrame],
        class_of: Mapping[str, int],
        augmentation: Augmentation,
        min_points: int,
        device: torch.device,
        seed: int,
    ) -> None:
        """min_points: pasted objects have at least this many points."""
        self._device = device
        self._augmentation = augmentation
        self._random = torch.Generator(device).manual_seed(seed)
        self._choices = np.random.default_rng(seed)  # draws on the host, which then need not wait for the device
        self._scenes = [scene_of(frame, class_of, device) for frame in frames]
        self._grounds = torch.from_numpy(np.stack([_ground(frame.points) for frame in frames])).to(device)
        points, labels, boxes, classes, numbers = [], [], [], [], []
        for scene in self._scenes:
            for index in torch.nonzero((scene.classes >= 0) & (scene.num_points >= min_points)).flatten().tolist():
                own = torch.nonzero(inside(scene.boxes[index : index + 1], scene.points)[0]).flatten()
                if len(own) < min_points:  # the file's rounding moved some points out of the box
                    continue
                points.append(scene.points[own])
                labels.append(scene.labels[own])
                boxes.append(scene.boxes[index])
                classes.append(int(scene.classes[index]))
                numbers.append(len(own))
        self._object_points, self._object_labels = torch.cat(points), torch.cat(labels)
        self._object_boxes = torch.stack(boxes)
        self._object_numbers = torch.tensor(numbers, device=device)
        self._object_begins = self._object_numbers.cumsum(0) - self._object_numbers
        of_class = np.array(classes)
        self._objects = {
            c: torch.from_numpy(np.flatnonzero(of_class == c)).to(device) for c in np.unique(of_class).tolist()
        }
        self._object_classes = torch.from_numpy(of_class).to(device)

    def object_counts(self) -> dict[int, int]:
        """Returns how many objects of each class can be pasted."""
        return {c: len(objects) for c, objects in self._objects.items()}

    def _uniform(self, low: float, high: float, count: int = 1) -> torch.Tensor:
        return torch.rand(count, device=self._device, generator=self._random) * (high - low) + low

    def _integers(self, end: int, count: int) -> torch.Tensor:
        return torch.randint(end, (count,), device=self._device, generator=self._random)

    def draw(self) -> Scene:
        number = int(self._choices.integers(len(self._scenes)))
        return self._changed(self._pasted(self._scenes[number], self._grounds[number]))

    def _pasted(self, scene: Scene, ground: torch.Tensor) -> Scene:
        """Pastes objects of the frames, each at its own distance from the sensor, so that the density of its points
        stays right, but in a random direction. Each object is put on the ground of its new place. Objects that would
        overlap a box, or whose new ground is unknown or too high or low, are left out.
        """
        tried = [objects[self._integers(len(objects), self._augmentation.pasted.get(of_class, 0))]
                 for of_class, objects in self._objects.items()]  # fmt: skip
        picked = torch.cat(tried)
        picked = picked[torch.randperm(len(picked), device=self._device, generator=self._random)]
        mirrored = torch.where(self._uniform(0, 1, len(picked)) < 0.5, -1.0, 1.0)
        turn = self._uniform(-math.pi, math.pi, len(picked))
        boxes = self._object_boxes[picked].clone()
        boxes[:, 1], boxes[:, 6] = boxes[:, 1] * mirrored, boxes[:, 6] * mirrored
        boxes = _turned(boxes, turn)
        cell = ((boxes[:, :2] + _GROUND_REACH) / _GROUND_CELL).long().clamp(0, len(ground) - 1)
        step = ground[cell[:, 0], cell[:, 1]] - (boxes[:, 2] - boxes[:, 5] / 2)
        boxes[:, 2] += step
        fits = (step.abs() < _MAX_STEP) & ~collide(boxes, scene.boxes).any(dim=1)  # false where the ground is NaN
        fits &= ~torch.tril(collide(boxes, boxes), diagonal=-1).any(dim=1)
        picked, boxes, mirrored, turn, step = picked[fits], boxes[fits], mirrored[fits], turn[fits], step[fits]
        if len(picked) == 0:
            return scene
        numbers = self._object_numbers[picked]
        of_object = torch.repeat_interleave(torch.arange(len(picked), device=self._device), numbers)
        ends = numbers.cumsum(0)
        rows = torch.arange(len(of_object), device=self._device) - (ends - numbers)[of_object]
        rows += self._object_begins[picked][of_object]
        points = self._object_points[rows]
        points[:, 1] *= mirrored[of_object]
        points[:, :2] = _turned_points(points[:, :2], turn[of_object])
        points[:, 2] += step[of_object]
        kept = torch.nonzero(~inside(boxes, scene.points, _MARGIN).any(dim=0)).flatten()
        return Scene(
            torch.cat([scene.points[kept], points]),
            torch.cat([scene.labels[kept], self._object_labels[rows]]),
            torch.cat([scene.boxes, boxes]),
            torch.cat([scene.classes, self._object_classes[picked]]),
            torch.cat([scene.num_points, numbers]),
        )

    def _changed(self, scene: Scene) -> Scene:
        a, choices = self._augmentation, self._choices
        points, labels = scene.points.clone(), scene.labels
        boxes, numbers = scene.boxes.clone(), scene.num_points
        if choices.random() < 0.5:  # mirrors left and right; the turn below gives all directions
            points[:, 1], boxes[:, 1], boxes[:, 6] = -points[:, 1], -boxes[:, 1], -boxes[:, 6]
        turn = self._uniform(-math.pi, math.pi)
        points[:, :2], boxes = _turned_points(points[:, :2], turn), _turned(boxes, turn)
        scale = choices.uniform(1 - a.max_scale, 1 + a.max_scale)
        points[:, :3], boxes[:, :6] = points[:, :3] * scale, boxes[:, :6] * scale
        shift = choices.uniform(-a.max_shift, a.max_shift)
        points[:, 2], boxes[:, 2] = points[:, 2] + shift, boxes[:, 2] + shift
        if choices.random() < 0.5:
            share = choices.uniform(a.min_kept, 1)
            kept = torch.nonzero(self._uniform(0, 1, len(points)) < share).flatten()
            points, labels = points[kept], labels[kept]
            numbers = (numbers * share).ceil().long()  # an estimate: points are dropped at random
        brightness = (
            0.0 if choices.random() < a.no_intensity else choices.uniform(1 / a.max_brightness, a.max_brightness)
        )
        points[:, 3] = (points[:, 3] * brightness).clamp(max=1)
        return Scene(points, labels, boxes, scene.classes, numbers)


def _turned_points(xy: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    cos, sin = turn.cos(), turn.sin()
    return torch.stack([xy[:, 0] * cos - xy[:, 1] * sin, xy[:, 0] * sin + xy[:, 1] * cos], dim=1)


def _turned(boxes: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    place = _turned_points(boxes[:, :2], turn)
    return torch.cat([place, boxes[:, 2:6], (boxes[:, 6] + turn)[:, None]], dim=1)
