#!/usr/bin/env python3
"""Writes a version of a model in which all labels differ: class c becomes class c - 1, and class 0 the last class.

    tests/gpu/turn_labels.py models/minkunet/1 models/minkunet/2

It moves each row of the layer before argmax, which must be linear, to the place of the row before it. It only needs
Python. The new version is complete when it appears.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import sys
from pathlib import Path


def turned(data: bytes, layer: str) -> bytes:
    """Returns the safetensors file `data` with the first row of the layer's tensors moved to their end."""
    (head_bytes,) = struct.unpack_from("<Q", data)
    head = json.loads(data[8 : 8 + head_bytes])
    out = bytearray(data)
    for name, entry in head.items():
        if name not in (f"{layer}.weight", f"{layer}.bias"):
            continue
        begin, end = (8 + head_bytes + offset for offset in entry["data_offsets"])
        row = (end - begin) // entry["shape"][0]
        out[begin:end] = data[begin + row : end] + data[begin : begin + row]
    return bytes(out)


def main() -> int:
    """Returns the exit status."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    graph = (source / "model.textproto").read_text()
    found = re.search(r'inputs: \[?"([^"]+)"\]? argmax', graph)
    if not found or not re.search(rf'name: "{re.escape(found[1])}"[^\n]* linear ', graph):
        print(f"{source}: no linear layer before argmax", file=sys.stderr)
        return 1
    weights = (source / "weights.safetensors").read_bytes()
    other = turned(weights, found[1])
    if other == weights:
        print(f"{source}: nothing to turn in layer {found[1]}", file=sys.stderr)
        return 1
    coming = out.parent / f".{out.name}.coming"
    shutil.rmtree(coming, ignore_errors=True)
    coming.mkdir(parents=True)
    shutil.copy(source / "model.textproto", coming)
    (coming / "weights.safetensors").write_bytes(other)
    coming.rename(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
