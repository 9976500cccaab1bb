"""Who may include whom: the house's rooms, and the storeys inside engine/."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = {
    "kernels": {"kernels"},
    "engine": {"engine", "kernels", "voxserve/model"},
    "server": {"server", "engine", "voxserve/v1", "google/rpc"},
    "client": {"client", "voxserve/v1", "google/rpc", "grpc/health"},
}
STOREYS = ["base", "runtime", "tensor", "geometry", "ops", "graph", "serving"]
OURS = ("kernels/", "engine/", "server/", "client/", "tests/", "voxserve/", "google/rpc/", "grpc/health/")


def includes():
    """(file, included) of everything of ours that our sources include."""
    for room in ROOMS:
        for file in sorted((ROOT / room).rglob("*.h")) + sorted((ROOT / room).rglob("*.cc")):
            for included in re.findall(r'^#include "([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE):
                if included.startswith(OURS):
                    yield file.relative_to(ROOT), included


def test_rooms_know_only_what_they_may():
    found = list(includes())
    assert len(found) > 100
    strangers = [
        f"{file} includes {included}"
        for file, included in found
        if not included.startswith(tuple(f"{room}/" for room in ROOMS[file.parts[0]]))
    ]
    assert not strangers


def test_no_storey_of_the_engine_includes_a_higher_one():
    upward = [
        f"{file} includes {included}"
        for file, included in includes()
        if file.parts[0] == "engine"
        and included.startswith("engine/")
        and STOREYS.index(included.split("/")[1]) > STOREYS.index(file.parts[1])
    ]
    assert not upward
