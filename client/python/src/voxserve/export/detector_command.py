"""The exporter's commands for detectors: which configuration a network has, and what the command says of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from voxserve.export import detector_configs
from voxserve.export.arguments import point_features
from voxserve.export.detector_configs import Config
from voxserve.export.model_folder import Network, PointFeature
from voxserve.export.networks import (
    center_point,
    dsvt,
    flatformer,
    mmdetection3d_names,
    second,
    spconv_backbone,
    trans_fusion,
    voxelnext,
)
from voxserve.export.networks.tensors import ExportError, Tensor

_MODULES: dict[str, Any] = {
    "centerpoint": center_point,
    "centerpoint-pillar": center_point,
    "voxelnext": voxelnext,
    "second": second,
    "pointpillars": second,
    "transfusion-l": trans_fusion,
    "bevfusion-l": trans_fusion,
    "dsvt": dsvt,
    "flatformer": flatformer,
}
_OF_ONE_LIBRARY = (voxelnext, dsvt, flatformer)  # modules whose networks have one library's names
_LIBRARIES = {"centerpoint": spconv_backbone.LIBRARIES, "transfusion-l": trans_fusion.LIBRARIES}
_CONFIG_HELP = (
    "the configuration of the training, with range, voxels, classes and boxes: OpenPCDet's or bevfusion's yaml, or "
    "mmdetection3d's and AWML's py or json. No code in it runs, and a setting that is not served is refused by name"
)


@dataclass(frozen=True)
class Made:
    """A detector's network, its configuration, and what the command says about both."""

    network: Network
    config: Config
    messages: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def add_arguments(command: argparse.ArgumentParser, data_sets: Iterable[str] = (), *, network: str = "") -> None:
    """Adds the arguments that say which configuration the network has. data_sets: the names of the published ones; none
    if there is a single one. network: the command's name, where several libraries have published ones.
    """
    names = tuple(data_sets)
    if names:
        source: Any = command.add_mutually_exclusive_group(required=True)
        source.add_argument(
            "--dataset", choices=names, help="the published network with this data set's range, voxels and tasks"
        )
    else:
        source = command
    source.add_argument("--config", metavar="FILE", help=_CONFIG_HELP)
    command.add_argument(
        "--features",
        type=point_features,
        default=(),
        metavar="NAME:UNIT[=DEFAULT],...",
        help="the columns of the input, if FILE does not name them (default: the data set's)",
    )
    if network:
        command.add_argument(
            "--library",
            choices=_LIBRARIES[network],
            help="the library whose tensor names, limits and boxes the network has (default: FILE's, or openpcdet)",
        )


def make(options: argparse.Namespace, state: Mapping[str, Tensor] | None) -> Made:
    """Returns the network of a state dict (None: with random weights). Raises ExportError with what is wrong with the
    configuration or the tensors.
    """
    library = getattr(options, "library", None) or (
        "mmdetection3d" if options.network == "bevfusion-l" else "openpcdet"
    )
    messages: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    if options.config:
        detector = detector_configs.read(options.config, options.features)
        _check_command(options, detector)
        config, library = detector.config, detector.library
        messages, warnings = (f"read {options.config} ({library}): {describe(config)}",), detector.notes
    elif options.features:
        raise ExportError(["--features names the columns of a configuration: add --config"])
    else:
        config = _published(options, library)
        messages = (f"{_assumed(options)}: {describe(config)}",) if state is not None else ()
    common: dict[str, Any] = {"name": options.name, "description": options.description}
    module = _MODULES[options.network]
    if module not in _OF_ONE_LIBRARY:
        common["library"] = library
    if state is None:
        seed = {} if options.seed is None else {"seed": options.seed}
        return Made(module.random_network(config, **common, **seed), config, messages, warnings)
    if module not in (dsvt, flatformer):
        _check_library(options, library, state)
    if options.config and library == "openpcdet":
        config = _with_widths_of(config, state)
    try:
        network = module.build(state, config, **common)
    except ExportError as error:
        raise ExportError([*error.problems, *_hint(options, config, error)]) from None
    return Made(network, config, messages, warnings)


def _with_widths_of(config: Config, state: Mapping[str, Tensor]) -> Config:
    """Returns the configuration with the widths of the tensors' sparse backbone, which OpenPCDet's files do not state,
    since people change them in its code.
    """
    if not isinstance(config, center_point.Config | second.Config | trans_fusion.Config) or config.pillar_widths:
        return config
    norms = ["conv_input.1", "conv2.0.1", "conv3.0.1", "conv4.0.1", "conv_out.1"]
    tensors = [state.get(f"backbone_3d.{norm}.weight") for norm in norms]
    widths = tuple(tensor.shape[0] for tensor in tensors if tensor is not None and tensor.ndim == 1)
    if len(widths) != len(norms):
        return config  # the builder tells what is missing
    return replace(config, sparse_widths=widths[:4], sparse_out_width=widths[4])


def describe(config: Config) -> str:
    """Returns a line that describes a configuration's points and classes."""
    voxels = config.voxels
    ranges = ", ".join(
        f"{axis} {low:g} to {high:g}" for axis, low, high in zip("xyz", voxels.range_min, voxels.range_max, strict=True)
    )
    limits = [f"{voxels.max_points_per_voxel} points each"] if voxels.max_points_per_voxel else []
    limits += [f"{voxels.max_voxels:,} in a cloud"] if voxels.max_voxels else []
    return (
        f"range {ranges} m; voxels of {' x '.join(f'{size:g}' for size in voxels.size)} m "
        f"({' x '.join(map(str, voxels.grid()))}){', at most ' + ' and '.join(limits) if limits else ''}; "
        f"features {', '.join(map(_feature, voxels.features))}; "
        f"{len(config.classes)} classes: {', '.join(entry.name for entry in config.classes)}"
    )


def _feature(feature: PointFeature) -> str:
    return feature.name if feature.scale == 1 else f"{feature.name} x {feature.scale:g}"


def _published(options: argparse.Namespace, library: str) -> Config:
    """Returns the published configuration that the arguments name."""
    if options.network == "centerpoint":
        return center_point.config_of(options.dataset, library)
    if options.network == "centerpoint-pillar":
        return center_point.PILLAR_CONFIGS[options.dataset]
    if options.network == "voxelnext":
        return voxelnext.NUSCENES
    if options.network == "bevfusion-l":
        return trans_fusion.AUTOWARE
    if options.network in ("dsvt", "flatformer"):
        config: Config = _MODULES[options.network].WAYMO
        return config
    if options.network == "transfusion-l":
        return trans_fusion.config_of(options.dataset, library)
    return second.Config() if options.network == "second" else second.POINT_PILLARS


def _assumed(options: argparse.Namespace) -> str:
    data_set = getattr(options, "dataset", None)
    source = f"--dataset {data_set}" if data_set else "the published network"
    return f"assumed of {source}, since weights do not say it (--config FILE states another)"


def _check_command(options: argparse.Namespace, detector: detector_configs.Detector) -> None:
    if detector.command != options.network:
        raise ExportError([f"{options.config} describes a network of the command {detector.command}: use that one"])
    library = getattr(options, "library", None)
    if library and library != detector.library:
        raise ExportError(
            [f"--library is {library}, but {options.config} is a configuration of {detector.library}: leave it out"]
        )


def _check_library(options: argparse.Namespace, library: str, state: Mapping[str, Tensor]) -> None:
    """Refuses tensors with another library's names, with what to do."""
    found = mmdetection3d_names.library_of(state)
    if found in ("", library):
        return
    advice = {
        mmdetection3d_names.BEVFUSION: "add --library bevfusion to the command transfusion-l",
        "det3d": "add --dataset and --library det3d, if it is a CenterPoint on voxels",
        spconv_backbone.MMDETECTION3D: "add its configuration, --config FILE.py",
        "openpcdet": "add its configuration, --config FILE.yaml, or --dataset without --library",
    }
    raise ExportError([f"{options.weights} has {found}'s names of tensors, not {library}'s: {advice[found]}"])


def _hint(options: argparse.Namespace, config: Config, error: ExportError) -> list[str]:
    """Says which configuration tensors of other shapes were compared with."""
    if not any("' is [" in problem or "is not part of" in problem for problem in error.problems):
        return []
    if options.config:
        return [f"the tensors are not those of {options.config}: {describe(config)}"]
    anchors = [anchor.rotations for anchor in getattr(config, "anchors", ())]
    return [
        f"compared with what was {_assumed(options)}: {len(config.classes)} classes, "
        + (f"{sum(map(len, anchors))} anchors at a cell, " if anchors else "")
        + f"{len(config.voxels.features)} features, {config.voxels.grid()[2]} voxels on z"
    ]
