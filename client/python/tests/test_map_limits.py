"""Tests that voxserve.maps takes the limits of a request, and the overlap, from what the server tells."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import map_files
import numpy as np
import pytest
from conftest import REPOSITORY, serving
from map_server import BLOCK, VOXEL, MapServer, scores_of

import voxserve
from voxserve.maps import votes
from voxserve.maps.command import main
from voxserve.results import Reach, VoxelOverflow

laspy = map_files.laspy
TILE = 20.0
Run = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def columns() -> dict[str, np.ndarray[Any, Any]]:
    return map_files.cloud(60_000)


@pytest.fixture
def server() -> Iterator[MapServer]:
    fake = MapServer()
    yield fake
    fake.stop()


@pytest.fixture
def run(server: MapServer, columns: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    survey = map_files.write_las(tmp_path / "survey.laz", columns)

    def _run(name: str, *words: Any, model: str = "local", tile: float = TILE) -> tuple[int, str]:
        command = [
            survey,
            "--save",
            tmp_path / name,
            "--model",
            model,
            "--address",
            server.address,
            "--tile",
            tile,
            *words,
        ]
        status = main(list(map(str, command)))
        return status, capsys.readouterr().err

    return _run


def codes(path: Path) -> Any:
    return np.asarray(laspy.read(path).classification)


def whole(columns: dict[str, Any]) -> Any:
    """Returns the cloud in the coordinates of a tile, and its intensities."""
    return (np.stack([columns[axis] for axis in "xyz"], axis=1) - [499_968, 5_399_968, 288]).astype(np.float32)


def test_what_the_server_tells(server: MapServer) -> None:
    with voxserve.Client(server.address) as client:
        old = client.model("local")
        assert (old.max_voxels, old.voxel_overflow, old.max_message_bytes, old.reach) == (
            None,
            VoxelOverflow.UNKNOWN,
            None,
            None,
        )
        server.tell(max_voxels=9000, max_message_bytes=1 << 20)
        new = client.model("coarse")
    assert (new.max_voxels, new.voxel_overflow, new.max_message_bytes) == (9000, VoxelOverflow.REJECT, 1 << 20)
    assert new.reach == Reach((2.0, 2.0, 1.0), "", (4, 4, 4))
    server.tell()
    with voxserve.Client(server.address) as client:
        assert client.model("local").max_voxels == 0, "no limit, which is not the same as an old server"


def test_an_overlap_of_the_reach_leaves_no_seam(
    server: MapServer, run: Run, columns: dict[str, Any], tmp_path: Path
) -> None:
    expected = scores_of(whole(columns), columns["intensity"]).argmax(axis=1)
    server.tell()
    status, err = run("told.laz")
    assert status == 0
    assert "tiles overlap by the reach of local, 1 m; but it reads x, which count from each tile" in err
    np.testing.assert_array_equal(codes(tmp_path / "told.laz"), expected)
    status, err = run("less.laz", "--overlap", 0.5)
    assert status == 0
    assert "the reach of local is 1 m, more than the overlap of 0.5 m; seams may show" in err
    less = codes(tmp_path / "less.laz")
    assert 0 < (less != expected).mean() < 0.05
    assert run("more.laz", "--overlap", 3)[0] == 0
    np.testing.assert_array_equal(codes(tmp_path / "more.laz"), expected)


@pytest.mark.parametrize(
    ("unbounded_by", "text"),
    [
        ("", "the server does not tell the reach of local; tiles overlap by 5 m"),
        ("pool", "the reach of local is unbounded (pool); tiles overlap by 5 m"),
    ],
)
def test_a_reach_that_is_not_known_or_unbounded(server: MapServer, run: Run, unbounded_by: str, text: str) -> None:
    if unbounded_by:
        server.tell(unbounded_by=unbounded_by)
    status, err = run("a.laz")
    assert status == 0
    assert text in err
    assert max(np.ptp(cloud["x"]) for cloud in server.clouds) > TILE + 9


def test_voxels_are_counted_before_they_are_sent(server: MapServer, run: Run, tmp_path: Path) -> None:
    most = 2500
    server.tell(max_voxels=most)
    assert run("a.laz")[0] == 0
    for cloud in server.clouds:
        cells = np.floor(np.stack([cloud[axis] for axis in "xyz"], axis=1).astype(np.float64) / VOXEL)
        assert len(np.unique(cells, axis=0)) <= most
    assert len(server.clouds) > 25
    assert (np.asarray(laspy.read(tmp_path / "a.laz").confidence) > 0.4).all(), "each point has votes"


def test_messages_are_as_the_server_lets_them_pass(server: MapServer, run: Run) -> None:
    server.tell(max_message_bytes=(1 << 16) + 16_000)
    assert run("a.laz")[0] == 0
    sizes = [14 * len(cloud["x"]) for cloud in server.clouds]  # three float32 and a uint16
    assert max(sizes) <= 16_000
    assert max(sizes) > 8_000


def test_tiles_agree_on_coarse_voxels(
    server: MapServer, run: Run, columns: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.tell()
    status, err = run("tiles.laz", model="coarse")
    assert status == 0
    assert "tiles overlap by the reach of coarse, 2 m; seams change nothing" in err
    assert run("one.laz", model="coarse", tile=1000)[0] == 0
    expected = codes(tmp_path / "one.laz")
    assert 0.2 < expected.mean() < 0.8
    np.testing.assert_array_equal(codes(tmp_path / "tiles.laz"), expected)
    monkeypatch.setattr(votes, "anchor_of", lambda *_: None)
    assert run("free.laz", model="coarse")[0] == 0
    assert (codes(tmp_path / "free.laz") != expected).mean() > 0.1


@pytest.mark.parametrize(
    ("period", "words", "text"),
    [
        (0, (), "but it reads where a cloud's smallest coordinates are, which differ from tile to tile"),
        (BLOCK, ("--turns", 2), "but copies are turned about the middle of each tile"),
    ],
)
def test_where_seams_may_show_with_the_whole_reach(
    server: MapServer, run: Run, period: int, words: tuple[Any, ...], text: str
) -> None:
    server.tell(period=period)
    status, err = run("a.laz", *words, model="coarse")
    assert status == 0
    assert f"tiles overlap by the reach of coarse, 2 m; {text}; seams may show" in err


def test_the_anchor(server: MapServer) -> None:
    server.tell()
    with voxserve.Client(server.address) as client:
        model, local = client.model("coarse"), client.model("local")
    random = np.random.default_rng(4)
    for _ in range(50):
        xyz = random.uniform(-70, 70, (20, 3)).astype(np.float32)
        anchor = votes.anchor_of(xyz, model)
        assert anchor is not None
        assert (xyz.min(axis=0) - anchor >= np.array([2.0, 2.0, 1.0]) - 0.25 * VOXEL).all(), "beyond the reach"
        for rounded in (np.floor(anchor / VOXEL), np.rint(anchor / VOXEL)):
            np.testing.assert_array_equal(rounded % BLOCK, 0)
    assert votes.anchor_of(xyz, local) is None, "the minimum does not matter"
    server.tell(unbounded_by="pool")
    with voxserve.Client(server.address) as client:
        assert votes.anchor_of(xyz, client.model("coarse")) is None


def test_origins_fit_coarse_voxels_of_any_size() -> None:
    reach = Reach((2.0, 2.0, 1.0), "", (12, 1, 0))
    assert [votes.snapped_voxels(reach, axis) for axis in range(3)] == [192, 64, 64]
    assert votes.snapped_voxels(None, 0) == 64
    assert votes.snapped_voxels(Reach((2.0,), "", (3**9,)), 0) == 64, "the origin would be kilometres away"


def test_the_command_models_shows_limits(server: MapServer, capsys: pytest.CaptureFixture[str]) -> None:
    from voxserve.cli.main import main as voxserve_main

    server.tell(max_voxels=9000)
    assert voxserve_main(["models", "coarse", "--address", server.address]) == 0
    out = capsys.readouterr().out
    assert "2,000,000 points a request, 9,000 voxels (a request with more is refused), 67,108,864 bytes" in out
    assert "reach        2 x 2 x 1 m\n" in out
    server.tell(unbounded_by="pool")
    assert voxserve_main(["models", "coarse", "--address", server.address]) == 0
    assert "unbounded x unbounded x unbounded m (pool reads whole clouds)" in capsys.readouterr().out


@pytest.fixture(scope="module")
def map_network_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Starts a real server of the demo's network, changed so that it reads intensities alone."""
    source = REPOSITORY / "deploy" / "models" / "minkunet"
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(source, folder / "intensities")
    weights = folder / "intensities" / "1" / "weights.safetensors"
    contents = bytearray(weights.read_bytes())
    begin = 8 + struct.unpack("<Q", contents[:8])[0]
    tensor = json.loads(contents[8:begin])["stem.0.weight"]
    first, end = (begin + offset for offset in tensor["data_offsets"])
    values = np.frombuffer(contents[first:end], {"F16": "<f2", "F32": "<f4"}[tensor["dtype"]])
    changed = values.reshape(tensor["shape"]).copy()  # [27, 4, 16]: x, y, z and intensity
    changed[:, 3] += changed[:, :3].sum(axis=1)
    changed[:, :3] = 0
    contents[first:end] = changed.tobytes()
    weights.write_bytes(contents)
    with serving(folder, tmp_path_factory.mktemp("server") / "log") as address:
        yield address


@pytest.mark.integration
def test_seams_of_a_real_network(map_network_server: str, tmp_path: Path) -> None:
    points = np.fromfile(REPOSITORY / "deploy" / "scans" / "pandaset_070.bin", np.float32).reshape(-1, 4)
    points = points[np.abs(points[:, :2]).max(axis=1) < 25]
    columns = {axis: np.round(points[:, i] + map_files.ORIGIN[i] + 25, 3) for i, axis in enumerate("xyz")}
    columns["intensity"] = np.rint(points[:, 3] * 65535).astype(np.uint16)
    survey = map_files.write_las(tmp_path / "a.laz", columns)
    found = {}
    for name, words in {"whole": [7000], "reach": [25, "--overlap", 9.91], "none": [25, "--overlap", 0]}.items():
        command = [
            survey,
            "--save",
            tmp_path / f"{name}.laz",
            "--model",
            "intensities",
            "--address",
            map_network_server,
        ]
        assert main(list(map(str, [*command, "--timeout", "10m", "--tile", *words]))) == 0
        found[name] = codes(tmp_path / f"{name}.laz")
    assert len(np.unique(found["whole"])) > 3
    np.testing.assert_array_equal(found["reach"], found["whole"])
    away = np.minimum(*(np.minimum(columns[axis] % 25, 25 - columns[axis] % 25) for axis in "xy")) > 9.9
    np.testing.assert_array_equal(found["none"][away], found["whole"][away])
    assert 0.001 < (found["none"] != found["whole"]).mean() < 0.1
