"""Warnings that a cloud's values are not those that the model was trained on, which is mostly a matter of units."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from voxserve.compacting import CompactWarning
from voxserve.printable import printable

_told: set[tuple[str, str]] = set()  # models and features
_lock = threading.Lock()


class UnitWarning(UserWarning):
    """The values of a cloud's field are likely in another unit than the model reads."""


@dataclass(frozen=True)
class FeatureWarning:
    """The server's warning that more than 1% of a field's values are outside of the range that the network was trained
    on. The network has seen them as they are. All values are in the field's canonical unit, PointField's own scale
    applied.
    """

    feature: str  # the field's name
    low: float  # the range that the model states
    high: float
    smallest: float  # of the values that the server looked at
    largest: float
    num_checked: int  # values that the server looked at, up to 4096 of the cloud
    num_outside: int  # those of them more than 5% of the range's width outside of it

    def __str__(self) -> str:
        return (
            f"{self.feature} is {self.smallest:g} to {self.largest:g}, but the model was trained on {self.low:g} to "
            f"{self.high:g}"
        )


def tell(model: str, found: Iterable[FeatureWarning]) -> None:
    """Issues a UnitWarning, once in this process for a model's feature."""
    for each in found:
        with _lock:
            if (model, each.feature) in _told:
                continue
            _told.add((model, each.feature))
        advice = f"the answer is likely wrong; scale it, e.g. with scales={{'{each.feature}': FACTOR}}"
        warnings.warn(printable(f"{each} ({model}); {advice}"), UnitWarning, stacklevel=2)


@contextmanager
def told_on_stderr(program: str, advice: str) -> Iterator[None]:
    """Makes a command print UnitWarnings and CompactWarnings as its own lines, in the block. advice: what the command's
    user can do about units.
    """

    def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if issubclass(category, UnitWarning):
            text = str(message).partition("; the answer")[0]
            print(f"{program}: warning: {text}; {advice}", file=sys.stderr)
        elif issubclass(category, CompactWarning):
            print(f"{program}: warning: {message}", file=sys.stderr)
        else:
            before(message, category, *rest)

    before: Any = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("always", UnitWarning)
        warnings.simplefilter("default", CompactWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield
