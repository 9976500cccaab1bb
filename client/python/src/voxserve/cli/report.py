"""Formats the results of scans for people and for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from voxserve import box_file
from voxserve.cli.box_counts import BoxCount, count_boxes, name_of, surest_first
from voxserve.cli.label_counts import Agreement, ClassCount
from voxserve.results import Answer, ClassInfo, Detections, Segmentation, Tensors

_MAX_BOX_ROWS = 20


@dataclass
class ScanReport:
    """The result of one scan."""

    file: str
    result: Segmentation | Detections | Tensors
    num_points: int
    classes: list[ClassCount]  # classes of the labels, most points first
    agreement: Agreement | None = None  # of the labels with the truth (--truth); None without --truth
    truth: str = ""  # the file of true labels that the labels were compared with
    written: list[str] = field(default_factory=list)  # the names of the files that were written


def format_report(report: ScanReport, classes: Sequence[ClassInfo]) -> str:
    """Returns the report in several lines. It has the table of classes with the labels' agreement with the truth, then
    the boxes, or the shapes of the tensors; then the times of the server's stages and the names of written files.
    """
    result, counts = report.result, report.result.counts
    boxes, is_labelled = box_file.boxes_of(result), isinstance(result, Segmentation)
    parts = (["labelled"] if is_labelled else []) + ([] if boxes is None else [f"{len(boxes):,} boxes found"])
    done = " and ".join(parts) or "run"
    text = (
        f"{report.file}: {report.num_points:,} points in {counts.voxels:,} voxels, {done} by {result.model} "
        f"version {result.version} on {result.device}\n"
    )
    if isinstance(result, Tensors):
        text += format_tensors(result)
    if is_labelled:
        text += format_classes(report.classes, report.agreement, report.num_points, classes)
    if boxes is not None:
        text += format_box_counts(count_boxes(boxes, classes)) + format_boxes(boxes, classes)
    lost = [
        f"{number:,} {what}"
        for number, what in (
            (counts.invalid, "NaN or infinite"),
            (counts.out_of_range, "out of range"),
            (counts.dropped, "beyond the voxel limit"),
            (counts.unsampled, "not in the sample"),
            (counts.not_finite, "without finite logits"),
        )
        if number
    ]
    if lost:
        text += f"\nnot {'labelled' if is_labelled else 'used'}: {', '.join(lost)}\n"
    if counts.boxes_not_finite:
        text += f"\nboxes left out: {counts.boxes_not_finite:,} candidates with NaN or infinite numbers\n"
    if result.sampled_points is not None:
        text += f"\nsampled: {len(result.sampled_points):,} farthest points\n"
    text += _format_stages(result)
    if report.written:
        text += f"\nwrote {', '.join(report.written)}\n"
    return text


def format_classes(
    counts: Sequence[ClassCount], agreement: Agreement | None, num_points: int, classes: Sequence[ClassInfo]
) -> str:
    """Returns a table with one line per class, and the share of labels that agree with the truth. The classes that the
    model predicted come first, then the classes that only the truth has.
    """
    rows = list(counts)
    if agreement is not None:
        there = {row.id for row in rows}
        rows += [ClassCount(c.id, c.name, 0, 0) for c in classes if c.id not in there and agreement.of(c.id)[0]]
    head = f"  {'class':<16} {'points':>11} {'share':>7}"
    text = "\n" + head + (f" {'by people':>11} {'agree':>8}" if agreement is not None else "") + "\n"
    for row in rows:
        text += f"  {row.name:<16} {row.num_points:>11,} {_percent(row.num_points, num_points):>7}"
        if agreement is not None:
            points, agreeing = agreement.of(row.id)
            text += f" {points:>11,} {_percent(agreeing, points):>8}"
        text += "\n"
    unlabelled = num_points - sum(row.num_points for row in rows)
    if unlabelled:
        text += f"  {'not labelled':<16} {unlabelled:>11,} {_percent(unlabelled, num_points):>7}\n"
    if agreement is not None:
        text += f"\n{_percent(agreement.num_agreeing, agreement.num_points)} agree with the labels of people: "
        text += f"{agreement.num_agreeing:,} of {agreement.num_points:,} points"
        text += f" ({agreement.num_without:,} have none)\n" if agreement.num_without else "\n"
    return text


def format_box_counts(counts: Sequence[BoxCount]) -> str:
    """Returns a table with the number of boxes and the best score of each class."""
    if not counts:
        return "\n  no boxes\n"
    text = f"\n  {'class':<16} {'boxes':>11} {'best':>7}\n"
    for count in counts:
        text += f"  {count.name:<16} {count.num_boxes:>11,} {count.best_score:>7.2f}\n"
    return text


def format_boxes(found: Detections, classes: Sequence[ClassInfo]) -> str:
    """Returns one line for each of the 20 boxes with the best scores, best first, and the number of further boxes."""
    if not len(found):
        return ""
    text = f"\n  {'box':<16} {'score':>6} {'x m':>8} {'y m':>8} {'z m':>8} {'long':>6} {'wide':>6} {'high':>6} "
    text += f"{'yaw':>6} {'m/s':>6}" + ("\n" if found.queries is None else f" {'query':>6}\n")
    for i in surest_first(found)[:_MAX_BOX_ROWS]:
        x, y, z, length, width, height, yaw = found.boxes[i].tolist()
        text += f"  {name_of(found, i, classes):<16} "
        text += f"{found.scores[i]:>6.2f} {x:>8.2f} {y:>8.2f} {z:>8.2f} {length:>6.2f} {width:>6.2f} {height:>6.2f} "
        text += f"{math.degrees(yaw):>6.0f} {math.hypot(*found.velocities[i].tolist()):>6.1f}"
        query = -1 if found.queries is None else found.queries[i]
        text += f" {query:>6}\n" if query >= 0 else "\n"
    if len(found) > _MAX_BOX_ROWS:
        text += f"  {len(found) - _MAX_BOX_ROWS} more; --json and --save have all\n"
    return text


def format_tensors(answer: Tensors) -> str:
    """Returns one line per tensor: its name, shape, type, kind of rows and unit."""
    text = ""
    for name, tensor in answer.tensors.items():
        shape = " x ".join(f"{size:,}" for size in tensor.rows.shape)
        unit = f", unit {' x '.join(f'{size:g}' for size in tensor.unit)}" if tensor.unit else ""
        text += f"  {name:<20} {shape:>16}  {tensor.rows.dtype} of {tensor.kind.name.lower()}{unit}\n"
    return text


def format_json(report: ScanReport, classes: Sequence[ClassInfo]) -> str:
    """Returns the report as one line of JSON."""
    result, counts = report.result, report.result.counts
    names = {info.id: info.name for info in classes}
    line: dict[str, Any] = {
        "file": report.file,
        "model": result.model,
        "version": result.version,
        "device": result.device,
        "points": report.num_points,
        "used": counts.used,
        "invalid": counts.invalid,
        "out_of_range": counts.out_of_range,
        "dropped": counts.dropped,
        "not_finite": counts.not_finite,
        "boxes_not_finite": counts.boxes_not_finite,
        "voxels": counts.voxels,
    }
    if isinstance(result, Tensors):
        line["tensors"] = {name: list(tensor.rows.shape) for name, tensor in result.tensors.items()}
    if isinstance(result, Segmentation):
        line["classes"] = [
            {"id": c.id, "name": c.name, "points": c.num_points, "share": c.share} for c in report.classes
        ]
    if (boxes := box_file.boxes_of(result)) is not None:
        line["boxes"] = box_file.records(boxes)
    if result.sampled_points is not None:
        line["unsampled"] = counts.unsampled
        line["sampled_points"] = result.sampled_points.tolist()
    if report.agreement is not None:
        line["truth"] = {
            "file": report.truth,
            "points": report.agreement.num_points,
            "agreeing": report.agreement.num_agreeing,
            "without": report.agreement.num_without,
            "classes": {
                names[class_id]: {"points": points, "agreeing": agreeing}
                for class_id, (points, agreeing) in sorted(report.agreement.by_class.items())
            },
        }
    line["stages_ms"] = {stage.name: stage.seconds * 1e3 for stage in result.stages}
    line["round_trip_ms"] = result.round_trip * 1e3
    line["written"] = report.written
    return json.dumps(line) + "\n"


def format_time(seconds: float) -> str:
    """Returns a text such as "12.3 ms" or "1.24 s"."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"


def format_json_error(file: str, code: str, reason: str, message: str) -> str:
    """Returns the error of a scan as one line of JSON."""
    return json.dumps({"file": file, "error": {"code": code, "reason": reason, "message": message}}) + "\n"


def _format_stages(result: Answer) -> str:
    total = sum(stage.seconds for stage in result.stages)
    text = f"\n  {'stage':<14} {'ms':>9}\n"
    for stage in result.stages:
        text += f"  {stage.name:<14} {stage.seconds * 1e3:>9.2f}\n"
    network = format_time(max(result.round_trip - total, 0))
    text += f"  {'server':<14} {total * 1e3:>9.2f}\n"
    return text + f"  {'round trip':<14} {result.round_trip * 1e3:>9.2f}  network and gRPC {network}\n"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"
