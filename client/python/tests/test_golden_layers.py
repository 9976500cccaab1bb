"""Compares layers of the stand-ins, and what is exported from them, with what the libraries themselves computed.

The numbers are in tests/golden; minkowski_layers.py and spconv_layers.py made them with the libraries, and say how.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import serving

torch = pytest.importorskip("torch", reason="torch is not installed")
import golden_layers  # noqa: E402
import minkowski_layers  # noqa: E402
import spconv_layers  # noqa: E402
from traced_networks import load  # noqa: E402

from voxserve.export import ExportError, from_torch  # noqa: E402
from voxserve.verify import served  # noqa: E402
from voxserve.verify.compare import Comparison, Model  # noqa: E402
from voxserve.verify.reference import Reference, Rows  # noqa: E402
from voxserve.verify.sites import rows_of  # noqa: E402
from voxserve.verify.sparse_tensors import coordinates_of, features_of  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("stand_in_libraries"),
    pytest.mark.filterwarnings("ignore:.*the pool's input has values below 0"),
]

SOURCES: dict[str, tuple[ModuleType, str, dict[str, Any]]] = {  # library -> cases, module, from_torch's options
    "minkowski": (minkowski_layers, "MinkowskiEngine", {}),
    "spconv": (spconv_layers, "spconv.pytorch", {"axes": "zyx"}),
}
ALL = [(library, name) for library, (cases, _, _) in SOURCES.items() for name in cases.CASES]
REFUSED = {  # case -> why the model format does not have it
    "expand 3 / 2": "expand_coordinates is not in the model format. Expand without a stride",
    "expand 2 / 2": "expand_coordinates is not in the model format. Expand without a stride",
    "Avg 3 / 3": "MinkowskiEngine's kernel begins at its site",
    "unpool 3 / 3": "MinkowskiEngine's kernel begins at its site",
    "Max 2 / 3": "MinkowskiEngine's maximum is -3.4e38",
    "a * b": "a product or quotient of sparse tensors on other sites",
}


def network(library: str, name: str) -> tuple[Any, Any, dict[str, Any]]:
    cases, module, options = SOURCES[library]
    engine = load(module)
    return cases.made(engine, name), cases.example(engine), options


def golden(library: str, name: str) -> Any:
    return golden_layers.read(f"{library}_layers")(name)


def reference(library: str, name: str, example: Any) -> Reference:
    """Returns what the library computed as a reference."""
    table = golden(library, name)
    width = 1 + 3
    rows = Rows(table[:, width:], table[:, :width].astype(np.int32))
    return Reference(Rows(features_of(example).numpy(), coordinates_of(example)), {"output": rows})


@pytest.mark.parametrize(("library", "name"), ALL)
def test_stand_ins_compute_what_the_library_does(library: str, name: str) -> None:
    module, example, _ = network(library, name)
    with torch.no_grad():
        made, expected = golden_layers.table(module(example)), golden(library, name)
    assert made.shape == expected.shape
    np.testing.assert_array_equal(made[:, :4], expected[:, :4])
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


def test_the_stand_in_computes_spconvs_random_convolutions() -> None:
    """Compares 250 convolutions on 1 to 4 axes with spconv 2.3.8; tests/oracles/spconv_convolutions.py wrote them."""
    spconv = load("spconv.pytorch")
    with np.load(golden_layers.FOLDER / "spconv_convolutions.npz") as archive:
        arrays = {key: archive[key] for key in archive.files}
    names = sorted({key.partition("_")[0] for key in arrays})
    assert len(names) == 250
    for name in names:
        part = {key.partition("_")[2]: values for key, values in arrays.items() if key.startswith(f"{name}_")}
        dimension, kind, num_samples = part["params"][:3].tolist()
        kernel, stride, dilation, padding, shape, _ = part["params"][3:].reshape(6, 4)[:, :dimension].tolist()
        is_pool = kind == 5
        layers = ("SubMConv", "SparseConv", "SparseConv", "SparseConvTranspose", "SparseConvTranspose", "SparseMaxPool")
        channels = () if is_pool else part["w"].shape[1:]
        first = getattr(spconv, f"{layers[kind]}{dimension}d")(
            *channels, kernel, stride=stride, padding=padding, dilation=dilation, indice_key="k",
            **({} if is_pool else {"bias": False}),
        )  # fmt: skip
        rows, indices = map(torch.from_numpy, (part["x"], part["in"].astype(np.int32)))
        x = spconv.SparseConvTensor(rows, indices, shape, num_samples)
        with torch.no_grad():
            if not is_pool:
                first.weight.copy_(_stored(part["w"], kernel))
            y = first(x)
            if "w2" in part:
                back = getattr(spconv, f"SparseInverseConv{dimension}d")(*part["w2"].shape[1:], kernel, "k", bias=False)
                back.weight.copy_(_stored(part["w2"], kernel))
                features = y.features.clamp(min=0) if is_pool else y.features  # on a CPU a maximum begins at 0
                y = back(y.replace_feature(features))
        at = rows_of(y.indices.numpy(), part["out"])
        assert (at >= 0).all(), name
        assert len(at) == len(y.indices), name
        np.testing.assert_allclose(y.features.numpy()[at], part["y"], atol=1e-5, err_msg=name)


def _stored(cells: Any, kernel: list[int]) -> Any:
    """Converts cells [K, Cin, Cout] to spconv 2's weight [Cout, ..., Cin]."""
    return torch.from_numpy(cells.transpose(2, 0, 1).reshape(cells.shape[2], *kernel, cells.shape[1]).copy())


def test_expanding_computes_what_the_library_printed() -> None:
    """The report MinkowskiEngine#328 prints 0 5 0 / 4 3 0 / 0 0 0 for 0 2 / 1 3 and a 2 x 2 kernel of ones."""
    engine = load("MinkowskiEngine")
    layer = engine.MinkowskiConvolution(1, 1, kernel_size=2, expand_coordinates=True, dimension=2)
    layer.kernel.data.fill_(1)
    coordinates = torch.tensor([[0, 0, 1], [0, 1, 0], [0, 1, 1]], dtype=torch.int32)
    y = layer(engine.SparseTensor(torch.tensor([[2.0], [1.0], [3.0]]), coordinates))
    printed = np.zeros((3, 3))
    printed[tuple(y.C[:, 1:].T.numpy())] = y.F.detach().numpy()[:, 0]
    np.testing.assert_array_equal(printed, [[0, 5, 0], [4, 3, 0], [0, 0, 0]])
    assert len(y) == 8


@pytest.mark.parametrize("algorithm", ["Native", "MaskImplicitGemm"])
def test_a_maximum_begins_at_zero_with_one_algorithm(algorithm: str) -> None:
    spconv = load("spconv.pytorch")
    layer = spconv.SparseMaxPool3d(2, 2, algo=spconv.ConvAlgo[algorithm]).eval()
    x = spconv.SparseConvTensor(torch.tensor([[-2.0]]), torch.zeros((1, 4), dtype=torch.int32), [2, 2, 2], 1)
    sites = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 1]], dtype=torch.int32)
    other = spconv.SparseConvTensor(torch.tensor([[-2.0], [-3.0]]), sites, [2, 2, 2], 1)
    assert layer(x).features.tolist() == [[0.0 if algorithm == "Native" else -2.0]]
    served = "Native" if algorithm == "Native" else "the default"
    with pytest.warns(UserWarning, match=f"begins a maximum at 0.*Served is what {served} computes"):
        network = from_torch(layer, x, axes="zyx", other=other).network
    assert ("FUNCTION_RELU" in network.to_textproto()) == (algorithm == "Native")


@pytest.mark.parametrize(("library", "name"), ALL)
def test_what_is_exported_computes_what_the_library_does(tmp_path: Path, library: str, name: str) -> None:
    module, example, options = network(library, name)
    if name in REFUSED:
        with pytest.raises(ExportError, match=REFUSED[name]):
            from_torch(module, example, **options)
        return
    from_torch(module, example, **options).write(tmp_path / "model")
    comparison = Comparison(Model.read(tmp_path / "model"), reference(library, name, example))
    assert comparison.skipped == {}
    (deviation,) = comparison.outputs().values()
    assert deviation.is_within(1e-5), deviation
    assert deviation.magnitude > 0.05


@pytest.mark.integration
def test_the_server_computes_what_the_library_does(tmp_path: Path) -> None:
    """Compares all cases whose results are a tensor on sites with the server's float32 answers."""
    references = {}
    for number, (library, name) in enumerate(case for case in ALL if case[1] not in REFUSED):
        module, example, options = network(library, name)
        folder = tmp_path / "models" / f"m{number}"
        from_torch(module, example, **options).write(folder, config="precision: PRECISION_FLOAT32\n")
        references[folder.name] = (name, reference(library, name, example))
    with serving(tmp_path / "models", tmp_path / "log") as address:
        for model, (name, wanted) in references.items():
            answers = served.deviations(Model.read(tmp_path / "models" / model), wanted, address, model)
            assert answers, name
            for deviation in answers.values():
                assert deviation.is_within(1e-4), f"{name}: {deviation}"
