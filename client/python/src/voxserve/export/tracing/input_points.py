"""Describes how a served network makes voxels of points, and adds the voxelize node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from voxserve.export.model_folder import Network, PointFeature
from voxserve.export.tracing.graph import INPUT, Graph
from voxserve.export.tracing.refusal import RefusalError


@dataclass(frozen=True)
class Points:
    """How the server makes voxels of a cloud's points: the values of the network's voxelize node.

    Without Points, clients send voxels as training code makes them (voxserve.Voxels): one point per voxel, whose fields
    x, y, z are the integer coordinates, and whose fields f0, f1, ... are the features.
    """

    voxel_size: Sequence[float]  # metres (seconds for a time axis), one value per axis
    features: Sequence[PointFeature]  # in the order of the module's input channels
    rounding: str = "FLOOR"  # or HALF_EVEN: from a position in voxels to a voxel's index
    # The value that is subtracted from positions: MINIMUM (of the cloud's voxels), RANGE (range_min) or ZERO (nothing).
    # A network with a spatial shape needs RANGE.
    origin: str = "ZERO"
    reduce: str = "FIRST"  # a voxel's features: those of its FIRST point, or the MEAN of its points
    range_min: Sequence[float] = ()  # metres, one value per axis; points outside the range are left out
    range_max: Sequence[float] = ()
    max_points_per_voxel: int = 0  # the first points of a voxel that MEAN counts; 0: all points
    axes: Sequence[str] = ()  # the names of the fields that are the axes; default: x, y, z


def add_voxelize(network: Network, graph: Graph, points: Points | None) -> None:
    """Adds the voxelize node for the input of a trace."""
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
    if graph.has_groups and points.origin == "ZERO":
        raise RefusalError(
            "group_attention orders sites whose coordinates are not negative, but the voxels' origin is ZERO: give "
            "points with the origin MINIMUM or RANGE, or the library's sparse tensor a spatial shape"
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
    """Returns the spatial shape if it has more cells than the range, else an empty sequence."""
    if not shape:
        return ()
    ranges = zip(points.range_min, points.range_max, points.voxel_size, strict=True)
    cells = tuple(round((high - low) / size) for low, high, size in ranges)
    if cells == tuple(shape):
        return ()
    if any(n < c for n, c in zip(shape, cells, strict=True)):
        raise RefusalError(f"the range has {list(cells)} cells, the network's spatial shape is {list(shape)}")
    return tuple(shape)
