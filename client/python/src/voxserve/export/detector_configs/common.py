"""Defines the parts that both readers of configurations share: the result, classes with colours, and checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from voxserve.export.detector_configs.settings import Settings
from voxserve.export.model_folder import ClassEntry, PointFeature
from voxserve.export.networks import (
    center_point,
    dsvt,
    flatformer,
    query_head,
    second,
    spconv_backbone,
    trans_fusion,
    voxelnext,
)
from voxserve.export.networks.center_head import HeadConfig
from voxserve.export.networks.spconv_backbone import Bev, Voxels

XYZ = (PointFeature("x", "m"), PointFeature("y", "m"), PointFeature("z", "m"))
INTENSITY = PointFeature("intensity", "1", range=(0, 1))
INTENSITY_255 = PointFeature("intensity", "1", scale=255, range=(0, 1))  # of data sets that store 0 to 255
ELONGATION = PointFeature("elongation", "1", 0)
AGE = PointFeature("age", "s", 0)
VIEW_NOTE = "the training had only the points in the camera's view: send only those"
INTENSITY_NOTE = "the intensity reaches the network as it is sent: send it as the training's files had it"
TANH_NOTE = "the training took tanh of the intensity: send that value, since no scale expresses it"
TANH_ELONGATION_NOTE = "the training took tanh of the elongation: send that value, since no scale expresses it"
_KNOWN = (*second.KITTI_CLASSES, *center_point.WAYMO_CLASSES, *center_point.NUSCENES_CLASSES)
_COLORS = {entry.name: entry.color for entry in (*center_point.PANDASET_CLASSES, *_KNOWN)}
_OTHER_COLORS = ((0, 200, 255), (255, 255, 0), (255, 0, 120), (120, 255, 0), (160, 90, 255), (255, 180, 200))
# The server's limits of a decoding node (kernels/boxes/box_candidates.h, engine/model/checks/box_checks.cc).
_MOST_BOXES = 4096
_MOST_CLASSES = 32
_MOST_ANCHORS = 32  # of a cell, rotations counted
_MOST_DIRECTION_BINS = 16

Config = center_point.Config | second.Config | voxelnext.Config | trans_fusion.Config | dsvt.Config | flatformer.Config


@dataclass(frozen=True)
class Detector:
    """A detector as a configuration describes it."""

    command: str  # the exporter's command for this detector
    library: str  # the library whose names the tensors have: openpcdet or mmdetection3d
    config: Config
    notes: tuple[str, ...] = ()  # requirements for clouds, which the exporter cannot check


@dataclass(frozen=True)
class Head:
    """The tasks and boxes of a CenterPoint head."""

    tasks: tuple[tuple[str, ...], ...]
    width: int
    has_velocity: bool
    stride: int


def scaled_as(known: Iterable[PointFeature], given: Sequence[PointFeature]) -> tuple[PointFeature, ...]:
    """Returns the columns that --features gives, with the scales that a configuration has for columns of these names.
    A column whose stated range goes beyond that of the known one is in units of its own, and keeps its scale.
    """
    by_name = {feature.name: feature for feature in known}
    made = []
    for feature in given:
        like = by_name.get(feature.name, feature)
        is_other = feature.range and like.range and feature.range[1] > like.range[1]
        made.append(feature if is_other else replace(feature, scale=like.scale))
    return tuple(made)


def class_entries(names: Sequence[str], settings: Settings, key: str) -> tuple[ClassEntry, ...]:
    """Returns the classes with ids from 0 on, and the colours that public data sets' classes have here."""
    if not names:
        settings.problem(key, "names no classes")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        settings.problem(key, f"has '{twice[0]}' more than once")
    return tuple(
        ClassEntry(i, name, _COLORS.get(name, _OTHER_COLORS[i % len(_OTHER_COLORS)])) for i, name in enumerate(names)
    )


def tasks_of(heads: Sequence[Sequence[str]], names: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Returns the class ids of each task. Names that are no class are left out, as OpenPCDet does."""
    return tuple(tuple(names.index(name) for name in head if name in names) for head in heads)


def check_tasks(tasks: Sequence[Sequence[int]], names: Sequence[str], settings: Settings, key: str) -> None:
    if sorted(i for task in tasks for i in task) != list(range(len(names))) or not all(tasks):
        settings.problem(key, f"does not have each class of {', '.join(names)} once")


def check_voxels(voxels: Voxels, settings: Settings, key: str, *, is_pillar: bool, is_sparse: bool) -> None:
    """Checks the range and the size of voxels. is_sparse: the network has OpenPCDet's sparse backbone, which needs some
    height.
    """
    sizes_are_positive = all(size > 0 for size in voxels.size)
    if not sizes_are_positive or not all(a < b for a, b in zip(voxels.range_min, voxels.range_max, strict=True)):
        settings.problem(key, f"of {voxels.range_min} to {voxels.range_max} with voxels of {voxels.size} is empty")
        return
    grid = voxels.grid()
    if min(grid) < 1:
        settings.problem(key, f"has {' x '.join(map(str, grid))} voxels; it must have 1 or more on every axis")
        return
    for axis, low, high, size, cells in zip("xyz", voxels.range_min, voxels.range_max, voxels.size, grid, strict=True):
        if abs(low + cells * size - high) > 0.01 * size:
            settings.problem(key, f"is not a multiple of the voxel's size on {axis}: {(high - low) / size:g} voxels")
    if is_pillar and grid[2] != 1:
        settings.problem(key, f"has {grid[2]} pillars above each other; a network on pillars has 1")
    if is_sparse and not is_pillar:
        try:
            spconv_backbone.depth_after(grid[2])
        except ValueError as error:
            settings.problem(key, f"has {error}")


def check_bev(bev: Bev, stride: int, stated: int | None, settings: Settings, key: str) -> None:
    """Checks the 2-D network. stride: the stride of its input in voxels. stated: the stride of a heat map or of the
    anchors that the file states; None if it states none.
    """
    lengths = {len(v) for v in (bev.num_layers, bev.strides, bev.widths, bev.up_strides, bev.up_widths)}
    if len(lengths) != 1 or 0 in lengths:
        settings.problem("", "must have lists of one length; another number of upsampling layers is not served")
        return
    scales, here = set(), stride
    for step, up in zip(bev.strides, bev.up_strides, strict=True):
        here *= step
        served = up == round(up) if up >= 1 else up > 0 and abs(1 / up - round(1 / up)) < 1e-6
        if not served:
            settings.problem("", f"has the upsampling stride {up:g}; served are whole numbers, and 1 / whole number")
            return
        scales.add(here / up if up >= 1 else here * round(1 / up))
    if len(scales) != 1:
        settings.problem("", f"scales its blocks to strides of {sorted(scales)} voxels, which cannot be concatenated")
    elif stated is not None and scales != {stated}:
        settings.problem(key, f"is {stated}, but the network's layers have the stride {scales.pop():g}")


def check_boxes(config: Any, settings: Settings) -> None:
    """Checks the numbers of boxes, which the server limits."""
    most = getattr(config, "max_boxes", config.nms_boxes_in)
    if not 1 <= most <= _MOST_BOXES:
        settings.problem("", f"decodes {most} boxes; the server decodes 1 to {_MOST_BOXES}")
    if not 0 <= config.nms_iou <= 1:
        settings.problem("", f"has the overlap {config.nms_iou}, which is not in 0 to 1")
    if not 0 <= config.score_threshold < 1:
        settings.problem("", f"has the score threshold {config.score_threshold}, which is not in 0 to below 1")
    largest = max(len(task) for task in config.tasks) if isinstance(config, HeadConfig) and config.tasks else 0
    if isinstance(config, second.Config):
        largest = len(config.classes)
        if sum(len(anchor.rotations) for anchor in config.anchors) > _MOST_ANCHORS:
            settings.problem("", f"has more than {_MOST_ANCHORS} anchors at a cell, the server's limit")
        if config.num_direction_bins > _MOST_DIRECTION_BINS:
            settings.problem(
                "", f"has {config.num_direction_bins} direction bins; the server has up to {_MOST_DIRECTION_BINS}"
            )
        if any(size <= 0 for anchor in config.anchors for size in anchor.size):
            settings.problem("", "has an anchor of a size that is not above 0")
        if not all(anchor.rotations for anchor in config.anchors):
            settings.problem("", "has an anchor without rotations")
    elif any(low > high for low, high in zip(config.center_min, config.center_max, strict=True)):
        settings.problem("", f"has the limits {config.center_min} to {config.center_max}, within which is no centre")
    if largest > _MOST_CLASSES:
        settings.problem("", f"has a head of {largest} classes; the server has up to {_MOST_CLASSES}")


def check_queries(head: query_head.QueryHead, num_classes: int, settings: Settings, *, kernel: str) -> None:
    """Checks a head with queries. kernel: the key of its window for peaks."""
    for problem in query_head.problems(head, num_classes):
        settings.problem("", problem)
    if head.peak_kernel == 1 and head.border:
        settings.problem(kernel, "is 1, with which the library stops; a window of 3 cells or more is served")


def untested_classes(data_set: str, num_classes: int) -> tuple[int, ...]:
    """Returns the classes in which OpenPCDet and mit-han-lab/bevfusion take every cell for a peak."""
    known = {"nuScenes": (8, 9), "Waymo": (1, 2)}.get(data_set, ())
    return tuple(i for i in known if i < num_classes)
