"""Who may include whom: the house's rooms, and the storeys inside engine/."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROOMS = {
    "kernels": {"kernels"},
    "engine": {"engine", "kernels", "voxserve/model"},
    "server": {"server", "engine", "voxserve/v1", "google/rpc"},
    # voxserve-tune, which runs the engine on scans from files: the one place where these meet.
    "server/tune": {"server", "engine", "kernels", "client", "voxserve/v1"},
    "client": {"client", "voxserve/v1", "google/rpc", "grpc/health"},
}
STOREYS = ["base", "runtime", "tensor", "geometry", "ops", "graph", "tuner", "serving"]
OURS = ("kernels/", "engine/", "server/", "client/", "tests/", "voxserve/", "google/rpc/", "grpc/health/")


def room_of(file):
    """The innermost room that the file lies in."""
    return max((room for room in ROOMS if file.is_relative_to(room)), key=len)


def includes():
    """(file, included) of everything of ours that our sources include."""
    for folder in sorted({room.split("/")[0] for room in ROOMS}):
        for file in sorted((ROOT / folder).rglob("*.h")) + sorted((ROOT / folder).rglob("*.cc")):
            for included in re.findall(r'^#include "([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE):
                if included.startswith(OURS):
                    yield file.relative_to(ROOT), included


def test_rooms_know_only_what_they_may():
    found = list(includes())
    assert len(found) > 100
    strangers = [
        f"{file} includes {included}"
        for file, included in found
        if not included.startswith(tuple(f"{room}/" for room in ROOMS[room_of(file)]))
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
