"""Writes what torch_file_test.cc reads: small.pt, laid out as torch.save does, and one .tree.txt a file.

A .tree.txt lists every value of a file as this script's reader finds it (Python's own pickle and NumPy, no code in
common with the C++ reader): path, kind, and the value or the dtype, shape and CRC-32 of a tensor. Run in this folder;
the argument is the folder of the published files, whose trees are written too.
"""

import collections
import pickle
import pathlib
import sys
import types
import zipfile
import zlib

import numpy as np

DTYPES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "IntStorage": "<i4", "LongStorage": "<i8",
    "ShortStorage": "<i2", "CharStorage": "|i1", "ByteStorage": "|u1", "BoolStorage": "|b1",
}  # fmt: skip


def fake_torch():
    """Modules with the names that a torch pickle refers to, so that pickle writes those names."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in DTYPES:
        setattr(torch, name, type(name, (), {"__module__": "torch"}))

    def _rebuild_tensor_v2():
        raise NotImplementedError

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    sys.modules.update({"torch": torch, "torch._utils": utils})
    return torch, utils


class Storage:
    def __init__(self, key, values):
        self.key, self.values = key, values


class Tensor:
    def __init__(self, storage, offset, size, stride):
        self.args = (storage, offset, size, stride, False, collections.OrderedDict())

    def __reduce__(self):
        return sys.modules["torch._utils"]._rebuild_tensor_v2, self.args


class Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        if not isinstance(obj, Storage):
            return None
        name = next(n for n, d in DTYPES.items() if np.dtype(d) == obj.values.dtype)
        return "storage", getattr(sys.modules["torch"], name), obj.key, "cpu", obj.values.size


def write(path, tree, storages):
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("small/data.pkl", "w") as entry:
            Pickler(entry, protocol=2).dump(tree)
        archive.writestr("small/byteorder", "little")
        for storage in storages:
            archive.writestr(f"small/data/{storage.key}", storage.values.tobytes())
        archive.writestr("small/version", "3\n")


def read(path):
    archive = zipfile.ZipFile(path)
    folder = next(n for n in archive.namelist() if n.endswith("/data.pkl"))[: -len("data.pkl")]

    def rebuild(storage, offset, size, stride, *_):
        values = np.frombuffer(archive.read(f"{folder}data/{storage[1]}"), DTYPES[storage[0]])
        steps = [s * values.itemsize for s in stride]
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(values[offset:], size, steps)).reshape(size)

    class Unpickler(pickle.Unpickler):
        def find_class(self, module, name):
            return {"_rebuild_tensor_v2": rebuild, "OrderedDict": collections.OrderedDict}.get(name, name)

        def persistent_load(self, pid):
            return pid[1], pid[2]

    return Unpickler(archive.open(folder + "data.pkl")).load()


def lines(value, path=""):
    if isinstance(value, dict):
        yield f"{path} dict {len(value)}"
        for key, item in value.items():
            yield from lines(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        yield f"{path} {type(value).__name__} {len(value)}"
        for i, item in enumerate(value):
            yield from lines(item, f"{path}[{i}]")
    elif isinstance(value, np.ndarray):
        shape = ",".join(map(str, value.shape))
        yield f"{path} tensor {value.dtype.str} ({shape}) {zlib.crc32(value.tobytes()):08x}"
    elif isinstance(value, float):
        yield f"{path} float {value:.17g}"
    elif value is None:
        yield f"{path} None"
    else:
        yield f"{path} {type(value).__name__} {value}"


def main():
    fake_torch()
    f4 = Storage("0", np.arange(24, dtype="<f4"))
    others = [Storage(str(i + 1), np.array([1, 0, 1], dtype)) for i, dtype in enumerate(DTYPES.values())]
    tree = {
        "contiguous": Tensor(f4, 0, (2, 3, 4), (12, 4, 1)),
        "transposed": Tensor(f4, 2, (4, 3), (1, 4)),
        "expanded": Tensor(f4, 5, (2, 2), (0, 1)),
        "scalar": Tensor(f4, 7, (), ()),
        "empty": Tensor(f4, 0, (0, 5), (5, 1)),
        "every_dtype": [Tensor(s, 0, (3,), (1,)) for s in others],
        "plain": {"int": [0, 255, 256, -1, 65536, 2**40, -(2**40)], "float": (1.5, -1e300), "none": None},
        "bools": (True, False),
        "text": "\u00fcnic\u00f6de",
        "nested": [[[]], (), {}, collections.OrderedDict(a=1), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    }
    tree["shared"] = tree["plain"]
    write("small.pt", tree, [f4, *others])
    paths = [pathlib.Path("small.pt"), *(sorted(pathlib.Path(sys.argv[1]).glob("*.pt")) if len(sys.argv) > 1 else [])]
    for path in paths:
        pathlib.Path(path.stem + ".tree.txt").write_text("".join(line + "\n" for line in lines(read(path))))


if __name__ == "__main__":
    main()
