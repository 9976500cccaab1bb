"""Storing the golden scans in reduced form does not change what the tests compare."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from golden_scans import LOGIT_STEPS, logits_of, reduce_all, reduce_scan

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "tests" / "golden"
SHARED = Path(os.environ.get("VOXSERVE_SHARED_DATA") or REPOSITORY.parent / "shared" / "data")
FULL = SHARED / "minkunet-pandaset" / "golden"


def make_scan(logits: np.ndarray) -> dict[str, np.ndarray]:
    return {"logits": logits.astype(np.float32), "label": np.zeros(5, np.uint8)}


def test_logits_come_back_within_their_rounding() -> None:
    logits = np.random.default_rng(3).uniform(-60, 60, (100, 12)).astype(np.float32)
    logits[0, :4] = [-0.0, 127.25, -127.5, -1e-6]
    for step in (1, 7):
        stored = reduce_scan(make_scan(logits), step)
        restored = logits_of(stored)
        assert restored.dtype == np.float32
        np.testing.assert_allclose(restored, logits[::step], rtol=0, atol=2**-17)
        assert stored["step"] == step


def test_margins_are_rounded_down_and_end_at_four() -> None:
    logits = np.float32([[1, 3, 2.99999], [-1, -3, -5], [7, 1, 1], [2, 2, 0]])
    assert reduce_scan(make_scan(logits), 1)["margin"].tolist() == [0, 32768, 65535, 0]


def test_logits_that_do_not_fit_are_refused() -> None:
    with pytest.raises(AssertionError, match="do not fit"):
        reduce_scan(make_scan(np.float32([[128.5, 0]])), 1)


@pytest.mark.parametrize("name", LOGIT_STEPS)
def test_stored_scans_agree_with_themselves(name: str) -> None:
    golden = np.load(GOLDEN / f"{name}.npz")
    logits, margin = logits_of(golden), golden["margin"][:: golden["step"]]
    assert logits.shape == (len(margin), 12)
    second, best = np.sort(logits, axis=1)[:, -2:].T
    assert np.abs(np.minimum(best - second, 4) * 16384 - margin).max() < 2


def test_stored_files_are_the_reduced_originals() -> None:
    if not FULL.is_dir():
        pytest.skip(f"{FULL} is missing (set VOXSERVE_SHARED_DATA)")
    for name, arrays in reduce_all(FULL).items():
        with np.load(GOLDEN / name) as stored:
            assert set(stored) == set(arrays)
            for key, array in arrays.items():
                np.testing.assert_array_equal(stored[key], array, err_msg=f"{name}: {key}")
