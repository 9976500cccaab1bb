"""Tests that echo_server_bench, the yardstick of the serving benchmarks, answers."""

import os
import pathlib
import re
import subprocess

import grpc
import numpy as np
import pytest
import voxserve
from voxserve import wire


@pytest.fixture
def echo_address():
    server = os.environ.get("VOXSERVE_BINARY")
    if not server:
        pytest.skip("VOXSERVE_BINARY names no build; tests/run.sh sets it")
    binary = pathlib.Path(server).parents[1] / "tests" / "bench" / "echo_server_bench"
    with subprocess.Popen([binary, "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield re.fullmatch(r"listening on (\S+)\n", process.stdout.readline())[1]
        finally:
            process.terminate()
            assert process.wait(20) == 0


def test_every_point_gets_label_zero(echo_address):
    with voxserve.Client(echo_address) as client:
        for num_points in (120_000, 1):
            result = client.infer("any", np.zeros((num_points, 4), np.float32), timeout=20, request_id=f"of {num_points}")
            assert (result.model, result.version, result.request_id) == ("any", 1, f"of {num_points}")
            np.testing.assert_array_equal(result.labels, np.zeros(num_points, np.uint8))


def test_a_cloud_that_fits_no_message_is_refused(echo_address):
    request = wire.InferRequest(model="any")
    request.cloud.num_points = 1 << 40
    with grpc.insecure_channel(echo_address) as channel:
        infer = channel.unary_unary("/voxserve.v1.InferenceService/Infer")
        with pytest.raises(grpc.RpcError) as refused:
            infer(request.SerializeToString(), timeout=20)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == f"{1 << 40} points do not fit a message"
