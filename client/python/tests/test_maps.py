"""Tests the command voxserve.maps against a server whose labels depend on each point's neighbourhood."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import map_files
import numpy as np
import pytest
from conftest import REPOSITORY
from map_server import MapServer, scores_of

from voxserve import feature_warning
from voxserve.maps import labelling
from voxserve.maps.command import main
from voxserve.maps.tiles import Plan

laspy = map_files.laspy
NUMBER = 100_000
TILE, OVERLAP = 20.0, 2.0
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def columns() -> dict[str, np.ndarray[Any, Any]]:
    return map_files.cloud(NUMBER)


@pytest.fixture
def server() -> Iterator[MapServer]:
    fake = MapServer()
    yield fake
    fake.stop()


@pytest.fixture
def survey(columns: dict[str, Any], tmp_path: Path) -> Path:
    return map_files.write_las(tmp_path / "survey.laz", columns)


@pytest.fixture
def run(server: MapServer, capsys: pytest.CaptureFixture[str]) -> Run:
    def _run(*words: Any, model: str = "local") -> tuple[int, str, str]:
        try:
            status = main([*arguments(server, model), *map(str, words)])
        except SystemExit as stop:
            status = int(str(stop.code))
        out, err = capsys.readouterr()
        return status, out, err

    return _run


def arguments(server: MapServer, model: str = "local") -> list[str]:
    return ["--model", model, "--address", server.address, "--tile", str(TILE), "--overlap", str(OVERLAP)]


def codes(path: Path) -> Any:
    return np.asarray(laspy.read(path).classification)


def unsplit(columns: dict[str, Any]) -> Any:
    """Returns the classes that the server gives the cloud as a whole, whose origin is a multiple of 64 voxels."""
    xyz = np.stack([columns[axis] for axis in "xyz"], axis=1) - [499_968, 5_399_968, 288]
    return scores_of(xyz.astype(np.float32), columns["intensity"]).argmax(axis=1)


def from_seam(columns: dict[str, Any]) -> Any:
    """Returns each point's distance from the nearest side of a tile, in metres."""
    inside = [np.minimum(columns[axis] % TILE, TILE - columns[axis] % TILE) for axis in "xy"]
    return np.minimum(*inside)


def test_tiles_answer_as_the_whole_cloud_does(run: Run, survey: Path, columns: dict[str, Any], tmp_path: Path) -> None:
    status, out, _ = run(survey, "--save", tmp_path / "out.laz")
    assert status == 0
    assert "100,000 points in 25 tiles" in out
    expected, found = unsplit(columns), codes(tmp_path / "out.laz")
    assert 0.2 < expected.mean() < 0.8
    away = from_seam(columns) > OVERLAP
    np.testing.assert_array_equal(found[away], expected[away])
    assert (found == expected).mean() > 0.99
    assert run(survey, "--save", tmp_path / "cut.laz", "--overlap", 0)[0] == 0
    cut = codes(tmp_path / "cut.laz")
    assert (cut == expected).mean() < (found == expected).mean(), "overlap helps at the seams"
    far = from_seam(columns) > 1.0
    np.testing.assert_array_equal(cut[far], expected[far])


def test_neither_order_nor_number_in_flight_matters(
    run: Run, survey: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--passes", 2, "--turns", 2]
    assert run(survey, "--save", tmp_path / "a.laz", *words, "--concurrency", 1)[0] == 0
    expected = (tmp_path / "a.laz").read_bytes()
    assert run(survey, "--save", tmp_path / "b.laz", *words, "--concurrency", 7)[0] == 0
    assert (tmp_path / "b.laz").read_bytes() == expected
    normal = labelling.Count.run

    def shuffled(self: labelling.Count, concurrency: int, tell: labelling.Tell) -> None:
        order = list(self._plan.tiles)
        random.Random(5).shuffle(order)
        normal(self, concurrency, tell, order)

    monkeypatch.setattr(labelling.Count, "run", shuffled)
    assert run(survey, "--save", tmp_path / "c.laz", *words, "--concurrency", 3)[0] == 0
    assert (tmp_path / "c.laz").read_bytes() == expected


def test_a_killed_run_goes_on(server: MapServer, run: Run, survey: Path, tmp_path: Path) -> None:
    assert run(survey, "--save", tmp_path / "whole.laz", "--passes", 2)[0] == 0
    num_whole = len(server.clouds)
    expected = (tmp_path / "whole.laz").read_bytes()
    server.clouds.clear()
    server.pause = 0.05
    save = tmp_path / "out.laz"
    command = [sys.executable, "-m", "voxserve.maps", str(survey), "--save", str(save), "--passes", "2",
               *arguments(server)]  # fmt: skip
    for number in (1, 4, 12, 30):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            end = time.monotonic() + 60
            while len(server.clouds) < number and process.poll() is None and time.monotonic() < end:
                time.sleep(0.01)
            assert process.poll() is None
            process.kill()
        assert not save.exists()
        number_done = len(list((tmp_path / "out.laz.work" / "labels").glob("*.npy"))) if number > 20 else 1
        assert number_done > 0
    server.pause = 0
    assert run(survey, "--save", save, "--passes", 2)[0] == 0
    assert save.read_bytes() == expected
    assert len(server.clouds) <= num_whole + 4 * 2, "at most the tiles in flight were asked again"
    assert not (tmp_path / "out.laz.work").exists()


def test_a_run_that_is_killed_while_it_reads_goes_on(
    run: Run, survey: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labelling, "PIECE_POINTS", 7000)
    assert run(survey, "--save", tmp_path / "whole.laz")[0] == 0
    stored = labelling.Work.set_stored

    def stopping(self: Any, number: int, **more: Any) -> None:
        if number > 30_000:  # the points are in the spool, but not noted
            raise KeyboardInterrupt
        stored(self, number, **more)

    monkeypatch.setattr(labelling.Work, "set_stored", stopping)
    status, _, err = run(survey, "--save", tmp_path / "out.laz")
    assert status == 130
    assert "the same command goes on from there" in err
    for path in (tmp_path / "out.laz.work" / "points").iterdir():  # a write that was cut within a point
        with path.open("ab") as file:
            file.write(b"half")
    monkeypatch.setattr(labelling.Work, "set_stored", stored)
    assert run(survey, "--save", tmp_path / "out.laz")[0] == 0
    assert (tmp_path / "out.laz").read_bytes() == (tmp_path / "whole.laz").read_bytes()


def test_every_point_is_in_one_tile_and_few_requests_are_too_large(
    server: MapServer, run: Run, survey: Path, columns: dict[str, Any], tmp_path: Path
) -> None:
    server.max_points = 3000
    assert run(survey, "--save", tmp_path / "out.laz")[0] == 0
    assert max(len(cloud["x"]) for cloud in server.clouds) <= 3000
    confidence = np.asarray(laspy.read(tmp_path / "out.laz").confidence)
    assert (confidence > 0.4).all(), "each point has votes"
    assert (codes(tmp_path / "out.laz") == unsplit(columns)).mean() > 0.95


def test_a_place_that_cannot_be_divided_is_shared(server: MapServer, run: Run, tmp_path: Path) -> None:
    columns = map_files.cloud(20_000, size=1.0)
    survey = map_files.write_las(tmp_path / "dense.laz", columns)
    assert run(survey, "--save", tmp_path / "out.laz", "--tile_points", 3000)[0] == 0
    sizes = [len(cloud["x"]) for cloud in server.clouds]
    assert max(sizes) <= 3000
    assert (np.asarray(laspy.read(tmp_path / "out.laz").confidence) > 0.4).all()


@pytest.mark.parametrize("drops", [False, True])
def test_the_server_says_what_is_too_much(
    server: MapServer, run: Run, survey: Path, tmp_path: Path, drops: bool
) -> None:
    server.most_voxels, server.drops = 4000, drops
    assert run(survey, "--save", tmp_path / "out.laz")[0] == 0
    assert (np.asarray(laspy.read(tmp_path / "out.laz").confidence) > 0.4).all()
    server.most_voxels = 20
    status, _, err = run(survey, "--save", tmp_path / "other.laz")
    assert status == 1
    assert "are too many" in err


def test_coordinates_are_float64_until_the_tile(server: MapServer, run: Run, survey: Path, tmp_path: Path) -> None:
    assert run(survey, "--save", tmp_path / "out.laz", "--height", -1.75)[0] == 0
    for cloud in server.clouds:
        assert np.abs(cloud["x"]).max() < TILE / 2 + OVERLAP + 32, "the origin is a multiple of 64 voxels of 0.5 m"
        assert np.abs(np.quantile(cloud["z"], 0.01) + 1.75) <= 8, "64 voxels of 0.25 m"
        for axis in "xyz":
            fraction = (cloud[axis] - (0.25 if axis == "z" else 0)) * 1000
            np.testing.assert_allclose(fraction, np.round(fraction), atol=0.01)


def test_turned_copies(server: MapServer, run: Run, survey: Path, tmp_path: Path) -> None:
    assert run(survey, "--save", tmp_path / "a.laz", "--concurrency", 1)[0] == 0
    once = list(server.clouds)
    server.clouds.clear()
    assert run(survey, "--save", tmp_path / "b.laz", "--concurrency", 1, "--turns", 4)[0] == 0
    assert len(server.clouds) == 4 * len(once)
    first, second = server.clouds[0], server.clouds[1]
    np.testing.assert_array_equal(first["x"], once[0]["x"])
    np.testing.assert_allclose(second["x"], -first["y"], atol=1e-5)
    np.testing.assert_allclose(second["y"], first["x"], atol=1e-5)
    np.testing.assert_array_equal(second["intensity"], first["intensity"])


def test_fields_by_name_and_range(
    server: MapServer, run: Run, survey: Path, columns: dict[str, Any], tmp_path: Path
) -> None:
    status, _, err = run(survey, "--save", tmp_path / "a.laz", model="coloured")
    assert status == 0
    assert "intensity is intensity*1.5259e-05" in err
    assert "red is red*0.00389105" in err
    whole = {
        name: np.concatenate([cloud[name] for cloud in server.clouds]) for name in ("intensity", "red", "return_number")
    }
    assert 0.99 < whole["intensity"].max() <= 1
    assert 254 < whole["red"].max() <= 255
    assert set(whole["return_number"]) == {1, 2, 3}
    server.clouds.clear()
    words = ["--fields", "intensity=range*0.125+0.5"]
    assert run(survey, "--save", tmp_path / "b.laz", *words)[0] == 0
    sent = np.sort(np.concatenate([cloud["intensity"] for cloud in server.clouds]))
    assert sent.min() >= 0.5
    assert sent.max() == pytest.approx(columns["range"].max() * 0.125 + 0.5)
    status, _, err = run(survey, "--save", tmp_path / "c.laz", "--fields", "intensity=reflectance")
    assert status == 1
    assert "survey.laz: the fields say intensity=reflectance, but the points have intensity, return_number" in err


def test_a_dark_tile_is_not_warned_of(
    run: Run, columns: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_warning, "_told", set())
    dark = {name: values[:2000] for name, values in columns.items()}
    dark["intensity"] = dark["intensity"] % 200
    status, _, err = run(map_files.write_las(tmp_path / "a.laz", dark), "--save", tmp_path / "b.laz")
    assert status == 0, err
    assert "intensity is intensity*1.5259e-05" in err
    assert "warning" not in err


def test_a_model_that_needs_intensity(server: MapServer, run: Run, columns: dict[str, Any], tmp_path: Path) -> None:
    bare = {axis: columns[axis] for axis in "xyz"} | {"brightness": columns["intensity"]}
    survey = map_files.write_table(tmp_path / "bare.parquet", bare)
    assert run(survey, "--save", tmp_path / "a.laz")[0] == 0, "the model has a default"
    server.clouds.clear()
    status, _, err = run(survey, "--save", tmp_path / "b.laz", model="strict")
    assert status == 1
    assert "strict reads intensity, which the file does not have; its columns are brightness" in err
    assert "--fields intensity=COLUMN" in err
    assert not server.clouds
    assert run(survey, "--save", tmp_path / "c.laz", "--fields", "intensity=brightness*0.00001", model="strict")[0] == 0


def test_nan(server: MapServer, run: Run, columns: dict[str, Any], tmp_path: Path) -> None:
    broken = {name: values[:5000].copy() for name, values in columns.items() if name != "return_number"}
    broken["intensity"] = broken["intensity"] / np.float32(65535)
    broken["x"][3], broken["z"][7], broken["intensity"][9] = np.nan, np.inf, np.nan
    survey = map_files.write_ply(tmp_path / "a.ply", broken)
    status, out, _ = run(survey, "--save", tmp_path / "b.ply")
    assert status == 0
    assert "2 points have NaN or infinite coordinates" in out
    from voxserve import pieces

    with pieces.open_reader(tmp_path / "b.ply") as reader:
        (piece,) = reader.pieces(10_000)
        found = piece.column("classification")
        assert np.flatnonzero(found == 255).tolist() == [3, 7, 9]
        assert piece.column("confidence")[[3, 7, 9]].tolist() == [0, 0, 0]
        np.testing.assert_array_equal(piece.column("intensity"), broken["intensity"])


def test_integers_of_8_bytes_are_sent(
    server: MapServer, run: Run, columns: dict[str, Any], tmp_path: Path
) -> None:  # fmt: skip
    table = {axis: columns[axis][:2000] for axis in "xyz"} | {"intensity": np.arange(2000, dtype=np.int64) % 200}
    assert run(map_files.write_table(tmp_path / "a.parquet", table), "--save", tmp_path / "b.parquet")[0] == 0
    assert {value for cloud in server.clouds for value in cloud["intensity"].tolist()} == set(range(200))


def test_damaged_surveys(run: Run, survey: Path, tmp_path: Path) -> None:
    contents = survey.read_bytes()
    cases = {}
    (tmp_path / "cut.laz").write_bytes(contents[: len(contents) // 2])
    cases["cut.laz"] = "the header promises 100000 points, but only"
    few = {name: values[:10] for name, values in map_files.cloud(10).items()}
    map_files.promise(map_files.write_las(tmp_path / "billion.laz", few), 1_000_000_000)
    cases["billion.laz"] = "the header promises 1000000000 points, but only 0 can be read"
    map_files.write_las(tmp_path / "scale.laz", few)
    data = bytearray((tmp_path / "scale.laz").read_bytes())
    data[131:139] = np.array([1e8], "<f8").tobytes()
    (tmp_path / "scale.laz").write_bytes(data)
    cases["scale.laz"] = "the scale in the header is likely wrong"
    for name, message in cases.items():
        status, _, err = run(tmp_path / name, "--save", tmp_path / "out.laz")
        assert status == 1, name
        assert message in err
        assert not (tmp_path / "out.laz").exists()


@pytest.mark.parametrize(
    ("wkt", "metres"),
    [
        ("", 1.0),
        ('PROJCS["a",GEOGCS["b",UNIT["degree",0.0174532925199433]],UNIT["metre",1]]', 1.0),
        (
            'PROJCS["a",GEOGCS["b",UNIT["degree",0.0174532925199433]],UNIT["US survey foot",0.3048006096012192]]',
            0.3048006,
        ),
        ('GEOGCS["WGS 84",DATUM["c"],UNIT["degree",0.0174532925199433]]', None),
        ('COMPD_CS["q",PROJCS["a",UNIT["foot",0.3048]],VERT_CS["h",UNIT["metre",1]]]', 0.3048),
    ],
)
def test_units_of_the_coordinates(
    server: MapServer, run: Run, columns: dict[str, Any], tmp_path: Path, wkt: str, metres: float | None
) -> None:
    few = {name: values[:5000] for name, values in columns.items()}
    records = [map_files.laspy.vlrs.known.WktCoordinateSystemVlr(wkt)] if wkt else []
    survey = map_files.write_las(tmp_path / "a.laz", few, 6, vlrs=records)
    status, _, err = run(survey, "--save", tmp_path / "b.laz")
    if metres is None:
        assert status == 1
        assert "the coordinates are degrees" in err
        assert run(survey, "--save", tmp_path / "b.laz", "--metres_per_unit", 1)[0] == 0
        return
    assert status == 0
    spans = [np.ptp(cloud["x"]) for cloud in server.clouds]
    assert TILE < max(spans) <= TILE + 2 * OVERLAP
    assert len(spans) == 25 if metres == 1 else 4 <= len(spans) <= 9, "100 feet are 30.5 m"
    height = max(np.ptp(cloud["z"]) for cloud in server.clouds)
    assert height == pytest.approx(np.ptp(few["z"]) * (1 if "VERT_CS" in wkt else metres), rel=0.1)
    new = laspy.read(tmp_path / "b.laz")
    np.testing.assert_array_equal(new.X, laspy.read(survey).X)
    assert [r.string for r in new.header.vlrs if hasattr(r, "string")] == ([wkt] if wkt else [])


def test_quality_tools_need_no_new_answers(server: MapServer, run: Run, survey: Path, tmp_path: Path) -> None:
    save = tmp_path / "out.laz"
    assert run(survey, "--save", save, "--keep_work")[0] == 0
    raw = laspy.read(save)
    server.clouds.clear()
    words = ["--keep_work", "--unclassified_below", 0.55, "--codes", "road=11,car=64,unclassified=1"]
    assert run(survey, "--save", save, *words)[0] == 0
    new = laspy.read(save)
    doubtful = np.asarray(raw.confidence) < 0.55
    assert 0.01 < doubtful.mean() < 0.9
    sure = np.abs(np.asarray(raw.confidence) - 0.55) > 0.004  # the file has steps of 1/255
    np.testing.assert_array_equal(new.classification[doubtful & sure], 1)
    np.testing.assert_array_equal(
        new.classification[~doubtful & sure], np.array([11, 64])[raw.classification[~doubtful & sure]]
    )
    assert next(r for r in new.header.vlrs if r.record_id == 0).lookups == {1: "unclassified", 11: "road", 64: "car"}
    assert run(survey, "--save", save, "--keep_work", "--islands", 5)[0] == 0
    assert 0 < (codes(save) != raw.classification).mean() < 0.5
    assert not server.clouds


def test_islands_do_not_depend_on_tiles(run: Run, survey: Path, tmp_path: Path, columns: dict[str, Any]) -> None:
    from voxserve.maps.islands import Islands, absorb

    assert run(survey, "--save", tmp_path / "a.laz")[0] == 0
    assert run(survey, "--save", tmp_path / "b.laz", "--islands", 4, "--island_size", 0.5)[0] == 0
    xyz = np.stack([columns[axis] for axis in "xyz"], axis=1)
    expected = absorb(xyz, codes(tmp_path / "a.laz"), Islands(4, 0.5), 65535)
    np.testing.assert_array_equal(codes(tmp_path / "b.laz"), expected)


def test_a_tree_is_mirrored(server: MapServer, run: Run, columns: dict[str, Any], tmp_path: Path) -> None:
    few = {name: values[:2000] for name, values in columns.items()}
    for name in ("a/1.laz", "a/b/1.las", "c/2.ply", "c/3.e57", "c/4.parquet", "c/5.copc.laz"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write = {".ply": map_files.write_ply, ".e57": map_files.write_e57, ".parquet": map_files.write_table}
        write.get(path.suffix, map_files.write_las)(path, few)
    (tmp_path / "in" / "c" / "bad.laz").write_bytes(b"LASF")
    words = [tmp_path / "in", "--save", tmp_path / "out", "--manifest", tmp_path / "m.jsonl"]
    status, out, err = run(*words)
    assert status == 1
    assert "1 of 7 files failed" in err
    found = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*") if p.is_file())
    assert found == ["a/1.laz", "a/b/1.las", "c/2.ply", "c/3.e57", "c/4.parquet", "c/5.copc.laz"]
    rows = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert len(rows) == 7
    assert {row["points"] for row in rows if "error" not in row} == {2000}
    (bad,) = (row for row in rows if "error" in row)
    assert bad["file"].endswith("bad.laz")
    assert sum(rows[0]["classes"].values()) == 2000
    server.clouds.clear()
    (tmp_path / "in" / "c" / "bad.laz").unlink()
    assert run(*words)[0] == 0
    assert not server.clouds, "all copies are there"
    assert out.count("wrote ") == 6


@pytest.mark.parametrize("ending", ["label", "npy", "laz", "e57", "ply", "pcd", "parquet", "feather"])
def test_formats(run: Run, columns: dict[str, Any], tmp_path: Path, ending: str) -> None:
    few = {name: values[:3000] for name, values in columns.items()}
    survey = map_files.write_las(tmp_path / "a.laz", few)
    assert run(survey, "--save", tmp_path / "b.laz")[0] == 0
    assert run(survey, "--save", tmp_path / "out", "--format", ending)[0] == 0
    path = tmp_path / "out" / f"a.{ending}"
    from voxserve import label_file, pieces

    if ending in ("label", "npy"):
        found = label_file.read(path, 3000)
    else:
        with pieces.open_reader(path) as reader:
            found = next(iter(reader.pieces(5000))).column("classification")
    np.testing.assert_array_equal(found, codes(tmp_path / "b.laz"))


def test_a_copc_survey_stays_one(run: Run, columns: dict[str, Any], tmp_path: Path) -> None:
    assert run(map_files.write_las(tmp_path / "a.laz", columns, 7), "--save", tmp_path / "plain.laz")[0] == 0
    source = map_files.label(tmp_path / "a.laz", tmp_path / "in" / "a.copc.laz", {0: "nothing"})
    assert run(source.parent, "--save", tmp_path / "out")[0] == 0
    old, new, plain = (laspy.read(p) for p in (source, tmp_path / "out" / "a.copc.laz", tmp_path / "plain.laz"))
    assert type(new.header.vlrs[0]).__name__ == "CopcInfoVlr"
    for name in ("X", "Y", "Z", "gps_time", "intensity", "red", "range"):
        np.testing.assert_array_equal(new[name], old[name], name)
    np.testing.assert_array_equal(new.classification[np.argsort(new.gps_time)], plain.classification)
    with laspy.CopcReader.open(tmp_path / "out" / "a.copc.laz") as reader:
        assert len(reader.query()) == NUMBER


@pytest.mark.parametrize(
    ("given", "ending"),
    [("laz", "laz"), ("copc.laz", "copc.laz"), ("laz", "copc.laz"), ("e57", "e57"), ("parquet", "parquet")],
)
def test_a_run_that_is_killed_while_it_writes_goes_on(
    server: MapServer,
    run: Run,
    columns: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    ending: str,
) -> None:
    monkeypatch.setattr(labelling, "PIECE_POINTS", 30_000)
    plain = map_files.write_las(tmp_path / "a.laz", columns, 7)
    survey = plain if given == "laz" else map_files.label(plain, tmp_path / f"b.{given}", {0: "nothing"})
    assert run(survey, "--save", tmp_path / f"whole.{ending}")[0] == 0
    server.clouds.clear()
    (tmp_path / "out").mkdir()
    save = tmp_path / "out" / f"c.{ending}"
    command = [sys.executable, "-m", "voxserve.maps", str(survey), "--save", str(save), *arguments(server)]
    # The process is killed when it writes the third piece, or the third node of the octree that it makes.
    kind = "pieces.copc._CopcFile" if given != ending else f"pieces._writer_of({str(save)!r})"
    script = (
        "import os, runpy, sys; from voxserve import pieces; from voxserve.maps import labelling\n"
        "labelling.PIECE_POINTS = 30_000\n"
        f"kind = {kind}; write, count = kind.write, []\n"
        "def stopping(self, *piece):\n"
        "    count.append(1)\n"
        "    os._exit(9) if len(count) > 2 else write(self, *piece)\n"
        "kind.write = stopping; sys.argv[0] = 'voxserve.maps'\n"
        "runpy.run_module('voxserve.maps', run_name='__main__', alter_sys=True)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, *command[3:]], check=False).returncode == 9
    kinds = sorted(path.suffix for path in save.parent.iterdir())
    assert kinds == [".part", ".work"], "temporary files of an octree vanish with the process"
    server.clouds.clear()
    assert run(survey, "--save", save)[0] == 0
    assert not server.clouds, "no tile is asked again"
    assert list(save.parent.iterdir()) == [save]
    assert save.read_bytes() == (tmp_path / f"whole.{ending}").read_bytes()


@pytest.mark.parametrize("ending", ["e57", "parquet"])
def test_a_missing_library_is_told_before_anything_is_sent(
    server: MapServer, run: Run, survey: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setitem(sys.modules, {"e57": "pye57", "parquet": "pyarrow"}[ending], None)
    status, _, err = run(survey, "--save", tmp_path / f"a.{ending}")
    assert status == 1
    assert "pip install 'voxserve[maps]'" in err
    assert not server.clouds


def test_refusals(server: MapServer, run: Run, survey: Path, tmp_path: Path) -> None:
    status, _, err = run(survey, "--save", survey)
    assert status == 2
    assert "written over a cloud itself" in err
    status, _, err = run(survey, "--save", tmp_path / "out", "--format", "xyz")
    assert status == 2
    assert "--format xyz: .copc.laz, .las, .laz, .feather, .parquet, .e57, .ply, .pcd, .label and .npy" in err
    status, _, err = run(survey, "--save", tmp_path / "o.csv")
    assert status == 2
    assert "o.csv: .copc.laz, .las, .laz, .feather, .parquet, .e57, .ply, .pcd, .label and .npy can be written" in err
    (tmp_path / "folder.v1").mkdir()
    for folder in ("folder.v1", "folder.v2/", "run_2024.06.01"):
        assert run(survey, "--save", f"{tmp_path}/{folder}")[0] == 0
        assert (tmp_path / folder / survey.name).exists()
    status, _, err = run(survey, "--save", tmp_path / "o.laz", "--codes", "tree=5")
    assert status == 1
    assert "--codes names 'tree'; the model has road, car" in err
    status, _, err = run(survey, "--save", tmp_path / "o.laz", model="detector")
    assert status == 1
    assert "boxes alone" in err
    status, _, err = run(survey, "--save", tmp_path / "o.laz", "--overlap", 11)
    assert status == 2
    assert run(survey, "--save", tmp_path / "o.laz", "--keep_work")[0] == 0
    status, _, err = run(survey, "--save", tmp_path / "o.laz", "--turns", 2)
    assert status == 1
    assert "was begun with other settings (turns: 1, now 2)" in err
    assert run(survey, "--save", tmp_path / "o.laz")[0] == 0


def test_two_processes_do_not_share_a_folder(run: Run, survey: Path, tmp_path: Path) -> None:
    import fcntl

    folder = tmp_path / "o.laz.work"
    folder.mkdir()
    with (folder / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, _, err = run(survey, "--save", tmp_path / "o.laz")
    assert status == 1
    assert "another process works in this folder" in err


def test_an_empty_survey(run: Run, tmp_path: Path) -> None:
    survey = map_files.write_las(tmp_path / "a.laz", {name: v[:0] for name, v in map_files.cloud(1).items()})
    status, out, _ = run(survey, "--save", tmp_path / "b.laz")
    assert status == 0
    assert "0 points in 0 tiles" in out
    assert len(laspy.read(tmp_path / "b.laz")) == 0


def test_a_model_without_scores(run: Run, survey: Path, columns: dict[str, Any], tmp_path: Path) -> None:
    assert run(survey, "--save", tmp_path / "b.laz", model="labels")[0] == 0
    away = from_seam(columns) > OVERLAP
    np.testing.assert_array_equal(codes(tmp_path / "b.laz")[away], unsplit(columns)[away])


def test_urls(server: MapServer, run: Run, survey: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/maps/a/survey.laz", survey.read_bytes())
    assert run(survey, "--save", tmp_path / "b.laz")[0] == 0
    words = ["memory://maps", "--save", "memory://labelled", "--work", tmp_path / "work"]
    assert run(*words)[0] == 0
    assert memory.cat_file("/labelled/a/survey.laz") == (tmp_path / "b.laz").read_bytes()
    server.clouds.clear()
    assert run(*words)[0] == 0
    assert not server.clouds
    assert run("memory://maps", "--save", "memory://labelled")[0] == 2
    assert run(*words, "--format", "copc.laz")[0] == 0
    (tmp_path / "c.copc.laz").write_bytes(memory.cat_file("/labelled/a/survey.copc.laz"))
    with laspy.CopcReader.open(tmp_path / "c.copc.laz") as reader:
        assert len(reader.query()) == NUMBER


def test_plan_covers_every_point_once_per_pass(tmp_path: Path) -> None:
    from voxserve.maps.spool import Spool

    points = np.zeros(5000, [("index", "<u8"), ("x", "<f8"), ("y", "<f8"), ("z", "<f8")])
    points["index"] = np.arange(5000)
    points["x"], points["y"] = np.random.default_rng(1).normal(0, 30, (2, 5000))
    spool = Spool(tmp_path, points.dtype, 16.0)
    for first in range(0, 5000, 700):
        spool.append(points[first : first + 700])
    spool.split(200, 2.0)
    assert sum(spool.sizes.values()) == 5000
    assert max(size for leaf, size in spool.sizes.items() if leaf.level < 3) <= 200
    plan = Plan(spool, 1.0, 2)
    for number in (0, 1):
        seen = np.zeros(5000, int)
        for tile in plan.tiles:
            if tile.number == number:
                for part in plan.read(tile.rect(16.0)):
                    seen[part.points["index"].astype(int)] += 1
        assert (seen == 1).all()


def test_sigterm_ends_it_cleanly(server: MapServer, survey: Path, tmp_path: Path) -> None:
    server.pause = 0.2
    command = [
        sys.executable,
        "-m",
        "voxserve.maps",
        str(survey),
        "--save",
        str(tmp_path / "o.laz"),
        *arguments(server),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        end = time.monotonic() + 60
        while len(server.clouds) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; the same command goes on from there" in err
    assert "Traceback" not in err


@pytest.mark.integration
def test_real_server_labels_a_survey(real_server: str, tmp_path: Path) -> None:
    scans = REPOSITORY / "deploy" / "scans"
    points = np.fromfile(scans / "pandaset_070.bin", np.float32).reshape(-1, 4)
    truth = np.fromfile(scans / "pandaset_070.truth.u8", np.uint8)
    # The sensor stands in the middle of a tile, since this model reads x and y relative to the sensor.
    place = map_files.ORIGIN + np.array([25, 25, 0])
    columns = {axis: np.round(points[:, i] + place[i], 3) for i, axis in enumerate("xyz")}
    columns["intensity"] = np.rint(points[:, 3] * 65535).astype(np.uint16)
    survey = map_files.write_las(tmp_path / "a.laz", columns)
    words = ["--model", "minkunet", "--address", real_server, "--height", "-2.9", "--timeout", "5m"]
    assert main([str(survey), "--save", str(tmp_path / "b.laz"), *words]) == 0
    labelled = laspy.read(tmp_path / "b.laz")
    assert (np.asarray(labelled.classification) == truth)[truth != 255].mean() > 0.85, "0.948 as one scan"
    assert next(r for r in labelled.header.vlrs if r.record_id == 0).lookups[5] == "car"
