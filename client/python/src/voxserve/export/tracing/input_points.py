"""The points that a served network reads, and its voxelize node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from voxserve.export.model_folder import Network, PointFeature
from voxserve.export.tracing.graph import INPUT, Graph
from voxserve.export.tracing.refusal import RefusalError


@dataclass(frozen=True)
class Points:
    """Says how the server makes voxels of a cloud's points: the values of a voxelize node.

    Without it, clients send voxels as the training code makes them: one point per voxel, whose x, y, z are the integer
    coordinates, and whose fields f0, f1, ... are the features.
    """

    voxel_size: Sequence[float]  # metres
    features: Sequence[PointFeature]
    rounding: str = "FLOOR"  # or HALF_EVEN
    origin: str = "ZERO"  # MINIMUM, RANGE or ZERO; RANGE if the network has a spatial shape
    reduce: str = "FIRST"  # or MEAN
    range_min: Sequence[float] = ()
    range_max: Sequence[float] = ()
    max_points_per_voxel: int = 0
    axes: Sequence[str] = ()


def add_voxelize(network: Network, graph: Graph, points: Points | None) -> None:
    """Adds the trace's voxelize node."""
    level = graph.input_level
    dimension = len(level.stride)
    if points is None:
        features = tuple(PointFeature(f"f{i}", "1") for i in range(graph.num_features))
        points = Points((1,) * dimension, features, axes=("x", "y", "z", "t")[:dimension] if dimension != 3 else ())
        if level.shape:
            points = replace(points, origin="RANGE", range_min=(0,) * dimension, range_max=level.shape)
    if len(points.features) != graph.num_features:
        raise RefusalError(f"points has {len(points.features)} features, the example {graph.num_features}")
    if level.shape and points.origin != "RANGE":
        raise RefusalError(
            f"the network has the spatial shape {list(level.shape)}: points needs origin='RANGE' and a range"
        )
    network.voxelize(
        INPUT,
        points.voxel_size,
        points.features,
        rounding=points.rounding,
        origin=points.origin,
        reduce=points.reduce,
        range_min=points.range_min,
        range_max=points.range_max,
        max_points_per_voxel=points.max_points_per_voxel,
        spatial_shape=_more_cells(points, level.shape),
        axes=points.axes,
    )


def _more_cells(points: Points, shape: Sequence[int]) -> Sequence[int]:
    """Returns the spatial shape if it differs from the range's."""
    if not shape:
        return ()
    ranges = zip(points.range_min, points.range_max, points.voxel_size, strict=True)
    cells = tuple(round((high - low) / size) for low, high, size in ranges)
    if cells == tuple(shape):
        return ()
    if any(n < c for n, c in zip(shape, cells, strict=True)):
        raise RefusalError(f"the range has {list(cells)} cells, the network's spatial shape is {list(shape)}")
    return tuple(shape)
