"""Tests every alert rule with promtool on made-up series: the rule must fire on a faulty server's series and stay
silent on a healthy server's.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import DEPLOY, metrics_in, tool

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (deploy/install.sh python)")

RULES = DEPLOY / "prometheus" / "alerts.yaml"
MODEL = 'job="voxserve",instance="a:8080",model="m"'


class Case(NamedTuple):
    """The series on which one rule fires and those on which it does not, in promtool's notation: `0+60x30` begins at 0
    and grows by 60 a minute, 30 times. The rule is evaluated at the time `at`.
    """

    fires: dict[str, str]
    silent: dict[str, str]
    at: str = "30m"


def slow_share(metric: str, bound: str, slow: str, total: str, more: str = "") -> dict[str, str]:
    """Returns the buckets of a histogram that gets `total` values a minute. `slow` of them lie between `bound` and 10
    seconds, the others below `bound`.
    """
    under = int(total) - int(slow)
    labels = f"{MODEL}{more}"
    return {
        f'{metric}_bucket{{{labels},le="{bound}"}}': f"0+{under}x60",
        f'{metric}_bucket{{{labels},le="10"}}': f"0+{total}x60",
        f'{metric}_bucket{{{labels},le="+Inf"}}': f"0+{total}x60",
    }


def drops(reason: str, dropped: int) -> dict[str, str]:
    return {
        f"voxserve_frames_total{{{MODEL}}}": "0+600x60",
        f'voxserve_frames_dropped_total{{{MODEL},reason="{reason}"}}': f"0+{dropped}x60",
    }


def rate_of(metric: str, a_minute: int, labels: str = MODEL) -> dict[str, str]:
    return {f"{metric}{{{labels}}}": f"0+{a_minute}x60"}


QUEUE = ("voxserve_stage_duration_seconds", "0.05")
CASES = {
    "VoxserveDown": Case({'up{job="voxserve",instance="a"}': "0x60"}, {'up{job="voxserve",instance="a"}': "1x60"}),
    "VoxserveModelNotReady": Case(
        {f'voxserve_model_ready{{{MODEL},version="1"}}': "0x60"},
        {f'voxserve_model_ready{{{MODEL},version="1"}}': "1x60"},
    ),
    "VoxserveErrors": Case(
        rate_of("voxserve_requests_total", 6, f'{MODEL},code="INTERNAL"'),
        rate_of("voxserve_requests_total", 6, f'{MODEL},code="INVALID_ARGUMENT"'),
    ),
    "VoxserveQueueSlow": Case(
        slow_share(*QUEUE, "20", "600", ',stage="queue"'), slow_share(*QUEUE, "20", "600", ',stage="features"')
    ),
    "VoxserveRefusals": Case(drops("unmeetable", 60), drops("unmeetable", 6)),
    "VoxserveSuperseded": Case(drops("superseded", 120), drops("superseded", 12)),
    "VoxserveFrameAgeHigh": Case(
        slow_share("voxserve_frame_age_seconds", "0.2", "20", "600"),
        slow_share("voxserve_frame_age_seconds", "0.2", "2", "600"),
    ),
    "VoxserveClocksDisagree": Case(
        rate_of("voxserve_frame_age_negative_total", 5), rate_of("voxserve_frame_age_negative_total", 0)
    ),
    # In the first case the counter was scraped once, and then the process ended. A rate over one sample would be empty.
    "VoxserveStuckBatch": Case(
        {f'voxserve_stuck_batches_total{{{MODEL},device="cuda:0"}}': "_x25 1 _x30"},
        {f'voxserve_stuck_batches_total{{{MODEL},device="cuda:0"}}': "1 _x60"},
    ),
    "VoxserveHostMemoryHigh": Case(
        {
            'voxserve_memory_bytes{instance="a",use="models"}': "500x60",
            'voxserve_memory_bytes{instance="a",use="scratch"}': "450x60",
            'voxserve_memory_limit_bytes{instance="a"}': "1000x60",
        },
        {
            'voxserve_memory_bytes{instance="a",use="models"}': "500x60",
            'voxserve_memory_limit_bytes{instance="a"}': "1000x60",
            'voxserve_memory_bytes{instance="no limit",use="models"}': "500x60",
            'voxserve_memory_limit_bytes{instance="no limit"}': "0x60",
        },
    ),
    "VoxserveGeometryOnCpu": Case(
        rate_of("voxserve_geometry_fallbacks_total", 3, 'instance="a"'),
        rate_of("voxserve_geometry_fallbacks_total", 0, 'instance="a"'),
    ),
    "VoxserveClientsLimited": Case(
        rate_of("voxserve_calls_ended_early_total", 120, 'instance="a",reason="CLIENT_LIMIT"'),
        rate_of("voxserve_calls_ended_early_total", 30, 'instance="a",reason="CLIENT_LIMIT"'),
    ),
    "VoxserveCertificateEnds": Case(
        {'voxserve_tls_not_after_timestamp_seconds{instance="a",flag="tls_certificate"}': "1209000x60"},
        {'voxserve_tls_not_after_timestamp_seconds{instance="a",flag="tls_certificate"}': "1299600x60"},
    ),
    "VoxserveNotFinite": Case(
        rate_of("voxserve_points_not_finite_total", 9), rate_of("voxserve_points_not_finite_total", 0)
    ),
    "VoxservePointsUnused": Case(
        {
            f'voxserve_points_total{{{MODEL},fate="used"}}': "0+700x60",
            f'voxserve_points_total{{{MODEL},fate="out_of_range"}}': "0+300x60",
        },
        {
            f'voxserve_points_total{{{MODEL},fate="used"}}': "0+700x60",
            # The client asked the server to sample points, so these are not lost.
            f'voxserve_points_total{{{MODEL},fate="unsampled"}}': "0+300x60",
        },
    ),
    "VoxservePredictionsWrong": Case(
        slow_share("voxserve_latency_prediction_error_ratio", "0.5", "60", "100"),
        slow_share("voxserve_latency_prediction_error_ratio", "0.5", "10", "100"),
    ),
    "VoxserveUntunedPlan": Case(
        {f'voxserve_plan_info{{{MODEL},device="cuda:0",source="default"}}': "1x1600"},
        {f'voxserve_plan_info{{{MODEL},device="cpu",source="default"}}': "1x1600"},
        at="25h",
    ),
}


def rules() -> dict[str, dict[str, object]]:
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_every_rule_has_a_case() -> None:
    assert set(rules()) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_rule_has_a_line_of_advice_and_metrics_that_exist(name: str, metric_names: set[str]) -> None:
    rule = rules()[name]
    assert metrics_in(str(rule["expr"])) <= metric_names
    notes = rule["annotations"]
    assert isinstance(notes, dict)
    for text in (notes["summary"], notes["advice"]):
        assert "\n" not in text
        assert 20 < len(text) < 200
    assert rule["labels"] in ({"severity": "page"}, {"severity": "ticket"})


def test_flags_in_advice_exist(flags: set[str]) -> None:
    named = set(re.findall(r"--\w+", RULES.read_text(encoding="utf-8")))
    assert len(named) > 3
    assert named - flags - {"--model"} == set(), "--model is voxserve-client's"


def test_prometheus_accepts_the_rules() -> None:
    checked = subprocess.run(
        [tool("promtool", "apt-get install prometheus"), "check", "config", DEPLOY / "prometheus" / "prometheus.yaml"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(CASES)} rules found" in checked.stdout


@pytest.mark.parametrize("kind", ["fires", "silent"])
@pytest.mark.parametrize("name", CASES)
def test_rule(name: str, kind: str, tmp_path: Path) -> None:
    case = CASES[name]
    series = case.fires if kind == "fires" else case.silent
    expression = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": s, "values": v} for s, v in series.items()],
                "promql_expr_test": [
                    {
                        "expr": expression,
                        "eval_time": case.at,
                        "exp_samples": [{"labels": "{}", "value": int(kind == "fires")}],
                    }
                ],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(test), encoding="utf-8")
    run = subprocess.run(
        [tool("promtool", "apt-get install prometheus"), "test", "rules", file],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout + run.stderr
