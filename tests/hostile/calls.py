"""Makes calls of the service from encoded messages. OrdinaryClient is the client that the server must still serve
during an attack.
"""

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
    """Returns `num_points` points spread over a real scan, float32 [N, 4], or all of its 107,000 if more are asked
    for.
    """
    return np.ascontiguousarray(_SCAN[:: max(1, len(_SCAN) // num_points)][:num_points])


def scattered(num_points: int, seed: int = 1) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns random points float32 [num_points, 4], spread so widely that most of them have a voxel of their own."""
    random = np.random.default_rng(seed)
    points = random.uniform(-100, 100, (num_points, 4)).astype(np.float32)
    points[:, 2] *= 0.1
    points[:, 3] = 0.5
    return points


def infer_request(points: np.ndarray[Any, Any], scores: bool = False) -> bytes:
    return encode_request(wire.InferRequest(model=MODEL, return_scores=scores), as_cloud(points), 1 << 31)


def padded_cloud(num_points: int, point_step: int) -> PointCloud:
    """Returns a cloud whose points share one voxel and occupy `point_step` bytes each: little work, much memory."""
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
    """The end of a call: gRPC's status code, the reason in its ErrorInfo ("" if it has none), and the status message.
    """

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
    """Starts a call and returns its future. answer_of(future.result) waits for the Answer."""
    return to.unary_unary(method).future(request, timeout=timeout)


def call(address: str, request: bytes, timeout: float = 30, method: str = http2.INFER) -> Answer:
    """Makes one call over a connection of its own and returns its Answer."""
    with channel(address) as to:
        return answer_of(lambda: to.unary_unary(method)(request, timeout=timeout))


def stream(to: grpc.Channel, requests: Iterator[bytes], timeout: float) -> Any:
    """Starts an InferStream call. Iterating over the result yields its responses, as encoded InferStreamResponse
    messages.
    """
    return to.stream_stream(http2.INFER_STREAM)(requests, timeout=timeout)


def reason_of(status: wire.Status) -> str:
    """Returns the error reason in the status of a stream's FrameResult, or "" if the status is OK."""
    error = errors.from_status(status)
    return error.reason if error else ""


@dataclass
class OrdinaryClient(threading.Thread):
    """Sends small requests at an even rate from a thread of its own. It opens a new connection for every tenth request
    and never retries.
    """

    address: str
    per_minute: float = 100
    timeout: float = 15
    num_points: int = 1000
    identity: dict[str, Any] = field(default_factory=dict)  # voxserve.Client's arguments for TLS and tokens
    seconds: list[float] = field(default_factory=list)  # The duration of each request that was answered.
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._stopped = threading.Event()
        self._points = scan(self.num_points)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        clients = [self._connect()]
        start = time.monotonic()
        # Requests run in a pool, so a slow request does not delay the next ones.
        with ThreadPoolExecutor(64) as pool:
            for i in range(1, 1 << 31):
                if i % 10 == 0:
                    clients.append(self._connect())
                pool.submit(self._ask, clients[-1])
                if self._stopped.wait(max(0.0, start + i * 60 / self.per_minute - time.monotonic())):
                    break
        for client in clients:
            client.close()

    def _connect(self) -> voxserve.Client:
        return voxserve.Client(self.address, timeout=self.timeout, **self.identity)

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
        """Sends `count` requests one after the other, on the caller's thread."""
        with self._connect() as client:
            for _ in range(count):
                self._ask(client)
        return self

    def percentile(self, percent: float) -> float:
        """Returns a percentile of the answered requests' durations in seconds, or infinity if none was answered."""
        return float(np.percentile(self.seconds, percent)) if self.seconds else float("inf")

    def figures(self) -> str:
        return (
            f"{len(self.seconds)} answered, {len(self.failures)} not; "
            f"p50 {self.percentile(50) * 1e3:.0f} ms, p99 {self.percentile(99) * 1e3:.0f} ms"
        )
