"""Reduces TorchSparse's full outputs for the golden scans to what the tests compare, and decodes the reduced files.

    python3 tests/oracles/golden_scans.py FOLDER tests/golden

FOLDER holds the full outputs of TorchSparse and of the NumPy oracle (tests/golden/README.md says how they were made):
NAME.npz with `coords`, `logits` and `label`, and pandaset_070_intermediate.npz. The written files have these arrays:

- logits_floor int8 and logits_fraction uint16 (in 65536ths), both [R, C]: the logits in fixed point, of every `step`-th
  voxel. Rounding moves a logit by 2^-17 (7.6e-6) at most. The two programs' logits differ by 2.7e-5 at most.
- margin uint16 [M]: the best logit of every voxel minus its second best, in 16384ths, rounded down, and at most 65535.
- label uint8 [N], step int32.
- x0_coords to x4_coords int32 [M, 3], and x0_feats and x4_feats of every FEATURE_STEP-th row.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

LOGIT_STEPS = {"pandaset_063": 16, "pandaset_070": 1}  # One scan keeps the logits of all its voxels.
FEATURE_STEPS = {"x0_feats": 32, "x4_feats": 8}
_FRACTION = 65536
_MARGIN = 16384


def reduce_scan(full: dict[str, np.ndarray], step: int) -> dict[str, np.ndarray]:
    """Returns the reduced arrays of NAME.npz from the full ones."""
    fixed = np.round(full["logits"][::step].astype(np.float64) * _FRACTION).astype(np.int64)
    floor = fixed // _FRACTION
    assert (np.abs(floor + 0.5) < 128).all(), "the logits do not fit int8"
    second, best = np.sort(full["logits"], axis=1)[:, -2:].T
    return {
        "logits_floor": floor.astype(np.int8),
        "logits_fraction": (fixed % _FRACTION).astype(np.uint16),
        "margin": np.minimum(np.floor((best - second) * _MARGIN), np.iinfo(np.uint16).max).astype(np.uint16),
        "label": full["label"],
        "step": np.int32(step),
    }


def logits_of(golden: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the logits that a reduced NAME.npz stores, float32 [R, C]."""
    return golden["logits_floor"] + golden["logits_fraction"] / np.float32(_FRACTION)


def reduce_intermediate(full: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the reduced arrays of pandaset_070_intermediate.npz from the full ones."""
    return {name: array[:: FEATURE_STEPS.get(name, 1)] for name, array in full.items()}


def reduce_all(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Returns the reduced arrays of all files, by file name."""
    files = {f"{name}.npz": reduce_scan(np.load(folder / f"{name}.npz"), step) for name, step in LOGIT_STEPS.items()}
    name = "pandaset_070_intermediate.npz"
    return {**files, name: reduce_intermediate(dict(np.load(folder / name)))}


def main() -> int:
    folder, out = map(Path, sys.argv[1:])
    for name, arrays in reduce_all(folder).items():
        np.savez_compressed(out / name, **arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main())
