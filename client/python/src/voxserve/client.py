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

from voxserve import errors, protocol
from voxserve.point_cloud import Fields, PointsLike
from voxserve.protocol import Answer, Call, ClientBase
from voxserve.results import Labels, ModelVersion, Segmentation


class Client(ClientBase[grpc.Channel]):
    """A connection to a voxserve server. Errors are InferenceError and its subclasses; ValueError where arguments
    contradict themselves before anything is sent.

    address: host:port, or unix:path. timeout: seconds a call may take unless it says otherwise, None for no limit.
    max_message_bytes: of a request and of an answer. channels: connections, between which calls take turns.
    credentials: of TLS, None for none.
    """

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
        newest. scores: logits per class as well. timeout: seconds, sent to the server as its deadline;
        math.inf for no limit.
        """
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
        return self._run(call, timeout)

    def models(self, *, timeout: float | None = None) -> list[ModelVersion]:
        """Every version of every model, loading and broken ones too."""
        return self._run(protocol.list_models(), timeout)

    def model(self, name: str, version: int = 0, *, timeout: float | None = None) -> ModelVersion:
        """One version of a model; 0 for the newest that is ready."""
        return self._run(protocol.get_model(name, version), timeout)

    def health(self, *, timeout: float | None = None) -> bool:
        """Whether the server says that it serves. UnavailableError where nothing answers."""
        return self._run(protocol.check_health(), timeout)

    def close(self) -> None:
        """Ends the connections; calls under way are cancelled."""
        while self._channels:
            self._channels.popitem()[1].close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self, arguments: list[tuple[str, int]]) -> grpc.Channel:
        address, credentials = self._options.address, self._options.credentials
        if credentials is None:
            return grpc.insecure_channel(address, options=arguments)
        return grpc.secure_channel(address, credentials, options=arguments)

    def _run(self, call: Call[Answer], timeout: float | None) -> Answer:
        timeout = self._options.timeout_of(timeout)
        method: Any = self._next_channel().unary_unary(
            call.method, request_serializer=None, response_deserializer=call.response.FromString
        )
        try:
            return call.read(method(call.request, timeout=timeout))
        except grpc.RpcError as error:
            raise errors.from_rpc(error, self._options.address, timeout) from None
