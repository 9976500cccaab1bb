"""Exports DSVT and FlatFormer, and compares the server's boxes with those that the libraries' own classes computed
(tests/golden/windows).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import serving
from query_golden import Golden
from window_golden import CENTER_MAX, CENTER_MIN, RANGE, read

import voxserve
from voxserve.export import model_folder
from voxserve.export.networks import dsvt, flatformer

METRES, SCORE = 1e-3, 1e-4  # allowed differences of boxes, and of scores
FIELDS = ("x", "y", "z", "intensity", "elongation")
MODULES: dict[str, Any] = {"dsvt": dsvt, "flatformer": flatformer}


def export(folder: Path, case: str, golden: Golden) -> None:
    """Writes the folder of the published network on the golden's range."""
    published = MODULES[case].WAYMO
    voxels = replace(published.voxels, range_min=RANGE[:3], range_max=RANGE[3:])
    config = replace(published, voxels=voxels, center_min=CENTER_MIN, center_max=CENTER_MAX)
    network = MODULES[case].build(golden.state, config, name=case)
    model_folder.write(str(folder / case), network, model_folder.config_textproto(config.classes, max_voxels=0))


def differences(found: voxserve.Detections, golden: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns those of each found box from each golden one, [found, golden, 11], angles within half a turn."""
    velocities = found.velocities if found.velocities is not None else np.zeros((len(found.boxes), 2))
    rows = np.concatenate(
        [found.boxes, velocities, found.scores[:, None], found.class_ids[:, None]], axis=1, dtype=np.float64
    )
    difference = np.abs(rows[:, None] - golden[None])
    difference[..., 6] = np.minimum(difference[..., 6], 2 * np.pi - difference[..., 6])
    return difference


@pytest.mark.integration
@pytest.mark.parametrize("case", MODULES)
def test_the_server_has_the_boxes_of_the_library(tmp_path: Path, case: str) -> None:
    golden = read(case)
    export(tmp_path / "models", case, golden)
    with serving(tmp_path / "models", tmp_path / "log") as address, voxserve.Client(address, timeout=300) as client:
        clouds = (voxserve.PointCloud.from_array(part, fields=FIELDS) for part in (golden.points, golden.points[:0]))
        found, empty = (client.detect(case, cloud) for cloud in clouds)
    assert len(golden.boxes) > 300
    assert set(golden.boxes[:, 10]) == {0, 1, 2}
    assert len(found.boxes) == len(golden.boxes)
    difference = differences(found, golden.boxes)
    fits = (difference[..., :9] < METRES).all(axis=2) & (difference[..., 9] < SCORE) & (difference[..., 10] == 0)
    assert (fits.sum(axis=0) == 1).all()
    assert (fits.sum(axis=1) == 1).all()
    assert np.isfinite(empty.boxes).all()
