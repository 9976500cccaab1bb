"""Reads what mmdetection3d's configurations say of the layers from points to an image: voxels, encoders, 2-D network.

Read in mmdetection3d at fe25f7a51 (v1.4.0): mmdet3d/models/voxel_encoders, middle_encoders, backbones/second.py,
necks/second_fpn.py, and mmdet3d/datasets/transforms/loading.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from voxserve.export.detector_configs import common
from voxserve.export.detector_configs.settings import Settings
from voxserve.export.model_folder import PointFeature
from voxserve.export.networks.spconv_backbone import Bev, Voxels
from voxserve.export.networks.trans_fusion import Waves

_EPSILON = "the library's default, 1e-3, is served"
# Steps of a test pipeline that change no point, or that are read elsewhere here.
_HARMLESS_STEPS = (
    "DefaultFormatBundle3D",
    "Collect3D",
    "LoadPointsFromFile",
    "LoadPointsFromMultiSweeps",
    "LoadAnnotations3D",
    "RandomFlip3D",
    "PointShuffle",
    "Pack3DDetInputs",
)
_MOST_WAVES = 16  # whose highest frequency is 2^15; a rotary node has more room
_MARGIN = 0.01  # metres that a filter may leave out at a border of the range, as FlatFormer's does
_MOST_COLUMNS = 100  # that a file of points has
_CONV = {"type": "Conv2d", "bias": False}
_DECONV = {"type": "deconv", "bias": False}


@dataclass(frozen=True)
class Layers:
    """The layers before a head."""

    voxels: Voxels
    pillar_widths: tuple[int, ...]  # of the pillars' layers; none for voxels
    is_legacy_pillar: bool
    is_plain: bool | None  # the sparse backbone has no residual blocks; None: there is no backbone
    sparse_widths: tuple[int, ...]
    sparse_out_width: int
    bev: Bev
    neck: Settings  # for problems of the 2-D network
    waves: Waves | None = None  # AWML's num_aug_features

    @property
    def stride(self) -> int:
        """The stride of the 2-D network's input in voxels."""
        return 1 if self.pillar_widths else 8


def read_layers(
    file: Settings, model: Settings, prefix: str, given: tuple[PointFeature, ...], *, is_bev_fusion: bool = False
) -> Layers:
    """Returns the layers. prefix: of their settings, pts_ or "". given: the input's columns; empty: by the file.
    is_bev_fusion: voxels and the sparse encoder are those of the project BEVFusion, whose axes are x, y, z.
    """
    voxels, widths, is_legacy, is_known = _encoder(file, model, prefix, given, is_bev_fusion)
    is_plain: bool | None = None
    sparse: tuple[int, ...] = (16, 32, 64, 64)
    out, waves = 128, None
    if is_known:
        is_plain, sparse, out, waves = _middle(model, prefix, widths, voxels, is_bev_fusion)
    else:
        model.skip(f"{prefix}middle_encoder")
    bev, neck = read_bev(model, prefix)
    if is_known:
        common.check_voxels(voxels, model, "data_preprocessor", is_pillar=bool(widths), is_sparse=True)
    return Layers(voxels, widths, is_legacy, is_plain, sparse, out, bev, neck, waves)


def _encoder(
    file: Settings, model: Settings, prefix: str, given: tuple[PointFeature, ...], is_bev_fusion: bool
) -> tuple[Voxels, tuple[int, ...], bool, bool]:
    """Returns the voxels, the widths of the pillars' layers (none for voxels), whether their features are those of
    `legacy`, and whether the encoder is known.
    """
    if is_bev_fusion:
        processor = model.optional_section("data_preprocessor")
        layer = model.section("voxelize_cfg") if "voxelize_cfg" in model else processor.section("voxelize_cfg")
        model.skip("voxelize_cfg")
        layer.must_be("voxelize_reduce", True, "the mean of a voxel's points is served")
    else:
        processor = model.section("data_preprocessor")
        processor.must_be("voxel", True, "the network needs voxels", default=False)
        processor.must_be("voxel_type", "hard", "voxels with a largest number of points are served", default="hard")
        layer = processor.section("voxel_layer")
    bounds, size = layer.numbers("point_cloud_range", 6), layer.numbers("voxel_size", 3)
    points = layer.count("max_num_points")
    most = layer.raw("max_voxels")
    most = most[1] if isinstance(most, (list, tuple)) and len(most) == 2 else most  # of training, of testing
    limit = Settings({"max_voxels": most}, layer.path, layer.report).count("max_voxels")
    layer.skip("deterministic")
    layer.finish()
    encoder = model.section(f"{prefix}voxel_encoder")
    kind = encoder.type()
    columns = read_columns(file, given, bounds)
    widths: tuple[int, ...] = ()
    is_legacy = False
    if kind == "HardSimpleVFE":
        count = encoder.count("num_features", 4)
    elif kind == "PillarFeatureNet":
        count, widths = encoder.count("in_channels", 4), encoder.counts("feat_channels", (64,))
        encoder.must_be("with_distance", False, "distances are not served", default=False)
        encoder.must_be("with_cluster_center", True, "offsets from the mean are served", default=True)
        encoder.must_be("with_voxel_center", True, "offsets from the centre are served", default=True)
        encoder.must_be("mode", "max", "the maximum over points is served", default="max")
        is_legacy = encoder.flag("legacy", True)
        same(encoder, "voxel_size", size, (0.2, 0.2, 4.0), "that of the voxel_layer")
        same(encoder, "point_cloud_range", bounds, (0.0, -40.0, -3.0, 70.4, 40.0, 1.0), "that of the voxel_layer")
        check_norm(encoder)
        if any(width % 2 for width in widths[:-1]):
            encoder.problem("feat_channels", f"is {widths}: widths before the last must be even")
    else:
        if kind:
            encoder.problem("type", f"is '{kind}', not HardSimpleVFE or PillarFeatureNet")
        encoder.drop()
        return Voxels(bounds[:3], bounds[3:], size, points, limit, columns), (), False, False  # type: ignore[arg-type]
    encoder.finish()
    if kind == "PillarFeatureNet" and count != len(columns):
        encoder.problem("in_channels", f"is {count}, but the test pipeline has {len(columns)} columns")
    if count > len(columns):
        encoder.problem("num_features", f"is {count}, but the test pipeline has {len(columns)} columns")
    voxels = Voxels(bounds[:3], bounds[3:], size, points, limit, columns[:count])  # type: ignore[arg-type]
    return voxels, widths, is_legacy, True


def read_columns(
    file: Settings, given: tuple[PointFeature, ...], bounds: tuple[float, ...]
) -> tuple[PointFeature, ...]:
    """Returns the names of the points' columns, as the test pipeline loads them. bounds: the voxels' range."""
    notes, report = file.report.notes, file.report
    loader = file.optional_section("test_dataloader")
    data = loader.optional_section("dataset")
    while "dataset" in data:  # a wrapper: CBGSDataset, RepeatDataset, ClassBalancedDataset
        data = data.section("dataset")
    data_set = data.type(default=file.text("dataset_type", "")).removeprefix("MultiSweeps")  # FlatFormer's of Waymo
    pipeline = data.raw("pipeline") or file.raw("test_pipeline") or []
    steps = [
        Settings(step, f"test_pipeline[{i}]", report)
        for i, step in enumerate(pipeline if isinstance(pipeline, list) else [])
    ]
    _check_steps(steps, bounds)
    # T4Dataset: AWML's, whose sensors' intensity is 0 to 255.
    scale = common.INTENSITY_255 if data_set in ("NuScenesDataset", "T4Dataset") else common.INTENSITY
    load = next((step for step in steps if step.type() == "LoadPointsFromFile"), None)
    if load is None:
        if not given:
            file.problem(
                "test_pipeline", "has no LoadPointsFromFile, which says the columns: name them with --features"
            )
        return common.scaled_as([scale], given) or (*common.XYZ, scale)
    columns = _dimensions(load)
    fifth = common.ELONGATION if data_set == "WaymoDataset" else None
    names: dict[int, PointFeature | None] = {**dict(enumerate(common.XYZ)), 3: scale, 4: fifth}
    load.refuse("shift_height", "a height above the ground is not served")
    load.refuse("use_color", "colours are not served")
    for step in steps:
        if step.type() == "LoadPointsFromMultiSweeps":
            count = step.count("sweeps_num", 10, low=0)
            if count:
                notes.append(f"the training had up to {count} sweeps besides a cloud: send as many, with their age")
            names[columns[4] if len(columns) > 4 else 4] = common.AGE  # its column 4 becomes the time
            chosen = _dimensions(step, (0, 1, 2, 4))
            columns = tuple(columns[i] for i in chosen if i < len(columns))
        elif step.type() == "LoadPointsFromMultiSweepsWaymo":
            names[step.count("time_dim", 4, low=0)] = None  # minus the number of frames that have passed
    tanh = load.counts("tanh_dim", ())  # FlatFormer's
    has_tanh = load.flag("norm_intensity", False) or 3 in tanh
    has_tanh_elongation = load.flag("norm_elongation", False) or 4 in tanh
    if not set(tanh) <= {3, 4}:
        load.problem("tanh_dim", f"is {list(tanh)}: those of intensity and elongation, 3 and 4, are served")
    if 3 in columns and has_tanh:
        notes.append(common.TANH_NOTE)
    elif 3 in columns and data_set not in ("NuScenesDataset", "T4Dataset", "KittiDataset"):
        notes.append(common.INTENSITY_NOTE)
    if 4 in columns and has_tanh_elongation and names[4] is fifth:
        notes.append(common.TANH_ELONGATION_NOTE)
    if data_set == "KittiDataset":
        notes.append(common.VIEW_NOTE)
    if given:
        if len(given) != len(columns):
            file.problem("test_pipeline", f"has {len(columns)} columns, but --features names {len(given)}")
        return common.scaled_as([scale], given)
    found = [names.get(i) for i in columns]
    if None in found or columns[:3] != (0, 1, 2):
        file.problem(
            "test_pipeline", f"reads the columns {columns}, of which some have no known name: name them with --features"
        )
    return tuple(one for one in found if one is not None)


def _check_steps(steps: Sequence[Settings], bounds: tuple[float, ...]) -> None:
    """Refuses steps that change the points in a way that is not served, and notes those that are not known."""
    for step in steps:
        kind = step.type()
        if kind == "MultiScaleFlipAug3D":
            step.refuse("flip", "a test on flipped copies is not served")
            _check_steps(step.sections("transforms") if "transforms" in step else (), bounds)
        elif kind == "PointsRangeFilter":
            _check_filter(step, bounds)
        elif kind == "GlobalRotScaleTrans":
            step.must_be("rot_range", [0, 0], "a test on turned copies is not served", default=[0, 0])
            step.must_be("scale_ratio_range", [1, 1], "a test on scaled copies is not served", default=[1, 1])
            step.must_be("translation_std", [0, 0, 0], "a test on moved copies is not served", default=[0, 0, 0])
        elif kind and kind not in _HARMLESS_STEPS:
            step.report.notes.append(f"the test pipeline has {kind}, which is not known here: do it before you send")


def _check_filter(step: Settings, bounds: tuple[float, ...]) -> None:
    """Refuses a filter with another range than the voxels', unless it leaves out a little more of it."""
    found = step.numbers("point_cloud_range", 6)
    cut = [b - a if axis < 3 else a - b for axis, (a, b) in enumerate(zip(bounds, found, strict=True))]
    if found != bounds and not all(0 <= one <= _MARGIN for one in cut):
        step.problem("point_cloud_range", f"is {list(found)}, not {list(bounds)}, that of the voxel_layer")
    elif found != bounds:
        step.report.notes.append(f"the test pipeline leaves out points outside {list(found)}: the server keeps them")


def _dimensions(step: Settings, default: Sequence[int] = (0, 1, 2)) -> tuple[int, ...]:
    value = step.raw("use_dim")
    if isinstance(value, int) and 0 <= value <= _MOST_COLUMNS and not isinstance(value, bool):
        return tuple(range(value))
    return step.counts("use_dim", default, low=0)


def _middle(
    model: Settings, prefix: str, pillar_widths: tuple[int, ...], voxels: Voxels, is_bev_fusion: bool
) -> tuple[bool | None, tuple[int, ...], int, Waves | None]:
    """Returns whether the sparse backbone has no residual blocks (None: there is no backbone), its widths, its last
    one, and the waves of its input.
    """
    middle = model.section(f"{prefix}middle_encoder")
    grid = voxels.grid() if all(size > 0 for size in voxels.size) else (1, 1, 1)
    if pillar_widths:
        must_be_type(middle, "PointPillarsScatter")
        middle.must_be("in_channels", pillar_widths[-1], "the width of the pillars' last layer")
        middle.must_be("output_shape", [grid[1], grid[0]], "the number of the range's pillars on y and x")
        middle.finish()
        return None, (16, 32, 64, 128), 128, None
    must_be_type(middle, "BEVFusionSparseEncoder" if is_bev_fusion else "SparseEncoder")
    middle.must_be("in_channels", len(voxels.features), "the number of the voxels' features")
    shape, axes, last = [grid[2] + 1, grid[1], grid[0]], "z, y and x", [0, 1, 1]
    if is_bev_fusion:
        shape, axes, last = shape[::-1], "x, y and z", last[::-1]
    middle.must_be("sparse_shape", shape, f"the range's voxels on {axes}, one more on z")
    waves = _waves(middle, voxels) if is_bev_fusion else None
    middle.must_be("order", ["conv", "norm", "act"], "no other order is served", default=["conv", "norm", "act"])
    middle.refuse("return_middle_feats", "one result is served")
    check_norm(middle)
    kind = middle.text("block_type", "conv_module")
    channels = _nested(middle.items("encoder_channels", ((16,), (32, 32, 32), (64, 64, 64), (64, 64, 64))))
    paddings = _nested(middle.items("encoder_paddings", ((1,), (1, 1, 1), (1, 1, 1), ((0, 1, 1), 1, 1))))
    base, out = middle.count("base_channels", 16), middle.count("output_channels", 128)
    widths = (16, 32, 64, 64)
    if len(channels) != 4 or not all(isinstance(stage, list) and stage for stage in [*channels, *paddings]):
        middle.problem("encoder_channels", "must have four stages")
    elif kind == "conv_module":
        widths = tuple(stage[0] for stage in channels)
        served = [[widths[0]], *[[width] * 3 for width in widths[1:]]]
        downs = [stage[0] for stage in paddings[1:]]
        if channels != served or base != widths[0]:
            middle.problem(
                "encoder_channels", f"is {channels}, not one convolution of base_channels and three stages of three"
            )
        if downs != [1, 1, last]:
            middle.problem("encoder_paddings", f"begins its stages with {downs}, not 1, 1 and {tuple(last)}")
    elif kind == "basicblock":
        widths = (base, *[stage[-1] for stage in channels[:3]])
        served = [*[[widths[i], widths[i], widths[i + 1]] for i in range(3)], [widths[3]] * 2]
        downs = [stage[-1] for stage in paddings[:3]]
        if channels != served:
            middle.problem("encoder_channels", f"is {channels}, not two blocks a stage, and between them a convolution")
        if downs != [1, 1, last]:
            middle.problem("encoder_paddings", f"ends its stages with {downs}, not 1, 1 and {tuple(last)}")
    else:
        middle.problem("block_type", f"is '{kind}', not conv_module or basicblock")
    middle.finish()
    return kind == "conv_module", widths, out, waves


def _waves(middle: Settings, voxels: Voxels) -> Waves | None:
    """Returns the waves that AWML makes of each feature; None for a network without."""
    count = middle.count("num_aug_features", 0, low=0)
    low, high = (middle.numbers(f"aug_features_{end}_values", default=()) for end in ("min", "max"))
    if not count:
        return None
    inputs = len(voxels.features)
    if len(low) != inputs or len(high) != inputs or any(a == b for a, b in zip(low, high, strict=False)):
        middle.problem(
            "aug_features_min_values",
            f"to aug_features_max_values are {list(low)} to {list(high)}: each of the {inputs} features needs a range",
        )
        return None
    if not 1 <= count <= _MOST_WAVES:
        middle.problem("num_aug_features", f"is {count}; served are up to {_MOST_WAVES}")
        return None
    return Waves(count, low, high)


def read_bev(model: Settings, prefix: str, *, has_sums: bool = False) -> tuple[Bev, Settings]:
    """Returns the 2-D network, and its neck's settings for problems. has_sums: its layers must add their input, as
    FlatFormer's do.
    """
    backbone, neck = model.section(f"{prefix}backbone"), model.section(f"{prefix}neck")
    must_be_type(backbone, "SECOND")
    must_be_type(neck, "SECONDFPN")
    backbone.must_be("residual", has_sums, "layers that add their input are FlatFormer's alone", default=False)
    for section in (backbone, neck):
        check_norm(section)
        section.must_be("conv_cfg", _CONV, "no other convolution is served", default=_CONV)
        section.skip("in_channels", "init_cfg", "pretrained")
    neck.must_be("upsample_cfg", _DECONV, "no other is served", default=_DECONV)
    bev = Bev(
        backbone.counts("layer_nums", (3, 5, 5), low=0),
        backbone.counts("layer_strides", (2, 2, 2)),
        backbone.counts("out_channels", (128, 128, 256)),
        neck.numbers("upsample_strides", default=(1, 2, 4)),
        neck.counts("out_channels", (256, 256, 256)),
        neck.flag("use_conv_for_no_stride", False),
    )
    for section in (backbone, neck):
        section.finish()
    return bev, neck


def must_be_type(settings: Settings, served: str) -> None:
    found = settings.type()
    if found and found != served:
        settings.problem("type", f"is '{found}', not {served}, which alone is served here")
    if found != served:
        settings.drop()


def check_norm(settings: Settings) -> None:
    """Refuses another norm than a batch norm with the epsilon 1e-3."""
    norm = settings.optional_section("norm_cfg")
    norm.skip("type", "momentum", "requires_grad")  # SyncBN and naiveSyncBN compute the same in evaluation
    if "type" in norm and "BN" not in norm.text("type") and "BatchNorm" not in norm.text("type"):
        norm.problem("type", f"is '{norm.text('type')}': batch norms are served")
    norm.must_be("eps", 1e-3, _EPSILON, default=1e-3 if "type" not in norm else 1e-5)
    norm.finish()


def same(
    settings: Settings, key: str, expected: Sequence[float], default: Any, reason: str, first: int | None = None
) -> None:
    """Refuses numbers that differ from others of the file. first: how many are compared; None: all."""
    values = settings.numbers(key, default=default) if default is not None else settings.numbers(key)
    if values and tuple(values[:first]) != tuple(expected):
        settings.problem(key, f"is {list(values)}, not {list(expected)}, {reason}")


def _nested(value: Any) -> Any:
    return [_nested(one) for one in value] if isinstance(value, (list, tuple)) else value
