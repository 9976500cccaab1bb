"""Lists the classes of public data sets with colours, in the order of the outputs of networks trained on them."""

from __future__ import annotations

from collections.abc import Sequence

from voxserve.export.model_folder import ClassEntry
from voxserve.export.networks.tensors import ExportError


def _listed(*entries: tuple[str, tuple[int, int, int]]) -> tuple[ClassEntry, ...]:
    return tuple(ClassEntry(index, name, color) for index, (name, color) in enumerate(entries))


CLASS_LISTS = {
    # spvnas, mmdetection3d and Pointcept share this order of SemanticKITTI's 19 classes.
    "semantic-kitti": _listed(
        ("car", (100, 150, 245)),
        ("bicycle", (100, 230, 245)),
        ("motorcycle", (30, 60, 150)),
        ("truck", (80, 30, 180)),
        ("other-vehicle", (100, 80, 250)),
        ("person", (155, 30, 30)),
        ("bicyclist", (255, 40, 200)),
        ("motorcyclist", (150, 30, 90)),
        ("road", (255, 0, 255)),
        ("parking", (255, 150, 255)),
        ("sidewalk", (75, 0, 75)),
        ("other-ground", (175, 0, 75)),
        ("building", (255, 200, 0)),
        ("fence", (255, 120, 50)),
        ("vegetation", (0, 175, 0)),
        ("trunk", (135, 60, 0)),
        ("terrain", (150, 240, 80)),
        ("pole", (255, 240, 150)),
        ("traffic-sign", (255, 0, 0)),
    ),
    # nuScenes lidarseg's 16 classes, with ids that begin at 0, as in Pointcept.
    "nuscenes": _listed(
        ("barrier", (112, 128, 144)),
        ("bicycle", (220, 20, 60)),
        ("bus", (255, 127, 80)),
        ("car", (255, 158, 0)),
        ("construction_vehicle", (233, 150, 70)),
        ("motorcycle", (255, 61, 99)),
        ("pedestrian", (0, 0, 230)),
        ("traffic_cone", (47, 79, 79)),
        ("trailer", (255, 140, 0)),
        ("truck", (255, 99, 71)),
        ("driveable_surface", (0, 207, 191)),
        ("other_flat", (175, 0, 75)),
        ("sidewalk", (75, 0, 75)),
        ("terrain", (112, 180, 60)),
        ("manmade", (222, 184, 135)),
        ("vegetation", (0, 175, 0)),
    ),
}


_MOST_LABEL = 65535  # kMaxLabel of engine/model/model_config.cc


def check_classes(classes: Sequence[ClassEntry], ignore_label: int | None, num_classes: int, source: str) -> None:
    """Raises ExportError if a list of classes does not name each of a network's classes once, or if the ignore label is
    a class. num_classes: 0 for a network without labels. source: the list's name in the error.
    """
    ids = [entry.id for entry in classes]
    if ids and sorted(ids) != list(range(num_classes)):
        outputs = f"the classifier has {num_classes} outputs" if num_classes else "the network labels no points"
        raise ExportError([f"{source} has the class ids {ids}, {outputs}"])
    if ignore_label is not None and 0 <= ignore_label < num_classes:
        raise ExportError([f"{source} has the ignore label {ignore_label}, which is one of the {num_classes} classes"])
    if ignore_label is not None and not (num_classes and 0 <= ignore_label <= _MOST_LABEL):
        wanted = f"labels are 0 to {_MOST_LABEL}, such as 255" if num_classes else "the network labels no points"
        raise ExportError([f"{source} has the ignore label {ignore_label}, but {wanted}: leave ignore_label out"])
