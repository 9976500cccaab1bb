"""FarthestPoints asks for a sample of a cloud's points."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Literal

from voxserve import wire

Use = Literal["return", "network"]

_USES = {"return": wire.FarthestPointSample.USE_RETURN, "network": wire.FarthestPointSample.USE_NETWORK}


@dataclass(frozen=True)
class FarthestPoints:
    """A sample that covers the cloud evenly: it begins with a start point, and each further point is the farthest from
    those already selected. NaN and infinite points are never selected; InvalidArgumentError, reason BAD_SAMPLE, if the
    cloud has fewer other points.

    use: "return" to get the points' indices (Segmentation.sampled_points), "network" if also the network shall see only
    these points; the others then get the ignore label.
    """

    num_points: int  # 1 or more
    use: Use = "return"
    start_index: int = 0  # the point selected first; if it is invalid, the next valid one
    seed: int | None = None  # draws the first point at random, the same on every machine, instead of start_index

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
        """Returns the wire's message."""
        message = wire.FarthestPointSample(num_points=self.num_points, use=_USES[self.use])
        if self.seed is None:
            message.start_index = self.start_index
        else:
            message.seed = self.seed
        return message
