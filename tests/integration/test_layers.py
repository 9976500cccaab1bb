"""Checks which folders include which others. Each folder of ROOMS lists the folders whose headers it may include.

Every source file is read, whatever its suffix, because the linker alone would not notice an include in the wrong
direction.
"""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUFFIXES = {".h", ".cuh", ".cc", ".cu"}

# Each folder and the other folders that it may include. A file belongs to the innermost folder of this table that it
# lies in. A folder is listed after the folders that it may include.
ROOMS = {
    "voxserve/model": [],
    "voxserve/v1": [],
    "google/rpc": [],
    "grpc/health": [],
    "kernels/core": [],
    "kernels/coordinates": ["kernels/core"],
    "kernels/coordinates/curves": ["kernels/core", "kernels/coordinates"],
    "kernels/conv": ["kernels/core", "kernels/coordinates"],
    "kernels/points": ["kernels/core", "kernels/coordinates"],
    "kernels/points/farthest": ["kernels/core", "kernels/coordinates"],
    "kernels/rows": ["kernels/core", "kernels/coordinates", "kernels/conv"],
    "kernels/conv/implicit_gemm": ["kernels/core", "kernels/coordinates", "kernels/conv", "kernels/rows"],
    "kernels/conv/implicit_gemm/instances": ["kernels/conv/implicit_gemm"],
    "kernels/rows/attention": ["kernels/core", "kernels/coordinates", "kernels/conv"],
    "kernels/rows/mlp": ["kernels/core"],
    "kernels/image/sites": ["kernels/core", "kernels/coordinates"],
    "kernels/image": ["kernels/core", "kernels/coordinates", "kernels/image/sites"],
    "kernels/image/int8": [
        "kernels/core",
        "kernels/coordinates",
        "kernels/conv",
        "kernels/conv/implicit_gemm",
        "kernels/image",
    ],
    "kernels/int8": ["kernels/core", "kernels/coordinates", "kernels/conv", "kernels/image"],
    "kernels/boxes": ["kernels/core"],
}

# The layers of the engine, the lowest first. A layer may include all layers below it.
ENGINE_STOREYS = [
    ["engine/base"],
    ["engine/runtime"],
    ["engine/tensor"],
    ["engine/geometry"],
    ["engine/ops"],
    [
        "engine/ops/conv",
        "engine/ops/int8",
        "engine/ops/rows",
        "engine/ops/mlp",
        "engine/ops/points",
        "engine/ops/image",
        "engine/ops/boxes",
    ],
    ["engine/model"],
    ["engine/model/checks"],
    ["engine/compiler"],
    ["engine/executor"],
    ["engine/calibration"],
    ["engine/tuner"],
    ["engine/serving/admission"],
    ["engine/serving/models"],
    ["engine/serving/streams"],
    ["engine/serving"],
]
_below = ["kernels", "voxserve/model"]
for _storey in ENGINE_STOREYS:
    for _room in _storey:
        ROOMS[_room] = list(_below)
    _below += _storey

# engine/model/checks needs the graph of engine/model, and the loader in engine/model needs the checks.
ROOMS["engine/model"].append("engine/model/checks")

ROOMS.update(
    {
        "server/sockets": ["engine/base"],
        "server/grpc": ["engine/base"],
        "server/identity": ["server/grpc", "server/sockets", "engine/base"],
        "server/acceptor": ["server/grpc", "server/sockets", "engine/base"],
        "server/codec": ["engine", "voxserve/v1", "google/rpc"],
        "server/metrics": ["engine"],
        "server/http": ["server/identity", "server/metrics", "server/sockets", "engine"],
        "server/calls": [
            "server/codec",
            "server/identity",
            "server/metrics",
            "server/sockets",
            "engine",
            "voxserve/v1",
        ],
        "server/open_inference": ["server/calls", "server/codec", "server/identity", "server/metrics", "engine"],
        "server/services": [
            "server/calls",
            "server/codec",
            "server/identity",
            "server/metrics",
            "server/open_inference",
            "engine",
            "voxserve/v1",
            "google/rpc",
            "grpc/health",
            "grpc/reflection",
            "xds/data",
            "xds/service",
        ],
        "server": ["server", "engine"],
        "client/cpp/api": ["voxserve/v1", "google/rpc", "grpc/health", "engine/base"],
        "client/cpp/io": ["client/cpp/api", "voxserve/v1", "engine/base"],
        "client/cpp/voxserve": ["client/cpp/api", "client/cpp/io", "voxserve/v1"],
        "client/cpp/view": ["client/cpp/api", "client/cpp/io", "voxserve/v1"],
        "client/cpp/cli": ["client/cpp", "voxserve/v1", "engine/base"],
        "client/cpp/cli/bench": ["client/cpp", "voxserve/v1", "engine/base"],
        # The engine as a Python module: a front door beside the server, without gRPC.
        "client/python/native": ["server/codec", "engine", "kernels/core", "voxserve/v1"],
        # Another project, which links the installed client and includes <voxserve/client.h>.
        "client/ros2/src": [],
        # These programs run the engine on scans from files. They include both server and client.
        "deploy/offline": ["server/codec", "engine", "client/cpp", "voxserve/v1"],
        "deploy/tune": ["deploy/offline", "engine", "kernels", "client/cpp"],
        "deploy/calibrate": ["deploy/offline", "engine", "kernels", "client/cpp", "voxserve/model"],
    }
)
OURS = (
    "kernels/",
    "engine/",
    "server/",
    "client/",
    "deploy/",
    "tests/",
    "voxserve/",
    "google/rpc/",
    "grpc/health/",
    "grpc/reflection/",
)
MAX_FILES_OF_A_ROOM = 35


def lies_in(file, room):
    return str(file).startswith(f"{room}/")


def room_of(file):
    """Returns the innermost folder of ROOMS that the file lies in."""
    return max((room for room in ROOMS if lies_in(file, room)), key=len)


def sources():
    for folder in sorted({room.split("/")[0] for room in ROOMS}):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in SUFFIXES:
                yield file.relative_to(ROOT)


def includes(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    return [name for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE) if name.startswith(OURS)]


def may_include(room, included):
    """Returns whether `room` may include a file: the file lies in `room`, or in a folder that `room` may include. A
    folder such as "kernels" stands for all folders inside it.
    """
    home = room_of(included) if any(lies_in(included, r) for r in ROOMS) else included
    return home == room or any(home == known or home.startswith(f"{known}/") for known in ROOMS[room]) and not (
        # "engine/ops" only stands for its own files, not for the folders inside it.
        room == "engine/ops" and home.startswith("engine/ops/")
    )


def test_every_suffix_is_read():
    assert {file.suffix for file in sources()} == SUFFIXES


def test_rooms_know_only_what_they_may():
    strangers = [
        f"{file} includes {included}"
        for file in sources()
        for included in includes(file)
        if not may_include(room_of(file), included)
    ]
    assert not strangers


def test_a_room_is_no_larger_than_somebody_can_hold_in_mind():
    sizes = {room: 0 for room in ROOMS}
    for file in sources():
        sizes[room_of(file)] += 1
    assert {room: size for room, size in sizes.items() if size > MAX_FILES_OF_A_ROOM} == {}


# After its header's stem, a source file's name may name the device, the vector instructions or the type that it is for.
VARIANT = re.compile(r"_(cpu|cuda|baseline|amx|avx2|avx512|neon|half|bfloat16|tf32|int8|uint8)$")
# Files of these names share one header in their room, or in the room above.
FAMILIES = {
    "client/cpp/cli": (re.compile(r"\w+_commands?$"), "commands"),
    "client/cpp/cli/bench": (re.compile(r"bench_command$"), "../commands"),
    "server/open_inference": (re.compile(r"open_inference_(lookups|stream)$"), "open_inference_service"),
    "server/services": (
        re.compile(r"(admin|inference|reflection)_service$|load_reports$|infer_stream$|tune_plan_call$"),
        "services",
    ),
    "engine/compiler": (re.compile(r".+_steps$"), "steps"),
    "kernels/conv/implicit_gemm/instances": (re.compile(r"warp(_group)?s_\w+$"), "../instances"),
    "engine/model/checks": (re.compile(r".+_(checks|parameters)$"), "checks"),
}
# This file has the destructors of several classes, which the linker needs in a build without CUDA.
WITHOUT_HEADER = {"engine/runtime/cuda_missing.cc", "client/python/native/module.cc"}


@pytest.mark.parametrize("suffix", [".cc", ".cu"])
def test_a_source_file_implements_the_header_of_its_own_name(suffix):
    orphans = []
    for file in sources():
        if file.suffix != suffix or file.name == "main.cc" or str(file) in WITHOUT_HEADER:
            continue
        stems = {file.stem, VARIANT.sub("", file.stem)}
        if str(file.parent) in FAMILIES:
            of_family, header_of_family = FAMILIES[str(file.parent)]
            if of_family.match(file.stem):
                stems = {header_of_family}
        if not any((ROOT / file.parent / f"{stem}{header}").exists() for stem in stems for header in (".h", ".cuh")):
            orphans.append(str(file))
    assert orphans == []


def test_the_top_level_holds_rooms_and_what_tools_look_for_there():
    files = {"CMakeLists.txt", "CMakePresets.json", "Dockerfile", "LICENSE", "README.md"}
    folders = {"proto", "server", "engine", "kernels", "client", "deploy", "tests"}
    there = {entry.name for entry in ROOT.iterdir() if not entry.name.startswith((".", "build"))}
    assert there == files | folders
