"""Tests groups of sites along curves, attention within them, rotary and site_position: the builder's nodes, and the
interpreter against plain loops. The curves' codes are those that Pointcept's serialization/ computed.
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
SITES = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (5, 3, 6), (7, 0, 4), (100, 2047, 33), (3107, 1500, 60)]
CODES = {
    ("Z", 12): [4, 2, 1, 350, 356, 2455479699, 40840640228],
    ("Z_TRANSPOSED", 12): [2, 4, 1, 238, 210, 4909156773, 23698987858],
    ("HILBERT", 12): [1, 7, 3, 400, 447, 1227526794, 66706042269],
    ("HILBERT_TRANSPOSED", 12): [7, 1, 3, 176, 157, 3987323564, 30965769407],
    ("HILBERT", 13): [7, 3, 1, 304, 285, 8588090158, 28818285759],
}
CURVES = ("Z", "Z_TRANSPOSED", "HILBERT", "HILBERT_TRANSPOSED")
UNIT = (1.0, 1.0, 1.0)


@pytest.mark.parametrize(("curve", "depth"), CODES)
def test_codes_of_pointcept(curve: str, depth: int) -> None:
    assert groups.codes(np.array(SITES), curve, depth).tolist() == CODES[curve, depth]


@pytest.mark.parametrize("curve", CURVES)
def test_a_curve_visits_every_cell_once_and_a_coarser_site_has_the_code_without_its_last_bits(curve: str) -> None:
    cells = np.array([(x, y, z) for x in range(8) for y in range(8) for z in range(8)])
    codes = groups.codes(cells, curve, 3)
    assert sorted(codes.tolist()) == list(range(512))
    assert (codes >> 3 == groups.codes(cells >> 1, curve, 2)).all()
    if curve.startswith("HILBERT"):  # the curve goes from a cell to one that touches it
        steps = np.abs(np.diff(cells[np.argsort(codes)], axis=0)).sum(axis=1)
        assert (steps == 1).all()


@pytest.mark.parametrize(("largest", "depth"), [(0, 1), (1, 2), (2, 2), (3, 3), (62, 6), (63, 7), (64, 7)])
def test_depth_is_the_bits_of_the_largest_coordinate_plus_one(largest: int, depth: int) -> None:
    assert groups.depth_of(np.array([[0, largest, 0]])) == depth
    assert groups.depth_of(np.zeros((0, 3), np.int64)) == 1


def test_what_is_no_curve() -> None:
    with pytest.raises(ValueError, match="negative coordinate"):
        groups.codes(np.array([[0, -1, 0]]), "Z", 4)
    with pytest.raises(ValueError, match="PEANO is no curve"):
        groups.codes(np.array([[0, 1, 0]]), "PEANO", 4)


def loop_groups(n: int, size: int, tail: str) -> list[tuple[list[int], list[int]]]:
    """Returns the places of each group's own rows, and of those that it reads, as attention.groups_of defines them."""
    if n <= size:
        return [(list(range(n)), list(range(n)))] if n else []
    made = []
    for group in range(math.ceil(n / size)):
        own = [p for p in range(group * size, (group + 1) * size) if p < n]
        read = list(own)
        if tail == "BORROWS":
            read += [(group - 1) * size + place for place in range(len(own), size)]
        made.append((own, read))
    return made


@pytest.mark.parametrize("tail", ["BORROWS", "SHORT"])
@pytest.mark.parametrize("n", [0, 1, 4, 5, 6, 9, 10, 11, 13])
def test_groups_of_n_rows(n: int, tail: str) -> None:
    order = np.random.default_rng(n).permutation(n)
    made = [(group.own.tolist(), group.read.tolist()) for group in groups.cut(order, 5, tail)]
    expected = [([order[p] for p in own], [order[p] for p in read]) for own, read in loop_groups(n, 5, tail)]
    assert made == expected


def network_of(curve: str, depth: str, size: int, tail: str, heads: int = 2) -> Network:
    """Returns a network with attention within groups on the voxels and on the level of stride 4."""
    network = Network("net")
    network.voxelize("voxels", UNIT, [PointFeature(f"f{i}", "1") for i in range(4)], rounding="FLOOR")
    network.groups("fine", "voxels", curve, size, depth=depth, tail=tail)
    network.attention("of_fine", "voxels", "voxels", "voxels", num_heads=heads, groups_of="fine")
    network.pool_strided_floor("half", "voxels", "AVERAGE", (2, 2, 2), (2, 2, 2))
    network.pool_strided_floor("quarter", "half", "SUM", (2, 2, 2), (2, 2, 2))
    network.groups("coarse", "quarter", curve, size, depth=depth, tail=tail)
    network.attention("of_coarse", "quarter", "quarter", "quarter", num_heads=heads, scale=0.25, groups_of="coarse")
    return network


def loop_attention(sites: Values, x: Values, codes: Any, size: int, tail: str, heads: int, scale: float) -> Values:
    """Computes attention of x with itself within groups, row by row. sites: [N, 4]; codes: takes a sample's sites."""
    result = np.full_like(x, np.nan)
    width = x.shape[1] // heads
    for sample in np.unique(sites[:, 0]):
        rows = [int(row) for row in np.flatnonzero(sites[:, 0] == sample)]
        of_row = dict(zip(rows, codes(sites[rows, 1:], sample), strict=True))
        order = sorted(rows, key=lambda row: of_row[row])
        for own, read in loop_groups(len(order), size, tail):
            for place in own:
                for head in range(heads):
                    at = slice(head * width, (head + 1) * width)
                    weights = [math.exp(scale * float(x[order[place], at] @ x[order[p], at])) for p in read]
                    sums = sum(w * x[order[p], at] for w, p in zip(weights, read, strict=True))
                    result[order[place], at] = sums / sum(weights)
    return result


@pytest.mark.parametrize("tail", ["BORROWS", "SHORT"])
@pytest.mark.parametrize("depth", ["FIRST_LEVEL", "OWN_LEVEL"])
@pytest.mark.parametrize("curve", CURVES)
def test_attention_within_groups_by_plain_loops(curve: str, depth: str, tail: str) -> None:
    rng = np.random.default_rng(7)
    # The largest coordinate of the first sample is 63: it has 7 bits on the voxels, and 4 on the level of stride 4,
    # whose largest coordinate is 15 (5 bits). The second sample is smaller than a group, the third has one site.
    clouds = [np.unique(np.r_[rng.integers(0, 60, (90, 3)), [[63, 0, 0]]], axis=0), rng.integers(0, 9, (5, 3))]
    clouds = [*(np.unique(cloud, axis=0) for cloud in clouds), np.array([[2, 0, 1]])]
    sites = np.concatenate([np.c_[np.full(len(cloud), i), cloud] for i, cloud in enumerate(clouds)])
    sites = sites[rng.permutation(len(sites))]
    features = rng.standard_normal((len(sites), 4))
    network = network_of(curve, depth, 8, tail)
    interpreter = Interpreter(parse(network), network.tensors, sites, features)
    results = interpreter.run()
    assert interpreter.skipped == {}
    assert results["fine"].values.shape == (len(sites), 0)

    def fine(at: Values, _sample: int) -> list[int]:
        return groups.codes(at, curve, (int(at.max()) + 1).bit_length()).tolist()

    def coarse(at: Values, sample: int) -> list[int]:
        bits = (int(at.max()) + 1).bit_length()
        if depth == "FIRST_LEVEL":
            bits = (int(clouds[sample].max()) + 1).bit_length() - 2
        return groups.codes(at, curve, bits).tolist()

    expected = loop_attention(sites, features, fine, 8, tail, 2, 2**-0.5)
    np.testing.assert_allclose(results["of_fine"].values, expected, atol=1e-12)
    level = results["quarter"]
    expected = loop_attention(level.sites, level.values, coarse, 8, tail, 2, 0.25)
    np.testing.assert_allclose(results["of_coarse"].values, expected, atol=1e-12)


def test_depths_make_other_hilbert_orders() -> None:
    """The largest coordinate 63 has 7 bits, so that a level of stride 4 has 5 by Pointcept's shift, or 5 of its own 15
    + 1; 62 has 6 and 4, of its own 5.
    """
    rng = np.random.default_rng(1)
    orders = {}
    for largest in (63, 62):
        at = np.unique(np.r_[rng.integers(0, largest, (200, 3)), [[largest, 0, 0]]], axis=0)
        sites = np.c_[np.zeros(len(at), np.int64), at]
        features = rng.standard_normal((len(sites), 4))
        for depth in ("FIRST_LEVEL", "OWN_LEVEL"):
            network = network_of("HILBERT", depth, 8, "SHORT")
            results = Interpreter(parse(network), network.tensors, sites, features).run()
            orders[largest, depth] = results["of_coarse"].values
    assert np.array_equal(orders[63, "FIRST_LEVEL"], orders[63, "OWN_LEVEL"])
    assert not np.allclose(orders[62, "FIRST_LEVEL"], orders[62, "OWN_LEVEL"])


def test_groups_need_a_level_that_follows_from_the_voxels() -> None:
    sites, features = np.array([[0, 1, 2, 3], [0, 4, 5, 6]]), np.zeros((2, 4))
    for stride, problem in (((2, 2, 1), "the same on each"), ((3, 3, 3), "no level of the unit 3")):
        network = Network("net")
        network.voxelize("voxels", UNIT, [PointFeature(f"f{i}", "1") for i in range(4)], rounding="FLOOR")
        network.pool_strided_floor("half", "voxels", "AVERAGE", stride, stride)
        network.groups("groups", "half", "HILBERT", 8, depth="FIRST_LEVEL")
        with pytest.raises(ValueError, match=problem):
            Interpreter(parse(network), network.tensors, sites, features).run()


def rotary_by_hand(x: Values, positions: Values, heads: int, base: float) -> Values:
    result = np.array(x)
    axes, width = positions.shape[1], x.shape[1] // heads
    chunk = width // axes
    for row in range(len(x)):
        for head in range(heads):
            for axis in range(axes):
                begin = head * width + axis * chunk
                for j in range(chunk // 2):
                    angle = positions[row, axis] * base ** (-2 * j / chunk)
                    u, v = x[row, begin + j], x[row, begin + j + chunk // 2]
                    result[row, begin + j] = u * math.cos(angle) - v * math.sin(angle)
                    result[row, begin + j + chunk // 2] = v * math.cos(angle) + u * math.sin(angle)
    return result


def test_rotary_by_plain_loops() -> None:
    rng = np.random.default_rng(3)
    sites = np.unique(np.c_[rng.integers(0, 2, 40), rng.integers(0, 300, (40, 3))], axis=0)
    features, points = rng.standard_normal((len(sites), 36)), rng.uniform(-40, 40, (len(sites), 3))
    network = Network("net")
    network.voxelize("voxels", UNIT, [PointFeature(f"f{i}", "1") for i in range(36)], rounding="FLOOR")
    network.rotary("by_site", "voxels", num_heads=2, base=100)
    network.site_position("positions", "voxels", scale=(0.2, 0.2, 0.5), shift=(1, 2, 3))
    network.site_position("from_minimum", "voxels", "MEAN_POINT", from_minimum=True)
    network.rotary("by_position", "voxels", "positions", num_heads=3, base=10)
    interpreter = Interpreter(parse(network), network.tensors, sites, features, points)
    results = interpreter.run()
    assert interpreter.skipped == {}
    np.testing.assert_allclose(results["by_site"].values, rotary_by_hand(features, sites[:, 1:], 2, 100), atol=1e-9)
    positions = points * np.float32([0.2, 0.2, 0.5]) + [1, 2, 3]
    np.testing.assert_allclose(results["positions"].values, positions, atol=1e-12)
    np.testing.assert_allclose(results["by_position"].values, rotary_by_hand(features, positions, 3, 10), atol=1e-9)
    for sample in (0, 1):
        at = sites[:, 0] == sample
        np.testing.assert_allclose(results["from_minimum"].values[at], points[at] - points[at].min(axis=0))
    # A rotation keeps lengths, and products of a query and a key depend on the difference of their positions alone.
    np.testing.assert_allclose(np.sum(results["by_site"].values ** 2, 1), np.sum(features**2, 1))
    moved = groups.rotated(features, positions + np.array([5, -7, 0.25]), 3, 10)
    near = results["by_position"].values
    np.testing.assert_allclose(moved[:5, :12] @ moved[5:9, :12].T, near[:5, :12] @ near[5:9, :12].T, atol=1e-9)
    with pytest.raises(ValueError, match="36 channels are no 4 heads of pairs on 3 axes"):
        groups.rotated(features, positions, 4, 10)


def test_positions_are_the_features_with_the_names_of_the_axes() -> None:
    rng = np.random.default_rng(4)
    columns = (
        PointFeature("y", "m"),
        PointFeature("i", "1"),
        PointFeature("z", "m", scale=0.5),
        PointFeature("x", "m"),
    )
    sites, features = np.array([[0, 1, 2, 3], [0, 4, 5, 6]]), rng.standard_normal((2, 4))
    unknown = {"at": "the positions of the points are not among the features"}
    for named, skipped in ((columns, {}), (columns[:3], unknown)):
        network = Network("net")
        network.voxelize("voxels", UNIT, named, rounding="FLOOR")
        network.site_position("at", "voxels")
        interpreter = Interpreter(parse(network), network.tensors, sites, features[:, : len(named)])
        results = interpreter.run()
        assert interpreter.skipped == skipped
    assert "at" not in results
    network = Network("net")
    network.voxelize("voxels", UNIT, columns, rounding="FLOOR")
    network.site_position("at", "voxels")
    results = Interpreter(parse(network), network.tensors, sites, features).run()
    np.testing.assert_allclose(results["at"].values, features[:, [3, 0, 2]] / [1, 1, 0.5])


def test_nodes_are_written_as_the_messages_read_them() -> None:
    network = Network("net")
    network.groups("g", "x", "HILBERT_TRANSPOSED", 1024, depth="OWN_LEVEL")
    network.groups("short", "x", "Z", 36, tail="SHORT")
    network.attention("a", "q", "k", "v", num_heads=4, groups_of="g")
    network.rotary("r", "x", "p", num_heads=4, base=100)
    network.site_position("p", "voxels", scale=(0.2, 0.2, 0.2))
    nodes = {node.name: node for node in parse(network).nodes}
    group, short, position = nodes["g"].groups, nodes["short"].groups, nodes["p"].site_position
    assert (group.curve, group.depth) == (group.CURVE_HILBERT_TRANSPOSED, group.DEPTH_OWN_LEVEL)
    assert (group.size, group.tail) == (1024, group.TAIL_BORROWS)
    assert (short.curve, short.depth, short.tail) == (group.CURVE_Z, group.DEPTH_UNSPECIFIED, group.TAIL_SHORT)
    assert (nodes["a"].attention.num_heads, nodes["a"].attention.groups_of) == (4, "g")
    assert list(nodes["r"].inputs) == ["x", "p"]
    assert (nodes["r"].rotary.num_heads, nodes["r"].rotary.base) == (4, 100)
    assert (position.of, position.from_minimum) == (position.OF_FIRST_POINT, False)
    assert list(position.scale) == pytest.approx([0.2] * 3)
