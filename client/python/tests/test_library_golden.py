"""Compares what torchsparse computed on a GPU (tests/golden/libraries) with NumPy and the server. Needs no torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import REPOSITORY, serving

from voxserve.verify import reference
from voxserve.verify.__main__ import main as verify
from voxserve.verify.compare import Comparison, Model

LIBRARIES = REPOSITORY / "tests" / "golden" / "libraries"
NAMES = ("torchsparse-detector", "torchsparse-layers", "torchsparse-unet")
TOLERANCE = 1e-4  # of the largest magnitude


def test_every_folder_is_compared() -> None:
    assert sorted(path.name for path in LIBRARIES.iterdir()) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_numpy_computes_what_torchsparse_did(name: str) -> None:
    comparison = Comparison(Model.read(LIBRARIES / name), reference.read(LIBRARIES / name / "reference.npz"))
    outputs = comparison.outputs()
    assert comparison.skipped == {}
    assert outputs
    for key, deviation in outputs.items():
        assert deviation.is_within(TOLERANCE), f"{key}: {deviation}"
        assert deviation.magnitude > 0.1


@pytest.mark.integration
def test_the_server_computes_what_torchsparse_did(tmp_path: Path) -> None:
    with serving(LIBRARIES, tmp_path / "log") as address:
        for name in NAMES:
            arguments = [str(LIBRARIES / name), str(LIBRARIES / name / "reference.npz"), "--address", address]
            assert verify(arguments) == 0, name
