"""Checks the arithmetic of deploy/FLEETS.md, and that it counts with the number that README.md names too: the one of
tests/bench/results/CURRENT.md.
"""

from __future__ import annotations

import math
import re

import pytest
from conftest import DEPLOY, ROOT

PAGE = (DEPLOY / "FLEETS.md").read_text(encoding="utf-8")
CURRENT = (ROOT / "tests/bench/results/CURRENT.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
ZONES, HERTZ, POINTS = 3, 10, 124_668


def cells(line: str) -> list[str]:
    return [cell.strip().replace("*", "") for cell in line.split("|")[1:-1]]


def measured(*first: str) -> list[str]:
    """Returns the row of CURRENT.md's section about serving that begins with these cells."""
    section = CURRENT.split("\n## Served over gRPC\n")[1].split("\n## ")[0]
    found = [cells(line) for line in section.splitlines() if cells(line)[: len(first)] == list(first)]
    assert found, first
    return found[0]


def number(text: str) -> float:
    return float(text.replace(",", ""))


def capacity() -> float:
    """Returns the scans per second that 16 clients got of one GPU."""
    return number(measured("1", "16")[2])


def row(name: str) -> list[str]:
    found = re.search(rf"^\| \**{re.escape(name)}\** \| (.*) \|$", PAGE, re.MULTILINE)
    assert found, name
    return [cell.strip().replace("*", "") for cell in found[1].split("|")]


def test_the_measured_rows_are_the_current_ones() -> None:
    assert row("capacity C of a GPU: scans a second, 16 clients that wait") == [f"{capacity():,.0f}"]
    for vehicles, name in (("80", "80 vehicles at 10 Hz ({}): p50, p99 frame age"), ("88", "88 vehicles ({})")):
        p50, p99 = measured("1", vehicles)[4:]
        assert row(name.format(f"{int(vehicles) * HERTZ / capacity():.0%} of C")) == [f"{p50}, {p99} ms"]
    p50, p99 = measured("4", "400")[4:]
    (four,) = re.findall(r"which answered ([\d,.]+) scans/s", CURRENT)
    assert row(f"400 vehicles on four GPUs ({400 * HERTZ / number(four):.0%} of what those answered)") == [
        f"{p50}, {p99} ms"
    ]
    assert row("two GPUs of one host; four") == [f"{measured('2', '32')[3]} times one; {measured('4', '64')[3]}"]
    overload = measured("overload: twice the capacity, deadlines of 50 ms, answered in time")[1]
    (answered,) = row("twice the capacity, Poisson arrivals, deadlines of 50 ms: answered in time")
    assert overload.startswith(answered)


def test_readme_counts_with_the_same_numbers() -> None:
    (served,) = [line for line in README.splitlines() if line.startswith("| served over gRPC")]
    rates = [f"{number(measured(*gpus)[2]):,.0f}" for gpus in (("1", "16"), ("2", "32"), ("4", "64"))]
    assert f"16 clients: {rates[0]} scans/s; two GPUs, 32 clients: {rates[1]}; four, 64: {rates[2]}" in served
    assert cells(served)[3:5] == [f"{ms} ms" for ms in measured("1", "16")[4:]]


@pytest.mark.parametrize(("column", "vehicles"), list(enumerate((1_000, 100_000))))
def test_the_result_follows_from_the_formula(column: int, vehicles: int) -> None:
    load, rate = vehicles * HERTZ, capacity()
    most_daily, most_degraded = math.floor(0.7 * rate / HERTZ), math.floor(0.9 * rate / HERTZ)
    assert f"Z = {ZONES} zones, C = {rate:,.0f}, so v = {most_daily} and w = {most_degraded}:" in PAGE
    daily = math.ceil(vehicles / most_daily)
    degraded = math.ceil(vehicles / most_degraded)
    total = max(daily, vehicles / most_degraded * ZONES / (ZONES - 1))
    total = math.ceil(total / ZONES) * ZONES
    left = total * (ZONES - 1) // ZONES
    hosts = math.ceil(total / ZONES / 8) * ZONES
    scan, answer = POINTS * 16, POINTS
    assert row("load, scans/s")[column] == f"{load:,}"
    assert row("GPUs while all zones run")[column] == f"{daily:,}"
    assert row("GPUs that the other zones need if one fails")[column] == f"{degraded:,}"
    assert row("GPUs in all")[column] == f"{total:,}"
    assert row("hosts of 8 GPUs, as many in each zone")[column] == f"{hosts:,}"
    daily_share, left_share = math.ceil(vehicles / total), math.ceil(vehicles / left)
    assert row("vehicles of a GPU: all zones run; one has failed")[column] == f"{daily_share}; {left_share}"
    assert daily_share * HERTZ <= 0.7 * rate
    assert left_share * HERTZ <= 0.9 * rate
    up, down = load * scan * 8 / 1e9, load * answer * 8 / 1e9
    amount = f"{up:.0f} Gb/s" if up < 1000 else f"{up / 1000:.1f} Tb/s"
    assert (
        row("uplink of the fleet; of a GPU while a zone has failed")[column]
        == f"{amount}; {load / left * scan * 8 / 1e9:.1f} Gb/s"
    )
    assert row("downlink of the fleet")[column] == (f"{down:.1f} Gb/s" if down < 100 else f"{down:.0f} Gb/s")
    assert (
        row("uplink and downlink of a vehicle")[0]
        == f"{HERTZ * scan * 8 / 1e6:.0f} Mb/s; {HERTZ * answer * 8 / 1e6:.1f} Mb/s"
    )
    if column == 1:  # What the tables below count with.
        assert f"1 of {row('GPUs in all')[0]} GPUs" in PAGE
        assert f"{8 * daily_share} vehicles (8 GPUs of {daily_share}) | at {total:,} GPUs {8 / total:.1%}" in PAGE
        assert f"{total:,} addresses" in PAGE
        assert f"{total:,} GPUs are then {math.ceil(total / 100)} clusters" in PAGE
