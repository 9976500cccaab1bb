"""The synchronous client.

    client = voxserve.Client("localhost:8500")
    labels = client.segment("minkunet", points)  # points: float32 [N, 4], labels: uint8 [N]
    found = client.detect("centerpoint", points)  # found.boxes: float32 [M, 7], found.scores, found.names

Thread-safe: one client serves a whole process. It connects at the first call.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar

import grpc

from voxserve import answers, protocol
from voxserve.farthest_points import FarthestPoints
from voxserve.inputs import PointsLike
from voxserve.known_classes import KnownClasses
from voxserve.point_cloud import Fields
from voxserve.protocol import Call, ClientBase, Result
from voxserve.results import (
    ClassInfo,
    Detections,
    Labels,
    ModelVersion,
    Segmentation,
    Tensors,
    TunedPlan,
    TuneProgress,
)
from voxserve.stream import Stream
from voxserve.stream_state import Policy, StreamConfig, Sweeps
from voxserve.tensors import TensorType, Wanted


class Client(ClientBase[grpc.Channel]):
    """A connection to a voxserve server. A failed call raises InferenceError or a subclass. Wrong arguments raise
    ValueError before anything is sent, and a TLS file that cannot be read raises OSError.

    address: host:port, unix:path, or several servers: dns:///name:port stands for all addresses of the name,
        ipv4:10.0.0.1:8500,10.0.0.2:8500 lists them. Calls are then balanced over the servers, by their load if the
        installed gRPC supports it (weighted_round_robin), else in turn.
    timeout: the default timeout of a call in seconds; None for no limit. A method's own timeout overrides it.
    max_message_bytes: the largest request, and the largest answer. grpcio before 1.84 has taken the memory of a larger
        answer when it refuses it.
    channels: the number of connections (1 to 256); calls use them in turn.
    tls_ca: a PEM file with the root certificates that the server's certificate must be signed by; "" for no TLS.
    tls_certificate, tls_key: PEM files with the client's certificate and private key, for a server that requires them.
    credentials: gRPC channel credentials, instead of the three TLS files.
    token: the bearer token that is sent with every call. It needs TLS unless the server is on this machine.
    admin_address: the address of AdminService, which load_model, unload_model and tune_plan call. Default: the address
        with the next higher port, if address is host:port.
    traceparent: a function that returns the W3C traceparent of the current trace, or "" if there is none. It is called
        for every call, and for a stream when the stream opens. The server's log names the trace.
    max_attempts: how often gRPC tries a call that changes nothing on the server (infer, segment, detect, tensors,
        models, model) while servers are UNAVAILABLE. The timeout covers all attempts. 1: no retries.
    keepalive: seconds without a byte from the server after which a ping tests a connection with open calls.
        It is closed if the server does not answer within the same time. None: connections are not tested.
    """

    _grpc: ClassVar[Any] = grpc

    # voxserve.aio.Client takes these methods from here (awaited.py). So each of them ends with _run,
    # _run_search or _open, which that class has too: all but the last as coroutines.

    def segment(
        self,
        model: str,
        points: PointsLike,
        *,
        fields: Fields = None,
        scales: Mapping[str, float] | None = None,
        compact: bool = False,
        version: int = 0,
        priority: int = 0,
        sample: FarthestPoints | None = None,
        timeout: float | None = None,
    ) -> Labels:
        """Returns a class id for each point: uint8 [N], or uint16 [N] if the ids do not fit a byte. The arguments and
        errors are those of infer().
        """
        call = protocol.infer(
            self._options,
            self._classes_of,
            answers.read_labels,
            model,
            points,
            fields=fields,
            scales=scales,
            compact=compact,
            version=version,
            priority=priority,
            sample=sample,
        )
        return self._run(call, timeout)

    def infer(
        self,
        model: str,
        points: PointsLike,
        *,
        fields: Fields = None,
        scales: Mapping[str, float] | None = None,
        compact: bool = False,
        version: int = 0,
        scores: bool = False,
        priority: int = 0,
        sample: FarthestPoints | None = None,
        outputs: Sequence[str] = (),
        tensor_type: TensorType = "float32",
        timeout: float | None = None,
        request_id: str = "",
    ) -> Segmentation:
        """Returns the labels of all points, with details of the answer. InvalidArgumentError, reason
        UNSUPPORTED_OUTPUT, if the model has no labels.

        points: an [N, C] array or tensor whose first columns are x, y, z and intensity, a structured array, a mapping
            of names to columns, a table whose columns have names (pandas, polars, pyarrow), an array with DLPack, a
            cloud of Open3D, Voxels, a PointCloud (voxserve.read makes one from a file), or a ROS PointCloud2. Points
            with masked or missing values count as those with NaN. A field counts as the model's if its name differs
            only in upper and lower case.
        fields: the names of an array's columns if they are others (["x", "y", "z", "-", "ring"]; "-" skips a column),
            new names of fields ({"intensity": "reflectivity"}), or a field spec (voxserve.field_spec).
        scales: factors by field name, for fields that are not in metres or 0..1: {"intensity": 1 / 255}.
        compact: True sends coordinates and intensities in 16 bits (voxserve.compact), which halves the bytes on the way
            to the server and moves points by up to half a step. A cloud that 16 bits cannot hold is sent as it is, with
            a CompactWarning.
        version: the model's version; 0 for the newest that is ready.
        scores: True also returns the logits, Segmentation.scores.
        priority: 0 is the most urgent. The model's configuration sets the number of levels, by default 1.
        sample: selects farthest points of the cloud. The answer has their indices (Segmentation.sampled_points), and
            the network can be limited to them.
        outputs, tensor_type: tensors to return in Segmentation.tensors, as described in tensors().
        timeout: seconds; the server gets it as its deadline. None: the client's default; math.inf: no limit.
        request_id: a text that appears in the server's log and in the answer.
        """
        call = protocol.infer(
            self._options,
            self._classes_of,
            answers.read_segmentation,
            model,
            points,
            fields=fields,
            scales=scales,
            compact=compact,
            version=version,
            scores=scores,
            priority=priority,
            sample=sample,
            tensors=Wanted(outputs, tensor_type),
            request_id=request_id,
        )
        return self._run(call, timeout)

    def detect(
        self,
        model: str,
        points: PointsLike,
        *,
        fields: Fields = None,
        scales: Mapping[str, float] | None = None,
        compact: bool = False,
        version: int = 0,
        priority: int = 0,
        sample: FarthestPoints | None = None,
        outputs: Sequence[str] = (),
        tensor_type: TensorType = "float32",
        timeout: float | None = None,
        request_id: str = "",
    ) -> Detections:
        """Returns the boxes that the model finds; arguments as in infer(). InvalidArgumentError, reason
        UNSUPPORTED_OUTPUT, if the model has no boxes.
        """
        call = protocol.infer(
            self._options,
            self._classes_of,
            answers.read_detections,
            model,
            points,
            fields=fields,
            scales=scales,
            compact=compact,
            version=version,
            priority=priority,
            sample=sample,
            tensors=Wanted(outputs, tensor_type),
            request_id=request_id,
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
        compact: bool = False,
        version: int = 0,
        priority: int = 0,
        sample: FarthestPoints | None = None,
        timeout: float | None = None,
        request_id: str = "",
    ) -> Tensors:
        """Returns values of the model's network by name, in Tensors.tensors; other arguments as in infer().

        outputs: the names of the tensors; ModelVersion.tensors lists them. An empty list asks for all tensors of a
            model that has neither labels nor boxes.
        tensor_type: float32, or float16, in which magnitudes of 65520 and more become infinite.

        InvalidArgumentError, reason UNSUPPORTED_OUTPUT, if the model does not have one of the names, or if the list is
        empty and the model has labels or boxes.
        """
        call = protocol.infer(
            self._options,
            self._classes_of,
            answers.read_tensors,
            model,
            points,
            fields=fields,
            scales=scales,
            compact=compact,
            version=version,
            priority=priority,
            sample=sample,
            tensors=Wanted(outputs, tensor_type),
            request_id=request_id,
        )
        return self._run(call, timeout)

    def stream(
        self,
        model: str,
        *,
        policy: Policy = "latest",
        fields: Fields = None,
        scales: Mapping[str, float] | None = None,
        compact: bool = False,
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
        """Opens a stream of frames, the scans of one vehicle; use it in a `with` block, or with asyncio in an
        `async with` block of a running event loop. If the server refuses the stream, this method still returns it, and
        reading its results raises the error.

        policy: what happens to frames that are sent faster than the server answers. "latest": at most one frame waits.
            A newer frame replaces it, and the replaced frame gets SupersededError as its result. "queue": all frames
            run, and are answered in order; send() blocks while max_queued_frames (1 to 64, default 4) wait at the
            server.
        frame_timeout: seconds from a frame's arrival at the server to its answer. None: the model's default.
        sweeps: makes the server merge each frame with the frames before it.
        fields, scales, compact, version, scores, priority, sample, outputs, tensor_type: as in infer(), for every
            frame.
        reopen: the number of seconds for which the stream looks for a server again after its connection broke or its
            server announced its end. The next server gets the stream's settings and frames that have no result yet:
            all of them with "queue", only the newest with "latest", where the others get SupersededError. Each frame
            still gets exactly one result. No sweeps are carried over to the next server. A frame that was sent and
            unanswered when a connection broke, three times, gets the error of the last connection. None: the stream
            ends with its connection.
        timeout: seconds for the whole stream. None: no limit; the client's default timeout does not apply.
        """
        config = StreamConfig(
            model=model,
            policy=policy,
            fields=fields,
            scales=scales,
            compact=compact,
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
        return self._open(config, self._options.timeout_of(math.inf if timeout is None else timeout))

    def models(self, *, timeout: float | None = None) -> list[ModelVersion]:
        """Returns every version of every model in the server's repository, including those that are loading or
        broken, sorted by name and version.
        """
        return self._run(protocol.list_models(), timeout)

    def model(self, model: str, version: int = 0, *, timeout: float | None = None) -> ModelVersion:
        """Returns one version of a model; version 0 is the newest that is ready. NotFoundError if the server does not
        have it.
        """
        return self._run(protocol.get_model(model, version), timeout)

    def load_model(self, model: str, version: int = 0, *, timeout: float = 300.0) -> tuple[int, ...]:
        """Loads a version of a model from the server's repository, or reloads it if its files have changed. Version 0
        loads the versions that the model's version policy selects.

        Returns the model's versions in service, ascending, as soon as the loaded version is ready. Until then a version
        that was in service before goes on serving. NotFoundError if the repository has no such folder;
        FailedPreconditionError, with every problem of the files, if the version is broken. A broken version does not
        replace one that is in service.
        """
        return self._run(protocol.load_model(model, version), timeout)

    def unload_model(self, model: str, version: int = 0, *, timeout: float | None = None) -> tuple[int, ...]:
        """Takes a version out of service until load_model() loads it again; version 0 takes out all versions. Requests
        that the server has already accepted are still answered. Returns the versions that were taken out, ascending.
        NotFoundError for a version that is not in service.
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
        """Makes the server search for the plan (the kernels and their settings) with which a model runs fastest on its
        device, and use that plan.

        The server measures on the scans of the next num_scans (1 to 100) requests for the model, or on those that
        arrive within max_wait seconds (up to 600). So clients must send requests during the search. on_progress, an
        ordinary function and no coroutine, is called with the state of the search; if it raises an exception, the
        search ends. The search also ends at the timeout. FailedPreconditionError, reason ALREADY_TUNING, while another
        search for the model runs; DeadlineExceededError if no scan arrives within max_wait.
        """
        return self._run_search(protocol.tune_plan(model, version, num_scans, max_wait, on_progress), timeout)

    def health(self, *, timeout: float | None = None) -> bool:
        """Returns whether the server reports that it serves (gRPC health checking). UnavailableError if no server
        answers.
        """
        return self._run(protocol.check_health(), timeout)

    def close(self) -> None:
        """Closes the connections. Calls and streams in flight are cancelled. Before, it asks the server for the names
        of classes that answers in memory need and nobody has read yet; this takes 1 s at most.
        """
        try:
            self._ask_wanted_classes()
        finally:
            while self._channels:
                self._channels.popitem()[1].close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Call[Result], timeout: float | None) -> Result:
        with self._begun(call, timeout) as response:
            return call.read(response)

    def _ask_classes(self, model: str, version: int, timeout: float | None = None) -> tuple[ClassInfo, ...]:
        return self._run(protocol.get_classes(model, version), KnownClasses.TIMEOUT if timeout is None else timeout)

    def _ask_wanted_classes(self) -> None:
        """Asks for the classes that answers will need after the client is closed."""
        end = time.monotonic() + KnownClasses.CLOSING_TIMEOUT
        for key in self._classes.wanted() if self._channels else []:
            timeout = end - time.monotonic()
            if timeout <= 0:
                return
            self._classes.of(key, functools.partial(self._ask_classes, timeout=timeout))

    def _run_search(self, call: Call[TunedPlan | None], timeout: float) -> TunedPlan:
        plan = None
        with self._begun(call, timeout) as updates:
            try:
                for update in updates:
                    plan = call.read(update) or plan
            finally:
                updates.cancel()
        return protocol.found(plan)

    def _open(self, config: StreamConfig, timeout: float | None) -> Stream:
        return Stream(self._next_channel(), config, self._options, timeout, self._classes_of)
