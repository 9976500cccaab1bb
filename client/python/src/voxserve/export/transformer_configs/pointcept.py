"""Reads the configurations of Pointcept and of LitePT's repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from voxserve.export.detector_configs import files
from voxserve.export.detector_configs.settings import Report, Settings
from voxserve.export.model_folder import PointFeature
from voxserve.export.networks.point_transformer import Config, Names, Stage
from voxserve.export.networks.tensors import ExportError
from voxserve.export.transformer_configs import common, pointcept_points
from voxserve.export.transformer_configs.common import Transformer
from voxserve.export.transformer_configs.pointcept_points import Points

LITEPT = ("LitePT", "LitePT-v1")
PTV3 = ("PT-v3m1", "PT-v3m2", "PT-v3m3")
_SEGMENTORS = ("DefaultSegmentorV2",)
_PRETRAINED = ("Sonata-v1m1", "Concerto-v1m1", "Utonia-v1m1")  # a student and a teacher; the backbone gives features
_UTONIA_BASE = 10.0  # the default of Utonia's own package; Pointcept's is 10,000
_REASONS = {
    "DefaultSegmentor": "its backbones return rows of features; point transformers are in a DefaultSegmentorV2",
    "DefaultLORASegmentorV2": "merge the LoRA weights into the layers first",
    "PG-v1m2": "instances are not served",
    "PPT-v1m2": "a classifier for each data set is not served",
    "DefaultClassifier": "a label for each cloud is not served: export the backbone's features",
    "PPT-v1m1": "its classes are texts, which a language model embeds: export the backbone's features",
    "PPT-v1m3": "its classes are texts, which a language model embeds: export the backbone's features",
}


def read(path: str, commands: Sequence[str], features: tuple[PointFeature, ...] = ()) -> Transformer:
    """Returns the network of a configuration file.

    commands: the types of backbone that are expected. features: the columns of its input; empty: as the file has them.

    Raises ExportError with all settings that are not served, OSError if a file cannot be read, and ValueError if it is
    no configuration.
    """
    values, report = files.read(path), Report()
    if not isinstance(values.get("model"), Mapping):
        raise ValueError(f"{path} has no model = dict(type=...), as the configurations of Pointcept have")
    file = Settings(values, "", report)
    model = file.section("model")
    kind = model.type()
    made = None
    if kind in _SEGMENTORS or kind in _PRETRAINED:
        made = _segmentor(file, model, kind in _PRETRAINED, commands, features)
    else:
        model.problem(
            "type", f"is {kind!r}: {_REASONS.get(kind, 'served are ' + ', '.join((*_SEGMENTORS, *_PRETRAINED)))}"
        )
    if report.problems or made is None:
        raise ExportError([f"{path}: {problem}" for problem in dict.fromkeys(report.problems)])
    return Transformer(made, tuple(dict.fromkeys(report.notes)))


def of_checkpoint(values: Mapping[str, Any], path: str, *, has_rotary: bool, points: Points) -> Transformer:
    """Returns the encoder of the settings that Sonata, Concerto and Utonia store beside their weights.

    has_rotary: the weights are Utonia's. points: the input, which the settings do not describe.
    """
    report = Report()
    preset = {"rope_base": _UTONIA_BASE} if has_rotary else {}
    settings = Settings({**preset, **values}, "config", report)
    made = _backbone(settings, "PT-v3m3" if has_rotary else "PT-v3m2", points)
    settings.finish()
    if not made.decoder:
        made = replace(made, num_classes=0)
    else:
        settings.problem("enc_mode", "is False: the file has a decoder, but no classifier")
    if report.problems:
        raise ExportError([f"{path}: {problem}" for problem in dict.fromkeys(report.problems)])
    return Transformer(made, points.notes)


def _segmentor(
    file: Settings, model: Settings, is_pretrained: bool, kinds: Sequence[str], features: tuple[PointFeature, ...]
) -> Config | None:
    backbone = model.section("backbone")
    kind = backbone.type()
    if kind not in kinds:
        other = "litept" if kind in LITEPT else "pointcept-ptv3" if kind in PTV3 else ""
        advice = f"use the command {other}" if other else f"this command exports {', '.join(kinds)}"
        backbone.problem("type", f"is {kind!r}: {advice}")
        return None
    points = pointcept_points.read(file, features, may_lack_colors=is_pretrained)
    made = _backbone(backbone, kind, points)
    backbone.finish()
    if is_pretrained:
        if made.decoder:
            backbone.problem("enc_mode", "is False: a pre-trained backbone is an encoder")
        return replace(made, num_classes=0, num_joined=_joined(model, len(made.encoder)))
    count = model.count("num_classes")
    data = file.section("data")
    classes = data.names("names", ()) if isinstance(data.raw("names"), (list, tuple)) else ()
    if not classes:
        file.report.notes.append("the file does not list the classes' names: --classes gives them")
    if classes and len(classes) != count:
        model.problem("num_classes", f"is {count}, but data.names has {len(classes)} names")
    widths = [s.channels for s in made.encoder] if not made.decoder else [made.decoder[0].channels]
    if model.count("backbone_out_channels") != sum(widths):
        model.problem("backbone_out_channels", f"is not {sum(widths)}, the backbone's channels")
    model.skip("criteria", "freeze_backbone")
    model.finish()
    entries = common.classes_of(classes, data, "names")
    return replace(made, num_classes=count, classes=entries)


def _joined(model: Settings, num_levels: int) -> int:
    """Returns how many finer levels the pre-training joins with the coarsest one."""
    return min(model.count("up_cast_level", 2, low=0), num_levels - 1)


def _backbone(settings: Settings, kind: str, points: Points) -> Config:
    """Reads a backbone. kind: its type in Pointcept."""
    common.skip_training(settings)
    settings.skip("traceable", "mask_token", "freeze_encoder", "shift_coords", "jitter_coords", "rescale_coords")
    settings.must_be("pre_norm", True, "only blocks with the norm first are served", default=True)
    settings.refuse("cls_mode", "a label for each cloud is not served")
    for key in ("pdnorm_bn", "pdnorm_ln"):
        settings.refuse(key, "norms with a set of weights for each data set are not served")
    settings.skip("pdnorm_decouple", "pdnorm_adaptive", "pdnorm_affine", "pdnorm_conditions")
    in_channels = settings.count("in_channels", len(points.features))
    if in_channels != len(points.features):
        names = ", ".join(f.name for f in points.features)
        settings.problem("in_channels", f"is {in_channels}, but the input has {len(points.features)} columns: {names}")
    lists: dict[str, dict[str, Any]] = {"enc": {}, "dec": {}}
    if kind in LITEPT:
        for part, of_part in lists.items():
            of_part["has_convs"] = _flags(settings, f"{part}_conv")
            of_part["has_attention"] = _flags(settings, f"{part}_attn")
            of_part["rotary_base"] = settings.numbers(f"{part}_rope_freq")
    else:
        common.check_flash(settings)
    is_encoder = settings.flag("enc_mode", False)
    encoder = common.stages(settings, "enc", **lists["enc"])
    dec_keys = [f"dec_{k}" for k in ("depths", "channels", "num_head", "patch_size", "conv", "attn", "rope_freq")]
    decoder: tuple[Stage, ...] = ()
    if is_encoder:
        settings.skip(*dec_keys)
    else:
        decoder = common.stages(settings, "dec", **lists["dec"])
    if kind == "PT-v3m3":
        base = settings.number("rope_base", 10000.0)
        has_decoder_rotary = settings.flag("dec_rope_enable", True)
        encoder = tuple(replace(stage, rotary_base=base) for stage in encoder)
        decoder = tuple(replace(stage, rotary_base=base if has_decoder_rotary else 0.0) for stage in decoder)
        _check_rotary(settings, (*encoder, *decoder))
    strides = settings.counts("stride", (2, 2, 2, 2))
    if encoder and len(strides) != len(encoder) - 1:
        settings.problem("stride", f"has {len(strides)} strides for {len(encoder)} levels")
    if any(s < 2 or (kind == "PT-v3m1" and s & (s - 1)) for s in strides):
        settings.problem(
            "stride", f"is {list(strides)}; served are {'powers of 2' if kind == 'PT-v3m1' else '2 and more'}"
        )
    if decoder and encoder and len(decoder) != len(encoder) - 1:
        settings.problem("dec_depths", f"has {len(decoder)} stages; the encoder has {len(encoder)}")
    common.check_groups(settings, encoder, decoder)
    _check_serialization(settings, kind, encoder, decoder)
    is_first = kind == "PT-v3m1"
    scale = settings.raw("qk_scale")
    layer_scale = settings.raw("layer_scale")
    return Config(
        voxel_size=points.voxel_size,
        features=points.features,
        orders=common.curves(settings),
        strides=strides,
        encoder=encoder,
        decoder=decoder,
        stem_kernel=5 if is_first or kind in LITEPT else 0,
        has_batch_norms=is_first or kind in LITEPT,
        mlp_ratio=settings.number("mlp_ratio", 4.0),
        has_qkv_bias=settings.flag("qkv_bias", True),
        scale=settings.number("qk_scale") if scale else None,
        has_layer_scale=layer_scale is not None,
        is_conv_of_skip=is_first,
        depth="FIRST_LEVEL" if is_first else "OWN_LEVEL",
        position_scale=points.scale if kind == "PT-v3m3" else 0.0,
        names=_names(kind),
    )


def _names(kind: str) -> Names:
    if kind in LITEPT:
        return Names(convs="conv")
    return Names() if kind == "PT-v3m1" else Names(stem="embedding.stem.linear")


def _flags(settings: Settings, key: str) -> tuple[bool, ...]:
    values = settings.items(key)
    if not all(isinstance(value, bool) for value in values):
        settings.problem(key, "is not a list of True and False")
        return ()
    return tuple(values)


def _check_rotary(settings: Settings, stages: Sequence[Stage]) -> None:
    widths = {s.channels // s.num_heads for s in stages if s.depth and s.rotary_base}
    wrong = sorted(width for width in widths if width % 6)
    if wrong:
        settings.problem("", f"has heads of {wrong[0]} channels; rotary positions need a multiple of 6")


def _check_serialization(settings: Settings, kind: str, encoder: Sequence[Stage], decoder: Sequence[Stage]) -> None:
    """LitePT orders the sites of a level only if its encoder has attention there."""
    if kind not in LITEPT:
        return
    for level, (stage, other) in enumerate(zip(decoder, encoder, strict=False)):
        if stage.depth and stage.has_attention and not other.has_attention:
            settings.problem(
                "dec_attn", f"is True in stage {level}, where the encoder has no attention: LitePT refuses it"
            )
