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

from voxserve import errors, protocol
from voxserve.point_cloud import Fields, PointsLike
from voxserve.protocol import Answer, Call, ClientBase
from voxserve.results import Labels, ModelVersion, Segmentation


class Client(ClientBase[grpc.aio.Channel]):
    """A connection to a voxserve server; voxserve.Client documents the arguments and errors, which are the same."""

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
        call = protocol.infer(
            self._options,
            model,
            points,
            fields=fields,
            scales=scales,
            version=version,
            scores=scores,
            request_id=request_id,
        )
        return await self._run(call, timeout)

    async def models(self, *, timeout: float | None = None) -> list[ModelVersion]:
        """Every version of every model, loading and broken ones too."""
        return await self._run(protocol.list_models(), timeout)

    async def model(self, name: str, version: int = 0, *, timeout: float | None = None) -> ModelVersion:
        """One version of a model; 0 for the newest that is ready."""
        return await self._run(protocol.get_model(name, version), timeout)

    async def health(self, *, timeout: float | None = None) -> bool:
        """Whether the server says that it serves. UnavailableError where nothing answers."""
        return await self._run(protocol.check_health(), timeout)

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

    def _connect(self, arguments: list[tuple[str, int]]) -> grpc.aio.Channel:
        address, credentials = self._options.address, self._options.credentials
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=arguments)
        return grpc.aio.secure_channel(address, credentials, options=arguments)

    async def _run(self, call: Call[Answer], timeout: float | None) -> Answer:
        timeout = self._options.timeout_of(timeout)
        method: Any = self._next_channel().unary_unary(
            call.method, request_serializer=None, response_deserializer=call.response.FromString
        )
        try:
            return call.read(await method(call.request, timeout=timeout))
        except grpc.aio.AioRpcError as error:
            raise errors.from_rpc(error, self._options.address, timeout) from None
