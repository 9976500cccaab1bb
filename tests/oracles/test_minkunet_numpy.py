"""The exported model folder computes what TorchSparse computed, so kernel order, layouts and connections are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from golden_scans import FEATURE_STEPS, logits_of
from long_tests import LONG
from minkunet_numpy import MinkUNet

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = REPOSITORY / "tests" / "golden"


@pytest.fixture(scope="module")
def network() -> MinkUNet:
    return MinkUNet(REPOSITORY / "deploy" / "models" / "minkunet" / "1")


def scan_070() -> np.ndarray:
    return np.fromfile(REPOSITORY / "deploy" / "scans" / "pandaset_070.bin", np.float32).reshape(-1, 4)


@pytest.fixture(scope="module")
def run_070(network: MinkUNet):
    return network.run(scan_070())


@LONG
def test_070_logits_are_torchsparses(run_070) -> None:
    golden = np.load(GOLDEN / "pandaset_070.npz")
    np.testing.assert_allclose(run_070["classifier"].features, logits_of(golden), rtol=0, atol=1e-4)
    assert (run_070["labels"].features[:, 0] == golden["label"]).mean() > 0.99999


@LONG
def test_063_logits_are_torchsparses(network: MinkUNet) -> None:
    golden = np.load(GOLDEN / "pandaset_063.npz")
    values = network.run(np.fromfile(GOLDEN / "pandaset_063.bin", np.float32).reshape(-1, 4))
    logits = values["classifier"].features
    np.testing.assert_allclose(logits[:: golden["step"]], logits_of(golden), rtol=0, atol=1e-4)
    second, best = np.sort(logits, axis=1)[:, -2:].T
    np.testing.assert_allclose(np.minimum(best - second, 4), golden["margin"] / 16384, rtol=0, atol=2e-4)
    assert (values["labels"].features[:, 0] == golden["label"]).mean() > 0.99999


LEVELS = ["stem.1.relu", *(f"stage{i}.1.relu" for i in range(1, 5))]
INTERMEDIATE = np.load(GOLDEN / "pandaset_070_intermediate.npz")


def check_features(features: np.ndarray, level: int) -> None:
    step = FEATURE_STEPS[f"x{level}_feats"]
    np.testing.assert_allclose(features[::step], INTERMEDIATE[f"x{level}_feats"], rtol=0, atol=1e-4)


def test_070_the_first_level(network: MinkUNet) -> None:
    stem = network.run(scan_070(), last=LEVELS[0])[LEVELS[0]]
    np.testing.assert_array_equal(stem.sites, INTERMEDIATE["x0_coords"])
    check_features(stem.features, 0)


@LONG
def test_070_levels_and_inner_features(run_070) -> None:
    for level, name in enumerate(LEVELS):
        np.testing.assert_array_equal(run_070[name].sites, INTERMEDIATE[f"x{level}_coords"])
    for level in (0, 4):
        check_features(run_070[LEVELS[level]].features, level)
