"""Checks that code with barriers in shared memory assembles for GPUs before Hopper.

The presets of development and of continuous integration have code for sm_90a alone, and a release has code for all. An
instruction that a GPU lacks is found only when code is assembled for it. The implicit GEMM is left out: its code for
Ampere takes minutes.
"""

import json
import os
import pathlib
import re
import shlex
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = "kernels/core/barriers.cuh"
LEFT_OUT = "kernels/conv/implicit_gemm/"
INCLUDE = re.compile(r'^#include "(kernels/[^"]+)"', re.MULTILINE)
GENERATE_CODE = re.compile(r"--generate-code=\S+")


def includes_of(path, seen):
    """Adds the files of this repository that a file includes to `seen`, and theirs."""
    for name in INCLUDE.findall((ROOT / path).read_text(encoding="utf-8")):
        if name not in seen:
            seen.add(name)
            includes_of(name, seen)
    return seen


def files_with_barriers():
    files = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "kernels").rglob("*.cu"))]
    return [name for name in files if not name.startswith(LEFT_OUT) and HEADER in includes_of(name, set())]


def test_files_with_barriers_are_found():
    assert "kernels/rows/attention/group_attention.cu" in files_with_barriers()


@pytest.mark.parametrize("name", files_with_barriers())
def test_code_for_ampere_assembles(name, tmp_path):
    binary = os.environ.get("VOXSERVE_BINARY")
    if not binary:
        pytest.skip("VOXSERVE_BINARY names no build")
    build = pathlib.Path(binary).parents[1]
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    command = next((entry["command"] for entry in commands if entry["file"] == str(ROOT / name)), None)
    if command is None:
        pytest.skip("this build has no CUDA")
    command = GENERATE_CODE.sub("--generate-code=arch=compute_80,code=[sm_80]", command)
    arguments = shlex.split(command)
    arguments[arguments.index("-o") + 1] = str(tmp_path / "code.o")
    if "-MF" in arguments:
        arguments[arguments.index("-MF") + 1] = str(tmp_path / "code.d")
    done = subprocess.run(arguments, cwd=build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
