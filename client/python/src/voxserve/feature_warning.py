"""Warnings that a cloud's values are not those that the model expects, which is mostly a matter of units, or that the
network's values are not numbers.
"""

from __future__ import annotations

import math
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from voxserve import field_spec
from voxserve.compacting import CompactWarning
from voxserve.field_spec import FieldSpec
from voxserve.printable import printable

if TYPE_CHECKING:  # results imports this module
    from voxserve.point_cloud import Fields, PointCloud
    from voxserve.results import FeatureInfo, PointCounts

_FEWEST_POINTS = 100  # fewer are no scan
_SHARE_OUTSIDE = 0.9
# By a field's type: the raw intensity that counts as 1, the largest one of a smaller unit, and the type's name.
_ONES = {"u16": (65535, 255, "uint16"), "f32": (255, 1, "float32")}
_RANGE, _BITS, _NOT_FINITE = "its range", "bits of intensity", "not finite"
# How a user scales a field: in Python, with the option of commands that read scans, and with that of bag and view.
_BY_ARGUMENT = "scales={{'{name}': {factor}}}"
BY_FIELDS = "--fields {name}={name}*{factor}"
BY_SCALE = "--scale {name}={factor}"
_told: set[tuple[str, str]] = set()  # models, and features or one of the names above
_lock = threading.Lock()


class UnitWarning(UserWarning):
    """The values of a cloud's field are likely in another unit than the model reads."""

    def __init__(self, problem: str = "", name: str = "", factor: str = "", example: str = "") -> None:
        """name: the field's, which the factor brings to the model's unit. example: of the factor; "" for none."""
        super().__init__(problem, name, factor, example)

    def text(self, option: str) -> str:
        """Returns the problem and how to scale the field. option: such as BY_FIELDS."""
        problem, name, factor, example = self.args
        advice = f"scale it with {option.format(name=name, factor=factor)}{example}"
        return printable(f"{problem}; {advice}" if name else problem)

    def __str__(self) -> str:
        return self.text(_BY_ARGUMENT)


class OutOfRangeWarning(UserWarning):
    """Nearly all points of a cloud lie outside of the range that the model accepts."""


class NotFiniteWarning(UserWarning):
    """Some points have no label, or boxes are left out, since the network's numbers for them are NaN or infinite."""


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


def _is_first(model: str, topic: str) -> bool:
    """Returns True once in this process for a model and a topic."""
    with _lock:
        is_first = (model, topic) not in _told
        _told.add((model, topic))
    return is_first


def tell(model: str, found: Iterable[FeatureWarning]) -> None:
    """Issues a UnitWarning, once in this process for a model's feature."""
    for each in found:
        if not _is_first(model, each.feature):
            continue
        problem = f"{each} ({model}); the answer is likely wrong"
        example = ", e.g. 0.00392 if 255 must be 1"
        warnings.warn(UnitWarning(problem, each.feature, "FACTOR", example), stacklevel=2)


def tell_of_bits(
    model: str, cloud: PointCloud, fields: Fields = None, scales: Mapping[str, float] | None = None
) -> None:
    """Issues a UnitWarning if intensities are uint16, whose 65535 counts as 1, but none is above 255, as if they had 8
    bits; or float32, whose 255 counts as 1, as in nuScenes' scans, but none is above 1. The first cloud that has 100
    points and an intensity above 0 decides, for a model and this process. fields, scales: what the caller says of the
    cloud, which is not doubted.
    """
    own, key = cloud.field("intensity"), (model, _BITS)
    one, low, name = _ONES.get("" if own is None else own.type, (0, 0, ""))
    if own is None or not one or not math.isclose(own.scale, 1 / one) or own.shift or key in _told:
        return
    if cloud.num_points < _FEWEST_POINTS or _says_scale(own.name, fields, scales):
        return
    try:
        raw = replace(cloud, fields=(replace(own, scale=1.0),)).values(own.name)
    except ValueError:  # the cloud's sizes are wrong, and the server says so
        return
    largest = float(raw.max(initial=0, where=np.isfinite(raw)))
    if largest == 0:
        return
    if not _is_first(*key):
        return
    if largest <= low:
        problem = (
            f"{own.name} is {name}, whose {one} counts as 1, but no value is above {largest:g} ({model}); the answer "
            f"is likely wrong if the model reads intensity and {low} is the largest"
        )
        warnings.warn(UnitWarning(problem, own.name, f"{1 / low:.9g}"), stacklevel=2)


def settle_bits(model: str, features: Iterable[FeatureInfo], fields: str) -> None:
    """Keeps tell_of_bits from telling of a model in this process if the model reads no intensity, or if the field spec
    of all its clouds says their scale. features: the model's; none if they are unknown. fields: the spec; "" for none.
    """
    names = {feature.name.lower() for feature in features}
    if (names and "intensity" not in names) or _says_scale("intensity", fields or None, None):
        with _lock:
            _told.add((model, _BITS))


def _says_scale(name: str, fields: Fields, scales: Mapping[str, float] | None) -> bool:
    """Returns whether the caller says the scale of this field. Names are compared in any case."""
    given = {each.lower() for each in scales or ()}
    spec = field_spec.parse(fields) if isinstance(fields, str) else fields
    return name.lower() in (given | spec.scaled if isinstance(spec, FieldSpec) else given)


def tell_of_range(model: str, counts: PointCounts) -> None:
    """Issues an OutOfRangeWarning, once in this process for a model, if nearly all of a cloud's points are out of
    range.
    """
    points = counts.used + counts.out_of_range + counts.dropped + counts.unsampled
    if counts.out_of_range < max(_FEWEST_POINTS, _SHARE_OUTSIDE * points):
        return
    if not _is_first(model, _RANGE):
        return
    text = f"{counts.out_of_range} of {points} points lie outside of the range that {model} accepts, and are left out; "
    warnings.warn(printable(f"{text}coordinates are metres from the sensor"), OutOfRangeWarning, stacklevel=2)


def tell_of_not_finite(model: str, counts: PointCounts) -> None:
    """Issues a NotFiniteWarning, once in this process for a model, if scores of points or numbers of boxes are NaN or
    infinite.
    """
    lost = []
    if counts.not_finite:
        lost.append(f"for {counts.not_finite} of {counts.used} points, which get no label")
    if counts.boxes_not_finite:
        lost.append(f"in {counts.boxes_not_finite} candidates of boxes, which are left out")
    if not lost or not _is_first(model, _NOT_FINITE):
        return
    text = f"{model} has NaN or infinite values {', and '.join(lost)}; "
    advice = "where float16 is too narrow for them, PRECISION_BFLOAT16 is not"
    warnings.warn(printable(text + advice), NotFiniteWarning, stacklevel=2)


@contextmanager
def told_on_stderr(program: str, option: str) -> Iterator[None]:
    """Makes a command print the warnings of this package as its own lines, in the block. option: the one with
    which the command's user scales a field, such as BY_FIELDS.
    """

    def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
        if isinstance(message, UnitWarning):
            print(f"{program}: warning: {message.text(option)}", file=sys.stderr)
        elif issubclass(category, (CompactWarning, OutOfRangeWarning, NotFiniteWarning)):
            print(f"{program}: warning: {message}", file=sys.stderr)
        else:
            before(message, category, *rest)

    before: Any = warnings.showwarning
    with warnings.catch_warnings():
        for each in (UnitWarning, OutOfRangeWarning, NotFiniteWarning):
            warnings.simplefilter("always", each)
        warnings.simplefilter("default", CompactWarning)
        warnings.showwarning = show  # type: ignore[assignment]
        yield
