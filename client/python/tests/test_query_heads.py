"""Exports networks whose heads have queries by their libraries' configurations, and compares the server's boxes with
those that the libraries' own classes computed (tests/golden/queries).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import query_configs
from conftest import serving
from query_golden import Golden

import voxserve
from voxserve.export import model_folder
from voxserve.export.__main__ import main
from voxserve.export.networks import trans_fusion

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
METRES, SCORE = 1e-3, 1e-4  # allowed differences of boxes, and of scores
DETECTORS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "openpcdet": ("transfusion-l", query_configs.openpcdet),
    "awml-bevfusion": ("bevfusion-l", query_configs.bev_fusion),
    "awml-transfusion": ("transfusion-l", query_configs.trans_fusion),
}


def export(folder: Path, case: str, values: dict[str, Any] | None = None, golden: Golden | None = None) -> int:
    command, config = DETECTORS[case]
    folder.mkdir(exist_ok=True)
    weights = (golden or Golden.read(case)).write(folder)
    path = query_configs.write(folder, config() if values is None else values)
    return main([command, str(weights), "--config", str(path), "--output", str(folder.parent / "models" / case)])


def expect_boxes(found: voxserve.Detections, golden: np.ndarray[Any, Any]) -> None:
    """Every box of the library is there once, within the allowed differences, and there is no other."""
    assert len(golden) > 20
    rows = np.concatenate(
        [found.boxes, found.velocities, found.scores[:, None], found.class_ids[:, None]], axis=1, dtype=np.float64
    )
    assert len(rows) == len(golden)
    difference = np.abs(rows[:, None] - golden[None])
    difference[..., 6] = np.minimum(difference[..., 6], 2 * np.pi - difference[..., 6])
    fits = (difference[..., :9] < METRES).all(axis=2) & (difference[..., 9] < SCORE) & (difference[..., 10] == 0)
    assert (fits.sum(axis=0) == 1).all()
    assert (fits.sum(axis=1) == 1).all()
    assert found.queries is not None
    assert len(set(found.queries.tolist())) == len(rows)


def detect(folder: Path, case: str, points: np.ndarray[Any, Any]) -> tuple[voxserve.Detections, ...]:
    """Returns the boxes of a cloud, and those of an empty one."""
    fields = ("x", "y", "z", "intensity", "age")
    with serving(folder / "models", folder / "log") as address, voxserve.Client(address, timeout=120) as client:
        clouds = (voxserve.PointCloud.from_array(part, fields=fields) for part in (points, points[:0]))
        return tuple(client.detect(case, cloud) for cloud in clouds)


@pytest.mark.integration
@pytest.mark.parametrize("case", DETECTORS)
def test_the_server_has_the_boxes_of_the_library(tmp_path: Path, case: str) -> None:
    golden = Golden.read(case)
    assert export(tmp_path / case, case, golden=golden) == 0
    found, empty = detect(tmp_path, case, golden.points)
    expect_boxes(found, golden.boxes)
    assert np.isfinite(empty.boxes).all()


def bevfusion_config() -> trans_fusion.Config:
    """Returns mit-han-lab/bevfusion's published configuration on a small range."""
    config = trans_fusion.config_of("nuscenes-0.1", "bevfusion")
    features = tuple(replace(feature, scale=1.0) for feature in config.voxels.features)
    low, high = (-25.6, -25.6, -3.0), (25.6, 25.6, 5.0)
    limits = {"center_min": (-24.0, -24.0, -9.0), "center_max": (24.0, 24.0, 9.0), "score_thresholds": (0.3,)}
    return replace(
        config,
        voxels=replace(config.voxels, range_min=low, range_max=high, features=features),
        head=replace(config.head, **limits),
    )


@pytest.mark.integration
def test_the_server_has_the_boxes_of_bevfusion(tmp_path: Path) -> None:
    golden = Golden.read("bevfusion")
    config = bevfusion_config()
    network = trans_fusion.build(golden.state, config, name="bevfusion", library="bevfusion")
    text = model_folder.config_textproto(config.classes, max_voxels=0)
    model_folder.write(str(tmp_path / "models" / "bevfusion"), network, text)
    found, _ = detect(tmp_path, "bevfusion", golden.points)
    expect_boxes(found, golden.boxes)


@pytest.mark.integration
def test_one_request_has_the_labels_and_boxes_of_autoware_ml(tmp_path: Path) -> None:
    golden = Golden.read("autoware-ptv3")
    config = query_configs.write_ptv3(tmp_path)
    weights = golden.write(tmp_path)
    output = tmp_path / "models" / "ptv3"
    assert main(["autoware-ptv3", str(weights), "--config", str(config), "--output", str(output)]) == 0
    with serving(tmp_path / "models", tmp_path / "log") as address, voxserve.Client(address, timeout=120) as client:
        segmentation = client.infer("ptv3", golden.points)
        found = segmentation.detections
    assert found is not None
    expect_boxes(found, golden.boxes)
    assert len(np.unique(golden.labels)) > 3
    # Two logits of a voxel may be closer than float32 computes them.
    assert (segmentation.labels == golden.labels).mean() > 0.9999
