"""Fixtures: a fake voxserve server in this process, and real servers if VOXSERVE_BINARY names the binary."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import scan_files
from stream_clients import AioClient

import voxserve
from voxserve import wire
from voxserve.export import stand_ins
from voxserve.export.networks.tensors import RandomTensors

REPOSITORY = Path(__file__).resolve().parents[3]
# Scans that may not be part of the repository. Tests that need them skip if they are missing.
SHARED = Path(os.environ.get("VOXSERVE_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
START_SECONDS = 120  # enough to load a model on a busy machine
BOX_MODELS = frozenset({"detector", "both", "crooked"})
NOT_READY = {"broken": wire.MODEL_STATE_FAILED, "loading": wire.MODEL_STATE_LOADING}
_METHODS = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


@contextmanager
def unused_port() -> Iterator[int]:
    """Returns a port that is bound but does not listen. No other process gets it, and FakeServer(port) can serve at it,
    as often as a test starts one.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class AuthorizationRecorder(grpc.ServerInterceptor):
    """Keeps the authorization header of every call, or None for a call without it."""

    def __init__(self, authorizations: list[str | None]) -> None:
        self._authorizations = authorizations

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        self._authorizations.append(dict(details.invocation_metadata).get("authorization"))
        return continuation(details)


class FakeServer:
    """A server in this process, whose answers depend on the requested model's name, and which keeps all requests. A
    test may set `streams`, a generator that answers a stream: it gets the requests and the context, and yields messages
    or their bytes. port: a port of unused_port(); 0 for any.
    """

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Any] = []
        self.streams: Callable[[Iterator[Any], grpc.ServicerContext], Iterable[Any]] = answer_all
        self.time_remaining: float | None = None
        self.num_refusals = 0  # the next calls of Infer and LoadModel to refuse with UNAVAILABLE
        self.pushback_ms = 0  # the delay before a retry that a refusal asks for; 0: it asks for none
        self.authorizations: list[str | None] = []  # of every call
        self.serving = True
        self.asked_models: list[str] = []  # of every call of GetModel
        self.classes = [("road", 0x804080), ("car", 0x285AFF)]
        limit = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", int(port != 0)),  # unused_port() holds it
            ("grpc.http2.bdp_probe", 0),  # so that every machine buffers equally little before the server reads
        ]
        self.search_ended = threading.Event()
        self._released = threading.Event()
        self._server = grpc.server(
            futures.ThreadPoolExecutor(8), options=limit, interceptors=(AuthorizationRecorder(self.authorizations),)
        )
        self._server.add_generic_rpc_handlers(
            (
                _handlers(
                    "voxserve.v1.InferenceService",
                    {
                        "Infer": (self._infer, wire.InferRequest, False, False),
                        "InferStream": (self._infer_stream, wire.InferStreamRequest, True, True),
                        "ListModels": (self._list_models, wire.ListModelsRequest, False, False),
                        "GetModel": (self._get_model, wire.GetModelRequest, False, False),
                    },
                ),
                _handlers(
                    "voxserve.v1.AdminService",
                    {
                        "LoadModel": (self._load_model, wire.LoadModelRequest, False, False),
                        "UnloadModel": (self._unload_model, wire.UnloadModelRequest, False, False),
                        "TunePlan": (self._tune_plan, wire.TunePlanRequest, False, True),
                    },
                ),
                _handlers("grpc.health.v1.Health", {"Check": (self._check, wire.HealthCheckRequest, False, False)}),
            )
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        self._server.start()

    def stop(self) -> None:
        self._released.set()
        self._server.stop(None).wait()

    def _refuse(self, context: grpc.ServicerContext) -> None:
        if self.num_refusals > 0:
            self.num_refusals -= 1
            if self.pushback_ms:
                context.set_trailing_metadata((("grpc-retry-pushback-ms", str(self.pushback_ms)),))
            context.abort(grpc.StatusCode.UNAVAILABLE, "refused by the test")

    def _infer(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests.append(request)
        self._refuse(context)
        self.time_remaining = context.time_remaining()
        num_points = request.cloud.num_points
        response = wire.InferResponse(model=request.model, version=3, request_id=request.request_id, device="cpu")
        answer = response.segmentation
        answer.bytes_per_label, answer.ignore_label, answer.num_classes = 1, 255, 2
        answer.labels = (np.arange(num_points) % 2).astype(np.uint8).tobytes()
        if request.model in BOX_MODELS:
            add_boxes(response, num_points)
        if request.model in BOX_MODELS - {"both"} | {"mute"}:
            response.ClearField("segmentation")
        if request.model == "crooked":
            response.detections.boxes[0].yaw = math.nan
        response.counts.used, response.counts.voxels = num_points, max(0, num_points - 1)
        response.stages.extend([wire.StageDuration(name="voxelize", microseconds=1500)])
        if request.model == "ranged":
            add_warning(response)
        if request.model == "overflowing":
            response.counts.not_finite, response.counts.boxes_not_finite = 2, 3
        if request.return_scores:
            answer.scores = np.tile(np.array([1.5, -2], "<f4"), num_points).tobytes()
        for i in range(request.sample.num_points):
            start = 1 if request.sample.HasField("seed") else request.sample.start_index
            response.sampled_points.append((start + i) % num_points)
        if request.sample.use == wire.FarthestPointSample.USE_NETWORK:
            response.counts.unsampled = num_points - request.sample.num_points
        if request.model == "extra-sample":
            response.sampled_points.append(0)
        elif request.model == "far-sample":
            response.sampled_points[0] = num_points
        if request.model == "wide":
            answer.bytes_per_label, answer.ignore_label = 2, 65535
            answer.labels = (np.arange(num_points) + 300).astype("<u2").tobytes()
        elif request.model == "truncated":
            answer.labels = answer.labels[:-1]
        elif request.model == "no-width":
            answer.bytes_per_label = 0
        elif request.model == "extra-scores":
            answer.scores = b"1234"
        elif request.model == "slow":
            self._released.wait()
        elif request.model in NOT_READY:
            fail(context, grpc.StatusCode.UNAVAILABLE, f"the model is {request.model}", "MODEL_FAILED")
        elif request.model == "busy":
            retry = wire.RetryInfo()
            retry.retry_delay.seconds, retry.retry_delay.nanos = 1, 250_000_000
            fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", "QUEUE_FULL", retry)
        elif request.model == "unknown":
            fail(context, grpc.StatusCode.NOT_FOUND, "no model 'unknown'; there is minkunet", "MODEL_NOT_FOUND")
        elif request.model == "damaged-details":
            context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff\xff"),))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "plain message")
        return response

    def _infer_stream(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        self.time_remaining = context.time_remaining()
        yield from self.streams(self._kept(requests), context)

    def _kept(self, requests: Iterator[Any]) -> Iterator[Any]:
        for request in requests:
            self.requests.append(request)
            yield request

    def _load_model(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests.append(request)
        self._refuse(context)
        self.time_remaining = context.time_remaining()
        if request.model == "broken":
            fail(context, grpc.StatusCode.FAILED_PRECONDITION, "node 'a': no input", "BAD_MODEL")
        return wire.LoadModelResponse(versions=[1, request.version or 3])

    def _unload_model(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests.append(request)
        if request.model == "unknown":
            fail(context, grpc.StatusCode.NOT_FOUND, "no model 'unknown'; there is minkunet", "MODEL_NOT_FOUND")
        return wire.UnloadModelResponse(versions=[request.version] if request.version else [1, 3])

    def _tune_plan(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self.requests.append(request)
        self.time_remaining = context.time_remaining()
        context.add_callback(self.search_ended.set)
        if request.model == "busy":
            fail(context, grpc.StatusCode.FAILED_PRECONDITION, "a search is under way", "ALREADY_TUNING")
        for stage, fraction in (("waiting for scans", 0.0), ("candidates", 0.5)):
            yield wire.TunePlanUpdate(progress=wire.TunePlanProgress(stage=stage, fraction=fraction))
        yield wire.TunePlanUpdate()  # an unknown update, as from a newer server
        if request.model == "endless":
            self._released.wait()
        elif request.model != "no-result":
            small = wire.TunedBucket(max_voxels=5000, num_scans=2, default_ms=2.5, tuned_ms=1.25)
            large = wire.TunedBucket(min_voxels=5000, num_scans=3, default_ms=5, tuned_ms=4)
            result = wire.TunePlanResult(device="H200", num_scans=5, buckets=[small, large], seconds=12.5, path="p")
            yield wire.TunePlanUpdate(result=result)

    def _list_models(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        response = wire.ListModelsResponse()
        response.models.extend([self._model("minkunet", 3, wire.MODEL_STATE_READY)])
        response.models.extend([self._model("broken", 1, wire.MODEL_STATE_FAILED)])
        response.models[1].problems.extend(["node 'a': no input", "tensor 'b' is missing"])
        return response

    def _get_model(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.model == "unknown":
            fail(context, grpc.StatusCode.NOT_FOUND, "no model 'unknown'; there is minkunet", "MODEL_NOT_FOUND")
        self.asked_models.append(request.model)
        if request.model == "names-late":
            self._released.wait()
        if request.model == "unnamed":
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "an older server")
        state = NOT_READY.get(request.model, wire.MODEL_STATE_READY)
        return wire.GetModelResponse(model=self._model(request.model, request.version or 3, state))

    def _model(self, name: str, version: int, state: int) -> Any:
        model = wire.ModelVersion(name=name, version=version, state=state, description="two classes", device="cpu")
        model.ignore_label, model.max_points, model.num_parameters, model.digest = 255, 2_000_000, 1234, "abc"
        if state == wire.MODEL_STATE_READY:  # a server knows the outputs of ready models only
            model.has_boxes = model.has_velocities = name in BOX_MODELS
            model.has_labels = model.has_scores = name not in BOX_MODELS - {"both"}
        model.voxel_size.extend([0.5, 0.5, 0.25])
        model.classes.extend(
            [wire.ClassInfo(id=i, name=name, color_rgb=rgb) for i, (name, rgb) in enumerate(self.classes)]
        )
        model.features.extend([wire.FeatureInfo(name="x", unit="m")])
        model.features.extend([wire.FeatureInfo(name="intensity", unit="1", default_value=0.5)])
        if name == "ranged":
            model.features[1].range.CopyFrom(wire.FeatureRange(low=0, high=1))
        return model

    def _check(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        status = wire.HealthCheckResponse.SERVING if self.serving else wire.HealthCheckResponse.NOT_SERVING
        return wire.HealthCheckResponse(status=status)


def _handlers(service: str, methods: dict[str, Any]) -> grpc.GenericRpcHandler:
    """methods: (function, class of its request, whether requests stream, whether answers stream), by method name."""
    return grpc.method_handlers_generic_handler(
        service,
        {
            name: _METHODS[takes_stream, gives_stream](
                method,
                request_deserializer=request.FromString,
                response_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            )
            for name, (method, request, takes_stream, gives_stream) in methods.items()
        },
    )


def add_boxes(response: Any, num_points: int) -> None:
    """Adds a box for each point, of class car and road in turn. The second box lacks its class's name."""
    response.detections.SetInParent()
    for i in range(num_points):
        box = response.detections.boxes.add(class_id=1 - i % 2, class_name="" if i == 1 else ("car", "road")[i % 2])
        box.score, box.x, box.y, box.z, box.length, box.width, box.height = 1 / (1 + i), i, -i, 0.5, 4, 2, 1.5
        box.yaw, box.velocity_x, box.velocity_y = 0.25, 3, 4
        if i == 1:
            box.query = 9


def add_warning(response: Any) -> None:
    """Adds the warning that an intensity of 0 to 1 is wanted and is 0 to 200."""
    warning = response.warnings.add(feature="intensity", smallest=0, largest=200, num_checked=100, num_outside=90)
    warning.range.low, warning.range.high = 0, 1


def answer(request: Any, **changes: Any) -> Any:
    """Returns the result of a stream's frame, with labels 0 1 0 1 ..."""
    frame = request.frame
    response = wire.InferResponse(model="minkunet", version=3, device="cpu")
    response.segmentation.bytes_per_label, response.segmentation.num_classes = 1, 2
    response.segmentation.labels = (np.arange(frame.cloud.num_points) % 2).astype(np.uint8).tobytes()
    result = wire.FrameResult(**{"frame_id": frame.frame_id, "response": response, **changes})
    return wire.InferStreamResponse(result=result)


def answer_all(requests: Iterator[Any], _context: grpc.ServicerContext) -> Iterator[Any]:
    """Answers every frame of a stream in order."""
    next(requests)
    yield from map(answer, requests)


def status_of(code: grpc.StatusCode, message: str, reason: str, *details: Any) -> Any:
    """Returns a google.rpc.Status with an ErrorInfo, as the service sends it."""
    status = wire.Status(code=code.value[0], message=message)
    for detail in (wire.ErrorInfo(reason=reason, domain="voxserve", metadata={"model": "m"}), *details):
        status.details.add().Pack(detail)
    return status


def fail(context: grpc.ServicerContext, code: grpc.StatusCode, message: str, reason: str, *details: Any) -> None:
    status = status_of(code, message, reason, *details)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, message)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with unused_port() as port:
        fake = FakeServer(port)
        yield fake
        fake.stop()


@pytest.fixture(params=[voxserve.Client, AioClient], ids=["sync", "aio"])
def client(request: pytest.FixtureRequest, server: FakeServer) -> Iterator[Any]:
    """Runs a test of streams with each client, both with the synchronous interface."""
    with request.param(server.address) as made:
        yield made


@pytest.fixture
def points() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(1).normal(size=(10, 4)).astype(np.float32)


@pytest.fixture
def write(tmp_path: Path) -> scan_files.Write:
    """write(name, contents) writes a file and returns its path."""
    return scan_files.writer(tmp_path)


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerAddress]:
    """Starts a real server of deploy/models for these tests, and returns its address."""
    with serving(REPOSITORY / "deploy" / "models", tmp_path_factory.mktemp("server") / "log") as address:
        yield address


@pytest.fixture(scope="session")
def network_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Starts a real server of the small networks in tests/golden, which have detectors; returns its address."""
    with serving(REPOSITORY / "tests" / "golden" / "networks", tmp_path_factory.mktemp("networks") / "log") as address:
        yield address


class ServerAddress(str):
    """The address of a server that a test started."""

    admin: str  # the address of its AdminService


@contextmanager
def serving(models: Path, log: Path) -> Iterator[ServerAddress]:
    binary = os.environ.get("VOXSERVE_BINARY")
    if not binary:
        pytest.skip("VOXSERVE_BINARY does not name the server's binary; tests/run.sh sets it")
    command = [binary, "--model_repository", str(models), "--port=0", "--http_port=0"]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            port, admin_port = _ports_of(process, log)
            address = ServerAddress(f"localhost:{port}")
            address.admin = f"localhost:{admin_port}"
            wait = [sys.executable, "-m", "voxserve", "health", "--address", address, "--wait", f"{START_SECONDS}s"]
            subprocess.run(wait, check=True)
            yield address
        finally:
            process.terminate()
            assert process.wait(60) == 0, log.read_text(errors="replace")[-4000:]


def _ports_of(process: subprocess.Popen[bytes], log: Path) -> tuple[str, str]:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        match = re.search(r"\bserving\b.* grpc_port=(\d+).* admin_port=(\d+)", log.read_text(errors="replace"))
        if match:
            return match[1], match[2]
        time.sleep(0.05)
    return pytest.fail(f"the server did not start:\n{log.read_text(errors='replace')[-4000:]}")


@pytest.fixture
def stand_in_libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installs the stand-ins, also for a library that is installed."""
    pytest.importorskip("torch", reason="torch is not installed")
    hidden = ("spconv", "torchsparse", "MinkowskiEngine", "torch_scatter")
    find = importlib.util.find_spec
    loaded = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in hidden}
    for name in loaded:
        del sys.modules[name]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in hidden else find(name, *rest))
    assert stand_ins.install() == list(hidden)
    yield
    stand_ins.remove()
    sys.modules.update(loaded)


@pytest.fixture
def no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes random networks take zeros, because drawing millions of values takes long."""
    monkeypatch.setattr(RandomTensors, "take", lambda self, name, shape, **options: np.zeros(tuple(shape), np.float16))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Returns the tensors that random networks ask for from now on, as a state dict of their library."""
    state: dict[str, Any] = {}
    take = RandomTensors.take

    def record(self: RandomTensors, name: str, shape: Any, **options: Any) -> Any:
        state[name] = take(self, name, shape, **options)
        return state[name]

    monkeypatch.setattr(RandomTensors, "take", record)
    return state
