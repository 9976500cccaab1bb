"""The exporter's commands for point transformers: which configuration a network has, and what a command says of it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from voxserve.export import checkpoint_file, transformer_configs
from voxserve.export.arguments import names, point_features
from voxserve.export.model_folder import Network, PointFeature
from voxserve.export.networks import point_transformer
from voxserve.export.networks.point_transformer import CURVES, Config, Names, Stage
from voxserve.export.networks.ptv3_boxes import BoxBranch
from voxserve.export.networks.tensors import ExportError, Tensor
from voxserve.export.transformer_configs import Transformer, autoware, pointcept, pointcept_points
from voxserve.numbers import integer, real

# LitePT-S on nuScenes.
LITEPT_S = Config(
    encoder=(
        Stage(2, 36, 2, 1024, has_attention=False, rotary_base=100),
        Stage(2, 72, 4, 1024, has_attention=False, rotary_base=100),
        Stage(2, 144, 8, 1024, has_attention=False, rotary_base=100),
        Stage(6, 252, 14, 1024, has_convs=False, rotary_base=100),
        Stage(2, 504, 28, 1024, has_convs=False, rotary_base=100),
    ),
    decoder=tuple(Stage(0, width, 1, 1024) for width in (72, 72, 144, 252)),
    is_conv_of_skip=False,
    depth="OWN_LEVEL",
    names=Names(convs="conv"),
)
# autoware-ml's tiny on the T4 data set (voxel012_122m_t4dataset_j6gen2).
AUTOWARE_TINY = Config(
    voxel_size=(0.12,) * 3,
    range_min=(-122.88, -122.88, -3.0),
    range_max=(122.88, 122.88, 5.0),
    orders=autoware.ORDERS,
    encoder=tuple(Stage(2, 32 << level, 2 << level, 512) for level in range(5)),
    decoder=(Stage(0, 64, 4, 512), Stage(0, 64, 4, 512), Stage(1, 128, 8, 512), Stage(1, 256, 16, 512)),
    num_classes=15,
    stem_kernel=0,
    names=autoware.NAMES,
)
# The same with the boxes of its joint network (configs/tasks/multi/ptv3).
AUTOWARE_JOINT = replace(AUTOWARE_TINY, boxes=BoxBranch())
_PUBLISHED = {"pointcept-ptv3": Config(), "litept": LITEPT_S, "autoware-ptv3": AUTOWARE_TINY}
_KINDS = {"pointcept-ptv3": pointcept.PTV3, "litept": pointcept.LITEPT}
_SONATA_GRID, _UTONIA_GRID = 0.02, 0.01  # metres, and scaled metres, of the packages' transform.default()
_CENTRE_NOTE = (
    "the encoder's own package moves clouds first (CenterShift): clients subtract the middle of x and y, and the "
    "lowest z"
)


@dataclass(frozen=True)
class Made:
    """A point transformer, its configuration, and what the command says about both."""

    network: Network
    config: Config
    messages: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def add_arguments(command: argparse.ArgumentParser, network: str) -> None:
    """Adds the arguments that say which configuration the network has. network: the command's name."""
    command.add_argument(
        "--config",
        metavar="FILE",
        help="the configuration of the training. No code in it runs, and a setting that is not served is refused by "
        "name",
    )
    command.add_argument(
        "--features",
        type=point_features,
        default=(),
        metavar="NAME:UNIT[=DEFAULT][@LOW..HIGH],...",
        help="the columns of the input, if they differ from the configuration's",
    )
    if network == "autoware-ptv3":
        command.add_argument(
            "--boxes", action="store_true", help="makes random weights of the joint network, which also finds boxes"
        )
        return
    command.add_argument(
        "--orders",
        type=names,
        default=(),
        metavar="NAME,...",
        help=f"the curves of a stage's blocks, one after another: {', '.join(CURVES)} (default: the configuration's)",
    )
    if network != "pointcept-ptv3":
        return
    command.add_argument(
        "--scale", type=real, metavar="S", help="for an encoder's own settings: what coordinates are multiplied by"
    )
    command.add_argument(
        "--grid", type=real, metavar="G", help="for an encoder's own settings: the size of scaled voxels"
    )
    command.add_argument(
        "--join",
        type=integer,
        metavar="N",
        help="of an encoder without a classifier: how many finer levels' features the coarsest ones are joined with",
    )


def make(options: argparse.Namespace, state: Mapping[str, Tensor] | None) -> Made:
    """Returns the network of a state dict (None: with random weights). Raises ExportError with what is wrong with the
    configuration or the tensors.
    """
    found = _found(options, state)
    config = _changed(options, found.config)
    messages = [*_described(options, config), *_about_orders(config)]
    common: dict[str, Any] = {"name": options.name, "description": options.description}
    if state is None:
        seed = {} if options.seed is None else {"seed": options.seed}
        return Made(point_transformer.random_network(config, **common, **seed), config, tuple(messages), found.notes)
    return Made(point_transformer.build(state, config, **common), config, tuple(messages), found.notes)


def _found(options: argparse.Namespace, state: Mapping[str, Tensor] | None) -> Transformer:
    """Returns the configuration: of the file, of the checkpoint, or the published one for random weights."""
    if options.config and options.network == "autoware-ptv3":
        return autoware.read(options.config, options.features)
    if options.config:
        return transformer_configs.read(options.config, _KINDS[options.network], options.features)
    if state is None:
        config = AUTOWARE_JOINT if getattr(options, "boxes", False) else _PUBLISHED[options.network]
        return Transformer(replace(config, features=options.features) if options.features else config)
    is_pretrained = options.network == "pointcept-ptv3"
    values = checkpoint_file.settings(options.weights) if is_pretrained else None
    if values is None:
        raise ExportError([f"{options.weights} does not say the sizes of its network: add --config FILE"])
    has_rotary = any(name.endswith("rope.inv_freq") for name in state)
    scale = 1.0 if options.scale is None else options.scale
    if scale <= 0 or (options.grid is not None and options.grid <= 0):
        raise ExportError(["--scale and --grid must be above 0"])
    grid = options.grid or (_UTONIA_GRID if has_rotary else _SONATA_GRID)
    points = pointcept_points.published(scale, grid, options.features, (_CENTRE_NOTE,))
    return transformer_configs.of_checkpoint(values, options.weights, has_rotary=has_rotary, points=points)


def _changed(options: argparse.Namespace, config: Config) -> Config:
    """Returns the configuration as the command line changes it."""
    orders, join = getattr(options, "orders", ()), getattr(options, "join", None)
    unknown = [name for name in orders if name not in CURVES]
    if unknown:
        raise ExportError([f"--orders has {unknown[0]!r}; served are {', '.join(CURVES)}"])
    if join is not None and (config.num_classes or not 0 <= join < config.num_levels):
        raise ExportError([f"--join is {join}: for an encoder without a classifier it is 0 to {config.num_levels - 1}"])
    made = replace(config, orders=orders) if orders else config
    return made if join is None else replace(made, num_joined=join)


def _described(options: argparse.Namespace, config: Config) -> list[str]:
    """Returns a line that describes the input and the sizes."""
    columns = ", ".join(map(_column, config.features))
    channels = ", ".join(str(stage.channels) for stage in config.encoder)
    parts = [f"{config.num_classes} classes"] if config.num_classes else []
    parts += [f"boxes of {len(config.boxes.class_ids)} classes"] if config.boxes else []
    output = " and ".join(parts) or "features"
    voxel = " x ".join(f"{size:g}" for size in config.voxel_size)
    source = f"read {options.config}: " if options.config else ""
    return [f"{source}voxels of {voxel} m; columns {columns}; levels of {channels} channels; {output}"]


def _column(feature: PointFeature) -> str:
    return feature.name if feature.scale == 1 else f"{feature.name} x {feature.scale:g}"


def _about_orders(config: Config) -> list[str]:
    """Says which curve each block has, since the libraries draw them anew in each run."""
    used = any(stage.depth and stage.has_attention for stage in (*config.encoder, *config.decoder))
    if not used or len(config.orders) < 2:
        return []
    return [
        f"the curves are fixed, block by block: {', '.join(config.orders)}, and from the first on again. The library "
        "shuffles them in each run (in evaluation too), so its own results vary"
    ]
