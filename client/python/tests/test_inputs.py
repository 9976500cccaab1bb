"""Tests inputs of other libraries, stand-ins of which have the libraries' attributes, and what a type checker says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import voxserve
from voxserve.point_cloud import as_cloud

SOURCES = Path(voxserve.__file__).parents[1]
Array = npt.NDArray[Any]


class Exchanged:
    """An array that offers DLPack alone."""

    def __init__(self, array: Array, device: int = 1) -> None:
        self._array, self._device = array, device

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0


def test_dlpack_arrays_are_read_where_they_are(points: npt.NDArray[np.float32]) -> None:
    cloud = as_cloud(Exchanged(points))
    assert (cloud.num_points, bytes(cloud.data)) == (10, points.tobytes())
    points[3, 1] = 77
    assert cloud.values("y")[3] == 77, "no copy"
    columns = {name: Exchanged(np.ascontiguousarray(column)) for name, column in zip("xyz", points.T[:3], strict=True)}
    np.testing.assert_array_equal(as_cloud(columns).values("z"), points[:, 2])


def test_dlpack_arrays_of_a_device_are_refused(points: npt.NDArray[np.float32]) -> None:
    with pytest.raises(ValueError, match="Exchanged, are in a device's memory; copy them to the host"):
        as_cloud(Exchanged(points, device=2))


class LegacyCloud:
    """Has what open3d.geometry.PointCloud has."""

    def __init__(self, points: Array, colors: Array, normals: Array) -> None:
        self.points, self.colors, self.normals = points, colors, normals

    def has_points(self) -> bool:
        return len(self.points) > 0


class Open3DTensor:
    """Has what open3d.core.Tensor has; it is in the memory of a device until cpu() is called."""

    def __init__(self, array: Array, is_here: bool = False) -> None:
        self._array, self._is_here = array, is_here

    def cpu(self) -> Open3DTensor:
        return Open3DTensor(self._array, True)

    def numpy(self) -> Array:
        assert self._is_here
        return self._array


class TensorCloud:
    """Has what open3d.t.geometry.PointCloud has."""

    def __init__(self, **attributes: Array) -> None:
        self.point = {name: Open3DTensor(values) for name, values in attributes.items()}

    def to_legacy(self) -> None: ...


def test_legacy_clouds_of_open3d() -> None:
    points, colours = np.arange(12.0).reshape(4, 3), np.linspace(0, 1, 12).reshape(4, 3)
    cloud = as_cloud(LegacyCloud(points, colours, np.zeros((0, 3))))
    assert [field.name for field in cloud.fields] == ["x", "y", "z", "red", "green", "blue"]
    np.testing.assert_array_equal(cloud.values("y"), points[:, 1])
    np.testing.assert_array_equal(cloud.values("blue"), colours[:, 2].astype(np.float32))
    empty = np.zeros((0, 3))
    assert as_cloud(LegacyCloud(empty, empty, empty)).num_points == 0


def test_tensor_clouds_of_open3d() -> None:
    positions = np.arange(6, dtype=np.float32).reshape(2, 3)
    cloud = as_cloud(
        TensorCloud(
            positions=positions, intensity=np.array([[0.5], [1]], np.float32), ring=np.array([[3], [9]], np.uint16),
            sweep=np.array([[1, 2], [3, 4]], np.int32),
        )
    )  # fmt: skip
    assert [(f.name, f.type) for f in cloud.fields] == [
        ("x", "f32"), ("y", "f32"), ("z", "f32"), ("intensity", "f32"), ("ring", "u16"), ("sweep_0", "i32"),
        ("sweep_1", "i32"),
    ]  # fmt: skip
    np.testing.assert_array_equal(cloud.values("x"), positions[:, 0])
    assert cloud.values("ring").tolist() == [3, 9]
    assert cloud.values("sweep_1").tolist() == [2, 4]
    renamed = as_cloud(TensorCloud(positions=positions, intensities=np.ones((2, 1))), {"intensity": "intensity"})
    assert renamed.values("intensity").tolist() == [1, 1]
    with pytest.raises(ValueError, match="the Open3D cloud has no positions; it has colors"):
        as_cloud(TensorCloud(colors=positions))


def test_real_open3d() -> None:
    open3d = pytest.importorskip("open3d")
    points = np.arange(12.0).reshape(4, 3)
    legacy = open3d.geometry.PointCloud(open3d.utility.Vector3dVector(points))
    np.testing.assert_array_equal(as_cloud(legacy).values("z"), points[:, 2])
    tensor = open3d.t.geometry.PointCloud.from_legacy(legacy)
    tensor.point["intensity"] = open3d.core.Tensor(np.ones((4, 1), np.float32))
    np.testing.assert_array_equal(as_cloud(tensor).values("z"), points[:, 2])
    assert as_cloud(tensor).values("intensity").tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("columns", [9, 200])
def test_exchanged_rows_and_columns_are_refused(columns: int) -> None:
    with pytest.raises(ValueError, match=r"points\.T"):
        as_cloud(np.zeros((4, columns), np.float32))


GOOD = """\
import numpy as np
import pandas
import voxserve

client = voxserve.Client()
array = np.zeros((3, 4), np.float32)
client.infer("m", array)
client.infer("m", [[0.0, 1.0, 2.0]])
client.infer("m", {"x": array[:, 0], "y": [1.0], "z": array[:, 2]})
client.infer("m", voxserve.read("scan.bin"))
client.infer("m", voxserve.Voxels(array, array))
client.infer("m", pandas.DataFrame(array))
voxserve.PointCloud.from_array(array)
"""
BAD = ('client.infer("m", "scan.bin")', 'client.infer("m", 7)', 'client.infer("m", None)', 'client.infer("m", [1, 2])')


def test_a_type_checker_knows_what_points_are(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed (the extra check)")
    lines = GOOD.splitlines()
    (tmp_path / "good.py").write_text("\n".join(lines))
    (tmp_path / "bad.py").write_text("import voxserve\nclient = voxserve.Client()\n" + "\n".join(BAD) + "\n")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--ignore-missing-imports",
        "--cache-dir",
        str(tmp_path),
        "good.py",
        "bad.py",
    ]
    run = subprocess.run(
        command, cwd=tmp_path, env={"MYPYPATH": str(SOURCES), "PATH": ""}, capture_output=True, text=True, timeout=300
    )
    errors = [
        line.partition(": ")[0] for line in run.stdout.splitlines() if ": error: " in line and "wire.py" not in line
    ]
    assert errors == [f"bad.py:{number}" for number in range(3, 3 + len(BAD))], run.stdout + run.stderr
