"""Kernels of MinkowskiEngine and spconv in the served order, against their published rules cell by cell."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from voxserve.export import kernel_order


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

    # kernel_region.hpp: offset = ind < r ? ind + 1 : ind - 2 r
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


def test_a_kernel_that_could_be_of_either_version_is_of_the_second() -> None:
    weight = np.arange(3.0**5).reshape(3, 3, 3, 3, 3)
    served = kernel_order.from_spconv(weight, (3, 3, 3), 3)
    assert served[1, 2, 0] == weight[0, 1, 0, 0, 2]  # cell (0, 0, 1) of x, y, z is 1 on z


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
