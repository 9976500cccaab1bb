"""Reads the configurations of autoware-ml's PTv3, which labels points, finds boxes, or does both in one network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from voxserve.export.detector_configs.settings import Report, Settings
from voxserve.export.model_folder import ClassEntry, PointFeature
from voxserve.export.networks.point_transformer import Config, Names, Stage
from voxserve.export.networks.tensors import ExportError
from voxserve.export.transformer_configs import autoware_boxes, common, hydra_file
from voxserve.export.transformer_configs.common import Transformer

ORDERS = ("z", "z-trans")  # those that autoware-ml exports networks with, whatever they were trained with
NAMES = Names(
    encoder="encoder.",
    decoder="seg3d_head.",
    stem="embedding.stem.0",
    stem_norm="embedding.stem.1",
    classifier="seg3d_head.classifier",
)
# The models' classes, and whether they have labels and boxes.
_MODELS = {
    "PTv3SegmentationModel": (True, False),
    "PTv3SegDetModel": (True, True),
    "PTv3DetectionModel": (False, True),
}
_BLOCKS = ("mlp_ratio", "qkv_bias", "qk_scale", "pre_norm")  # settings that the encoder and the head both have


def read(path: str, features: tuple[PointFeature, ...] = ()) -> Transformer:
    """Returns the network of a configuration file. features: the columns of its input; empty: as the file has them.

    Raises ExportError with all settings that are not served, OSError if a file cannot be read, and ValueError if it is
    no configuration.
    """
    values, report = hydra_file.read(path), Report()
    if not isinstance(values.get("model"), Mapping) or "_target_" not in values["model"]:
        raise ValueError(f"{path} has no model with a _target_, as the configurations of autoware-ml have")
    file = Settings(values, "", report)
    model = file.section("model")
    target = model.type("_target_")
    if target not in _MODELS:
        model.problem("_target_", f"is {target}; served are {', '.join(_MODELS)}")
        raise _refused(path, report)
    has_labels, has_boxes = _MODELS[target]
    encoder = model.section("encoder")
    head = model.section("seg3d_head") if has_labels else None
    made = _network(file, encoder, head, features)
    if has_boxes:
        made = _with_boxes(file, model, made)
    for section in (encoder, head):
        if section is not None:
            section.finish()
    if report.problems:
        raise _refused(path, report)
    return Transformer(made)


def _with_boxes(file: Settings, model: Settings, config: Config) -> Config:
    """Returns the network with the branch for boxes. Its classes are among those of the points, by their names in the
    data set's mapping; without labels they are the model's.
    """
    sites = autoware_boxes.Sites(
        config.encoder, config.strides, config.voxel_size[0], config.range_min, config.range_max
    )
    classes, known = config.classes, None
    if config.decoder:
        mapping: Any = _mapping(file)
        known = {entry.name: entry.id for entry in config.classes}
        known |= {str(k): v for k, v in mapping.items() if isinstance(v, int) and 0 <= v < config.num_classes}
    else:
        head = model.section("bbox_head")
        classes = common.classes_of(head.names("class_names"), head, "model.bbox_head.class_names")
    return replace(config, classes=classes, boxes=autoware_boxes.read(model, sites, known))


def _mapping(file: Settings) -> dict[Any, Any]:
    mapping: Any = file.optional_section("dataset").optional_section("segmentation3d").readable("class_mapping")
    return mapping if isinstance(mapping, dict) else {}


def _refused(path: str, report: Report) -> ExportError:
    return ExportError([f"{path}: {problem}" for problem in dict.fromkeys(report.problems)])


def _network(file: Settings, encoder: Settings, head: Settings | None, features: tuple[PointFeature, ...]) -> Config:
    """head: that of labels; None for a network without."""
    _check_blocks(encoder)
    common.curves(encoder)
    stages = common.stages(encoder, "enc")
    decoder = _decoder(encoder, head, stages) if head is not None else ()
    strides = encoder.counts("stride")
    if stages and (len(strides) != len(stages) - 1 or any(s < 2 or s & (s - 1) for s in strides)):
        encoder.problem("stride", f"is {list(strides)}; served are powers of 2, one for each pool")
    stem = encoder.text("stem_type", "linear")
    if stem not in ("linear", "conv"):
        encoder.problem("stem_type", f"is {stem!r}, not linear or conv")
    kernel = encoder.count("stem_kernel_size", 0, low=0)
    if stem == "conv" and kernel % 2 == 0:
        encoder.problem("stem_kernel_size", f"is {kernel}; a convolution of the same sites needs an odd size")
    columns = features or _columns(file)
    if encoder.count("in_channels") != len(columns):
        encoder.problem("in_channels", f"is {encoder.count('in_channels')}, but the input has {len(columns)} columns")
    scale = encoder.raw("qk_scale")
    count = head.count("num_classes") if head is not None else 0
    classes = _classes(file, count) if head is not None else ()
    grid = file.number("grid_size")
    bounds = file.numbers("point_cloud_range", 6)
    if grid <= 0 or not all(low < high for low, high in zip(bounds[:3], bounds[3:], strict=True)):
        file.problem("point_cloud_range", f"{list(bounds)} with the grid_size {grid:g} is empty")
        grid, bounds = 1.0, (0.0, 0.0, 0.0, 1.0, 1.0, 1.0)
    off = [axis for axis, low in zip("xyz", bounds[:3], strict=True) if abs(low / grid - round(low / grid)) > 1e-3]
    if off:
        file.problem("point_cloud_range", f"begins between two cells on {off[0]}: that is not served")
    return Config(
        voxel_size=(grid,) * 3,
        features=tuple(columns),
        range_min=tuple(bounds[:3]),
        range_max=tuple(_end(low, high, grid) for low, high in zip(bounds[:3], bounds[3:], strict=True)),
        orders=ORDERS,
        strides=strides,
        encoder=stages,
        decoder=decoder,
        num_classes=count,
        classes=classes,
        stem_kernel=kernel if stem == "conv" else 0,
        mlp_ratio=encoder.number("mlp_ratio"),
        has_qkv_bias=encoder.flag("qkv_bias"),
        scale=encoder.number("qk_scale") if scale else None,
        names=NAMES,
    )


def _check_blocks(section: Settings) -> None:
    common.skip_training(section)
    common.check_flash(section)
    section.skip("_target_", "ignore_index", "lovasz_weight")
    section.must_be("pre_norm", True, "only blocks with the norm first are served")


def _decoder(encoder: Settings, head: Settings, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    _check_blocks(head)
    head.skip("order")
    for key in _BLOCKS:
        head.must_be(key, encoder.raw(key), "the encoder has another value", default=encoder.raw(key))
    decoder = common.stages(head, "dec")
    if head.counts("enc_channels") != tuple(stage.channels for stage in stages):
        head.problem("enc_channels", "are not those of the encoder")
    if stages and len(decoder) != len(stages) - 1:
        head.problem("dec_depths", f"has {len(decoder)} stages; the encoder has {len(stages)}")
    return decoder


def _end(low: float, high: float, size: float) -> float:
    """Returns the end of the range on an axis. The server rounds the number of voxels: where it would leave out a last
    one of which less than half lies in the range, the range ends with that voxel.
    """
    cells = (high - low) / size
    return low + math.ceil(cells) * size if 1e-3 < cells % 1 < 0.5 else high


def _columns(file: Settings) -> list[PointFeature]:
    """Returns the columns that the step BuildPointFeatures names. Intensities are divided by 255 before, to 0 to 1."""
    pipeline = file.section("datamodule").section("predict_transforms").sections("pipeline")
    steps = [step for step in pipeline if step.type("_target_") == "BuildPointFeatures"]
    if len(steps) != 1:
        file.problem("datamodule.predict_transforms", "has no step BuildPointFeatures: add --features")
        return []
    keys = steps[0].names("keys")
    try:
        return common.columns_of(keys, 1.0, 1.0, None)
    except KeyError as error:
        steps[0].problem("keys", f"has {error}, which the exporter does not know: add --features")
        return []


def _classes(file: Settings, count: int) -> tuple[ClassEntry, ...]:
    """Returns the classes: the names of the metrics, or all names of the data set's mapping that have an index, joined
    as autoware-ml's metrics join them. Empty if the file has neither.
    """
    metrics = file.section("model").readable("metrics")
    if metrics is None:  # a joint network's are merged of two lists, by code
        metrics = file.optional_section("dataset").optional_section("segmentation3d").readable("metrics")
    for metric in metrics if isinstance(metrics, list) else ():
        listed = metric.get("class_names") if isinstance(metric, dict) else None
        if isinstance(listed, list) and len(listed) == count:
            return common.classes_of([str(name) for name in listed], file, "model.metrics.class_names")
    mapping = _mapping(file)
    if not mapping:
        return ()
    names: list[list[str]] = [[] for _ in range(count)]
    for name, index in mapping.items():
        if isinstance(index, int) and 0 <= index < count:
            names[index].append(str(name))
    joined = ["-".join(parts) or f"class_{i}" for i, parts in enumerate(names)]
    return common.classes_of(joined, file, "dataset.segmentation3d.class_mapping")
