"""The asyncio client: voxserve.Client with coroutines.

    async with voxserve.aio.Client("localhost:8500") as client:
        labels = await client.segment("minkunet", points)

Belongs to the event loop in which its first call was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from voxserve import errors, protocol, wire
from voxserve.point_cloud import Fields, PointsLike
from voxserve.protocol import InferCall, Options
from voxserve.results import Labels, ModelVersion, Segmentation


class Client:
    """A connection to a voxserve server; voxserve.Client documents the arguments and errors, which are the same."""

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
        self._channels: dict[int, grpc.aio.Channel] = {}

    async def segment(
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
        result = await self.infer(model, points, fields=fields, scales=scales, version=version, timeout=timeout)
        return result.labels

    async def infer(
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
        """Labels, and what the server tells about them; see voxserve.Client.infer."""
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
        return call.read(await self._call(protocol.INFER, call.request, wire.InferResponse, timeout))

    async def models(self, *, timeout: float | None = None) -> list[ModelVersion]:
        """Every version of every model, loading and broken ones too."""
        request = wire.ListModelsRequest().SerializeToString()
        response = await self._call(protocol.LIST_MODELS, request, wire.ListModelsResponse, timeout)
        return [protocol.read_model(model) for model in response.models]

    async def model(self, name: str, version: int = 0, *, timeout: float | None = None) -> ModelVersion:
        """One version of a model; 0 for the newest that is ready."""
        request = wire.GetModelRequest(model=name, version=version).SerializeToString()
        response = await self._call(protocol.GET_MODEL, request, wire.GetModelResponse, timeout)
        return protocol.read_model(response.model)

    async def health(self, *, timeout: float | None = None) -> bool:
        """Whether the server says that it serves. UnavailableError where nothing answers."""
        request = wire.HealthCheckRequest().SerializeToString()
        response = await self._call(protocol.HEALTH_CHECK, request, wire.HealthCheckResponse, timeout)
        return bool(response.status == wire.HealthCheckResponse.SERVING)

    async def close(self) -> None:
        """Ends the connections; calls under way are cancelled."""
        while self._channels:
            await self._channels.popitem()[1].close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _channel(self) -> grpc.aio.Channel:
        index = self._options.next_channel()
        if index not in self._channels:  # a channel belongs to the loop that runs when it is made
            address, arguments = self._options.address, self._options.channel_arguments(index)
            if self._options.credentials is None:
                self._channels[index] = grpc.aio.insecure_channel(address, options=arguments)
            else:
                self._channels[index] = grpc.aio.secure_channel(address, self._options.credentials, options=arguments)
        return self._channels[index]

    async def _call(self, method: str, request: bytes, response: Any, timeout: float | None) -> Any:
        timeout = self._options.timeout_of(timeout)
        call: Any = self._channel().unary_unary(
            method, request_serializer=None, response_deserializer=response.FromString
        )
        try:
            return await call(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise errors.from_rpc(error, self._options.address, timeout) from None
