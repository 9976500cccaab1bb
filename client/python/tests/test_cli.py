"""The command line against the fake server, whose labels alternate between road (0) and car (1)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import FakeServer

from voxserve.cli import progress, scan_jobs
from voxserve.cli.main import main
from voxserve.cli.report import format_time

Run = Callable[..., tuple[int, str, str]]
NUM_POINTS = 10


@pytest.fixture
def run(server: FakeServer, capsys: pytest.CaptureFixture[str]) -> Run:
    def _run(command: str, *words: Any) -> tuple[int, str, str]:
        try:
            status = main([command, *map(str, words), "--address", server.address])
        except SystemExit as stop:  # raised by argparse
            status = int(str(stop.code))
        out, err = capsys.readouterr()
        return status, out, err

    return _run


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    return write_scan(tmp_path / "scan.bin")


def write_scan(path: Path, num_points: int = NUM_POINTS, intensity: float = 0.5) -> Path:
    points = np.random.default_rng(6).uniform(-5, 5, (num_points, 4)).astype(np.float32)
    points[:, 3] = intensity
    path.write_bytes(points.tobytes())
    return path


def test_infer_prints_classes_stages_and_times(run: Run, scan: Path) -> None:
    status, out, err = run("infer", "--model", "minkunet", scan)
    assert (status, err) == (0, "")
    assert f"{scan}: 10 points in 9 voxels, labelled by minkunet version 3 on cpu" in out
    rows = [line.split()[:3] for line in out.splitlines() if line.startswith("  ")]
    assert ["road", "5", "50.0%"] in rows
    assert ["car", "5", "50.0%"] in rows
    assert "voxelize            1.50" in out
    assert "round trip" in out


def test_truth(run: Run, scan: Path, tmp_path: Path) -> None:
    truth = np.array([0, 1, 0, 0, 1, 255, 7, 1, 0, 1], np.uint8)  # the server's labels are 0 1 0 1 0 1 0 1 0 1
    (tmp_path / "scan.truth.u8").write_bytes(truth.tobytes())
    status, out, _ = run("infer", "--model", "m", scan, "--truth", tmp_path / "scan.truth.u8")
    assert status == 0
    assert "75.0% agree with the labels of people: 6 of 8 points (2 have none)" in out
    rows = [line.split()[:5] for line in out.splitlines()]
    assert ["road", "5", "50.0%", "4", "75.0%"] in rows
    assert ["car", "5", "50.0%", "4", "75.0%"] in rows


def test_json(run: Run, scan: Path, tmp_path: Path) -> None:
    (tmp_path / "t.label").write_bytes(np.arange(NUM_POINTS, dtype="<u4").tobytes())
    status, out, _ = run("infer", "--model", "m", scan, "--json", "--truth", tmp_path / "t.label")
    assert status == 0
    line = json.loads(out)
    assert (line["points"], line["used"], line["voxels"], line["model"], line["version"]) == (10, 10, 9, "m", 3)
    assert [(c["name"], c["points"], c["share"]) for c in line["classes"]] == [("road", 5, 0.5), ("car", 5, 0.5)]
    assert line["truth"]["points"] == 2
    assert line["truth"]["classes"] == {"road": {"points": 1, "agreeing": 1}, "car": {"points": 1, "agreeing": 1}}
    assert line["stages_ms"] == {"voxelize": 1.5}


def test_points_without_finite_logits(run: Run, scan: Path) -> None:
    status, out, _ = run("infer", "--model", "overflowing", scan)
    assert status == 0
    assert "not labelled: 2 without finite logits" in out
    assert "boxes left out: 3 candidates with NaN or infinite numbers" in out
    for model, points, boxes in [("overflowing", 2, 3), ("m", 0, 0)]:
        line = json.loads(run("infer", "--model", model, scan, "--json")[1])
        assert (line["not_finite"], line["boxes_not_finite"]) == (points, boxes)


def test_sample(run: Run, scan: Path) -> None:
    flags = ["--sample", "3", "--sample_start", "8", "--sample_use", "network"]
    status, out, _ = run("infer", "--model", "m", scan, "--json", *flags)
    assert status == 0
    line = json.loads(out)
    assert (line["sampled_points"], line["unsampled"]) == ([8, 9, 0], 7)
    out = run("infer", "--model", "m", scan, *flags)[1]
    assert "not labelled: 7 not in the sample" in out
    assert "sampled: 3 farthest points" in out
    assert "sampled" not in run("infer", "--model", "m", scan, "--json")[1]


@pytest.mark.parametrize(
    "flags", [["--sample", "0"], ["--sample_start", "1"], ["--sample_use", "network"], ["--sample_use", "all"]]
)
def test_a_sample_that_cannot_be(run: Run, scan: Path, flags: list[str]) -> None:
    status, _, err = run("infer", "--model", "m", scan, *flags)
    assert status == 2
    assert "--sample" in err


@pytest.mark.parametrize(("name", "dtype"), [("l.npy", None), ("l.label", "<u4")])
def test_save(run: Run, scan: Path, tmp_path: Path, name: str, dtype: str | None) -> None:
    assert run("infer", "--model", "m", scan, "--save", tmp_path / name)[0] == 0
    labels = np.load(tmp_path / name) if dtype is None else np.fromfile(tmp_path / name, dtype)
    np.testing.assert_array_equal(labels, np.arange(NUM_POINTS) % 2)


def test_boxes(run: Run, scan: Path, tmp_path: Path) -> None:
    saved = tmp_path / "boxes.json"
    status, out, err = run("infer", "--model", "detector", scan, "--save", saved)
    assert (status, err) == (0, "")
    assert f"{scan}: 10 points in 9 voxels, 10 boxes found by detector version 3 on cpu" in out
    rows = [line.split() for line in out.splitlines() if line.startswith("  ")]
    assert ["car", "5", "1.00"] in [row[:3] for row in rows]
    assert ["car", "0.33", "2.00", "-2.00", "0.50", "4.00", "2.00", "1.50", "14", "5.0"] in rows
    assert len(json.loads(saved.read_text())) == 10
    line = json.loads(run("infer", "--json", "--model", "detector", scan)[1])
    assert (len(line["boxes"]), line["boxes"][2]["class_name"], "classes" in line) == (10, "car", False)


def test_boxes_of_a_folder_are_added_up(run: Run, tmp_path: Path) -> None:
    for name in "ab":
        write_scan(tmp_path / f"{name}.bin", 30)
    status, out, _ = run("infer", "--model", "detector", tmp_path, "--save", tmp_path / "out")
    assert status == 0
    assert ["car", "30", "1.00"] in [line.split()[:3] for line in out.splitlines()]
    assert np.load(tmp_path / "out" / "b.npy").shape == (30,)
    assert "10 more; --json and --save have all" in run("infer", "--model", "detector", tmp_path / "a.bin")[1]


def test_labels_and_boxes_of_one_model(run: Run, server: FakeServer, scan: Path, tmp_path: Path) -> None:
    (tmp_path / "truth.u8").write_bytes(bytes([0, 1] * 5))
    saved = tmp_path / "boxes.json"
    status, out, err = run("infer", "--model", "both", scan, "--save", saved, "--truth", tmp_path / "truth.u8")
    assert (status, err) == (0, "")
    assert f"{scan}: 10 points in 9 voxels, labelled and 10 boxes found by both version 3 on cpu" in out
    rows = [line.split()[:3] for line in out.splitlines() if line.startswith("  ")]
    assert rows.index(["road", "5", "50.0%"]) < rows.index(["car", "5", "1.00"]) < rows.index(["box", "score", "x"])
    assert "100.0% agree with the labels of people" in out
    assert len(json.loads(saved.read_text())) == 10
    assert len(server.requests) == 1, "one request answers both"
    line = json.loads(run("infer", "--json", "--model", "both", scan)[1])
    assert ([found["points"] for found in line["classes"]], len(line["boxes"])) == ([5, 5], 10)
    for name, size in (("l.npy", 10), ("l.label", 40), ("b.csv", 0)):
        assert run("infer", "--model", "both", scan, "--save", tmp_path / name)[0] == 0
        if size:
            written = np.load(tmp_path / name).nbytes if name == "l.npy" else (tmp_path / name).stat().st_size
            assert written == size
        else:
            assert len((tmp_path / name).read_text().splitlines()) == 11


def test_labels_and_boxes_of_a_folder_are_added_up(run: Run, tmp_path: Path) -> None:
    for name in "ab":
        write_scan(tmp_path / f"{name}.bin", 30)
    status, out, _ = run("infer", "--model", "both", tmp_path, "--save", tmp_path / "out", "--format", "json")
    assert status == 0
    rows = [line.split()[:3] for line in out.splitlines()]
    assert rows.index(["car", "30", "50.0%"]) < rows.index(["car", "30", "1.00"])
    assert len(json.loads((tmp_path / "out" / "a.json").read_text())) == 30


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("both", "--save", "a.npz"),
            "both answers with labels, written as .npy or .label, and boxes, written as .json or .csv",
        ),
        (("both", "--tensor_type", "float16"), "needs --outputs, as both answers with labels and boxes"),
        (("detector", "--save", "a.label"), "detector answers with boxes, written as .json, .csv or .npy"),
        (("detector", "--tensor_type", "float16"), "--tensor_type needs --outputs, as detector answers with boxes"),
        (("detector", "--truth", "SCAN"), "--truth compares labels, but detector answers with boxes"),
        (("minkunet", "--save", "a.csv"), "minkunet answers with labels, written as .npy or .label"),
    ],
)
def test_what_is_not_of_the_model(
    run: Run, server: FakeServer, scan: Path, words: tuple[str, ...], message: str
) -> None:
    status, _, err = run("infer", scan, "--model", *(scan if word == "SCAN" else word for word in words))
    assert status == 2
    assert message in err
    assert server.requests == []
    assert "answers      boxes with velocities" in run("models", "detector")[1]


@pytest.mark.parametrize("model", ["broken", "loading"])
def test_of_a_version_that_is_not_ready_nothing_is_known(run: Run, scan: Path, model: str) -> None:
    for output in (("--save", "a.json"), ("--save", "a.label")):
        status, _, err = run("infer", scan, "--model", model, *output)
        assert status == 1
        assert f"the model is {model}" in err  # the server's message
    status, out, _ = run("models", model)
    assert status == 0
    assert "road" in out
    assert "answers" not in out
    assert "not labelled" not in out


def test_folders(run: Run, tmp_path: Path) -> None:
    scans = tmp_path / "drive"
    scans.mkdir()
    for number in range(5):
        write_scan(scans / f"{number}.bin", NUM_POINTS + number)
    (scans / "notes.txt").write_text("not a scan")
    status, out, err = run("infer", "--model", "m", scans, "--save", tmp_path / "labels")
    assert (status, err) == (0, "")
    assert "5 scans, 60 points" in out
    assert "wrote 5 files" in out
    assert sorted(p.name for p in (tmp_path / "labels").iterdir()) == [f"{n}.npy" for n in range(5)]
    assert len(np.load(tmp_path / "labels" / "4.npy")) == 14


def test_failures_in_a_folder_are_listed_and_the_rest_is_done(run: Run, tmp_path: Path) -> None:
    write_scan(tmp_path / "a.bin")
    (tmp_path / "b.bin").write_bytes(bytes(17))
    status, out, err = run("infer", "--model", "m", tmp_path)
    assert status == 1
    assert "1 scans, 10 points" in out
    assert "1 of 2 scans failed:" in err
    assert err.count("b.bin") == 1
    assert "17 bytes are not a whole number of 16-byte points" in err


def test_json_of_a_folder_has_a_line_for_each_scan(run: Run, tmp_path: Path) -> None:
    write_scan(tmp_path / "a.bin")
    (tmp_path / "b.bin").write_bytes(bytes(17))
    status, out, _ = run("infer", "--model", "m", tmp_path, "--json")
    lines = {Path(line["file"]).name: line for line in map(json.loads, out.splitlines())}
    assert status == 1
    assert lines["a.bin"]["points"] == 10
    assert lines["b.bin"]["error"]["code"] == "INVALID_ARGUMENT"


def test_truth_of_a_folder_is_added_up(run: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_scan(tmp_path / f"{name}.bin")
        (tmp_path / f"{name}.u8").write_bytes(bytes(NUM_POINTS))
    status, out, _ = run("infer", "--model", "m", tmp_path, "--truth", tmp_path)
    assert status == 0
    assert "50.0% agree with the labels of people: 10 of 20 points" in out


def test_implausible_intensities_are_warned_of(run: Run, tmp_path: Path) -> None:
    _, _, err = run("infer", "--model", "m", write_scan(tmp_path / "a.bin", intensity=80))
    assert "warning: intensities of" in err
    assert "reach 80, but m reads 0..1" in err


def test_a_field_of_another_name(run: Run, scan: Path, server: FakeServer) -> None:
    assert run("infer", "--model", "m", scan, "--fields", "x=y*2", "--fields", "y=x")[0] == 0
    fields = server.requests[-1].cloud.fields
    assert [(f.name, f.scale, f.offset) for f in fields[:2]] == [("y", 0, 0), ("x", 2, 4)]
    status, _, err = run("infer", "--model", "m", scan, "--fields", "intensty=intensity")
    assert status == 0
    assert err == "voxserve: warning: --fields names 'intensty', which m does not read; it reads x, y, z, intensity\n"
    status, _, err = run("infer", "--model", "m", scan, "--fields", "intensity=reflectivity")
    assert status == 1
    assert "scan.bin: the fields say intensity=reflectivity, but the points have x, y, z, intensity" in err
    status, _, err = run("infer", "--model", "m", scan, "--fields", "a=x", "--fields", "b=x")
    assert status == 2
    assert "the field 'x' gets two names" in err


def test_server_errors_say_what_to_do(run: Run, scan: Path) -> None:
    status, out, err = run("infer", "--model", "unknown", scan)
    assert (status, out) == (1, "")
    assert err == ("voxserve: no model 'unknown'; there is minkunet; python -m voxserve models lists what is served\n")


def test_json_errors(run: Run, scan: Path) -> None:
    status, out, err = run("infer", "--model", "busy", scan, "--json")
    assert status == 1
    assert json.loads(out)["error"] == {
        "code": "RESOURCE_EXHAUSTED",
        "reason": "QUEUE_FULL",
        "message": "the queue is full",
    }
    assert "the queue is full; try again with a lower --concurrency" in err


def test_timeout(run: Run, scan: Path) -> None:
    status, _, err = run("infer", "--model", "slow", scan, "--timeout", "200ms")
    assert status == 1
    assert "within 0.2 s; give it more with --timeout" in err


def test_models(run: Run) -> None:
    status, out, _ = run("models")
    assert status == 0
    assert [line.split() for line in out.splitlines()] == [
        ["model", "version", "state", "classes", "parameters", "device"],
        ["minkunet", "3", "ready", "2", "1,234", "cpu"],
        ["broken", "1", "failed", "2", "1,234", "cpu"],
        ["node", "'a':", "no", "input"],
        ["tensor", "'b'", "is", "missing"],
    ]


def test_one_model(run: Run) -> None:
    status, out, _ = run("models", "minkunet", "--version", "2")
    assert status == 0
    assert out.startswith("minkunet version 2: ready\n")
    for expected in ("0.5 x 0.5 x 0.25 m", "2,000,000 points", "x m, intensity 0..1 (default 0.5)", "#285aff"):
        assert expected in out


def test_health(run: Run, server: FakeServer) -> None:
    assert run("health") == (0, "serving\n", "")
    server.serving = False
    assert run("health", "--wait", "300ms") == (1, "not serving\n", "")


def test_health_of_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--address", "127.0.0.1:1"]) == 1
    assert "no server answers at 127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scan.bin"], "--model"),
        (["--model", "m"], "SCAN"),
        (["--model", "m", "x", "--fields", "x:f31"], "type 'f31' is none of"),
        (["--model", "m", "x", "--timeout", "10"], "must be a time such as 10s"),
        (["--model", "m", "x", "--timeout", "0s"], "must be a time such as 10s"),
        (["--model", "m", "x", "--concurrency", "0"], "must be a number from 1 to 256"),
        (["--model", "m", "x", "--nonsense"], "unrecognized arguments"),
    ],
)
def test_wrong_usage(run: Run, words: list[str], message: str) -> None:
    status, out, err = run("infer", *words)
    assert (status, out) == (2, "")
    assert message in err


def test_wrong_combinations(run: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_scan(tmp_path / f"{name}.bin")
    (tmp_path / "empty").mkdir()
    cases = [
        (["--save", "x.npy"], "is one file, but there are several"),
        (["--truth", tmp_path / "a.bin"], "is one file, but there are several"),
        (["--save", "x.txt"], "x.txt: .npy and .npz can be written, and folders; end the name of a folder with /"),
        ([tmp_path / "a.bin", "--save", tmp_path / "out"], "would both write"),
        ([tmp_path / "empty"], "the folder has no scans"),
    ]
    for words, message in cases:
        status, _, err = run("infer", "--model", "m", tmp_path, *words)
        assert status == 2, words
        assert message in err
    status, _, err = run("infer", "--model", "m", tmp_path / "missing.bin")
    assert status == 1
    assert "no such file or folder" in err


@pytest.mark.parametrize("name", ["out", "out.v2/", "run_2024.06.01"])
def test_a_new_folder_of_results_may_have_a_dot(tmp_path: Path, name: str) -> None:
    write_scan(tmp_path / "a.bin")
    jobs = scan_jobs.plan([str(tmp_path / "a.bin")], save=f"{tmp_path}/{name}")
    assert [job.save for job in jobs] == [str(tmp_path / name / "a.npy")]
    assert (tmp_path / name).is_dir()


def test_a_scan_is_never_written_over(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1, 3), np.float32))
    with pytest.raises(scan_jobs.UsageError, match="would be written over the scan itself"):
        scan_jobs.plan([str(tmp_path / "a.npy")], save=str(tmp_path))


def test_a_scan_is_never_written_over_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scans").mkdir()
    scan = tmp_path / "scans" / "a.npy"
    np.save(scan, np.zeros((1, 3), np.float32))
    (tmp_path / "link.npy").symlink_to(scan)
    (tmp_path / "folder").symlink_to(tmp_path / "scans")
    monkeypatch.chdir(tmp_path)
    names = [str(scan), "scans/a.npy", "./scans/../scans/a.npy", "link.npy", "folder/a.npy"]
    for read in names:
        for write in names:
            with pytest.raises(scan_jobs.UsageError, match="would be written over the scan itself"):
                scan_jobs.plan([read], save=write)
    for folder in ("scans", "folder", str(tmp_path / "scans")):
        with pytest.raises(scan_jobs.UsageError, match="would be written over the scan itself"):
            scan_jobs.plan(["scans"], save=folder)
    assert scan_jobs.plan(["scans"], save="labels")[0].save == str(Path("labels", "a.npy"))
    assert scan_jobs.plan(["scans"], save=str(Path("scans")), extension=".npz")[0].save == str(Path("scans", "a.npz"))


def test_labels_of_people_are_never_written_over(tmp_path: Path) -> None:
    write_scan(tmp_path / "a.bin")
    np.save(tmp_path / "a.npy", np.zeros(NUM_POINTS, np.uint8))
    with pytest.raises(scan_jobs.UsageError, match="would be written over the labels of people"):
        scan_jobs.plan([str(tmp_path / "a.bin")], save=str(tmp_path), truth=str(tmp_path))


def test_version_needs_a_name(run: Run) -> None:
    status, _, err = run("models", "--version", "1")
    assert status == 2
    assert "--version needs the model's name" in err


@pytest.mark.parametrize("words", [["help"], ["--help"], ["help", "infer"], ["infer", "--help"], ["help", "health"]])
def test_help_teaches(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "voxserve", *words], capture_output=True, text=True, check=True)
    assert "usage: python -m voxserve" in done.stdout
    if "infer" in words:
        for flag in ("model", "version", "fields", "save", "truth", "json", "timeout", "address"):
            assert f"--{flag}" in done.stdout
        assert "examples:" in done.stdout


def test_no_command_is_wrong_usage() -> None:
    done = subprocess.run([sys.executable, "-m", "voxserve"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "try:" in done.stderr


def test_a_closed_pipe_is_no_traceback(server: FakeServer, scan: Path) -> None:
    command = f"{sys.executable} -m voxserve infer --model m {scan} --address {server.address} | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_a_long_folder_says_how_far_it_has_come(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        write_scan(tmp_path / f"{name}.bin")
    assert run("infer", "--model", "m", tmp_path)[2] == ""
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0)
    lines = run("infer", "--model", "m", tmp_path)[2].splitlines()
    assert [line.partition(",")[0] for line in lines] == ["voxserve: 1/2 scans", "voxserve: 2/2 scans"]
    assert "left" in lines[0]


def test_times() -> None:
    assert (format_time(0.01234), format_time(1.236)) == ("12.3 ms", "1.24 s")
