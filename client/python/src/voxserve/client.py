"""The synchronous client.

    client = voxserve.Client("localhost:8500")
    labels = client.segment("minkunet", points)  # points: float32 [N, 4], labels: uint8 [N]
    found = client.detect("centerpoint", points)  # found.boxes: float32 [M, 7], found.scores, found.names

Thread-safe: one client serves a whole process. It connects at the first call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import grpc

from voxserve import answers, errors, protocol
from voxserve.farthest_points import FarthestPoints
from voxserve.point_cloud import Fields, PointsLike
from voxserve.protocol import Call, ClientBase, Result
from voxserve.results import Detections, Labels, ModelVersion, Segmentation, Tensors, TunedPlan, TuneProgress
from voxserve.stream import Stream
from voxserve.stream_state import Policy, StreamConfig, Sweeps
from voxserve.tensors import TensorType, Wanted


class Client(ClientBase[grpc.Channel]):
    """A connection to a voxserve server. Errors are InferenceError and its subclasses; ValueError for wrong arguments,
    before anything is sent.

    address: host:port, unix:path, or several servers: dns:///name:port with all addresses of the name, or
    ipv4:10.0.0.1:8500,10.0.0.2:8500. Calls are then balanced, by load where gRPC can (weighted_round_robin). timeout:
    seconds a call may take unless it says otherwise, None for no limit. max_message_bytes: of a request and of an
    answer. channels: connections, between which calls take turns. tls_ca: PEM file of the roots that the server's
    certificate must come from; "" for no TLS. tls_certificate, tls_key: the client's own, for a server that asks for
    one. credentials: gRPC's, in place of the three. token: sent with every call; it needs TLS unless the server is on
    this machine. admin_address: of load_model, unload_model and tune_plan; by default the port above that of address,
    where that is one server. traceparent: a function that returns the W3C traceparent of the current trace, "" for
    none; the server's log then names it. It is called for every call, and for a stream when it opens. max_attempts: how
    often gRPC makes a call that changes nothing (infer and the like, models, model) while servers are UNAVAILABLE,
    within its timeout; 1: no retries. keepalive: seconds without a byte from the server after which a connection with
    open calls is tested, and given up unless the server answers within as long; None: never.
    """

    def segment(
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
        """Returns a class id for each point: uint8 [N], or uint16 if the model has more classes than a byte holds."""
        return self.infer(
            model,
            points,
            fields=fields,
            scales=scales,
            version=version,
            priority=priority,
            sample=sample,
            timeout=timeout,
        ).labels

    def infer(
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
        """Returns labels with details of the answer. InvalidArgumentError, reason UNSUPPORTED_OUTPUT, if the model has
        only boxes; so does detect() if the model has none.

        points: [N, C] array (x, y, z, intensity first), structured array, mapping of columns, Voxels, PointCloud (see
        voxserve.read for files) or ROS PointCloud2. fields: the names of other columns (["x", "y", "z", "-", "ring"])
        or a field spec. scales: for fields that are not in metres or 0..1: {"intensity": 1 / 255}. version: 0 for the
        newest. scores: also returns logits per class. priority: 0 is the most urgent; the model's configuration sets
        the number of levels (1 by default). sample: farthest points of the cloud, for Segmentation.sampled_points or
        as the network's only input. outputs, tensor_type: as in tensors(), for Segmentation.tensors. timeout: seconds,
        sent to the server as its deadline; math.inf for no limit.
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
            priority=priority,
            sample=sample,
            tensors=Wanted(outputs, tensor_type),
            read=answers.read_segmentation,
        )
        return self._run(call, timeout)

    def detect(
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
        """Returns the boxes of a model that has them; arguments as in infer()."""
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
        return self._run(call, timeout)

    def tensors(
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
        """Returns tensors of any model that has some, by name (Tensors.tensors); arguments as in infer().

        outputs: their names, from ModelVersion.tensors; none: all, if the model has neither labels nor boxes.
        InvalidArgumentError, reason UNSUPPORTED_OUTPUT, for an unknown name, and for no name if the model has labels or
        boxes. tensor_type: float32, or float16, in which magnitudes of 65520 and more become infinite.
        """
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
        return self._run(call, timeout)

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
        """Opens a stream of frames, the scans of one vehicle; use it in a `with` block.

        policy: what happens to frames that come faster than they are answered. "latest": at most one frame waits. A
        newer one replaces it, and the replaced frame gets the result SupersededError. "queue": all frames are run, and
        answered in order; sending waits while max_queued_frames (1 to 64, default 4) wait at the server. frame_timeout:
        seconds from a frame's arrival at the server to its answer; default: the model's own. sweeps: makes the server
        merge each frame with those before it. fields, scales, version, scores, priority, sample, outputs, tensor_type:
        as in infer(), for every frame. timeout: of the whole stream in seconds; default: no limit, whatever the
        client's is.

        reopen: for so many seconds a stream whose connection broke, or whose server goes away, looks for a server that
        takes it. The new one gets the config and the frames without a result: all with "queue", the newest with
        "latest", where the others are superseded. So every frame still gets exactly one result. Sweeps begin anew. A
        frame that three broken connections had under way gets their error. Default: the stream ends.

        If a stream cannot be opened, reading it raises the error.
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

    def models(self, *, timeout: float | None = None) -> list[ModelVersion]:
        """Returns every version of every model, also loading and broken ones."""
        return self._run(protocol.list_models(), timeout)

    def model(self, name: str, version: int = 0, *, timeout: float | None = None) -> ModelVersion:
        """Returns one version of a model; 0 for the newest that is ready."""
        return self._run(protocol.get_model(name, version), timeout)

    def load_model(self, model: str, version: int = 0, *, timeout: float = 300.0) -> tuple[int, ...]:
        """Loads a version from the server's repository, or reloads it if its files have changed; 0 for those that the
        model's version policy asks for. Returns the versions that are then in service, ascending, once the new one is
        ready. Until then the old one serves; it also does if the new one is broken (FailedPreconditionError with every
        problem).
        """
        return self._run(protocol.load_model(model, version), timeout)

    def unload_model(self, model: str, version: int = 0, *, timeout: float | None = None) -> tuple[int, ...]:
        """Takes a version out of service, 0 for all, until load_model(); requests that the server has accepted are
        still answered. Returns the versions that were taken out, ascending.
        """
        return self._run(protocol.unload_model(model, version), timeout)

    def tune_plan(
        self,
        model: str,
        version: int = 0,
        *,
        num_scans: int = 16,
        max_wait: float = 60.0,
        on_progress: Callable[[TuneProgress], object] | None = None,
        timeout: float = 3600.0,
    ) -> TunedPlan:
        """Makes the server search for the plan by which a model runs fastest on its device, and use it.

        The server searches on the next num_scans (1 to 100) requests for the model, or on those that come within
        max_wait seconds, so requests must be coming. on_progress is called meanwhile; an exception of it ends the
        search, as the timeout does. FailedPreconditionError, reason ALREADY_TUNING, while another search of the model
        runs.
        """
        call = protocol.tune_plan(model, version, num_scans, max_wait)
        limit = self._options.timeout_of(timeout)
        method: Any = self._channel_of(call.method).unary_stream(
            call.method, request_serializer=None, response_deserializer=call.response.FromString
        )
        plan = None
        updates = method(call.request, timeout=limit, metadata=self._options.metadata())
        try:
            for update in map(call.read, updates):
                if isinstance(update, TunedPlan):
                    plan = update
                elif update is not None and on_progress is not None:
                    on_progress(update)
        except grpc.RpcError as error:
            raise errors.from_rpc(error, self._options.address_of(call.method), limit) from None
        finally:
            updates.cancel()
        if plan is None:
            raise answers.malformed("no plan")
        return plan

    def health(self, *, timeout: float | None = None) -> bool:
        """Returns whether the server says that it serves. UnavailableError if nothing answers."""
        return self._run(protocol.check_health(), timeout)

    def close(self) -> None:
        """Closes the connections and cancels the calls in flight."""
        while self._channels:
            self._channels.popitem()[1].close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self, address: str, arguments: list[tuple[str, int | str]]) -> grpc.Channel:
        if self._credentials is None:
            return grpc.insecure_channel(address, options=arguments)
        return grpc.secure_channel(address, self._credentials, options=arguments)

    def _run(self, call: Call[Result], timeout: float | None) -> Result:
        timeout = self._options.timeout_of(timeout)
        method: Any = self._channel_of(call.method).unary_unary(
            call.method, request_serializer=None, response_deserializer=call.response.FromString
        )
        try:
            return call.read(method(call.request, timeout=timeout, metadata=self._options.metadata()))
        except grpc.RpcError as error:
            raise errors.from_rpc(error, self._options.address_of(call.method), timeout) from None
