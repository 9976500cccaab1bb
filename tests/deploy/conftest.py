"""Fixtures for the tests of deploy/: programs that may be missing, a running server, and the names of its flags and
metrics.

    PYTHONPATH=tests VOXSERVE_BINARY=build/dev/server/voxserve build/venv/bin/python -m pytest -q tests/deploy
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
OWN = "voxserve + object-storage"  # This overlay is one that a user would write, from two of ours.
# Before this version, kubectl's Kustomize cannot read folders as resources. Debian 12 has kubectl 1.20.
MINIMUM_KUBECTL = (1, 21)
sys.path.append(str(ROOT / "tests" / "hostile"))  # This folder has the class Server, which starts and ends the binary.

from server import Server  # noqa: E402


def tool(name: str, package: str) -> str:
    """Returns the path of a program of the package `package`. Skips the test if this machine lacks it."""
    variable = f"VOXSERVE_{name.upper().replace('-', '_')}"
    path = os.environ.get(variable) or shutil.which(name)
    if not path:
        pytest.skip(f"{name} is not installed ({package}, or {variable}=PATH)")
    return path


def binary() -> str:
    path = os.environ.get("VOXSERVE_BINARY")
    if not path:
        pytest.skip("VOXSERVE_BINARY does not name the server's binary; tests/run.sh sets it")
    return path


@pytest.fixture(scope="session")
def flags() -> set[str]:
    """Returns the flags that the server's --help lists."""
    text = subprocess.run([binary(), "--help"], capture_output=True, text=True, check=True, timeout=30).stdout
    return set(re.findall(r"^  (--\w+)", text, re.MULTILINE))


@pytest.fixture(scope="session")
def metric_names() -> set[str]:
    """Returns the names of all metrics that the server's source can create. A histogram has three names."""
    source = (ROOT / "server/metrics/metrics.h").read_text(encoding="utf-8")
    names = set(re.findall(r'"(voxserve_\w+)"', source))
    parts = {name + part for name in names for part in ("_bucket", "_sum", "_count")}
    return names | {part for part in parts if re.search(r"_(seconds|requests|points|voxels|ratio)_[a-z]+$", part)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Runs a server with the demonstration model on free ports of the loopback interface."""
    running = Server(binary(), tmp_path_factory.mktemp("server") / "log", "--max_client_streams=1")
    try:
        running.await_ready()
        yield running
    finally:
        running.close()


@pytest.fixture(scope="session")
def kubectl() -> str:
    path = tool("kubectl", "apt-get install kubernetes-client on Debian 13 or later")
    told = subprocess.run([path, "version", "--client", "-o", "json"], capture_output=True, text=True, timeout=60)
    version = json.loads(told.stdout)["clientVersion"]
    found = (int(version["major"]), int(re.match(r"\d+", version["minor"])[0]))  # type: ignore[index]
    if found < MINIMUM_KUBECTL:
        pytest.skip(f"kubectl is {found[0]}.{found[1]}, its Kustomize is too old; 1.21 is needed")
    return path


@pytest.fixture(scope="session")
def rendered(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """rendered(overlay) returns the Kubernetes objects of one overlay."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (deploy/install.sh python)")
    cache: dict[str, list[dict[str, Any]]] = {}

    def render(overlay: str) -> list[dict[str, Any]]:
        if overlay not in cache:
            folder = DEPLOY / "kubernetes" / overlay
            if overlay == OWN:
                folder = tmp_path_factory.mktemp("own").resolve()
                parts = {"resources": "gpu", "components": "object-storage"}
                text = {key: [os.path.relpath(DEPLOY / "kubernetes" / name, folder)] for key, name in parts.items()}
                (folder / "kustomization.yaml").write_text(yaml.safe_dump(text), encoding="utf-8")
            run = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, timeout=120)
            assert run.returncode == 0, run.stderr
            assert not run.stderr, "deprecated fields?"
            cache[overlay] = [entry for entry in yaml.safe_load_all(run.stdout) if entry]
        return cache[overlay]

    return render


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\bvoxserve_\w+", expression))


def dig(tree: Any, *path: Any) -> Any:
    """Returns the value at a path of keys and indices in nested dicts and lists, or None if the path does not exist."""
    for key in path:
        if isinstance(tree, dict):
            tree = tree.get(key)
        elif isinstance(tree, list) and isinstance(key, int) and key < len(tree):
            tree = tree[key]
        else:
            return None
    return tree
