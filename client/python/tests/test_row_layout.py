"""Tests the rule for the rows of a cloud, with the values that drivers send."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from voxserve.point_cloud import as_cloud
from voxserve.row_layout import row_step_of

POINTS = np.arange(64 * 64 * 4, dtype=np.float32).reshape(-1, 4)


def organised(row_step: int, data: bytes = POINTS.tobytes(), height: int = 64, width: int = 64) -> Any:
    """Returns a PointCloud2 of rows of points, 16 bytes each."""
    fields = [SimpleNamespace(name=name, offset=4 * i, datatype=7, count=1) for i, name in enumerate("xyzi")]
    return SimpleNamespace(width=width, height=height, fields=fields, is_bigendian=False, point_step=16,
                           row_step=row_step, data=data, is_dense=True)  # fmt: skip


# 0: velodyne#279; all bytes: common_interfaces#320; the others are the size of a point, the number of points in a row,
# and row steps that are too small or too large.
@pytest.mark.parametrize("row_step", [0, 16, 64, 1023, 1024, 1025, 65536, 65600])
def test_packed_bytes_are_packed_whatever_the_cloud_says(row_step: int) -> None:
    for height, width in ((64, 64), (1, 4096), (4096, 1)):
        cloud = as_cloud(organised(row_step, height=height, width=width))
        np.testing.assert_array_equal(cloud.values("y"), POINTS[:, 1])
        assert row_step_of(4096, height, 16, row_step, 65536) == width * 16


@pytest.mark.parametrize("cut", [0, 16])
def test_the_last_row_may_lack_its_padding(cut: int) -> None:
    padded = np.full((64, 1040), 255, np.uint8)
    padded[:, :1024] = POINTS.view(np.uint8).reshape(64, 1024)
    cloud = as_cloud(organised(1040, padded.tobytes()[: padded.size - cut]))
    np.testing.assert_array_equal(cloud.values("i"), POINTS[:, 3])


def test_a_single_row_has_less_padding_than_a_point() -> None:
    assert row_step_of(3, 1, 4, 15, 15) == 15
    assert row_step_of(6, 2, 4, 16, 32) == 16
    with pytest.raises(ValueError, match="3 points of 4 bytes take 12 bytes, but there are 16"):
        row_step_of(3, 1, 4, 16, 16)


def test_no_points_have_no_bytes() -> None:
    assert row_step_of(0, 0, 0, 0, 0) == row_step_of(0, 64, 16, 1024, 0) == 0
    assert as_cloud(organised(1024, b"", width=0)).values("x").shape == (0,)
    with pytest.raises(ValueError, match="width 4096 x height 0 are no points, but the message has 65536 bytes"):
        as_cloud(organised(65536, height=0, width=4096)).values("x")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((4096, 64, 16, 1040, 5), r"4096 points of 16 bytes in 64 rows take 65536 bytes, or 66560 with the row_step of "
                                  r"1040, but there are 5"),
        ((4096, 64, 16, 1023, 63 * 1023 + 1024), "take 65536 bytes, but there are 65473"),
        ((4096, 64, 16, 0, 65636), "but there are 65636"),
        ((4096, 1, 16, 65536, 65536 + 100), "but there are 65636"),
        ((4000, 1, 16, 64000, 65536), "4000 points of 16 bytes take 64000 bytes, but there are 65536"),
        ((300, 1, 20, 8028, 8028), "300 points of 20 bytes take 6000 bytes, but there are 8028"),
        ((7, 2, 16, 0, 112), "a height of 2 does not divide 7 points"),
        ((7, 1, 0, 0, 0), "point_step is 0 for 7 points"),
    ],
)  # fmt: skip
def test_other_sizes_are_refused(sizes: tuple[int, int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        row_step_of(*sizes)
