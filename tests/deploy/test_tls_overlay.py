"""Tests the overlay tls: its Secrets, certificate and probes fit each other, and a server that has its flags, with
files as cert-manager and an operator write them, speaks TLS and asks for tokens.
"""

from __future__ import annotations

import hashlib
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import binary
from http2 import await_true
from test_kubernetes import flags_of, only, pod_of, server_of

import voxserve
from server import START_SECONDS, Server


@pytest.fixture
def objects(rendered: Callable[[str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return rendered("tls")


def test_flags_name_what_the_secrets_have(objects: list[dict[str, Any]]) -> None:
    given = flags_of(objects)
    mounts = {mount["mountPath"]: mount for mount in server_of(objects)["volumeMounts"]}
    secrets = {volume["name"]: volume["secret"] for volume in pod_of(objects)["volumes"] if "secret" in volume}
    for flag, secret in (
        ("tls_certificate", "voxserve-tls"),
        ("tls_key", "voxserve-tls"),
        ("auth_tokens", "voxserve-tokens"),
    ):
        mount = mounts[str(Path(given[f"--{flag}"]).parent)]
        assert mount["readOnly"] is True
        assert secrets[mount["name"]]["secretName"] == secret
        assert secrets[mount["name"]]["defaultMode"] == 0o440, "for the pod's group alone"
    assert Path(given["--tls_certificate"]).name == "tls.crt", "cert-manager's keys"
    assert Path(given["--tls_key"]).name == "tls.key"
    assert not any(entry["kind"] == "Secret" for entry in objects), "nothing secret is in the tree"


def test_the_certificate_has_the_names_that_are_asked_for(objects: list[dict[str, Any]]) -> None:
    certificate = only(objects, "Certificate")["spec"]
    assert certificate["secretName"] == "voxserve-tls"
    services = [entry for entry in objects if entry["kind"] == "Service"]
    assert {f"{entry['metadata']['name']}.voxserve.svc" for entry in services} <= set(certificate["dnsNames"])
    assert {entry["spec"]["ports"][0]["appProtocol"] for entry in services} == {"https"}
    (endpoint,) = only(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["port"], endpoint["path"]) == ("https", "http", "/metrics")
    assert endpoint["tlsConfig"]["serverName"] in certificate["dnsNames"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert server_of(objects)[probe]["httpGet"]["scheme"] == "HTTPS"


def test_a_server_with_these_flags(objects: list[dict[str, Any]], tmp_path: Path) -> None:
    program = binary()
    names = ",".join(f"DNS:{name}" for name in only(objects, "Certificate")["spec"]["dnsNames"])
    for folder in ("tls", "tokens"):
        (tmp_path / folder).mkdir()
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=voxserve", "-addext", f"subjectAltName={names},DNS:localhost",
         "-keyout", "tls/tls.key", "-out", "tls/tls.crt"],
        cwd=tmp_path, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    tokens = {"truck": ("a-token-of-a-truck", "infer:*"), "prometheus": ("a-token-of-prometheus", "metrics")}
    hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, (text, _) in tokens.items()}
    lines = "".join(f"{name} {hashes[name]} {scope}\n" for name, (_, scope) in tokens.items())
    (tmp_path / "tokens" / "tokens").write_text(lines, encoding="utf-8")
    given = flags_of(objects)
    flags = [f"{flag}={tmp_path}{given[flag]}" for flag in ("--tls_certificate", "--tls_key", "--auth_tokens")]
    certificate = tmp_path / "tls" / "tls.crt"
    context = ssl.create_default_context(cafile=str(certificate))
    running = Server(program, tmp_path / "log", *flags)
    try:
        ports = re.compile(r"\bserving\b.* grpc_port=(\d+) http_port=(\d+)")
        assert await_true(lambda: ports.search(running.log()), START_SECONDS), running.log()
        grpc_port, http_port = ports.search(running.log()).groups()  # type: ignore[union-attr]

        def status(path: str, bearer: str = "") -> int:
            headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
            asked = urllib.request.Request(f"https://localhost:{http_port}{path}", headers=headers)
            try:
                with urllib.request.urlopen(asked, context=context, timeout=10) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        assert await_true(lambda: status("/readyz") == 200, START_SECONDS), running.log()
        assert status("/healthz") == 200
        truck, prometheus = tokens["truck"][0], tokens["prometheus"][0]
        assert (status("/metrics"), status("/metrics", prometheus), status("/metrics", truck)) == (401, 200, 403)
        address = f"localhost:{grpc_port}"
        with voxserve.Client(address, tls_ca=certificate, token=truck) as client:
            assert client.model("minkunet").has_labels
        with voxserve.Client(address, tls_ca=certificate) as client, pytest.raises(voxserve.UnauthenticatedError):
            client.model("minkunet")
    finally:
        running.close()
