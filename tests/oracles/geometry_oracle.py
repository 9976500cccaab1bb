"""Computes voxels, output sites and rulebooks from their definitions.

Writes the cases that tests/kernels reads:

    python3 tests/oracles/geometry_oracle.py tests/kernels/data

Everything works on integer coordinates, in plain loops over every site that could matter, without packed keys, hash
functions or clever searches. A convolution is defined from its output: for a site of the output and a cell of the
kernel, which input does it read, and does that input exist? The random numbers have a fixed seed, so a second run
writes the same bytes.
"""

import itertools
import sys
from pathlib import Path

import numpy as np

MAX_DIMENSION = 4
FLOOR, PADDED, EXPAND = 0, 1, 2
SUBMANIFOLD = 3  # The output sites of a submanifold convolution are its input sites.
RULE_NAMES = {FLOOR: "floor", PADDED: "padded", EXPAND: "expand", SUBMANIFOLD: "submanifold"}
NO_BOUND = -(2**31)


# ---------------------------------------------------------------------------------------------------------------------
# Convolutions


def cells_of(kernel_size):
    """Returns the cells of a kernel in the order of its weights, the last axis fastest."""
    return list(itertools.product(*(range(k) for k in kernel_size)))


def centred_padding(kernel_size, dilation):
    return [r * (k - 1) // 2 if k % 2 else 0 for k, r in zip(kernel_size, dilation)]


def reads(site, cell, stride, dilation, padding):
    """Returns the input coordinate that an output site reads through a kernel cell."""
    return tuple(s * o + r * d - p for o, d, s, r, p in zip(site, cell, stride, dilation, padding))


def output_sites(case, inputs):
    """Returns the output sites of one sample. inputs: the set of its input coordinates, as tuples."""
    if case["rule"] == SUBMANIFOLD:
        return set(inputs)
    stride, kernel_size = case["stride"], case["kernel_size"]
    divides_only = all(s in (1, k) for s, k in zip(stride, kernel_size))
    if case["rule"] == FLOOR or (case["rule"] == EXPAND and divides_only):
        return {tuple(int(np.floor_divide(c, s)) for c, s in zip(site, stride)) for site in inputs}

    if not inputs:
        return set()
    dimension = len(stride)
    if case["rule"] == PADDED:
        ranges = [range(size) for size in case["out_shape"]]
        lower = upper = None
    else:
        # The ranges hold every site that could be an output, with a margin.
        reach = [r * k + p + s for r, k, p, s in zip(case["dilation"], kernel_size, case["padding"], stride)]
        low = [min(c[a] for c in inputs) for a in range(dimension)]
        high = [max(c[a] for c in inputs) for a in range(dimension)]
        ranges = [
            range((low[a] - reach[a]) // stride[a] - 1, (high[a] + reach[a]) // stride[a] + 2) for a in range(dimension)
        ]
        lower = case["lower"] if case["lower"] is not None else low
        upper = case["upper"]
    sites = set()
    for site in itertools.product(*ranges):
        at = [s * o for s, o in zip(stride, site)]
        if lower is not None and any(u < b for u, b in zip(at, lower)):
            continue
        if upper is not None and any(u > b for u, b in zip(at, upper)):
            continue
        if any(reads(site, cell, stride, case["dilation"], case["padding"]) in inputs for cell in case["cells"]):
            sites.add(site)
    return sites


def solve(case):
    """Adds to the case the output sites [M, 1 + D] and the pairs [P, 3] of kernel cell, input row and output row."""
    case["cells"] = cells_of(case["kernel_size"])
    out, pairs = [], []
    for sample in range(case["num_samples"]):
        row_of = {tuple(c[1:]): row for row, c in enumerate(case["in"].tolist()) if c[0] == sample}
        for site in output_sites(case, set(row_of)):
            for k, cell in enumerate(case["cells"]):
                source = reads(site, cell, case["stride"], case["dilation"], case["padding"])
                if source in row_of:
                    pairs.append((k, row_of[source], len(out)))
            out.append((sample, *site))
    case["out"] = np.array(out, dtype=np.int64).reshape(-1, case["in"].shape[1])
    case["pairs"] = np.array(pairs, dtype=np.int64).reshape(-1, 3)
    return case


def random_cloud(rng, dimension, num_samples, max_cells, low):
    """Returns unique sites [N, 1 + D] in random order. Each sample fills 10 to 40% of its own box."""
    sites = []
    for sample in range(num_samples):
        extents = rng.integers(2, 13, size=dimension)
        while np.prod(extents) > max_cells:
            extents[rng.integers(dimension)] = 1 + rng.integers(6)
        corner = rng.integers(low, 4, size=dimension)
        box = np.array(list(itertools.product(*(range(e) for e in extents)))).reshape(-1, dimension) + corner
        keep = rng.random(len(box)) < rng.uniform(0.1, 0.4)
        keep[rng.integers(len(box))] = True
        box = box[keep]
        sites.append(np.concatenate([np.full((len(box), 1), sample), box], axis=1))
    sites = np.concatenate(sites)
    return sites[rng.permutation(len(sites))]


def make_case(rng, dimension, rule, sites=None, **chosen):
    num_samples = int(rng.choice([1, 1, 3]))
    if sites is None:
        max_cells = {1: 60, 2: 150, 3: 500, 4: 400}[dimension]
        sites = random_cloud(rng, dimension, num_samples, max_cells, 0 if rule == PADDED else -9)
    num_samples = max(num_samples, int(sites[:, 0].max(initial=0)) + 1)
    largest = {1: 5, 2: 5, 3: 5, 4: 3}[dimension]
    kernel_size = [int(k) for k in rng.integers(1, largest + 1, size=dimension)]
    while np.prod(kernel_size) > 60:
        kernel_size[int(rng.integers(dimension))] = int(rng.integers(1, 4))
    stride = [int(s) for s in rng.integers(1, 4, size=dimension)]
    dilation = [int(r) for r in rng.integers(1, 3, size=dimension)]
    if rule == SUBMANIFOLD:
        stride = [1] * dimension
        if rng.random() < 0.7:  # Most kernel sizes are odd, as in real networks.
            kernel_size = [k if k % 2 else k + 1 for k in kernel_size]
    if rule == FLOOR and rng.random() < 0.4:
        kernel_size = list(stride)
    kernel_size = chosen.get("kernel_size", kernel_size)
    stride = chosen.get("stride", stride)
    dilation = chosen.get("dilation", dilation)
    case = dict(
        rule=rule,
        num_samples=num_samples,
        kernel_size=kernel_size,
        stride=stride,
        dilation=dilation,
        padding=centred_padding(kernel_size, dilation),
        lower=None,
        upper=None,
        out_shape=[0] * dimension,
    )
    case["in"] = sites
    if rule == PADDED:
        case["padding"] = chosen.get("padding", [int(p) for p in rng.integers(0, 3, size=dimension)])
        shape = sites[:, 1:].max(axis=0, initial=0) + 1 + rng.integers(0, 3, size=dimension)
        case["shape"] = [int(x) for x in shape]
        case["out_shape"] = [
            max(0, (n + 2 * p - r * (k - 1) - 1) // s + 1) if n + 2 * p - r * (k - 1) - 1 >= 0 else 0
            for n, p, r, k, s in zip(case["shape"], case["padding"], dilation, kernel_size, stride)
        ]
    if rule == EXPAND:
        bounds = chosen.get("bounds", int(rng.integers(4)))
        if bounds & 1:
            case["lower"] = [int(x) for x in rng.integers(-8, 3, size=dimension)]
        if bounds & 2:
            case["upper"] = [int(x) for x in rng.integers(3, 12, size=dimension)]
    return solve(case)


def conv_cases():
    rng = np.random.default_rng(20240517)
    cases = []
    for rule in (FLOOR, PADDED, EXPAND, SUBMANIFOLD):
        for dimension, count in ((1, 4), (2, 8), (3, 22), (4, 6)):
            cases += [make_case(rng, dimension, rule) for _ in range(count)]
    # These are layers that real networks have.
    three, two, one = [3, 3, 3], [2, 2, 2], [1, 1, 1]
    cases.append(make_case(rng, 3, SUBMANIFOLD, kernel_size=three, stride=one, dilation=one))
    cases.append(make_case(rng, 3, SUBMANIFOLD, kernel_size=[5, 3, 1], stride=one, dilation=one))
    cases.append(make_case(rng, 3, SUBMANIFOLD, kernel_size=one, stride=one, dilation=one))
    cases.append(make_case(rng, 3, FLOOR, kernel_size=two, stride=two, dilation=one))
    cases.append(make_case(rng, 3, EXPAND, kernel_size=two, stride=two, dilation=one))
    cases.append(make_case(rng, 3, EXPAND, kernel_size=three, stride=two, dilation=one, bounds=0))
    cases.append(make_case(rng, 3, EXPAND, kernel_size=[1, 3, 1], stride=[1, 2, 1], dilation=one, bounds=0))
    cases.append(make_case(rng, 3, PADDED, kernel_size=three, stride=two, dilation=one, padding=one))
    cases.append(make_case(rng, 3, PADDED, kernel_size=three, stride=two, dilation=one, padding=[0, 1, 1]))
    cases.append(make_case(rng, 3, PADDED, kernel_size=[3, 1, 1], stride=[2, 1, 1], dilation=one, padding=[0, 0, 0]))
    # The input has one site, or none, under every rule.
    for rule in (FLOOR, PADDED, EXPAND, SUBMANIFOLD):
        at = [[0, 5, 2, 7]] if rule == PADDED else [[0, -5, 0, 7]]
        for sites in (np.array(at), np.zeros((0, 4), dtype=np.int64)):
            cases.append(
                make_case(
                    rng,
                    3,
                    rule,
                    sites=sites,
                    kernel_size=three,
                    stride=one if rule == SUBMANIFOLD else two,
                    dilation=one,
                )
            )
    # The middle one of three samples is empty.
    gap = random_cloud(rng, 3, 3, 200, -9)
    cases.append(
        make_case(rng, 3, EXPAND, sites=gap[gap[:, 0] != 1], kernel_size=three, stride=two, dilation=one, bounds=0)
    )
    # The random cases above never have these kernels: 4 and 5 cells along an axis in four dimensions, and a full 5 x 5
    # x 5.
    for rule in (FLOOR, PADDED, EXPAND, SUBMANIFOLD):
        for kernel_size, stride in (([4, 1, 5, 2], [2, 1, 3, 1]), ([1, 5, 2, 4], [1, 2, 1, 2])):
            if rule == SUBMANIFOLD:
                stride = [1] * 4
            sites = random_cloud(rng, 4, 2, 60, 0 if rule == PADDED else -9)
            chosen = dict(kernel_size=kernel_size, stride=stride, dilation=[1] * 4, bounds=0)
            cases.append(make_case(rng, 4, rule, sites=sites, **chosen))
    for rule, stride in ((SUBMANIFOLD, one), (FLOOR, two), (PADDED, two), (EXPAND, two)):
        sites = random_cloud(rng, 3, 1, 120, 0 if rule == PADDED else -9)
        cases.append(make_case(rng, 3, rule, sites=sites, kernel_size=[5, 5, 5], stride=stride, dilation=one, bounds=0))
    return cases


def padded_to(values, fill):
    return list(values) + [fill] * (MAX_DIMENSION - len(values))


def write_conv_cases(path):
    arrays = {}
    for number, case in enumerate(conv_cases()):
        dimension = len(case["stride"])
        name = f"c{number:03d}"
        no_bounds = [NO_BOUND] * dimension
        arrays[f"{name}_params"] = np.array(
            [dimension, case["rule"], case["num_samples"]]
            + padded_to(case["kernel_size"], 1)
            + padded_to(case["stride"], 1)
            + padded_to(case["dilation"], 1)
            + padded_to(case["padding"], 0)
            + padded_to(case.get("shape", [0] * dimension), 0)
            + padded_to(case["out_shape"], 0)
            + padded_to(no_bounds if case["lower"] is None else case["lower"], 0)
            + padded_to(no_bounds if case["upper"] is None else case["upper"], 0),
            dtype=np.int32,
        )
        arrays[f"{name}_in"] = case["in"].astype(np.int16)
        arrays[f"{name}_out"] = case["out"].astype(np.int16)
        arrays[f"{name}_pairs"] = case["pairs"].astype(np.int16)
    np.savez_compressed(path, **arrays)


# ---------------------------------------------------------------------------------------------------------------------
# Voxels

HALF_EVEN, ROUND_FLOOR = 0, 1
ORIGIN_MINIMUM, ORIGIN_RANGE, ORIGIN_ZERO = 0, 1, 2
INVALID, OUT_OF_RANGE, DROPPED = -1, -2, -3

# The largest index, by number of axes, that fits the packed key with its margin of 128 cells.
LARGEST_INDEX = {1: 2**31 - 129, 2: 2**26 - 129, 3: 2**17 - 129, 4: 2**12 - 129}


def voxel_index(case, point):
    """Returns the voxel index of one point before the origin is subtracted, or an error code such as INVALID."""
    dimension = len(case["voxel_size"])
    if not all(np.isfinite(x) for x in point):
        return INVALID
    limit = LARGEST_INDEX[dimension]
    if case["origin"] == ORIGIN_MINIMUM:
        limit //= 2
    index = []
    for axis in range(dimension):
        x, size = np.float32(point[axis]), np.float32(case["voxel_size"][axis])
        if case["range"] is not None:
            start, end = (np.float32(b[axis]) for b in case["range"])
            if x < start or x >= end:
                return OUT_OF_RANGE
        if case["origin"] == ORIGIN_RANGE:
            x = np.float32(x - start)
        with np.errstate(over="ignore"):
            cells = np.float32(x / size)
        cells = np.round(cells) if case["rounding"] == HALF_EVEN else np.floor(cells)
        if not -limit <= float(cells) <= limit:
            return OUT_OF_RANGE
        cells = int(cells)
        if case["origin"] == ORIGIN_RANGE:
            grid = int(np.round((float(end) - float(start)) / float(size)))
            if not 0 <= cells < grid:
                return OUT_OF_RANGE
        index.append(cells)
    return tuple(index)


def solve_voxels(case):
    """Adds to the case a code for every point, each sample's origin, and the voxels in lexicographic order with their
    points in input order.
    """
    points, dimension = case["points"], len(case["voxel_size"])
    indices = [voxel_index(case, p[:dimension]) for p in points]
    for i, ok in enumerate(case["mask"]):
        if not ok:
            indices[i] = INVALID
    sample_of = [s for s, n in enumerate(case["counts"]) for _ in range(n)]
    voxels, origins = {}, []
    for sample in range(len(case["counts"])):
        valid = [i for i, s in enumerate(sample_of) if s == sample and isinstance(indices[i], tuple)]
        origin = [0] * dimension
        if case["origin"] == ORIGIN_MINIMUM and valid:
            origin = [min(indices[i][axis] for i in valid) for axis in range(dimension)]
        origins.append(origin)
        for i in valid:
            site = (sample, *(c - o for c, o in zip(indices[i], origin)))
            voxels.setdefault(site, []).append(i)
    case["origins"] = origins
    case["voxels"] = [(site, voxels[site]) for site in sorted(voxels)]
    case["code"] = [0 if isinstance(index, tuple) else index for index in indices]


def limit_voxels(case, max_voxels):
    """Returns for each voxel 1 if it is among the `max_voxels` nearest of its sample, else 0. If distances are equal,
    the smaller coordinate wins.
    """
    centre = 0.5 if case["rounding"] == ROUND_FLOOR else 0.0
    stays = []
    for sample in range(len(case["counts"])):
        ranked = []
        for site, _ in case["voxels"]:
            if site[0] != sample:
                continue
            distance = 0.0
            for axis, c in enumerate(site[1:4]):
                start = float(np.float32(case["range"][0][axis])) if case["origin"] == ORIGIN_RANGE else 0.0
                at = (c + case["origins"][sample][axis] + centre) * float(np.float32(case["voxel_size"][axis])) + start
                distance += at * at
            ranked.append((distance, site))
        stays += [site for _, site in sorted(ranked)[:max_voxels]]
    return [int(site in set(stays)) for site, _ in case["voxels"]]


def voxel_case(rng, points, voxel_size, rounding, origin, value_range=None, counts=None, mask=None):
    points = np.asarray(points, dtype=np.float32).reshape(-1, len(voxel_size))
    case = dict(
        points=points,
        voxel_size=[float(np.float32(v)) for v in voxel_size],
        rounding=rounding,
        origin=origin,
        range=value_range,
        counts=[len(points)] if counts is None else counts,
        mask=np.ones(len(points), dtype=np.uint8) if mask is None else mask,
    )
    solve_voxels(case)
    case["features"] = rng.uniform(-3, 3, size=(len(points), 3)).astype(np.float32)
    return case


def voxel_cases():
    rng = np.random.default_rng(7)
    nan, inf = np.nan, np.inf
    cases = []
    # Coordinates of k + 1/2 voxels of size 1, of both signs, whose rounding is a tie.
    ties = [[0.5 * i, -0.5 * i, 0.25 * i] for i in range(-9, 10)]
    odd = [[nan, 0, 0], [1, inf, 0], [1, 0, -inf], [1e9, 0, 0], [0, -1e9, 2], [3.4e38, 0, 0], [0, 0, -0.0], [1, 2, 3]]
    for rounding in (HALF_EVEN, ROUND_FLOOR):
        for origin in (ORIGIN_MINIMUM, ORIGIN_ZERO):
            cases.append(voxel_case(rng, ties, [1, 1, 0.5], rounding, origin))
            cases.append(voxel_case(rng, ties + odd, [0.5, 0.25, 0.1], rounding, origin))
            cases.append(voxel_case(rng, odd, [1e-38, 1, 1], rounding, origin))
            # Points at both ends of the range of indices that fit the key, for voxels of size 1.
            limit = LARGEST_INDEX[3] // (2 if origin == ORIGIN_MINIMUM else 1)
            edge = [
                [limit, 0, -limit],
                [limit + 1, 0, 0],
                [0, -limit - 1, 0],
                [0, 0, 0],
                [limit + 0.25, 0, -limit + 0.25],
            ]
            cases.append(voxel_case(rng, edge, [1, 1, 1], rounding, origin))
        box = ([-2.0, -1.0, 0.0], [2.0, 1.1, 0.7])
        edges = [
            [x, y, z]
            for x in (
                -2.0,
                np.nextafter(np.float32(-2), np.float32(-3)),
                1.95,
                2.0,
                np.nextafter(np.float32(2), np.float32(0)),
            )
            for y in (-1.0, 0.0, 1.1, 1.0999)
            for z in (0.0, 0.69, 0.7, -1e-7)
        ]
        cases.append(voxel_case(rng, edges + odd, [0.1, 0.3, 0.2], rounding, ORIGIN_RANGE, box))
        cases.append(voxel_case(rng, edges + odd, [0.1, 0.3, 0.2], rounding, ORIGIN_MINIMUM, box))
        cases.append(voxel_case(rng, edges + odd, [0.1, 0.3, 0.2], rounding, ORIGIN_ZERO, box))
    for dimension in (1, 2, 3, 4):
        for rounding in (HALF_EVEN, ROUND_FLOOR):
            for origin in (ORIGIN_MINIMUM, ORIGIN_RANGE, ORIGIN_ZERO):
                counts = [int(n) for n in rng.integers(0, 90, size=4)]
                counts[int(rng.integers(4))] = 0
                points = rng.normal(0, 1.5, size=(sum(counts), dimension)).astype(np.float32)
                # Some points occur more than once.
                points = points[rng.integers(0, max(1, len(points)), size=len(points))]
                points[rng.random(points.shape) < 0.01] = nan
                mask = (rng.random(len(points)) > 0.05).astype(np.uint8)
                box = ([-3.0] * dimension, [2.9] * dimension) if origin == ORIGIN_RANGE else None
                size = rng.uniform(0.1, 0.9, size=dimension)
                cases.append(voxel_case(rng, points, size, rounding, origin, box, counts, mask))
    cases.append(voxel_case(rng, [], [1, 1, 1], HALF_EVEN, ORIGIN_MINIMUM))
    cases.append(voxel_case(rng, [], [1, 1, 1], HALF_EVEN, ORIGIN_MINIMUM, counts=[]))
    cases.append(voxel_case(rng, [[nan, 0, 0]], [1, 1, 1], HALF_EVEN, ORIGIN_MINIMUM))
    cases.append(voxel_case(rng, [[-7.3, 2, 0.1]], [0.05] * 3, HALF_EVEN, ORIGIN_MINIMUM))
    # So many points reach every path of the sort, and several share a voxel.
    many = rng.normal(0, 2, size=(6000, 3)).astype(np.float32).round(1)
    cases.append(voxel_case(rng, many, [0.8, 0.5, 2.0], HALF_EVEN, ORIGIN_MINIMUM, counts=[2500, 0, 3500]))
    return cases


def write_voxel_cases(path):
    arrays = {}
    for number, case in enumerate(voxel_cases()):
        dimension = len(case["voxel_size"])
        name = f"v{number:03d}"
        has_range = case["range"] is not None
        start, end = case["range"] if has_range else ([0] * dimension, [0] * dimension)
        max_voxels = max(1, len(case["voxels"]) // 3)
        arrays[f"{name}_params"] = np.array(
            [dimension, case["rounding"], case["origin"], has_range, max_voxels], dtype=np.int32
        )
        arrays[f"{name}_floats"] = np.array(
            padded_to(case["voxel_size"], 1) + padded_to(start, 0) + padded_to(end, 0), dtype=np.float32
        )
        arrays[f"{name}_points"] = case["points"]
        arrays[f"{name}_counts"] = np.array(case["counts"], dtype=np.int64)
        arrays[f"{name}_mask"] = np.asarray(case["mask"], dtype=np.uint8)
        arrays[f"{name}_features"] = case["features"]
        arrays[f"{name}_code"] = np.array(case["code"], dtype=np.int8)
        arrays[f"{name}_coords"] = np.array([site for site, _ in case["voxels"]], dtype=np.int32).reshape(
            -1, 1 + dimension
        )
        arrays[f"{name}_members"] = np.array([i for _, members in case["voxels"] for i in members], dtype=np.int32)
        arrays[f"{name}_sizes"] = np.array([len(members) for _, members in case["voxels"]], dtype=np.int32)
        arrays[f"{name}_stays"] = np.array(limit_voxels(case, max_voxels), dtype=np.uint8)
        means, means_of_two = [], []
        for _, members in case["voxels"]:
            rows = case["features"][members].astype(np.float64)
            means.append(rows.mean(axis=0))
            means_of_two.append(rows[:2].mean(axis=0))
        arrays[f"{name}_mean"] = np.array(means, dtype=np.float32).reshape(-1, 3)
        arrays[f"{name}_mean2"] = np.array(means_of_two, dtype=np.float32).reshape(-1, 3)
    np.savez_compressed(path, **arrays)


def main():
    folder = Path(sys.argv[1])
    write_conv_cases(folder / "conv_cases.npz")
    write_voxel_cases(folder / "voxel_cases.npz")


if __name__ == "__main__":
    main()
