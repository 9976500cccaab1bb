"""Defines voxserve.export.from_torch, which makes a network from a torch module and one example of its input."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from voxserve.export import model_folder
from voxserve.export.model_folder import ClassEntry, Network
from voxserve.export.networks.tensors import ExportError
from voxserve.export.tracing import layouts
from voxserve.export.tracing.graph import INPUT, Graph, Place
from voxserve.export.tracing.input_points import Points, add_voxelize
from voxserve.export.tracing.refusal import RefusalError
from voxserve.verify.sparse_tensors import features_of, kind_of, named

_TENSOR_KINDS = ("sites", "points", "samples", "image")  # the kinds of Place that an output TENSOR can have
_MAX_NAME = 64  # the most characters of a tensor's name
# A file beside model.textproto with the names of the module's results and parts. voxserve.verify compares by them.
TRACE_FILE = "trace.json"


@dataclass(frozen=True)
class Exported:
    """The result of from_torch. The caller may add nodes and outputs, such as a detection head, to `network` before
    write().
    """

    network: Network
    outputs: dict[str, str]  # name of a result of the module -> node
    modules: dict[str, str]  # path of a part of the module -> node of its result, for each part that was traced
    axes: tuple[int, ...]  # axes[i]: which of the library's axes is the model's axis i
    warnings: tuple[str, ...]
    cut: str = ""  # the part of the module after which the network ends; "": it has all parts

    def write(
        self,
        folder: str | Path,
        *,
        classes: Sequence[ClassEntry] = (),
        ignore_label: int | None = None,
        config: str | None = None,
        version: int = 1,
        notice: str = "",
    ) -> Path:
        """Writes the folder of the model that the server loads, and returns the version's folder.

        classes, ignore_label: the model's classes, and the label of points that have none.
        config: the text of config.textproto, instead of one made from classes and ignore_label.
        version: the version to write; it replaces an older one with the same number.
        notice: a comment at the beginning of the files.
        """
        text = model_folder.config_textproto(classes, ignore_label, notice) if config is None else config
        names: dict[str, Any] = {"axes": list(self.axes), "outputs": self.outputs, "modules": self.modules}
        if self.cut:
            names["cut"] = self.cut
        files = {TRACE_FILE: json.dumps(names, indent=1) + "\n"}
        return model_folder.write(folder, self.network, text, version, notice, files)


def from_torch(
    module: Any,
    example: Any,
    *,
    axes: str = "",
    points: Points | None = None,
    name: str = "",
    description: str = "",
    cut: str = "",
    output: str = "",
    features: str = "",
) -> Exported:
    """Runs module(example), records the operations on its features (a trace), and returns them as a network.

    module: a torch.nn.Module in evaluation mode, on the CPU or on a device that its library supports.
    example: the module's input: a sparse tensor, a dict of tensors, or a tuple of arguments. The trace contains only
        the branches of the Python code that run for this example. Use two or more samples to make sure that the
        network does not depend on the batch's size; a module with attention needs an example of one sample.
    axes: which of x, y, z (and t) the library's axes are, in its order: "zyx" for OpenPCDet, det3d and mmdetection3d,
        "xyz" for Pointcept. spconv needs it; the default for torchsparse and MinkowskiEngine is "xyz".
    points: how the server makes voxels of the points of a cloud. None: clients send voxels (voxserve.Voxels).
    name, description: the network's, for people. Default name: that of the module's class.
    cut: the path of the part of the module after which the network ends. Error messages suggest it.
    output: the name of the only result to serve, if the module returns several.
    features: the key of the features, if the example is a dict of several tensors.

    Raises ExportError, with the user's line of Python, for an operation that the model format does not have, and
    ValueError for wrong arguments.
    """
    import torch

    from voxserve.export.tracing import patches

    training = [path or type(part).__name__ for path, part in module.named_modules() if part.training]
    if training:
        raise ExportError([f"{', '.join(training[:5])} in training mode: call module.eval() before"])
    graph = Graph(axes=_served_axes(axes, example))
    graph.stored = {tensor.data_ptr() for tensor in module.state_dict(keep_vars=True).values()}
    with torch.no_grad(), patches.patched(graph, module, cut):
        try:
            arguments = _traced_example(graph, example, features)
            result = module(*arguments) if isinstance(arguments, tuple) else module(arguments)
        except patches.Cut as ended:
            result = ended.result
        except RefusalError as refusal:
            raise refusal.offering(graph.last_module) from None
    try:
        places = _places(result)
        network, outputs = _network(graph, places, points, name or type(module).__name__, description, output)
    except RefusalError as refusal:
        raise refusal.offering("" if cut else graph.last_module) from None
    for text in graph.warnings:
        warnings.warn(text, stacklevel=2)
    return Exported(network, outputs, _kept(graph, network), graph.axes, tuple(graph.warnings), cut)


def _served_axes(axes: str, example: Any) -> tuple[int, ...]:
    if axes:
        if sorted(axes) != sorted("xyzt"[: len(axes)]):
            raise ValueError(f"axes is '{axes}': it must have each of {', '.join('xyzt'[: len(axes)])} once")
        return tuple(axes.index(a) for a in "xyzt"[: len(axes)])
    values = example if isinstance(example, tuple) else (example,)
    if any(kind_of(v) == "spconv" for v in values):
        raise ExportError(
            ["spconv does not say which axis is which: axes='zyx' (OpenPCDet, det3d) or 'xyz' (Pointcept)"]
        )
    return ()


def _traced_example(graph: Graph, example: Any, features: str) -> Any:
    """Returns the example with its features replaced by a traced tensor."""
    from voxserve.export.tracing import minkowski_layers
    from voxserve.export.tracing.traced import wrap

    found = []

    def traced(tensor: Any) -> Any:
        found.append(tensor)
        graph.num_features = int(tensor.shape[1])
        return wrap(tensor, Place("sites", INPUT, graph.input_level), graph)

    def replaced(value: Any, key: str = "") -> Any:
        kind = kind_of(value)
        if kind == "spconv":
            value = value.replace_feature(traced(value.features))
        elif kind == "MinkowskiEngine":
            value = minkowski_layers.like(value, traced(value.F))
        elif kind == "torchsparse":
            value = type(value)(traced(value.feats), value.coords, value.stride, value.spatial_range)
        elif isinstance(value, tuple):
            value = tuple(replaced(v) for v in value)
        elif isinstance(value, list):
            value = [replaced(v) for v in value]
        elif isinstance(value, dict):
            value = {k: replaced(v, str(k)) for k, v in value.items()}
        elif getattr(value, "ndim", 0) == 2 and value.is_floating_point() and key == (features or key):
            value = traced(value)
        return value

    made = replaced(example)
    if len(found) != 1:
        what = "features='name' names them" if found else "a sparse tensor, or a dict of tensors"
        raise ExportError([f"the example has {len(found)} tensors of features, and it needs one: {what}"])
    return made


def _places(result: Any) -> dict[str, Place]:
    """Returns the places of the module's results that were traced, by name."""
    from voxserve.export.tracing.traced import place_of

    places = {name: place_of(features_of(value)) for name, value in named(result)}
    return {name: place for name, place in places.items() if place is not None}


def _served(graph: Graph, name: str, place: Place) -> Place:
    """Returns the place whose rows are served for a result. For a dense result, these are the rows of the sites that it
    was made of, since all other cells are 0.
    """
    if any(place.padding):
        raise RefusalError(f"the result '{name}' is a padded image: only a convolution can follow the padding")
    if place.kind != "cells":
        return layouts.base(place) if layouts.is_rows(place) else place
    graph.warn(f"the result '{name}' is dense: the rows of its sites are served, and all other cells are 0")
    return replace(place, kind="sites")


def _network(
    graph: Graph, places: dict[str, Place], points: Points | None, name: str, description: str, output: str
) -> tuple[Network, dict[str, str]]:
    if output and output not in places:
        raise ExportError([f"output is '{output}', the module returns {', '.join(places) or 'nothing traced'}"])
    places = {output: places[output]} if output else {k: p for k, p in places.items() if p.node != INPUT}
    if not places:
        raise ExportError(["the module returns nothing that was computed from the example's features"])
    places = {key: _served(graph, key, place) for key, place in places.items()}
    network = Network(name, description, len(graph.input_level.stride))
    add_voxelize(network, graph, points)
    graph.write(network, [p.node for p in places.values()])
    add_outputs(network, places)
    return network, {key: p.node for key, p in places.items()}


def add_outputs(network: Network, places: dict[str, Place]) -> None:
    """Adds the outputs of the results. If the results are one row of scores per point, or labels, or both, the outputs
    are labels and scores of points. Otherwise each result becomes a tensor with its name. If a result cannot be a
    tensor (a column or a mask, for example), it adds no output, and the caller must add some.
    """
    scores = [p for p in places.values() if _is_of_points(p) and p.kind != "labels"]
    labels = [p for p in places.values() if _is_of_points(p) and p.kind == "labels"]
    if len(scores) + len(labels) != len(places) or len(scores) > 1 or len(labels) > 1:
        if all(place.kind in _TENSOR_KINDS for place in places.values()):
            for key, place in zip(_tensor_names(places), places.values(), strict=True):
                network.output("TENSOR", place.node, key)
        return
    for place in scores:
        network.voxel_to_point("point_scores", place.node, INPUT)
    best = labels[0].node if labels else network.argmax("best", scores[0].node)
    network.voxel_to_point("point_labels", best, INPUT)
    network.output("LABELS", "point_labels")
    if scores:
        network.output("SCORES", "point_scores")


def _tensor_names(keys: Iterable[str]) -> list[str]:
    """Returns valid names of tensors for results' names: letters, digits, ".", "_" and "-", without repetitions."""
    names: list[str] = []
    for key in keys:
        base = re.sub(r"[^A-Za-z0-9._-]", "_", key)[:_MAX_NAME]
        if not base or not base[0].isalnum() or base in ("labels", "scores", "boxes"):
            base = f"output.{base}"[:_MAX_NAME]
        # Clients save the coordinates and the unit of a tensor under its name with these endings.
        base = re.sub(r"\.(coordinates|unit)$", r"_\1", base)
        name, number = base, 1
        while name in names:
            number += 1
            name = f"{base[: _MAX_NAME - 4]}.{number}"
        names.append(name)
    return names


def _is_of_points(place: Place) -> bool:
    """Returns whether a result has a row for each point, or one for each voxel, which then is that of its points."""
    is_of_voxels = place.level is not None and place.level.key == ("voxels",)
    return (place.kind in ("sites", "labels") and is_of_voxels) or place.kind == "points"


def _kept(graph: Graph, network: Network) -> dict[str, str]:
    written = set(network.names)
    return {path: node for path, node in graph.modules.items() if node in written}
