"""Checks the arithmetic of deploy/FLEETS.md against the measured numbers that it cites."""

from __future__ import annotations

import math
import re

import pytest
from conftest import DEPLOY, ROOT

PAGE = (DEPLOY / "FLEETS.md").read_text(encoding="utf-8")
RESULTS = (ROOT / "tests/bench/results/2026-11-21-h200-serving.md").read_text(encoding="utf-8")
ZONES, HERTZ, POINTS = 3, 10, 124_668


def capacity() -> float:
    """Returns the scans per second that 16 clients got, from the table that the page cites."""
    section = RESULTS.split("## 2026-11-23, rooms and bricks")[1]
    (row,) = re.findall(r"^\| 16 \|.*$", section.split("Poisson")[0], re.MULTILINE)
    return float(row.split("|")[5])


def row(name: str) -> list[str]:
    found = re.search(rf"^\| \**{re.escape(name)}\** \| (.*) \|$", PAGE, re.MULTILINE)
    assert found, name
    return [cell.strip().replace("*", "") for cell in found[1].split("|")]


def test_the_measured_rows_are_in_the_results() -> None:
    assert row("capacity C of a GPU: scans a second, 16 clients that wait") == [f"{capacity():.0f}"]
    for vehicles, p50, p99 in (("72", "3.52", "3.78"), ("88", "5.9", "8.08"), ("96", "9.8", "17.5")):
        assert re.search(rf"^\| {vehicles} \| \d+ \| \d+ \| 0 \| {p50} \| {p99} \|$", RESULTS, re.MULTILINE)
        share = int(vehicles) * HERTZ / capacity()
        assert re.search(
            rf"^\| {vehicles} vehicles .*\({share:.0%} of C\).* \| {p50}, {p99} ms \|$", PAGE, re.MULTILINE
        )


@pytest.mark.parametrize(("column", "vehicles"), list(enumerate((1_000, 100_000))))
def test_the_result_follows_from_the_formula(column: int, vehicles: int) -> None:
    load, rate = vehicles * HERTZ, capacity()
    daily = math.ceil(load / (0.7 * rate))
    degraded = math.ceil(load / (0.9 * rate))
    total = max(daily, load / (0.9 * rate) * ZONES / (ZONES - 1))
    total = math.ceil(total / ZONES) * ZONES
    left = total * (ZONES - 1) // ZONES
    hosts = math.ceil(total / ZONES / 8) * ZONES
    scan, answer = POINTS * 16, POINTS
    assert row("load, scans/s")[column] == f"{load:,}"
    assert row("GPUs for every day")[column] == f"{daily:,}"
    assert row("GPUs with a zone gone, in the others")[column] == f"{degraded:,}"
    assert row("GPUs in all")[column] == f"{total:,}"
    assert row("hosts of 8 GPUs, each zone alike")[column] == f"{hosts:,}"
    daily_share, left_share = math.ceil(vehicles / total), math.ceil(vehicles / left)
    assert row("vehicles of a GPU, every day; a zone gone")[column] == f"{daily_share}; {left_share}"
    assert left_share * HERTZ <= 0.9 * rate
    up, down = load * scan * 8 / 1e9, load * answer * 8 / 1e9
    amount = f"{up:.0f} Gb/s" if up < 1000 else f"{up / 1000:.1f} Tb/s"
    assert row("up: all; a GPU with a zone gone")[column] == f"{amount}; {load / left * scan * 8 / 1e9:.1f} Gb/s"
    assert row("down: all")[column] == (f"{down:.1f} Gb/s" if down < 100 else f"{down:.0f} Gb/s")
    assert row("a vehicle: up; down")[0] == f"{HERTZ * scan * 8 / 1e6:.0f} Mb/s; {HERTZ * answer * 8 / 1e6:.1f} Mb/s"
