"""Reads configurations of mit-han-lab/bevfusion without cameras (configs/nuscenes/det/transfusion/secfpn/lidar).

Its yaml files inherit from the default.yaml of every folder above, and have texts ${a.b[:2]} for settings elsewhere
(torchpack's configs.load, and recursive_eval in mmdet3d/utils/config.py at 326653d). No code runs: a text that is more
than a setting's name, an index and a slice makes the setting unreadable. The settings are read as those of
mmdetection3d's BEVFusion, whose networks are the same.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from voxserve.export.detector_configs import mmdetection3d_queries
from voxserve.export.detector_configs.common import Detector
from voxserve.export.detector_configs.python_file import copied, merge_into
from voxserve.export.detector_configs.settings import Report, Settings, Unreadable
from voxserve.export.model_folder import PointFeature

LIBRARY = "bevfusion"
_REFERENCE = re.compile(r"\$\{([A-Za-z0-9_.]+)(?:\[(:?)(\d+)\])?\}")
_MOST_DEPTH = 32
_STEPS = ("LoadPointsFromFile", "LoadPointsFromMultiSweeps")  # of the test pipeline; others are cameras'


def is_bevfusion(values: dict[str, Any]) -> bool:
    model = values.get("model")
    return isinstance(model, dict) and bool({"encoders", "decoder", "fuser", "heads"} & set(model))


def with_defaults(path: str, values: dict[str, Any], read_file: Any) -> dict[str, Any]:
    """Returns a file's settings, merged with those of the default.yaml of each folder above, and with the settings that
    texts ${...} name. read_file: returns the settings of one file.
    """
    found: list[Path] = []
    for folder in Path(path).resolve().parents:
        default = folder / "default.yaml"
        if not default.is_file():
            break
        found.append(default)
    merged: dict[str, Any] = {}
    for default in reversed(found):
        if default != Path(path).resolve():
            merge_into(merged, read_file(str(default)))
    merge_into(merged, copied(values))
    resolved: dict[str, Any] = _resolved(merged, merged, 0)
    return resolved


def read(values: dict[str, Any], report: Report, features: tuple[PointFeature, ...]) -> Detector | None:
    """Returns the detector; None if the report says why not. features: the input's columns; empty: by the data set."""
    file = Settings(values, "", report)
    names = file.names("object_classes")
    model = file.section("model")
    model.skip("type")
    model.refuse("fuser", "cameras are not served: give a configuration of the LiDAR alone", harmless=(None,))
    encoders, decoder, heads = (model.section(key) for key in ("encoders", "decoder", "heads"))
    for sensor in ("camera", "radar"):
        encoders.refuse(sensor, "only the LiDAR is served", harmless=(None,))
    heads.refuse("map", "its head for a map is not served", harmless=(None,))
    lidar = encoders.section("lidar")
    voxelize, backbone = lidar.raw("voxelize"), lidar.raw("backbone")
    lidar.must_be("voxelize_reduce", True, "the mean of a voxel's points is served", default=True)
    parts = {"decoder.backbone": decoder.raw("backbone"), "decoder.neck": decoder.raw("neck")}
    parts |= {"heads.object": heads.raw("object"), "voxelize": voxelize, "backbone": backbone}
    for section in (lidar, encoders, decoder, heads, model):
        section.finish()
    missing = [name for name, part in parts.items() if not isinstance(part, dict)]
    if missing:
        model.problem("", f"has no settings of {missing[0]}: give the file with the default.yaml of the folders above")
    if report.problems:
        return None
    inner = Settings(_as_mmdetection3d(values, parts, names), "", report)
    theirs = inner.section("model")
    theirs.skip("type")
    command, _, config = mmdetection3d_queries.bev_fusion(inner, theirs, features, names)
    theirs.finish()
    if report.problems:
        return None
    config = replace(config, head=replace(config.head, has_old_boxes=True))
    return Detector(command.replace("bevfusion-l", "transfusion-l"), LIBRARY, config, tuple(report.notes))


def _as_mmdetection3d(values: dict[str, Any], parts: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Returns the same settings in mmdetection3d's form. Problems name the parts as that form has them."""
    head = dict(parts["heads.object"])
    width = head.get("hidden_channel", 128)
    attention = {"embed_dims": width, "num_heads": head.get("num_heads", 8)}
    activation = {"relu": "ReLU"}.get(head.pop("activation", "relu"), "another")
    head["decoder_layer"] = {
        "type": "TransformerDecoderLayer",
        "self_attn_cfg": attention,
        "cross_attn_cfg": dict(attention),
        "ffn_cfg": {
            "embed_dims": width,
            "feedforward_channels": head.pop("ffn_channel", 256),
            "act_cfg": {"type": activation},
        },
        "pos_encoding_cfg": {"num_pos_feats": width},
    }
    for key in ("dropout", "loss_iou"):
        head.pop(key, None)
    backbone, pipeline = parts["backbone"], values.get("test_pipeline")
    kind = "BEVFusionSparseEncoder" if backbone.get("type") == "SparseEncoder" else backbone.get("type")
    steps = [
        step
        for step in (pipeline if isinstance(pipeline, list) else [])
        if isinstance(step, dict) and step.get("type") in _STEPS
    ]
    model = {
        "type": "BEVFusion",
        "voxelize_cfg": {"voxelize_reduce": True, **parts["voxelize"]},
        "pts_voxel_encoder": {"type": "HardSimpleVFE", "num_features": backbone.get("in_channels")},
        "pts_middle_encoder": {**backbone, "type": kind},
        "pts_backbone": parts["decoder.backbone"],
        "pts_neck": parts["decoder.neck"],
        "bbox_head": head,
    }
    made = {"model": model, "dataset_type": values.get("dataset_type"), "test_pipeline": steps}
    return {**made, "class_names": list(names)}


def _resolved(value: Any, root: dict[str, Any], depth: int) -> Any:
    if depth > _MOST_DEPTH:
        return Unreadable("refers to itself")
    if isinstance(value, dict):
        return {key: _resolved(item, root, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, root, depth + 1) for item in value]
    if not isinstance(value, str) or not value.startswith("${"):
        return value
    found, unknown = _REFERENCE.fullmatch(value), f"is {value!r}, which is no setting of the files, and no code is run"
    if found is None:
        return Unreadable(unknown)
    target: Any = root
    for part in found[1].split("."):
        target = target.get(part) if isinstance(target, dict) else None
    if isinstance(target, dict):
        return Unreadable(f"is {value!r}, which names a section")  # none of the library's files has one
    target = _resolved(copied(target), root, depth + 1)
    if target is None:
        return Unreadable(unknown)
    if found[3] is None:
        return target
    end = int(found[3])
    if not isinstance(target, list) or end >= len(target) + bool(found[2]):
        return Unreadable(f"is {value!r}, and the list is shorter")
    return target[:end] if found[2] else target[end]
