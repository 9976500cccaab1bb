"""Tests that echo_server_bench, the yardstick of the serving benchmarks, answers."""

import os
import pathlib
import re
import subprocess

import numpy as np
import pytest
import voxserve


@pytest.fixture
def echo_address():
    server = pathlib.Path(os.environ["VOXSERVE_BINARY"])
    binary = server.parents[1] / "tests" / "bench" / "echo_server_bench"
    with subprocess.Popen([binary, "--port", "0"], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield re.fullmatch(r"listening on (\S+)\n", process.stdout.readline())[1]
        finally:
            process.terminate()
            assert process.wait(20) == 0


def test_every_point_gets_a_label(echo_address):
    points = np.zeros((120_000, 4), np.float32)
    with voxserve.Client(echo_address) as client:
        for _ in range(3):
            assert len(client.infer("any", points, timeout=20).labels) == len(points)
