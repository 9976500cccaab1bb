"""Converts files laid out as torch.save writes them, and reads the result with NumPy. Also converts the published
files.
"""

from __future__ import annotations

import collections
import os
import pickle
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch_to_npz

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("VOXSERVE_SHARED_DATA") or REPOSITORY.parent / "shared" / "data")
DTYPES = {name: np.dtype(dtype) for name, dtype in torch_to_npz._STORAGES.items()}


class Storage:
    def __init__(self, key: str, values: np.ndarray) -> None:
        self.key, self.values = key, values


class Tensor:
    def __init__(self, storage: Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.args = (storage, offset, size, stride, False, collections.OrderedDict())

    def __reduce__(self) -> Any:
        return sys.modules["torch._utils"]._rebuild_tensor_v2, self.args


class Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Storage):
            return None
        name = next(n for n, dtype in DTYPES.items() if dtype == obj.values.dtype)
        return "storage", getattr(sys.modules["torch"], name), obj.key, "cpu", obj.values.size


@pytest.fixture
def save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """save(tree, *storages) writes a file as torch.save would and returns its path. Stand-ins for the modules of
    PyTorch give pickle the names that such files have.
    """
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in DTYPES:
        setattr(torch, name, type(name, (), {"__module__": "torch"}))

    def _rebuild_tensor_v2() -> None:
        raise NotImplementedError

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)

    def _save(tree: Any, *storages: Storage, byte_order: str = "little") -> Path:
        path = tmp_path / "in" / "small.pt"
        path.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            with archive.open("small/data.pkl", "w") as entry:
                Pickler(entry, protocol=2).dump(tree)
            archive.writestr("small/byteorder", byte_order)
            for storage in storages:
                archive.writestr(f"small/data/{storage.key}", storage.values.tobytes())
        return path

    return _save


def convert(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, np.ndarray]:
    out = path.parents[1] / "made" / "out"
    monkeypatch.setattr(sys, "argv", ["torch_to_npz.py", str(path.parent), str(out)])
    assert torch_to_npz.main() == 0
    with np.load(out / "small.npz") as arrays:
        return dict(arrays)


def test_every_kind_of_value(save: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    f4 = Storage("0", np.arange(24, dtype="<f4"))
    others = [Storage(str(i + 1), np.array([1, 0, 1], dtype)) for i, dtype in enumerate(DTYPES.values())]
    tree = {
        "contiguous": Tensor(f4, 0, (2, 3, 4), (12, 4, 1)),
        "part": Tensor(f4, 3, (2, 2), (2, 1)),
        "transposed": Tensor(f4, 2, (4, 3), (1, 4)),
        "expanded": Tensor(f4, 5, (2, 2), (0, 1)),
        "scalar": Tensor(f4, 7, (), ()),
        "empty": Tensor(f4, 0, (0, 5), (5, 1)),
        "every_dtype": [Tensor(s, 0, (3,), (1,)) for s in others],
        "ints": [0, 255, 256, -1, 2**40, -(2**40)],
        "mixed": (1, -1.5),
        "bools": (True, False),
        "nothing": {"none": None, "list": [], "dict": {}},
        "text": "\u00fcnic\u00f6de",
        "nested": [{"a": 1}, collections.OrderedDict(b=2.5), [[3], "x"]],
    }
    arrays = convert(save(tree, f4, *others), monkeypatch)
    values = np.arange(24, dtype="<f4")
    expected = {
        "contiguous": values.reshape(2, 3, 4),
        "part": values[3:7].reshape(2, 2),
        "transposed": values[2:14].reshape(3, 4).T,
        "expanded": np.float32([[5, 6], [5, 6]]),
        "scalar": np.float32(7),
        "empty": np.zeros((0, 5), np.float32),
        **{f"every_dtype/{i}": s.values for i, s in enumerate(others)},
        "ints": np.array([0, 255, 256, -1, 2**40, -(2**40)]),
        "mixed": np.array([1, -1.5]),
        "bools/0": np.bool_(True),
        "bools/1": np.bool_(False),
        "text": np.frombuffer("\u00fcnic\u00f6de".encode(), np.uint8),
        "nested/0/a": np.int64(1),
        "nested/1/b": np.float64(2.5),
        "nested/2/0": np.array([3]),
        "nested/2/1": np.frombuffer(b"x", np.uint8),
    }
    assert set(arrays) == set(expected)
    for name, array in expected.items():
        assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ((1, (2, 2), (2, 1)), "elements 1 to 4 of a storage of 4"),
        ((0, (2**40,), (1,)), "of a storage of 4"),
        ((-1, (2,), (1,)), "at element -1"),
        ((0, (2,), (-1,)), r"strides \(-1,\)"),
        ((0, (2,), ()), r"strides \(\)"),
    ],
)
def test_tensors_outside_of_their_storage(save: Any, tensor: Any, message: str) -> None:
    storage = Storage("0", np.arange(4, dtype="<f4"))
    path = save({"t": Tensor(storage, *tensor)}, storage)
    with pytest.raises(ValueError, match=message):
        torch_to_npz.read(path)


def test_storages_of_another_size(save: Any) -> None:
    path = save(Tensor(Storage("0", np.arange(4, dtype="<f4")), 0, (4,), (1,)), Storage("0", np.zeros(3, "<f4")))
    with pytest.raises(ValueError, match="12 bytes for 4 values of <f4"):
        torch_to_npz.read(path)


@pytest.mark.parametrize("call", [os.getcwd, eval, collections.Counter])
def test_nothing_is_executed(save: Any, call: Any) -> None:
    class Attack:
        def __reduce__(self) -> Any:
            return call, ()

    with pytest.raises(pickle.UnpicklingError, match="is refused"):
        torch_to_npz.read(save({"a": Attack()}))


def test_other_files_are_refused(save: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not little-endian"):
        torch_to_npz.read(save({}, byte_order="big"))
    np.savez(tmp_path / "a.npz", a=np.zeros(1))
    with pytest.raises(ValueError, match=r"no data\.pkl"):
        torch_to_npz.read(tmp_path / "a.npz")


@pytest.mark.parametrize("tree", [{"a/b": 1}, {"": 1}, {1: 1}, {"a": b"bytes"}])
def test_what_has_no_name_is_refused(tree: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot be part of an array's name|bytes is not converted"):
        list(torch_to_npz.flatten(tree))


def test_published_shapes_fit_each_other() -> None:
    path = SHARED / "spconv" / "golden_ext_p2v.pt"
    if not path.exists():
        pytest.skip(f"{path} is missing (set VOXSERVE_SHARED_DATA)")
    cases = torch_to_npz.read(path)["cases"]
    assert len(cases) == 5
    for case in cases:
        constructor, end = case["ctor"], "_canon" if case["kind"] == "p2v_gpu_canon" else ""
        voxels = case["expect"][f"voxels{end}"].shape
        assert voxels[1:] == (constructor["max_num_points_per_voxel"], constructor["num_point_features"])
        assert case["expect"][f"indices{end}"].shape == (voxels[0], case["ndim"])
        assert case["points"].shape[1] == constructor["num_point_features"]
        assert voxels[0] <= constructor["max_num_voxels"]
