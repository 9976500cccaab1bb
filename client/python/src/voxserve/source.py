"""Remembers which points an answer is about, so that pictures and tables of it need not be given them again."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from voxserve.inputs import PointsLike
from voxserve.point_cloud import Fields, PointCloud, as_cloud


class Source:
    """The points of a request: a weak reference, which keeps no memory, and the arguments that describe them. A pickle
    has the arguments alone.
    """

    def __init__(
        self, points: PointsLike | None = None, fields: Fields = None, scales: Mapping[str, float] | None = None
    ) -> None:
        self._fields, self._scales = fields, scales
        self._points: Any = None
        try:
            self._points = None if points is None else weakref.ref(points)
        except TypeError:  # lists, tuples and dicts take no weak references
            self._points = None

    def cloud(self, points: PointsLike | None = None) -> PointCloud:
        """Returns the cloud of the request. points: the request's points again; None: those that the caller still has.
        ValueError if the caller has let go of them.
        """
        if points is None:
            points = None if self._points is None else self._points()
        if points is None:
            raise ValueError("the points are not in memory any more; pass them here again")
        cloud = as_cloud(points, self._fields)
        return cloud.scaled(self._scales) if self._scales else cloud

    def __reduce__(self) -> tuple[Any, ...]:
        return Source, (None, self._fields, self._scales)

    def __repr__(self) -> str:
        return "Source()"
