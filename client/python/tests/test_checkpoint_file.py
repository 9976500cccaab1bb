"""Tests what is read from checkpoints as frameworks write them, and what is refused."""

from __future__ import annotations

import argparse
import collections
import datetime
import gzip
import json
import pickle
import random
import re
import struct
import sys
import tarfile
import types
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from voxserve.export import checkpoint_file, safetensors_file
from voxserve.export.unread import why_unread

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


def raw_safetensors(header: dict[str, Any], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


# safetensors


def test_tensors_that_share_their_memory_have_both_names(tmp_path: Path) -> None:
    """As safetensors.torch.save_model writes them: the names that it leaves out stand in the metadata."""
    header = {
        "__metadata__": {"tied.weight": "conv.weight", "format": "pt", "gone": "nowhere"},
        "conv.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    }
    path = tmp_path / "w.safetensors"
    path.write_bytes(raw_safetensors(header, WEIGHT.tobytes()))
    read = checkpoint_file.read(str(path))
    assert read.keys() == {"conv.weight", "tied.weight"}
    np.testing.assert_array_equal(read["tied.weight"], WEIGHT)
    header["__metadata__"] = {"tied.weight": ["conv.weight"]}  # type: ignore[dict-item]
    path.write_bytes(raw_safetensors(header, WEIGHT.tobytes()))
    assert checkpoint_file.read(str(path)).keys() == {"conv.weight"}


@pytest.mark.parametrize(("dtype", "code"), [("U16", "<u2"), ("U32", "<u4"), ("U64", "<u8")])
def test_unsigned_integers(tmp_path: Path, dtype: str, code: str) -> None:
    values = np.array([1, 2**15 + 3], code)
    header = {"n": {"dtype": dtype, "shape": [2], "data_offsets": [0, values.nbytes]}}
    (tmp_path / "w.safetensors").write_bytes(raw_safetensors(header, values.tobytes()))
    read = checkpoint_file.read(str(tmp_path / "w.safetensors"))["n"]
    assert read.tolist() == [1, 2**15 + 3]
    safetensors_file.write(tmp_path / "again.safetensors", {"n": read})
    assert safetensors_file.read(tmp_path / "again.safetensors")["n"].dtype == np.dtype(code)


def test_types_that_numpy_lacks_do_no_harm(tmp_path: Path) -> None:
    header = {
        "scale": {"dtype": "F8_E4M3", "shape": [2, 2], "data_offsets": [0, 4]},
        "w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
    }
    path = tmp_path / "w.safetensors"
    path.write_bytes(raw_safetensors(header, bytes(8)))
    read = checkpoint_file.read(str(path))
    assert read["w"].tolist() == [0]
    assert read["scale"].shape == (2, 2)
    assert why_unread(read["scale"]) == "it is stored as F8_E4M3"
    assert why_unread(read["w"]) == ""
    with pytest.raises(safetensors_file.SafetensorsError, match="dtype 'F8_E4M3' is none of"):
        safetensors_file.read(path)  # a served model has no such tensor
    header["scale"]["shape"] = [2**62, 2**62]
    path.write_bytes(raw_safetensors(header, bytes(8)))
    with pytest.raises(safetensors_file.SafetensorsError, match="tensor 'scale': shape"):
        checkpoint_file.read(str(path))


def test_a_header_whose_length_looks_like_another_kind_of_file(tmp_path: Path) -> None:
    """640 has the bytes of a pickle's beginning, 60 that of a web page, 0x8b1f those of gzip."""
    header = {"w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    for length, name in ((640, "w.safetensors"), (640, "w.pth"), (60, "w"), (0x8B1F, "w.safetensors")):
        text = json.dumps(header, separators=(",", ":")).encode().ljust(length)
        assert len(text) == length
        (tmp_path / name).write_bytes(struct.pack("<Q", length) + text + WEIGHT.tobytes())
        np.testing.assert_array_equal(checkpoint_file.read(str(tmp_path / name))["w"], WEIGHT)


# Files of other kinds


def test_other_kinds_of_files_are_refused_with_what_to_do(tmp_path: Path) -> None:
    def refuse(name: str, contents: bytes, *wanted: str) -> None:
        (tmp_path / name).write_bytes(contents)
        with pytest.raises(ValueError, match=re.escape(name)) as caught:
            checkpoint_file.read(str(tmp_path / name))
        for text in wanted:
            assert text in str(caught.value)
        assert "\x1b" not in str(caught.value)

    refuse("empty.pth", b"", "is empty")
    refuse("lfs.pth", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS", "git lfs pull")
    refuse("page.pth", b"<!DOCTYPE html><html>Sign in</html>", "web page", "fetch the file again")
    refuse("w.pth.gz", gzip.compress(b"anything"), "compressed (gzip): unpack it")
    refuse("w.h5", b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5")
    refuse("w.onnx", b"\x08\x08\x12\x07pytorch" + bytes(64), "a network of ONNX: name the checkpoint of the training")
    refuse("w.engine", b"ftrt" + bytes(64), "a network of TensorRT: name the checkpoint of the training")
    refuse("w.npy", b"\x93NUMPY\x01\x00" + bytes(64), "one array of NumPy")
    refuse(
        "model.safetensors.index.json", b'{"weight_map": {"a": "b.safetensors"}}', "merge those of an index into one"
    )
    np.savez(tmp_path / "w.npz", a=WEIGHT)
    refuse("w2.npz", (tmp_path / "w.npz").read_bytes(), "archive of NumPy")
    with zipfile.ZipFile(tmp_path / "w.zip", "w") as archive:
        archive.writestr("\x1b[31mweights.pth", b"")
    with zipfile.ZipFile(tmp_path / "program.pt2", "w") as archive:
        archive.writestr("program/archive_format", b"pt2")
    refuse("program2.pt2", (tmp_path / "program.pt2").read_bytes(), "a program of torch.export: save its state_dict()")
    refuse("model-00001-of-00002.safetensors", raw_safetensors({}, b""), "one of several files: merge those")
    refuse("w2.zip", (tmp_path / "w.zip").read_bytes(), "zip archive without torch's data.pkl", "unpack it")


def test_tar_files(tmp_path: Path) -> None:
    def make(*names: str) -> str:
        path = tmp_path / "w.pth.tar"
        with tarfile.open(path, "w") as archive:
            for name in names:
                archive.addfile(tarfile.TarInfo(name))
        return str(path)

    with pytest.raises(ValueError, match=r"as torch wrote before 0\.1\.10: load and save it with an older torch"):
        checkpoint_file.read(make("sys_info", "pickle", "storages", "tensors"))
    with pytest.raises(ValueError, match="an archive: unpack it"):
        checkpoint_file.read(make("weights.pth"))


def test_folders(tmp_path: Path) -> None:
    def refuse(*names: str) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name in names:
            (folder / name).touch()
        with pytest.raises(IsADirectoryError) as caught:
            checkpoint_file.read(str(folder))
        return str(caught.value)

    assert "dcp_to_torch" in refuse("__0_0.distcp", ".metadata")
    assert "python zero_to_fp32.py FOLDER weights.pth" in refuse("latest", "zero_to_fp32.py")
    assert "zero_to_fp32.py" in refuse("bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt")
    assert "Name the file of the weights in it" in refuse("w.pth")


# Files of torch


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., str]:
    def run(value: Any, name: str = "w.pth", **options: Any) -> str:
        torch.save(value, tmp_path / name, **options)
        return str(tmp_path / name)

    return run


def tensors(scale: float = 1.0) -> dict[str, Any]:
    return {"conv.weight": scale * torch.from_numpy(WEIGHT), "conv.bias": scale * torch.ones(2)}


@pytest.fixture
def frameworks() -> Iterator[dict[str, Any]]:
    """Stands in for modules of frameworks while a file is written, so that its pickle has their names."""
    names = {
        "mmengine.logging.history_buffer": ["HistoryBuffer"],
        "omegaconf.dictconfig": ["DictConfig"],
        "omegaconf.base": ["ContainerMetadata", "Metadata"],
        "omegaconf.nodes": ["AnyNode"],
    }
    made: dict[str, Any] = {}
    added = []
    for path, classes in names.items():
        parts = path.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name not in sys.modules:
                sys.modules[name] = types.ModuleType(name)
                added.append(name)
        for name in classes:
            made[name] = type(name, (), {"__module__": path})
            setattr(sys.modules[path], name, made[name])

    def mean(self: Any) -> None: ...

    mean.__module__, mean.__qualname__ = "mmengine.logging.history_buffer", "HistoryBuffer.mean"
    made["HistoryBuffer"].mean = mean
    yield made
    for name in added:
        del sys.modules[name]


def filled(kind: Any, **values: Any) -> Any:
    made = kind()
    made.__dict__.update(values)
    return made


@needs_torch
def test_what_frameworks_store_beside_the_weights(save: Callable[..., str], frameworks: dict[str, Any]) -> None:
    history = filled(
        frameworks["HistoryBuffer"],
        max_length=1000000,
        _log_history=np.array([0.5, 0.25]),
        _count_history=np.array([1, 1], np.int64),
        statistics_methods={"mean": frameworks["HistoryBuffer"].mean},  # by getattr, as mmengine 0.10 stores them
    )
    config = filled(
        frameworks["DictConfig"],
        _metadata=filled(frameworks["ContainerMetadata"], ref_type=Any, object_type=dict, key=None),
        _content={"lr": filled(frameworks["AnyNode"], _val=0.1, _metadata=filled(frameworks["Metadata"]))},
    )
    files = {
        "pointcept": {"epoch": 3, "state_dict": tensors(), "best_metric_value": np.float64(0.75)},
        "mmengine": {
            "meta": {"epoch": 3, "seed": np.int64(7)},
            "state_dict": tensors(),
            "message_hub": {"log_scalars": {"train/loss": history}, "runtime_info": {"seen": np.arange(3)}},
            "optimizer": {"state": {0: {"exp_avg": torch.zeros(2)}}, "param_groups": [{"lr": 0.1}]},
        },
        "lightning": {
            "state_dict": tensors(),
            "hyper_parameters": config,
            "hparams_type": frameworks["DictConfig"],
            "optimizer_states": [{"state": {0: {"step": torch.zeros(())}}}],
            "callbacks": {"ModelCheckpoint": {"dirpath": Path("/tmp/x"), "best_model_path": "a"}},
        },
        "script": {
            "state_dict": tensors(),
            "args": argparse.Namespace(lr=0.1, out=Path("x"), more=types.SimpleNamespace(a=1)),
            "losses": collections.deque([0.5, 0.25], maxlen=7),
            "counts": collections.defaultdict(int, a=1),
            "saved": datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc).replace(tzinfo=None),
            "torch": torch.__version__,
            "numpy_rng": np.random.RandomState(1).get_state(),
            "python_rng": random.Random(1).getstate(),
            "torch_rng": torch.get_rng_state(),
        },
    }
    for name, value in files.items():
        for is_zip in (True, False):
            path = save(value, f"{name}.pth", _use_new_zipfile_serialization=is_zip)
            read = checkpoint_file.read(path)
            np.testing.assert_array_equal(read["state_dict.conv.weight"], WEIGHT)
            assert not any("exp_avg" in key or "param_groups" in key for key in read)


@needs_torch
def test_arrays_of_numpy_are_weights_too(save: Callable[..., str]) -> None:
    fortran = np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3))
    path = save({"w": WEIGHT, "half": WEIGHT.astype(np.float16), "f": fortran, "one": np.float32(0.5), "o": "text"})
    read = checkpoint_file.read(path)
    np.testing.assert_array_equal(read["w"], WEIGHT)
    np.testing.assert_array_equal(read["f"], [[0, 1, 2], [3, 4, 5]])
    assert read["half"].dtype == np.float16
    assert (read["one"].shape, float(read["one"])) == ((), 0.5)
    assert "o" not in read
    with pytest.raises(ValueError, match="holds no tensors by name"):
        checkpoint_file.read(save({"w": np.array([object(), None])[1:], "n": np.array(["a"])}))


@needs_torch
@pytest.mark.parametrize("key", ["optimizer", "optimizer_state", "optim_state_dict", "Optimizers"])
def test_states_of_optimizers_by_the_names_of_weights(save: Callable[..., str], key: str) -> None:
    """As torch.distributed's get_optimizer_state_dict makes them: more tensors than the network has."""
    moments = {name: {"exp_avg": t, "exp_avg_sq": t, "step": torch.ones(1)} for name, t in tensors().items()}
    read = checkpoint_file.read(save({"model": tensors(), key: {"state": moments}}))
    assert read.keys() == {"model.conv.weight", "model.conv.bias"}


@needs_torch
def test_dicts_in_dicts_have_names_with_dots(save: Callable[..., str]) -> None:
    read = checkpoint_file.read(save({"epoch": 1, "model": {"a": tensors()}, "list": [tensors()], 3: tensors()}))
    assert read.keys() == {"model.a.conv.weight", "model.a.conv.bias"}


@needs_torch
def test_dicts_without_end(tmp_path: Path, save: Callable[..., str]) -> None:
    itself: dict[str, Any] = dict(tensors())
    itself["again"] = itself
    many: dict[str, Any] = {}
    for _ in range(30):
        many = {"a": many, "b": many}
    for value in (itself, many):
        with pytest.raises(ValueError, match="its dicts are deeper than 32, or have more than 1000000 values"):
            checkpoint_file.read(save(value))


@needs_torch
@pytest.mark.filterwarnings("ignore")  # torch warns of the protocol
def test_pickles_of_another_protocol(save: Callable[..., str]) -> None:
    with pytest.raises(ValueError, match="its pickle has another protocol than"):
        checkpoint_file.read(save(tensors(), pickle_protocol=4))


@needs_torch
@pytest.mark.filterwarnings("ignore")  # torch warns of quantized tensors
def test_tensors_without_plain_numbers_do_no_harm(save: Callable[..., str]) -> None:
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    small = torch.ones(3).to(torch.float8_e4m3fn)
    read = checkpoint_file.read(save({"w": tensors()["conv.weight"], "q": quantized, "s": small}))
    assert why_unread(read["w"]) == ""
    assert why_unread(read["q"])
    assert why_unread(read["s"])
    assert read["s"].shape == (3,)


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> Any:
        return self._call


@needs_torch
@pytest.mark.filterwarnings("ignore")  # torch warns of its old formats
def test_a_file_that_runs_code_is_not_read(
    tmp_path: Path, save: Callable[..., str], frameworks: dict[str, Any]
) -> None:
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w').close()"
    history = type("HistoryBuffer", (), {"__reduce__": lambda self: (eval, (code,))})
    hostile = {
        "a program": Call(__import__("os").system, f"touch {ran}"),
        "code": Call(eval, code),
        "exec": Call(exec, code),
        "an import": Call(__import__, "antigravity"),
        "an attribute": Call(getattr, np.ndarray, "tofile"),
        "NumPy's loader": Call(np.load, str(ran)),
        "a lookalike": history(),
        "within": {"message_hub": {"log_scalars": {"loss": filled(frameworks["HistoryBuffer"], x=Call(eval, code))}}},
        "in an array": np.array([Call(eval, code), None], object),
        "as a scalar's type": Call(np.float64(1).__reduce__()[0], Call(eval, code), b"12345678"),
    }
    for name, value in hostile.items():
        for is_zip in (True, False):
            path = save({"state_dict": tensors(), "x": value}, _use_new_zipfile_serialization=is_zip)
            with pytest.raises(ValueError, match="is not a torch file of tensors alone"):
                checkpoint_file.read(path)
            assert not ran.exists(), name


@needs_torch
def test_a_pickle_by_hand_that_calls_the_shell(tmp_path: Path) -> None:
    """The pickle of a zip file is replaced by one that no pickler writes."""
    ran = tmp_path / "ran"
    torch.save(tensors(), tmp_path / "good.pth")
    for program in (
        b"\x80\x02cposix\nsystem\nX" + struct.pack("<I", len(f"touch {ran}")) + f"touch {ran}".encode() + b"\x85R.",
        b"\x80\x02c__builtin__\neval\nX\x03\x00\x00\x001+1\x85R.",
        b"\x80\x02cmmengine.logging.history_buffer\nHistoryBuffer.__init__.__globals__\n.",
        b"\x80\x02c__builtin__\ngetattr\ncnumpy\ndtype\nX\x04\x00\x00\x00code\x86R.",
        b"\x80\x02c__builtin__\ngetattr\ncmmengine.logging.history_buffer\nHistoryBuffer\n"
        b"X\x08\x00\x00\x00__init__\x86RX\x01\x00\x00\x00a\x85R.",  # calls what it gets
    ):
        with zipfile.ZipFile(tmp_path / "good.pth") as good, zipfile.ZipFile(tmp_path / "bad.pth", "w") as bad:
            for name in good.namelist():
                bad.writestr(name, program if name.endswith("data.pkl") else good.read(name))
        with pytest.raises(ValueError, match="is not a torch file of tensors alone"):
            checkpoint_file.read(str(tmp_path / "bad.pth"))
    assert not ran.exists()


@needs_torch
def test_arrays_that_lie_about_their_size(tmp_path: Path, save: Callable[..., str]) -> None:
    rebuild, arguments, state = np.zeros(3).__reduce__()
    for wrong in (
        (*state[:1], (4,), *state[2:]),
        (*state[:1], (2**62,), *state[2:]),
        (*state[:1], (-1, -1), *state[2:]),
        (*state[:4], b"1"),
    ):
        value = type("A", (), {"__reduce__": lambda self, state=wrong: (rebuild, arguments, state)})()
        with pytest.raises(ValueError, match="is not a torch file of tensors alone"):
            checkpoint_file.read(save({"w": value}))


@needs_torch
def test_zip_files_that_python_does_not_read(tmp_path: Path, save: Callable[..., str]) -> None:
    contents = Path(save(tensors())).read_bytes()
    directory = contents.index(b"PK\x01\x02")

    def read(place: int, values: bytes) -> Any:
        damaged = bytearray(contents)
        damaged[directory + place : directory + place + 2] = values
        damaged[directory + 9] |= 8  # the file's name is UTF-8
        (tmp_path / "damaged.pth").write_bytes(damaged)
        return checkpoint_file.read(str(tmp_path / "damaged.pth"))

    np.testing.assert_array_equal(read(6, b"\xff\xff")["conv.weight"], WEIGHT)  # the version of zip that is needed
    with pytest.raises(ValueError, match=r"damaged\.pth is not a torch file of tensors alone"):
        read(46, b"\xff\xfe")  # the name of the first file in it


@needs_torch
def test_deepspeed(save: Callable[..., str]) -> None:
    states = {"module": tensors(), "ds_version": "0.15", "ds_config": {"zero_optimization": {"stage": 2}}}
    path = save(states, "mp_rank_00_model_states.pt")
    np.testing.assert_array_equal(checkpoint_file.read(path)["module.conv.weight"], WEIGHT)
    save(states, "mp_rank_01_model_states.pt")
    with pytest.raises(ValueError, match="one of 2 ranks of model parallelism"):
        checkpoint_file.read(path)
    for name in ("zero_pp_rank_0_mp_rank_00_model_states.pt", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"):
        with pytest.raises(ValueError, match=r"a part of DeepSpeed's ZeRO alone.*python zero_to_fp32\.py FOLDER"):
            checkpoint_file.read(save(states, name))
    for change in ({"ds_config": {"zero_optimization": {"stage": 3}}}, {"module": {"conv.weight": torch.zeros(0)}}):
        with pytest.raises(ValueError, match="a part of DeepSpeed's ZeRO alone"):
            checkpoint_file.read(save({**states, **change}, "renamed.pt"))


@needs_torch
def test_a_class_of_a_framework_says_what_to_do(save: Callable[..., str]) -> None:
    class Config:
        pass

    Config.__module__, Config.__qualname__ = "my_project.config", "Config"
    module = types.ModuleType("my_project.config")
    module.Config = Config  # type: ignore[attr-defined]
    sys.modules.update({"my_project": types.ModuleType("my_project"), "my_project.config": module})
    try:
        path = save({"state_dict": tensors(), "config": Config()})
    finally:
        del sys.modules["my_project.config"], sys.modules["my_project"]
    with pytest.raises(ValueError, match=r"it wants my_project\.config\.Config, which could run code. Only where you"):
        checkpoint_file.read(path)


@needs_torch
def test_a_safetensors_file_of_another_name(tmp_path: Path) -> None:
    safetensors_file.write(tmp_path / "w.pth", {"w": WEIGHT})
    np.testing.assert_array_equal(checkpoint_file.read(str(tmp_path / "w.pth"))["w"], WEIGHT)
    torch.save({"w": torch.from_numpy(WEIGHT)}, tmp_path / "w.safetensors")
    np.testing.assert_array_equal(checkpoint_file.read(str(tmp_path / "w.safetensors"))["w"], WEIGHT)


def test_pickles_are_no_safetensors(tmp_path: Path) -> None:
    (tmp_path / "w.pkl").write_bytes(pickle.dumps({"w": 1}))
    with pytest.raises(ValueError, match=r"w\.pkl"):
        checkpoint_file.read(str(tmp_path / "w.pkl"))
