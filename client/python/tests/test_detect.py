"""Tests boxes: from a fake server, with both clients, and their files, counts and tables."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FakeServer, add_boxes, answer
from stream_clients import WAIT, error_of
from test_client import Call, Points, call_aio, call_sync

import voxserve
from voxserve import ClassInfo, Detections, PointCounts, box_file
from voxserve.cli.box_counts import count_boxes, surest_first
from voxserve.cli.report import format_boxes

CLASSES = (ClassInfo(0, "car", (255, 0, 0)), ClassInfo(1, "truck", (0, 0, 255)))


@pytest.fixture(params=[call_sync, call_aio], ids=["sync", "aio"])
def call(request: pytest.FixtureRequest) -> Call:
    return request.param


def test_detect_gives_boxes_in_columns(call: Call, server: FakeServer, points: Points) -> None:
    found = call(server.address, "detect", "detector", points[:3], request_id="r-1", version=7, priority=2)
    assert len(found) == 3
    np.testing.assert_array_equal(found.boxes[2], np.float32([2, -2, 0.5, 4, 2, 1.5, 0.25]))
    np.testing.assert_array_equal(found.velocities, np.tile(np.float32([3, 4]), (3, 1)))
    np.testing.assert_array_equal(found.scores, np.float32([1, 1 / 2, 1 / 3]))
    assert found.class_ids.tolist() == [1, 0, 1]
    assert found.names == ("car", "", "car")
    types = [array.dtype for array in (found.boxes, found.velocities, found.scores, found.class_ids)]
    assert types == [np.float32, np.float32, np.float32, np.uint32]
    assert (found.model, found.version, found.request_id, found.counts.used) == ("detector", 3, "r-1", 3)
    assert found.round_trip > 0
    sent = server.requests[0]
    assert (sent.version, sent.priority, sent.return_scores) == (7, 2, False)


def test_no_points_have_no_boxes(call: Call, server: FakeServer) -> None:
    found = call(server.address, "detect", "detector", np.zeros((0, 4), np.float32))
    assert (len(found), found.boxes.shape, found.velocities.shape, found.names) == (0, (0, 7), (0, 2), ())
    assert found.structured().shape == (0,)


def test_a_sample_comes_with_boxes(call: Call, server: FakeServer, points: Points) -> None:
    found = call(server.address, "detect", "detector", points, sample=voxserve.FarthestPoints(3))
    assert found.sampled_points.tolist() == [0, 1, 2]
    assert len(found) == 10


def test_a_model_with_both_is_asked_for_either(call: Call, server: FakeServer, points: Points) -> None:
    assert len(call(server.address, "detect", "both", points)) == 10
    assert len(call(server.address, "segment", "both", points)) == 10


@pytest.mark.parametrize(
    ("method", "model", "message"),
    [
        ("detect", "minkunet", "model 'minkunet' answers labels and no boxes; ask it with infer or segment"),
        ("infer", "detector", "model 'detector' answers boxes and no labels; ask it with detect"),
        ("segment", "detector", "model 'detector' answers boxes and no labels; ask it with detect"),
    ],
)
def test_the_wrong_call_is_told_the_right_one(
    call: Call, server: FakeServer, points: Points, method: str, model: str, message: str
) -> None:
    with pytest.raises(voxserve.InvalidArgumentError) as caught:
        call(server.address, method, model, points)
    assert (caught.value.reason, caught.value.message) == ("UNSUPPORTED_OUTPUT", message)


@pytest.mark.parametrize("method", ["detect", "infer"])
def test_neither_is_malformed(call: Call, server: FakeServer, points: Points, method: str) -> None:
    with pytest.raises(voxserve.InferenceError, match="neither labels nor boxes") as caught:
        call(server.address, method, "mute", points)
    assert caught.value.reason == "MALFORMED_RESPONSE"


def test_boxes_that_are_none_are_malformed(call: Call, server: FakeServer, points: Points) -> None:
    with pytest.raises(voxserve.InferenceError, match="box 0 is not finite"):
        call(server.address, "detect", "crooked", points)


def test_models_say_what_they_answer(call: Call, server: FakeServer) -> None:
    model = call(server.address, "model", "detector")
    assert (model.has_labels, model.has_scores, model.has_boxes, model.has_velocities) == (False, False, True, True)
    model = call(server.address, "model", "minkunet")
    assert (model.has_labels, model.has_scores, model.has_boxes, model.has_velocities) == (True, True, False, False)


def test_frames_of_a_stream_have_what_the_model_has(client: Any, server: FakeServer, points: Points) -> None:
    def streams(requests: Iterator[Any], _context: Any) -> Iterator[Any]:
        next(requests)
        for request in requests:
            response = answer(request)
            add_boxes(response.result.response, request.frame.cloud.num_points)
            if request.frame.frame_id != 1:  # frame 1 has labels and boxes
                response.result.response.ClearField("segmentation")
            if request.frame.frame_id == 3:
                response.result.response.ClearField("detections")
            yield response

    server.streams = streams
    with client.stream("detector", policy="queue", timeout=WAIT) as stream:
        for frame_id in range(4):
            stream.send(frame_id, points[:frame_id])
        stream.close_sends()
        results = list(stream)
    assert [len(result.detections) for result in results[:3]] == [0, 1, 2]
    assert [result.segmentation is None for result in results] == [True, False, True, True]
    assert results[2].detections.names == ("car", "")
    assert results[1].detections.queries is None
    assert results[2].detections.queries.tolist() == [-1, 9]
    assert results[2].detections.round_trip > 0
    assert error_of(results[3]).reason == "MALFORMED_RESPONSE"
    assert results[3].detections is None


# Files


def make_found(boxes: Any, class_ids: Any = (), scores: Any = (), names: tuple[str, ...] = ()) -> Detections:
    boxes = np.asarray(boxes, np.float32).reshape(-1, 7)
    number = len(boxes)
    return Detections(
        boxes=boxes,
        velocities=np.full((number, 2), 0.1, np.float32),
        scores=np.asarray(scores or [0.5] * number, np.float32),
        class_ids=np.asarray(class_ids or [0] * number, np.uint32),
        names=names or ("",) * number,
        counts=PointCounts(0, 0, 0, 0, 0),
        stages=(),
        model="m",
        version=1,
        device="cpu",
        request_id="",
        round_trip=0.1,
    )


FOUND = make_found([[1.5, -20.25, 0.1, 4, 2, 1.5, -3.14159], [0] * 7], [3, 0], [0.9, 0], ('car, "parked"', ""))


def test_csv(tmp_path: Path) -> None:
    box_file.write(tmp_path / "a.csv", FOUND)
    text = (tmp_path / "a.csv").read_text()
    assert text.splitlines()[0] == "class_id,class_name,score,x,y,z,length,width,height,yaw,velocity_x,velocity_y"
    rows = list(csv.DictReader(text.splitlines()))
    assert (rows[0]["class_name"], rows[0]["score"], rows[0]["z"]) == ('car, "parked"', "0.9", "0.1")
    assert len(rows) == 2


def test_json(tmp_path: Path) -> None:
    box_file.write(tmp_path / "a.JSON", FOUND)
    rows = json.loads((tmp_path / "a.JSON").read_text())
    assert (rows[0]["class_id"], rows[0]["class_name"], rows[0]["yaw"]) == (3, 'car, "parked"', -3.14159)
    assert rows[1]["velocity_y"] == 0.1


def test_npy(tmp_path: Path) -> None:
    box_file.write(tmp_path / "a.npy", FOUND)
    records = np.load(tmp_path / "a.npy")
    np.testing.assert_array_equal(records, FOUND.structured())
    assert records["class_id"].tolist() == [3, 0]
    np.testing.assert_array_equal(records["y"], np.float32([-20.25, 0]))
    np.testing.assert_array_equal(records["velocity_x"], FOUND.velocities[:, 0])


def test_queries_are_the_last_field(tmp_path: Path) -> None:
    found = dataclasses.replace(FOUND, queries=np.array([-1, 70], np.int32))
    for name in ("a.csv", "a.json", "a.npy"):
        box_file.write(tmp_path / name, found)
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert (list(rows[0])[-1], rows[0]["query"], rows[1]["query"]) == ("query", "-1", "70")
    assert [row["query"] for row in json.loads((tmp_path / "a.json").read_text())] == [-1, 70]
    assert np.load(tmp_path / "a.npy")["query"].tolist() == [-1, 70]
    lines = format_boxes(found, ()).splitlines()
    assert (lines[1].split()[-1], lines[2].split()[-1], lines[3].split()[-1]) == ("query", "0.1", "70")


def test_other_extensions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.json, \.csv or \.npy"):
        box_file.write(tmp_path / "a.txt", FOUND)
    assert list(tmp_path.iterdir()) == []


# Counts and tables


def test_counts_and_names() -> None:
    found = make_found(np.zeros((4, 7)), [0, 1, 1, 9], [0.5, 0.2, 0.7, 0.1], ("", "lorry", "lorry", ""))
    counts = [(c.id, c.name, c.num_boxes, round(c.best_score, 3)) for c in count_boxes(found, CLASSES)]
    assert counts == [
        (1, "lorry", 2, 0.7),
        (0, "car", 1, 0.5),
        (9, "class 9", 1, 0.1),
    ]


def test_counts_of_several_scans() -> None:
    first = count_boxes(make_found(np.zeros((2, 7)), [1, 9], [0.5, 0.25]), ())
    both = count_boxes(make_found(np.zeros((4, 7)), [9, 0, 9, 0], [0.875, 0.5, 0, 0]), CLASSES, first)
    assert [(c.id, c.name, c.num_boxes, c.best_score) for c in both] == [
        (9, "class 9", 3, 0.875),
        (0, "car", 2, 0.5),
        (1, "class 1", 1, 0.5),
    ]
    assert count_boxes(make_found([]), (), first) == first


def test_the_surest_box_comes_first() -> None:
    found = make_found(np.zeros((4, 7)), scores=[0.4, 0.9, 0.5, 0.4])
    assert surest_first(found) == [1, 2, 0, 3]  # equal scores keep their order


def test_the_table_has_the_surest_boxes() -> None:
    scores = [0.25] + [0.875] * 10 + [0.9] + [0.875] * 12 + [0.9]
    names = ("last", *["car"] * 10, "first", *["car"] * 12, "second")
    table = format_boxes(make_found(np.zeros((25, 7)), scores=scores, names=names), ())
    rows = [line.split()[:2] for line in table.splitlines()]
    assert rows[2:5] == [["first", "0.90"], ["second", "0.90"], ["car", "0.88"]]
    assert "last" not in table
    assert "  5 more;" in table
