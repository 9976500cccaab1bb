"""Tests the conversion of other libraries' kernels to the served order, cell by cell, by those libraries' rules."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from voxserve.export import kernel_order


@pytest.mark.parametrize("sizes", [(3, 3, 3), (1, 3, 5), (3, 1), (5,)])
def test_odd_torchsparse_kernels_run_the_first_axis_fastest(sizes: tuple[int, ...]) -> None:
    cells = list(itertools.product(*map(range, sizes)))
    weight = np.zeros((len(cells), 2, 3))
    for cell in cells:  # torchsparse's rule for odd kernels, with sizes k0, k1, k2: k = d0 + k0 * (d1 + k1 * d2)
        k = sum(d * int(np.prod(sizes[:axis])) for axis, d in enumerate(cell))
        weight[k] = hash_of(cell)
    served = kernel_order.from_torchsparse(weight, sizes)
    for k, cell in enumerate(cells):  # product() runs the last axis fastest, as the served order does
        assert (served[k] == hash_of(cell)).all()


def test_even_torchsparse_kernels_stay_as_they_are() -> None:
    weight = np.arange(8 * 2 * 3).reshape(8, 2, 3)
    np.testing.assert_array_equal(kernel_order.from_torchsparse(weight, (2, 2, 2)), weight)


def test_torchsparse_kernels_of_another_volume_are_refused() -> None:
    with pytest.raises(ValueError, match=r"3x3x3 kernel needs \[27, Cin, Cout\], not \[8, 2, 3\]"):
        kernel_order.from_torchsparse(np.zeros((8, 2, 3)), (3, 3, 3))


@pytest.mark.parametrize("sizes", [(3, 3, 3), (1, 1, 3), (2, 3, 4), (2, 2, 2, 2)])
def test_minkowski_kernels_run_the_first_axis_fastest(sizes: tuple[int, ...]) -> None:
    cells = list(itertools.product(*map(range, sizes)))
    weight = np.zeros((len(cells), 2, 3))
    for cell in cells:
        k = sum(d * int(np.prod(sizes[:axis])) for axis, d in enumerate(cell))
        weight[k] = hash_of(cell)
    for k, row in enumerate(kernel_order.from_minkowski(weight, sizes)):
        assert (row == hash_of(cells[k])).all()


@pytest.mark.parametrize("sizes", [(3, 3, 3), (3, 3, 3, 3), (1, 5, 3), (7,)])
def test_minkowski_crosses_become_ascending(sizes: tuple[int, ...]) -> None:
    def on_axis(axis: int, offset: int) -> int:
        return 100 * (axis + 1) + offset

    # MinkowskiEngine's kernel_region.hpp: offset = ind < r ? ind + 1 : ind - 2 r, where r = size / 2
    theirs, ours = [0], [0]
    for axis, size in enumerate(sizes):
        r = size // 2
        theirs += [on_axis(axis, ind + 1 if ind < r else ind - 2 * r) for ind in range(size - 1)]
        ours += [on_axis(axis, offset) for offset in range(-r, r + 1) if offset]
    weight = np.array(theirs)[:, None, None] * np.ones((1, 2, 3))
    served = kernel_order.from_minkowski_cross(weight, sizes)
    assert served.shape == weight.shape
    assert served[:, 1, 2].tolist() == ours


@pytest.mark.parametrize("size_xyz", [(3, 3, 3), (1, 1, 3), (2, 3, 4)])
def test_spconv_kernels_of_either_version(size_xyz: tuple[int, int, int]) -> None:
    x, y, z = size_xyz
    rng = np.random.default_rng(1)
    of_spconv_2 = rng.normal(size=(7, z, y, x, 5))
    of_spconv_1 = np.moveaxis(of_spconv_2, 0, -1)
    served = kernel_order.from_spconv(of_spconv_2, size_xyz, 7)
    assert served.shape == (x * y * z, 5, 7)
    for i, j, k, c_in, c_out in itertools.product(range(x), range(y), range(z), range(5), range(7)):
        assert served[(i * y + j) * z + k, c_in, c_out] == of_spconv_2[c_out, k, j, i, c_in]
    np.testing.assert_array_equal(kernel_order.from_spconv(of_spconv_1, size_xyz, 7), served)


@pytest.mark.parametrize("dimension", [1, 2, 3, 4])
@pytest.mark.parametrize(("c_in", "c_out"), [(5, 7), (7, 5), (4, 4), (1, 6), (6, 1)])
def test_spconv_multiplies_a_kernel_of_one_cell_as_it_lies_in_memory(dimension: int, c_in: int, c_out: int) -> None:
    rng = np.random.default_rng(7)
    x, size = rng.normal(size=(9, c_in)), (1,) * dimension
    weight = rng.normal(size=(c_out, *size, c_in))
    memory = weight.ravel()
    expected = np.zeros((9, c_out))
    for row, i, o in itertools.product(range(9), range(c_in), range(c_out)):
        expected[row, o] += x[row, i] * memory[i * c_out + o]  # spconv computes mm(x, weight.view(c_in, c_out))
    served = kernel_order.from_spconv(weight, size, c_out)
    np.testing.assert_allclose(x @ served[0], expected)
    # An array in another memory order has the same values, and so must give the same result.
    np.testing.assert_array_equal(kernel_order.from_spconv(np.asfortranarray(weight), size, c_out), served)


def test_spconv_1_stores_a_kernel_of_one_cell_as_it_multiplies_it() -> None:
    weight = np.random.default_rng(8).normal(size=(1, 1, 1, 5, 7))
    np.testing.assert_array_equal(kernel_order.from_spconv(weight, (1, 1, 1), 7), weight[0, 0])


def test_spconv_reads_a_kernel_of_one_cell_and_a_stride_by_its_shape() -> None:
    weight = np.random.default_rng(9).normal(size=(7, 1, 1, 1, 5))
    served = kernel_order.from_spconv(weight, (1, 1, 1), 7, has_stride=True)
    np.testing.assert_array_equal(served[0], weight[:, 0, 0, 0, :].T)


def test_spconv_itself_multiplies_kernels_of_one_cell_so() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    spconv = pytest.importorskip("spconv.pytorch", reason="spconv is not installed")
    rng = np.random.default_rng(10)
    indices = np.array([[0, 0, 0, 0], [0, 2, 2, 2], [0, 3, 2, 4]], np.int32)
    x = rng.normal(size=(3, 5)).astype(np.float32)
    tensor = spconv.SparseConvTensor(torch.from_numpy(x), torch.from_numpy(indices), [5, 5, 5], 1)
    for layer, has_stride in (
        (spconv.SubMConv3d(5, 7, 1, bias=False), False),
        (spconv.SparseConv3d(5, 7, 1, bias=False), False),
        (spconv.SparseConv3d(5, 7, 1, stride=2, bias=False), True),
    ):
        with torch.no_grad():
            result = layer.eval()(tensor)
        kept = [i for i, site in enumerate(indices[:, 1:]) if not has_stride or (site % 2 == 0).all()]
        served = kernel_order.from_spconv(layer.weight.detach().numpy(), (1, 1, 1), 7, has_stride=has_stride)
        rows = {tuple(site): row for site, row in zip(result.indices.tolist(), result.features.numpy(), strict=True)}
        assert len(rows) == len(kept)
        for i in kept:
            batch, *site = indices[i].tolist()
            at = (batch, *(v // 2 for v in site)) if has_stride else (batch, *site)
            np.testing.assert_allclose(rows[at], x[i] @ served[0], rtol=1e-5, atol=1e-6)


def test_a_kernel_that_could_be_of_either_version_is_of_the_second() -> None:
    weight = np.arange(3.0**5).reshape(3, 3, 3, 3, 3)
    served = kernel_order.from_spconv(weight, (3, 3, 3), 3)
    assert served[1, 2, 0] == weight[0, 1, 0, 0, 2]  # cell (0, 0, 1) of x, y, z is 1 on z


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("sizes", [(3, 3, 3), (2, 4), (1, 3, 2, 2), (5,)])
def test_sparseconvnet_kernels_of_groups(sizes: tuple[int, ...], groups: int) -> None:
    volume, c_in, c_out = int(np.prod(sizes)), 6 // groups, 12 // groups
    theirs = np.random.default_rng(2).normal(size=(volume, groups, c_in, c_out))
    served = kernel_order.from_sparseconvnet(theirs, sizes, 12, groups)
    assert served.shape == (volume, c_in, 12)
    for k, g, i, o in itertools.product(range(volume), range(groups), range(c_in), range(c_out)):
        assert served[k, i, g * c_out + o] == theirs[k, g, i, o]


def test_sparseconvnet_kernels_of_the_time_before_groups() -> None:
    weight = np.random.default_rng(3).normal(size=(8, 5, 7))
    np.testing.assert_array_equal(kernel_order.from_sparseconvnet(weight, (2, 2, 2), 7), weight)


@pytest.mark.parametrize(
    ("sizes", "offsets"),
    [
        ((2,), [(-1,), (0,)]),
        ((3, 2), [(-1, -1), (-1, 0), (0, -1), (0, 0), (1, -1), (1, 0)]),
        ((1, 4), [(0, -2), (0, -1), (0, 0), (0, 1)]),
    ],
)
def test_sparseconvnet_offsets_of_even_submanifold_kernels(
    sizes: tuple[int, ...], offsets: list[tuple[int, ...]]
) -> None:
    assert kernel_order.sparseconvnet_offsets(sizes) == offsets


@pytest.mark.parametrize(
    ("shape", "groups", "needed"),
    [
        ((27, 1, 4, 6), 1, r"2x2x2 kernel of 1 groups needs \[8, 1, Cin / 1, 6\] or \[8, Cin, 6\]"),
        ((8, 1, 4, 6), 2, r"of 2 groups needs \[8, 2, Cin / 2, 3\], not \[8, 1, 4, 6\]"),
        ((8, 4, 6), 2, r"of 2 groups needs \[8, 2, Cin / 2, 3\], not \[8, 4, 6\]"),
        ((8, 2, 2, 6), 2, r"not \[8, 2, 2, 6\]"),
        ((8, 4, 5), 1, r"or \[8, Cin, 6\], not \[8, 4, 5\]"),
        ((32, 6), 1, r"not \[32, 6\]"),
        ((8, 1, 4, 6), 0, "6 output channels do not make 0 groups"),
        ((8, 4, 1, 1), 4, "6 output channels do not make 4 groups"),
    ],
)
def test_sparseconvnet_kernels_of_another_shape_are_refused(shape: tuple[int, ...], groups: int, needed: str) -> None:
    with pytest.raises(ValueError, match=needed):
        kernel_order.from_sparseconvnet(np.zeros(shape), (2, 2, 2), 6, groups)


def test_kernels_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"needs \[7, 3, 1, 1, Cin\] or \[3, 1, 1, Cin, 7\], not \[7, 1, 1, 3, 5\]"):
        kernel_order.from_spconv(np.zeros((7, 1, 1, 3, 5)), (1, 1, 3), 7)
    with pytest.raises(ValueError, match=r"2x2x2 kernel needs \[8, Cin, Cout\], not \[27, 2, 3\]"):
        kernel_order.from_minkowski(np.zeros((27, 2, 3)), (2, 2, 2))
    with pytest.raises(ValueError, match=r"cross of 3x3x3, odd sizes, needs \[7, Cin, Cout\], not \[9, 2, 3\]"):
        kernel_order.from_minkowski_cross(np.zeros((9, 2, 3)), (3, 3, 3))
    with pytest.raises(ValueError, match="cross of 2x2, odd sizes"):
        kernel_order.from_minkowski_cross(np.zeros((3, 2, 3)), (2, 2))


def hash_of(cell: tuple[int, ...]) -> int:
    return sum(d * 100**axis for axis, d in enumerate(cell))
