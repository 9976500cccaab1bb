"""Tests the client with the real server and the models of deploy/models, on the golden scans."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import REPOSITORY, ServerAddress

import voxserve
from voxserve import feature_warning
from voxserve.cli.main import main

pytestmark = pytest.mark.integration
SCAN = REPOSITORY / "deploy" / "scans" / "pandaset_070.bin"
GOLDEN = REPOSITORY / "tests" / "golden"
TIMEOUT = 120.0  # enough for a busy machine without a GPU


@pytest.fixture
def client(real_server: ServerAddress) -> Iterator[voxserve.Client]:
    with voxserve.Client(real_server, timeout=TIMEOUT, admin_address=real_server.admin) as client:
        yield client


@pytest.fixture(scope="module")
def scan() -> np.ndarray[Any, Any]:
    return np.fromfile(SCAN, np.float32).reshape(-1, 4)


def voxels_of(points: Any) -> Any:
    """Returns the row of each point's voxel in the arrays of tests/golden."""
    index = np.round(points[:, :3] / np.float32(0.05)).astype(np.int64)
    return np.unique((index - index.min(axis=0)) @ (1 << 40, 1 << 20, 1), return_inverse=True)[1]


@pytest.mark.parametrize("name", ["pandaset_063", "pandaset_070"])
def test_golden_labels(client: voxserve.Client, name: str) -> None:
    path = SCAN if name == "pandaset_070" else GOLDEN / f"{name}.bin"
    labels = client.segment("minkunet", voxserve.read(path))
    golden = np.load(GOLDEN / f"{name}.npz")
    rows = voxels_of(np.fromfile(path, np.float32).reshape(-1, 4))
    certain = (golden["margin"] / 16384 > 1e-3)[rows]  # voxels whose best two logits differ by more than 1e-3
    np.testing.assert_array_equal(labels[certain], golden["label"][certain])
    assert certain.mean() > 0.99


def test_golden_scores(client: voxserve.Client, scan: Any) -> None:
    result = client.infer("minkunet", scan, scores=True)
    golden = np.load(GOLDEN / "pandaset_070.npz")
    logits = golden["logits_floor"] + golden["logits_fraction"] / 65536  # this scan has the logits of every voxel
    np.testing.assert_allclose(result.scores, logits[voxels_of(scan)], rtol=0, atol=5e-4)
    assert (result.counts.used, result.counts.voxels) == (len(scan), len(golden["margin"]))
    assert {"voxelize", "geometry", "features"} <= {stage.name for stage in result.stages}


def test_millimetres_are_out_of_range(client: voxserve.Client, scan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_warning, "_told", set())
    with pytest.warns(voxserve.OutOfRangeWarning, match="coordinates are metres from the sensor"):
        client.segment("minkunet", scan[::10] * np.float32([1000, 1000, 1000, 1]))


def test_every_way_to_say_the_same(client: voxserve.Client, scan: Any) -> None:
    few = scan[::50]
    expected = client.segment("minkunet", few)
    columns = {name: few[:, i] for i, name in enumerate(("x", "y", "z", "intensity"))}
    scaled = np.concatenate([few[:, [3]] * 255, few[:, :3]], axis=1)
    fields = ["intensity", "x", "y", "z"]
    structured = np.zeros(len(few), [("ring", "u1"), ("x", ">f4"), ("y", ">f4"), ("z", ">f4"), ("intensity", ">f8")])
    for name, values in columns.items():
        structured[name] = values
    wide = np.zeros((len(few), 6), np.float32)
    wide[:, [0, 1, 2, 4]] = few
    point_fields = [SimpleNamespace(name=n, offset=o, datatype=7, count=1) for n, o in
                    (("x", 0), ("y", 4), ("z", 8), ("intensity", 16))]  # fmt: skip
    message = SimpleNamespace(height=1, width=len(few), fields=point_fields, is_bigendian=False, point_step=24,
                              row_step=24 * len(few), data=wide.tobytes(), header=None)  # fmt: skip
    for labels in (
        client.segment("minkunet", columns),
        client.segment("minkunet", structured),
        client.segment("minkunet", message),
        client.segment("minkunet", few.astype(np.float64)),
        client.segment("minkunet", wide, fields=["x", "y", "z", "-", "intensity"]),
    ):
        np.testing.assert_array_equal(labels, expected)
    rescaled = client.segment("minkunet", scaled, fields=fields, scales={"intensity": 1 / 255})
    assert (rescaled == expected).mean() > 0.999  # x / 255 * 255 is rounded, which may change a few labels


def test_no_points_one_point_and_invalid_points(client: voxserve.Client, scan: Any) -> None:
    assert client.segment("minkunet", scan[:0]).shape == (0,)
    assert client.segment("minkunet", scan[:1]).shape == (1,)
    broken = scan[:100].copy()
    broken[3, 0], broken[7, 2] = np.nan, np.inf
    result = client.infer("minkunet", broken)
    assert result.labels[[3, 7]].tolist() == [255, 255]
    assert (result.counts.used, result.counts.invalid) == (98, 2)


def farthest(points: Any, number: int) -> list[int]:
    """Selects farthest points by their definition, from point 0. Every operation rounds to float32."""
    distance = np.full(len(points), np.inf, np.float32)
    selected = [0]
    while len(selected) < number:
        dx, dy, dz = (points[:, :3] - points[selected[-1], :3]).T
        distance = np.minimum(distance, (dx * dx + dy * dy) + dz * dz)
        selected.append(int(distance.argmax()))
    return selected


def test_farthest_points(client: voxserve.Client, scan: Any) -> None:
    expected = farthest(scan, 200)
    sample = voxserve.FarthestPoints(200)
    result = client.infer("minkunet", scan, sample=sample)
    assert result.sampled_points is not None
    assert result.sampled_points.tolist() == expected
    assert "sample" in {stage.name for stage in result.stages}
    with client.stream("minkunet", sample=sample, policy="queue", timeout=TIMEOUT) as stream:
        stream.send(1, scan)
        answer = next(stream).segmentation
    assert answer is not None
    assert answer.sampled_points is not None
    assert answer.sampled_points.tolist() == expected

    alone = client.infer("minkunet", scan, sample=voxserve.FarthestPoints(200, use="network"))
    seen = np.zeros(len(scan), bool)
    seen[expected] = True
    assert (alone.counts.used, alone.counts.unsampled) == (200, len(scan) - 200)
    assert (alone.labels[~seen] == 255).all()
    np.testing.assert_array_equal(alone.labels[seen], client.segment("minkunet", scan[seen]))
    with pytest.raises(voxserve.InvalidArgumentError, match="100 points") as refused:
        client.infer("minkunet", scan[:100], sample=sample)
    assert refused.value.reason == "BAD_SAMPLE"


def test_errors(client: voxserve.Client, scan: Any) -> None:
    with pytest.raises(voxserve.NotFoundError, match="minkunet") as unknown:
        client.segment("nothing", scan[:1])
    assert unknown.value.reason == "MODEL_NOT_FOUND"
    with pytest.raises(voxserve.NotFoundError) as version:
        client.segment("minkunet", scan[:1], version=99)
    assert version.value.reason == "VERSION_NOT_FOUND"
    with pytest.raises(voxserve.InvalidArgumentError, match="intensity") as field:
        client.segment("minkunet", scan[:1, :3])
    assert field.value.reason == "MISSING_FIELD"
    with pytest.raises(voxserve.DeadlineExceededError):
        client.segment("minkunet", scan, timeout=1e-3)


def test_models(client: voxserve.Client) -> None:
    model = client.model("minkunet")
    assert [m.name for m in client.models()] == ["centerpoint", "minkunet"]
    assert model.state == voxserve.ModelState.READY
    assert (model.num_parameters, model.ignore_label, len(model.classes)) == (5_441_036, 255, 12)
    assert model.classes[5] == voxserve.ClassInfo(5, "car", (40, 90, 255))
    assert [f.name for f in model.features] == ["x", "y", "z", "intensity"]
    assert client.health()


def test_the_trained_detector_finds_the_boxes_of_plain_pytorch(client: voxserve.Client) -> None:
    """deploy/train computed the golden boxes from the same weights, with its own PyTorch layers in float32."""
    found = client.detect("centerpoint", np.fromfile(SCAN, np.float32).reshape(-1, 4))
    if found.device != "cpu":
        pytest.skip(f"{found.device} computes in float16")
    with np.load(GOLDEN / "centerpoint_070.npz") as golden:
        assert len(found) == len(golden["boxes"]) == 69
        distances = np.linalg.norm(found.boxes[:, None, :3] - golden["boxes"][None, :, :3], axis=2)
        nearest = distances.argmin(axis=1)
        assert sorted(nearest) == list(range(69))
        np.testing.assert_array_equal(found.class_ids, golden["classes"][nearest])
        np.testing.assert_allclose(found.scores, golden["scores"][nearest], atol=1e-4)
        np.testing.assert_allclose(found.boxes[:, :6], golden["boxes"][nearest, :6], atol=1e-3)
        turns = found.boxes[:, 6] - golden["boxes"][nearest, 6]
        np.testing.assert_allclose(np.sin(turns / 2), 0, atol=1e-3)


def test_aio(real_server: str, scan: Any) -> None:
    async def run() -> list[Any]:
        async with voxserve.aio.Client(real_server, timeout=TIMEOUT) as client:
            return await asyncio.gather(*(client.segment("minkunet", scan[: 1000 * n]) for n in range(1, 4)))

    assert [len(labels) for labels in asyncio.run(run())] == [1000, 2000, 3000]


def test_a_stream_answers_as_calls_do(client: voxserve.Client, scan: Any) -> None:
    clouds = [scan[start::20] for start in range(4)]
    with client.stream("minkunet", policy="queue", scores=True, timeout=TIMEOUT) as stream:
        for frame_id, cloud in enumerate(clouds):
            stream.send(frame_id, cloud)
        stream.send(9, clouds[0][:, :3])  # a bad frame between good ones
        stream.close_sends()
        results = list(stream)
    assert [result.frame_id for result in results] == [0, 1, 2, 3, 9]
    for cloud, result in zip(clouds, results, strict=False):
        alone = client.infer("minkunet", cloud, scores=True)
        np.testing.assert_allclose(result.segmentation.scores, alone.scores, rtol=0, atol=tolerance(alone.device))
    assert results[-1].error.reason == "MISSING_FIELD"


def test_a_frame_in_parts_has_the_answer_of_the_whole_frame(client: voxserve.Client, scan: Any) -> None:
    points = scan[::10]
    with client.stream("minkunet", policy="queue", scores=True, timeout=TIMEOUT) as stream:
        stream.send(1, points)
        for part in np.array_split(points, 10):
            stream.send_part(2, part)
        stream.send_part(2, points[:0], is_last=True)
        stream.send_part(3, points[:5])  # never completed
        stream.send_part(4, points[:50])
        stream.send_part(4, points[50:80, :3], is_last=True)  # of other fields
        stream.send_part(5, points[:0], is_last=True)
        stream.close_sends()
        whole, parts, incomplete, different, empty = stream
    assert [result.frame_id for result in (whole, parts, incomplete, different, empty)] == [1, 2, 3, 4, 5]
    assert parts.segmentation.scores.tobytes() == whole.segmentation.scores.tobytes()
    assert parts.segmentation.labels.tobytes() == whole.segmentation.labels.tobytes()
    assert parts.segmentation.counts == whole.segmentation.counts
    assert incomplete.error.reason == "FRAME_INCOMPLETE"
    assert "lacks parts 1 and all after it" in incomplete.error.message
    assert different.error.reason == "BAD_LAYOUT"
    assert len(empty.segmentation.labels) == 0


def tolerance(device: str) -> float:
    """Returns the tolerance of logits that are computed in different batches. A GPU computes them in float16."""
    return 1e-4 if device == "cpu" else 0.1


def turn(angle: float, translation: tuple[float, float, float]) -> Any:
    """Returns the matrix [4, 4] of a rotation about the vertical axis and a translation."""
    matrix = np.eye(4)
    matrix[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    matrix[:3, 3] = translation
    return matrix


def merge(sweeps: list[tuple[Any, Any]]) -> Any:
    """Returns the points of all sweeps (points, pose) in the last sweep's coordinates, the newest sweep first."""
    newest, to_newest = sweeps[-1][0], np.linalg.inv(sweeps[-1][1])
    clouds = [newest]
    for points, pose in reversed(sweeps[:-1]):
        m = (to_newest @ pose).astype(np.float32)
        moved = points.copy()
        for axis in range(3):
            products = m[axis, :3] * points[:, :3]
            moved[:, axis] = ((products[:, 0] + products[:, 1]) + products[:, 2]) + m[axis, 3]
        clouds.append(moved)
    return np.concatenate(clouds)


def test_sweeps_are_merged_as_numpy_merges_them(client: voxserve.Client, scan: Any) -> None:
    poses = [turn(0.02 * i, (0.8 * i, -0.1 * i, 0.01 * i)) for i in range(4)]
    sweeps = [(scan[i::20], pose) for i, pose in enumerate(poses)]
    options = {"policy": "queue", "scores": True, "sweeps": voxserve.Sweeps(3), "timeout": TIMEOUT}
    with client.stream("minkunet", **options) as stream:
        for i, (points, pose) in enumerate(sweeps):
            stream.send(i, points, pose, 1000 + 0.1 * i)
        stream.send(4, sweeps[0][0], poses[0], 1000.4, reset_sweeps=True)
        stream.close_sends()
        results = list(stream)
    assert [result.num_sweeps for result in results] == [1, 2, 3, 3, 1]
    expected = [sweeps[:1], sweeps[:2], sweeps[:3], sweeps[1:], sweeps[:1]]
    for result, history in zip(results, expected, strict=True):
        alone = client.infer("minkunet", merge(history), scores=True)
        num_points = len(history[-1][0])
        assert len(result.segmentation.labels) == num_points
        np.testing.assert_allclose(
            result.segmentation.scores, alone.scores[:num_points], rtol=0, atol=tolerance(alone.device)
        )


def test_loading_what_is_loaded_changes_nothing(client: voxserve.Client) -> None:
    assert client.load_model("minkunet") == (1,)
    with pytest.raises(voxserve.NotFoundError):
        client.load_model("nothing")
    with pytest.raises(voxserve.NotFoundError):
        client.unload_model("nothing")


def test_command_line(real_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["infer", "--model", "minkunet", str(SCAN), "--truth", str(SCAN.with_suffix(".truth.u8"))]
    assert main([*words, "--timeout", "2m", "--address", real_server]) == 0
    out = capsys.readouterr().out
    assert "94.8% agree with the labels of people: 101,056 of 106,610 points" in out


def test_both_command_lines_say_the_same(real_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    binary = os.environ.get("VOXSERVE_CLIENT_BINARY")
    if not binary:
        pytest.skip("VOXSERVE_CLIENT_BINARY does not name the C++ client; tests/run.sh sets it")
    words = ["infer", "--model", "minkunet", str(SCAN), "--truth", str(SCAN.with_suffix(".truth.u8"))]
    for extra in (["--json"], []):
        command = [*words, *extra, "--timeout", "2m", "--address", real_server]
        assert main(command) == 0
        ours = without_times(capsys.readouterr().out)
        done = subprocess.run([binary, *command], capture_output=True, text=True, check=True)
        assert ours == without_times(done.stdout)


def without_times(text: str) -> Any:
    """Removes from a client's output the times, and the bars that the C++ client draws."""
    if text.startswith("{"):
        return {key: value for key, value in json.loads(text).items() if not key.endswith("_ms")}
    lines = text.splitlines()
    begin, end = (next(i for i, line in enumerate(lines) if word in line) for word in ("stage", "round trip"))
    return [line.rstrip("#▏▎▍▌▋▊▉█ ") for line in lines[:begin] + lines[end + 1 :]]
