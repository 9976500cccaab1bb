"""A fake voxserve server in this process, and the real one where VOXSERVE_BINARY names it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from voxserve import wire

REPOSITORY = Path(__file__).resolve().parents[3]
# Scans that may not be part of the repository; tests that need them skip where they are missing.
SHARED = Path(os.environ.get("VOXSERVE_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
START_SECONDS = 120  # loading a model on a busy machine


class FakeServer:
    """Answers by the model's name; keeps the requests that it got."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Any] = []
        self.time_remaining: float | None = None
        self.serving = True
        self.classes = [("road", 0x804080), ("car", 0x285AFF)]
        limit = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
        ]
        self._released = threading.Event()
        self._server = grpc.server(futures.ThreadPoolExecutor(8), options=limit)
        self._server.add_generic_rpc_handlers(
            (
                _handlers(
                    "voxserve.v1.InferenceService",
                    {
                        "Infer": (self._infer, wire.InferRequest),
                        "ListModels": (self._list_models, wire.ListModelsRequest),
                        "GetModel": (self._get_model, wire.GetModelRequest),
                    },
                ),
                _handlers("grpc.health.v1.Health", {"Check": (self._check, wire.HealthCheckRequest)}),
            )
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        self._server.start()

    def stop(self) -> None:
        self._released.set()
        self._server.stop(None).wait()

    def _infer(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.requests.append(request)
        self.time_remaining = context.time_remaining()
        num_points = request.cloud.num_points
        response = wire.InferResponse(model=request.model, version=3, request_id=request.request_id, device="cpu")
        answer = response.segmentation
        answer.bytes_per_label, answer.ignore_label, answer.num_classes = 1, 255, 2
        answer.labels = (np.arange(num_points) % 2).astype(np.uint8).tobytes()
        response.counts.used, response.counts.voxels = num_points, max(0, num_points - 1)
        response.stages.extend([wire.StageDuration(name="voxelize", microseconds=1500)])
        if request.return_scores:
            answer.scores = np.tile(np.array([1.5, -2], "<f4"), num_points).tobytes()
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
        elif request.model == "busy":
            retry = wire.RetryInfo()
            retry.retry_delay.seconds, retry.retry_delay.nanos = 1, 250_000_000
            _fail(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", "QUEUE_FULL", retry)
        elif request.model == "unknown":
            _fail(context, grpc.StatusCode.NOT_FOUND, "no model 'unknown'; there is minkunet", "MODEL_NOT_FOUND")
        elif request.model == "damaged-details":
            context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff\xff"),))
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "plain message")
        return response

    def _list_models(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        response = wire.ListModelsResponse()
        response.models.extend([self._model("minkunet", 3, wire.MODEL_STATE_READY)])
        response.models.extend([self._model("broken", 1, wire.MODEL_STATE_FAILED)])
        response.models[1].problems.extend(["node 'a': no input", "tensor 'b' is missing"])
        return response

    def _get_model(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.model == "unknown":
            _fail(context, grpc.StatusCode.NOT_FOUND, "no model 'unknown'; there is minkunet", "MODEL_NOT_FOUND")
        return wire.GetModelResponse(model=self._model(request.model, request.version or 3, wire.MODEL_STATE_READY))

    def _model(self, name: str, version: int, state: int) -> Any:
        model = wire.ModelVersion(name=name, version=version, state=state, description="two classes", device="cpu")
        model.ignore_label, model.max_points, model.num_parameters, model.digest = 255, 2_000_000, 1234, "abc"
        model.voxel_size.extend([0.5, 0.5, 0.25])
        model.classes.extend(
            [wire.ClassInfo(id=i, name=name, color_rgb=rgb) for i, (name, rgb) in enumerate(self.classes)]
        )
        model.features.extend([wire.FeatureInfo(name="x", unit="m")])
        model.features.extend([wire.FeatureInfo(name="intensity", unit="1", default_value=0.5)])
        return model

    def _check(self, _request: Any, _context: grpc.ServicerContext) -> Any:
        status = wire.HealthCheckResponse.SERVING if self.serving else wire.HealthCheckResponse.NOT_SERVING
        return wire.HealthCheckResponse(status=status)


def _handlers(service: str, methods: dict[str, Any]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        service,
        {
            name: grpc.unary_unary_rpc_method_handler(
                method, request_deserializer=request.FromString, response_serializer=lambda m: m.SerializeToString()
            )
            for name, (method, request) in methods.items()
        },
    )


def _fail(context: grpc.ServicerContext, code: grpc.StatusCode, message: str, reason: str, *details: Any) -> None:
    status = wire.Status(code=code.value[0], message=message)
    for detail in (wire.ErrorInfo(reason=reason, domain="voxserve", metadata={"model": "m"}), *details):
        status.details.add().Pack(detail)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, message)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.stop()


@pytest.fixture
def points() -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(1).normal(size=(10, 4)).astype(np.float32)


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server of deploy/models, started for these tests."""
    binary = os.environ.get("VOXSERVE_BINARY")
    if not binary:
        pytest.skip("VOXSERVE_BINARY does not name the server's binary; tests/run.sh sets it")
    log = tmp_path_factory.mktemp("server") / "log"
    command = [binary, "--model_repository", str(REPOSITORY / "deploy" / "models"), "--port=0", "--http_port=0"]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            address = f"localhost:{_port_of(process, log)}"
            wait = [sys.executable, "-m", "voxserve", "health", "--address", address, "--wait", f"{START_SECONDS}s"]
            subprocess.run(wait, check=True)
            yield address
        finally:
            process.terminate()
            assert process.wait(60) == 0, log.read_text(errors="replace")[-4000:]


def _port_of(process: subprocess.Popen[bytes], log: Path) -> int:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        match = re.search(r"\bserving\b.* grpc_port=(\d+)", log.read_text(errors="replace"))
        if match:
            return int(match[1])
        time.sleep(0.05)
    return pytest.fail(f"the server did not start:\n{log.read_text(errors='replace')[-4000:]}")
