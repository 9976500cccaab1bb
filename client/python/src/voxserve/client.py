"""The synchronous client.

    client = voxserve.Client("localhost:8500")
    labels = client.segment("minkunet", points)  # points: float32 [N, 4], labels: uint8 [N]

Thread-safe: one client serves a whole process. Connects with the first call.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import grpc

from voxserve import errors, protocol, wire
from voxserve.point_cloud import Fields, PointsLike
from voxserve.protocol import InferCall, Options
from voxserve.results import Labels, ModelVersion, Segmentation


class Client:
    """A connection to a voxserve server. Errors are InferenceError and its subclasses; ValueError where arguments
    contradict themselves before anything is sent.

    address: host:port, or unix:path. timeout: seconds a call may take unless it says otherwise, None for no limit.
    max_message_bytes: of a request and of an answer. channels: connections, between which calls take turns.
    credentials: of TLS, None for none.
    """

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
        self._channels = [self._connect(index) for index in range(channels)]

    def segment(
        self,
        model: str,
        points: PointsLike,
        *,
        fields: Fields = None,
        scales: Mapping[str, float] | None = None,
        version: int = 0,
        timeout: float | None = None,
    ) -> Labels:
        """A class id for each point: uint8 [N], or uint16 where the model has more classes than a byte holds."""
        return self.infer(model, points, fields=fields, scales=scales, version=version, timeout=timeout).labels

    def infer(
        self,
        model: str,
        points: PointsLike,
        *,
        fields: Fields = None,
        scales: Mapping[str, float] | None = None,
        version: int = 0,
        scores: bool = False,
        timeout: float | None = None,
        request_id: str = "",
    ) -> Segmentation:
        """Labels, and what the server tells about them.

        points: [N, C] array (x, y, z, intensity first), structured array, mapping of columns, PointCloud (see
        voxserve.read for files) or ROS PointCloud2. fields: the names of other columns (["x", "y", "z", "-", "ring"])
        or a field spec. scales: of fields that are not in metres or 0..1: {"intensity": 1 / 255}. version: 0 for the
        newest. scores: logits per class as well. timeout: seconds, sent to the server as its deadline.
        """
        call = InferCall.make(
            self._options,
            model,
            points,
            version=version,
            fields=fields,
            scales=scales,
            scores=scores,
            request_id=request_id,
        )
        return call.read(self._call(protocol.INFER, call.request, wire.InferResponse, timeout))

    def models(self, *, timeout: float | None = None) -> list[ModelVersion]:
        """Every version of every model, loading and broken ones too."""
        request = wire.ListModelsRequest().SerializeToString()
        response = self._call(protocol.LIST_MODELS, request, wire.ListModelsResponse, timeout)
        return [protocol.read_model(model) for model in response.models]

    def model(self, name: str, version: int = 0, *, timeout: float | None = None) -> ModelVersion:
        """One version of a model; 0 for the newest that is ready."""
        request = wire.GetModelRequest(model=name, version=version).SerializeToString()
        return protocol.read_model(self._call(protocol.GET_MODEL, request, wire.GetModelResponse, timeout).model)

    def health(self, *, timeout: float | None = None) -> bool:
        """Whether the server says that it serves. UnavailableError where nothing answers."""
        request = wire.HealthCheckRequest().SerializeToString()
        response = self._call(protocol.HEALTH_CHECK, request, wire.HealthCheckResponse, timeout)
        return bool(response.status == wire.HealthCheckResponse.SERVING)

    def close(self) -> None:
        """Ends the connections; calls under way are cancelled."""
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self, index: int) -> grpc.Channel:
        address, arguments = self._options.address, self._options.channel_arguments(index)
        if self._options.credentials is None:
            return grpc.insecure_channel(address, options=arguments)
        return grpc.secure_channel(address, self._options.credentials, options=arguments)

    def _call(self, method: str, request: bytes, response: Any, timeout: float | None) -> Any:
        timeout = self._options.timeout_of(timeout)
        call: Any = self._channels[self._options.next_channel()].unary_unary(
            method, request_serializer=None, response_deserializer=response.FromString
        )
        try:
            return call(request, timeout=timeout)
        except grpc.RpcError as error:
            raise errors.from_rpc(error, self._options.address, timeout) from None
