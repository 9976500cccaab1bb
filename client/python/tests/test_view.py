"""Tests python -m voxserve.view: its recordings of scans, bags and labelled bags, read back with Rerun's own reader."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import REPOSITORY, FakeServer

from voxserve.view import command, viewer

needs_rerun = pytest.mark.skipif(
    shutil.which("rerun") is None and not (Path(sys.executable).parent / "rerun").is_file(),
    reason="rerun-sdk is not installed (voxserve[view])",
)


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Returns a folder of three scans, one with a point that is not finite."""
    folder = tmp_path / "scans"
    folder.mkdir()
    points = np.fromfile(REPOSITORY / "deploy" / "scans" / "pandaset_070.bin", "<f4").reshape(-1, 4)
    for index in range(3):
        part = points[100 * index : 100 * index + 50].copy()
        part[0, 0] = np.nan if index == 1 else part[0, 0]
        part.tofile(folder / f"{index}.bin")
    return folder


@pytest.fixture
def view(server: FakeServer) -> Callable[..., int]:
    return lambda source, *more: command.main([str(source), "--address", server.address, *more])


def columns(path: Path) -> str:
    """Returns what Rerun's own program prints of a recording."""
    program = [sys.executable, "-m", "rerun_cli", "rrd"]
    subprocess.run([*program, "verify", str(path)], check=True, capture_output=True)
    printed = subprocess.run([*program, "print", "-vv", str(path)], check=True, capture_output=True, text=True)
    return printed.stdout


@needs_rerun
def test_folder_becomes_a_recording(
    scans: Path, view: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "a.rrd"
    assert view(scans, "--model", "both", "--record", str(record)) == 0
    assert capsys.readouterr().out == f"3 scans shown, in {record}\n"
    text = columns(record)
    for name in ("/world/points", "Points3D:class_ids", "/world/boxes", "Boxes3D:half_sizes", "Boxes3D:quaternions",
                 "/ms/round_trip", "/ms/server", "/ms/voxelize", "AnnotationContext"):  # fmt: skip
        assert name in text


@needs_rerun
def test_bag_and_labelled_bag(
    server: FakeServer, view: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bag_files = pytest.importorskip("bag_files")
    from voxserve.bag.command import main

    points = np.fromfile(REPOSITORY / "deploy" / "scans" / "pandaset_070.bin", "<f4").reshape(-1, 4)[:300]
    bag = bag_files.write(tmp_path / "drive.mcap", [points, points[:100]])
    record, labelled = tmp_path / "a.rrd", tmp_path / "labelled.mcap"
    assert view(bag, "--model", "minkunet", "--record", str(record)) == 0
    assert "Points3D:class_ids" in columns(record)
    assert main([str(bag), "--model", "minkunet", "--save", str(labelled), "--address", server.address]) == 0
    capsys.readouterr()
    assert view(labelled, "--record", str(record)) == 0
    assert capsys.readouterr().out == f"2 scans shown, in {record}\n"
    text = columns(record)
    assert "Points3D:colors" in text
    assert "stamp" in text
    assert "/ms/round_trip" in text


def test_a_field_that_the_points_lack(
    scans: Path, view: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bag_files = pytest.importorskip("bag_files")
    bag = bag_files.write(tmp_path / "drive.mcap", [np.zeros((3, 4), np.float32)])
    for source in (scans, bag):
        assert view(source, "--model", "minkunet", "--fields", "intensity=i", "--record", str(tmp_path / "a.rrd")) == 1
        assert "say intensity=i, but the points have x, y, z, intensity" in capsys.readouterr().err


@needs_rerun
def test_folder_that_grows_is_followed(scans: Path, server: FakeServer, tmp_path: Path) -> None:
    record = tmp_path / "a.rrd"
    arguments = ["-m", "voxserve.view", str(scans), "--follow", "--model", "minkunet", "--address", server.address]
    with subprocess.Popen([sys.executable, *arguments, "--record", str(record)]) as process:
        end = time.monotonic() + 60
        try:
            while len(server.requests) < 3 and time.monotonic() < end:
                time.sleep(0.05)
            (scans / "3.bin").write_bytes((scans / "0.bin").read_bytes())
            while len(server.requests) < 4 and time.monotonic() < end:
                time.sleep(0.05)
            time.sleep(0.5)
        finally:
            process.terminate()
        assert process.wait(30) == 130
    assert len(server.requests) == 4
    assert "/world/points" in columns(record)


@needs_rerun
def test_program_shows_its_own_stream(server: FakeServer, tmp_path: Path) -> None:
    import voxserve

    record = tmp_path / "a.rrd"
    points = np.ones((20, 4), np.float32)
    with (
        voxserve.Client(server.address) as client,
        client.stream("minkunet", policy="queue") as stream,
        viewer.Viewer(client.model("minkunet").classes, save=str(record)) as shown,
    ):
        for frame_id in range(3):
            stream.send(frame_id, points, stamp=1.7e9 + frame_id)
            result = next(stream)
            cloud = voxserve.PointCloud.from_array(points)
            shown.show(viewer.Shown.of_result(frame_id, cloud, result.segmentation, result.detections))
    assert "Points3D:class_ids" in columns(record)


@needs_rerun
def test_browsers_of_this_machine_alone(scans: Path, server: FakeServer) -> None:
    with viewer.Viewer((), web_port=19590) as shown:
        assert shown.address.startswith("http://127.0.0.1:19590/")
        process = shown._server
        assert process is not None
        assert process.poll() is None
        listening = Path("/proc/net/tcp").read_text().split()
        assert f"0100007F:{19590:04X}" in listening
        assert f"00000000:{19590:04X}" not in listening
        with pytest.raises(viewer.ViewError, match="port 19590 or 19591 is in use"):
            viewer.Viewer((), web_port=19590)
    assert process.poll() is not None


def test_statistics_stay_off() -> None:
    """Runs in a process of its own, since silence() changes where programs look for settings."""
    script = (
        "from voxserve.view.viewer import silence; import os; print(silence()); print(os.environ['XDG_CONFIG_HOME'])"
    )
    if shutil.which("rerun", path=str(Path(sys.executable).parent)):
        script += "; import subprocess, sys; subprocess.run([sys.executable, '-m', 'rerun_cli', 'analytics', 'config'])"
    else:
        script += "; print(open(os.environ['XDG_CONFIG_HOME'] + '/rerun/analytics.json').read())"
    made = subprocess.run([sys.executable, "-uc", script], check=True, capture_output=True, text=True)
    folder, home, settings = made.stdout.split("\n", 2)
    assert folder == home
    assert json.loads(settings)["analytics_enabled"] is False
    assert not Path(folder).exists()  # the temporary folder is removed when the process ends


def test_what_cannot_be_shown(
    scans: Path, view: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    broken = tmp_path / "broken.mcap"
    broken.write_bytes(b"\x89MCAP0\r\n" + b"x" * 100)
    model = ["--model", "minkunet"]
    for source, more, wanted in (
        (scans, [], "--model says who labels it"),
        (tmp_path / "nothing", model, "no such file or folder"),
        (empty, model, "the folder has no scans"),
        (scans, ["--model", "broken"], "broken version 3 is failed"),
        (broken, model, "the bag cannot be read"),
    ):
        assert view(source, *more) == 1
        error = capsys.readouterr().err
        assert error.startswith("voxserve.view: ")
        assert wanted in error or "voxserve[bag]" in error
    for more, wanted in (
        (["--record", "a.rrd", "--web", "9090"], "are one or another"),
        (["--sweeps", "2"], "--sweeps needs --pose"),
    ):
        with pytest.raises(SystemExit):
            view(scans, *model, *more)
        assert wanted in capsys.readouterr().err
    with pytest.raises(SystemExit):
        view(scans / "0.bin", *model, "--follow")
    assert "--follow needs a folder" in capsys.readouterr().err


def test_without_rerun(
    scans: Path, view: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    monkeypatch.setattr(viewer, "silence", lambda: "")
    assert view(scans, "--model", "minkunet") == 1
    assert "pip install 'voxserve[view]'" in capsys.readouterr().err
