"""Tests the server with tritonclient, the client of Triton and KServe, as it comes from PyPI."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from identity_calls import OPERATOR, OTHER, TRUCK, StartServer
from identity_files import Authority, Server
from triton_calls import TIMEOUT, bearer, input_of, refusal_of, triton

import voxserve

aio = pytest.importorskip("tritonclient.grpc.aio")


@pytest.fixture(scope="module")
def server(start: StartServer) -> Server:
    return start()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address) as made:
        yield made


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("minkunet")
    assert client.is_model_ready("minkunet", "1")
    assert not client.is_model_ready("minkunet", "2")
    assert not client.is_model_ready("nobody")
    server = client.get_server_metadata()
    assert (server.name, server.version) == ("voxserve", voxserve.__version__)
    model = client.get_model_metadata("minkunet", as_json=True)
    assert (model["name"], model["versions"], model["platform"]) == ("minkunet", ["1"], "voxserve")
    assert model["inputs"] == [{"name": "points", "datatype": "FP32", "shape": ["-1", "4"]}]
    assert {output["name"]: output["datatype"] for output in model["outputs"]} == {"labels": "INT32", "scores": "FP32"}
    assert refusal_of(lambda: client.get_model_metadata("nobody"))[0] == "NOT_FOUND"


def test_labels_are_those_of_infer(client: Any, points: np.ndarray, labels: np.ndarray) -> None:
    result = client.infer("minkunet", [input_of(points)], request_id="scan 1", client_timeout=TIMEOUT)
    np.testing.assert_array_equal(result.as_numpy("labels"), labels)
    response = result.get_response()
    assert (response.model_name, response.model_version, response.id) == ("minkunet", "1", "scan 1")
    assert result.as_numpy("scores") is None, "scores are answered where they are named"
    counts = {name: value.int64_param for name, value in response.parameters.items()}
    assert counts["points_used"] + counts["points_invalid"] + counts["points_out_of_range"] == len(points)


def test_half_precision_and_scores(client: Any, points: np.ndarray) -> None:
    halves = points.astype(np.float16)
    outputs = [triton.InferRequestedOutput(name) for name in ("labels", "scores")]

    def infer(values: np.ndarray, datatype: str) -> Any:
        return client.infer("minkunet", [input_of(values, datatype)], outputs=outputs, client_timeout=TIMEOUT)

    half, full = infer(halves, "FP16"), infer(halves.astype(np.float32), "FP32")
    np.testing.assert_array_equal(half.as_numpy("labels"), full.as_numpy("labels"))
    np.testing.assert_array_equal(half.as_numpy("scores"), full.as_numpy("scores"))
    assert half.as_numpy("scores").shape[0] == len(points)


def test_async_infer_calls_back(client: Any, points: np.ndarray, labels: np.ndarray) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    for _ in range(3):
        client.async_infer(
            "minkunet", [input_of(points)], lambda result, error: answers.put((result, error)), client_timeout=TIMEOUT
        )
    for _ in range(3):
        result, error = answers.get(timeout=TIMEOUT)
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("labels"), labels)


def test_asyncio(server: Server, points: np.ndarray, labels: np.ndarray) -> None:
    async def ask() -> list[Any]:
        async with aio.InferenceServerClient(server.address) as client:
            assert await client.is_server_ready()
            assert await client.is_model_ready("minkunet")
            return await asyncio.gather(
                *(client.infer("minkunet", [input_of(points)], client_timeout=TIMEOUT) for _ in range(3))
            )

    for result in asyncio.run(ask()):
        np.testing.assert_array_equal(result.as_numpy("labels"), labels)


def test_a_stream_answers_every_request(client: Any, points: np.ndarray, labels: np.ndarray) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    try:
        wrong = triton.InferInput("points", [1, 3], "FP32")
        wrong.set_data_from_numpy(np.zeros((1, 3), np.float32))
        client.async_stream_infer("minkunet", [wrong], request_id="wrong")
        for i in range(3):
            client.async_stream_infer(
                "minkunet", [input_of(points)], request_id=str(i), enable_empty_final_response=i == 2
            )
        got = {}
        for _ in range(4):
            result, error = answers.get(timeout=TIMEOUT)
            if error is None:
                got[result.get_response().id] = result
            else:
                assert error.message().startswith('INVALID_ARGUMENT: "points" has shape [1, 3]')
                assert error.message().endswith("(BAD_LAYOUT)")
    finally:
        client.stop_stream()
    assert set(got) == {"0", "1", "2"}
    for result in got.values():
        np.testing.assert_array_equal(result.as_numpy("labels"), labels)
    assert got["2"].get_response().parameters["triton_final_response"].bool_param
    assert answers.empty()


def test_an_asyncio_stream(server: Server, points: np.ndarray, labels: np.ndarray) -> None:
    async def ask() -> list[Any]:
        async with aio.InferenceServerClient(server.address) as client:

            async def requests() -> AsyncIterator[dict[str, Any]]:
                for i in range(3):
                    yield {"model_name": "minkunet", "inputs": [input_of(points)], "request_id": str(i)}

            return [answer async for answer in client.stream_infer(requests(), stream_timeout=TIMEOUT)]

    answers = asyncio.run(ask())
    assert {result.get_response().id for result, _ in answers} == {"0", "1", "2"}
    for result, error in answers:
        assert error is None
        np.testing.assert_array_equal(result.as_numpy("labels"), labels)


def test_configuration_statistics_and_index(client: Any, points: np.ndarray) -> None:
    config = client.get_model_config("minkunet", as_json=True)["config"]
    assert (config["name"], config["platform"], config.get("max_batch_size", 0)) == ("minkunet", "voxserve", 0)
    assert config["input"] == [{"name": "points", "data_type": "TYPE_FP32", "dims": ["-1", "4"]}]
    assert [output["name"] for output in config["output"]] == ["labels", "scores"]

    def statistics() -> Any:
        (model,) = client.get_inference_statistics("minkunet").model_stats
        return model

    before = statistics()
    client.infer("minkunet", [input_of(points)], client_timeout=TIMEOUT)
    after = statistics()
    assert after.inference_count == before.inference_count + 1
    assert after.execution_count == before.execution_count + 1
    assert after.last_inference >= before.last_inference
    for name in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        old, new = getattr(before.inference_stats, name), getattr(after.inference_stats, name)
        assert new.count == old.count + 1, name
        assert new.ns > old.ns, name
    assert [model.name for model in client.get_inference_statistics().model_stats] == ["centerpoint", "minkunet"]
    assert refusal_of(lambda: client.get_inference_statistics("nobody"))[0] == "NOT_FOUND"
    index = client.get_model_repository_index(as_json=True)["models"]
    assert index == [{"name": name, "version": "1", "state": "READY"} for name in ("centerpoint", "minkunet")]


def test_loads_are_for_the_operators_port(client: Any, server: Server) -> None:
    code, text = refusal_of(lambda: client.load_model("minkunet"))
    assert code == "UNIMPLEMENTED"
    assert text.endswith("is not on this port: it is on the operators' port, --admin_port of the server")
    with triton.InferenceServerClient(server.admin_address) as operator:
        operator.load_model("minkunet")
        assert operator.is_model_ready("minkunet")
        code, text = refusal_of(lambda: operator.load_model("minkunet", config="{}"))
        assert (code, text.partition(" is not served")[0]) == ("INVALID_ARGUMENT", 'parameter "config"')
        assert refusal_of(lambda: operator.unload_model("nobody"))[0] == "NOT_FOUND"
    server.await_line(r"audit action=RepositoryModelLoad who=\S+ peer=\S+ model=minkunet .* code=OK", 5)


def test_an_unloaded_model_comes_back(start: StartServer, points: np.ndarray) -> None:
    server = start()
    with (
        triton.InferenceServerClient(server.admin_address) as operator,
        triton.InferenceServerClient(server.address) as client,
    ):
        operator.unload_model("minkunet")
        assert not client.is_model_ready("minkunet")
        assert refusal_of(lambda: client.infer("minkunet", [input_of(points)]))[0] in ("NOT_FOUND", "UNAVAILABLE")
        operator.load_model("minkunet", client_timeout=TIMEOUT)
        assert client.is_model_ready("minkunet")


# Every call of tritonclient's two clients (sync and aio) that has one answer, with its arguments and its outcome:
# SERVED or a status code. The calls go to the inference port of a server without shared memory.
SERVED = "served"
CALLS: dict[str, tuple[tuple[Any, ...], str]] = {
    "is_server_live": ((), SERVED),
    "is_server_ready": ((), SERVED),
    "is_model_ready": (("minkunet",), SERVED),
    "get_server_metadata": ((), SERVED),
    "get_model_metadata": (("minkunet",), SERVED),
    "get_model_config": (("minkunet",), SERVED),
    "get_model_repository_index": ((), SERVED),
    "get_inference_statistics": ((), SERVED),
    "load_model": (("minkunet",), "UNIMPLEMENTED"),
    "unload_model": (("minkunet",), "UNIMPLEMENTED"),
    "get_trace_settings": ((), "UNIMPLEMENTED"),
    "update_trace_settings": (("minkunet", {"trace_rate": "1"}), "UNIMPLEMENTED"),
    "get_log_settings": ((), "UNIMPLEMENTED"),
    "update_log_settings": (({"log_verbose_level": 1},), "UNIMPLEMENTED"),
    "get_system_shared_memory_status": ((), "UNIMPLEMENTED"),
    "register_system_shared_memory": (("region", "/voxserve-test", 16), "UNIMPLEMENTED"),
    "unregister_system_shared_memory": ((), "UNIMPLEMENTED"),
    "get_cuda_shared_memory_status": ((), "UNIMPLEMENTED"),
    "register_cuda_shared_memory": (("region", b"aGFuZGxl", 0, 16), "UNIMPLEMENTED"),
    "unregister_cuda_shared_memory": ((), "UNIMPLEMENTED"),
}
# The calls in OTHERS have tests of their own. Those in LOCAL send nothing.
OTHERS = {"infer", "async_infer", "start_stream", "stop_stream", "async_stream_infer", "stream_infer"}
LOCAL = {"close", "plugin", "register_plugin", "unregister_plugin"}


@pytest.mark.parametrize("module", [triton, aio], ids=["sync", "aio"])
def test_no_call_is_forgotten(module: Any) -> None:
    calls = {name for name in dir(module.InferenceServerClient) if not name.startswith("_")}
    assert calls - OTHERS - LOCAL == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_every_call_is_answered_as_the_table_says(client: Any, name: str) -> None:
    arguments, expected = CALLS[name]
    if expected == SERVED:
        assert getattr(client, name)(*arguments)
    else:
        assert refusal_of(lambda: getattr(client, name)(*arguments))[0] == expected


@pytest.mark.parametrize("name", CALLS)
def test_every_asyncio_call_is_answered_as_the_table_says(server: Server, name: str) -> None:
    arguments, expected = CALLS[name]

    async def call() -> Any:
        async with aio.InferenceServerClient(server.address) as client:
            return await getattr(client, name)(*arguments)

    if expected == SERVED:
        assert asyncio.run(call())
    else:
        assert refusal_of(lambda: asyncio.run(call()))[0] == expected


def test_bad_inputs_are_refused(client: Any, points: np.ndarray) -> None:
    def refused(values: np.ndarray, datatype: str, name: str = "points") -> tuple[str, str]:
        made = triton.InferInput(name, list(values.shape), datatype)
        made.set_data_from_numpy(values)
        return refusal_of(lambda: client.infer("minkunet", [made]))

    bad = "INVALID_ARGUMENT"
    assert refused(points.astype(np.float64), "FP64") == (bad, '"points" has datatype "FP64", must be FP32 or FP16')
    assert refused(points[:, :3].copy(), "FP32") == (
        bad,
        f'"points" has shape [{len(points)}, 3], model "minkunet" takes [N, 4]: x, y, z, intensity',
    )
    assert refused(points, "FP32", "cloud") == (bad, 'there is no input "cloud"; a model takes one, "points"')
    short = input_of(points)
    short.set_shape([len(points) + 1, 4])
    code, text = refusal_of(lambda: client.infer("minkunet", [short]))
    assert code == bad
    assert f"takes {(len(points) + 1) * 16} bytes, raw_input_contents has {len(points) * 16}" in text
    assert refusal_of(lambda: client.infer("minkunet", [])) == (
        bad,
        'the request has no input; a model takes one, "points"',
    )


def test_bad_requests_are_refused(client: Any, points: np.ndarray) -> None:
    def refused(model: str = "minkunet", **arguments: object) -> tuple[str, str]:
        return refusal_of(lambda: client.infer(model, [input_of(points)], **arguments))

    bad = "INVALID_ARGUMENT"
    code, text = refused("nobody")
    assert code == "NOT_FOUND"
    assert "minkunet" in text
    assert refused(model_version="7")[0] == "NOT_FOUND"
    assert refused(model_version="x") == (bad, 'the model\'s version is "x", must be a whole number from 1, or empty')
    assert refused(outputs=[triton.InferRequestedOutput("boxes")]) == (
        bad,
        'model "minkunet" has no output "boxes"; it has labels, scores',
    )
    assert refused(outputs=[triton.InferRequestedOutput("labels", class_count=3)]) == (
        bad,
        'parameter "classification" of the output "labels" is not served: labels are class ids already',
    )
    assert refused(sequence_id=5, sequence_start=True)[1].endswith("use voxserve.v1 InferStream for sweeps")
    assert refused(parameters={"colour": "red"}) == (
        bad,
        'parameter "colour" is not served: the parameters are priority and timeout',
    )
    assert refused(priority=5) == (bad, 'priority is 4; model "minkunet" has 1 levels, from 0')
    assert refused(timeout=1)[0] == "DEADLINE_EXCEEDED"
    assert refused(compression_algorithm="gzip")[0] == "UNIMPLEMENTED"


def test_shared_memory_is_off_by_default(client: Any, points: np.ndarray) -> None:
    made = triton.InferInput("points", list(points.shape), "FP32")
    made.set_shared_memory("region", points.nbytes)
    text = "shared memory is off on this server; --shared_memory_prefix allows it"
    assert refusal_of(lambda: client.infer("minkunet", [made])) == ("INVALID_ARGUMENT", text)
    output = triton.InferRequestedOutput("labels")
    output.set_shared_memory("region", 4)
    assert refusal_of(lambda: client.infer("minkunet", [input_of(points)], outputs=[output]))[1] == text
    assert refusal_of(lambda: client.register_system_shared_memory("region", "/key", 16)) == ("UNIMPLEMENTED", text)


def test_tokens_hold(token_server: Server, authority: Authority, points: np.ndarray) -> None:
    with triton.InferenceServerClient(
        token_server.address, ssl=True, root_certificates=str(authority.certificate)
    ) as client:

        def infer(token: str) -> Any:
            return client.infer("minkunet", [input_of(points)], headers=bearer(token), client_timeout=TIMEOUT)

        assert client.is_server_live()
        assert client.is_server_ready()
        assert refusal_of(client.get_server_metadata)[0] == "UNAUTHENTICATED"
        assert refusal_of(lambda: client.infer("minkunet", [input_of(points)]))[0] == "UNAUTHENTICATED"
        assert len(infer(TRUCK).as_numpy("labels")) == len(points)
        for token in (OPERATOR, OTHER):
            assert refusal_of(lambda token=token: infer(token))[0] == "PERMISSION_DENIED"
        assert client.is_model_ready("minkunet", headers=bearer(OPERATOR))
        assert refusal_of(lambda: client.is_model_ready("minkunet", headers=bearer(OTHER)))[0] == "PERMISSION_DENIED"
        assert refusal_of(lambda: client.get_model_metadata("x", headers=bearer(TRUCK)))[0] == "PERMISSION_DENIED"
