"""Installs the C++ client and builds another project with it: by find_package, by pkg-config and as a subproject. Each
program then asks a real server. Also checks what libvoxserve_client.so shows, and what its headers include.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from identity_calls import StartServer
from identity_files import Server
from installed_client import ROOT, configure, install, run

CONSUMER = ROOT / "tests" / "client" / "consumer"
SCAN = ROOT / "deploy" / "scans" / "pandaset_070.bin"
HEADERS = ("answer", "client", "export", "model", "options", "point_cloud", "status", "stream")
# The standard library's headers have names without a slash and without an ending.
STANDARD = re.compile(r"[a-z_]+")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def installed(library: Path) -> Path:
    """The prefix of the installation."""
    return next(folder for folder in library.parents if (folder / "include").is_dir())


@pytest.fixture(scope="module")
def server(start: StartServer) -> Server:
    return start()


def ask(program: Path, server: Server, library_folder: Path | None = None) -> dict[str, str]:
    """Runs the consumer. Returns the facts that it prints, by their names."""
    environment = {} if library_folder is None else {"LD_LIBRARY_PATH": str(library_folder)}
    printed = run(program, server.address, "minkunet", SCAN, environment=environment)
    return dict(line.split(" ", 1) for line in printed.splitlines())


def check(facts: dict[str, str]) -> None:
    assert facts["library"] == (ROOT / "client" / "python" / "VERSION").read_text().strip()
    assert facts["points"] == facts["labels"] == str(SCAN.stat().st_size // 16)
    name, count = facts["most"].rsplit(" ", 1)
    assert name
    assert int(count) > int(facts["points"]) / 10
    assert facts["missing"] == "NOT_FOUND MODEL_NOT_FOUND"


def test_a_project_that_finds_the_package(installed: Path, library: Path, server: Server, tmp_path: Path) -> None:
    # Without the folders of the system's packages: the client's package may look for none of them.
    configure(CONSUMER, tmp_path, f"-Dvoxserve_ROOT={installed}", "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF")
    run("cmake", "--build", tmp_path)
    check(ask(tmp_path / "consumer", server, library.parent))


def test_a_version_that_is_not_there_is_refused(installed: Path, tmp_path: Path) -> None:
    text = (CONSUMER / "CMakeLists.txt").read_text().replace("find_package(voxserve 0.1", "find_package(voxserve 7.0")
    (tmp_path / "CMakeLists.txt").write_text(text)
    done = subprocess.run(
        ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-Dvoxserve_ROOT={installed}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert "7.0" in done.stderr


def test_a_program_by_pkg_config(installed: Path, library: Path, server: Server, tmp_path: Path) -> None:
    environment = {"PKG_CONFIG_PATH": str(library.parent / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "voxserve", environment=environment).split()
    folders = [Path(flag[2:]).resolve() for flag in flags if flag[:2] in ("-I", "-L")]
    assert folders == [(installed / "include").resolve(), library.parent.resolve()]
    run("c++", "-std=c++20", CONSUMER / "consumer.cc", "-o", tmp_path / "consumer", *flags)
    check(ask(tmp_path / "consumer", server, library.parent))


def test_a_project_that_has_the_sources_as_a_part(server: Server, tmp_path: Path) -> None:
    # These belong to the server, its tests and the command-line tool.
    absent = [
        f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON"
        for name in ("CUDAToolkit", "dnnl", "GTest", "benchmark", "nlohmann_json", "PNG")
    ]
    configure(
        CONSUMER / "subproject", tmp_path, f"-DVOXSERVE_SOURCE={ROOT}", "-DCMAKE_UNITY_BUILD=ON", "-DCUDACXX=", *absent
    )
    run("cmake", "--build", tmp_path, seconds=1800)
    read = run("ninja", "-C", tmp_path, "-t", "deps")  # headers may be found without find_package
    for word in ("/nlohmann/", "/png.h", "/gtest/", "/benchmark/", "dnnl", "/prometheus/", "/cuda"):
        assert word not in read
    assert "/grpcpp/" in read
    check(ask(tmp_path / "consumer", server))
    assert "add_test" not in "".join(file.read_text() for file in tmp_path.rglob("CTestTestfile.cmake"))


def test_a_client_alone_refuses_options_that_contradict_it(tmp_path: Path) -> None:
    def refusal(*options: str) -> str:
        done = subprocess.run(
            ["cmake", "-S", ROOT, "-B", tmp_path, "-G", "Ninja", *options],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode != 0
        return re.sub(r"\s+", " ", done.stderr)

    client_only = "-DVOXSERVE_CLIENT_ONLY=ON"
    assert "set VOXSERVE_CLIENT_ONLY=OFF" in refusal(client_only, "-DVOXSERVE_BUILD_TESTS=ON")
    assert "leave that ON" in refusal(client_only, "-DVOXSERVE_BUILD_TESTS=OFF", "-DVOXSERVE_BUILD_SERVER=OFF")
    missing = refusal(client_only, "-DVOXSERVE_BUILD_SERVER=ON", f"-DVOXSERVE_GRPC_ROOT={tmp_path}/nothing")
    assert "has no CMake package of absl" in missing


def symbols(library: Path, option: str) -> list[str]:
    return run("nm", "--dynamic", "--demangle", option, library).splitlines()


def test_the_library_shows_its_own_functions_alone(library: Path) -> None:
    shown = [line.split(" ", 2)[1:] for line in symbols(library, "--defined-only")]
    strangers = [name for kind, name in shown if not (kind == "T" and name.startswith("voxserve::abi0::"))]
    assert strangers == ["VOXSERVE_0"]  # the version that all of them have
    names = [name for _, name in shown]
    assert any(name.startswith("voxserve::abi0::Client::Infer(") for name in names)
    assert len(names) > 100
    for word in ("absl::", "google::", "grpc::", "voxserve::client::", "voxserve::v1::"):
        assert [name for name in names if word in name] == []


def test_the_library_has_a_soname_and_links_all_that_it_needs(library: Path) -> None:
    dynamic = run("readelf", "-W", "--dynamic", library)
    assert "Library soname: [libvoxserve_client.so.0]" in dynamic
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic
    assert "undefined symbol" not in run("ldd", "-r", library)
    version = (ROOT / "client" / "python" / "VERSION").read_text().strip()
    assert library.resolve().name == f"libvoxserve_client.so.{version}"


def includes(text: str) -> Sequence[str]:
    return re.findall(r'^#include [<"]([^>"]+)[>"]', text, re.MULTILINE)


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_stands_alone_and_needs_the_standard_library_only(installed: Path, name: str, tmp_path: Path) -> None:
    header = installed / "include" / "voxserve" / f"{name}.h"
    for included in includes(header.read_text()):
        assert STANDARD.fullmatch(included) or included.removeprefix("voxserve/").removesuffix(".h") in HEADERS
    (tmp_path / "alone.cc").write_text(f"#include <voxserve/{name}.h>\n#include <voxserve/{name}.h>\n")
    flags = ("-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{installed}/include")
    for compiler in ("c++", "clang++-14"):
        if shutil.which(compiler):
            run(compiler, *flags, tmp_path / "alone.cc")


def test_all_public_headers_are_installed_and_no_others(installed: Path) -> None:
    assert {file.stem for file in (installed / "include" / "voxserve").iterdir()} == set(HEADERS)


def test_debian_packages_of_the_client(library: Path, tmp_path: Path) -> None:
    """Packs the client's components of the build that is tested, as deploy/deb.sh does."""
    build = Path(os.environ["VOXSERVE_CLIENT_BINARY"]).parents[2]
    config = (build / "CPackConfig.cmake").read_text()
    (tmp_path / "config.cmake").write_text(f"{config}\nset(CPACK_COMPONENTS_ALL command client client-dev)\n")
    run("cpack", "--config", tmp_path / "config.cmake", "-B", tmp_path)
    packages = {file.name.split("_")[0]: file for file in tmp_path.glob("*.deb")}
    assert set(packages) == {"voxserve-client", "voxserve-client-dev"}

    def files(name: str) -> set[str]:
        listed = run("dpkg-deb", "--contents", packages[name]).splitlines()
        return {line.split()[5].removeprefix(".") for line in listed if not line.split()[5].endswith("/")}

    def control(name: str) -> str:
        return run("dpkg-deb", "--field", packages[name])

    folder = f"/usr/{library.parent.relative_to(next(p for p in library.parents if (p / 'include').is_dir()))}"
    assert {"/usr/bin/voxserve-client", f"{folder}/libvoxserve_client.so.0"} <= files("voxserve-client")
    assert not any("include" in name or name.endswith(".so") for name in files("voxserve-client"))
    assert {f"/usr/include/voxserve/{name}.h" for name in HEADERS} <= files("voxserve-client-dev")
    assert {f"{folder}/libvoxserve_client.so", f"{folder}/pkgconfig/voxserve.pc"} <= files("voxserve-client-dev")
    version = (ROOT / "client" / "python" / "VERSION").read_text().strip()
    assert f"Depends: voxserve-client (= {version})\n" in control("voxserve-client-dev")
    depends = re.search(r"^Depends: (.*)$", control("voxserve-client"), re.MULTILINE)
    assert depends is not None
    for word in ("libgrpc++", "libprotobuf", "liblzf1"):
        assert word in depends[1]
    assert "cublas" not in depends[1]
    shlibs = run("dpkg-deb", "--info", packages["voxserve-client"], "shlibs")
    # Packages of programs that link the library take later versions too.
    assert shlibs.split() == ["libvoxserve_client", "0", "voxserve-client", "(>=", f"{version})"]


@pytest.mark.parametrize(
    ("script", "words", "reason"),
    [
        ("deb.sh", ["--cuda", "--client-only"], "the client needs no CUDA"),
        ("deb.sh", ["--nonsense"], "unknown option --nonsense"),
        ("abidiff.sh", ["--nonsense"], "unknown option --nonsense"),
    ],
)
def test_scripts_refuse_what_they_do_not_know(script: str, words: list[str], reason: str) -> None:
    done = subprocess.run([ROOT / "deploy" / script, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert reason in done.stderr


def test_another_grpc_is_taken_from_its_own_prefix(tmp_path: Path) -> None:
    """A prefix with packages of all three that name the system's libraries: the programs and libraries of the build are
    those that the prefix names.
    """
    for program in ("protoc", "grpc_cpp_plugin"):
        (tmp_path / program).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        (tmp_path / program).chmod(0o755)
    imported = "add_library({0} INTERFACE IMPORTED)\ntarget_link_libraries({0} INTERFACE {1})\n"
    rooms = ("status", "statusor", "strings", "str_format", "synchronization", "time", "flat_hash_map", "flat_hash_set")
    texts = {
        "absl": "".join(imported.format(f"absl::{name}", f"absl_stand_in_{name}") for name in rooms),
        "protobuf": imported.format("protobuf::libprotobuf", "protobuf_stand_in")
        + "add_executable(protobuf::protoc IMPORTED)\n"
        + f"set_target_properties(protobuf::protoc PROPERTIES IMPORTED_LOCATION {tmp_path}/protoc)\n",
        "gRPC": imported.format("gRPC::grpc++", "grpc_stand_in")
        + "add_executable(gRPC::grpc_cpp_plugin IMPORTED)\n"
        + f"set_target_properties(gRPC::grpc_cpp_plugin PROPERTIES IMPORTED_LOCATION {tmp_path}/grpc_cpp_plugin)\n",
    }
    for name, text in texts.items():
        folder = tmp_path / "prefix" / "lib" / "cmake" / name
        folder.mkdir(parents=True)
        (folder / f"{name}Config.cmake").write_text(text)
        version = f'set(PACKAGE_VERSION "99.{len(name)}")\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n'
        (folder / f"{name}ConfigVersion.cmake").write_text(version)
    build = tmp_path / "build"
    options = ("-DVOXSERVE_CLIENT_ONLY=ON", "-DVOXSERVE_BUILD_CLI=OFF", f"-DVOXSERVE_GRPC_ROOT={tmp_path / 'prefix'}")
    configure(ROOT, build, *options)
    rules = (build / "build.ninja").read_text()
    for word in (f"{tmp_path}/protoc", f"{tmp_path}/grpc_cpp_plugin", "grpc_stand_in", "protobuf_stand_in"):
        assert word in rules
    assert "libgrpc" not in rules
    assert "libabsl" not in rules
    generated = "proto/lite/grpc/health/v1/health.grpc.pb.h"
    run("ninja", "-C", build, generated)
    assert "class Health" in (build / generated).read_text()
