"""The stored cases are what the oracle computes, and the oracle is right for a case that can be computed by hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from sweep_merge import merge, pandaset_case, small_case

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "tests" / "golden"
PANDASET = Path(os.environ.get("VOXSERVE_SHARED_DATA") or REPOSITORY.parent / "shared" / "data") / "pandaset-002"


def expect_stored(name: str, case: dict[str, np.ndarray]) -> None:
    stored = np.load(GOLDEN / name)
    assert sorted(stored) == sorted(case)
    for key, value in case.items():
        np.testing.assert_array_equal(stored[key], value, err_msg=key)


def test_small_case_is_stored() -> None:
    expect_stored("sweeps_small.npz", small_case())


@pytest.mark.skipif(not PANDASET.exists(), reason=f"no {PANDASET}")
def test_pandaset_case_is_stored() -> None:
    expect_stored("sweeps_pandaset_002.npz", pandaset_case(PANDASET))


def test_a_point_that_stands_still_is_where_the_vehicle_sees_it() -> None:
    # The vehicle sees the point from (10, 0) while it faces along the world's y, and then from (10, 5) while it faces
    # along -x.
    half = np.sqrt(0.5)
    poses = np.array([[10, 0, 0, half, 0, 0, half], [10, 5, 0, 0, 0, 0, 2]])
    seen = [np.array([[7, 0, 1, 0.5]], np.float32), np.zeros((0, 4), np.float32)]
    case = merge(seen, poses, np.array([0, 100_000_000]))
    np.testing.assert_allclose(case["merged"], [[0, -2, 1, 0.5, 0.1]], atol=1e-6)
