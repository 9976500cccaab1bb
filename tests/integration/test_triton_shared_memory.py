"""Tests shared memory with tritonclient: the server reads points from it and writes outputs into it, and touches
nothing else.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from identity_calls import OPERATOR, OTHER, TOKENS, TRUCK, StartServer
from identity_files import Authority, Server
from triton_calls import TIMEOUT, bearer, input_of, refusal_of, triton

shared_memory = pytest.importorskip("tritonclient.utils.shared_memory")
PREFIX = "/voxserve-test-"


@pytest.fixture(scope="module")
def server(start: StartServer) -> Server:
    return start(f"--shared_memory_prefix={PREFIX}")


@pytest.fixture(scope="module")
def sharing_client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as made:
        yield made


@pytest.fixture
def region(sharing_client: Any) -> Iterator[Callable[[str, int], Any]]:
    """region(name, num_bytes) makes shared memory with tritonclient, registers it and returns its handle."""
    made = []

    def make(name: str, num_bytes: int) -> Any:
        key = f"{PREFIX}{os.getpid()}-{name}"
        made.append(shared_memory.create_shared_memory_region(name, key, num_bytes))
        sharing_client.register_system_shared_memory(name, key, num_bytes)
        return made[-1]

    yield make
    sharing_client.unregister_system_shared_memory()
    for handle in made:
        shared_memory.destroy_shared_memory_region(handle)


def test_points_and_labels_go_through_shared_memory(
    sharing_client: Any, region: Callable[[str, int], Any], points: np.ndarray, labels: np.ndarray
) -> None:
    count = len(points)
    given, got = region("given", points.nbytes), region("got", 8 + 4 * count)
    shared_memory.set_shared_memory_region(given, [points])
    made = triton.InferInput("points", list(points.shape), "FP32")
    made.set_shared_memory("given", points.nbytes)
    output = triton.InferRequestedOutput("labels")
    output.set_shared_memory("got", 4 * count, 8)
    scores = triton.InferRequestedOutput("scores")
    result = sharing_client.infer("minkunet", [made], outputs=[output, scores], client_timeout=TIMEOUT)
    assert result.get_output("labels").parameters["shared_memory_region"].string_param == "got"
    assert result.get_response().raw_output_contents[0] == b"", "the message does not carry them"
    written = shared_memory.get_contents_as_numpy(got, np.int32, [count + 2])
    assert written[:2].tolist() == [0, 0]
    np.testing.assert_array_equal(written[2:], labels)
    np.testing.assert_array_equal(result.as_numpy("scores").argmax(axis=1), labels)
    status = sharing_client.get_system_shared_memory_status(as_json=True)["regions"]
    assert set(status) == {"given", "got"}
    assert status["given"]["byte_size"] == str(points.nbytes)
    assert set(sharing_client.get_system_shared_memory_status("got", as_json=True)["regions"]) == {"got"}


def test_a_stream_takes_points_from_shared_memory(
    sharing_client: Any, region: Callable[[str, int], Any], points: np.ndarray, labels: np.ndarray
) -> None:
    shared_memory.set_shared_memory_region(region("given", points.nbytes), [points])
    made = triton.InferInput("points", list(points.shape), "FP32")
    made.set_shared_memory("given", points.nbytes)
    answers: queue.Queue[Any] = queue.Queue()
    sharing_client.start_stream(lambda result, error: answers.put((result, error)))
    try:
        sharing_client.async_stream_infer("minkunet", [made])
        result, error = answers.get(timeout=TIMEOUT)
    finally:
        sharing_client.stop_stream()
    assert error is None
    np.testing.assert_array_equal(result.as_numpy("labels"), labels)


def test_nothing_outside_of_a_region_is_reached(
    sharing_client: Any, region: Callable[[str, int], Any], points: np.ndarray
) -> None:
    shared_memory.set_shared_memory_region(region("given", points.nbytes), [points])

    def refused(name: str, num_bytes: int, offset: int, *, output_bytes: int | None = None) -> str:
        made = triton.InferInput("points", list(points.shape), "FP32")
        made.set_shared_memory(name, num_bytes, offset)
        output = triton.InferRequestedOutput("labels")
        if output_bytes is not None:
            made = input_of(points)
            output.set_shared_memory(name, output_bytes, offset)
        code, text = refusal_of(lambda: sharing_client.infer("minkunet", [made], outputs=[output]))
        assert code == "INVALID_ARGUMENT"
        return text

    whole = points.nbytes
    assert f"{whole} bytes from byte 1 do not lie in region" in refused("given", whole, 1)
    assert "shared memory has" in refused("given", whole - 16, 0)
    assert 'there is no region "nothing"' in refused("nothing", whole, 0)
    assert "do not lie in region" in refused("given", 0, 8, output_bytes=whole)
    assert f"an output takes {4 * len(points)} bytes, its part of region" in refused("given", 0, 0, output_bytes=4)
    for key, size, text in (
        ("/other", 16, f'must begin with "{PREFIX}"'),
        (f"{PREFIX}/../x", 16, "is no name of shared memory"),
        (f"{PREFIX}none", 16, "cannot be opened"),
        (f"{PREFIX}{os.getpid()}-given", whole + 1, "does not lie in"),
    ):
        register = partial(sharing_client.register_system_shared_memory, "r", key, size)
        code, message = refusal_of(register)
        assert code == "INVALID_ARGUMENT"
        assert text in message


def test_an_object_that_shrinks_costs_only_its_request(
    sharing_client: Any, region: Callable[[str, int], Any], points: np.ndarray, labels: np.ndarray
) -> None:
    region("given", points.nbytes)
    os.truncate(f"/dev/shm{PREFIX}{os.getpid()}-given", 16)
    made = triton.InferInput("points", list(points.shape), "FP32")
    made.set_shared_memory("given", points.nbytes)
    code, text = refusal_of(lambda: sharing_client.infer("minkunet", [made]))
    assert (code, text) == ("INVALID_ARGUMENT", 'the object of region "given" became shorter')
    np.testing.assert_array_equal(
        sharing_client.infer("minkunet", [input_of(points)], client_timeout=TIMEOUT).as_numpy("labels"), labels
    )


def test_a_region_is_its_clients_alone(
    start: StartServer, tls_flags: list[str], folder: Path, authority: Authority
) -> None:
    (folder / "sharers").write_text(TOKENS)
    server = start(*tls_flags, f"--auth_tokens={folder / 'sharers'}", f"--shared_memory_prefix={PREFIX}")
    key = f"{PREFIX}{os.getpid()}-own"
    handle = shared_memory.create_shared_memory_region("own", key, 16)
    try:
        with triton.InferenceServerClient(
            server.address, ssl=True, root_certificates=str(authority.certificate)
        ) as client:
            client.register_system_shared_memory("own", key, 16, headers=bearer(TRUCK))
            of = client.get_system_shared_memory_status
            assert set(of(headers=bearer(TRUCK), as_json=True)["regions"]) == {"own"}
            assert of(headers=bearer(OTHER), as_json=True).get("regions", {}) == {}
            assert refusal_of(lambda: of(headers=bearer(OPERATOR)))[0] == "PERMISSION_DENIED"
            assert refusal_of(lambda: of())[0] == "UNAUTHENTICATED"
    finally:
        shared_memory.destroy_shared_memory_region(handle)
