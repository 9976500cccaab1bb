"""Defines voxserve.export.from_torch, which makes a network from a torch module and one example of its input."""

from __future__ import annotations

import itertools
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from voxserve.export import model_folder
from voxserve.export.class_lists import check_classes
from voxserve.export.limits import LIMITS
from voxserve.export.model_folder import ClassEntry, Network
from voxserve.export.networks.tensors import ExportError
from voxserve.export.tracing import layouts, second_cloud
from voxserve.export.tracing.comparing import difference
from voxserve.export.tracing.graph import INPUT, Graph, Place
from voxserve.export.tracing.input_points import Points, add_voxelize
from voxserve.export.tracing.refusal import LimitError, RefusalError
from voxserve.export.tracing.run import Result, Trace, trace
from voxserve.verify.sparse_tensors import kind_of

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
    num_classes: int = 0  # of the points' labels; 0: the trace made none

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

        ExportError if the classes are not those of the points' labels.
        """
        if self.num_classes:
            check_classes(classes, ignore_label, self.num_classes, "the list of classes")
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
    other: Any = None,
) -> Exported:
    """Runs module(example), records the operations on its features (a trace), and returns them as a network.

    It does the same with a second, smaller cloud, since a network for every cloud is the same for both: what depends on
    the number of voxels or samples, or on the branches that the example takes, is refused.

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
    other: the second example, with other numbers of voxels and samples; None: some rows of the first one.

    Raises ExportError, with the user's line of Python, for an operation that the model format does not have, and
    ValueError for wrong arguments, and where spconv has to add a bias on a CPU, which it cannot.
    """
    training = [path or type(part).__name__ for path, part in module.named_modules() if part.training]
    if training:
        raise ExportError([f"{', '.join(training[:5])} in training mode: call module.eval() before"])
    served_axes = _served_axes(axes, example)

    def traced(cloud: Any) -> Trace:
        return trace(module, cloud, served_axes, cut, features)

    # The second cloud comes first: it is small, so that a network that the server cannot run is soon refused.
    seconds = iter([traced(other)]) if other is not None else _smaller(traced, example, features)
    first_second = list(itertools.islice(seconds, 1))
    made = traced(example)
    graph = made.graph
    try:
        served = _served(made, output)
        network, num_classes = _network(graph, served, points, name or type(module).__name__, description)
        _compare(made, list(served), itertools.chain(first_second, seconds))
    except RefusalError as refusal:
        raise refusal.offering("" if cut else graph.last_module) from None
    second_cloud.check_coordinates(graph, example)
    for text in graph.warnings:
        warnings.warn(text, stacklevel=2)
    nodes = {key: result.place.node for key, result in served.items()}
    return Exported(
        network, nodes, _kept(graph, network), graph.axes, tuple(graph.warnings), cut, num_classes=num_classes
    )


def _smaller(traced: Callable[[Any], Trace], example: Any, features: str) -> Iterator[Trace | Exception]:
    """Yields the traces of parts of the example, or the errors that ended them. LimitError is raised: it is no error of
    the part.
    """
    for cloud in second_cloud.smaller(example, features):
        made: Trace | Exception
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = traced(cloud())
        except LimitError:
            raise
        except Exception as error:
            made = error
        yield made


def _compare(made: Trace, keys: Sequence[str], seconds: Iterable[Trace | Exception]) -> None:
    """Compares the trace of the example with those of other clouds. Raises RefusalError if all of them differ from it.
    A small cloud may be a special case, so one that does not differ suffices. Adds a warning if none could be traced.
    keys: the results that are served.
    """
    problem, reason = None, "it has too few rows"
    for second in seconds:
        if isinstance(second, Exception):
            reason = second.problems[0] if isinstance(second, ExportError) else f"{type(second).__name__}: {second}"
            continue
        problem = difference(made, second, keys)
        if problem is None:
            return
    if problem is not None:
        raise problem
    made.graph.warn(
        "the network could not be compared with that of a smaller part of the example, so that it may depend on the "
        f"example's numbers of voxels and samples: give from_torch a second example (other=...). The reason: {reason}"
    )


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


def _served(made: Trace, output: str) -> dict[str, Result]:
    """Returns the results to serve. output: the name of the only one; "": all."""
    results = made.results
    if output:
        if output not in results:
            raise ExportError([f"output is '{output}', the module returns {', '.join(results) or 'nothing traced'}"])
        results = {output: results[output]}
    if not results:
        raise ExportError(
            [
                "the module returns nothing that was computed from the example's features by torch's functions. "
                "Results of TorchScript, NumPy and extensions are not followed, and only sparse tensors, tensors, and "
                "dicts, lists and tuples of them are results"
            ]
        )
    if made.others and not output:
        made.graph.warn(
            f"not served, since they are not computed from the features: the results {', '.join(made.others)}"
        )
    return {key: replace(r, place=_served_place(made.graph, key, r.place)) for key, r in results.items()}


def _served_place(graph: Graph, name: str, place: Place) -> Place:
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
    graph: Graph, served: dict[str, Result], points: Points | None, name: str, description: str
) -> tuple[Network, int]:
    """Returns the network, and the number of classes of the points' labels; 0 if it makes no labels."""
    network = Network(name, description, len(graph.input_level.stride))
    add_voxelize(network, graph, points)
    graph.write(network, [result.place.node for result in served.values()])
    return network, add_outputs(network, served)


def add_outputs(network: Network, served: dict[str, Result]) -> int:
    """Adds the outputs of the results. If the results are one row of scores per point, or labels, or both, the outputs
    are labels and scores of points; it then returns the number of classes. Otherwise it returns 0, and each result
    becomes a tensor with its name. If a result cannot be a tensor (a column or a mask, for example), it adds no output,
    and the caller must add some.
    """
    places = [result.place for result in served.values()]
    scores = [r for r in served.values() if _is_of_points(r.place) and r.place.kind != "labels"]
    labels = [r for r in served.values() if _is_of_points(r.place) and r.place.kind == "labels"]
    if len(scores) + len(labels) != len(places) or len(scores) > 1 or len(labels) > 1:
        if all(place.kind in _TENSOR_KINDS for place in places):
            if len(places) > LIMITS["kMaxTensors"]:
                raise LimitError(
                    f"the module returns {len(places)} results; at most {LIMITS['kMaxTensors']} are served"
                )
            for key, place in zip(_tensor_names(served), places, strict=True):
                network.output("TENSOR", place.node, key)
        return 0
    num_classes = (labels or scores)[0].channels
    if num_classes > LIMITS["kMaxClasses"]:
        raise LimitError(f"the network has {num_classes} classes; at most {LIMITS['kMaxClasses']} are served")
    for result in scores:
        network.voxel_to_point("point_scores", result.place.node, INPUT)
    best = labels[0].place.node if labels else network.argmax("best", scores[0].place.node)
    network.voxel_to_point("point_labels", best, INPUT)
    network.output("LABELS", "point_labels")
    if scores:
        network.output("SCORES", "point_scores")
    return num_classes


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
