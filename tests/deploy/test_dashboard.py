"""Tests that every query of Grafana's dashboard returns numbers from a Prometheus that scrapes a running server."""

from __future__ import annotations

import http.client
import json
import math
import socket
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import DEPLOY, ROOT, dig, metrics_in, tool

import voxserve
from server import Server

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (deploy/install.sh python)")

DASHBOARD = json.loads((DEPLOY / "grafana" / "voxserve.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
LOAD_SECONDS = 20
WINDOW = "30s"
SUBJECTS = {  # subjects of the dashboard, with the metric that shows each
    "FPS": "voxserve_frames_total",
    "latency by stage": "voxserve_stage_duration_seconds_bucket",
    "queue": "voxserve_queue_depth",
    "batch": "voxserve_batch_requests_bucket",
    "GPU memory": "voxserve_device_memory_bytes",
    "plans": "voxserve_plan_info",
    "drops": "voxserve_frames_dropped_total",
    "refusals": "voxserve_refusal_duration_seconds_bucket",
    "frame age": "voxserve_frame_age_seconds_bucket",
}


def test_it_shows_every_subject_by_metrics_that_exist(metric_names: set[str]) -> None:
    used = set().union(*(metrics_in(expression) for _, expression in QUERIES))
    assert used <= metric_names
    assert {subject for subject, metric in SUBJECTS.items() if metric not in used} == set()


def test_panels_have_a_place_a_unit_and_a_description() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for panel in PANELS:
        assert panel["description"], panel["title"]
        assert dig(panel, "fieldConfig", "defaults", "unit"), panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_variables_are_defined() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "instance", "model"}
    for _, expression in QUERIES:
        for part in expression.split("$")[1:]:
            assert part.startswith(("instance", "model", "__rate_interval")), expression


def test_grafana_finds_it() -> None:
    """The provisioned dashboards lie where deploy/compose mounts them, and the data source has the address of
    Prometheus.
    """
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))
    folder = DEPLOY / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((folder / "dashboards" / "voxserve.yaml").read_text(encoding="utf-8"))["providers"]
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text(encoding="utf-8"))["datasources"]
    mounts = [volume.split(":") for volume in compose["services"]["grafana"]["volumes"]]
    assert ["../grafana/voxserve.json", f"{provider['options']['path']}/voxserve.json", "ro"] in mounts
    assert ["../grafana/provisioning", "/etc/grafana/provisioning", "ro"] in mounts
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in compose["services"]


# ---- against a server


class Prometheus:
    """Debian's Prometheus on a free port of this machine. It scrapes one server every second."""

    def __init__(self, program: str, server: Server, folder: Path) -> None:
        config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text(encoding="utf-8"))
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(DEPLOY / "prometheus" / "alerts.yaml")]
        (job,) = config["scrape_configs"]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{server.http_port}"]}]
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        self.port = free_port()
        with (folder / "prometheus.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    program,
                    f"--config.file={folder / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )

    def get(self, path: str, **query: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("GET", f"/api/v1/{path}?{urllib.parse.urlencode(query)}")
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        assert answer["status"] == "success", answer
        return answer["data"]

    def await_target(self) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            try:
                targets = self.get("targets")["activeTargets"]
            except OSError:
                targets = []
            if targets and all(target["health"] == "up" for target in targets):
                return
            time.sleep(0.2)
        pytest.fail("Prometheus did not find the server")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def put_under_load(server: Server) -> None:
    """Sends work to the server for LOAD_SECONDS: one vehicle's stream whose frames have time stamps, a second stream
    that the server refuses, requests that it answers, and requests whose deadline cannot be met.
    """
    points = np.fromfile(ROOT / "deploy/scans/pandaset_070.bin", dtype=np.float32).reshape(-1, 4)[::10]
    end = time.monotonic() + LOAD_SECONDS

    def drive() -> None:
        with voxserve.Client(server.address) as client, client.stream("minkunet", policy="queue") as stream:
            for frame in range(10_000):
                if time.monotonic() > end:
                    return
                stream.send(frame, points, stamp=time.time())
                next(iter(stream))

    vehicle = threading.Thread(target=drive)
    vehicle.start()
    hurried = 0
    with voxserve.Client(server.address, timeout=30) as client:
        while time.monotonic() < end:
            client.segment("minkunet", points)
            try:
                client.infer("minkunet", points, timeout=0.002)
            except voxserve.InferenceError:
                hurried += 1
            try:
                with client.stream("minkunet") as second:
                    second.send(0, points)
                    next(iter(second))
            except voxserve.InferenceError:
                pass
    vehicle.join()
    assert hurried


@pytest.fixture(scope="module")
def prometheus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    program = tool("prometheus", "apt-get install prometheus")
    running = Prometheus(program, server, tmp_path_factory.mktemp("apt-get install prometheus"))
    try:
        running.await_target()
        put_under_load(server)
        time.sleep(2)  # In this time Prometheus scrapes the server once more.
        yield running
    finally:
        running.close()


@pytest.mark.parametrize(("title", "expression"), QUERIES, ids=[f"{title}-{i}" for i, (title, _) in enumerate(QUERIES)])
def test_query_returns_numbers(title: str, expression: str, prometheus: Prometheus) -> None:
    asked = expression.replace("$__rate_interval", WINDOW).replace("$instance", ".*").replace("$model", ".*")
    assert "$" not in asked
    found = prometheus.get("query", query=asked)["result"]
    numbers = [float(sample["value"][1]) for sample in found]
    assert numbers, asked
    assert any(math.isfinite(number) for number in numbers), f"{asked}: {found}"


def test_a_stuck_batch_does_not_hide_models_without_any(tmp_path: Path) -> None:
    expression = next(expression for title, expression in QUERIES if title == "Stuck batches")
    series = {
        'voxserve_stuck_batches_total{model="one",device="0",instance="a"}': "2",
        'voxserve_model_ready{model="one",instance="a"}': "1",
        'voxserve_model_ready{model="two",instance="a"}': "1",
    }
    samples = {'{model="one", device="0"}': 2, '{model="two"}': 0}  # "two" has no counter
    wanted = [{"labels": labels, "value": value} for labels, value in samples.items()]
    expected = {
        "expr": expression.replace("$instance", ".*").replace("$model", ".*"),
        "eval_time": "0s",
        "exp_samples": wanted,
    }
    case = {
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [expected],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"tests": [case]}), encoding="utf-8")
    promtool = tool("promtool", "apt-get install prometheus")
    run = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("variable", ["instance", "model"])
def test_variable_has_values(variable: str, prometheus: Prometheus) -> None:
    (definition,) = (v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["name"] == variable)
    metric, label = definition.removeprefix("label_values(").removesuffix(")").split(", ")
    assert prometheus.get(f"label/{label}/values", **{"match[]": metric})


def test_prometheus_runs_every_rule(prometheus: Prometheus) -> None:
    (group,) = prometheus.get("rules")["groups"]
    assert {rule["name"]: rule["lastError"] for rule in group["rules"] if rule.get("lastError")} == {}
    assert all(rule["health"] == "ok" for rule in group["rules"])
    assert len(group["rules"]) > 10


def test_drops_and_refusals_were_counted(prometheus: Prometheus) -> None:
    for expression in (
        'sum(voxserve_frames_dropped_total{reason="unmeetable"}) > 0',
        "sum(voxserve_calls_ended_early_total) > 0",
        "sum(voxserve_frame_age_seconds_count) > 0",
        "sum(voxserve_refusal_duration_seconds_count) > 0",
    ):
        assert prometheus.get("query", query=expression)["result"], expression
