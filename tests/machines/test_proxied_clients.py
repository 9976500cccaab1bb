"""Tests that clients behind HAProxy have limits of their own if HAProxy names them to the server (PROXY protocol), and
count as one client if it does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import MODEL, SCAN, Cluster
from namespaces import Machine

_OPENER = Path(__file__).with_name("stream_opener.py")


@contextmanager
def streams(cluster: Cluster, machine: Machine, number: int) -> Iterator[list[str]]:
    """Opens `number` streams from a machine, and yields their outcomes as stream_opener.py prints them. The streams
    stay open until the block ends.
    """
    command: list[str | Path] = [sys.executable, _OPENER, cluster.address, MODEL, str(SCAN), str(number)]
    with machine.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the client ended without a word"
        yield json.loads(line)
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.usefixtures("haproxy")
@pytest.mark.parametrize("names_clients", [True, False], ids=["with-proxy-protocol", "without"])
def test_each_client_has_its_limits(make_cluster: Callable[..., Cluster], names_clients: bool) -> None:
    flags = ["--max_client_streams=2"]
    cluster = make_cluster(proxied=True, names_clients=names_clients, num_servers=1, flags=flags)
    first, second = (cluster.network.add(name) for name in ("truck1", "truck2"))
    with streams(cluster, first, 3) as outcomes:
        assert outcomes == ["OK", "OK", "CLIENT_LIMIT"]
        with streams(cluster, second, 1) as others:
            assert others == (["OK"] if names_clients else ["CLIENT_LIMIT"])
    log = cluster.servers[0].log()
    refused = [line for line in log.splitlines() if "CLIENT_LIMIT" in line]
    seen = first.address if names_clients else cluster.address.partition(":")[0]
    assert refused
    assert all(f"{seen}:" in line for line in refused), refused
