"""Helpers of the tests of TLS and of tokens: the server's tokens, and calls by clients of every kind."""

from __future__ import annotations

import http.client
import os
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
from identity_files import REPOSITORY, Server, token_line

SCAN = REPOSITORY / "deploy" / "scans" / "pandaset_070.bin"
TRUCK, OPERATOR, SCRAPER, OTHER = (f"{name}-token-0123456789" for name in ("truck", "operator", "scraper", "other"))
TOKENS = (
    token_line("truck", TRUCK, "infer:mink*")
    + token_line("operator", OPERATOR, "admin")
    + token_line("scraper", SCRAPER, "metrics")
    + token_line("other", OTHER, "infer:centerpoint*")
)
StartServer = Callable[..., Server]


def stock(address: str, method: str, request: bytes, token: str = "", ca: Path | None = None, **pair: bytes) -> bytes:
    """Makes a call with plain grpcio and returns the response's bytes. `pair`: a client's certificate and key, by the
    names that grpc.ssl_channel_credentials gives them.
    """
    if ca is None:
        channel = grpc.insecure_channel(address)
    else:
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca.read_bytes(), **pair))
    metadata = (("authorization", f"Bearer {token}"),) if token else None
    with channel:
        return bytes(channel.unary_unary(method)(request, timeout=20, metadata=metadata))


def code_of(*arguments: object, **keywords: object) -> tuple[grpc.StatusCode, str]:
    try:
        stock(*arguments, **keywords)  # type: ignore[arg-type]
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


LIST = "/voxserve.v1.InferenceService/ListModels"
INFER = "/voxserve.v1.InferenceService/Infer"
LOAD = "/voxserve.v1.AdminService/LoadModel"
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def health_request(service: str) -> bytes:
    """Returns a HealthCheckRequest: one field, a string."""
    return bytes([0x0A, len(service)]) + service.encode() if service else b""


def get(
    server: Server,
    path: str,
    ca: Path | None,
    token: str = "",
    pair: tuple[Path, Path] | None = None,
    count: int = 1,
) -> int:
    """Returns the status of a GET over HTTP, or over HTTPS if `ca` is given. The request has `count` headers with the
    token. `pair`: the files of a client's certificate and key.
    """
    if ca is None:
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)
    else:
        context = ssl.create_default_context(cafile=str(ca))
        if pair is not None:
            context.load_cert_chain(*pair)
        connection = http.client.HTTPSConnection("localhost", server.http_port, timeout=20, context=context)
    try:
        connection.putrequest("GET", path)
        for _ in range(count if token else 0):
            connection.putheader("Authorization", f"Bearer {token}")
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


def few_points() -> np.ndarray:
    return np.fromfile(SCAN, np.float32).reshape(-1, 4)[::100]


def tool(*arguments: str, token: str = "") -> subprocess.CompletedProcess[str]:
    """Runs voxserve-client, which is built beside the server's binary, with the token in its environment."""
    path = Path(os.environ["VOXSERVE_BINARY"]).parents[1] / "client" / "cpp" / "voxserve-client"
    environment = {**os.environ, "VOXSERVE_TOKEN": token}
    return subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60, env=environment)
