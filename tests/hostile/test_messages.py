"""Invalid messages, and messages that would need more memory than their size suggests."""

from __future__ import annotations

import math
import queue
import time
from contextlib import ExitStack

import grpc
import numpy as np
import pytest

from attacks import empty_fields_request
from calls import (
    MODEL,
    OrdinaryClient,
    answer_of,
    call,
    channel,
    padded_cloud,
    reason_of,
    scan,
    stream,
    stream_config,
    stream_frame,
)
from forwarder import Forwarder
from http2 import await_true
from server import MEBIBYTE, mebibytes
from voxserve import wire
from voxserve.encoding import encode_frame, encode_request
from voxserve.point_cloud import as_cloud

MALFORMED = {
    "a truncated field": b"\x0a\x7fmin",
    "a wrong wire type": b"\x0d\x00\x00",
    "an endless varint": b"\x10" + b"\xff" * 20,
    "a group without an end": b"\x0b" * 3,
}


def test_03_empty_fields(serve, figure):
    """A request has 60 MiB of empty fields of two bytes (`fields {}`). Each once became an object of a hundred
    bytes.
    """
    server = serve()
    before = server.rss()
    server.reset_peak()
    answer = call(server.address, empty_fields_request(60 * MEBIBYTE), 60)
    grown = server.peak_rss() - before
    await_true(lambda: server.rss() < before + 128 * MEBIBYTE, 30, 0.5)
    kept = server.rss() - before
    figure(answer=answer, grown=mebibytes(grown), kept=mebibytes(kept))
    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.reason == "MALFORMED_MESSAGE"
    assert grown < 512 * MEBIBYTE
    assert kept < 128 * MEBIBYTE


@pytest.mark.parametrize("kind", MALFORMED)
def test_07_malformed_infer(serve_once, figure, kind):
    """A message that is not an InferRequest is refused with MALFORMED_MESSAGE."""
    answer = call(serve_once.address, MALFORMED[kind], 10)
    figure(answer=answer)
    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.reason == "MALFORMED_MESSAGE"


@pytest.mark.parametrize("kind", MALFORMED)
def test_07_malformed_frame(serve_once, figure, kind):
    """The second frame of a stream is not a message of InferStream. It is answered with an error, and the frames after
    it are served.
    """
    server = serve_once
    requests: queue.Queue[bytes | None] = queue.Queue()
    for one in (stream_config(policy=2), stream_frame(1, scan(100)), MALFORMED[kind], stream_frame(3, scan(100))):
        requests.put(one)
    requests.put(None)
    results = []
    with channel(server.address) as to:
        answers = stream(to, iter(requests.get, None), 20)
        ending = answer_of(lambda: results.extend(answers) or b"")
    frames = [wire.InferStreamResponse.FromString(one).result for one in results]
    said = [(frame.frame_id, reason_of(frame.status) or "OK") for frame in frames]
    figure(results=said, ending=ending)
    assert said == [(1, "OK"), (0, "MALFORMED_MESSAGE"), (3, "OK")]
    assert frames[1].status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert ending.is_ok


def test_13_large_headers_as_sweeps(serve, figure):
    """Six streams send frames without points whose names and unknown fields have 4 MiB. The server keeps earlier frames
    as sweeps, so it could keep these bytes too: it refuses the frames instead.
    """
    server = serve()
    before = server.rss()
    endings: dict[str, int] = {}
    config = wire.SweepAccumulation(num_sweeps=64)
    config.max_age.seconds = 60
    with channel(server.address) as to, ExitStack() as stack:
        for _ in range(6):
            requests: queue.Queue[bytes | None] = queue.Queue()
            answers = stream(to, iter(requests.get, None), 120)
            stack.callback(answers.cancel)  # keeps the call: gRPC cancels a call without a reference
            stack.callback(requests.put, None)
            requests.put(stream_config(policy=2, sweeps=config))
            for i in range(64):
                requests.put(headers_alone(i))
                answer = answer_of(lambda answers=answers: next(answers))
                status = wire.InferStreamResponse.FromString(answer.response).result.status
                ending = f"frame {reason_of(status) or 'OK'}" if answer.is_ok else f"stream {answer}"
                endings[ending] = endings.get(ending, 0) + 1
                if not answer.is_ok or server.rss() > before + (2 << 30):
                    break
        grown = server.rss() - before
        client = OrdinaryClient(server.address).ask(3)
    figure(endings=endings, grown=mebibytes(grown), others=client.figures())
    assert endings == {"frame MALFORMED_MESSAGE": 6 * 64}
    assert grown < 512 * MEBIBYTE
    assert not client.failures


def test_13_sweeps_of_many_clients(serve, figure):
    """Ten clients stream clouds of 4 MiB as sweeps that the server keeps for a minute. All sweeps together stay within
    a quarter of the memory limit, so that requests have room.
    """
    server = serve("--memory_limit=1GiB")
    limit = server.metrics()["voxserve_memory_limit_bytes"]
    config = wire.SweepAccumulation(num_sweeps=64)
    config.max_age.seconds = 60
    endings: dict[str, int] = {}
    most = 0.0
    with ExitStack() as stack:
        for i in range(10):
            forwarder = stack.enter_context(Forwarder(server.grpc_port, f"127.0.0.{40 + i}"))
            to = stack.enter_context(channel(forwarder.address))
            requests: queue.Queue[bytes | None] = queue.Queue()
            answers = stream(to, iter(requests.get, None), 120)
            stack.callback(answers.cancel)
            stack.callback(requests.put, None)
            requests.put(stream_config(policy=2, sweeps=config))
            for frame_id in range(20):
                frame = wire.StreamFrame(frame_id=frame_id, pose=wire.Pose(qw=1))
                frame.cloud.stamp.seconds, frame.cloud.stamp.nanos = divmod(time.time_ns(), 10**9)
                requests.put(encode_frame(frame, padded_cloud(100, 40 << 10), 1 << 31))
                answer = answer_of(lambda answers=answers: next(answers))
                status = wire.InferStreamResponse.FromString(answer.response).result.status
                ending = f"frame {reason_of(status) or 'OK'}" if answer.is_ok else f"stream {answer}"
                endings[ending] = endings.get(ending, 0) + 1
                most = max(most, server.metrics()['voxserve_memory_bytes{use="sweeps"}'])
        client = OrdinaryClient(server.address).ask(3)
    figure(most=mebibytes(most), of=mebibytes(limit), endings=endings, others=client.figures())
    assert most > limit / 8, "one client's share was not reached"
    assert most <= limit / 4
    assert endings.get("frame OK", 0) > 20
    assert not client.failures


def headers_alone(index: int) -> bytes:
    """Returns a frame without points: 4 MiB in a name and in an unknown field."""
    cloud = as_cloud(np.zeros((0, 4), np.float32))
    frame = wire.StreamFrame(frame_id=index, pose=wire.Pose(qw=1))
    message = frame.cloud
    message.stamp.seconds, message.stamp.nanos = divmod(time.time_ns(), 10**9)
    message.point_step = 20
    for i, one in enumerate(cloud.fields):
        message.fields.add(name=one.name, offset=4 * i, type=wire.POINT_FIELD_TYPE_FLOAT32)
    message.fields.add(name="n" * 3 * MEBIBYTE, offset=16, type=wire.POINT_FIELD_TYPE_FLOAT32)
    # Field 1023, which the schema does not have, with a mebibyte of content.
    unknown = b"\xfa\x3f" + b"\x80\x80\x40" + b"u" * MEBIBYTE
    message.MergeFromString(unknown)
    return bytes(wire.InferStreamRequest(frame=frame).SerializeToString())


def test_18_infinite_stamps(serve, figure):
    """A request's time stamp lies outside the time that a clock can have. It is refused or ignored, and the sum of the
    frames' ages stays a finite number.
    """
    server = serve()
    request = encode_request(wire.InferRequest(model=MODEL), as_cloud(scan(100)), 1 << 31)
    answers = []
    for seconds in (-(1 << 63), (1 << 63) - 1, -(1 << 40), 1 << 40):
        stamp = wire.PointCloud()
        stamp.stamp.seconds = seconds
        cloud = stamp.SerializeToString()
        # The field `cloud` occurs twice in the message: protobuf merges the two occurrences.
        answers.append(call(server.address, request + b"\x1a" + bytes([len(cloud)]) + cloud, 10))
    ages = [value for name, value in server.metrics().items() if "frame_age_seconds_sum" in name]
    figure(answers=[str(answer) for answer in answers], sum=ages)
    for answer in answers:
        assert answer.is_ok or (answer.code is grpc.StatusCode.INVALID_ARGUMENT and answer.reason == "BAD_STAMP")
    assert ages
    assert all(math.isfinite(value) and abs(value) < 1e9 for value in ages)


@pytest.mark.parametrize("version", ["+1", " 1", "1 ", "1\n", "1_000", "01", "１", "1.0", "0x1", "-1"])  # noqa: RUF001
def test_a_version_is_a_number_alone(serve_once, version):
    """A version of KServe's protocol is a text. Only the name of a version's folder is one."""
    fields = [
        b"\x0a" + bytes([len(MODEL)]) + MODEL.encode(),
        b"\x12" + bytes([len(version.encode())]) + version.encode(),
    ]
    for method in ("ModelReady", "ModelMetadata", "ModelInfer"):
        answer = call(serve_once.address, b"".join(fields), 30, f"/inference.GRPCInferenceService/{method}")
        assert answer.code is grpc.StatusCode.INVALID_ARGUMENT, (method, answer)
        assert answer.reason == "BAD_PARAMETER"
