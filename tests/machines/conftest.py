"""Fixtures of the tests with many machines, and the table of faults that they print at the end.

    PYTHONPATH=tests VOXSERVE_BINARY=build/dev/server/voxserve build/venv/bin/python -m pytest -q tests/machines

They need root, iproute2 and HAProxy, and are skipped without.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from cluster import Cluster
from namespaces import why_not
from recorded import record, recorded

_HEAD = (
    "| what was done | balanced by | client | calls, frames: answered | lost, twice, wrong | errors | superseded "
    "| streams reopened | slowest call | longest gap of a stream |\n|---|---|---|--:|--:|---|--:|--:|--:|--:|"
)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if rows := recorded(terminalreporter, "fault"):
        terminalreporter.section("faults")
        for line in (_HEAD, *rows):
            terminalreporter.write_line(line)


def add_row(
    request: pytest.FixtureRequest, fault: str, balancer: str, client: str, summary: dict[str, dict[str, Any]]
) -> None:
    """Adds a client's calls and frames to the table."""
    calls, streams = summary["calls"], [part for name, part in summary.items() if name != "calls"]
    every = [calls, *streams]
    errors: Counter[str] = Counter()
    for part in every:
        errors.update({reason: count for reason, count in part["errors"].items() if reason != "SUPERSEDED"})
    bad = ", ".join(str(sum(part[key] for part in every)) for key in ("lost", "twice", "wrong"))
    cells = [
        fault,
        balancer,
        client,
        f"{calls['answered']} of {calls['sent']}, {sum(part['answered'] for part in streams)} of "
        f"{sum(part['sent'] for part in streams)}",
        bad,
        ", ".join(f"{reason} {count}" for reason, count in errors.items()) or "none",
        str(sum(part["errors"].get("SUPERSEDED", 0) for part in streams)),
        str(sum(part["reopened"] for part in streams)),
        f"{calls['longest_s']:.1f} s",
        f"{max(part['gap_s'] for part in streams):.1f} s",
    ]
    record(request, "fault", f"| {' | '.join(cells)} |")


@pytest.fixture(scope="session")
def binary() -> str:
    path = os.environ.get("VOXSERVE_BINARY")
    if not path:
        pytest.skip("VOXSERVE_BINARY does not name the server's binary; tests/run.sh sets it")
    reason = why_not()
    if reason:
        pytest.skip(reason)
    return path


@pytest.fixture(scope="session")
def haproxy() -> None:
    if shutil.which("haproxy") is None:
        pytest.skip("haproxy is not installed (apt-get install haproxy)")


@pytest.fixture(scope="module")
def make_cluster(binary: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Cluster]]:
    """make_cluster(proxied=..., flags=...) starts servers (three by default), each on a machine of its own."""
    with ExitStack() as stack:
        yield lambda **options: Cluster(stack, tmp_path_factory.mktemp("cluster"), binary, **options)
