"""Orders sites along space-filling curves or by windows, cuts the order into groups, and rotates channels by positions.
The code is plain, so that the results of faster code can be checked against it. model.proto defines all of it (Groups,
Rotary).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from voxserve.verify import rows as row_maths

Values = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
_MAX_DEPTH = 20  # bits of a coordinate, so that a code of three has at most 60


@dataclass(frozen=True)
class Windows:
    """Windows of sites: their shape and shift on x, y and z, and the walk through them (model.proto, Windows)."""

    shape: tuple[int, ...]
    shift: tuple[int, ...]
    axes: tuple[int, ...] = (0, 1, 2)  # a, b, c
    is_snake: bool = False

    @classmethod
    def of(cls, proto: Any) -> Windows:
        """Reads a message of model.proto."""
        axes = tuple(axis - 1 for axis in proto.axes) or (0, 1, 2)
        return cls(tuple(proto.shape), tuple(proto.shift) or (0, 0, 0), axes, proto.snake)

    def groups(self, rows: Rows, sites: Values, size: int, tail: str) -> list[Group]:
        """Returns the groups of a sample. rows: [N]; sites: [N, 3]; tail: a name of Groups.Tail without TAIL_."""
        places = self.order(sites)
        if tail == "SPREAD":
            return spread(rows[places], self.numbers(sites)[0][places], size)
        return cut(rows[places], size, tail)

    def numbers(self, sites: Values) -> tuple[Rows, Rows]:
        """Returns the number of each site's window, and its place there: [N, 3] each, on x, y and z."""
        moved = np.asarray(sites, np.int64) + np.array(self.shift)
        return moved // np.array(self.shape), moved % np.array(self.shape)

    def order(self, sites: Values) -> Rows:
        """Returns the places' rows: [N]. sites: [N, 3] of a sample."""
        if len(sites) and np.min(sites) < 0:
            raise ValueError("a site has a negative coordinate, which has no window")
        window, place = (part[:, self.axes].T for part in self.numbers(sites))
        descends = [window[2], window[1] + window[2], window[1] + window[2] + place[0]]
        descends.append(descends[-1] + place[1])
        signs = [1 - 2 * (number % 2) if self.is_snake else 1 for number in descends]
        keys = [
            window[2],
            window[1] * signs[0],
            window[0] * signs[1],
            place[0] * signs[1],
            place[1] * signs[2],
            place[2] * signs[3],
        ]
        return np.lexsort(keys[::-1])


@dataclass(frozen=True)
class Group:
    """A piece of a sample's order of sites."""

    own: Rows  # the rows whose attention the group computes
    read: Rows  # the rows that are its keys and values: its own, then those that it borrows


def depth_of(sites: Values) -> int:
    """Returns the bits that a curve through a sample's sites [N, 3] has on each axis."""
    return (int(sites.max(initial=0)) + 1).bit_length()


def codes(sites: Values, curve: str, depth: int) -> Rows:
    """Returns each site's place on a curve: [N].

    sites: [N, 3], x, y, z, not negative. curve: a name of Groups.Curve without CURVE_. depth: bits of an axis, which
    only Hilbert's curves read.
    """
    if len(sites) and sites.min() < 0:
        raise ValueError("a site has a negative coordinate, which has no place on a curve")
    axes = np.array(sites, np.int64).T.copy()
    kind, _, transposed = curve.partition("_")
    if transposed:
        axes = axes[[1, 0, 2]]
    if kind == "Z":
        return _interleaved(axes, _MAX_DEPTH)
    if kind != "HILBERT":
        raise ValueError(f"{curve} is no curve")
    for bit in reversed(range(depth)):
        below = (1 << bit) - 1
        for axis in range(3):
            is_set = (axes[axis] >> bit) & 1 == 1
            exchanged = np.where(is_set, 0, (axes[0] ^ axes[axis]) & below)
            axes[0] ^= np.where(is_set, below, exchanged)
            axes[axis] ^= exchanged
    code = _interleaved(axes, depth)
    result, bit = code.copy(), 3 * depth
    for shift in range(1, bit):
        result ^= code >> shift
    return result


def _interleaved(axes: Rows, depth: int) -> Rows:
    """Returns the codes whose bits 3 i + 2, 3 i + 1 and 3 i are bit i of axes [3, N]."""
    result = np.zeros(axes.shape[1], np.int64)
    for bit in range(depth):
        for axis in range(3):
            result |= ((axes[axis] >> bit) & 1) << (3 * bit + 2 - axis)
    return result


def cut(order: Rows, size: int, tail: str) -> list[Group]:
    """Cuts the order of a sample's rows into groups. tail: a name of Groups.Tail without TAIL_."""
    if tail not in ("BORROWS", "SHORT"):
        raise ValueError(f"{tail} is no tail of groups")
    made = []
    for begin in range(0, len(order), size):
        own = order[begin : begin + size]
        lacking = size - len(own) if tail == "BORROWS" and begin > 0 else 0
        borrowed = order[begin - lacking : begin]  # the places r .. size - 1 of the group before
        made.append(Group(own, np.concatenate([own, borrowed])))
    return made


def spread(order: Rows, windows: Rows, size: int) -> list[Group]:
    """Cuts each window of a sample into groups of about as many sites. windows: the number of each place's window, [N,
    3]; places of a window stand together.
    """
    made = []
    borders = np.flatnonzero((np.diff(windows, axis=0) != 0).any(axis=1)) + 1
    for rows in np.split(order, borders):
        n, count = len(rows), -(-len(rows) // size)
        begin = 0  # of the places that have no result yet
        for j in range(count):
            places = np.unique((j * size + np.arange(size)) * n // (count * size))
            made.append(Group(rows[places[places >= begin]], rows[places]))
            begin = places[-1] + 1
    return made


def attended(
    groups: list[Group], queries: Values, keys: Values, values: Values, num_heads: int, scale: float
) -> Values:
    """Returns attention within groups: [N, C]."""
    result = np.zeros((len(queries), values.shape[1]))
    for group in groups:
        q, k, v = queries[group.own], keys[group.read], values[group.read]
        result[group.own] = row_maths.attended(q, k, v, num_heads, scale)
    return result


def rotated(x: Values, positions: Values, num_heads: int, base: float) -> Values:
    """Returns the rows x [N, C], whose pairs of channels are rotated by angles that grow with positions [N, axes]."""
    num_rows, axes = positions.shape
    half = x.shape[1] // num_heads // axes // 2
    if num_heads * axes * 2 * half != x.shape[1]:
        raise ValueError(f"{x.shape[1]} channels are no {num_heads} heads of pairs on {axes} axes")
    pairs = x.reshape(num_rows, num_heads, axes, 2, half)
    frequencies = np.float64(base) ** (-np.arange(half) / half)
    angles = positions[:, None, :, None].astype(np.float64) * frequencies
    u, v = pairs[:, :, :, 0], pairs[:, :, :, 1]
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.stack([u * cosine - v * sine, v * cosine + u * sine], axis=3).reshape(x.shape)
