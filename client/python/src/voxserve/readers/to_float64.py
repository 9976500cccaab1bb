"""Makes float64 of integers of 8 bytes, a type that fields of a request cannot have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

LONG_CODES = ("i8", "u8")  # NumPy's codes of these types, without the byte order


def to_float64(points: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns a structured array in which fields of 8-byte integers are float64, at the same offsets. float64 holds
    every value that float32, the networks' type, tells apart. points: contiguous; not copied if they have no such
    field.
    """
    names: Sequence[str] = points.dtype.names or ()
    types = {name: points.dtype[name] for name in names}
    long = [name for name in names if types[name].base.str[1:] in LONG_CODES]
    if not long:
        return points
    for name in long:
        base = types[name].base
        types[name] = np.dtype((np.dtype(base.str[0] + "f8"), types[name].shape))
    fields = points.dtype.fields
    assert fields is not None
    offsets = [fields[name][1] for name in names]
    layout = {"names": names, "formats": list(types.values()), "offsets": offsets, "itemsize": points.dtype.itemsize}
    made = points.view(np.uint8).copy().view(np.dtype(layout))  # type: ignore[call-overload]
    for name in long:
        made[name] = points[name]
    result: npt.NDArray[Any] = made
    return result
