"""Formats the report of voxserve.evaluate as text for people."""

from __future__ import annotations

from typing import Any


def format_report(report: dict[str, Any]) -> str:
    """Returns a report of command.evaluate() as text: the latency; for a model with labels a table of IoU by class and
    distance; for a model with boxes tables of average precision by nuScenes' and by KITTI's rules.
    """
    text = (
        f"{report['dataset']} ({report['layout']}): {report['frames']} frames, {report['points']:,} points, by "
        f"{report['model']} version {report['version']} on {report['device']}\n"
    )
    latency = report["latency_ms"]
    text += (
        f"  round trip p50 {latency['round_trip']['p50']:.1f} ms, p99 {latency['round_trip']['p99']:.1f} ms; at the "
        f"server p50 {latency['server']['p50']:.1f} ms, p99 {latency['server']['p99']:.1f} ms\n"
    )
    if report["left_out"]:
        text += f"  not counted, as the model does not have them: {', '.join(report['left_out'])}\n"
    text += _not_counted(report["not_counted"]) + "".join(f"  note: {note}\n" for note in report["notes"])
    if "segmentation" in report:
        text += _segmentation(report["segmentation"])
    if "detection" in report:
        text += _centres(report["detection"]["nuscenes"]) + _overlaps(report["detection"]["kitti"])
    return text


def _not_counted(counts: dict[str, dict[str, int]]) -> str:
    """Returns lines that name what took no part in the measures, with numbers of points or boxes."""
    texts = {"points": "points of the data set", "boxes": "boxes of the data set", "found_boxes": "boxes of the model"}
    text = ""
    for key, what in texts.items():
        if counts.get(key):
            text += f"  {what} that did not count: {_counts(counts[key])}\n"
    if counts.get("points") or counts.get("boxes"):
        text += "    (--classes FILE says which class of the model stands for one)\n"
    return text


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in counts.items())


def _segmentation(part: dict[str, Any]) -> str:
    text = f"\nmIoU {_number(part['mIoU'])}, accuracy {_number(part['accuracy'])} of {part['count']:,} {part['unit']}\n"
    if part["found_others"]:
        text += f"  errors of classes that the data set does not have: {_counts(part['found_others'])}\n"
    if part["without_class"]:
        text += f"  errors that got none of the model's classes: {part['without_class']:,}\n"
    bins = part["by_distance"]
    heads = "".join(f"{_range(b):>10}" for b in bins)
    text += f"  {'IoU':<22}{part['unit']:>12}{'all':>10}{heads}\n"
    for index, row in enumerate(part["classes"]):
        near = "".join(f"{_number(b['classes'][index]):>10}" for b in bins)
        text += f"  {row['name']:<22}{row['count']:>12,}{_number(row['iou']):>10}{near}\n"
    means = "".join(f"{_number(b['mIoU']):>10}" for b in bins)
    return text + f"  {'mean':<22}{part['count']:>12,}{_number(part['mIoU']):>10}{means}\n"


def _centres(part: dict[str, Any]) -> str:
    text = f"\nnuScenes' rules (distance of centres): mAP {_number(part['mAP'])}\n"
    bins = part["classes"][0]["by_distance"]
    columns = [f"{distance} m" for distance in part["classes"][0]["ap"]]
    heads = "".join(f"{name:>8}" for name in (*columns, "mean"))
    heads += "".join(f"{_range(b):>10}" for b in bins) + f"{'metres':>8}{'size':>7}{'yaw':>7}{'m/s':>7}"
    text += f"  {'AP':<22}{'boxes':>8}{heads}\n"
    for row in part["classes"]:
        text += f"  {row['name']:<22}{row['boxes']:>8,}"
        text += "".join(f"{_number(ap):>8}" for ap in (*row["ap"].values(), row["mAP"]))
        text += "".join(f"{_number(b['mAP']):>10}" for b in row["by_distance"])
        errors = row["errors"]
        text += f"{_number(errors.get('translation')):>8}"
        text += "".join(f"{_number(errors.get(key)):>7}" for key in ("scale", "orientation", "velocity")) + "\n"
    return text


def _overlaps(part: dict[str, Any]) -> str:
    names = list(part["mAP"])
    means = ", ".join(f"{name} {_number(part['mAP'][name]['3d'])}" for name in names)
    text = f"\nKITTI's rules (overlap, 40 recalls): 3-D mAP {means}\n"
    bins = part["classes"][0]["by_distance"]
    heads = "".join(f"{f'{name} {kind}':>13}" for name in names for kind in ("bev", "3d"))
    text += f"  {'AP':<22}{'boxes':>8}{'IoU':>6}{heads}" + "".join(f"{_range(b):>10}" for b in bins) + "\n"
    for row in part["classes"]:
        text += f"  {row['name']:<22}{row[names[-1]]['boxes']:>8,}{row['min_overlap']:>6}"
        text += "".join(f"{_number(row[name][kind]):>13}" for name in names for kind in ("bev", "3d"))
        text += "".join(f"{_number(b['3d']):>10}" for b in row["by_distance"]) + "\n"
    return text


def _range(part: dict[str, Any]) -> str:
    return f"{part['from']:g}-{part['to']:g} m" if part["to"] is not None else f"> {part['from']:g} m"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
