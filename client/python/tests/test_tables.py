"""Tests what callers hand over as points besides plain arrays: tables, tensors, masks, arrays of odd types and shapes.

The tables are those of pandas, polars and pyarrow where they are installed, and of small classes with their methods.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxserve import arrays, wire
from voxserve.encoding import encode_request
from voxserve.point_cloud import PointCloud, as_cloud

POINTS = np.random.default_rng(9).normal(0, 20, (50, 4)).astype(np.float32)
NAMES = ("x", "y", "z", "intensity")


def values_of(cloud: PointCloud) -> Any:
    return np.stack([cloud.values(name) for name in NAMES], axis=1)


def encoded(cloud: PointCloud) -> Any:
    return wire.InferRequest.FromString(encode_request(wire.InferRequest(model="m"), cloud, 1 << 20)).cloud


class FakeTable:
    """Has what is read of a DataFrame of pandas or polars."""

    def __init__(self, columns: dict[Any, Any], **attributes: Any) -> None:
        self._columns = columns
        self.columns = list(columns)
        self.__dict__.update(attributes)

    def __getitem__(self, name: Any) -> Any:
        return self._columns[name]

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.stack(list(self._columns.values()), axis=1)


Make = Callable[[dict[str, Any]], Any]


def _pandas(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns)


def _polars(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("polars").DataFrame(columns)


def _pyarrow(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pyarrow").table(columns)


@pytest.fixture(params=[FakeTable, _pandas, _polars, _pyarrow], ids=["fake", "pandas", "polars", "pyarrow"])
def make(request: pytest.FixtureRequest) -> Make:
    return request.param


def columns_of(*names: str) -> dict[str, Any]:
    return {name: POINTS[:, NAMES.index(name.lower())].copy() for name in names}


@pytest.mark.parametrize("names", [NAMES, ("intensity", "z", "y", "x"), ("X", "Y", "Z", "Intensity")])
def test_columns_of_a_table_go_by_their_names(make: Make, names: tuple[str, ...]) -> None:
    cloud = as_cloud(make({"time": np.zeros(50), **columns_of(*names)}))
    np.testing.assert_array_equal(values_of(cloud), POINTS)


def test_columns_that_nobody_reads_may_have_any_type(make: Make) -> None:
    table = make({"name": ["a"] * 50, **columns_of(*NAMES), "index": np.arange(50), "valid": np.arange(50) % 2 == 0})
    cloud = as_cloud(table)
    np.testing.assert_array_equal(values_of(cloud), POINTS)
    assert cloud.values("index").tolist() == list(range(50))
    assert cloud.values("valid").tolist() == [1, 0] * 25
    sent = {field.name: field.type for field in encoded(cloud).fields}
    assert (sent["name"], sent["x"]) == (wire.POINT_FIELD_TYPE_UNSPECIFIED, wire.POINT_FIELD_TYPE_FLOAT32)
    with pytest.raises(ValueError, match="field 'name' has a type that cannot be sent"):
        cloud.values("name")


def test_what_is_missing_in_a_table_is_nan(make: Make) -> None:
    if make is FakeTable:
        pytest.skip("an array has no missing values")
    heights = [None if row == 3 else float(value) for row, value in enumerate(POINTS[:, 2])]
    rings: list[int | None] = [None, *range(49)]
    cloud = as_cloud(make({**columns_of(*NAMES), "z": heights, "ring": rings}))
    assert np.flatnonzero(np.isnan(cloud.values("z"))).tolist() == [3]
    np.testing.assert_array_equal(cloud.values("z")[4:], POINTS[4:, 2])
    assert np.isnan(cloud.values("ring")[0])
    assert cloud.values("ring")[1:].tolist() == list(range(49))


def test_a_column_gets_another_name(make: Make) -> None:
    table = make({**columns_of("x", "y", "z"), "intensity": np.zeros(50), "reflectivity": POINTS[:, 3].copy()})
    for fields in ("intensity=reflectivity", {"intensity": "reflectivity"}):
        np.testing.assert_array_equal(values_of(as_cloud(table, fields)), POINTS)
    half = as_cloud(table, "intensity=reflectivity*0.5+1").values("intensity")
    np.testing.assert_array_equal(half, (POINTS[:, 3].astype(np.float64) * 0.5 + 1).astype(np.float32))
    with pytest.raises(ValueError, match="say intensity=i, but the points have x, y, z, intensity, reflectivity"):
        as_cloud(table, {"intensity": "i"})


def test_tables_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(columns_of(*NAMES))
    np.testing.assert_array_equal(values_of(as_cloud(pandas.DataFrame(POINTS))), POINTS)  # columns 0, 1, 2, 3
    np.testing.assert_array_equal(values_of(as_cloud(table.astype(object))), POINTS)
    np.testing.assert_array_equal(values_of(as_cloud(table.convert_dtypes())), POINTS)
    missing = table.convert_dtypes()
    missing.loc[7, "x"] = pandas.NA
    assert np.flatnonzero(np.isnan(as_cloud(missing).values("x"))).tolist() == [7]
    np.testing.assert_array_equal(values_of(as_cloud(table.reset_index())), POINTS)
    np.testing.assert_array_equal(values_of(as_cloud(table[::2])), POINTS[::2])
    assert as_cloud(table.set_index("intensity")).field("intensity") is None
    for order in ([1, 2, 3], [3, 0, 1, 2]):
        with pytest.raises(ValueError, match=rf"have the numbers {order[0]}, .* are not 0, 1, 2, \.\.\.; name them"):
            as_cloud(pandas.DataFrame(POINTS)[order])
    with pytest.raises(ValueError, match="two columns named 'x'"):
        as_cloud(pandas.concat([table, table[["x"]]], axis=1))
    with pytest.raises(ValueError, match="each needs a text"):
        as_cloud(pandas.concat({"a": table}, axis=1))
    with pytest.raises(ValueError, match="column 'intensity' is"):
        as_cloud(table.assign(intensity="high"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (FakeTable({"x": POINTS[:, 0], 1: POINTS[:, 1]}), r"columns are named \['x', 1\]"),
        (
            FakeTable({1: POINTS[:, 0], 2: POINTS[:, 1]}),
            r"have the numbers 1, 2, which are not 0, 1, 2, \.\.\.; name them",
        ),
        (FakeTable({"x": ["a", "b"]}), "column 'x' is <U1"),
        (FakeTable({"a": ["a", "b"], "b": ["a", "b"]}), "none of the columns a, b has a type that can be sent"),
        (FakeTable({"x": np.zeros((2, 2))}), "one-dimensional"),
        ({0: np.zeros(2), 1: np.zeros(2)}, r"columns are named \[0, 1\]"),
        ({"x": np.zeros(2, "datetime64[ns]")}, "column 'x' is datetime64"),
        ({"x": np.array([10**400, 1], object)}, "column 'x' is object"),
        (np.full((2, 3), 10**400, object), "points are object"),
    ],
)
def test_tables_that_cannot_be_read(table: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_cloud(table)


@pytest.mark.parametrize("path", ["scan.bin", Path("scan.bin")])
def test_paths_are_told_how_they_are_read(path: Any) -> None:
    with pytest.raises(ValueError, match=r"the path scan.bin; voxserve.read\(path\) reads a scan"):
        as_cloud(path)


def test_tables_that_are_not_computed_yet() -> None:
    class Lazy:
        columns = ("x", "y", "z")

        def __getitem__(self, name: str) -> Any:
            raise TypeError("not subscriptable")

    with pytest.raises(ValueError, match="Lazy gives no columns by their names; make a table of it first"):
        as_cloud(Lazy())


# Shapes


@pytest.mark.parametrize("count", [9, 50])
def test_an_array_whose_points_are_columns_is_refused(count: int) -> None:
    for rows in (3, 4, 5):
        points = np.zeros((rows, count), np.float32)
        for order in (points, np.asfortranarray(points)):
            with pytest.raises(ValueError, match=rf"shape \({rows}, {count}\).*pass points.T"):
                as_cloud(order)
            with pytest.raises(ValueError, match=r"points\.T"):
                as_cloud(order, ["x", "y", "z"])
            with pytest.raises(ValueError, match=r"points\.T"):
                as_cloud(order, "x:f32,y:f32,z:f32")


def test_few_points_of_many_values_are_points() -> None:
    np.testing.assert_array_equal(values_of(as_cloud(POINTS[:1])), POINTS[:1])
    wide = np.arange(48, dtype=np.float32).reshape(4, 12)
    assert as_cloud(wide, ["x", "y", "z", *"-" * 9]).values("y").tolist() == [1, 13, 25, 37]
    assert as_cloud(np.zeros((12, 12), np.float32)).num_points == 12
    assert as_cloud(np.zeros((0, 4), np.float32)).num_points == 0
    np.testing.assert_array_equal(values_of(as_cloud(np.ascontiguousarray(POINTS.T).T)), POINTS)


# Masks


def test_masked_values_become_nan() -> None:
    mask = np.zeros(POINTS.shape, bool)
    mask[:10] = True
    mask[20, 3] = True
    cloud = as_cloud(np.ma.masked_array(POINTS, mask))
    expected = np.where(mask, np.nan, POINTS)
    np.testing.assert_array_equal(values_of(cloud), expected)
    whole = np.round(POINTS).astype(np.int16)
    np.testing.assert_array_equal(
        values_of(as_cloud(np.ma.masked_array(whole, mask))), np.where(mask, np.nan, whole).astype(np.float32)
    )
    columns = {name: np.ma.masked_array(POINTS[:, i], mask[:, i]) for i, name in enumerate(NAMES)}
    np.testing.assert_array_equal(values_of(as_cloud(columns)), expected)


def test_masked_rows_in_a_list_become_nan() -> None:
    mask = np.zeros(POINTS.shape, bool)
    mask[2, 0] = True
    rows = np.ma.masked_array(POINTS, mask)
    expected = np.where(mask, np.nan, POINTS)
    np.testing.assert_array_equal(values_of(as_cloud(list(rows))), expected)
    np.testing.assert_array_equal(values_of(as_cloud((*POINTS[:2], *rows[2:]))), expected)
    with pytest.raises(ValueError, match="shape"):
        as_cloud([rows[0], rows[1, :3]])


def test_a_mask_of_nothing_changes_nothing() -> None:
    masked = np.ma.masked_array(POINTS, np.zeros(POINTS.shape, bool))
    assert np.shares_memory(np.asarray(as_cloud(masked).data), POINTS)


def test_masks_of_structured_arrays() -> None:
    points = np.ones(3, [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("ring", "u1")])
    masked = np.ma.masked_array(points, [(0, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, 0)])
    np.testing.assert_array_equal(as_cloud(masked).values("y"), np.float32([1, np.nan, 1]))
    assert as_cloud(masked).values("x").tolist() == [1, 1, 1]
    masked = np.ma.masked_array(points, [(0, 0, 0, 1), (0, 0, 0, 0), (0, 0, 0, 0)])
    with pytest.raises(ValueError, match="field 'ring' is uint8, which cannot say that masked values are none"):
        as_cloud(masked)


# Types


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.longdouble, object])
def test_wide_types_become_float64(dtype: Any) -> None:
    points = np.abs(np.round(POINTS)).astype(dtype)
    cloud = as_cloud(points)
    assert cloud.fields[0].type == "f64"
    np.testing.assert_array_equal(values_of(cloud), np.abs(np.round(POINTS)))


def test_none_among_objects_is_nan() -> None:
    cloud = as_cloud([[1, 2, None], [4, 5, 6]])
    np.testing.assert_array_equal(cloud.values("z"), np.float32([np.nan, 6]))


def test_bfloat16_of_numpy() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rounded = POINTS.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(values_of(as_cloud(rounded)), rounded.astype(np.float32))


class FakeTensor:
    """Does as torch.Tensor: NumPy cannot read one that needs a gradient, is on a GPU or has bfloat16 values."""

    def __init__(self, values: Any, *, grad: bool = False, device: str = "cpu", bfloat16: bool = False) -> None:
        self.values, self.grad, self.device, self.bfloat16 = values, grad, device, bfloat16

    def detach(self) -> FakeTensor:
        return FakeTensor(self.values, device=self.device, bfloat16=self.bfloat16)

    def cpu(self) -> FakeTensor:
        return FakeTensor(self.values, grad=self.grad, bfloat16=self.bfloat16)

    def float(self) -> FakeTensor:
        return FakeTensor(self.values, grad=self.grad, device=self.device)

    def numpy(self) -> Any:
        if self.grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        if self.device != "cpu" or self.bfloat16:
            raise TypeError("can't convert it to numpy; or got unsupported ScalarType BFloat16")
        return self.values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()


@pytest.mark.parametrize("kind", [{}, {"grad": True}, {"device": "cuda:0"}, {"bfloat16": True, "grad": True}])
def test_tensors(kind: dict[str, Any]) -> None:
    np.testing.assert_array_equal(values_of(as_cloud(FakeTensor(POINTS, **kind))), POINTS)
    columns = {name: FakeTensor(POINTS[:, i], **kind) for i, name in enumerate(NAMES)}
    np.testing.assert_array_equal(values_of(as_cloud(columns)), POINTS)


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(POINTS)
    np.testing.assert_array_equal(values_of(as_cloud(tensor.clone().requires_grad_())), POINTS)
    np.testing.assert_array_equal(values_of(as_cloud(tensor.bfloat16())), tensor.bfloat16().float().numpy())
    np.testing.assert_array_equal(values_of(as_cloud(tensor.half())), tensor.half().float().numpy())
    assert np.shares_memory(arrays.plain_array(tensor), POINTS)
    with pytest.raises(ValueError, match=r"pass points\.T"):
        as_cloud(tensor.T)
