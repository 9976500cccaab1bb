"""Values of the exporters' command lines."""

from __future__ import annotations

import argparse

from voxserve.export.model_folder import PointFeature


def voxel_size(text: str) -> tuple[float, ...]:
    values = tuple(float(value) for value in text.split(","))
    return values * 3 if len(values) == 1 else values


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def point_features(text: str) -> tuple[PointFeature, ...]:
    features = []
    for entry in text.split(","):
        name, _, rest = entry.partition(":")
        unit, _, default = rest.partition("=")
        if not name or not unit:
            raise argparse.ArgumentTypeError(f"'{entry}' is not name:unit or name:unit=default")
        features.append(PointFeature(name, unit, float(default) if default else None))
    return tuple(features)
