"""Small networks of MinkowskiEngine's layers: the library, its stand-in, what is exported and what is served agree.

The library's results are in tests/golden/minkowski_layers.npz. As a script it writes that file:

    PYTHONPATH=client/python/src:client/python/tests python client/python/tests/minkowski_layers.py

MinkowskiEngine at 02fc608, the last commit of its repository, computed them, built with CPU_ONLY for torch 2.13. Its
release 0.5.4 differs in one thing: it computes a HYPER_CROSS with other cells (80b6350 mended it).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from golden_layers import Network, filled, write

CHANNELS = 2
Build = Callable[[Any], tuple[dict[str, Any], Callable[..., Any]]]  # the library -> layers by name, and what they do


def example(engine: Any) -> Any:
    """Returns two samples with negative coordinates, whose features are multiples of 1/8."""
    rng = np.random.default_rng(44)
    cells = np.stack(np.meshgrid(*map(np.arange, (2, 6, 5, 4)), indexing="ij"), -1).reshape(-1, 4)
    chosen = rng.permutation(cells[rng.random(len(cells)) < 0.3])
    chosen[:, 1:] -= 3
    features = rng.integers(-8, 9, (len(chosen), CHANNELS)) / 8
    return engine.SparseTensor(torch.from_numpy(features).float(), torch.from_numpy(chosen.astype(np.int32)))


def made(engine: Any, name: str) -> Network:
    """Returns a case's network."""
    return filled(Network(*CASES[name](engine)), name)


def _conv(kernel: Any, stride: Any = 1, dilation: Any = 1, region: str = "", **options: Any) -> Build:
    def build(engine: Any) -> Any:
        generator = None
        if region:
            kind = getattr(engine.RegionType, region)
            generator = engine.KernelGenerator(kernel, stride, dilation, region_type=kind, dimension=3)
        layer = engine.MinkowskiConvolution(
            CHANNELS, 3, kernel, stride, dilation, kernel_generator=generator, dimension=3, **options
        )
        return {"conv": layer}, lambda layers, x: layers["conv"](x)

    return build


def _channelwise(kernel: Any, stride: Any = 1, dilation: Any = 1) -> Build:
    def build(engine: Any) -> Any:
        layer = engine.MinkowskiChannelwiseConvolution(CHANNELS, kernel, stride, dilation, bias=True, dimension=3)
        return {"conv": layer}, lambda layers, x: layers["conv"](x)

    return build


def _positive(y: Any) -> Any:
    return (y.F[:, :1] > 0).squeeze(1)


def _back(kind: str, kernel: Any, down: Any = 1, cut: bool = False, **options: Any) -> Build:
    """Strides by 2 and back. down: the size of the first kernel. cut: prunes the coarse sites between."""

    def build(engine: Any) -> Any:
        coarse = engine.MinkowskiConvolution(CHANNELS, CHANNELS, down, 2, dimension=3)
        layer = getattr(engine, f"Minkowski{kind}ConvolutionTranspose")(CHANNELS, 3, kernel, 2, dimension=3, **options)
        prune = engine.MinkowskiPruning()

        def run(layers: Any, x: Any) -> Any:
            y = layers["coarse"](x)
            return layers["fine"](layers["prune"](y, _positive(y)) if cut else y)

        return {"coarse": coarse, "fine": layer, "prune": prune}, run

    return build


def _onto_unknown(engine: Any) -> Any:
    """A transposed layer onto a tensor stride that no layer has made: it makes the sites."""
    coarse = engine.MinkowskiConvolution(CHANNELS, CHANNELS, 2, 4, dimension=3)
    fine = engine.MinkowskiConvolutionTranspose(CHANNELS, 3, 3, 2, dimension=3)
    return {"coarse": coarse, "fine": fine}, lambda layers, x: layers["fine"](layers["coarse"](x))


def _onto(engine: Any) -> Any:
    """A convolution onto the sites of another tensor, which are fewer."""
    prune = engine.MinkowskiPruning()
    conv = engine.MinkowskiConvolution(CHANNELS, 3, 3, dimension=3)

    def run(layers: Any, x: Any) -> Any:
        return layers["conv"](x, layers["prune"](x, _positive(x)))

    return {"prune": prune, "conv": conv}, run


def _pool(kind: str, kernel: Any, stride: Any, dilation: Any = 1) -> Build:
    def build(engine: Any) -> Any:
        layer = getattr(engine, f"Minkowski{kind}Pooling")(kernel, stride, dilation, dimension=3)
        return {"pool": layer}, lambda layers, x: layers["pool"](x)

    return build


def _unpool(kernel: Any, stride: Any) -> Build:
    def build(engine: Any) -> Any:
        down = engine.MinkowskiSumPooling(kernel, stride, dimension=3)
        up = engine.MinkowskiPoolingTranspose(kernel, stride, dimension=3)
        return {"down": down, "up": up}, lambda layers, x: layers["up"](layers["down"](x))

    return build


def _of_samples(pool: str, function: str) -> Build:
    def build(engine: Any) -> Any:
        layers = {"pool": getattr(engine, f"MinkowskiGlobal{pool}Pooling")()}
        layers["spread"] = getattr(engine, f"MinkowskiBroadcast{function}")()
        return layers, lambda layers, x: layers["spread"](x, layers["pool"](x))

    return build


def _joined_to_its_sample(engine: Any) -> Any:
    layers = {"pool": engine.MinkowskiGlobalMaxPooling(), "spread": engine.MinkowskiBroadcast()}
    return layers, lambda layers, x: engine.cat(x, layers["spread"](x, layers["pool"](x)))


def _alone(layer: str, *arguments: Any) -> Build:
    return lambda engine: ({"a": getattr(engine, layer)(*arguments)}, lambda layers, x: layers["a"](x))


def _two(function: Callable[[Any, Any, Any], Any], cut: bool = True) -> Build:
    """A function of the library, a tensor and another one. cut: the other one has fewer sites, else the same."""

    def build(engine: Any) -> Any:
        conv, prune = engine.MinkowskiConvolution(CHANNELS, CHANNELS, 3, dimension=3), engine.MinkowskiPruning()

        def run(layers: Any, x: Any) -> Any:
            y = layers["conv"](x)
            other = layers["prune"](y, _positive(y)) if cut else y
            return function(engine, x, other)

        return {"conv": conv, "prune": prune}, run

    return build


def _sequence(*names: str) -> Build:
    """Layers one after another: which coordinates a layer goes to depends on those before it."""

    def build(engine: Any) -> Any:
        three, both = {"dimension": 3}, (CHANNELS, CHANNELS)
        makers = {
            "expand": lambda: engine.MinkowskiConvolution(*both, 3, expand_coordinates=True, **three),
            "conv": lambda: engine.MinkowskiConvolution(*both, 3, **three),
            "down": lambda: engine.MinkowskiConvolution(*both, 2, 2, **three),
            "up": lambda: engine.MinkowskiConvolutionTranspose(*both, 2, 2, **three),
            "wide": lambda: engine.MinkowskiConvolutionTranspose(*both, 3, 2, **three),
            "grow": lambda: engine.MinkowskiGenerativeConvolutionTranspose(*both, 2, 2, **three),
            "pool": lambda: engine.MinkowskiMaxPooling(2, 2, **three),
            "unpool": lambda: engine.MinkowskiPoolingTranspose(2, 2, **three),
            "prune": engine.MinkowskiPruning,
        }

        def run(layers: Any, x: Any) -> Any:
            for name, layer in layers.items():
                x = layer(x, _positive(x)) if name.startswith("prune") else layer(x)
            return x

        return {f"{name}{number}": makers[name]() for number, name in enumerate(names)}, run

    return build


def _sum_of_paths(engine: Any) -> Any:
    """A pruned path and a whole one, which meet on the coarse sites of both, and go back."""
    down, up = (engine.MinkowskiConvolution(CHANNELS, CHANNELS, 2, 2, dimension=3) for _ in range(2))
    back = engine.MinkowskiConvolutionTranspose(CHANNELS, CHANNELS, 2, 2, dimension=3)
    layers = {"prune": engine.MinkowskiPruning(), "a": down, "b": up, "back": back}
    return layers, lambda layers, x: layers["back"](layers["a"](layers["prune"](x, _positive(x))) - layers["b"](x))


CASES: dict[str, Build] = {
    "expand, down, up": _sequence("expand", "down", "up"),
    "expand, conv, expand": _sequence("expand", "conv", "expand"),
    "prune, down, up": _sequence("prune", "down", "up"),
    "down, prune, wide": _sequence("down", "prune", "wide"),
    "down, down, grow, prune, conv, grow": _sequence("down", "down", "grow", "prune", "conv", "grow"),
    "down, pool, unpool, up": _sequence("down", "pool", "unpool", "up"),
    "down, grow, down, up": _sequence("down", "grow", "down", "up"),
    "difference of paths": _sum_of_paths,
    "conv 3": _conv(3, bias=True),
    "conv 3x1x2": _conv((3, 1, 2)),
    "conv 4": _conv(4),
    "conv 3 dilated": _conv(3, dilation=2),
    "conv 2 dilated": _conv(2, dilation=(1, 2, 3)),
    "conv 3 / 2": _conv(3, 2, bias=True),
    "conv 2 / 2": _conv(2, 2),
    "conv 3 / 3": _conv(3, 3),
    "conv 1 / 2": _conv(1, 2),
    "conv 1": _conv(1, bias=True),
    "cross 3": _conv(3, region="HYPER_CROSS"),
    "cross 5x3x1 dilated": _conv((5, 3, 1), 1, 2, region="HYPER_CROSS"),
    "cross 3 / 2": _conv(3, 2, region="HYPER_CROSS"),
    "expand 3": _conv(3, bias=True, expand_coordinates=True),
    "expand 2": _conv(2, expand_coordinates=True),
    "expand 2x3x1": _conv((2, 3, 1), expand_coordinates=True),
    "expand 3 dilated": _conv(3, dilation=2, expand_coordinates=True),
    "expand 2 dilated": _conv(2, dilation=2, expand_coordinates=True),
    "expand cross 3x5x3": _conv((3, 5, 3), region="HYPER_CROSS", expand_coordinates=True),
    "expand 3 / 2": _conv(3, 2, expand_coordinates=True),
    "expand 2 / 2": _conv(2, 2, expand_coordinates=True),
    "channelwise 3": _channelwise(3),
    "channelwise 2 / 2": _channelwise(2, 2),
    "channelwise 3x1x2 dilated": _channelwise((3, 1, 2), 1, 2),
    "transpose 2": _back("", 2, 2),
    "transpose 3": _back("", 3, bias=True),
    "transpose 3 behind a pruning": _back("", 3, 3, cut=True),
    "transpose 3 expanding": _back("", 3, expand_coordinates=True),
    "transpose 3 onto new sites": _onto_unknown,
    "generative 2": _back("Generative", 2),
    "generative 3": _back("Generative", 3, cut=True),
    "conv 3 onto": _onto,
    **{f"{kind} 2 / 2": _pool(kind, 2, 2) for kind in ("Sum", "Avg", "Max")},
    **{f"{kind} 3 / 2": _pool(kind, 3, 2) for kind in ("Sum", "Avg", "Max")},
    "Max 3": _pool("Max", 3, 1),
    "Avg 3 dilated": _pool("Avg", 3, 1, 2),
    "Max 2 / 2 dilated": _pool("Max", 2, 2, 2),
    "Sum 2x1x2 / 2x1x2": _pool("Sum", (2, 1, 2), (2, 1, 2)),
    "Avg 3 / 3": _pool("Avg", 3, 3),
    "Max 2 / 3": _pool("Max", 2, 3),
    "unpool 2 / 2": _unpool(2, 2),
    "unpool 3 / 2": _unpool(3, 2),
    "unpool 3 / 3": _unpool(3, 3),
    **{f"global {kind}": _alone(f"MinkowskiGlobal{kind}Pooling") for kind in ("Sum", "Avg", "Max")},
    "broadcast addition": _of_samples("Avg", "Addition"),
    "broadcast multiplication": _of_samples("Max", "Multiplication"),
    "broadcast concatenation": _of_samples("Sum", "Concatenation"),
    "broadcast": _joined_to_its_sample,
    "batch norm": _alone("MinkowskiBatchNorm", CHANNELS),
    "instance norm": _alone("MinkowskiInstanceNorm", CHANNELS),
    "linear": _alone("MinkowskiLinear", CHANNELS, 3),
    "union": _two(lambda engine, x, y: engine.MinkowskiUnion()(x, y)),
    "a + b": _two(lambda engine, x, y: x + y),
    "b - a": _two(lambda engine, x, y: y - x),
    "a - b": _two(lambda engine, x, y: x - y),
    "a * b": _two(lambda engine, x, y: x * y),
    "a - b on the same sites": _two(lambda engine, x, y: x - y, cut=False),
    "a * b on the same sites": _two(lambda engine, x, y: x * y, cut=False),
    "cat": _two(lambda engine, x, y: engine.cat(x, y), cut=False),
    "sum": _two(lambda engine, x, y: engine.sum(x, y, x), cut=False),
    "mean": _two(lambda engine, x, y: engine.mean(x, y, x), cut=False),
    "GELU": _alone("MinkowskiGELU"),
    "LeakyReLU": _alone("MinkowskiLeakyReLU", 0.1),
    "Softmax": _alone("MinkowskiSoftmax", 1),
}


if __name__ == "__main__":
    import MinkowskiEngine

    write("minkowski_layers", CASES, lambda name: (made(MinkowskiEngine, name), example(MinkowskiEngine)))
