"""Checks that the programs are built and installed as server/hardening.cmake says: the protections in the linked
programs, the compilers' flags, and that installed programs look for libraries only where the system does.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from pathlib import Path

import pytest

PROGRAMS = (
    "server/voxserve",
    "client/cpp/voxserve-client",
    "deploy/tune/voxserve-tune",
    "deploy/calibrate/voxserve-calibrate",
)


@pytest.fixture(scope="module")
def build() -> Path:
    binary = os.environ.get("VOXSERVE_BINARY")
    if not binary:
        pytest.skip("VOXSERVE_BINARY names no build; tests/run.sh sets it")
    return Path(binary).parents[1]


@pytest.fixture(scope="module")
def installed(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(
        ["cmake", "--install", build, "--strip", "--prefix", folder], check=True, capture_output=True, timeout=120
    )
    return folder


def readelf(option: str, file: Path) -> str:
    return subprocess.run(
        ["readelf", "-W", option, file], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def undefined(file: Path) -> set[str]:
    """Returns the symbols that a program or the objects of a library take from other files, without their versions."""
    return set(re.findall(r" UND (\w+)", readelf("--symbols", file)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_loaded_anywhere_and_its_tables_are_read_only(build: Path, name: str) -> None:
    program = build / name
    assert re.search(r"Type: +DYN ", readelf("--file-header", program))
    dynamic = readelf("--dynamic", program)
    assert re.search(r"\(FLAGS\) .*\bBIND_NOW\b", dynamic)
    assert re.search(r"\(FLAGS_1\) .*\bNOW\b.*\bPIE\b", dynamic)
    segments = readelf("--segments", program)
    assert "GNU_RELRO" in segments
    stack = re.search(r"GNU_STACK +(?:0x\w+ +){5}(\S+)", segments)
    assert stack is not None
    assert stack[1] == "RW", "the stack is no code"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_guards_its_stack_and_the_sizes_of_buffers(build: Path, name: str) -> None:
    taken = undefined(build / name)
    assert "__stack_chk_fail" in taken
    assert {"__memcpy_chk", "__read_chk", "__snprintf_chk", "__vsnprintf_chk"} & taken


def test_our_own_libraries_guard_their_stack(build: Path) -> None:
    # A program may take the symbol from a library of others. These archives have only code that is compiled here.
    archives = [*build.glob("server/*.a"), *build.glob("client/cpp/*.a"), *build.glob("engine/*.a")]
    without = {archive.name for archive in archives if "__stack_chk_fail" not in undefined(archive)}
    assert len(archives) > 20
    # This one passes lines of a log on, and has no array on a stack.
    assert without <= {"libvoxserve_server_grpc.a"}


def test_every_cpp_file_is_compiled_with_the_flags_and_no_cuda_file(build: Path) -> None:
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    wanted = {"-fstack-protector-strong", "-fstack-clash-protection"}
    if platform.machine() == "x86_64":
        wanted.add("-fcf-protection")
    assert len(commands) > 100
    for entry in commands:
        given = set(entry["command"].split())
        if entry["file"].endswith(".cu"):
            assert not wanted & given, entry["file"]
        else:
            assert wanted <= given, entry["file"]
            assert {"-D_FORTIFY_SOURCE=2", "-D_FORTIFY_SOURCE=3"} & given, entry["file"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_installed_has_no_path_of_the_build(installed: Path, build: Path, name: str) -> None:
    program = installed / "bin" / Path(name).name
    assert os.access(program, os.X_OK)
    dynamic = readelf("--dynamic", program)
    assert "NEEDED" in dynamic
    assert not re.search(r"RPATH|RUNPATH", dynamic)
    assert ".symtab" not in readelf("--sections", program)
    # Without its RPATH the installed program may not find libraries that only the build knows. The test names their
    # folders, which it takes from the built program.
    paths = re.findall(r"\(R(?:UN)?PATH\) .*\[(.*)\]", readelf("--dynamic", build / name))
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(paths)}
    told = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=30, env=environment)
    assert told.returncode == 0, told.stderr
    assert program.name in told.stdout


def test_the_images_components_have_the_programs_alone(build: Path, tmp_path: Path) -> None:
    for component in ("server", "command"):  # those of the Dockerfile
        subprocess.run(
            ["cmake", "--install", build, "--prefix", tmp_path, "--component", component],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert files == {f"bin/{Path(name).name}" for name in PROGRAMS}


def test_nothing_else_is_installed(installed: Path) -> None:
    files = {str(file.relative_to(installed)) for file in installed.rglob("*") if file.is_file()}
    own = re.compile(
        r"bin/voxserve(-client|-tune|-calibrate)?|include/voxserve/\w+\.h|share/(doc/)?voxserve[\w-]*/.*"
        r"|lib/([\w-]+/)?(libvoxserve_client\.so[\d.]*|cmake/voxserve/voxserve\w+(-\w+)?\.cmake|pkgconfig/voxserve\.pc)"
    )
    assert {file for file in files if not own.fullmatch(file)} == set()
