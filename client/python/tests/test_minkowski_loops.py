"""Compares the layers of the stand-in for MinkowskiEngine with loops over sites and cells, by the layers' definitions.

A kernel's cells run with the first axis fastest; odd sizes are centred, even ones begin at their site.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import traced_networks as networks  # noqa: E402
from traced_networks import load  # noqa: E402

pytestmark = pytest.mark.usefixtures("stand_in_libraries")
THREE = {"dimension": 3}
Site = tuple[int, ...]


def example() -> Any:
    coordinates = networks.sites(5, (4, 5, 3), 2)
    coordinates[:, 1:] -= 2
    return load("MinkowskiEngine").SparseTensor(networks.features(coordinates, 2), coordinates=coordinates)


def steps(kernel: Any, dilation: int = 1) -> Iterator[tuple[int, int, int]]:
    size = kernel if isinstance(kernel, tuple) else (kernel,) * 3
    for cell in itertools.product(*(range(n) for n in reversed(size))):
        yield tuple(dilation * (d - (n // 2 if n % 2 else 0)) for d, n in zip(reversed(cell), size, strict=True))


def rows(x: Any, unit: int = 1) -> dict[Site, Any]:
    sites = [(b, *(v // unit for v in site)) for b, *site in x.C.tolist()]
    return dict(zip(sites, x.F.detach().numpy(), strict=True))


def check(y: Any, expected: dict[Site, Any], unit: int = 1) -> None:
    made = rows(y, unit)
    assert set(made) == set(expected)
    for site, values in made.items():
        np.testing.assert_allclose(values, expected[site], rtol=1e-5, atol=1e-5)


def coarse(sites: Any, stride: int) -> set[Site]:
    return {(b, *(v // stride for v in site)) for b, *site in sites}


def moved(site: Site, stride: int, step: tuple[int, ...]) -> Site:
    return (site[0], *(stride * v + d for v, d in zip(site[1:], step, strict=True)))


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [((3, 1, 2), 1, 1), (3, 2, 1), ((2, 2, 2), 2, 1), (3, 1, 2)])
@pytest.mark.parametrize("is_channelwise", [False, True])
def test_convolutions(kernel: Any, stride: int, dilation: int, is_channelwise: bool) -> None:
    engine, x = load("MinkowskiEngine"), example()
    options = {"kernel_size": kernel, "stride": stride, "dilation": dilation, "bias": True, **THREE}
    make = engine.MinkowskiChannelwiseConvolution if is_channelwise else engine.MinkowskiConvolution
    layer = networks.randomize(make(2, **options) if is_channelwise else make(2, 3, **options))
    weights, bias, there = layer.kernel.detach().numpy(), layer.bias.detach().numpy().reshape(-1), rows(x)
    expected = {site: bias.astype(np.float64) for site in coarse(there, stride)}
    for site, (cell, step) in itertools.product(expected, enumerate(steps(kernel, dilation))):
        at = moved(site, stride, step)
        if at in there:
            part = there[at] * weights[cell] if is_channelwise else there[at] @ weights[cell]
            expected[site] = expected[site] + part
    check(layer(x), expected, stride)


@pytest.mark.parametrize("reduce", ["Sum", "Avg", "Max"])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (3, 1)])
def test_pools(reduce: str, kernel: int, stride: int) -> None:
    engine, x = load("MinkowskiEngine"), example()
    layer, there = getattr(engine, f"Minkowski{reduce}Pooling")(kernel_size=kernel, stride=stride, **THREE), rows(x)
    function = {"Sum": np.sum, "Avg": np.mean, "Max": np.max}[reduce]
    expected = {}
    for site in coarse(there, stride):
        found = [there[at] for step in steps(kernel) if (at := moved(site, stride, step)) in there]
        expected[site] = function(found, axis=0)
    check(layer(x), expected, stride)


@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize("is_generative", [False, True])
def test_transposed_convolutions(kernel: int, is_generative: bool) -> None:
    engine, x = load("MinkowskiEngine"), example()
    down = networks.randomize(engine.MinkowskiConvolution(2, 3, kernel_size=1, stride=2, **THREE))
    make = engine.MinkowskiGenerativeConvolutionTranspose if is_generative else engine.MinkowskiConvolutionTranspose
    layer = networks.randomize(make(3, 4, kernel_size=kernel, stride=2, **THREE))
    middle = down(x)
    there, weights = rows(middle, 2), layer.kernel.detach().numpy()
    reached = {moved(site, 2, step) for site in there for step in steps(kernel)}
    expected = {site: np.zeros(4) for site in (reached if is_generative else rows(x))}
    for site, (cell, step) in itertools.product(there, enumerate(steps(kernel))):
        at = moved(site, 2, step)
        if at in expected:
            expected[at] = expected[at] + there[site] @ weights[cell]
    check(layer(middle), expected)


@pytest.mark.parametrize("reduce", ["Sum", "Avg", "Max"])
def test_global_pools_and_broadcasts(reduce: str) -> None:
    engine, x = load("MinkowskiEngine"), example()
    pooled = getattr(engine, f"MinkowskiGlobal{reduce}Pooling")()(x)
    function = {"Sum": np.sum, "Avg": np.mean, "Max": np.max}[reduce]
    there = rows(x)
    of_samples = [function([v for site, v in there.items() if site[0] == b], axis=0) for b in range(2)]
    np.testing.assert_allclose(pooled.F.numpy(), of_samples, rtol=1e-5)
    check(engine.MinkowskiBroadcastAddition()(x, pooled), {s: v + of_samples[s[0]] for s, v in there.items()})
    check(engine.MinkowskiBroadcastMultiplication()(x, pooled), {s: v * of_samples[s[0]] for s, v in there.items()})


def test_instance_norm_union_and_pruning() -> None:
    engine, x = load("MinkowskiEngine"), example()
    norm = networks.randomize(engine.MinkowskiInstanceNorm(2))
    weight, bias = (getattr(norm, part).detach().numpy().reshape(-1) for part in ("weight", "bias"))
    there, expected = rows(x), {}
    for site, values in there.items():
        of_sample = np.array([v for other, v in there.items() if other[0] == site[0]], np.float64)
        deviation = values - of_sample.mean(axis=0)
        variance = ((of_sample - of_sample.mean(axis=0)) ** 2).mean(axis=0)
        expected[site] = deviation / np.sqrt(variance + 1e-8) * weight + bias
    check(norm(x), expected)
    mask = x.F[:, 0] > 0
    kept = engine.MinkowskiPruning()(x, mask)
    assert 0 < len(kept) < len(x)
    check(kept, {site: v for site, v in there.items() if v[0] > 0})
    check(engine.MinkowskiUnion()(kept, x), {site: v * (2 if v[0] > 0 else 1) for site, v in there.items()})
