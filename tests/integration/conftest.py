"""Fixtures of the tests of TLS, of tokens and of tritonclient: certificates, real servers, and what they answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from identity_calls import TOKENS, StartServer, few_points
from identity_files import Authority, Server

import voxserve


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: needs a machine that does nothing else")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("identity")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder, "root")


@pytest.fixture(scope="module")
def stranger(folder: Path) -> Authority:
    return Authority(folder, "stranger")


@pytest.fixture(scope="module")
def binary() -> str:
    path = os.environ.get("VOXSERVE_BINARY")
    if not path:
        pytest.skip("VOXSERVE_BINARY does not name the server's binary; tests/run.sh sets it")
    return path


@pytest.fixture(scope="module")
def start(folder: Path, binary: str) -> Iterator[StartServer]:
    count = iter(range(100))
    with ExitStack() as stack:

        def make(*flags: str) -> Server:
            server = Server(binary, folder / f"log{next(count)}", *flags)
            stack.callback(server.close)
            server.await_ready()
            return server

        yield make


@pytest.fixture(scope="module")
def tls_flags(authority: Authority) -> list[str]:
    certificate, key = authority.issue("server", "serverAuth")
    return [f"--tls_certificate={certificate}", f"--tls_key={key}"]


@pytest.fixture(scope="module")
def tls_server(start: StartServer, tls_flags: list[str]) -> Server:
    return start(*tls_flags)


@pytest.fixture(scope="module")
def mutual_server(start: StartServer, tls_flags: list[str], authority: Authority) -> Server:
    return start(*tls_flags, f"--tls_client_ca={authority.certificate}")


@pytest.fixture(scope="module")
def token_server(start: StartServer, tls_flags: list[str], folder: Path) -> Server:
    (folder / "tokens").write_text(TOKENS)
    return start(*tls_flags, f"--auth_tokens={folder / 'tokens'}")


@pytest.fixture(scope="module")
def points() -> np.ndarray:
    return few_points()


@pytest.fixture(scope="module")
def labels(server: Server, points: np.ndarray) -> np.ndarray:
    """The labels of `points` that voxserve.Client gets from the module's server."""
    with voxserve.Client(server.address) as own:
        return own.segment("minkunet", points)
