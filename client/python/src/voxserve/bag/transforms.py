"""Computes transforms between coordinate frames at any time from the messages of tf."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from voxserve.bag.bag_error import BagError
from voxserve.pose import Pose

Matrix = npt.NDArray[np.float64]
_MAX_GAP_NS = 500_000_000  # the longest time from a cloud to the nearest transform


@dataclass
class _Edge:
    """The poses of a frame in its parent's coordinates, in the order of their times."""

    parent: str
    is_static: bool
    stamps: list[int] = field(default_factory=list)
    poses: list[Pose] = field(default_factory=list)


class Transforms:
    """A tree of coordinate frames and their poses over time. A slash at the beginning of a name, as in ROS 1, is
    ignored.
    """

    def __init__(self) -> None:
        self._edges: dict[str, _Edge] = {}

    def add(self, parent: str, child: str, stamp_ns: int, pose: Pose, is_static: bool) -> None:
        """Adds a pose: the transform from the child's coordinates to the parent's at a time. Times may come in any
        order.
        """
        edge = self._edges.setdefault(child.lstrip("/"), _Edge(parent.lstrip("/"), is_static))
        edge.parent = parent.lstrip("/")
        place = bisect.bisect_right(edge.stamps, stamp_ns)
        edge.stamps.insert(place, stamp_ns)
        edge.poses.insert(place, pose)

    def knows(self, frame: str) -> bool:
        """Returns whether the frame has a parent."""
        return frame.lstrip("/") in self._edges

    def joined(self, other: Transforms) -> Transforms:
        """Returns a tree with the frames of this tree and of `other`. A frame of both has its poses from `other`."""
        both = Transforms()
        both._edges = {**self._edges, **other._edges}
        return both

    def lookup(self, fixed: str, frame: str, stamp_ns: int) -> Matrix:
        """Returns the transform [4, 4] from the coordinates of `frame` to those of `fixed` at a time. Poses between two
        times are interpolated. Raises BagError if the frames are not connected, or if no pose is within 0.5 s.
        """
        to_root, names = self._to_root(frame.lstrip("/"), stamp_ns)
        fixed_to_root, fixed_names = self._to_root(fixed.lstrip("/"), stamp_ns)
        if names[-1] != fixed_names[-1]:
            known = ", ".join(sorted({*self._edges, *(edge.parent for edge in self._edges.values())})) or "none"
            raise BagError(f"no transforms lead from {frame} to {fixed}; frames that there are: {known}")
        moved: Matrix = np.linalg.inv(fixed_to_root) @ to_root
        return moved

    def root(self, frame: str) -> str:
        """Returns the root of the tree that the frame belongs to."""
        name = frame.lstrip("/")
        seen = {name}
        while name in self._edges and self._edges[name].parent not in seen:
            name = self._edges[name].parent
            seen.add(name)
        return name

    def _to_root(self, frame: str, stamp_ns: int) -> tuple[Matrix, list[str]]:
        matrix, names = np.eye(4), [frame]
        while (edge := self._edges.get(names[-1])) is not None:
            if edge.parent in names:
                raise BagError(f"the transforms go round in a circle: {' -> '.join([*names, edge.parent])}")
            matrix = _at(edge, names[-1], stamp_ns) @ matrix
            names.append(edge.parent)
        return matrix, names


def _at(edge: _Edge, name: str, stamp_ns: int) -> Matrix:
    if edge.is_static:
        return edge.poses[-1].matrix()
    after = bisect.bisect_left(edge.stamps, stamp_ns)
    if after < len(edge.stamps) and edge.stamps[after] == stamp_ns:
        return edge.poses[after].matrix()
    places = [place for place in (after - 1, after) if 0 <= place < len(edge.stamps)]
    nearest = min(places, key=lambda place: abs(edge.stamps[place] - stamp_ns))
    gap = abs(edge.stamps[nearest] - stamp_ns)
    if gap > _MAX_GAP_NS:
        raise BagError(f"the nearest transform of {name} in {edge.parent} is {gap / 1e9:.3f} s away from a cloud")
    if after == 0 or after == len(edge.stamps):
        return edge.poses[nearest].matrix()
    first, last = edge.stamps[after - 1], edge.stamps[after]
    return _between(edge.poses[after - 1], edge.poses[after], (stamp_ns - first) / (last - first)).matrix()


def _between(a: Pose, b: Pose, share: float) -> Pose:
    """Returns the pose between two poses, at `share` (0 to 1) of the way from a to b. The translation is interpolated
    linearly, the rotation along the shortest arc (slerp).
    """
    p, q = np.array(a.translation), np.array(b.translation)
    u, v = np.array(a.rotation) / np.linalg.norm(a.rotation), np.array(b.rotation) / np.linalg.norm(b.rotation)
    cosine = float(u @ v)
    if cosine < 0:
        v, cosine = -v, -cosine
    angle = float(np.arccos(min(1.0, cosine)))
    if angle < 1e-6:
        turn = (1 - share) * u + share * v
    else:
        turn = (np.sin((1 - share) * angle) * u + np.sin(share * angle) * v) / np.sin(angle)
    x, y, z = ((1 - share) * p + share * q).tolist()
    qw, qx, qy, qz = turn.tolist()
    return Pose((x, y, z), (qw, qx, qy, qz))
