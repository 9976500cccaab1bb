"""Tests the chart of deploy/kubernetes/helm: it renders the objects that Kustomize renders, and its values do what they
say.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import DEPLOY, ROOT, tool
from test_kubernetes import NO_CORE_KIND, SCHEMAS, flags_of, only, server_of

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (deploy/install.sh python)")

CHART = DEPLOY / "kubernetes" / "helm"
VALUES = {
    "cpu": {"device": "cpu"},
    "gpu": {},
    "autoscale": {"autoscale": True},
    "tls": {"tls": True},
}
Objects = list[dict[str, Any]]


@pytest.fixture(scope="session")
def helm() -> str:
    return tool("helm", "a release of helm 3")


@pytest.fixture
def template(helm: str, tmp_path: Path) -> Callable[..., Objects]:
    """template(values, namespace) returns the objects that the chart renders."""

    def run(values: dict[str, Any], namespace: str = "voxserve") -> Objects:
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump(values), encoding="utf-8")
        command = [
            helm,
            "template",
            "voxserve",
            str(CHART),
            "--namespace",
            namespace,
            "--values",
            str(file),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise ValueError(done.stderr)
        return [entry for entry in yaml.safe_load_all(done.stdout) if entry]

    return run


def by_name(objects: Objects) -> dict[tuple[str, str], dict[str, Any]]:
    return {(entry["kind"], entry["metadata"]["name"]): entry for entry in objects}


def test_the_chart_is_of_this_version_and_has_the_manifests() -> None:
    version = (ROOT / "client/python/VERSION").read_text(encoding="utf-8").strip()
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (version, version)
    for link in (CHART / "manifests").iterdir():
        assert link.is_symlink(), "no second copy"
        assert link.resolve() == CHART.parent / link.name
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(values) == set(schema["properties"]) - {"global"}


@pytest.mark.parametrize("overlay", VALUES)
def test_chart_and_kustomize_render_the_same_objects(
    overlay: str, template: Callable[..., Objects], rendered: Callable[[str], Objects]
) -> None:
    expected = by_name(rendered(overlay))
    del expected["Namespace", "voxserve"]  # Helm's own
    found = template(VALUES[overlay])
    assert len(found) == len(expected)
    assert by_name(found) == expected


def test_values(template: Callable[..., Objects]) -> None:
    objects = template(
        {
            "image": {"repository": "mine/voxserve", "tag": "9"},
            "replicas": 5,
            "device": "cpu",
            "tls": True,
            "issuer": {"name": "own", "kind": "Issuer"},
            "monitoring": False,
            "models": {"size": "99Gi", "storageClass": "fast"},
            "args": ["--max_queue_requests=32"],
            "resources": {"limits": {"memory": "32Gi"}},
        },
        namespace="lidar",
    )
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed (PyPI)")
    for entry in objects:
        assert entry["metadata"]["namespace"] == "lidar"
        if entry["kind"] not in NO_CORE_KIND:
            validator.validate(entry, SCHEMAS, strict=True)
    assert server_of(objects)["image"] == "mine/voxserve:9"
    assert only(objects, "Deployment")["spec"]["replicas"] == 5
    assert flags_of(objects)["--max_queue_requests"] == "32"
    assert server_of(objects)["resources"]["limits"] == {"cpu": "4", "memory": "32Gi"}
    claim = only(objects, "PersistentVolumeClaim", "voxserve-models")["spec"]
    assert (claim["resources"]["requests"]["storage"], claim["storageClassName"]) == (
        "99Gi",
        "fast",
    )
    certificate = only(objects, "Certificate")["spec"]
    assert certificate["issuerRef"] == {"name": "own", "kind": "Issuer"}
    assert all(".lidar.svc" in name for name in certificate["dnsNames"]), "the names of this namespace's Services"
    assert not any(entry["kind"] == "ServiceMonitor" for entry in objects)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"device": "tpu"}, "device"),
        ({"replica": 3}, "replica"),
        ({"args": ["max_queue_requests=32"]}, "args"),
        ({"replicas": 0}, "replicas"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, Any], error: str, template: Callable[..., Objects]) -> None:
    with pytest.raises(ValueError, match=error):
        template(values)


def test_lint(helm: str) -> None:
    for sets in ([], ["--set", "tls=true,autoscale=true,device=cpu"]):
        done = subprocess.run(
            [helm, "lint", "--strict", *sets, str(CHART)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_packed_chart_needs_no_links(helm: str, tmp_path: Path) -> None:
    subprocess.run(
        [helm, "package", str(CHART), "--destination", str(tmp_path)],
        check=True,
        timeout=120,
    )
    (packed,) = tmp_path.glob("voxserve-*.tgz")
    run = subprocess.run(
        [helm, "template", "voxserve", packed],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert len([entry for entry in yaml.safe_load_all(run.stdout) if entry]) == 7
