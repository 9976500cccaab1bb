"""Remembers which points an answer is about, so that pictures and tables of it need not be given them again."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from voxserve.inputs import PointsLike
from voxserve.point_cloud import Fields, PointCloud, as_cloud

_SAMPLED = 1024  # bytes: reading them takes microseconds, and another scan differs in almost every one


class PointsGoneError(ValueError):
    """Nobody has the request's points any more."""


class Source:
    """The points of a request: a weak reference, which keeps no memory, the arguments that describe them, and a few of
    their bytes. A caller may write other points to the same memory, as drivers do; the bytes tell. A pickle has the
    arguments alone.
    """

    def __init__(
        self,
        points: PointsLike | None = None,
        cloud: PointCloud | None = None,
        fields: Fields = None,
        scales: Mapping[str, float] | None = None,
    ) -> None:
        """cloud: what as_cloud(points, fields) has returned for the request."""
        self._fields, self._scales = fields, scales
        self._sample = None if cloud is None else _sample(cloud)
        self._points: Any = None
        try:
            self._points = None if points is None else weakref.ref(points)
        except TypeError:  # lists, tuples and dicts take no weak references
            self._points = None

    def cloud(self, points: PointsLike | None = None) -> PointCloud:
        """Returns the cloud of the request. points: the request's points again; None: those that the caller still has.
        PointsGoneError if the caller has let go of them, ValueError if their memory has other values now.
        """
        given = points
        if given is None:
            given = None if self._points is None else self._points()
        if given is None:
            raise PointsGoneError("the points are not in memory any more; pass them here again")
        cloud = as_cloud(given, self._fields)
        if points is None and self._sample not in (None, _sample(cloud)):
            raise ValueError("the memory of the request's points has other values now; pass the request's points here")
        return cloud.scaled(self._scales) if self._scales else cloud

    def __reduce__(self) -> tuple[Any, ...]:
        return Source, (None, None, self._fields, self._scales)

    def __repr__(self) -> str:
        return "Source()"


def _sample(cloud: PointCloud) -> tuple[int, bytes]:
    """Returns the size of the cloud's data, and about _SAMPLED of its bytes, from the first to the last. The distance
    between them is odd, so that they are of all fields.
    """
    data = memoryview(cloud.data)
    if data.nbytes == 0:
        return 0, b""
    return data.nbytes, bytes(data.cast("B")[:: data.nbytes // _SAMPLED | 1])
