"""The asyncio client: voxserve.Client with coroutines.

    async with voxserve.aio.Client("localhost:8500") as client:
        labels = await client.segment("minkunet", points)

A client belongs to the event loop in which its first call was made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from voxserve import answers, errors, protocol
from voxserve.aio_stream import Stream
from voxserve.farthest_points import FarthestPoints
from voxserve.point_cloud import Fields, PointsLike
from voxserve.protocol import Call, ClientBase, Result
from voxserve.results import Detections, Labels, ModelVersion, Segmentation, Tensors, TunedPlan, TuneProgress
from voxserve.stream_state import Policy, StreamConfig, Sweeps
from voxserve.tensors import TensorType, Wanted


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
        priority: int = 0,
        sample: FarthestPoints | None = None,
        timeout: float | None = None,
    ) -> Labels:
        """Returns a class id for each point: uint8 [N], or uint16 [N] if the ids do not fit a byte."""
        result = await self.infer(
            model,
            points,
            fields=fields,
            scales=scales,
            version=version,
            priority=priority,
            sample=sample,
            timeout=timeout,
        )
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
        priority: int = 0,
        sample: FarthestPoints | None = None,
        outputs: Sequence[str] = (),
        tensor_type: TensorType = "float32",
        timeout: float | None = None,
        request_id: str = "",
    ) -> Segmentation:
        """Returns the labels of all points, with details of the answer; see voxserve.Client.infer."""
        call = protocol.infer(
            self._options,
            model,
            points,
            fields=fields,
            scales=scales,
            version=version,
            scores=scores,
            request_id=request_id,
            priority=priority,
            sample=sample,
            tensors=Wanted(outputs, tensor_type),
            read=answers.read_segmentation,
        )
        return await self._run(call, timeout)

    async def detect(
        self,
        model: str,
        points: PointsLike,
        *,
        fields: Fields = None,
        scales: Mapping[str, float] | None = None,
        version: int = 0,
        priority: int = 0,
        sample: FarthestPoints | None = None,
        outputs: Sequence[str] = (),
        tensor_type: TensorType = "float32",
        timeout: float | None = None,
        request_id: str = "",
    ) -> Detections:
        """Returns the boxes that the model finds; see voxserve.Client.detect."""
        call = protocol.infer(
            self._options,
            model,
            points,
            fields=fields,
            scales=scales,
            version=version,
            scores=False,
            request_id=request_id,
            priority=priority,
            sample=sample,
            tensors=Wanted(outputs, tensor_type),
            read=answers.read_detections,
        )
        return await self._run(call, timeout)

    async def tensors(
        self,
        model: str,
        points: PointsLike,
        *,
        outputs: Sequence[str] = (),
        tensor_type: TensorType = "float32",
        fields: Fields = None,
        scales: Mapping[str, float] | None = None,
        version: int = 0,
        priority: int = 0,
        sample: FarthestPoints | None = None,
        timeout: float | None = None,
        request_id: str = "",
    ) -> Tensors:
        """Returns values of the model's network by name; see voxserve.Client.tensors."""
        call = protocol.infer(
            self._options,
            model,
            points,
            fields=fields,
            scales=scales,
            version=version,
            scores=False,
            request_id=request_id,
            priority=priority,
            sample=sample,
            tensors=Wanted(outputs, tensor_type),
            read=answers.read_tensors,
        )
        return await self._run(call, timeout)

    def stream(
        self,
        model: str,
        *,
        policy: Policy = "latest",
        fields: Fields = None,
        scales: Mapping[str, float] | None = None,
        version: int = 0,
        scores: bool = False,
        priority: int = 0,
        frame_timeout: float | None = None,
        max_queued_frames: int = 0,
        sweeps: Sweeps | None = None,
        sample: FarthestPoints | None = None,
        outputs: Sequence[str] = (),
        tensor_type: TensorType = "float32",
        reopen: float | None = None,
        timeout: float | None = None,
    ) -> Stream:
        """Opens a stream of frames; see voxserve.Client.stream. Call it in a running event loop, and use the stream in
        an `async with` block.
        """
        config = StreamConfig(
            model=model,
            policy=policy,
            fields=fields,
            scales=scales,
            version=version,
            scores=scores,
            priority=priority,
            frame_timeout=frame_timeout,
            max_queued_frames=max_queued_frames,
            sweeps=sweeps,
            sample=sample,
            tensors=Wanted(outputs, tensor_type),
            reopen=reopen,
        )
        limit = self._options.timeout_of(math.inf if timeout is None else timeout)
        return Stream(self._next_channel(), config, self._options, limit)

    async def models(self, *, timeout: float | None = None) -> list[ModelVersion]:
        """Returns every version of every model; see voxserve.Client.models."""
        return await self._run(protocol.list_models(), timeout)

    async def model(self, name: str, version: int = 0, *, timeout: float | None = None) -> ModelVersion:
        """Returns one version of a model; version 0 is the newest that is ready. See voxserve.Client.model."""
        return await self._run(protocol.get_model(name, version), timeout)

    async def load_model(self, model: str, version: int = 0, *, timeout: float = 300.0) -> tuple[int, ...]:
        """Loads a version, and returns the model's versions in service; see voxserve.Client.load_model."""
        return await self._run(protocol.load_model(model, version), timeout)

    async def unload_model(self, model: str, version: int = 0, *, timeout: float | None = None) -> tuple[int, ...]:
        """Takes versions out of service, and returns their numbers; see voxserve.Client.unload_model."""
        return await self._run(protocol.unload_model(model, version), timeout)

    async def tune_plan(
        self,
        model: str,
        version: int = 0,
        *,
        num_scans: int = 16,
        max_wait: float = 60.0,
        on_progress: Callable[[TuneProgress], object] | None = None,
        timeout: float = 3600.0,
    ) -> TunedPlan:
        """Makes the server search for the fastest plan; see voxserve.Client.tune_plan. on_progress is an ordinary
        function, not a coroutine.
        """
        call = protocol.tune_plan(model, version, num_scans, max_wait)
        limit = self._options.timeout_of(timeout)
        method: Any = self._channel_of(call.method).unary_stream(
            call.method, request_serializer=None, response_deserializer=call.response.FromString
        )
        plan = None
        updates = method(call.request, timeout=limit, metadata=self._options.metadata())
        try:
            async for message in updates:
                update = call.read(message)
                if isinstance(update, TunedPlan):
                    plan = update
                elif update is not None and on_progress is not None:
                    on_progress(update)
        except grpc.aio.AioRpcError as error:
            raise errors.from_rpc(error, self._options.address_of(call.method), limit) from None
        finally:
            updates.cancel()
        if plan is None:
            raise answers.malformed("no plan")
        return plan

    async def health(self, *, timeout: float | None = None) -> bool:
        """Returns whether the server reports that it serves (gRPC health checking). UnavailableError if no server
        answers.
        """
        return await self._run(protocol.check_health(), timeout)

    async def close(self) -> None:
        """Closes the connections. Calls and streams in flight are cancelled."""
        while self._channels:
            await self._channels.popitem()[1].close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _connect(self, address: str, arguments: list[tuple[str, int | str]]) -> grpc.aio.Channel:
        if self._credentials is None:
            return grpc.aio.insecure_channel(address, options=arguments)
        return grpc.aio.secure_channel(address, self._credentials, options=arguments)

    async def _run(self, call: Call[Result], timeout: float | None) -> Result:
        timeout = self._options.timeout_of(timeout)
        method: Any = self._channel_of(call.method).unary_unary(
            call.method, request_serializer=None, response_deserializer=call.response.FromString
        )
        try:
            return call.read(await method(call.request, timeout=timeout, metadata=self._options.metadata()))
        except grpc.aio.AioRpcError as error:
            raise errors.from_rpc(error, self._options.address_of(call.method), timeout) from None
