"""Tests the wheels of deploy/wheel: their metadata, and the files of those that were built into build/dist."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[2]
WHEEL = ROOT / "deploy" / "wheel"
DIST = ROOT / "build" / "dist"
VERSION = (ROOT / "client" / "python" / "VERSION").read_text().strip()
# Libraries that manylinux takes from the system.
OF_THE_SYSTEM = {
    *("libstdc++.so.6", "libgcc_s.so.1", "libz.so.1", "libc.so.6", "libm.so.6"),
    *("libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
}
PROGRAMS = ["voxserve", "voxserve-client", "voxserve-tune", "voxserve-calibrate"]
MACHINES = {"x86_64": "X86-64", "aarch64": "AArch64"}  # as wheels and as readelf call them


def project(folder: Path) -> Any:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def test_extras_bring_these_wheels_in_this_version() -> None:
    names = {project(WHEEL / kind)["project"]["name"] for kind in ("server", "server-cuda", "models")}
    extras = project(ROOT / "client" / "python")["project"]["optional-dependencies"]
    asked = [re.fullmatch(r"([\w-]+)>=([\d.]+)", text) for extra in ("server", "cuda") for text in extras[extra]]
    assert all(asked)
    assert {match[1] for match in asked if match} == names
    assert {match[2] for match in asked if match} == {VERSION.rpartition(".")[0]}


def test_both_server_wheels_hold_the_same() -> None:
    cpu, cuda = project(WHEEL / "server"), project(WHEEL / "server-cuda")
    for table in ("scripts", "requires-python", "license", "dynamic", "readme"):
        assert cpu["project"][table] == cuda["project"][table]
    assert cpu["tool"] == cuda["tool"]
    added = set(cuda["project"]["dependencies"]) - set(cpu["project"]["dependencies"])
    assert [re.split(r"[<>=]", name)[0] for name in added] == ["nvidia-cublas"]


def test_the_package_of_models_finds_its_files(tmp_path: Path) -> None:
    package = tmp_path / "voxserve_models"
    package.mkdir()
    (package / "__init__.py").write_bytes((WHEEL / "models" / "voxserve_models.py").read_bytes())
    for name in ("models", "scans"):
        (package / name).symlink_to(ROOT / "deploy" / name)
    spec = importlib.util.spec_from_file_location("voxserve_models", package / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (module.models() / "minkunet" / "1" / "model.textproto").is_file()
    assert module.scan().stat().st_size % 16 == 0


@pytest.mark.parametrize("words", [["--no-such"], ["--output"], ["--cuda", "--aarch64"]])
def test_wrong_options_of_the_script(words: list[str]) -> None:
    done = subprocess.run([WHEEL / "build.sh", *words], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    assert words[0] in done.stderr


def built(name: str, machine: str = "") -> zipfile.ZipFile:
    found = sorted(DIST.glob(f"{name}-{VERSION}-*{machine}.whl"))
    if not found:
        pytest.skip(f"deploy/wheel/build.sh has not made it ({machine or 'any machine'})")
    return zipfile.ZipFile(found[-1])


@pytest.fixture(scope="module", params=MACHINES)
def server_wheel(request: pytest.FixtureRequest) -> Iterator[zipfile.ZipFile]:
    with built("voxserve_server", request.param) as wheel:
        yield wheel


@pytest.fixture(scope="module")
def binaries(server_wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Returns the wheel's programs and libraries, extracted."""
    folder = tmp_path_factory.mktemp("wheel")
    server_wheel.extractall(folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]


def readelf(option: str, file: Path) -> str:
    done = subprocess.run(["readelf", "-W", option, file], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_the_server_wheel_is_for_every_python_from_3_11_on(server_wheel: zipfile.ZipFile) -> None:
    assert re.search(r"-cp311-abi3-manylinux_2_\d+_\w+", str(server_wheel.filename))
    names = set(server_wheel.namelist())
    assert {f"voxserve_server/bin/{name}" for name in PROGRAMS} | {"voxserve_server/_engine.abi3.so"} <= names


def test_the_server_wheel_is_for_one_machine(server_wheel: zipfile.ZipFile, binaries: list[Path]) -> None:
    machine = next(name for tag, name in MACHINES.items() if f"_{tag}" in str(server_wheel.filename))
    assert [file.name for file in binaries if not re.search(rf"Machine:.*{machine}\n", readelf("-h", file))] == []


def test_the_server_wheel_needs_no_newer_c_library_than_it_says(
    server_wheel: zipfile.ZipFile, binaries: list[Path]
) -> None:
    promised = min(int(minor) for minor in re.findall(r"manylinux_2_(\d+)_", str(server_wheel.filename)))
    needed = {file.name: re.findall(r"Name: GLIBC_2\.(\d+)", readelf("-V", file)) for file in binaries}
    assert {name: minors for name, minors in needed.items() if any(int(minor) > promised for minor in minors)} == {}
    assert any(needed.values())


def test_the_server_wheel_needs_no_library_outside(binaries: list[Path]) -> None:
    libraries = {file.name for file in binaries if file.parent.name == "voxserve_server.libs"}
    assert libraries
    for file in binaries:
        dynamic = readelf("-d", file)
        needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic))
        assert needed - libraries <= OF_THE_SYSTEM, file.name
        paths = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.+)\]", dynamic)
        assert all(path.startswith("$ORIGIN") for path in paths), file.name
        assert paths or not needed & libraries, file.name


def test_the_server_wheel_has_the_licences_of_its_libraries(server_wheel: zipfile.ZipFile) -> None:
    names = [name for name in server_wheel.namelist() if re.match("voxserve_server/licenses/.", name)]
    assert all(server_wheel.getinfo(name).file_size for name in names)
    for package in ("libgrpc", "libdnnl", "libprotobuf", "libgnutls", "libabsl", "voxserve-NOTICE"):
        assert any(name.split("/")[-1].startswith(package) for name in names), package


def test_the_client_wheel_has_the_command() -> None:
    with built("voxserve") as wheel:
        entry = next(name for name in wheel.namelist() if name.endswith("entry_points.txt"))
        assert "voxserve = voxserve.cli.main:main" in wheel.read(entry).decode()
        assert not any(name.endswith((".so", ".cc")) for name in wheel.namelist())
