"""Makes calls of the service as bytes, and has the ordinary client that must be served whatever others do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

import http2
import voxserve
from server import REPOSITORY
from voxserve import errors, wire
from voxserve.encoding import encode_frame, encode_request
from voxserve.point_cloud import PointCloud, as_cloud

MODEL = "minkunet"
TUNE_PLAN = "/voxserve.v1.AdminService/TunePlan"
UNLIMITED = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]
_SCAN = np.fromfile(REPOSITORY / "deploy" / "scans" / "pandaset_070.bin", "<f4").reshape(-1, 4)


def scan(num_points: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns evenly chosen points of a real scan; all 107,000 if more are wanted."""
    return np.ascontiguousarray(_SCAN[:: max(1, len(_SCAN) // num_points)][:num_points])


def scattered(num_points: int, seed: int = 1) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns points of which hardly two share a voxel."""
    random = np.random.default_rng(seed)
    points = random.uniform(-100, 100, (num_points, 4)).astype(np.float32)
    points[:, 2] *= 0.1
    points[:, 3] = 0.5
    return points


def infer_request(points: np.ndarray[Any, Any], scores: bool = False) -> bytes:
    return encode_request(wire.InferRequest(model=MODEL, return_scores=scores), as_cloud(points), 1 << 31)


def padded_cloud(num_points: int, point_step: int) -> PointCloud:
    """Returns points in a single voxel, in many bytes: quick to run, large to keep."""
    data = np.zeros((num_points, point_step // 4), "<f4")
    data[:, :4] = scan(1)[0]
    packed = as_cloud(scan(1))
    return PointCloud(data=data.tobytes(), num_points=num_points, point_step=point_step, fields=packed.fields)


def stream_config(**config: Any) -> bytes:
    return bytes(wire.InferStreamRequest(config=wire.StreamConfig(model=MODEL, **config)).SerializeToString())


def stream_frame(frame_id: int, points: np.ndarray[Any, Any]) -> bytes:
    return encode_frame(wire.StreamFrame(frame_id=frame_id), as_cloud(points), 1 << 31)


@dataclass(frozen=True)
class Answer:
    """The end of a call: gRPC's code, the ErrorInfo's reason ("" if there is none), the message's bytes."""

    code: grpc.StatusCode
    reason: str = ""
    message: str = ""
    response: bytes = b""

    @property
    def is_ok(self) -> bool:
        return self.code is grpc.StatusCode.OK

    def __str__(self) -> str:
        return self.code.name + (f" {self.reason or repr(self.message)}" if not self.is_ok else "")


def channel(address: str) -> grpc.Channel:
    return grpc.insecure_channel(address, UNLIMITED)


def answer_of(call: Callable[[], bytes]) -> Answer:
    try:
        return Answer(grpc.StatusCode.OK, response=call())
    except grpc.RpcError as error:
        found = errors.from_rpc(error, "", None)
        code = error.code() or grpc.StatusCode.UNKNOWN
        return Answer(code, found.reason, error.details() or "")


def start_call(to: grpc.Channel, request: bytes, timeout: float, method: str = http2.INFER) -> Any:
    """Returns a future; answer_of(future.result) gives its answer."""
    return to.unary_unary(method).future(request, timeout=timeout)


def call(address: str, request: bytes, timeout: float = 30, method: str = http2.INFER) -> Answer:
    """Makes one call over its own connection."""
    with channel(address) as to:
        return answer_of(lambda: to.unary_unary(method)(request, timeout=timeout))


def stream(to: grpc.Channel, requests: Iterator[bytes], timeout: float) -> Any:
    """Returns the InferStream's answers as they arrive: bytes of InferStreamResponse."""
    return to.stream_stream(http2.INFER_STREAM)(requests, timeout=timeout)


def reason_of(status: wire.Status) -> str:
    """Returns the reason of a stream's FrameResult; "" if it is OK."""
    error = errors.from_status(status)
    return error.reason if error else ""


@dataclass
class OrdinaryClient(threading.Thread):
    """Sends small requests at an even rate, every tenth over a new connection, and never retries."""

    address: str
    per_minute: float = 100
    timeout: float = 15
    num_points: int = 1000
    seconds: list[float] = field(default_factory=list)  # of the answered requests
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._stopped = threading.Event()
        self._points = scan(self.num_points)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        clients = [voxserve.Client(self.address, timeout=self.timeout)]
        start = time.monotonic()
        # A slow request does not delay the next ones.
        with ThreadPoolExecutor(64) as pool:
            for i in range(1, 1 << 31):
                if i % 10 == 0:
                    clients.append(voxserve.Client(self.address, timeout=self.timeout))
                pool.submit(self._ask, clients[-1])
                if self._stopped.wait(max(0.0, start + i * 60 / self.per_minute - time.monotonic())):
                    break
        for client in clients:
            client.close()

    def _ask(self, client: voxserve.Client) -> None:
        start = time.monotonic()
        try:
            labels = client.segment(MODEL, self._points)
            assert len(labels) == len(self._points)
            self.seconds.append(time.monotonic() - start)
        except voxserve.InferenceError as error:
            self.failures.append(f"after {time.monotonic() - start:.1f} s: {error}")

    def __enter__(self) -> OrdinaryClient:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        self.join(self.timeout + 5)

    def ask(self, count: int) -> OrdinaryClient:
        """Sends requests one after the other, on the caller's thread."""
        with voxserve.Client(self.address, timeout=self.timeout) as client:
            for _ in range(count):
                self._ask(client)
        return self

    def percentile(self, percent: float) -> float:
        """Returns a percentile of the answers' seconds; infinite without answers."""
        return float(np.percentile(self.seconds, percent)) if self.seconds else float("inf")

    def figures(self) -> str:
        return (
            f"{len(self.seconds)} answered, {len(self.failures)} not; "
            f"p50 {self.percentile(50) * 1e3:.0f} ms, p99 {self.percentile(99) * 1e3:.0f} ms"
        )
