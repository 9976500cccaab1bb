"""Runs the wheel of deploy/wheel/build.sh --aarch64 on this machine, under qemu: its programs with the libraries of a
system alone, and its engine in Debian's Python for arm64. (qemu computes each multiplication in software, so that a few
hundred points take a minute.)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_wheel import DIST, OF_THE_SYSTEM, PROGRAMS, ROOT, VERSION

import voxserve

sys.path.append(str(ROOT / "tests" / "bench"))

from started_server import started  # noqa: E402

SYSROOT = ROOT / "build" / "sysroot-aarch64"  # deploy/cross/sysroot.sh
QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64") or ""
SECONDS = 1800  # of one request, on a busy machine
IN_PROCESS = """
import sys, numpy, voxserve
answer = voxserve.load("minkunet").infer(numpy.load(sys.argv[1]), scores=True)
numpy.savez(sys.argv[2], labels=answer.labels, scores=answer.scores)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder into which pip installed the wheel and all that it needs, for a machine with Debian 12."""
    if not sorted(DIST.glob(f"voxserve_server-{VERSION}-*_aarch64.whl")):
        pytest.skip("deploy/wheel/build.sh --aarch64 has not made it")
    if not QEMU or not SYSROOT.is_dir():
        pytest.skip("needs qemu and arm64 packages (deploy/install.sh cross, deploy/cross/sysroot.sh)")
    folder = tmp_path_factory.mktemp("site")
    system = ["--platform=manylinux2014_aarch64", *(f"--platform=manylinux_2_{n}_aarch64" for n in range(36, 16, -1))]
    asked = ["--only-binary=:all:", "--python-version=3.11", *system, "--find-links", DIST, "voxserve[server]"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([*pip, "--target", folder, *asked], check=True, timeout=600)
    return folder


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a root folder with the loader and the libraries that wheels take from a system, and nothing else."""
    root = tmp_path_factory.mktemp("system")
    libraries = root / "lib" / "aarch64-linux-gnu"
    libraries.mkdir(parents=True)
    for name in OF_THE_SYSTEM:
        found = SYSROOT / "usr" / "lib" / "aarch64-linux-gnu" / name
        if found.exists():
            shutil.copy(found, libraries)
    shutil.copy(libraries / "ld-linux-aarch64.so.1", root / "lib")
    return root


@pytest.fixture
def few(tmp_path: Path) -> Any:
    """Returns points of the demo's scan, which are few.npy too."""
    scan = np.fromfile(ROOT / "deploy" / "scans" / "pandaset_070.bin", np.float32).reshape(-1, 4)
    points = scan[::200].copy()
    np.save(tmp_path / "few.npy", points)
    return points


@pytest.fixture
def address(site: Path, system: Path, tmp_path: Path) -> Iterator[str]:
    """Runs the wheel's server under qemu."""
    models = tmp_path / "models"
    shutil.copytree(site / "voxserve_models" / "models" / "minkunet", models / "minkunet")
    program = tmp_path / "voxserve"
    program.write_text(f'#!/bin/sh\nexec {QEMU} -L {system} {site}/voxserve_server/bin/voxserve "$@"\n')
    program.chmod(0o755)
    with started(str(program), models, "--devices=cpu", "--stuck_batch_time=inf") as (_, address):
        yield address


def environment(**added: str) -> dict[str, str]:
    """Returns this process's variables without OpenBLAS' choice of an x86 kernel."""
    return {name: text for name, text in os.environ.items() if not name.startswith("OPENBLAS")} | added


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_starts_with_the_libraries_of_a_system(site: Path, system: Path, program: str) -> None:
    command = [QEMU, "-L", system, site / "voxserve_server" / "bin" / program, "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert program in told


def test_server_and_engine_label_alike(address: str, site: Path, few: Any, tmp_path: Path) -> None:
    with voxserve.Client(address, timeout=SECONDS) as client:
        served = client.infer("minkunet", few, scores=True)
    command = [QEMU, "-L", SYSROOT, SYSROOT / "usr" / "bin" / "python3", "-c", IN_PROCESS]
    files = [tmp_path / "few.npy", tmp_path / "answer.npz"]
    subprocess.run([*command, *files], env=environment(PYTHONPATH=str(site)), check=True, timeout=SECONDS)
    with np.load(tmp_path / "answer.npz") as local:
        assert local["labels"].tobytes() == served.labels.tobytes()
        assert local["scores"].tobytes() == served.scores.tobytes()
    assert len(np.unique(served.labels)) > 2
    # This machine adds the same products in another order, which moves a label on the edge at most.
    pytest.importorskip("voxserve_server._engine", reason="the engine is not built for this machine")
    with voxserve.load(ROOT / "deploy" / "models" / "minkunet", device="cpu") as model:
        own = model.infer(few, scores=True)
    np.testing.assert_allclose(served.scores, own.scores, atol=1e-3)
    assert np.count_nonzero(served.labels != own.labels) <= len(few) // 500
