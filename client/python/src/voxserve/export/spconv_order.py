"""Tells in which order of axes a checkpoint stores the weights of spconv's convolutions, and brings them into one.

spconv's versions store a weight in three orders, whose names are those of its variable SPCONV_SAVED_WEIGHT_LAYOUT
(spconv/pytorch/conv.py and constants.py at 263d6b47):

    KRSC   [out, kernel..., in]   2.2 and later; 2.0 and 2.1 except for the algorithm Native
    RSCK   [kernel..., in, out]   1.x
    RSKC   [kernel..., out, in]   2.0 and 2.1 with the algorithm Native

A shape shows the order if the sizes differ. Where in and out channels are equal, RSCK and RSKC look alike; the other
weights of the file then decide: one version wrote them all, so no file has KRSC and RSCK.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

ORDERS = ("KRSC", "RSCK", "RSKC")


def shape_of(order: str, kernel: Sequence[int], c_in: int, c_out: int) -> tuple[int, ...]:
    """Returns the shape of a weight that is stored in an order. kernel: its size on the library's axes."""
    return {"KRSC": (c_out, *kernel, c_in), "RSCK": (*kernel, c_in, c_out), "RSKC": (*kernel, c_out, c_in)}[order]


def to_krsc(weight: npt.NDArray[Any], order: str, *, by_memory: bool) -> npt.NDArray[Any]:
    """Returns a weight of spconv in the order KRSC.

    by_memory: the weight belongs to a kernel of one cell, which spconv reads from memory as [in, out] in all three
        orders (kernel_order.from_spconv). So its values keep their order, and only the shape changes.
    """
    if order == "KRSC":
        return weight
    dimension = weight.ndim - 2
    out_axis = dimension + 1 if order == "RSCK" else dimension
    moved = (out_axis, *range(dimension), 2 * dimension + 1 - out_axis)
    if by_memory:
        return np.ascontiguousarray(weight).reshape(tuple(weight.shape[axis] for axis in moved))
    return np.ascontiguousarray(weight.transpose(moved))


def fitting(shape: Sequence[int], kernel: Sequence[int], c_in: int, c_out: int) -> list[str]:
    """Returns the orders in which a weight can be stored by its shape. A number of channels of 0 is unknown."""
    return [order for order in ORDERS if _fits(shape, shape_of(order, kernel, c_in, c_out))]


class SpconvOrder:
    """Finds the order of one checkpoint's weights. If a weight's shape fits only one order, that is the order. If it
    fits several, the order of the weights before it is assumed.
    """

    def __init__(self, chosen: str = "") -> None:
        """chosen: one of ORDERS, for weights whose shapes fit several orders; "": the order is found as described
        above.
        """
        if chosen and chosen not in ORDERS:
            raise ValueError(f"the order of spconv's weights is '{chosen}', not one of {', '.join(ORDERS)}")
        self._chosen = chosen
        self._seen: list[str] = []
        self._converted: dict[str, list[str]] = {}
        self._guessed: list[str] = []

    def find(self, name: str, shape: Sequence[int], kernel: Sequence[int], c_in: int, c_out: int) -> str:
        """Returns the order in which the weight `name` is stored; "" if its shape fits none."""
        possible = fitting(shape, kernel, c_in, c_out)
        if not possible:
            return ""
        if possible == ["RSCK", "RSKC"] and "KRSC" in self._seen:
            possible = ["RSKC"]
        if len(possible) == 1:
            order = possible[0]
            self._seen.append(order)
        else:
            order = next((o for o in (self._chosen, *self._seen) if o in possible), possible[0])
            if order not in (self._chosen, *self._seen):
                self._guessed.append(name)
        if order != "KRSC":
            self._converted.setdefault(order, []).append(name)
        return order

    def informed(self) -> SpconvOrder | None:
        """Returns an object to read all weights again with the right order, if an order was assumed too early."""
        if not self._guessed or not self._seen:
            return None
        made = SpconvOrder(self._chosen)
        made._seen = self._seen
        return made

    def warnings(self) -> list[str]:
        """Returns texts that say which weights were converted, and which order was assumed."""
        texts = [
            f"{len(names)} weights of spconv are stored as {order} ({_VERSIONS[order]}), and were converted"
            for order, names in self._converted.items()
        ]
        if self._guessed:
            assumed = next((order for order, names in self._converted.items() if self._guessed[0] in names), "KRSC")
            texts.append(
                f"the shapes of {len(self._guessed)} weights of spconv fit several orders, and no other weight decides"
                f": {', '.join(self._guessed)}. They are taken as {assumed}; --spconv_order says it otherwise "
                f"({', '.join(f'{order}: {version}' for order, version in _VERSIONS.items())})"
            )
        return texts


_VERSIONS = {
    "KRSC": "[out, kernel, in], spconv 2",
    "RSCK": "[kernel, in, out], spconv 1",
    "RSKC": "[kernel, out, in], spconv 2.0 and 2.1, algorithm Native",
}


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and all(n in (0, m) for n, m in zip(wanted, shape, strict=True))
