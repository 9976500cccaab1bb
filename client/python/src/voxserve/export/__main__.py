"""Command line of the exporters: python -m voxserve.export --help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from voxserve.cli.flag_parser import FlagParser
from voxserve.export import (
    checkpoint_file,
    detector_command,
    from_torch_command,
    kernel_order,
    model_folder,
    transformer_command,
    weights,
)
from voxserve.export.arguments import add_folder, add_weights, names, point_features, voxel_size
from voxserve.export.class_lists import check_classes
from voxserve.export.input_files import narrow, read_classes
from voxserve.export.model_folder import ClassEntry, Network, PointFeature
from voxserve.export.networks import (
    center_point,
    minkowski_unet,
    minkunet,
    minkunet_keys,
    sp_unet,
    sparse_resnet,
    svtnet,
    trans_fusion,
)
from voxserve.export.networks.roots import ROOTS
from voxserve.export.networks.tensors import ExportError
from voxserve.export.weights import Weights
from voxserve.numbers import integer, real
from voxserve.printable import printable_lines

_State = Weights | None  # None: random weights


@dataclass(frozen=True)
class _Made:
    """A network, and the default values of its config.textproto."""

    network: Network
    num_classes: int
    classes: tuple[ClassEntry, ...] = ()
    max_voxels: int = 0
    voxel_overflow: str = "REJECT"
    warnings: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()  # lines of the output


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Returns the exit status: 0 if the folder was written, 1 if the weights or the class file are
    wrong. A wrong command line ends the program with status 2.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.network == from_torch_command.NAME:
        return from_torch_command.run(options)
    for name in ("seed", "width", "num_classes", "kernel", "variant", "boxes"):
        if options.weights and getattr(options, name, None) not in (None, False):
            parser.error(f"--{name} makes random weights, but the weights are read from {options.weights}")
    if not options.weights and (options.prefix or options.spconv_order):
        parser.error("--prefix and --spconv_order are of a checkpoint, and none is given")
    options.name = options.name or Path(options.output).name
    try:
        state, texts = _read(options) if options.weights else (None, [])
        made = _make(options, state)
        texts += state.spconv.warnings() if state is not None else []
        classes, ignore_label = read_classes(options.classes) if options.classes else (made.classes, None)
        check_classes(classes, ignore_label, made.num_classes, options.classes)
        max_voxels = made.max_voxels if options.max_voxels is None else options.max_voxels
        if options.voxel_overflow and max_voxels == 0:
            parser.error("--voxel_overflow needs a limit: add --max_voxels")
        overflow = options.voxel_overflow or made.voxel_overflow
        config = model_folder.config_textproto(classes, ignore_label, options.notice, max_voxels, overflow)
        folder = model_folder.write(options.output, made.network, config, options.version, options.notice)
    except (ExportError, OSError, ValueError) as error:
        print(f"export: {printable_lines(str(error))}", file=sys.stderr)
        return 1
    for text in (*texts, *made.warnings):
        print(f"warning: {printable_lines(text)}", file=sys.stderr)
    for text in made.messages:
        print(text)
    tensors = made.network.tensors
    values = sum(t.size for t in tensors.values())
    print(f"wrote {folder}: {len(tensors)} tensors, {values:,} values, {made.num_classes} classes")
    return 0


def _read(options: argparse.Namespace) -> tuple[Weights, list[str]]:
    """Returns the weights of the network in the file, and warnings."""
    found = weights.find(
        checkpoint_file.read(options.weights),
        weights.of_roots(ROOTS[options.network]),
        prefix=options.prefix,
        spconv_order=options.spconv_order,
    )
    return found.weights, [*found.warnings, *narrow(found.weights)]


def _make(options: argparse.Namespace, state: _State) -> _Made:
    made: _Made = options.make(options, state)
    order = state.spconv.informed() if state is not None else None
    if state is not None and order is not None:
        state.spconv = order
        made = options.make(options, state)
    return made


def _labelled(network: Network, classifier: str = "classifier", warnings: tuple[str, ...] = ()) -> _Made:
    return _Made(network, network.tensors[f"{classifier}.bias"].shape[0], warnings=warnings)


def _of_random(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Returns the arguments for a network with random weights: the seed and the options `names`, if they were given."""
    values = {name: getattr(options, name) for name in ("seed", *names)}
    return {name: value for name, value in values.items() if value is not None}


def _of_points(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    names = ("name", "description", "voxel_size", "features", *names)
    return {name: getattr(options, name) for name in names}


def _make_minkunet(options: argparse.Namespace, state: _State) -> _Made:
    if state is None:
        return _labelled(minkunet.random_minkunet(**_of_points(options), **_of_random(options, "width", "num_classes")))
    if minkunet.is_spvcnn(state) and minkunet_keys.keys_of(state) is not minkunet_keys.SPVNAS:
        raise ExportError([f"{options.weights} has point_transforms, which MinkUNet has not: spvcnn exports it"])
    return _labelled(minkunet.build(state, points="", **_of_points(options)), warnings=_unet_warnings(state))


def _unet_warnings(state: Weights) -> tuple[str, ...]:
    keys = minkunet_keys.keys_of(state)
    if keys is minkunet_keys.SPVNAS and minkunet.is_spvcnn(state):
        return (
            "the point_transforms are left out: spvnas' MinkUNet has them and does not use them. Its SPVCNN has the "
            "same names and uses them: if the checkpoint is an SPVCNN's, export it with the command spvcnn",
        )
    if keys is minkunet_keys.MMDET3D_SPCONV:
        return (
            "mmdetection3d takes the batch's extent as spconv's spatial shape, and so leaves out the last plane of "
            "coarser sites where the extent is odd: here they stay, and points next to it can differ",
        )
    return ()


def _make_spvcnn(options: argparse.Namespace, state: _State) -> _Made:
    common = _of_points(options, "points")
    if state is not None:
        if not minkunet.is_spvcnn(state):
            problem = (
                f"{options.weights} has no point_transforms, which SPVCNN has: torchsparse-minkunet exports MinkUNet"
            )
            raise ExportError([problem])
        return _labelled(minkunet.build(state, **common))
    return _labelled(minkunet.random_spvcnn(**common, **_of_random(options, "width", "num_classes")))


def _make_sp_unet(options: argparse.Namespace, state: _State) -> _Made:
    common = _of_points(options)
    if state is not None:
        return _labelled(sp_unet.build(state, **common), "final")
    return _labelled(sp_unet.random_network(**common, **_of_random(options, "width", "num_classes")), "final")


def _make_resnet(options: argparse.Namespace, state: _State) -> _Made:
    common = _of_points(options, "axes")
    if state is not None:
        return _labelled(sparse_resnet.build(state, **common))
    return _labelled(sparse_resnet.random_network(**common, **_of_random(options, "width", "num_classes")))


def _make_minkowski(options: argparse.Namespace, state: _State) -> _Made:
    if state is not None:
        network = minkowski_unet.build(state, **_of_points(options))
        has_crosses = "KERNEL_SHAPE_CROSS" in network.to_textproto()
        return _labelled(network, "final", (kernel_order.CROSS_OF_RELEASE,) if has_crosses else ())
    values = _of_random(options, "width", "num_classes", "kernel", "variant")
    return _labelled(minkowski_unet.random_network(**_of_points(options), **values), "final")


def _make_detector(options: argparse.Namespace, state: _State) -> _Made:
    made = detector_command.make(options, state)
    config = made.config
    return _Made(
        made.network,
        len(config.classes),
        config.classes,
        config.voxels.max_voxels,
        "FIRST_SEEN",
        made.warnings,
        made.messages,
    )


def _make_transformer(options: argparse.Namespace, state: _State) -> _Made:
    made = transformer_command.make(options, state)
    classes = made.config.classes
    count = made.config.num_classes or len(classes)
    return _Made(made.network, count, classes, warnings=made.warnings, messages=made.messages)


def _make_svtnet(options: argparse.Namespace, state: _State) -> _Made:
    common = {name: getattr(options, name) for name in ("name", "description", "voxel_size")}
    if state is not None:
        return _Made(svtnet.build(state, **common), num_classes=0)
    return _Made(svtnet.random_network(**common, **_of_random(options)), num_classes=0)


def _parser() -> argparse.ArgumentParser:
    parser = FlagParser(
        prog="python -m voxserve.export",
        description="Writes the folder that voxserve serves, from a state dict or with random weights.",
    )
    networks = parser.add_subparsers(dest="network", required=True)

    text = "MinkUNet of TorchSparse (SparseResUNet42), spvnas or mmdetection3d (V1 and V2, any backend)"
    unet = _add(networks, "torchsparse-minkunet", _make_minkunet, text)
    _add_points(unet, (0.05,) * 3, minkunet.LIDAR_FEATURES)
    spvcnn = _add(
        networks, "spvcnn", _make_spvcnn, "SPVCNN of spvnas or mmdetection3d: MinkUNet and a branch on points"
    )
    _add_points(spvcnn, (0.05,) * 3, minkunet.LIDAR_FEATURES)
    spvcnn.add_argument(
        "--points",
        choices=minkunet.POINTS,
        default="voxels",
        help="the points of the branch: one for each voxel, as in spvnas (default), or all points of the cloud",
    )
    sp_net = _add(networks, "pointcept-spunet", _make_sp_unet, "Pointcept's SpUNet (SpUNet-v1m1), which labels points")
    _add_points(sp_net, (0.05,) * 3, minkunet.LIDAR_FEATURES)
    resnet = _add(
        networks, "torchsparse-resnet21d", _make_resnet, "SparseResNet21D of TorchSparse, which labels points"
    )
    _add_points(resnet, (0.1,) * 3, minkunet.LIDAR_FEATURES)
    resnet.add_argument(
        "--axes", type=names, default=(), metavar="NAME,...", help="the names of the axes' fields (default x,y,z)"
    )
    minkowski = _add(networks, "minkowski-unet", _make_minkowski, "MinkowskiEngine's MinkUNet, with 3 axes or 4")
    _add_points(minkowski, (0.05,) * 3, minkowski_unet.LIDAR_FEATURES, may_have_time=True)
    minkowski.add_argument(
        "--variant",
        choices=minkowski_unet.VARIANTS,
        help="makes random weights of this network (default MinkUNet14A)",
    )
    minkowski.add_argument(
        "--kernel",
        choices=minkowski_unet.KERNELS,
        help="makes random weights with kernels of this shape in 4 axes (default cube)",
    )

    text = "CenterPoint on voxels, of OpenPCDet, det3d or mmdetection3d"
    detector = _add(networks, "centerpoint", _make_detector, text)
    detector_command.add_arguments(detector, center_point.CONFIGS, network="centerpoint")
    text = "CenterPoint on pillars, of OpenPCDet or mmdetection3d"
    detector_command.add_arguments(
        _add(networks, "centerpoint-pillar", _make_detector, text), center_point.PILLAR_CONFIGS
    )
    for name, text in (
        ("voxelnext", "VoxelNeXt of OpenPCDet (default: on nuScenes)"),
        ("second", "SECOND of OpenPCDet or mmdetection3d (default: OpenPCDet's on KITTI)"),
        ("pointpillars", "PointPillars of OpenPCDet or mmdetection3d (default: OpenPCDet's on KITTI)"),
        ("bevfusion-l", "BEVFusion without cameras, of AWML or mmdetection3d (default: AWML's, which Autoware runs)"),
        ("dsvt", "DSVT on pillars, of OpenPCDet or Haiyang-W/DSVT (default: OpenPCDet's dsvt_pillar.yaml, on Waymo)"),
        ("flatformer", "FlatFormer of mit-han-lab/flatformer (default: flatformer_waymo_D1_2x_3class.py)"),
    ):
        detector_command.add_arguments(_add(networks, name, _make_detector, text))
    text = "TransFusion-L of OpenPCDet or AWML, and the LiDAR branch of mit-han-lab/bevfusion"
    detector = _add(networks, "transfusion-l", _make_detector, text)
    detector_command.add_arguments(detector, trans_fusion.CONFIGS_OF, network="transfusion-l")
    svt_net = _add(networks, "svtnet", _make_svtnet, "SVT-Net: one vector for each cloud, for place recognition")
    _add_voxel_size(svt_net, svtnet.QUANTIZATION, "M[,M,M]", "the quantization size, in the cloud's unit")
    for name, text in (
        (
            "pointcept-ptv3",
            "Pointcept's PTv3, which labels points, and Sonata, Concerto and Utonia (default: PTv3-base)",
        ),
        (
            "autoware-ptv3",
            "autoware-ml's PTv3: labels of points, boxes, or both (default: its tiny on the T4 data set)",
        ),
        ("litept", "LitePT, which labels points (default: LitePT-S on nuScenes)"),
    ):
        transformer_command.add_arguments(_add(networks, name, _make_transformer, text), name)
    from_torch_command.add_parser(networks)
    return parser


def _add(networks: Any, name: str, make: Callable[..., _Made], text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = networks.add_parser(name, help=text, description=text)
    command.set_defaults(make=make)
    command.add_argument(
        "weights",
        nargs="?",
        help="the state dict: .safetensors, or .pt/.pth if torch is installed (default: random weights)",
    )
    add_folder(command)
    add_weights(command)
    command.add_argument("--seed", type=integer, help="makes random weights from this seed (default 0)")
    command.add_argument(
        "--max_voxels",
        type=integer,
        metavar="N",
        help="limits the voxels of a request; 0 is no limit (default: the network's own limit)",
    )
    command.add_argument(
        "--voxel_overflow",
        choices=model_folder.VOXEL_OVERFLOWS,
        help="what the server does above that limit: refuse the request, keep the voxels nearest to the sensor, or "
        "keep the first ones in the order of the points, as spconv and OpenPCDet do",
    )
    return command


def _add_voxel_size(command: argparse.ArgumentParser, default_size: tuple[float, ...], metavar: str, text: str) -> None:
    text = f"{text} (default {default_size[0]})"
    command.add_argument("--voxel_size", type=voxel_size, default=default_size, metavar=metavar, help=text)


def _add_points(
    command: argparse.ArgumentParser,
    default_size: tuple[float, ...],
    features: tuple[PointFeature, ...],
    *,
    may_have_time: bool = False,
) -> None:
    metavar = "M[,M,M[,S]]" if may_have_time else "M[,M,M]"
    text = (
        f"the voxel size in metres, of every axis or of each{', and in seconds of a fourth' if may_have_time else ''}"
    )
    _add_voxel_size(command, default_size, metavar, text)
    command.add_argument(
        "--features",
        type=point_features,
        default=features,
        metavar="NAME:UNIT[=DEFAULT][@LOW..HIGH],...",
        help="the columns of the input (default x:m,y:m,z:m,intensity:1@0..1); the server warns of clouds with many "
        "values outside of LOW..HIGH, the range of the training data",
    )
    command.add_argument("--width", type=real, help="makes random weights with this channel multiplier (default 1)")
    command.add_argument(
        "--num_classes", type=integer, metavar="N", help="makes random weights with N classes (default 19)"
    )


if __name__ == "__main__":
    sys.exit(main())
