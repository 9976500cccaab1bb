#!/usr/bin/env python3
"""Writes a model with twice as many channels that computes the same: every channel occurs twice, with half its weight.

    tests/gpu/widen_model.py deploy/models/minkunet OUT/minkunet-wide

It makes a MinkUNet of width 1.0x with correct labels from the demo's 0.5x, so that no repository must contain one. It
needs NumPy. The numbers of classes and of point features stay the same.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import sys
from pathlib import Path

import numpy as np

_TYPES = {"F32": np.float32, "F16": np.float16}


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Returns all tensors of a safetensors file, by name."""
    data = path.read_bytes()
    (head_bytes,) = struct.unpack_from("<Q", data)
    head = json.loads(data[8 : 8 + head_bytes])
    tensors = {}
    for name, entry in head.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + head_bytes + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], _TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes a safetensors file."""
    names = {np.dtype(dtype): name for name, dtype in _TYPES.items()}
    head, offset = {}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        head[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor).tobytes())


def widen(name: str, tensor: np.ndarray, first: str, last: str) -> np.ndarray:
    """Returns the tensor with each channel twice. A copy that is an input channel has half the weight.

    `tensor` is [K, in, out] of a convolution, [out, in] of a linear layer, or [channels] of any other layer. The inputs
    of node `first` and the outputs of node `last` keep their number of channels.
    """
    node = name.rsplit(".", 1)[0]
    if tensor.ndim == 1:
        return tensor if node == last else np.repeat(tensor, 2)
    in_axis, out_axis = (1, 2) if tensor.ndim == 3 else (1, 0)
    if node != first:
        tensor = np.repeat(tensor, 2, axis=in_axis) / tensor.dtype.type(2)
    return tensor if node == last else np.repeat(tensor, 2, axis=out_axis)


def main() -> int:
    """Returns the exit status."""
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    graph = (source / "1/model.textproto").read_text()
    layers = re.findall(r'nodes \{ name: "([^"]+)".*?out_channels: \d+', graph)
    first, last = layers[0], layers[-1]

    def doubled(line: str) -> str:
        if f'name: "{last}"' in line:
            return line
        return re.sub(r"out_channels: (\d+)", lambda match: f"out_channels: {2 * int(match[1])}", line)

    (out / "1").mkdir(parents=True)
    (out / "1/model.textproto").write_text("\n".join(map(doubled, graph.split("\n"))))
    tensors = read_tensors(source / "1/weights.safetensors")
    write_tensors(out / "1/weights.safetensors", {name: widen(name, t, first, last) for name, t in tensors.items()})
    if (source / "config.textproto").exists():
        shutil.copy(source / "config.textproto", out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
