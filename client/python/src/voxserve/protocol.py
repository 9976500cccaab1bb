"""What the clients say and how they read the answers; the part that the synchronous and asyncio clients share."""

from __future__ import annotations

import itertools
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc
import numpy as np

from voxserve import errors, field_spec, wire
from voxserve.point_cloud import Fields, PointCloud, PointsLike, as_cloud
from voxserve.results import (
    ClassInfo,
    FeatureInfo,
    ModelState,
    ModelVersion,
    PointCounts,
    Segmentation,
    Stage,
)

Answer = TypeVar("Answer")
Channel = TypeVar("Channel")

_LENGTH_DELIMITED = 2


@dataclass(frozen=True)
class Options:
    """How a client talks to its server."""

    address: str = "localhost:8500"  # host:port, or unix:path
    timeout: float | None = 30.0  # seconds a call may take unless it says otherwise; None: no limit
    max_message_bytes: int = 64 << 20  # of a request and of an answer; the server's default too
    channels: int = 1  # connections; calls take turns. One carries about 1.3 GB/s
    credentials: grpc.ChannelCredentials | None = None  # None: no TLS

    def __post_init__(self) -> None:
        if not self.address:
            raise ValueError("address is empty; write host:port, e.g. localhost:8500")
        if not 1 <= self.channels <= 256:
            raise ValueError(f"channels is {self.channels}, must be 1 to 256")
        if not 1 << 16 <= self.max_message_bytes <= (1 << 31) - 1:
            raise ValueError(f"max_message_bytes is {self.max_message_bytes}, must be 65536 to {(1 << 31) - 1}")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout}, must be positive, or None for no limit")

    def channel_arguments(self, index: int) -> list[tuple[str, int]]:
        """Limits that fit point clouds, a connection of its own for each channel, and one that is soon back."""
        arguments = [
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.use_local_subchannel_pool", 1),
            ("voxserve.channel", index),
            # gRPC's own delays are 2 minutes between attempts, and 30 s between look-ups of the server's name, of which
            # each attempt makes one.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.dns_min_time_between_resolutions_ms", 500),
        ]
        if self.address.startswith(("localhost:", "127.", "[::1]:")):  # a proxy cannot reach this machine's own address
            arguments.append(("grpc.enable_http_proxy", 0))
        return arguments

    def timeout_of(self, timeout: float | None) -> float | None:
        """A call's own timeout or the client's, seconds; None for no limit. ValueError where it is not positive."""
        if timeout is None:
            timeout = self.timeout
        elif not timeout > 0:
            raise ValueError(f"timeout is {timeout}, must be positive; math.inf for no limit")
        return None if timeout == math.inf else timeout


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """One call, ready to be made: where to, the request's bytes, and how to read the answer."""

    method: str
    request: bytes
    response: Any  # the answer's message class
    read: Callable[[Any], Answer]


class ClientBase(ABC, Generic[Channel]):
    """How both clients are made and which of their channels a call takes; voxserve.Client documents the options."""

    def __init__(
        self,
        address: str = "localhost:8500",
        *,
        timeout: float | None = 30.0,
        max_message_bytes: int = 64 << 20,
        channels: int = 1,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        self._options = Options(address, timeout, max_message_bytes, channels, credentials)
        self._channels: dict[int, Channel] = {}
        self._turns = itertools.count()
        self._lock = threading.Lock()

    @abstractmethod
    def _connect(self, arguments: list[tuple[str, int]]) -> Channel:
        """A new channel."""

    def _next_channel(self) -> Channel:
        """Channels take turns. Each is made with its first call, for asyncio's belong to the loop that then runs."""
        with self._lock:
            index = next(self._turns) % self._options.channels
            if index not in self._channels:
                self._channels[index] = self._connect(self._options.channel_arguments(index))
            return self._channels[index]


def infer(
    options: Options,
    model: str,
    points: PointsLike,
    *,
    fields: Fields,
    scales: Mapping[str, float] | None,
    version: int,
    scores: bool,
    request_id: str,
) -> Call[Segmentation]:
    """ValueError where the points cannot be described; MESSAGE_TOO_LARGE where they do not fit a message."""
    start = time.perf_counter()
    if not model:
        raise ValueError("model is empty; name a model of the server's repository")
    cloud = as_cloud(points, fields)
    if scales:
        cloud = cloud.scaled(scales)
    head = wire.InferRequest(model=model, version=version, return_scores=scores, request_id=request_id)
    request = encode_request(head, cloud)
    if len(request) > options.max_message_bytes:
        raise errors.make(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"the request has {len(request)} bytes ({cloud.num_points} points), more than max_message_bytes "
            f"({options.max_message_bytes})",
            "MESSAGE_TOO_LARGE",
        )

    def read(response: wire.InferResponse) -> Segmentation:
        return read_segmentation(response, cloud.num_points, scores, start)

    return Call("/voxserve.v1.InferenceService/Infer", request, wire.InferResponse, read)


def list_models() -> Call[list[ModelVersion]]:
    """Every version of every model."""
    return Call(
        "/voxserve.v1.InferenceService/ListModels",
        wire.ListModelsRequest().SerializeToString(),
        wire.ListModelsResponse,
        lambda response: [read_model(model) for model in response.models],
    )


def get_model(name: str, version: int) -> Call[ModelVersion]:
    """One version of a model."""
    return Call(
        "/voxserve.v1.InferenceService/GetModel",
        wire.GetModelRequest(model=name, version=version).SerializeToString(),
        wire.GetModelResponse,
        lambda response: read_model(response.model),
    )


def check_health() -> Call[bool]:
    """Whether the server says that it serves."""
    return Call(
        "/grpc.health.v1.Health/Check",
        wire.HealthCheckRequest().SerializeToString(),
        wire.HealthCheckResponse,
        lambda response: bool(response.status == wire.HealthCheckResponse.SERVING),
    )


def read_segmentation(response: wire.InferResponse, num_points: int, wants_scores: bool, start: float) -> Segmentation:
    """The answer, checked against the request. start: time.perf_counter() when the call began."""
    answer, counts = response.segmentation, response.counts
    width = answer.bytes_per_label
    if width not in (1, 2):
        raise _malformed(f"labels of {width} bytes")
    if len(answer.labels) != num_points * width:
        raise _malformed(f"{len(answer.labels)} bytes of labels for {num_points} points")
    shape = (num_points, answer.num_classes)
    if len(answer.scores) != (4 * shape[0] * shape[1] if wants_scores else 0):
        raise _malformed(f"{len(answer.scores)} bytes of scores for {shape[0]} points of {shape[1]} classes")
    return Segmentation(
        labels=np.frombuffer(answer.labels, "u1" if width == 1 else "<u2").copy(),
        scores=np.frombuffer(answer.scores, "<f4").reshape(shape).copy() if wants_scores else None,
        ignore_label=answer.ignore_label,
        num_classes=answer.num_classes,
        counts=PointCounts(counts.used, counts.invalid, counts.out_of_range, counts.dropped, counts.voxels),
        stages=tuple(Stage(stage.name, stage.microseconds / 1e6) for stage in response.stages),
        model=response.model,
        version=response.version,
        device=response.device,
        request_id=response.request_id,
        round_trip=time.perf_counter() - start,
    )


def encode_request(head: wire.InferRequest, cloud: PointCloud) -> bytes:
    """The request's bytes, into which the points are copied once: `head` must have no cloud."""
    message = wire.PointCloud(
        num_points=cloud.num_points,
        point_step=cloud.point_step,
        height=cloud.height,
        row_step=cloud.row_step,
        is_bigendian=cloud.is_bigendian,
        frame_id=cloud.frame_id,
        fields=[
            wire.PointField(
                name=f.name,
                offset=f.offset,
                type=field_spec.WIRE_TYPES[f.type],
                count=f.count,
                scale=None if f.scale == 1 else f.scale,
                shift=f.shift,
            )
            for f in cloud.fields
        ],
    )
    if cloud.stamp_ns is not None:
        message.stamp.seconds, message.stamp.nanos = divmod(cloud.stamp_ns, 1_000_000_000)
    data = memoryview(cloud.data)
    points = _tag(wire.PointCloud, "data") + _varint(data.nbytes)
    layout = message.SerializeToString()
    length = len(points) + data.nbytes + len(layout)
    cloud_head = _tag(wire.InferRequest, "cloud") + _varint(length)
    return b"".join((head.SerializeToString(), cloud_head, points, data, layout))


def read_model(model: wire.ModelVersion) -> ModelVersion:
    """A ModelVersion message as a plain value."""
    return ModelVersion(
        name=model.name,
        version=model.version,
        state=ModelState(model.state) if model.state in range(4) else ModelState.UNKNOWN,
        problems=tuple(model.problems),
        description=model.description,
        classes=tuple(ClassInfo(c.id, c.name, _rgb(c.color_rgb)) for c in model.classes),
        ignore_label=model.ignore_label,
        features=tuple(
            FeatureInfo(f.name, f.unit, f.default_value if f.HasField("default_value") else None)
            for f in model.features
        ),
        max_points=model.max_points,
        voxel_size=tuple(model.voxel_size),
        num_parameters=model.num_parameters,
        device=model.device,
        digest=model.digest,
    )


def _rgb(color: int) -> tuple[int, int, int]:
    return color >> 16 & 255, color >> 8 & 255, color & 255


def _malformed(what: str) -> errors.InferenceError:
    return errors.make(grpc.StatusCode.INTERNAL, f"the server's answer is malformed: {what}", "MALFORMED_RESPONSE")


def _tag(message: Any, name: str) -> bytes:
    return _varint(message.DESCRIPTOR.fields_by_name[name].number << 3 | _LENGTH_DELIMITED)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
