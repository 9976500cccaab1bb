"""What the readers of the configurations share."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass

from voxserve.export.class_lists import CLASS_LISTS
from voxserve.export.detector_configs.settings import Settings
from voxserve.export.model_folder import ClassEntry, PointFeature
from voxserve.export.networks.point_transformer import CURVES, Config, Stage

_MOST_GROUP_SIZE = 4096

# The features that a library's key stands for. The names of colours and normals are those of PLY files.
_COLUMNS: dict[str, tuple[tuple[str, str], ...]] = {
    "coord": (("x", "m"), ("y", "m"), ("z", "m")),
    "strength": (("intensity", "1"),),
    "color": (("red", "1"), ("green", "1"), ("blue", "1")),
    "normal": (("nx", "1"), ("ny", "1"), ("nz", "1")),
}


@dataclass(frozen=True)
class Transformer:
    """A network that a configuration describes."""

    config: Config
    notes: tuple[str, ...] = ()  # what a client must know


def columns_of(keys: tuple[str, ...], scale: float, color_scale: float, default: float | None) -> list[PointFeature]:
    """Returns the columns of the input. KeyError for a key that stands for none.

    scale: what coordinates are multiplied by. default: the value of colours and normals that a cloud does not have.
    """
    made = []
    for key in keys:
        for name, unit in _COLUMNS[key]:
            if key == "coord":
                made.append(PointFeature(name, unit, scale=scale))
            elif key == "strength":
                made.append(PointFeature(name, unit, range=(0.0, 1.0)))
            elif key == "color":
                made.append(PointFeature(name, unit, default, color_scale, range=(0.0, 255.0)))
            else:
                made.append(PointFeature(name, unit, default))
    return made


def classes_of(names: Sequence[str], settings: Settings, key: str) -> tuple[ClassEntry, ...]:
    """Returns the classes with ids from 0 on, and the colours that public data sets' classes have here."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        settings.problem(key, f"has '{twice[0]}' more than once")
    known = {entry.name: entry.color for entries in CLASS_LISTS.values() for entry in entries}
    return tuple(ClassEntry(i, name, known.get(name.lower(), _color(i))) for i, name in enumerate(names))


def _color(number: int) -> tuple[int, int, int]:
    """Returns one of many colours, each far from the one before."""
    red, green, blue = colorsys.hsv_to_rgb(number * 0.618 % 1, 0.65, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def curves(settings: Settings, key: str = "order") -> tuple[str, ...]:
    """Returns the list of curves."""
    value = settings.raw(key)
    names = (value,) if isinstance(value, str) else settings.names(key, tuple(CURVES))
    unknown = [name for name in names if name not in CURVES]
    if unknown or not names:
        known = ", ".join(CURVES)
        settings.problem(key, f"has the order {unknown[0]!r}; served are {known}" if unknown else "is empty")
        return ("z",)
    return names


def stages(settings: Settings, part: str, **lists: tuple[float | bool, ...]) -> tuple[Stage, ...]:
    """Returns the stages of enc or dec. lists: further values of each stage, by their names in Stage."""
    depths = settings.counts(f"{part}_depths", low=0)
    channels, heads, sizes = (settings.counts(f"{part}_{k}") for k in ("channels", "num_head", "patch_size"))
    lengths = {len(values) for values in (depths, channels, heads, sizes, *lists.values())}
    if len(lengths) != 1:
        settings.problem(f"{part}_depths", "and the other lists of the stages have several lengths")
        return ()
    made = []
    for i, depth in enumerate(depths):
        further = {name: values[i] for name, values in lists.items()}
        stage = Stage(depth, channels[i], heads[i], sizes[i], **further)  # type: ignore[arg-type]
        made.append(stage)
        if depth == 0 or not stage.has_attention:
            continue
        width = channels[i] // heads[i]
        if channels[i] % heads[i]:
            settings.problem(f"{part}_num_head", f"is {heads[i]}, which does not divide {channels[i]} channels")
        elif stage.rotary_base and width % 6:
            settings.problem(f"{part}_num_head", f"makes heads of {width} channels; rotary needs a multiple of 6")
        if sizes[i] > _MOST_GROUP_SIZE:
            settings.problem(f"{part}_patch_size", f"is {sizes[i]}; at most {_MOST_GROUP_SIZE} is possible")
    return tuple(made)


def check_groups(settings: Settings, encoder: tuple[Stage, ...], decoder: tuple[Stage, ...]) -> None:
    """Refuses a decoder with other groups than the encoder's: the library makes the groups of a level once."""
    for level, (stage, other) in enumerate(zip(decoder, encoder, strict=False)):
        has_blocks = [s.depth > 0 and s.has_attention for s in (stage, other)]
        if all(has_blocks) and stage.group_size != other.group_size:
            settings.problem(
                "dec_patch_size",
                f"is {stage.group_size} in stage {level}, where the encoder has {other.group_size}: the library "
                "uses the encoder's groups there",
            )


def check_flash(settings: Settings) -> None:
    """Refuses what the libraries compute without flash attention."""
    settings.must_be("enable_rpe", False, "tables of relative positions are not served", default=False)
    settings.must_be(
        "enable_flash",
        True,
        "without flash attention the groups' size depends on the smallest cloud of a batch",
        default=True,
    )


def skip_training(settings: Settings) -> None:
    """Marks the settings as read that have no effect on the answers of a trained network."""
    settings.skip("attn_drop", "proj_drop", "drop_path", "shuffle_orders", "upcast_attention", "upcast_softmax")
