"""Reads what OpenPCDet's configurations say of the layers from points to an image: voxels, encoders, 2-D network.

Read in OpenPCDet at 8caccce (v0.6.0): pcdet/models/{backbones_3d,backbones_2d}, pcdet/datasets/processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from voxserve.export.detector_configs import common
from voxserve.export.detector_configs.settings import Settings
from voxserve.export.model_folder import PointFeature
from voxserve.export.networks.spconv_backbone import Bev, Voxels

FIXED = "the library's fixed value alone is served"
# Settings of a data set that choose what is trained on, or what is measured.
_DATA_SKIPPED = [
    "DATA_PATH",
    "CLOUD_DATA_PATH",
    "DATA_SPLIT",
    "INFO_PATH",
    "SAMPLED_INTERVAL",
    "PROCESSED_DATA_TAG",
    "VERSION",
    "DATA_AUGMENTOR",
    "BALANCED_RESAMPLING",
    "FILTER_EMPTY_BOXES_FOR_TRAIN",
    "FILTER_MIN_POINTS_IN_GT",
    "SET_NAN_VELOCITY_TO_ZEROS",
    "PRED_VELOCITY",
    "TRAIN_WITH_SPEED",
    "USE_SHARED_MEMORY",
    "SHARED_MEMORY_FILE_LIMIT",
    "EVAL_LYFT_IOU_LIST",
    "MAP_CLASS_TO_KITTI",
    "SEQUENCES",
    "TRAINING_CATEGORIES",
    "GET_ITEM_LIST",
    "LIDAR_DEVICE",
]
_SPARSE = {"VoxelResBackBone8x": (16, 32, 64, 128), "VoxelBackBone8x": (16, 32, 64, 64)}
_PILLAR_VFES = ("PillarVFE", "DynPillarVFE", "DynamicPillarVFE")


def must_be_name(section: Settings, served: str) -> None:
    found = section.text("NAME")
    if found and found != served:
        section.problem("NAME", f"is '{found}', not {served}, which alone is served here")
    if found != served:
        section.drop()


def read_vfe(model: Settings) -> tuple[tuple[int, ...], bool]:
    """Returns the widths of the pillars' layers (none for voxels), and whether pillars are dynamic."""
    vfe = model.section("VFE")
    name = vfe.text("NAME")
    if name and name not in ("MeanVFE", *_PILLAR_VFES):
        vfe.problem("NAME", f"is '{name}', not one of MeanVFE, {', '.join(_PILLAR_VFES)}")
        vfe.drop()
    widths: tuple[int, ...] = ()
    if name in _PILLAR_VFES:
        vfe.must_be("WITH_DISTANCE", False, "distances are not served")
        vfe.must_be("USE_ABSLOTE_XYZ", True, "pillars are served with absolute positions")
        vfe.must_be("USE_NORM", True, "pillars are served with batch norms")
        widths = vfe.counts("NUM_FILTERS")
        if not widths or any(width % 2 for width in widths[:-1]):
            vfe.problem("NUM_FILTERS", f"is {widths}: one width or more, and even ones before the last")
    vfe.finish()
    return widths, name in _PILLAR_VFES[1:]


def read_voxels(
    data: Settings, given: tuple[PointFeature, ...], *, is_dynamic: bool, tanh_columns: tuple[int, ...] = (3,)
) -> Voxels:
    """Returns the voxels. tanh_columns: the columns of Waymo's files whose tanh the library's code takes, if the file
    does not say.
    """
    bounds = data.numbers("POINT_CLOUD_RANGE", 6)
    size: tuple[float, ...] = ()
    points, most = 0, 0
    for step in data.sections("DATA_PROCESSOR"):
        name = step.text("NAME")
        if name == "mask_points_and_boxes_outside_range":
            step.skip("REMOVE_OUTSIDE_BOXES", "USE_CENTER_TO_FILTER", "min_num_corners")
        elif name == "shuffle_points":
            step.skip("SHUFFLE_ENABLED")
        elif name in ("transform_points_to_voxels", "transform_points_to_voxels_placeholder"):
            size = step.numbers("VOXEL_SIZE", 3)
            step.refuse("DOUBLE_FLIP", "a test on flipped copies is not served")
            if is_dynamic or name.endswith("placeholder"):
                step.skip("MAX_POINTS_PER_VOXEL", "MAX_NUMBER_OF_VOXELS")
            else:
                points = step.count("MAX_POINTS_PER_VOXEL")
                limits = step.section("MAX_NUMBER_OF_VOXELS")
                most = limits.count("test")
                limits.skip("train")
                limits.finish()
            if name.endswith("placeholder") and not is_dynamic:
                step.problem("NAME", "makes no voxels, but the VFE reads them")
        else:
            step.problem("NAME", f"is '{name}', a step that is not served")
            continue
        step.finish()
    if not size:
        data.problem("DATA_PROCESSOR", "has no transform_points_to_voxels")
        size = (1.0, 1.0, 1.0)
    features = _features(data, given, tanh_columns)
    data.skip(*_DATA_SKIPPED)
    return Voxels(bounds[:3], bounds[3:], (size[0], size[1], size[2]), points, most, features)  # type: ignore[arg-type]


def _features(
    data: Settings, given: tuple[PointFeature, ...], tanh_columns: tuple[int, ...]
) -> tuple[PointFeature, ...]:
    """Returns the input's columns, and notes what the clouds must be like."""
    notes = data.report.notes
    data_set = data.text("DATASET", "")
    encoding = data.section("POINT_FEATURE_ENCODING")
    encoding.must_be("encoding_type", "absolute_coordinates_encoding", "no other encoding is served")
    names = encoding.names("used_feature_list")
    encoding.skip("src_feature_list")
    encoding.refuse("filter_sweeps", "the client chooses the sweeps; leave it out and send as many as it keeps")
    encoding.skip("max_sweeps")
    encoding.finish()
    if not {"x", "y", "z"} <= set(names) or len(set(names)) != len(names):
        encoding.problem("used_feature_list", f"is {list(names)}: it must have x, y, z and every name once")
    names = ("x", "y", "z", *(name for name in names if name not in ("x", "y", "z")))
    data.refuse("SHIFT_COOR", "the training moved the points: move the range and the boxes by as much instead")
    if data_set == "WaymoDataset":
        tanh_columns = data.counts("POINTS_TANH_DIM", tanh_columns)
        if not set(tanh_columns) <= {3, 4}:
            data.problem("POINTS_TANH_DIM", f"is {list(tanh_columns)}: 3 and 4 are served (intensity, elongation)")
    else:
        data.refuse("POINTS_TANH_DIM", "a tanh of columns is not served")
    data.must_be("DISABLE_NLZ_FLAG_ON_POINTS", True, "points in no-label zones were left out", default=True)
    if data.flag("FOV_POINTS_ONLY", False):
        notes.append(common.VIEW_NOTE)
    sequence = data.optional_section("SEQUENCE_CONFIG")
    if sequence.flag("ENABLED", False):
        notes.append(
            f"the training had frames {sequence.raw('SAMPLE_OFFSET')} in one cloud: send as many, with their age"
        )
    elif "MAX_SWEEPS" in data and data.count("MAX_SWEEPS") > 1:
        notes.append(
            f"the training had up to {data.count('MAX_SWEEPS')} sweeps in one cloud: send as many, with their age"
        )
    data.skip("MAX_SWEEPS")
    if data_set == "WaymoDataset" and 4 in tanh_columns and "elongation" in names:
        notes.append(common.TANH_ELONGATION_NOTE)
    if data_set == "WaymoDataset" and 3 in tanh_columns and "intensity" in names:
        notes.append(common.TANH_NOTE)
    elif data_set not in ("NuScenesDataset", "KittiDataset") and "intensity" in names:
        notes.append(common.INTENSITY_NOTE)
    known = {f.name: f for f in (*common.XYZ, common.INTENSITY, common.ELONGATION)} | {"timestamp": common.AGE}
    if data_set == "NuScenesDataset":
        known["intensity"] = common.INTENSITY_255
    if given:
        if len(given) != len(names):
            encoding.problem("used_feature_list", f"has {len(names)} columns, but --features names {len(given)}")
        return common.scaled_as(known.values(), given)
    return tuple(known.get(name, PointFeature(name, "1")) for name in names)


def read_backbone_3d(model: Settings, is_pillar: bool, *, has_bias: bool = True) -> tuple[bool | None, tuple[int, ...]]:
    """Returns whether the sparse backbone has no residual blocks (None: there is no backbone), and its widths.
    has_bias: whether the convolutions of residual blocks must have one.
    """
    to_bev = model.section("MAP_TO_BEV")
    must_be_name(to_bev, "PointPillarScatter" if is_pillar else "HeightCompression")
    to_bev.skip("NUM_BEV_FEATURES")  # the layers before say it
    to_bev.finish()
    if is_pillar:
        model.refuse("BACKBONE_3D", "pillars are served without a sparse backbone", harmless=(None,))
        return None, _SPARSE["VoxelResBackBone8x"]
    backbone = model.section("BACKBONE_3D")
    name = backbone.text("NAME")
    if name and name not in _SPARSE:
        backbone.problem("NAME", f"is '{name}', not one of {', '.join(_SPARSE)}")
        backbone.drop()
    if name == "VoxelResBackBone8x":
        reason = "its blocks are served with a bias" if has_bias else "the builder asks for blocks without"
        backbone.must_be("USE_BIAS", has_bias, reason, default=True)
    backbone.must_be("last_pad", 0, FIXED, default=0)
    backbone.finish()
    return name == "VoxelBackBone8x", _SPARSE.get(name, (16, 32, 64, 128))


def bev_of(settings: Settings) -> Bev:
    """Reads the settings that BaseBEVBackbone and BaseBEVResBackbone share."""
    return Bev(
        settings.counts("LAYER_NUMS", low=0),
        settings.counts("LAYER_STRIDES"),
        settings.counts("NUM_FILTERS"),
        settings.numbers("UPSAMPLE_STRIDES"),
        settings.counts("NUM_UPSAMPLE_FILTERS"),
    )


def read_bev(model: Settings) -> tuple[Bev, Settings]:
    settings = model.section("BACKBONE_2D")
    must_be_name(settings, "BaseBEVBackbone")
    bev = replace(bev_of(settings), has_conv_for_no_stride=settings.flag("USE_CONV_FOR_NO_STRIDE", False))
    settings.finish()
    return bev, settings


def read_branches(
    dense: Settings, channels_of: Mapping[str, int], *, beside: Mapping[str, int] | None = None
) -> set[str]:
    """Returns the names of a head's branches. channels_of: the channels of each branch that is served. All branches but
    "vel" are needed. beside: those of branches that are no parts of a box, and so are not in HEAD_ORDER.
    """
    separate = dense.section("SEPARATE_HEAD_CFG")
    order, branches = separate.names("HEAD_ORDER"), separate.section("HEAD_DICT")
    for name, channels in {**channels_of, **(beside or {})}.items():
        if name == "vel" and name not in branches:
            continue
        branch = branches.section(name)
        branch.must_be("out_channels", channels, "the branch is served with these channels")
        branch.must_be("num_conv", 2, "branches of two convolutions are served")
        branch.finish()
    branches.finish()
    separate.finish()
    if set(order) != {name for name in channels_of if name in branches}:
        separate.problem("HEAD_ORDER", f"is {list(order)}, but HEAD_DICT has other branches")
    return set(order)
