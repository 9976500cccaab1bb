"""Tests groups of sites by windows, attention within them and places in windows: the builder's nodes, and the
interpreter against plain loops that follow model.proto's definitions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from graph_shapes import parse

from voxserve.export import Network, PointFeature
from voxserve.verify import groups
from voxserve.verify.interpreter import Interpreter

Values = np.ndarray[Any, Any]
Site = tuple[int, int, int]
WINDOWS = [
    groups.Windows((12, 12, 1), (0, 0, 0), (1, 0, 2)),
    groups.Windows((24, 24, 1), (6, 6, 0)),
    groups.Windows((13, 13, 1), (6, 6, 0), is_snake=True),
    groups.Windows((3, 5, 7), (2, 0, 6), (2, 0, 1), is_snake=True),
    groups.Windows((1, 1, 1), (0, 0, 0)),
]


def loop_place(windows: groups.Windows, site: Site) -> list[int]:
    """Returns what a site is ordered by; what descends is negative."""
    window, place = [], []
    for axis in windows.axes:
        moved = site[axis] + windows.shift[axis]
        window.append(moved // windows.shape[axis])
        place.append(moved % windows.shape[axis])
    (wa, wb, wc), (pa, pb, pc) = window, place
    if not windows.is_snake:
        return [wc, wb, wa, pa, pb, pc]

    def turned(value: int, number: int) -> int:
        return -value if number % 2 else value

    return [
        wc,
        turned(wb, wc),
        turned(wa, wb + wc),
        turned(pa, wb + wc),
        turned(pb, wb + wc + pa),
        turned(pc, wb + wc + pa + pb),
    ]


def loop_spread(n: int, size: int) -> list[tuple[list[int], list[int]]]:
    """Returns the places of each group of a window: those whose results it has, and its keys."""
    made: list[tuple[list[int], list[int]]] = []
    s = math.ceil(n / size)
    for j in range(s):
        entries = [(j * size + i) * n // (s * size) for i in range(size)]
        keys = [place for i, place in enumerate(entries) if i == 0 or place != entries[i - 1]]
        before = {place for own, _keys in made for place in own}
        made.append(([place for place in keys if place not in before], keys))
    return made


@pytest.mark.parametrize("size", [1, 2, 5, 36])
def test_spread_groups_of_n_rows(size: int) -> None:
    for n in (0, 1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1, 5 * size + 3):
        order = np.random.default_rng(n).permutation(n)
        made = groups.spread(order, np.zeros((n, 3), np.int64), size)
        expected = [([order[p] for p in own], [order[p] for p in keys]) for own, keys in loop_spread(n, size)]
        assert [(g.own.tolist(), g.read.tolist()) for g in made] == expected
        assert sorted(row for group in made for row in group.own.tolist()) == list(range(n))


@pytest.mark.parametrize("windows", WINDOWS)
def test_order_of_windows(windows: groups.Windows) -> None:
    sites = np.unique(np.random.default_rng(1).integers(0, 40, (500, 3)), axis=0)
    expected = sorted(range(len(sites)), key=lambda row: loop_place(windows, tuple(sites[row])))
    assert windows.order(sites).tolist() == expected


def test_flatformers_order_is_the_published_one() -> None:
    """The numbers are those that mit-han-lab/flatformer sorts by (FlattenedWindowMapping), for windows of 3 x 3."""
    sites = np.array([(x, y, 0) for x in range(9) for y in range(9)])
    for shift in (0, 1):
        n2 = m2 = 6  # twice the window
        n1 = m1 = 2 * (3 + 1)
        x, y = sites[:, 0] + shift, sites[:, 1] + shift
        x1, y1, x2, y2 = x // 3, y // 3, x % 3, y % 3
        vx = (n1 * y1 + (-1.0) ** y1 * x1) * n2 * m2 + (-1.0) ** y1 * (m2 * x2 + (-1.0) ** x2 * y2)
        vy = (m1 * x1 + (-1.0) ** x1 * y1) * m2 * n2 + (-1.0) ** x1 * (n2 * y2 + (-1.0) ** y2 * x2)
        for codes, axes in ((vx, (0, 1, 2)), (vy, (1, 0, 2))):
            windows = groups.Windows((3, 3, 1), (shift, shift, 0), axes, is_snake=True)
            assert windows.order(sites).tolist() == np.argsort(codes, kind="stable").tolist()


def test_a_negative_coordinate_has_no_window() -> None:
    with pytest.raises(ValueError, match="negative coordinate"):
        WINDOWS[0].order(np.array([[0, -1, 0]]))


@pytest.mark.parametrize("tail", ["SPREAD", "BORROWS", "SHORT"])
@pytest.mark.parametrize("index", range(len(WINDOWS)))
def test_attention_within_windows_by_plain_loops(index: int, tail: str) -> None:
    rng, windows, size = np.random.default_rng(index), WINDOWS[index], 7
    clouds = [np.unique(rng.integers(0, 30, (count, 3)) * (1, 1, 0), axis=0) for count in (200, 5, 1)]
    sites = np.concatenate([np.c_[np.full(len(cloud), i), cloud] for i, cloud in enumerate(clouds)])
    sites = sites[rng.permutation(len(sites))]
    features = rng.standard_normal((len(sites), 4))
    network = Network("net")
    network.voxelize("voxels", (1.0,) * 3, [PointFeature(f"f{i}", "1") for i in range(4)], rounding="FLOOR")
    network.window_groups(
        "g",
        "voxels",
        windows.shape,
        size,
        shift=windows.shift,
        axes="".join("XYZ"[axis] for axis in windows.axes),
        snake=windows.is_snake,
        tail=tail,
    )
    network.attention("a", "voxels", "voxels", "voxels", num_heads=2, scale=0.5, groups_of="g")
    network.site_coordinates(
        "p", "voxels", scale=(2, 1, 1), shift=(-1, 0.5, 0), window_shape=windows.shape, window_shift=windows.shift
    )
    interpreter = Interpreter(parse(network), network.tensors, sites, features)
    results = interpreter.run()
    assert interpreter.skipped == {}
    expected = np.full_like(features, np.nan)
    for sample in range(3):
        rows = [int(row) for row in np.flatnonzero(sites[:, 0] == sample)]
        order = sorted(rows, key=lambda row: loop_place(windows, tuple(sites[row, 1:])))
        for own, keys in _loop_groups(windows, sites, order, size, tail):
            for row in own:
                for head in (slice(0, 2), slice(2, 4)):
                    weights = [math.exp(0.5 * float(features[row, head] @ features[key, head])) for key in keys]
                    sums = sum(w * features[key, head] for w, key in zip(weights, keys, strict=True))
                    expected[row, head] = sums / sum(weights)
    np.testing.assert_allclose(results["a"].values, expected, rtol=1e-12, atol=1e-12)
    for site, row in zip(sites[:, 1:], results["p"].values, strict=True):
        place = [(int(c) + s) % n for c, s, n in zip(site, windows.shift, windows.shape, strict=True)]
        assert row.tolist() == [2 * place[0] - 1, place[1] + 0.5, place[2]]


def _loop_groups(
    windows: groups.Windows, sites: Values, order: list[int], size: int, tail: str
) -> list[tuple[list[int], list[int]]]:
    """Returns the rows of each group of a sample: those whose results it has, and its keys."""
    made = []
    if tail != "SPREAD":
        for begin in range(0, len(order), size):
            own = order[begin : begin + size]
            lacking = size - len(own) if tail == "BORROWS" and begin > 0 else 0
            made.append((own, [*own, *order[begin - lacking : begin]]))
        return made
    of_window: dict[Any, list[int]] = {}
    for row in order:
        moved = sites[row, 1:] + np.array(windows.shift)
        of_window.setdefault(tuple(moved // np.array(windows.shape)), []).append(row)
    for rows in of_window.values():
        for own, keys in loop_spread(len(rows), size):
            made.append(([rows[p] for p in own], [rows[p] for p in keys]))
    return made


def test_text_of_the_nodes() -> None:
    network = Network("net")
    network.voxelize("voxels", (1.0,) * 3, [PointFeature("f", "1")], rounding="FLOOR")
    network.window_groups("g", "voxels", (13, 13, 1), 144, shift=(6, 6, 0), axes="YXZ", snake=True, tail="BORROWS")
    network.window_groups("s", "voxels", (12, 12, 1), 36)
    nodes = {node.name: node for node in parse(network).nodes}
    group, spread = nodes["g"].groups, nodes["s"].groups
    assert (list(group.windows.shape), list(group.windows.shift)) == ([13, 13, 1], [6, 6, 0])
    assert (list(group.windows.axes), group.windows.snake, group.size, group.tail) == ([2, 1, 3], True, 144, 1)
    assert (list(spread.windows.shift), list(spread.windows.axes), spread.windows.snake) == ([], [], False)
    assert (spread.size, spread.tail, spread.curve) == (36, 3, 0)
