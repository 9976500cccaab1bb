"""Tests that clients get exactly one answer, the right one, for every call and frame while a machine fails under load.

The clients (Python's and C++'s) each have a caller, and streams of the policies "queue" and "latest". They balance
over the servers themselves, or go through HAProxy. The server with the most streams is the one that fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from cluster import PYTHON_CLIENT, Cluster, Server, cpp_client
from conftest import add_row
from long_tests import LONG

RATE = 5.0  # calls a second of the caller, and frames a second of each stream
KEEPALIVE = 2.0  # seconds, the shortest that clients may have
BEFORE, DURING, AFTER = 1.5, 6.0, 2.0  # seconds of load


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, make_cluster: Callable[..., Cluster]) -> Cluster:
    if request.param == "haproxy":
        request.getfixturevalue("haproxy")
    return make_cluster(proxied=request.param == "haproxy")


def balanced_by(*short: str) -> pytest.MarkDecorator:
    """The test runs with clients that balance themselves ("client") and with "haproxy". Those not named are long."""
    balancers = [pytest.param(name, marks=() if name in short else LONG) for name in ("client", "haproxy")]
    return pytest.mark.parametrize("cluster", balancers, indirect=True)


@contextmanager
def load(cluster: Cluster, fault: str, request: pytest.FixtureRequest) -> Iterator[Server]:
    """Both clients send requests while the body runs. The body gets the server that it is to make fail. Then checks the
    clients' outcomes.
    """
    programs = {"Python": PYTHON_CLIENT, "C++": cpp_client()}
    with ExitStack() as stack:
        clients = {}
        for name, program in programs.items():
            number = len(cluster.network.machines)
            clients[name] = cluster.add_client(f"client{number}", program, RATE, KEEPALIVE)
            stack.callback(clients[name].close)
        time.sleep(BEFORE)
        victim = max(cluster.servers, key=lambda server: server.open_streams())
        assert victim.open_streams() > 0
        yield victim
        time.sleep(AFTER)
        summaries = {name: client.stop() for name, client in clients.items()}
    balancer = "HAProxy" if "haproxy" in request.node.name else "the client"
    for name, summary in summaries.items():
        add_row(request, fault, balancer, name, summary)
    for name, summary in summaries.items():
        print(name, summary, clients[name].log()[-3000:])
        for kind, part in summary.items():
            where = f"{name}, {kind}: {part}"
            assert part["sent"] >= 5, where
            assert part["lost"] == part["twice"] == part["wrong"] == part["refused"] == 0, where
            superseded = part["errors"].pop("SUPERSEDED", 0) if kind.startswith("latest") else 0
            assert part["errors"] == {}, where
            assert part["answered"] + superseded == part["sent"], where


def answered(cluster: Cluster) -> list[int]:
    return [server.answered() for server in cluster.servers]


@balanced_by("client", "haproxy")
def test_nothing_fails(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    before = answered(cluster)
    with load(cluster, "nothing", request):
        time.sleep(1)
    each = [after - old for after, old in zip(answered(cluster), before, strict=True)]
    assert all(each), f"every server has a part: {each}"


@balanced_by("client")
def test_one_is_killed(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    with load(cluster, "SIGKILL, started again after 3 s", request) as victim:
        victim.kill()
        time.sleep(DURING / 2)
        victim.start()
        victim.await_ready()


@balanced_by()
def test_the_link_of_one_is_taken_down(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    with load(cluster, f"link down for {DURING:g} s", request) as victim:
        victim.machine.take_link_down()
        time.sleep(DURING)
        victim.machine.bring_link_up()


@balanced_by("haproxy")
def test_a_silent_switch_drops_all_frames_of_one(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    with load(cluster, f"every frame to and from it dropped for {DURING:g} s", request) as victim:
        victim.machine.drop_frames(True)
        time.sleep(DURING)
        victim.machine.drop_frames(False)


@balanced_by()
def test_a_bad_switch_drops_a_third_of_the_time(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    with load(cluster, f"every frame dropped for 0.1 s of each 0.3 s, {DURING:g} s long", request) as victim:
        end = time.monotonic() + DURING
        while time.monotonic() < end:
            victim.machine.drop_frames(True)
            time.sleep(0.1)
            victim.machine.drop_frames(False)
            time.sleep(0.2)


@balanced_by()
def test_the_link_of_one_is_slow(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    with load(cluster, f"link of 400 kbit/s for {DURING:g} s", request) as victim:
        victim.machine.limit_rate(400)
        time.sleep(DURING)
        victim.machine.limit_rate(None)


@balanced_by()
def test_one_process_is_frozen(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    with load(cluster, f"SIGSTOP, SIGCONT after {DURING:g} s", request) as victim:
        victim.freeze()
        time.sleep(DURING)
        victim.thaw()


@balanced_by()
def test_all_are_restarted_in_turn(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    statuses: list[Any] = []
    with load(cluster, "SIGTERM and a new start, one server after the other", request):
        for server in cluster.servers:
            statuses.append(server.terminate())
            server.start()
            server.await_ready()
            time.sleep(2)  # an operator waits until the balancer has seen it
    assert statuses == [0, 0, 0]
