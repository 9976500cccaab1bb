"""Tests the parts of the cross-build that need no other compiler: which packages it asks for, and what it refuses."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
_SYSROOT = _DEPLOY / "cross" / "sysroot.sh"


def packages_of(*sets: str) -> set[str]:
    lines = (_DEPLOY / "packages.txt").read_text(encoding="utf-8").splitlines()
    fields = [line.split() for line in lines if line and not line.startswith("#")]
    return {name for kind, name, *_ in fields if kind in sets}


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_sysroot_has_every_library_of_a_build_with_tests_and_no_compiler() -> None:
    listed = run(_SYSROOT, "--list")
    assert listed.returncode == 0
    wanted = set(listed.stdout.split())
    assert wanted == {name for name in packages_of("build", "test") if name.endswith("-dev")} | {
        "protobuf-compiler-grpc"
    }
    assert {"libgrpc++-dev", "libdnnl-dev", "libgtest-dev"} <= wanted


def test_an_unknown_option_is_refused_before_anything_is_fetched() -> None:
    refused = run(_SYSROOT, "--lost")
    assert refused.returncode == 1
    assert refused.stderr == "error: unknown option --lost; see --help\n"


def test_without_a_sysroot_cmake_says_how_to_make_it(tmp_path: Path) -> None:
    refused = run("cmake", f"-DVOXSERVE_SYSROOT={tmp_path}", "-P", _DEPLOY / "cross" / "aarch64.cmake")
    assert refused.returncode == 1
    assert f"There is no arm64 sysroot at {tmp_path}" in " ".join(refused.stderr.split())
    assert "run deploy/cross/sysroot.sh" in " ".join(refused.stderr.split())


def test_the_test_script_refuses_what_it_does_not_know() -> None:
    refused = run(_DEPLOY.parent / "tests" / "aarch64.sh", "--fast")
    assert refused.returncode == 1
    assert refused.stderr == "error: unknown option --fast; see --help\n"
