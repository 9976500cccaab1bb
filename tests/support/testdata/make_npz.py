"""Writes the files that npz_test.cc and array_tree_test.cc read, with NumPy and Python's zipfile. Run in this folder.
"""

import zipfile

import numpy as np

np.savez_compressed(
    "deflated.npz",
    f4=np.array([[0, 0.5], [1, 1.5], [2, -2.5]], np.float32),
    f8=np.array([1e300]),
    i4=np.array([-(2**31), 2**31 - 1], np.int32),
    i8=np.int64(-1),
    u1=np.array([0, 255], np.uint8),
    b1=np.array([True, False]),
    f2=np.array([1, -2], np.float16),
    empty=np.zeros((0, 4), np.float32),
)
np.savez("stored.npz", a=np.array([1, 2, 3], np.int32))
np.savez("fortran.npz", a=np.asfortranarray(np.arange(6.0).reshape(2, 3)))
np.save("one.npy", np.array([1.0, 2.0]))
np.save("structured.npy", np.zeros(2, [("x", "<f4"), ("ring", "<u2")]))
tree = {f"cases/{i}/count": np.int64(i) for i in range(11)}
tree["cases/1/id"] = np.frombuffer(b"second", np.uint8)
tree["cases/1/flag"] = np.bool_(True)
tree["cases/1/count"] = np.int64(-3)
tree["cases/1/shape"] = np.array([4, 5])
tree["cases/1/range"] = np.array([0.5, 2.0])
tree["cases/1/expect/rows"] = np.array([1, 2], np.float32)
np.savez_compressed("tree.npz", **tree)
zipfile.ZIP64_LIMIT = 8  # forces zip64 for sizes, offsets and the directory
with zipfile.ZipFile("zip64.zip", "w") as archive:
    archive.writestr("a.txt", "sizes in the extra field\n")
    archive.writestr("b.txt", "and the offset too\n")
