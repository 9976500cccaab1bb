"""Reads what autoware-ml's configurations say of the branch for boxes: bev_neck and bbox_head.

autoware-ml at 04952df: autoware_ml/models/detection3d/{ptv3.py,heads/transfusion.py,task_modules/bbox_coders.py}.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from voxserve.export.detector_configs.settings import Settings
from voxserve.export.networks import ptv3_boxes, query_head
from voxserve.export.networks.point_transformer import Stage
from voxserve.export.networks.ptv3_boxes import BoxBranch
from voxserve.export.networks.query_head import QueryHead

_BRANCHES = {"center": 2, "height": 1, "dim": 3, "rot": 2, "vel": 2}
_TRAINING = (
    *("_target_", "auxiliary", "assigner", "code_weights", "min_radius", "gaussian_overlap", "heatmap_target"),
    *("heatmap_init_bias", "loss_cls_weight", "loss_bbox_weight", "loss_heatmap_weight"),
    "score_threshold",  # that of the bbox_coder acts
    *("post_max_size", "nms_min_radius", "nms_groups"),  # of nms_type circle alone
)


@dataclass(frozen=True)
class Sites:
    """The sites that the branch reads, which the rest of the file says."""

    encoder: tuple[Stage, ...]
    strides: Sequence[int]
    voxel_size: float  # metres
    range_min: Sequence[float]
    range_max: Sequence[float]


def read(model: Settings, sites: Sites, class_ids: dict[str, int] | None) -> BoxBranch | None:
    """Returns the branch; None if the report says why not. class_ids: of the points' classes; None: the boxes' classes
    are the model's.
    """
    neck, head = model.section("bev_neck"), model.section("bbox_head")
    if len(sites.encoder) < 2 or len(sites.strides) != len(sites.encoder) - 1:
        return None  # reported
    fusion, projector, encoder = (neck.section(key) for key in ("fusion", "bev_projector", "bev_encoder"))
    for section in (neck, fusion, projector, encoder):
        section.skip("_target_")
    stride = math.prod(sites.strides[:-1])
    cells = [
        -(-math.ceil(round((high - low) / sites.voxel_size, 3)) // stride)
        for low, high in zip(sites.range_min, sites.range_max, strict=True)
    ]
    fused = _chained(fusion, "in_channels", sites.encoder[-1].channels, "the encoder's last level has")
    _chained(fusion, "skip_channels", sites.encoder[-2].channels, "the level before has")
    _chained(projector, "in_channels", fused, "the fusion has")
    projected = projector.count("out_channels")
    projector.must_be("output_shape", [cells[1], cells[0]], f"the range's cells of {stride} voxels on y and x")
    _chained(encoder, "in_channels", projected, "the bev_projector has")
    made = encoder.count("out_channels")
    if not encoder.counts("dilations"):
        encoder.problem("dilations", "is empty")
    names = head.names("class_names")
    branch = BoxBranch(
        cells=(cells[1], cells[0]),
        height=cells[2],
        class_ids=_ids(head, names, class_ids),
        fusion_width=fused,
        projection_width=projected,
        hidden_width=encoder.count("hidden_channels"),
        out_width=made,
        dilations=encoder.counts("dilations"),
        head=_head(head, names, sites, stride, made),
    )
    for section in (fusion, projector, encoder, neck, head):
        section.finish()
    return branch


def _chained(settings: Settings, key: str, channels: int, source: str) -> int:
    """Checks a number of input channels. Returns the section's number of output channels."""
    found = settings.count(key)
    if found != channels:
        settings.problem(key, f"is {found}, but {source} {channels} channels")
    return settings.count("out_channels")


def _ids(head: Settings, names: Sequence[str], known: dict[str, int] | None) -> tuple[int, ...]:
    if len(names) != head.count("num_classes"):
        head.problem("class_names", f"has {len(names)} names, but num_classes is {head.count('num_classes')}")
    if len(set(names)) != len(names):
        head.problem("class_names", "has a name more than once")
    if known is None:
        return tuple(range(len(names)))
    missing = [name for name in names if name not in known]
    if missing:
        head.problem("class_names", f"has {missing[0]!r}, which is no class of the points: one list has both")
    ids = tuple(known.get(name, 0) for name in names)
    if not missing and len(set(ids)) != len(ids):
        head.problem("class_names", "has two classes that are one class of the points")
    return ids


def _head(head: Settings, names: Sequence[str], sites: Sites, stride: int, channels: int) -> QueryHead:
    head.skip(*_TRAINING)
    _chained_input(head, channels)
    head.must_be("num_decoder_layers", 1, "one decoder layer is served")
    kind = head.raw("nms_type")
    if kind is not None:
        head.problem("nms_type", f"is {kind!r}: NMS by the distance of centres is not served; leave it out")
    tested = _tested(head, names)
    branches = head.section("common_heads")
    for name, count in _BRANCHES.items():
        if name != "vel" or name in branches:
            branches.must_be(name, [count, 2], "channels and convolutions that are served")
    branches.finish()
    has_velocity = head.flag("use_velocity", True) and "vel" in branches
    low, high, thresholds = _coder(head, names, sites, stride)
    made = QueryHead(
        num_queries=head.count("num_proposals"),
        peak_kernel=head.count("nms_kernel_size", 3),
        border="PAD" if tested is None else "KEEP",
        untested=ptv3_boxes.untested(tested, len(names)),
        has_velocity=has_velocity,
        center_min=low,
        center_max=high,
        height_of="TOP",
        score_thresholds=thresholds,
        stride=stride,
        width=head.count("hidden_channel"),
        num_heads=head.count("num_heads"),
        feed_forward=head.count("feedforward_channels"),
        is_autoware=True,
    )
    for problem in query_head.problems(made, len(names)):
        head.problem("", problem)
    return made


def _chained_input(head: Settings, channels: int) -> None:
    found = head.count("in_channels")
    if found != channels:
        head.problem("in_channels", f"is {found}, but the bev_encoder has {channels} channels")


def _tested(head: Settings, names: Sequence[str]) -> tuple[int, ...] | None:
    """Returns the classes whose cells are tested for peaks; None: all classes, by the window's part in the image."""
    listed = head.items("dense_heatmap_pooling_classes", None)
    if "dense_heatmap_pooling_classes" not in head:
        return None
    found = [names.index(one) if isinstance(one, str) and one in names else one for one in listed]
    wrong = [one for one in found if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < len(names)]
    if wrong:
        head.problem("dense_heatmap_pooling_classes", f"has {wrong[0]!r}, which is no class of the head")
        return ()
    return tuple(found)


def _coder(head: Settings, names: Sequence[str], sites: Sites, stride: int) -> tuple[Any, Any, tuple[float, ...]]:
    """Returns the limits of boxes' centres, and the thresholds of scores."""
    coder = head.section("bbox_coder")
    coder.skip("_target_", "code_size")
    for section, bounds in ((coder, "pc_range"), (head, "point_cloud_range")):
        values = section.numbers(bounds)
        if tuple(values[:2]) != tuple(sites.range_min[:2]):
            section.problem(bounds, f"is {list(values)}, not the point_cloud_range of the voxels")
        factor, size = section.count("out_size_factor"), section.numbers("voxel_size")
        expected = stride * sites.voxel_size
        if any(abs(one * factor - expected) > 1e-4 * expected for one in size[:2]):
            section.problem(
                "voxel_size", f"{list(size[:2])} times {factor} is not {expected:g} m, the size of the image's cells"
            )
    limits = coder.numbers("post_center_range", 6) if "post_center_range" in coder else ()
    value = coder.raw("score_threshold")
    thresholds = tuple(value) if isinstance(value, (list, tuple)) else () if value is None else (value,)
    if not all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in thresholds):
        coder.problem("score_threshold", f"is {value}, not a number, or one for each class")
        thresholds = ()
    if len(thresholds) not in (0, 1, len(names)):
        coder.problem("score_threshold", f"has {len(thresholds)} values for {len(names)} classes")
    coder.finish()
    return limits[:3], limits[3:], tuple(map(float, thresholds))
