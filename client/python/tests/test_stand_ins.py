"""Tests the parts of the stand-ins around their layers: what repositories import, call and assign.

MinkowskiEngine at 02fc608, built for a CPU, printed the numbers here. test_golden_layers.py is about the layers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import traced_networks as networks  # noqa: E402
from torch import nn  # noqa: E402
from traced_networks import CHANNELS, load, round_trip  # noqa: E402

from voxserve.export import ExportError, from_torch  # noqa: E402

pytestmark = pytest.mark.usefixtures("stand_in_libraries")
POINTS = np.array([[1.5, -0.5, 0], [0.2, 3, 3], [1.9, -0.1, 0.9], [0, 3.5, 3]])
FEATURES = np.arange(8.0).reshape(4, 2)


def listed(values: Any) -> Any:
    return [np.asarray(v).tolist() for v in values]


def small(engine: Any) -> Any:
    coordinates = torch.tensor([[0, 0, 0, 1], [1, 2, 2, 2], [0, 0, 0, 0], [1, 2, 3, 2]], dtype=torch.int32)
    return engine.SparseTensor(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), coordinates)


def counting(engine: Any, **options: Any) -> Any:
    """Returns a convolution whose cell k has the weight k."""
    conv = engine.MinkowskiConvolution(1, 1, kernel_size=3, dimension=3, **options).requires_grad_(False)
    conv.kernel.copy_(torch.arange(27.0).reshape(27, 1, 1))
    return conv


def test_first_values_of_kernels() -> None:
    fill = load("MinkowskiEngine").utils.kaiming_normal_
    torch.manual_seed(0)
    kernel = fill(torch.zeros(4, 3, 2), mode="fan_out", nonlinearity="relu")
    np.testing.assert_allclose(kernel.flatten()[:3], [-0.56291991, -0.57618010, -0.12528929], rtol=1e-6)
    torch.manual_seed(0)
    np.testing.assert_allclose(fill(torch.zeros(3, 2)).flatten()[:2], [1.54099607, -0.29342890], rtol=1e-6)
    with pytest.raises(ValueError, match="fan_in or fan_out"):
        fill(torch.zeros(3, 2), mode="fan")


def test_voxels_and_batches() -> None:
    utils = load("MinkowskiEngine").utils
    voxels = [[1, -1, 0], [0, 3, 3]]
    made = utils.sparse_quantize(POINTS, FEATURES, return_index=True, return_inverse=True)
    assert listed(made) == [voxels, [[0, 1], [2, 3]], [0, 1], [0, 1, 0, 1]]
    made = utils.sparse_quantize(torch.tensor(POINTS), torch.tensor(FEATURES), quantization_size=2)
    assert listed(made) == [[[0, -1, 0], [0, 1, 1]], [[0, 1], [2, 3]]]
    assert utils.sparse_quantize(POINTS).tolist() == voxels
    maps = utils.sparse_quantize(POINTS, return_index=True, return_inverse=True, return_maps_only=True)
    assert listed(maps) == [[0, 1], [0, 1, 0, 1]]
    coordinates, features = utils.sparse_collate([POINTS, POINTS[:1]], [FEATURES, FEATURES[:1]])
    assert coordinates.tolist() == [[0, 1, -1, 0], [0, 0, 3, 3], [0, 1, -1, 0], [0, 0, 3, 3], [1, 1, -1, 0]]
    assert coordinates.dtype == torch.int32
    assert features.tolist() == [*FEATURES.tolist(), [0, 1]]
    assert utils.batched_coordinates([POINTS[:1]], dtype=torch.float32).tolist() == [[0, 1.5, -0.5, 0]]
    with pytest.raises(NotImplementedError, match="quantizes no labels"):
        utils.sparse_quantize(POINTS, labels=[0, 1, 2, 3])


def test_sparse_tensors() -> None:
    engine = load("MinkowskiEngine")
    x = small(engine)
    assert listed(x.decomposition_permutations) == listed(x._batchwise_row_indices) == [[0, 2], [1, 3]]
    assert listed(x.decomposed_features) == [[[1], [3]], [[2], [4]]]
    assert (x.dimension, x.coordinate_map_key.get_tensor_stride()) == (3, [1, 1, 1])
    floored = engine.SparseTensor(torch.ones(2, 1), torch.tensor([[0, -0.5, 0, 1], [0, 0.5, 0, 1]]))
    assert floored.C.tolist() == [[0, -1, 0, 1], [0, 0, 0, 1]]
    with pytest.raises(NotImplementedError, match=r"one row per voxel, as MinkowskiEngine.utils.sparse_quantize"):
        engine.SparseTensor(torch.ones(2, 1), torch.zeros((2, 4), dtype=torch.int32))
    difference = x * torch.full((4, 1), 2.0) - x
    assert (difference.F == x.F).all()
    assert (difference / x).F.tolist() == [[1]] * 4
    difference -= x
    assert difference.F.abs().max() == 0
    with pytest.raises(TypeError, match=r"not <class 'float'>"):
        x * 2.0
    with pytest.raises(ValueError, match="-= needs the same coordinates"):
        difference -= counting(engine, stride=2)(x)


def test_convolutions_onto_coordinates() -> None:
    engine = load("MinkowskiEngine")
    x, new = small(engine), torch.tensor([[0, 0, 1, 0], [1, 2, 2, 1]], dtype=torch.int32)
    y = counting(engine)(x, new)
    assert (y.C.tolist(), y.F[:, 0].tolist(), y.tensor_stride) == (new.tolist(), [49, 144], [0, 0, 0])
    assert counting(engine, expand_coordinates=True)(x, new).tensor_stride == [1, 1, 1]
    for onto in (x, x.coordinate_map_key):
        y = counting(engine)(x, onto)
        assert (y.F[:, 0].tolist(), y.tensor_stride) == ([25, 90, 61, 72], [1, 1, 1])
    y = engine.MinkowskiSumPooling(3, 1, dimension=3)(x, new)
    assert (y.F[:, 0].tolist(), y.tensor_stride) == ([4, 6], [1, 1, 1])
    with pytest.raises(ValueError, match="does not divide the tensor stride"):
        engine.MinkowskiConvolutionTranspose(1, 1, kernel_size=2, stride=2, dimension=3)(x)


class Onto(nn.Module):
    """Convolves onto the coordinates of its input, as a tensor, and perhaps goes on."""

    def __init__(self, engine: Any, goes_on: bool) -> None:
        super().__init__()
        self.conv = engine.MinkowskiConvolution(CHANNELS, 3, kernel_size=3, dimension=3)
        self.more = engine.MinkowskiConvolution(3, 3, kernel_size=3, dimension=3) if goes_on else None

    def forward(self, x: Any) -> Any:
        y = self.conv(x, x.C)
        return y if self.more is None else self.more(y)


def test_a_convolution_onto_a_tensor_of_coordinates_is_traced(tmp_path: Path) -> None:
    engine = load("MinkowskiEngine")
    example = networks.minkowski_example(engine)
    _, comparison = round_trip(tmp_path, networks.randomize(Onto(engine, False)), example)
    assert comparison.outputs()["output"].magnitude > 0.1
    with pytest.raises(ExportError, match="the tensor stride 0, so that every cell of a later kernel reads"):
        from_torch(Onto(engine, True).eval(), example)


def test_minkowski_names_that_repositories_use() -> None:
    engine = load("MinkowskiEngine")
    blocks = load("MinkowskiEngine.modules.resnet_block")
    assert (blocks.BasicBlock.expansion, blocks.Bottleneck.expansion) == (1, 4)
    cube = engine.RegionType.HYPER_CUBE
    assert engine.KernelGenerator(3, 1, 1, is_transpose=False, region_type=cube, dimension=3).kernel_volume == 27
    with pytest.raises(ValueError, match="must be odd for region_type HYPER_CROSS"):
        engine.KernelGenerator(2, region_type=engine.RegionType.HYPER_CROSS, dimension=3)
    assert engine.SparseTensorQuantizationMode.UNWEIGHTED_AVERAGE.name == "UNWEIGHTED_AVERAGE"


def test_layers_that_a_forward_makes_are_traced(tmp_path: Path) -> None:
    engine = load("MinkowskiEngine")

    class Inline(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = engine.MinkowskiConvolution(CHANNELS, 3, kernel_size=3, dimension=3)

        def forward(self, x: Any) -> Any:
            y = engine.MinkowskiReLU()(self.conv(x))
            mean = engine.MinkowskiGlobalAvgPooling()(y)
            return engine.MinkowskiMaxPooling(2, 2, dimension=3)(engine.MinkowskiBroadcastMultiplication()(y, mean))

    _, comparison = round_trip(tmp_path, networks.randomize(Inline()), networks.minkowski_example(engine))
    assert comparison.outputs()["output"].magnitude > 0.1


def test_features_are_assigned_as_in_spconv_1(tmp_path: Path) -> None:
    spconv = load("spconv")  # spconv 1 has its classes here

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = (spconv.SubMConv3d(n, 4, 3, indice_key="k", bias=False) for n in (CHANNELS, 4))
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: Any) -> Any:
            x = self.a(x)
            x.features = torch.relu(self.norm(x.features))
            x = self.b(x)
            x.features = x.features + 1.0
            return x

    _, comparison = round_trip(tmp_path, networks.randomize(Network()), networks.spconv_example(spconv), axes="zyx")
    assert comparison.outputs()["output"].magnitude > 0.1


def test_sparse_tensors_of_torchsparse_go_to_a_device() -> None:
    x = networks.torchsparse_example(load("torchsparse"))
    assert x.cuda() is x.to("cuda") is x.cpu() is x
