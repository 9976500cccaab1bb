"""Small networks of one or two layers whose results a library itself computed, and the files with these results."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from voxserve.verify.sparse_tensors import coordinates_of, features_of

FOLDER = Path(__file__).resolve().parents[3] / "tests" / "golden"


class Network(nn.Module):
    """Layers by name, and a function (layers, x) -> sparse tensor."""

    def __init__(self, layers: dict[str, Any], function: Callable[..., Any]) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleDict(layers), function

    def forward(self, x: Any) -> Any:
        return self.function(self.layers, x)


def filled(network: Network, name: str) -> Network:
    """Sets parameters and statistics to multiples of 1/8 that follow from their names and the network's."""
    for key, values in (*network.named_parameters(), *network.named_buffers()):
        if values.is_floating_point():
            rng = np.random.default_rng(zlib.crc32(f"{name} {key}".encode()))
            least = 4 if key.endswith("running_var") else -8
            values.data.copy_(torch.from_numpy(rng.integers(least, 9, tuple(values.shape)) / 8))
    return network.eval()


def table(y: Any) -> npt.NDArray[np.float32]:
    """Returns a sparse tensor's coordinates [N, 1 + D], in steps of its stride, and its rows [N, C], side by side. They
    are in the order of the coordinates.
    """
    coordinates = coordinates_of(y)
    rows = np.concatenate([coordinates, features_of(y).detach().numpy()], axis=1)
    return np.asarray(rows[np.lexsort(coordinates[:, ::-1].T)], np.float32)


def write(file: str, names: Iterable[str], make: Callable[[str], tuple[Network, Any]]) -> None:
    """Writes tests/golden/FILE.npz: what each network returns for its example."""
    torch.set_num_threads(1)
    results = {}
    for name in names:
        network, example = make(name)
        with torch.no_grad():
            results[_key(name)] = table(network(example))
    path = FOLDER / f"{file}.npz"
    np.savez_compressed(path, **results)  # type: ignore[arg-type]
    print(f"{path}: {len(results)} results, {path.stat().st_size} bytes")


def read(file: str) -> Callable[[str], npt.NDArray[np.float32]]:
    """Returns a function of a network's name that returns what the library computed."""
    with np.load(FOLDER / f"{file}.npz", allow_pickle=False) as archive:
        tables = {key: archive[key] for key in archive.files}
    return lambda name: tables[_key(name)]


def _key(name: str) -> str:
    return name.replace("/", "by")  # a name within the .npz file has no folders
