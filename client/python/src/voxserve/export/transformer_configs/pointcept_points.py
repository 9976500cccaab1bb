"""Reads how Pointcept's data set code makes voxels and features of a cloud, from the steps of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from voxserve.export.detector_configs.common import TANH_NOTE, scaled_as
from voxserve.export.detector_configs.settings import Settings
from voxserve.export.model_folder import PointFeature
from voxserve.export.transformer_configs.common import columns_of

_COLOR_SCALE = 1 / 255  # of NormalizeColor
_COLOR_NOTE = (
    "NormalizeColor divides colours by 255, as Pointcept does since 1.6. Older versions made c / 127.5 - 1 of a colour "
    "c: for weights that they trained, clients send 2 * c - 255 in its place"
)
_ALL_KEYS = ("coord", "color")  # whose columns have scales
# Steps that change neither the points nor their features.
_NOTHING = ("ToTensor", "Copy", "Update", "ShufflePoint")


@dataclass(frozen=True)
class Points:
    """The input of a network."""

    voxel_size: tuple[float, ...]  # metres
    features: tuple[PointFeature, ...]
    scale: float = 1.0  # what the network's coordinates are, in metres^-1
    notes: tuple[str, ...] = ()


def read(file: Settings, features: tuple[PointFeature, ...], *, may_lack_colors: bool) -> Points:
    """Reads the steps of data.val, or of data.test or data.train if the file has no others.

    features: the columns of the input; empty: those of the step Collect. may_lack_colors: clouds without colours or
    normals have zeros there, as the README of pre-trained encoders says.
    """
    data = file.section("data")
    part = next((name for name in ("val", "test", "train") if name in data), "val")
    section = data.section(part)
    if part == "train" and may_lack_colors:
        return _of_pretraining(section, data.raw(part), features)
    if section.type("type", "") == "WaymoDataset":
        section.report.notes.append(TANH_NOTE)
    steps = section.sections("transform")
    if "test_cfg" in section and not any(step.type() == "Collect" for step in steps):
        cfg = section.section("test_cfg")
        steps = [s for s in steps if s.type() != "GridSample"]  # a finer one, for the labels of all points
        steps = [*steps, cfg.section("voxelize"), *cfg.sections("post_transform")]
    return _of_steps(section, steps, features, may_lack_colors)


def _of_steps(
    section: Settings, steps: list[Settings], features: tuple[PointFeature, ...], may_lack_colors: bool
) -> Points:
    notes = section.report.notes
    keys: tuple[str, ...] = ()
    scale, grid, color_scale = 1.0, 0.0, 1.0
    for step in steps:
        kind = step.type()
        if kind == "GridSample":
            grid = step.number("grid_size")
        elif kind == "Collect":
            keys = step.names("feat_keys")
        elif kind == "NormalizeColor":
            color_scale = _COLOR_SCALE
        elif kind == "RandomScale":
            scale *= _fixed_scale(step)
        elif kind == "CenterShift":
            apply_z = step.flag("apply_z", True)
            lowest = " and the lowest z" if apply_z else ""
            notes.append(f"the training moved clouds by CenterShift: clients subtract the middle of x and y{lowest}")
        elif kind == "PointClip":
            bounds = step.numbers("point_cloud_range", 6)
            shown = ", ".join(f"{value / scale:g}" for value in bounds)
            notes.append(
                f"PointClip moves points outside of {shown} (metres) onto the border: clients leave such points out"
            )
        elif kind not in _NOTHING:
            step.problem("type", f"is {kind!r}: the exporter does not know what this step does to clouds")
    if grid <= 0:
        section.problem("transform", "has no GridSample with a grid_size above 0")
        grid = 1.0
    if not features and not keys:
        section.problem("transform", "has no Collect with feat_keys; --features names the columns")
    if features:
        made = scaled_as(columns_of(_ALL_KEYS, scale, color_scale, None), features)
    else:
        made = tuple(_columns(section, keys, scale, color_scale, 0.0 if may_lack_colors else None))
    if color_scale != 1 and any(feature.scale == color_scale for feature in made):
        notes.append(_COLOR_NOTE)
    return Points((_size(grid / scale),) * 3, made, scale)


def _size(value: float) -> float:
    """Returns 0.05 for 0.01 / 0.2."""
    return float(f"{value:.9g}")


def _fixed_scale(step: Settings) -> float:
    low, high = step.numbers("scale", 2)
    if low != high or low <= 0:
        step.problem("scale", f"is {low:g} to {high:g}, which is random: only a fixed scale above 0 is served")
        return 1.0
    return low


def _columns(
    section: Settings, keys: tuple[str, ...], scale: float, color_scale: float, default: float | None
) -> list[PointFeature]:
    try:
        return columns_of(keys, scale, color_scale, default)
    except KeyError as error:
        section.problem("transform", f"has the feature {error}, which the exporter does not know: add --features")
        return []


def _of_pretraining(section: Settings, values: Any, features: tuple[PointFeature, ...]) -> Points:
    """Pre-training has other steps than the use of the network, so only the size of the voxels is read. values: those
    of the section.
    """
    grid = _first(values, "GridSample", "grid_size")
    if not isinstance(grid, (int, float)) or grid <= 0:
        section.problem("transform", "has no GridSample with a grid_size above 0")
        grid = 1.0
    return Points((float(grid),) * 3, _published_columns(1.0, features))


def _first(value: Any, kind: str, key: str) -> Any:
    """Returns a setting of the first step of a type among steps within steps."""
    if isinstance(value, dict):
        if value.get("type") == kind and key in value:
            return value[key]
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            found = _first(item, kind, key)
            if found is not None:
                return found
    return None


def published(scale: float, grid: float, features: tuple[PointFeature, ...], notes: tuple[str, ...] = ()) -> Points:
    """Returns the input of the pre-trained encoders, as their packages' transform.default() makes it."""
    return Points((_size(grid / scale),) * 3, _published_columns(scale, features), scale, notes)


def _published_columns(scale: float, features: tuple[PointFeature, ...]) -> tuple[PointFeature, ...]:
    columns = columns_of(("coord", "color", "normal"), scale, _COLOR_SCALE, 0.0)
    return scaled_as(columns, features) or tuple(columns)
