"""The classes of the models that have answered a client. They name what an answer has numbers of."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from voxserve.results import Answer, ClassInfo, FrameResult

AnswerKind = TypeVar("AnswerKind", bound=Answer)


class KnownClasses:
    """The classes of the models that have answered a client, which asks the server again after 30 s: a version's files
    may be replaced. Thread-safe.
    """

    SECONDS = 30.0
    TIMEOUT = 2.0  # seconds for the server to tell them, at most; the answer itself is there already

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[float, tuple[ClassInfo, ...]]] = {}

    @classmethod
    def timeout_within(cls, timeout: float | None) -> float:
        """Returns the seconds to wait for them, for a call that had this timeout; None: it had none."""
        return cls.TIMEOUT if timeout is None else min(cls.TIMEOUT, timeout)

    def missing(self, answers: Iterable[Answer]) -> list[tuple[str, int]]:
        """Returns the models and versions that the server has to be asked about."""
        long_ago, keys = time.monotonic() - self.SECONDS, {(answer.model, answer.version) for answer in answers}
        return [key for key in keys if key not in self._known or self._known[key][0] < long_ago]

    def add(self, key: tuple[str, int], classes: tuple[ClassInfo, ...]) -> None:
        """Keeps the classes of a model's version; () if the server does not tell them."""
        self._known[key] = time.monotonic(), classes

    def named(self, answer: AnswerKind) -> AnswerKind:
        """Returns the answer with its model's classes."""
        _, classes = self._known.get((answer.model, answer.version), (0.0, ()))
        return replace(answer, classes=classes)

    def named_frame(self, result: FrameResult) -> FrameResult:
        """Returns a stream's result, whose answers have their model's classes."""
        labels, boxes = result.segmentation, result.detections
        return replace(
            result,
            segmentation=None if labels is None else self.named(labels),
            detections=None if boxes is None else self.named(boxes),
        )


def answers_of(result: Answer | FrameResult | None) -> list[Answer]:
    """Returns the answers that have classes: those of a call or of a frame, with labels or boxes."""
    if isinstance(result, FrameResult):
        return [answer for answer in (result.segmentation, result.detections) if answer is not None]
    return [] if result is None else [result]
