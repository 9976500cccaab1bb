"""Asks the server for the votes of a tile's points.

A point's votes are its classes' probabilities (softmax of the scores) times the point's weight, rounded to multiples of
2^-22. So they are integers, and their sum does not depend on the order in which tiles are answered. A model without
scores gives its label the whole weight. A point that got no label votes for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import grpc
import numpy as np
import numpy.typing as npt

from voxserve import errors
from voxserve.cli.retrying import patiently
from voxserve.client import Client
from voxserve.inputs import PointsLike
from voxserve.maps.features import Features
from voxserve.maps.spool import Leaf, Points, Rect
from voxserve.maps.tiles import Part, Plan
from voxserve.results import ModelVersion, Reach, Segmentation

_ONE = 1 << 22
MAX_TURNS = 16  # so that the votes of 4 tiles in each of 2 passes fit uint32
_TOO_LARGE = {"TOO_MANY_POINTS", "TOO_MANY_VOXELS", "MESSAGE_TOO_LARGE", "RESPONSE_TOO_LARGE"}
_HEAD_BYTES = 1 << 16  # of a request or an answer beside its points
_SNAPPED_VOXELS = 64  # origins are multiples of this many voxels, so that coarse voxels of a network fit together too
_MOST_SNAPPED_VOXELS = 4096  # beyond it, coordinates from the origin would lose digits as float32
_LOW_SHARE = 0.01  # of a tile's points lie below the height that counts as its ground

Votes = npt.NDArray[np.uint32]  # [N, classes]
Ballot = list[tuple[Leaf, npt.NDArray[np.uint32], Votes]]  # the votes of points, by leaf and position in the leaf


class TileTooDenseError(ValueError):
    """A place has more voxels than a request may have, and cannot be divided further."""


@dataclass(frozen=True)
class Limits:
    """What one request may hold."""

    points: int
    voxels: int = 0  # 0: no limit, or an older server does not tell it

    @staticmethod
    def of(model: ModelVersion, features: Features, max_message_bytes: int, most_points: int) -> Limits:
        """Returns the limits that the server states, and the client's own one for messages. most_points: the user's own
        limit; 0: none.
        """
        answer_bytes = 2 + (4 * len(model.classes) if model.has_scores else 0)
        size = max(features.sent_dtype.itemsize, answer_bytes)
        message_bytes = min(max_message_bytes, model.max_message_bytes or max_message_bytes)
        limits = [(message_bytes - _HEAD_BYTES) // size]
        limits += [limit for limit in (model.max_points, most_points) if limit]
        return Limits(max(1, min(limits) - 1), model.max_voxels or 0)  # one place is the anchor's


class Asker(NamedTuple):
    """Asks for tiles. Thread-safe."""

    client: Client
    model: ModelVersion
    features: Features
    plan: Plan
    limits: Limits
    turns: int  # copies of a tile that are asked, each turned by another angle
    height: float  # metres by which a tile's ground is moved up
    retry: float  # seconds for which a request is tried again after an error that passes

    def ask(self, rect: Rect) -> Ballot:
        """Returns the votes of all points that are sent for `rect`. If these are too many for a request, or make too
        many voxels, the quarters of `rect` are asked, down to the overlap's size. Below that, only points can be too
        many; then each request has an equal share of them. Raises InferenceError, or TileTooDenseError.
        """
        number = self.plan.count(self.plan.sent_rect(rect))
        if not number:
            return []
        can_divide = (rect.x1 - rect.x0) / 2 >= max(self.plan.overlap, self._voxel)
        if number > self.limits.points and can_divide:
            return self._quarters(rect)
        num_shares = math.ceil(number / self.limits.points)
        try:
            return [vote for share in range(num_shares) for vote in self._share(rect, share, num_shares)]
        except errors.InferenceError as error:
            if error.reason not in _TOO_LARGE:
                raise
            if not can_divide:
                where = f"x {rect.x0:g} to {rect.x1:g}, y {rect.y0:g} to {rect.y1:g}"
                raise TileTooDenseError(f"the points at {where} are too many: {error.message}") from None
            return self._quarters(rect)

    @property
    def _voxel(self) -> float:
        return max(self.model.voxel_size[:3], default=0.0)

    def _quarters(self, rect: Rect) -> Ballot:
        return [vote for quarter in rect.quarters() for vote in self.ask(quarter)]

    def _share(self, rect: Rect, share: int, num_shares: int) -> Ballot:
        parts = self.plan.read(self.plan.sent_rect(rect), share, num_shares)
        if not parts:
            return []
        points = np.concatenate([part.points for part in parts])
        local = self._local(points, rect)
        self._check_voxels(local)
        weights = self.plan.weights(points, rect)
        anchored = np.append(points, points[:1])
        total: Votes | None = None
        for turn in range(self.turns):
            xyz = _turned(local, 2 * math.pi * turn / self.turns)
            anchor = anchor_of(xyz, self.model)
            if anchor is not None:
                xyz = np.append(xyz, anchor[None], axis=0)
            cloud = self.features.cloud(points if anchor is None else anchored, xyz)
            answer = patiently(lambda cloud=cloud: self._infer(cloud), self.retry)  # type: ignore[misc]
            votes = _votes_of(answer, self.model, weights)
            total = votes if total is None else total + votes
        assert total is not None
        return _by_leaf(parts, total)

    def _check_voxels(self, local: npt.NDArray[np.float64]) -> None:
        """Raises the server's error for too many voxels without asking it, where its limit is known."""
        most, sizes = self.limits.voxels, self.model.voxel_size[:3]
        if not most or len(local) <= most or not sizes:
            return
        cells = np.floor(local[:, : len(sizes)] / sizes)
        number = len(np.unique(cells, axis=0))
        if number > most:
            message = f"they are in {number:,} voxels, and a request may have {most:,}"
            raise errors.make(grpc.StatusCode.INVALID_ARGUMENT, message, "TOO_MANY_VOXELS")

    def _infer(self, cloud: PointsLike) -> Segmentation:
        model = self.model
        # The scales are those of the whole file. As arguments they are not doubted for a tile of small values.
        scales = {field.name: field.scale for field in self.features.fields}
        answer = self.client.infer(model.name, cloud, version=model.version, scores=model.has_scores, scales=scales)
        if answer.counts.dropped:
            message = f"{answer.counts.voxels} voxels are kept, and {answer.counts.dropped} points dropped"
            raise errors.make(grpc.StatusCode.INVALID_ARGUMENT, message, "TOO_MANY_VOXELS")
        return answer

    def _local(self, points: Points, rect: Rect) -> npt.NDArray[np.float64]:
        """Returns coordinates [N, 3] relative to the tile's origin: the middle of `rect`, at the height below which 1%
        of its points lie, moved down by `height`. The origin is a multiple of snapped_voxels().
        """
        middle = ((rect.x0 + rect.x1) / 2, (rect.y0 + rect.y1) / 2)
        ground = float(np.quantile(points["z"], _LOW_SHARE))
        sizes = [*self.model.voxel_size[:3]] or [1.0] * 3
        local = np.empty((len(points), 3))
        for axis, (name, value) in enumerate(zip("xyz", (*middle, ground), strict=True)):
            step = sizes[min(axis, len(sizes) - 1)] * snapped_voxels(self.model.reach, axis)
            local[:, axis] = points[name] - round(value / step) * step
        local[:, 2] += self.height
        return local


def _turned(local: npt.NDArray[np.float64], angle: float) -> npt.NDArray[np.float32]:
    """Returns the coordinates turned about z."""
    if angle == 0:
        return local.astype(np.float32)
    cos, sin = math.cos(angle), math.sin(angle)
    x, y = local[:, 0], local[:, 1]
    return np.stack([cos * x - sin * y, sin * x + cos * y, local[:, 2]], axis=1).astype(np.float32)


def bounded(reach: Reach | None) -> float:
    """Returns the reach in x and y in metres; 0 if it is unbounded, or an older server does not tell it."""
    horizontal = max(reach.distance[:2], default=0.0) if reach is not None else 0.0
    return horizontal if math.isfinite(horizontal) else 0.0


def snapped_voxels(reach: Reach | None, axis: int) -> int:
    """Returns how many voxels an origin is a multiple of: so many that the model's coarse voxels are, too."""
    periods = reach.minimum_period if reach is not None else ()
    voxels = math.lcm(_SNAPPED_VOXELS, periods[axis] or 1) if axis < len(periods) else _SNAPPED_VOXELS
    return voxels if voxels <= _MOST_SNAPPED_VOXELS else _SNAPPED_VOXELS


def anchor_of(xyz: npt.NDArray[np.float32], model: ModelVersion) -> npt.NDArray[np.float32] | None:
    """Returns the place [3] of a further point, below all others and beyond their reach; None if it is of no use.

    Coarse voxels of many networks are counted from a cloud's smallest coordinates. The anchor is the smallest one, at a
    multiple of the coarse voxels' size. So these lie at the same places in every tile, and tiles agree.
    """
    reach = model.reach
    if reach is None or len(reach.distance) < 3 or not all(map(math.isfinite, reach.distance)):
        return None
    period = np.array(reach.minimum_period[:3], np.float64)
    if len(period) < 3 or not period.all() or np.all(period == 1):
        return None
    step = period * model.voxel_size[:3]
    place = np.floor((xyz.min(axis=0) - np.array(reach.distance[:3])) / step) * step
    # A quarter of a voxel is in the same voxel whether the network rounds down or to the nearest one.
    anchor: npt.NDArray[np.float32] = (place + 0.25 * np.array(model.voxel_size[:3])).astype(np.float32)
    return anchor


def _votes_of(answer: Segmentation, model: ModelVersion, weights: npt.NDArray[np.float64]) -> Votes:
    """Returns the votes of the first len(weights) points: without the anchor's."""
    ids = np.array([info.id for info in model.classes])
    labels = answer.labels[: len(weights)]
    has_label = labels != answer.ignore_label
    if answer.scores is None:
        shares = (labels[:, None] == ids).astype(np.float32)
    else:
        scores = answer.scores[: len(weights)]
        shares = scores - scores.max(axis=1, keepdims=True)
        np.exp(shares, out=shares)
        shares /= shares.sum(axis=1, keepdims=True)
    scale = np.where(has_label, weights, 0) * _ONE
    votes: Votes = np.rint(shares * scale[:, None]).astype(np.uint32)
    return votes


def _by_leaf(parts: list[Part], votes: Votes) -> Ballot:
    ends = np.cumsum([len(part.positions) for part in parts])
    split = np.split(votes, ends[:-1])
    return [(part.leaf, part.positions, each) for part, each in zip(parts, split, strict=True)]


def add_up(ballots: Iterable[Ballot], size: int, num_classes: int) -> Votes:
    """Returns the sums [size, num_classes] of the votes for the points of one leaf."""
    total = np.zeros((size, num_classes), np.uint32)
    for ballot in ballots:
        for _, positions, votes in ballot:
            total[positions] += votes  # positions are unique within one vote
    return total
