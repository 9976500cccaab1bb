"""Tests voxserve.maps.islands against a search that looks at every pair of cubes."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from voxserve.maps.islands import Islands, absorb

NONE = 65535


def slowly(xyz: Any, classes: Any, islands: Islands) -> Any:
    """Absorbs islands by their definition."""
    points: dict[tuple[tuple[int, ...], int], int] = Counter()
    cubes = [tuple(math.floor(v / islands.size) for v in row) for row in xyz.tolist()]
    for cube, kind in zip(cubes, classes.tolist(), strict=True):
        if kind != NONE:
            points[cube, kind] += 1

    def touch(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        return max(abs(p - q) for p, q in zip(a, b, strict=True)) <= 1

    group: dict[tuple[tuple[int, ...], int], int] = {}
    for number, start in enumerate(points):
        waiting = [start] if start not in group else []
        while waiting:
            node = waiting.pop()
            group[node] = number
            waiting += [o for o in points if o not in group and o[1] == node[1] and touch(o[0], node[0])]
    total = Counter[int]()
    for node, number in group.items():
        total[number] += points[node]
    new: dict[int, int] = {}
    for number, size in total.items():
        if size < islands.most:
            own = [node for node in group if group[node] == number]
            around = Counter[int]()
            for other, count in points.items():
                if total[group[other]] >= islands.most and any(touch(other[0], node[0]) for node in own):
                    around[other[1]] += count
            if around:
                most = max(around.values())
                new[number] = min(kind for kind, count in around.items() if count == most)
    return np.array(
        [
            kind if kind == NONE else new.get(group[cube, kind], kind)
            for cube, kind in zip(cubes, classes.tolist(), strict=True)
        ]
    )


@pytest.mark.parametrize("seed", range(12))
def test_absorbs_as_the_definition_says(seed: int) -> None:
    random = np.random.default_rng(seed)
    number = 150
    xyz = random.uniform(-4, 4, (number, 3)) * (1, 1, 0.3)
    classes = np.where(xyz[:, 0] + random.normal(0, 1.5, number) > 0, 1, random.integers(0, 4, number)).astype(
        np.uint16
    )
    classes[random.random(number) < 0.1] = NONE
    islands = Islands(most=int(random.integers(2, 8)), size=0.8)
    found = absorb(xyz, classes, islands, NONE)
    np.testing.assert_array_equal(found, slowly(xyz, classes, islands))
    assert (found != classes).any()


def test_a_tile_with_the_reach_around_it_has_the_same_answer() -> None:
    random = np.random.default_rng(3)
    xyz = random.uniform(0, 40, (20_000, 3)) * (1, 1, 0.05)
    classes = random.integers(0, 3, 20_000).astype(np.uint16)
    islands = Islands(4, 0.4)
    whole = absorb(xyz, classes, islands, NONE)
    inner = np.all((xyz[:, :2] >= 10) & (xyz[:, :2] < 20), axis=1)
    near = np.all((xyz[:, :2] >= 10 - islands.reach) & (xyz[:, :2] < 20 + islands.reach), axis=1)
    part = absorb(xyz[near], classes[near], islands, NONE)
    np.testing.assert_array_equal(part[inner[near]], whole[inner])
    assert (whole != classes)[inner].any()


def test_nothing_to_do() -> None:
    islands = Islands(5, 1.0)
    assert absorb(np.zeros((0, 3)), np.zeros(0, np.uint16), islands, NONE).shape == (0,)
    alone = np.array([[0.0, 0, 0], [50, 0, 0]])
    assert absorb(alone, np.array([1, NONE], np.uint16), islands, NONE).tolist() == [1, NONE]
