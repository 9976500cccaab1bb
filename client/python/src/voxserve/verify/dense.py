"""Reads the values of a module's dense result [samples, C, cells of each axis] at the sites of the sparse tensor that
the result was made of.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.verify.reference import Rows
from voxserve.verify.sites import Sites


def is_dense(rows: Rows, dimension: int) -> bool:
    return rows.coordinates is None and rows.values.ndim == 2 + dimension


def at_sites(values: npt.NDArray[Any], sites: Sites) -> npt.NDArray[Any]:
    """Returns the values at the sites: [N, C]. sites: [N, 1 + D], the sample, then the coordinates in the module's
    order of axes. ValueError if a site lies outside the cells, or if a cell without a site is not 0.
    """
    cells = (values.shape[0], *values.shape[2:])
    is_outside = ((sites < 0) | (sites >= cells)).any(axis=1)
    if is_outside.any():
        raise ValueError(
            f"{int(is_outside.sum())} of {len(sites)} sites lie outside the reference's shape {list(values.shape)}"
        )
    rows: npt.NDArray[Any] = np.moveaxis(values, 1, -1)[tuple(sites.T)]
    others = np.count_nonzero(values) - np.count_nonzero(rows)
    if others:
        raise ValueError(f"the reference has {others} values that are not 0 in cells without a site")
    return rows
