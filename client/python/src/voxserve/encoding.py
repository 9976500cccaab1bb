"""Encodes requests that carry a cloud. protobuf would copy the points twice: into a message, and from there into the
message's bytes. This module writes protobuf's wire format itself, and copies the points once, from the caller's memory
into the request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc

from voxserve import errors, field_spec, wire
from voxserve.point_cloud import PointCloud

_LENGTH_DELIMITED = 2
_Parts = list["bytes | memoryview"]


@dataclass(frozen=True)
class CloudRequest:
    """An InferRequest in three parts. bytes() of it joins them, and so copies the points."""

    head: bytes  # the InferRequest without its cloud
    cloud: bytes  # the PointCloud without its data
    data: memoryview  # the data, in the caller's memory

    def __bytes__(self) -> bytes:
        """Returns the message."""
        return b"".join(self._parts())

    def __len__(self) -> int:
        """Returns the bytes of the message."""
        return _size(self._parts())

    def _parts(self) -> _Parts:
        points: _Parts = [_tag(wire.PointCloud, "data") + _varint(self.data.nbytes), self.data, self.cloud]
        return [self.head, _tag(wire.InferRequest, "cloud") + _varint(_size(points)), *points]


def encode_request(head: wire.InferRequest, cloud: PointCloud, max_bytes: int) -> bytes:
    """Returns the bytes of an InferRequest: `head`, which must have no cloud, with the cloud. Raises
    ResourceExhaustedError (MESSAGE_TOO_LARGE) above max_bytes.
    """
    return bytes(request_in_parts(head, cloud, max_bytes))


def request_in_parts(head: wire.InferRequest, cloud: PointCloud, max_bytes: int) -> CloudRequest:
    """Returns the same request, whose points are not copied yet."""
    request = CloudRequest(head.SerializeToString(), _described(cloud), memoryview(cloud.data))
    _check_size(len(request), cloud.num_points, max_bytes)
    return request


def encode_frame(head: wire.StreamFrame | wire.FramePart, cloud: PointCloud, max_bytes: int) -> bytes:
    """Returns the bytes of an InferStreamRequest: the frame or part `head`, which must have no cloud, with the cloud.
    Raises ResourceExhaustedError (MESSAGE_TOO_LARGE) above max_bytes.
    """
    parts = _with_cloud(head, cloud)
    name = "part" if isinstance(head, wire.FramePart) else "frame"
    return _join([_tag(wire.InferStreamRequest, name) + _varint(_size(parts)), *parts], cloud.num_points, max_bytes)


def _with_cloud(head: Any, cloud: PointCloud) -> _Parts:
    """Returns the encoded fields of `head`, followed by its encoded field `cloud`, in parts that are to be joined."""
    data = memoryview(cloud.data)
    points: _Parts = [_tag(wire.PointCloud, "data") + _varint(data.nbytes), data, _described(cloud)]
    return [head.SerializeToString(), _tag(type(head), "cloud") + _varint(_size(points)), *points]


def _described(cloud: PointCloud) -> bytes:
    """Returns the encoded cloud without its data."""
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
                type=field_spec.WIRE_TYPES.get(f.type, wire.POINT_FIELD_TYPE_UNSPECIFIED),
                count=f.count,
                scale=None if f.scale == 1 else f.scale,
                shift=f.shift,
            )
            for f in cloud.fields
        ],
    )
    if cloud.stamp_ns is not None:
        message.stamp.seconds, message.stamp.nanos = divmod(cloud.stamp_ns, 1_000_000_000)
    encoded: bytes = message.SerializeToString()
    return encoded


def _join(parts: _Parts, num_points: int, max_bytes: int) -> bytes:
    _check_size(_size(parts), num_points, max_bytes)
    return b"".join(parts)


def _check_size(length: int, num_points: int, max_bytes: int) -> None:
    if length > max_bytes:
        raise errors.make(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"the request has {length} bytes ({num_points} points), more than max_message_bytes ({max_bytes})",
            "MESSAGE_TOO_LARGE",
        )


def _size(parts: _Parts) -> int:
    return sum(memoryview(part).nbytes for part in parts)


def _tag(message: Any, name: str) -> bytes:
    return _varint(message.DESCRIPTOR.fields_by_name[name].number << 3 | _LENGTH_DELIMITED)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
