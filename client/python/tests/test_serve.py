"""Tests the command serve, and how the command voxserve and the server's program of the same name get along."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from conftest import REPOSITORY, START_SECONDS

import voxserve
from voxserve import compiled, local_models

MODELS = REPOSITORY / "deploy" / "models"
ANY_PORTS = ["--port=0", "--http_port=0", "--admin_port=0"]
# The command voxserve as pip installs it: the last word of its name decides what it calls itself.
COMMAND = "import sys; sys.argv[0] = 'voxserve'; from voxserve.cli.main import main; sys.exit(main())"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty PATH and cache, in which no package voxserve-server or voxserve-models is found."""
    hidden = tmp_path / "hidden"
    for name in ("voxserve_server", "voxserve_models"):
        (hidden / name).mkdir(parents=True)
        (hidden / name / "__init__.py").write_text("raise ImportError('hidden')")
    (tmp_path / "bin").mkdir()
    source = os.fspath(Path(voxserve.__file__).parents[1])
    return {
        "PATH": os.fspath(tmp_path / "bin"),
        "PYTHONPATH": os.pathsep.join([os.fspath(hidden), source]),
        "XDG_CACHE_HOME": os.fspath(tmp_path / "cache"),
    }


@pytest.fixture
def with_server(environment: dict[str, str]) -> dict[str, str]:
    """The same with the server's program in PATH, after a script of the same name."""
    binary = os.environ.get("VOXSERVE_BINARY")
    if not binary:
        pytest.skip("VOXSERVE_BINARY does not name the server's binary; tests/run.sh sets it")
    scripts = Path(environment["PATH"])
    (scripts / "voxserve").write_text("#!/bin/sh\necho a script\n")
    (scripts / "voxserve").chmod(0o755)
    return {**environment, "PATH": f"{scripts}{os.pathsep}{Path(binary).parent}"}


def run(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMAND, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@contextmanager
def served(words: list[str], environment: dict[str, str], log: Path) -> Iterator[voxserve.Client]:
    """Runs a command that serves, and returns a client of the server when its models are loaded."""
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", COMMAND, *words], env=environment, stdout=out, stderr=out)
    try:
        end = time.monotonic() + START_SECONDS
        while not (found := re.search(r"\bserving\b.* grpc_port=(\d+)", log.read_text())) or (
            "models loaded" not in log.read_text()
        ):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        assert f"pid={process.pid}" in log.read_text()  # the process became the server
        with voxserve.Client(f"localhost:{found[1]}", timeout=60) as client:
            yield client
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["serve", MODELS / "minkunet"], ["minkunet"]),
        (["serve", MODELS], ["centerpoint", "minkunet"]),
        (["serve", MODELS / "centerpoint", MODELS / "minkunet"], ["centerpoint", "minkunet"]),
        (["serve", f"--model_repository={MODELS}"], ["centerpoint", "minkunet"]),
        ([f"--model_repository={MODELS}"], ["centerpoint", "minkunet"]),  # the program's own command line
    ],
)
def test_serves(words: list[str], names: list[str], with_server: dict[str, str], tmp_path: Path) -> None:
    with served([*map(str, words), *ANY_PORTS], with_server, tmp_path / "log") as client:
        assert [info.name for info in client.models()] == names
        points = np.zeros((9, 4), np.float32)
        if "minkunet" in names:
            assert len(client.segment("minkunet", points)) == 9


@pytest.mark.integration
@pytest.mark.parametrize("words", [["serve"], ["serve", "minkunet"]])
def test_serves_the_packaged_models(words: list[str], with_server: dict[str, str], tmp_path: Path) -> None:
    package = Path(with_server["PYTHONPATH"].split(os.pathsep)[0]) / "voxserve_models"
    shutil.copy(REPOSITORY / "deploy" / "wheel" / "models" / "voxserve_models.py", package / "__init__.py")
    (package / "models").symlink_to(MODELS)
    log = tmp_path / "log"
    with served([*words, *ANY_PORTS], with_server, log) as client:
        assert [info.name for info in client.models()] == words[1:] or ["centerpoint", "minkunet"]
    assert ("pandaset_070.bin" in log.read_text()) == (words == ["serve"])  # what to try


@pytest.mark.parametrize("words", [["serve"], ["serve", str(MODELS)], ["serve", "--port=1"], ["--port=1"]])
def test_without_a_server_it_says_what_to_install(words: list[str], environment: dict[str, str]) -> None:
    done = run(words, environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "voxserve serve: the server is not installed here; pip install 'voxserve[server]'\n"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["serve"], "no models: name a model's folder or a folder of models, or pip install 'voxserve[server]'"),
        (["serve", "missing"], "missing is no folder"),
        (["serve", str(MODELS), str(MODELS / "minkunet")], "is no model's folder"),
        (["serve", str(MODELS / "minkunet" / "1")], "is one version of a model; name the model"),
        (["serve", str(MODELS / "minkunet"), str(MODELS / "minkunet")], "two of the models are named 'minkunet'"),
        (["serve", "a", "--model_repository=b"], "name the models either as a or by --model_repository"),
    ],
)
def test_wrong_models(words: list[str], text: str, with_server: dict[str, str]) -> None:
    done = run(words, with_server)
    assert (done.returncode, done.stdout) == (1, "")
    assert text in done.stderr


@pytest.mark.integration
def test_wrong_flags_are_refused_by_the_server(with_server: dict[str, str]) -> None:
    done = run(["serve", str(MODELS), "--no_such_flag"], with_server)
    assert done.returncode == 2
    assert "no_such_flag" in done.stderr
    assert "--model_repository" in run(["serve", "--help_server"], with_server).stdout


def test_models_stand_before_the_flags(environment: dict[str, str]) -> None:
    done = run(["serve", "--port=9000", str(MODELS)], environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"voxserve serve: '{MODELS}' stands after --port=9000; name the models before the flags\n"


def test_help_and_version(environment: dict[str, str]) -> None:
    assert "voxserve serve [MODEL ...]" in run(["serve", "--help"], environment).stdout
    assert run(["help", "serve"], environment).stdout == run(["serve", "--help"], environment).stdout
    overview = run(["--help"], environment).stdout
    assert "voxserve infer --model minkunet" in overview
    assert "python -m" not in overview
    assert "python -m" not in run(["infer", "--help"], environment).stdout
    assert run(["--version"], environment).stdout.startswith("voxserve ")


def test_the_program_is_no_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder, contents in (("script", b"#!/usr/bin/python3\n"), ("program", b"\x7fELF...")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "voxserve").write_bytes(contents)
        (tmp_path / folder / "voxserve").chmod(0o755)
    monkeypatch.setitem(sys.modules, "voxserve_server", None)
    monkeypatch.setenv("PATH", f"{tmp_path}/none:{tmp_path}/script:{tmp_path}/program")
    assert compiled.server_program() == tmp_path / "program" / "voxserve"


def test_the_same_models_have_the_same_folder_of_links(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))
    first = local_models.repository_of([MODELS / "minkunet", MODELS / "centerpoint"])
    assert local_models.repository_of([MODELS / "centerpoint", MODELS / "minkunet"]) == first
    assert sorted(entry.name for entry in first.iterdir()) == ["centerpoint", "minkunet"]
    assert local_models.repository_of([MODELS / "minkunet"]) != first
    assert local_models.repository_of([MODELS]) == MODELS
    assert len(list(first.parent.iterdir())) == 2
