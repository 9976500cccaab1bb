"""Defines FarthestPoints, with which a request asks for a sample of the cloud's points."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal

from voxserve import wire

Use = Literal["return", "network"]

_USES = {"return": wire.FarthestPointSample.USE_RETURN, "network": wire.FarthestPointSample.USE_NETWORK}


@dataclass(frozen=True)
class FarthestPoints:
    """A sample of a cloud's points that covers the cloud evenly (farthest point sampling). The first point is a start
    point. Each further point is the one with the largest distance to the nearest point selected before. Points with a
    NaN or infinite coordinate or feature are never selected. A request gets InvalidArgumentError, reason BAD_SAMPLE, if
    the cloud has fewer valid points than num_points, or no point start_index.

    use: "return": the answer has the indices of the selected points (sampled_points), and the network sees all points.
        "network": the network also sees only the selected points, and the other points get the ignore label.

    ValueError for values out of range, and if both start_index and seed are set.
    """

    num_points: int  # 1 to 65536, the server's limit
    use: Use = "return"
    start_index: int = 0  # the point that is selected first; if it is not valid, the next valid point is
    seed: int | None = None  # draws the start point at random, the same one on every machine, instead of start_index

    def __post_init__(self) -> None:
        if self.use not in _USES:
            raise ValueError(f"use is '{self.use}', must be return or network")
        if self.seed is not None and self.start_index != 0:
            raise ValueError("start_index and seed are both set; one says where the sample starts")
        for name, number, least, bits in (
            ("num_points", self.num_points, 1, 32),
            ("start_index", self.start_index, 0, 32),
            ("seed", 0 if self.seed is None else self.seed, 0, 64),
        ):
            if not least <= operator.index(number) < 1 << bits:
                raise ValueError(f"{name} is {number}, must be {least} to 2^{bits} - 1")

    def message(self) -> wire.FarthestPointSample:
        """Returns the protobuf message of this sample."""
        message = wire.FarthestPointSample(num_points=self.num_points, use=_USES[self.use])
        if self.seed is None:
            message.start_index = self.start_index
        else:
            message.seed = self.seed
        return message
