"""Tests the manifests of deploy/kubernetes as kubectl renders them. They must match Kubernetes' schemas, restrict their
pods, and only use flags, ports, probes and metrics that the server has.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import OWN, ROOT, dig, metrics_in, tool

from server import Server

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (deploy/install.sh python)")

OVERLAYS = ("cpu", "gpu", "autoscale", "tls", "kserve")
SCHEMAS = "1.32"  # The Kubernetes version of the schemas.
# Custom resources, whose schemas are not part of Kubernetes.
NO_CORE_KIND = {"Certificate", "ServiceMonitor", "ScaledObject", "ServingRuntime", "InferenceService"}


Render = Callable[[str], list[dict[str, Any]]]


def only(objects: list[dict[str, Any]], kind: str, name: str = "voxserve") -> dict[str, Any]:
    (found,) = (o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name)
    return found


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the specification of the pod. In the overlay for KServe, it is that of the ServingRuntime."""
    for entry in objects:
        if entry["kind"] == "Deployment":
            return dict(entry["spec"]["template"]["spec"])
        if entry["kind"] == "ServingRuntime":
            return dict(entry["spec"])
    pytest.fail("no pod")


def server_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (container,) = pod_of(objects)["containers"]
    return dict(container)


def flags_of(objects: list[dict[str, Any]]) -> dict[str, str]:
    return dict(argument.split("=", 1) for argument in server_of(objects)["args"])


every_overlay = pytest.mark.parametrize("overlay", [*OVERLAYS, OWN])


@every_overlay
def test_objects_fit_the_schemas(overlay: str, rendered: Render) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed (PyPI)")
    names = set()
    for entry in rendered(overlay):
        names.add((entry["kind"], entry["metadata"]["name"]))
        if entry["kind"] not in NO_CORE_KIND:
            validator.validate(entry, SCHEMAS, strict=True)
        if entry["kind"] != "Namespace":
            assert entry["metadata"]["namespace"] == "voxserve"
    assert len(names) == len(rendered(overlay))


def test_the_schemas_refuse_what_is_wrong(rendered: Render) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed (PyPI)")
    wrong = json.loads(json.dumps(only(rendered("cpu"), "Deployment")))
    wrong["spec"]["template"]["spec"]["containers"][0]["readinessProbes"] = {}
    with pytest.raises(validator.ValidationError, match="readinessProbes"):
        validator.validate(wrong, SCHEMAS, strict=True)


@every_overlay
def test_the_server_knows_every_flag(overlay: str, rendered: Render, flags: set[str]) -> None:
    # The image's entry point passes two more flags.
    entry = re.search(r"ENTRYPOINT (\[.*\])", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert entry
    given = {word.split("=")[0] for word in [*server_of(rendered(overlay))["args"], *json.loads(entry[1])[1:]]}
    assert given <= flags


@every_overlay
def test_ports_are_those_that_the_server_listens_on(overlay: str, rendered: Render) -> None:
    objects = rendered(overlay)
    given = flags_of(objects)
    listening = {int(given["--port"]), int(given["--http_port"])}
    ports = {port["name"]: port["containerPort"] for port in server_of(objects)["ports"]}
    assert set(ports.values()) <= listening
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        port = server_of(objects)[probe]["httpGet"]["port"]
        assert ports.get(port, port) == int(given["--http_port"]), probe
    for entry in objects:
        if entry["kind"] == "Service":
            assert {port["targetPort"] for port in entry["spec"]["ports"]} <= set(ports)
            assert {ports[port["targetPort"]] for port in entry["spec"]["ports"]} == {
                port["port"] for port in entry["spec"]["ports"]
            }
        if entry["kind"] == "NetworkPolicy":
            assert {port["port"] for rule in entry["spec"]["ingress"] for port in rule["ports"]} <= set(ports)


@every_overlay
def test_the_server_answers_every_probe(overlay: str, rendered: Render, server: Server) -> None:
    container = server_of(rendered(overlay))
    paths = {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"/healthz", "/readyz"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    # A server that is not ready must not be restarted, so the liveness probe asks another path than the readiness
    # probe.
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    for path in paths:
        assert server.get(path)[0] == 200
    assert server.get("/probes")[0] == 404


@every_overlay
def test_pods_have_no_rights_that_they_do_not_need(overlay: str, rendered: Render) -> None:
    pod = pod_of(rendered(overlay))
    shared = pod.get("securityContext", {})
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert user
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        context = {**shared, **container["securityContext"]}
        assert context["runAsNonRoot"] is True
        assert (str(context["runAsUser"]), str(context["runAsGroup"])) == user.groups()
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        assert ":" in container["image"], "a tag"
    assert not any(pod.get(word) for word in ("hostNetwork", "hostPID", "hostIPC"))


@every_overlay
def test_the_image_is_of_this_version(overlay: str, rendered: Render) -> None:
    version = (ROOT / "client/python/VERSION").read_text(encoding="utf-8").strip()
    assert server_of(rendered(overlay))["image"].rpartition(":")[2] == version


@pytest.mark.parametrize("overlay", ["cpu", "gpu", "autoscale", "tls", OWN])
def test_a_pod_has_time_to_drain(overlay: str, rendered: Render) -> None:
    pod = pod_of(rendered(overlay))
    pause = int(dig(pod, "containers", 0, "lifecycle", "preStop", "exec", "command", 1))
    drain = int(flags_of(rendered(overlay))["--drain_timeout"].removesuffix("s"))
    assert pod["terminationGracePeriodSeconds"] > pause + drain
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize("overlay", ["cpu", "gpu", "autoscale", "tls", OWN])
def test_everything_selects_the_pods(overlay: str, rendered: Render) -> None:
    objects = rendered(overlay)
    labels = only(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        only(objects, "Deployment")["spec"]["selector"]["matchLabels"],
        only(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        only(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        only(objects, "Service")["spec"]["selector"],
        only(objects, "Service", "voxserve-pods")["spec"]["selector"],
    ]
    for selector in selectors:
        assert selector.items() <= labels
    assert only(objects, "Service", "voxserve-pods")["spec"]["clusterIP"] == "None", "headless"
    assert only(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize("overlay", ["cpu", "gpu", "autoscale", "tls", OWN])
def test_prometheus_scrapes_each_pod_once(overlay: str, rendered: Render, server: Server) -> None:
    objects = rendered(overlay)
    monitor = only(objects, "ServiceMonitor")["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    services = [o for o in objects if o["kind"] == "Service" and wanted <= o["metadata"]["labels"].items()]
    assert [service["metadata"]["name"] for service in services] == ["voxserve-pods"]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in services[0]["spec"]["ports"]}
    assert server.get(endpoint["path"])[0] == 200
    # The alert rules select series by this label.
    assert services[0]["metadata"]["labels"][monitor["jobLabel"]] == "voxserve"


def test_models_come_from_a_volume_or_from_object_storage(rendered: Render) -> None:
    for overlay, kind in (("gpu", "persistentVolumeClaim"), (OWN, "emptyDir")):
        pod = pod_of(rendered(overlay))
        (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "models")
        assert set(volume) == {"name", kind}
        (mount,) = (mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "models")
        assert (mount["mountPath"], mount["readOnly"]) == ("/models", True)
        claims = [o for o in rendered(overlay) if o["kind"] == "PersistentVolumeClaim"]
        assert len(claims) == (kind == "persistentVolumeClaim")
        assert len(pod.get("initContainers", [])) == (kind == "emptyDir")
    (init,) = pod_of(rendered(OWN))["initContainers"]
    assert init["volumeMounts"] == [{"name": "models", "mountPath": "/models"}]
    assert only(rendered("gpu"), "NetworkPolicy")["spec"].get("egress") is None
    egress = only(rendered(OWN), "NetworkPolicy")["spec"]["egress"]
    assert {port["port"] for rule in egress for port in rule["ports"]} == {53, 443}


def test_devices(rendered: Render) -> None:
    assert flags_of(rendered("cpu"))["--devices"] == "cpu"
    assert "nvidia.com/gpu" not in server_of(rendered("cpu"))["resources"]["limits"]
    for overlay in ("gpu", "autoscale", "tls"):
        assert flags_of(rendered(overlay))["--devices"] == "cuda:0"
        assert server_of(rendered(overlay))["resources"]["limits"]["nvidia.com/gpu"] == "1"
        mounts = {mount["mountPath"]: mount for mount in server_of(rendered(overlay))["volumeMounts"]}
        assert not mounts[flags_of(rendered(overlay))["--plan_dir"]].get("readOnly")


def test_kserve(rendered: Render) -> None:
    """The objects follow the rules that KServe has for them."""
    runtime = only(rendered("kserve"), "ServingRuntime")
    service = only(rendered("kserve"), "InferenceService")["spec"]["predictor"]
    container = server_of(rendered("kserve"))
    assert container["name"] == "kserve-container"
    assert flags_of(rendered("kserve"))["--model_repository"] == "/mnt/models"
    assert (container["ports"][0]["name"], len(container["ports"])) == ("h2c", 1)
    assert service["model"]["runtime"] == runtime["metadata"]["name"]
    assert service["model"]["modelFormat"]["name"] in {f["name"] for f in runtime["spec"]["supportedModelFormats"]}
    assert service["model"]["protocolVersion"] in runtime["spec"]["protocolVersions"]
    port = runtime["spec"]["annotations"]["prometheus.kserve.io/port"]
    assert port == flags_of(rendered("kserve"))["--http_port"]


# ---- autoscale


def test_autoscale_scales_the_deployment(rendered: Render, metric_names: set[str]) -> None:
    objects = rendered("autoscale")
    scaled = only(objects, "ScaledObject")["spec"]
    assert scaled["scaleTargetRef"] == {"name": only(objects, "Deployment")["metadata"]["name"]}
    assert "replicas" not in only(objects, "Deployment")["spec"], "the autoscaler's"
    assert scaled["minReplicaCount"] >= 2
    for trigger in scaled["triggers"]:
        assert metrics_in(trigger["metadata"]["query"]) <= metric_names
        assert trigger["type"] == "prometheus"
        assert float(trigger["metadata"]["threshold"]) > 0


STAGE = 'voxserve_stage_duration_seconds_bucket{job="voxserve",instance="a",stage="queue",le='
FRAMES = 'voxserve_frames_total{job="voxserve",model="m"}'
REFUSED = 'voxserve_frames_dropped_total{job="voxserve",model="m",reason="unmeetable"}'
LOADS = {
    "no server": ({}, 0),
    "no clouds": ({FRAMES: "0x10", REFUSED: "0x10", f'{STAGE}"+Inf"}}': "0x10"}, 0),
    "short queues": (
        {FRAMES: "0+60x10", REFUSED: "0x10", f'{STAGE}"0.01"}}': "0+60x10", f'{STAGE}"+Inf"}}': "0+60x10"},
        0.009,
    ),
    "long queues": (
        {
            FRAMES: "0+60x10",
            REFUSED: "0x10",
            f'{STAGE}"0.05"}}': "0x10",
            f'{STAGE}"0.1"}}': "0+60x10",
            f'{STAGE}"+Inf"}}': "0+60x10",
        },
        0.095,
    ),
    "everything is refused": ({FRAMES: "0x10", REFUSED: "0+60x10"}, 0.1),
    "half is refused": ({FRAMES: "0+60x10", REFUSED: "0+60x10"}, 0.05),
}


@pytest.mark.parametrize("load", LOADS)
def test_autoscale_asks_for_pods_by_queue_time(load: str, rendered: Render, tmp_path: Path) -> None:
    series, value = LOADS[load]
    trigger = only(rendered("autoscale"), "ScaledObject")["spec"]["triggers"][0]
    expected = [{"labels": "{}", "value": value}]
    # The query is rounded because quantiles are not exact in binary.
    test = {"expr": f"round({trigger['metadata']['query']}, 0.001)", "eval_time": "4m", "exp_samples": expected}
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    file = tmp_path / "test.yaml"
    case = {"interval": "30s", "input_series": inputs, "promql_expr_test": [test]}
    file.write_text(yaml.safe_dump({"tests": [case]}), encoding="utf-8")
    promtool = tool("promtool", "apt-get install prometheus")
    run = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
