"""Arguments that the exporters' command lines share, and their types."""

from __future__ import annotations

import argparse
import math

from voxserve.export.class_lists import CLASS_LISTS
from voxserve.export.model_folder import PointFeature
from voxserve.export.spconv_order import ORDERS
from voxserve.numbers import integer, real


def add_folder(command: argparse.ArgumentParser) -> None:
    """Adds the arguments that name the folder to write and describe its model."""
    command.add_argument(
        "--output", required=True, metavar="FOLDER", help="the folder to write; its name is the model's name"
    )
    command.add_argument("--version", type=integer, default=1, help="the model's version (default 1)")
    command.add_argument(
        "--classes",
        metavar="JSON",
        help="the classes: a JSON file {classes: [{id, name, color: [r, g, b]}], ignore_label}, or one of "
        f"{', '.join(CLASS_LISTS)}",
    )
    command.add_argument("--name", default="", help="the network's name in descriptions (default: the folder's name)")
    command.add_argument(
        "--description", default="", help="a text: what the network was trained on, and what it is for"
    )
    command.add_argument("--notice", default="", help="a comment at the head of the files, for source and attribution")


def add_weights(command: argparse.ArgumentParser) -> None:
    """Adds the arguments that say which tensors of a checkpoint are the network's, and how they are stored."""
    command.add_argument(
        "--prefix",
        default="",
        metavar="NAME",
        help="takes the tensors whose names begin with NAME, if the file has weights several times (state_dict_ema)",
    )
    command.add_argument(
        "--spconv_order",
        choices=ORDERS,
        default="",
        help="the order of axes in spconv's weights (RSCK: spconv 1), if no shape in the file shows it",
    )


def voxel_size(text: str) -> tuple[float, ...]:
    values = tuple(real(value) for value in text.split(","))
    return values * 3 if len(values) == 1 else values


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def point_features(text: str) -> tuple[PointFeature, ...]:
    """Parses the value of --features: NAME:UNIT[=DEFAULT][@LOW..HIGH],... ArgumentTypeError names the wrong entry."""
    features = []
    for entry in text.split(","):
        description, at, bounds = entry.partition("@")
        name, _, rest = description.partition(":")
        unit, _, default = rest.partition("=")
        try:
            low, high = map(real, bounds.split("..", 1)) if at else (0.0, 1.0)
            value = real(default) if default else None
        except ValueError:
            name = ""
        if not name or not unit or not -math.inf < low < high < math.inf:
            raise argparse.ArgumentTypeError(f"'{entry}' is not NAME:UNIT[=DEFAULT][@LOW..HIGH], e.g. intensity:1@0..1")
        features.append(PointFeature(name, unit, value, range=(low, high) if at else None))
    return tuple(features)
