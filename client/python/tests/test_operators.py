"""Checks OPERATORS.md against the libraries' public names, and against traces of each operator with the stand-ins."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
from conftest import REPOSITORY
from graph_shapes import parse

from voxserve.export import ExportError, from_torch

torch = pytest.importorskip("torch", reason="torch is not installed")
import traced_networks as networks  # noqa: E402
from torch import nn  # noqa: E402
from traced_networks import CHANNELS, load  # noqa: E402

from voxserve.export.tracing import advice  # noqa: E402
from voxserve.export.tracing.functions import HANDLERS  # noqa: E402

TEXT = (REPOSITORY / "client" / "python" / "OPERATORS.md").read_text()
DIMENSIONS = (1, 2, 3, 4)


def names_of(text: str, prefix: str = "") -> set[str]:
    return {f"{prefix}{name.format(d=d)}" for name in text.split() for d in DIMENSIONS}


def table(library: str) -> dict[str, str]:
    """Returns what a library's section of OPERATORS.md says of each name: served, refused or no operator."""
    section = TEXT[TEXT.index(f"## {library}\n") :].removeprefix("## ").partition("\n## ")[0]
    says: dict[str, str] = {}
    for row in section.splitlines():
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        if not row.startswith("| ") or cells[0] == "names":
            continue
        names, here = cells
        verdict = re.match(r"served|refused: .|no operator: .", here)
        assert verdict, row
        for name in names.split(", "):
            dimensions = re.fullmatch(r"(\w+)1d-(\d)d", name)
            expanded = [f"{dimensions[1]}{d}d" for d in range(1, int(dimensions[2]) + 1)] if dimensions else [name]
            for each in expanded:
                assert each not in says, f"{each} appears twice"
                says[each] = verdict[0].partition(":")[0]
    return says


# The public names of spconv/pytorch/__init__.py (2.3.8), of the packages of torchsparse (2.1) and of
# MinkowskiEngine/__init__.py (0.5.4), without Python modules and autograd functions. {d} stands for 1 to 4.
SPCONV = names_of(
    """
    SubMConv{d}d SparseConv{d}d SparseInverseConv{d}d SparseConvTranspose{d}d SparseMaxPool{d}d
    SparseAvgPool1d SparseAvgPool2d SparseAvgPool3d
    SparseConvTensor functional ops Identity SparseModule SparseSequential assign_name_for_sparse_modules
    SparseBatchNorm SparseReLU SparseIdentity ConvAlgo SparseGlobalMaxPool SparseGlobalAvgPool
    AddTable ConcatTable JoinTable ToDense RemoveGrid
    """
)
TORCHSPARSE = (
    names_of(
        """
        ReLU LeakyReLU SiLU Conv3d SparseCrop BatchNorm GroupNorm InstanceNorm GlobalAvgPool GlobalMaxPool
        ToBEVConvolution ToBEVReduction ToDenseBEVConvolution ToBEVHeightCompression
        """,
        "nn.",
    )
    | names_of(
        """
        relu silu leaky_relu conv3d spcount spcrop spdevoxelize calc_ti_weights sphash global_avg_pool global_max_pool
        sphashquery spvoxelize build_kernel_map transpose_kernel_map spdownsample spupsample_generative
        convert_transposed_out_in_map get_kmap_mode set_kmap_mode get_downsample_mode set_downsample_mode get_conv_mode
        set_conv_mode ConvMode Dataflow
        """,
        "nn.functional.",
    )
    | names_of("SparseConvBlock SparseConvTransposeBlock SparseResBlock", "backbones.modules.")
    | names_of("cat generative_add SparseTensor tune backbones.SparseResUNet42 backbones.SparseResNet21D")
    | names_of("nn.utils.fapply nn.utils.get_kernel_offsets utils.to_dense utils.make_ntuple utils.make_divisible")
)
MINKOWSKI = names_of(
    """
    Algorithm ModuleBase Convolution ConvolutionTranspose GenerativeConvolutionTranspose ChannelwiseConvolution
    SumPooling AvgPooling MaxPooling PoolingTranspose GlobalPooling GlobalSumPooling GlobalAvgPooling GlobalMaxPooling
    BroadcastAddition BroadcastMultiplication Broadcast BroadcastConcatenation ELU Hardshrink Hardsigmoid Hardtanh
    Hardswish LeakyReLU LogSigmoid PReLU ReLU ReLU6 RReLU SELU CELU GELU Sigmoid SiLU Softplus Softshrink Softsign Tanh
    Tanhshrink Threshold Softmin Softmax LogSoftmax AdaptiveLogSoftmaxWithLoss Dropout AlphaDropout Sinusoidal BatchNorm
    SyncBatchNorm InstanceNorm StableInstanceNorm Pruning Union Interpolation Network Ops Linear ToSparseTensor
    ToDenseTensor ToFeature StackCat StackSum StackMean StackVar Functional
    """,
    "Minkowski",
) | names_of(
    """
    CoordinateMapKey GPUMemoryAllocatorType CoordinateMapType RegionType PoolingMode BroadcastMode is_cuda_available
    cuda_version cudart_version get_gpu_memory_info KernelRegion KernelGenerator convert_region_type get_kernel_volume
    SparseTensorOperationMode SparseTensorQuantizationMode set_sparse_tensor_operation_mode
    sparse_tensor_operation_mode global_coordinate_manager set_global_coordinate_manager
    clear_global_coordinate_manager SparseTensor TensorField convert_to_int_tensor set_memory_manager_backend
    set_gpu_allocator CoordsManager CoordinateManager cat mean var to_sparse to_sparse_all dense_coordinates sum utils
    modules spmm print_diagnostics
    """
)
PUBLIC = {"spconv.pytorch": SPCONV, "torchsparse": TORCHSPARSE, "MinkowskiEngine": MINKOWSKI}


@pytest.mark.parametrize("library", PUBLIC)
def test_every_public_name_stands_once(library: str) -> None:
    assert set(table(library)) == PUBLIC[library]


@pytest.mark.filterwarnings("ignore")  # ignores the warnings of spconv and its libraries
def test_the_names_of_spconv_are_its_own() -> None:
    spconv = pytest.importorskip("spconv.pytorch", reason="spconv is not installed")
    own = {n for n, v in vars(spconv).items() if str(getattr(v, "__module__", "")).startswith("spconv.pytorch")}
    assert own <= SPCONV
    assert all(hasattr(spconv, name) for name in SPCONV)


def test_the_names_of_torchsparse_are_its_own() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torchsparse needs a GPU to be imported")
    pytest.importorskip("torchsparse", reason="torchsparse is not installed")
    assert own_names_of_torchsparse() == TORCHSPARSE


def own_names_of_torchsparse() -> set[str]:
    own = set()
    for package in ("", "nn", "nn.functional", "nn.utils", "backbones", "backbones.modules", "utils"):
        for name, value in vars(load(".".join(filter(None, ("torchsparse", package))))).items():
            is_class_or_function = isinstance(value, type) or inspect.isfunction(value)
            if is_class_or_function and value.__module__.startswith("torchsparse") and not name.startswith("_"):
                own.add(".".join(filter(None, (package, name))))
    return own


# Traces


class Layer(nn.Module):
    """Runs `run` with the parts and a sparse tensor. Without `run`, the parts run one after the other."""

    def __init__(self, *parts: Any, run: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.parts, self.run = nn.ModuleList(parts), run

    def forward(self, x: Any) -> Any:
        if self.run is not None:
            return self.run(*self.parts, x)
        for part in self.parts:
            x = part(x)
        return x


def is_served(layer: Any, example: Any, **options: Any) -> bool:
    try:
        return bool(from_torch(networks.randomize(layer), example, **options).network.names)
    except (ExportError, NotImplementedError):
        return False


def spconv_probes() -> dict[str, Callable[[], bool]]:
    spconv = load("spconv.pytorch")

    def example(dimension: int) -> Any:
        coordinates = networks.sites(1, (5,) * dimension)
        features = networks.features(coordinates)
        return spconv.SparseConvTensor(features, coordinates, [6] * dimension, 2)

    def probe(*layers: Any, dimension: int = 3, run: Any = None) -> Callable[[], bool]:
        return lambda: is_served(Layer(*layers, run=run), example(dimension), axes="tzyx"[-dimension:])

    probes = {}
    for d in DIMENSIONS:
        strided = getattr(spconv, f"SparseConv{d}d")(CHANNELS, CHANNELS, 3, 2, 1, indice_key="key")
        inverse = getattr(spconv, f"SparseInverseConv{d}d")(CHANNELS, CHANNELS, 3, indice_key="key")
        probes[f"SubMConv{d}d"] = probe(getattr(spconv, f"SubMConv{d}d")(CHANNELS, 3, 3), dimension=d)
        probes[f"SparseConv{d}d"] = probe(strided, dimension=d)
        probes[f"SparseInverseConv{d}d"] = probe(strided, inverse, dimension=d)
        transposed = getattr(spconv, f"SparseConvTranspose{d}d")(CHANNELS, 3, 3, 2)
        probes[f"SparseConvTranspose{d}d"] = probe(transposed, dimension=d)
        for kind in ("Max", "Avg")[: 2 if d < 4 else 1]:
            probes[f"Sparse{kind}Pool{d}d"] = probe(getattr(spconv, f"Sparse{kind}Pool{d}d")(2, 2), dimension=d)
    conv = spconv.SubMConv3d(CHANNELS, CHANNELS, 3, indice_key="a")
    both = spconv.ConcatTable().add(conv).add(spconv.SubMConv3d(CHANNELS, CHANNELS, 3, indice_key="a"))
    probes["SparseSequential"] = probe(spconv.SparseSequential(conv, nn.ReLU()))
    probes["ConcatTable"] = probes["AddTable"] = probe(both, spconv.AddTable())
    probes["JoinTable"] = probe(both, spconv.JoinTable())
    for name in ("ReLU", "Identity"):
        probes[f"Sparse{name}"] = probe(conv, getattr(spconv, f"Sparse{name}")())
    probes["SparseBatchNorm"] = probe(spconv.SparseBatchNorm(CHANNELS))
    for name in ("Identity", "RemoveGrid"):
        probes[name] = probe(getattr(spconv, name)(), conv)
    probes["ToDense"] = probe(spconv.ToDense(), run=lambda dense, x: dense(x).flatten(1, 2))
    for name in ("SparseGlobalMaxPool", "SparseGlobalAvgPool"):
        probes[name] = lambda name=name: made(spconv, name, (), probe)
    return probes


def torchsparse_probes() -> dict[str, Callable[[], bool]]:
    library, spnn, functional = load("torchsparse"), load("torchsparse.nn"), load("torchsparse.nn.functional")
    example = networks.torchsparse_example(library)

    def probe(*layers: Any, run: Any = None) -> Callable[[], bool]:
        return lambda: is_served(Layer(*layers, run=run), example)

    conv = spnn.Conv3d(CHANNELS, CHANNELS, 3)
    probes = {f"nn.{name}": probe(conv, getattr(spnn, name)()) for name in ("ReLU", "LeakyReLU", "SiLU")}
    probes["nn.Conv3d"] = probe(conv)
    probes["nn.BatchNorm"], probes["nn.GroupNorm"] = probe(spnn.BatchNorm(CHANNELS)), probe(spnn.GroupNorm(2, CHANNELS))
    for name, arguments in (("InstanceNorm", (CHANNELS,)), ("SparseCrop", ((0,) * 3, (4,) * 3))):
        probes[f"nn.{name}"] = lambda name=name, arguments=arguments: made(spnn, name, arguments, probe)
    for name in ("GlobalAvgPool", "GlobalMaxPool"):
        probes[f"nn.{name}"] = probe(getattr(spnn, name)())
    for name in ("relu", "silu", "leaky_relu", "global_avg_pool", "global_max_pool", "spdevoxelize", "spvoxelize"):
        run = getattr(functional, name)
        probes[f"nn.functional.{name}"] = probe(conv, run=lambda conv, x, run=run: run(conv(x)))
    probes["cat"] = probe(conv, run=lambda conv, x: library.cat([conv(x), x]))
    fapply = load("torchsparse.nn.utils").fapply
    probes["nn.utils.fapply"] = probe(conv, run=lambda conv, x: fapply(conv(x), torch.sigmoid))
    return probes


def made(library: Any, name: str, arguments: tuple[Any, ...], probe: Any) -> bool:
    """Returns whether a layer is served. A layer that the stand-in lacks counts as not served."""
    try:
        layer = getattr(library, name)(*arguments)
    except NotImplementedError:
        return False
    return bool(probe(layer)())


def minkowski_probes() -> dict[str, Callable[[], bool]]:
    engine = load("MinkowskiEngine")
    example = networks.minkowski_example(engine)

    def probe(*layers: Any, run: Any = None) -> Callable[[], bool]:
        return lambda: is_served(Layer(*layers, run=run), example)

    three = {"dimension": 3}
    conv = engine.MinkowskiConvolution(CHANNELS, CHANNELS, kernel_size=3, **three)
    down = engine.MinkowskiConvolution(CHANNELS, CHANNELS, kernel_size=2, stride=2, **three)
    probes = {"MinkowskiConvolution": probe(conv)}
    for name in ("ConvolutionTranspose", "GenerativeConvolutionTranspose"):
        layer = getattr(engine, f"Minkowski{name}")(CHANNELS, 3, kernel_size=2, stride=2, **three)
        probes[f"Minkowski{name}"] = probe(down, layer)
    probes["MinkowskiChannelwiseConvolution"] = probe(
        engine.MinkowskiChannelwiseConvolution(CHANNELS, kernel_size=3, **three)
    )
    for name in ("Sum", "Avg", "Max"):
        probes[f"Minkowski{name}Pooling"] = probe(
            getattr(engine, f"Minkowski{name}Pooling")(kernel_size=2, stride=2, **three)
        )
    probes["MinkowskiPoolingTranspose"] = probe(
        down, engine.MinkowskiPoolingTranspose(kernel_size=2, stride=2, **three)
    )
    pool = engine.MinkowskiGlobalAvgPooling()
    for name in ("", "Sum", "Avg", "Max"):
        probes[f"MinkowskiGlobal{name}Pooling"] = probe(getattr(engine, f"MinkowskiGlobal{name}Pooling")())
    for name in ("Addition", "Multiplication", "Concatenation"):
        layer = getattr(engine, f"MinkowskiBroadcast{name}")()
        probes[f"MinkowskiBroadcast{name}"] = probe(layer, pool, run=lambda layer, pool, x: layer(x, pool(x)))
    arguments = {"Threshold": (0.1, 0.0), "Softmax": (1,), "Softmin": (1,), "LogSoftmax": (1,)}
    for kind in (n.removeprefix("Minkowski") for n in MINKOWSKI if n.startswith("Minkowski")):
        is_activation = getattr(getattr(nn, kind, None), "__module__", "") in (
            "torch.nn.modules.activation",
            "torch.nn.modules.dropout",
        )
        if is_activation:
            layer = getattr(engine, f"Minkowski{kind}")(*arguments.get(kind, ()))
            probes[f"Minkowski{kind}"] = probe(conv, layer)
    for name in ("BatchNorm", "SyncBatchNorm", "InstanceNorm", "StableInstanceNorm"):
        probes[f"Minkowski{name}"] = lambda name=name: made(engine, f"Minkowski{name}", (CHANNELS,), probe)
    probes["MinkowskiLinear"] = probe(engine.MinkowskiLinear(CHANNELS, 3))
    prune, union = engine.MinkowskiPruning(), engine.MinkowskiUnion()
    one = engine.MinkowskiConvolution(CHANNELS, 1, kernel_size=1, **three)
    probes["MinkowskiPruning"] = probe(prune, one, run=lambda prune, one, x: prune(x, (one(x).F > 0).squeeze()))
    probes["MinkowskiUnion"] = probe(union, conv, run=lambda union, conv, x: union(conv(x), x))
    probes["cat"] = probe(conv, run=lambda conv, x: engine.cat(conv(x), x))
    probes["sum"] = probe(conv, run=lambda conv, x: engine.sum(conv(x), x, x))
    probes["mean"] = probe(conv, run=lambda conv, x: engine.mean(conv(x), x, x))
    spread = engine.MinkowskiBroadcast()
    probes["MinkowskiBroadcast"] = probe(spread, pool, run=lambda spread, pool, x: engine.cat(x, spread(x, pool(x))))
    for name in ("MinkowskiToDenseTensor", "MinkowskiToFeature", "MinkowskiStackSum"):
        probes[name] = lambda name=name: made(engine, name, (), probe)
    return probes


PROBES = {
    "spconv.pytorch": spconv_probes,
    "torchsparse": torchsparse_probes,
    "MinkowskiEngine": minkowski_probes,
}
NOT_TRACED = {  # the stand-ins lack backbones; test_real_libraries.py traces the real ones
    *("backbones.SparseResUNet42", "backbones.SparseResNet21D", "backbones.modules.SparseConvBlock"),
    *("backbones.modules.SparseConvTransposeBlock", "backbones.modules.SparseResBlock"),
}


@pytest.mark.usefixtures("stand_in_libraries")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", PROBES)
def test_traces_do_what_the_tables_say(library: str) -> None:
    says, probes = table(library), PROBES[library]()
    served = {name for name, verdict in says.items() if verdict == "served"}
    assert served - set(probes) == served & NOT_TRACED
    traced = {name: is_traced() for name, is_traced in probes.items()}
    wrong = {name: says[name] for name, ok in traced.items() if ok != (says[name] == "served")}
    assert wrong == {}, "OPERATORS.md says otherwise"


@pytest.mark.usefixtures("stand_in_libraries")
@pytest.mark.parametrize(("mode", "reduce"), [("SUM", 3), ("AVG", 2), ("MAX", 1)])
def test_a_global_pool_reduces_as_its_mode_says(mode: str, reduce: int) -> None:
    engine = load("MinkowskiEngine")
    pool = engine.MinkowskiGlobalPooling(engine.PoolingMode[f"GLOBAL_{mode}_POOLING_KERNEL"])
    gate = engine.MinkowskiBroadcastMultiplication()
    module = Layer(pool, gate, run=lambda pool, gate, x: gate(x, pool(x)).F).eval()
    network = from_torch(module, networks.minkowski_example(engine)).network
    pooled = next(n.global_pool for n in parse(network).nodes if n.HasField("global_pool"))
    assert pooled.reduce == reduce
    other = Layer(pool, run=lambda pool, x: pool(x, x.C)).eval()
    with pytest.raises(ExportError, match="onto given coordinates is not in the model format"):
        from_torch(other, networks.minkowski_example(engine))


def test_the_table_of_arithmetic_has_functions_that_are_traced_or_refused_with_advice() -> None:
    section = TEXT[TEXT.index("## Arithmetic of rows\n") :].removeprefix("## ").partition("\n## ")[0]
    rows = [row.strip("|").split(" | ") for row in section.splitlines() if row.startswith("| ")]
    checked = 0
    for first, here in rows[1:]:
        for name in re.findall(r"`(\w+)`", first):
            assert here.startswith(("served", "refused"))
            assert (name in HANDLERS) == here.startswith("served"), name
            assert here.startswith("served") or advice.on(name), name
            checked += name != "dense"
    assert checked > 30
