"""Compares the boxes that clients get from the real server with those of the networks' definitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY
from test_client import Call, call_aio, call_sync

import voxserve

pytestmark = pytest.mark.integration
GOLDEN = REPOSITORY / "tests" / "golden"
TIMEOUT = 120.0  # enough for a busy machine without a GPU
# The models, the names of their boxes in networks.npz, and whether the boxes have velocities.
DETECTORS = [
    ("small-centerpoint-openpcdet", "centerpoint_openpcdet_boxes", True),
    ("small-centerpoint-det3d", "centerpoint_det3d_boxes", True),
    ("small-voxelnext", "voxelnext_boxes", True),
    ("small-centerpoint-pillar", "centerpoint_pillar_boxes", True),
    ("small-pointpillars", "pointpillars_boxes", False),
    ("small-second", "second_boxes", False),
]
YAW, SCORE, CLASS = 6, 9, 10


@pytest.fixture(scope="module")
def scan() -> Any:
    return voxserve.read(GOLDEN / "pandaset_063.bin")


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    with np.load(GOLDEN / "networks.npz") as arrays:
        return dict(arrays)


def tolerance(device: str) -> tuple[float, float, float]:
    """Returns tolerances for a box's numbers and score, and the share of boxes that must match; see tests/engine."""
    return (2e-3, 2e-3, 1.0) if device == "cpu" else (0.2, 0.02, 0.9)


def expect_boxes(found: voxserve.Detections, golden: Any) -> None:
    """Matches each box at most once, with the closest one of its class."""
    number, score, fraction = tolerance(found.device)
    columns = (found.boxes, found.velocities, found.scores[:, None], found.class_ids[:, None])
    left = np.concatenate(columns, axis=1)
    allowed = np.array([number] * SCORE + [score])
    num_matched = 0
    for box in golden:
        difference = np.abs(left[:, :CLASS] - box[:CLASS])
        difference[:, YAW] = np.minimum(difference[:, YAW], 2 * np.pi - difference[:, YAW])
        largest = np.where(left[:, CLASS] == box[CLASS], (difference / allowed).max(axis=1), np.inf)
        if len(left) > 0 and largest.min() <= 1:
            left = np.delete(left, largest.argmin(), axis=0)
            num_matched += 1
    assert len(golden) > 20
    assert num_matched >= fraction * max(len(golden), len(found))


@pytest.mark.filterwarnings("ignore::voxserve.OutOfRangeWarning")  # the small networks read a few metres
@pytest.mark.parametrize("call", [call_sync, call_aio], ids=["sync", "aio"])
@pytest.mark.parametrize(("model", "array", "has_velocities"), DETECTORS)
def test_golden_boxes(
    network_server: str, call: Call, scan: Any, golden: dict[str, Any], model: str, array: str, has_velocities: bool
) -> None:
    found = call(network_server, "detect", model, scan, options={"timeout": TIMEOUT})
    expect_boxes(found, golden[array])
    assert (found.model, found.version) == (model, 1)
    assert found.names == tuple(f"class {i}" for i in found.class_ids)
    assert found.velocities.any() == has_velocities
    assert found.counts.voxels > 0


def test_a_stream_has_the_boxes_of_every_frame(network_server: str, scan: Any, golden: dict[str, Any]) -> None:
    model, array, _ = DETECTORS[0]
    with (
        voxserve.Client(network_server, timeout=TIMEOUT) as client,
        client.stream(model, policy="queue", timeout=TIMEOUT) as stream,
    ):
        for frame_id in range(3):
            stream.send(frame_id, scan)
        stream.close_sends()
        results = list(stream)
    assert [result.frame_id for result in results] == [0, 1, 2]
    for result in results:
        assert result.segmentation is None
        expect_boxes(result.detections, golden[array])


def test_no_boxes_out_of_range(network_server: str) -> None:
    with voxserve.Client(network_server, timeout=TIMEOUT) as client:
        found = client.detect(DETECTORS[0][0], np.float32([[1000, 0, 0, 0.5]]))
        assert (len(found), found.counts.out_of_range) == (0, 1)
        model = client.model(DETECTORS[0][0])
        assert (model.has_boxes, model.has_velocities, model.has_labels) == (True, True, False)
