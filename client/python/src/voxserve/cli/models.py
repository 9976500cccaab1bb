"""The command models: lists the server's models, or describes one."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from voxserve.cli.connection import connect
from voxserve.cli.scan_jobs import UsageError
from voxserve.results import FeatureInfo, ModelVersion, Reach, VoxelOverflow


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    if not options.name and options.version:
        raise UsageError("--version needs the model's name")
    with connect(options) as client:
        if options.name:
            print(format_details(client.model(options.name, options.version)), end="")
        else:
            print(format_table(client.models()), end="")
    return 0


def format_table(models: Sequence[ModelVersion]) -> str:
    """Returns a table with a line for each version. The problems of a failed version follow its line."""
    if not models:
        return "no models\n"
    text = f"  {'model':<20} {'version':>7}  {'state':<8} {'classes':>8} {'parameters':>12}  device\n"
    for model in models:
        text += f"  {model.name:<20} {model.version:>7}  {model.state.name.lower():<8} {len(model.classes):>8} "
        text += f"{model.num_parameters:>12,}  {model.device}".rstrip() + "\n"
        text += "".join(f"      {problem}\n" for problem in model.problems)
    return text


def format_details(model: ModelVersion) -> str:
    """Returns all details of one version."""
    rows = [
        ("description", model.description),
        ("device", model.device),
        ("parameters", f"{model.num_parameters:,}"),
        ("voxels", " x ".join(f"{size:g}" for size in model.voxel_size) + " m" if model.voxel_size else ""),
        ("limit", _limits(model)),
        ("reach", _reach(model.reach) if model.reach is not None else ""),
        ("answers", _answers(model)),
        ("digest", model.digest),
        ("reads", ", ".join(map(_feature, model.features))),
        *(("problem", problem) for problem in model.problems),
    ]
    text = f"{model.name} version {model.version}: {model.state.name.lower()}\n"
    text += "".join(f"  {name:<12} {value}\n" for name, value in rows if value)
    if model.classes:
        text += "  classes\n"
        for info in model.classes:
            color = "#{:02x}{:02x}{:02x}".format(*info.color)
            text += f"    {info.id:>3}  {info.name:<20} {color}\n"
        text += f"    {model.ignore_label}  not labelled\n" if model.has_labels else ""
    return text


_OVERFLOWS = {
    VoxelOverflow.REJECT: "a request with more is refused",
    VoxelOverflow.NEAREST_FIRST: "the nearest ones are kept",
    VoxelOverflow.FIRST_SEEN: "the first ones are kept",
}


def _limits(model: ModelVersion) -> str:
    if not model.max_points:
        return ""
    text = f"{model.max_points:,} points a request"
    if model.max_voxels:
        text += f", {model.max_voxels:,} voxels ({_OVERFLOWS.get(model.voxel_overflow, 'or it overflows')})"
    return text + (f", {model.max_message_bytes:,} bytes" if model.max_message_bytes else "")


def _reach(reach: Reach) -> str:
    axes = " x ".join(f"{distance:g}" if math.isfinite(distance) else "unbounded" for distance in reach.distance)
    return f"{axes} m" + (f" ({reach.unbounded_by} reads whole clouds)" if reach.unbounded_by else "")


def _answers(model: ModelVersion) -> str:
    answers = ["labels, with scores on request" if model.has_scores else "labels"] if model.has_labels else []
    if model.has_boxes:
        answers.append("boxes with velocities" if model.has_velocities else "boxes")
    if model.tensors:
        answers.append(f"tensors {', '.join(tensor.name for tensor in model.tensors)}")
    return "; ".join(answers)


def _feature(feature: FeatureInfo) -> str:
    unit = "0..1" if feature.unit == "1" else feature.unit
    default = f"(default {feature.default:g})" if feature.default is not None else ""
    return " ".join(filter(None, (feature.name, unit, default)))
