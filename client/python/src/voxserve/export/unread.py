"""Represents tensors of a checkpoint whose values cannot be read, such as sparse ones and 8-bit floats. They do no harm
unless a network needs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def unread(shape: Sequence[int], why: str) -> npt.NDArray[Any]:
    """Returns an array of a shape that has no values and takes no memory. why: what why_unread() returns for it."""
    return np.broadcast_to(np.zeros((), np.dtype("V1", metadata={"why": why})), tuple(shape))


def why_unread(tensor: npt.NDArray[Any]) -> str:
    """Returns why a tensor has no values; "" if it has."""
    metadata: dict[Any, Any] = dict(tensor.dtype.metadata or {})
    return str(metadata.get("why", "")) if tensor.dtype.kind == "V" else ""
