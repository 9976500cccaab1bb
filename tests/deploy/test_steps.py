"""Tests the functions of deploy/steps.sh that look for GPUs, with an nvidia-smi and an nvcc of the test's own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

_STEPS = Path(__file__).resolve().parents[2] / "deploy" / "steps.sh"
_SCRIPT = f"source '{_STEPS}'; use_own_gpus; printf '%s %s' \"$VOXSERVE_CUDA\" \"$CUDAARCHS\""


def own_gpus(folder: Path, nvidia_smi: str) -> str:
    """Returns VOXSERVE_CUDA and CUDAARCHS as use_own_gpus sets them where nvidia-smi is this shell script."""
    listed = "".join(f"compute_{number}\\n" for number in (75, 80, 86, 87, 89, 90, 100, 120))
    for name, script in (("nvidia-smi", nvidia_smi), ("nvcc", f"printf '{listed}'")):
        program = folder / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "CUDAARCHS": "75"}
    done = subprocess.run(
        ["bash", "-c", _SCRIPT], env=environment, capture_output=True, text=True, check=True, timeout=30
    )
    return done.stdout


@pytest.mark.parametrize(
    ("capabilities", "architectures"),
    [
        ("9.0", "90a-real"),
        ("8.6", "86-real"),
        (r"9.0\n8.6\n9.0\n12.0", "86-real;90a-real;120-real"),
        (r"6.1\n8.6", "86-real"),  # nvcc has no code for the first
        ("6.1", ""),
    ],
)
def test_code_is_for_the_gpus_of_this_machine(tmp_path: Path, capabilities: str, architectures: str) -> None:
    answer = rf"""case "$1" in *compute_cap*) printf '{capabilities}\n' ;; *) echo 'some GPU' ;; esac"""
    assert own_gpus(tmp_path, answer) == f"AUTO {architectures}"


def test_a_driver_that_does_not_tell_leaves_the_choice_to_cmake(tmp_path: Path) -> None:
    answer = """case "$1" in *compute_cap*) printf 'Field "compute_cap" is not a valid field to query.\\n\\n'; exit 2 ;;
*) echo 'some GPU' ;; esac"""
    assert own_gpus(tmp_path, answer) == "AUTO "


@pytest.mark.skipif(Path("/proc/driver/nvidia/gpus").exists(), reason="this machine has a GPU")
@pytest.mark.parametrize(
    "answer", ["echo 'NVML: Driver/library version mismatch'; exit 18", "echo 'No devices were found'"]
)
def test_a_machine_without_a_gpu_is_for_the_cpu_alone(tmp_path: Path, answer: str) -> None:
    assert own_gpus(tmp_path, answer) == "OFF "


@pytest.mark.skipif(Path("/proc/driver/nvidia/gpus").exists(), reason="this machine has a GPU")
@pytest.mark.parametrize(("nvidia_smi", "wanted"), [("echo 'No devices were found'", False), ("echo 'some GPU'", True)])
def test_cublas_is_fetched_for_a_gpu_alone(tmp_path: Path, nvidia_smi: str, wanted: bool) -> None:
    """As deploy/demo.sh does it, with a toolkit that came without cuBLAS."""
    for name, script in (("nvidia-smi", nvidia_smi), ("nvcc", 'case "$*" in *cublas_v2.h*) exit 1 ;; esac')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("VOXSERVE_CUBLAS_ROOT", None)
    script = f"source '{_STEPS}'; use_own_gpus; wants_cublas"
    assert subprocess.run(["bash", "-c", script], env=environment, timeout=30).returncode == (not wanted)
    demo = (_STEPS.parent / "demo.sh").read_text()
    assert demo.index("\nuse_own_gpus") < demo.index('deploy/install.sh" build')


@pytest.mark.parametrize(
    ("cached", "has_nanobind", "lacks"),
    [
        ("nanobind_DIR:PATH=nanobind_DIR-NOTFOUND", True, True),
        ("nanobind_DIR:PATH=nanobind_DIR-NOTFOUND", False, False),
        ("nanobind_DIR:PATH=/usr/lib/nanobind", True, False),
        ("", True, False),
    ],
)
def test_a_build_is_configured_again_when_nanobind_has_come(
    tmp_path: Path, cached: str, has_nanobind: bool, lacks: bool
) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\nexit {int(not has_nanobind)}\n")
    python.chmod(0o755)
    (tmp_path / "CMakeCache.txt").write_text(f"OTHER:BOOL=ON\n{cached}\n")
    script = f"source '{_STEPS}'; BUILD='{tmp_path}'; lacks_nanobind '{tmp_path}'"
    assert subprocess.run(["bash", "-c", script], timeout=30).returncode == (not lacks)


@pytest.mark.parametrize("architectures", ["80-real", "90a"])
def test_cmake_builds_for_the_gpus_that_are_asked_for(tmp_path: Path, architectures: str) -> None:
    """As the Dockerfile asks, which sets CUDAARCHS and builds the preset release."""
    script = f"""source '{_STEPS}'
[[ -n $(cuda_compiler) ]] || exit 77
use_fetched_cublas
cmake --preset release -B "$1"
"""
    done = subprocess.run(
        ["bash", "-c", script, "bash", str(tmp_path)],
        cwd=_STEPS.parents[1],
        env={**os.environ, "CUDAARCHS": architectures},
        capture_output=True,
        text=True,
        timeout=280,
    )
    if done.returncode == 77:
        pytest.skip("there is no nvcc")
    assert done.returncode == 0, done.stderr[-2000:]
    assert f" for {architectures}," in done.stdout
