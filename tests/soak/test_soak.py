"""Runs a short soak, which has all parts of a long one, and tests the code that judges a soak."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import grpc
import numpy as np
import pytest
from attack_process import MAIN_COUNTS
from long_tests import LONG

import soak
from attackers import ATTACKS, OF_TLS
from flatness import trend_of
from picture import Panel, draw
from report import Limits, growths
from samples import COLUMNS
from soak import Options, main
from tally import Tally
from voxserve import errors

SOME_ATTACKS = ("garbage", "rapid reset", "unread answers", "silent connections", "half-sent bodies")
# A server takes most of its memory in its first minutes. So a short soak finds only floods; long soaks find leaks.
SHORT_LIMITS = Limits(rss_mib=512, device_mib=512)


@pytest.mark.alone
@pytest.mark.parametrize(("seconds", "least_attacks"), [(12, 1), pytest.param(25, 3, marks=LONG)])
def test_a_short_soak(tmp_path: Path, seconds: int, least_attacks: int) -> None:
    binary = os.environ.get("VOXSERVE_BINARY")
    if not binary:
        pytest.skip("VOXSERVE_BINARY does not name the server's binary; tests/run.sh sets it")
    outcome = soak.soak(
        Options(seconds, tmp_path, binary, rate=8, interval=0.25, attacks=SOME_ATTACKS, limits=SHORT_LIMITS)
    )
    print(outcome.text)
    assert outcome.problems == []
    plain, guarded = outcome.subjects
    assert plain.tally.outcomes["equal"] + plain.tally.outcomes["close"] >= seconds
    assert guarded.tally.outcomes["equal"] >= 5
    assert guarded.tally.outcomes["close"] == 0, "a server with --deterministic always answers alike"
    for done in ("reloads", "loads", "unloads", "calls cancelled"):
        assert plain.tally.done[done] >= 1, done
    for done in ("changes of certificates", "changes of tokens"):
        assert guarded.tally.done[done] >= 1, done
    assert sum(outcome.attackers.made.values()) >= least_attacks
    rows = (tmp_path / "soak.csv").read_text().splitlines()
    assert rows[0].split(",") == COLUMNS
    assert len(rows) > seconds
    assert ElementTree.parse(tmp_path / "soak.svg").getroot().findall("{*}polyline")
    assert (tmp_path / "soak.md").read_text().strip() == outcome.text


# ---- growth

TIMES = np.arange(0, 3600, 5.0)


def noise(size: float) -> np.ndarray:
    return np.random.default_rng(1).normal(0, size, len(TIMES))


def test_a_flat_series_does_not_grow() -> None:
    values = 500 + noise(3)
    values[(TIMES > 900) & (TIMES < 1100)] += 400  # an attack
    trend = trend_of(TIMES, values, 300)
    assert trend.growth < 1
    assert trend.most > 890


def test_a_warm_up_is_no_growth() -> None:
    assert trend_of(TIMES, np.where(TIMES < 300, 100, 500) + noise(3), 300).growth < 1


@pytest.mark.parametrize(
    "values",
    [
        500 + TIMES / 60 + noise(3),  # a leak of 1 MiB a minute
        np.where(TIMES < 3000, 500, 560) + noise(3),  # a step, late
        np.where(TIMES < 1300, 500, 560) + noise(3),  # a step, early
    ],
)
def test_growth_is_found(values: np.ndarray) -> None:
    found = {"rss_mib": trend_of(TIMES, values, 300)}
    assert found["rss_mib"].growth > 32
    [problem] = growths(found, Limits(), "open")
    assert problem.startswith("open: resident memory grew by")
    assert growths(found, Limits(rss_mib=100), "open") == []


def test_one_more_descriptor_a_minute_is_found() -> None:
    assert trend_of(TIMES, 40 + TIMES // 60, 300).growth > Limits().descriptors


def test_samples_that_are_missing_are_passed_over() -> None:
    values = np.where(np.arange(len(TIMES)) % 3 == 0, np.nan, 40.0)
    trend = trend_of(TIMES, values, 300)
    assert (trend.first, trend.last, trend.slope, trend.most) == (40, 40, 0, 40)


def test_too_few_samples_say_nothing() -> None:
    with pytest.raises(ValueError, match="5 samples after the warm-up; 6 are needed"):
        trend_of(range(10), [1] * 10, 5)


# ---- outcomes

LABELS = np.zeros(1000, np.uint8)


def with_others(number: int) -> np.ndarray:
    labels = LABELS.copy()
    labels[:number] = 1
    return labels


def refusal(reason: str, code: grpc.StatusCode = grpc.StatusCode.RESOURCE_EXHAUSTED) -> errors.InferenceError:
    return errors.make(code, "it was refused", reason)


@pytest.mark.parametrize(
    ("labels", "outcome", "is_problem", "is_problem_where_exact"),
    [
        (LABELS, "equal", False, False),
        (with_others(20), "close", False, True),
        (with_others(21), "wrong", True, True),
        (LABELS[:-1], "wrong", True, True),
    ],
)
def test_a_wrong_answer_is_found(
    labels: np.ndarray, outcome: str, is_problem: bool, is_problem_where_exact: bool
) -> None:
    for exact, expected in ((False, is_problem), (True, is_problem_where_exact)):
        tally = Tally(exact=exact)
        tally.answer(labels, LABELS, 0.1)
        assert tally.outcomes == {outcome: 1}
        assert bool(tally.problems) == expected
        assert tally.take_recent() == [0.1]
        assert tally.take_recent() == []


def test_a_refusal_is_a_problem_unless_it_is_allowed() -> None:
    tally = Tally(frozenset({"OUT_OF_MEMORY"}))
    tally.refuse(refusal("OUT_OF_MEMORY"), 2)
    assert not tally.problems
    tally.refuse(refusal("QUEUE_FULL"))
    assert tally.problems == {"refused: it was refused [QUEUE_FULL]": 1}
    assert tally.num_refused() == 3
    tally.refuse(refusal("STREAM_IDLE"), 0)
    assert tally.problems["refused: it was refused [STREAM_IDLE]"] == 1, "a stream that ended while no frame waited"
    assert tally.num_refused() == 3
    tally.lose("a frame", 0)
    assert len(tally.problems) == 2
    tally.lose("a frame", 2)
    assert tally.problems["a frame got no result"] == 2


def test_counts_that_differ_are_found() -> None:
    tally = Tally()
    tally.answer(LABELS, LABELS, 0.1)
    tally.answer(LABELS, LABELS, 0.1)
    tally.refuse(refusal("SUPERSEDED", grpc.StatusCode.ABORTED))  # the client replaced this frame before it was sent
    name = 'voxserve_requests_total{{code="{}",model="{}",version="1"}}'.format
    metrics = {name("OK", "fleet"): 2.0, name("OK", "minkunet"): 5.0, name("CANCELLED", "fleet"): 0.0}
    assert tally.unequal_counts(metrics, "fleet") == []
    metrics[name("OK", "fleet")] = 3
    metrics[name("INTERNAL", "fleet")] = 1
    assert sorted(tally.unequal_counts(metrics, "fleet")) == [
        "INTERNAL: the clients count 0, the server 1",
        "OK: the clients count 2, the server 3",
    ]


# ---- the rest


def test_the_picture_leaves_out_what_has_no_numbers() -> None:
    points = [(60.0 * i, float(i % 7)) for i in range(1000)]
    points[3] = (180.0, float("nan"))
    panels = [Panel("a < b", {"open": points}), Panel("nothing", {"open": [(0.0, float("nan"))]})]
    root = ElementTree.fromstring(draw("title", panels, [(600, 1200)]))
    texts = [text.text for text in root.findall("{*}text")]
    assert "a < b" in texts
    assert "nothing" not in texts
    [line] = root.findall("{*}polyline")
    assert 150 < len(line.attrib["points"].split()) <= 240
    assert "nan" not in line.attrib["points"]
    assert root.findall("{*}path")[0].attrib["d"].count("M") == 1


def test_every_attack_can_be_judged() -> None:
    assert {name for name, _ in ATTACKS.values()} <= set(MAIN_COUNTS)
    assert set(OF_TLS) <= set(ATTACKS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "0"], "0 is not a number above 0"),
        (["--minutes", "inf"], "inf is not a number above 0"),
        (["--server", "/nothing/there"], "there is no server '/nothing/there'"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
    ],
)
def test_arguments_that_cannot_be(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as error:
        main(["--out", str(tmp_path), *arguments])
    assert error.value.code == 2
    assert message in capsys.readouterr().err
